// SPDX-License-Identifier: Apache-2.0
// What crosses each host's network interface, and plans for topologies that no test machine has.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "world.h"

namespace plantest {
namespace {

std::vector<int> hosts_of(const std::vector<int> &sizes)
{
    std::vector<int> host_of;
    for (size_t host = 0; host < sizes.size(); host++) host_of.insert(host_of.end(), static_cast<size_t>(sizes[host]), static_cast<int>(host));
    return host_of;
}

void expect_allreduce_bytes(const std::vector<int> &sizes, size_t count)
{
    Case one;
    one.host_of = hosts_of(sizes);
    one.algorithm = ALGORITHM_TWO_LEVEL;
    one.counts = {count};
    one.tuning.net_chunk_size = 4096;
    World world(one);
    ASSERT_EQ(world.run(5), "") << one.describe();
    uint64_t hosts = sizes.size(), bytes = count * 8, rounding = 2 * (hosts - 1) * 64 * world.binding(0).chunks;
    for (size_t host = 0; host < hosts; host++) {
        EXPECT_LE(world.sent[host], 2 * (hosts - 1) * bytes / hosts + rounding) << "host " << host << ", " << one.describe();
        EXPECT_LE(world.received[host], 2 * (hosts - 1) * bytes / hosts + rounding) << "host " << host << ", " << one.describe();
    }
    EXPECT_GE(std::accumulate(world.sent.begin(), world.sent.end(), uint64_t{0}), 2 * (hosts - 1) * bytes) << "less than must cross";
}

TEST(Bytes, AllreduceIsOptimalWhateverTheHostsHold)
{
    for (size_t count : {0, 1, 1000, 4097, 20000}) {
        expect_allreduce_bytes({4, 3}, count);
        expect_allreduce_bytes({1, 1}, count);
        expect_allreduce_bytes({1, 7}, count);
        expect_allreduce_bytes({2, 2, 2, 2}, count);
        expect_allreduce_bytes({5, 1, 3, 2, 8, 1}, count);
        expect_allreduce_bytes(std::vector<int>(16, 2), count);
    }
}

// Bytes that each host must get from outside in any algorithm, and does get in these; but that a host within a tree of a reduction gets those of each branch.
TEST(Bytes, OtherCollectivesCrossOnce)
{
    for (const std::vector<int> &sizes : std::vector<std::vector<int>>{{4, 3}, {1, 2, 3}, {3, 1, 1, 5}}) {
        Case one;
        one.host_of = hosts_of(sizes);
        size_t ranks = one.host_of.size(), hosts = sizes.size();
        for (plan_collective_t collective : {COLLECTIVE_BROADCAST, COLLECTIVE_REDUCE, COLLECTIVE_ALLGATHER, COLLECTIVE_REDUCE_SCATTER}) {
            for (plan_algorithm_t algorithm : {ALGORITHM_TWO_LEVEL, ALGORITHM_DOUBLING}) {
                one.collective = collective;
                one.algorithm = algorithm;
                one.root = static_cast<int>(ranks) - 1;
                bool blocks = collective == COLLECTIVE_ALLGATHER || collective == COLLECTIVE_REDUCE_SCATTER;
                one.counts = std::vector<size_t>(blocks ? ranks : 1, 300);
                if (!plan_fits(one)) continue;
                World world(one);
                ASSERT_EQ(world.run(9), "") << one.describe();
                uint64_t sum = std::accumulate(world.sent.begin(), world.sent.end(), uint64_t{0});
                EXPECT_EQ(sum, 2400 * (hosts - 1) * (blocks ? ranks : 1)) << one.describe();
                for (size_t host = 0; host < hosts && collective != COLLECTIVE_REDUCE_SCATTER && (blocks || algorithm == ALGORITHM_TWO_LEVEL); host++) {
                    uint64_t in = !blocks ? 2400 : 2400 * (ranks - static_cast<size_t>(sizes[host]));
                    EXPECT_LE(world.received[host], in) << "host " << host << ", " << one.describe();
                }
            }
        }
    }
}

TEST(Bytes, ModelTime)
{
    Case one;
    one.host_of = {0, 1};
    one.algorithm = ALGORITHM_TWO_LEVEL;
    one.counts = {1024};
    one.tuning.net_chunk_size = 8192;
    World world(one);
    world.alpha = 1e-3;
    world.beta = 1e-6;
    ASSERT_EQ(world.run(0), "");
    EXPECT_EQ(world.messages, 4u);
    EXPECT_NEAR(world.seconds, 2 * (1e-3 + 4096e-6), 1e-9) << "two rounds, each one message of half the vector both ways";
}

// More chunks in flight hide latency: the model must show it.
TEST(Bytes, DepthHidesLatency)
{
    double seconds[2];
    for (int i = 0; i < 2; i++) {
        Case one;
        one.host_of = {0, 0, 1, 1, 2, 2};
        one.algorithm = ALGORITHM_TWO_LEVEL;
        one.counts = {64 * 32};
        one.tuning.net_depth = i == 0 ? 1 : 4;
        World world(one);
        world.alpha = 1e-3;
        world.beta = 1e-9;
        ASSERT_EQ(world.run(0), "");
        seconds[i] = world.seconds;
    }
    EXPECT_LT(seconds[1], seconds[0] / 3);
}

TEST(Large, ThousandHostsOfEight)
{
    std::vector<int> sizes(1000, 8);
    Case one;
    one.host_of = hosts_of(sizes);
    one.algorithm = ALGORITHM_TWO_LEVEL;
    Topology topology = make_topology(one.host_of);
    auto begin = std::chrono::steady_clock::now();
    for (int rank = 0; rank < 8000; rank += 8) {
        Plan leader, member;
        ASSERT_EQ(create_plan(one, topology.get(), rank, &leader), QUOIT_OK) << error_text();
        ASSERT_EQ(create_plan(one, topology.get(), rank + 5, &member), QUOIT_OK) << error_text();
        ASSERT_LE(leader->steps, 8 * 1000 + 16);
        ASSERT_LE(member->steps, 16);
        if (rank % 400 == 0) {
            ASSERT_EQ(plan_validate(leader.get(), topology.get()), QUOIT_OK) << error_text();
        }
        ASSERT_EQ(plan_validate(member.get(), topology.get()), QUOIT_OK) << error_text();
    }
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), 60) << "2,000 plans must not take minutes";
}

TEST(Large, ThousandHostsOfEightDouble)
{
    Case one;
    one.host_of = hosts_of(std::vector<int>(1000, 8));
    one.algorithm = ALGORITHM_DOUBLING;
    one.small = true;
    one.counts = {5};
    World world(one);
    ASSERT_EQ(world.run(0), "");
    EXPECT_LE(*std::max_element(world.sent.begin(), world.sent.end()), 40u * 12);
}

TEST(Large, HundredHostsOfEightRing)
{
    Case one;
    one.host_of = hosts_of(std::vector<int>(long_run() ? 300 : 100, 8));
    one.algorithm = ALGORITHM_TWO_LEVEL;
    one.counts = {4000};
    one.tuning.net_chunk_size = 32768;
    World world(one);
    ASSERT_EQ(world.run(0), "");
}

} // namespace
} // namespace plantest
