/* SPDX-License-Identifier: Apache-2.0 */
/** Writers and parsers of the address, the info message, the last words and the handle: see shm_info.h. */
#include "transport/shm/shm_info.h"

#include "base/text.h"
#include "transport/shm/shm_header.h"

#include <stdio.h>
#include <string.h>

enum { VERSION = 1, RING_HEADER = 128 /* bytes before those of a ring */ };
#define MAGIC_ADDRESS 0x41535451u /* "QTSA" */
#define MAGIC_INFO 0x49535451u    /* "QTSI" */
#define MAGIC_WORDS 0x57535451u   /* "QTSW" */
#define MAGIC_HANDLE 0x48535451u  /* "QTSH" */

static void put(uint8_t **at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) *(*at)++ = (uint8_t)(value >> (8 * i));
}

static uint64_t take(const uint8_t **at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)*(*at)++ << (8 * i);
    return value;
}

static void put_head(uint8_t **at, uint32_t magic, size_t length)
{
    put(at, magic, 4);
    put(at, VERSION, 2);
    put(at, length, 2);
}

static quoit_status_t take_head(const uint8_t **at, uint32_t magic, size_t length, const char *what)
{
    uint32_t got = (uint32_t)take(at, 4);
    unsigned version = (unsigned)take(at, 2), size = (unsigned)take(at, 2);
    if (got != magic) return error_set(QUOIT_ERR_PROTOCOL, "shm: these bytes are no %s", what);
    if (version != VERSION || size != length) {
        return error_set(QUOIT_ERR_PROTOCOL, "shm: %s has version %u and %u bytes, this library speaks version %d with %zu", what, version, size,
                         VERSION, length);
    }
    return QUOIT_OK;
}

static void put_process(uint8_t **at, quoit_process_id_t process)
{
    put(at, process.high, 8);
    put(at, process.low, 8);
}

static quoit_process_id_t take_process(const uint8_t **at)
{
    quoit_process_id_t process;
    process.high = take(at, 8);
    process.low = take(at, 8);
    return process;
}

static void put_limits(uint8_t **at, shm_limits_t limits)
{
    put(at, limits.eager, 4);
    put(at, limits.pool, 4);
    put(at, limits.segment, 4);
}

static shm_limits_t take_limits(const uint8_t **at)
{
    shm_limits_t limits;
    limits.eager = (uint32_t)take(at, 4);
    limits.pool = (uint32_t)take(at, 4);
    limits.segment = (uint32_t)take(at, 4);
    return limits;
}

static quoit_status_t check_range(const char *field, uint64_t value, uint64_t minimum, uint64_t maximum)
{
    if (value >= minimum && value <= maximum) return QUOIT_OK;
    return error_set(QUOIT_ERR_PROTOCOL, "shm: the peer's %s is %llu, expected %llu to %llu", field, (unsigned long long)value,
                     (unsigned long long)minimum, (unsigned long long)maximum);
}

static quoit_status_t check_limits(const shm_limits_t *limits)
{
    quoit_status_t status = check_range("eager limit", limits->eager, SHM_EAGER_MIN, SHM_EAGER_MAX);
    if (!status) status = check_range("eager pool", limits->pool, SHM_POOL_MIN, SHM_POOL_MAX);
    if (!status) status = check_range("segment size", limits->segment, SHM_SEGMENT_MIN, SHM_SEGMENT_MAX);
    return status;
}

shm_limits_t shm_limits_least(shm_limits_t a, shm_limits_t b)
{
    return (shm_limits_t){.eager = a.eager < b.eager ? a.eager : b.eager,
                          .pool = a.pool < b.pool ? a.pool : b.pool,
                          .segment = a.segment < b.segment ? a.segment : b.segment};
}

void shm_address_write(const shm_address_t *address, uint8_t bytes[SHM_ADDRESS_SIZE])
{
    uint8_t *at = bytes;
    memset(bytes, 0, SHM_ADDRESS_SIZE);
    put_head(&at, MAGIC_ADDRESS, SHM_ADDRESS_SIZE);
    put_process(&at, address->process);
    put_limits(&at, address->limits);
}

quoit_status_t shm_address_parse(const void *bytes, size_t length, shm_address_t *address)
{
    const uint8_t *at = bytes;
    shm_address_t parsed;
    if (!bytes || length != SHM_ADDRESS_SIZE) {
        return error_set(QUOIT_ERR_PROTOCOL, "shm: an address has %d bytes, these are %zu", SHM_ADDRESS_SIZE, length);
    }
    quoit_status_t status = take_head(&at, MAGIC_ADDRESS, SHM_ADDRESS_SIZE, "address");
    if (status) return status;
    parsed.process = take_process(&at);
    parsed.limits = take_limits(&at);
    status = check_limits(&parsed.limits);
    if (!status) *address = parsed;
    return status;
}

void shm_address_name(quoit_process_id_t process, char name[SHM_NAME_CAPACITY])
{
    snprintf(name, SHM_NAME_CAPACITY, "quoit-%016llx%016llx", (unsigned long long)process.high, (unsigned long long)process.low);
}

void shm_info_write(const shm_info_t *info, uint8_t bytes[SHM_INFO_SIZE])
{
    uint8_t *at = bytes;
    memset(bytes, 0, SHM_INFO_SIZE);
    put_head(&at, MAGIC_INFO, SHM_INFO_SIZE);
    put_process(&at, info->process);
    put_limits(&at, info->limits);
    put(&at, info->arena_size, 8);
    put(&at, info->mailbox_offset, 8);
    put(&at, info->mailbox_capacity, 8);
    put(&at, info->slot, 4);
    put(&at, info->pid, 4);
    put(&at, info->descriptors, 4);
}

static quoit_status_t check_mailbox(const shm_info_t *info)
{
    const uint64_t smallest = SHM_HEADER_SIZE + QUOIT_ROOT_SIZE;
    quoit_status_t status = check_range("arena size", info->arena_size, smallest + RING_HEADER + SHM_MAILBOX_MIN, SHM_ARENA_LIMIT);
    if (!status) status = check_range("mailbox capacity", info->mailbox_capacity, SHM_MAILBOX_MIN, SHM_MAILBOX_MAX);
    if (status) return status;
    if (info->mailbox_capacity & (info->mailbox_capacity - 1)) {
        return error_set(QUOIT_ERR_PROTOCOL, "shm: the peer's mailbox of %llu bytes is no power of two", (unsigned long long)info->mailbox_capacity);
    }
    const uint64_t ring = RING_HEADER + info->mailbox_capacity;
    if (info->arena_size < smallest + ring) {
        return error_set(QUOIT_ERR_PROTOCOL, "shm: the peer's mailbox of %llu bytes does not fit its arena of %llu",
                         (unsigned long long)info->mailbox_capacity, (unsigned long long)info->arena_size);
    }
    if (info->mailbox_offset % 64) return error_set(QUOIT_ERR_PROTOCOL, "shm: the peer's mailbox is not aligned to 64 bytes");
    return check_range("mailbox offset", info->mailbox_offset, smallest, info->arena_size - ring);
}

quoit_status_t shm_info_parse(const uint8_t bytes[SHM_INFO_SIZE], shm_info_t *info)
{
    const uint8_t *at = bytes;
    shm_info_t parsed;
    quoit_status_t status = take_head(&at, MAGIC_INFO, SHM_INFO_SIZE, "info message");
    if (status) return status;
    parsed.process = take_process(&at);
    parsed.limits = take_limits(&at);
    parsed.arena_size = take(&at, 8);
    parsed.mailbox_offset = take(&at, 8);
    parsed.mailbox_capacity = take(&at, 8);
    parsed.slot = (uint32_t)take(&at, 4);
    parsed.pid = (uint32_t)take(&at, 4);
    parsed.descriptors = (uint32_t)take(&at, 4);
    status = check_limits(&parsed.limits);
    if (!status) status = check_mailbox(&parsed);
    if (!status) status = check_range("slot", parsed.slot, 0, SHM_MAX_PEERS - 1);
    if (!status) status = check_range("number of descriptors", parsed.descriptors, 2, 3);
    if (!status) *info = parsed;
    return status;
}

size_t shm_words_write(quoit_status_t status, const char *text, uint8_t bytes[SHM_WORDS_CAPACITY])
{
    uint8_t *at = bytes;
    size_t length = strnlen(text, SHM_WORDS_TEXT);
    put_head(&at, MAGIC_WORDS, SHM_WORDS_HEADER + length);
    put(&at, (uint32_t)status, 4);
    memcpy(at, text, length);
    return SHM_WORDS_HEADER + length;
}

quoit_status_t shm_words_parse(const void *bytes, size_t length, quoit_status_t *told, char text[SHM_WORDS_TEXT + 1])
{
    static const quoit_status_t causes[] = {QUOIT_ERR_NO_MEMORY, QUOIT_ERR_SYSTEM, QUOIT_ERR_PROTOCOL}; /* that a side finds at itself, or in what it has read */
    const uint8_t *at = bytes;
    if (length < SHM_WORDS_HEADER || length > SHM_WORDS_CAPACITY) {
        return error_set(QUOIT_ERR_PROTOCOL, "shm: last words have %d to %d bytes, these are %zu", SHM_WORDS_HEADER, SHM_WORDS_CAPACITY, length);
    }
    quoit_status_t status = take_head(&at, MAGIC_WORDS, length, "last words");
    if (status) return status;
    const int32_t number = (int32_t)take(&at, 4);
    *told = QUOIT_ERR_PEER;
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
        if (number == (int32_t)causes[i]) *told = causes[i];
    text_copy_printable(text, at, length - SHM_WORDS_HEADER);
    return QUOIT_OK;
}

void shm_handle_write(quoit_process_id_t process, uint64_t offset, uint64_t length, uint8_t bytes[QUOIT_HANDLE_CAPACITY])
{
    uint8_t *at = bytes;
    memset(bytes, 0, QUOIT_HANDLE_CAPACITY);
    put_head(&at, MAGIC_HANDLE, QUOIT_HANDLE_CAPACITY);
    put_process(&at, process);
    put(&at, offset, 8);
    put(&at, length, 8);
}

quoit_status_t shm_handle_parse(const uint8_t bytes[QUOIT_HANDLE_CAPACITY], quoit_process_id_t process, uint64_t arena_size,
                                uint64_t *offset, uint64_t *length)
{
    const uint8_t *at = bytes;
    quoit_status_t status = take_head(&at, MAGIC_HANDLE, QUOIT_HANDLE_CAPACITY, "handle of shared memory");
    if (status) return QUOIT_ERR_INVALID;
    if (!process_same(take_process(&at), process)) {
        return error_set(QUOIT_ERR_INVALID, "shm: the handle belongs to the memory of another process");
    }
    uint64_t start = take(&at, 8), bytes_there = take(&at, 8);
    if (start < SHM_HEADER_SIZE || start > arena_size || bytes_there > arena_size - start) {
        return error_set(QUOIT_ERR_INVALID, "shm: the handle names bytes %llu + %llu, outside of an arena of %llu bytes", (unsigned long long)start,
                         (unsigned long long)bytes_there, (unsigned long long)arena_size);
    }
    *offset = start;
    *length = bytes_there;
    return QUOIT_OK;
}
