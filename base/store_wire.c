/* SPDX-License-Identifier: Apache-2.0 */
/** The one reader and writer of the TCP store's headers. */
#include "base/store_wire.h"

#include "base/store_internal.h"

#include <string.h>

static const uint8_t magic[4] = {'Q', 'T', 'S', 'T'};

static uint32_t load_u32(const uint8_t *bytes)
{
    return bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static void store_u32(uint8_t *bytes, uint32_t value)
{
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(value >> (8 * i));
}

/* Whether a frame of this kind may have these lengths and this argument. */
static bool fits_kind(const store_frame_t *frame)
{
    switch (frame->kind) {
    case STORE_HELLO: return frame->key_length == 0 && frame->value_length == 0 && frame->argument >= 0;
    case STORE_SET: return frame->key_length > 0 && frame->argument == 0;
    case STORE_GET: return frame->key_length > 0 && frame->value_length == 0 && frame->argument >= 0;
    case STORE_REPLY: return frame->key_length == 0 && frame->argument <= 0 && (frame->value_length == 0 || frame->argument == 0);
    }
    return false;
}

quoit_status_t store_frame_parse(const void *data, size_t length, store_frame_t *frame)
{
    const uint8_t *bytes = data;
    if (length > 0 && memcmp(bytes, magic, length < sizeof magic ? length : sizeof magic) != 0)
        return error_set(QUOIT_ERR_PROTOCOL, "what came does not begin like a frame of Quoit's store");
    if (length > 4 && bytes[4] != STORE_WIRE_VERSION)
        return error_set(QUOIT_ERR_PROTOCOL, "version %d of the store's protocol came, expected %d", bytes[4], STORE_WIRE_VERSION);
    if (length < STORE_FRAME_SIZE) return error_set(QUOIT_ERR_AGAIN, "%zu of %d bytes of a frame have come", length, STORE_FRAME_SIZE);
    store_frame_t parsed = {.kind = (store_kind_t)bytes[5],
                            .key_length = (size_t)(bytes[6] | bytes[7] << 8),
                            .value_length = load_u32(bytes + 8),
                            .argument = (int32_t)load_u32(bytes + 12)};
    if (parsed.key_length > STORE_KEY_MAX || parsed.value_length > STORE_VALUE_MAX)
        return error_set(QUOIT_ERR_PROTOCOL, "a key of %zu and a value of %zu bytes are announced, allowed are %d and %d",
                         parsed.key_length, parsed.value_length, STORE_KEY_MAX, STORE_VALUE_MAX);
    if (!fits_kind(&parsed))
        return error_set(QUOIT_ERR_PROTOCOL, "frame of kind %d with a key of %zu bytes, a value of %zu and argument %d", bytes[5],
                         parsed.key_length, parsed.value_length, (int)parsed.argument);
    *frame = parsed;
    return QUOIT_OK;
}

void store_frame_write(const store_frame_t *frame, uint8_t bytes[STORE_FRAME_SIZE])
{
    memcpy(bytes, magic, sizeof magic);
    bytes[4] = STORE_WIRE_VERSION;
    bytes[5] = (uint8_t)frame->kind;
    bytes[6] = (uint8_t)frame->key_length;
    bytes[7] = (uint8_t)(frame->key_length >> 8);
    store_u32(bytes + 8, (uint32_t)frame->value_length);
    store_u32(bytes + 12, (uint32_t)frame->argument);
}
