// SPDX-License-Identifier: Apache-2.0
// Going on with the survivors: who is left after deaths, aborts, silence and cut connections, and that the new communicator works.
#include "namespaces.h"
#include "processes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <numeric>
#include <unistd.h>

using namespace comm_test;

namespace {

using Hosts = std::vector<int>;

std::string text_of(const std::vector<int> &ranks)
{
    std::string text;
    for (int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
    return text;
}

// The old ranks of all members of `comm`, in its order, through collectives of every size class; "" and an error text when one failed.
std::string members(quoit_comm_t *comm, int old_rank)
{
    int size = quoit_comm_size(comm);
    std::vector<int> all(static_cast<size_t>(size), -1);
    if (quoit_allgather(comm, &old_rank, all.data(), 1, QUOIT_I32, nullptr, nullptr) != QUOIT_OK) return "";
    for (size_t count : {size_t(1), size_t(3000), size_t(300000)}) {
        std::vector<float> send(count, static_cast<float>(old_rank + 1)), recv(count);
        float sum = 0;
        for (int rank : all) sum += static_cast<float>(rank + 1);
        if (quoit_allreduce(comm, send.data(), recv.data(), count, QUOIT_F32, QUOIT_SUM, nullptr, nullptr) != QUOIT_OK) return "";
        for (float each : recv)
            if (each != sum) return "wrong sum";
    }
    if (all[static_cast<size_t>(quoit_comm_rank(comm))] != old_rank) return "wrong rank";
    return text_of(all);
}

// ------------------------------------------------------------------ ranks as threads

TEST(Shrink, AfterAnAbortAllGoOn)
{
    for (const Hosts &host_of : {Hosts{0}, Hosts{0, 0, 0}, Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 1, 2}}) {
        std::vector<int> all(host_of.size());
        std::iota(all.begin(), all.end(), 0);
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            quoit_comm_t *smaller = nullptr, *again = nullptr;
            EXPECT_EQ(quoit_comm_shrink(self.comm, nullptr, &smaller), QUOIT_ERR_INVALID) << "it has not failed";
            EXPECT_NE(strstr(quoit_last_error(), "has not failed"), nullptr) << quoit_last_error();
            self.meet();
            if (self.rank == self.size - 1) quoit_comm_abort(self.comm, "the test says so");
            while (members(self.comm, self.rank) != "") ;
            ASSERT_EQ(quoit_comm_shrink(self.comm, nullptr, &smaller), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(members(smaller, self.rank), text_of(all)) << name_of(host_of) << ": " << quoit_last_error();
            EXPECT_NE(quoit_comm_error(self.comm, nullptr, 0), QUOIT_OK) << "the old one stays failed";
            quoit_comm_destroy(self.comm);
            self.comm = smaller;
            EXPECT_EQ(members(self.comm, self.rank), text_of(all)) << "when the old one is gone: " << quoit_last_error();
            self.meet();
            if (self.rank == 0) quoit_comm_abort(self.comm, "once more");
            while (members(self.comm, self.rank) != "") ;
            ASSERT_EQ(quoit_comm_shrink(self.comm, nullptr, &again), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(members(again, self.rank), text_of(all)) << quoit_last_error();
            quoit_comm_destroy(again);
        });
    }
}

// Two communicators of one id would take each other's messages.
TEST(Shrink, OnlyOnce)
{
    run_ranks({.host_of = {0, 0, 1}}, [&](Rank &self) {
        quoit_comm_t *smaller = nullptr, *other = nullptr;
        if (self.rank == 1) quoit_comm_abort(self.comm, "the test says so");
        while (members(self.comm, self.rank) != "") ;
        ASSERT_EQ(quoit_comm_shrink(self.comm, nullptr, &smaller), QUOIT_OK) << quoit_last_error();
        EXPECT_EQ(quoit_comm_shrink(self.comm, nullptr, &other), QUOIT_ERR_INVALID);
        EXPECT_NE(strstr(quoit_last_error(), "has been shrunk already"), nullptr) << quoit_last_error();
        quoit_comm_destroy(other);
        EXPECT_EQ(members(smaller, self.rank), "0,1,2") << quoit_last_error();
        quoit_comm_destroy(smaller);
    });
}

TEST(Shrink, OfAGroupLeavesTheOthersAlone)
{
    run_ranks({.host_of = {0, 0, 1, 1}}, [&](Rank &self) {
        quoit_comm_t *group = nullptr, *smaller = nullptr;
        int ranks[] = {3, 1, 0};
        if (self.rank != 2) {
            ASSERT_EQ(quoit_comm_create_group(self.comm, ranks, 3, "some", nullptr, &group), QUOIT_OK);
            if (self.rank == 1) quoit_comm_abort(group, "no reason");
            while (members(group, self.rank) != "") ;
            ASSERT_EQ(quoit_comm_shrink(group, nullptr, &smaller), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(members(smaller, self.rank), "3,1,0") << quoit_last_error();
            quoit_comm_destroy(group);
            quoit_comm_destroy(smaller);
        }
        EXPECT_EQ(members(self.comm, self.rank), "0,1,2,3") << quoit_last_error();
    });
}

// One rank stays away without dying: it is left out at half the time, and told when it comes.
TEST(Shrink, SilentRanksAreLeftOut)
{
    const int timeout_ms = has_sanitizer() ? 4000 : 1600;
    for (const auto &[host_of, silent] : {std::pair{Hosts{0, 0, 0}, 0}, {Hosts{0, 0, 0}, 2}, {Hosts{0, 1, 1}, 0}, {Hosts{0, 1, 1}, 1}}) {
        std::vector<int> left = {0, 1, 2};
        left.erase(left.begin() + silent);
        SCOPED_TRACE(name_of(host_of) + ", silent rank " + std::to_string(silent));
        run_ranks({.host_of = host_of}, [&, silent = silent](Rank &self) {
            quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
            config.timeout_ms = timeout_ms;
            quoit_comm_t *smaller = nullptr;
            self.meet();
            if (self.rank == (silent + 1) % 3) quoit_comm_abort(self.comm, "the test says so");
            if (self.rank == silent) {
                self.meet();
                self.meet(); /* only now it looks what happened */
                EXPECT_EQ(quoit_comm_shrink(self.comm, &config, &smaller), QUOIT_ERR_ABORTED) << quoit_last_error();
                EXPECT_NE(strstr(quoit_last_error(), "went on without this rank"), nullptr) << quoit_last_error();
            } else {
                while (members(self.comm, self.rank) != "") ;
                double ready = seconds();
                self.meet(); /* nobody begins before both are ready, so half of the time passes for both */
                double begun = seconds();
                EXPECT_EQ(quoit_comm_shrink(self.comm, &config, &smaller), QUOIT_OK) << quoit_last_error();
                EXPECT_GT(seconds() - ready, timeout_ms / 2000.0 - 0.01);
                EXPECT_LT(seconds() - begun, timeout_ms / 1000.0);
                if (smaller) {
                    EXPECT_EQ(members(smaller, self.rank), text_of(left)) << quoit_last_error();
                }
                self.meet();
            }
            self.meet();
            quoit_comm_destroy(smaller);
        });
    }
}

// Of two ranks one is silent, and may be alive: the one with the lower rank goes on, the other must not.
TEST(Shrink, OfTwoEqualPartsOneGoesOn)
{
    for (int silent : {0, 1})
        run_ranks({.host_of = {0, 1}}, [&](Rank &self) {
            quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
            config.timeout_ms = 800;
            quoit_comm_t *smaller = nullptr;
            self.meet();
            if (self.rank != silent) {
                quoit_comm_abort(self.comm, "the test says so");
                quoit_status_t status = quoit_comm_shrink(self.comm, &config, &smaller);
                EXPECT_EQ(status, silent == 1 ? QUOIT_OK : QUOIT_ERR_NETWORK) << quoit_last_error();
                if (status == QUOIT_OK) {
                    EXPECT_EQ(members(smaller, self.rank), "0");
                } else {
                    EXPECT_NE(strstr(quoit_last_error(), "too few are left"), nullptr) << quoit_last_error();
                    EXPECT_NE(strstr(quoit_last_error(), "rank 0 ("), nullptr) << quoit_last_error();
                }
            }
            self.meet();
            quoit_comm_destroy(smaller);
        });
}

// ------------------------------------------------------------------ ranks as processes

// Works until something fails, then goes on with whoever is left until the work is done. Says each step.
int role_work(ProcessRank &self)
{
    int survivors = atoi(self.argument(0)); /* no further rank dies once they are so few */
    if (self.create(20000) != QUOIT_OK) return 1;
    self.say("ready");
    int old_rank = self.rank, shrunk = 0;
    double until = 0;
    for (;;) {
        std::vector<float> send(1 + static_cast<size_t>(rand()) % 200000, 1), recv(send.size());
        quoit_status_t status = quoit_allreduce(self.comm, send.data(), recv.data(), send.size(), QUOIT_F32, QUOIT_SUM, nullptr, nullptr);
        if (status == QUOIT_OK && recv[0] != static_cast<float>(quoit_comm_size(self.comm))) return 2;
        if (status == QUOIT_OK) {
            float over = quoit_comm_size(self.comm) == survivors && seconds() > until ? 1 : 0, all = 0; /* all stop at the same operation */
            status = quoit_allreduce(self.comm, &over, &all, 1, QUOIT_F32, QUOIT_MAX, nullptr, nullptr);
            if (status == QUOIT_OK && all > 0) break;
        }
        if (status == QUOIT_OK) continue;
        self.say("failed %.6f %d %s", seconds(), status, quoit_last_error());
        quoit_comm_t *smaller = nullptr;
        status = quoit_comm_shrink(self.comm, nullptr, &smaller);
        if (status != QUOIT_OK) {
            self.say("stuck %d %s", status, quoit_last_error());
            return 0;
        }
        quoit_comm_destroy(self.comm);
        self.comm = smaller;
        srand(1); /* they failed at different places */
        until = seconds() + 0.05;
        self.say("shrunk%d %.6f %d", ++shrunk, seconds(), quoit_comm_size(smaller));
    }
    std::string left = members(self.comm, old_rank);
    self.say("left %s", left.empty() ? quoit_last_error() : left.c_str());
    return 0;
}

struct Deaths {
    Hosts host_of;
    std::vector<int> victims;
    int apart_us; /* between the deaths */
};

void PrintTo(const Deaths &deaths, std::ostream *out)
{
    *out << name_of(deaths.host_of) << ", victims " << text_of(deaths.victims) << ", " << deaths.apart_us << " us apart";
}

class Survivors : public testing::TestWithParam<Deaths> {};

void expect_going_on(const Deaths &deaths, Places &&places)
{
    places.environment.push_back("QUOIT_LINGER=500ms");
    Processes ranks("work", deaths.host_of, {std::to_string(deaths.host_of.size() - deaths.victims.size())}, "", places.environment, places.networks);
    std::vector<int> left;
    for (int rank = 0; rank < ranks.size(); rank++)
        if (std::find(deaths.victims.begin(), deaths.victims.end(), rank) == deaths.victims.end()) left.push_back(rank);
    for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 60);
    usleep(30000);
    double killed = seconds();
    for (int victim : deaths.victims) {
        ranks.kill(victim, SIGKILL);
        if (deaths.apart_us) usleep(static_cast<useconds_t>(deaths.apart_us));
    }
    for (int rank : left) {
        EXPECT_EQ(ranks.wait_line(rank, "left", 30), text_of(left)) << "rank " << rank << ":\n" << ranks.output(rank);
        std::string line = ranks.wait_line(rank, "shrunk1", 1);
        EXPECT_LT(atof(line.c_str()) - killed, has_sanitizer() ? 12 : 4) << line;
        EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
    }
}

TEST_P(Survivors, GoOn) { expect_going_on(GetParam(), Places(GetParam().host_of, false)); }

// Between networks: a leader, one that is none, all of a host (once the one with the lowest rank), a leader and another, one after the other.
TEST(Apart, SurvivorsGoOn)
{
    for (const Deaths &deaths : {Deaths{{0, 0, 1, 1}, {0}, 0}, Deaths{{0, 0, 1, 1}, {3}, 0}, Deaths{{0, 0, 1, 1}, {0, 1}, 0}, Deaths{{0, 1, 1, 1}, {1, 2, 3}, 0},
                                 Deaths{{0, 0, 1, 1, 2}, {0, 3}, 2500}}) {
        SCOPED_TRACE(testing::PrintToString(deaths));
        Places places(deaths.host_of, true);
        if (!places.why().empty()) GTEST_SKIP() << places.why();
        expect_going_on(deaths, std::move(places));
    }
}

INSTANTIATE_TEST_SUITE_P(All, Survivors,
                         testing::Values(Deaths{{0, 0, 0}, {1}, 0}, Deaths{{0, 0, 0}, {0}, 0}, Deaths{{0, 0, 0, 0}, {0, 3}, 0},
                                         Deaths{{0, 0}, {0}, 0}, Deaths{{0, 1}, {0}, 0}, Deaths{{0, 1, 2}, {0}, 0}, Deaths{{0, 1, 2}, {2}, 0},
                                         Deaths{{0, 0, 1, 1}, {2, 3}, 0}, Deaths{{0, 0, 1, 1}, {0, 1}, 0}, Deaths{{0, 0, 1, 1}, {0, 2}, 0},
                                         Deaths{{0, 0, 1, 1}, {1, 3}, 0}, Deaths{{0, 1, 1, 1}, {1, 2, 3}, 0}, Deaths{{0, 0, 0, 0}, {0, 1}, 1500},
                                         Deaths{{0, 0, 1, 1, 2}, {0, 2}, 2500}, Deaths{{0, 0, 1, 1, 2}, {0, 1, 4}, 700}));

// Further deaths at any moment of the agreement, the leader's above all: never two lists, never a hang.
TEST(Survivors, DeathsInTheMiddle)
{
    std::mt19937_64 random(seed());
    for (const Hosts &host_of : {Hosts{0, 0, 0, 0, 0}, Hosts{0, 0, 1, 1, 2}})
        for (int round = 0; round < (long_run() ? 60 : 3); round++) {
            std::vector<int> left(host_of.size());
            std::iota(left.begin(), left.end(), 0);
            int first = 4, wait = static_cast<int>(random() % 6000), second = static_cast<int>(random() % 2), third = static_cast<int>(random() % 3);
            left.erase(std::remove_if(left.begin(), left.end(), [&](int rank) { return rank == first || rank == second || rank == third; }), left.end());
            Processes ranks("work", host_of, {std::to_string(left.size())}, "", {"QUOIT_LINGER=500ms"});
            for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 60);
            SCOPED_TRACE(name_of(host_of) + ", round " + std::to_string(round) + ": rank 4, then after " + std::to_string(wait) + " us rank " +
                         std::to_string(second) + " and rank " + std::to_string(third));
            ranks.kill(first, SIGKILL);
            usleep(static_cast<useconds_t>(wait));
            ranks.kill(second, SIGKILL);
            usleep(static_cast<useconds_t>(random() % 1500));
            ranks.kill(third, SIGKILL);
            for (int rank : left) EXPECT_EQ(ranks.wait_line(rank, "left", 30), text_of(left)) << "rank " << rank << ":\n" << ranks.output(rank);
        }
}

// The last rank is stopped, and left out; the others go on without it, and end.
int role_outlive(ProcessRank &self)
{
    quoit_comm_t *smaller = nullptr;
    quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
    config.timeout_ms = 1600;
    std::vector<float> data(100000, 1);
    quoit_call_t call = QUOIT_CALL_INIT;
    auto work = [&](quoit_comm_t *comm) { return quoit_allreduce(comm, data.data(), data.data(), data.size(), QUOIT_F32, QUOIT_MAX, &call, nullptr); };
    if (self.create(20000) != QUOIT_OK || work(self.comm) != QUOIT_OK) return 1;
    self.say("ready");
    self.listen("go");
    if (self.rank == self.size - 1) return 2; /* it is stopped by then */
    call.timeout_ms = 500;
    if (work(self.comm) == QUOIT_OK) return 3;
    call.timeout_ms = 0;
    quoit_status_t status = quoit_comm_shrink(self.comm, &config, &smaller);
    if (status == QUOIT_OK) status = work(smaller);
    self.say("shrunk %d %s", status, status == QUOIT_OK ? "" : quoit_last_error());
    double begun = seconds();
    quoit_comm_destroy(smaller);
    quoit_comm_destroy(self.comm);
    self.comm = nullptr;
    self.say("destroyed %.6f", seconds() - begun);
    return 0;
}

TEST(Shrink, DestroyDoesNotWaitForWhoWasLeftOut)
{
    for (const Hosts &host_of : {Hosts{0, 0, 0}, Hosts{0, 0, 1}, Hosts{0, 1, 2}, Hosts{0, 1, 1, 1}}) {
        SCOPED_TRACE(name_of(host_of));
        Processes ranks("outlive", host_of);
        int stopped = ranks.size() - 1;
        for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 60);
        ranks.kill(stopped, SIGSTOP);
        for (int rank = 0; rank < stopped; rank++) ranks.tell(rank, "go");
        for (int rank = 0; rank < stopped; rank++) {
            EXPECT_EQ(ranks.wait_line(rank, "shrunk", 30), "0 ") << ranks.output(rank);
            EXPECT_LT(atof(ranks.wait_line(rank, "destroyed", 30).c_str()), 0.5 + 1.5 * slow()) << "QUOIT_LINGER is 5 s";
            EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
        }
    }
}

const std::map<std::string, int (*)(ProcessRank &)> roles = {{"work", role_work}, {"outlive", role_outlive}};

} // namespace

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role(roles);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
