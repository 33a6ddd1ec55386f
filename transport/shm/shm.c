/* SPDX-License-Identifier: Apache-2.0 */
/** Shared memory transport: the table of calls, open and close, and the calls that only pass on. See shm.h. */
#include "transport/shm/shm.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "transport/registry.h"
#include "transport/shm/shm_wait.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

static shm_transport_t *of(quoit_transport_t *base) { return (shm_transport_t *)base; }
static shm_endpoint_t *endpoint_of(quoit_endpoint_t *base) { return (shm_endpoint_t *)base; }

/* ---------------------------------------------------------------- settings */

typedef struct sizes {
    int64_t arena, mailbox, eager, pool, segment, lent; /* bytes */
    int64_t connect_timeout;                      /* microseconds */
} sizes_t;

/* Values as the environment has them, so that several engines of a test may differ; the process's own where it has none. */
static const char *setting_text(const quoit_transport_environment_t *environment, setting_id_t id)
{
    const char *name = setting_name(id) + strlen("QUOIT_");
    return environment->setting ? environment->setting(name) : NULL;
}

static quoit_status_t read_size(const quoit_transport_environment_t *environment, setting_id_t id, int64_t minimum, int64_t maximum,
                                int64_t *value)
{
    const char *text = setting_text(environment, id);
    if (text) return parse_size(setting_name(id), text, minimum, maximum, value);
    *value = setting_int(id);
    return QUOIT_OK;
}

static quoit_status_t read_sizes(const quoit_transport_environment_t *environment, sizes_t *sizes)
{
    const char *timeout = setting_text(environment, SETTING_CONNECT_TIMEOUT);
    sizes->connect_timeout = setting_int(SETTING_CONNECT_TIMEOUT);
    quoit_status_t status = timeout ? parse_duration(setting_name(SETTING_CONNECT_TIMEOUT), timeout, 1000, 600000000, &sizes->connect_timeout)
                                    : QUOIT_OK;
    if (!status) status = read_size(environment, SETTING_ARENA_SIZE, 1 << 20, (int64_t)SHM_ARENA_LIMIT, &sizes->arena);
    if (!status) status = read_size(environment, SETTING_MAILBOX_SIZE, SHM_MAILBOX_MIN, SHM_MAILBOX_MAX, &sizes->mailbox);
    if (!status) status = read_size(environment, SETTING_MESSAGE_POOL, 0, 256 << 20, &sizes->lent);
    if (!status) status = read_size(environment, SETTING_EAGER_LIMIT, SHM_EAGER_MIN, SHM_EAGER_MAX, &sizes->eager);
    if (!status) status = read_size(environment, SETTING_EAGER_POOL, SHM_POOL_MIN, SHM_POOL_MAX, &sizes->pool);
    if (!status) status = read_size(environment, SETTING_SEGMENT_SIZE, SHM_SEGMENT_MIN, SHM_SEGMENT_MAX, &sizes->segment);
    return status;
}

static size_t power_of_two(size_t at_least)
{
    size_t value = 1;
    while (value < at_least) value *= 2;
    return value;
}

/* ---------------------------------------------------------------- open and close */

static quoit_status_t probe(const quoit_transport_environment_t *environment, char *why, size_t capacity)
{
    sizes_t sizes;
    quoit_status_t status = read_sizes(environment, &sizes);
    if (!status) status = shm_arena_probe((size_t)sizes.arena);
    if (!status) return QUOIT_OK;
    if (capacity > 0) snprintf(why, capacity, "%s", error_text());
    return QUOIT_ERR_NOT_FOUND;
}

static void write_header(shm_transport_t *transport)
{
    shm_header_t *header = (shm_header_t *)(void *)shm_arena_base(transport->arena);
    header->size = shm_arena_size(transport->arena);
    header->process = transport->environment.self;
    header->version = SHM_HEADER_VERSION;
    header->flags = transport->registered ? 0 : SHM_FLAG_FENCE;
    header->pid = (uint32_t)getpid();
    header->magic = SHM_HEADER_MAGIC;
    transport->header = header;
}

static quoit_status_t open_descriptors(shm_transport_t *transport)
{
    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    transport->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (transport->epoll < 0 || transport->timer < 0) {
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "shm: cannot make an epoll or timer descriptor");
    }
    transport->pidfd = pidfd_open(getpid(), 0);
    if (transport->pidfd < 0) log_info("shm", "no pidfd here (%s): the end of a socket tells of a process's death", strerror(errno));
    quoit_status_t status = shm_watch(transport, transport->timer, EPOLLIN, &transport->timer_source);
    if (status || transport->environment.doorbell >= 0) return status;
    transport->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); /* the caller has none: the bell is part of our own descriptor */
    if (transport->bell < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "shm: cannot make an eventfd");
    transport->environment.doorbell = transport->bell;
    return shm_watch(transport, transport->bell, EPOLLIN, &transport->bell_source);
}

static void transport_init(shm_transport_t *transport, const quoit_transport_environment_t *environment, const sizes_t *sizes)
{
    transport->base.ops = &transport_shm;
    transport->owner = getpid();
    transport->environment = *environment;
    transport->mailbox_capacity = power_of_two((size_t)sizes->mailbox);
    transport->narrow_room = ring_bytes(transport->mailbox_capacity) < SHM_LARGE ? transport->mailbox_capacity : SHM_NARROW_PAGES * (size_t)sysconf(_SC_PAGESIZE) - ring_bytes(0);
    transport->loans.wanted = (size_t)sizes->lent;
    transport->loans.publish.way = (publish_way_t)setting_int(SETTING_PUBLISH);
    transport->limits = (shm_limits_t){.eager = (uint32_t)sizes->eager, .pool = (uint32_t)sizes->pool, .segment = (uint32_t)sizes->segment};
    transport->connect_timeout_ms = (int)(sizes->connect_timeout / 1000);
    transport->epoll = transport->timer = transport->listener = transport->pidfd = transport->bell = -1;
    transport->listener_source = SHM_SOURCE_LISTENER;
    transport->timer_source = SHM_SOURCE_TIMER;
    transport->bell_source = SHM_SOURCE_BELL;
    list_init(&transport->endpoints);
    list_init(&transport->active);
    list_init(&transport->events);
    list_init(&transport->links);
    list_init(&transport->dropped);
}

static void transport_close(quoit_transport_t *base);

static quoit_status_t transport_open(const quoit_transport_environment_t *environment, quoit_transport_t **result)
{
    sizes_t sizes;
    quoit_status_t status = read_sizes(environment, &sizes);
    if (status) return status;
    shm_transport_t *transport = calloc(1, sizeof *transport);
    if (!transport) return error_set(QUOIT_ERR_NO_MEMORY, "shm: out of memory");
    transport_init(transport, environment, &sizes);
    status = shm_arena_create((size_t)sizes.arena, &transport->arena);
    if (!status) status = table_create(&transport->by_process);
    if (!status) status = secrets_create(&transport->jobs);
    if (!status) status = open_descriptors(transport);
    if (status) {
        transport_close(&transport->base);
        return status;
    }
    transport->registered = shm_wait_register();
    if (!transport->registered) log_info("shm", "no membarrier here: peers fence before they look whether this process sleeps");
    write_header(transport);
    *result = &transport->base;
    return QUOIT_OK;
}

static void end_all(shm_transport_t *transport)
{
    list_t *node;
    while (!list_is_empty(&transport->endpoints)) {
        shm_endpoint_t *endpoint = container_of(transport->endpoints.next, shm_endpoint_t, node);
        error_set(QUOIT_ERR_CLOSED, "shm: the transport was closed while %s was connected", endpoint->name);
        shm_endpoint_end(endpoint, QUOIT_ERR_CLOSED);
        shm_endpoint_free(endpoint);
    }
    while ((node = list_pop(&transport->links))) {
        list_append(&transport->links, node);
        shm_link_drop(container_of(node, shm_link_t, node));
    }
    shm_reap(transport);
}

static void transport_close(quoit_transport_t *base)
{
    shm_transport_t *transport = of(base);
    if (!transport) return;
    transport->forked = transport->owner != getpid();
    end_all(transport);
    secrets_destroy(transport->jobs);
    const int descriptors[] = {transport->listener, transport->epoll, transport->timer, transport->pidfd, transport->bell};
    for (size_t i = 0; i < sizeof descriptors / sizeof *descriptors; i++) {
        if (descriptors[i] >= 0) close(descriptors[i]);
    }
    table_destroy(transport->by_process);
    shm_loans_close(&transport->loans);
    shm_arena_destroy(transport->arena);
    free(transport);
}

/* ---------------------------------------------------------------- connections */

static quoit_status_t transport_listen(quoit_transport_t *base, void *address, size_t *length)
{
    return shm_listener_open(of(base), address, length);
}

static void distrust(quoit_transport_t *base, uint64_t job) { secrets_remove(of(base)->jobs, job); }

static quoit_status_t trust(quoit_transport_t *base, uint64_t job, const void *secret, size_t length)
{
    shm_transport_t *transport = of(base);
    quoit_status_t status = secrets_put(transport->jobs, "shm", job, secret, length);
    if (status) return status;
    for (list_t *node = transport->links.next; node != &transport->links; node = node->next) {
        shm_link_t *link = container_of(node, shm_link_t, node);
        if (!link->endpoint && link->handshake.state == HANDSHAKE_WANTS_SECRET) link->retry = true;
    }
    transport->due = true;
    return QUOIT_OK;
}

/* The peer has a name now, if it connected to us before we knew it. */
static void rename_endpoint(shm_endpoint_t *endpoint, const char *name)
{
    if (name) snprintf(endpoint->name, sizeof endpoint->name, "%s", name);
}

static uint64_t deadline_of(const shm_transport_t *transport, const quoit_peer_t *peer)
{
    return clock_deadline(peer->timeout_ms == 0 ? transport->connect_timeout_ms : peer->timeout_ms);
}

static quoit_status_t check_peer(shm_transport_t *transport, const quoit_peer_t *peer, shm_address_t *address)
{
    quoit_status_t status = shm_address_parse(peer->address, peer->address_length, address);
    if (status) return status;
    if (!process_same(address->process, peer->process)) {
        return error_set(QUOIT_ERR_INVALID, "shm: the address of %s is of another process", peer->name ? peer->name : "a peer");
    }
    if (process_same(peer->process, transport->environment.self)) {
        return error_set(QUOIT_ERR_INVALID, "shm: a connection to this process itself; transport self is for that");
    }
    if (!secrets_has(transport->jobs, peer->job)) {
        return error_set(QUOIT_ERR_INVALID, "shm: no secret is known for job %016llx; trust it first", (unsigned long long)peer->job);
    }
    return QUOIT_OK;
}

/* Has the peer, or somebody who says so, begun a connection? */
static bool is_coming(const shm_transport_t *transport, quoit_process_id_t peer)
{
    for (const list_t *node = transport->links.next; node != &transport->links; node = node->next) {
        const shm_link_t *link = container_of(node, shm_link_t, node);
        if (link->incoming && !link->endpoint && process_same(link->handshake.peer, peer)) return true;
    }
    return false;
}

static void start(shm_transport_t *transport, shm_endpoint_t *endpoint, const quoit_peer_t *peer)
{
    (void)secrets_copy(transport->jobs, peer->job, &endpoint->secret); /* check_peer has found it */
    if (process_is_lower(transport->environment.self, peer->process) && !is_coming(transport, peer->process)) shm_link_dial(endpoint);
    else endpoint->dial_at = clock_deadline(SHM_PATIENCE_MS);
}

static quoit_status_t transport_connect(quoit_transport_t *base, const quoit_peer_t *peer, quoit_endpoint_t **result)
{
    shm_transport_t *transport = of(base);
    shm_address_t address;
    quoit_status_t status = check_peer(transport, peer, &address);
    if (status) return status;
    shm_endpoint_t *endpoint = table_get(transport->by_process, process_key(peer->process));
    /* One that the peer has left still has what it sent in that job; another job is one for which it connects anew. */
    bool found = endpoint && (!endpoint->farewell || endpoint->references == 0 || endpoint->job == peer->job);
    if (!found) {
        status = shm_endpoint_create(transport, peer->process, peer->name ? peer->name : "a process of this host", &endpoint);
        if (status) return status;
    }
    rename_endpoint(endpoint, peer->name);
    status = shm_endpoint_make_channel(endpoint, address.limits);
    if (status && found) return status;
    if (!status && (!found || endpoint->references == 0) && endpoint->state == SHM_CONNECTING) endpoint->deadline = deadline_of(transport, peer);
    if (!status && !found) start(transport, endpoint, peer);
    if (status) {
        endpoint->leaving = true;
        shm_endpoint_end(endpoint, status);
        shm_reap(transport);
        return status;
    }
    endpoint->leaving = false;
    endpoint->job = peer->job;
    endpoint->references++;
    if (endpoint->link && endpoint->link->phase == SHM_PHASE_DIALLING) shm_link_step(endpoint->link);
    *result = &endpoint->base;
    return QUOIT_OK;
}

static quoit_status_t endpoint_status(quoit_endpoint_t *base)
{
    const shm_endpoint_t *endpoint = endpoint_of(base);
    if (endpoint->state == SHM_CONNECTING) return QUOIT_IN_PROGRESS;
    if (endpoint->state == SHM_OPEN) return QUOIT_OK;
    return error_set(endpoint->status ? endpoint->status : QUOIT_ERR_CLOSED, "%s", endpoint->text);
}

static void disconnect(quoit_endpoint_t *base)
{
    shm_endpoint_t *endpoint = endpoint_of(base);
    if (!endpoint || --endpoint->references > 0) return;
    shm_transport_t *transport = of(endpoint->base.transport);
    shm_endpoint_leave(endpoint);
    shm_reap(transport);
}

/* ---------------------------------------------------------------- messages */

static quoit_status_t send_message(quoit_endpoint_t *base, quoit_key_t key, const void *buffer, size_t length, quoit_transfer_t *transfer)
{
    shm_endpoint_t *endpoint = endpoint_of(base);
    quoit_status_t status = channel_send(endpoint->channel, key, buffer, length, transfer);
    if (!status) shm_endpoint_flush(endpoint);
    return status;
}

static quoit_status_t receive_message(quoit_endpoint_t *base, quoit_key_t key, void *buffer, size_t length, quoit_transfer_t *transfer)
{
    shm_endpoint_t *endpoint = endpoint_of(base);
    quoit_status_t status = channel_recv(endpoint->channel, key, buffer, length, transfer);
    if (!status) shm_endpoint_flush(endpoint);
    return status;
}

static quoit_status_t notify(quoit_endpoint_t *base, const void *data, size_t length)
{
    shm_endpoint_t *endpoint = endpoint_of(base);
    quoit_status_t status = channel_notify(endpoint->channel, data, length);
    if (!status) shm_endpoint_flush(endpoint);
    return status;
}

static void cancel(quoit_transport_t *base, uint64_t comm)
{
    shm_transport_t *transport = of(base);
    for (list_t *node = transport->endpoints.next; node != &transport->endpoints; node = node->next) {
        shm_endpoint_t *endpoint = container_of(node, shm_endpoint_t, node);
        if (!endpoint->channel) continue;
        channel_cancel(endpoint->channel, comm);
        shm_endpoint_flush(endpoint);
    }
}

static bool idle(quoit_transport_t *base)
{
    shm_transport_t *transport = of(base);
    if (list_is_empty(&transport->active) && !transport->pending) return true; /* whoever has something to write is in one of the two */
    for (list_t *node = transport->endpoints.next; node != &transport->endpoints; node = node->next) {
        const shm_endpoint_t *endpoint = container_of(node, shm_endpoint_t, node);
        if (endpoint->state == SHM_ENDED || !endpoint->channel) continue;
        if (!channel_idle(endpoint->channel) || (endpoint->leaving && endpoint->state == SHM_CONNECTING)) return false;
    }
    return true;
}

static int descriptor(quoit_transport_t *base) { return of(base)->epoll; }

/* ---------------------------------------------------------------- memory */

static quoit_status_t reg(quoit_transport_t *base, const void *pointer, size_t length)
{
    (void)base, (void)pointer, (void)length;
    return QUOIT_OK; /* any memory will do: bytes are copied */
}

static void dereg(quoit_transport_t *base, const void *pointer) { (void)base, (void)pointer; }

static quoit_status_t share_alloc(quoit_transport_t *base, size_t length, void **pointer)
{
    return shm_arena_alloc(of(base)->arena, length, pointer);
}

static void share_free(quoit_transport_t *base, void *pointer) { shm_arena_free(of(base)->arena, pointer); }

static quoit_status_t share_root(quoit_transport_t *base, void **pointer)
{
    *pointer = shm_arena_base(of(base)->arena) + SHM_HEADER_SIZE;
    return QUOIT_OK;
}

static quoit_status_t export_memory(quoit_transport_t *base, const void *pointer, size_t length, void *handle)
{
    shm_transport_t *transport = of(base);
    uint64_t offset;
    if (!shm_arena_holds(transport->arena, pointer, length, &offset)) {
        return error_set(QUOIT_ERR_INVALID, "shm: %zu bytes at %p are not shared memory of this process (see share_alloc)", length, pointer);
    }
    shm_handle_write(transport->environment.self, offset, length, handle);
    return QUOIT_OK;
}

static quoit_status_t attach(quoit_endpoint_t *base, const void *handle, void **pointer, size_t *length)
{
    const shm_endpoint_t *endpoint = endpoint_of(base);
    uint64_t offset = SHM_HEADER_SIZE, bytes = QUOIT_ROOT_SIZE;
    if (!endpoint->peer || endpoint->state == SHM_CONNECTING) {
        return error_set(endpoint->state == SHM_ENDED ? QUOIT_ERR_CLOSED : QUOIT_ERR_AGAIN, "shm: %s is not connected", endpoint->name);
    }
    quoit_status_t status = handle ? shm_handle_parse(handle, endpoint->base.peer, endpoint->peer_size, &offset, &bytes) : QUOIT_OK;
    if (status) return status;
    *pointer = (unsigned char *)endpoint->peer + offset;
    *length = bytes;
    return QUOIT_OK;
}

static void ring(quoit_endpoint_t *base)
{
    shm_endpoint_t *endpoint = endpoint_of(base);
    if (endpoint->peer && endpoint->doorbell >= 0) shm_endpoint_ring(endpoint);
}

static const char *describe(quoit_endpoint_t *base)
{
    shm_endpoint_t *endpoint = endpoint_of(base);
    if (!endpoint->peer) return "shm, not connected";
    uint64_t borrowed = 0, pieces = 0;
    if (endpoint->channel) channel_count_loans(endpoint->channel, &borrowed, &pieces);
    snprintf(endpoint->description, sizeof endpoint->description, "shm pid %u, last on cpu %u, rings of %zu and %zu bytes, %llu pieces lent, %llu bytes borrowed",
             endpoint->peer->pid, __atomic_load_n(&endpoint->peer->cpu, __ATOMIC_RELAXED), endpoint->pipe.out_capacity, endpoint->pipe.in_capacity,
             (unsigned long long)pieces, (unsigned long long)borrowed);
    return endpoint->description;
}

static void count(quoit_endpoint_t *base, uint64_t *sent, uint64_t *received)
{
    const shm_endpoint_t *endpoint = endpoint_of(base);
    *sent = *received = 0;
    if (endpoint->channel) channel_count(endpoint->channel, sent, received);
}

const quoit_transport_ops_t transport_shm = {
    .abi = QUOIT_TRANSPORT_ABI,
    .struct_size = sizeof(quoit_transport_ops_t),
    .name = "shm",
    .flags = QUOIT_TRANSPORT_MESSAGE | QUOIT_TRANSPORT_MAP | QUOIT_TRANSPORT_SAME_HOST,
    .probe = probe,
    .open = transport_open,
    .close = transport_close,
    .listen = transport_listen,
    .trust = trust,
    .distrust = distrust,
    .connect = transport_connect,
    .endpoint_status = endpoint_status,
    .disconnect = disconnect,
    .send = send_message,
    .recv = receive_message,
    .cancel = cancel,
    .notify = notify,
    .next_event = shm_next_event,
    .progress = shm_progress,
    .idle = idle,
    .descriptor = descriptor,
    .arm = shm_arm,
    .disarm = shm_disarm,
    .reg = reg,
    .dereg = dereg,
    .share_alloc = share_alloc,
    .share_free = share_free,
    .share_root = share_root,
    .export_memory = export_memory,
    .attach = attach,
    .ring = ring,
    .describe = describe,
    .count = count,
};
