/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Frames of the TCP store. A client sends one request and reads one reply; the first request is HELLO.
 *
 *   header  magic "QTST", version u8, kind u8, key length u16, value length u32, argument i32; little-endian, 16 bytes
 *   HELLO   argument: rank                                   reply: status
 *   SET     key, value                                       reply: status
 *   GET     key; argument: milliseconds to wait, >= 0        reply: status, value when QUOIT_OK
 *   REPLY   argument: a quoit_status_t; value
 */
#ifndef QUOIT_BASE_STORE_WIRE_H
#define QUOIT_BASE_STORE_WIRE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { STORE_FRAME_SIZE = 16, STORE_WIRE_VERSION = 1 };

typedef enum store_kind { STORE_HELLO = 1, STORE_SET, STORE_GET, STORE_REPLY } store_kind_t;

typedef struct store_frame {
    store_kind_t kind;
    size_t key_length, value_length;
    int32_t argument;
} store_frame_t;

/**
 * Read a header. Whatever the bytes, the lengths of a good frame are within STORE_KEY_MAX and STORE_VALUE_MAX and fit its kind.
 *
 * @return ERR_AGAIN when there are less than STORE_FRAME_SIZE bytes and those are a beginning of a header; ERR_PROTOCOL with a text.
 */
quoit_status_t store_frame_parse(const void *bytes, size_t length, store_frame_t *frame);
void store_frame_write(const store_frame_t *frame, uint8_t bytes[STORE_FRAME_SIZE]);

#endif
