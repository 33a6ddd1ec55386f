/* SPDX-License-Identifier: Apache-2.0 */
/* Bootstrap: the one parser each for what ranks publish once they know each other, proofs and lists of paths. Records and rosters: job_record.c, roster.c. */
#include "base/bytes.h"
#include "base/text.h"
#include "scheduler/bootstrap.h"

#include <stdlib.h>
#include <string.h>

quoit_status_t bootstrap_read_proof(const uint8_t *bytes, size_t got, int rank, size_t length, uint8_t *bits, lack_t *lack)
{
    if (got < length + 2 || got > length + 2 + LACK_TEXT || bytes[0] != 0)
        return error_set(QUOIT_ERR_PROTOCOL, "bootstrap: the store holds %zu bytes that are no proof of rank %d", got, rank);
    uint8_t kind = bytes[1 + length];
    memcpy(bits, bytes + 1, length);
    lack->kind = kind <= LACK_CHOSEN ? (lack_kind_t)kind : LACK_NONE;
    text_copy_printable(lack->text, bytes + length + 2, got - length - 2);
    return QUOIT_OK;
}

quoit_status_t bootstrap_take_bans(job_t *job, const uint8_t *bytes, size_t length, int by)
{
    uint32_t count = length >= 4 ? bytes_get32(bytes) : UINT32_MAX;
    const uint8_t *at = bytes + 4, *end = bytes + length;
    if (length < 4 || count > length / BAN_HEADER) goto damaged;
    job_ban_t *grown = realloc(job->ban, ((size_t)job->bans + count + 1) * sizeof *grown);
    if (!grown) return error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: %u pairs that a transport does not join", count);
    job->ban = grown;
    for (uint32_t i = 0; i < count; i++) {
        if (end - at < BAN_HEADER || (size_t)(end - at - BAN_HEADER) < at[8] || at[8] >= sizeof grown->why) goto damaged;
        uint32_t one = bytes_get32(at), other = bytes_get32(at + 4);
        if (one >= other || other >= (uint32_t)job->size || (by >= 0 && one != (uint32_t)by && other != (uint32_t)by)) goto damaged;
        job_ban_t ban = {.one = (int)one, .other = (int)other};
        text_copy_printable(ban.why, at + BAN_HEADER, at[8]);
        at += BAN_HEADER + at[8];
        const job_address_t *address = job_transport(job, ban.one, ban.other, false);
        if (job_ban(job, ban.one, ban.other, NULL) || !address || !address->optional) continue;
        memcpy(ban.transport, address->transport, sizeof ban.transport);
        job->ban[job->bans++] = ban;
    }
    if (at == end) return QUOIT_OK;
damaged:
    return error_set(QUOIT_ERR_PROTOCOL, "bootstrap: the store holds %zu bytes that are no list of paths of rank %d", length, by < 0 ? 0 : by);
}
