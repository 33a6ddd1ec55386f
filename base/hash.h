/* SPDX-License-Identifier: Apache-2.0 */
/** 64-bit mixing for ids and tables (not for secrets: see hmac.h). */
#ifndef QUOIT_BASE_HASH_H
#define QUOIT_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

/** Finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit changes every output bit with probability near 1/2. */
static inline uint64_t hash_mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return value ^ (value >> 31);
}

static inline uint64_t hash_combine(uint64_t seed, uint64_t value) { return hash_mix(seed ^ hash_mix(value)); }

static inline uint64_t hash_bytes(uint64_t seed, const void *data, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)data;
    uint64_t hash = hash_combine(seed, length);
    for (size_t i = 0; i < length; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u; /* FNV-1a step */
    return hash_mix(hash);
}

#endif
