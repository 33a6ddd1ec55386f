/* SPDX-License-Identifier: Apache-2.0 */
/** Parsers of what peers send: a round trip, every field out of range, and random bytes. */
#include "shm_harness.h"

using namespace shm_test;

namespace {

shm_info_t good_info()
{
    shm_info_t info = {};
    info.process = {1, 2};
    info.limits = {8192, 1 << 20, 256 << 10};
    info.arena_size = 32 << 20;
    info.mailbox_offset = 1 << 20;
    info.mailbox_capacity = 128 << 10;
    info.slot = 3;
    info.pid = 99;
    info.descriptors = 3;
    return info;
}

quoit_status_t through(const shm_info_t &info, shm_info_t *parsed)
{
    uint8_t bytes[SHM_INFO_SIZE];
    shm_info_write(&info, bytes);
    return shm_info_parse(bytes, parsed);
}

TEST(ShmWords, RoundTrip)
{
    uint8_t bytes[SHM_WORDS_CAPACITY];
    char text[SHM_WORDS_TEXT + 1];
    quoit_status_t told;
    size_t length = shm_words_write(QUOIT_ERR_NO_MEMORY, "no memory\x1b[2J", bytes);
    ASSERT_EQ(shm_words_parse(bytes, length, &told, text), QUOIT_OK) << error_text();
    EXPECT_EQ(told, QUOIT_ERR_NO_MEMORY);
    EXPECT_EQ(std::string(text).substr(0, 9), "no memory");
    EXPECT_EQ(std::string(text).find('\x1b'), std::string::npos);
    for (size_t part = 0; part < length; part++) EXPECT_EQ(shm_words_parse(bytes, part, &told, text), QUOIT_ERR_PROTOCOL) << part;
    for (quoit_status_t other : {QUOIT_OK, QUOIT_ERR_NOT_FOUND, QUOIT_ERR_CLOSED, static_cast<quoit_status_t>(-1000)}) {
        length = shm_words_write(other, "", bytes);
        ASSERT_EQ(shm_words_parse(bytes, length, &told, text), QUOIT_OK) << error_text();
        EXPECT_EQ(told, QUOIT_ERR_PEER) << other;
        EXPECT_STREQ(text, "");
    }
    length = shm_words_write(QUOIT_ERR_SYSTEM, std::string(2000, 'x').c_str(), bytes);
    ASSERT_EQ(length, size_t{SHM_WORDS_CAPACITY});
    ASSERT_EQ(shm_words_parse(bytes, length, &told, text), QUOIT_OK) << error_text();
    EXPECT_EQ(told, QUOIT_ERR_SYSTEM);
    EXPECT_EQ(std::string(text), std::string(SHM_WORDS_TEXT, 'x'));
}

TEST(ShmInfo, RoundTrip)
{
    shm_info_t info = good_info(), parsed = {};
    ASSERT_EQ(through(info, &parsed), QUOIT_OK) << error_text();
    EXPECT_EQ(parsed.process.high, 1u);
    EXPECT_EQ(parsed.process.low, 2u);
    EXPECT_EQ(parsed.limits.segment, 256u << 10);
    EXPECT_EQ(parsed.arena_size, 32u << 20);
    EXPECT_EQ(parsed.mailbox_offset, 1u << 20);
    EXPECT_EQ(parsed.mailbox_capacity, 128u << 10);
    EXPECT_EQ(parsed.slot, 3u);
    EXPECT_EQ(parsed.pid, 99u);
    EXPECT_EQ(parsed.descriptors, 3u);
}

TEST(ShmInfo, EveryFieldIsChecked)
{
    using Spoil = std::function<void(shm_info_t &)>;
    const std::vector<std::pair<const char *, Spoil>> cases = {
        {"eager limit", [](shm_info_t &i) { i.limits.eager = 0; }},
        {"eager limit", [](shm_info_t &i) { i.limits.eager = SHM_EAGER_MAX + 1; }},
        {"eager pool", [](shm_info_t &i) { i.limits.pool = UINT32_MAX; }},
        {"segment size", [](shm_info_t &i) { i.limits.segment = 1; }},
        {"arena size", [](shm_info_t &i) { i.arena_size = 4096; }},
        {"arena size", [](shm_info_t &i) { i.arena_size = UINT64_MAX; }},
        {"mailbox capacity", [](shm_info_t &i) { i.mailbox_capacity = 0; }},
        {"mailbox capacity", [](shm_info_t &i) { i.mailbox_capacity = UINT64_C(1) << 63; }},
        {"power of two", [](shm_info_t &i) { i.mailbox_capacity = 100000; }},
        {"fit", [](shm_info_t &i) { i.mailbox_capacity = 16 << 20; i.arena_size = 16 << 20; }},
        {"aligned", [](shm_info_t &i) { i.mailbox_offset += 8; }},
        {"mailbox offset", [](shm_info_t &i) { i.mailbox_offset = 0; }},
        {"mailbox offset", [](shm_info_t &i) { i.mailbox_offset = i.arena_size - i.mailbox_capacity; }},
        {"mailbox offset", [](shm_info_t &i) { i.mailbox_offset = UINT64_MAX - 63; }},
        {"slot", [](shm_info_t &i) { i.slot = SHM_MAX_PEERS; }},
        {"descriptors", [](shm_info_t &i) { i.descriptors = 1; }},
        {"descriptors", [](shm_info_t &i) { i.descriptors = 4; }},
    };
    for (size_t i = 0; i < cases.size(); i++) {
        shm_info_t info = good_info(), parsed = {};
        cases[i].second(info);
        EXPECT_EQ(through(info, &parsed), QUOIT_ERR_PROTOCOL) << "case " << i << " " << cases[i].first;
        EXPECT_NE(std::string(error_text()).find(cases[i].first), std::string::npos) << "case " << i << ": " << error_text();
        EXPECT_EQ(parsed.arena_size, 0u) << "outputs are written only on success";
    }
}

TEST(ShmInfo, HeadsAreChecked)
{
    for (size_t at = 0; at < 8; at++) {
        uint8_t info[SHM_INFO_SIZE], address[SHM_ADDRESS_SIZE], handle[QUOIT_HANDLE_CAPACITY];
        shm_info_t info_in = good_info(), info_out;
        shm_address_t address_in = {{1, 2}, {8192, 1 << 20, 256 << 10}}, address_out;
        uint64_t offset, length;
        shm_info_write(&info_in, info);
        shm_address_write(&address_in, address);
        shm_handle_write({1, 2}, 4096, 64, handle);
        ASSERT_EQ(shm_address_parse(address, sizeof address, &address_out), QUOIT_OK) << error_text();
        ASSERT_EQ(shm_handle_parse(handle, {1, 2}, 1 << 20, &offset, &length), QUOIT_OK) << error_text();
        info[at] ^= 1;
        address[at] ^= 1;
        handle[at] ^= 1;
        EXPECT_EQ(shm_info_parse(info, &info_out), QUOIT_ERR_PROTOCOL) << at;
        EXPECT_EQ(shm_address_parse(address, sizeof address, &address_out), QUOIT_ERR_PROTOCOL) << at;
        EXPECT_EQ(shm_handle_parse(handle, {1, 2}, 1 << 20, &offset, &length), QUOIT_ERR_INVALID) << at;
    }
    shm_address_t address_out;
    EXPECT_EQ(shm_address_parse("", 0, &address_out), QUOIT_ERR_PROTOCOL);
    EXPECT_EQ(shm_address_parse(nullptr, SHM_ADDRESS_SIZE, &address_out), QUOIT_ERR_PROTOCOL);
}

TEST(ShmInfo, HandlesAreBounded)
{
    struct Case {
        uint64_t offset, length;
        bool good;
    };
    const uint64_t size = 1 << 20;
    for (Case c : {Case{4096, 0, true}, Case{4096, size - 4096, true}, Case{size, 0, true}, Case{4096, size - 4095, false}, Case{0, 64, false},
                   Case{size + 1, 0, false}, Case{UINT64_MAX, 2, false}, Case{size - 1, UINT64_MAX, false}}) {
        uint8_t handle[QUOIT_HANDLE_CAPACITY];
        uint64_t offset, length;
        shm_handle_write({1, 2}, c.offset, c.length, handle);
        EXPECT_EQ(shm_handle_parse(handle, {1, 2}, size, &offset, &length), c.good ? QUOIT_OK : QUOIT_ERR_INVALID) << c.offset << " + " << c.length;
        if (c.good) {
            EXPECT_EQ(offset, c.offset);
            EXPECT_EQ(length, c.length);
        }
        EXPECT_EQ(shm_handle_parse(handle, {1, 3}, size, &offset, &length), QUOIT_ERR_INVALID) << "another process";
    }
}

TEST(ShmInfo, RandomBytes)
{
    std::mt19937_64 random(4711);
    int sound = 0;
    for (int round = 0; round < 200000; round++) {
        uint8_t bytes[SHM_INFO_SIZE];
        shm_info_t info = good_info();
        shm_info_write(&info, bytes);
        for (uint64_t flips = 1 + random() % 8; flips > 0; flips--) bytes[random() % sizeof bytes] = static_cast<uint8_t>(random());
        if (shm_info_parse(bytes, &info)) continue;
        sound++;
        ASSERT_LE(info.mailbox_offset + 128 + info.mailbox_capacity, info.arena_size) << "seed 4711, round " << round;
        ASSERT_EQ(info.mailbox_capacity & (info.mailbox_capacity - 1), 0u);
        ASSERT_LT(info.slot, static_cast<uint32_t>(SHM_MAX_PEERS));
    }
    EXPECT_GT(sound, 1000) << "nothing got through: the test says nothing";
}

} // namespace
