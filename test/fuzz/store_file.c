/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file of a store: raw bytes, or records with right checksums (of which the input says what is in them) and then raw bytes. A store
 * that opens finds what the last whole record of a key says, takes new values, and gives them back.
 */
#include "fuzz.h"

#include "base/hash.h"
#include "base/settings.h"
#include "base/store_internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

quoit_status_t store_file_open(const char *path, int timeout_ms, quoit_store_t **store);

enum { CAPACITY = 1 << 15, RECORD_HEADER = 20 };

static void put_u32(uint8_t *at, uint32_t value)
{
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> (8 * i));
}

/* A record is appended at the length; the new one is returned. Key "key" and a digit, so that keys meet. */
static size_t put_record(fuzz_input_t *input, uint8_t *bytes, size_t length)
{
    uint8_t what = fuzz_byte(input), *header = bytes + length, *body = header + RECORD_HEADER;
    size_t key = 4, value;
    const uint8_t *from = fuzz_take(input, fuzz_byte(input), &value);
    memcpy(body, "key0", key);
    body[3] = (uint8_t)('0' + what % 4);
    if (what & 16) body[1] = fuzz_byte(input);
    if (value > 0) memcpy(body + key, from, value);
    uint64_t sum = hash_bytes(hash_combine(key, value), body, key + value);
    put_u32(header, 0x52545351);
    put_u32(header + 4, (uint32_t)key);
    put_u32(header + 8, (uint32_t)value);
    put_u32(header + 12, (uint32_t)sum);
    put_u32(header + 16, (uint32_t)(sum >> 32));
    return length + RECORD_HEADER + key + value;
}

static void use(quoit_store_t *store, const char *expected, size_t expected_length)
{
    void *value = NULL;
    size_t length = 0;
    quoit_status_t status = quoit_store_get(store, "key0", 0, &value, &length);
    if (fuzz_check_status(status)) {
        fuzz_check(value != NULL && length <= STORE_VALUE_MAX);
        free(value);
    } else
        fuzz_check(status == QUOIT_ERR_TIMEOUT);
    fuzz_check(quoit_store_set(store, "key0", expected, expected_length) == QUOIT_OK);
    fuzz_check(quoit_store_get(store, "key0", 0, &value, &length) == QUOIT_OK);
    fuzz_check(length == expected_length && memcmp(value, expected, length) == 0);
    free(value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static uint8_t bytes[CAPACITY + 1024];
    char path[64];
    fuzz_input_t input = fuzz_input(data, size);
    size_t length = 0, raw;
    uint8_t records = fuzz_byte(&input) % 16;
    if (fd < 0) fd = memfd_create("fuzz-store", MFD_CLOEXEC);
    fuzz_check(fd >= 0);
    if (records > 0) {
        memcpy(bytes, "QUOITST1", 8);
        length = 8;
        for (uint8_t i = 1; i < records && length < CAPACITY / 2; i++) length = put_record(&input, bytes, length);
    }
    const uint8_t *from = fuzz_take(&input, CAPACITY / 2, &raw);
    if (raw > 0) memcpy(bytes + length, from, raw);
    length += raw;
    fuzz_check(ftruncate(fd, 0) == 0 && pwrite(fd, bytes, length, 0) == (ssize_t)length);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    quoit_store_t *store = NULL, *other = NULL;
    if (!fuzz_check_status(store_file_open(path, 1000, &store))) return 0;
    if (length > 0 && length < 8) { /* somebody else's file, or the beginning of one of ours: setting tells */
        (void)fuzz_check_status(quoit_store_set(store, "key1", "x", 1));
    } else {
        use(store, "a value", 7);
        fuzz_check(store_file_open(path, 1000, &other) == QUOIT_OK); /* a second reader finds the file whole */
        use(other, "", 0);
    }
    quoit_store_close(other);
    quoit_store_close(store);
    return 0;
}

void fuzz_seeds(void)
{
    fuzz_seed("empty", "", 0);
    fuzz_seed("raw_header", "\0QUOITST1", 9);
    fuzz_seed("two_records", "\3\0\5value\0\3new", 12);
    fuzz_seed("unfinished", "\2\0\5valueQSTR\4\0\0\0\377\0\0\0", 19);
    fuzz_seed("other_file", "\0#!/bin/sh\n", 11);
    fuzz_seed("bad_key", "\2\20\5value\0", 9);
}
