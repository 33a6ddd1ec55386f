/* SPDX-License-Identifier: Apache-2.0 */
/* The channel's protocol without a transport: random interleavings, credit, mismatch, cancel, goodbye. */
#include "channel_harness.h"

#include <gtest/gtest.h>

#include <utility>

extern "C" {
#include "transport/framing/frame.h"
}

using namespace channel_test;

namespace {

Options random_options(Random &random)
{
    static const size_t limits[] = {256, 1024, 8192, 65536};
    Options options;
    options.pipes = 1 + (int)below(random, 4);
    if (options.pipes == 1 || below(random, 4) == 0) {
        options.pipes = 1;
        options.loans = (int)below(random, 7) - 1;
    }
    options.eager_limit = limits[below(random, 4)];
    options.eager_pool = 65536u << below(random, 3);
    options.segment_size = 4096u << below(random, 4);
    options.capacity = (size_t)2048 << below(random, 8);
    options.open = below(random, 4) != 0;
    options.in_memory = below(random, 2) != 0;
    return options;
}

size_t random_length(Random &random, const Options &options)
{
    switch (below(random, 8)) {
    case 0: return 0;
    case 1: return options.eager_limit + below(random, 3) - 1;
    case 2: return options.segment_size * (1 + below(random, 3)) + below(random, 3) - 1;
    case 3: return below(random, 150000);
    default: return 1 + below(random, below(random, 8) ? std::min<size_t>(options.eager_limit, 4096) : options.eager_limit);
    }
}

/* What one side sends on one key, and how far both sides are. */
struct Flow {
    int from;
    quoit_key_t key;
    std::vector<std::string> contents;
    std::vector<MessagePtr> sends, recvs;

    bool finished() const
    {
        if (sends.size() < contents.size() || recvs.size() < contents.size()) return false;
        for (const auto &one : sends)
            if (!one->done()) return false;
        for (const auto &one : recvs)
            if (!one->done()) return false;
        return true;
    }
    /* Post what is next on a side chosen at random. */
    void post(Couple &couple)
    {
        bool receive = below(couple.random, 2);
        auto &list = receive ? recvs : sends;
        if (list.size() == contents.size()) return;
        const std::string &content = contents[list.size()];
        uint32_t what = below(couple.random, 4) ? 7 : 0;
        list.push_back(receive ? post_recv(couple.channel[!from], key, content.size(), what)
                               : post_send(couple.channel[from], key, content, what));
    }
};

std::vector<Flow> random_flows(Random &random, const Options &options, uint64_t seed)
{
    std::vector<Flow> flows(1 + below(random, 8));
    for (size_t i = 0; i < flows.size(); i++) {
        flows[i].from = (int)below(random, 2);
        flows[i].key = {1 + below(random, 3), i};
        size_t count = 1 + below(random, 30);
        for (size_t k = 0; k < count; k++)
            flows[i].contents.push_back(pattern(random_length(random, options), seed * 1000 + i * 100 + k));
    }
    return flows;
}

class ChannelSeeds : public testing::TestWithParam<uint64_t> {};

TEST_P(ChannelSeeds, EveryMessageArrivesInOrderOfItsKey)
{
    uint64_t seed = GetParam();
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random plan(seed);
    Options options = random_options(plan);
    auto flows = random_flows(plan, options, seed);
    Couple couple(seed + 1, options);
    size_t opened = options.open ? 2 : 0;
    auto finished = [&] {
        if (opened < 2 && below(couple.random, 50) == 0) couple.open((int)opened++);
        if (below(couple.random, 2)) flows[below(couple.random, flows.size())].post(couple);
        for (const auto &flow : flows)
            if (!flow.finished()) return channel_status(couple.channel[0]) != QUOIT_OK || channel_status(couple.channel[1]) != QUOIT_OK;
        return true;
    };
    ASSERT_TRUE(couple.run(finished, 3000000)) << "pipes " << options.pipes << " eager " << options.eager_limit;
    for (auto *channel : couple.channel) ASSERT_EQ(channel_status(channel), QUOIT_OK) << error_text();
    for (const auto &flow : flows) {
        for (size_t i = 0; i < flow.contents.size(); i++) {
            ASSERT_EQ(flow.sends[i]->transfer.status, QUOIT_OK) << i;
            ASSERT_EQ(flow.recvs[i]->transfer.status, QUOIT_OK) << i;
            ASSERT_EQ(flow.recvs[i]->transfer.length, flow.contents[i].size());
            ASSERT_TRUE(flow.recvs[i]->content() == flow.contents[i]) << "message " << i << " of key " << flow.key.id;
            ASSERT_TRUE(flow.recvs[i]->canaries());
        }
    }
    for (const Pool &pool : couple.pool) {
        EXPECT_EQ(pool.out(), 0u) << "loans that did not come back";
        EXPECT_EQ(pool.wrong, 0u);
    }
    for (auto *channel : couple.channel) channel_close(channel);
    ASSERT_TRUE(couple.run([&] { return channel_status(couple.channel[0]) != QUOIT_OK && channel_status(couple.channel[1]) != QUOIT_OK; }));
    for (auto *channel : couple.channel) {
        EXPECT_TRUE(channel_idle(channel));
        EXPECT_EQ(channel_status(channel), QUOIT_ERR_CLOSED) << error_text();
    }
}

/* Communicator 1 is cancelled on both sides at random moments; communicator 2 must not notice. */
TEST_P(ChannelSeeds, CancelLeavesOtherCommunicatorsAlone)
{
    uint64_t seed = GetParam();
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random plan(seed ^ 0xca);
    Options options = random_options(plan);
    options.open = true;
    auto flows = random_flows(plan, options, seed);
    Couple couple(seed + 2, options);
    for (size_t i = 0; i < flows.size(); i++) flows[i].key.comm = 1 + i % 2;
    bool cancelled[2] = {false, false};
    auto cancel = [&](int side) {
        channel_cancel(couple.channel[side], 1);
        cancelled[side] = true;
        for (auto &flow : flows) {
            if (flow.key.comm != 1) continue;
            for (auto &one : flow.from == side ? flow.sends : flow.recvs) {
                EXPECT_TRUE(one->done());
                if (one->transfer.status != QUOIT_OK) {
                    EXPECT_EQ(one->transfer.status, QUOIT_ERR_ABORTED);
                    one->fill(one->length, 0x77); /* whoever touches it from now on is found out below */
                }
            }
        }
    };
    auto finished = [&] {
        if (below(couple.random, 2)) flows[below(couple.random, flows.size())].post(couple);
        for (int side = 0; side < 2; side++)
            if (!cancelled[side] && below(couple.random, 300) == 0) cancel(side);
        for (const auto &flow : flows)
            if (flow.key.comm == 2 && !flow.finished()) return false;
        return cancelled[0] && cancelled[1];
    };
    ASSERT_TRUE(couple.run(finished, 3000000)) << "pipes " << options.pipes << " eager " << options.eager_limit;
    couple.settle();
    for (const auto &flow : flows) {
        for (size_t i = 0; i < flow.recvs.size(); i++) {
            const Message &recv = *flow.recvs[i];
            ASSERT_TRUE(recv.done());
            ASSERT_TRUE(recv.canaries());
            if (recv.transfer.status == QUOIT_OK) {
                ASSERT_TRUE(recv.content() == flow.contents[i]) << "key " << flow.key.id;
            } else {
                ASSERT_EQ(flow.key.comm, 1u) << error_text();
                bool untouched = recv.content() == std::string(recv.length, 0x77) || recv.content() == std::string(recv.length, 0x33);
                ASSERT_TRUE(untouched) << "touched after cancel: message " << i << " of key " << flow.key.id;
            }
        }
    }
    for (auto *channel : couple.channel) EXPECT_EQ(channel_status(channel), QUOIT_OK) << error_text();
}

INSTANTIATE_TEST_SUITE_P(Seeds, ChannelSeeds, testing::Range<uint64_t>(1, 121));

/* ---------------------------------------------------------------- single cases */

const quoit_key_t key_a = {1, 10}, key_b = {2, 20};

/* Nothing is copied to a queue on the way; what finds the pipe full is, and whatever comes after it. */
TEST(Channel, PipesOfMemoryAreWrittenAtOnce)
{
    Options options;
    options.whole = options.in_memory = true;
    options.capacity = 3 * FRAME_HEADER_SIZE + 100 + 10;
    Couple couple(1, options);
    Stream &out = couple.stream(0, 0);
    auto first = post_send(couple.channel[0], {1, 1}, pattern(100, 1));
    EXPECT_EQ(first->transfer.status, QUOIT_OK);
    EXPECT_EQ(out.bytes.size(), FRAME_HEADER_SIZE + 100u);
    EXPECT_FALSE(channel_wants_write(couple.channel[0], 0)) << "nothing is left";
    ASSERT_EQ(channel_notify(couple.channel[0], "four", 4), QUOIT_OK);
    auto second = post_send(couple.channel[0], {1, 1}, pattern(30, 2));
    EXPECT_EQ(out.bytes.size(), options.capacity) << "a part of the third frame";
    EXPECT_TRUE(channel_wants_write(couple.channel[0], 0));
    auto third = post_send(couple.channel[0], {1, 1}, pattern(7, 3));
    auto a = post_recv(couple.channel[1], {1, 1}, 100), b = post_recv(couple.channel[1], {1, 1}, 30), c = post_recv(couple.channel[1], {1, 1}, 7);
    ASSERT_TRUE(couple.run([&] { return a->done() && b->done() && c->done(); }));
    EXPECT_TRUE(a->content() == pattern(100, 1) && b->content() == pattern(30, 2) && c->content() == pattern(7, 3));
    const void *data;
    size_t length;
    ASSERT_TRUE(channel_next_notice(couple.channel[1], &data, &length));
    EXPECT_EQ(std::string(static_cast<const char *>(data), length), "four");
    uint64_t sent, received;
    channel_count(couple.channel[0], &sent, &received);
    EXPECT_EQ(sent, 4 * FRAME_HEADER_SIZE + 100u + 30 + 7) << "the notice lies in its header";
    EXPECT_FALSE(channel_wants_write(couple.channel[0], 0));
}

TEST(Channel, CreditRunsOutAndComesBack)
{
    Options options;
    Couple couple(5, options);
    std::vector<MessagePtr> sends, recvs;
    for (int i = 0; i < 10000; i++) sends.push_back(post_send(couple.channel[0], key_a, pattern(100, (uint64_t)i)));
    couple.settle();
    size_t done = 0;
    for (const auto &one : sends) done += one->done();
    EXPECT_EQ(done, 65536u / 164u) << "eager sends beyond the credit, or too few";
    for (int i = 0; i < 10000; i++) recvs.push_back(post_recv(couple.channel[1], key_a, 100));
    ASSERT_TRUE(couple.run([&] { return recvs.back()->done() && sends.back()->done(); }, 2000000));
    for (int i = 0; i < 10000; i++) ASSERT_TRUE(recvs[i]->content() == pattern(100, (uint64_t)i)) << i;
    couple.settle();
    auto again = post_send(couple.channel[0], key_a, pattern(100, 1));
    EXPECT_EQ(again->transfer.status, QUOIT_OK) << "no credit although everything was taken";
}

TEST(Channel, LargeMessageWaitsForItsRecv)
{
    Options options;
    Couple couple(6, options);
    auto send = post_send(couple.channel[0], key_a, pattern(100000, 1));
    couple.settle();
    EXPECT_FALSE(send->done());
    uint64_t sent, received;
    channel_count(couple.channel[0], &sent, &received);
    EXPECT_LT(sent, 1000u) << "bytes went out that nobody asked for";
    auto recv = post_recv(couple.channel[1], key_a, 100000);
    ASSERT_TRUE(couple.run([&] { return send->done() && recv->done(); }));
    EXPECT_TRUE(recv->content() == pattern(100000, 1));
}

TEST(Channel, MismatchEndsBothSidesAndNamesBothLengths)
{
    const size_t lengths[] = {0, 100, 1024, 1025, 50000};
    for (size_t send_length : lengths)
        for (size_t recv_length : lengths)
            for (int form = 0; form < 4; form++) {
                bool recv_first = form & 1, other_what = form & 2;
                if (send_length == recv_length && !other_what) continue;
                SCOPED_TRACE(std::to_string(send_length) + " to " + std::to_string(recv_length) + " form " + std::to_string(form));
                Options options;
                options.pipes = 2;
                Couple couple(7 + (uint64_t)form, options);
                MessagePtr send, recv;
                for (int turn = 0; turn < 2; turn++) {
                    if ((turn == 0) == recv_first) recv = post_recv(couple.channel[1], key_a, recv_length, other_what ? 2 : 1);
                    else send = post_send(couple.channel[0], key_a, pattern(send_length, 3), 1);
                    couple.settle();
                }
                auto after = post_recv(couple.channel[1], key_a, recv_length, 1);
                auto other_send = post_send(couple.channel[0], key_b, pattern(70000, 9));
                auto other_recv = post_recv(couple.channel[1], key_b, 70000);
                ASSERT_TRUE(couple.run([&] { return send->done() && recv->done() && after->done() && other_recv->done(); }));
                EXPECT_EQ(recv->transfer.status, QUOIT_ERR_MISMATCH);
                EXPECT_EQ(after->transfer.status, QUOIT_ERR_MISMATCH);
                auto late = post_recv(couple.channel[1], key_a, 8);
                EXPECT_EQ(late->transfer.status, QUOIT_ERR_MISMATCH);
                std::string text = error_text();
                EXPECT_NE(text.find(std::to_string(send_length) + " bytes"), std::string::npos) << text;
                EXPECT_NE(text.find(std::to_string(recv_length) + " bytes"), std::string::npos) << text;
                EXPECT_EQ(send->transfer.status, send_length > options.eager_limit ? QUOIT_ERR_MISMATCH : QUOIT_OK);
                couple.settle();
                auto next = post_send(couple.channel[0], key_a, "x", 1);
                EXPECT_EQ(next->transfer.status, QUOIT_ERR_MISMATCH);
                EXPECT_TRUE(other_recv->content() == pattern(70000, 9));
                EXPECT_EQ(channel_status(couple.channel[0]), QUOIT_OK);
                EXPECT_EQ(channel_status(couple.channel[1]), QUOIT_OK);
            }
}

TEST(Channel, SendCancelledInMidFrameNeverCompletesTheRecv)
{
    Options options;
    options.segment_size = 65536;
    options.capacity = 8192;
    options.whole = true;
    Couple couple(8, options);
    auto recv = post_recv(couple.channel[1], key_a, 60000);
    auto send = post_send(couple.channel[0], key_a, pattern(60000, 4));
    channel_write(couple.channel[1], 0, 1 << 20);
    channel_read(couple.channel[0], 0, 1 << 20);
    channel_write(couple.channel[0], 0, 1 << 20);
    ASSERT_FALSE(send->done()) << "the frame was to be half out";
    channel_cancel(couple.channel[0], key_a.comm);
    EXPECT_EQ(send->transfer.status, QUOIT_ERR_ABORTED);
    send->fill(60000, 0x77);
    for (int i = 0; i < 3; i++) {
        channel_read(couple.channel[1], 0, 4096);
        channel_write(couple.channel[0], 0, 1 << 20);
        EXPECT_EQ(couple.stream(0, 0).bytes.find(std::string(64, 0x77)), std::string::npos) << "the sender's memory was read after cancel";
    }
    auto other_send = post_send(couple.channel[0], key_b, pattern(50000, 5));
    auto other_recv = post_recv(couple.channel[1], key_b, 50000);
    ASSERT_TRUE(couple.run([&] { return other_recv->done(); }));
    EXPECT_TRUE(other_recv->content() == pattern(50000, 5));
    EXPECT_FALSE(recv->done()) << "a cancelled message was completed";
    channel_cancel(couple.channel[1], key_a.comm);
    EXPECT_EQ(recv->transfer.status, QUOIT_ERR_ABORTED);
}

TEST(Channel, NoticesKeepOrderAndMeetTheirLimits)
{
    Options options;
    Couple couple(9, options);
    const std::string big = pattern(1024, 1);
    EXPECT_EQ(channel_notify(couple.channel[0], big.data(), 1025), QUOIT_ERR_INVALID);
    std::vector<std::string> sent;
    quoit_status_t status;
    do {
        std::string text = pattern(sent.size() % 2 ? 1000 : 128, sent.size());
        status = channel_notify(couple.channel[0], text.data(), text.size());
        if (status == QUOIT_OK) sent.push_back(text);
        ASSERT_LT(sent.size(), 1000u);
    } while (status == QUOIT_OK);
    EXPECT_EQ(status, QUOIT_ERR_AGAIN) << error_text();
    for (int i = 0; i < 50; i++) {
        sent.push_back(pattern(128, 1000 + (uint64_t)i));
        ASSERT_EQ(channel_notify(couple.channel[0], sent.back().data(), 128), QUOIT_OK) << "small notices are never refused";
    }
    size_t next = 0;
    const void *data;
    size_t length;
    ASSERT_TRUE(couple.run([&] {
        while (channel_next_notice(couple.channel[1], &data, &length)) {
            EXPECT_EQ(std::string(static_cast<const char *>(data), length), sent[next]) << next;
            next++;
        }
        return next == sent.size();
    }));
    couple.settle();
    EXPECT_EQ(channel_notify(couple.channel[0], big.data(), 1000), QUOIT_OK) << error_text();
}

TEST(Channel, BytesUnderWayAtTheGoodbyeArrive)
{
    Options options;
    options.pipes = 3;
    options.capacity = 1024;
    Couple couple(10, options);
    auto recv = post_recv(couple.channel[1], key_b, 80000);
    auto send = post_send(couple.channel[0], key_b, pattern(80000, 7));
    ASSERT_TRUE(couple.run([&] { return send->done(); }));
    channel_close(couple.channel[0]);
    ASSERT_TRUE(couple.run([&] { return channel_peer_closed(couple.channel[1]); }));
    EXPECT_EQ(recv->transfer.status, QUOIT_OK);
    EXPECT_TRUE(recv->content() == pattern(80000, 7));
}

TEST(Channel, WhatOtherPipesHoldComesBeforeTheEndOfOne)
{
    Options options;
    options.pipes = 2;
    options.capacity = 1 << 20;
    options.segment_size = 64 << 10;
    options.whole = true;
    Couple couple(12, options);
    auto recv = post_recv(couple.channel[1], key_b, 200000);
    auto send = post_send(couple.channel[0], key_b, pattern(200000, 7));
    ASSERT_TRUE(couple.run([&] {
        channel_write(couple.channel[1], 0, 1 << 20);
        channel_read(couple.channel[0], 0, 1 << 20);
        for (int pipe = 0; pipe < 2; pipe++) channel_write(couple.channel[0], pipe, 1 << 16);
        return send->done();
    }));
    ASSERT_FALSE(recv->done());
    ASSERT_FALSE(couple.stream(0, 0).bytes.empty() || couple.stream(0, 1).bytes.empty());
    couple.stream(0, 0).ended = couple.stream(0, 1).ended = true;
    channel_read(couple.channel[1], 0, 1 << 20);
    EXPECT_EQ(recv->transfer.status, QUOIT_OK);
    EXPECT_TRUE(recv->content() == pattern(200000, 7));
    EXPECT_EQ(channel_status(couple.channel[1]), QUOIT_ERR_PEER);
}

TEST(Channel, GoodbyeEndsWhatCannotComeAnyMore)
{
    Options options;
    options.pipes = 3;
    Couple couple(11, options);
    auto small = post_send(couple.channel[0], key_a, pattern(500, 6));
    ASSERT_EQ(channel_notify(couple.channel[0], "last", 4), QUOIT_OK);
    channel_close(couple.channel[0]);
    EXPECT_FALSE(channel_idle(couple.channel[0]));
    auto never_recv = post_recv(couple.channel[1], key_b, 5000);
    auto never_send = post_send(couple.channel[1], key_b, pattern(5000, 1));
    ASSERT_TRUE(couple.run([&] { return channel_status(couple.channel[1]) != QUOIT_OK; }));
    EXPECT_TRUE(channel_idle(couple.channel[0]));
    EXPECT_EQ(channel_status(couple.channel[1]), QUOIT_ERR_CLOSED);
    EXPECT_EQ(never_recv->transfer.status, QUOIT_ERR_CLOSED);
    EXPECT_EQ(never_send->transfer.status, QUOIT_ERR_CLOSED);
    EXPECT_FALSE(channel_peer_closed(couple.channel[1])) << "a message and a notice were not taken yet";
    auto late = post_recv(couple.channel[1], key_a, 500);
    EXPECT_EQ(late->transfer.status, QUOIT_OK);
    EXPECT_TRUE(late->content() == pattern(500, 6));
    const void *data;
    size_t length;
    ASSERT_TRUE(channel_next_notice(couple.channel[1], &data, &length));
    EXPECT_EQ(std::string(static_cast<const char *>(data), length), "last");
    EXPECT_TRUE(channel_peer_closed(couple.channel[1]));
    EXPECT_EQ(post_recv(couple.channel[1], key_a, 500)->transfer.status, QUOIT_ERR_CLOSED);
    EXPECT_EQ(channel_notify(couple.channel[1], "x", 1), QUOIT_ERR_CLOSED);
}

TEST(Channel, GoodbyeIsFoundAlthoughWritingFails)
{
    Options options;
    options.whole = true;
    Couple couple(12, options);
    auto small = post_send(couple.channel[0], key_a, pattern(500, 6));
    channel_close(couple.channel[0]);
    ASSERT_TRUE(couple.run([&] { return channel_idle(couple.channel[0]); }));
    Stream &in = couple.stream(0, 0), &out = couple.stream(1, 0);
    in.ended = true;
    out.broken = true;
    auto recv = post_recv(couple.channel[1], key_b, 5000); /* queues a grant that cannot be written */
    for (int i = 0; i < 1000 && channel_status(couple.channel[1]) == QUOIT_OK; i++) channel_write(couple.channel[1], 0, 1000);
    EXPECT_EQ(channel_status(couple.channel[1]), QUOIT_ERR_CLOSED) << error_text();
    EXPECT_EQ(recv->transfer.status, QUOIT_ERR_CLOSED);
    EXPECT_EQ(post_recv(couple.channel[1], key_a, 500)->transfer.status, QUOIT_OK);
}

TEST(Channel, APipeThatEndedWithItsGoodbyeMayRefuseBytesWhileOthersStillCarry)
{
    Options options;
    options.whole = true;
    options.pipes = 2;
    Couple couple(14, options);
    auto recv = post_recv(couple.channel[1], key_b, 60000);
    auto send = post_send(couple.channel[0], key_b, pattern(60000, 6));
    channel_write(couple.channel[1], 0, 1000);
    channel_read(couple.channel[0], 0, 1000);
    std::string late; /* what pipe 1 carries arrives after everything of pipe 0 */
    for (int i = 0; i < 100 && !send->done(); i++) {
        channel_write(couple.channel[0], 0, 8000);
        channel_write(couple.channel[0], 1, 8000);
        late += std::exchange(couple.stream(0, 1).bytes, "");
        channel_read(couple.channel[1], 0, 1 << 20);
    }
    channel_close(couple.channel[0]);
    channel_write(couple.channel[0], 0, 1000);
    channel_write(couple.channel[0], 1, 1000);
    late += std::exchange(couple.stream(0, 1).bytes, "");
    couple.stream(1, 0).broken = true;
    auto other = post_recv(couple.channel[1], key_a, 5000); /* queues a grant that cannot be written */
    for (int i = 0; i < 10; i++) channel_write(couple.channel[1], 0, 1000);
    ASSERT_EQ(channel_status(couple.channel[1]), QUOIT_OK) << error_text();
    ASSERT_FALSE(recv->done());
    couple.stream(0, 1).bytes = late;
    channel_read(couple.channel[1], 1, 1 << 20);
    EXPECT_EQ(recv->transfer.status, QUOIT_OK) << error_text();
    EXPECT_TRUE(recv->content() == pattern(60000, 6));
    EXPECT_EQ(other->transfer.status, QUOIT_ERR_CLOSED);
    EXPECT_TRUE(channel_peer_closed(couple.channel[1]));
}

TEST(Channel, EndWithoutGoodbyeIsAFailureWithAText)
{
    Options options;
    Couple couple(13, options);
    auto recv = post_recv(couple.channel[1], key_a, 10);
    auto send = post_send(couple.channel[1], key_a, pattern(5000, 1));
    couple.stream(0, 0).ended = true;
    ASSERT_TRUE(couple.run([&] { return recv->done() && send->done(); }));
    EXPECT_EQ(recv->transfer.status, QUOIT_ERR_PEER);
    EXPECT_EQ(send->transfer.status, QUOIT_ERR_PEER);
    EXPECT_EQ(channel_status(couple.channel[1]), QUOIT_ERR_PEER);
    EXPECT_NE(std::string(error_text()).find("peer A"), std::string::npos) << error_text();
    EXPECT_EQ(post_send(couple.channel[1], key_a, "x")->transfer.status, QUOIT_ERR_PEER);
    EXPECT_FALSE(channel_peer_closed(couple.channel[1]));
}

} // namespace
