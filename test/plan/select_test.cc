// SPDX-License-Identifier: Apache-2.0
// Which algorithm is chosen for what, and what is said when the one that is asked for does not fit.
#include <gtest/gtest.h>

#include "world.h"

extern "C" {
#include "base/settings.h"
#include "base/text.h"
}

namespace plantest {
namespace {

struct Choice {
    quoit_status_t status;
    plan_algorithm_t algorithm;
    bool small;
};

Choice choose(const std::vector<int> &host_of, plan_collective_t collective, uint64_t bytes, int forced = -1)
{
    Topology topology = make_topology(host_of);
    tuning_t tuning{};
    tuning.slot_size = 256 << 10;
    tuning.net_chunk_size = 512 << 10;
    tuning.small_limit = 8 << 10;
    tuning.net_depth = 4;
    tuning.allreduce = forced;
    Choice choice{QUOIT_OK, ALGORITHM_COUNT, false};
    choice.status = plan_select(topology.get(), &tuning, collective, bytes, &choice.algorithm, &choice.small);
    return choice;
}

const std::vector<int> alone{0}, pair{0, 0}, host{0, 0, 0, 0}, spread{0, 0, 1, 1, 1}, singles{0, 1, 2};

TEST(Select, Allreduce)
{
    EXPECT_EQ(choose(alone, COLLECTIVE_ALLREDUCE, 1 << 20).algorithm, ALGORITHM_LOCAL);
    EXPECT_EQ(choose(alone, COLLECTIVE_ALLREDUCE, 1 << 20, ALGORITHM_WINDOW).algorithm, ALGORITHM_LOCAL);
    EXPECT_EQ(choose(host, COLLECTIVE_ALLREDUCE, 8 << 10).algorithm, ALGORITHM_FLAT);
    EXPECT_TRUE(choose(host, COLLECTIVE_ALLREDUCE, 4 << 10).small);
    EXPECT_FALSE(choose(host, COLLECTIVE_ALLREDUCE, (4 << 10) + 1).small) << "a ring of slots is faster";
    EXPECT_TRUE(choose(spread, COLLECTIVE_ALLREDUCE, 8 << 10).small);
    EXPECT_EQ(choose(host, COLLECTIVE_ALLREDUCE, 43690).algorithm, ALGORITHM_FLAT);
    EXPECT_EQ(choose(host, COLLECTIVE_ALLREDUCE, 43691).algorithm, ALGORITHM_WINDOW) << "reads half as much";
    EXPECT_EQ(choose(pair, COLLECTIVE_ALLREDUCE, 1 << 30).algorithm, ALGORITHM_FLAT);
    EXPECT_EQ(choose(std::vector<int>(16, 0), COLLECTIVE_ALLREDUCE, 20000).algorithm, ALGORITHM_WINDOW);
    EXPECT_EQ(choose(spread, COLLECTIVE_ALLREDUCE, 100).algorithm, ALGORITHM_DOUBLING);
    EXPECT_EQ(choose(spread, COLLECTIVE_ALLREDUCE, 1 << 20).algorithm, ALGORITHM_TWO_LEVEL);
    EXPECT_EQ(choose(singles, COLLECTIVE_ALLREDUCE, 1 << 20).algorithm, ALGORITHM_TWO_LEVEL);
    std::vector<int> many;
    for (int i = 0; i < 1000; i++) many.push_back(i);
    EXPECT_EQ(choose(many, COLLECTIVE_ALLREDUCE, 20000).algorithm, ALGORITHM_DOUBLING) << "20 bytes a message is no ring";
    EXPECT_EQ(choose(many, COLLECTIVE_ALLREDUCE, 64 << 20).algorithm, ALGORITHM_TWO_LEVEL);
}

TEST(Select, Others)
{
    EXPECT_EQ(choose(host, COLLECTIVE_BARRIER, 0).algorithm, ALGORITHM_FLAT);
    EXPECT_EQ(choose(spread, COLLECTIVE_BARRIER, 0).algorithm, ALGORITHM_DOUBLING);
    EXPECT_EQ(choose(spread, COLLECTIVE_BROADCAST, 1 << 24).algorithm, ALGORITHM_TWO_LEVEL);
    EXPECT_EQ(choose(spread, COLLECTIVE_REDUCE, 64).algorithm, ALGORITHM_DOUBLING);
    EXPECT_EQ(choose(spread, COLLECTIVE_ALLGATHER, 64).algorithm, ALGORITHM_TWO_LEVEL);
    EXPECT_TRUE(choose(spread, COLLECTIVE_ALLGATHER, 64).small);
    EXPECT_FALSE(choose(spread, COLLECTIVE_ALLGATHER, 4096).small) << "five blocks do not fit a small slot";
    EXPECT_EQ(choose(host, COLLECTIVE_ALLTOALL, 4).algorithm, ALGORITHM_FLAT);
    EXPECT_TRUE(choose(host, COLLECTIVE_ALLTOALL, 4).small);
    EXPECT_EQ(choose(host, COLLECTIVE_ALLTOALL, 1 << 20).algorithm, ALGORITHM_WINDOW);
    EXPECT_FALSE(choose(host, COLLECTIVE_ALLTOALL, 1 << 20).small);
    EXPECT_EQ(choose(spread, COLLECTIVE_ALLTOALL, 1 << 20).algorithm, ALGORITHM_DIRECT);
    EXPECT_EQ(choose(host, COLLECTIVE_ALLTOALL, 0).algorithm, ALGORITHM_DIRECT) << "the v-form: no rank knows all sizes";
    EXPECT_FALSE(choose(host, COLLECTIVE_ALLTOALL, 0).small);
    for (plan_collective_t collective : {COLLECTIVE_GATHER, COLLECTIVE_SCATTER}) {
        EXPECT_EQ(choose(host, collective, 4).algorithm, ALGORITHM_DIRECT);
        EXPECT_FALSE(choose(host, collective, 4).small) << "not all ranks know the size";
    }
}

// What is called small has to fit a small slot: more than that is refused, and not taken for less.
TEST(Select, TheLimitOfWhatIsSmallIsThatOfItsSlots)
{
    settings_reset();
    EXPECT_EQ(quoit_setting_set("ALLREDUCE_SMALL", std::to_string(PLAN_SMALL_SLOT + 1).c_str()), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_setting_set("ALLREDUCE_SMALL", std::to_string(PLAN_SMALL_SLOT).c_str()), QUOIT_OK) << quoit_last_error();
    settings_reset();
}

TEST(Select, EveryChoiceHasAPlan)
{
    Random random(5);
    for (int i = 0; i < 3000; i++) {
        std::vector<int> host_of = random.grouping(1 + static_cast<int>(random.below(40)));
        Case one;
        one.host_of = host_of;
        one.collective = static_cast<plan_collective_t>(random.below(COLLECTIVE_COUNT));
        uint64_t bytes = random.below(2) ? random.below(20000) : random.below(size_t{1} << 28);
        Choice choice = choose(host_of, one.collective, bytes);
        ASSERT_EQ(choice.status, QUOIT_OK);
        one.algorithm = choice.algorithm;
        one.small = choice.small;
        ASSERT_TRUE(plan_fits(one)) << error_text() << " " << one.describe();
    }
}

TEST(Select, WhatDoesNotFitIsExplained)
{
    EXPECT_EQ(choose(host, COLLECTIVE_ALLREDUCE, 100, ALGORITHM_WINDOW).algorithm, ALGORITHM_WINDOW);
    EXPECT_EQ(choose(host, COLLECTIVE_ALLREDUCE, 100, ALGORITHM_RING).algorithm, ALGORITHM_RING);
    EXPECT_EQ(choose(host, COLLECTIVE_BROADCAST, 100, ALGORITHM_TWO_LEVEL).algorithm, ALGORITHM_FLAT) << "for allreduce only";
    EXPECT_EQ(choose(host, COLLECTIVE_ALLREDUCE, 100, ALGORITHM_TWO_LEVEL).status, QUOIT_ERR_INVALID);
    EXPECT_NE(std::string(error_text()).find("two_level needs ranks on several hosts; here are 4 ranks on 1 host"), std::string::npos) << error_text();
    EXPECT_EQ(choose(spread, COLLECTIVE_ALLREDUCE, 100, ALGORITHM_WINDOW).status, QUOIT_ERR_INVALID);
    EXPECT_NE(std::string(error_text()).find("window needs all ranks on one host; here are 5 ranks on 2 hosts"), std::string::npos) << error_text();
    EXPECT_EQ(choose(spread, COLLECTIVE_ALLREDUCE, 100, 99).status, QUOIT_ERR_INVALID);
}

TEST(Print, ReadsLikeAPlan)
{
    Case one;
    one.host_of = {0, 0, 1};
    one.algorithm = ALGORITHM_TWO_LEVEL;
    Topology topology = make_topology(one.host_of);
    Plan plan;
    ASSERT_EQ(create_plan(one, topology.get(), 0, &plan), QUOIT_OK);
    text_t text{};
    plan_print(plan.get(), &text);
    char *result = nullptr;
    ASSERT_EQ(text_finish(&text, &result), QUOIT_OK);
    std::string printed = result;
    free(result);
    for (const char *line : {"allreduce, rank 0, root 0: two_level", "recv from rank 2: TEMP(0) part 0/2", "await 0 of all",
                             "reduce_window SLOT(0) part 0/2 = all slots, mine SEND part 0/2", "send to rank 2: SLOT(0) part 1/2",
                             "reduce SLOT(0) part 0/2 = TEMP(0) part 0/2 + SLOT(0) part 0/2, finished", "copy RECV = SLOT(0), streamed"})
        EXPECT_NE(printed.find(line), std::string::npos) << line << "\n" << printed;
}

TEST(Create, RefusesWhatIsWrong)
{
    Topology topology = make_topology({0, 0, 1});
    Plan plan;
    Case one;
    one.host_of = {0, 0, 1};
    one.algorithm = ALGORITHM_WINDOW;
    EXPECT_EQ(create_plan(one, topology.get(), 0, &plan), QUOIT_ERR_INVALID);
    EXPECT_STREQ(error_text(), "plan of allreduce: algorithm window does not fit 3 ranks on 2 hosts");
    one.algorithm = ALGORITHM_RING;
    EXPECT_EQ(create_plan(one, topology.get(), 3, &plan), QUOIT_ERR_INVALID);
    one.root = -1;
    EXPECT_EQ(create_plan(one, topology.get(), 0, &plan), QUOIT_ERR_INVALID);
    one.root = 0;
    one.collective = COLLECTIVE_BROADCAST;
    EXPECT_EQ(create_plan(one, topology.get(), 0, &plan), QUOIT_ERR_INVALID);
    EXPECT_STREQ(error_text(), "plan of broadcast: there is no algorithm ring for it");
    one.algorithm = ALGORITHM_TWO_LEVEL;
    one.premul = true;
    EXPECT_EQ(create_plan(one, topology.get(), 0, &plan), QUOIT_ERR_INVALID);
    plan_destroy(nullptr);
}

} // namespace
} // namespace plantest
