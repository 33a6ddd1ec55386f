/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes to send and to look for. Tests are compiled without optimisation, and for ThreadSanitizer each access of theirs is a call: so eight
 * bytes at a time, through plain pointers, and whole stretches by memcmp. */
#ifndef QUOIT_TEST_BYTES_H
#define QUOIT_TEST_BYTES_H

#include <cstdint>
#include <cstring>
#include <string>

namespace test_bytes {

/** Write `length` bytes that tell where they are and of which `seed`. */
inline void fill(void *to, size_t length, uint64_t seed)
{
    char *at = static_cast<char *>(to), *whole = at + length / 8 * 8;
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (;; at += 8) {
        state = (state ^ (state >> 29)) * 6364136223846793005u + 1442695040888963407u;
        if (at == whole) break;
        __builtin_memcpy(at, &state, 8);
    }
    memcpy(at, &state, length % 8);
}

inline std::string pattern(size_t length, uint64_t seed)
{
    std::string bytes(length, '\0');
    fill(bytes.data(), length, seed);
    return bytes;
}

/** Whether all of `length` bytes are `byte`. */
inline bool all_are(const void *from, size_t length, unsigned char byte)
{
    const unsigned char *at = static_cast<const unsigned char *>(from);
    return length == 0 || (*at == byte && memcmp(at, at + 1, length - 1) == 0);
}

} // namespace test_bytes

#endif
