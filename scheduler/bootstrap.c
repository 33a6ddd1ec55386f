/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap: how ranks that only share a store become a job.
 *
 *   every rank   sets  record/<rank>                who it is, with a nonce of this attempt
 *   rank 0       gets  all records, sets roster     incarnation, secret, tuning, all records
 *   every rank   gets  roster; tries to attach the memory of those on its kernel; sets proof/<incarnation>/<rank>
 *   rank 0       gets  all proofs, sets hosts/<incarnation>   who shares a host: passing a descriptor worked, both ways
 *   every rank   gets  hosts/<incarnation>
 *
 * The store may hold what an earlier attempt left. A rank whose nonce is not in the roster looks again; rank 0, while proofs are
 * missing, looks whether a record has changed, and then publishes a new roster under a new incarnation; a rank that waits for hosts
 * looks whether the roster has changed. So records of different attempts never mix, and all of it ends at the deadline.
 */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/hash.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/store.h"
#include "scheduler/roster.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LOOK_AGAIN_FIRST_MS = 50, LOOK_AGAIN_MS = 1000 };

typedef struct attempt {
    engine_t *engine;
    quoit_store_t *store;
    int rank, size;
    uint64_t deadline;
    job_record_t own;
    job_t *job;
} attempt_t;

/* ------------------------------------------------------------------ store */

static quoit_status_t set(attempt_t *attempt, const char *key, const void *value, size_t length)
{
    return quoit_store_set(attempt->store, key, value, length);
}

/* Wait at most `limit_ms`, and not past the deadline. ERR_TIMEOUT when the key did not come. */
static quoit_status_t get(attempt_t *attempt, const char *key, int limit_ms, void **value, size_t *length)
{
    int left = clock_left_ms(attempt->deadline);
    if (left < 0 || (limit_ms >= 0 && limit_ms < left)) left = limit_ms;
    return quoit_store_get(attempt->store, key, left, value, length);
}

static bool is_over(const attempt_t *attempt) { return clock_now() >= attempt->deadline; }

/* ------------------------------------------------------------------ the own record */

static uint64_t kernel_hash(void)
{
    char id[64] = "";
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = file >= 0 ? read(file, id, sizeof id) : 0;
    if (file >= 0) close(file);
    return got > 0 ? hash_bytes(1, id, (size_t)got) : 0; /* unknown: everyone is tried */
}

static quoit_status_t make_record(attempt_t *attempt)
{
    job_record_t *own = &attempt->own;
    const char *label = setting_string(SETTING_HOST_LABEL);
    char source[32];
    own->process = attempt->engine->self;
    own->kernel = kernel_hash();
    own->label = hash_combine(attempt->engine->host_label, hash_bytes(2, label, strlen(label)));
    own->rank = attempt->rank;
    own->size = attempt->size;
    own->pid = (int32_t)getpid();
    own->tls = (uint8_t)setting_int(SETTING_TLS);
    machine_discover(&own->machine, source, sizeof source);
    log_info("bootstrap", "this process may use %d cores (%s)", own->machine.cores, source);
    snprintf(own->host, sizeof own->host, "%s", log_host());
    snprintf(own->version, sizeof own->version, "%s", quoit_version());
    for (int i = 0; i < attempt->engine->transports && own->addresses < JOB_ADDRESS_CAPACITY; i++) {
        engine_transport_t *transport = &attempt->engine->transport[i];
        job_address_t *address = &own->address[own->addresses++];
        snprintf(address->transport, sizeof address->transport, "%s", transport->ops->name);
        address->length = (uint16_t)transport->address_length;
        memcpy(address->address, transport->address, transport->address_length);
    }
    return random_bytes(&own->nonce, sizeof own->nonce);
}

static quoit_status_t publish_record(attempt_t *attempt)
{
    uint8_t bytes[JOB_RECORD_CAPACITY];
    char key[64];
    snprintf(key, sizeof key, "quoit/record/%d", attempt->rank);
    return set(attempt, key, bytes, job_record_encode(&attempt->own, bytes, sizeof bytes));
}

/* ------------------------------------------------------------------ the job that comes out of it */

static void freeze_tuning(tuning_t *tuning)
{
    *tuning = (tuning_t){.slot_size = (uint64_t)setting_int(SETTING_SLOT_SIZE),
                         .net_chunk_size = (uint64_t)setting_int(SETTING_NET_CHUNK_SIZE),
                         .small_limit = (uint64_t)setting_int(SETTING_ALLREDUCE_SMALL),
                         .eager_limit = (uint64_t)setting_int(SETTING_EAGER_LIMIT),
                         .net_depth = (int32_t)setting_int(SETTING_NET_DEPTH),
                         .allreduce = -1};
    if (tuning->small_limit > PLAN_SMALL_SLOT) tuning->small_limit = PLAN_SMALL_SLOT;
    static const int algorithm[] = {-1, ALGORITHM_WINDOW, ALGORITHM_TWO_LEVEL, ALGORITHM_RING, ALGORITHM_DOUBLING};
    tuning->allreduce = algorithm[setting_int(SETTING_ALLREDUCE)];
    tuning->wire = QUOIT_WIRE_NONE + (int32_t)setting_int(SETTING_WIRE_DTYPE); /* in the same order */
}

static quoit_status_t new_job(attempt_t *attempt)
{
    job_t *job = calloc(1, sizeof *job);
    if (!job) return error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: a job");
    job->engine = attempt->engine;
    job->users = 1;
    job->size = attempt->size;
    job->rank = attempt->rank;
    job->host = calloc((size_t)job->size, sizeof *job->host);
    job->record = calloc((size_t)job->size, sizeof *job->record);
    job->peer = calloc((size_t)job->size, sizeof(peer_t *));
    quoit_status_t status = table_create(&job->groups);
    if (status != QUOIT_OK || !job->host || !job->record || !job->peer) {
        job_release(job);
        return error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: a job of %d ranks", attempt->size);
    }
    attempt->job = job;
    return QUOIT_OK;
}

static void drop_job(attempt_t *attempt)
{
    if (!attempt->job) return;
    engine_enter(attempt->engine);
    job_release(attempt->job);
    engine_leave(attempt->engine);
    attempt->job = NULL;
}

/* Peers, and the secret: from here on connections of this job are accepted. */
static quoit_status_t take_peer(job_t *job, int rank, peer_t **peer)
{
    char name[PEER_NAME_CAPACITY];
    const job_record_t *record = &job->record[rank];
    snprintf(name, sizeof name, "rank %d (%s, pid %d)", rank, record->host, record->pid);
    return engine_peer(job->engine, record->process, name, peer);
}

static quoit_status_t open_job(attempt_t *attempt)
{
    job_t *job = attempt->job;
    engine_t *engine = attempt->engine;
    quoit_status_t status = QUOIT_OK;
    engine_enter(engine);
    engine_poll(engine); /* a rank of this job may have left an earlier one: its goodbye came before its record */
    for (int i = 0; i < engine->transports && status == QUOIT_OK; i++)
        status = engine->transport[i].ops->trust(engine->transport[i].transport, job->id, job->secret, sizeof job->secret);
    for (int rank = 0; rank < job->size && status == QUOIT_OK; rank++) status = take_peer(job, rank, &job->peer[rank]);
    engine_leave(engine);
    return status;
}

/* ------------------------------------------------------------------ roster */

static quoit_status_t publish_roster(attempt_t *attempt)
{
    job_t *job = attempt->job;
    quoit_status_t status = random_bytes(&job->id, sizeof job->id);
    if (status == QUOIT_OK) status = random_bytes(job->secret, sizeof job->secret);
    if (status != QUOIT_OK) return status;
    freeze_tuning(&job->tuning);
    size_t capacity = roster_capacity(job->size);
    uint8_t *bytes = malloc(capacity);
    if (!bytes) return error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: a roster of %zu bytes", capacity);
    status = set(attempt, "quoit/roster", bytes, roster_encode(job, bytes));
    memset(bytes, 0, capacity);
    free(bytes);
    return status;
}

static const char *tls_name(const job_record_t *record)
{
    static const char *const names[] = {"off", "psk", "certificates"};
    return record->tls < sizeof names / sizeof *names ? names[record->tls] : "something unknown";
}

/*
 * Only for the text: a process takes its own setting for what it does, and would be refused by peers with another. Rank 0 looks, so that
 * all ranks get the text, and each rank looks at what it is told of rank 0, in case that could not.
 */
static quoit_status_t check_tls(const job_record_t *one, const job_record_t *other)
{
    if (one->tls == other->tls) return QUOIT_OK;
    return error_set(QUOIT_ERR_MISMATCH,
                     "rank %d (%s, pid %d) was started with QUOIT_TLS=%s, but rank %d (%s, pid %d) with QUOIT_TLS=%s; set the same on all ranks",
                     one->rank, one->host, one->pid, tls_name(one), other->rank, other->host, other->pid, tls_name(other));
}

/* Rank 0: is this record one that belongs here? */
static quoit_status_t check_record(const attempt_t *attempt, int rank, const job_record_t *record)
{
    if (record->rank != rank)
        return error_set(QUOIT_ERR_PROTOCOL, "bootstrap: the record of rank %d says that it is rank %d's", rank, record->rank);
    if (record->size != attempt->size)
        return error_set(QUOIT_ERR_MISMATCH, "rank %d (%s, pid %d) was started for a world of %d ranks, but rank 0 for one of %d; give all the same size",
                         rank, record->host, record->pid, record->size, attempt->size);
    if (strcmp(record->version, attempt->own.version) != 0)
        return error_set(QUOIT_ERR_MISMATCH, "rank %d (%s, pid %d) has loaded quoit %s, but rank 0 quoit %s; install the same everywhere", rank,
                         record->host, record->pid, record->version, attempt->own.version);
    return check_tls(record, &attempt->own);
}

static quoit_status_t get_record(attempt_t *attempt, int rank, int limit_ms, job_record_t *record)
{
    char key[64];
    void *value = NULL;
    size_t length = 0, used;
    snprintf(key, sizeof key, "quoit/record/%d", rank);
    quoit_status_t status = get(attempt, key, limit_ms, &value, &length);
    if (status == QUOIT_OK) status = job_record_decode(value, length, &used, record);
    free(value);
    return status;
}

/*
 * A roster that is only an error: those whose records were read end with its text. The nonces say whom it is for, so that the next
 * attempt does not take it for its own.
 */
static void publish_failure(attempt_t *attempt, quoit_status_t status, const char *text)
{
    job_t *job = attempt->job;
    uint64_t until = clock_deadline(LOOK_AGAIN_MS); /* for those that are about to come */
    for (int rank = 1; job && rank < attempt->size; rank++)
        if (job->record[rank].nonce == 0) (void)get_record(attempt, rank, clock_left_ms(until), &job->record[rank]);
    size_t length = 0;
    uint8_t *bytes = job ? roster_failure_encode(job, status, text, &length) : NULL;
    if (bytes) (void)set(attempt, "quoit/roster", bytes, length);
    free(bytes);
}

/* Which ranks lack: those of `prefix` keys that are not in the store. */
static quoit_status_t tell_missing(attempt_t *attempt, const char *prefix, const char *what)
{
    char list[512] = "";
    int missing = 0;
    for (int rank = 0; rank < attempt->size; rank++) {
        char key[96];
        void *value = NULL;
        size_t length = 0;
        snprintf(key, sizeof key, "%s%d", prefix, rank);
        if (rank == attempt->rank || quoit_store_get(attempt->store, key, 1, &value, &length) == QUOIT_OK) {
            free(value);
            continue;
        }
        size_t at = strlen(list);
        if (at < sizeof list - 16) snprintf(list + at, sizeof list - at, "%s%d", missing ? ", " : "", rank);
        missing++;
    }
    if (missing == 0)
        return error_set(QUOIT_ERR_TIMEOUT, "timed out: the last of %d ranks came too late at %s", attempt->size, store_description(attempt->store));
    return error_set(QUOIT_ERR_TIMEOUT, "timed out: %d of %d ranks %s at %s: %s %s", missing, attempt->size, what,
                     store_description(attempt->store), missing == 1 ? "rank" : "ranks", list);
}

static quoit_status_t gather_records(attempt_t *attempt)
{
    for (int rank = 1; rank < attempt->size; rank++) {
        job_record_t *record = &attempt->job->record[rank];
        quoit_status_t status = get_record(attempt, rank, -1, record);
        if (status == QUOIT_ERR_TIMEOUT) status = tell_missing(attempt, "quoit/record/", "did not come");
        if (status == QUOIT_OK) status = check_record(attempt, rank, record);
        if (status != QUOIT_OK) return status;
    }
    attempt->job->record[0] = attempt->own;
    return QUOIT_OK;
}

/* Others: wait for a roster that knows this attempt. */
static quoit_status_t await_roster(attempt_t *attempt)
{
    unsigned pause_ms = 10;
    for (;;) {
        void *value = NULL;
        size_t length = 0;
        quoit_status_t status = get(attempt, "quoit/roster", -1, &value, &length);
        if (status == QUOIT_ERR_TIMEOUT)
            return error_set(status, "timed out: rank 0 has not come, or still waits for others, at %s; rank %d waited for it",
                             store_description(attempt->store), attempt->rank);
        if (status == QUOIT_OK) status = roster_decode(value, length, attempt->own.nonce, attempt->job); /* ERR_AGAIN: of another attempt */
        if (status == QUOIT_OK) status = check_tls(&attempt->own, &attempt->job->record[0]);
        if (value) memset(value, 0, length);
        free(value);
        if (status != QUOIT_ERR_AGAIN) return status;
        if (is_over(attempt))
            return error_set(QUOIT_ERR_TIMEOUT, "timed out: %s holds a roster of an earlier attempt only; rank 0 has not come for this one",
                             store_description(attempt->store));
        poll(NULL, 0, (int)pause_ms);
        if (pause_ms < 200) pause_ms *= 2;
    }
}

/* ------------------------------------------------------------------ who shares a host */

static bool may_share_host(const job_t *job, int rank)
{
    const job_record_t *own = &job->record[job->rank], *other = &job->record[rank];
    return rank != job->rank && own->kernel == other->kernel && own->label == other->label;
}

/* Connect to the memory of all that may be host mates, anew to one whose goodbye to an earlier job has only just come. */
static quoit_status_t reach_mates(attempt_t *attempt)
{
    job_t *job = attempt->job;
    quoit_status_t status = QUOIT_OK;
    for (int rank = 0; rank < job->size && status == QUOIT_OK; rank++) {
        peer_t *peer = job->peer[rank];
        if (peer->left) {
            status = take_peer(job, rank, &job->peer[rank]);
            if (status == QUOIT_OK) engine_peer_release(peer);
        }
        if (status != QUOIT_OK || !may_share_host(job, rank) || job->peer[rank]->map) continue;
        int timeout_ms = (int)(setting_int(SETTING_CONNECT_TIMEOUT) / 1000), left = clock_left_ms(attempt->deadline);
        status = job_connect(job, rank, job->engine->map, left >= 0 && left < timeout_ms ? left : timeout_ms, &job->peer[rank]->map);
        if (status == QUOIT_ERR_NOT_FOUND) status = QUOIT_OK; /* it offers no shared memory */
    }
    return status;
}

/* Try to attach the memory of all that may be host mates; proven[r] is set where it worked. */
static quoit_status_t prove_hosts(attempt_t *attempt)
{
    job_t *job = attempt->job;
    engine_t *engine = attempt->engine;
    if (!engine->map) return QUOIT_OK;
    engine_enter(engine);
    quoit_status_t status = reach_mates(attempt);
    bool pending = status == QUOIT_OK;
    while (pending && !is_over(attempt)) {
        bool moved = engine_poll(engine);
        status = reach_mates(attempt);
        pending = false;
        for (int rank = 0; rank < job->size && status == QUOIT_OK; rank++) {
            quoit_endpoint_t *endpoint = job->peer[rank]->map;
            pending |= endpoint && endpoint->transport->ops->endpoint_status(endpoint) == QUOIT_IN_PROGRESS;
        }
        if (pending && !moved) {
            struct pollfd ready[2] = {{.fd = engine->epoll, .events = POLLIN}};
            poll(ready, 1, 5);
        }
    }
    for (int rank = 0; rank < job->size && status == QUOIT_OK; rank++) {
        peer_t *peer = job->peer[rank];
        if (!peer->map) continue;
        peer->proven = peer->map->transport->ops->endpoint_status(peer->map) == QUOIT_OK;
        if (!peer->proven) log_info("bootstrap", "%s is not on this host: %s", peer->name, error_text());
    }
    engine_leave(engine);
    return status;
}

static size_t proof_length(const job_t *job) { return ((size_t)job->size + 7) / 8; }

static void proof_key(const attempt_t *attempt, int rank, char key[96])
{
    snprintf(key, 96, "quoit/proof/%016llx/%d", (unsigned long long)attempt->job->id, rank);
}

/* This rank has read the roster and cannot go on: rank 0, which waits for its proof, tells the others. */
static void publish_refusal(attempt_t *attempt, quoit_status_t status, const char *text)
{
    uint8_t bytes[ROSTER_REFUSAL_CAPACITY];
    char key[96];
    if (!attempt->job || attempt->job->id == 0) return;
    proof_key(attempt, attempt->rank, key);
    (void)set(attempt, key, bytes, roster_refusal_encode(status, text, proof_length(attempt->job), bytes));
}

static quoit_status_t publish_proof(attempt_t *attempt)
{
    job_t *job = attempt->job;
    size_t length = proof_length(job);
    uint8_t *bits = calloc(1, length);
    if (!bits) return error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: %zu bytes", length);
    for (int rank = 0; rank < job->size; rank++)
        if (job->peer[rank]->proven) bits[rank / 8] |= (uint8_t)(1 << rank % 8);
    char key[96];
    proof_key(attempt, attempt->rank, key);
    quoit_status_t status = set(attempt, key, bits, length);
    free(bits);
    return status;
}

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

/* Rank 0: has a rank started anew since its record was read? */
static bool has_changed(attempt_t *attempt, int rank)
{
    job_record_t record;
    return get_record(attempt, rank, 1, &record) == QUOIT_OK && record.nonce != attempt->job->record[rank].nonce;
}

/* Many ranks may wait for long: look less and less often. */
static int look_later(int pause_ms) { return pause_ms * 2 < LOOK_AGAIN_MS ? pause_ms * 2 : LOOK_AGAIN_MS; }

/* Rank 0: collect the proofs and publish the hosts. ERR_AGAIN: a rank started anew. */
static quoit_status_t settle_hosts(attempt_t *attempt)
{
    job_t *job = attempt->job;
    size_t length = proof_length(job);
    uint8_t *bits = calloc((size_t)job->size, length), *hosts = malloc((size_t)job->size * 4);
    quoit_status_t status = bits && hosts ? QUOIT_OK : error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: proofs of %d ranks", job->size);
    char key[96];
    for (int rank = 0; rank < job->size && status == QUOIT_OK; rank++) {
        void *value = NULL;
        size_t got = 0;
        proof_key(attempt, rank, key);
        int pause_ms = LOOK_AGAIN_FIRST_MS;
        while ((status = get(attempt, key, pause_ms, &value, &got)) == QUOIT_ERR_TIMEOUT) {
            pause_ms = look_later(pause_ms);
            if (has_changed(attempt, rank)) {
                status = QUOIT_ERR_AGAIN;
                break;
            }
            if (!is_over(attempt)) continue;
            char prefix[64];
            snprintf(prefix, sizeof prefix, "quoit/proof/%016llx/", (unsigned long long)job->id);
            status = tell_missing(attempt, prefix, "came but did not go on");
            break;
        }
        if (status == QUOIT_OK && got != length)
            status = error_prefix(roster_refusal_decode(value, got), "rank %d (%s, pid %d)", rank, job->record[rank].host, job->record[rank].pid);
        if (status == QUOIT_OK) memcpy(bits + (size_t)rank * length, value, length);
        free(value);
    }
    if (status == QUOIT_OK) {
        partition(job, bits, length);
        roster_hosts_encode(job->host, job->size, hosts);
        snprintf(key, sizeof key, "quoit/hosts/%016llx", (unsigned long long)job->id);
        status = set(attempt, key, hosts, (size_t)job->size * 4);
    }
    free(hosts);
    free(bits);
    return status;
}

/* Others: wait for the hosts. ERR_AGAIN: rank 0 has published another roster. */
static quoit_status_t await_hosts(attempt_t *attempt)
{
    job_t *job = attempt->job;
    char key[96];
    snprintf(key, sizeof key, "quoit/hosts/%016llx", (unsigned long long)job->id);
    for (int pause_ms = LOOK_AGAIN_FIRST_MS;; pause_ms = look_later(pause_ms)) {
        void *value = NULL;
        size_t length = 0;
        quoit_status_t status = get(attempt, key, pause_ms, &value, &length);
        if (status == QUOIT_OK) status = roster_hosts_decode(value, length, job->size, job->host);
        free(value);
        if (status != QUOIT_ERR_TIMEOUT) return status;
        if (is_over(attempt))
            return error_set(QUOIT_ERR_TIMEOUT, "timed out: rank 0 still waits for other ranks at %s; rank %d waited for it",
                             store_description(attempt->store), attempt->rank);
        uint64_t id = job->id;
        if (get(attempt, "quoit/roster", 1, &value, &length) != QUOIT_OK) continue;
        bool other = roster_is_other(value, length, id);
        free(value);
        if (other) return QUOIT_ERR_AGAIN;
    }
}

/* Endpoints to processes that turned out to live elsewhere are of no use as memory. */
static void keep_host_mates(attempt_t *attempt)
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
    engine->spin = engine->host_ranks <= job->record[job->rank].machine.cores;
    engine_leave(engine);
    log_info("bootstrap", "rank %d of %d on %s, with %d ranks on this host", job->rank, job->size, log_host(), mates);
}

/* ------------------------------------------------------------------ all of it */

static quoit_status_t try_once(attempt_t *attempt)
{
    quoit_status_t status = new_job(attempt);
    if (status != QUOIT_OK) return status;
    if (attempt->rank == 0) {
        status = gather_records(attempt);
        if (status == QUOIT_OK) status = publish_roster(attempt);
    } else
        status = await_roster(attempt);
    if (status == QUOIT_OK) status = open_job(attempt);
    if (status == QUOIT_OK) status = prove_hosts(attempt);
    if (status == QUOIT_OK) status = publish_proof(attempt);
    if (status == QUOIT_OK) status = attempt->rank == 0 ? settle_hosts(attempt) : await_hosts(attempt);
    if (status != QUOIT_OK) return status;
    keep_host_mates(attempt);
    return QUOIT_OK;
}

/* A world of one needs nobody. */
static quoit_status_t alone(attempt_t *attempt)
{
    quoit_status_t status = new_job(attempt);
    if (status != QUOIT_OK) return status;
    attempt->job->record[0] = attempt->own;
    freeze_tuning(&attempt->job->tuning);
    status = random_bytes(&attempt->job->id, sizeof attempt->job->id);
    if (status == QUOIT_OK) status = random_bytes(attempt->job->secret, sizeof attempt->job->secret);
    if (status == QUOIT_OK) status = open_job(attempt);
    if (status == QUOIT_OK) keep_host_mates(attempt);
    return status;
}

quoit_status_t job_create(engine_t *engine, quoit_store_t *store, int rank, int size, uint64_t deadline, job_t **job)
{
    attempt_t attempt = {.engine = engine, .store = store, .rank = rank, .size = size, .deadline = deadline};
    quoit_status_t status = make_record(&attempt);
    if (status != QUOIT_OK) return status;
    if (size == 1) {
        status = alone(&attempt);
    } else {
        status = publish_record(&attempt);
        while (status == QUOIT_OK && (status = try_once(&attempt)) == QUOIT_ERR_AGAIN) {
            log_info("bootstrap", "a rank has started anew; meeting once more");
            drop_job(&attempt);
            status = QUOIT_OK;
        }
    }
    if (status != QUOIT_OK) {
        char text[ERROR_TEXT_CAPACITY];
        snprintf(text, sizeof text, "%s", error_text());
        if (rank == 0 && size > 1) publish_failure(&attempt, status, text);
        if (rank > 0) publish_refusal(&attempt, status, text);
        drop_job(&attempt);
        return error_set(status, "%s", text);
    }
    *job = attempt.job;
    return QUOIT_OK;
}
