// SPDX-License-Identifier: Apache-2.0
// Topologies invented from labels: numbering of hosts and members, the host-grouped ring, and the summary's words.
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include "scheduler/topology.h"
}

namespace {

using Topology = std::unique_ptr<topology_t, decltype(&topology_destroy)>;

Topology make(const std::vector<int> &labels, const std::vector<uint64_t> &reach = {})
{
    topology_t *topology = nullptr;
    EXPECT_EQ(topology_create(static_cast<int>(labels.size()), labels.data(), reach.empty() ? nullptr : reach.data(), &topology), QUOIT_OK) << error_text();
    return Topology(topology, topology_destroy);
}

std::string summary(const topology_t *topology)
{
    char text[256];
    topology_summary(topology, text, sizeof text);
    return text;
}

/* What every topology must hold, whatever the labels. */
void check(const topology_t *topology, const std::vector<int> &labels)
{
    int ranks = static_cast<int>(labels.size());
    ASSERT_EQ(topology->ranks, ranks);
    int position = 0, lowest_before = -1;
    for (int host = 0; host < topology->hosts; host++) {
        ASSERT_EQ(topology->host_first[host], position);
        ASSERT_GE(topology->host_size[host], 1);
        ASSERT_GT(topology_leader(topology, host), lowest_before) << "hosts are numbered by their lowest rank";
        lowest_before = topology_leader(topology, host);
        for (int member = 0; member < topology->host_size[host]; member++, position++) {
            int rank = topology_rank(topology, host, member);
            ASSERT_EQ(topology->order[position], rank);
            ASSERT_EQ(topology->position[rank], position);
            ASSERT_EQ(topology->host[rank], host);
            ASSERT_EQ(topology->member[rank], member);
            if (member > 0) {
                ASSERT_GT(rank, topology_rank(topology, host, member - 1));
            }
        }
    }
    ASSERT_EQ(position, ranks);
    for (int a = 0; a < ranks; a++)
        for (int b = 0; b < ranks; b++)
            ASSERT_EQ(labels[a] == labels[b], topology->host[a] == topology->host[b]) << "ranks " << a << " and " << b;
}

TEST(Topology, FourAndThree)
{
    std::vector<int> labels{9, 9, -4, 9, -4, 9, -4};
    Topology topology = make(labels);
    check(topology.get(), labels);
    EXPECT_EQ(summary(topology.get()), "2 hosts: 4 + 3 ranks");
    EXPECT_EQ(topology_leader(topology.get(), 1), 2);
}

/* Ranks that are bound near to a host's interfaces lead it, of equal ones the lowest; nothing else changes. */
TEST(Topology, TheNearestLeads)
{
    Topology topology = make({7, 7, 8, 7, 8, 8}, {10, 25, 5, 25, 100, 0});
    EXPECT_EQ(topology_leader(topology.get(), 0), 1);
    EXPECT_EQ(topology_leader(topology.get(), 1), 4);
    EXPECT_EQ(std::vector<int>(topology->order, topology->order + 6), (std::vector<int>{1, 0, 3, 4, 2, 5}));
    EXPECT_EQ(std::vector<int>(topology->member, topology->member + 6), (std::vector<int>{1, 0, 1, 2, 0, 2}));
    for (int rank = 0; rank < 6; rank++) EXPECT_EQ(topology->order[topology->position[rank]], rank);
    Topology alike = make({7, 7, 8, 7, 8, 8}, std::vector<uint64_t>(6, 0));
    EXPECT_EQ(std::vector<int>(alike->order, alike->order + 6), (std::vector<int>{0, 1, 3, 2, 4, 5}));
}

TEST(Topology, WhatIsNearCounts)
{
    machine_t machine{};
    machine.nics = 3;
    machine.nic[0].mbps = 100000;
    machine.nic[1].mbps = 25000;
    EXPECT_EQ(machine_reach(&machine), 0u) << "bound to another socket";
    machine.nic[1].near = machine.nic[2].near = true;
    EXPECT_EQ(machine_reach(&machine), 25001u) << "one has no known rate";
    machine.nic[0].near = true;
    EXPECT_EQ(machine_reach(&machine), 125001u);
}

TEST(Topology, Summaries)
{
    EXPECT_EQ(summary(make({0}).get()), "1 host: 1 rank");
    EXPECT_EQ(summary(make({5, 5, 5}).get()), "1 host: 3 ranks");
    EXPECT_EQ(summary(make({0, 1, 2}).get()), "3 hosts: 1 + 1 + 1 ranks");
    std::vector<int> labels;
    for (int rank = 0; rank < 8000; rank++) labels.push_back(rank / 8);
    labels.push_back(-1);
    Topology large = make(labels);
    EXPECT_EQ(summary(large.get()), "1001 hosts: 1000 x 8 + 1 ranks");
    char small[8];
    topology_summary(large.get(), small, sizeof small);
    EXPECT_EQ(std::string(small), "1001 ho");
    topology_summary(large.get(), nullptr, 0);
}

TEST(Topology, RandomLabels)
{
    for (unsigned seed = 0; seed < 200; seed++) {
        std::mt19937 random(seed);
        std::vector<int> labels(1 + random() % 40);
        int hosts = 1 + static_cast<int>(random() % labels.size());
        for (int &label : labels) label = static_cast<int>(random() % hosts) * 1000003 - 7;
        SCOPED_TRACE("seed " + std::to_string(seed));
        Topology topology = make(labels);
        ASSERT_NO_FATAL_FAILURE(check(topology.get(), labels));
    }
}

TEST(Topology, RefusesNothing)
{
    topology_t *topology = reinterpret_cast<topology_t *>(8);
    int label = 0;
    EXPECT_EQ(topology_create(0, &label, nullptr, &topology), QUOIT_ERR_INVALID);
    EXPECT_EQ(topology, reinterpret_cast<topology_t *>(8)) << "outputs are written only on success";
    topology_destroy(nullptr);
}

} // namespace
