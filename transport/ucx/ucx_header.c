/* SPDX-License-Identifier: Apache-2.0 */
/** Header of each active message of a link: see ucx_header.h. */
#include "transport/ucx/ucx_header.h"

#include "base/bytes.h"

enum { VERSION = 2 };

void ucx_header_write(ucx_message_t type, uint64_t sequence, uint8_t header[UCX_HEADER_SIZE])
{
    memset(header, 0, UCX_HEADER_SIZE);
    header[0] = 'Q';
    header[1] = 'u';
    header[2] = VERSION;
    header[3] = (uint8_t)type;
    bytes_put64(header + 8, sequence);
}

bool ucx_header_parse(const void *data, size_t length, size_t payload, ucx_message_t *type, uint64_t *sequence)
{
    const uint8_t *header = data;
    if (length != UCX_HEADER_SIZE || header[0] != 'Q' || header[1] != 'u' || header[2] != VERSION) return false;
    if (header[3] == 0 || header[3] >= UCX_MESSAGE_END || bytes_get32(header + 4) != 0) return false;
    if (payload > (header[3] == UCX_DATA ? UCX_MESSAGE_SIZE : 0)) return false;
    *type = (ucx_message_t)header[3];
    *sequence = bytes_get64(header + 8);
    return true;
}
