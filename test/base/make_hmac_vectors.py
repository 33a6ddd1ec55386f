# SPDX-License-Identifier: Apache-2.0
"""Writes hmac_vectors.inc: digests of pseudo-random inputs by Python's hashlib, an implementation independent of ours.

The inputs come from a small generator that hmac_test.cc repeats, so only lengths and digests are stored.
Run: python3 make_hmac_vectors.py > hmac_vectors.inc
"""

import hashlib
import hmac
import random

MASK = (1 << 64) - 1


def generate(seed, length):
    """Bytes of a 64-bit linear congruential generator (Knuth's MMIX constants), top byte of each state."""
    out = bytearray()
    for _ in range(length):
        seed = (seed * 6364136223846793005 + 1442695040888963407) & MASK
        out.append(seed >> 56)
    return bytes(out)


def main():
    lengths = random.Random(20240601)
    print("// SPDX-License-Identifier: Apache-2.0")
    print("// Written by make_hmac_vectors.py. {seed, key length, data length, SHA-256 of data, HMAC of data under key}")
    for seed in range(200):
        key_length, data_length = lengths.randrange(0, 150), lengths.randrange(0, 400)
        key, data = generate(2 * seed, key_length), generate(2 * seed + 1, data_length)
        digest = hashlib.sha256(data).hexdigest()
        mac = hmac.new(key, data, hashlib.sha256).hexdigest()
        print(f'{{{seed}, {key_length}, {data_length}, "{digest}", "{mac}"}},')


main()
