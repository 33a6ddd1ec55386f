// SPDX-License-Identifier: Apache-2.0
// Hosts that are really apart: network namespaces. Links that are cut during a collective and between two, ranks that are killed on
// either host (leaders, others, the one that serves the store); and the ways in which a process dies, with a forked child left or not.
#include "namespaces.h"
#include "outcome.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sys/resource.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

using namespace comm_test;

namespace {

const int hosts = 2;
const Hosts host_of = {0, 0, 1, 1};

class Cuts : public testing::Test {
  protected:
    void SetUp() override
    {
        net = std::make_unique<Namespaces>(hosts);
        if (!net->why().empty()) GTEST_SKIP() << net->why();
    }
    std::vector<std::string> networks() const
    {
        std::vector<std::string> paths;
        for (int host : host_of) paths.push_back(net->path(host));
        return paths;
    }
    // The store is served by rank 0, on the first host. Labels do not tell the hosts apart: the network does.
    std::vector<std::string> environment() const
    {
        return {"COMM_TEST_STORE=tcp://" + net->address(0) + ":" + std::to_string(21000 + getpid() % 8000), "QUOIT_HOST_LABEL=one",
                "QUOIT_LOG_FILE=" + log};
    }
    void TearDown() override { unlink(log.c_str()); }
    // Lines of warnings in the ranks' log. The network namespaces are on one machine, which is warned of once a job.
    int warnings() const
    {
        std::ifstream file(log);
        int count = 0;
        for (std::string line; std::getline(file, line);) count += line.find("] warn bootstrap: ") != std::string::npos && line.find("network namespace") != std::string::npos;
        return count;
    }
    std::string log = temporary_path("log");
    std::unique_ptr<Namespaces> net;
};

// ------------------------------------------------------------------ cut links

const int timeout_ms = 1200;

// Operations one after the other until one fails ("during"), or none until told ("between").
int role_cut(ProcessRank &self)
{
    bool during = strcmp(self.argument(0), "during") == 0;
    int limit_ms = atoi(self.argument(1));
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm, 300000) != QUOIT_OK) return 1;
    self.say("ready");
    if (!during) self.listen("go");
    double begun;
    quoit_status_t status;
    do {
        begun = seconds();
        status = allreduce(self.comm, 300000, limit_ms);
    } while (during && status == QUOIT_OK);
    self.say("ended %.6f %d %s", seconds() - begun, status, quoit_last_error());
    report(self, "again", allreduce(self.comm));
    self.listen("end");
    return 0;
}

struct Cut {
    const char *name, *words; // of ip, in the second host's namespace
};

const Cut cuts[] = {{"interface down", "link set eth0 down"},
                    {"interface removed", "link del eth0"},
                    {"blackhole", "route add blackhole 10.79.0.1/32"}};

TEST_F(Cuts, AreTimeoutsOnTheHour)
{
    for (const Cut &cut : cuts)
        for (std::string when : {"during", "between"}) {
            SCOPED_TRACE(std::string(cut.name) + ", " + when + " collectives");
            net.reset();
            net = std::make_unique<Namespaces>(hosts);
            ASSERT_EQ(net->why(), "");
            Processes ranks("cut", host_of, {when, std::to_string(timeout_ms)}, "", environment(), networks());
            for (int rank = 0; rank < 4; rank++) ranks.wait_line(rank, "ready", 60);
            if (when == "during") usleep(50000); /* some operations have been run */
            ASSERT_TRUE(net->ip(1, cut.words));
            for (int rank = 0; rank < 4; rank++) ranks.tell(rank, "go");
            double longest = 0;
            for (int rank = 0; rank < 4; rank++) {
                Outcome one = outcome(ranks, rank, "ended");
                longest = std::max(longest, one.at);
                EXPECT_EQ(one.status, QUOIT_ERR_TIMEOUT) << "rank " << rank << ": " << one.text;
                EXPECT_LT(one.at, timeout_ms / 1000.0 + 0.5 * slow()) << "rank " << rank << ": " << one.text;
                EXPECT_NE(one.text.find("allreduce #"), std::string::npos) << one.text;
                int far = host_of[static_cast<size_t>(rank)] == 0 ? 2 : 0;
                EXPECT_TRUE(names(one.text, far, ranks.pid(far)) || names(one.text, far + 1, ranks.pid(far + 1)))
                    << "rank " << rank << " is not told of any rank behind the cut: " << one.text;
                EXPECT_EQ(outcome(ranks, rank, "again").status, QUOIT_ERR_TIMEOUT);
            }
            EXPECT_GE(longest, timeout_ms / 1000.0 - 0.001) << "who begins first waits all of its time; the others are told";
            for (int rank = 0; rank < 4; rank++) ranks.tell(rank, "end");
            for (int rank = 0; rank < 4; rank++) EXPECT_EQ(ranks.wait_exit(rank, 30), 0) << ranks.output(rank);
        }
}

// With more time than a silent connection is given, the connection is what fails: the text tells for how long nothing came.
TEST_F(Cuts, AreFoundWithoutATimeout)
{
    if (!long_run()) return; /* 20 s of silence */
    Processes ranks("cut", host_of, {"during", "120000"}, "", environment(), networks());
    for (int rank = 0; rank < 4; rank++) ranks.wait_line(rank, "ready", 60);
    double cut = seconds();
    ASSERT_TRUE(net->ip(1, cuts[0].words));
    for (int rank = 0; rank < 4; rank++) {
        Outcome one = outcome(ranks, rank, "ended", 60);
        EXPECT_EQ(one.status, QUOIT_ERR_NETWORK) << one.text;
        EXPECT_LT(seconds() - cut, 32 * slow()) << one.text;
        ranks.tell(rank, "end");
    }
}

// What runs in a namespace keeps it, and its links: nothing happens to a job when the name goes.
TEST_F(Cuts, NamespacesThatLoseTheirNameGoOn)
{
    Processes ranks("cut", host_of, {"between", "20000"}, "", environment(), networks());
    for (int rank = 0; rank < 4; rank++) ranks.wait_line(rank, "ready", 60);
    for (int host = 0; host < hosts; host++) ASSERT_TRUE(net->remove_name(host));
    for (int rank = 0; rank < 4; rank++) ranks.tell(rank, "go");
    for (int rank = 0; rank < 4; rank++) {
        EXPECT_EQ(outcome(ranks, rank, "ended").status, QUOIT_OK) << ranks.output(rank);
        EXPECT_EQ(outcome(ranks, rank, "again").status, QUOIT_OK) << ranks.output(rank);
        ranks.tell(rank, "end");
    }
    for (int rank = 0; rank < 4; rank++) EXPECT_EQ(ranks.wait_exit(rank, 30), 0) << ranks.output(rank);
}

// A cut that is mended in time is no failure.
TEST_F(Cuts, ThatAreMendedAreNone)
{
    Processes ranks("cut", host_of, {"between", "20000"}, "", environment(), networks());
    for (int rank = 0; rank < 4; rank++) ranks.wait_line(rank, "ready", 60);
    ASSERT_TRUE(net->ip(1, "link set eth0 down"));
    for (int rank = 0; rank < 4; rank++) ranks.tell(rank, "go");
    usleep(300000);
    ASSERT_TRUE(net->ip(1, "link set eth0 up"));
    for (int rank = 0; rank < 4; rank++) {
        EXPECT_EQ(outcome(ranks, rank, "ended").status, QUOIT_OK) << ranks.output(rank);
        ranks.tell(rank, "end");
    }
    EXPECT_EQ(warnings(), 1);
}

// ------------------------------------------------------------------ killed, hosts apart

int role_die(ProcessRank &self)
{
    int victim = atoi(self.argument(0));
    std::string way = self.argument(1), child = self.argument(2);
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    if (self.rank == victim && child == "child") {
        pid_t pid = fork();
        if (pid == 0) {
            close(0);
            close(1);
            sleep(30);
            _exit(0);
        }
        self.say("child %d", pid);
    }
    self.say("ready");
    if (self.rank == victim) {
        self.listen("go");
        rlimit cores = {0, 0};
        if (way == "core") { /* as large as it may be: its peers wait until it is written */
            getrlimit(RLIMIT_CORE, &cores);
            cores.rlim_cur = cores.rlim_max;
            if (chdir(self.argument(3)) != 0) return 2;
        }
        setrlimit(RLIMIT_CORE, &cores);
        if (way == "segfault") {
            signal(SIGSEGV, SIG_DFL);
            volatile uintptr_t nowhere = 0;
            *reinterpret_cast<volatile int *>(nowhere) = 1;
        }
        if (way == "abort" || way == "core") {
            signal(SIGABRT, SIG_DFL);
            abort();
        }
        if (way == "_exit") _exit(3);
        if (way == "thread") std::thread([] { _exit(3); }).join();
        kill(getpid(), SIGKILL);
    }
    report(self, "ended", allreduce(self.comm));
    self.listen("end");
    return 0;
}

void expect_told(Processes &ranks, int victim, double killed, const std::string &host_name)
{
    for (int rank = 0; rank < ranks.size(); rank++) {
        if (rank == victim) continue;
        Outcome one = outcome(ranks, rank, "ended");
        EXPECT_EQ(one.status, QUOIT_ERR_PEER) << "rank " << rank << ": " << one.text;
        EXPECT_LT(one.at - killed, promise_s()) << "rank " << rank << ": " << one.text;
        EXPECT_TRUE(names(one.text, victim, ranks.pid(victim))) << "rank " << rank << ": " << one.text;
        EXPECT_NE(one.text.find("(" + host_name), std::string::npos) << one.text;
        EXPECT_NE(one.text.find("allreduce #"), std::string::npos) << one.text;
        ranks.tell(rank, "end");
    }
    for (int rank = 0; rank < ranks.size(); rank++) {
        if (rank == victim) continue;
        EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
    }
}

// ------------------------------------------------------------------ between the halves of an agreement

// Shrinks when told; rank 0 hears its peers before, without taking part yet.
int role_agree(ProcessRank &self)
{
    quoit_comm_t *other = nullptr, *smaller = nullptr;
    quoit_request_t *request = nullptr;
    quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
    config.timeout_ms = atoi(self.argument(0));
    const int all[] = {0, 1, 2};
    if (self.create(60000) != QUOIT_OK || quoit_comm_create_group(self.comm, all, 3, "other", nullptr, &other) != QUOIT_OK || allreduce(other) != QUOIT_OK) return 1;
    self.say("ready");
    self.listen("abort");
    if (self.rank == 2) quoit_comm_abort(self.comm, "to be shrunk");
    while (allreduce(self.comm, 10) == QUOIT_OK) {}
    self.say("aborted");
    if (self.rank == 0) {
        char byte;
        self.listen("poll");
        if (quoit_recv(other, &byte, 1, QUOIT_U8, 2, 1, nullptr, &request) != QUOIT_OK) return 2;
        for (double until = seconds() + 0.3 * slow(); seconds() < until; usleep(1000)) quoit_request_test(request);
        self.say("polled");
    }
    self.listen("shrink");
    report(self, "shrunk", quoit_comm_shrink(self.comm, &config, &smaller));
    self.say("size %d", smaller ? quoit_comm_size(smaller) : 0);
    self.listen("end");
    _exit(0); /* nothing is waited for that lies behind the cut */
}

// Rank 1 has joined rank 0, who did not answer, when the link is cut, and goes on with rank 2. Rank 0 must not count on it, and go on with it by itself.
TEST_F(Cuts, OfAnAgreementLeaveOnePart)
{
    Hosts apart = {0, 1, 1};
    std::vector<std::string> paths = {net->path(0), net->path(1), net->path(1)};
    /* Rank 0 waits all that time. */
    Processes ranks("agree", apart, {std::to_string(static_cast<int>(3000 * std::min(slow(), 6.0)))}, "", environment(), paths);
    for (int rank = 0; rank < 3; rank++) ranks.wait_line(rank, "ready", 60);
    for (int rank = 0; rank < 3; rank++) ranks.tell(rank, "abort");
    for (int rank = 0; rank < 3; rank++) ranks.wait_line(rank, "aborted", 30);
    ranks.tell(0, "poll");
    ranks.tell(1, "shrink");
    ranks.wait_line(0, "polled", 30);
    ASSERT_TRUE(net->ip(1, "link set eth0 down"));
    ranks.tell(0, "shrink");
    ranks.tell(2, "shrink");
    for (int rank = 0; rank < 3; rank++) {
        Outcome one = outcome(ranks, rank, "shrunk", 30 * slow());
        if (rank > 0) EXPECT_EQ(one.status, QUOIT_OK) << "rank " << rank << ": " << one.text;
        else EXPECT_TRUE(one.status == QUOIT_ERR_TIMEOUT || one.status == QUOIT_ERR_NETWORK) << one.status << ": " << one.text;
        EXPECT_EQ(ranks.wait_line(rank, "size", 10), rank == 0 ? "0" : "2");
        EXPECT_TRUE(rank > 0 || names(one.text, 1, ranks.pid(1))) << one.text;
    }
    for (int rank = 0; rank < 3; rank++) ranks.tell(rank, "end");
    for (int rank = 0; rank < 3; rank++) EXPECT_EQ(ranks.wait_exit(rank, 30), 0) << ranks.output(rank);
}

TEST_F(Cuts, ARankKilledOnEitherHostIsNamedOnBoth)
{
    for (int victim = 0; victim < 4; victim++) {
        SCOPED_TRACE("victim " + std::to_string(victim));
        Processes ranks("die", host_of, {std::to_string(victim), "kill", ""}, "", environment(), networks());
        for (int rank = 0; rank < 4; rank++) ranks.wait_line(rank, "ready", 60);
        usleep(50000); /* now they are blocked */
        double killed = seconds();
        ranks.kill(victim, SIGKILL);
        expect_told(ranks, victim, killed, ranks.host_name());
    }
}

// ------------------------------------------------------------------ ways to die

TEST_F(Cuts, EveryWayOfDyingIsToldOnBothHosts)
{
    for (std::string way : {"_exit", "thread", "segfault", "abort"})
        for (std::string child : {"", "child"}) {
            SCOPED_TRACE(way + (child.empty() ? "" : ", with a forked child that lives on"));
            const int victim = child.empty() ? 3 : 2;
            Processes ranks("die", host_of, {std::to_string(victim), way, child}, "", environment(), networks());
            for (int rank = 0; rank < 4; rank++) ranks.wait_line(rank, "ready", 60);
            pid_t forked = child.empty() ? 0 : static_cast<pid_t>(atoi(ranks.wait_line(victim, "child", 1).c_str()));
            double killed = seconds();
            ranks.tell(victim, "go");
            expect_told(ranks, victim, killed, ranks.host_name());
            EXPECT_EQ(ranks.wait_exit(victim, 20), way == "segfault" ? 1000 + SIGSEGV : way == "abort" ? 1000 + SIGABRT : 3);
            if (forked > 0) ::kill(forked, SIGKILL);
        }
}

TEST(Ways, OfDyingAreAllTheSame)
{
    for (const Hosts &where : {Hosts{0, 0}, Hosts{0, 1}, Hosts{0, 1, 2}})
        for (std::string way : {"kill", "_exit", "thread", "segfault", "abort"})
            for (std::string child : {"", "child"}) {
                SCOPED_TRACE(name_of(where) + ", " + way + (child.empty() ? "" : ", with a forked child that lives on"));
                Processes ranks("die", where, {"1", way, child});
                for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 60);
                pid_t forked = child.empty() ? 0 : static_cast<pid_t>(atoi(ranks.wait_line(1, "child", 1).c_str()));
                double killed = seconds();
                ranks.tell(1, "go");
                expect_told(ranks, 1, killed, ranks.host_name());
                if (forked > 0) ::kill(forked, SIGKILL);
            }
}

// A core file, where they are allowed, does not hold what processes share: here 3 GiB, whose writing would delay the news.
TEST(Ways, ACoreFileIsSmall)
{
    std::string folder = temporary_path("core");
    ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
    {
        Processes ranks("die", {0, 0, 0}, {"1", "core", "", folder}, "", {"QUOIT_ARENA_SIZE=1G"});
        for (int rank = 0; rank < 3; rank++) ranks.wait_line(rank, "ready", 60);
        double killed = seconds();
        ranks.tell(1, "go");
        expect_told(ranks, 1, killed, ranks.host_name());
        EXPECT_EQ(ranks.wait_exit(1, 20), 1000 + SIGABRT);
    }
    for (const auto &entry : std::filesystem::directory_iterator(folder)) /* none where the system pipes or forbids them */
        EXPECT_LT(std::filesystem::file_size(entry.path()), 300u << 20) << entry.path();
    std::filesystem::remove_all(folder);
}

// A rank dies; in a group of two it was alone with another, and a group of two others works on through it, as if nothing were.
int role_bystander(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK) return 1;
    std::vector<int> mine = self.rank % 2 ? std::vector<int>{1, 3} : std::vector<int>{0, 2};
    quoit_comm_t *group = nullptr;
    if (quoit_comm_create_group(self.comm, mine.data(), 2, self.rank % 2 ? "odd" : "even", nullptr, &group) != QUOIT_OK) return 2;
    if (allreduce(self.comm) != QUOIT_OK || allreduce(group) != QUOIT_OK) return 3;
    self.say("ready");
    if (self.rank == 3) {
        self.listen("never");
        return 4;
    }
    if (self.rank == 1) {
        report(self, "ended", allreduce(group));
        quoit_comm_destroy(group);
        return 0;
    }
    std::atomic<bool> enough = false;
    std::thread listener([&] {
        self.listen("enough");
        enough = true;
    });
    int32_t goes_on = 1, all = 2, rounds = 0;
    quoit_status_t status = QUOIT_OK;
    for (; status == QUOIT_OK && all == 2; rounds++) { /* until both have heard */
        goes_on = enough ? 0 : 1;
        status = quoit_allreduce(group, &goes_on, &all, 1, QUOIT_I32, QUOIT_SUM, nullptr, nullptr);
        if (status == QUOIT_OK && rounds % 100 == 0) status = allreduce(group, 100000);
        if (rounds == 100) self.say("busy");
    }
    report(self, "group", status);
    report(self, "world", allreduce(self.comm));
    listener.join();
    quoit_comm_destroy(group);
    return 0;
}

TEST(Ways, LeaveOtherGroupsAlone)
{
    for (const auto &[host_of, apart] : {std::pair{Hosts{0, 0, 0, 0}, false}, {Hosts{0, 0, 1, 1}, false}, {Hosts{0, 1, 0, 1}, false}, {Hosts{0, 0, 1, 1}, true}}) {
        SCOPED_TRACE(name_of(host_of) + (apart ? ", networks apart" : ""));
        Places places(host_of, apart);
        if (!places.why().empty()) GTEST_SKIP() << places.why();
        Processes ranks("bystander", host_of, {}, "", places.environment, places.networks);
        for (int rank : {0, 1, 2, 3}) ranks.wait_line(rank, "ready", 60);
        for (int rank : {0, 2}) EXPECT_EQ(ranks.wait_line(rank, "busy", 60), "yes");
        pid_t pid = ranks.pid(3);
        double killed = seconds();
        ranks.kill(3, SIGKILL);
        Outcome one = outcome(ranks, 1, "ended");
        EXPECT_EQ(one.status, QUOIT_ERR_PEER) << one.text;
        EXPECT_LT(one.at - killed, promise_s()) << one.text;
        EXPECT_TRUE(names(one.text, 3, pid)) << one.text;
        usleep(100000);
        for (int rank : {0, 2}) ranks.tell(rank, "enough");
        for (int rank : {0, 2}) {
            Outcome group = outcome(ranks, rank, "group"), world = outcome(ranks, rank, "world");
            EXPECT_EQ(group.status, QUOIT_OK) << "a group without the dead: " << group.text;
            EXPECT_EQ(world.status, QUOIT_ERR_PEER) << world.text;
            EXPECT_TRUE(names(world.text, 3, pid)) << world.text;
        }
        for (int rank : {0, 1, 2}) EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
    }
}

const std::map<std::string, int (*)(ProcessRank &)> roles = {{"cut", role_cut}, {"die", role_die}, {"bystander", role_bystander}, {"agree", role_agree}};

} // namespace

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role(roles);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
