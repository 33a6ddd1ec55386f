/* SPDX-License-Identifier: Apache-2.0 */
/** Loans: the pool by itself (who may have how many, what a lying borrower can do), and messages through it between two engines. */
#include "shm_harness.h"

#include "test/support/bytes.h"

#include <set>

extern "C" {
#include "transport/shm/shm_loans.h"
}

using namespace shm_test;
using test_bytes::pattern;

namespace {

/* ---------------------------------------------------------------- the pool */

class Pool : public testing::Test {
  protected:
    void SetUp() override { ASSERT_EQ(shm_arena_create(32 << 20, &arena), QUOIT_OK) << error_text(); }
    void TearDown() override
    {
        shm_loans_close(&loans);
        shm_arena_destroy(arena);
    }
    void make(unsigned count) { loans.wanted = size_t{count} * SHM_LOAN_SIZE; }
    loan_t lend(shm_debt_t &debt, bool unasked = false, unsigned peers = 1)
    {
        return shm_loans_lend(&loans, arena, &debt, peers, "data", 4, unasked, &place);
    }
    void give_back(uint64_t at) { shm_loans_give_back(shm_arena_base(arena), at); }

    shm_arena_t *arena = nullptr;
    shm_loans_t loans = {};
    shm_debt_t first = {}, second = {};
    uint64_t place = 0;
};

TEST_F(Pool, WithoutMemoryThereIsNone)
{
    EXPECT_EQ(lend(first), LOAN_NONE);
    loans.wanted = SHM_LOAN_SIZE; /* one piece is no pool */
    EXPECT_EQ(lend(first), LOAN_NONE);
    loans.wanted = size_t{1} << 30;
    EXPECT_EQ(lend(first), LOAN_NONE) << "more than the arena has";
    EXPECT_EQ(loans.wanted, 0u) << "it is not asked for again";
}

TEST_F(Pool, TheFirstLoanMakesIt)
{
    make(8);
    size_t before = shm_arena_used(arena);
    EXPECT_EQ(lend(first), LOAN_MADE);
    EXPECT_GT(shm_arena_used(arena), before + 8 * SHM_LOAN_SIZE);
    EXPECT_EQ(memcmp(shm_arena_base(arena) + place, "data", 4), 0);
    EXPECT_EQ(shm_loans_borrow(shm_arena_base(arena), shm_arena_size(arena), place, 4), shm_arena_base(arena) + place);
}

/* Memory that was just read is not the next to be written. */
TEST_F(Pool, LoansTakeTurns)
{
    make(8);
    std::set<uint64_t> places;
    for (int i = 0; i < 8; i++) {
        ASSERT_EQ(lend(first), LOAN_MADE);
        give_back(place);
        EXPECT_TRUE(places.insert(place).second) << "place " << place << " again in turn " << i;
    }
    ASSERT_EQ(lend(first), LOAN_MADE);
    EXPECT_EQ(places.count(place), 1u);
}

TEST_F(Pool, APeerHasItsShareAndNoMore)
{
    make(16);
    std::vector<uint64_t> places;
    for (int i = 0; i < SHM_LOANS_OF_PEER; i++) {
        ASSERT_EQ(lend(first), LOAN_MADE) << i;
        places.push_back(place);
    }
    EXPECT_EQ(lend(first), LOAN_LATER);
    EXPECT_EQ(shm_loans_lend(&loans, arena, &first, 1, nullptr, 0, false, &place), LOAN_LATER);
    EXPECT_EQ(lend(second), LOAN_MADE) << "what one peer has is not in the other's way";
    give_back(places[3]);
    EXPECT_EQ(shm_loans_lend(&loans, arena, &first, 1, nullptr, 0, false, &place), LOAN_MADE) << "asked for without data: nothing is lent";
    EXPECT_EQ(first.granted, unsigned{SHM_LOANS_OF_PEER} - 1);
    EXPECT_EQ(lend(first), LOAN_MADE);
    EXPECT_EQ(lend(first, false, 8), LOAN_LATER) << "2 of 16 for each of 8 peers";
    shm_debt_t third = {};
    EXPECT_EQ(lend(third, false, 8), LOAN_MADE);
    EXPECT_EQ(lend(third, false, 8), LOAN_MADE);
    EXPECT_EQ(lend(third, false, 8), LOAN_LATER);
}

/* Messages that nobody has asked for may lie for ever: then others go on, and those behind them by the pipe. */
TEST_F(Pool, WhatNobodyAskedForLeavesRoom)
{
    make(8);
    shm_debt_t peers[6] = {};
    int made = 0;
    for (auto &peer : peers)
        for (int i = 0; i < 8; i++) made += lend(peer, true) == LOAN_MADE;
    EXPECT_EQ(made, 4) << "half of the pool";
    EXPECT_EQ(lend(peers[0], true), LOAN_NONE) << "never LATER: it may be for ever";
    EXPECT_EQ(lend(peers[0]), LOAN_MADE) << "what was granted is not held up by it";
    for (auto &peer : peers) (void)lend(peer), (void)lend(peer);
    EXPECT_EQ(lend(second), LOAN_NONE) << "all are out, and none of them to this peer: the pipe";
    EXPECT_EQ(lend(peers[0]), LOAN_LATER);
}

TEST_F(Pool, APeerThatIsGoneLeavesThemAll)
{
    make(4);
    ASSERT_EQ(lend(first, true), LOAN_MADE);
    while (lend(first) == LOAN_MADE) {}
    EXPECT_EQ(lend(second), LOAN_NONE);
    shm_loans_forget(&loans, &first);
    EXPECT_EQ(first.granted + first.unasked + loans.unasked, 0u);
    EXPECT_EQ(lend(second), LOAN_MADE);
    EXPECT_EQ(lend(second, true), LOAN_MADE);
}

/* A borrower that gives back what it does not have frees nothing that is not its own memory's matter, and counts stay right. */
TEST_F(Pool, GivingBackTwiceIsHarmless)
{
    make(2);
    ASSERT_EQ(lend(first), LOAN_MADE);
    uint64_t one = place;
    give_back(one);
    give_back(one);
    ASSERT_EQ(lend(first), LOAN_MADE);
    ASSERT_EQ(lend(first), LOAN_MADE);
    EXPECT_EQ(first.granted, 2u);
    EXPECT_EQ(lend(first), LOAN_LATER);
}

TEST_F(Pool, NothingOutsideOfTheMemoryIsBorrowed)
{
    unsigned char *base = shm_arena_base(arena);
    const size_t size = shm_arena_size(arena), heap = size_t{SHM_HEADER_SIZE} + size_t{QUOIT_ROOT_SIZE};
    const uint64_t places[] = {0, 64, SHM_HEADER_SIZE, heap, size, size - 64, size + 64, UINT64_MAX & ~63ull, size / 2 + 1};
    for (uint64_t at : places) {
        EXPECT_EQ(shm_loans_borrow(base, size, at, 65), nullptr) << at;
        EXPECT_NE(std::string(error_text()).find(std::to_string(at)), std::string::npos) << error_text();
    }
    EXPECT_NE(shm_loans_borrow(base, size, size - 64, 64), nullptr);
    EXPECT_NE(shm_loans_borrow(base, size, heap + 64, 64), nullptr);
}

/* ---------------------------------------------------------------- between engines */

struct Setting {
    explicit Setting(const std::string &value) { settings()["MESSAGE_POOL"] = value; }
    ~Setting() { settings().erase("MESSAGE_POOL"); }
};

/* {pieces lent, bytes borrowed} as describe tells them. */
std::pair<uint64_t, uint64_t> loans_of(Engine &engine, quoit_endpoint_t *endpoint)
{
    std::string text = engine.ops.describe(endpoint);
    size_t pieces = text.find(" pieces lent"), bytes = text.find(" bytes borrowed");
    EXPECT_NE(pieces, std::string::npos) << text;
    EXPECT_NE(bytes, std::string::npos) << text;
    return {strtoull(text.c_str() + text.rfind(' ', pieces - 1), nullptr, 10), strtoull(text.c_str() + text.rfind(' ', bytes - 1), nullptr, 10)};
}

void exchange(Pair &pair, size_t size, uint64_t id)
{
    std::string sent = pattern(size, id), got(size, 'x');
    quoit_transfer_t send = {}, recv = {};
    ASSERT_EQ(pair.b.ops.recv(pair.ba, {1, id}, got.data(), size, &recv), QUOIT_OK);
    ASSERT_EQ(pair.a.ops.send(pair.ab, {1, id}, sent.data(), size, &send), QUOIT_OK);
    ASSERT_TRUE(both_until(pair.a, pair.b, [&] { return send.status != QUOIT_IN_PROGRESS && recv.status != QUOIT_IN_PROGRESS; })) << size;
    ASSERT_EQ(send.status, QUOIT_OK);
    ASSERT_EQ(recv.status, QUOIT_OK);
    ASSERT_TRUE(sent == got) << size;
}

/* 1 MiB is 32 pieces, and 64 bytes of each in the mailbox: the grant, the announcement that brings the first piece, and one for each other. */
TEST(ShmLoans, TheMailboxCarriesOneFrameAPiece)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    uint64_t sent[2], received[2];
    pair.a.ops.count(pair.ab, &sent[0], &received[0]);
    ASSERT_NO_FATAL_FAILURE(exchange(pair, 1 << 20, 1));
    pair.a.ops.count(pair.ab, &sent[1], &received[1]);
    EXPECT_EQ(sent[1] - sent[0], (1u << 20) + 32 * 64);
    EXPECT_EQ(received[1] - received[0], 64u);
    EXPECT_EQ(loans_of(pair.a, pair.ab), (std::pair<uint64_t, uint64_t>{32, 0}));
    EXPECT_EQ(loans_of(pair.b, pair.ba), (std::pair<uint64_t, uint64_t>{0, 1 << 20}));
}

TEST(ShmLoans, WithoutAPoolTheMailboxCarriesAll)
{
    Setting none("0");
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    uint64_t id = 0;
    for (size_t size : {20000u, 32768u, 32769u, 1u << 20}) ASSERT_NO_FATAL_FAILURE(exchange(pair, size, ++id));
    EXPECT_EQ(loans_of(pair.a, pair.ab).first, 0u);
}

/* One side lends, the other does not: each decides for what it sends. */
TEST(ShmLoans, OneSideMayHaveNone)
{
    quoit_process_id_t id = random_process();
    settings()["MESSAGE_POOL"] = "0";
    Engine without(id);
    settings().erase("MESSAGE_POOL");
    Engine with;
    quoit_endpoint_t *to_with, *to_without;
    without.trust();
    with.trust();
    ASSERT_EQ(without.connect(with.id, with.address, &to_with), QUOIT_OK) << error_text();
    ASSERT_EQ(with.connect(without.id, without.address, &to_without), QUOIT_OK) << error_text();
    std::string there = pattern(200000, 1), back = pattern(200000, 2), got(200000, 0), got_back(200000, 0);
    quoit_transfer_t transfer[4] = {};
    ASSERT_EQ(with.ops.send(to_without, {1, 1}, there.data(), there.size(), &transfer[0]), QUOIT_OK);
    ASSERT_EQ(without.ops.recv(to_with, {1, 1}, got.data(), got.size(), &transfer[1]), QUOIT_OK);
    ASSERT_EQ(without.ops.send(to_with, {1, 2}, back.data(), back.size(), &transfer[2]), QUOIT_OK);
    ASSERT_EQ(with.ops.recv(to_without, {1, 2}, got_back.data(), got_back.size(), &transfer[3]), QUOIT_OK);
    ASSERT_TRUE(both_until(with, without, [&] {
        return std::all_of(std::begin(transfer), std::end(transfer), [](const quoit_transfer_t &one) { return one.status != QUOIT_IN_PROGRESS; });
    }));
    EXPECT_TRUE(there == got);
    EXPECT_TRUE(back == got_back);
    EXPECT_GT(loans_of(with, to_without).first, 0u);
    EXPECT_EQ(loans_of(without, to_with).first, 0u);
}

/* Hundreds of messages that nobody takes hold some loans; messages that are wanted pass them. */
TEST(ShmLoans, UnwantedMessagesHoldNobodyUp)
{
    Setting few("128K");
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    std::string unwanted = pattern(20000, 9);
    std::vector<quoit_transfer_t> sends(200);
    for (size_t i = 0; i < sends.size(); i++) ASSERT_EQ(pair.a.ops.send(pair.ab, {2, i}, unwanted.data(), unwanted.size(), &sends[i]), QUOIT_OK);
    for (uint64_t id = 1; id < 5; id++) ASSERT_NO_FATAL_FAILURE(exchange(pair, 300000 * id, id));
    for (size_t i = sends.size(); i-- > 0;) {
        std::string got(unwanted.size(), 0);
        quoit_transfer_t recv = {};
        ASSERT_EQ(pair.b.ops.recv(pair.ba, {2, i}, got.data(), got.size(), &recv), QUOIT_OK);
        ASSERT_TRUE(both_until(pair.a, pair.b, [&] { return recv.status != QUOIT_IN_PROGRESS; })) << i;
        ASSERT_EQ(recv.status, QUOIT_OK);
        ASSERT_TRUE(got == unwanted) << i;
    }
}

/* Its sender has said goodbye, closed everything and freed its memory before the message is taken. */
TEST(ShmLoans, AMessageOutlivesItsSender)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    std::string sent = pattern(30000, 4), got(30000, 0);
    quoit_transfer_t send = {}, recv = {};
    ASSERT_EQ(pair.a.ops.send(pair.ab, {1, 1}, sent.data(), sent.size(), &send), QUOIT_OK);
    ASSERT_EQ(send.status, QUOIT_OK) << "it is copied";
    pair.a.ops.disconnect(pair.ab);
    ASSERT_TRUE(both_until(pair.a, pair.b, [&] { return pair.a.ops.idle(pair.a.transport); }));
    pair.a.close();
    ASSERT_TRUE(pair.b.until([&] { return pair.b.ops.endpoint_status(pair.ba) != QUOIT_IN_PROGRESS; }));
    for (int i = 0; i < 50; i++) pair.b.pump();
    ASSERT_EQ(pair.b.ops.recv(pair.ba, {1, 1}, got.data(), got.size(), &recv), QUOIT_OK);
    EXPECT_EQ(recv.status, QUOIT_OK) << error_text();
    EXPECT_TRUE(sent == got);
    pair.b.ops.disconnect(pair.ba);
}

} // namespace
