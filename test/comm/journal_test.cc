// SPDX-License-Identifier: Apache-2.0
// What is told of operations: history, the dump of a failure, another process's journal. And what is not: the secret. For the timeline see
// journal_timeline_test.cc.
#include "journal_support.h"
#include "test/support/entries.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <sstream>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace comm_test;

namespace {

// ------------------------------------------------------------------ history

TEST(History, TellsEachOperation)
{
    run_ranks({.host_of = {0, 0, 1}}, [&](Rank &self) {
        ASSERT_EQ(allreduce(self.comm, 1234), QUOIT_OK) << quoit_last_error();
        std::vector<double> buffer(77);
        ASSERT_EQ(quoit_broadcast(self.comm, buffer.data(), 77, QUOIT_F64, 2, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
        int next = (self.rank + 1) % self.size, got = 0;
        quoit_request_t *request = nullptr;
        ASSERT_EQ(quoit_recv(self.comm, &got, 1, QUOIT_I32, QUOIT_ANY_SOURCE, 41, nullptr, &request), QUOIT_OK) << quoit_last_error();
        ASSERT_EQ(quoit_send(self.comm, &self.rank, 1, QUOIT_I32, next, 41, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
        ASSERT_EQ(quoit_request_wait(request, 60000), QUOIT_OK);
        quoit_request_free(request);
        std::string text = history(self.comm, QUOIT_FORMAT_TEXT), json = history(self.comm, QUOIT_FORMAT_JSON);
        std::string before = std::to_string((self.rank + self.size - 1) % self.size);
        EXPECT_TRUE(has(text, "rank " + std::to_string(self.rank) + " of 3 on 2 hosts")) << text;
        EXPECT_TRUE(has(text, "allreduce #2 (float32, sum, 1234 elements), ")) << text; // #1 is the barrier of creation
        EXPECT_TRUE(has(text, "broadcast #3 (float64, 77 elements, root 2), ")) << text;
        EXPECT_TRUE(has(text, "    recv from rank " + before + " (")) << text;
        EXPECT_EQ(count_of(text, ", done\n"), 5u) << text;
        EXPECT_TRUE(has(text, "no collective runs")) << text;
        EXPECT_EQ(count_of(json, "\"status\": \"done\""), 5u) << json;
        EXPECT_TRUE(has(json, "\"operation\": \"allreduce\", \"sequence\": 2, \"count\": 1234, \"dtype\": \"float32\", \"op\": \"sum\"")) << json;
        EXPECT_TRUE(has(json, "\"peer\": " + before + ", \"tag\": 41")) << json;
        EXPECT_EQ(count_of(json, "\"started\": null"), 0u) << json;
        self.meet();
    });
}

// More operations than the ring holds, ended and not: the newest are told, and none twice.
TEST(History, TheNewestAreKept)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        for (int i = 0; i < 100; i++) ASSERT_EQ(allreduce(self.comm, 10 + static_cast<size_t>(i)), QUOIT_OK) << quoit_last_error();
        std::vector<quoit_request_t *> requests(100);
        std::vector<int> got(100);
        for (size_t i = 0; i < 100; i++)
            ASSERT_EQ(quoit_recv(self.comm, &got[i], 1, QUOIT_I32, 1 - self.rank, static_cast<uint32_t>(i), nullptr, &requests[i]), QUOIT_OK);
        std::string open; // the progress thread may not have taken the last ones yet
        for (double until = seconds() + 30; seconds() < until && !has(open, "100 sends and recvs are under way");) {
            ASSERT_EQ(quoit_request_test(requests[0]), QUOIT_IN_PROGRESS);
            open = history(self.comm, QUOIT_FORMAT_TEXT);
        }
        EXPECT_TRUE(has(open, "100 sends and recvs are under way")) << open;
        EXPECT_EQ(count_of(open, ", running\n"), 64u) << open;
        self.meet();
        for (size_t i = 0; i < 100; i++)
            ASSERT_EQ(quoit_send(self.comm, &self.rank, 1, QUOIT_I32, 1 - self.rank, static_cast<uint32_t>(i), nullptr, nullptr), QUOIT_OK);
        for (quoit_request_t *each : requests) {
            EXPECT_EQ(quoit_request_wait(each, 60000), QUOIT_OK);
            quoit_request_free(each);
        }
        std::string text = history(self.comm, QUOIT_FORMAT_TEXT);
        EXPECT_EQ(count_of(text, "    allreduce #"), 64u) << text;
        EXPECT_FALSE(has(text, "allreduce #37 ")) << text;
        EXPECT_TRUE(has(text, "allreduce #38 (float32, sum, 46 elements)") && has(text, "allreduce #101 (float32, sum, 109 elements)")) << text;
        EXPECT_TRUE(has(text, "newest collectives, of 101:") && has(text, "newest sends and recvs, of 200:")) << text;
        EXPECT_FALSE(has(text, "under way")) << text;
        self.meet();
    });
}

// How long the first operation of this name took, which has just ended; its times do not run backwards, and are of just now.
void time_of(quoit_comm_t *comm, const std::string &operation, double *took)
{
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    std::string json = history(comm, QUOIT_FORMAT_JSON);
    size_t at = json.find("\"operation\": \"" + operation + "\"");
    ASSERT_NE(at, std::string::npos) << json;
    double issued = 0, started = 0, ended = 0;
    ASSERT_EQ(sscanf(json.c_str() + json.find("\"issued\"", at), "\"issued\": %lf, \"started\": %lf, \"ended\": %lf", &issued, &started, &ended), 3) << json;
    double real = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
    EXPECT_LE(issued, started + 1e-6) << json;
    EXPECT_GT(issued, started - 20) << json;
    EXPECT_LE(started, ended + 1e-6) << json;
    EXPECT_LT(ended, real + 0.02) << json;
    EXPECT_GT(ended, real - 20) << json;
    *took = ended - started;
}

// Time is told as it passed: an operation whose peer comes late takes as long as that.
TEST(History, TimesAreTrue)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        std::vector<float> send(10, 1), recv(10);
        quoit_request_t *request = nullptr;
        auto issue = [&] { return quoit_allreduce(self.comm, send.data(), recv.data(), 10, QUOIT_F32, QUOIT_SUM, nullptr, &request); };
        if (self.rank == 0) {
            ASSERT_EQ(issue(), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(quoit_request_test(request), QUOIT_IN_PROGRESS);
        }
        self.meet();
        if (self.rank == 1) {
            usleep(200000);
            ASSERT_EQ(issue(), QUOIT_OK) << quoit_last_error();
        }
        EXPECT_EQ(quoit_request_wait(request, 60000), QUOIT_OK) << quoit_request_error(request);
        quoit_request_free(request);
        double took = 0;
        time_of(self.comm, "allreduce", &took);
        if (self.rank == 0) {
            EXPECT_GT(took, 0.19);
            EXPECT_LT(took, 20);
        }
        self.meet();
    });
}

// Blocking calls read no clock before they wait for long: their times are those of their start.
TEST(History, TimesOfBlockingMessagesAreTrue)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        int value = 7;
        if (self.rank == 0) {
            ASSERT_EQ(quoit_recv(self.comm, &value, 1, QUOIT_I32, 1, 5, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
        } else {
            usleep(200000);
            ASSERT_EQ(quoit_send(self.comm, &value, 1, QUOIT_I32, 0, 5, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
        }
        double took = 0;
        time_of(self.comm, self.rank == 0 ? "recv" : "send", &took);
        if (self.rank == 0) {
            EXPECT_GT(took, 0.1);
        }
        EXPECT_LT(took, 20);
        self.meet();
    });
}

// A blocking recv that nobody answers ends at its own deadline, counted from the call.
TEST(History, ABlockingCallEndsAtItsDeadline)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        if (self.rank == 0) {
            int value = 0;
            quoit_call_t call = QUOIT_CALL_INIT;
            call.timeout_ms = 300;
            double begin = seconds();
            EXPECT_EQ(quoit_recv(self.comm, &value, 1, QUOIT_I32, 1, 5, &call, nullptr), QUOIT_ERR_TIMEOUT);
            double took = seconds() - begin;
            EXPECT_TRUE(has(quoit_last_error(), "timed out after 300 ms")) << quoit_last_error();
            EXPECT_GE(took, 0.3);
            EXPECT_LT(took, 0.3 + 2 * slow());
        }
        self.meet();
    });
}

// ------------------------------------------------------------------ failure

// Rank 1 stays away: after the timeout the history is there, and tells what never started.
TEST(History, IsKeptAfterFailure)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        if (self.rank == 0) {
            std::vector<float> buffer(10), second(10);
            quoit_request_t *queued = nullptr, *first = nullptr;
            quoit_call_t call = QUOIT_CALL_INIT;
            call.timeout_ms = 300;
            ASSERT_EQ(quoit_allreduce(self.comm, buffer.data(), buffer.data(), 10, QUOIT_F32, QUOIT_MAX, &call, &first), QUOIT_OK);
            ASSERT_EQ(quoit_allreduce(self.comm, second.data(), second.data(), 9, QUOIT_F32, QUOIT_MIN, nullptr, &queued), QUOIT_OK);
            EXPECT_EQ(quoit_request_wait(first, 60000), QUOIT_ERR_TIMEOUT);
            EXPECT_EQ(quoit_request_wait(queued, 60000), QUOIT_ERR_TIMEOUT);
            quoit_request_free(first);
            quoit_request_free(queued);
            std::string text = history(self.comm, QUOIT_FORMAT_TEXT), json = history(self.comm, QUOIT_FORMAT_JSON);
            EXPECT_TRUE(has(text, "  failed: [world, rank 0] allreduce #2")) << text;
            EXPECT_TRUE(has(text, "allreduce #2 (float32, max, 10 elements)")) << text;
            EXPECT_TRUE(has(text, "never started, ")) << text;
            EXPECT_TRUE(has(json, "\"op\": \"max\"") && has(json, "\"op\": \"min\"") && has(json, "\"started\": null")) << json;
            EXPECT_EQ(count_of(json, "\"running\": null"), 1u) << json;
        }
        self.meet();
    });
}

int role_fail(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK) return 1;
    quoit_comm_t *pair = nullptr;
    int all[] = {0, 1};
    if (quoit_comm_create_group(self.comm, all, 2, "pair", nullptr, &pair) != QUOIT_OK) return 2;
    for (int i = 0; i < 3; i++)
        if (allreduce(self.comm, 100) != QUOIT_OK || allreduce(pair, 50) != QUOIT_OK) return 3;
    if (self.rank == 0) {
        allreduce(self.comm, 555, 200);
        allreduce(self.comm, 556, 200); // fails at once: no second dump
        allreduce(pair, 557, 200);
    }
    self.say("failed %d", quoit_comm_error(self.comm, nullptr, 0));
    self.listen("go");
    quoit_comm_destroy(pair);
    return 0;
}

class Dumps : public testing::TestWithParam<const char *> {};

TEST_P(Dumps, OnceACommunicatorInOneFileARank)
{
    std::string ending = GetParam();
    Directory directory;
    Processes ranks("fail", {0, 0}, {}, "", {"QUOIT_DUMP=" + directory.path + "/dump" + ending});
    ASSERT_NE(ranks.wait_line(0, "failed", 60), "") << ranks.output(0);
    std::string path = directory.path + "/dump.0" + ending, dump = read_file(path);
    ASSERT_NE(dump, "") << ranks.output(0);
    struct stat found;
    ASSERT_EQ(stat(path.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 0777, 0600u);
    for (const char *name : {"world", "pair"}) {
        std::string title = ending == ".json" ? std::string("{\"communicator\": \"") + name + "\"" : std::string("communicator ") + name + ": rank 0 of 2";
        EXPECT_EQ(count_of(dump, title), 1u) << dump;
    }
    if (ending == ".json") {
        EXPECT_EQ(count_of(dump, "\n"), 2u) << dump;
        EXPECT_TRUE(has(dump, "\"running\": {\"operation\": \"allreduce\", \"sequence\": 5, \"count\": 555")) << dump;
        EXPECT_TRUE(has(dump, "\"waiting\": \"waiting for rank 1 (")) << dump;
    } else {
        EXPECT_TRUE(has(dump, "  runs allreduce #5 (float32, sum, 555 elements)")) << dump;
        EXPECT_TRUE(has(dump, "waiting for rank 1 (")) << dump;
        EXPECT_TRUE(has(dump, "HAS NOT ARRIVED at #5")) << dump;
    }
    for (int rank = 0; rank < 2; rank++) ranks.tell(rank, "go");
    for (int rank = 0; rank < 2; rank++) EXPECT_EQ(ranks.wait_exit(rank, 30), 0) << ranks.output(rank);
}

// No file may grow beyond 300 bytes: the system takes a part of the dump, and says why it takes no more.
int role_full(ProcessRank &self)
{
    dup2(1, 2); /* the log, to where the limit does not count */
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm, 100) != QUOIT_OK) return 1;
    if (self.rank == 0) {
        rlimit limit = {300, 300};
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
        errno = EAGAIN; /* what an earlier call left is not the cause */
        allreduce(self.comm, 555, 200);
    }
    self.say("failed %d", quoit_comm_error(self.comm, nullptr, 0));
    self.listen("go");
    return 0;
}

TEST(Dump, WithoutRoomForAllIsToldByItsCause)
{
    Directory directory;
    Processes ranks("full", {0, 0}, {}, "", {"QUOIT_DUMP=" + directory.path + "/dump.txt"});
    ASSERT_EQ(ranks.wait_line(0, "failed", 60), std::to_string(QUOIT_ERR_TIMEOUT)) << ranks.output(0);
    std::string path = directory.path + "/dump.0.txt";
    EXPECT_EQ(read_file(path).size(), 300u);
    EXPECT_TRUE(has(ranks.output(0), "warn dump: QUOIT_DUMP: " + path + ": File too large")) << ranks.output(0);
    for (int rank = 0; rank < 2; rank++) ranks.tell(rank, "go");
    for (int rank = 0; rank < 2; rank++) EXPECT_EQ(ranks.wait_exit(rank, 30), 0) << ranks.output(rank);
}

INSTANTIATE_TEST_SUITE_P(All, Dumps, testing::Values(".txt", ".json"), [](const auto &info) { return std::string(info.param + 1); });

// ------------------------------------------------------------------ from outside

int role_hang(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK) return 1;
    for (int i = 0; i < 2; i++)
        if (allreduce(self.comm, 100) != QUOIT_OK) return 2;
    self.say("ready");
    if (self.rank == self.size - 1) self.listen("go");
    quoit_status_t status = allreduce(self.comm, 4321);
    self.say("ended %d", status);
    return 0;
}

// Two ranks hang, one of them stopped, for the last one has not come: each can be asked, and none needs to answer.
TEST(Outside, TellsWhoHasNotArrived)
{
    for (const Hosts &host_of : {Hosts{0, 0, 0}, Hosts{0, 0, 1}}) {
        Processes ranks("hang", host_of);
        for (int rank = 0; rank < 3; rank++) ASSERT_NE(ranks.wait_line(rank, "ready", 60) + "x", "") << ranks.output(rank);
        std::string text;
        double until = seconds() + 30;
        do { /* until rank 0 waits, and has noted for whom; rank 1 may have come after its first note */
            usleep(20000);
            text = history_of(ranks.pid(0));
        } while (seconds() < until && !has(text, host_of[2] == 0 ? "waiting for rank 2 (" : "waiting for"));
        EXPECT_TRUE(has(text, "runs allreduce #4 (float32, sum, 4321 elements)")) << text;
        EXPECT_TRUE(has(text, "waiting for rank 2 (") || host_of[2] == 1) << text;
        if (host_of[2] == 0) {
            EXPECT_TRUE(has(text, "its newest call is allreduce #3 (float32, sum, 100 elements); HAS NOT ARRIVED at #4")) << text;
            EXPECT_EQ(count_of(text, "HAS NOT ARRIVED"), 1u) << text;
        }
        ranks.kill(0, SIGSTOP);
        int status = 0;
        waitpid(ranks.pid(0), &status, WUNTRACED);
        std::string stopped = history_of(ranks.pid(0)), json = history_of(ranks.pid(0), QUOIT_FORMAT_JSON), idle = history_of(ranks.pid(2));
        EXPECT_TRUE(has(stopped, "is stopped\n")) << stopped;
        EXPECT_TRUE(has(stopped, "runs allreduce #4 (float32, sum, 4321 elements)")) << stopped;
        EXPECT_TRUE(has(json, "\"state\": \"stopped\"") && has(json, "\"running\": {\"operation\": \"allreduce\", \"sequence\": 4")) << json;
        EXPECT_TRUE(has(idle, "no collective runs") && has(idle, "allreduce #3 (float32, sum, 100 elements)")) << idle;
        ranks.kill(0, SIGCONT);
        ranks.tell(2, "go");
        for (int rank = 0; rank < 3; rank++) {
            EXPECT_EQ(ranks.wait_line(rank, "ended", 60), "0") << ranks.output(rank);
            EXPECT_EQ(ranks.wait_exit(rank, 30), 0) << ranks.output(rank);
        }
    }
}

TEST(Outside, SaysWhyThereIsNothing)
{
    EXPECT_TRUE(has(history_of(1 << 30), "it must live, and belong to the same user"));
    pid_t pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    EXPECT_TRUE(has(history_of(pid), "has no journal of Quoit")) << history_of(pid);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
}

// A child that was forked holds its parent's journal, and is not taken for it.
TEST(Outside, AForkedChildIsNotItsParent)
{
    quoit_comm_t *comm = nullptr;
    ASSERT_EQ(quoit_comm_create(nullptr, 0, 1, nullptr, &comm), QUOIT_OK) << quoit_last_error();
    pid_t pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    EXPECT_TRUE(has(history_of(pid), "a child forked by one that has")) << history_of(pid);
    EXPECT_TRUE(has(history_of(getpid()), "communicator world: rank 0 of 1")) << history_of(getpid());
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    quoit_comm_destroy(comm);
    EXPECT_TRUE(has(history_of(getpid()), "has no journal")) << history_of(getpid());
}

int open_journal(struct stat *found)
{
    DIR *directory = opendir("/proc/self/fd");
    int result = -1;
    while (dirent *entry = readdir(directory)) {
        char target[256] = "";
        std::string path = std::string("/proc/self/fd/") + entry->d_name;
        if (readlink(path.c_str(), target, sizeof target - 1) > 0 && has(target, "quoit-journal")) result = atoi(entry->d_name);
    }
    closedir(directory);
    if (result >= 0) fstat(result, found);
    return result;
}

// One descriptor a process, which only its user can open; groups cost none, and what they held is given back.
TEST(Outside, OneDescriptorOfItsUserAlone)
{
    quoit_comm_t *comm = nullptr;
    ASSERT_EQ(quoit_comm_create(nullptr, 0, 1, nullptr, &comm), QUOIT_OK) << quoit_last_error();
    struct stat found;
    int fd = open_journal(&found), before = count_descriptors(), rank = 0;
    ASSERT_GE(fd, 0);
    EXPECT_EQ(found.st_mode & 0777, 0600u);
    EXPECT_TRUE(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    long used = 0;
    for (int round = 0; round < 3; round++) {
        std::vector<quoit_comm_t *> groups(50);
        for (size_t i = 0; i < groups.size(); i++)
            ASSERT_EQ(quoit_comm_create_group(comm, &rank, 1, ("group " + std::to_string(i)).c_str(), nullptr, &groups[i]), QUOIT_OK) << quoit_last_error();
        EXPECT_EQ(count_descriptors(), before);
        std::string text = history_of(getpid());
        EXPECT_EQ(count_of(text, "communicator group "), 50u);
        for (quoit_comm_t *each : groups) quoit_comm_destroy(each);
        fstat(fd, &found);
        if (round == 0) used = found.st_blocks;
        EXPECT_EQ(found.st_blocks, used) << "the second round's groups did not take the pages of the first's";
    }
    EXPECT_EQ(count_of(history_of(getpid()), "communicator "), 1u);
    quoit_comm_destroy(comm);
}

// Any bytes may lie in another process's journal: the reader looks at nothing outside what it has read.
TEST(Outside, AJournalOfAnyBytesIsNoDanger)
{
    quoit_comm_t *comm = nullptr;
    ASSERT_EQ(quoit_comm_create(nullptr, 0, 1, nullptr, &comm), QUOIT_OK) << quoit_last_error();
    for (size_t i = 0; i < 70; i++) ASSERT_EQ(allreduce(comm, 1 + i), QUOIT_OK);
    struct stat found;
    int fd = open_journal(&found);
    std::vector<uint8_t> real(128 << 10);
    ASSERT_EQ(pread(fd, real.data(), real.size(), 0), static_cast<ssize_t>(real.size()));
    quoit_comm_destroy(comm);
    int copy = memfd_create("quoit-journal", MFD_CLOEXEC);
    ASSERT_GE(copy, 0);
    ASSERT_EQ(ftruncate(copy, 64 << 20), 0);
    std::mt19937_64 random(seed());
    int shown = 0;
    const int rounds = long_run() ? 5000 : has_thread_sanitizer() ? 60 : 300; /* one thread reads: that it stays inside, AddressSanitizer sees */
    for (int round = 0; round < rounds; round++) {
        std::vector<uint8_t> bytes = real;
        for (int i = 0; i < 1 + round % 20; i++) bytes[random() % 3 == 0 ? random() % 300 : random() % bytes.size()] = static_cast<uint8_t>(random());
        if (round % 3 == 0) bytes[136 + random() % 8] ^= static_cast<uint8_t>(1u << random() % 8); /* the first block's place */
        ASSERT_EQ(pwrite(copy, bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
        std::string text = history_of(getpid()), json = history_of(getpid(), QUOIT_FORMAT_JSON);
        shown += has(text, "communicator ");
    }
    EXPECT_GT(shown, rounds / 15) << "seed " << seed() << ": hardly any was taken for a journal, so little was tested";
    close(copy);
}

// ------------------------------------------------------------------ the secret

int role_secret(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK) return 1;
    if (allreduce(self.comm, 100) != QUOIT_OK) return 2;
    char *text = nullptr;
    for (quoit_format_t format : {QUOIT_FORMAT_TEXT, QUOIT_FORMAT_JSON}) {
        if (quoit_comm_describe(self.comm, format, &text) != QUOIT_OK) return 3;
        fputs(text, stderr);
        free(text);
        fputs(history(self.comm, format).c_str(), stderr);
        fputs(history_of(getpid(), format).c_str(), stderr);
    }
    if (quoit_settings_print(&text) != QUOIT_OK) return 4;
    fputs(text, stderr);
    free(text);
    struct stat found;
    int journal = open_journal(&found);
    std::vector<char> bytes(1 << 20);
    if (pread(journal, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return 5;
    fwrite(bytes.data(), 1, bytes.size(), stderr);
    self.say("told");
    self.listen("abort");
    if (self.rank == 1) quoit_comm_abort(self.comm, "to have a dump");
    if (allreduce(self.comm, 100) == QUOIT_OK) return 6;
    fprintf(stderr, "%s\n", quoit_last_error());
    unsigned char secret[64];
    unsigned long length = test_comm_secret(self.comm, secret);
    std::string hex;
    for (unsigned long i = 0; i < length; i++) {
        char digits[3];
        snprintf(digits, sizeof digits, "%02x", secret[i]);
        hex += digits;
    }
    self.say("secret %s", hex.c_str());
    self.listen("go");
    return 0;
}

bool tells(const std::string &text, const std::string &secret)
{
    std::string hex, lower = text;
    for (char &each : lower) each = static_cast<char>(tolower(each));
    for (unsigned char each : secret) {
        char digits[3];
        snprintf(digits, sizeof digits, "%02x", each);
        hex += digits;
    }
    for (size_t at = 0; at + 8 <= secret.size(); at++) /* any 8 bytes of it */
        if (has(text, secret.substr(at, 8)) || has(lower, hex.substr(2 * at, 16))) return true;
    return false;
}

// Everything that a process tells of itself, at the most talkative level, among two hosts that prove the secret to each other.
TEST(Secret, IsToldNowhere)
{
    Directory directory;
    std::string log = directory.path + "/log";
    int saved = dup(2), file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    dup2(file, 2); /* of the ranks */
    {
        Processes ranks("secret", {0, 0, 1}, {}, "",
                        {"QUOIT_LOG=debug", "QUOIT_DUMP=" + directory.path + "/dump", "QUOIT_TRACE=" + directory.path + "/trace.json"});
        dup2(saved, 2);
        std::string secret;
        for (int rank = 0; rank < 3; rank++) ranks.wait_line(rank, "told", 60);
        for (int rank = 0; rank < 3; rank++) ranks.tell(rank, "abort");
        for (int rank = 0; rank < 3; rank++) {
            std::string hex = ranks.wait_line(rank, "secret", 60);
            ASSERT_EQ(hex.size(), 64u) << "rank " << rank << ": " << ranks.output(rank);
            secret.clear();
            for (size_t i = 0; i < hex.size(); i += 2) secret += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
        }
        for (const std::string &each : directory.files()) EXPECT_FALSE(tells(directory.read(each), secret)) << each;
        for (int rank = 0; rank < 3; rank++) ranks.tell(rank, "go");
        for (int rank = 0; rank < 3; rank++) EXPECT_EQ(ranks.wait_exit(rank, 60), 0) << ranks.output(rank);
        size_t bytes = 0;
        for (const std::string &each : directory.files()) {
            EXPECT_FALSE(tells(directory.read(each), secret)) << each;
            bytes += directory.read(each).size();
        }
        EXPECT_EQ(directory.files().size(), 1u + 3 + 3); // log, dumps, timelines
        EXPECT_GT(bytes, size_t(3) << 20);
        std::string planted = "..." + secret + "...";
        EXPECT_TRUE(tells(planted, secret)) << "the search itself finds nothing";
    }
    close(file);
    close(saved);
}

// Each line of the log carries its rank, once there is one, and its host.
TEST(Log, LinesCarryRankAndHost)
{
    Directory directory;
    Processes ranks("fail", {0, 0}, {}, "", {"QUOIT_LOG=debug", "QUOIT_LOG_FILE=" + directory.path + "/%p"});
    ranks.wait_line(0, "failed", 60);
    for (int rank = 0; rank < 2; rank++) ranks.tell(rank, "go");
    for (int rank = 0; rank < 2; rank++) {
        ranks.wait_exit(rank, 60);
        std::istringstream lines(directory.read(std::to_string(ranks.pid(rank))));
        std::string line, before = "quoit [pid " + std::to_string(ranks.pid(rank)) + " @ " + ranks.host_name() + "] ",
                          after = "quoit [rank " + std::to_string(rank) + " @ " + ranks.host_name() + "] ";
        bool known = false;
        int count = 0;
        while (std::getline(lines, line)) {
            known = known || line.compare(0, after.size(), after) == 0;
            EXPECT_EQ(line.compare(0, after.size(), after) == 0, known) << line;
            EXPECT_TRUE(known || line.compare(0, before.size(), before) == 0) << line;
            count++;
        }
        EXPECT_TRUE(known) << "rank " << rank;
        if (rank == 0) {
            EXPECT_GT(count, 20) << "the dump is not in the log";
        }
    }
}

const std::map<std::string, int (*)(ProcessRank &)> roles = {
    {"fail", role_fail}, {"full", role_full}, {"hang", role_hang}, {"trace", role_trace}, {"later", role_later}, {"beside", role_beside}, {"secret", role_secret}};

} // namespace

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role(roles);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
