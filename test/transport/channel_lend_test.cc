/* SPDX-License-Identifier: Apache-2.0 */
/* Messages through memory that one side lends to the other: what goes over the pipe, who waits for whom, and that every loan comes back. */
#include "channel_harness.h"

#include <gtest/gtest.h>

extern "C" {
#include "transport/framing/frame.h"
}

using namespace channel_test;

namespace {

constexpr quoit_key_t key_a = {1, 1}, key_b = {2, 2};

Options lending(int loans)
{
    Options options;
    options.loans = loans;
    return options;
}

uint64_t bytes_sent(channel_t *channel)
{
    uint64_t sent, received;
    channel_count(channel, &sent, &received);
    return sent;
}

uint64_t borrowed(channel_t *channel, uint64_t *pieces)
{
    uint64_t bytes;
    channel_count_loans(channel, &bytes, pieces);
    return bytes;
}

/* One copy in, one copy out, one frame a piece, ASK, GRANT: nothing else. */
TEST(Lend, ALargeMessageIsAFrameAPiece)
{
    const size_t size = 1 << 20;
    Couple couple(1, lending(4));
    uint64_t before = 0;
    auto recv = post_recv(couple.channel[1], key_a, size);
    auto send = post_send(couple.channel[0], key_a, pattern(size, 1));
    before = couple.stream(0, 0).bytes.size();
    ASSERT_EQ(before, 0u);
    ASSERT_TRUE(couple.run([&] { return send->done() && recv->done(); }, 3000000));
    EXPECT_EQ(recv->transfer.status, QUOIT_OK);
    EXPECT_TRUE(recv->content() == pattern(size, 1));
    uint64_t pieces, none;
    EXPECT_EQ(borrowed(couple.channel[1], &none), size);
    EXPECT_EQ(none, 0u);
    EXPECT_EQ(borrowed(couple.channel[0], &pieces), 0u);
    EXPECT_EQ(pieces, size / Pool::piece);
    EXPECT_EQ(bytes_sent(couple.channel[0]) - size, pieces * FRAME_HEADER_SIZE) << "ASK brings the first piece";
    EXPECT_EQ(bytes_sent(couple.channel[1]), uint64_t{FRAME_HEADER_SIZE}) << "the grant";
    EXPECT_EQ(couple.pool[0].out(), 0u);
}

TEST(Lend, AMessageOfOnePieceIsNotAskedFor)
{
    Couple couple(2, lending(4));
    auto send = post_send(couple.channel[0], key_a, pattern(Pool::piece, 2));
    EXPECT_EQ(send->transfer.status, QUOIT_OK) << "copied: its buffer is free";
    send->fill(Pool::piece, 0);
    couple.settle();
    EXPECT_EQ(couple.pool[0].out(), 1u) << "it waits where it is";
    auto recv = post_recv(couple.channel[1], key_a, Pool::piece);
    EXPECT_EQ(recv->transfer.status, QUOIT_OK);
    EXPECT_TRUE(recv->content() == pattern(Pool::piece, 2));
    EXPECT_EQ(couple.pool[0].out(), 0u);
    EXPECT_EQ(bytes_sent(couple.channel[1]), 0u);
}

/* A large one behind it, whose first piece is here, waits for its recv as ever. */
TEST(Lend, ALargeMessageWithoutRecvHoldsOnePiece)
{
    Couple couple(3, lending(4));
    auto send = post_send(couple.channel[0], key_a, pattern(50000, 3));
    couple.settle();
    EXPECT_FALSE(send->done());
    EXPECT_EQ(couple.pool[0].out(), 1u);
    auto recv = post_recv(couple.channel[1], key_a, 50000);
    ASSERT_TRUE(couple.run([&] { return send->done() && recv->done(); }));
    EXPECT_TRUE(recv->content() == pattern(50000, 3));
    EXPECT_EQ(couple.pool[0].out(), 0u);
}

/* A frame's bytes are copied more often than a loan's. Where none is to be had the message does not wait for one. */
TEST(Lend, WhatWouldFitAFrameIsLentFromTheLeastOn)
{
    Options options = lending(2);
    options.lend_least = 600;
    ASSERT_GT(options.eager_limit, 1000u);
    Couple couple(5, options);
    std::vector<decltype(post_send(couple.channel[0], key_a, ""))> sends;
    for (size_t size : {599, 600, 1000, 1000, 0})
        sends.push_back(post_send(couple.channel[0], key_a, pattern(size, sends.size())));
    for (auto &send : sends) EXPECT_EQ(send->transfer.status, QUOIT_OK) << "its buffer is free";
    EXPECT_EQ(couple.pool[0].lent, 2u) << "those of 600 and 1000 bytes";
    couple.settle();
    size_t number = 0;
    for (size_t size : {599, 600, 1000, 1000, 0}) {
        auto recv = post_recv(couple.channel[1], key_a, size);
        EXPECT_EQ(recv->transfer.status, QUOIT_OK) << number;
        EXPECT_TRUE(recv->content() == pattern(size, number++));
    }
    EXPECT_EQ(couple.pool[0].out(), 0u);
    EXPECT_EQ(bytes_sent(couple.channel[0]) - 599 - 600 - 1000 - 1000, 5 * uint64_t{FRAME_HEADER_SIZE});
}

TEST(Lend, WithoutALoanThePipeCarriesIt)
{
    Couple couple(4, lending(0));
    auto small = post_send(couple.channel[0], key_a, pattern(1500, 4)), large = post_send(couple.channel[0], key_b, pattern(50000, 5));
    auto a = post_recv(couple.channel[1], key_a, 1500), b = post_recv(couple.channel[1], key_b, 50000);
    ASSERT_TRUE(couple.run([&] { return a->done() && b->done() && small->done() && large->done(); }));
    EXPECT_TRUE(a->content() == pattern(1500, 4));
    EXPECT_TRUE(b->content() == pattern(50000, 5));
    EXPECT_EQ(couple.pool[0].lent, 0u);
}

TEST(Lend, WhoHasToWaitForALoanSaysSo)
{
    Couple couple(5, lending(1));
    auto recv = post_recv(couple.channel[1], key_a, 10 * Pool::piece);
    channel_write(couple.channel[1], 0, 1 << 20);
    while (channel_read(couple.channel[0], 0, 1 << 20) == 0) {}
    auto send = post_send(couple.channel[0], key_a, pattern(10 * Pool::piece, 6)); /* its first piece is the one loan, unasked */
    EXPECT_EQ(couple.pool[0].out(), 1u);
    couple.pool[0].slots[0].unasked = false;
    while (channel_write(couple.channel[0], 0, 1 << 20) == 0 && !channel_starves(couple.channel[0])) {}
    for (int i = 0; i < 20; i++) channel_write(couple.channel[0], 0, 1 << 20);
    EXPECT_TRUE(channel_starves(couple.channel[0]));
    EXPECT_TRUE(channel_wants_write(couple.channel[0], 0));
    ASSERT_TRUE(couple.run([&] { return send->done() && recv->done(); }));
    EXPECT_FALSE(channel_starves(couple.channel[0]));
    EXPECT_TRUE(recv->content() == pattern(10 * Pool::piece, 6));
}

/* The send has ended, so the message must be there for a later recv, though the lender may take its memory along. */
TEST(Lend, WhatIsHereOutlivesItsLender)
{
    Couple couple(6, lending(4));
    auto whole = post_send(couple.channel[0], key_a, pattern(1800, 7)), next = post_send(couple.channel[0], key_a, pattern(100, 8)),
         part = post_send(couple.channel[0], key_b, pattern(50000, 9));
    EXPECT_EQ(whole->transfer.status, QUOIT_OK);
    channel_cancel(couple.channel[0], 2);
    EXPECT_EQ(part->transfer.status, QUOIT_ERR_ABORTED);
    channel_close(couple.channel[0]);
    ASSERT_TRUE(couple.run([&] { return channel_status(couple.channel[1]) != QUOIT_OK; }));
    EXPECT_EQ(channel_status(couple.channel[1]), QUOIT_ERR_CLOSED) << error_text();
    EXPECT_EQ(couple.pool[0].out(), 0u);
    couple.pool[0].slots.clear();
    EXPECT_FALSE(channel_peer_closed(couple.channel[1]));
    auto first = post_recv(couple.channel[1], key_a, 1800), second = post_recv(couple.channel[1], key_a, 100);
    EXPECT_EQ(first->transfer.status, QUOIT_OK);
    EXPECT_TRUE(first->content() == pattern(1800, 7));
    EXPECT_EQ(second->transfer.status, QUOIT_OK);
    EXPECT_TRUE(second->content() == pattern(100, 8)) << "the order of the key is lost";
    EXPECT_TRUE(channel_peer_closed(couple.channel[1]));
    EXPECT_EQ(couple.pool[0].wrong, 0u);
}

TEST(Lend, CancellingGivesBackWhatNobodyWillTake)
{
    Couple couple(7, lending(8));
    auto whole = post_send(couple.channel[0], key_a, pattern(1800, 1)), large = post_send(couple.channel[0], {1, 5}, pattern(50000, 2));
    couple.settle();
    EXPECT_EQ(couple.pool[0].out(), 2u);
    channel_cancel(couple.channel[1], 1);
    EXPECT_EQ(couple.pool[0].out(), 0u);
    auto late = post_send(couple.channel[0], key_a, pattern(1800, 1)); /* of a communicator that is gone over there */
    couple.settle();
    EXPECT_EQ(couple.pool[0].out(), 0u);
    EXPECT_EQ(couple.pool[0].wrong, 0u);
    channel_cancel(couple.channel[0], 1);
    EXPECT_EQ(large->transfer.status, QUOIT_ERR_ABORTED);
}

TEST(Lend, AMismatchGivesBackToo)
{
    for (bool recv_first : {false, true}) {
        Couple couple(8, lending(8));
        MessagePtr recv;
        if (recv_first) recv = post_recv(couple.channel[1], key_a, 999);
        auto send = post_send(couple.channel[0], key_a, pattern(1800, 1)), more = post_send(couple.channel[0], key_a, pattern(60000, 1));
        couple.settle();
        if (!recv_first) recv = post_recv(couple.channel[1], key_a, 999);
        ASSERT_TRUE(couple.run([&] { return recv->done() && more->done(); }));
        EXPECT_EQ(recv->transfer.status, QUOIT_ERR_MISMATCH);
        EXPECT_EQ(more->transfer.status, QUOIT_ERR_MISMATCH);
        EXPECT_EQ(couple.pool[0].out(), 0u);
        EXPECT_EQ(couple.pool[0].wrong, 0u);
    }
}

/* ---------------------------------------------------------------- a lender that lies */

class LendHostile : public testing::Test {
protected:
    LendHostile() : couple(9, whole()) {}
    static Options whole()
    {
        Options options = lending(2);
        options.whole = true;
        return options;
    }
    void expect_refused(Couple &target, frame_t frame, const std::string &part)
    {
        uint8_t header[FRAME_HEADER_SIZE];
        frame_write(&frame, header);
        target.stream(0, 0).bytes.append(reinterpret_cast<char *>(header), sizeof header);
        channel_read(target.channel[1], 0, 1 << 20);
        EXPECT_EQ(channel_status(target.channel[1]), QUOIT_ERR_PROTOCOL) << error_text();
        EXPECT_NE(std::string(error_text()).find(part), std::string::npos) << error_text();
    }
    frame_t ask(uint64_t total, uint64_t place, uint64_t length)
    {
        frame_t frame{};
        frame.type = FRAME_ASK;
        frame.key = key_a;
        frame.total = total;
        frame.offset = place;
        frame.length = length;
        frame.direct = true;
        return frame;
    }
    frame_t lent(uint64_t grant, uint64_t total, uint64_t offset, uint64_t length, uint64_t place)
    {
        frame_t frame{};
        frame.type = FRAME_LENT;
        frame.key.id = place;
        frame.grant = grant;
        frame.total = total;
        frame.offset = offset;
        frame.length = length;
        return frame;
    }
    /* The only grant of a fresh channel. */
    static constexpr uint64_t first_grant = UINT64_C(1) << 32;

    Couple couple;
};

TEST_F(LendHostile, AnAskWhoseLoanIsNone) { expect_refused(couple, ask(1800, 77, 1800), "no loan of 1800 bytes at 77"); }

TEST_F(LendHostile, AnAskWithMoreThanAPiece) { expect_refused(couple, ask(100000, 0, Pool::piece + 1), "at most 2048"); }

TEST_F(LendHostile, AnAskWithMoreThanItsMessage) { expect_refused(couple, ask(100, 0, 101), "impossible lengths"); }

TEST_F(LendHostile, ALoanWhereNobodyLends)
{
    Options options;
    options.whole = true;
    Couple plain(10, options);
    expect_refused(plain, ask(1800, 0, 1800), "without them");
    Couple other(11, options);
    auto recv = post_recv(other.channel[1], key_a, 5000);
    expect_refused(other, lent(first_grant, 5000, 0, 1000, 0), "without them");
    EXPECT_EQ(recv->transfer.status, QUOIT_ERR_PROTOCOL);
}

TEST_F(LendHostile, APieceThatNobodyGranted) { expect_refused(couple, lent(12345, 5000, 0, 1000, 0), "never given"); }

TEST_F(LendHostile, PiecesBeyondTheMessage)
{
    auto recv = post_recv(couple.channel[1], key_a, 5000);
    expect_refused(couple, lent(first_grant, 6000, 5000, 1000, 0), "data of 1000 bytes for a message of 6000");
    EXPECT_TRUE(recv->canaries());
}

} // namespace
