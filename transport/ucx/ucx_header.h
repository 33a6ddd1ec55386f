/* SPDX-License-Identifier: Apache-2.0 */
/** Header of each active message of a link (ucx_link.c): "Qu", version, type, zero 4, sequence 8, little-endian. Trusts nothing. */
#ifndef QUOIT_TRANSPORT_UCX_HEADER_H
#define QUOIT_TRANSPORT_UCX_HEADER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UCX_HEADER_SIZE = 16,
    UCX_MESSAGE_SIZE = 64 * 1024 - 128 /* bytes of one active message, at most: with all headers, UCX's too, one fragment over its tcp (RX_SEG_SIZE) */
};

typedef enum ucx_message { UCX_DATA = 1, UCX_LAST, UCX_RECEIPT, UCX_MESSAGE_END } ucx_message_t;

void ucx_header_write(ucx_message_t type, uint64_t sequence, uint8_t header[UCX_HEADER_SIZE]);
/** False for what is no header of this version, or of a message that cannot have `payload` bytes. */
bool ucx_header_parse(const void *header, size_t length, size_t payload, ucx_message_t *type, uint64_t *sequence);

#endif
