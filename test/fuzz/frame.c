/* SPDX-License-Identifier: Apache-2.0 */
/* Frames of the channel protocol: whatever is let through is within the limits, and is written as it was read. */
#include "fuzz.h"

#include "transport/framing/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = fuzz_input(data, size);
    uint64_t eager = fuzz_number(&input, 3), segment = fuzz_number(&input, 3);
    uint8_t header[FRAME_HEADER_SIZE] = {0}, again[FRAME_HEADER_SIZE];
    size_t length;
    const uint8_t *bytes = fuzz_take(&input, sizeof header, &length);
    frame_t frame;
    memcpy(header, bytes, length);
    if (!fuzz_check_status(frame_parse(header, eager, segment, &frame))) return 0;
    fuzz_check(frame.total <= FRAME_LENGTH_LIMIT && frame.offset <= FRAME_LENGTH_LIMIT && frame.length <= FRAME_LENGTH_LIMIT);
    fuzz_check(frame.type > 0 && frame.type < FRAME_TYPE_END && frame_type_name(frame.type)[0] != '?');
    uint64_t payload = frame_payload(&frame);
    fuzz_check(payload <= eager || payload <= segment || payload <= QUOIT_NOTICE_SMALL);
    if (frame.type == FRAME_DATA || frame.type == FRAME_LENT) fuzz_check(frame.offset + frame.length <= frame.total);
    frame_write(&frame, again);
    fuzz_check(memcmp(header, again, sizeof header) == 0);
    return 0;
}

void fuzz_seeds(void)
{
    for (int type = 1; type < FRAME_TYPE_END; type++) {
        frame_t frame = {.type = (frame_type_t)type, .what = 7, .key = {1, 2}, .grant = UINT64_C(1) << 32};
        uint64_t payload = type == FRAME_EAGER || type == FRAME_NOTICE || type == FRAME_DATA || type == FRAME_GRANT ? 100 : 0;
        frame.total = frame.length = payload;
        if (type == FRAME_ASK || type == FRAME_REFUSE) frame.total = 5000;
        if (type == FRAME_CREDIT) frame.length = 4096;
        if (type == FRAME_LENT) frame.total = 5000, frame.length = 4000;
        if (type == FRAME_NOTE) frame.total = frame.length = 7, frame.inside = (const uint8_t *)"a note.";
        uint8_t bytes[6 + FRAME_HEADER_SIZE] = {0, 32, 0, 0, 0, 1};
        frame_write(&frame, bytes + 6);
        fuzz_seed(frame_type_name(frame.type), bytes, sizeof bytes);
    }
    frame_t direct = {.type = FRAME_GRANT, .grant = 1, .total = 100000, .length = 100000, .offset = 4096, .direct = 1, .remote_key = {9}};
    uint8_t bytes[6 + FRAME_HEADER_SIZE] = {0, 32, 0, 0, 0, 1};
    frame_write(&direct, bytes + 6);
    fuzz_seed("GRANT_direct", bytes, sizeof bytes);
    direct = (frame_t){.type = FRAME_ASK, .total = 100000, .length = 32768, .offset = 4096, .direct = true};
    frame_write(&direct, bytes + 6);
    fuzz_seed("ASK_direct", bytes, sizeof bytes);
}
