/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The UCX transport: its table of calls, opening and closing, progress and the timer. The descriptor to sleep on is an epoll set of
 * two: that of UCX's worker, and a timer that is set only while something has a deadline.
 */
#include "transport/ucx/ucx.h"

#include "base/doorbell.h"
#include "base/log.h"
#include "transport/registry.h"
#include "transport/unmapped.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { PROGRESS_AT_ONCE = 16, CLOSE_MS = 200, LEAST_STEP = 64, LEAST_MINOR_V6 = 22 };

/* ---------------------------------------------------------------- time */

void ucx_transport_wake_at(ucx_transport_t *transport, uint64_t when)
{
    if (when >= transport->timer_at) return;
    struct itimerspec at = {.it_value = clock_timespec(when > 0 ? when : 1)}; /* 0 would be never */
    if (timerfd_settime(transport->timer, TFD_TIMER_ABSTIME, &at, NULL) == 0) transport->timer_at = when;
}

static void link_overdue(ucx_link_t *link)
{
    link->deadline = CLOCK_NEVER;
    switch (link->kind) {
    case UCX_STRANGER: ucx_stranger_overdue(link); break;
    case UCX_CALLER: ucx_link_touch(link); break; /* its endpoint's deadline tells */
    case UCX_FAREWELL: ucx_link_destroy(link); break;
    case UCX_PIPE: break;
    }
}

static int timer_ready(ucx_transport_t *transport)
{
    uint64_t now = clock_now(), wake = CLOCK_NEVER;
    if (transport->timer_at > now) return 0;
    doorbell_drain(transport->timer); /* it may not have rung, by a hair: it is set anew below */
    transport->timer_at = CLOCK_NEVER;
    for (list_t *node = transport->base.all.next, *next; node != &transport->base.all; node = next) {
        ucx_endpoint_t *endpoint = container_of(node, ucx_endpoint_t, base.node);
        next = node->next; /* a step frees at most this one */
        if (endpoint->base.life == ENDPOINT_COMING && endpoint->calling) ucx_call_step(endpoint, now);
    }
    for (list_t *node = transport->links.next, *next; node != &transport->links; node = next) {
        ucx_link_t *link = container_of(node, ucx_link_t, node);
        next = node->next;
        if (link->deadline <= now) link_overdue(link);
        else if (link->deadline < wake) wake = link->deadline;
    }
    ucx_transport_wake_at(transport, wake);
    return 1;
}

/* ---------------------------------------------------------------- opening */

static quoit_status_t failed(const ucx_transport_t *transport, const char *doing, ucs_status_t status)
{
    return error_set(QUOIT_ERR_NETWORK, "ucx: cannot %s: UCX %s says \"%s\"", doing, transport->ucx->version,
                     transport->ucx->ucs_status_string(status));
}

/*
 * UCX takes the address family of its own connections from its setting TCP_AF_PRIO and from what the device has, not from the address
 * that is listened on; where these differ, connecting fails at the other end, and UCX 1.13 then damages the heap. So only one family
 * is used: IPv4 where there is some. With 1.22 IPv6 works.
 */
static quoit_status_t choose_family(ucx_transport_t *transport)
{
    ip_choice_t *choice = &transport->choice;
    int kept = 0;
    for (int i = 0; i < choice->count; i++)
        if (choice->chosen[i].address.any.sa_family == AF_INET) choice->chosen[kept++] = choice->chosen[i];
    if (kept == 0 && transport->ucx->minor < LEAST_MINOR_V6)
        return error_set(QUOIT_ERR_UNSUPPORTED, "ucx: only IPv6 addresses were chosen (QUOIT_INTERFACE, QUOIT_IP_FAMILY), and UCX %s does "
                         "not connect over them; IPv4 or UCX %d.%d is needed", transport->ucx->version, UCX_API_MAJOR, LEAST_MINOR_V6);
    if (kept == 0 || kept == choice->count) return QUOIT_OK;
    log_info("ucx", "%d IPv6 addresses are not told to peers, since there are IPv4 ones (QUOIT_IP_FAMILY=6 takes only those)",
             choice->count - kept);
    choice->count = kept;
    return QUOIT_OK;
}

/*
 * The user's UCX_* variables and ucx.conf count. Only the cache of registrations is off unless they ask for it: the memory we give
 * to UCX is our own and stays, so there is nothing to gain from watching every munmap of the process. And a newer UCX, which estimates that over tcp it had better
 * copy a large message once more, in pieces of 8 KiB, is told to send it from where it lies.
 */
static quoit_status_t open_context(ucx_transport_t *transport)
{
    const ucx_library_t *ucx = transport->ucx;
    ucp_params_t parameters = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
        .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 0,
    };
    ucp_config_t *config;
    ucs_status_t status = ucx->ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) return failed(transport, "read its settings (UCX_*, ucx.conf)", status);
    if (!getenv("UCX_RCACHE_ENABLE")) ucx->ucp_config_modify(config, "RCACHE_ENABLE", "n");
    if (!getenv("UCX_ZCOPY_THRESH") && ucx->minor >= UCX_MINOR_PROTOCOLS) ucx->ucp_config_modify(config, "ZCOPY_THRESH", "16K");
    status = ucx->ucp_init_version(UCX_API_MAJOR, UCX_API_MINOR, &parameters, config, &transport->context);
    ucx->ucp_config_release(config);
    return status == UCS_OK ? QUOIT_OK : failed(transport, "open a context", status);
}

static quoit_status_t open_worker(ucx_transport_t *transport)
{
    ucp_worker_params_t parameters = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED, /* one at a time, not always the same */
    };
    ucs_status_t status = transport->ucx->ucp_worker_create(transport->context, &parameters, &transport->worker);
    if (status != UCS_OK) return failed(transport, "make a worker", status);
    status = transport->ucx->ucp_worker_get_efd(transport->worker, &transport->worker_fd);
    if (status != UCS_OK) return failed(transport, "get a descriptor to sleep on (do UCX_TLS's transports have one?)", status);
    return ucx_link_listen_messages(transport);
}

static quoit_status_t open_descriptors(ucx_transport_t *transport)
{
    struct epoll_event event = {.events = EPOLLIN};
    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    transport->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (transport->epoll < 0 || transport->timer < 0 || epoll_ctl(transport->epoll, EPOLL_CTL_ADD, transport->timer, &event) != 0 ||
        epoll_ctl(transport->epoll, EPOLL_CTL_ADD, transport->worker_fd, &event) != 0)
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "ucx: cannot make the descriptors to sleep on");
    return QUOIT_OK;
}

/* Say goodbye, as far as it goes in a short time; UCX needs progress for that, and for closing. */
static void wind_up(ucx_transport_t *transport)
{
    uint64_t deadline = clock_deadline(CLOSE_MS);
    for (list_t *node = transport->base.all.next; node != &transport->base.all; node = node->next)
        if (container_of(node, endpoint_t, node)->life == ENDPOINT_STANDING) endpoint_leave(container_of(node, endpoint_t, node));
    bool busy = true;
    while (busy && clock_now() < deadline) {
        transport->base.handle.ops->progress(&transport->base.handle);
        busy = false;
        for (list_t *node = transport->base.all.next; node != &transport->base.all; node = node->next)
            busy = busy || container_of(node, endpoint_t, node)->life == ENDPOINT_LEAVING;
        for (list_t *node = transport->links.next; node != &transport->links; node = node->next) {
            ucx_link_t *link = container_of(node, ucx_link_t, node);
            busy = busy || (link->kind == UCX_FAREWELL && !ucx_link_flush(link));
        }
    }
    endpoints_close(&transport->base);
    while (!list_is_empty(&transport->links)) ucx_link_destroy(container_of(transport->links.next, ucx_link_t, node));
    deadline = clock_deadline(CLOSE_MS);
    while (transport->closing > 0 && clock_now() < deadline) transport->ucx->ucp_worker_progress(transport->worker);
    for (int i = 0; i < transport->request_count; i++) /* no more come: they do in progress only */
        transport->ucx->ucp_listener_reject(transport->requests[i].listener->handle, transport->requests[i].handle);
    transport->request_count = 0;
}

/* What UCX's thread may be using is left as it is, for ever, where that thread cannot be held. */
static void close_ucx(ucx_transport_t *transport)
{
    const ucx_library_t *ucx = transport->ucx;
    ucx_hold_t hold;
    if (ucx_thread_hold(ucx, &hold) != QUOIT_OK) {
        log_warn("ucx", "%s; its listeners and its worker are left open", error_text());
        ucx_pool_destroy(transport);
        return;
    }
    for (int i = 0; i < transport->listener_count; i++) ucx->ucp_listener_destroy(transport->listeners[i].handle);
    ucx->ucp_worker_destroy(transport->worker);
    ucx_thread_release(&hold);
    ucx_pool_destroy(transport); /* UCX reads none of it any more, and its context must be there yet */
    ucx->ucp_cleanup(transport->context);
}

static void ucx_close(quoit_transport_t *base)
{
    ucx_transport_t *transport = (ucx_transport_t *)base;
    if (!transport) return;
    if (transport->worker) {
        wind_up(transport);
        close_ucx(transport);
    } else if (transport->context) {
        transport->ucx->ucp_cleanup(transport->context);
    }
    if (transport->epoll >= 0) close(transport->epoll);
    if (transport->timer >= 0) close(transport->timer);
    secrets_destroy(transport->jobs);
    table_destroy(transport->eps);
    free(transport);
}

static quoit_status_t ucx_open(const quoit_transport_environment_t *environment, quoit_transport_t **result)
{
    const ucx_library_t *ucx;
    quoit_status_t status = ucx_library_open(environment, &ucx);
    if (status != QUOIT_OK) return status;
    ucx_transport_t *transport = calloc(1, sizeof *transport);
    if (!transport) return error_set(QUOIT_ERR_NO_MEMORY, "ucx: no memory to open the transport");
    transport->ucx = ucx;
    transport->epoll = transport->timer = -1;
    transport->timer_at = CLOCK_NEVER;
    snprintf(transport->host, sizeof transport->host, "%s", environment->host ? environment->host : "?");
    list_t *lists[] = {&transport->links, &transport->ready, &transport->orphans, &transport->free_tasks, &transport->free_chunks};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) list_init(lists[i]);
    status = endpoints_open(&transport->base, &transport_ucx, &ucx_endpoint_ops, environment->self);
    if (status == QUOIT_OK) status = ip_settings_limits(environment, &transport->limits, &transport->connect_ms);
    transport->limits.sockets = 1;
    if (status == QUOIT_OK) status = ip_settings_interfaces(environment, "ucx", &transport->choice);
    if (status == QUOIT_OK) status = choose_family(transport);
    if (status == QUOIT_OK) status = secrets_create(&transport->jobs);
    if (status == QUOIT_OK) status = table_create(&transport->eps);
    if (status == QUOIT_OK) status = open_context(transport);
    if (status == QUOIT_OK) status = open_worker(transport);
    if (status == QUOIT_OK) status = open_descriptors(transport);
    if (status != QUOIT_OK) {
        ucx_close(&transport->base.handle);
        return status;
    }
    *result = &transport->base.handle;
    return QUOIT_OK;
}

static quoit_status_t ucx_probe(const quoit_transport_environment_t *environment, char *why, size_t capacity)
{
    const ucx_library_t *ucx;
    quoit_status_t status = ucx_library_open(environment, &ucx);
    if (capacity > 0) snprintf(why, capacity, "%s", status == QUOIT_OK ? "" : error_text());
    return status;
}

/* ---------------------------------------------------------------- progress */

static size_t link_step(ucx_link_t *link)
{
    switch (link->kind) {
    case UCX_STRANGER: ucx_stranger_step(link); break;
    case UCX_CALLER: ucx_caller_step(link); break;
    case UCX_PIPE: return ucx_pipe_step(link);
    case UCX_FAREWELL: ucx_farewell_step(link); break;
    }
    return LEAST_STEP;
}

/* UCX receives, and what it receives is read. */
static int worker_progress(ucx_transport_t *transport)
{
    uint64_t until = transport->counts.in_place + UCX_BUDGET;
    int done = 0;
    transport->progressing = true;
    while (done < PROGRESS_AT_ONCE && transport->backlog < UCX_BACKLOG && transport->counts.in_place < until &&
           transport->ucx->ucp_worker_progress(transport->worker) > 0)
        done++;
    transport->progressing = false;
    return done;
}

static int ucx_progress(quoit_transport_t *base)
{
    ucx_transport_t *transport = (ucx_transport_t *)base;
    int done = transport->timer_at == CLOCK_NEVER ? 0 : timer_ready(transport);
    done += worker_progress(transport);
    if (transport->request_count > 0) done += ucx_accept_requests(transport);
    list_t round; /* each link once: a step may put it onto the list again */
    list_init(&round);
    while (!list_is_empty(&transport->ready)) list_append(&round, list_pop(&transport->ready));
    for (size_t moved = 0; moved < UCX_BUDGET && !list_is_empty(&round); done++)
        moved += link_step(container_of(list_pop(&round), ucx_link_t, ready));
    while (!list_is_empty(&round)) list_append(&transport->ready, list_pop(&round));
    return done;
}

static bool ucx_idle(quoit_transport_t *base)
{
    ucx_transport_t *transport = (ucx_transport_t *)base;
    bool idle = true;
    for (list_t *node = transport->base.all.next; node != &transport->base.all; node = node->next)
        idle = ucx_endpoint_is_idle(container_of(node, ucx_endpoint_t, base.node)) && idle; /* each begins to flush */
    for (list_t *node = transport->links.next; node != &transport->links; node = node->next) {
        ucx_link_t *link = container_of(node, ucx_link_t, node);
        if (link->kind == UCX_FAREWELL) idle = ucx_link_flush(link) && idle;
    }
    return idle;
}

static int ucx_descriptor(quoit_transport_t *base) { return ((ucx_transport_t *)base)->epoll; }

static quoit_status_t ucx_arm(quoit_transport_t *base)
{
    ucx_transport_t *transport = (ucx_transport_t *)base;
    if (!list_is_empty(&transport->ready) || !list_is_empty(&transport->base.eventful) || transport->request_count > 0)
        return QUOIT_ERR_AGAIN;
    return transport->ucx->ucp_worker_arm(transport->worker) == UCS_OK ? QUOIT_OK : QUOIT_ERR_AGAIN;
}

static void ucx_disarm(quoit_transport_t *transport) { (void)transport; }

/* ---------------------------------------------------------------- the table */

const quoit_transport_ops_t transport_ucx = {
    .abi = QUOIT_TRANSPORT_ABI,
    .struct_size = sizeof(quoit_transport_ops_t),
    .name = "ucx",
    .flags = QUOIT_TRANSPORT_MESSAGE,
    .probe = ucx_probe,
    .open = ucx_open,
    .close = ucx_close,
    .listen = ucx_listen,
    .trust = ucx_trust,
    .distrust = ucx_distrust,
    .connect = ucx_connect,
    .endpoint_status = endpoint_status,
    .disconnect = endpoint_disconnect,
    .send = endpoint_send,
    .recv = endpoint_recv,
    .cancel = endpoints_cancel,
    .notify = endpoint_notify,
    .next_event = endpoints_next_event,
    .progress = ucx_progress,
    .idle = ucx_idle,
    .descriptor = ucx_descriptor,
    .arm = ucx_arm,
    .disarm = ucx_disarm,
    .reg = unregistered_reg,
    .dereg = unregistered_dereg,
    .share_alloc = unmapped_share_alloc,
    .share_free = unmapped_share_free,
    .share_root = unmapped_share_root,
    .export_memory = unmapped_export,
    .attach = unmapped_attach,
    .ring = unmapped_ring,
    .describe = endpoint_describe,
    .count = endpoint_count,
};
