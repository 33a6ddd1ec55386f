// SPDX-License-Identifier: Apache-2.0
// Order of summation: the same bits on all ranks and for all turns of the ranks, one rounding inside a host, sums that match.
#include <gtest/gtest.h>

#include <cstring>

#include "world.h"

namespace plantest {
namespace {

const plan_algorithm_t allreduces[] = {ALGORITHM_FLAT, ALGORITHM_WINDOW, ALGORITHM_TWO_LEVEL, ALGORITHM_DOUBLING, ALGORITHM_RING};

TEST(Numbers, SameBitsOnAllRanksAndRuns)
{
    Random random(11);
    for (int ranks = 2; ranks <= 24; ranks += 1 + ranks / 8) {
        for (int sample = 0; sample < 4; sample++) {
            Case one;
            one.host_of = sample == 0 ? std::vector<int>(static_cast<size_t>(ranks), 0) : random.grouping(ranks);
            one.dtype = QUOIT_F32;
            one.wide = true;
            one.counts = {1 + random.below(700)};
            one.data_seed = random.next();
            for (plan_algorithm_t algorithm : allreduces) {
                one.algorithm = algorithm;
                one.small = random.below(2);
                one.in_place = random.below(2);
                if (!plan_fits(one)) continue;
                World world(one);
                ASSERT_EQ(world.run(0), "") << one.describe();
                std::vector<unsigned char> first = world.output(0);
                for (uint64_t seed = 1; seed < 4; seed++) {
                    for (int rank = 0; rank < ranks; rank++) ASSERT_EQ(world.output(rank), first) << "rank " << rank << ", " << one.describe();
                    ASSERT_EQ(world.run(seed * 77), "") << one.describe();
                }
            }
        }
    }
}

// The same plans in place and not, and in another cut into chunks, add in the same order.
TEST(Numbers, InPlaceChangesNoBits)
{
    for (plan_algorithm_t algorithm : allreduces) {
        Case one;
        one.host_of = algorithm == ALGORITHM_FLAT || algorithm == ALGORITHM_WINDOW ? std::vector<int>(5, 0) : std::vector<int>{0, 0, 1, 1, 1, 2, 0};
        one.algorithm = algorithm;
        one.dtype = QUOIT_F32;
        one.wide = true;
        one.counts = {500};
        World apart(one);
        one.in_place = true;
        World together(one);
        ASSERT_EQ(apart.run(3), "") << one.describe();
        ASSERT_EQ(together.run(4), "") << one.describe();
        EXPECT_EQ(apart.output(0), together.output(0)) << one.describe();
    }
}

// 256 + 7 * 1 in bfloat16 (8 significant bits): added one by one with a rounding each it stays 256; rounded once it is 264.
TEST(Numbers, OneRoundingInsideAHost)
{
    for (plan_algorithm_t algorithm : {ALGORITHM_FLAT, ALGORITHM_WINDOW}) {
        Case one;
        one.host_of = std::vector<int>(8, 0);
        one.algorithm = algorithm;
        one.dtype = QUOIT_BF16;
        one.counts = {96};
        World world(one);
        std::vector<uint16_t> send(96), recv(96 * 8);
        std::vector<plan_binding_t> bindings;
        std::vector<uint16_t> ones(96, 0x3f80), large(96, 0x4380);
        for (int rank = 0; rank < 8; rank++) {
            plan_binding_t binding = world.binding(rank);
            binding.send.base = reinterpret_cast<char *>(rank == 0 ? large.data() : ones.data());
            binding.recv.base = reinterpret_cast<char *>(recv.data() + 96 * rank);
            bindings.push_back(binding);
        }
        uint64_t sent = 0, received = 0;
        simulation_t simulation{};
        simulation.topology = world.topology();
        simulation.tuning = &one.tuning;
        simulation.dtype = QUOIT_BF16;
        simulation.op = QUOIT_SUM;
        simulation.binding = bindings.data();
        simulation.sent = &sent;
        simulation.received = &received;
        ASSERT_EQ(simulate_run(&simulation), QUOIT_OK) << error_text();
        for (uint16_t value : recv) ASSERT_EQ(value, 0x4384) << plan_algorithm_name(algorithm);
    }
}

} // namespace
} // namespace plantest
