/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes, little-endian:
 *   "QVbs" 4, version 1, type 1, size 2; HELLO goes on: GID 16, GID type 1, MTU 1, ethernet 1, link 1, LID 2, zero 2, stream QPN 4, PSN 4,
 *   direct QPN 4, PSN 4, depth 4, buffer size 4, direct receives 4, limits 12, pid 4, Mb/s 4, zero 8, host 40.
 * Limits: eager limit 4, pool 4, segment 3, rails less one 1.
 */
#include "transport/verbs/verbs_hello.h"

#include "base/bytes.h"

#include <ctype.h>
#include <stdbool.h>

enum { VERSION = 2, HEADER = 8, MOST_RAILS = 16, LEAST_LIMIT = 256, MOST_EAGER = 64 << 10, MOST_POOL = 64 << 20, MOST_SEGMENT = 4 << 20 };

static const char magic[4] = {'Q', 'V', 'b', 's'};

static void put_header(uint8_t *bytes, verbs_notice_t type, uint16_t size)
{
    memset(bytes, 0, size);
    memcpy(bytes, magic, sizeof magic);
    bytes[4] = VERSION;
    bytes[5] = (uint8_t)type;
    bytes_put16(bytes + 6, size);
}

void verbs_ready_write(uint8_t bytes[VERBS_READY_SIZE]) { put_header(bytes, VERBS_NOTICE_READY, VERBS_READY_SIZE); }

void verbs_hello_write(const verbs_hello_t *hello, uint8_t bytes[VERBS_HELLO_SIZE])
{
    put_header(bytes, VERBS_NOTICE_HELLO, VERBS_HELLO_SIZE);
    memcpy(bytes + 8, hello->gid, 16);
    bytes[24] = hello->gid_type;
    bytes[25] = hello->mtu;
    bytes[26] = hello->ethernet;
    bytes[27] = hello->link;
    bytes_put16(bytes + 28, hello->lid);
    bytes_put32(bytes + 32, hello->stream_qpn);
    bytes_put32(bytes + 36, hello->stream_psn);
    bytes_put32(bytes + 40, hello->direct_qpn);
    bytes_put32(bytes + 44, hello->direct_psn);
    bytes_put32(bytes + 48, hello->depth);
    bytes_put32(bytes + 52, hello->buffer_size);
    bytes_put32(bytes + 56, hello->direct_recvs);
    verbs_limits_write(&hello->limits, bytes + 60);
    bytes_put32(bytes + 72, hello->pid);
    bytes_put32(bytes + 76, hello->mbps);
    memcpy(bytes + 88, hello->host, sizeof hello->host);
}

void verbs_limits_write(const verbs_limits_t *limits, uint8_t bytes[VERBS_LIMITS_SIZE])
{
    bytes_put32(bytes, limits->eager_limit);
    bytes_put32(bytes + 4, limits->eager_pool);
    bytes_put32(bytes + 8, limits->segment_size | (limits->rails - 1) << 24);
}

quoit_status_t verbs_limits_parse(const uint8_t *bytes, size_t length, verbs_limits_t *limits)
{
    if (length < VERBS_LIMITS_SIZE) return error_set(QUOIT_ERR_PROTOCOL, "verbs: an address of %zu bytes is none", length);
    uint32_t last = bytes_get32(bytes + 8);
    verbs_limits_t read = {bytes_get32(bytes), bytes_get32(bytes + 4), last & 0xffffff, 1 + (last >> 24)};
    if (read.eager_limit < LEAST_LIMIT || read.eager_limit > MOST_EAGER || read.eager_pool > MOST_POOL || read.segment_size < LEAST_LIMIT ||
        read.segment_size > MOST_SEGMENT || read.rails > MOST_RAILS)
        return error_set(QUOIT_ERR_PROTOCOL, "verbs: impossible limits: eager %u, pool %u, segment %u, rails %u", read.eager_limit, read.eager_pool,
                         read.segment_size, read.rails);
    *limits = read;
    return QUOIT_OK;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

verbs_limits_t verbs_limits_least(verbs_limits_t a, verbs_limits_t b)
{
    return (verbs_limits_t){least(a.eager_limit, b.eager_limit), least(a.eager_pool, b.eager_pool), least(a.segment_size, b.segment_size), least(a.rails, b.rails)};
}

static quoit_status_t parse_hello(const uint8_t *bytes, verbs_hello_t *hello)
{
    verbs_hello_t read = {.link = bytes[27], .mbps = bytes_get32(bytes + 76),
                          .gid_type = bytes[24], .mtu = bytes[25], .ethernet = bytes[26], .lid = bytes_get16(bytes + 28),
                          .stream_qpn = bytes_get32(bytes + 32), .stream_psn = bytes_get32(bytes + 36),
                          .direct_qpn = bytes_get32(bytes + 40), .direct_psn = bytes_get32(bytes + 44),
                          .depth = bytes_get32(bytes + 48), .buffer_size = bytes_get32(bytes + 52),
                          .direct_recvs = bytes_get32(bytes + 56), .pid = bytes_get32(bytes + 72)};
    memcpy(read.gid, bytes + 8, sizeof read.gid);
    memcpy(read.host, bytes + 88, sizeof read.host - 1);
    for (char *at = read.host; *at; at++)
        if (!isprint((unsigned char)*at)) *at = '?';
    quoit_status_t status = verbs_limits_parse(bytes + 60, VERBS_LIMITS_SIZE, &read.limits);
    if (status != QUOIT_OK) return status;
    bool numbers = (read.stream_qpn | read.stream_psn | read.direct_qpn | read.direct_psn) >> 24 == 0;
    if (!numbers || read.link >= read.limits.rails || (read.stream_qpn == 0) != (read.direct_qpn == 0) || read.gid_type > 2 || read.mtu < 1 || read.mtu > 5 || read.depth < 4 || read.depth > 4096 || read.buffer_size < 256 ||
        read.buffer_size > 1 << 20 || read.direct_recvs < 1 || read.direct_recvs > 4096)
        return error_set(QUOIT_ERR_PROTOCOL, "verbs: a HELLO with impossible numbers");
    *hello = read;
    return QUOIT_OK;
}

quoit_status_t verbs_notice_parse(const void *data, size_t length, verbs_notice_t *type, verbs_hello_t *hello)
{
    const uint8_t *bytes = data;
    if (length < HEADER || memcmp(bytes, magic, sizeof magic) != 0 || bytes_get16(bytes + 6) != length)
        return error_set(QUOIT_ERR_PROTOCOL, "verbs: %zu bytes that are no notice of this transport", length);
    if (bytes[4] != VERSION)
        return error_set(QUOIT_ERR_PROTOCOL, "verbs: notice of version %u, this library speaks %d: the peers run different releases", bytes[4],
                         VERSION);
    if (bytes[5] == VERBS_NOTICE_READY && length == VERBS_READY_SIZE) {
        *type = VERBS_NOTICE_READY;
        return QUOIT_OK;
    }
    if (bytes[5] != VERBS_NOTICE_HELLO || length != VERBS_HELLO_SIZE)
        return error_set(QUOIT_ERR_PROTOCOL, "verbs: notice of unknown type %u or size %zu", bytes[5], length);
    quoit_status_t status = parse_hello(bytes, hello);
    if (status == QUOIT_OK) *type = VERBS_NOTICE_HELLO;
    return status;
}
