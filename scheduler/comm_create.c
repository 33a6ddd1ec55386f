/* SPDX-License-Identifier: Apache-2.0 */
/* Communicator: making one (from a store, from a parent), and its end. */
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/settings.h"
#include "scheduler/comm.h"
#include "scheduler/control.h"
#include "scheduler/history.h"
#include "scheduler/inquire.h"
#include "scheduler/shrink.h"
#include "scheduler/stage.h"
#include "scheduler/trace.h"

#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ parts of making one */

static void free_comm(quoit_comm_t *comm)
{
    for (int i = 0; i < comm->plan_count; i++) plan_destroy(comm->plans[i]);
    matcher_clear(&comm->matcher);
    shrink_destroy(comm->shrink);
    inquire_destroy(comm->inquiry);
    execute_destroy(comm);
    stages_destroy(comm);
    journal_block_destroy(comm->engine->journal, comm->journal);
    topology_destroy(comm->topology);
    free(comm->job_rank);
    free(comm);
}

/* The window, when somebody else of this communicator is on this host. */
static quoit_status_t make_window(quoit_comm_t *comm)
{
    const topology_t *topology = comm->topology;
    int host = topology->host[comm->rank], members = topology->host_size[host];
    if (members < 2) return QUOIT_OK;
    peer_t **peer = malloc((size_t)members * sizeof *peer);
    if (!peer) return error_set(QUOIT_ERR_NO_MEMORY, "a window of %d ranks", members);
    for (int i = 0; i < members; i++) peer[i] = comm->job->peer[comm->job_rank[topology_rank(topology, host, i)]];
    quoit_status_t status = window_create(comm->engine, comm->id, members, topology->member[comm->rank], peer, &comm->window);
    free(peer);
    return status;
}

quoit_status_t comm_make(job_t *job, uint64_t id, uint64_t family, int rank, int size, const int *ranks, const char *name, int timeout_ms,
                         quoit_comm_t **result)
{
    quoit_comm_t *comm = calloc(1, sizeof *comm);
    if (!comm) return error_set(QUOIT_ERR_NO_MEMORY, "a communicator of %zu bytes", sizeof *comm);
    comm->engine = job->engine;
    comm->job = job;
    comm->id = id > 1 ? id : id + 2; /* window.c keeps 0 and 1 for itself */
    comm->family = family;
    comm->rank = rank;
    comm->size = size;
    comm->timeout_ms = timeout_ms;
    comm->wire = (quoit_wire_t)job->tuning.wire;
    comm->fork_generation = engine_fork_generation();
    comm->hash = (uint32_t)(id >> 32) | 1;
    snprintf(comm->name, sizeof comm->name, "%s", name);
    list_init(&comm->link);
    list_init(&comm->queue);
    list_init(&comm->messages);
    matcher_init(&comm->matcher);
    comm->job_rank = malloc((size_t)size * sizeof *comm->job_rank);
    quoit_status_t status = QUOIT_OK;
    if (!comm->job_rank) {
        status = error_set(QUOIT_ERR_NO_MEMORY, "a communicator of %d ranks", size);
        goto free_comm;
    }
    for (int i = 0; i < size; i++) comm->job_rank[i] = ranks ? ranks[i] : i;
    status = job_topology(comm->job, comm->job_rank, comm->size, &comm->topology);
    if (status == QUOIT_OK) status = history_create(comm);
    if (status == QUOIT_OK) trace_begin_wanted(comm->engine, job->rank);
    if (status == QUOIT_OK) status = make_window(comm);
    if (status != QUOIT_OK) goto free_comm;
    status = table_put(comm->engine->comms, (table_key_t){0, comm->id}, comm);
    if (status != QUOIT_OK) goto close_window;
    job->users++;
    for (int i = 0; i < size; i++) {
        peer_t *peer = job->peer[comm->job_rank[i]];
        if (peer->status != QUOIT_OK) comm_peer_lost(comm, peer);
    }
    control_replay(comm);
    if (comm->topology->hosts > 1) engine_listen(comm->engine); /* a host mate's calls are in its memory, and need no answer */
    *result = comm;
    return QUOIT_OK;

close_window:
    window_close(comm->window, true);
free_comm:
    free_comm(comm);
    return status;
}

quoit_status_t comm_read_config(const quoit_comm_config_t *config, const char **name, int *timeout_ms, quoit_wire_t *wire)
{
    const size_t before_wire = offsetof(quoit_comm_config_t, wire); /* the first form ended there */
    *wire = QUOIT_WIRE_DEFAULT;
    int64_t fallback = setting_int(SETTING_TIMEOUT) / 1000;
    if (config && config->struct_size != sizeof *config && config->struct_size != before_wire)
        return error_set(QUOIT_ERR_INVALID, "quoit_comm_config_t.struct_size is %zu, expected %zu; begin with QUOIT_COMM_CONFIG_INIT",
                         config->struct_size, sizeof *config);
    if (config && config->timeout_ms < 0)
        return error_set(QUOIT_ERR_INVALID, "quoit_comm_config_t.timeout_ms is %d; 0 means setting QUOIT_TIMEOUT", config->timeout_ms);
    if (config && config->struct_size == sizeof *config) {
        if ((unsigned)config->wire >= QUOIT_WIRE_COUNT || config->reserved != 0)
            return error_set(QUOIT_ERR_INVALID, "quoit_comm_config_t.wire is %d, reserved %d; begin with QUOIT_COMM_CONFIG_INIT", (int)config->wire,
                             config->reserved);
        *wire = config->wire;
    }
    if (config && config->name) *name = config->name;
    *timeout_ms = config && config->timeout_ms ? config->timeout_ms : fallback > INT32_MAX ? INT32_MAX : (int)(fallback ? fallback : 1);
    return QUOIT_OK;
}

/* ------------------------------------------------------------------ from a store */

enum { ABSENCE_MS = 5000 }; /* for word that this rank cannot take part */

static quoit_status_t first_barrier(quoit_comm_t *comm, uint64_t deadline)
{
    int left = clock_left_ms(deadline);
    quoit_call_t call = QUOIT_CALL_INIT;
    call.timeout_ms = left > 0 ? left : 1;
    quoit_status_t status = quoit_barrier(comm, &call, NULL);
    return status == QUOIT_OK ? status : error_prefix(status, "connecting the ranks of %s", comm->name);
}

static quoit_status_t check_world(quoit_store_t *store, int rank, int size, quoit_comm_t **comm)
{
    if (size < 1 || rank < 0 || rank >= size)
        return error_set(QUOIT_ERR_INVALID, "rank %d of %d: size must be at least 1, and rank from 0 to size - 1", rank, size);
    if (!store && size > 1) return error_set(QUOIT_ERR_INVALID, "a communicator of %d ranks needs a store; it is NULL", size);
    return comm ? QUOIT_OK : error_set(QUOIT_ERR_INVALID, "quoit_comm_create: comm is NULL");
}

quoit_status_t comm_create_on(engine_t *engine, quoit_store_t *store, int rank, int size, const quoit_comm_config_t *config,
                              quoit_comm_t **comm)
{
    const char *name = "world";
    int timeout_ms = 0;
    quoit_wire_t wire = QUOIT_WIRE_DEFAULT;
    quoit_status_t status = check_world(store, rank, size, comm);
    if (status == QUOIT_OK) status = comm_read_config(config, &name, &timeout_ms, &wire);
    if (status != QUOIT_OK) return status;
    log_set_rank(rank);
    uint64_t deadline = clock_deadline(timeout_ms);
    job_t *job = NULL;
    status = job_create(engine, store, rank, size, deadline, &job);
    if (status != QUOIT_OK) return status;
    quoit_comm_t *made = NULL;
    engine_enter(engine);
    status = comm_make(job, hash_combine(job->id, 1), 0, rank, size, NULL, name, timeout_ms, &made);
    if (status != QUOIT_OK) status = control_send_unmade(job, hash_combine(job->id, 1), rank, size, NULL, name, status);
    job_release(job); /* the communicator has its own */
    if (status == QUOIT_OK && wire != QUOIT_WIRE_DEFAULT) made->wire = wire;
    if (status == QUOIT_OK) engine_retain(engine);
    engine_leave(engine);
    if (status != QUOIT_OK) return status;
    /* Joins all hosts over the edges that collectives use, so that what cannot be reached is told here and not later. */
    status = first_barrier(made, deadline);
    if (status != QUOIT_OK) {
        char text[ERROR_TEXT_CAPACITY];
        snprintf(text, sizeof text, "%s", error_text());
        quoit_comm_destroy(made);
        return error_set(status, "%s", text);
    }
    *comm = made;
    return QUOIT_OK;
}

quoit_status_t quoit_comm_create(quoit_store_t *store, int rank, int size, const quoit_comm_config_t *config, quoit_comm_t **comm)
{
    engine_t *engine = NULL;
    quoit_status_t status = check_world(store, rank, size, comm);
    if (status != QUOIT_OK) return status;
    status = engine_default(&engine);
    if (status != QUOIT_OK) return job_cannot_begin(store, rank, size, clock_deadline(ABSENCE_MS), status);
    status = comm_create_on(engine, store, rank, size, config, comm);
    char text[ERROR_TEXT_CAPACITY];
    snprintf(text, sizeof text, "%s", error_text());
    engine_release(engine);
    return status == QUOIT_OK ? status : error_set(status, "%s", text);
}

/* ------------------------------------------------------------------ from a parent */

static quoit_status_t check_parent(quoit_comm_t *parent)
{
    if (!parent) return error_set(QUOIT_ERR_INVALID, "the parent communicator is NULL");
    if (parent->fork_generation != engine_fork_generation())
        return error_set(QUOIT_ERR_FORKED, "communicator %s belongs to the parent process; a child made by fork() creates its own", parent->name);
    return QUOIT_OK;
}

static quoit_status_t failure_of(const quoit_comm_t *parent)
{
    quoit_status_t status = atomic_load_explicit(&parent->status, memory_order_acquire);
    return status == QUOIT_OK ? status : error_set(status, "%s", parent->error);
}

static quoit_status_t check_members(const quoit_comm_t *parent, const int *ranks, int count, int *own)
{
    if (count < 1 || count > parent->size || !ranks)
        return error_set(QUOIT_ERR_INVALID, "a group of %d ranks of %s, which has %d", count, parent->name, parent->size);
    uint8_t *seen = calloc(1, (size_t)parent->size);
    if (!seen) return error_set(QUOIT_ERR_NO_MEMORY, "a group of %d ranks", count);
    quoit_status_t status = QUOIT_OK;
    *own = -1;
    for (int i = 0; i < count && status == QUOIT_OK; i++) {
        if (ranks[i] < 0 || ranks[i] >= parent->size)
            status = error_set(QUOIT_ERR_INVALID, "member %d of the group is rank %d; %s has ranks 0 to %d", i, ranks[i], parent->name,
                               parent->size - 1);
        else if (seen[ranks[i]]++)
            status = error_set(QUOIT_ERR_INVALID, "rank %d is in the group twice", ranks[i]);
        else if (ranks[i] == parent->rank)
            *own = i;
    }
    free(seen);
    if (status == QUOIT_OK && *own < 0)
        status = error_set(QUOIT_ERR_INVALID, "rank %d creates a group that it is not in; only members call", parent->rank);
    return status;
}

/* Members compute the same id without a word: parent, name, members, and how often this was created before. */
static quoit_status_t group_id(quoit_comm_t *parent, const int *job_ranks, int count, const char *name, uint64_t *id, uint64_t *family)
{
    uint64_t hash = hash_combine(parent->id, hash_bytes(3, name, strlen(name)));
    table_key_t name_key = {~parent->id, hash};
    uintptr_t generation = (uintptr_t)table_get(parent->job->groups, name_key) + 1;
    for (int i = 0; i < count; i++) hash = hash_combine(hash, (uint64_t)job_ranks[i]);
    table_key_t key = {parent->id, hash};
    uintptr_t times = (uintptr_t)table_get(parent->job->groups, key) + 1;
    quoit_status_t status = table_put(parent->job->groups, key, (void *)times);
    if (status == QUOIT_OK) status = table_put(parent->job->groups, name_key, (void *)generation);
    if (status != QUOIT_OK) return status;
    *id = hash_combine(hash, times);
    *family = hash_combine(hash_combine(name_key.low, parent->id), generation) | 1;
    return QUOIT_OK;
}

quoit_status_t quoit_comm_create_group(quoit_comm_t *parent, const int *ranks, int count, const char *name,
                                       const quoit_comm_config_t *config, quoit_comm_t **comm)
{
    const char *shown = name ? name : "group";
    int timeout_ms = 0, own = -1;
    quoit_wire_t wire = QUOIT_WIRE_DEFAULT;
    quoit_status_t status = check_parent(parent);
    /* One that has failed still tells who is who, and its connections stand but for those of the dead. One that was aborted is not wanted any more. */
    if (status == QUOIT_OK && failure_of(parent) == QUOIT_ERR_ABORTED) status = QUOIT_ERR_ABORTED;
    if (status == QUOIT_OK && !comm) status = error_set(QUOIT_ERR_INVALID, "quoit_comm_create_group: comm is NULL");
    if (status == QUOIT_OK) status = check_members(parent, ranks, count, &own);
    if (status == QUOIT_OK) status = comm_read_config(config, &shown, &timeout_ms, &wire);
    if (status != QUOIT_OK) return status;
    if (!config || config->timeout_ms == 0) timeout_ms = __atomic_load_n(&parent->timeout_ms, __ATOMIC_RELAXED);
    int *job_ranks = malloc((size_t)count * sizeof *job_ranks);
    if (!job_ranks) return error_set(QUOIT_ERR_NO_MEMORY, "a group of %d ranks", count);
    for (int i = 0; i < count; i++) job_ranks[i] = parent->job_rank[ranks[i]];
    engine_t *engine = parent->engine;
    engine_enter(engine);
    window_collect(engine, false);
    uint64_t id = 0, family = 0;
    quoit_comm_t *made = NULL;
    status = group_id(parent, job_ranks, count, name ? name : "", &id, &family);
    if (status == QUOIT_OK) status = comm_make(parent->job, id, family, own, count, job_ranks, shown, timeout_ms, &made);
    if (status == QUOIT_OK && wire != QUOIT_WIRE_DEFAULT) made->wire = wire;
    if (status != QUOIT_OK && id != 0) status = control_send_unmade(parent->job, id, own, count, job_ranks, shown, status);
    if (status == QUOIT_OK) engine_retain(engine);
    engine_leave(engine);
    free(job_ranks);
    if (status == QUOIT_OK) *comm = made;
    return status;
}

typedef struct split_vote {
    int32_t colour, key;
} split_vote_t;

quoit_status_t quoit_comm_split(quoit_comm_t *parent, int colour, int key, const quoit_comm_config_t *config, quoit_comm_t **comm)
{
    quoit_status_t status = check_parent(parent);
    if (status == QUOIT_OK) status = failure_of(parent);
    if (status != QUOIT_OK) return status;
    if (!comm) return error_set(QUOIT_ERR_INVALID, "quoit_comm_split: comm is NULL");
    int size = parent->size, count = 0;
    split_vote_t own = {colour < 0 ? -1 : colour, key}, *vote = malloc((size_t)size * sizeof *vote);
    int *ranks = malloc((size_t)size * sizeof *ranks);
    status = vote && ranks ? QUOIT_OK : error_set(QUOIT_ERR_NO_MEMORY, "splitting %d ranks", size);
    if (status == QUOIT_OK) status = quoit_allgather(parent, &own, vote, 2, QUOIT_I32, NULL, NULL);
    if (status != QUOIT_OK) goto out;
    if (own.colour < 0) {
        *comm = NULL;
        goto out;
    }
    for (int rank = 0; rank < size; rank++) { /* insertion keeps equal keys in the order of their ranks */
        if (vote[rank].colour != own.colour) continue;
        int at = count++;
        for (; at > 0 && vote[ranks[at - 1]].key > vote[rank].key; at--) ranks[at] = ranks[at - 1];
        ranks[at] = rank;
    }
    char name[COMM_NAME_CAPACITY];
    snprintf(name, sizeof name, "%.40s/colour %d", parent->name, own.colour);
    status = quoit_comm_create_group(parent, ranks, count, name, config, comm);
out:
    free(ranks);
    free(vote);
    return status;
}

/* ------------------------------------------------------------------ the end */

enum { UNSENT_LINGER_MS = 500 }; /* for a message that may be on its way: ranks that were in step differ by less */

static bool has_work(const quoit_comm_t *comm) { return !list_is_empty(&comm->queue) || !list_is_empty(&comm->messages); }

/* Is all that is left recvs for which no message has come? */
static bool waits_for_nothing(quoit_comm_t *comm)
{
    if (!list_is_empty(&comm->queue)) return false;
    for (list_t *node = comm->messages.next; node != &comm->messages; node = node->next) {
        const operation_t *operation = container_of(node, operation_t, link);
        if (operation->kind != OPERATION_RECV || list_is_empty(&operation->match_link)) return false;
    }
    return true;
}

/* No peer needs their end: nobody is told, and the others go on. */
static void forget_recvs(quoit_comm_t *comm)
{
    while (!list_is_empty(&comm->messages)) {
        operation_t *recv = container_of(comm->messages.next, operation_t, link);
        char what[256], text[ERROR_TEXT_CAPACITY];
        comm_message_text(comm, recv, what, sizeof what);
        snprintf(text, sizeof text, "[%.63s, rank %d] %s: the communicator was destroyed before a message came", comm->name, comm->rank, what);
        log_info("comm", "%s", text);
        match_forget(recv);
        operation_finish(recv, QUOIT_ERR_CLOSED, text);
    }
}

/* Let what runs end, for QUOIT_LINGER at most; then it fails. Recvs that nobody has sent to are given up before. The caller owns the engine. */
static void wind_up(quoit_comm_t *comm)
{
    engine_t *engine = comm->engine;
    uint64_t deadline = clock_now() + (uint64_t)setting_int(SETTING_LINGER) * 1000, unsent = clock_deadline(UNSENT_LINGER_MS);
    char text[256] = "sends or recvs";
    engine_poll(engine);
    while (has_work(comm) && clock_now() < deadline && (clock_now() < unsent || !waits_for_nothing(comm)))
        if (!engine_poll(engine)) poll(NULL, 0, 1);
    if (waits_for_nothing(comm)) forget_recvs(comm);
    if (!has_work(comm)) return;
    if (!list_is_empty(&comm->queue)) operation_text(&container_of(comm->queue.next, operation_t, link)->description, text, sizeof text);
    comm_fail(comm, QUOIT_ERR_CLOSED, true, "destroyed while %s was running; it did not end within QUOIT_LINGER", text);
}

void quoit_comm_destroy(quoit_comm_t *comm)
{
    if (!comm || comm->fork_generation != engine_fork_generation()) return; /* the child's copy holds nothing of its own */
    engine_t *engine = comm->engine;
    engine_enter(engine);
    wind_up(comm);
    if (comm->is_active) {
        comm->is_active = false;
        list_remove(&comm->link);
    }
    table_take(engine->comms, (table_key_t){0, comm->id});
    if (engine->noticed == comm) engine->noticed = NULL;
    for (int i = 0; i < engine->transports; i++) /* messages nobody will receive give their credit back */
        engine->transport[i].ops->cancel(engine->transport[i].transport, comm->id);
    window_close(comm->window, atomic_load_explicit(&comm->status, memory_order_relaxed) != QUOIT_OK);
    job_release(comm->job);
    free_comm(comm);
    engine_leave(engine);
    engine_release(engine);
}

quoit_status_t quoit_comm_abort(quoit_comm_t *comm, const char *reason)
{
    quoit_status_t status = check_parent(comm);
    if (status != QUOIT_OK || failure_of(comm) != QUOIT_OK) return status; /* it has ended already */
    engine_enter(comm->engine);
    engine_poll(comm->engine); /* what was handed in before ends with the rest */
    comm_fail(comm, QUOIT_ERR_ABORTED, true, "aborted: %s", reason && reason[0] ? reason : "no reason given");
    engine_leave_written(comm->engine); /* the others wait for the word, and this thread may call no more */
    return QUOIT_OK;
}

int quoit_comm_rank(const quoit_comm_t *comm) { return comm ? comm->rank : -1; }
int quoit_comm_size(const quoit_comm_t *comm) { return comm ? comm->size : 0; }
int quoit_comm_world_rank(const quoit_comm_t *comm, int rank) { return comm && rank >= 0 && rank < comm->size ? comm->job_rank[rank] : -1; }
int quoit_comm_hosts(const quoit_comm_t *comm) { return comm ? comm->topology->hosts : 0; }

quoit_status_t quoit_comm_set_timeout(quoit_comm_t *comm, int timeout_ms)
{
    if (!comm) return error_set(QUOIT_ERR_INVALID, "quoit_comm_set_timeout: comm is NULL");
    if (timeout_ms < 1) return error_set(QUOIT_ERR_INVALID, "a timeout of %d ms; it must be at least 1", timeout_ms);
    __atomic_store_n(&comm->timeout_ms, timeout_ms, __ATOMIC_RELAXED);
    return QUOIT_OK;
}

quoit_status_t quoit_comm_error(quoit_comm_t *comm, char *text, size_t capacity)
{
    if (!comm) return error_set(QUOIT_ERR_INVALID, "quoit_comm_error: comm is NULL");
    quoit_status_t status = atomic_load_explicit(&comm->status, memory_order_acquire);
    if (text && capacity) snprintf(text, capacity, "%s", status == QUOIT_OK ? "" : comm->error);
    return status;
}
