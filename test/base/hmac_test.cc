// SPDX-License-Identifier: Apache-2.0
// SHA-256 against FIPS 180-4's examples, HMAC against RFC 4231, both against digests made by Python's hashlib.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

extern "C" {
#include "base/hmac.h"
}

namespace {

std::string hex(const uint8_t *bytes, size_t length)
{
    std::string text;
    char two[3];
    for (size_t i = 0; i < length; i++) {
        snprintf(two, sizeof two, "%02x", bytes[i]);
        text += two;
    }
    return text;
}

std::string digest_of(const std::string &data)
{
    uint8_t digest[SHA256_SIZE];
    sha256(data.data(), data.size(), digest);
    return hex(digest, sizeof digest);
}

std::string mac_of(const std::string &key, const std::string &data)
{
    uint8_t mac[SHA256_SIZE];
    hmac_sha256(key.data(), key.size(), data.data(), data.size(), mac);
    return hex(mac, sizeof mac);
}

// The same as generate() of make_hmac_vectors.py.
std::string generate(uint64_t seed, size_t length)
{
    std::string out;
    for (size_t i = 0; i < length; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        out.push_back((char)(seed >> 56));
    }
    return out;
}

TEST(Sha256, Fips180Examples)
{
    EXPECT_EQ(digest_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    EXPECT_EQ(digest_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
              "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    EXPECT_EQ(digest_of(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Hmac, Rfc4231)
{
    EXPECT_EQ(mac_of(std::string(20, '\x0b'), "Hi There"), "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    EXPECT_EQ(mac_of("Jefe", "what do ya want for nothing?"), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    EXPECT_EQ(mac_of(std::string(20, '\xaa'), std::string(50, '\xdd')),
              "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    std::string counting;
    for (int i = 1; i <= 25; i++) counting.push_back((char)i);
    EXPECT_EQ(mac_of(counting, std::string(50, '\xcd')), "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    EXPECT_EQ(mac_of(std::string(20, '\x0c'), "Test With Truncation").substr(0, 32), "a3b6167473100ee06e0c796c2955552b");
    EXPECT_EQ(mac_of(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
              "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    EXPECT_EQ(mac_of(std::string(131, '\xaa'),
                     "This is a test using a larger than block-size key and a larger than block-size data. The key needs to be hashed "
                     "before being used by the HMAC algorithm."),
              "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(Hmac, AgreesWithPython)
{
    struct Vector {
        uint64_t seed;
        size_t key_length, data_length;
        const char *digest, *mac;
    };
    static const Vector vectors[] = {
#include "hmac_vectors.inc"
    };
    ASSERT_EQ(std::size(vectors), 200u);
    for (const Vector &v : vectors) {
        std::string key = generate(2 * v.seed, v.key_length), data = generate(2 * v.seed + 1, v.data_length);
        EXPECT_EQ(digest_of(data), v.digest) << "seed " << v.seed;
        EXPECT_EQ(mac_of(key, data), v.mac) << "seed " << v.seed << ", key of " << v.key_length;
    }
}

TEST(BytesEqualSecret, SeesEachBit)
{
    uint8_t a[32], b[32];
    for (int i = 0; i < 32; i++) a[i] = b[i] = (uint8_t)(7 * i);
    EXPECT_TRUE(bytes_equal_secret(a, b, sizeof a));
    EXPECT_TRUE(bytes_equal_secret(a, b, 0));
    for (int bit = 0; bit < 256; bit++) {
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
        EXPECT_FALSE(bytes_equal_secret(a, b, sizeof a)) << "bit " << bit;
        b[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
}

TEST(RandomBytes, AreWholeAndDiffer)
{
    std::set<std::string> seen;
    for (int i = 0; i < 100; i++) {
        std::string bytes(16, '\0');
        ASSERT_EQ(random_bytes(bytes.data(), bytes.size()), QUOIT_OK);
        seen.insert(bytes);
    }
    EXPECT_EQ(seen.size(), 100u);
    std::vector<uint8_t> large(1000, 0);
    ASSERT_EQ(random_bytes(large.data(), large.size()), QUOIT_OK);
    int tail = 0;
    for (size_t i = 936; i < 1000; i++) tail |= large[i]; // 64 zero bytes in a row have probability 2^-512
    EXPECT_NE(tail, 0);
    EXPECT_EQ(random_bytes(nullptr, 0), QUOIT_OK);
}

} // namespace
