/* SPDX-License-Identifier: Apache-2.0 */
/** Sleeping for real: thousands of rounds in which each side sleeps until the other wakes it. A wake-up that is lost ends in the limit. */
#include "seccomp.h"
#include "shm_harness.h"

#include <sys/syscall.h>
#include <thread>

using namespace shm_test;

namespace {

/* Sleep as an engine does: drain the bell, arm, poll bell and descriptor. False when nothing woke it. */
bool sleep_once(Engine &engine, int limit_ms)
{
    uint64_t count;
    while (read(engine.doorbell, &count, sizeof count) > 0) continue;
    if (engine.ops.arm(engine.transport) != QUOIT_OK) return true;
    pollfd ready[2] = {{engine.doorbell, POLLIN, 0}, {engine.ops.descriptor(engine.transport), POLLIN, 0}};
    int woken = poll(ready, 2, limit_ms);
    engine.ops.disarm(engine.transport);
    return woken > 0;
}

/* Work and sleep in turns until it holds. */
bool sleep_until(Engine &engine, const std::function<bool()> &done)
{
    while (true) {
        engine.pump();
        if (done()) return true;
        if (!sleep_once(engine, 5000)) return false;
    }
}

/* Rounds of notices. */
void ping_pong(Engine &self, quoit_endpoint_t *peer, bool first, int rounds, unsigned seed)
{
    std::mt19937 random(seed);
    for (int round = 0; round < rounds; round++) {
        for (uint64_t end = clock_now() + random() % 40000; clock_now() < end;) continue;
        for (bool send : {first, !first}) {
            if (send) {
                ASSERT_EQ(self.ops.notify(peer, &round, sizeof round), QUOIT_OK) << error_text();
            } else {
                ASSERT_TRUE(sleep_until(self, [&] { return self.find(QUOIT_EVENT_NOTICE) != nullptr; })) << "lost wake-up, round " << round << " seed " << seed;
                self.events.clear();
            }
        }
    }
}

void run_ping_pong(int rounds)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    std::thread other([&] { ping_pong(pair.b, pair.ba, false, rounds, 2); });
    ping_pong(pair.a, pair.ab, true, rounds, 1);
    other.join();
}

TEST(ShmSleep, Notices) { run_ping_pong(2000); }

/* From its first mark until its reader sleeps, a peer leaves the mark out. */
TEST(ShmSleep, ARingWithTrafficIsFollowedWithoutMarks)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    while (pair.b.ops.arm(pair.b.transport) != QUOIT_OK) pair.b.pump(); /* nothing is followed */
    pair.b.ops.disarm(pair.b.transport);
    pair.b.events.clear();
    shm_header_t *header = header_of(pair.b.ops, pair.b.transport);
    uint8_t *mark = header->mail; /* of the only peer */
    auto come = [&](int number) {
        EXPECT_EQ(pair.a.ops.notify(pair.ab, &number, sizeof number), QUOIT_OK);
        uint8_t left = __atomic_load_n(mark, __ATOMIC_ACQUIRE);
        pair.b.pump();
        EXPECT_NE(pair.b.find(QUOIT_EVENT_NOTICE), nullptr) << number;
        pair.b.events.clear();
        return left;
    };
    EXPECT_EQ(come(0), SHM_MAIL_MARKED);
    for (int number = 1; number < 200; number++) {
        ASSERT_EQ(*mark, SHM_MAIL_FOLLOWED);
        ASSERT_EQ(come(number), SHM_MAIL_FOLLOWED) << "a mark was written, number " << number;
    }
    EXPECT_EQ(pair.b.ops.arm(pair.b.transport), QUOIT_OK);
    EXPECT_EQ(*mark, SHM_MAIL_NONE);
    int last = 200;
    EXPECT_EQ(pair.a.ops.notify(pair.ab, &last, sizeof last), QUOIT_OK);
    EXPECT_EQ(*mark, SHM_MAIL_MARKED);
    pollfd ready = {pair.b.ops.descriptor(pair.b.transport), POLLIN, 0}, bell = {pair.b.doorbell, POLLIN, 0};
    EXPECT_GT(poll(&ready, 1, 0) + poll(&bell, 1, 0), 0) << "it sleeps, and nobody rang";
    pair.b.ops.disarm(pair.b.transport);
}

/* What was written while the ring was followed, and so not marked, keeps its reader awake. */
TEST(ShmSleep, WhatHasNoMarkIsSeenBeforeTheSleep)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    for (int number = 0; number < 3; number++) {
        EXPECT_EQ(pair.a.ops.notify(pair.ab, &number, sizeof number), QUOIT_OK);
        if (number == 2) {
            EXPECT_EQ(*header_of(pair.b.ops, pair.b.transport)->mail, SHM_MAIL_FOLLOWED);
            EXPECT_EQ(pair.b.ops.arm(pair.b.transport), QUOIT_ERR_AGAIN);
        }
        pair.b.pump();
        EXPECT_NE(pair.b.find(QUOIT_EVENT_NOTICE), nullptr) << number;
        pair.b.events.clear();
    }
}

/* Two loans and a mailbox with room: whoever sends sleeps because no loan has come back, and nothing but the reader's bell wakes it. */
TEST(ShmSleep, ALenderIsWokenWhenALoanComesBack)
{
    const size_t size = 40 * 32768;
    const uint64_t rounds = 40;
    std::string sent(size, 's'), got(size, 'g');
    quoit_transfer_t send = {}, recv = {}; /* they outlive the pair, also when a round fails */
    settings()["MESSAGE_POOL"] = "64K";
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    settings().erase("MESSAGE_POOL");
    std::thread other([&] {
        std::mt19937 random(4);
        for (uint64_t round = 0; round < rounds; round++) {
            recv = {};
            ASSERT_EQ(pair.b.ops.recv(pair.ba, {1, round}, got.data(), size, &recv), QUOIT_OK);
            ASSERT_TRUE(sleep_until(pair.b, [&] { /* a reader that is often late */
                if (random() % 2) usleep((useconds_t)(random() % 60));
                return recv.status != QUOIT_IN_PROGRESS;
            })) << "lost wake-up of the reader, round " << round;
            ASSERT_EQ(recv.status, QUOIT_OK);
        }
    });
    bool ended = true;
    for (uint64_t round = 0; round < rounds && ended; round++) {
        send = {};
        EXPECT_EQ(pair.a.ops.send(pair.ab, {1, round}, sent.data(), size, &send), QUOIT_OK);
        ended = sleep_until(pair.a, [&] { return send.status != QUOIT_IN_PROGRESS; });
        EXPECT_TRUE(ended) << "lost wake-up of the lender, round " << round;
    }
    other.join();
    EXPECT_EQ(send.status, QUOIT_OK);
    EXPECT_TRUE(sent == got);
}

/* What is published in attached memory, with ring() after the store. */
TEST(ShmSleep, SharedMemoryAndRing)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    auto run = [](Engine &self, quoit_endpoint_t *endpoint, bool first, unsigned seed) {
        std::mt19937 random(seed);
        void *own, *other;
        size_t length;
        ASSERT_EQ(self.ops.share_root(self.transport, &own), QUOIT_OK);
        ASSERT_EQ(self.ops.attach(endpoint, nullptr, &other, &length), QUOIT_OK);
        for (uint64_t round = 1; round <= 2000; round++) {
            for (uint64_t end = clock_now() + random() % 30000; clock_now() < end;) continue;
            auto publish = [&] {
                __atomic_store_n(static_cast<uint64_t *>(own), round, __ATOMIC_RELEASE);
                self.ops.ring(endpoint);
            };
            auto there = [&] { return __atomic_load_n(static_cast<uint64_t *>(other), __ATOMIC_ACQUIRE) >= round; };
            if (first) publish();
            while (!there()) {
                uint64_t count;
                self.pump();
                while (read(self.doorbell, &count, sizeof count) > 0) continue;
                if (self.ops.arm(self.transport) != QUOIT_OK) continue;
                pollfd ready[2] = {{self.doorbell, POLLIN, 0}, {self.ops.descriptor(self.transport), POLLIN, 0}};
                int woken = there() ? 1 : poll(ready, 2, 5000);
                self.ops.disarm(self.transport);
                ASSERT_GT(woken, 0) << "lost wake-up, round " << round << " seed " << seed;
            }
            if (!first) publish();
        }
    };
    std::thread other([&] { run(pair.b, pair.ba, false, 4); });
    run(pair.a, pair.ab, true, 3);
    other.join();
}

/* A sender that sleeps because the ring is full is woken by its reader. */
TEST(ShmSleep, FullRing)
{
    settings()["MAILBOX_SIZE"] = "4K";
    Pair pair;
    settings().erase("MAILBOX_SIZE");
    ASSERT_NO_FATAL_FAILURE(pair.join());
    const size_t length = 4 << 20;
    std::string sent(length, 's'), got(length, '\0');
    std::thread reader([&] {
        quoit_transfer_t in = {};
        ASSERT_EQ(pair.b.ops.recv(pair.ba, {1, 1}, got.data(), length, &in), QUOIT_OK);
        ASSERT_TRUE(sleep_until(pair.b, [&] { return in.status != QUOIT_IN_PROGRESS; })) << "the reader was not woken";
        EXPECT_EQ(in.status, QUOIT_OK);
    });
    quoit_transfer_t out = {};
    EXPECT_EQ(pair.a.ops.send(pair.ab, {1, 1}, sent.data(), length, &out), QUOIT_OK);
    EXPECT_TRUE(sleep_until(pair.a, [&] { return out.status != QUOIT_IN_PROGRESS; })) << "the sender was not woken";
    reader.join();
    EXPECT_EQ(out.status, QUOIT_OK);
    EXPECT_TRUE(sent == got);
}

TEST(ShmSleep, ConnectionsAreMadeFromSleep)
{
    Engine a, b;
    a.trust();
    b.trust();
    quoit_endpoint_t *ab, *ba;
    std::thread other([&] {
        EXPECT_TRUE(wait_until([&] { return is_asleep(a.ops, a.transport); }));
        ASSERT_EQ(b.connect(a.id, a.address, &ba), QUOIT_OK);
        ASSERT_TRUE(sleep_until(b, [&] { return b.ops.endpoint_status(ba) != QUOIT_IN_PROGRESS; }));
        EXPECT_EQ(b.ops.endpoint_status(ba), QUOIT_OK) << error_text();
        b.ops.notify(ba, "x", 1);
    });
    ASSERT_EQ(a.connect(b.id, b.address, &ab), QUOIT_OK);
    ASSERT_TRUE(sleep_until(a, [&] { return a.find(QUOIT_EVENT_NOTICE) != nullptr; }));
    other.join();
}

TEST(ShmSleep, DeadlineWakes)
{
    Engine a, b;
    a.trust();
    quoit_endpoint_t *ab;
    ASSERT_EQ(a.connect(b.id, b.address, &ab, "rank 1", 60), QUOIT_OK);
    ASSERT_TRUE(sleep_until(a, [&] { return a.ops.endpoint_status(ab) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(a.ops.endpoint_status(ab), QUOIT_ERR_TIMEOUT) << error_text();
}

/* An idle engine does not wake by itself. */
TEST(ShmSleep, IdleStaysAsleep)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    pair.b.ops.disconnect(pair.ba);
    ASSERT_TRUE(both_until(pair.a, pair.b, [&] { return pair.a.find(QUOIT_EVENT_CLOSED); }));
    for (int i = 0; i < 50; i++) pair.a.pump();
    int awake = 0;
    for (int i = 0; i < 5; i++) {
        awake += sleep_once(pair.a, 20);
        pair.a.pump();
    }
    EXPECT_LE(awake, 2) << "something keeps the descriptor readable";
}

/* The same protocol where membarrier is forbidden: both sides fence. */
TEST(ShmSleep, WithoutMembarrier)
{
    Child child([] {
        if (deny_system_call(SYS_membarrier, EPERM)) return 70;
        run_ping_pong(1000);
        return ::testing::Test::HasFailure() ? 1 : 0;
    });
    int result = child.wait(60000);
    if (result == 70) GTEST_SKIP() << "seccomp filters are not allowed here";
    EXPECT_EQ(result, 0);
}

} // namespace
