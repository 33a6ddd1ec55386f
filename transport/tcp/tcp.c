/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP transport: its table of calls, opening and closing, progress and the timer. One epoll set holds all its sockets, listening
 * ones included, and one timerfd, which is set only while something has a deadline: it is the descriptor to sleep on.
 */
#include "transport/tcp/tcp.h"

#include "base/log.h"
#include "transport/registry.h"
#include "transport/unmapped.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum {
    EVENTS_AT_ONCE = 16,
    LEAST_BUDGET = 16 * 1024,
    QUIET_NS = 200000, /* without a connection the kernel is asked this often only */
    QUIET_CALLS = 8    /* and the clock every so many calls: it costs as much as the rest of a round of polling over shared memory */
};

/* ---------------------------------------------------------------- time */

void tcp_transport_wake_at(tcp_transport_t *transport, uint64_t when)
{
    if (when >= transport->timer_at) return;
    struct itimerspec at = {.it_value = clock_timespec(when > 0 ? when : 1)}; /* 0 would be never */
    if (timerfd_settime(transport->timer->fd, TFD_TIMER_ABSTIME, &at, NULL) == 0) transport->timer_at = when;
}

static void timer_ready(tcp_transport_t *transport)
{
    uint64_t expirations, now = clock_now(), wake;
    if (read(transport->timer->fd, &expirations, sizeof expirations) < 0) return;
    transport->timer_at = CLOCK_NEVER;
    wake = tcp_strangers_wake(transport, now);
    if (transport->accept_at <= now) {
        transport->accept_at = CLOCK_NEVER;
        for (int i = 0; i < transport->listener_count; i++) tcp_socket_arm(transport->listeners[i], EPOLLIN);
    }
    for (list_t *node = transport->base.all.next, *next; node != &transport->base.all; node = next) {
        tcp_endpoint_t *endpoint = container_of(node, tcp_endpoint_t, base.node);
        next = node->next; /* waking frees at most this one */
        if (endpoint->wake <= now)
            tcp_endpoint_wake(endpoint, now);
        else if (endpoint->wake < wake)
            wake = endpoint->wake;
    }
    if (transport->accept_at < wake) wake = transport->accept_at;
    tcp_transport_wake_at(transport, wake);
}

/* ---------------------------------------------------------------- opening */

static quoit_status_t open_descriptors(tcp_transport_t *transport)
{
    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (transport->epoll < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "tcp: cannot make an epoll set");
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (timer < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "tcp: cannot make a timer");
    transport->timer = tcp_socket_create(transport, TCP_TIMER, timer, EPOLLIN);
    return transport->timer != NULL ? QUOIT_OK : QUOIT_ERR_SYSTEM;
}

static void tcp_close(quoit_transport_t *base)
{
    tcp_transport_t *transport = (tcp_transport_t *)base;
    if (transport == NULL) return;
    for (list_t *node = transport->base.all.next; node != &transport->base.all; node = node->next)
        tcp_endpoint_farewell(container_of(node, tcp_endpoint_t, base.node));
    endpoints_close(&transport->base);
    while (!list_is_empty(&transport->strangers)) tcp_socket_destroy(container_of(transport->strangers.next, tcp_socket_t, link));
    while (transport->listener_count > 0) tcp_socket_destroy(transport->listeners[--transport->listener_count]);
    tcp_socket_destroy(transport->timer);
    tcp_socket_bury(transport);
    if (transport->epoll >= 0) close(transport->epoll);
    tls_context_destroy(transport->tls);
    secrets_destroy(transport->jobs);
    free(transport);
}

quoit_status_t tcp_open(const quoit_transport_environment_t *environment, const tcp_times_t *times, quoit_transport_t **result)
{
    tcp_transport_t *transport = calloc(1, sizeof *transport);
    if (transport == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "tcp: no memory to open the transport");
    transport->times = *times;
    transport->epoll = -1;
    transport->timer_at = transport->accept_at = CLOCK_NEVER;
    snprintf(transport->host, sizeof transport->host, "%s", environment->host != NULL ? environment->host : "?");
    list_init(&transport->strangers);
    list_init(&transport->dirty);
    list_init(&transport->graveyard);
    list_init(&transport->buffered);
    quoit_status_t status = endpoints_open(&transport->base, &transport_tcp, &tcp_endpoint_ops, environment->self);
    if (status == QUOIT_OK) status = ip_settings_limits(environment, &transport->limits, &transport->connect_ms);
    if (status == QUOIT_OK) status = ip_settings_interfaces(environment, "tcp", &transport->choice);
    if (status == QUOIT_OK) status = tls_context_create(environment, "tcp", &transport->tls);
    if (status == QUOIT_OK) status = open_descriptors(transport);
    if (status == QUOIT_OK) status = secrets_create(&transport->jobs);
    if (status != QUOIT_OK) {
        tcp_close(&transport->base.handle);
        return status;
    }
    *result = &transport->base.handle;
    return QUOIT_OK;
}

static quoit_status_t open_with_defaults(const quoit_transport_environment_t *environment, quoit_transport_t **transport)
{
    const tcp_times_t times = TCP_TIMES_DEFAULT;
    return tcp_open(environment, &times, transport);
}

static quoit_status_t tcp_probe(const quoit_transport_environment_t *environment, char *why, size_t capacity)
{
    ip_interface_t *all = NULL;
    int count = 0, up = 0;
    (void)environment;
    quoit_status_t status = ip_interface_recent(&all, &count);
    for (int i = 0; i < count; i++) up += (all[i].flags & IFF_UP) != 0;
    free(all);
    if (status == QUOIT_OK && up > 0) return QUOIT_OK;
    if (capacity > 0) snprintf(why, capacity, "%s", status == QUOIT_OK ? "no network interface with an IP address is up" : error_text());
    return QUOIT_ERR_NOT_FOUND;
}

/* ---------------------------------------------------------------- progress */

/* Write what waits, some TCP_BUDGET bytes of it, each endpoint once. */
static int flush_dirty(tcp_transport_t *transport)
{
    uint64_t written = 0;
    int done = 0;
    list_t *last = transport->dirty.previous, *node;
    while (written < TCP_BUDGET && !list_is_empty(&transport->dirty)) {
        node = transport->dirty.next;
        uint64_t bytes = tcp_endpoint_flush(container_of(node, tcp_endpoint_t, dirty));
        written += bytes;
        done += bytes > 0;
        if (node == last) break;
    }
    return done;
}

static int socket_ready(tcp_socket_t *socket, uint32_t events, size_t budget)
{
    switch (socket->kind) {
    case TCP_LISTENER: tcp_accept_ready(socket); break;
    case TCP_TIMER: timer_ready(socket->transport); break;
    case TCP_STRANGER: tcp_stranger_ready(socket, events); break;
    case TCP_REFUSED: tcp_refused_ready(socket); break;
    case TCP_CALLER: tcp_call_ready(socket, events); break;
    case TCP_PIPE: return tcp_pipe_ready(socket, events, budget);
    case TCP_DEAD: return 0;
    }
    return 1;
}

static int tcp_progress(quoit_transport_t *base)
{
    tcp_transport_t *transport = (tcp_transport_t *)base;
    struct epoll_event events[EVENTS_AT_ONCE];
    int done = list_is_empty(&transport->dirty) ? 0 : flush_dirty(transport);
    if (!list_is_empty(&transport->buffered)) done += tcp_read_buffered(transport);
    bool quiet = list_is_empty(&transport->base.all) && list_is_empty(&transport->strangers) && !transport->due;
    if (quiet) { /* by the clock: calls may be far apart where processors are short, and whoever wraps this transport makes fewer of them */
        if (++transport->quiet_calls % QUIET_CALLS != 0) return done;
        uint64_t now = clock_now();
        if (now - transport->looked < QUIET_NS) return done;
        transport->looked = now;
    }
    transport->due = false;
    int count = epoll_wait(transport->epoll, events, EVENTS_AT_ONCE, 0);
    if (count <= 0) return done;
    size_t budget = (size_t)TCP_BUDGET / (size_t)count;
    if (budget < LEAST_BUDGET) budget = LEAST_BUDGET;
    for (int i = 0; i < count; i++) done += socket_ready(events[i].data.ptr, events[i].events, budget);
    if (!list_is_empty(&transport->dirty)) done += flush_dirty(transport);
    tcp_socket_bury(transport);
    return done;
}

static bool tcp_idle(quoit_transport_t *base)
{
    tcp_transport_t *transport = (tcp_transport_t *)base;
    for (list_t *node = transport->base.all.next; node != &transport->base.all; node = node->next)
        if (!tcp_endpoint_is_idle(container_of(node, tcp_endpoint_t, base.node))) return false;
    return true;
}

static int tcp_descriptor(quoit_transport_t *base) { return ((tcp_transport_t *)base)->epoll; }

static quoit_status_t tcp_arm(quoit_transport_t *base)
{
    tcp_transport_t *transport = (tcp_transport_t *)base;
    bool still = list_is_empty(&transport->dirty) && list_is_empty(&transport->base.eventful) && list_is_empty(&transport->buffered);
    transport->due = true; /* the last look before the sleep, and the first after it, are real ones */
    return still ? QUOIT_OK : QUOIT_ERR_AGAIN;
}

static void tcp_disarm(quoit_transport_t *transport) { ((tcp_transport_t *)transport)->due = true; }

/* ---------------------------------------------------------------- the table */

static const char *tcp_describe(quoit_endpoint_t *base)
{
    tcp_endpoint_t *endpoint = (tcp_endpoint_t *)base;
    return endpoint->base.life == ENDPOINT_COMING && endpoint->calling ? tcp_call_text(endpoint) : endpoint->base.description;
}

const quoit_transport_ops_t transport_tcp = {
    .abi = QUOIT_TRANSPORT_ABI,
    .struct_size = sizeof(quoit_transport_ops_t),
    .name = "tcp",
    .flags = QUOIT_TRANSPORT_MESSAGE | QUOIT_TRANSPORT_TLS,
    .probe = tcp_probe,
    .open = open_with_defaults,
    .close = tcp_close,
    .listen = tcp_listen,
    .trust = tcp_trust,
    .distrust = tcp_distrust,
    .connect = tcp_connect,
    .endpoint_status = endpoint_status,
    .disconnect = endpoint_disconnect,
    .send = endpoint_send,
    .recv = endpoint_recv,
    .cancel = endpoints_cancel,
    .notify = endpoint_notify,
    .next_event = endpoints_next_event,
    .progress = tcp_progress,
    .idle = tcp_idle,
    .descriptor = tcp_descriptor,
    .arm = tcp_arm,
    .disarm = tcp_disarm,
    .reg = unregistered_reg,
    .dereg = unregistered_dereg,
    .share_alloc = unmapped_share_alloc,
    .share_free = unmapped_share_free,
    .share_root = unmapped_share_root,
    .export_memory = unmapped_export,
    .attach = unmapped_attach,
    .ring = unmapped_ring,
    .describe = tcp_describe,
    .count = endpoint_count,
};
