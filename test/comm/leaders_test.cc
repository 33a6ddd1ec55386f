// SPDX-License-Identifier: Apache-2.0
// The rank that is nearest to its host's network leads: others than the lowest ranks talk to other hosts, and every collective is as right as ever.
#include "operations.h"
#include "ranks.h"

#include <gtest/gtest.h>

#include <cstdlib>

using namespace comm_test;

namespace {

// How this rank is joined with each, as describe tells.
std::vector<std::string> edges_of(quoit_comm_t *comm)
{
    const std::string mark = "\"edge\": \"";
    char *text = nullptr;
    EXPECT_EQ(quoit_comm_describe(comm, QUOIT_FORMAT_JSON, &text), QUOIT_OK) << quoit_last_error();
    std::string all = text ? text : "";
    free(text);
    std::vector<std::string> edges;
    for (size_t at = all.find(mark); at != std::string::npos; at = all.find(mark, at + 1)) edges.push_back(all.substr(at + mark.size(), all.find('"', at + mark.size()) - at - mark.size()));
    return edges;
}

// What a rank sets in the store as its record: those of `near` have an interface beside them that is faster than any.
void bring_near(const std::vector<int> &near, std::string &value)
{
    for (int rank : near) {
        std::vector<unsigned char> again(value.size() + 4096);
        size_t length = record_bring_near(value.data(), value.size(), rank, again.data(), again.size());
        if (length > 0) value.assign(reinterpret_cast<const char *>(again.data()), length);
    }
}

} // namespace

TEST(Leaders, TheNearestTalksToOtherHosts)
{
    MemoryStore store;
    const std::vector<int> host_of = {0, 0, 0, 1, 1}, leaders = {1, 4};
    store.rewrite = [&](const std::string &, std::string &value) { bring_near(leaders, value); };
    ASSERT_TRUE(run_ranks({.host_of = host_of, .store = &store}, [&](Rank &self) {
        Case one;
        for (size_t count : {size_t(1), size_t(1000), size_t(300000)}) {
            one.count = count;
            ASSERT_EQ(perform(one, self.comm, true), "");
        }
        self.meet();
        const std::vector<std::string> edges = edges_of(self.comm);
        ASSERT_EQ(edges.size(), host_of.size());
        for (int other = 0; other < self.size; other++) {
            if (host_of[static_cast<size_t>(other)] == host_of[static_cast<size_t>(self.rank)]) continue;
            bool both_lead = (self.rank == leaders[0] && other == leaders[1]) || (self.rank == leaders[1] && other == leaders[0]);
            EXPECT_EQ(edges[static_cast<size_t>(other)].rfind(both_lead ? "tcp " : "not connected", 0), 0u) << self.rank << " to " << other << ": " << edges[static_cast<size_t>(other)];
        }
        self.meet();
        for (int each = 0; each < static_cast<int>(Collective::Count); each++)
            for (size_t count : {size_t(7), size_t(5000), size_t(100000)}) {
                one = {};
                one.collective = static_cast<Collective>(each);
                one.count = count;
                if (has_parts(one.collective)) one.counts = uneven_counts(self.random, one.collective, self.size, count);
                one.root = static_cast<int>(count % 5);
                ASSERT_EQ(perform(one, self.comm, true), "");
            }
        // A group without them has the lowest of its own.
        int members[] = {0, 2, 3};
        if (self.rank == 1 || self.rank == 4) return;
        quoit_comm_t *group = nullptr;
        ASSERT_EQ(quoit_comm_create_group(self.comm, members, 3, "others", nullptr, &group), QUOIT_OK) << quoit_last_error();
        one = {};
        one.count = 100000;
        EXPECT_EQ(perform(one, group, true), "");
        quoit_comm_destroy(group);
    }));
}
