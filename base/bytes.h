/* SPDX-License-Identifier: Apache-2.0 */
/** Little-endian numbers in byte strings, whatever the machine's own order and alignment. */
#ifndef QUOIT_BASE_BYTES_H
#define QUOIT_BASE_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void bytes_put16(void *at, uint16_t value)
{
    value = htole16(value);
    memcpy(at, &value, sizeof value);
}
static inline void bytes_put32(void *at, uint32_t value)
{
    value = htole32(value);
    memcpy(at, &value, sizeof value);
}
static inline void bytes_put64(void *at, uint64_t value)
{
    value = htole64(value);
    memcpy(at, &value, sizeof value);
}
static inline uint16_t bytes_get16(const void *at)
{
    uint16_t value;
    memcpy(&value, at, sizeof value);
    return le16toh(value);
}
static inline uint32_t bytes_get32(const void *at)
{
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return le32toh(value);
}
static inline uint64_t bytes_get64(const void *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return le64toh(value);
}

#endif
