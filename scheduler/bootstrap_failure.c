/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap: word of a failure. A rank that cannot take part (no descriptors, no memory, a bad setting) says so in the place of what
 * rank 0 waits for: its record, or once it knows the roster its proof. Rank 0 publishes an error in the place of the roster. So all ranks
 * end with one error, at once, that names the rank and the cause, rather than wait for one that does not come.
 *
 * The store may hold what an earlier attempt left. The roster's error lists the nonces it is for, and the key of a proof has the
 * incarnation in it. Word in the place of a record has no nonce that rank 0 could know: it counts when no record has replaced it for a second.
 */
#include "base/clock.h"
#include "base/log.h"
#include "scheduler/bootstrap.h"
#include "scheduler/roster.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* ------------------------------------------------------------------ in the place of the roster */

enum { MOST_BEYOND = 1000 };

/* Where a rank was started for a larger world, those that have no place in this one may have come as well. */
static int ranks_to_tell(const attempt_t *attempt)
{
    int beyond = attempt->widest > attempt->size ? attempt->widest - attempt->size : 0;
    return attempt->size + (beyond < MOST_BEYOND ? beyond : MOST_BEYOND);
}

/* The nonces of those that have come, or are about to come; 0 for the others. */
static void gather_nonces(attempt_t *attempt, uint64_t *nonce, int ranks)
{
    uint64_t until = clock_deadline(LOOK_AGAIN_MS);
    for (int rank = 1; rank < ranks; rank++) {
        job_record_t record;
        bool beyond = rank >= attempt->size; /* has had the time of a doubt to come */
        if (attempt->job && !beyond) nonce[rank] = attempt->job->record[rank].nonce;
        if (nonce[rank] == 0 && bootstrap_get_record(attempt, rank, beyond ? 1 : clock_left_ms(until), &record) == QUOIT_OK) nonce[rank] = record.nonce;
        if (nonce[rank] == 0 && beyond) return;
    }
}

static void publish_failure(attempt_t *attempt, quoit_status_t status, const char *text)
{
    size_t length = 0;
    int ranks = ranks_to_tell(attempt);
    uint64_t *nonce = calloc((size_t)ranks, sizeof *nonce);
    if (nonce) gather_nonces(attempt, nonce, ranks);
    uint8_t *bytes = nonce ? roster_failure_encode(nonce, ranks, status, text, &length) : NULL;
    if (bytes) (void)bootstrap_set(attempt, ITEM_ROSTER, 0, bytes, length);
    free(nonce);
    free(bytes);
}

/* ------------------------------------------------------------------ in the place of a record, or of a proof */

static bool knows_roster(const attempt_t *attempt) { return attempt->job && attempt->job->id != 0; }

static void publish_refusal(attempt_t *attempt, quoit_status_t status, const char *text)
{
    uint8_t bytes[ROSTER_REFUSAL_CAPACITY];
    bootstrap_item_t place = knows_roster(attempt) ? ITEM_PROOF : ITEM_RECORD;
    (void)bootstrap_set(attempt, place, attempt->rank, bytes, roster_refusal_encode(status, text, bytes));
}

/* ------------------------------------------------------------------ telling */

/* This rank's own failure, rather than what the ranks found together. Once the roster is known, all is but the deadline's, and that another process has its place. */
static bool is_own(const attempt_t *attempt, quoit_status_t status)
{
    if (attempt->told || attempt->rank_failed || !attempt->engine) return !attempt->engine;
    if (attempt->rank > 0 && knows_roster(attempt) && status != QUOIT_ERR_TIMEOUT && !attempt->displaced) return true;
    return status == QUOIT_ERR_NO_MEMORY || status == QUOIT_ERR_SYSTEM || status == QUOIT_ERR_INTERNAL;
}

quoit_status_t bootstrap_tell_failure(attempt_t *attempt, quoit_status_t status)
{
    char cause[ERROR_TEXT_CAPACITY], text[ERROR_TEXT_CAPACITY];
    bool own = is_own(attempt, status), alone = !attempt->store || attempt->size < 2;
    snprintf(cause, sizeof cause, "%s", error_text());
    if (own)
        snprintf(text, sizeof text, "rank %d (%.60s, pid %d) cannot take part: %.700s", attempt->rank, log_host(), (int)getpid(), cause);
    else
        snprintf(text, sizeof text, "%s", cause);
    if (!alone && attempt->rank == 0 && !attempt->displaced) publish_failure(attempt, status, text);
    if (!alone && attempt->rank > 0 && own) publish_refusal(attempt, status, text);
    return error_set(status, "%s", text);
}

quoit_status_t job_cannot_begin(quoit_store_t *store, int rank, int size, uint64_t deadline, quoit_status_t status)
{
    attempt_t attempt = {.store = store, .rank = rank, .size = size, .deadline = deadline};
    return bootstrap_tell_failure(&attempt, status);
}
