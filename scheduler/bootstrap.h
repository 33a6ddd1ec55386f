/* SPDX-License-Identifier: Apache-2.0 */
/** Between the files of the bootstrap: bootstrap.c (records, roster), bootstrap_hosts.c (who shares a host), bootstrap_paths.c (which transports work), bootstrap_failure.c (word of a failure), bootstrap_decode.c (parsers). */
#ifndef QUOIT_SCHEDULER_BOOTSTRAP_H
#define QUOIT_SCHEDULER_BOOTSTRAP_H

#include "base/store.h"
#include "scheduler/job_internal.h"

enum { LOOK_AGAIN_FIRST_MS = 50, LOOK_FOR_FAILURE_MS = 250, LOOK_AGAIN_MS = 1000, PROOF_KEY = 96, BAN_HEADER = 9 };

/** One rank's attempt to become a member of a job. */
typedef struct attempt {
    engine_t *engine;
    quoit_store_t *store;
    int rank, size;
    uint64_t deadline;
    job_record_t own;
    job_t *job;
    bool told;        /* the error came from the store: the others know */
    bool rank_failed; /* the newest look at a record found word of that rank's failure instead */
    bool displaced;   /* another process came as this rank, and the others may be about to go on with it */
} attempt_t;

/* Why a rank shares no memory with some other; of two reasons the higher tells more. */
typedef enum lack_kind {
    LACK_NONE,
    LACK_BROKEN, /* the other side gave up, and knows why */
    LACK_PEER,   /* it did not work with that peer */
    LACK_OWN,    /* this process can share no memory */
    LACK_CHOSEN  /* settings leave shared memory out */
} lack_kind_t;

enum { LACK_TEXT = 300 };

typedef struct lack {
    lack_kind_t kind;
    char text[LACK_TEXT + 1];
} lack_t;

/* bootstrap.c */

quoit_status_t bootstrap_set(attempt_t *attempt, const char *key, const void *value, size_t length);
/** Wait at most `limit_ms` (negative: no such limit), and not past the deadline. ERR_TIMEOUT when the key did not come. */
quoit_status_t bootstrap_get(attempt_t *attempt, const char *key, int limit_ms, void **value, size_t *length);
bool bootstrap_is_over(const attempt_t *attempt);
/** A rank's record; the failure it tells of instead is the error, with rank_failed set. */
quoit_status_t bootstrap_get_record(attempt_t *attempt, int rank, int limit_ms, job_record_t *record);
/** A peer for a rank of the roster, with one more user. Only for the engine's owner. */
quoit_status_t bootstrap_take_peer(job_t *job, int rank, peer_t **peer);
/** ERR_TIMEOUT with the ranks whose `prefix`<rank> is not in the store. */
quoit_status_t bootstrap_tell_missing(attempt_t *attempt, const char *prefix, const char *what);

/* bootstrap_hosts.c */

/**
 * Try to attach the memory of all that may be host mates. *settled: all ranks are on one host, and all know that. Otherwise this publishes
 * which it could attach, and why others not.
 */
quoit_status_t bootstrap_prove_hosts(attempt_t *attempt, bool *settled);
/** Rank 0: collect the proofs and publish the hosts. Others: wait for the hosts. ERR_AGAIN: a rank started anew. */
quoit_status_t bootstrap_settle_hosts(attempt_t *attempt);
quoit_status_t bootstrap_await_hosts(attempt_t *attempt);
/**
 * Rank 0: what a rank has set under `prefix`<rank>; its refusal, if it has failed, as the error. ERR_AGAIN: it started anew. *value is to be freed.
 */
quoit_status_t bootstrap_collect(attempt_t *attempt, const char *prefix, int rank, void **value, size_t *length);
/** Others: wait for what rank 0 sets under `key`. ERR_AGAIN: it has published another roster. *value is to be freed. */
quoit_status_t bootstrap_await(attempt_t *attempt, const char *key, void **value, size_t *length);
/** Key of a rank's proof. */
void bootstrap_proof_key(const attempt_t *attempt, int rank, char key[PROOF_KEY]);
/** Let go of the memory of processes that turned out to live elsewhere. */
void bootstrap_keep_host_mates(attempt_t *attempt);

/* bootstrap_paths.c */

/** Do transports that may be missing work between neighbours? What does not is banned for the pair, on all ranks alike. */
quoit_status_t bootstrap_try_paths(attempt_t *attempt);

/* bootstrap_decode.c */

/**
 * A rank's proof, `got` bytes as the store has them: a bit for each rank whose memory it attached, which go to bits[length], and why it
 * did not attach others'. ERR_PROTOCOL when it is none; nothing is written then.
 */
quoit_status_t bootstrap_read_proof(const uint8_t *bytes, size_t got, int rank, size_t length, uint8_t *bits, lack_t *lack);
/**
 * Add what is listed to the job's bans, one for each two hosts. `by`: only pairs of this rank are believed; -1: all. ERR_PROTOCOL when it is no list.
 */
quoit_status_t bootstrap_take_bans(job_t *job, const uint8_t *bytes, size_t length, int by);

/* bootstrap_failure.c */

/** The attempt has failed with `status` and the newest error text: tell the others what they do not know. The text names this rank then. */
quoit_status_t bootstrap_tell_failure(attempt_t *attempt, quoit_status_t status);

#endif
