/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap: which transports work. That two hosts both have a device does not say that packets pass between the two. So where a pair
 * would use a transport that may be missing ("verbs?"), and has another to go on with, it is tried before the first operation: a message of one
 * byte each way. Each rank tries its neighbours: all, in a small job; else those at distances of powers of two, among ranks and among hosts'
 * leaders, which are the edges of collectives. It publishes with whom it did not work and why; rank 0 publishes all of it; that transport is
 * banned between the two hosts of each pair in it, on all ranks, so both sides use what comes next. Hosts that first meet later have no second choice.
 *
 *   paths/<incarnation>/<rank>, bans/<incarnation>:   count 4, then for each  lower rank 4, higher rank 4, length 1, why
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/settings.h"
#include "scheduler/bootstrap.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FEW_RANKS = 32,        /* up to so many each tries all */
    TRIAL_MOST_MS = 10000, /* a path that works takes milliseconds; one that drops packets, all of this */
    BAN_CAPACITY = BAN_HEADER + sizeof((job_ban_t *)0)->why
};

/** A neighbour while it is tried. */
typedef struct path {
    int rank;
    const char *transport;
    quoit_endpoint_t *endpoint; /* NULL: it did not work */
    quoit_transfer_t send, recv;
    uint8_t out, in;
    char why[160];
} path_t;

/* ------------------------------------------------------------------ whom to try */

/* A transport of the pair's that may fail, for there is another. */
static const job_address_t *doubtful(const job_t *job, int rank)
{
    if (rank == job->rank || job->host[rank] == job->host[job->rank]) return NULL;
    const job_address_t *first = job_transport(job, job->rank, rank, false);
    return first && first->optional && job_transport_after(job, job->rank, rank, false, first) ? first : NULL;
}

/* May any pair have one? Of the records alone, so that all ranks think alike, whatever plug-ins they have loaded. */
static bool any_doubt(const job_t *job)
{
    for (int rank = 0; rank < job->size; rank++) {
        const job_record_t *record = &job->record[rank];
        bool optional = false;
        for (int i = 0; i < record->addresses; i++) {
            if (optional && strcmp(record->address[i].transport, transport_self.name) != 0) return true;
            optional = optional || record->address[i].optional;
        }
    }
    return false;
}

/* Marks what lies at distances of powers of two from place `own` in a ring: of the leaders of `hosts`, or (NULL) of all ranks. */
static void mark_ring(bool *wanted, const topology_t *hosts, int count, int own)
{
    for (int reach = 1; reach < count; reach *= 2) {
        int up = (own + reach) % count, down = (own + count - reach) % count;
        wanted[hosts ? topology_leader(hosts, up) : up] = wanted[hosts ? topology_leader(hosts, down) : down] = true;
    }
}

static quoit_status_t choose_neighbours(const job_t *job, bool **result)
{
    bool *wanted = calloc((size_t)job->size, sizeof *wanted);
    topology_t *topology = NULL;
    quoit_status_t status = wanted ? job_topology(job, NULL, job->size, &topology) : error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: neighbours among %d ranks", job->size);
    if (status != QUOIT_OK) {
        free(wanted);
        return status;
    }
    for (int rank = 0; rank < job->size && job->size <= FEW_RANKS; rank++) wanted[rank] = true;
    int host = topology->host[job->rank];
    mark_ring(wanted, NULL, job->size, job->rank);
    if (topology_leader(topology, host) == job->rank) mark_ring(wanted, topology, topology->hosts, host);
    topology_destroy(topology);
    *result = wanted;
    return QUOIT_OK;
}

/* ------------------------------------------------------------------ trying */

static void give_up(path_t *path, const char *why)
{
    if (path->why[0] == '\0') snprintf(path->why, sizeof path->why, "%s", why[0] ? why : "the connection ended");
}

static void begin(const job_t *job, path_t *path, quoit_key_t key)
{
    const quoit_transport_ops_t *ops = path->endpoint->transport->ops;
    bool lower = job->rank < path->rank;
    path->out = (uint8_t)(job->rank + 1);
    quoit_key_t out = {.comm = key.comm, .id = lower ? 1 : 2}, in = {.comm = key.comm, .id = lower ? 2 : 1};
    quoit_status_t status = ops->recv(path->endpoint, in, &path->in, 1, &path->recv);
    if (status == QUOIT_OK) status = ops->send(path->endpoint, out, &path->out, 1, &path->send);
    if (status != QUOIT_OK) give_up(path, error_text());
}

/* True while it may still work. */
static bool is_under_way(path_t *path)
{
    if (!path->endpoint || path->why[0]) return false;
    quoit_status_t status = path->endpoint->transport->ops->endpoint_status(path->endpoint);
    bool failed = (status < 0 && status != QUOIT_ERR_CLOSED) || path->send.status < 0 || path->recv.status < 0;
    if (failed) give_up(path, status < 0 ? error_text() : quoit_status_text(path->recv.status < 0 ? path->recv.status : path->send.status));
    return !failed && (status == QUOIT_IN_PROGRESS || path->send.status == QUOIT_IN_PROGRESS || path->recv.status == QUOIT_IN_PROGRESS);
}

static bool all_idle(const engine_t *engine)
{
    bool idle = true;
    for (int i = 0; i < engine->transports; i++) idle = idle && engine->transport[i].ops->idle(engine->transport[i].transport);
    return idle;
}

static void let_go(path_t *path)
{
    if (!path->endpoint) return;
    path->endpoint->transport->ops->disconnect(path->endpoint);
    path->endpoint = NULL;
}

/* The caller owns the engine. */
static void try_all(attempt_t *attempt, path_t *paths, int count)
{
    job_t *job = attempt->job;
    engine_t *engine = attempt->engine;
    quoit_key_t key = {.comm = hash_combine(job->id, 0x7061746873)};
    int limit_ms = (int)(setting_int(SETTING_CONNECT_TIMEOUT) / 1000), left = clock_left_ms(attempt->deadline);
    if (limit_ms > TRIAL_MOST_MS) limit_ms = TRIAL_MOST_MS;
    if (left >= 0 && left / 2 < limit_ms) limit_ms = left / 2;
    uint64_t until = clock_deadline(limit_ms);
    for (int i = 0; i < count; i++) {
        quoit_status_t status = job_connect(job, paths[i].rank, engine_find_transport(engine, paths[i].transport), limit_ms, &paths[i].endpoint);
        if (status == QUOIT_OK) begin(job, &paths[i], key);
        else give_up(&paths[i], error_text());
    }
    for (bool pending = true; pending && clock_now() < until;) {
        bool moved = engine_poll(engine);
        pending = false;
        for (int i = 0; i < count; i++) pending = is_under_way(&paths[i]) || pending;
        pending = pending || !all_idle(engine); /* our last byte is out */
        struct pollfd ready = {.fd = engine->epoll, .events = POLLIN};
        if (pending && !moved) poll(&ready, 1, 5);
    }
    char late[96];
    snprintf(late, sizeof late, "no message came through in %d ms", limit_ms);
    for (int i = 0; i < count; i++)
        if (is_under_way(&paths[i])) give_up(&paths[i], late);
    for (int i = 0; i < engine->transports; i++) /* what is left of messages of this job's trial, so that nothing writes into paths */
        engine->transport[i].ops->cancel(engine->transport[i].transport, key.comm);
    for (int i = 0; i < count; i++) {
        if (!paths[i].why[0]) continue;
        log_info("bootstrap", "%s does not work with %s: %s", paths[i].transport, job->peer[paths[i].rank]->name, paths[i].why);
        let_go(&paths[i]);
    }
}

/* ------------------------------------------------------------------ telling */

static uint8_t *put_ban(uint8_t *at, int one, int other, const char *why)
{
    size_t length = strlen(why);
    bytes_put32(at, (uint32_t)one);
    bytes_put32(at + 4, (uint32_t)other);
    at[8] = (uint8_t)length;
    memcpy(at + BAN_HEADER, why, length);
    return at + BAN_HEADER + length;
}

static quoit_status_t publish_paths(attempt_t *attempt, const path_t *paths, int count)
{
    uint8_t *bytes = malloc(4 + (size_t)count * BAN_CAPACITY), *at = bytes + 4;
    uint32_t failed = 0;
    if (!bytes) return error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: %d paths", count);
    for (int i = 0; i < count; i++) {
        if (!paths[i].why[0]) continue;
        int rank = attempt->rank, other = paths[i].rank;
        at = put_ban(at, rank < other ? rank : other, rank < other ? other : rank, paths[i].why);
        failed++;
    }
    bytes_put32(bytes, failed);
    quoit_status_t status = bootstrap_set(attempt, ITEM_PATHS, attempt->rank, bytes, (size_t)(at - bytes));
    free(bytes);
    return status;
}

static quoit_status_t publish_bans(attempt_t *attempt)
{
    job_t *job = attempt->job;
    uint8_t *bytes = malloc(4 + (size_t)job->bans * BAN_CAPACITY), *at = bytes + 4;
    if (!bytes) return error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: %d pairs", job->bans);
    bytes_put32(bytes, (uint32_t)job->bans);
    for (int i = 0; i < job->bans; i++) at = put_ban(at, job->ban[i].one, job->ban[i].other, job->ban[i].why);
    quoit_status_t status = bootstrap_set(attempt, ITEM_BANS, 0, bytes, (size_t)(at - bytes));
    free(bytes);
    return status;
}

/* Rank 0 reads all, and warns once for the job. */
static quoit_status_t settle_paths(attempt_t *attempt)
{
    job_t *job = attempt->job;
    quoit_status_t status = QUOIT_OK;
    for (int rank = 0; rank < job->size && status == QUOIT_OK; rank++) {
        void *value = NULL;
        size_t length = 0;
        status = bootstrap_collect(attempt, ITEM_PATHS, rank, &value, &length);
        if (status == QUOIT_OK) status = bootstrap_take_bans(job, value, length, rank);
        bootstrap_forget(value, length);
    }
    if (status == QUOIT_OK) status = publish_bans(attempt);
    if (status != QUOIT_OK || job->bans == 0) return status;
    const job_ban_t *ban = &job->ban[0];
    const job_address_t *instead = job_transport(job, ban->one, ban->other, false);
    log_warn("bootstrap", "%s and rank %d both have transport %s, but it does not work between them: %s. They use %s; so do %d pairs of hosts in all (describe says which)",
             job->peer[ban->one]->name, ban->other, ban->transport, ban->why, instead ? instead->transport : "nothing", job->bans);
    return QUOIT_OK;
}

static quoit_status_t learn_bans(attempt_t *attempt)
{
    void *value = NULL;
    size_t length = 0;
    if (attempt->rank == 0) return settle_paths(attempt);
    quoit_status_t status = bootstrap_await(attempt, ITEM_BANS, &value, &length);
    if (status == QUOIT_OK) status = bootstrap_take_bans(attempt->job, value, length, -1);
    bootstrap_forget(value, length);
    return status;
}

/* ------------------------------------------------------------------ all of it */

/* Connections that work for both sides are kept: they are what the pair will use. */
static void keep(job_t *job, path_t *path)
{
    const job_address_t *address = job_transport(job, job->rank, path->rank, false);
    peer_t *peer = job->peer[path->rank];
    if (!path->endpoint || peer->message || !address || strcmp(address->transport, path->transport) != 0) {
        let_go(path);
        return;
    }
    peer->message = path->endpoint;
    path->endpoint = NULL;
}

quoit_status_t bootstrap_try_paths(attempt_t *attempt)
{
    job_t *job = attempt->job;
    bool *wanted = NULL;
    int count = 0;
    if (!any_doubt(job)) return QUOIT_OK;
    path_t *paths = calloc((size_t)job->size, sizeof *paths);
    if (!paths) return error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: paths to %d ranks", job->size);
    quoit_status_t status = choose_neighbours(job, &wanted);
    if (status != QUOIT_OK) goto out;
    engine_enter(attempt->engine);
    for (int rank = 0; rank < job->size; rank++) {
        const job_address_t *address = wanted[rank] ? doubtful(job, rank) : NULL;
        if (!address) continue;
        paths[count].rank = rank;
        paths[count++].transport = address->transport;
    }
    try_all(attempt, paths, count);
    engine_leave(attempt->engine);
    status = publish_paths(attempt, paths, count);
    if (status == QUOIT_OK) status = learn_bans(attempt);
    engine_enter(attempt->engine);
    for (int i = 0; i < count; i++) {
        if (status == QUOIT_OK) keep(job, &paths[i]);
        else let_go(&paths[i]);
    }
    engine_leave(attempt->engine);
out:
    free(wanted);
    free(paths);
    return status;
}
