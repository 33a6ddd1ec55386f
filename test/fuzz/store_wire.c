/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of the TCP store: those that pass are within the limits of their kind, and are written as they were read. */
#include "fuzz.h"

#include "base/store_internal.h"
#include "base/store_wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    store_frame_t frame;
    uint8_t again[STORE_FRAME_SIZE];
    quoit_status_t status = store_frame_parse(data, size, &frame);
    if (size < STORE_FRAME_SIZE) fuzz_check(status == QUOIT_ERR_AGAIN || status == QUOIT_ERR_PROTOCOL);
    (void)store_key_is_valid((const char *)data, size);
    if (!fuzz_check_status(status)) return 0;
    fuzz_check(frame.key_length <= STORE_KEY_MAX && frame.value_length <= STORE_VALUE_MAX);
    fuzz_check(frame.kind >= STORE_HELLO && frame.kind <= STORE_REPLY);
    store_frame_write(&frame, again);
    fuzz_check(memcmp(again, data, sizeof again) == 0);
    for (size_t length = 0; length < STORE_FRAME_SIZE; length++) fuzz_check(store_frame_parse(data, length, &frame) == QUOIT_ERR_AGAIN);
    return 0;
}

void fuzz_seeds(void)
{
    static const store_frame_t frames[] = {{STORE_HELLO, 0, 0, 3}, {STORE_SET, 7, 100, 0}, {STORE_GET, 7, 0, 1000}, {STORE_REPLY, 0, 100, 0}, {STORE_REPLY, 0, 0, QUOIT_ERR_TIMEOUT}};
    static const char *const names[] = {"hello", "set", "get", "reply", "reply_timeout"};
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        uint8_t bytes[STORE_FRAME_SIZE];
        store_frame_write(&frames[i], bytes);
        fuzz_seed(names[i], bytes, sizeof bytes);
    }
}
