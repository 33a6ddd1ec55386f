/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap: does what lies in the store and does not fit this world come from somebody who takes part in it? The store may hold what an
 * earlier attempt has left, which the rank's new process is about to replace; a rank that was started with another size is to be told soon.
 *
 * Rank 0 asks: when such a record has not been replaced for a moment, it puts a question to the record's writer in the place of the roster,
 * where all who wait look anyway. The question is a new random number; who wrote the record gives it back under answer/<rank>, if it
 * lives and waits. Nobody else does, and no earlier attempt can have left it: so with the answer the record counts.
 *
 * The others cannot ask, for rank 0 does not look into the store once its job is made: a roster of a world in which a rank has no place counts
 * when nothing has replaced it for a third of the time that is left, STALE_MOST_MS at most; and so does a record whose writer does not answer.
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "base/hmac.h"
#include "scheduler/bootstrap.h"
#include "scheduler/roster.h"

#include <stdlib.h>

enum {
    STALE_MOST_MS = 10000, /* until what does not fit, and whose writer is unknown, is no more taken for a trace of an earlier attempt */
    ASK_AFTER_MS = 500,    /* while an earlier attempt's process may wait still, whose end and successor are on their way */
    ANSWER_SIZE = 8
};

uint64_t bootstrap_doubt_until(const attempt_t *attempt)
{
    int left = clock_left_ms(attempt->deadline);
    return clock_deadline(left >= 0 && left / 3 < STALE_MOST_MS ? left / 3 : STALE_MOST_MS);
}

/* ------------------------------------------------------------------ rank 0 */

doubt_t bootstrap_doubt(const attempt_t *attempt, const job_record_t *record)
{
    return (doubt_t){.until = bootstrap_doubt_until(attempt), .ask_at = clock_deadline(ASK_AFTER_MS), .nonce = record->nonce};
}

static bool ask(attempt_t *attempt, int rank, doubt_t *doubt)
{
    uint8_t bytes[ROSTER_QUESTION_SIZE];
    uint64_t question = 0;
    if (random_bytes(&question, sizeof question) != QUOIT_OK || question == 0) return false;
    roster_question_encode(rank, doubt->nonce, question, bytes);
    if (bootstrap_set(attempt, ITEM_ROSTER, 0, bytes, sizeof bytes) != QUOIT_OK) return false;
    doubt->question = question;
    return true;
}

bool bootstrap_doubt_is_over(attempt_t *attempt, int rank, doubt_t *doubt)
{
    void *value = NULL;
    size_t length = 0;
    if (clock_now() >= doubt->until) return true;
    if (clock_now() < doubt->ask_at || (doubt->question == 0 && !ask(attempt, rank, doubt))) return false;
    bool answered = bootstrap_get(attempt, ITEM_ANSWER, rank, 1, &value, &length) == QUOIT_OK && length == ANSWER_SIZE &&
                    bytes_get64(value) == doubt->question;
    bootstrap_forget(value, length);
    return answered;
}

/* ------------------------------------------------------------------ the others */

bool bootstrap_answer(attempt_t *attempt, const uint8_t *bytes, size_t length)
{
    int rank = -1;
    uint64_t nonce = 0, question = 0;
    uint8_t answer[ANSWER_SIZE];
    if (!roster_question_decode(bytes, length, &rank, &nonce, &question)) return false;
    if (rank != attempt->rank || nonce != attempt->own.nonce || question == attempt->answered) return true;
    bytes_put64(answer, question);
    if (bootstrap_set(attempt, ITEM_ANSWER, rank, answer, sizeof answer) == QUOIT_OK) attempt->answered = question;
    return true;
}
