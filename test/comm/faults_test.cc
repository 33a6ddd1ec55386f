// SPDX-License-Identifier: Apache-2.0
// Ranks that die, stop, stay away, or call something else. Ranks are processes: the program runs itself with a role.
#include "namespaces.h"
#include "outcome.h"

#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <thread>
#include <unistd.h>

using namespace comm_test;

namespace {

// ------------------------------------------------------------------ death

// The victim stays away from the library; the others are blocked, or come when it is dead, as the parent says.
int role_survive(ProcessRank &self)
{
    int victim = atoi(self.argument(0)), mode = atoi(self.argument(1));
    size_t count = static_cast<size_t>(atol(self.argument(2)));
    if (self.create(60000) != QUOIT_OK) return 1;
    quoit_status_t status = mode == 2 ? QUOIT_OK : allreduce(self.comm, count);
    quoit_comm_t *comm = self.comm;
    if (mode == 3) { /* a subgroup that the dead rank is in, too */
        std::vector<int> all;
        for (int rank = self.size - 1; rank >= 0; rank--) all.push_back(rank);
        status = quoit_comm_create_group(self.comm, all.data(), self.size, "sub", nullptr, &comm);
    }
    if (status != QUOIT_OK) return 2;
    self.say("ready");
    if (self.rank == victim) {
        self.listen("never");
        return 3;
    }
    if (mode == 1 || mode == 2) self.listen("go"); /* it dies while nobody is in a call */
    double begun = seconds();
    report(self, "ended", allreduce(comm, count));
    report(self, "again", allreduce(comm)); /* few elements: filling many would take the time that is looked at */
    char text[1024];
    self.say("kept %.6f %d %s", begun, quoit_comm_error(comm, text, sizeof text), text);
    if (comm != self.comm) quoit_comm_destroy(comm);
    return 0;
}

struct Death {
    Hosts host_of;
    int victim;
    int mode; // 0 others blocked, 1 between operations, 2 before the first, 3 blocked in a subgroup
    int count = 1000;
};

void PrintTo(const Death &death, std::ostream *out)
{
    *out << name_of(death.host_of) << " victim " << death.victim << " mode " << death.mode << " count " << death.count;
}

class Deaths : public testing::TestWithParam<Death> {};

void expect_survivors_told(const Death &death, const Places &places)
{
    Processes ranks("survive", death.host_of, {std::to_string(death.victim), std::to_string(death.mode), std::to_string(death.count)}, "", places.environment,
                    places.networks);
    for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 60);
    if (death.mode == 0 || death.mode == 3) usleep(100000); /* now they are blocked, and asleep */
    pid_t pid = ranks.pid(death.victim);
    double killed = seconds();
    ranks.kill(death.victim, SIGKILL);
    if (death.mode == 1 || death.mode == 2) {
        usleep(50000);
        for (int rank = 0; rank < ranks.size(); rank++)
            if (rank != death.victim) ranks.tell(rank, "go");
    }
    for (int rank = 0; rank < ranks.size(); rank++) {
        if (rank == death.victim) continue;
        Outcome first = outcome(ranks, rank, "ended"), again = outcome(ranks, rank, "again"), kept = outcome(ranks, rank, "kept");
        double since = death.mode == 1 || death.mode == 2 ? kept.at : killed;
        EXPECT_LT(first.at - since, promise_s()) << "rank " << rank << ": " << first.text;
        EXPECT_LT(again.at - first.at, 0.5);
        for (const Outcome *one : {&first, &again, &kept}) {
            EXPECT_EQ(one->status, QUOIT_ERR_PEER) << "rank " << rank << ": " << one->text;
            EXPECT_TRUE(names(one->text, death.victim, pid)) << "rank " << rank << " is not told that it was rank " << death.victim << ", pid " << pid << ": " << one->text;
            EXPECT_NE(one->text.find(ranks.host_name()), std::string::npos) << one->text;
            EXPECT_NE(one->text.find(" #"), std::string::npos) << "the operation is not told: " << one->text;
        }
        EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
    }
}

TEST_P(Deaths, EverySurvivorIsTold) { expect_survivors_told(GetParam(), Places(GetParam().host_of, false)); }

INSTANTIATE_TEST_SUITE_P(All, Deaths,
                         testing::Values(Death{{0, 0}, 1, 0}, Death{{0, 0}, 0, 0}, Death{{0, 0, 0, 0}, 2, 0}, Death{{0, 0, 0, 0}, 0, 0},
                                         Death{{0, 0, 0}, 1, 1}, Death{{0, 0, 0}, 1, 2}, Death{{0, 0, 0}, 2, 3}, Death{{0, 1}, 0, 0},
                                         Death{{0, 1}, 1, 0}, Death{{0, 0, 1, 1}, 0, 0}, Death{{0, 0, 1, 1}, 1, 0}, Death{{0, 0, 1, 1}, 2, 0},
                                         Death{{0, 0, 1, 1}, 3, 0}, Death{{0, 0, 1, 1}, 3, 1}, Death{{0, 0, 1, 1}, 3, 2}, Death{{0, 0, 1, 1}, 3, 3},
                                         Death{{0, 1, 2}, 2, 0}, Death{{0, 1, 2}, 1, 1}, Death{{0, 0, 1, 1}, 2, 1, 2000000},
                                         Death{{0, 0, 0, 0}, 3, 0, 2000000}, Death{{0, 0, 1, 1}, 1, 0, 2000000},
                                         Death{{0, 0, 0, 0, 0, 0, 0, 0}, 5, 0}, Death{{0, 0, 0, 0, 0, 0, 0, 0}, 0, 3}, Death{{0, 0, 0, 0, 1, 1, 1, 1}, 4, 0},
                                         Death{{0, 0, 0, 0, 1, 1, 1, 1}, 2, 1}, Death{{0, 1, 1, 2, 2, 2}, 3, 0}, Death{{0, 0, 0, 0, 0, 0, 0}, 6, 2},
                                         Death{{0, 0, 1, 2, 3}, 0, 1}));

// The same between networks: leaders and others, blocked, between operations, before the first one, in a subgroup, in the middle of a large one.
TEST(Apart, EverySurvivorIsToldOfADeath)
{
    for (const Death &death : {Death{{0, 1}, 0, 0}, Death{{0, 1}, 1, 2}, Death{{0, 0, 1, 1}, 0, 0}, Death{{0, 0, 1, 1}, 1, 0}, Death{{0, 0, 1, 1}, 2, 1},
                               Death{{0, 0, 1, 1}, 3, 2}, Death{{0, 0, 1, 1}, 2, 3}, Death{{0, 0, 1, 1}, 3, 0, 2000000}, Death{{0, 1, 2}, 1, 0},
                               Death{{0, 0, 0, 0, 1, 1, 1, 1}, 5, 0}}) {
        SCOPED_TRACE(testing::PrintToString(death));
        Places places(death.host_of, true);
        if (!places.why().empty()) GTEST_SKIP() << places.why();
        expect_survivors_told(death, places);
    }
}

// Survivors who know who they are cut a group from the one that has failed.
int role_regroup(ProcessRank &self)
{
    const int victim = 1;
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    self.say("ready");
    if (self.rank == victim) {
        self.listen("never");
        return 3;
    }
    if (allreduce(self.comm) != QUOIT_ERR_PEER) return 4;
    std::vector<int> all, living;
    for (int rank = 0; rank < self.size; rank++) {
        all.push_back(rank);
        if (rank != victim) living.push_back(rank);
    }
    quoit_comm_t *whole = nullptr, *rest = nullptr;
    if (quoit_comm_create_group(self.comm, living.data(), self.size - 1, "rest", nullptr, &rest) != QUOIT_OK) return 5;
    for (int i = 0; i < 3; i++) {
        float give = float(self.rank), got = -1;
        if (quoit_allreduce(rest, &give, &got, 1, QUOIT_F32, QUOIT_SUM, nullptr, nullptr) != QUOIT_OK) return 6;
        if (got != float(self.size * (self.size - 1) / 2 - victim)) return 7;
    }
    if (quoit_comm_create_group(self.comm, all.data(), self.size, "whole", nullptr, &whole) == QUOIT_OK) report(self, "whole", allreduce(whole));
    else report(self, "whole", QUOIT_ERR_INTERNAL);
    if (allreduce(rest) != QUOIT_OK) return 8; /* the dead one was not its member */
    quoit_comm_t *own = nullptr, *none = nullptr;
    if (quoit_comm_create_group(self.comm, &self.rank, 1, "own", nullptr, &own) != QUOIT_OK || quoit_comm_abort(own, "enough") != QUOIT_OK) return 9;
    report(self, "of the aborted", quoit_comm_create_group(own, all.data(), 1, "none", nullptr, &none));
    quoit_comm_destroy(own);
    quoit_comm_destroy(whole);
    quoit_comm_destroy(rest);
    return 0;
}

class Regroups : public testing::TestWithParam<Hosts> {};

TEST_P(Regroups, SurvivorsGoOnInAGroupOfAFailedOne)
{
    Processes ranks("regroup", GetParam());
    for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 60);
    pid_t pid = ranks.pid(1);
    ranks.kill(1, SIGKILL);
    for (int rank = 0; rank < ranks.size(); rank++) {
        if (rank == 1) continue;
        Outcome whole = outcome(ranks, rank, "whole");
        EXPECT_EQ(whole.status, QUOIT_ERR_PEER) << whole.text;
        EXPECT_TRUE(names(whole.text, 1, pid)) << whole.text;
        EXPECT_EQ(outcome(ranks, rank, "of the aborted").status, QUOIT_ERR_ABORTED);
        EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
    }
}

INSTANTIATE_TEST_SUITE_P(All, Regroups, testing::Values(Hosts{0, 0, 0}, Hosts{0, 0, 1, 1}, Hosts{0, 1, 2}), print_hosts);

// The victim dies in the middle of many operations.
int role_busy(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK) return 1;
    const size_t most = 300000;
    void *shared = nullptr; /* some ranks' input is read where it lies */
    if (self.rank != 1 && quoit_memory_alloc(self.comm, most * sizeof(float), &shared) != QUOIT_OK) return 1;
    std::vector<float> recv(most);
    self.say("ready");
    for (;;) {
        size_t count = 1 + static_cast<size_t>(rand()) % most;
        quoit_status_t status = shared ? quoit_allreduce(self.comm, shared, recv.data(), count, QUOIT_F32, QUOIT_SUM, nullptr, nullptr)
                                       : allreduce(self.comm, count);
        if (status == QUOIT_OK) continue;
        report(self, "ended", status);
        return 0;
    }
}

TEST(Death, InTheMiddleOfTraffic)
{
    for (const Hosts &host_of : {Hosts{0, 0, 0}, Hosts{0, 0, 1, 1}, Hosts{0, 1}})
        for (int round = 0; round < (long_run() ? 10 : 3); round++) {
            Processes ranks("busy", host_of);
            for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 60);
            usleep(static_cast<useconds_t>(20000 + round * 37000));
            int victim = round % ranks.size();
            pid_t pid = ranks.pid(victim);
            double killed = seconds();
            ranks.kill(victim, SIGKILL);
            for (int rank = 0; rank < ranks.size(); rank++) {
                if (rank == victim) continue;
                Outcome first = outcome(ranks, rank, "ended");
                EXPECT_LT(first.at - killed, promise_s()) << first.text;
                EXPECT_EQ(first.status, QUOIT_ERR_PEER) << first.text;
                EXPECT_TRUE(names(first.text, victim, pid)) << first.text;
                EXPECT_EQ(ranks.wait_exit(rank, 20), 0);
            }
        }
}

// ------------------------------------------------------------------ staying away, stopping

int role_absent(ProcessRank &self)
{
    int absent = atoi(self.argument(0)), timeout_ms = atoi(self.argument(1));
    bool nap = atoi(self.argument(2)); /* an earlier wait was long: nothing spins or rings any more */
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    self.say("ready");
    if (self.rank == absent) {
        self.listen("go");
        quoit_status_t status = allreduce(self.comm); /* all that it needs may have been published */
        report(self, "late", status == QUOIT_OK ? allreduce(self.comm) : status);
        return 0;
    }
    if (nap) usleep(300000);
    double begun = seconds();
    quoit_status_t status = allreduce(self.comm, 1000, timeout_ms);
    self.say("ended %.6f %d %s", seconds() - begun, status, quoit_last_error());
    self.listen("go");
    return 0;
}

class Absences : public testing::TestWithParam<Hosts> {};

void expect_missing_named(const Hosts &host_of, const Places &places)
{
    int size = static_cast<int>(host_of.size());
    for (int absent : {0, size - 1})
        for (bool stopped : {false, true}) {
            const int timeout_ms = 700;
            Processes ranks("absent", host_of, {std::to_string(absent), std::to_string(timeout_ms), stopped ? "1" : "0"}, "",
                            places.environment, places.networks);
            for (int rank = 0; rank < size; rank++) ranks.wait_line(rank, "ready", 60);
            pid_t pid = ranks.pid(absent);
            if (stopped) ranks.kill(absent, SIGSTOP);
            bool named = false;
            std::string text;
            for (int rank = 0; rank < size; rank++) {
                if (rank == absent) continue;
                Outcome one = outcome(ranks, rank, "ended");
                EXPECT_EQ(one.status, QUOIT_ERR_TIMEOUT) << "rank " << rank << ": " << one.text;
                /* Ranks begin at almost the same time, so the first that times out tells the others a little early. */
                EXPECT_GT(one.at, timeout_ms / 1000.0 - 0.25) << one.text;
                EXPECT_LT(one.at, timeout_ms / 1000.0 + 0.5 * slow()) << one.text;
                EXPECT_TRUE(names(one.text, absent, pid)) << "rank " << rank << " is not told that rank " << absent << " is missing: " << one.text;
                EXPECT_NE(one.text.find("timed out after 700 ms"), std::string::npos) << one.text;
                EXPECT_EQ(count_of(one.text, "rank " + std::to_string(absent) + " ("), 1u) << "named more than once: " << one.text;
                if (hosts_of(host_of) == 1) { /* each of them sees for itself who is missing, and names nobody else */
                    EXPECT_EQ(one.text.find("told by"), std::string::npos) << one.text;
                }
                /* Its host mates read what it called last, and to other hosts its progress thread tells it: unless it is stopped, and alone. */
                bool told = !stopped || size > hosts_of(host_of);
                const bool answered = one.text.find("newest call is allreduce #2") != std::string::npos;
                const bool silent = one.text.find("it does not answer") != std::string::npos && one.text.find("allreduce #2") != std::string::npos;
                named = named || (told ? answered : silent);
                text = one.text;
            }
            EXPECT_TRUE(named) << "nobody tells the last operation of the missing rank (allreduce #2, after the first barrier): " << text;
            if (stopped) ranks.kill(absent, SIGCONT);
            for (int rank = 0; rank < size; rank++) ranks.tell(rank, "go");
            Outcome late = outcome(ranks, absent, "late");
            EXPECT_EQ(late.status, QUOIT_ERR_TIMEOUT) << late.text;
            for (int rank = 0; rank < size; rank++) EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
        }
}

TEST_P(Absences, TimeoutNamesWhoIsMissing) { expect_missing_named(GetParam(), Places(GetParam(), false)); }

TEST(Apart, TimeoutNamesWhoIsMissing)
{
    for (const Hosts &host_of : {Hosts{0, 1}, Hosts{0, 0, 1, 1}}) {
        Places places(host_of, true);
        if (!places.why().empty()) GTEST_SKIP() << places.why();
        expect_missing_named(host_of, places);
    }
}

// A peer that is awaited both ways is named once.
int role_both_ways(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    self.say("ready");
    if (self.rank == 0) report(self, "ended", allreduce(self.comm, 2000000, 700));
    self.listen("go");
    return 0;
}

TEST(Absence, APeerIsNamedOnce)
{
    Processes ranks("both ways", {0, 1});
    for (int rank = 0; rank < 2; rank++) ranks.wait_line(rank, "ready", 60);
    Outcome one = outcome(ranks, 0, "ended");
    EXPECT_EQ(one.status, QUOIT_ERR_TIMEOUT) << one.text;
    EXPECT_EQ(count_of(one.text, "rank 1 ("), 1u) << one.text;
    EXPECT_NE(one.text.find(" (to send and to receive; its newest call is allreduce #2 (float32, sum, 1000 elements), which ended)"), std::string::npos) << one.text;
    for (int rank = 0; rank < 2; rank++) ranks.tell(rank, "go");
    for (int rank = 0; rank < 2; rank++) EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
}

INSTANTIATE_TEST_SUITE_P(All, Absences, testing::Values(Hosts{0, 0}, Hosts{0, 0, 0, 0}, Hosts{0, 1}, Hosts{0, 0, 1, 1}), print_hosts);

// What stands still is told long before its limit, by the first rank of a host that waits, and by none that waits for others who wait.
TEST(Stall, IsWarnedOf)
{
    struct Case {
        Hosts host_of;
        int absent, tells, silent;
    };
    for (const Case &each : {Case{{0, 0, 0}, 0, 1, 2}, Case{{0, 0, 0}, 2, 0, 1}, Case{{0, 1}, 1, 0, -1}, Case{{0, 0, 1, 1}, 3, 2, 1}}) {
        SCOPED_TRACE(name_of(each.host_of) + ", rank " + std::to_string(each.absent) + " is absent");
        const std::string log = temporary_path("stall");
        Processes ranks("absent", each.host_of, {std::to_string(each.absent), "1500", "0"}, "", {"QUOIT_STALL_WARNING=200ms", "QUOIT_LOG_FILE=" + log});
        const pid_t pid = ranks.pid(each.absent);
        for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 60);
        for (int rank = 0; rank < ranks.size(); rank++) {
            if (rank == each.absent) continue;
            EXPECT_EQ(outcome(ranks, rank, "ended").status, QUOIT_ERR_TIMEOUT) << rank;
        }
        for (int rank = 0; rank < ranks.size(); rank++) ranks.tell(rank, "go");
        for (int rank = 0; rank < ranks.size(); rank++) EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
        size_t told = 0;
        std::ifstream file(log);
        for (std::string line; std::getline(file, line);) {
            if (line.find(" warn stall: ") == std::string::npos) continue;
            EXPECT_EQ(line.find("[world, rank " + std::to_string(each.silent) + "]"), std::string::npos) << line;
            if (line.find("[world, rank " + std::to_string(each.tells) + "] allreduce #3 (float32, sum, 1000 elements) has stood still for ") == std::string::npos) continue;
            told++;
            EXPECT_NE(line.find(": waiting for rank "), std::string::npos) << line;
            EXPECT_TRUE(names(line, each.absent, pid)) << line;
            EXPECT_NE(line.find("its newest call is allreduce #2"), std::string::npos) << line;
        }
        EXPECT_GE(told, 1u) << "after 0.2 s, 0.4, 0.8, ...";
        EXPECT_LE(told, 4u) << "seldom";
        unlink(log.c_str());
    }
}

// One that takes long, but goes on, does not stand still.
int role_slow(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK) return 1;
    quoit_status_t status = QUOIT_OK;
    for (int i = 0; i < 12 && status == QUOIT_OK; i++) {
        if (self.rank == 1) usleep(100000);
        status = allreduce(self.comm);
    }
    report(self, "ended", status);
    return 0;
}

TEST(Stall, IsNoSlowProgram)
{
    const std::string log = temporary_path("stall");
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
        Processes ranks("slow", host_of, {}, "", {"QUOIT_STALL_WARNING=" + std::to_string(static_cast<int>(800 * slow())) + "ms", "QUOIT_LOG_FILE=" + log});
        for (int rank = 0; rank < 2; rank++) EXPECT_EQ(outcome(ranks, rank, "ended").status, QUOIT_OK) << rank;
        for (int rank = 0; rank < 2; rank++) EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
    }
    std::ifstream file(log);
    for (std::string line; std::getline(file, line);) EXPECT_EQ(line.find("stall"), std::string::npos) << line;
    unlink(log.c_str());
}

// The last rank is in a group of its own, waiting for somebody who does not come either; or it does nothing at all.
int role_silent(ProcessRank &self)
{
    std::string how = self.argument(0);
    int timeout_ms = atoi(self.argument(1)), stuck[] = {self.size - 1, 0};
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    quoit_comm_t *other = nullptr;
    if ((self.rank == stuck[0] || self.rank == stuck[1]) && quoit_comm_create_group(self.comm, stuck, 2, "tensor-parallel", nullptr, &other) != QUOIT_OK) return 2;
    self.say("ready");
    self.listen("begin");
    if (self.rank == stuck[0]) {
        if (how == "stuck") report(self, "ended", quoit_barrier(other, nullptr, nullptr));
        self.listen("go");
        quoit_comm_destroy(other);
        return 0;
    }
    double begun = seconds();
    quoit_status_t status;
    if (how == "set") {
        if (quoit_comm_set_timeout(self.comm, timeout_ms) != QUOIT_OK) return 3;
        status = allreduce(self.comm);
    } else
        status = allreduce(self.comm, 1000, timeout_ms);
    self.say("ended %.6f %d %s", seconds() - begun, status, quoit_last_error());
    self.listen("go");
    if (other) quoit_comm_abort(other, "enough");
    quoit_comm_destroy(other);
    return 0;
}

void expect_doings_told(const Hosts &host_of, bool apart)
{
    const int timeout_ms = 800;
    for (std::string how : {"stuck", "away", "set"}) {
        if (how == "set" && hosts_of(host_of) != 1) continue;
        SCOPED_TRACE(name_of(host_of) + (apart ? ", networks apart, " : ", ") + how);
        Places places(host_of, apart);
        if (!places.why().empty()) GTEST_SKIP() << places.why();
        Processes ranks("silent", host_of, {how, std::to_string(timeout_ms)}, "", places.environment, places.networks);
        for (int rank = 0; rank < 3; rank++) ranks.wait_line(rank, "ready", 60);
        for (int rank : {2, 0, 1}) ranks.tell(rank, "begin");
        bool told = false;
        double least = 100;
        for (int rank : {0, 1}) {
            Outcome one = outcome(ranks, rank, "ended");
            EXPECT_EQ(one.status, QUOIT_ERR_TIMEOUT) << one.text;
            least = std::min(least, one.at);
            EXPECT_LT(one.at, timeout_ms / 1000.0 + 0.5 * slow()) << one.text;
            EXPECT_TRUE(names(one.text, 2, ranks.pid(2))) << one.text;
            EXPECT_NE(one.text.find("timed out after 800 ms"), std::string::npos) << one.text;
            told = told || (one.text.find("newest call") != std::string::npos && one.text.find("in barrier #1 of tensor-parallel") != std::string::npos);
        }
        EXPECT_GT(least, timeout_ms / 1000.0 - 0.15) << "the two begin at about the same time";
        if (how == "stuck") {
            EXPECT_TRUE(told) << ranks.output(0) << ranks.output(1);
        }
        for (int rank : {0, 1, 2}) ranks.tell(rank, "go");
        for (int rank : {0, 1, 2}) EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
    }
}

TEST(Silence, TimeoutsTellWhatTheOthersDo)
{
    for (const Hosts &host_of : {Hosts{0, 0, 0}, Hosts{0, 1, 2}, Hosts{0, 0, 1}, Hosts{0, 1, 1}}) expect_doings_told(host_of, false);
}

TEST(Apart, TimeoutsTellWhatTheOthersDo)
{
    for (const Hosts &host_of : {Hosts{0, 1, 2}, Hosts{0, 1, 1}}) expect_doings_told(host_of, true);
}

// ------------------------------------------------------------------ abort

int role_abort(ProcessRank &self)
{
    int who = atoi(self.argument(0));
    bool group = atoi(self.argument(1));
    if (self.create(60000) != QUOIT_OK) return 1;
    quoit_comm_t *comm = self.comm;
    if (group) { /* never used before it is aborted */
        std::vector<int> all;
        for (int rank = 0; rank < self.size; rank++) all.push_back((rank + 1) % self.size);
        if (quoit_comm_create_group(self.comm, all.data(), self.size, "unused", nullptr, &comm) != QUOIT_OK) return 1;
    }
    self.say("ready");
    std::thread aborter;
    if (self.rank == who)
        aborter = std::thread([&] {
            self.listen("go");
            self.say("aborting %.6f", seconds());
            report(self, "aborted", quoit_comm_abort(comm, "the test says so"));
        });
    if (self.rank != who || !group) /* the aborting rank waits, too */
        report(self, "ended", self.rank == who ? quoit_recv(comm, &who, 1, QUOIT_I32, who == 0 ? 1 : 0, 1, nullptr, nullptr) : allreduce(comm));
    if (aborter.joinable()) aborter.join();
    if (group) { /* the parent lives */
        self.say("alive %.6f %d", seconds(), allreduce(self.comm));
        quoit_comm_destroy(comm);
    }
    return 0;
}

void expect_woken(const Hosts &host_of, bool apart)
{
    for (bool group : {false, true})
        for (int who : {0, static_cast<int>(host_of.size()) - 1}) {
            SCOPED_TRACE(name_of(host_of) + (group ? ", a group not used before" : "") + ", by rank " + std::to_string(who));
            Places places(host_of, apart);
            if (!places.why().empty()) GTEST_SKIP() << places.why();
            Processes ranks("abort", host_of, {std::to_string(who), group ? "1" : "0"}, "", places.environment, places.networks);
            for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 60);
            usleep(100000);
            ranks.tell(who, "go");
            double begun = atof(ranks.wait_line(who, "aborting", 20).c_str());
            EXPECT_EQ(outcome(ranks, who, "aborted").status, QUOIT_OK);
            for (int rank = 0; rank < ranks.size(); rank++) {
                if (group && rank == who) continue;
                Outcome one = outcome(ranks, rank, "ended");
                EXPECT_EQ(one.status, QUOIT_ERR_ABORTED) << "rank " << rank << ": " << one.text;
                EXPECT_LT(one.at - begun, promise_s()) << "rank " << rank;
                EXPECT_NE(one.text.find("the test says so"), std::string::npos) << one.text;
            }
            for (int rank = 0; rank < ranks.size(); rank++) {
                if (group) {
                    EXPECT_EQ(outcome(ranks, rank, "alive").status, QUOIT_OK) << ranks.output(rank);
                }
                EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
            }
        }
}

TEST(Abort, WakesEverybody)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 0, 0, 0}, Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 1, 2}}) expect_woken(host_of, false);
}

TEST(Apart, AnAbortWakesEverybody) { expect_woken({0, 0, 1, 1}, true); }

// The leader of a host, whose connections lead to other hosts, is away from the library when another rank of that host aborts.
int role_away(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    self.say("ready");
    if (self.rank == 0) self.listen("go");
    if (self.rank == 1) {
        self.listen("go");
        self.say("aborting %.6f", seconds());
        if (quoit_comm_abort(self.comm, "the test says so") != QUOIT_OK) return 2;
        self.listen("end");
        return 0;
    }
    report(self, "ended", allreduce(self.comm));
    return 0;
}

TEST(Abort, ReachesOtherHostsPastALeaderThatIsAway)
{
    for (const Hosts &host_of : {Hosts{0, 0, 1, 1}, Hosts{0, 0, 1, 2, 3}}) {
        Processes ranks("away", host_of);
        for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 60);
        usleep(50000);
        ranks.tell(1, "go");
        double begun = atof(ranks.wait_line(1, "aborting", 20).c_str());
        for (int rank = 2; rank < ranks.size(); rank++) {
            Outcome one = outcome(ranks, rank, "ended");
            EXPECT_EQ(one.status, QUOIT_ERR_ABORTED) << one.text;
            EXPECT_LT(one.at - begun, promise_s());
        }
        ranks.tell(0, "go");
        EXPECT_EQ(outcome(ranks, 0, "ended").status, QUOIT_ERR_ABORTED);
        ranks.tell(1, "end");
    }
}

// Those who are to hear of it do not get their turn for more than a second.
TEST(Abort, ReachesOtherHostsThatAreLate)
{
    Processes ranks("away", {0, 0, 1, 1});
    for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 60);
    for (int rank : {2, 3}) ranks.kill(rank, SIGSTOP);
    ranks.tell(1, "go");
    ranks.wait_line(1, "aborting", 20);
    usleep(1500000);
    for (int rank : {2, 3}) ranks.kill(rank, SIGCONT);
    for (int rank : {2, 3}) EXPECT_EQ(outcome(ranks, rank, "ended").status, QUOIT_ERR_ABORTED) << ranks.output(rank);
    ranks.tell(0, "go");
    EXPECT_EQ(outcome(ranks, 0, "ended").status, QUOIT_ERR_ABORTED);
    ranks.tell(1, "end");
}

const std::map<std::string, int (*)(ProcessRank &)> roles = {{"survive", role_survive}, {"regroup", role_regroup}, {"busy", role_busy},   {"absent", role_absent}, {"slow", role_slow}, {"both ways", role_both_ways},
                                                             {"silent", role_silent},   {"abort", role_abort}, {"away", role_away}};

} // namespace

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role(roles);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
