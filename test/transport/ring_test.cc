/* SPDX-License-Identifier: Apache-2.0 */
/* The ring: a stream between two threads, edges of the capacity, a peer that lies. */
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include <sched.h>

#include "ring_access.h"

namespace {

struct Memory {
    explicit Memory(size_t capacity) : words(static_cast<unsigned char *>(aligned_alloc(64, ring_access_bytes(capacity))))
    {
        memset(words, 0, ring_access_bytes(capacity));
    }
    ~Memory() { free(words); }
    unsigned char *words;
};

TEST(Ring, CarriesAStreamBetweenThreads)
{
    for (size_t capacity : {(size_t)64, (size_t)4096, (size_t)131072}) {
        Memory memory(capacity);
        ring_access_t *writer = ring_access_create(memory.words, nullptr, capacity), *reader = ring_access_create(nullptr, memory.words, capacity);
        const size_t total = capacity == 64 ? 200000 : 4000000;
        std::thread thread([&] {
            std::mt19937_64 random(1);
            std::string bytes(10000, 0);
            for (size_t at = 0; at < total;) {
                size_t length = std::min(1 + (size_t)(random() % bytes.size()), total - at), written;
                for (size_t i = 0; i < length; i++) bytes[i] = (char)((at + i) * 7 >> 3);
                struct iovec iov[2] = {{bytes.data(), length / 3}, {bytes.data() + length / 3, length - length / 3}};
                if (ring_access_write(writer, iov, 2, &written) == QUOIT_OK) at += written;
                else sched_yield();
            }
        });
        std::mt19937_64 random(2);
        std::string bytes(10000, 0);
        size_t at = 0, wrong = 0;
        for (; at < total;) {
            size_t got, first = (size_t)(random() % 5000);
            struct iovec iov[2] = {{bytes.data(), first}, {bytes.data() + first, bytes.size() - first}};
            if (ring_access_read(reader, iov, 2, &got) != QUOIT_OK) {
                sched_yield();
                continue;
            }
            for (size_t i = 0; i < got; i++) wrong += bytes[i] != (char)((at + i) * 7 >> 3);
            at += got;
        }
        thread.join();
        EXPECT_EQ(wrong, 0u) << "capacity " << capacity;
        ring_access_destroy(writer);
        ring_access_destroy(reader);
    }
}

TEST(Ring, FullAndEmptyAreAgain)
{
    Memory memory(64);
    ring_access_t *ring = ring_access_create(memory.words, memory.words, 64);
    std::string bytes(100, 'x');
    struct iovec iov = {bytes.data(), bytes.size()};
    size_t count = 0;
    EXPECT_FALSE(ring_access_readable(ring));
    EXPECT_TRUE(ring_access_writable(ring));
    EXPECT_EQ(ring_access_read(ring, &iov, 1, &count), QUOIT_ERR_AGAIN);
    EXPECT_EQ(ring_access_write(ring, &iov, 1, &count), QUOIT_OK);
    EXPECT_EQ(count, 64u);
    EXPECT_FALSE(ring_access_writable(ring));
    EXPECT_TRUE(ring_access_readable(ring));
    EXPECT_EQ(ring_access_write(ring, &iov, 1, &count), QUOIT_ERR_AGAIN);
    iov.iov_len = 1;
    EXPECT_EQ(ring_access_read(ring, &iov, 1, &count), QUOIT_OK);
    EXPECT_TRUE(ring_access_writable(ring));
    ring_access_destroy(ring);
}

/* What the reader says of its position costs a line of its memory: it is read when the ring is full as far as known, and not before. */
TEST(Ring, TheReadersPositionIsReadWhenTheRoomKnownOfIsUsedUp)
{
    Memory memory(64);
    ring_access_t *ring = ring_access_create(memory.words, memory.words, 64);
    std::string bytes(40, 'x');
    struct iovec iov = {bytes.data(), bytes.size()};
    size_t count = 0;
    ASSERT_EQ(ring_access_write(ring, &iov, 1, &count), QUOIT_OK);
    ring_access_lie(ring, 1000, 40);
    iov.iov_len = 24;
    EXPECT_EQ(ring_access_write(ring, &iov, 1, &count), QUOIT_OK) << "it looked, though 24 bytes were known to be free: " << error_text();
    EXPECT_EQ(ring_access_write(ring, &iov, 1, &count), QUOIT_ERR_PROTOCOL);
    ring_access_lie(ring, 64, 64);
    EXPECT_EQ(ring_access_write(ring, &iov, 1, &count), QUOIT_OK);
    EXPECT_EQ(count, 24u);
    ring_access_destroy(ring);
}

TEST(Ring, PositionsThatCannotBeAreRefused)
{
    for (uint64_t lie : {(uint64_t)1, (uint64_t)65, (uint64_t)1 << 40, UINT64_MAX - 100}) {
        Memory memory(64);
        ring_access_t *ring = ring_access_create(memory.words, memory.words, 64);
        std::string bytes(100, 'x');
        struct iovec iov = {bytes.data(), bytes.size()};
        size_t count;
        ring_access_lie(ring, lie, lie);
        EXPECT_EQ(ring_access_write(ring, &iov, 1, &count), QUOIT_ERR_PROTOCOL) << lie;
        EXPECT_NE(std::string(error_text()).find("ring"), std::string::npos) << error_text();
        if (lie > 64) {
            EXPECT_EQ(ring_access_read(ring, &iov, 1, &count), QUOIT_ERR_PROTOCOL) << lie;
        }
        ring_access_destroy(ring);
    }
}

} // namespace
