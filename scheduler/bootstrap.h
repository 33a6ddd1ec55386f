/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Between the files of the bootstrap:
 *   bootstrap.c          what is in the store, records, roster; all of it in turn
 *   bootstrap_hosts.c    who shares a host
 *   bootstrap_paths.c    which transports work
 *   bootstrap_failure.c  word of a failure
 *   bootstrap_doubt.c    what does not fit this world: is it of this attempt?
 *   bootstrap_decode.c   parsers of proofs and bans
 */
#ifndef QUOIT_SCHEDULER_BOOTSTRAP_H
#define QUOIT_SCHEDULER_BOOTSTRAP_H

#include "base/store.h"
#include "scheduler/job_internal.h"
#include "scheduler/stall.h"

enum {
    LOOK_AGAIN_FIRST_MS = 50,  /* the first pause between two questions to the store for what another rank sets; each is twice the one before */
    LOOK_FOR_FAILURE_MS = 250, /* the same while memory is attached, which needs no store: only for word that somebody gave up */
    LOOK_AGAIN_MS = 1000,      /* the longest; and for so long word of a failure may be of an attempt whose rank is about to come again */
    BAN_HEADER = 9             /* bytes of a ban before its text: see bootstrap_paths.c */
};

/** One rank's attempt to become a member of a job. */
typedef struct attempt {
    engine_t *engine;
    quoit_store_t *store;
    int rank, size;
    uint64_t deadline;
    job_record_t own;
    job_t *job;
    uint64_t answered; /* the newest question of rank 0's to which this rank has said that it lives; 0: none */
    int widest;        /* rank 0: the largest size of a world that another rank has told of, where that was an error */
    stall_t stall;    /* of the whole attempt */
    bool told;        /* the error came from the store: the others know */
    bool rank_failed; /* the newest look at a record found word of that rank's failure instead */
    bool displaced;   /* another process came as this rank, and the others may be about to go on with it */
} attempt_t;

/**
 * What the store holds, in the order in which it comes there: see bootstrap.c. Of each rank: RECORD, ANSWER, PROOF, PATHS; of an incarnation: PROOF
 * and all behind it.
 */
typedef enum bootstrap_item { ITEM_RECORD, ITEM_ANSWER, ITEM_ROSTER, ITEM_PROOF, ITEM_HOSTS, ITEM_PATHS, ITEM_BANS } bootstrap_item_t;

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

/** `rank` counts where the item is of each rank. */
quoit_status_t bootstrap_set(attempt_t *attempt, bootstrap_item_t item, int rank, const void *value, size_t length);
/**
 * Wait at most `limit_ms` (negative: no such limit), and not past the deadline. ERR_TIMEOUT when it did not come. *value goes to
 * bootstrap_forget.
 */
quoit_status_t bootstrap_get(attempt_t *attempt, bootstrap_item_t item, int rank, int limit_ms, void **value, size_t *length);
/** Wipe, since a roster has the job's secret in it, and free. NULL is accepted. */
void bootstrap_forget(void *value, size_t length);
bool bootstrap_is_over(const attempt_t *attempt);
/** A rank's record; the failure it tells of instead is the error, with rank_failed set. */
quoit_status_t bootstrap_get_record(attempt_t *attempt, int rank, int limit_ms, job_record_t *record);
/** A peer for a rank of the roster, with one more user. Only for the engine's owner. */
quoit_status_t bootstrap_take_peer(job_t *job, int rank, peer_t **peer);
/** ERR_TIMEOUT with the ranks whose item is not in the store, who `did` ("did not come"). */
quoit_status_t bootstrap_tell_missing(attempt_t *attempt, bootstrap_item_t item, const char *did);
/** In a wait for that item: the same as a warning, each time that one is due. */
void bootstrap_warn(attempt_t *attempt, bootstrap_item_t item, const char *did);

/* bootstrap_hosts.c */

/**
 * Try to attach the memory of all that may be host mates. *settled: all ranks are on one host, and all know that. Otherwise this publishes
 * which it could attach, and why others not.
 */
quoit_status_t bootstrap_prove_hosts(attempt_t *attempt, bool *settled);
/** Rank 0: collect the proofs and publish the hosts. Others: wait for the hosts. ERR_AGAIN: a rank started anew. */
quoit_status_t bootstrap_settle_hosts(attempt_t *attempt);
quoit_status_t bootstrap_await_hosts(attempt_t *attempt);
/** Rank 0: what a rank has set; its refusal, if it has failed, as the error. ERR_AGAIN: it started anew. */
quoit_status_t bootstrap_collect(attempt_t *attempt, bootstrap_item_t item, int rank, void **value, size_t *length);
/** Others: wait for what rank 0 sets. ERR_AGAIN: it has published another roster. */
quoit_status_t bootstrap_await(attempt_t *attempt, bootstrap_item_t item, void **value, size_t *length);
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

/* bootstrap_doubt.c */

/** Rank 0 has a record that does not fit this world. */
typedef struct doubt {
    uint64_t until, ask_at; /* times */
    uint64_t nonce;         /* the record's */
    uint64_t question;      /* 0: not asked yet */
} doubt_t;

doubt_t bootstrap_doubt(const attempt_t *attempt, const job_record_t *record);
/** Does the record count, since its writer lives, or nothing has replaced it for too long? Asks when it is time for that; to be called again. */
bool bootstrap_doubt_is_over(attempt_t *attempt, int rank, doubt_t *doubt);
/** So long what does not fit, and whose writer cannot be asked, may be a trace of an earlier attempt. */
uint64_t bootstrap_doubt_until(const attempt_t *attempt);
/** Others, of what is in the place of the roster: is it a question? If it is this rank's, it is answered. */
bool bootstrap_answer(attempt_t *attempt, const uint8_t *bytes, size_t length);

/* bootstrap_failure.c */

/** The attempt has failed with `status` and the newest error text: tell the others what they do not know. The text names this rank then. */
quoit_status_t bootstrap_tell_failure(attempt_t *attempt, quoit_status_t status);

#endif
