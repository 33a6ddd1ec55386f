/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing and parsing of addresses and preambles. All numbers little-endian, IP addresses and nothing else in network order.
 *
 *   address   version 1, count 1, sockets 1, zero 1, eager limit 4, pool 4, segment 4, then per name: family (4 or 6) and above it rail 1,
 *             port 2, IP address 4 or 16, rate 2
 *   preamble  "QtPr", version 2, size 2, attempt 8, eager limit 4, pool 4, segment 4, pid 4, host 64 (filled with zeros), rails 1, rail 1, zero 2,
 *             rate 4
 */
#include "transport/ip/ip_address.h"

#include "transport/framing/channel.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

enum { ADDRESS_VERSION = 2, ADDRESS_HEADER = 16, PREAMBLE_VERSION = 2 };

/* What a peer may ask for: wider than the settings allow, so that a later version may widen those. */
enum { LEAST_LIMIT = 64, MOST_EAGER = 1 << 20, MOST_POOL = 1 << 30, MOST_SEGMENT = 1 << 26 };

static uint8_t *put_number(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *at++ = (uint8_t)(value >> (8 * i));
    return at;
}

static uint64_t get_number(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

socklen_t ip_name_size(const ip_name_t *name)
{
    return name->any.sa_family == AF_INET6 ? sizeof name->v6 : sizeof name->v4;
}

uint16_t ip_name_port(const ip_name_t *name)
{
    return ntohs(name->any.sa_family == AF_INET6 ? name->v6.sin6_port : name->v4.sin_port);
}

void ip_name_set_port(ip_name_t *name, uint16_t port)
{
    if (name->any.sa_family == AF_INET6)
        name->v6.sin6_port = htons(port);
    else
        name->v4.sin_port = htons(port);
}

const char *ip_name_text(const ip_name_t *name, char text[IP_NAME_CAPACITY])
{
    char ip[INET6_ADDRSTRLEN] = "?", scope[16] = "";
    unsigned port = ip_name_port(name);
    if (name->any.sa_family == AF_INET6) {
        inet_ntop(AF_INET6, &name->v6.sin6_addr, ip, sizeof ip);
        if (name->v6.sin6_scope_id != 0) snprintf(scope, sizeof scope, "%%%u", name->v6.sin6_scope_id);
        if (port != 0)
            snprintf(text, IP_NAME_CAPACITY, "[%s%s]:%u", ip, scope, port);
        else
            snprintf(text, IP_NAME_CAPACITY, "%s%s", ip, scope);
    } else {
        inet_ntop(AF_INET, &name->v4.sin_addr, ip, sizeof ip);
        if (port != 0)
            snprintf(text, IP_NAME_CAPACITY, "%s:%u", ip, port);
        else
            snprintf(text, IP_NAME_CAPACITY, "%s", ip);
    }
    return text;
}

bool ip_name_is_link_local(const ip_name_t *name)
{
    return name->any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&name->v6.sin6_addr);
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

ip_limits_t ip_limits_least(ip_limits_t a, ip_limits_t b)
{
    return (ip_limits_t){.eager_limit = least(a.eager_limit, b.eager_limit),
                          .eager_pool = least(a.eager_pool, b.eager_pool),
                          .segment_size = least(a.segment_size, b.segment_size),
                          .sockets = least(a.sockets, b.sockets)};
}

static quoit_status_t check_limits(const char *what, const ip_limits_t *limits)
{
    if (limits->eager_limit < LEAST_LIMIT || limits->eager_limit > MOST_EAGER || limits->eager_pool < limits->eager_limit ||
        limits->eager_pool > MOST_POOL || limits->segment_size < LEAST_LIMIT || limits->segment_size > MOST_SEGMENT)
        return error_set(QUOIT_ERR_PROTOCOL, "tcp: %s with limits that cannot be (eager %u, pool %u, segment %u)", what,
                         limits->eager_limit, limits->eager_pool, limits->segment_size);
    if (limits->sockets < 1 || limits->sockets > CHANNEL_MAX_PIPES)
        return error_set(QUOIT_ERR_PROTOCOL, "tcp: %s with %u sockets; 1 to %d are possible", what, limits->sockets,
                         CHANNEL_MAX_PIPES);
    return QUOIT_OK;
}

/* family and rail 1, port 2, IP, rate 2 */
static size_t packed_size(const ip_name_t *name) { return 5u + (name->any.sa_family == AF_INET6 ? 16 : 4); }

enum { RATE_BITS = 11, RATE_MOST_SHIFT = 20 };

/* A rate as 11 bits and by how many they are to be shifted. */
static uint64_t pack_rate(uint32_t mbps)
{
    uint32_t shift = 0;
    while (mbps >> shift >= 1u << RATE_BITS) shift++;
    return mbps >> shift | shift << RATE_BITS;
}

int ip_address_rails(const ip_address_t *address)
{
    int rails = 1;
    for (int i = 0; i < address->count; i++)
        if (address->rail[i] >= rails) rails = address->rail[i] + 1;
    return rails;
}

quoit_status_t ip_address_write(const ip_address_t *address, void *bytes, size_t *length)
{
    uint8_t packed[ADDRESS_HEADER + IP_MAX_ADDRESSES * 21], *at = packed;
    size_t size = ADDRESS_HEADER;
    for (int i = 0; i < address->count; i++) size += packed_size(&address->names[i]);
    if (size > *length) return error_set(QUOIT_ERR_INVALID, "tcp: the address needs %zu bytes, there is room for %zu", size, *length);
    at = put_number(at, ADDRESS_VERSION, 1);
    at = put_number(at, (uint64_t)address->count, 1);
    at = put_number(at, address->limits.sockets, 1);
    at = put_number(at, 0, 1);
    at = put_number(at, address->limits.eager_limit, 4);
    at = put_number(at, address->limits.eager_pool, 4);
    at = put_number(at, address->limits.segment_size, 4);
    for (int i = 0; i < address->count; i++) {
        const ip_name_t *name = &address->names[i];
        bool v6 = name->any.sa_family == AF_INET6;
        at = put_number(at, (v6 ? 6u : 4u) | (unsigned)address->rail[i] << 4, 1);
        at = put_number(at, ip_name_port(name), 2);
        memcpy(at, v6 ? (const void *)&name->v6.sin6_addr : (const void *)&name->v4.sin_addr, v6 ? 16 : 4);
        at += v6 ? 16 : 4;
        at = put_number(at, pack_rate(address->mbps[i]), 2);
    }
    memcpy(bytes, packed, size);
    *length = size;
    return QUOIT_OK;
}

/* One name from at most `left` bytes; its size, 0 when it is none. */
static size_t parse_name(const uint8_t *at, size_t left, ip_name_t *name, uint8_t *rail, uint32_t *mbps)
{
    memset(name, 0, sizeof *name);
    unsigned family = left > 0 ? at[0] & 15 : 0;
    if (family != 4 && family != 6) return 0;
    size_t size = family == 6 ? 21 : 9;
    if (left < size) return 0;
    uint16_t port = (uint16_t)get_number(at + 1, 2), rate = (uint16_t)get_number(at + size - 2, 2);
    unsigned shift = rate >> RATE_BITS, least = shift > 0 ? 1u << (RATE_BITS - 1) : 0;
    *rail = at[0] >> 4;
    *mbps = (uint32_t)(rate & ((1u << RATE_BITS) - 1)) << (shift <= RATE_MOST_SHIFT ? shift : 0);
    if (port == 0 || *rail >= IP_MAX_ADDRESSES || shift > RATE_MOST_SHIFT || (rate & ((1u << RATE_BITS) - 1)) < least) return 0;
    if (family == 6) {
        name->v6.sin6_family = AF_INET6;
        memcpy(&name->v6.sin6_addr, at + 3, 16);
    } else {
        name->v4.sin_family = AF_INET;
        memcpy(&name->v4.sin_addr, at + 3, 4);
    }
    ip_name_set_port(name, port);
    return size;
}

quoit_status_t ip_address_parse(const void *bytes, size_t length, ip_address_t *address)
{
    const uint8_t *at = bytes;
    if (length < ADDRESS_HEADER)
        return error_set(QUOIT_ERR_PROTOCOL, "tcp: an address of %zu bytes is too short", length);
    if (at[0] != ADDRESS_VERSION)
        return error_set(QUOIT_ERR_PROTOCOL, "tcp: an address of version %u; this is version %d: do all ranks run the same Quoit?",
                         at[0], ADDRESS_VERSION);
    ip_address_t parsed = {.count = at[1],
                            .limits = {.sockets = at[2],
                                       .eager_limit = (uint32_t)get_number(at + 4, 4),
                                       .eager_pool = (uint32_t)get_number(at + 8, 4),
                                       .segment_size = (uint32_t)get_number(at + 12, 4)}};
    if (at[1] < 1 || at[1] > IP_MAX_ADDRESSES)
        return error_set(QUOIT_ERR_PROTOCOL, "tcp: an address with %u names; 1 to %d are possible", at[1], IP_MAX_ADDRESSES);
    quoit_status_t status = check_limits("an address", &parsed.limits);
    if (status != QUOIT_OK) return status;
    size_t offset = ADDRESS_HEADER;
    for (int i = 0; i < parsed.count; i++) {
        size_t size = parse_name(at + offset, length - offset, &parsed.names[i], &parsed.rail[i], &parsed.mbps[i]);
        if (size == 0) return error_set(QUOIT_ERR_PROTOCOL, "tcp: name %d of %d of an address is damaged", i + 1, parsed.count);
        offset += size;
    }
    if (offset != length) return error_set(QUOIT_ERR_PROTOCOL, "tcp: %zu bytes too many in an address", length - offset);
    *address = parsed;
    return QUOIT_OK;
}

static const uint8_t preamble_magic[4] = {'Q', 't', 'P', 'r'};

void ip_preamble_write(const ip_preamble_t *preamble, uint8_t bytes[IP_PREAMBLE_SIZE])
{
    uint8_t *at = bytes;
    memcpy(at, preamble_magic, sizeof preamble_magic);
    at = put_number(at + sizeof preamble_magic, PREAMBLE_VERSION, 2);
    at = put_number(at, IP_PREAMBLE_SIZE, 2);
    at = put_number(at, preamble->attempt, 8);
    at = put_number(at, preamble->limits.eager_limit, 4);
    at = put_number(at, preamble->limits.eager_pool, 4);
    at = put_number(at, preamble->limits.segment_size, 4);
    at = put_number(at, preamble->pid, 4);
    memset(at, 0, IP_HOST_CAPACITY);
    memcpy(at, preamble->host, strnlen(preamble->host, IP_HOST_CAPACITY - 1));
    at = put_number(at + IP_HOST_CAPACITY, preamble->rails, 1);
    at = put_number(at, preamble->rail, 1);
    at = put_number(at, 0, 2);
    put_number(at, preamble->mbps, 4);
}

quoit_status_t ip_preamble_parse(const uint8_t bytes[IP_PREAMBLE_SIZE], ip_preamble_t *preamble)
{
    if (memcmp(bytes, preamble_magic, sizeof preamble_magic) != 0 || get_number(bytes + 4, 2) != PREAMBLE_VERSION ||
        get_number(bytes + 6, 2) != IP_PREAMBLE_SIZE)
        return error_set(QUOIT_ERR_PROTOCOL, "tcp: a preamble that is none of this version");
    ip_preamble_t parsed = {.attempt = get_number(bytes + 8, 8),
                             .limits = {.eager_limit = (uint32_t)get_number(bytes + 16, 4),
                                        .eager_pool = (uint32_t)get_number(bytes + 20, 4),
                                        .segment_size = (uint32_t)get_number(bytes + 24, 4),
                                        .sockets = 1}, /* the handshake has told how many */
                             .pid = (uint32_t)get_number(bytes + 28, 4),
                             .rails = bytes[96] == 1,
                             .rail = bytes[97],
                             .mbps = (uint32_t)get_number(bytes + 100, 4)};
    quoit_status_t status = check_limits("a preamble", &parsed.limits);
    if (status == QUOIT_OK && (bytes[96] > 1 || parsed.rail >= IP_MAX_ADDRESSES || (parsed.rail > 0 && !parsed.rails)))
        status = error_set(QUOIT_ERR_PROTOCOL, "tcp: a preamble for rail %u of %s", parsed.rail, parsed.rails ? "some" : "one");
    if (status != QUOIT_OK) return status;
    for (int i = 0; i < IP_HOST_CAPACITY - 1 && bytes[32 + i] != 0; i++) {
        uint8_t c = bytes[32 + i];
        parsed.host[i] = c > ' ' && c < 0x7f ? (char)c : '?';
    }
    *preamble = parsed;
    return QUOIT_OK;
}
