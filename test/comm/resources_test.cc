// SPDX-License-Identifier: Apache-2.0
// Ranks from which something is withheld, all of them or one: docs/resources.md, row by row. Either everything works, with the same
// hosts seen by all and at most one warning in the whole job; or creation fails on all ranks with one text that names rank and cause.
#include "outcome.h"
#include "restrict.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sstream>
#include <sys/stat.h>
#include <unistd.h>

using namespace comm_test;

namespace {

// ------------------------------------------------------------------ a rank

// Small and large collectives, a message, a subgroup, and one that nobody waits for.
quoit_status_t use(quoit_comm_t *comm, int rank, int size)
{
    for (size_t count : {size_t(1), size_t(1000), size_t(500000)}) {
        std::vector<float> in(count, static_cast<float>(rank + 1)), out(count);
        quoit_status_t status = quoit_allreduce(comm, in.data(), out.data(), count, QUOIT_F32, QUOIT_SUM, nullptr, nullptr);
        if (status != QUOIT_OK) return status;
        for (float value : out)
            if (value != static_cast<float>(size * (size + 1) / 2)) return QUOIT_ERR_INTERNAL;
    }
    std::vector<int> ranks;
    for (int each = 0; each < size; each++) ranks.push_back(each);
    quoit_comm_t *group = nullptr;
    quoit_status_t status = quoit_comm_create_group(comm, ranks.data(), size, "all", nullptr, &group);
    if (status == QUOIT_OK) status = quoit_barrier(group, nullptr, nullptr);
    int sent = rank, got = -1;
    quoit_request_t *request = nullptr;
    if (status == QUOIT_OK) status = quoit_recv(group, &got, 1, QUOIT_I32, (rank + size - 1) % size, 1, nullptr, &request);
    if (status == QUOIT_OK) status = quoit_send(group, &sent, 1, QUOIT_I32, (rank + 1) % size, 1, nullptr, nullptr);
    if (status == QUOIT_OK) status = quoit_request_wait(request, 20000);
    quoit_request_free(request);
    quoit_comm_destroy(group);
    return status == QUOIT_OK && got != (rank + size - 1) % size ? QUOIT_ERR_INTERNAL : status;
}

int role_limited(ProcessRank &self)
{
    std::string what = self.argument(0), log = self.argument(2);
    int who = atoi(self.argument(1));
    int file = open((log + "." + std::to_string(self.rank)).c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
    if (file < 0 || dup2(file, 2) < 0) return 80;
    close(file);
    if ((who < 0 || who == self.rank) && !restrict_process(what)) {
        self.say("created 0 77 %s", strerror(errno));
        return 77;
    }
    quoit_status_t status = self.create(20000);
    self.say("created %.6f %d %s", seconds(), status, status == QUOIT_OK ? "" : quoit_last_error());
    if (status != QUOIT_OK) return 0;
    self.say("hosts %d", quoit_comm_hosts(self.comm));
    report(self, "used", use(self.comm, self.rank, self.size));
    self.listen("end");
    return 0;
}

// It is withheld once the ranks know each other.
int role_late(ProcessRank &self)
{
    std::string what = self.argument(0), use = self.argument(2);
    int who = atoi(self.argument(1));
    std::vector<int> ranks;
    for (int each = 0; each < self.size; each++) ranks.push_back(each);
    if (self.create(20000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    self.say("ready");
    self.listen("go"); /* all have left the first operation */
    if ((who < 0 || who == self.rank) && !restrict_process(what)) return 77;
    quoit_comm_t *comm = self.comm;
    if (use == "group") {
        comm = nullptr;
        quoit_status_t status = QUOIT_OK;
        for (int i = 0; i < 40 && status == QUOIT_OK; i++) { /* until the pages that are there are used up */
            status = quoit_comm_create_group(self.comm, ranks.data(), self.size, "late", nullptr, &comm);
            if (status == QUOIT_OK) status = quoit_barrier(comm, nullptr, nullptr);
        }
        report(self, "ended", status);
    } else
        report(self, "ended", allreduce(comm, 500000));
    report(self, "small", allreduce(self.comm));
    self.listen("end");
    return 0;
}

// ------------------------------------------------------------------ the table

enum Outcomes { WORKS, SLOWER, FAILS };

struct Row {
    const char *what;
    Outcomes outcome;
    const char *cause = ""; // what the warning, or the error, tells
    bool unsanitized = false; // a sanitizer takes itself what is withheld here
    bool all_work = false;    // no difference when it is withheld from all
    int each = 0;             // warnings of each rank that lacks it
};

const Row rows[] = {
    {"nothing", WORKS},
    {"no memfd_create", SLOWER, "memfd_create"},
    {"no pidfd_open", WORKS},
    {"no membarrier", WORKS},
    {"no fallocate", WORKS},
    {"no shared memory left", SLOWER, "no memory for"},
    {"no eventfd2", FAILS, "eventfd"},
    {"no unix sockets", SLOWER, "Unix socket"},
    {"no ptrace", WORKS},
    {"no threads", WORKS, "no progress thread", true, false, 1},
    {"few processes", SLOWER, "no progress thread", true, true, 1},
    {"other user", SLOWER, "runs as user", false, true},
    {"little address space", SLOWER, "ulimit -v", true},
    {"address space for one", SLOWER, "ulimit -v", true},
    {"small files", SLOWER, "ulimit -f"},
    {"locked memory", WORKS},
    {"no core files", WORKS},
    {"new pids", WORKS},
    {"new ipc", WORKS},
    {"new mounts", WORKS},
    {"new host name", WORKS},
    {"new network", FAILS, "no transport joins"},
    {"read-only", WORKS},
};

struct Case {
    Row row;
    int who; // -1: all
};

void PrintTo(const Case &one, std::ostream *out) { *out << one.row.what << (one.who < 0 ? ", all ranks" : ", rank " + std::to_string(one.who)); }

std::vector<Case> cases()
{
    std::vector<Case> all;
    for (const Row &row : rows)
        for (int who : {-1, 0, 1})
            if (who != 0 || row.outcome != WORKS) all.push_back({row, who});
    return all;
}

std::string case_name(const testing::TestParamInfo<Case> &info)
{
    std::string text = std::string(info.param.row.what) + (info.param.who < 0 ? "_all" : "_rank" + std::to_string(info.param.who));
    for (char &each : text)
        if (!isalnum(each)) each = '_';
    return text;
}

std::string contents(const std::string &path)
{
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

int free_port()
{
    return 20000 + static_cast<int>((static_cast<unsigned>(getpid()) * 7 + static_cast<unsigned>(seconds() * 1000)) % 9000);
}

// A directory with an empty store that ranks of any user may open. Not sticky: in such a one they might not open the file of another.
std::string open_to_all(const std::string &directory)
{
    mode_t before = umask(0);
    mkdir(directory.c_str(), 0777);
    close(open((directory + "/store").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    umask(before);
    return directory;
}

// Ranks from which something is withheld, what they logged, and how it ended.
struct Limited {
    Limited(const std::string &what, int who, int size)
        : directory(temporary_path("resources")), log(open_to_all(directory) + "/log"),
          ranks("limited", Hosts(static_cast<size_t>(size), 0), {what, std::to_string(who), log}, directory + "/store",
                {"COMM_TEST_HOSTS=0", "QUOIT_CONNECT_TIMEOUT=3s", "ASAN_OPTIONS=detect_leaks=0",
                 what == "read-only" ? "COMM_TEST_STORE=tcp://127.0.0.1:" + std::to_string(free_port()) : "UNUSED=1"})
    {
        for (int rank = 0; rank < size; rank++) created.push_back(outcome(ranks, rank, "created", 40));
    }
    ~Limited()
    {
        for (int rank = 0; rank < ranks.size(); rank++) unlink((log + "." + std::to_string(rank)).c_str());
        unlink((directory + "/store").c_str());
        rmdir(directory.c_str());
    }
    std::string logs() const
    {
        std::string all;
        for (int rank = 0; rank < ranks.size(); rank++) all += contents(log + "." + std::to_string(rank));
        return all;
    }
    bool refused() const
    {
        for (const Outcome &one : created)
            if (one.status == 77) return true;
        return false;
    }
    std::string directory, log;
    Processes ranks;
    std::vector<Outcome> created;
};

int count_warnings(const std::string &logs)
{
    int count = 0;
    for (size_t at = 0; (at = logs.find("] warn ", at)) != std::string::npos; at++) count++;
    return count;
}

void expect_use(Limited &limited)
{
    int size = limited.ranks.size();
    std::string hosts = limited.ranks.wait_line(0, "hosts", 20);
    for (int rank = 0; rank < size; rank++) {
        Outcome used = outcome(limited.ranks, rank, "used", 60);
        EXPECT_EQ(used.status, QUOIT_OK) << "rank " << rank << ": " << used.text;
        EXPECT_EQ(limited.ranks.wait_line(rank, "hosts", 1), hosts) << "ranks disagree about hosts";
    }
    for (int rank = 0; rank < size; rank++) limited.ranks.tell(rank, "end");
    for (int rank = 0; rank < size; rank++) EXPECT_EQ(limited.ranks.wait_exit(rank, 20), 0) << limited.ranks.output(rank) << limited.logs();
}

class Resources : public testing::TestWithParam<Case> {};

TEST_P(Resources, HaveOneOutcome)
{
    const Row &row = GetParam().row;
    const int who = GetParam().who, size = 3;
    if (has_sanitizer() && row.unsanitized) return;
    Limited limited(row.what, who, size);
    ASSERT_FALSE(limited.refused()) << "this machine cannot withhold it: " << limited.created[who < 0 ? 0 : static_cast<size_t>(who)].text;
    SCOPED_TRACE("logs:\n" + limited.logs());
    if (row.outcome == FAILS) {
        for (int rank = 0; rank < size; rank++) {
            const Outcome &one = limited.created[static_cast<size_t>(rank)];
            EXPECT_LT(one.status, 0) << "rank " << rank;
            EXPECT_NE(one.text.find(row.cause), std::string::npos) << "rank " << rank << ": " << one.text;
            EXPECT_NE(one.text.find("rank " + (who < 0 ? "" : std::to_string(who))), std::string::npos) << one.text;
        }
        return;
    }
    for (const Outcome &one : limited.created) ASSERT_EQ(one.status, QUOIT_OK) << one.text;
    bool slower = row.outcome == SLOWER && !(row.all_work && who < 0);
    std::string hosts = limited.ranks.wait_line(0, "hosts", 20);
    if (slower) {
        EXPECT_GT(atoi(hosts.c_str()), 1) << hosts;
    } else {
        EXPECT_EQ(hosts, "1");
    }
    expect_use(limited);
    std::string logs = limited.logs();
    int expected = (slower ? 1 : 0) + row.each * (who < 0 ? size : 1);
    EXPECT_EQ(count_warnings(logs), expected) << logs;
    if (expected > 0) {
        EXPECT_NE(logs.find(row.cause), std::string::npos) << logs;
    }
}

INSTANTIATE_TEST_SUITE_P(All, Resources, testing::ValuesIn(cases()), case_name);

// ------------------------------------------------------------------ descriptors, one by one

std::vector<int> every(int from, int to)
{
    std::vector<int> all;
    for (int each = from; each <= to; each++) all.push_back(each);
    return all;
}

// Whatever number of descriptors is left, creation works or fails, on all ranks alike, and what was created works.
TEST(Descriptors, WorkOrFailOnAllRanks)
{
    int works = 0, fails = 0;
    for (int who : {-1, 0, 1})
        for (int left : long_run() ? every(1, 48) : std::vector<int>{1, 12, 23, 24, 25, 26, 30, 48}) {
            SCOPED_TRACE(std::to_string(left) + " descriptors left to " + (who < 0 ? "all ranks" : "rank " + std::to_string(who)));
            Limited limited("descriptors " + std::to_string(left), who, 2);
            SCOPED_TRACE("logs:\n" + limited.logs());
            ASSERT_EQ(limited.created[0].status == QUOIT_OK, limited.created[1].status == QUOIT_OK)
                << limited.created[0].text << "\n" << limited.created[1].text;
            if (limited.created[0].status == QUOIT_OK) {
                works++;
                expect_use(limited);
                continue;
            }
            fails++;
            for (const Outcome &one : limited.created) EXPECT_NE(one.text.find("ulimit -n"), std::string::npos) << one.text;
        }
    EXPECT_GT(works, 0);
    EXPECT_GT(fails, 0);
}

TEST(Descriptors, FourRanksNeedFewerThan64)
{
    Limited limited("descriptors 64", -1, 4);
    for (const Outcome &one : limited.created) ASSERT_EQ(one.status, QUOIT_OK) << one.text;
    EXPECT_EQ(limited.ranks.wait_line(0, "hosts", 20), "1");
    expect_use(limited);
    EXPECT_EQ(count_warnings(limited.logs()), 0) << limited.logs();
}

// ------------------------------------------------------------------ later

// What is found missing later fails that group on all ranks, with one cause; others live on.
TEST(Late, MemoryIsMissedByAll)
{
    for (std::string use : {"group", "large"})
        for (int who : {-1, 0, 1})
            for (const Hosts &host_of : {Hosts{0, 0, 0}, Hosts{0, 0, 1, 1}}) {
                SCOPED_TRACE(use + ", " + name_of(host_of) + ", rank " + std::to_string(who));
                Processes ranks("late", host_of, {"no shared memory left", std::to_string(who), use});
                for (int rank = 0; rank < ranks.size(); rank++) ranks.wait_line(rank, "ready", 30);
                for (int rank = 0; rank < ranks.size(); rank++) ranks.tell(rank, "go");
                for (int rank = 0; rank < ranks.size(); rank++) {
                    Outcome one = outcome(ranks, rank, "ended");
                    EXPECT_EQ(one.status, QUOIT_ERR_NO_MEMORY) << "rank " << rank << ": " << one.text;
                    EXPECT_NE(one.text.find("no memory for"), std::string::npos) << "rank " << rank << ": " << one.text;
                    EXPECT_NE(one.text.find("rank " + (who < 0 ? "" : std::to_string(who))), std::string::npos) << one.text;
                    EXPECT_EQ(outcome(ranks, rank, "small").status, use == "group" ? QUOIT_OK : QUOIT_ERR_NO_MEMORY);
                }
                for (int rank = 0; rank < ranks.size(); rank++) ranks.tell(rank, "end");
                for (int rank = 0; rank < ranks.size(); rank++) EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
            }
}

// ------------------------------------------------------------------ the memory of a container

// Operations that take ever more memory, until the kernel ends the rank that may not have it.
int role_hungry(ProcessRank &self)
{
    if (self.create(20000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    self.say("ready");
    self.listen("go");
    for (size_t count = 100000;; count += count / 4) {
        quoit_status_t status = allreduce(self.comm, count);
        if (status == QUOIT_OK && count < 60000000) continue;
        report(self, "ended", status);
        return 0;
    }
}

TEST(Memory, AContainersLimitKillsOneAndTheOthersAreTold)
{
    if (has_sanitizer()) return; /* it has another idea of memory */
    Processes ranks("hungry", Hosts{0, 0, 1});
    for (int rank = 0; rank < 3; rank++) ranks.wait_line(rank, "ready", 30);
    pid_t pid = ranks.pid(1);
    std::string group = memory_group(pid, 64 << 20);
    if (group.empty()) GTEST_SKIP() << "no memory control group can be made here: " << strerror(errno);
    for (int rank = 0; rank < 3; rank++) ranks.tell(rank, "go");
    EXPECT_EQ(ranks.wait_exit(1, 60), 1000 + SIGKILL) << ranks.output(1);
    double dead = seconds();
    for (int rank : {0, 2}) {
        Outcome one = outcome(ranks, rank, "ended", 30);
        EXPECT_EQ(one.status, QUOIT_ERR_PEER) << one.text;
        EXPECT_TRUE(names(one.text, 1, pid)) << one.text;
        EXPECT_LT(one.at - dead, promise_s()) << one.text;
        EXPECT_EQ(ranks.wait_exit(rank, 20), 0);
    }
    EXPECT_EQ(rmdir(group.c_str()), 0) << group << ": " << strerror(errno);
}

const std::map<std::string, int (*)(ProcessRank &)> roles = {{"limited", role_limited}, {"late", role_late}, {"hungry", role_hungry}};

} // namespace

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role(roles);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
