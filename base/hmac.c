/* SPDX-License-Identifier: Apache-2.0 */
/** SHA-256 after FIPS 180-4 and HMAC after RFC 2104. Small and plain: a handshake hashes some hundred bytes. */
#include "base/hmac.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

enum { BLOCK_SIZE = 64 };

typedef struct hasher {
    uint32_t state[8];
    uint8_t block[BLOCK_SIZE];
    uint64_t length; /* bytes so far */
} hasher_t;

/* First 32 bits of the fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2). */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, unsigned by) { return x >> by | x << (32 - by); }

static uint32_t load_big_endian(const uint8_t *b)
{
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

static void hash_block(uint32_t state[8], const uint8_t *block)
{
    uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3], e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 16; t++) w[t] = load_big_endian(block + 4 * t);
    for (int t = 16; t < 64; t++) {
        uint32_t low = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
        uint32_t high = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
        w[t] = high + w[t - 7] + low + w[t - 16];
    }
    for (int t = 0; t < 64; t++) {
        uint32_t t1 = h + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & f) ^ (~e & g)) + round_constants[t] + w[t];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d, state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

static void hasher_start(hasher_t *hasher)
{
    *hasher = (hasher_t){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

static void hasher_add(hasher_t *hasher, const void *data, size_t length)
{
    const uint8_t *bytes = data;
    while (length > 0) {
        size_t used = hasher->length % BLOCK_SIZE, piece = BLOCK_SIZE - used < length ? BLOCK_SIZE - used : length;
        memcpy(hasher->block + used, bytes, piece);
        hasher->length += piece;
        bytes += piece;
        length -= piece;
        if (hasher->length % BLOCK_SIZE == 0) hash_block(hasher->state, hasher->block);
    }
}

static void hasher_finish(hasher_t *hasher, uint8_t digest[SHA256_SIZE])
{
    static const uint8_t padding[BLOCK_SIZE] = {0x80};
    uint64_t bits = hasher->length * 8;
    uint8_t tail[8];
    for (int i = 0; i < 8; i++) tail[i] = (uint8_t)(bits >> (56 - 8 * i));
    size_t used = hasher->length % BLOCK_SIZE;
    hasher_add(hasher, padding, used < 56 ? 56 - used : 120 - used);
    hasher_add(hasher, tail, sizeof tail);
    for (int i = 0; i < SHA256_SIZE; i++) digest[i] = (uint8_t)(hasher->state[i / 4] >> (24 - 8 * (i % 4)));
}

void sha256(const void *data, size_t length, uint8_t digest[SHA256_SIZE])
{
    hasher_t hasher;
    hasher_start(&hasher);
    hasher_add(&hasher, data, length);
    hasher_finish(&hasher, digest);
}

static void hash_with_pad(const uint8_t key[BLOCK_SIZE], uint8_t pad, const void *data, size_t length, uint8_t digest[SHA256_SIZE])
{
    uint8_t padded[BLOCK_SIZE];
    hasher_t hasher;
    for (int i = 0; i < BLOCK_SIZE; i++) padded[i] = key[i] ^ pad;
    hasher_start(&hasher);
    hasher_add(&hasher, padded, sizeof padded);
    hasher_add(&hasher, data, length);
    hasher_finish(&hasher, digest);
    explicit_bzero(padded, sizeof padded);
    explicit_bzero(&hasher, sizeof hasher);
}

void hmac_sha256(const void *key, size_t key_length, const void *data, size_t length, uint8_t mac[SHA256_SIZE])
{
    uint8_t block[BLOCK_SIZE] = {0}, inner[SHA256_SIZE];
    if (key_length > BLOCK_SIZE) sha256(key, key_length, block);
    else if (key_length > 0) memcpy(block, key, key_length);
    hash_with_pad(block, 0x36, data, length, inner);
    hash_with_pad(block, 0x5c, inner, sizeof inner, mac);
    explicit_bzero(block, sizeof block);
}

bool bytes_equal_secret(const void *a, const void *b, size_t length)
{
    const volatile uint8_t *x = a, *y = b;
    uint8_t difference = 0;
    for (size_t i = 0; i < length; i++) difference |= (uint8_t)(x[i] ^ y[i]);
    return difference == 0;
}

quoit_status_t random_bytes(void *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t got = getrandom((uint8_t *)data + done, length - done, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "getrandom of %zu bytes", length);
        done += (size_t)got;
    }
    return QUOIT_OK;
}
