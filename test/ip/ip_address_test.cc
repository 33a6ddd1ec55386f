/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and preambles: there and back, and bytes of anyone. */
#include "test/tcp/tcp_harness.h"

#include <random>

using namespace tcp_test;

namespace {

ip_name_t name_of(const char *ip, uint16_t port)
{
    ip_name_t name = {};
    if (inet_pton(AF_INET, ip, &name.v4.sin_addr) == 1)
        name.any.sa_family = AF_INET;
    else if (inet_pton(AF_INET6, ip, &name.v6.sin6_addr) == 1)
        name.any.sa_family = AF_INET6;
    ip_name_set_port(&name, port);
    return name;
}

std::string text_of(const ip_name_t &name)
{
    char text[IP_NAME_CAPACITY];
    return ip_name_text(&name, text);
}

} // namespace

TEST(IpAddress, ThereAndBack)
{
    std::string bytes = address_of({name_of("10.1.2.3", 4123), name_of("fd00::7", 65535), name_of("::1", 1)});
    EXPECT_LE(bytes.size(), (size_t)QUOIT_ADDRESS_CAPACITY);
    ip_address_t address;
    ASSERT_EQ(QUOIT_OK, ip_address_parse(bytes.data(), bytes.size(), &address)) << error_text();
    ASSERT_EQ(3, address.count);
    EXPECT_EQ("10.1.2.3:4123", text_of(address.names[0]));
    EXPECT_EQ("[fd00::7]:65535", text_of(address.names[1]));
    EXPECT_EQ("[::1]:1", text_of(address.names[2]));
    EXPECT_EQ(8192u, address.limits.eager_limit);
    EXPECT_EQ(1u << 20, address.limits.eager_pool);
    EXPECT_EQ(256u << 10, address.limits.segment_size);
    EXPECT_EQ(2u, address.limits.sockets);
}

TEST(IpAddress, TheLargestFits)
{
    ip_name_t name = name_of("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 65535);
    std::string bytes = address_of({name, name, name, name});
    EXPECT_LE(bytes.size(), (size_t)QUOIT_ADDRESS_CAPACITY);
    ip_address_t address = {};
    address.limits = {8192, 1 << 20, 256 << 10, 2};
    address.count = 4;
    for (auto &one : address.names) one = name;
    size_t length = bytes.size() - 1;
    std::string room(length, '\0');
    EXPECT_EQ(QUOIT_ERR_INVALID, ip_address_write(&address, room.data(), &length)) << "too little room";
}

TEST(IpAddress, EveryTruncationAndEveryExtensionIsRefused)
{
    std::string bytes = address_of({name_of("10.1.2.3", 4123), name_of("fd00::7", 4123)});
    ip_address_t address;
    for (size_t length = 0; length < bytes.size(); length++) {
        std::string part = bytes.substr(0, length); /* its own memory, so that reading further is seen */
        part.shrink_to_fit();
        EXPECT_EQ(QUOIT_ERR_PROTOCOL, ip_address_parse(part.data(), part.size(), &address)) << length;
    }
    EXPECT_EQ(QUOIT_ERR_PROTOCOL, ip_address_parse((bytes + "x").data(), bytes.size() + 1, &address));
}

TEST(IpAddress, FieldsThatCannotBeAreRefused)
{
    struct { size_t at; std::string value; } cases[] = {
        {0, std::string(1, 3)}, {0, std::string(1, 1)}, {0, std::string(1, 0)}, {1, std::string(1, 0)}, {1, std::string(1, 5)}, {1, std::string(1, (char)255)},
        {2, std::string(1, 0)}, {2, std::string(1, 17)}, {4, std::string(4, '\0')}, {4, std::string(4, (char)255)},
        {8, std::string(4, '\0')}, {8, std::string(4, (char)255)}, {12, std::string(4, '\0')}, {12, std::string(4, (char)255)},
        {16, std::string(1, 5)}, {16, std::string(1, 0x44)}, {17, std::string(2, '\0')}, {23, std::string(2, (char)255)}, {24, std::string(1, 0x08)}};
    std::string good = address_of({name_of("10.1.2.3", 4123)});
    for (auto &one : cases) {
        std::string bytes = good;
        bytes.replace(one.at, one.value.size(), one.value);
        ip_address_t address;
        EXPECT_EQ(QUOIT_ERR_PROTOCOL, ip_address_parse(bytes.data(), bytes.size(), &address)) << "byte " << one.at;
        EXPECT_NE(std::string(), error_text());
    }
}

TEST(IpAddress, RailsAndRatesComeBack)
{
    for (uint32_t mbps : {0u, 1u, 100u, 1000u, 2047u, 2048u, 10000u, 25000u, 400000u, 10000000u}) {
        ip_address_t address = {}, got;
        address.limits = {8192, 1 << 20, 256 << 10, 2};
        for (const char *ip : {"10.1.2.3", "fd00::7"}) {
            address.rail[address.count] = (uint8_t)(3 * address.count);
            address.mbps[address.count] = mbps;
            address.names[address.count++] = name_of(ip, 4123);
        }
        char bytes[QUOIT_ADDRESS_CAPACITY];
        size_t length = sizeof bytes;
        ASSERT_EQ(QUOIT_OK, ip_address_write(&address, bytes, &length));
        ASSERT_EQ(QUOIT_OK, ip_address_parse(bytes, length, &got)) << error_text();
        EXPECT_EQ(4, ip_address_rails(&got));
        EXPECT_EQ(3, got.rail[1]);
        EXPECT_NEAR(got.mbps[0], mbps, mbps / 1000.0);
    }
}

TEST(IpAddress, RandomBytesDoNoHarm)
{
    const uint64_t seed = 4711;
    std::mt19937_64 random(seed);
    std::string good = address_of({name_of("10.1.2.3", 4123), name_of("fd00::7", 4123)});
    for (int i = 0; i < 100000; i++) {
        std::string bytes = good;
        if (i % 2) {
            bytes.resize(random() % 120);
            for (auto &byte : bytes) byte = (char)random();
            if (!bytes.empty() && i % 4 == 1) bytes[0] = 2;
        } else {
            for (size_t n = 1 + random() % 3; n > 0; n--) bytes[random() % bytes.size()] = (char)random();
        }
        ip_address_t address;
        if (ip_address_parse(bytes.data(), bytes.size(), &address) != QUOIT_OK) continue;
        ASSERT_GE(address.count, 1) << "seed " << seed << " case " << i;
        ASSERT_LE(address.count, IP_MAX_ADDRESSES) << "seed " << seed << " case " << i;
        for (int k = 0; k < address.count; k++) ASSERT_NE(0, ip_name_port(&address.names[k])) << "seed " << seed << " case " << i;
    }
}

TEST(TcpPreamble, ThereAndBackAndHostileBytes)
{
    const uint64_t seed = 815;
    std::mt19937_64 random(seed);
    ip_preamble_t preamble = {}, got;
    preamble.attempt = 0x1122334455667788;
    preamble.limits = {8192, 1 << 20, 256 << 10, 1};
    preamble.pid = 4711;
    strcpy(preamble.host, "node7");
    uint8_t bytes[IP_PREAMBLE_SIZE], damaged[IP_PREAMBLE_SIZE];
    ip_preamble_write(&preamble, bytes);
    ASSERT_EQ(QUOIT_OK, ip_preamble_parse(bytes, &got)) << error_text();
    EXPECT_EQ(preamble.attempt, got.attempt);
    EXPECT_EQ(8192u, got.limits.eager_limit);
    EXPECT_EQ(4711u, got.pid);
    EXPECT_STREQ("node7", got.host);
    memset(bytes + 32, 0x1b, IP_HOST_CAPACITY); /* no end, and nothing a terminal should see */
    ASSERT_EQ(QUOIT_OK, ip_preamble_parse(bytes, &got));
    EXPECT_EQ(std::string(IP_HOST_CAPACITY - 1, '?'), got.host);
    for (int i = 0; i < 20000; i++) {
        memcpy(damaged, bytes, sizeof bytes);
        damaged[random() % 32] ^= (uint8_t)(1 + random() % 255);
        if (ip_preamble_parse(damaged, &got) == QUOIT_OK) {
            ASSERT_LE(got.limits.eager_limit, 1u << 20) << "seed " << seed << " case " << i;
            ASSERT_LE(got.limits.segment_size, 1u << 26) << "seed " << seed << " case " << i;
        }
    }
    for (size_t at : {0u, 3u, 4u, 6u}) {
        memcpy(damaged, bytes, sizeof bytes);
        damaged[at] ^= 1;
        EXPECT_EQ(QUOIT_ERR_PROTOCOL, ip_preamble_parse(damaged, &got)) << "byte " << at;
    }
}
