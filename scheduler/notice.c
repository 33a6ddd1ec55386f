/* SPDX-License-Identifier: Apache-2.0 */
/* Notices: encoding and the one parser. Layout: 0 magic, 1 type, 2-3 zero, 4 source, 8 communicator; then by type. */
#include "scheduler/notice.h"

#include "base/bytes.h"

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
    if (bytes[0] != MAGIC || (bytes[1] != NOTICE_MESSAGE && bytes[1] != NOTICE_ABORT))
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

size_t notice_abort_encode(uint64_t comm, int source, quoit_status_t status, const char *text, unsigned char *notice)
{
    encode_header(NOTICE_ABORT, comm, source, notice);
    bytes_put32(notice + NOTICE_HEADER_SIZE, (uint32_t)status);
    size_t length = strnlen(text, NOTICE_ABORT_TEXT);
    memcpy(notice + NOTICE_HEADER_SIZE + 4, text, length);
    return NOTICE_HEADER_SIZE + 4 + length;
}

quoit_status_t notice_abort_decode(const void *data, size_t length, quoit_status_t *status, char *text)
{
    const unsigned char *bytes = data;
    if (length < NOTICE_HEADER_SIZE + 4 || length > NOTICE_HEADER_SIZE + 4 + NOTICE_ABORT_TEXT)
        return error_set(QUOIT_ERR_PROTOCOL, "an abort notice of %zu bytes", length);
    int32_t told = (int32_t)bytes_get32(bytes + NOTICE_HEADER_SIZE);
    *status = told < 0 && told >= QUOIT_ERR_INTERNAL ? (quoit_status_t)told : QUOIT_ERR_ABORTED;
    size_t count = length - NOTICE_HEADER_SIZE - 4;
    for (size_t i = 0; i < count; i++) /* it goes to logs and terminals */
        text[i] = bytes[NOTICE_HEADER_SIZE + 4 + i] < 0x20 ? ' ' : (char)bytes[NOTICE_HEADER_SIZE + 4 + i];
    text[count] = '\0';
    return QUOIT_OK;
}
