/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What fuzz targets share. A target is one C file with LLVMFuzzerTestOneInput, which must return whatever the bytes are, and
 * fuzz_seeds, which writes its seed corpus out of real messages. Two programs run it: a libFuzzer program of its own (test/fuzz/run),
 * and test_fuzz, which plays the corpus and mutations of it with any compiler (replay.c).
 *
 * Targets are deterministic, leave nothing behind, and check more than memory: fuzz_check is for invariants.
 */
#ifndef QUOIT_TEST_FUZZ_H
#define QUOIT_TEST_FUZZ_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void fuzz_seeds(void);

/** Called by fuzz_seeds: one file of the seed corpus. */
void fuzz_seed(const char *name, const void *bytes, size_t length);

/** Ends the program with the text when it does not hold. */
#define fuzz_check(holds) ((holds) ? (void)0 : fuzz_fail(#holds, __FILE__, __LINE__))
void fuzz_fail(const char *text, const char *file, int line) __attribute__((noreturn));
/** An error has a text, printable and whole; QUOIT_OK and IN_PROGRESS pass. Returns whether it is QUOIT_OK. */
bool fuzz_check_status(quoit_status_t status);
/** JSON, and nothing behind it. */
void fuzz_check_json(const char *text);
/** As many descriptors are open as at the first call. */
bool fuzz_descriptors_are_back(void);
/** A text from a peer that goes to logs: ends within `capacity`, and has no control characters. */
void fuzz_check_text(const char *text, size_t capacity);

/** Input as a stream of small decisions; past its end it gives zeros. */
typedef struct fuzz_input {
    const uint8_t *at, *end;
} fuzz_input_t;

static inline fuzz_input_t fuzz_input(const uint8_t *data, size_t size) { return (fuzz_input_t){data, data + size}; }
static inline size_t fuzz_left(const fuzz_input_t *input) { return (size_t)(input->end - input->at); }
static inline uint8_t fuzz_byte(fuzz_input_t *input) { return input->at < input->end ? *input->at++ : 0; }
/** Little-endian, of `bytes` bytes. */
static inline uint64_t fuzz_number(fuzz_input_t *input, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)fuzz_byte(input) << (8 * i);
    return value;
}
/** At most `most` bytes of it, where they lie; *length says how many there were. */
static inline const uint8_t *fuzz_take(fuzz_input_t *input, size_t most, size_t *length)
{
    const uint8_t *from = input->at;
    *length = most < fuzz_left(input) ? most : fuzz_left(input);
    input->at += *length;
    return from;
}
/** A copy that ends exactly where its memory does, so that a sanitizer sees any step beyond; to be freed. */
void *fuzz_copy(const void *bytes, size_t length);
/** The same with a NUL behind it. */
char *fuzz_string(const uint8_t *data, size_t size);

/**
 * Write over `bytes` what patches say: a patch is offset 2, length 1, then so many bytes. For inputs that are mostly a valid
 * message, made by the target, with some places changed. At most `most` patches.
 */
void fuzz_patch(fuzz_input_t *input, uint8_t *bytes, size_t length, int most);

#endif
