/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bootstrap: word of a failure. A rank that cannot take part (no descriptors, no memory, a bad setting) says so in the place of its
 * record; rank 0, which reads all records, publishes an error in the place of the roster. So all ranks end with one error, at once,
 * that names the rank and the cause, rather than wait for one that does not come.
 *
 * The store may hold what an earlier attempt left. The roster's error lists the nonces it is for. Word in the place of a record has
 * none that rank 0 could know: it counts when no record has replaced it for a second.
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "base/log.h"
#include "scheduler/bootstrap.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FAILURE_HEADER = 12, FAILURE_MAGIC = 0x66, FAILURE_RECORD_HEADER = 5 };

static quoit_status_t told_status(uint32_t code)
{
    int32_t told = (int32_t)code;
    return told < 0 && told >= QUOIT_ERR_INTERNAL ? (quoit_status_t)told : QUOIT_ERR_ABORTED;
}

/* ------------------------------------------------------------------ in the place of the roster */

quoit_status_t bootstrap_read_failure(attempt_t *attempt, const uint8_t *bytes, size_t length)
{
    uint32_t count = bytes_get32(bytes + 8);
    if (count > (length - FAILURE_HEADER) / 8) return QUOIT_ERR_AGAIN; /* damaged: not for us */
    bool mine = false;
    for (uint32_t i = 0; i < count && !mine; i++) mine = bytes_get64(bytes + FAILURE_HEADER + 8 * i) == attempt->own.nonce;
    if (!mine) return QUOIT_ERR_AGAIN;
    size_t before = FAILURE_HEADER + (size_t)count * 8;
    attempt->told = true;
    return error_set(told_status(bytes_get32(bytes + 4)), "%.*s", (int)(length - before), (const char *)bytes + before);
}

/* The nonces of those that have come, or are about to come; 0 for the others. */
static void gather_nonces(attempt_t *attempt, uint64_t *nonce)
{
    uint64_t until = clock_deadline(LOOK_AGAIN_MS);
    for (int rank = 1; rank < attempt->size; rank++) {
        job_record_t record;
        if (attempt->job) nonce[rank] = attempt->job->record[rank].nonce;
        if (nonce[rank] == 0 && bootstrap_get_record(attempt, rank, clock_left_ms(until), &record) == QUOIT_OK) nonce[rank] = record.nonce;
    }
}

static void publish_failure(attempt_t *attempt, quoit_status_t status, const char *text)
{
    size_t length = strnlen(text, FAILURE_TEXT), count = (size_t)attempt->size, capacity = FAILURE_HEADER + count * 8 + length;
    uint8_t *bytes = calloc(1, capacity);
    uint64_t *nonce = calloc(count, sizeof *nonce);
    if (!bytes || !nonce) goto out;
    gather_nonces(attempt, nonce);
    bytes_put16(bytes, ROSTER_MAGIC);
    bytes_put16(bytes + 2, 1);
    bytes_put32(bytes + 4, (uint32_t)status);
    bytes_put32(bytes + 8, (uint32_t)count);
    for (size_t rank = 1; rank < count; rank++) bytes_put64(bytes + FAILURE_HEADER + 8 * rank, nonce[rank]);
    memcpy(bytes + capacity - length, text, length);
    (void)bootstrap_set(attempt, "quoit/roster", bytes, capacity);
out:
    free(nonce);
    free(bytes);
}

/* ------------------------------------------------------------------ in the place of a record */

static void record_failure(attempt_t *attempt, quoit_status_t status, const char *text)
{
    uint8_t bytes[FAILURE_RECORD_HEADER + FAILURE_TEXT];
    size_t length = strnlen(text, FAILURE_TEXT);
    char key[64];
    bytes[0] = FAILURE_MAGIC;
    bytes_put32(bytes + 1, (uint32_t)status);
    memcpy(bytes + FAILURE_RECORD_HEADER, text, length);
    snprintf(key, sizeof key, "quoit/record/%d", attempt->rank);
    (void)bootstrap_set(attempt, key, bytes, FAILURE_RECORD_HEADER + length);
}

bool bootstrap_is_failure(const uint8_t *bytes, size_t length, quoit_status_t *status)
{
    if (length < FAILURE_RECORD_HEADER || bytes[0] != FAILURE_MAGIC) return false;
    *status = error_set(told_status(bytes_get32(bytes + 1)), "%.*s", (int)(length - FAILURE_RECORD_HEADER),
                        (const char *)bytes + FAILURE_RECORD_HEADER);
    return true;
}

/* ------------------------------------------------------------------ telling */

/* Lack of something, rather than what the ranks found together. */
static bool is_own(const attempt_t *attempt, quoit_status_t status)
{
    if (attempt->told || attempt->rank_failed || !attempt->engine) return !attempt->engine;
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
    if (!alone && attempt->rank == 0) publish_failure(attempt, status, text);
    if (!alone && attempt->rank > 0 && own) record_failure(attempt, status, text);
    return error_set(status, "%s", text);
}

quoit_status_t job_cannot_begin(quoit_store_t *store, int rank, int size, uint64_t deadline, quoit_status_t status)
{
    attempt_t attempt = {.store = store, .rank = rank, .size = size, .deadline = deadline};
    return bootstrap_tell_failure(&attempt, status);
}
