/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap: who shares a host. Each rank tries to attach the memory of those on its kernel, and publishes for which it worked, and
 * why not for the first of the others. Rank 0 joins to hosts the ranks for which it worked both ways. So a rank that lacks something
 * (memfd_create, address space, descriptors, a namespace in common) counts as another host to all, and edges to it use the network.
 * What two ranks on one machine are kept from by accident is told in one warning of rank 0's, with the cause.
 *
 * Where all ranks are on one machine, and nothing keeps them from sharing memory, that is found in the memory itself, without the store.
 */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/settings.h"
#include "scheduler/bootstrap.h"
#include "scheduler/roster.h"
#include "scheduler/window.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ proofs */

static bool on_one_machine(const job_t *job, int a, int b)
{
    return job->record[a].kernel == job->record[b].kernel && job->record[a].label == job->record[b].label;
}

static bool may_share_host(const job_t *job, int rank)
{
    return rank != job->rank && on_one_machine(job, job->rank, rank) && job->record[rank].user == job->record[job->rank].user;
}

static void note_lack(lack_t *lack, lack_kind_t kind, const char *text)
{
    if (lack->kind >= kind) return;
    lack->kind = kind;
    snprintf(lack->text, sizeof lack->text, "%s", text);
}

static void note_other_users(const job_t *job, lack_t *lack)
{
    for (int rank = 0; rank < job->rank; rank++) {
        char text[LACK_TEXT];
        if (!on_one_machine(job, job->rank, rank) || may_share_host(job, rank)) continue;
        snprintf(text, sizeof text, "it runs as user %u, rank %d as user %u, and memory is shared inside one user only; start all ranks of a machine as one user",
                 job->record[job->rank].user, rank, job->record[rank].user);
        note_lack(lack, LACK_PEER, text);
        return;
    }
}

/* Many ranks may wait for long: look less and less often. */
static int look_later(int pause_ms) { return pause_ms * 2 < LOOK_AGAIN_MS ? pause_ms * 2 : LOOK_AGAIN_MS; }

/* Connect to the memory of all that may be host mates, anew to one whose goodbye to an earlier job has only just come. */
static quoit_status_t reach_mates(attempt_t *attempt)
{
    job_t *job = attempt->job;
    quoit_status_t status = QUOIT_OK;
    for (int rank = 0; rank < job->size && status == QUOIT_OK; rank++) {
        peer_t *peer = job->peer[rank];
        if (peer->left) {
            status = bootstrap_take_peer(job, rank, &job->peer[rank]);
            if (status == QUOIT_OK) engine_peer_release(peer);
        }
        if (status != QUOIT_OK || !may_share_host(job, rank) || job->peer[rank]->map) continue;
        int timeout_ms = (int)(setting_int(SETTING_CONNECT_TIMEOUT) / 1000), left = clock_left_ms(attempt->deadline);
        status = job_connect(job, rank, job->engine->map, left >= 0 && left < timeout_ms ? left : timeout_ms, &job->peer[rank]->map);
        if (status == QUOIT_ERR_NOT_FOUND) status = QUOIT_OK; /* it offers no shared memory */
    }
    return status;
}

/* Is that connection still on its way? */
static bool is_coming(const job_t *job, int rank)
{
    quoit_endpoint_t *endpoint = job->peer[rank]->map;
    return endpoint && endpoint->transport->ops->endpoint_status(endpoint) == QUOIT_IN_PROGRESS;
}

/* Has a rank started anew since its record was read, or failed? */
static bool has_changed(attempt_t *attempt, int rank)
{
    job_record_t record;
    quoit_status_t status = bootstrap_get_record(attempt, rank, 1, &record);
    return attempt->rank_failed || (status == QUOIT_OK && record.nonce != attempt->job->record[rank].nonce);
}

/* Has rank 0 published a failure, or begun anew? */
static bool has_other_roster(attempt_t *attempt)
{
    void *value = NULL;
    size_t length = 0;
    if (bootstrap_get(attempt, ITEM_ROSTER, 0, 1, &value, &length) != QUOIT_OK) return false;
    bool other = roster_is_other(value, length, attempt->job->id);
    bootstrap_forget(value, length);
    return other;
}

/*
 * A rank that has failed answers nobody, and has left word in the store: rank 0 in the roster's place, another in its proof's. Then nothing is
 * to be waited for; who reads these next tells the rest. Called without the engine, which the store must not hold up.
 */
static bool somebody_gave_up(attempt_t *attempt, const bool *awaited)
{
    void *value = NULL;
    size_t length = 0;
    bool gave_up = attempt->rank > 0 && has_other_roster(attempt);
    for (int rank = 0; rank < attempt->size && !gave_up; rank++) {
        if (!awaited[rank]) continue;
        if (attempt->rank == 0 && has_changed(attempt, rank)) return true; /* its earlier attempt goes on no more */
        if (bootstrap_get(attempt, ITEM_PROOF, rank, 1, &value, &length) != QUOIT_OK) continue;
        gave_up = roster_is_refusal(value, length);
        bootstrap_forget(value, length);
    }
    return gave_up;
}

/* When the store is looked into next. Asking costs two round trips a rank, and ranks of a busy machine need a while. */
typedef struct look {
    uint64_t next;
    int pause_ms;
} look_t;

static look_t first_look(void) { return (look_t){.next = clock_deadline(LOOK_FOR_FAILURE_MS), .pause_ms = LOOK_FOR_FAILURE_MS}; }

/* From time to time, about those who are waited for; the owner of the engine calls. */
static bool look_into_store(attempt_t *attempt, look_t *look, bool (*is_awaited)(const job_t *job, int rank))
{
    if (clock_now() < look->next) return false;
    bool gave_up = false, *awaited = calloc((size_t)attempt->size, sizeof *awaited);
    for (int rank = 0; awaited && rank < attempt->size; rank++) awaited[rank] = is_awaited(attempt->job, rank);
    engine_leave(attempt->engine);
    if (awaited) gave_up = somebody_gave_up(attempt, awaited);
    free(awaited);
    engine_enter(attempt->engine);
    look->pause_ms = look_later(look->pause_ms);
    look->next = clock_deadline(look->pause_ms);
    return gave_up;
}

/* Drive the connections until each stands or has failed. */
static quoit_status_t await_mates(attempt_t *attempt)
{
    job_t *job = attempt->job;
    engine_t *engine = attempt->engine;
    quoit_status_t status = reach_mates(attempt);
    look_t look = first_look();
    bool pending = status == QUOIT_OK;
    while (pending && !bootstrap_is_over(attempt) && !look_into_store(attempt, &look, is_coming)) {
        bool moved = engine_poll(engine);
        status = reach_mates(attempt);
        pending = false;
        for (int rank = 0; rank < job->size && status == QUOIT_OK; rank++) pending |= is_coming(job, rank);
        if (pending && !moved) {
            struct pollfd ready = {.fd = engine->epoll, .events = POLLIN};
            if (poll(&ready, 1, 5) > 0) job->engine->map->ops->disarm(job->engine->map->transport); /* it may be what is ready: it looks at once */
        }
    }
    return status;
}

/* proven is set where it worked; *lack tells why not for one of the others. */
static quoit_status_t try_mates(attempt_t *attempt, lack_t *lack)
{
    job_t *job = attempt->job;
    engine_t *engine = attempt->engine;
    if (!engine->map) {
        note_lack(lack, engine->map_lack[0] ? LACK_OWN : LACK_CHOSEN, engine->map_lack);
        return QUOIT_OK;
    }
    engine_enter(engine);
    quoit_status_t status = await_mates(attempt);
    for (int rank = 0; rank < job->size && status == QUOIT_OK; rank++) {
        peer_t *peer = job->peer[rank];
        if (!peer->map) continue;
        quoit_status_t found = peer->map->transport->ops->endpoint_status(peer->map);
        peer->proven = found == QUOIT_OK;
        if (peer->proven) continue;
        log_info("bootstrap", "%s is not on this host: %s", peer->name, error_text());
        note_lack(lack, found == QUOIT_ERR_PEER ? LACK_BROKEN : LACK_PEER, error_text());
    }
    note_other_users(job, lack);
    engine_leave(engine);
    return status;
}

/* A proof: a bit a rank, the kind of a lack, its text; behind a zero, for a refusal may stand in its place. */
static quoit_status_t publish_proof(attempt_t *attempt, const lack_t *lack)
{
    job_t *job = attempt->job;
    size_t length = ((size_t)job->size + 7) / 8, text = strlen(lack->text);
    uint8_t *bytes = calloc(1, 1 + length + 1 + text), *bits = bytes + 1;
    if (!bytes) return error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: %zu bytes", length);
    bits[length] = (uint8_t)lack->kind;
    memcpy(bits + length + 1, lack->text, text);
    for (int rank = 0; rank < job->size; rank++)
        if (job->peer[rank]->proven) bits[rank / 8] |= (uint8_t)(1 << rank % 8);
    quoit_status_t status = bootstrap_set(attempt, ITEM_PROOF, attempt->rank, bytes, 1 + length + 1 + text);
    free(bytes);
    return status;
}

static int smaller(int a, int b) { return a < b ? a : b; }

/*
 * Descriptors that connecting the ranks takes: inside a host a socket, a doorbell and a pidfd each, and two more on the way there;
 * between hosts the sockets of those whom collectives join, while all addresses are tried at once.
 */
static quoit_status_t check_descriptors(const attempt_t *attempt)
{
    enum { MATE = 5, MATE_OF_MANY = 4, MANY = 32, ADDRESSES = 4 };
    const job_t *job = attempt->job;
    int mates = 0, joined = 2;
    for (int rank = 0; rank < job->size && attempt->engine->map; rank++) mates += may_share_host(job, rank);
    for (int reach = 1; reach < job->size; reach *= 2) joined += 2;
    int far = smaller(job->size - 1 - mates, joined) * ((int)setting_int(SETTING_TCP_SOCKETS) + ADDRESSES);
    return limits_descriptors(smaller(mates * MATE, mates * MATE_OF_MANY + MANY) + far, "connecting the ranks");
}

/* One warning for the job when some ranks have a transport that others wanted and have not: pairs of the two use something else. */
static void tell_of_mixture(const job_t *job)
{
    for (int rank = 0; rank < job->size; rank++) {
        const job_record_t *record = &job->record[rank];
        for (int i = 0; i < record->lacks; i++) {
            int have = 0, without = 0;
            for (int other = 0; other < job->size; other++) {
                for (int k = 0; k < job->record[other].addresses; k++) have += strcmp(job->record[other].address[k].transport, record->lack[i].transport) == 0;
                for (int k = 0; k < job->record[other].lacks; k++) without += strcmp(job->record[other].lack[k].transport, record->lack[i].transport) == 0;
            }
            if (have == 0) continue;
            log_warn("bootstrap", "%s has no transport %s: %s. %d of %d ranks lack it; with those the others use what both have (describe says what)",
                     job->peer[rank]->name, record->lack[i].transport, record->lack[i].why, without, job->size);
            return;
        }
    }
}

/* ------------------------------------------------------------------ one host, settled without the store */

/*
 * Where all records are of one machine, each rank marks in its shared memory whether it has attached everybody's. Who sees that all have, itself among
 * them, knows the hosts. A mark is never taken back while somebody may look for it; so either all ranks come to that, or nobody does: a rank that
 * has not attached all of them marks that, or cannot be seen by some, or it dies or gives up without a mark. Then all go by proofs in the store.
 */
enum { MARK_ALL = 0x616c6c, MARK_NOT_ALL = 0x736f6d65, YIELDS = 200 };

static bool is_one_machine(const job_t *job)
{
    for (int rank = 0; rank < job->size; rank++)
        if (rank != job->rank && !may_share_host(job, rank)) return false;
    return true;
}

static bool has_attached_all(const job_t *job)
{
    for (int rank = 0; rank < job->size; rank++)
        if (rank != job->rank && !job->peer[rank]->proven) return false;
    return true;
}

static bool is_marked(const job_t *job, int rank, uint64_t mark)
{
    return rank == job->rank || window_is_marked(job->peer[rank], hash_combine(job->id, mark));
}

static bool is_unmarked(const job_t *job, int rank) { return !is_marked(job, rank, MARK_ALL); }

/* Not before the mark was looked for: a rank may have made it and died. */
static bool will_not_mark(const job_t *job, int rank)
{
    const peer_t *peer = job->peer[rank];
    return is_marked(job, rank, MARK_NOT_ALL) || ((peer->left || peer->status != QUOIT_OK) && is_unmarked(job, rank));
}

/* True: all have attached all. The caller owns the engine. */
static bool await_marks(attempt_t *attempt)
{
    job_t *job = attempt->job;
    look_t look = first_look();
    for (int rank = 0, tries = 0; rank < job->size;) {
        if (!is_unmarked(job, rank)) {
            rank++;
            continue;
        }
        for (int other = rank; other < job->size; other++)
            if (is_unmarked(job, other) && will_not_mark(job, other)) return false;
        if (bootstrap_is_over(attempt) || look_into_store(attempt, &look, is_unmarked)) return false;
        if (engine_poll(job->engine)) continue;
        if (++tries < YIELDS) sched_yield();
        else poll(NULL, 0, 1);
    }
    return true;
}

/* *settled: all are on one host, and all ranks know it. */
static quoit_status_t settle_by_marks(attempt_t *attempt, bool *settled)
{
    job_t *job = attempt->job;
    quoit_status_t status = QUOIT_OK;
    *settled = false;
    if (!job->engine->map || !is_one_machine(job)) return QUOIT_OK;
    engine_enter(job->engine);
    bool all = has_attached_all(job);
    status = window_mark(job->engine, hash_combine(job->id, all ? MARK_ALL : MARK_NOT_ALL), &job->mark);
    job->is_marked = status == QUOIT_OK;
    if (status == QUOIT_OK && all) *settled = await_marks(attempt);
    engine_leave(job->engine);
    for (int rank = 0; rank < job->size && *settled; rank++) job->host[rank] = 0;
    return status;
}

quoit_status_t bootstrap_prove_hosts(attempt_t *attempt, bool *settled)
{
    lack_t lack = {.kind = LACK_NONE};
    quoit_status_t status = check_descriptors(attempt);
    if (status == QUOIT_OK) status = try_mates(attempt, &lack);
    if (status == QUOIT_OK) status = settle_by_marks(attempt, settled);
    if (status == QUOIT_OK && *settled && attempt->rank == 0) tell_of_mixture(attempt->job);
    return status == QUOIT_OK && !*settled ? publish_proof(attempt, &lack) : status;
}

/* ------------------------------------------------------------------ rank 0: hosts */

static bool proves(const uint8_t *bits, size_t length, int from, int to)
{
    return bits[(size_t)from * length + (size_t)to / 8] >> to % 8 & 1;
}

/* A rank joins the first host all of whose ranks it shares memory with, both ways. */
static void partition(job_t *job, const uint8_t *bits, size_t length)
{
    for (int rank = 0; rank < job->size; rank++) {
        job->host[rank] = rank;
        for (int first = 0; first < rank; first++) {
            if (job->host[first] != first) continue;
            bool all = true;
            for (int other = first; other < rank && all; other++)
                if (job->host[other] == first) all = proves(bits, length, rank, other) && proves(bits, length, other, rank);
            if (!all) continue;
            job->host[rank] = first;
            break;
        }
    }
}

/* Of the ranks that are on one machine, but not one host, the one that tells most; -1 when settings wanted it so, or there are none. */
static int find_lack(const job_t *job, const lack_t *lack, int *other)
{
    int found = -1;
    for (int rank = 0; rank < job->size; rank++) {
        for (int first = 0; first < rank; first++) {
            if (job->host[first] != first || job->host[rank] == first || !on_one_machine(job, first, rank)) continue;
            if (lack[first].kind == LACK_CHOSEN || lack[rank].kind == LACK_CHOSEN) continue;
            int who = lack[rank].kind > lack[first].kind ? rank : first;
            if (found >= 0 && lack[who].kind <= lack[found].kind) continue;
            found = who;
            *other = who == rank ? first : rank;
        }
    }
    return found;
}

static void warn_of_lack(const job_t *job, const lack_t *lack)
{
    int other = -1, rank = find_lack(job, lack, &other);
    if (rank < 0) return;
    log_warn("bootstrap", "%s and rank %d are on one machine but share no memory: what they exchange goes over the network, which is slower. %s: %s. "
             "Where that is meant, give each its own QUOIT_HOST_LABEL",
             job->peer[rank]->name, other, job->peer[rank]->name, lack[rank].text[0] ? lack[rank].text : "the connection ended");
}

/* A rank that fails after it has set its proof has put its refusal in the place of that. QUOIT_OK: it has not. */
static quoit_status_t look_for_refusal(attempt_t *attempt, int rank)
{
    void *value = NULL;
    size_t length = 0;
    attempt->rank_failed = bootstrap_get(attempt, ITEM_PROOF, rank, 1, &value, &length) == QUOIT_OK && roster_is_refusal(value, length);
    quoit_status_t status = attempt->rank_failed ? roster_refusal_decode(value, length) : QUOIT_OK;
    bootstrap_forget(value, length);
    return status;
}

quoit_status_t bootstrap_collect(attempt_t *attempt, bootstrap_item_t item, int rank, void **value, size_t *length)
{
    quoit_status_t status;
    int pause_ms = LOOK_AGAIN_FIRST_MS;
    while ((status = bootstrap_get(attempt, item, rank, pause_ms, value, length)) == QUOIT_ERR_TIMEOUT) {
        pause_ms = look_later(pause_ms);
        if (has_changed(attempt, rank)) return QUOIT_ERR_AGAIN;
        status = look_for_refusal(attempt, rank);
        if (status != QUOIT_OK) return status;
        if (bootstrap_is_over(attempt)) return bootstrap_tell_missing(attempt, item, "came but did not go on");
        bootstrap_warn(attempt, item, "came but did not go on");
    }
    if (status != QUOIT_OK || !roster_is_refusal(*value, *length)) return status;
    attempt->rank_failed = true;
    status = roster_refusal_decode(*value, *length);
    bootstrap_forget(*value, *length);
    *value = NULL;
    return status;
}

/* One rank's proof. ERR_AGAIN: it started anew. */
static quoit_status_t collect_proof(attempt_t *attempt, int rank, uint8_t *bits, size_t length, lack_t *lack)
{
    void *value = NULL;
    size_t got = 0;
    quoit_status_t status = bootstrap_collect(attempt, ITEM_PROOF, rank, &value, &got);
    if (status == QUOIT_OK) status = bootstrap_read_proof(value, got, rank, length, bits, lack);
    bootstrap_forget(value, got);
    return status;
}

quoit_status_t bootstrap_settle_hosts(attempt_t *attempt)
{
    job_t *job = attempt->job;
    size_t length = ((size_t)job->size + 7) / 8;
    uint8_t *bits = calloc((size_t)job->size, length), *hosts = malloc((size_t)job->size * 4);
    lack_t *lack = calloc((size_t)job->size, sizeof *lack);
    quoit_status_t status = bits && hosts && lack ? QUOIT_OK : error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: proofs of %d ranks", job->size);
    for (int rank = 0; rank < job->size && status == QUOIT_OK; rank++)
        status = collect_proof(attempt, rank, bits + (size_t)rank * length, length, &lack[rank]);
    if (status == QUOIT_OK) {
        partition(job, bits, length);
        status = job_check_joined(job);
    }
    if (status == QUOIT_OK) {
        roster_hosts_encode(job->host, job->size, hosts);
        status = bootstrap_set(attempt, ITEM_HOSTS, 0, hosts, (size_t)job->size * 4);
    }
    if (status == QUOIT_OK) warn_of_lack(job, lack);
    if (status == QUOIT_OK) tell_of_mixture(job);
    free(lack);
    free(hosts);
    free(bits);
    return status;
}

/* ------------------------------------------------------------------ the others: hosts */

quoit_status_t bootstrap_await(attempt_t *attempt, bootstrap_item_t item, void **value, size_t *length)
{
    for (int pause_ms = LOOK_AGAIN_FIRST_MS;; pause_ms = look_later(pause_ms)) {
        quoit_status_t status = bootstrap_get(attempt, item, 0, pause_ms, value, length);
        if (status != QUOIT_ERR_TIMEOUT) return status;
        if (bootstrap_is_over(attempt))
            return error_set(QUOIT_ERR_TIMEOUT, "timed out: rank 0 still waits for other ranks at %s; rank %d waited for it",
                             store_description(attempt->store), attempt->rank);
        if (has_other_roster(attempt)) return QUOIT_ERR_AGAIN;
    }
}

quoit_status_t bootstrap_await_hosts(attempt_t *attempt)
{
    job_t *job = attempt->job;
    void *value = NULL;
    size_t length = 0;
    quoit_status_t status = bootstrap_await(attempt, ITEM_HOSTS, &value, &length);
    if (status == QUOIT_OK) status = roster_hosts_decode(value, length, job->size, job->host);
    bootstrap_forget(value, length);
    return status;
}

void bootstrap_keep_host_mates(attempt_t *attempt)
{
    job_t *job = attempt->job;
    engine_t *engine = attempt->engine;
    engine_enter(engine);
    int mates = 0, kernel_mates = 0;
    for (int rank = 0; rank < job->size; rank++) {
        peer_t *peer = job->peer[rank];
        bool mate = job->host[rank] == job->host[job->rank];
        mates += mate;
        kernel_mates += job->record[rank].kernel == job->record[job->rank].kernel;
        if (!peer->map || mate || peer->users > 1) continue; /* another job's, or a window's that is not yet gone */
        peer->map->transport->ops->disconnect(peer->map);
        peer->map = NULL;
    }
    if (kernel_mates > engine->host_ranks) engine->host_ranks = kernel_mates;
    engine->spin = engine->host_ranks <= cpu_capacity(); /* pinned to the same one: is_in_the_way sees that */
    engine_leave(engine);
    log_info("bootstrap", "rank %d of %d on %s, with %d ranks on this host", job->rank, job->size, log_host(), mates);
}
