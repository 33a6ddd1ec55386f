/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `pipes`: an example of a transport in a shared object of its own, and the one that the conformance suite loads as
 * QUOIT_TRANSPORT_PLUGIN. One Unix socket in the abstract namespace per pair of processes; framing and handshake are compiled into
 * the object, and it reaches the library through quoit_transport_environment_t only.
 */
#include "plugin_pipe.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const quoit_transport_ops_t pipe_ops_table;

/* ---------------------------------------------------------------- calls */

static size_t size_setting(const quoit_transport_environment_t *environment, const char *name, size_t fallback)
{
    const char *text = environment->setting(name);
    char *end;
    if (!text) return fallback;
    unsigned long long value = strtoull(text, &end, 10);
    if (*end == 'K' || *end == 'k') value <<= 10;
    if (*end == 'M' || *end == 'm') value <<= 20;
    return value ? (size_t)value : fallback;
}

static quoit_status_t pipes_probe(const quoit_transport_environment_t *environment, char *why, size_t capacity)
{
    (void)environment;
    if (capacity > 0) why[0] = 0;
    return QUOIT_OK;
}

static quoit_status_t pipes_open(const quoit_transport_environment_t *environment, quoit_transport_t **transport)
{
    pipe_transport_t *fresh = calloc(1, sizeof *fresh);
    if (!fresh) {
        environment->error("pipes: no memory for the transport");
        return QUOIT_ERR_NO_MEMORY;
    }
    fresh->base.ops = &pipe_ops_table;
    fresh->environment = *environment;
    fresh->eager_limit = size_setting(environment, "EAGER_LIMIT", 8192);
    fresh->eager_pool = size_setting(environment, "EAGER_POOL", 1 << 20);
    fresh->segment_size = size_setting(environment, "SEGMENT_SIZE", 1 << 18);
    fresh->listener = -1;
    list_init(&fresh->links);
    list_init(&fresh->endpoints);
    fresh->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (fresh->epoll < 0) {
        free(fresh);
        environment->error("pipes: cannot make an epoll descriptor");
        return QUOIT_ERR_SYSTEM;
    }
    *transport = &fresh->base;
    return QUOIT_OK;
}

static void pipes_close(quoit_transport_t *transport)
{
    if (!transport) return;
    pipe_transport_t *own = of_transport(transport);
    while (!list_is_empty(&own->endpoints)) pipe_endpoint_destroy(container_of(own->endpoints.next, pipe_endpoint_t, link));
    while (!list_is_empty(&own->links)) pipe_link_destroy(container_of(own->links.next, pipe_link_t, link));
    if (own->listener >= 0) close(own->listener);
    close(own->epoll);
    free(own);
}

static socklen_t address_make(quoit_process_id_t process, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "quoit-pipes-%016llx%016llx",
                          (unsigned long long)process.high, (unsigned long long)process.low);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static quoit_status_t pipes_listen(quoit_transport_t *transport, void *address, size_t *length)
{
    pipe_transport_t *own = of_transport(transport);
    struct sockaddr_un name;
    socklen_t name_length = address_make(own->environment.self, &name);
    if (*length < sizeof own->environment.self)
        return tell(own, error_set(QUOIT_ERR_INVALID, "pipes: no room for an address in %zu bytes", *length));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = own};
    if (fd < 0 || bind(fd, (struct sockaddr *)&name, name_length) != 0 || listen(fd, 64) != 0 ||
        epoll_ctl(own->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        error_set_errno(QUOIT_ERR_SYSTEM, errno, "pipes: cannot listen");
        if (fd >= 0) close(fd);
        return tell(own, QUOIT_ERR_SYSTEM);
    }
    own->listener = fd;
    memcpy(address, &own->environment.self, sizeof own->environment.self);
    *length = sizeof own->environment.self;
    return QUOIT_OK;
}

static void pipes_distrust(quoit_transport_t *transport, uint64_t job)
{
    pipe_transport_t *own = of_transport(transport);
    for (int i = 0; i < JOBS; i++)
        if (own->jobs[i].job == job) own->jobs[i].used = false;
}

static quoit_status_t pipes_trust(quoit_transport_t *transport, uint64_t job, const void *secret, size_t length)
{
    pipe_transport_t *own = of_transport(transport);
    if (length > HANDSHAKE_SECRET_CAPACITY) return tell(own, error_set(QUOIT_ERR_INVALID, "pipes: a secret of %zu bytes", length));
    pipes_distrust(transport, job);
    for (int i = 0; i < JOBS; i++) {
        if (own->jobs[i].used) continue;
        own->jobs[i].used = true;
        own->jobs[i].job = job;
        own->jobs[i].length = length;
        memcpy(own->jobs[i].secret, secret, length);
        return QUOIT_OK;
    }
    return tell(own, error_set(QUOIT_ERR_NO_MEMORY, "pipes: more than %d jobs", JOBS));
}

/* Begin our own try. Unix sockets connect at once or not at all. */
static quoit_status_t call_peer(pipe_transport_t *own, pipe_endpoint_t *endpoint, uint64_t job)
{
    struct sockaddr_un name;
    socklen_t length = address_make(endpoint->base.peer, &name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "%s: no socket", endpoint->name);
    if (connect(fd, (struct sockaddr *)&name, length) != 0) {
        error_set_errno(QUOIT_ERR_NETWORK, errno, "%s: cannot connect", endpoint->name);
        close(fd);
        return QUOIT_ERR_NETWORK;
    }
    pipe_link_t *link = pipe_link_create(own, fd);
    if (!link) {
        close(fd);
        return QUOIT_ERR_NO_MEMORY;
    }
    link->endpoint = endpoint;
    link->deadline = endpoint->deadline;
    endpoint->caller = link;
    for (int i = 0; i < JOBS; i++)
        if (own->jobs[i].used && own->jobs[i].job == job)
            return handshake_connect(&link->handshake, job, own->environment.self, endpoint->base.peer, 1, 0, own->jobs[i].secret,
                                     own->jobs[i].length);
    return error_set(QUOIT_ERR_INVALID, "%s: the secret of job %llx is not known", endpoint->name, (unsigned long long)job);
}

static quoit_status_t pipes_connect(quoit_transport_t *transport, const quoit_peer_t *peer, quoit_endpoint_t **endpoint)
{
    pipe_transport_t *own = of_transport(transport);
    pipe_endpoint_t *found = pipe_endpoint_find(own, peer->process);
    if (!found) {
        found = pipe_endpoint_create(own, peer->process, peer->name);
        if (!found) return tell(own, QUOIT_ERR_NO_MEMORY);
        found->deadline = clock_deadline(peer->timeout_ms);
        quoit_status_t status = call_peer(own, found, peer->job);
        if (status != QUOIT_OK) channel_fail(found->channel, status);
        tell(own, status);
    }
    found->connects++;
    *endpoint = &found->base;
    return QUOIT_OK;
}

static quoit_status_t pipes_endpoint_status(quoit_endpoint_t *endpoint)
{
    pipe_endpoint_t *own = of_endpoint(endpoint);
    quoit_status_t status = channel_status(own->channel);
    if (status != QUOIT_OK) return tell(of_transport(endpoint->transport), status);
    return own->standing ? QUOIT_OK : QUOIT_IN_PROGRESS;
}

static void pipes_disconnect(quoit_endpoint_t *endpoint)
{
    pipe_endpoint_t *own = of_endpoint(endpoint);
    if (--own->connects > 0) return;
    own->leaving = true;
    channel_close(own->channel);
}

static quoit_status_t pipes_send(quoit_endpoint_t *endpoint, quoit_key_t key, const void *buffer, size_t length,
                                 quoit_transfer_t *transfer)
{
    return tell(of_transport(endpoint->transport), channel_send(of_endpoint(endpoint)->channel, key, buffer, length, transfer));
}

static quoit_status_t pipes_recv(quoit_endpoint_t *endpoint, quoit_key_t key, void *buffer, size_t length, quoit_transfer_t *transfer)
{
    return tell(of_transport(endpoint->transport), channel_recv(of_endpoint(endpoint)->channel, key, buffer, length, transfer));
}

static void pipes_cancel(quoit_transport_t *transport, uint64_t comm)
{
    list_t *endpoints = &of_transport(transport)->endpoints;
    for (list_t *link = endpoints->next; link != endpoints; link = link->next)
        channel_cancel(container_of(link, pipe_endpoint_t, link)->channel, comm);
}

static quoit_status_t pipes_notify(quoit_endpoint_t *endpoint, const void *data, size_t length)
{
    return tell(of_transport(endpoint->transport), channel_notify(of_endpoint(endpoint)->channel, data, length));
}

static bool endpoint_event(pipe_endpoint_t *endpoint, quoit_event_t *event)
{
    *event = (quoit_event_t){.peer = endpoint->base.peer, .endpoint = &endpoint->base};
    if (channel_next_notice(endpoint->channel, &event->data, &event->length)) {
        event->type = QUOIT_EVENT_NOTICE;
        return true;
    }
    quoit_status_t status = channel_status(endpoint->channel);
    bool goodbye = channel_peer_closed(endpoint->channel);
    if (status == QUOIT_OK || endpoint->closed_told || (status == QUOIT_ERR_CLOSED && !goodbye)) return false;
    endpoint->closed_told = true;
    snprintf(endpoint->text, sizeof endpoint->text, "%s", error_text());
    event->type = QUOIT_EVENT_CLOSED;
    event->status = goodbye ? QUOIT_OK : status;
    event->text = endpoint->text;
    return true;
}

static bool pipes_next_event(quoit_transport_t *transport, quoit_event_t *event)
{
    list_t *endpoints = &of_transport(transport)->endpoints;
    for (list_t *link = endpoints->next; link != endpoints; link = link->next) {
        pipe_endpoint_t *endpoint = container_of(link, pipe_endpoint_t, link);
        if (!endpoint->leaving && endpoint_event(endpoint, event)) return true;
    }
    error_clear();
    return false;
}

static int endpoint_progress(pipe_transport_t *own, pipe_endpoint_t *endpoint)
{
    int handled = 0;
    if (endpoint->standing) {
        handled += channel_write(endpoint->channel, 0, BUDGET);
        handled += channel_read(endpoint->channel, 0, BUDGET);
        bool over = channel_status(endpoint->channel) != QUOIT_OK;
        uint32_t events = over ? 0 : EPOLLIN;
        if (channel_wants_write(endpoint->channel, 0)) events |= EPOLLOUT;
        if (events == 0 && endpoint->socket->watched)
            epoll_ctl(own->epoll, EPOLL_CTL_DEL, endpoint->socket->fd, NULL), endpoint->socket->watched = 0;
        else if (events) pipe_link_watch(own, endpoint->socket, events);
    } else if (!endpoint->caller && !endpoint->leaving && clock_now() >= endpoint->deadline &&
               channel_status(endpoint->channel) == QUOIT_OK) {
        error_set(QUOIT_ERR_TIMEOUT, "%s: the peer's connection did not come in time", endpoint->name);
        channel_fail(endpoint->channel, QUOIT_ERR_TIMEOUT);
        handled++;
    }
    if (endpoint->leaving && channel_idle(endpoint->channel)) {
        pipe_endpoint_destroy(endpoint);
        handled++;
    }
    return handled;
}

static int pipes_progress(quoit_transport_t *transport)
{
    pipe_transport_t *own = of_transport(transport);
    int handled = pipe_link_accept(own);
    for (list_t *link = own->links.next, *next; link != &own->links; link = next) {
        next = link->next;
        handled += pipe_link_progress(own, container_of(link, pipe_link_t, link));
    }
    for (list_t *link = own->endpoints.next, *next; link != &own->endpoints; link = next) {
        next = link->next;
        handled += endpoint_progress(own, container_of(link, pipe_endpoint_t, link));
    }
    tell(own, QUOIT_OK);
    return handled;
}

static bool pipes_idle(quoit_transport_t *transport)
{
    pipe_transport_t *own = of_transport(transport);
    for (list_t *link = own->endpoints.next; link != &own->endpoints; link = link->next)
        if (!channel_idle(container_of(link, pipe_endpoint_t, link)->channel)) return false;
    return true;
}

static int pipes_descriptor(quoit_transport_t *transport) { return of_transport(transport)->epoll; }

static quoit_status_t pipes_arm(quoit_transport_t *transport)
{
    pipe_transport_t *own = of_transport(transport);
    for (list_t *link = own->endpoints.next; link != &own->endpoints; link = link->next) {
        pipe_endpoint_t *endpoint = container_of(link, pipe_endpoint_t, link);
        if (endpoint->standing && channel_wants_write(endpoint->channel, 0)) pipe_link_watch(own, endpoint->socket, EPOLLIN | EPOLLOUT);
    }
    return QUOIT_OK;
}

static void pipes_disarm(quoit_transport_t *transport) { (void)transport; }

static quoit_status_t pipes_reg(quoit_transport_t *transport, const void *pointer, size_t length)
{
    (void)transport, (void)pointer, (void)length;
    return QUOIT_OK;
}

static void pipes_dereg(quoit_transport_t *transport, const void *pointer) { (void)transport, (void)pointer; }

static quoit_status_t unsupported(quoit_transport_t *transport)
{
    return tell(of_transport(transport), error_set(QUOIT_ERR_UNSUPPORTED, "pipes: no shared memory"));
}

static quoit_status_t pipes_share_alloc(quoit_transport_t *transport, size_t length, void **pointer)
{
    (void)length, (void)pointer;
    return unsupported(transport);
}

static void pipes_share_free(quoit_transport_t *transport, void *pointer) { (void)transport, (void)pointer; }

static quoit_status_t pipes_share_root(quoit_transport_t *transport, void **pointer)
{
    (void)pointer;
    return unsupported(transport);
}

static quoit_status_t pipes_export_memory(quoit_transport_t *transport, const void *pointer, size_t length, void *handle)
{
    (void)pointer, (void)length, (void)handle;
    return unsupported(transport);
}

static quoit_status_t pipes_attach(quoit_endpoint_t *endpoint, const void *handle, void **pointer, size_t *length)
{
    (void)handle, (void)pointer, (void)length;
    return unsupported(endpoint->transport);
}

static void pipes_ring(quoit_endpoint_t *endpoint) { (void)endpoint; }

static const char *pipes_describe(quoit_endpoint_t *endpoint) { return of_endpoint(endpoint)->name; }

static void pipes_count(quoit_endpoint_t *endpoint, uint64_t *sent, uint64_t *received)
{
    channel_count(of_endpoint(endpoint)->channel, sent, received);
}

static const quoit_transport_ops_t pipe_ops_table = {
    .abi = QUOIT_TRANSPORT_ABI,
    .struct_size = sizeof(quoit_transport_ops_t),
    .name = "pipes",
    .flags = QUOIT_TRANSPORT_MESSAGE | QUOIT_TRANSPORT_SAME_HOST,
    .probe = pipes_probe,
    .open = pipes_open,
    .close = pipes_close,
    .listen = pipes_listen,
    .trust = pipes_trust,
    .distrust = pipes_distrust,
    .connect = pipes_connect,
    .endpoint_status = pipes_endpoint_status,
    .disconnect = pipes_disconnect,
    .send = pipes_send,
    .recv = pipes_recv,
    .cancel = pipes_cancel,
    .notify = pipes_notify,
    .next_event = pipes_next_event,
    .progress = pipes_progress,
    .idle = pipes_idle,
    .descriptor = pipes_descriptor,
    .arm = pipes_arm,
    .disarm = pipes_disarm,
    .reg = pipes_reg,
    .dereg = pipes_dereg,
    .share_alloc = pipes_share_alloc,
    .share_free = pipes_share_free,
    .share_root = pipes_share_root,
    .export_memory = pipes_export_memory,
    .attach = pipes_attach,
    .ring = pipes_ring,
    .describe = pipes_describe,
    .count = pipes_count,
};

QUOIT_API const quoit_transport_ops_t *quoit_transport_plugin(void) { return &pipe_ops_table; }
