// SPDX-License-Identifier: Apache-2.0
// Hosts that do not all have the same: one without the verbs library, one whose device cannot be opened. Pairs use what both have, both sides
// the same, and describe says why; where nothing may be missing, or nothing is in common, all ranks end with one text.
#include "outcome.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <unistd.h>

extern "C" {
#include "../verbs/fake_verbs.h"
}

using namespace comm_test;

namespace {

// Arguments: "<rank> <what>", what this rank alone is given: VARIABLE=value, or "broken device". Then a file for what is logged.
int role_mixed(ProcessRank &self)
{
    std::string what = self.argument(1), log = std::string(self.argument(2)) + "." + std::to_string(self.rank);
    int file = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0 || dup2(file, 2) < 0) return 80;
    if (self.rank == atoi(self.argument(0))) {
        size_t at = what.find('=');
        if (at != std::string::npos) setenv(what.substr(0, at).c_str(), what.substr(at + 1).c_str(), 1);
        void *fake = what == "broken device" ? dlopen(FAKE_VERBS, RTLD_NOW) : nullptr;
        auto fail = fake ? reinterpret_cast<decltype(&fake_verbs_fail_call)>(dlsym(fake, "fake_verbs_fail_call")) : nullptr;
        if (fail) fail("open_device", 1, EIO);
        fake = what == "cut cable" ? dlopen(FAKE_VERBS, RTLD_NOW) : nullptr;
        auto cut = fake ? reinterpret_cast<decltype(&fake_verbs_cut)>(dlsym(fake, "fake_verbs_cut")) : nullptr;
        if (cut) cut(1);
    }
    quoit_status_t status = self.create(20000);
    report(self, "created", status);
    if (status != QUOIT_OK) return 0;
    for (size_t count : {size_t(1), size_t(100000)})
        if (status == QUOIT_OK) status = allreduce(self.comm, count);
    // All pairs: what one sends over one transport, the other must not wait for on another.
    for (int step = 1; step < self.size && status == QUOIT_OK; step++) {
        int to = (self.rank + step) % self.size, from = (self.rank + self.size - step) % self.size;
        std::vector<int> out(30000, self.rank), in(30000, -1);
        quoit_request_t *request = nullptr;
        status = quoit_recv(self.comm, in.data(), in.size(), QUOIT_I32, from, 5, nullptr, &request);
        if (status == QUOIT_OK) status = quoit_send(self.comm, out.data(), out.size(), QUOIT_I32, to, 5, nullptr, nullptr);
        if (status == QUOIT_OK) status = quoit_request_wait(request, 20000);
        quoit_request_free(request);
        if (status == QUOIT_OK && in != std::vector<int>(in.size(), from)) status = QUOIT_ERR_INTERNAL;
    }
    report(self, "used", status);
    char *text = nullptr;
    if (quoit_comm_describe(self.comm, QUOIT_FORMAT_TEXT, &text) == QUOIT_OK) {
        std::istringstream lines(text);
        for (std::string line; std::getline(lines, line);) {
            size_t rank = line.find("  rank "), colon = line.find("): ");
            if (rank == 0 && colon != std::string::npos) self.say("edge%d %s", atoi(line.c_str() + 7), line.c_str() + colon + 3);
        }
    }
    free(text);
    self.say("described");
    self.listen("end");
    return 0;
}

struct Mixed {
    Mixed(int who, const std::string &what, const std::string &transports, int size = 3)
        : log(testing::TempDir() + "quoit-mixed-" + std::to_string(getpid())),
          ranks("mixed", hosts(size), {std::to_string(who), what, log}, "",
                {"QUOIT_TRANSPORT=" + transports, "QUOIT_INTERFACE=lo", "QUOIT_CONNECT_TIMEOUT=" + std::to_string(static_cast<int>(2 * slow())) + "s", "QUOIT_VERBS_LIBRARY=" FAKE_VERBS})
    {
        for (int rank = 0; rank < size; rank++) created.push_back(outcome(ranks, rank, "created", 30));
    }
    ~Mixed()
    {
        for (int rank = 0; rank < ranks.size(); rank++) unlink((log + "." + std::to_string(rank)).c_str());
    }
    static std::vector<int> hosts(int size)
    {
        std::vector<int> each;
        for (int rank = 0; rank < size; rank++) each.push_back(rank);
        return each;
    }
    std::string edge(int from, int to) { return ranks.wait_line(from, "edge" + std::to_string(to), 20); }
    int warnings(const std::string &part) const
    {
        int count = 0;
        for (int rank = 0; rank < ranks.size(); rank++) {
            std::ifstream file(log + "." + std::to_string(rank));
            for (std::string line; std::getline(file, line);) count += line.find(part) != std::string::npos;
        }
        return count;
    }
    std::string log;
    Processes ranks;
    std::vector<Outcome> created;
};

/* All ranks can work, over tcp with rank `who`, where describe tells `why`, and over verbs else. */
void expect_tcp_with(Mixed &mixed, int who, const std::vector<std::string> &why)
{
    for (int rank = 0; rank < 3; rank++) {
        ASSERT_EQ(mixed.created[static_cast<size_t>(rank)].status, QUOIT_OK) << mixed.created[static_cast<size_t>(rank)].text;
        Outcome used = outcome(mixed.ranks, rank, "used", 40);
        EXPECT_EQ(used.status, QUOIT_OK) << used.text;
        EXPECT_EQ(mixed.ranks.wait_line(rank, "described", 20), "yes");
    }
    for (int from = 0; from < 3; from++) {
        for (int to = 0; to < 3; to++) {
            std::string edge = mixed.edge(from, to);
            if (from == to) continue;
            bool over_tcp = from == who || to == who;
            EXPECT_EQ(edge.rfind(over_tcp ? "tcp " : "verbs ", 0), 0u) << who << ": " << from << " to " << to << ": " << edge;
            for (const std::string &part : why) EXPECT_EQ(edge.find(part) != std::string::npos, over_tcp) << edge;
        }
    }
}

struct Lack {
    const char *name, *what, *why;
};

class OneHostLacksVerbs : public testing::TestWithParam<Lack> {};

} // namespace

TEST_P(OneHostLacksVerbs, PairsUseWhatBothHave)
{
    for (int who : {0, 2}) { // the lower rank's list decides, so both cases count
        Mixed mixed(who, GetParam().what, who == 0 ? "shm,verbs?,tcp" : "auto");
        std::vector<std::string> why = {"(rank " + std::to_string(who) + " has no verbs: ", GetParam().why};
        ASSERT_NO_FATAL_FAILURE(expect_tcp_with(mixed, who, why));
        EXPECT_EQ(mixed.warnings("1 of 3 ranks lack it"), 1) << "one warning for the job";
        for (int rank = 0; rank < 3; rank++) mixed.ranks.tell(rank, "end");
        for (int rank = 0; rank < 3; rank++) EXPECT_EQ(mixed.ranks.wait_exit(rank, 20), 0);
    }
}

INSTANTIATE_TEST_SUITE_P(Mixed, OneHostLacksVerbs,
                         testing::Values(Lack{"Library", "QUOIT_VERBS_LIBRARY=/nowhere/libibverbs.so.1", "/nowhere/libibverbs.so.1"},
                                         Lack{"Device", "broken device", "no RDMA device could be opened"}),
                         [](const testing::TestParamInfo<Lack> &info) { return info.param.name; });

// The device is there and its port is active, but no packet passes: found out before the first operation, by both sides.
TEST(Mixed, ATransportThatDoesNotWorkBetweenTwoIsBannedForThem)
{
    for (int who : {0, 2}) {
        Mixed mixed(who, "cut cable", who == 0 ? "shm,verbs?,tcp" : "auto");
        ASSERT_NO_FATAL_FAILURE(expect_tcp_with(mixed, who, {"(verbs does not work between the two: "}));
        EXPECT_EQ(mixed.warnings("so do 2 pairs of hosts in all"), 1) << "one warning for the job";
        for (int rank = 0; rank < 3; rank++) mixed.ranks.tell(rank, "end");
        for (int rank = 0; rank < 3; rank++) EXPECT_EQ(mixed.ranks.wait_exit(rank, 20), 0);
    }
}

TEST(Mixed, WhatWasAskedForWithoutDoubtIsAnErrorOnAllRanks)
{
    for (int who : {0, 2}) {
        Mixed mixed(who, "QUOIT_VERBS_LIBRARY=/nowhere/libibverbs.so.1", "shm,verbs,tcp");
        for (int rank = 0; rank < 3; rank++) {
            const Outcome &one = mixed.created[static_cast<size_t>(rank)];
            EXPECT_NE(one.status, QUOIT_OK) << rank;
            EXPECT_TRUE(names(one.text, who, mixed.ranks.pid(who))) << one.text;
            EXPECT_NE(one.text.find("transport verbs cannot be used"), std::string::npos) << one.text;
            EXPECT_EQ(one.text, mixed.created[0].text);
        }
    }
}

TEST(Mixed, HostsWithNothingInCommonAreAnErrorOnAllRanks)
{
    for (int who : {0, 2}) {
        Mixed mixed(who, "QUOIT_TRANSPORT=shm,verbs", "shm,tcp");
        for (int rank = 0; rank < 3; rank++) {
            const Outcome &one = mixed.created[static_cast<size_t>(rank)];
            EXPECT_EQ(one.status, QUOIT_ERR_NETWORK) << rank << ": " << one.text;
            EXPECT_TRUE(names(one.text, who, mixed.ranks.pid(who))) << one.text;
            EXPECT_NE(one.text.find("no transport joins"), std::string::npos) << one.text;
            EXPECT_NE(one.text.find("it has shm, verbs"), std::string::npos) << one.text;
            EXPECT_NE(one.text.find("it has shm, tcp"), std::string::npos) << one.text;
            EXPECT_NE(one.text.find("; shm is for ranks that share memory, and these do not"), std::string::npos) << one.text;
        }
    }
}

// The order of wishes differs: still one decision.
TEST(Mixed, RanksOfDifferentWishesMeet)
{
    Mixed mixed(2, "QUOIT_TRANSPORT=tcp,verbs", "verbs,tcp");
    for (int rank = 0; rank < 3; rank++) {
        ASSERT_EQ(mixed.created[static_cast<size_t>(rank)].status, QUOIT_OK) << mixed.created[static_cast<size_t>(rank)].text;
        Outcome used = outcome(mixed.ranks, rank, "used", 40);
        EXPECT_EQ(used.status, QUOIT_OK) << used.text;
        for (int to = 0; to < 3; to++) {
            if (to == rank) continue;
            EXPECT_EQ(mixed.edge(rank, to).rfind("verbs ", 0), 0u) << "the lower rank's first wish";
        }
    }
    for (int rank = 0; rank < 3; rank++) mixed.ranks.tell(rank, "end");
}

int main(int argc, char **argv)
{
    if (is_process_rank()) return run_role({{"mixed", role_mixed}});
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
