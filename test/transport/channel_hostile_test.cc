/* SPDX-License-Identifier: Apache-2.0 */
/* A channel whose peer is broken or hostile: it fails with ERR_PROTOCOL, ends its transfers, and touches no memory it should not. */
#include "channel_harness.h"

#include <gtest/gtest.h>

extern "C" {
#include "transport/framing/frame.h"
}

using namespace channel_test;

namespace {

/* Side 1 of a couple is honest; the bytes that side 0 would send are made here. */
class Hostile : public testing::Test {
protected:
    Hostile() : couple(1, whole()) {}

    static Options whole()
    {
        Options options;
        options.whole = true;
        options.pipes = 2;
        options.capacity = 1 << 24;
        return options;
    }
    void feed(const frame_t &frame, const std::string &payload = "", int pipe = 0)
    {
        uint8_t header[FRAME_HEADER_SIZE];
        frame_write(&frame, header);
        couple.stream(0, pipe).bytes.append(reinterpret_cast<char *>(header), sizeof header);
        couple.stream(0, pipe).bytes += payload;
    }
    void read()
    {
        for (int pipe = 0; pipe < 2; pipe++) channel_read(couple.channel[1], pipe, 1 << 24);
    }
    void expect_protocol_error(const std::string &part)
    {
        read();
        EXPECT_EQ(channel_status(couple.channel[1]), QUOIT_ERR_PROTOCOL) << error_text();
        EXPECT_NE(std::string(error_text()).find(part), std::string::npos) << error_text();
        EXPECT_NE(std::string(error_text()).find("peer A"), std::string::npos) << "who? " << error_text();
    }
    /* The grant number of the recv that was just announced. */
    uint64_t granted()
    {
        channel_write(couple.channel[1], 0, 1 << 20);
        std::string &bytes = couple.stream(1, 0).bytes;
        uint64_t grant = 0;
        while (bytes.size() >= FRAME_HEADER_SIZE) {
            frame_t frame;
            EXPECT_EQ(frame_parse(reinterpret_cast<const uint8_t *>(bytes.data()), 1 << 20, 1 << 20, &frame), QUOIT_OK);
            if (frame.type == FRAME_GRANT) grant = frame.grant;
            bytes.erase(0, FRAME_HEADER_SIZE);
        }
        return grant;
    }
    static frame_t data(uint64_t grant, uint64_t total, uint64_t offset, uint64_t length)
    {
        return {FRAME_DATA, 0, {1, 1}, grant, total, offset, length};
    }

    Couple couple;
};

TEST_F(Hostile, GarbageEndsTheChannelAndItsTransfers)
{
    auto recv = post_recv(couple.channel[1], {1, 1}, 10), large = post_recv(couple.channel[1], {1, 2}, 100000);
    auto send = post_send(couple.channel[1], {1, 3}, pattern(50000, 1));
    couple.stream(0, 0).bytes = pattern(1000, 5);
    expect_protocol_error("no frame");
    EXPECT_EQ(recv->transfer.status, QUOIT_ERR_PROTOCOL);
    EXPECT_EQ(large->transfer.status, QUOIT_ERR_PROTOCOL);
    EXPECT_EQ(send->transfer.status, QUOIT_ERR_PROTOCOL);
    EXPECT_EQ(channel_read(couple.channel[1], 0, 1000), 0);
    EXPECT_EQ(channel_write(couple.channel[1], 0, 1000), 0);
}

TEST_F(Hostile, DataForGrantsThatWereNeverGiven)
{
    feed(data(12345, 10, 0, 10), std::string(11, 1));
    expect_protocol_error("never given");
}

TEST_F(Hostile, DataForAGrantThatHasEndedDrains)
{
    auto recv = post_recv(couple.channel[1], {1, 1}, 5000);
    uint64_t grant = granted();
    ASSERT_NE(grant, 0u);
    channel_cancel(couple.channel[1], 1);
    recv->fill(5000, 0x77);
    for (int i = 0; i < 3; i++) feed(data(grant, 5000, 0, 4000), std::string(4000, 'x') + "\1", i % 2);
    read();
    EXPECT_EQ(channel_status(couple.channel[1]), QUOIT_OK) << error_text();
    EXPECT_EQ(recv->content(), std::string(5000, 0x77));
}

TEST_F(Hostile, MoreDataThanTheMessageHas)
{
    auto recv = post_recv(couple.channel[1], {1, 1}, 5000);
    uint64_t grant = granted();
    feed(data(grant, 5000, 0, 4000), std::string(4000, 'x') + "\1", 1);
    feed(data(grant, 5000, 0, 4000), std::string(4000, 'x') + "\1", 1);
    expect_protocol_error("missing");
    EXPECT_TRUE(recv->canaries());
    EXPECT_EQ(recv->transfer.status, QUOIT_ERR_PROTOCOL);
}

TEST_F(Hostile, DataOfAnotherTotal)
{
    auto recv = post_recv(couple.channel[1], {1, 1}, 5000);
    uint64_t grant = granted();
    feed(data(grant, 6000, 2000, 4000), std::string(4000, 'x') + "\1");
    expect_protocol_error("6000");
    EXPECT_TRUE(recv->canaries());
}

TEST_F(Hostile, AByteThatIsNeitherGoodNorBad)
{
    auto recv = post_recv(couple.channel[1], {1, 1}, 2000);
    uint64_t grant = granted();
    feed(data(grant, 2000, 0, 2000), std::string(2000, 'x') + "\2");
    expect_protocol_error("byte 2");
    EXPECT_TRUE(recv->canaries());
}

TEST_F(Hostile, UnaskedMessagesBeyondThePool)
{
    for (uint64_t i = 0; i < 100; i++) feed({FRAME_EAGER, 0, {1, i}, 0, 1000, 0, 1000}, std::string(1000, 'x'));
    expect_protocol_error("pool");
}

TEST_F(Hostile, CreditThatWasNotSpent)
{
    feed({FRAME_CREDIT, 0, {0, 0}, 0, 0, 0, 1});
    expect_protocol_error("credit");
}

TEST_F(Hostile, FramesOnTheWrongPipe)
{
    feed({FRAME_EAGER, 0, {1, 1}, 0, 1, 0, 1}, "x", 1);
    expect_protocol_error("pipe 1");
}

TEST_F(Hostile, BytesAfterTheGoodbye)
{
    feed({FRAME_BYE, 0, {0, 0}, 0, 0, 0, 0});
    feed({FRAME_ASK, 0, {1, 1}, 0, 1, 0, 0});
    expect_protocol_error("goodbye");
}

TEST_F(Hostile, TruncatedFramesAreAFailureWhenThePipeEnds)
{
    auto recv = post_recv(couple.channel[1], {1, 1}, 1000);
    feed({FRAME_EAGER, 0, {1, 1}, 0, 1000, 0, 1000}, std::string(400, 'x'));
    read();
    EXPECT_FALSE(recv->done());
    couple.stream(0, 0).ended = true;
    read();
    EXPECT_EQ(recv->transfer.status, QUOIT_ERR_PEER);
    EXPECT_TRUE(recv->canaries());
}

/* Honest, but unlucky: what is dropped on the way gives its credit back, else the pool is used up after some rounds. */
TEST_F(Hostile, CancelInTheMiddleOfAnUnaskedMessageGivesCreditBack)
{
    for (uint64_t round = 1; round <= 300; round++) {
        feed({FRAME_EAGER, 0, {round, 1}, 0, 1000, 0, 1000}, std::string(400, 'x'));
        read();
        MessagePtr recv;
        if (round % 2) recv = post_recv(couple.channel[1], {round, 1}, 1000); /* meets the half message */
        channel_cancel(couple.channel[1], round);
        couple.stream(0, 0).bytes += std::string(600, 'x');
        read();
        ASSERT_EQ(channel_status(couple.channel[1]), QUOIT_OK) << "round " << round << ": " << error_text();
        if (recv) {
            EXPECT_EQ(recv->content(), std::string(1000, 0x33));
        }
        granted();
    }
}

TEST_F(Hostile, MessagesAfterAMismatchAreDroppedAndGiveCreditBack)
{
    auto recv = post_recv(couple.channel[1], {1, 1}, 10);
    for (int i = 0; i < 300; i++) {
        feed({FRAME_EAGER, 0, {1, 1}, 0, 1000, 0, 1000}, std::string(1000, 'x'));
        read();
        granted();
        ASSERT_EQ(channel_status(couple.channel[1]), QUOIT_OK) << "message " << i << ": " << error_text();
    }
    EXPECT_EQ(recv->transfer.status, QUOIT_ERR_MISMATCH);
}

TEST_F(Hostile, GrantsAndRefusalsNobodyAskedForAreHarmless)
{
    for (uint64_t i = 0; i < 1000; i++) feed({FRAME_GRANT, 0, {1, i}, i, 50000, 0, 50000});
    for (uint64_t i = 0; i < 1000; i++) feed({FRAME_GRANT, 0, {2, i}, i, 5, 0, 5});
    for (uint64_t i = 0; i < 1000; i++) feed({FRAME_REFUSE, 0, {3, i}, 0, 5, 6, 0});
    read();
    EXPECT_EQ(channel_status(couple.channel[1]), QUOIT_OK) << error_text();
    channel_cancel(couple.channel[1], 1);
    channel_cancel(couple.channel[1], 3);
}

/* Honest traffic with bytes changed on the way: whatever happens, no crash, no write beyond a buffer, no transfer left behind. */
TEST(HostileSeeds, ChangedBytesNeverHurt)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::vector<MessagePtr> messages;
        Options options;
        options.pipes = 1 + (int)(seed % 3);
        Couple couple(seed, options);
        Random random(seed);
        for (uint64_t i = 0; i < 40; i++) {
            size_t length = below(random, 9000);
            int from = (int)below(random, 2);
            messages.push_back(post_send(couple.channel[from], {1, i}, pattern(length, i)));
            messages.push_back(post_recv(couple.channel[!from], {1, i}, below(random, 20) ? length : length + 1));
        }
        for (int step = 0; step < 3000; step++) {
            couple.step((int)below(random, 2));
            std::string &bytes = couple.stream((int)below(random, 2), (int)below(random, (size_t)options.pipes)).bytes;
            if (step % 100 == 99 && !bytes.empty()) bytes[below(random, std::min<size_t>(bytes.size(), 80))] ^= (char)(1 << below(random, 8));
            if (step == 2000) channel_cancel(couple.channel[0], 1);
        }
        for (auto *channel : couple.channel) {
            error_set(QUOIT_ERR_CLOSED, "end");
            channel_fail(channel, QUOIT_ERR_CLOSED);
        }
        for (const auto &message : messages) {
            ASSERT_TRUE(message->done());
            ASSERT_TRUE(message->canaries());
        }
    }
}

} // namespace
