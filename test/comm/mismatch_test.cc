// SPDX-License-Identifier: Apache-2.0
// Ranks that call different things: in a collective, in what they think a group is, in the world they were started for.
#include "namespaces.h"
#include "outcome.h"

#include <gtest/gtest.h>

#include <cstring>

using namespace comm_test;

namespace {

// ------------------------------------------------------------------ calls

int role_differ(ProcessRank &self)
{
    int odd = atoi(self.argument(0));
    std::string how = self.argument(1);
    size_t count = static_cast<size_t>(atol(self.argument(2)));
    if (self.create(10000) != QUOIT_OK) return 1;
    std::vector<double> send(count * 4 + 8, 1), recv(count * 4 + 8);
    bool differs = self.rank == odd;
    double begun = seconds();
    quoit_status_t status = allreduce(self.comm); /* the others may fail before this has ended here */
    if (status != QUOIT_OK)
        ;
    else if (how == "dtype")
        status = quoit_allreduce(self.comm, send.data(), recv.data(), count, differs ? QUOIT_I32 : QUOIT_F32, QUOIT_SUM, nullptr, nullptr);
    else if (how == "op")
        status = quoit_allreduce(self.comm, send.data(), recv.data(), count, QUOIT_F32, differs ? QUOIT_MAX : QUOIT_SUM, nullptr, nullptr);
    else if (how == "count")
        status = quoit_allreduce(self.comm, send.data(), recv.data(), differs ? count * 2 : count, QUOIT_F32, QUOIT_SUM, nullptr, nullptr);
    else if (how == "root")
        status = quoit_reduce(self.comm, send.data(), recv.data(), count, QUOIT_F32, QUOIT_SUM, differs ? 1 : 0, nullptr, nullptr);
    else if (how == "broadcast-root")
        status = quoit_broadcast(self.comm, recv.data(), count, QUOIT_F32, differs ? 1 : 0, nullptr, nullptr);
    else if (how == "broadcast-count")
        status = quoit_broadcast(self.comm, recv.data(), differs ? count * 2 : count, QUOIT_F32, 0, nullptr, nullptr);
    else if (differs)
        status = quoit_barrier(self.comm, nullptr, nullptr);
    else
        status = quoit_allreduce(self.comm, send.data(), recv.data(), count, QUOIT_F32, QUOIT_SUM, nullptr, nullptr);
    if (status == QUOIT_OK) status = allreduce(self.comm); /* at that operation, or the rank's next */
    self.say("ended %.6f %d %s", seconds() - begun, status, quoit_last_error());
    return 0;
}

class Differences : public testing::TestWithParam<std::tuple<Hosts, std::string>> {};

void expect_told_to_all(const Hosts &host_of, const std::string &how, const std::vector<int> &counts, const Places &places)
{
    int size = static_cast<int>(host_of.size());
    for (int count : counts)
        for (int odd : {0, size - 1}) {
            Processes ranks("differ", host_of, {std::to_string(odd), how, std::to_string(count)}, "", places.environment, places.networks);
            SCOPED_TRACE(how + " differs on rank " + std::to_string(odd) + ", count " + std::to_string(count));
            std::string once = std::to_string(count) + " elements", twice = std::to_string(2 * count) + " elements";
            std::map<std::string, std::pair<std::string, std::string>> calls = {{"dtype", {"int32", "float32"}}, {"op", {"(float32, max,", "(float32, sum,"}}, {"count", {once, twice}},
                                                                                {"broadcast-count", {once, twice}}, {"root", {"root 0", "root 1"}},
                                                                                {"broadcast-root", {"root 0", "root 1"}}, {"collective", {"barrier #3", "allreduce #3"}}};
            for (int rank = 0; rank < size; rank++) {
                Outcome one = outcome(ranks, rank, "ended", 30);
                EXPECT_EQ(one.status, QUOIT_ERR_MISMATCH) << "rank " << rank << ": " << one.text;
                EXPECT_LT(one.at, has_sanitizer() ? 4 : 1.5) << "rank " << rank << ": " << one.text; /* long before the time limit */
                EXPECT_NE(one.text.find("but rank "), std::string::npos) << one.text;
                EXPECT_TRUE(names(one.text, odd, ranks.pid(odd))) << "not told who differs: " << one.text;
                for (const std::string &call : {calls[how].first, calls[how].second})
                    EXPECT_NE(one.text.find(call), std::string::npos) << "'" << call << "' was called: " << one.text;
                EXPECT_EQ(one.text.find(" told by ", one.text.find(" told by ") + 1), std::string::npos) << one.text;
                EXPECT_EQ(ranks.wait_exit(rank, 20), 0);
            }
        }
}

TEST_P(Differences, AreToldToAll)
{
    const auto &[host_of, how] = GetParam();
    expect_told_to_all(host_of, how, {100, 100000}, Places(host_of, false));
}

const std::string kinds[] = {"dtype", "op", "count", "root", "collective", "broadcast-root", "broadcast-count"};

INSTANTIATE_TEST_SUITE_P(All, Differences, testing::Combine(testing::Values(Hosts{0, 0, 0}, Hosts{0, 1}, Hosts{0, 0, 1, 1}), testing::ValuesIn(kinds)));

TEST(Apart, DifferencesAreToldToAll)
{
    const Hosts host_of = {0, 0, 1};
    Places places(host_of, true);
    if (!places.why().empty()) GTEST_SKIP() << places.why();
    for (const std::string &how : kinds) expect_told_to_all(host_of, how, {1000}, places);
}

// Members that give a group of one name in another order, or of another size, have two groups that never meet.
int role_groups(ProcessRank &self)
{
    std::string how = self.argument(0);
    if (self.create(20000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    std::vector<int> members;
    for (int rank = 0; rank < self.size; rank++) members.push_back(rank);
    bool odd = self.rank == self.size - 1;
    if (odd && how == "order") std::swap(members[0], members[1]);
    if (odd && how == "size") members.erase(members.begin() + 1);
    quoit_comm_t *group = nullptr;
    if (quoit_comm_create_group(self.comm, members.data(), static_cast<int>(members.size()), "odd one", nullptr, &group) != QUOIT_OK) return 2;
    double begun = seconds();
    quoit_status_t status = quoit_barrier(group, nullptr, nullptr);
    self.say("ended %.6f %d %s", seconds() - begun, status, quoit_last_error());
    self.say("parent %.6f %d", seconds(), allreduce(self.comm));
    quoit_comm_destroy(group);
    return 0;
}

TEST(Differences, OfAGroupsMembers)
{
    for (const auto &[host_of, apart] : {std::pair{Hosts{0, 0, 0}, false}, {Hosts{0, 1, 1}, false}, {Hosts{0, 0, 1}, false}, {Hosts{0, 1, 1}, true}})
        for (std::string how : {"order", "size"}) {
            SCOPED_TRACE(name_of(host_of) + ", " + how + (apart ? ", networks apart" : ""));
            Places places(host_of, apart);
            if (!places.why().empty()) GTEST_SKIP() << places.why();
            Processes ranks("groups", host_of, {how}, "", places.environment, places.networks);
            for (int rank = 0; rank < ranks.size(); rank++) {
                Outcome one = outcome(ranks, rank, "ended", 30);
                EXPECT_EQ(one.status, QUOIT_ERR_MISMATCH) << "rank " << rank << ": " << one.text;
                EXPECT_LT(one.at, has_sanitizer() ? 8 : 3) << one.text;
                EXPECT_TRUE(names(one.text, 2, ranks.pid(2))) << one.text;
                EXPECT_NE(one.text.find("of ranks 0, 1, 2"), std::string::npos) << one.text;
                EXPECT_NE(one.text.find(how == "order" ? "of ranks 1, 0, 2" : "of ranks 0, 2"), std::string::npos) << one.text;
                EXPECT_EQ(outcome(ranks, rank, "parent").status, QUOIT_OK) << "the parent lives";
                EXPECT_EQ(ranks.wait_exit(rank, 20), 0);
            }
        }
}

// The record of rank 1 is changed on its way into the store, as one of another release would be, or another build of this one.
void expect_other_version(const std::string &part, const std::string &other)
{
    MemoryStore memory;
    memory.rewrite = [&](const std::string &key, std::string &value) {
        size_t at = value.find(part);
        if (key == "quoit/record/1" && at != std::string::npos) value.replace(at, part.size(), other);
    };
    World world{.host_of = {0, 0, 1}};
    world.store = &memory;
    run_engines(world, [&](Rank &self, MemoryStore &shared) {
        quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
        config.timeout_ms = 20000;
        quoit_store_t *store = shared.open();
        EXPECT_EQ(comm_create_on(self.engine, store, self.rank, self.size, &config, &self.comm), QUOIT_ERR_MISMATCH);
        std::string text = quoit_last_error();
        EXPECT_NE(text.find("rank 1 ("), std::string::npos) << text;
        EXPECT_NE(text.find(other), std::string::npos) << text;
        EXPECT_NE(text.find(std::string("rank 0 quoit ") + quoit_version()), std::string::npos) << text;
        quoit_store_close(store);
    });
}

TEST(Create, VersionsThatDiffer)
{
    std::string other = quoit_version();
    other[0] = '9';
    expect_other_version(quoit_version(), other);
    expect_other_version("(layout ", "(LAYOUT "); /* as long, and another */
}

#ifdef FAKE_VERBS
// Ranks that were given the same transports in different order use the same one for each pair: in the order of the lower rank.
int role_order(ProcessRank &self)
{
    if (quoit_setting_set("VERBS_LIBRARY", FAKE_VERBS) != QUOIT_OK || quoit_setting_set("INTERFACE", "lo") != QUOIT_OK ||
        quoit_setting_set("TRANSPORT", self.rank == 1 ? "tcp,verbs,self" : "verbs,tcp,self") != QUOIT_OK)
        return 1;
    if (self.create(20000) != QUOIT_OK) {
        self.say("ended 0 1 %s", quoit_last_error());
        return 1;
    }
    quoit_status_t status = allreduce(self.comm);
    for (int peer = 0; peer < self.size && status == QUOIT_OK; peer++) {
        float out = static_cast<float>(self.rank), in = -1;
        quoit_request_t *send = nullptr;
        status = quoit_send(self.comm, &out, 1, QUOIT_F32, peer, 7, nullptr, &send);
        if (status == QUOIT_OK) status = quoit_recv(self.comm, &in, 1, QUOIT_F32, peer, 7, nullptr, nullptr);
        if (status == QUOIT_OK) status = quoit_request_wait(send, -1);
        quoit_request_free(send);
        if (status == QUOIT_OK && in != static_cast<float>(peer)) return 2;
    }
    self.say("ended 0 %d %s", status, status == QUOIT_OK ? "" : quoit_last_error());
    std::string line = "edges";
    char *text = nullptr;
    if (quoit_comm_describe(self.comm, QUOIT_FORMAT_JSON, &text) != QUOIT_OK) return 3;
    for (const char *at = text; (at = strstr(at, "\"edge\": \"")); at += 9) line += " " + std::string(at + 9, strcspn(at + 9, " \","));
    free(text);
    self.say("%s", line.c_str());
    self.listen("end");
    return 0;
}

TEST(Create, TransportsInAnotherOrder)
{
    Processes ranks("order", {0, 1, 2});
    const char *expected[] = {"self verbs verbs", "verbs self tcp", "verbs tcp self"};
    for (int rank = 0; rank < 3; rank++) {
        Outcome one = outcome(ranks, rank, "ended", 30);
        EXPECT_EQ(one.status, QUOIT_OK) << "rank " << rank << ": " << one.text;
    }
    for (int rank = 0; rank < 3; rank++) EXPECT_EQ(ranks.wait_line(rank, "edges", 20), expected[rank]) << ranks.output(rank);
    for (int rank = 0; rank < 3; rank++) ranks.tell(rank, "end");
    for (int rank = 0; rank < 3; rank++) EXPECT_EQ(ranks.wait_exit(rank, 20), 0);
}
#endif

const std::map<std::string, int (*)(ProcessRank &)> roles = {{"differ", role_differ}, {"groups", role_groups},
#ifdef FAKE_VERBS
                                                               {"order", role_order},
#endif
};

} // namespace

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role(roles);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
