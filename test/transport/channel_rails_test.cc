/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel with rails: pipes are lost at random moments, on one side or both, with whatever is in them, and still each message comes once,
 * whole, in order; bytes are shared out by weight; the last pipe's loss is the channel's end.
 */
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>

#include "channel_harness.h"
#include "test/support/built.h"

using namespace channel_test;

namespace {

constexpr quoit_key_t KEY = {7, 1};

Options rails(int pipes)
{
    Options options;
    options.pipes = pipes;
    options.rails = true;
    options.segment_size = 65536;
    options.capacity = 1 << 17;
    return options;
}

/* As a cable that is cut: what is on it is gone, and nothing more goes; each side gives it up when it likes. */
void cut(Couple &couple, int pipe)
{
    for (int side = 0; side < 2; side++) {
        couple.stream(side, pipe).bytes.clear();
        couple.stream(side, pipe).capacity = 0;
    }
}

void give_up(Couple &couple, int side, int pipe)
{
    error_set(QUOIT_ERR_NETWORK, "the test cut pipe %d", pipe);
    channel_lose(couple.channel[side], pipe, QUOIT_ERR_NETWORK);
}

struct Traffic {
    struct Pending {
        MessagePtr send, recv;
        std::string content;
    };
    Couple &couple;
    std::deque<Pending> pending;
    std::deque<std::string> notices[2];
    uint64_t number = 0;

    explicit Traffic(Couple &one) : couple(one) {}
    ~Traffic() /* before the messages go */
    {
        error_set(QUOIT_ERR_CLOSED, "end of the test");
        for (auto *channel : couple.channel) channel_fail(channel, QUOIT_ERR_CLOSED);
    }

    void post()
    {
        static const size_t sizes[] = {0, 1, 100, 1024, 1025, 5000, 40000, 200000};
        int from = (int)below(couple.random, 2);
        quoit_key_t key = {9, below(couple.random, 3)};
        if (below(couple.random, 5) == 0) {
            std::string text = pattern(below(couple.random, 2) ? 16 : 600, ++number);
            if (channel_notify(couple.channel[from], text.data(), text.size()) == QUOIT_OK) notices[1 - from].push_back(text);
            return;
        }
        Pending one;
        one.content = pattern(sizes[below(couple.random, 8)], ++number);
        key.id = key.id * 2 + (uint64_t)from;
        if (below(couple.random, 2)) one.recv = post_recv(couple.channel[1 - from], key, one.content.size());
        one.send = post_send(couple.channel[from], key, one.content);
        if (!one.recv) one.recv = post_recv(couple.channel[1 - from], key, one.content.size());
        pending.push_back(std::move(one));
    }
    void take_notices()
    {
        const void *data;
        size_t length;
        for (int side = 0; side < 2; side++) {
            while (channel_next_notice(couple.channel[side], &data, &length)) {
                ASSERT_FALSE(notices[side].empty()) << "a notice came twice";
                ASSERT_TRUE(notices[side].front() == std::string(static_cast<const char *>(data), length)) << "notices out of order";
                notices[side].pop_front();
            }
        }
    }
    bool done()
    {
        take_notices();
        for (auto &one : pending)
            if (!one.send->done() || !one.recv->done()) return false;
        return notices[0].empty() && notices[1].empty();
    }
    void check(uint64_t seed)
    {
        for (auto &one : pending) {
            ASSERT_EQ(QUOIT_OK, one.send->transfer.status) << "seed " << seed;
            ASSERT_EQ(QUOIT_OK, one.recv->transfer.status) << "seed " << seed;
            ASSERT_TRUE(one.recv->canaries()) << "seed " << seed;
            ASSERT_TRUE(one.recv->content() == one.content) << "seed " << seed << ": a message of " << one.content.size() << " bytes is wrong";
        }
    }
};

uint64_t first_seed()
{
    const char *text = getenv("QUOIT_TEST_SEED");
    return text ? strtoull(text, nullptr, 10) : 1;
}

int rounds() { return built_long_run() ? 4000 : 150; }

} // namespace

TEST(ChannelRails, WhateverIsLostEveryMessageComesOnce)
{
    for (uint64_t seed = first_seed(), last = seed + (uint64_t)rounds(); seed < last; seed++) {
        int pipes = 2 + (int)(seed % 3);
        Couple couple(seed, rails(pipes));
        Traffic traffic(couple);
        std::vector<int> order(pipes);
        for (int i = 0; i < pipes; i++) order[i] = i;
        std::shuffle(order.begin(), order.end(), couple.random);
        for (int i = 0; i < pipes; i++)
            for (int side = 0; side < 2; side++) channel_weigh(couple.channel[side], i, 1 + (uint32_t)below(couple.random, 10));
        for (int victim = 0; victim < pipes; victim++) { /* the last one stays */
            for (size_t i = below(couple.random, 12); i > 0; i--) traffic.post();
            for (size_t i = below(couple.random, 300); i > 0; i--) couple.step((int)below(couple.random, 2)), traffic.take_notices();
            if (victim == pipes - 1) break;
            if (below(couple.random, 2)) cut(couple, order[victim]);
            int first = (int)below(couple.random, 2);
            give_up(couple, first, order[victim]);
            for (size_t i = below(couple.random, 60); i > 0; i--) couple.step((int)below(couple.random, 2)), traffic.take_notices();
            if (below(couple.random, 2)) give_up(couple, 1 - first, order[victim]);
        }
        /* Whoever waits for bytes to be acknowledged on a cut cable finds out in the end; a side that has sent nothing need not. */
        auto all_give_up = [&] {
            for (int victim = 0; victim < pipes - 1; victim++)
                for (int side = 0; side < 2; side++) give_up(couple, side, order[victim]);
        };
        if (!couple.run([&] { return traffic.done(); }, 20000)) all_give_up();
        ASSERT_TRUE(couple.run([&] { return traffic.done(); })) << "seed " << seed << " hangs: " << error_text();
        traffic.check(seed);
        if (HasFatalFailure()) return;
        all_give_up();
        auto all_lost = [&] {
            const char *cause;
            int lost = 0;
            for (auto *channel : couple.channel)
                for (int pipe = 0; pipe < pipes; pipe++) lost += channel_pipe_state(channel, pipe, &cause) == CHANNEL_PIPE_LOST;
            return lost == 2 * (pipes - 1);
        };
        ASSERT_TRUE(couple.run([&] { return all_lost() && channel_idle(couple.channel[0]) && channel_idle(couple.channel[1]); })) << "seed " << seed;
        channel_close(couple.channel[0]);
        ASSERT_TRUE(couple.run([&] { return channel_peer_closed(couple.channel[1]); })) << "seed " << seed << ": no goodbye";
    }
}

TEST(ChannelRails, CancelledMessagesAreNotSentAgain)
{
    for (uint64_t seed = first_seed(), last = seed + (uint64_t)rounds(); seed < last; seed++) {
        Couple couple(seed, rails(2));
        auto send = post_send(couple.channel[0], KEY, pattern(300000, seed)), recv = post_recv(couple.channel[1], KEY, 300000);
        auto kept = post_send(couple.channel[0], {8, 1}, pattern(300000, seed + 1)), into = post_recv(couple.channel[1], {8, 1}, 300000);
        for (size_t i = below(couple.random, 120); i > 0; i--) couple.step((int)below(couple.random, 2));
        int pipe = (int)below(couple.random, 2), side = (int)below(couple.random, 2);
        if (seed % 2) give_up(couple, side, pipe);
        for (auto *channel : couple.channel) channel_cancel(channel, KEY.comm);
        if (send->transfer.status != QUOIT_OK) { /* from now on its memory belongs to the caller, and is not read */
            EXPECT_EQ(QUOIT_ERR_ABORTED, send->transfer.status);
            send->bytes.assign(send->bytes.size(), 'x');
        }
        std::string before = recv->bytes;
        if (seed % 2 == 0) give_up(couple, side, pipe);
        ASSERT_TRUE(couple.run([&] { return kept->done() && into->done(); })) << "seed " << seed;
        EXPECT_EQ(QUOIT_OK, into->transfer.status);
        EXPECT_TRUE(into->content() == pattern(300000, seed + 1)) << "seed " << seed;
        EXPECT_TRUE(recv->bytes == before) << "seed " << seed << ": a cancelled receive's buffer was written";
    }
}

TEST(ChannelRails, TheLastPipeIsTheEnd)
{
    Couple couple(3, rails(2));
    auto send = post_send(couple.channel[0], KEY, pattern(300000, 1)), recv = post_recv(couple.channel[1], KEY, 300000);
    give_up(couple, 0, 0);
    EXPECT_EQ(QUOIT_OK, channel_status(couple.channel[0]));
    give_up(couple, 0, 1);
    EXPECT_EQ(QUOIT_ERR_NETWORK, channel_status(couple.channel[0]));
    EXPECT_NE(std::string(error_text()).find("the test cut pipe 1"), std::string::npos) << error_text();
    EXPECT_EQ(QUOIT_ERR_NETWORK, send->transfer.status);
    channel_fail(couple.channel[1], QUOIT_ERR_CLOSED); /* before the message goes */
}

TEST(ChannelRails, BytesAreSharedOutByWeight)
{
    struct Case {
        uint32_t weight[3];
        int pipes;
    };
    for (const Case &one : {Case{{1000, 300}, 2}, Case{{1, 1}, 2}, Case{{25000, 10000, 10000}, 3}}) {
        Couple couple(11, rails(one.pipes));
        uint32_t sum = 0;
        for (int i = 0; i < one.pipes; i++) sum += one.weight[i], channel_weigh(couple.channel[0], i, one.weight[i]);
        constexpr size_t LENGTH = 4 << 20;
        auto send = post_send(couple.channel[0], KEY, pattern(LENGTH, 5)), recv = post_recv(couple.channel[1], KEY, LENGTH);
        /* Pipes carry as fast as their weights say: each round some bytes of each. */
        std::vector<uint64_t> carried((size_t)one.pipes, 0);
        for (int round = 0; round < 200000 && !(send->done() && recv->done()); round++) {
            for (int i = 0; i < one.pipes; i++) {
                size_t before = couple.stream(0, i).bytes.size();
                channel_write(couple.channel[0], i, 1 << 17);
                carried[(size_t)i] += couple.stream(0, i).bytes.size() - before;
                channel_write(couple.channel[1], i, 1 << 17);
                channel_read(couple.channel[0], i, 1 << 17);
                channel_read(couple.channel[1], i, 4096u * one.weight[i] / sum + 1);
            }
        }
        ASSERT_TRUE(recv->done() && send->done());
        EXPECT_TRUE(recv->content() == pattern(LENGTH, 5));
        for (int i = 0; i < one.pipes; i++) {
            double share = static_cast<double>(carried[(size_t)i]) / LENGTH, wanted = static_cast<double>(one.weight[i]) / sum;
            EXPECT_NEAR(share, wanted, 0.1) << "pipe " << i;
        }
    }
}

/* Nothing is known of how fast they really are: then the weights alone count. */
TEST(ChannelRails, BytesThatAllPipesTakeAtOnceFollowTheWeights)
{
    Options options = rails(2);
    options.capacity = 8 << 20;
    options.whole = true;
    Couple couple(12, options);
    channel_weigh(couple.channel[0], 0, 1000), channel_weigh(couple.channel[0], 1, 300);
    constexpr size_t LENGTH = 1 << 20;
    auto send = post_send(couple.channel[0], KEY, pattern(LENGTH, 6)), recv = post_recv(couple.channel[1], KEY, LENGTH);
    for (int round = 0; round < 4; round++) { /* the grant reaches the sender */
        channel_write(couple.channel[1], 0, 1 << 20), channel_read(couple.channel[0], 0, 1 << 20);
        if (round < 2) continue;
        for (int i = 0; i < 200; i++) channel_write(couple.channel[0], i % 2, 1 << 16);
    }
    double first = static_cast<double>(couple.stream(0, 0).bytes.size()), second = static_cast<double>(couple.stream(0, 1).bytes.size());
    EXPECT_GE(first + second, static_cast<double>(LENGTH));
    EXPECT_NEAR(first / (first + second), 1000.0 / 1300.0, 1.0 / 16) << "to a piece";
    ASSERT_TRUE(couple.run([&] { return send->done() && recv->done(); }));
    EXPECT_TRUE(recv->content() == pattern(LENGTH, 6));
}

/* What was read of a small message has found its recv, or its place among those that wait; the rest comes by another pipe. */
TEST(ChannelRails, ASmallMessageThatIsCutGoesOnWhereItWas)
{
    for (int kind = 0; kind < 3; kind++) { /* its recv was there, its recv comes later, a notice */
        Options options = rails(2);
        options.whole = true;
        Couple couple(21, options);
        std::string first = pattern(1000, 1), second = pattern(1000, 2);
        MessagePtr recvs[2], sends[2];
        if (kind == 0) recvs[0] = post_recv(couple.channel[1], KEY, 1000), recvs[1] = post_recv(couple.channel[1], KEY, 1000);
        for (int i = 0; i < 2; i++) {
            const std::string &text = i ? second : first;
            if (kind < 2) sends[i] = post_send(couple.channel[0], KEY, text);
            else ASSERT_EQ(QUOIT_OK, channel_notify(couple.channel[0], text.data(), text.size()));
        }
        channel_write(couple.channel[0], 0, 1 << 20);
        couple.stream(0, 0).bytes.resize(FRAME_HEADER_SIZE + 300);
        channel_read(couple.channel[1], 0, 1 << 20);
        give_up(couple, 1, 0);
        couple.settle();
        if (kind == 1) recvs[0] = post_recv(couple.channel[1], KEY, 1000), recvs[1] = post_recv(couple.channel[1], KEY, 1000);
        for (int i = 0; i < 2; i++) {
            const std::string &text = i ? second : first;
            const void *data = nullptr;
            size_t length = 0;
            if (kind == 2) {
                ASSERT_TRUE(channel_next_notice(couple.channel[1], &data, &length)) << i;
                EXPECT_TRUE(std::string(static_cast<const char *>(data), length) == text) << i;
            } else {
                ASSERT_EQ(QUOIT_OK, recvs[i]->transfer.status) << "kind " << kind << " message " << i;
                EXPECT_TRUE(recvs[i]->content() == text) << "kind " << kind << " message " << i;
            }
        }
        EXPECT_EQ(QUOIT_OK, channel_status(couple.channel[0])) << error_text();
        EXPECT_EQ(QUOIT_OK, channel_status(couple.channel[1])) << error_text();
    }
}

TEST(ChannelRails, ASmallMessageUsesOnePipe)
{
    Couple couple(5, rails(2));
    auto send = post_send(couple.channel[0], KEY, pattern(30000, 5)), recv = post_recv(couple.channel[1], KEY, 30000);
    size_t most[2] = {0, 0};
    ASSERT_TRUE(couple.run([&] {
        for (int i = 0; i < 2; i++) most[i] = std::max(most[i], couple.stream(0, i).bytes.size());
        return send->done() && recv->done();
    }));
    EXPECT_LT(std::min(most[0], most[1]), 1000u);
}

TEST(ChannelRails, APeerThatCountsWrongBreaksTheChannel)
{
    for (int kind = 0; kind < 5; kind++) {
        Options options = rails(2);
        Couple couple(1, options);
        frame_t frame = {};
        frame.type = kind < 2 ? FRAME_RECEIPT : FRAME_LOST;
        frame.total = kind == 0 || kind == 2 ? 1000 : 0;
        frame.offset = kind == 3 ? 0 : kind == 4 ? 9 : kind == 2 ? 1 : 0; /* 3: itself; 4: none of that number */
        auto send = post_send(couple.channel[0], KEY, "hello");
        couple.settle();
        uint8_t header[FRAME_HEADER_SIZE];
        frame_write(&frame, header);
        couple.stream(1, 0).bytes.append(reinterpret_cast<char *>(header), sizeof header);
        couple.settle();
        EXPECT_EQ(QUOIT_ERR_PROTOCOL, channel_status(couple.channel[0])) << kind << ": " << error_text();
    }
}
