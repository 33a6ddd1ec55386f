/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks say in the store once they know each other: whose memory they could attach, and which transports do not work with whom. What
 * is taken lies within its limits, names pairs of the job, and has printable texts; what is refused changes nothing.
 */
#include "fuzz.h"

#include "scheduler/bootstrap.h"

#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 12, PROOF_BYTES = (RANKS + 7) / 8 };

static void prove(const uint8_t *bytes, size_t length)
{
    uint8_t *bits = malloc(PROOF_BYTES); /* its own block: a step beyond is seen */
    lack_t lack = {0};
    fuzz_check(bits != NULL);
    memset(bits, 0xee, PROOF_BYTES);
    if (fuzz_check_status(bootstrap_read_proof(bytes, length, 3, PROOF_BYTES, bits, &lack))) {
        fuzz_check(lack.kind <= LACK_CHOSEN);
        fuzz_check_text(lack.text, sizeof lack.text);
        fuzz_check(memcmp(bits, bytes + 1, PROOF_BYTES) == 0);
    } else {
        for (int i = 0; i < PROOF_BYTES; i++) fuzz_check(bits[i] == 0xee);
    }
    free(bits);
}

/* Two ranks a host. All have tcp, and before it, where `i` is not a multiple of 3, a transport that may be missing. */
static void fill(job_record_t records[RANKS], int host[RANKS])
{
    memset(records, 0, RANKS * sizeof *records);
    for (int i = 0; i < RANKS; i++) {
        job_record_t *record = &records[i];
        host[i] = i / 2;
        if (i % 3 > 0) {
            record->address[record->addresses].optional = true;
            snprintf(record->address[record->addresses++].transport, sizeof record->address[0].transport, "verbs");
        }
        snprintf(record->address[record->addresses++].transport, sizeof record->address[0].transport, "tcp");
    }
}

static void ban(fuzz_input_t *input)
{
    job_record_t records[RANKS];
    int host[RANKS];
    job_t job = {.size = RANKS, .record = records, .host = host};
    fill(records, host);
    for (int list = 0; list < 3 && fuzz_left(input) > 0; list++) { /* of several ranks, into one */
        int by = fuzz_byte(input) % (RANKS + 1) - 1, before = job.bans;
        size_t length;
        const uint8_t *from = fuzz_take(input, list < 2 ? fuzz_byte(input) : 4096, &length);
        uint8_t *exact = fuzz_copy(from, length);
        (void)fuzz_check_status(bootstrap_take_bans(&job, exact, length, by));
        free(exact);
        fuzz_check(job.bans >= before && job.bans <= RANKS * RANKS / 2);
        for (int i = before; i < job.bans; i++) {
            const job_ban_t *each = &job.ban[i];
            fuzz_check(each->one >= 0 && each->one < each->other && each->other < RANKS && (by < 0 || each->one == by || each->other == by));
            fuzz_check_text(each->why, sizeof each->why);
            fuzz_check(strcmp(each->transport, "verbs") == 0);
        }
    }
    free(job.ban);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = fuzz_input(data, size);
    uint8_t what = fuzz_byte(&input);
    if (what % 2 == 0) {
        uint8_t *exact = fuzz_copy(input.at, fuzz_left(&input));
        prove(exact, fuzz_left(&input));
        free(exact);
    } else {
        ban(&input);
    }
    return 0;
}

void fuzz_seeds(void)
{
    fuzz_seed("proof", "\0\0\377\17\0", 5);
    fuzz_seed("proof_with_lack", "\0\0\1\0\2rank 1 is of another user", 30);
    fuzz_seed("lack_with_controls", "\0\0\1\0\3\33[31m\177", 11);
    fuzz_seed("refusal", "\0\1\0\0\0\0\0\0\0no memory", 18);
    fuzz_seed("no_bans", "\1\0\4\0\0\0\0", 7);
    fuzz_seed("a_ban", "\1\2\21\1\0\0\0\1\0\0\0\2\0\0\0\4none", 20);
    fuzz_seed("bans_of_all", "\1\0\42\2\0\0\0\1\0\0\0\2\0\0\0\4none\2\0\0\0\4\0\0\0\4slow", 37);
    fuzz_seed("ban_twice", "\1\2\21\1\0\0\0\1\0\0\0\2\0\0\0\4none\3\21\1\0\0\0\1\0\0\0\2\0\0\0\4none", 39);
    fuzz_seed("too_many_bans", "\1\0\4\377\377\377\17", 7);
}
