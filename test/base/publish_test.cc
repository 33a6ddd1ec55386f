// SPDX-License-Identifier: Apache-2.0
/** How a rank learns whether to write slots through the cache or past it. */
extern "C" {
#include "base/publish.h"
}

#include <gtest/gtest.h>

#include <vector>

namespace {

constexpr size_t BYTES = 64 << 10;
constexpr uint64_t LIMIT = BYTES * PUBLISH_SLOW_PS / 1000; /* ns */

TEST(Publish, ASlowCopyNowAndThenIsNoReason)
{
    publish_t publish = {};
    for (int round = 0; round < 100; round++) {
        for (int i = 1; i < PUBLISH_PATIENCE; i++) publish_learn(&publish, BYTES, LIMIT + 1);
        ASSERT_FALSE(publish_streams(&publish, BYTES)) << "round " << round;
        for (int i = 0; i < 8; i++) publish_learn(&publish, BYTES, LIMIT);
    }
}

// Four ranks on two processors: one mate is near, two are far.
TEST(Publish, NearAndFarMatesInTurnCountAsFar)
{
    publish_t publish = {};
    for (int i = 0; i < 6; i++) publish_learn(&publish, BYTES, i % 3 == 0 ? LIMIT / 5 : 2 * LIMIT);
    EXPECT_TRUE(publish_streams(&publish, BYTES));
    for (int i = 0; i < 100; i++) {
        publish_learn(&publish, BYTES, i % 3 == 0 ? LIMIT / 5 : 2 * LIMIT);
        ASSERT_TRUE(publish_streams(&publish, BYTES)) << "a trial with the near one is no reason to go back: " << i;
    }
}

TEST(Publish, SlowOnesInTurnAre)
{
    publish_t publish = {};
    for (int i = 0; i < PUBLISH_PATIENCE; i++) publish_learn(&publish, BYTES, LIMIT + 1);
    EXPECT_TRUE(publish_streams(&publish, BYTES));
    EXPECT_TRUE(publish_streams(&publish, PUBLISH_MINIMUM));
    EXPECT_FALSE(publish_streams(&publish, PUBLISH_MINIMUM - 1)) << "a few lines are as well in the cache";
    publish_learn(&publish, BYTES, 10 * LIMIT); /* a trial that was slow, too */
    EXPECT_TRUE(publish_streams(&publish, BYTES));
    for (int i = 0; i < PUBLISH_PATIENCE; i++) {
        EXPECT_TRUE(publish_streams(&publish, BYTES)) << i;
        publish_learn(&publish, BYTES, LIMIT / 2);
    }
    EXPECT_FALSE(publish_streams(&publish, BYTES));
}

/* `count` begins anew when a copy was timed. */
TEST(Publish, TimesSomeCopies)
{
    publish_t publish = {};
    std::vector<char> from(BYTES, 7), to(BYTES);
    publish_copy(&publish, to.data(), from.data(), PUBLISH_MINIMUM - 1);
    EXPECT_EQ(publish.count, 0u);
    for (int i = 1; i < PUBLISH_SAMPLE; i++) publish_copy(&publish, to.data(), from.data(), BYTES);
    EXPECT_EQ(publish.count, PUBLISH_SAMPLE - 1u);
    EXPECT_EQ(to, from);
    std::fill(from.begin(), from.end(), 9);
    publish_copy(&publish, to.data(), from.data(), BYTES);
    EXPECT_EQ(publish.count, 0u);
    EXPECT_EQ(to, from);

    publish = {};
    for (int i = 0; i < PUBLISH_PATIENCE; i++) publish_learn(&publish, BYTES, LIMIT + 1);
    EXPECT_EQ(publish.trial, uint32_t{PUBLISH_FIRST_TRIAL});
    for (int i = 0; i < 10; i++) publish_learn(&publish, BYTES, LIMIT + 1);
    EXPECT_EQ(publish.trial, uint32_t{PUBLISH_TRIAL}) << "rarer while they tell nothing new";
    for (int i = 1; i < PUBLISH_TRIAL; i++) publish_copy(&publish, to.data(), from.data(), BYTES);
    EXPECT_EQ(publish.count, PUBLISH_TRIAL - 1u);
    std::fill(from.begin(), from.end(), 8);
    publish_copy(&publish, to.data(), from.data(), BYTES);
    EXPECT_EQ(publish.count, 0u) << "now and then it tries the cache";
    EXPECT_EQ(to, from);
}

TEST(Publish, DoesAsItIsTold)
{
    for (publish_way_t way : {PUBLISH_CACHED, PUBLISH_STREAMED}) {
        publish_t publish = {};
        publish.way = way;
        std::vector<char> from(BYTES + 64, 3), to(BYTES + 64);
        for (int i = 0; i < 2 * PUBLISH_TRIAL; i++) publish_copy(&publish, to.data() + i % 64, from.data() + i % 7, BYTES - 64);
        EXPECT_EQ(publish.count, 0u);
        for (int i = 0; i < 10; i++) publish_learn(&publish, BYTES, LIMIT + 1);
        EXPECT_EQ(publish_streams(&publish, BYTES), way == PUBLISH_STREAMED);
        publish_copy(&publish, to.data(), from.data(), BYTES);
        EXPECT_TRUE(std::equal(to.begin(), to.begin() + BYTES, from.begin()));
    }
}

} // namespace
