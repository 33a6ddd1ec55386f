/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rank 0 publishes: a roster, a failure, a question, the list of hosts. The input is the bytes themselves, or changes to sound ones. An error
 * leaves the job as it was; a roster that is taken is encoded as it was read; hosts are such that each rank's is the lowest of its ranks.
 */
#include "fuzz.h"

#include "scheduler/roster.h"

#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 3, NONCE = 1000 };

static void fill(job_t *job, job_record_t records[RANKS])
{
    memset(job, 0, sizeof *job);
    memset(records, 0, RANKS * sizeof *records);
    *job = (job_t){.id = 99, .size = RANKS, .rank = 1, .record = records};
    job->tuning = (tuning_t){.slot_size = 1 << 20, .net_chunk_size = 1 << 18, .small_limit = 4096, .eager_limit = 8192, .net_depth = 4, .allreduce = -1, .wire = QUOIT_WIRE_NONE};
    for (int rank = 0; rank < RANKS; rank++) {
        records[rank].rank = rank;
        records[rank].size = RANKS;
        records[rank].nonce = (uint64_t)(NONCE + rank);
        records[rank].addresses = 1;
        records[rank].address[0].length = 40;
        snprintf(records[rank].host, sizeof records[rank].host, "node%d", rank);
        snprintf(records[rank].version, sizeof records[rank].version, "0.1.0");
        snprintf(records[rank].address[0].transport, sizeof records[rank].address[0].transport, "tcp");
    }
}

/* What is one is written again as it was read. */
static void question(const uint8_t *bytes, size_t length)
{
    uint8_t again[ROSTER_QUESTION_SIZE];
    int rank = -7;
    uint64_t nonce = 0, asked = 0;
    if (!roster_question_decode(bytes, length, &rank, &nonce, &asked)) {
        fuzz_check(rank == -7 && nonce == 0 && asked == 0);
        return;
    }
    roster_question_encode(rank, nonce, asked, again);
    fuzz_check(length == sizeof again && memcmp(bytes, again, length) == 0 && roster_is_other(bytes, length, 99));
    fuzz_check(!roster_is_failure(bytes, length) && !roster_is_refusal(bytes, length) && !roster_lacks(bytes, length, 1));
}

static void decode(const uint8_t *bytes, size_t length)
{
    job_record_t records[RANKS], before[RANKS];
    job_t job = {.size = RANKS, .rank = 1, .record = records}, copy;
    memset(records, 0, sizeof records);
    memcpy(before, records, sizeof before);
    copy = job;
    (void)roster_is_other(bytes, length, 99);
    (void)roster_lacks(bytes, length, 1);
    question(bytes, length);
    quoit_status_t status = roster_decode(bytes, length, NONCE + 1, &job);
    if (status == QUOIT_ERR_AGAIN || !fuzz_check_status(status)) {
        fuzz_check(memcmp(&job, &copy, sizeof job) == 0 && memcmp(records, before, sizeof records) == 0);
        if (status != QUOIT_ERR_AGAIN) fuzz_check_text(error_text(), ERROR_TEXT_CAPACITY);
        return;
    }
    fuzz_check(records[1].nonce == NONCE + 1);
    for (int rank = 0; rank < RANKS; rank++) fuzz_check(records[rank].rank == rank);
    uint8_t *again = malloc(roster_capacity(RANKS));
    job_t second = {.size = RANKS, .rank = 1, .record = before};
    fuzz_check(again && roster_encode(&job, again) == length);
    fuzz_check(roster_decode(again, length, NONCE + 1, &second) == QUOIT_OK && memcmp(records, before, sizeof records) == 0);
    free(again);
}

static void hosts(const uint8_t *bytes, size_t length)
{
    int host[RANKS] = {-1, -1, -1};
    if (!fuzz_check_status(roster_hosts_decode(bytes, length, RANKS, host))) {
        fuzz_check(host[0] == -1 && host[1] == -1 && host[2] == -1);
        return;
    }
    for (int rank = 0; rank < RANKS; rank++) fuzz_check(host[rank] >= 0 && host[rank] <= rank && host[host[rank]] == host[rank]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = fuzz_input(data, size);
    uint8_t what = fuzz_byte(&input) % 5;
    job_record_t records[RANKS];
    job_t job;
    static const uint64_t nonces[RANKS] = {0, NONCE + 1, NONCE + 2};
    if (what == 0) {
        decode(input.at, fuzz_left(&input));
    } else if (what == 4) {
        (void)roster_is_refusal(input.at, fuzz_left(&input));
        quoit_status_t status = roster_refusal_decode(input.at, fuzz_left(&input));
        fuzz_check(!fuzz_check_status(status) && status != QUOIT_ERR_AGAIN);
        fuzz_check_text(error_text(), ERROR_TEXT_CAPACITY);
    } else if (what == 1) {
        hosts(input.at, fuzz_left(&input));
    } else {
        size_t length = 0;
        fill(&job, records);
        uint8_t *bytes = what == 2 ? malloc(roster_capacity(RANKS)) : roster_failure_encode(nonces, RANKS, QUOIT_ERR_MISMATCH, "rank 2 was started for another world", &length);
        fuzz_check(bytes != NULL);
        if (what == 2) length = roster_encode(&job, bytes);
        size_t cut = fuzz_byte(&input);
        fuzz_patch(&input, bytes, length, 8);
        if (cut > length) cut = length;
        uint8_t *exact = fuzz_copy(bytes, length - cut);
        decode(exact, length - cut);
        free(exact);
        free(bytes);
    }
    return 0;
}

void fuzz_seeds(void)
{
    job_record_t records[RANKS];
    job_t job;
    size_t length;
    fill(&job, records);
    uint8_t *bytes = malloc(1 + roster_capacity(RANKS));
    fuzz_check(bytes != NULL);
    bytes[0] = 0;
    fuzz_seed("roster", bytes, 1 + roster_encode(&job, bytes + 1));
    free(bytes);
    bytes = roster_failure_encode((const uint64_t[RANKS]){0, NONCE + 1, NONCE + 2}, RANKS, QUOIT_ERR_TIMEOUT, "1 of 3 ranks did not come", &length);
    uint8_t failure[256] = {0};
    memcpy(failure + 1, bytes, length);
    fuzz_seed("failure", failure, 1 + length);
    free(bytes);
    uint8_t refusal[1 + ROSTER_REFUSAL_CAPACITY] = {4};
    length = roster_refusal_encode(QUOIT_ERR_NO_MEMORY, "no memory for its peers", refusal + 1);
    fuzz_check(length == 8 + 23 && roster_is_refusal(refusal + 1, length) && roster_refusal_decode(refusal + 1, length) == QUOIT_ERR_NO_MEMORY && strcmp(error_text(), "no memory for its peers") == 0);
    fuzz_seed("refusal", refusal, 1 + length);
    uint8_t asked[1 + ROSTER_QUESTION_SIZE] = {0};
    roster_question_encode(1, NONCE + 1, 5, asked + 1);
    fuzz_seed("question", asked, sizeof asked);
    uint8_t list[1 + 4 * RANKS] = {1};
    roster_hosts_encode((const int[RANKS]){0, 0, 2}, RANKS, list + 1);
    fuzz_seed("hosts", list, sizeof list);
    fuzz_seed("roster_unchanged", "\2\0", 2);
    fuzz_seed("roster_other_size", "\2\0\4\0\1\4", 6);
    fuzz_seed("failure_unchanged", "\3\0", 2);
    fuzz_seed("failure_with_controls", "\3\0\50\0\3\33[m", 8);
}
