/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes, little-endian:
 *   roster   magic 2, kind 0 2, size 4, incarnation 8, secret 32, tuning 44, then a record a rank (job_record.c)
 *   failure  magic 2, kind 1 2, status 4, count 4, a nonce of 8 for each of `count` ranks, text
 *   refusal  magic 2, kind 2 2, status 4, text
 *   question magic 2, kind 3 2, rank 4, nonce 8, question 8
 *   hosts    4 a rank
 */
#include "scheduler/roster.h"

#include "base/bytes.h"
#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAGIC = 0x5352,
    KIND_ROSTER = 0,
    KIND_FAILURE = 1,
    KIND_REFUSAL = 2,
    KIND_QUESTION = 3,
    REFUSAL_HEADER = 8,
    TUNING_SIZE = 44,
    FAILURE_HEADER = 12,
    ROSTER_HEADER = 4 + 4 + 8 + JOB_SECRET_SIZE + TUNING_SIZE
};

static uint8_t *put_tuning(uint8_t *at, const tuning_t *tuning)
{
    bytes_put64(at, tuning->slot_size);
    bytes_put64(at + 8, tuning->net_chunk_size);
    bytes_put64(at + 16, tuning->small_limit);
    bytes_put64(at + 24, tuning->eager_limit);
    bytes_put32(at + 32, (uint32_t)tuning->net_depth);
    bytes_put32(at + 36, (uint32_t)tuning->allreduce);
    bytes_put32(at + 40, (uint32_t)tuning->wire);
    return at + TUNING_SIZE;
}

static tuning_t get_tuning(const uint8_t *at)
{
    return (tuning_t){.slot_size = bytes_get64(at),
                      .net_chunk_size = bytes_get64(at + 8),
                      .small_limit = bytes_get64(at + 16),
                      .eager_limit = bytes_get64(at + 24),
                      .net_depth = (int32_t)bytes_get32(at + 32),
                      .allreduce = (int32_t)bytes_get32(at + 36),
                      .wire = (int32_t)bytes_get32(at + 40)};
}

static bool tuning_is_sane(const tuning_t *tuning)
{
    return tuning->slot_size >= 4096 && tuning->slot_size <= 1u << 30 && tuning->net_chunk_size >= 4096 &&
           tuning->net_chunk_size <= 1u << 30 && tuning->small_limit <= PLAN_SMALL_SLOT && tuning->net_depth >= 1 &&
           tuning->net_depth <= 16 && tuning->allreduce >= -1 && tuning->allreduce < ALGORITHM_COUNT &&
           tuning->wire >= QUOIT_WIRE_NONE && tuning->wire < QUOIT_WIRE_COUNT;
}

size_t roster_capacity(int size) { return ROSTER_HEADER + (size_t)size * JOB_RECORD_CAPACITY; }

size_t roster_encode(const job_t *job, uint8_t *bytes)
{
    bytes_put16(bytes, MAGIC);
    bytes_put16(bytes + 2, KIND_ROSTER);
    bytes_put32(bytes + 4, (uint32_t)job->size);
    bytes_put64(bytes + 8, job->id);
    memcpy(bytes + 16, job->secret, JOB_SECRET_SIZE);
    uint8_t *at = put_tuning(bytes + 16 + JOB_SECRET_SIZE, &job->tuning);
    for (int rank = 0; rank < job->size; rank++) at += job_record_encode(&job->record[rank], at, JOB_RECORD_CAPACITY);
    return (size_t)(at - bytes);
}

/* Status and text of a rank that failed; `fallback` where there is no text. */
static quoit_status_t take_status(int32_t told, const uint8_t *bytes, size_t length, const char *fallback)
{
    char text[ERROR_TEXT_CAPACITY];
    length = strnlen((const char *)bytes, length < sizeof text ? length : sizeof text - 1);
    text_copy_printable(text, bytes, length);
    return error_set(told < 0 && told >= QUOIT_ERR_INTERNAL && told != QUOIT_ERR_AGAIN ? (quoit_status_t)told : QUOIT_ERR_ABORTED, "%s",
                     length > 0 ? text : fallback);
}

static quoit_status_t decode_failure(const uint8_t *bytes, size_t length, uint64_t nonce)
{
    uint32_t count = bytes_get32(bytes + 8);
    if (count > (length - FAILURE_HEADER) / 8) return QUOIT_ERR_AGAIN; /* damaged: not for us */
    bool mine = false;
    for (uint32_t i = 0; i < count && !mine; i++) mine = bytes_get64(bytes + FAILURE_HEADER + 8 * (size_t)i) == nonce;
    if (!mine) return QUOIT_ERR_AGAIN;
    size_t before = FAILURE_HEADER + (size_t)count * 8;
    return take_status((int32_t)bytes_get32(bytes + 4), bytes + before, length - before, "rank 0 could not create the job, and did not say why");
}

/* All records in turn; those of the job are kept when `records` is given. *own: the one of job->rank, if there is one. */
static quoit_status_t decode_records(const uint8_t *at, const uint8_t *end, uint32_t size, const job_t *job, job_record_t *records, job_record_t *own)
{
    for (uint32_t rank = 0; rank < size; rank++) {
        job_record_t record;
        size_t used = 0;
        quoit_status_t status = job_record_decode(at, (size_t)(end - at), &used, &record);
        if (status != QUOIT_OK) return status;
        if (record.rank != (int)rank)
            return error_set(QUOIT_ERR_PROTOCOL, "bootstrap: the roster is damaged: the record of rank %u says that it is rank %d's", rank, record.rank);
        at += used;
        if (rank == (uint32_t)job->rank) *own = record;
        if (records && rank < (uint32_t)job->size) records[rank] = record;
    }
    return at == end ? QUOIT_OK : error_set(QUOIT_ERR_PROTOCOL, "bootstrap: the roster is damaged: %zu bytes too many", (size_t)(end - at));
}

static bool is_question(const uint8_t *bytes, size_t length)
{
    return length == ROSTER_QUESTION_SIZE && bytes_get16(bytes) == MAGIC && bytes_get16(bytes + 2) == KIND_QUESTION;
}

quoit_status_t roster_decode(const uint8_t *bytes, size_t length, uint64_t nonce, job_t *job)
{
    if (is_question(bytes, length)) return QUOIT_ERR_AGAIN;
    if (length < FAILURE_HEADER || bytes_get16(bytes) != MAGIC || bytes_get16(bytes + 2) > KIND_FAILURE)
        return error_set(QUOIT_ERR_PROTOCOL, "bootstrap: key quoit/roster of the store holds %zu bytes that are no roster; is it used by something else?", length);
    if (bytes_get16(bytes + 2) == KIND_FAILURE) return decode_failure(bytes, length, nonce);
    if (length < ROSTER_HEADER) return error_set(QUOIT_ERR_PROTOCOL, "bootstrap: a roster of %zu bytes is too short", length);
    uint32_t size = bytes_get32(bytes + 4);
    tuning_t tuning = get_tuning(bytes + 16 + JOB_SECRET_SIZE);
    const uint8_t *first = bytes + ROSTER_HEADER, *end = bytes + length;
    job_record_t own = {0};
    quoit_status_t status = decode_records(first, end, size, job, NULL, &own);
    if (status != QUOIT_OK) return status;
    if (size <= (uint32_t)job->rank) return error_set(QUOIT_ERR_AGAIN, ", in which there is no rank %d, but %u ranks", job->rank, size);
    if (own.nonce != nonce)
        return error_set(QUOIT_ERR_AGAIN, ", in which rank %d is another process (%s, pid %d)", job->rank, own.host, own.pid);
    if (size != (uint32_t)job->size)
        return error_set(QUOIT_ERR_MISMATCH, "rank %d was started for a world of %d ranks, but rank 0 for one of %u; give all the same size",
                         job->rank, job->size, size);
    if (!tuning_is_sane(&tuning)) return error_set(QUOIT_ERR_PROTOCOL, "bootstrap: the roster's tuning is damaged");
    job->id = bytes_get64(bytes + 8);
    memcpy(job->secret, bytes + 16, JOB_SECRET_SIZE);
    job->tuning = tuning;
    return decode_records(first, end, size, job, job->record, &own);
}

uint8_t *roster_failure_encode(const uint64_t *nonce, int size, quoit_status_t status, const char *text, size_t *length)
{
    size_t text_length = strlen(text), capacity = FAILURE_HEADER + (size_t)size * 8 + text_length;
    uint8_t *bytes = calloc(1, capacity);
    if (!bytes) return NULL;
    bytes_put16(bytes, MAGIC);
    bytes_put16(bytes + 2, KIND_FAILURE);
    bytes_put32(bytes + 4, (uint32_t)status);
    bytes_put32(bytes + 8, (uint32_t)size);
    for (int rank = 1; rank < size; rank++) bytes_put64(bytes + FAILURE_HEADER + 8 * rank, nonce[rank]);
    memcpy(bytes + capacity - text_length, text, text_length);
    *length = capacity;
    return bytes;
}

bool roster_is_failure(const uint8_t *bytes, size_t length)
{
    return length >= FAILURE_HEADER && bytes_get16(bytes) == MAGIC && bytes_get16(bytes + 2) == KIND_FAILURE;
}

bool roster_lacks(const uint8_t *bytes, size_t length, int rank)
{
    return length >= ROSTER_HEADER && bytes_get16(bytes) == MAGIC && bytes_get16(bytes + 2) == KIND_ROSTER && roster_size(bytes) <= (uint32_t)rank;
}

uint32_t roster_size(const uint8_t *bytes) { return bytes_get32(bytes + 4); }

bool roster_is_other(const uint8_t *bytes, size_t length, uint64_t id)
{
    return roster_is_failure(bytes, length) || is_question(bytes, length) || (length >= ROSTER_HEADER && bytes_get64(bytes + 8) != id);
}

size_t roster_refusal_encode(quoit_status_t status, const char *text, uint8_t bytes[ROSTER_REFUSAL_CAPACITY])
{
    size_t length = strnlen(text, ROSTER_REFUSAL_CAPACITY - REFUSAL_HEADER);
    bytes_put16(bytes, MAGIC);
    bytes_put16(bytes + 2, KIND_REFUSAL);
    bytes_put32(bytes + 4, (uint32_t)status);
    memcpy(bytes + REFUSAL_HEADER, text, length);
    return REFUSAL_HEADER + length;
}

bool roster_is_refusal(const uint8_t *bytes, size_t length)
{
    return length >= REFUSAL_HEADER && bytes_get16(bytes) == MAGIC && bytes_get16(bytes + 2) == KIND_REFUSAL;
}

quoit_status_t roster_refusal_decode(const uint8_t *bytes, size_t length)
{
    if (!roster_is_refusal(bytes, length)) return error_set(QUOIT_ERR_PROTOCOL, "%zu bytes that are no word of a failure", length);
    return take_status((int32_t)bytes_get32(bytes + 4), bytes + REFUSAL_HEADER, length - REFUSAL_HEADER, "a rank could not join, and did not say why");
}

void roster_question_encode(int rank, uint64_t nonce, uint64_t question, uint8_t bytes[ROSTER_QUESTION_SIZE])
{
    bytes_put16(bytes, MAGIC);
    bytes_put16(bytes + 2, KIND_QUESTION);
    bytes_put32(bytes + 4, (uint32_t)rank);
    bytes_put64(bytes + 8, nonce);
    bytes_put64(bytes + 16, question);
}

bool roster_question_decode(const uint8_t *bytes, size_t length, int *rank, uint64_t *nonce, uint64_t *question)
{
    if (!is_question(bytes, length)) return false;
    *rank = (int)bytes_get32(bytes + 4);
    *nonce = bytes_get64(bytes + 8);
    *question = bytes_get64(bytes + 16);
    return true;
}

void roster_hosts_encode(const int *hosts, int size, uint8_t *bytes)
{
    for (int rank = 0; rank < size; rank++) bytes_put32(bytes + 4 * rank, (uint32_t)hosts[rank]);
}

quoit_status_t roster_hosts_decode(const uint8_t *bytes, size_t length, int size, int *hosts)
{
    if (length != (size_t)size * 4) return error_set(QUOIT_ERR_PROTOCOL, "bootstrap: the list of hosts has %zu bytes for %d ranks", length, size);
    for (int rank = 0; rank < size; rank++) {
        uint32_t host = bytes_get32(bytes + 4 * rank);
        if (host > (uint32_t)rank || bytes_get32(bytes + 4 * (size_t)host) != host)
            return error_set(QUOIT_ERR_PROTOCOL, "bootstrap: the list of hosts is damaged: rank %d on the host of rank %u", rank, host);
    }
    for (int rank = 0; rank < size; rank++) hosts[rank] = (int)bytes_get32(bytes + 4 * rank);
    return QUOIT_OK;
}
