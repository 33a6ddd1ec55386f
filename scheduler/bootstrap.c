/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap: how ranks that only share a store become a job.
 *
 *   the others   set   record/<rank>                who it is, with a nonce of this attempt
 *   rank 0       gets  all records, sets roster     incarnation, secret, tuning, all records
 *   the others   get   roster
 *   every rank   tries to attach the memory of those on its kernel. Where all ranks have attached all, they find that in the memory, and are done.
 *   every rank   sets  proof/<incarnation>/<rank>
 *   rank 0       gets  all proofs, sets hosts/<incarnation>   who shares a host: passing a descriptor worked, both ways
 *   every rank   gets  hosts/<incarnation>
 *   where hosts might use a transport that may be missing (bootstrap_paths.c):
 *   every rank   tries it with its neighbours; sets paths/<incarnation>/<rank>
 *   rank 0       gets  all of them, sets bans/<incarnation>     every rank   gets  bans/<incarnation>
 *
 * The store may hold what an earlier attempt left. A rank whose nonce is not in the roster looks again; rank 0, while proofs are
 * missing, looks whether a record has changed, and then publishes a new roster under a new incarnation; a rank that waits for hosts
 * looks whether the roster has changed. What does not fit this world is an error only when its writer is known to take part in it, or
 * nothing has replaced it for a while (bootstrap_doubt.c). So records of different attempts never mix, and all of it ends at the deadline.
 *
 * Two processes that were started as one rank: the second overwrites the record of the first, which sees it while it waits, and leaves.
 */
#include "base/clock.h"
#include "base/cpu.h"
#include "base/hash.h"
#include "base/hmac.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/store.h"
#include "scheduler/bootstrap.h"
#include "scheduler/roster.h"
#include "scheduler/window.h"
#include "transport/process.h"

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    KEY_CAPACITY = 64,
    RIVAL_FIRST_MS = 500, /* until the first look whether another process came as this rank; each pause is twice the one before */
    RIVAL_MOST_MS = 60000,
    STALE_WARN_MS = 5000  /* of waiting beside a roster of another attempt */
};

/* ------------------------------------------------------------------ store */

/* "quoit/record/3", "quoit/answer/3", "quoit/roster", "quoit/proof/<incarnation>/3", "quoit/hosts/<incarnation>" */
static const char *key_of(const attempt_t *attempt, bootstrap_item_t item, int rank, char key[KEY_CAPACITY])
{
    static const char *const names[] = {[ITEM_RECORD] = "record", [ITEM_ANSWER] = "answer", [ITEM_ROSTER] = "roster", [ITEM_PROOF] = "proof",
                                        [ITEM_HOSTS] = "hosts",   [ITEM_PATHS] = "paths",   [ITEM_BANS] = "bans"};
    char incarnation[24] = "", number[16] = "";
    if (item >= ITEM_PROOF) snprintf(incarnation, sizeof incarnation, "/%016llx", (unsigned long long)attempt->job->id);
    if (item == ITEM_RECORD || item == ITEM_ANSWER || item == ITEM_PROOF || item == ITEM_PATHS) snprintf(number, sizeof number, "/%d", rank);
    snprintf(key, KEY_CAPACITY, "quoit/%s%s%s", names[item], incarnation, number);
    return key;
}

quoit_status_t bootstrap_set(attempt_t *attempt, bootstrap_item_t item, int rank, const void *value, size_t length)
{
    char key[KEY_CAPACITY];
    return quoit_store_set(attempt->store, key_of(attempt, item, rank, key), value, length);
}

quoit_status_t bootstrap_get(attempt_t *attempt, bootstrap_item_t item, int rank, int limit_ms, void **value, size_t *length)
{
    char key[KEY_CAPACITY];
    int left = clock_left_ms(attempt->deadline);
    if (left < 0 || (limit_ms >= 0 && limit_ms < left)) left = limit_ms;
    return quoit_store_get(attempt->store, key_of(attempt, item, rank, key), left, value, length);
}

void bootstrap_forget(void *value, size_t length)
{
    if (value) explicit_bzero(value, length);
    free(value);
}

bool bootstrap_is_over(const attempt_t *attempt) { return clock_now() >= attempt->deadline; }

/* ------------------------------------------------------------------ the own record */

static uint64_t kernel_hash(void)
{
    char id[64] = "";
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = file >= 0 ? read(file, id, sizeof id) : 0;
    if (file >= 0) close(file);
    return got > 0 ? hash_bytes(1, id, (size_t)got) : 0; /* unknown: everyone is tried */
}

/*
 * What processes must have alike to read each other's memory and messages, though a build of one version may differ in it: byte order,
 * layouts, and the numbers that calls and plans are told by.
 */
static uint32_t layout_hash(void)
{
    const uint16_t order = 0x0102;
    uint8_t first_byte;
    memcpy(&first_byte, &order, 1);
    const uint64_t parts[] = {first_byte,        sizeof(void *),       sizeof(window_section_t), sizeof(operation_description_t),
                              sizeof(tuning_t),  PLAN_STAGES,          PLAN_SMALL_SLOT,          WINDOW_HISTORY,
                              COLLECTIVE_COUNT,  ALGORITHM_COUNT,      QUOIT_DTYPE_COUNT,        QUOIT_OP_COUNT,
                              QUOIT_WIRE_COUNT,  QUOIT_TRANSPORT_ABI};
    uint64_t hash = 1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) hash = hash_combine(hash, parts[i]);
    return (uint32_t)(hash >> 32);
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
    own->user = (uint32_t)geteuid();
    machine_discover(&own->machine, source, sizeof source);
    log_info("bootstrap", "this process may use %d cores (%s)", own->machine.cores, source);
    snprintf(own->host, sizeof own->host, "%s", log_host());
    snprintf(own->version, sizeof own->version, "%s (layout %08x)", quoit_version(), layout_hash());
    for (int i = 0; i < attempt->engine->transports && own->addresses < JOB_ADDRESS_CAPACITY; i++) {
        engine_transport_t *transport = &attempt->engine->transport[i];
        job_address_t *address = &own->address[own->addresses++];
        snprintf(address->transport, sizeof address->transport, "%s", transport->ops->name);
        address->length = (uint16_t)transport->address_length;
        address->optional = transport->optional && !(transport->ops->flags & QUOIT_TRANSPORT_SAME_HOST);
        memcpy(address->address, transport->address, transport->address_length);
    }
    for (int i = 0; i < attempt->engine->lacks && own->lacks < JOB_LACK_CAPACITY; i++) {
        job_lack_t *lack = &own->lack[own->lacks++];
        snprintf(lack->transport, sizeof lack->transport, "%s", attempt->engine->lack[i].transport);
        snprintf(lack->why, sizeof lack->why, "%s", attempt->engine->lack[i].why);
    }
    return random_bytes(&own->nonce, sizeof own->nonce);
}

static quoit_status_t publish_record(attempt_t *attempt)
{
    uint8_t bytes[JOB_RECORD_CAPACITY];
    return bootstrap_set(attempt, ITEM_RECORD, attempt->rank, bytes, job_record_encode(&attempt->own, bytes, sizeof bytes));
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
    for (int algorithm = 0; algorithm < ALGORITHM_COUNT; algorithm++) /* "auto" is the name of none */
        if (strcmp(setting_string(SETTING_ALLREDUCE), plan_algorithm_name((plan_algorithm_t)algorithm)) == 0) tuning->allreduce = algorithm;
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

/* Ranks as threads of one process have one engine and one window, so they cannot be peers of each other. */
static quoit_status_t check_processes(const job_t *job)
{
    const job_record_t *own = &job->record[job->rank];
    for (int rank = 0; rank < job->size; rank++) {
        const job_record_t *other = &job->record[rank];
        if (rank == job->rank || !process_same(other->process, own->process)) continue;
        return error_set(QUOIT_ERR_UNSUPPORTED, "ranks %d and %d are threads of one process (%s, pid %d); each rank needs a process of its own",
                         rank < job->rank ? rank : job->rank, rank < job->rank ? job->rank : rank, own->host, own->pid);
    }
    return QUOIT_OK;
}

quoit_status_t bootstrap_take_peer(job_t *job, int rank, peer_t **peer)
{
    char name[PEER_NAME_CAPACITY];
    const job_record_t *record = &job->record[rank];
    snprintf(name, sizeof name, "rank %d (%s, pid %d)", rank, record->host, record->pid);
    return engine_peer(job->engine, record->process, name, peer);
}

/* Peers, and the secret: from here on connections of this job are accepted. */
static quoit_status_t open_job(attempt_t *attempt)
{
    job_t *job = attempt->job;
    engine_t *engine = attempt->engine;
    quoit_status_t status = QUOIT_OK;
    engine_enter(engine);
    engine_poll(engine); /* a rank of this job may have left an earlier one: its goodbye came before its record */
    for (int i = 0; i < engine->transports && status == QUOIT_OK; i++)
        status = engine->transport[i].ops->trust(engine->transport[i].transport, job->id, job->secret, sizeof job->secret);
    engine_poll(engine); /* who has connected already need not be connected to */
    for (int rank = 0; rank < job->size && status == QUOIT_OK; rank++) status = bootstrap_take_peer(job, rank, &job->peer[rank]);
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
    status = bootstrap_set(attempt, ITEM_ROSTER, 0, bytes, roster_encode(job, bytes));
    bootstrap_forget(bytes, capacity);
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

/* Read a roster into the attempt's job. ERR_AGAIN: it is of another attempt. */
static quoit_status_t read_roster(attempt_t *attempt, const uint8_t *bytes, size_t length)
{
    quoit_status_t status = roster_decode(bytes, length, attempt->own.nonce, attempt->job);
    attempt->told = status != QUOIT_OK && status != QUOIT_ERR_AGAIN && roster_is_failure(bytes, length);
    return status == QUOIT_OK ? check_tls(&attempt->own, &attempt->job->record[0]) : status;
}

/* Rank 0: is this record one that belongs here? */
static quoit_status_t check_record(attempt_t *attempt, int rank, const job_record_t *record)
{
    attempt->widest = record->size;
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

/* Has another process taken this rank's place in the store since this one came? */
static quoit_status_t check_rival(attempt_t *attempt)
{
    job_record_t record;
    quoit_status_t status = bootstrap_get_record(attempt, attempt->rank, 1, &record);
    attempt->rank_failed = false;
    if (status != QUOIT_OK || record.nonce == attempt->own.nonce) return QUOIT_OK;
    attempt->displaced = true;
    return error_set(QUOIT_ERR_MISMATCH, "another process, %s pid %d, came as rank %d after this one, %s pid %d; start each process with a rank of its own",
                     record.host, record.pid, attempt->rank, attempt->own.host, attempt->own.pid);
}

/* Wait for it to the deadline, with an eye on the own place. */
static quoit_status_t get_watchfully(attempt_t *attempt, bootstrap_item_t item, int rank, void **value, size_t *length)
{
    for (int pause_ms = RIVAL_FIRST_MS;; pause_ms = pause_ms * 2 < RIVAL_MOST_MS ? pause_ms * 2 : RIVAL_MOST_MS) {
        int warn_ms = clock_left_ms(attempt->stall.next), limit_ms = warn_ms >= 0 && warn_ms < pause_ms ? warn_ms + 1 : pause_ms;
        quoit_status_t status = bootstrap_get(attempt, item, rank, limit_ms, value, length);
        if (status != QUOIT_ERR_TIMEOUT || bootstrap_is_over(attempt)) return status;
        status = check_rival(attempt);
        if (status != QUOIT_OK) return status;
        bootstrap_warn(attempt, item, "did not come");
    }
}

quoit_status_t bootstrap_get_record(attempt_t *attempt, int rank, int limit_ms, job_record_t *record)
{
    void *value = NULL;
    size_t length = 0, used;
    quoit_status_t status = limit_ms < 0 ? get_watchfully(attempt, ITEM_RECORD, rank, &value, &length)
                                         : bootstrap_get(attempt, ITEM_RECORD, rank, limit_ms, &value, &length);
    attempt->rank_failed = status == QUOIT_OK && roster_is_refusal(value, length);
    if (attempt->rank_failed) status = roster_refusal_decode(value, length);
    else if (status == QUOIT_OK) status = job_record_decode(value, length, &used, record);
    bootstrap_forget(value, length);
    return status;
}

/* The ranks whose item is not in the store: "1, 5". Returns their number. */
static int list_missing(const attempt_t *attempt, bootstrap_item_t item, char *list, size_t capacity)
{
    int missing = 0;
    list[0] = '\0';
    for (int rank = 0; rank < attempt->size; rank++) {
        char key[KEY_CAPACITY];
        void *value = NULL;
        size_t length = 0; /* the deadline may be over: bootstrap_get would not wait for the store's answer */
        if (rank == attempt->rank || quoit_store_get(attempt->store, key_of(attempt, item, rank, key), 1, &value, &length) == QUOIT_OK) {
            bootstrap_forget(value, length);
            continue;
        }
        size_t at = strlen(list);
        if (at < capacity - 16) snprintf(list + at, capacity - at, "%s%d", missing ? ", " : "", rank);
        missing++;
    }
    return missing;
}

quoit_status_t bootstrap_tell_missing(attempt_t *attempt, bootstrap_item_t item, const char *did)
{
    char list[512];
    int missing = list_missing(attempt, item, list, sizeof list);
    if (missing == 0)
        return error_set(QUOIT_ERR_TIMEOUT, "timed out: the last of %d ranks came too late at %s", attempt->size, store_description(attempt->store));
    return error_set(QUOIT_ERR_TIMEOUT, "timed out: %d of %d ranks %s at %s: %s %s", missing, attempt->size, did,
                     store_description(attempt->store), missing == 1 ? "rank" : "ranks", list);
}

void bootstrap_warn(attempt_t *attempt, bootstrap_item_t item, const char *did)
{
    const uint64_t now = clock_now();
    char list[512], time[32];
    if (!stall_is_due(&attempt->stall, now)) return;
    stall_text(&attempt->stall, now, time);
    if (attempt->rank > 0) { /* who is missing rank 0 tells, if it is there */
        log_write(attempt->rank == 1 ? LOG_WARN : LOG_INFO, "stall", "rank %d has waited for %s at %s: rank 0 has not come, or waits for others", attempt->rank, time,
                  store_description(attempt->store));
        return;
    }
    int missing = list_missing(attempt, item, list, sizeof list);
    if (missing > 0)
        log_warn("stall", "rank 0 has waited for %s at %s: %d of %d ranks %s: %s %s", time, store_description(attempt->store), missing, attempt->size, did,
                 missing == 1 ? "rank" : "ranks", list);
}

/*
 * Word of a failure may be of an earlier attempt, and so may a record that does not belong here: that counts when no record has replaced it for a
 * while, or one that belongs here as little, or when its writer is known to wait.
 */
static quoit_status_t gather_record(attempt_t *attempt, int rank, job_record_t *record)
{
    uint64_t failed_until = CLOCK_NEVER;
    doubt_t doubt = {0};
    for (;;) {
        quoit_status_t status = bootstrap_get_record(attempt, rank, -1, record);
        bool failed = attempt->rank_failed;
        if (status == QUOIT_OK) status = check_record(attempt, rank, record);
        else if (!failed) return status;
        if (status == QUOIT_OK || clock_now() >= failed_until || bootstrap_is_over(attempt)) return status;
        if (failed) {
            if (failed_until == CLOCK_NEVER) failed_until = clock_deadline(LOOK_AGAIN_MS);
        } else {
            if (doubt.until == 0) doubt = bootstrap_doubt(attempt, record);
            if (record->nonce != doubt.nonce) return status;
            if (bootstrap_doubt_is_over(attempt, rank, &doubt)) return check_record(attempt, rank, record); /* its text, once more */
        }
        poll(NULL, 0, LOOK_AGAIN_FIRST_MS);
    }
}

static quoit_status_t gather_records(attempt_t *attempt)
{
    for (int rank = 1; rank < attempt->size; rank++) {
        job_record_t *record = &attempt->job->record[rank];
        quoit_status_t status = gather_record(attempt, rank, record);
        if (status == QUOIT_ERR_TIMEOUT && !attempt->rank_failed) status = bootstrap_tell_missing(attempt, ITEM_RECORD, "did not come");
        if (status != QUOIT_OK) return status;
    }
    attempt->job->record[0] = attempt->own;
    return QUOIT_OK;
}

/* The roster is of a world in which this rank has no place, and has been for a while. */
static quoit_status_t tell_other_size(const attempt_t *attempt, const uint8_t *roster)
{
    return error_set(QUOIT_ERR_MISMATCH, "rank %d was started for a world of %d ranks, but rank 0 for one of %u; give all the same size", attempt->rank,
                     attempt->size, roster_size(roster));
}

static quoit_status_t tell_no_roster(const attempt_t *attempt)
{
    return error_set(QUOIT_ERR_TIMEOUT, "timed out: rank 0 has not come, or still waits for others, at %s; rank %d waited for it",
                     store_description(attempt->store), attempt->rank);
}

/* Others: wait for a roster that knows this attempt. */
static quoit_status_t await_roster(attempt_t *attempt)
{
    unsigned pause_ms = 10;
    char other[256] = "";
    uint64_t warn = clock_deadline(STALE_WARN_MS), until = CLOCK_NEVER;
    for (;;) {
        void *value = NULL;
        size_t length = 0;
        quoit_status_t status = get_watchfully(attempt, ITEM_ROSTER, 0, &value, &length);
        if (status == QUOIT_ERR_TIMEOUT) return tell_no_roster(attempt);
        if (status == QUOIT_OK) status = read_roster(attempt, value, length);
        bool question = status == QUOIT_ERR_AGAIN && bootstrap_answer(attempt, value, length);
        if (status == QUOIT_ERR_AGAIN && roster_lacks(value, length, attempt->rank)) {
            if (clock_now() >= until) status = tell_other_size(attempt, value);
            else if (until == CLOCK_NEVER) until = bootstrap_doubt_until(attempt);
        }
        if (status == QUOIT_ERR_AGAIN && !question) snprintf(other, sizeof other, "%s", roster_is_failure(value, length) ? "" : error_text());
        bootstrap_forget(value, length);
        if (status != QUOIT_ERR_AGAIN) return status;
        if (bootstrap_is_over(attempt) && question) return tell_no_roster(attempt);
        if (bootstrap_is_over(attempt))
            return error_set(QUOIT_ERR_TIMEOUT, "timed out: %s holds a roster of an earlier attempt only%s; rank 0 has not come for this one",
                             store_description(attempt->store), other);
        if (clock_now() >= warn && !question) {
            log_warn("bootstrap", "rank %d still waits for rank 0: %s holds a roster of an earlier attempt%s", attempt->rank,
                     store_description(attempt->store), other);
            warn = CLOCK_NEVER;
        }
        poll(NULL, 0, (int)pause_ms);
        if (pause_ms < 200) pause_ms *= 2;
    }
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
    if (status == QUOIT_OK) status = check_processes(attempt->job);
    if (status == QUOIT_OK) status = open_job(attempt);
    bool settled = false;
    if (status == QUOIT_OK) status = bootstrap_prove_hosts(attempt, &settled);
    if (status == QUOIT_OK && !settled) status = attempt->rank == 0 ? bootstrap_settle_hosts(attempt) : bootstrap_await_hosts(attempt);
    if (status != QUOIT_OK) return status;
    bootstrap_keep_host_mates(attempt);
    return bootstrap_try_paths(attempt);
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
    if (status == QUOIT_OK) bootstrap_keep_host_mates(attempt);
    return status;
}

/* It may be that another process took this rank's place, and that the others went on with it. */
static quoit_status_t explain_timeout(attempt_t *attempt)
{
    char text[ERROR_TEXT_CAPACITY];
    snprintf(text, sizeof text, "%s", error_text());
    quoit_status_t status = check_rival(attempt);
    return status == QUOIT_OK ? error_set(QUOIT_ERR_TIMEOUT, "%s", text) : status;
}

quoit_status_t job_create(engine_t *engine, quoit_store_t *store, int rank, int size, uint64_t deadline, job_t **job)
{
    attempt_t attempt = {.engine = engine, .store = store, .rank = rank, .size = size, .deadline = deadline};
    stall_begin(&attempt.stall, clock_now());
    quoit_status_t status = make_record(&attempt);
    if (size == 1) {
        if (status == QUOIT_OK) status = alone(&attempt);
    } else {
        if (status == QUOIT_OK && rank > 0) status = publish_record(&attempt); /* nobody reads rank 0's there: it is in the roster */
        while (status == QUOIT_OK && (status = try_once(&attempt)) == QUOIT_ERR_AGAIN) {
            log_info("bootstrap", "a rank has started anew; meeting once more");
            drop_job(&attempt);
            status = QUOIT_OK;
        }
    }
    if (status != QUOIT_OK) {
        char text[ERROR_TEXT_CAPACITY];
        if (status == QUOIT_ERR_TIMEOUT) status = explain_timeout(&attempt);
        status = bootstrap_tell_failure(&attempt, status);
        snprintf(text, sizeof text, "%s", error_text());
        drop_job(&attempt);
        return error_set(status, "%s", text);
    }
    *job = attempt.job;
    return QUOIT_OK;
}
