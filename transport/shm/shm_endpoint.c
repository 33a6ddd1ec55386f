/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Life of an endpoint: CONNECTING -> OPEN -> ENDED, then freed once nobody needs it. Ended is not over: the mailbox stays taken
 * until the peer has closed its socket, said goodbye or died, because until then the peer may still write to it. For that promise
 * this side shuts its socket for writing only after its own last byte into the peer's ring.
 */
#include "transport/shm/shm.h"

#include "base/clock.h"
#include "base/copy.h"
#include "base/doorbell.h"
#include "base/log.h"
#include "transport/shm/shm_wait.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static shm_transport_t *transport_of(const shm_endpoint_t *endpoint) { return (shm_transport_t *)endpoint->base.transport; }

/* ---------------------------------------------------------------- loans */

static loan_t lend(void *context, const void *data, size_t length, bool unasked, uint64_t *place)
{
    shm_endpoint_t *endpoint = context;
    shm_transport_t *transport = transport_of(endpoint);
    if (endpoint->state != SHM_OPEN) return LOAN_NONE;
    return shm_loans_lend(&transport->loans, transport->arena, &endpoint->debt, transport->open, data, length, unasked, place);
}

static const void *borrow(void *context, uint64_t place, size_t length)
{
    const shm_endpoint_t *endpoint = context;
    return shm_loans_borrow(endpoint->peer, endpoint->peer_size, place, length);
}

/* What no cache holds until it is read goes past them. */
static void take(void *to, const void *from, size_t length, uint64_t whole) { copy_bytes(to, from, length, whole >= copy_pays_past()); }

static void give_back(void *context, uint64_t place) { shm_loans_give_back(((shm_endpoint_t *)context)->peer, place); }

static const lend_ops_t lend_ops = {.piece = SHM_LOAN_SIZE, .lend = lend, .borrow = borrow, .take = take, .give_back = give_back, .least = SHM_LEND_LEAST};

/* All that could be written waits for a loan to come back, and none has. */
static bool starves(const shm_endpoint_t *endpoint)
{
    uint64_t place;
    if (!channel_starves(endpoint->channel)) return false;
    return lend((void *)(uintptr_t)endpoint, NULL, 0, false, &place) == LOAN_LATER;
}

/* ---------------------------------------------------------------- life */

quoit_status_t shm_endpoint_create(shm_transport_t *transport, quoit_process_id_t process, const char *name, shm_endpoint_t **endpoint)
{
    shm_endpoint_t *made = calloc(1, sizeof *made);
    if (!made) return error_set(QUOIT_ERR_NO_MEMORY, "shm: out of memory for an endpoint");
    made->base.transport = &transport->base;
    made->base.peer = process;
    made->source = SHM_SOURCE_PIDFD;
    made->slot = made->doorbell = made->pidfd = -1;
    made->dial_at = CLOCK_NEVER;
    snprintf(made->name, sizeof made->name, "%s", name);
    list_init(&made->active);
    list_init(&made->events);
    quoit_status_t status = table_put(transport->by_process, process_key(process), made);
    if (status) {
        free(made);
        return status;
    }
    list_append(&transport->endpoints, &made->node);
    transport->pending = transport->due = true;
    *endpoint = made;
    return QUOIT_OK;
}

quoit_status_t shm_endpoint_make_channel(shm_endpoint_t *endpoint, shm_limits_t peer)
{
    shm_transport_t *transport = transport_of(endpoint);
    shm_limits_t limits = shm_limits_least(transport->limits, peer);
    if (endpoint->channel) {
        if (memcmp(&limits, &endpoint->limits, sizeof limits) == 0) return QUOIT_OK;
        return error_set(QUOIT_ERR_PROTOCOL, "shm: %s gave one eager limit, pool and segment size in its address (%u, %u, %u) and another now "
                         "(%u, %u, %u)",
                         endpoint->name, endpoint->limits.eager, endpoint->limits.pool, endpoint->limits.segment, limits.eager, limits.pool,
                         limits.segment);
    }
    channel_config_t config = {.ops = &ring_pipe_ops,
                               .eager_limit = limits.eager,
                               .eager_pool = limits.pool,
                               .segment_size = limits.segment,
                               .lend = &lend_ops,
                               .lend_context = endpoint,
                               .in_memory = true};
    quoit_status_t status = channel_create(&config, endpoint->name, &endpoint->channel);
    if (!status) endpoint->limits = limits;
    return status;
}

/*
 * A mailbox has memory behind its first pages only, until more comes through it: most pairs of a host's ranks, which share windows, exchange a goodbye and
 * nothing else. The peer is kept from the rest as from bytes that are not read yet.
 */
quoit_status_t shm_endpoint_make_mailbox(shm_endpoint_t *endpoint)
{
    shm_transport_t *transport = transport_of(endpoint);
    size_t room = transport->narrow_room, bytes = ring_bytes(transport->mailbox_capacity);
    int slot = 0;
    if (endpoint->mailbox) return QUOIT_OK;
    while (slot < SHM_MAX_PEERS && transport->slots[slot]) slot++;
    if (slot == SHM_MAX_PEERS) {
        return error_set(QUOIT_ERR_NO_MEMORY, "shm: no more than %d peers on one host can be joined", SHM_MAX_PEERS);
    }
    quoit_status_t status = shm_arena_alloc_bare(transport->arena, bytes, ring_bytes(room), &endpoint->mailbox);
    if (status) return error_prefix(status, "here is no memory for the mailbox of %s", endpoint->name);
    if (room < transport->mailbox_capacity) ring_narrow(endpoint->mailbox, transport->mailbox_capacity, room);
    transport->slots[slot] = endpoint;
    if (slot >= transport->slot_limit) transport->slot_limit = slot + 1;
    __atomic_store_n(&transport->header->mail[slot], 0, __ATOMIC_RELAXED);
    endpoint->slot = slot;
    return QUOIT_OK;
}

/* next_event may have something to tell. */
static void announce(shm_endpoint_t *endpoint)
{
    shm_transport_t *transport = transport_of(endpoint);
    if (!endpoint->leaving && list_is_empty(&endpoint->events)) list_append(&transport->events, &endpoint->events);
}

void shm_endpoint_activate(shm_endpoint_t *endpoint)
{
    shm_transport_t *transport = transport_of(endpoint);
    if (endpoint->state == SHM_OPEN && list_is_empty(&endpoint->active)) list_append(&transport->active, &endpoint->active);
}

void shm_endpoint_open(shm_endpoint_t *endpoint)
{
    void *pipe = &endpoint->pipe;
    endpoint->state = SHM_OPEN;
    job_secret_wipe(&endpoint->secret);
    transport_of(endpoint)->open++;
    channel_open(endpoint->channel, endpoint->name, &pipe, 1);
    log_debug("shm", "%s: connected", endpoint->name);
    shm_endpoint_activate(endpoint); /* its first bytes may have come before it was open */
    if (endpoint->leaving) channel_close(endpoint->channel);
    shm_endpoint_flush(endpoint);
}

void shm_endpoint_ring(shm_endpoint_t *endpoint)
{
    if (shm_wait_asleep(endpoint->peer, endpoint->fence)) doorbell_ring(endpoint->doorbell);
}

static void drop_watches(shm_endpoint_t *endpoint)
{
    shm_transport_t *transport = transport_of(endpoint);
    shm_link_drop(endpoint->link);
    endpoint->link = NULL;
    shm_unwatch(transport, endpoint->pidfd);
    if (endpoint->pidfd >= 0) close(endpoint->pidfd);
    endpoint->pidfd = -1;
}

/* The peer's goodbye: neither side writes any more. What came before it may still be taken, so the endpoint goes on until it is. */
static void check_goodbye(shm_endpoint_t *endpoint)
{
    if (!endpoint->farewell) {
        endpoint->farewell = endpoint->gone = true;
        endpoint->doubt = false;
        drop_watches(endpoint);
        announce(endpoint);
    }
    if (endpoint->leaving || channel_peer_closed(endpoint->channel)) shm_endpoint_end(endpoint, QUOIT_OK);
}

/* The channel has failed, the peer has said goodbye, or our own is out. */
static void check_channel(shm_endpoint_t *endpoint)
{
    if (endpoint->state != SHM_OPEN) return;
    quoit_status_t status = channel_status(endpoint->channel);
    if (status == QUOIT_ERR_CLOSED) {
        check_goodbye(endpoint);
    } else if (status) {
        shm_endpoint_end(endpoint, status);
    } else if (endpoint->leaving && channel_idle(endpoint->channel)) {
        error_set(QUOIT_ERR_CLOSED, "shm: connection to %s was closed by this side", endpoint->name);
        shm_endpoint_end(endpoint, QUOIT_ERR_CLOSED);
    }
}

static void tell_peer(shm_endpoint_t *endpoint)
{
    endpoint->told = endpoint->pipe.out_written;
    shm_wait_order(endpoint->fence);
    if (__atomic_load_n(endpoint->peer_mail, __ATOMIC_RELAXED) != SHM_MAIL_FOLLOWED)
        __atomic_store_n(endpoint->peer_mail, SHM_MAIL_MARKED, __ATOMIC_RELEASE);
    shm_endpoint_ring(endpoint);
}

int shm_endpoint_flush(shm_endpoint_t *endpoint)
{
    if (endpoint->state != SHM_OPEN) return 0;
    int done = 0;
    bool more = channel_wants_write(endpoint->channel, 0);
    /* Told piece by piece: the peer reads one while the next is written. */
    for (int turn = 0; turn < SHM_FLUSH_TURNS && (more || shm_endpoint_has_untold(endpoint)); turn++) {
        if (more) {
            done += channel_write(endpoint->channel, 0, SHM_LOAN_SIZE);
            more = channel_wants_write(endpoint->channel, 0);
        }
        if (!shm_endpoint_has_untold(endpoint)) break;
        tell_peer(endpoint);
    }
    if (more) shm_endpoint_activate(endpoint);
    check_channel(endpoint);
    return done;
}

/*
 * When half of what the peer may write has been read: memory for the rest. What was read counts, not what was seen written before: a peer that
 * has filled its room meanwhile marks nothing any more, and nobody would look here again.
 */
static void widen(shm_endpoint_t *endpoint)
{
    shm_transport_t *transport = transport_of(endpoint);
    ring_pipe_t *pipe = &endpoint->pipe;
    if (endpoint->state != SHM_OPEN || pipe->in_read < transport->narrow_room / 2) return;
    quoit_status_t status = shm_arena_back(transport->arena, endpoint->mailbox, ring_bytes(pipe->in_capacity));
    if (status) {
        shm_endpoint_end(endpoint, error_prefix(status, "here is no memory for the mailbox of %s", endpoint->name));
        return;
    }
    ring_widen(pipe);
    shm_endpoint_ring(endpoint); /* it may sleep on what was full */
}

/*
 * Read, and if that made room that the peer may be waiting for, wake it. The peer sleeps on a full ring only if it saw it full, at
 * some position of ours between `start` and now; so what it has written since reaches `start` + capacity, and is visible to us: it
 * set `asleep` after that (see shm_wait.h).
 */
static int read_ring(shm_endpoint_t *endpoint, size_t budget, size_t *moved)
{
    uint64_t start = endpoint->pipe.in_read, sent, before, received; /* loans count, too */
    channel_count(endpoint->channel, &sent, &before);
    int done = channel_read(endpoint->channel, 0, budget);
    channel_count(endpoint->channel, &sent, &received);
    *moved = (size_t)(received - before);
    if (endpoint->pipe.in_read != start && shm_wait_asleep(endpoint->peer, endpoint->fence)) {
        uint64_t written = atomic_load_explicit(&endpoint->pipe.in->written, memory_order_relaxed);
        bool starving = __atomic_load_n(&endpoint->peer->starving, __ATOMIC_RELAXED) != 0;
        if (starving || written - start >= endpoint->pipe.in_capacity) shm_endpoint_ring(endpoint);
    }
    if (endpoint->pipe.in_narrow) widen(endpoint);
    if (done > 0) announce(endpoint);
    return done;
}

bool shm_endpoint_has_work(const shm_endpoint_t *endpoint)
{
    if (endpoint->state != SHM_OPEN) return false;
    return ring_readable(&endpoint->pipe) || shm_endpoint_has_untold(endpoint) ||
           (channel_wants_write(endpoint->channel, 0) && ring_writable(&endpoint->pipe) && !starves(endpoint));
}

int shm_endpoint_move(shm_endpoint_t *endpoint, size_t budget, size_t *moved)
{
    int done = 0;
    *moved = 0;
    if (endpoint->state == SHM_OPEN && ring_readable(&endpoint->pipe)) done += read_ring(endpoint, budget, moved);
    bool wants_write = endpoint->state == SHM_OPEN && channel_wants_write(endpoint->channel, 0);
    if (endpoint->state == SHM_OPEN && (shm_endpoint_has_untold(endpoint) || (wants_write && ring_writable(&endpoint->pipe)))) {
        uint64_t before, sent, received; /* loans count, too */
        channel_count(endpoint->channel, &before, &received);
        done += shm_endpoint_flush(endpoint);
        channel_count(endpoint->channel, &sent, &received);
        *moved += (size_t)(sent - before);
        wants_write = endpoint->state == SHM_OPEN && channel_wants_write(endpoint->channel, 0);
    } else {
        check_channel(endpoint);
    }
    if (endpoint->state != SHM_OPEN || (!wants_write && !ring_readable(&endpoint->pipe))) list_remove(&endpoint->active);
    else shm_endpoint_activate(endpoint);
    return done;
}

/* The peer cannot find out by itself. Whether they get through is of no matter: its end comes all the same. */
static void say_last_words(const shm_endpoint_t *endpoint)
{
    uint8_t bytes[SHM_WORDS_CAPACITY];
    size_t length = shm_words_write(endpoint->status, endpoint->text, bytes);
    if (send(endpoint->link->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) log_debug("shm", "%s: not told why: %s", endpoint->name, strerror(errno));
}

void shm_endpoint_end(shm_endpoint_t *endpoint, quoit_status_t status)
{
    shm_transport_t *transport = transport_of(endpoint);
    bool never_stood = endpoint->state == SHM_CONNECTING;
    if (endpoint->state == SHM_ENDED) return;
    if (status == QUOIT_OK) {
        error_set(QUOIT_ERR_CLOSED, "shm: %s closed the connection (it said goodbye)", endpoint->name);
    }
    snprintf(endpoint->text, sizeof endpoint->text, "%s", error_text());
    if (endpoint->state == SHM_OPEN) transport->open--;
    endpoint->state = SHM_ENDED;
    endpoint->status = status;
    endpoint->doubt = false;
    if (endpoint->channel) channel_fail(endpoint->channel, status ? status : QUOIT_ERR_CLOSED);
    if (table_get(transport->by_process, process_key(endpoint->base.peer)) == endpoint) {
        table_take(transport->by_process, process_key(endpoint->base.peer));
    }
    list_remove(&endpoint->active);
    shm_unfollow(endpoint);
    if (endpoint->exposed && !endpoint->gone && endpoint->link && !transport->forked) {
        endpoint->link->phase = SHM_PHASE_UP;
        if (status != QUOIT_OK && status != QUOIT_ERR_CLOSED) say_last_words(endpoint);
        shutdown(endpoint->link->fd, SHUT_WR); /* tells the peer; its own end comes back when it writes no more */
    } else {
        endpoint->gone = true;
        drop_watches(endpoint);
    }
    if (never_stood && endpoint->references == 0) {
        endpoint->closed_told = true; /* the caller never knew of it */
    } else {
        announce(endpoint);
    }
    transport->pending = transport->due = true;
}

/* Everything that the peer wrote before its end still counts. */
static void drain(shm_endpoint_t *endpoint)
{
    uint64_t before;
    do {
        size_t moved;
        before = endpoint->pipe.in_read;
        read_ring(endpoint, endpoint->pipe.in_capacity, &moved);
    } while (endpoint->pipe.in_read != before && ring_readable(&endpoint->pipe));
    check_channel(endpoint);
}

static void end_by_death(shm_endpoint_t *endpoint)
{
    endpoint->gone = true;
    if (endpoint->state != SHM_OPEN || endpoint->farewell) return;
    endpoint->died = true;
    shm_endpoint_end(endpoint, error_set(QUOIT_ERR_PEER, "shm: %s died", endpoint->name));
}

void shm_endpoint_process_ended(shm_endpoint_t *endpoint)
{
    if (endpoint->state == SHM_OPEN) drain(endpoint);
    end_by_death(endpoint);
    drop_watches(endpoint);
    ((shm_transport_t *)endpoint->base.transport)->due = true;
}

static bool process_has_ended(const shm_endpoint_t *endpoint)
{
    struct pollfd pidfd = {.fd = endpoint->pidfd, .events = POLLIN};
    return poll(&pidfd, 1, 0) > 0;
}

void shm_endpoint_socket_ended(shm_endpoint_t *endpoint)
{
    shm_transport_t *transport = transport_of(endpoint);
    if (endpoint->state == SHM_OPEN) drain(endpoint);
    endpoint->gone = true;
    if (endpoint->link) shm_unwatch(transport, endpoint->link->fd); /* closed when we write no more: the peer may wait for that */
    transport->pending = transport->due = true;
    if (endpoint->state != SHM_OPEN || endpoint->farewell) {
        drop_watches(endpoint);
    } else if (endpoint->pidfd < 0 || process_has_ended(endpoint)) {
        end_by_death(endpoint);
    } else {
        endpoint->doubt = true;
        endpoint->deadline = clock_deadline(SHM_DOUBT_MS);
    }
}

void shm_endpoint_socket_spoke(shm_endpoint_t *endpoint, const void *bytes, size_t length)
{
    char text[SHM_WORDS_TEXT + 1];
    quoit_status_t told = QUOIT_ERR_PROTOCOL;
    if (endpoint->state != SHM_OPEN) return;
    if (shm_words_parse(bytes, length, &told, text) != QUOIT_OK) {
        shm_endpoint_end(endpoint, error_set(QUOIT_ERR_PROTOCOL, "shm: %s sent %zu bytes that do not belong on a control socket", endpoint->name, length));
        return;
    }
    drain(endpoint);
    if (endpoint->state != SHM_OPEN) return;
    endpoint->gone = true; /* who says them writes no more */
    shm_endpoint_end(endpoint, error_set(told, "shm: %s gave the connection up: %s", endpoint->name, text));
}

void shm_endpoint_check_goodbye(shm_endpoint_t *endpoint)
{
    if (endpoint->farewell) check_channel(endpoint);
}

void shm_endpoint_check_deadline(shm_endpoint_t *endpoint, uint64_t now)
{
    if (endpoint->state == SHM_CONNECTING && now >= endpoint->dial_at) {
        endpoint->dial_at = CLOCK_NEVER;
        if (!endpoint->link) shm_link_dial(endpoint);
        if (endpoint->link) shm_link_step(endpoint->link);
    }
    if (now < endpoint->deadline) return;
    if (endpoint->state == SHM_CONNECTING) {
        const char *missing = endpoint->link ? "it does not answer (is it stopped?)" : "its own connection, which was to be used, did not come";
        shm_endpoint_end(endpoint, error_set(QUOIT_ERR_TIMEOUT, "shm: connection to %s did not stand in time: %s", endpoint->name, missing));
    } else if (endpoint->state == SHM_OPEN && endpoint->doubt) {
        shm_endpoint_end(endpoint, error_set(QUOIT_ERR_PEER, "shm: %s closed the connection without a goodbye, though its process lives",
                                             endpoint->name));
    }
}

void shm_endpoint_leave(shm_endpoint_t *endpoint)
{
    shm_transport_t *transport = transport_of(endpoint);
    endpoint->leaving = true;
    list_remove(&endpoint->events);
    transport->pending = transport->due = true;
    if (endpoint->state != SHM_OPEN) return; /* CONNECTING: it says goodbye once it stands */
    if (table_get(transport->by_process, process_key(endpoint->base.peer)) == endpoint) {
        table_take(transport->by_process, process_key(endpoint->base.peer));
    }
    channel_close(endpoint->channel);
    shm_endpoint_flush(endpoint);
}

bool shm_endpoint_is_over(const shm_endpoint_t *endpoint)
{
    bool released = endpoint->leaving || (endpoint->references == 0 && endpoint->closed_told);
    return endpoint->state == SHM_ENDED && released && endpoint->gone;
}

void shm_endpoint_free(shm_endpoint_t *endpoint)
{
    shm_transport_t *transport = transport_of(endpoint);
    drop_watches(endpoint);
    list_remove(&endpoint->node);
    list_remove(&endpoint->active);
    list_remove(&endpoint->events);
    if (transport->told == endpoint) transport->told = NULL;
    channel_destroy(endpoint->channel);
    shm_loans_forget(&transport->loans, &endpoint->debt);
    job_secret_wipe(&endpoint->secret);
    if (endpoint->doorbell >= 0) close(endpoint->doorbell);
    if (endpoint->peer) munmap(endpoint->peer, endpoint->peer_size);
    if (endpoint->slot >= 0) transport->slots[endpoint->slot] = NULL;
    while (transport->slot_limit > 0 && !transport->slots[transport->slot_limit - 1]) transport->slot_limit--;
    if (!transport->forked) shm_arena_free(transport->arena, endpoint->mailbox); /* it would punch a hole in the parent's memory */
    free(endpoint);
}
