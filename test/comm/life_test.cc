// SPDX-License-Identifier: Apache-2.0
// How communicators begin and end: ranks that do not come, or of another world; stores with remains of a dead attempt; fork, exit, and what an idle
// process does. Ranks are processes: the program runs itself with a role.
#include "outcome.h"
#include "test/support/entries.h"
#include "test/support/temporary.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <cstring>
#include <dirent.h>
#include <fstream>
#include <iterator>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace comm_test;

namespace {

// ------------------------------------------------------------------ creation

int role_create(ProcessRank &self)
{
    int wrong_size_rank = atoi(self.argument(0)), wrong_size = atoi(self.argument(1)), absent = atoi(self.argument(2)), timeout_ms = atoi(self.argument(3));
    int late_ms = atoi(self.argument(4)); // of all but rank 0
    if (int size = atoi(self.argument(5)); size > 0) self.size = size;
    if (self.rank == absent) return 0;
    if (self.rank > 0) usleep(static_cast<useconds_t>(late_ms) * 1000);
    if (self.rank == wrong_size_rank) self.size = wrong_size;
    double begun = seconds();
    quoit_status_t status = self.create(timeout_ms);
    self.say("created %.6f %d %s", seconds() - begun, status, quoit_last_error());
    return 0;
}

// The one that came with another size says that it lives, so nobody waits for its successor (10 s). Where rank 0's world is the smaller one, a rank that
// has no place there is told as well.
TEST(Create, WorldsOfDifferentSize)
{
    static constexpr struct { int rank, size; } wrongs[] = {{1, 2}, {1, 4}, {0, 2}, {2, 5}};
    for (const auto &wrong : wrongs) {
        Processes ranks("create", {0, 0, 0}, {std::to_string(wrong.rank), std::to_string(wrong.size), "-1", "60000", "0"});
        for (int rank = 0; rank < 3; rank++) {
            Outcome one = outcome(ranks, rank, "created", 30);
            EXPECT_EQ(one.status, QUOIT_ERR_MISMATCH) << "size " << wrong.size << " of rank " << wrong.rank << ", told by rank " << rank << ": " << one.text;
            EXPECT_NE(one.text.find("of 3"), std::string::npos) << one.text;
            EXPECT_NE(one.text.find("of " + std::to_string(wrong.size)), std::string::npos) << one.text;
            EXPECT_LT(one.at, 8) << one.text;
        }
    }
}

// The ranks of rank 0's world are all there, and work; nobody knows of one more, which is told when nothing has replaced the roster for a while.
TEST(Create, ARankWithoutAPlace)
{
    Processes ranks("create", {0, 0, 0}, {"2", "5", "-1", "1200", "0", "2"});
    for (int rank = 0; rank < 3; rank++) {
        Outcome one = outcome(ranks, rank, "created", 30);
        EXPECT_EQ(one.status, rank < 2 ? QUOIT_OK : QUOIT_ERR_MISMATCH) << "rank " << rank << ": " << one.text;
        EXPECT_TRUE(rank < 2 || one.text.find("rank 2 was started for a world of 5 ranks, but rank 0 for one of 2") != std::string::npos) << one.text;
    }
}

std::string content(const std::string &path)
{
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Leaves in the store what rank 1 of two has set, who was killed while it waited for rank 0.
void leave_a_record(const std::string &store)
{
    Processes before("create", {0, 0}, {"-1", "0", "0", "60000", "0"}, store);
    double limit = seconds() + 30;
    while (content(store).find("quoit/record/1") == std::string::npos && seconds() < limit) usleep(1000);
    before.kill(1, SIGKILL);
    EXPECT_EQ(before.wait_exit(1, 30), 1000 + SIGKILL) << before.output(1);
    EXPECT_NE(content(store).find("quoit/record/1"), std::string::npos);
}

// It has come, as the record says, and it may come again: until the deadline.
TEST(Create, ARankThatDiedBeforeOthersCame)
{
    std::string store = temporary_path("store");
    leave_a_record(store);
    Processes ranks("create", {0, 0}, {"-1", "0", "1", "800", "0"}, store);
    Outcome one = outcome(ranks, 0, "created", 30);
    EXPECT_EQ(one.status, QUOIT_ERR_TIMEOUT) << one.text;
    EXPECT_NE(one.text.find("1 of 2 ranks came but did not go on"), std::string::npos) << one.text;
    EXPECT_NE(one.text.find("rank 1"), std::string::npos) << one.text;
    unlink(store.c_str());
}

// A record of another size whose writer was killed while it waited: nothing, though its successor comes late.
TEST(Create, ARecordOfTheDeadIsNoMismatch)
{
    std::string store = temporary_path("store");
    leave_a_record(store);
    Processes ranks("create", {0, 0, 0}, {"-1", "0", "-1", "60000", "900"}, store);
    for (int rank = 0; rank < 3; rank++) {
        Outcome one = outcome(ranks, rank, "created", 60);
        EXPECT_EQ(one.status, QUOIT_OK) << "rank " << rank << ": " << one.text;
    }
    EXPECT_NE(content(store).find("quoit/roster"), std::string::npos);
    unlink(store.c_str());
}

TEST(Create, MissingRanksAreNamed)
{
    Processes ranks("create", {0, 0, 0}, {"-1", "0", "1", "800", "0"});
    double longest = 0; /* who begins first waits all of its time; the other may be told */
    for (int rank : {0, 2}) {
        Outcome one = outcome(ranks, rank, "created", 30);
        longest = std::max(longest, one.at);
        EXPECT_EQ(one.status, QUOIT_ERR_TIMEOUT) << one.text;
        EXPECT_LT(one.at, has_sanitizer() ? 4 : 1.6) << one.text;
        if (rank == 0) {
            EXPECT_NE(one.text.find("rank 1"), std::string::npos) << one.text;
        }
    }
    EXPECT_GE(longest, 0.799);
}

TEST(Create, WhoIsAwaitedIsWarnedOf)
{
    const std::string log = temporary_path("stall");
    Processes ranks("create", {0, 0, 0}, {"-1", "0", "2", "1500", "0"}, "", {"QUOIT_STALL_WARNING=200ms", "QUOIT_LOG_FILE=" + log});
    for (int rank : {0, 1}) EXPECT_EQ(outcome(ranks, rank, "created", 30).status, QUOIT_ERR_TIMEOUT) << rank;
    std::string lines;
    std::ifstream file(log);
    for (std::string line; std::getline(file, line);)
        if (line.find(" warn stall: ") != std::string::npos) lines += line + "\n";
    EXPECT_NE(lines.find("rank 0 has waited for 0.2"), std::string::npos) << lines;
    EXPECT_NE(lines.find(": 1 of 3 ranks did not come: rank 2\n"), std::string::npos) << lines;
    EXPECT_NE(lines.find("rank 1 has waited for "), std::string::npos) << lines;
    EXPECT_LE(count_of(lines, "rank 0 has waited"), 3u) << "after 0.2 s, 0.4, 0.8: " << lines;
    unlink(log.c_str());
}

int role_again(ProcessRank &self)
{
    int times = atoi(self.argument(0));
    int before = 0;
    for (int i = 0; i < times; i++) {
        if (self.create(30000) != QUOIT_OK) {
            self.say("failed in round %d: %s", i, quoit_last_error());
            return 1;
        }
        for (size_t count : {size_t(10), size_t(100000)})
            if (allreduce(self.comm, count) != QUOIT_OK) {
                self.say("failed in round %d: %s", i, quoit_last_error());
                return 2;
            }
        quoit_comm_destroy(self.comm);
        self.comm = nullptr;
        if (i == 0) before = count_descriptors();
    }
    self.say("descriptors %d %d", before, count_descriptors());
    return 0;
}

TEST(Create, AgainAndAgainInOneStore)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}, Hosts{0, 0, 1}}) {
        Processes ranks("again", host_of, {long_run() ? "200" : "20"});
        for (int rank = 0; rank < ranks.size(); rank++) {
            std::string line = ranks.wait_line(rank, "descriptors", long_run() ? 400 : 100);
            int before = -1, after = -2;
            sscanf(line.c_str(), "%d %d", &before, &after);
            EXPECT_EQ(before, after) << "rank " << rank << " of " << name_of(host_of) << ":\n" << ranks.output(rank);
            EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
        }
    }
}

// What an earlier run left in the store, one that was killed too, does not disturb the next.
TEST(Create, StaleRecords)
{
    std::string store = temporary_path("store");
    for (int round = 0; round < 4; round++) {
        Processes ranks("again", {0, 0, 0}, {"2"}, store);
        if (round % 2 == 1) {
            usleep(static_cast<useconds_t>(5000 * round));
            for (int rank = 0; rank < 3; rank++) ranks.kill(rank, SIGKILL);
            continue;
        }
        for (int rank = 0; rank < 3; rank++) EXPECT_EQ(ranks.wait_exit(rank, 60), 0) << "round " << round << ":\n" << ranks.output(rank);
    }
    unlink(store.c_str());
}

// ------------------------------------------------------------------ fork and exit

int role_fork(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    quoit_request_t *request = nullptr;
    float in = 1, out = 0;
    if (quoit_recv(self.comm, &out, 1, QUOIT_F32, 1 - self.rank, 1, nullptr, &request) != QUOIT_OK) return 2;
    pid_t child = fork();
    if (child == 0) {
        int bad = 0;
        bad |= allreduce(self.comm) != QUOIT_ERR_FORKED;
        bad |= (quoit_request_test(request) != QUOIT_ERR_FORKED) << 1;
        bad |= (quoit_request_wait(request, 10) != QUOIT_ERR_FORKED) << 2;
        quoit_comm_t *group = nullptr;
        int ranks[] = {0, 1};
        bad |= (quoit_comm_create_group(self.comm, ranks, 2, "x", nullptr, &group) != QUOIT_ERR_FORKED) << 3;
        bad |= (quoit_comm_abort(self.comm, "no") != QUOIT_ERR_FORKED) << 4;
        char *text = nullptr;
        bad |= (quoit_comm_describe(self.comm, QUOIT_FORMAT_TEXT, &text) != QUOIT_ERR_FORKED) << 5;
        bad |= (quoit_send(self.comm, &in, 1, QUOIT_F32, 0, 1, nullptr, nullptr) != QUOIT_ERR_FORKED) << 6;
        quoit_comm_destroy(self.comm); /* does nothing */
        quoit_comm_t *own = nullptr; /* one of its own */
        bad |= (quoit_comm_create(nullptr, 0, 1, nullptr, &own) != QUOIT_OK) << 7;
        if (own) {
            float result = 0;
            bad |= (quoit_allreduce(own, &in, &result, 1, QUOIT_F32, QUOIT_SUM, nullptr, nullptr) != QUOIT_OK || result != 1) << 7;
        }
        quoit_comm_destroy(own);
        _exit(bad);
    }
    int status = -1;
    waitpid(child, &status, 0);
    self.say("child 0 %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    report(self, "parent", allreduce(self.comm));
    if (quoit_send(self.comm, &in, 1, QUOIT_F32, 1 - self.rank, 1, nullptr, nullptr) != QUOIT_OK) return 3;
    report(self, "request", quoit_request_wait(request, -1));
    quoit_request_free(request);
    return out == 1 ? 0 : 4;
}

TEST(Fork, ChildIsTurnedAwayAndParentGoesOn)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
        Processes ranks("fork", host_of);
        for (int rank = 0; rank < 2; rank++) {
            EXPECT_EQ(outcome(ranks, rank, "child").status, 0) << "bits say which call went wrong";
            EXPECT_EQ(outcome(ranks, rank, "parent").status, QUOIT_OK);
            EXPECT_EQ(outcome(ranks, rank, "request").status, QUOIT_OK);
            EXPECT_EQ(ranks.wait_exit(rank, 20), 0);
        }
    }
}

// Another thread makes communicators all the time, and so holds what all of the process shares, while this one forks.
int role_forks(ProcessRank &self)
{
    std::atomic<bool> over{false};
    std::thread other([&] {
        quoit_comm_t *comm = nullptr;
        while (!over && quoit_comm_create(nullptr, 0, 1, nullptr, &comm) == QUOIT_OK) quoit_comm_destroy(comm);
    });
    int bad = 0, status = 0;
    for (int turn = 0; turn < 20 && bad == 0; turn++) {
        pid_t child = fork();
        if (child == 0) {
            quoit_comm_t *own = nullptr;
            alarm(static_cast<unsigned>(10 * slow()));
            _exit(quoit_comm_create(nullptr, 0, 1, nullptr, &own) != QUOIT_OK);
        }
        bad = waitpid(child, &status, 0) == child ? status : -1;
    }
    over = true;
    other.join();
    self.say("children 0 %d", bad);
    return 0;
}

TEST(Fork, WhatAnotherThreadHeldIsFreeInTheChild)
{
    if (has_sanitizer()) return; /* its own allocator has locks that stay locked in a child */
    Processes ranks("forks", {0}, {}, "", {"QUOIT_TRANSPORT=shm,tcp"});
    EXPECT_EQ(outcome(ranks, 0, "children").status, 0) << "of wait(): 14 says that a child waited until its alarm";
    EXPECT_EQ(ranks.wait_exit(0, 20), 0);
}

// A forked child that lives on keeps sockets and pipes open; the death of its parent is noticed all the same.
int role_orphan(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    if (self.rank == 1) {
        pid_t child = fork();
        if (child == 0) {
            close(0);
            close(1);
            sleep(8);
            _exit(0);
        }
        self.say("child %d", child);
        self.say("ready");
        self.listen("never");
    }
    self.say("ready");
    report(self, "ended", allreduce(self.comm));
    return 0;
}

TEST(Fork, ChildDoesNotHideItsParentsDeath)
{
    Processes ranks("orphan", {0, 0});
    for (int rank = 0; rank < 2; rank++) ranks.wait_line(rank, "ready", 30);
    pid_t child = static_cast<pid_t>(atoi(ranks.wait_line(1, "child", 1).c_str())), pid = ranks.pid(1);
    usleep(50000);
    double killed = seconds();
    ranks.kill(1, SIGKILL);
    Outcome one = outcome(ranks, 0, "ended");
    EXPECT_EQ(one.status, QUOIT_ERR_PEER) << one.text;
    EXPECT_LT(one.at - killed, promise_s());
    EXPECT_TRUE(names(one.text, 1, pid)) << one.text;
    if (child > 0) ::kill(child, SIGKILL);
}

int role_exit(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm, 200000) != QUOIT_OK) return 1;
    quoit_request_t *request = nullptr;
    static float value;
    if (quoit_recv(self.comm, &value, 1, QUOIT_F32, 1 - self.rank, 1, nullptr, &request) != QUOIT_OK) return 2;
    self.say("ready");
    self.listen("go");
    exit(0); /* no destroy */
}

std::set<std::string> names_in(const std::string &path)
{
    std::set<std::string> names;
    DIR *directory = opendir(path.c_str());
    if (!directory) return names;
    while (dirent *entry = readdir(directory))
        if (entry->d_name[0] != '.') names.insert(entry->d_name);
    closedir(directory);
    return names;
}

std::set<std::string> shared_files()
{
    std::set<std::string> names;
    for (const std::string &name : names_in("/dev/shm"))
        if (name.find("quoit") != std::string::npos) names.insert(name);
    return names;
}

// Sockets that the process has, as the kernel's tables name them.
std::set<std::string> sockets_of(pid_t pid)
{
    std::set<std::string> numbers;
    const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
    for (const std::string &name : names_in(folder)) {
        char target[64] = "";
        if (readlink((folder + "/" + name).c_str(), target, sizeof target - 1) > 0 && strncmp(target, "socket:[", 8) == 0)
            numbers.insert(std::to_string(atol(target + 8)));
    }
    return numbers;
}

// Those of them that the kernel still knows.
std::set<std::string> living(const std::set<std::string> &sockets)
{
    std::set<std::string> found;
    for (const char *table : {"/proc/net/unix", "/proc/net/tcp", "/proc/net/tcp6"}) {
        std::ifstream file(table);
        for (std::string word; file >> word;)
            if (sockets.count(word)) found.insert(word);
    }
    return found;
}

// Processes that have inherited this from a rank, or are one.
std::set<std::string> processes_with(const std::string &variable)
{
    std::set<std::string> found;
    for (const std::string &name : names_in("/proc"))
        if (isdigit(name[0]) && content("/proc/" + name + "/environ").find(variable) != std::string::npos) found.insert(name);
    return found;
}

TEST(Exit, WithoutDestroyOrKilledLeavesNothing)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
        for (bool killed : {false, true}) {
            SCOPED_TRACE((killed ? "killed, hosts " : "hosts ") + std::to_string(host_of[1] + 1));
            auto before = shared_files();
            std::string folder = temporary_pattern("exit");
            ASSERT_NE(mkdtemp(folder.data()), nullptr);
            const std::string mark = "TMPDIR=" + folder;
            std::set<std::string> sockets;
            Processes ranks("exit", host_of, {}, "", {mark});
            for (int rank = 0; rank < 2; rank++) ranks.wait_line(rank, "ready", 30);
            for (int rank = 0; rank < 2; rank++) sockets.merge(sockets_of(ranks.pid(rank)));
            EXPECT_GE(living(sockets).size(), 2u) << "at least a listener a rank";
            EXPECT_EQ(processes_with(mark).size(), 2u) << "no helpers";
            for (int rank = 0; rank < 2; rank++) {
                if (killed)
                    ranks.kill(rank, SIGKILL);
                else
                    ranks.tell(rank, "go");
            }
            for (int rank = 0; rank < 2; rank++) EXPECT_EQ(ranks.wait_exit(rank, 10), killed ? 1000 + SIGKILL : 0);
            EXPECT_EQ(shared_files(), before);
            EXPECT_EQ(names_in(folder), std::set<std::string>{});
            EXPECT_EQ(processes_with(mark), std::set<std::string>{});
            for (double end = seconds() + 5 * slow(); !living(sockets).empty() && seconds() < end;) usleep(1000); // the kernel closes some a little later
            EXPECT_EQ(living(sockets), std::set<std::string>{});
            rmdir(folder.c_str());
        }
    }
}

// Destroy with work in flight: bounded by QUOIT_LINGER, and the others are told.
int role_leave(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK) return 1;
    quoit_request_t *request = nullptr;
    float in = 1, out = 0;
    if (self.rank == 0) {
        if (quoit_allreduce(self.comm, &in, &out, 1, QUOIT_F32, QUOIT_SUM, nullptr, &request) != QUOIT_OK) return 1;
        double begun = seconds();
        quoit_comm_destroy(self.comm);
        self.comm = nullptr;
        self.say("left %.6f %d %s", seconds() - begun, quoit_request_test(request), quoit_request_error(request));
        quoit_request_free(request);
        return 0;
    }
    self.listen("go");
    report(self, "ended", allreduce(self.comm));
    return 0;
}

TEST(Exit, DestroyWithWorkInFlight)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
        Processes ranks("leave", host_of, {}, "", {"QUOIT_LINGER=300ms"});
        Outcome left = outcome(ranks, 0, "left");
        EXPECT_EQ(left.status, QUOIT_ERR_CLOSED) << left.text;
        EXPECT_GT(left.at, 0.25);
        EXPECT_LT(left.at, has_sanitizer() ? 4 : 1.2);
        EXPECT_NE(left.text.find("QUOIT_LINGER"), std::string::npos) << left.text;
        ranks.tell(1, "go");
        Outcome ended = outcome(ranks, 1, "ended");
        EXPECT_LT(ended.status, 0) << ended.text;
        EXPECT_NE(ended.text.find("rank 0 ("), std::string::npos) << ended.text;
    }
}

// What was sent without waiting for its recv arrives, though its sender is gone before anybody asks.
const std::vector<size_t> parting_sizes = {1, 100, 2000, 3000, 7000, 8000, 12000, 30000};

int role_part(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK) return 1;
    size_t most = quoit_comm_hosts(self.comm) == 1 ? 30000 : 8000; // larger ones wait for their recv between hosts
    for (size_t size : parting_sizes) {
        if (size > most) continue;
        std::vector<uint8_t> bytes(size, static_cast<uint8_t>(size % 251));
        if (self.rank == 1 && size == 1) self.listen("go");
        std::vector<uint8_t> got(size, 255);
        quoit_status_t status = self.rank == 0 ? quoit_send(self.comm, bytes.data(), size, QUOIT_U8, 1, static_cast<uint32_t>(size), nullptr, nullptr)
                                               : quoit_recv(self.comm, got.data(), size, QUOIT_U8, 0, static_cast<uint32_t>(size), nullptr, nullptr);
        if (status != QUOIT_OK || (self.rank == 1 && got != bytes)) {
            self.say("bytes %zu: %s", size, status != QUOIT_OK ? quoit_last_error() : "wrong ones");
            return 1;
        }
    }
    self.say("done");
    return 0;
}

TEST(Exit, WhatWasSentOutlivesItsSender)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
        Processes ranks("part", host_of);
        EXPECT_EQ(ranks.wait_exit(0, 30), 0) << ranks.output(0);
        ranks.tell(1, "go");
        EXPECT_EQ(ranks.wait_exit(1, 30), 0) << ranks.output(1);
    }
}

// Destroy with recvs that nobody has sent to: they end soon, and the others go on, without an error.
int role_unsent(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK) return 1;
    float value[2] = {};
    if (self.rank == 0) {
        quoit_request_t *one = nullptr, *any = nullptr;
        if (quoit_recv(self.comm, value, 1, QUOIT_F32, 1, 7, nullptr, &one) != QUOIT_OK) return 1;
        if (quoit_recv(self.comm, value + 1, 1, QUOIT_F32, QUOIT_ANY_SOURCE, 8, nullptr, &any) != QUOIT_OK) return 1;
        double begun = seconds();
        quoit_comm_destroy(self.comm);
        self.comm = nullptr;
        self.say("left %.6f %d %s; %s", seconds() - begun, quoit_request_test(one), quoit_request_error(one), quoit_request_error(any));
        quoit_request_free(one);
        quoit_request_free(any);
        return 0;
    }
    self.listen("go");
    for (int round = 0; round < 100; round++) {
        quoit_status_t status = self.rank == 1 ? quoit_send(self.comm, value, 1, QUOIT_F32, 2, 1, nullptr, nullptr)
                                               : quoit_recv(self.comm, value, 1, QUOIT_F32, 1, 1, nullptr, nullptr);
        if (status != QUOIT_OK) return 2;
        usleep(1000);
    }
    report(self, "ended", QUOIT_OK);
    return 0;
}

TEST(Exit, DestroyWithRecvsThatNobodySentTo)
{
    for (const Hosts &host_of : {Hosts{0, 0, 0}, Hosts{0, 1, 1}}) {
        Processes ranks("unsent", host_of, {}, "");
        Outcome left = outcome(ranks, 0, "left");
        EXPECT_EQ(left.status, QUOIT_ERR_CLOSED) << left.text;
        EXPECT_LT(left.at, has_sanitizer() ? 4 : 1.5); /* half a second is promised */
        EXPECT_NE(left.text.find("recv from rank 1 ("), std::string::npos) << left.text;
        EXPECT_NE(left.text.find("any source (tag 8, 4 bytes): the communicator was destroyed before a message came"), std::string::npos) << left.text;
        for (int rank = 1; rank < 3; rank++) ranks.tell(rank, "go");
        for (int rank = 1; rank < 3; rank++) EXPECT_EQ(outcome(ranks, rank, "ended").status, QUOIT_OK) << rank;
    }
}

// ------------------------------------------------------------------ idle

int role_idle(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK) return 1;
    quoit_request_t *request = nullptr;
    std::vector<float> in(100000), out(100000);
    for (int i = 0; i < 20; i++) {
        if (quoit_allreduce(self.comm, in.data(), out.data(), in.size(), QUOIT_F32, QUOIT_SUM, nullptr, &request) != QUOIT_OK) return 2;
        while (quoit_request_test(request) == QUOIT_IN_PROGRESS) usleep(500);
        quoit_request_free(request);
    }
    auto switches = [] {
        long all = 0;
        int threads = 0;
        DIR *directory = opendir("/proc/self/task");
        while (dirent *entry = readdir(directory)) {
            std::string path = std::string("/proc/self/task/") + entry->d_name + "/status";
            FILE *file = fopen(path.c_str(), "r");
            if (!file) continue;
            char line[256];
            bool ours = false;
            while (fgets(line, sizeof line, file)) {
                long value;
                if (strcmp(line, "Name:\tquoit\n") == 0) ours = true;
                if (ours && sscanf(line, "voluntary_ctxt_switches: %ld", &value) == 1) all += value;
                if (ours && sscanf(line, "nonvoluntary_ctxt_switches: %ld", &value) == 1) all += value;
            }
            threads += ours;
            fclose(file);
        }
        closedir(directory);
        return std::make_pair(threads, all);
    };
    double begun = seconds();
    auto before = switches();
    for (int i = 0; i < 3000; i++)
        if (quoit_barrier(self.comm, nullptr, nullptr) != QUOIT_OK) return 3;
    auto after = switches();
    self.say("busy %ld %ld", after.second - before.second, std::lround((seconds() - begun) * 1000));
    before = after;
    for (double end = seconds() + 20 * slow(); seconds() < end;) { /* until it sleeps */
        auto earlier = before;
        usleep(400000);
        before = switches();
        if (before == earlier) break;
    }
    sleep(long_run() ? 10 : 2);
    after = switches();
    self.say("idle %d %ld", before.first, after.second - before.second);
    self.listen("go");
    return 0;
}

TEST(Idle, NoThreadWakes)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 0, 1, 1}}) {
        Processes ranks("idle", host_of);
        for (int rank = 0; rank < ranks.size(); rank++) {
            int threads = 0;
            long switches = -1, milliseconds = 0;
            std::string line = ranks.wait_line(rank, "busy", 60);
            EXPECT_EQ(sscanf(line.c_str(), "%ld %ld", &switches, &milliseconds), 2) << ranks.output(rank);
            EXPECT_LE(switches, 20 + milliseconds / 25) << "rank " << rank << ": calls wake its progress thread"; /* it looks every 100 ms whether anybody calls */
            line = ranks.wait_line(rank, "idle", 60);
            EXPECT_EQ(sscanf(line.c_str(), "%d %ld", &threads, &switches), 2) << ranks.output(rank);
            EXPECT_EQ(threads, 1) << "rank " << rank;
            EXPECT_EQ(switches, 0) << "rank " << rank << ": its progress thread woke while nothing was to be done";
        }
        for (int rank = 0; rank < ranks.size(); rank++) ranks.tell(rank, "go");
    }
}

const std::map<std::string, int (*)(ProcessRank &)> roles = {{"create", role_create}, {"again", role_again}, {"fork", role_fork}, {"forks", role_forks}, {"orphan", role_orphan},
                                                             {"exit", role_exit},     {"leave", role_leave}, {"unsent", role_unsent}, {"part", role_part}, {"idle", role_idle}};

} // namespace

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role(roles);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
