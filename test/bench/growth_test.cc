// SPDX-License-Identifier: Apache-2.0
// How an allreduce grows: no host's interface carries more than 2 (h-1)/h times the vector, whatever the number of ranks; few messages
// are one after the other, and few ranks are connected.
#include <gtest/gtest.h>

#include <cmath>

extern "C" {
#include "bench/growth/growth.h"
}

namespace {

struct Layout {
    const char *name;
    int hosts, ranks;
};

growth_cost_t measure(const char *layout, uint64_t bytes, int *hosts, int *ranks)
{
    growth_cost_t cost = {};
    topology_t *topology = nullptr;
    tuning_t tuning = growth_tuning();
    EXPECT_EQ(growth_parse(layout, &topology), QUOIT_OK) << layout << ": " << quoit_last_error();
    if (!topology) return cost;
    *hosts = topology->hosts;
    *ranks = topology->ranks;
    EXPECT_EQ(growth_measure(topology, &tuning, bytes, &cost), QUOIT_OK) << layout << ": " << quoit_last_error();
    topology_destroy(topology);
    return cost;
}

TEST(Growth, IsBounded)
{
    for (const Layout &layout : {Layout{"2x1", 2, 2}, Layout{"3x2", 3, 6}, Layout{"4+3", 2, 7}, Layout{"1+5+2+8", 4, 16}, Layout{"16x16", 16, 256},
                                 Layout{"33x3", 33, 99}, Layout{"100x8", 100, 800}}) {
        SCOPED_TRACE(layout.name);
        int hosts = 0, ranks = 0;
        growth_cost_t large = measure(layout.name, 64 << 20, &hosts, &ranks);
        ASSERT_EQ(hosts, layout.hosts);
        ASSERT_EQ(ranks, layout.ranks);
        double least = 2.0 * (hosts - 1) / hosts;
        EXPECT_EQ(large.algorithm, ALGORITHM_TWO_LEVEL);
        EXPECT_NEAR(large.sent, least, 1e-9);
        EXPECT_NEAR(large.received, least, 1e-9);
        EXPECT_LE(large.rounds, 2 * (hosts - 1));
        EXPECT_LE(large.connections, 2);

        growth_cost_t small = measure(layout.name, 4, &hosts, &ranks);
        int bits = static_cast<int>(std::ceil(std::log2(hosts)));
        bool power = (hosts & (hosts - 1)) == 0;
        EXPECT_LE(small.rounds, power ? bits : bits + 1) << "those beyond a power of two are folded in, and told: 2 rounds about log2 h rounded down";
        EXPECT_LE(small.sent, bits) << "each round carries the vector at most";
        EXPECT_LE(small.connections, bits + 1);
    }
}

TEST(Growth, OneHostSendsNothing)
{
    int hosts = 0, ranks = 0;
    growth_cost_t cost = measure("1x4", 64 << 20, &hosts, &ranks);
    EXPECT_EQ(hosts, 1);
    EXPECT_EQ(ranks, 4);
    EXPECT_EQ(cost.sent + cost.received, 0);
    EXPECT_EQ(cost.messages, 0u);
    EXPECT_EQ(cost.connections, 0);
}

TEST(Growth, LayoutsThatAreNoneAreRefused)
{
    for (const char *layout : {"", "x", "2x", "x2", "0x2", "2x0", "4+", "+4", "4+-3", "4,3", "5000x1", "4000x100", "2x4z", "99999999999999999999"}) {
        topology_t *topology = nullptr;
        EXPECT_EQ(growth_parse(layout, &topology), QUOIT_ERR_INVALID) << layout;
        EXPECT_EQ(topology, nullptr);
    }
}

} // namespace
