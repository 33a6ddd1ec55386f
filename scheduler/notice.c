/* SPDX-License-Identifier: Apache-2.0 */
/* Notices: encoding and the one parser. Layout: 0 magic, 1 type, 2-3 zero, 4 source, 8 communicator; then by type. */
#include "scheduler/notice.h"

#include "base/bytes.h"
#include "base/text.h"

#include <string.h>

enum { MAGIC = 0x71 };

static void encode_header(notice_type_t type, uint64_t comm, int source, unsigned char *notice)
{
    notice[0] = MAGIC;
    notice[1] = (unsigned char)type;
    bytes_put16(notice + 2, 0);
    bytes_put32(notice + 4, (uint32_t)source);
    bytes_put64(notice + 8, comm);
}

quoit_status_t notice_header_decode(const void *data, size_t length, notice_header_t *header)
{
    const unsigned char *bytes = data;
    if (length < NOTICE_HEADER_SIZE) return error_set(QUOIT_ERR_PROTOCOL, "a notice of %zu bytes is too short", length);
    if (bytes[0] != MAGIC || bytes[1] < NOTICE_MESSAGE || bytes[1] > NOTICE_CALL)
        return error_set(QUOIT_ERR_PROTOCOL, "a notice begins with bytes %02x %02x, which is none of ours", bytes[0], bytes[1]);
    header->type = (notice_type_t)bytes[1];
    header->source = (int32_t)bytes_get32(bytes + 4);
    header->comm = bytes_get64(bytes + 8);
    return QUOIT_OK;
}

void notice_message_encode(uint64_t comm, int source, const notice_message_t *message, unsigned char notice[NOTICE_MESSAGE_SIZE])
{
    encode_header(NOTICE_MESSAGE, comm, source, notice);
    bytes_put32(notice + 16, message->tag);
    bytes_put32(notice + 20, message->inside);
    bytes_put64(notice + 24, message->bytes);
    bytes_put64(notice + 32, message->number);
}

quoit_status_t notice_message_decode(const void *data, size_t length, notice_message_t *message, const void **payload)
{
    const unsigned char *bytes = data;
    if (length < NOTICE_MESSAGE_SIZE) return error_set(QUOIT_ERR_PROTOCOL, "a message's envelope of %zu bytes is too short", length);
    message->tag = bytes_get32(bytes + 16);
    message->inside = bytes_get32(bytes + 20) == 1;
    message->bytes = bytes_get64(bytes + 24);
    message->number = bytes_get64(bytes + 32);
    size_t follows = length - NOTICE_MESSAGE_SIZE;
    if (message->inside ? message->bytes != follows : follows != 0)
        return error_set(QUOIT_ERR_PROTOCOL, "a message's envelope tells %llu bytes%s, and %zu follow", (unsigned long long)message->bytes,
                         message->inside ? " inside" : "", follows);
    *payload = bytes + NOTICE_MESSAGE_SIZE;
    return QUOIT_OK;
}

size_t notice_abort_encode(uint64_t comm, int source, quoit_status_t status, int finder, const char *text, unsigned char *notice)
{
    encode_header(NOTICE_ABORT, comm, source, notice);
    bytes_put32(notice + NOTICE_HEADER_SIZE, (uint32_t)status);
    bytes_put32(notice + NOTICE_HEADER_SIZE + 4, (uint32_t)finder);
    size_t length = strnlen(text, NOTICE_ABORT_TEXT);
    memcpy(notice + NOTICE_ABORT_SIZE, text, length);
    return NOTICE_ABORT_SIZE + length;
}

quoit_status_t notice_abort_decode(const void *data, size_t length, quoit_status_t *status, int *finder, char *text)
{
    const unsigned char *bytes = data;
    if (length < NOTICE_ABORT_SIZE || length > NOTICE_ABORT_CAPACITY)
        return error_set(QUOIT_ERR_PROTOCOL, "an abort notice of %zu bytes", length);
    int32_t told = (int32_t)bytes_get32(bytes + NOTICE_HEADER_SIZE);
    *status = told < 0 && told >= QUOIT_ERR_INTERNAL ? (quoit_status_t)told : QUOIT_ERR_ABORTED;
    *finder = (int32_t)bytes_get32(bytes + NOTICE_HEADER_SIZE + 4);
    text_copy_printable(text, bytes + NOTICE_ABORT_SIZE, length - NOTICE_ABORT_SIZE);
    return QUOIT_OK;
}

size_t notice_shrink_length(int size) { return NOTICE_SHRINK_SIZE + ((size_t)size + 3) / 4; }

size_t notice_shrink_encode(uint64_t comm, int source, const notice_shrink_t *message, unsigned char *notice)
{
    size_t length = notice_shrink_length(message->size);
    memset(notice, 0, length);
    encode_header(NOTICE_SHRINK, comm, source, notice);
    bytes_put32(notice + NOTICE_HEADER_SIZE, (uint32_t)message->kind);
    bytes_put32(notice + NOTICE_HEADER_SIZE + 4, (uint32_t)message->term);
    bytes_put32(notice + NOTICE_HEADER_SIZE + 8, (uint32_t)message->size);
    return length;
}

void notice_shrink_set_mark(unsigned char *notice, int rank, shrink_mark_t mark)
{
    unsigned char *byte = notice + NOTICE_SHRINK_SIZE + rank / 4;
    *byte = (unsigned char)(*byte | (unsigned)mark << rank % 4 * 2);
}

quoit_status_t notice_shrink_decode(const void *data, size_t length, notice_shrink_t *message)
{
    const unsigned char *bytes = data;
    if (length < NOTICE_SHRINK_SIZE) return error_set(QUOIT_ERR_PROTOCOL, "a notice of shrinking of %zu bytes is too short", length);
    uint32_t kind = bytes_get32(bytes + NOTICE_HEADER_SIZE), size = bytes_get32(bytes + NOTICE_HEADER_SIZE + 8);
    if (kind < SHRINK_JOIN || kind > SHRINK_TAKE || size > INT32_MAX || length != notice_shrink_length((int)size))
        return error_set(QUOIT_ERR_PROTOCOL, "a notice of shrinking, kind %u, of %zu bytes for %u ranks", kind, length, size);
    message->kind = (shrink_kind_t)kind;
    message->term = (int32_t)bytes_get32(bytes + NOTICE_HEADER_SIZE + 4);
    message->size = (int32_t)size;
    return QUOIT_OK;
}

shrink_mark_t notice_shrink_mark(const void *data, int rank)
{
    const unsigned char *bytes = data;
    return (shrink_mark_t)(bytes[NOTICE_SHRINK_SIZE + rank / 4] >> rank % 4 * 2 & 3);
}

static unsigned char *put_text(unsigned char *at, const char *text)
{
    size_t length = strnlen(text, NOTICE_CALL_TEXT - 1);
    *at++ = (unsigned char)length;
    memcpy(at, text, length);
    return at + length;
}

size_t notice_call_encode(uint64_t comm, int source, const notice_call_t *message, unsigned char *notice)
{
    unsigned char *at = notice + NOTICE_CALL_SIZE;
    encode_header(NOTICE_CALL, comm, source, notice);
    notice[16] = (unsigned char)((unsigned)message->ask | (unsigned)message->running << 1);
    notice[17] = (unsigned char)message->calls;
    bytes_put16(notice + 18, 0);
    bytes_put32(notice + 20, (uint32_t)message->target);
    bytes_put64(notice + 24, message->family);
    for (int i = 0; i < message->calls; i++, at += 24) {
        const operation_description_t *description = &message->call[i].description;
        bytes_put32(at, message->call[i].hash);
        bytes_put32(at + 4, description->sequence);
        at[8] = description->collective;
        at[9] = description->dtype;
        at[10] = description->op;
        at[11] = description->wire;
        bytes_put32(at + 12, (uint32_t)description->root);
        bytes_put64(at + 16, description->count);
    }
    return (size_t)(put_text(put_text(at, message->doing), message->members) - notice);
}

/* One length byte and so many characters; NULL when it does not fit. */
static const unsigned char *get_text(const unsigned char *at, const unsigned char *end, char text[NOTICE_CALL_TEXT])
{
    if (!at || at >= end || *at >= NOTICE_CALL_TEXT || (size_t)(end - at - 1) < *at) return NULL;
    text_copy_printable(text, at + 1, *at);
    return at + 1 + *at;
}

quoit_status_t notice_call_decode(const void *data, size_t length, notice_call_t *message)
{
    const unsigned char *bytes = data, *end = bytes + length, *at = bytes + NOTICE_CALL_SIZE;
    int calls = length > NOTICE_CALL_SIZE ? bytes[17] : NOTICE_CALLS + 1;
    if (calls > NOTICE_CALLS || (size_t)(end - at) < 24 * (size_t)calls ||
        get_text(get_text(at + 24 * calls, end, message->doing), end, message->members) != end)
        return error_set(QUOIT_ERR_PROTOCOL, "a notice of calls of %zu bytes is damaged", length);
    message->ask = bytes[16] & 1;
    message->running = bytes[16] >> 1 & 1;
    message->target = (int32_t)bytes_get32(bytes + 20);
    message->family = bytes_get64(bytes + 24);
    message->calls = calls;
    for (int i = 0; i < calls; i++, at += 24) {
        message->call[i].hash = bytes_get32(at);
        message->call[i].description = (operation_description_t){.sequence = bytes_get32(at + 4),
                                                                 .collective = at[8],
                                                                 .dtype = at[9],
                                                                 .op = at[10],
                                                                 .wire = at[11],
                                                                 .root = (int32_t)bytes_get32(at + 12),
                                                                 .count = bytes_get64(at + 16)};
    }
    return QUOIT_OK;
}
