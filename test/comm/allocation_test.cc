// SPDX-License-Identifier: Apache-2.0
// The data path takes no memory: this program's own malloc counts, and after some calls of a kind further ones must not come to it. Also
// what a large allreduce needs beside the caller's buffers, what hundreds of groups add, and how often ranks that share processors change places.
#include "processes.h"
#include "ranks.h"
#include "test/support/entries.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <execinfo.h>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

namespace {

std::atomic<bool> counting{false};
std::atomic<int> counted{0};
std::atomic<bool> shown{false}; // no more of where it comes from
thread_local bool inside = false; // backtrace_symbols_fd may itself take memory

void note(size_t bytes)
{
    if (!counting.load(std::memory_order_relaxed) || inside) return;
    inside = true; // from here on: what telling it takes
    counted++;
    if (!shown.exchange(true)) {
        void *frames[24];
        int depth = backtrace(frames, 24);
        dprintf(STDERR_FILENO, "memory taken on the data path: %zu bytes\n", bytes);
        backtrace_symbols_fd(frames, depth, STDERR_FILENO);
    }
    inside = false;
}

} // namespace

// The program's own definitions take the place of libc's everywhere: in the library, in libc, and in what else is loaded.
extern "C" {
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes)
{
    note(bytes);
    return __libc_malloc(bytes);
}
void *calloc(size_t count, size_t bytes)
{
    note(count * bytes);
    return __libc_calloc(count, bytes);
}
void *realloc(void *memory, size_t bytes)
{
    note(bytes);
    return __libc_realloc(memory, bytes);
}
void *memalign(size_t alignment, size_t bytes)
{
    note(bytes);
    return __libc_memalign(alignment, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    void *made = memalign(alignment, bytes);
    if (made) *memory = made;
    return made ? 0 : ENOMEM;
}
}

using namespace comm_test;

namespace {

using Hosts = std::vector<int>;

// One rank's buffers for every collective, so that a call in the counted part is that call alone.
struct Buffers {
    size_t count;
    std::vector<float> send, recv;
    std::vector<quoit_part_t> send_parts, recv_parts;
    Buffers(size_t each, int size) : count(each), send(each * static_cast<size_t>(size), 1.0f), recv(each * static_cast<size_t>(size))
    {
        for (size_t rank = 0; rank < static_cast<size_t>(size); rank++) {
            send_parts.push_back({send.data() + rank * each, each});
            recv_parts.push_back({recv.data() + rank * each, each});
        }
    }
};

using Call = std::function<quoit_status_t(quoit_comm_t *comm, Buffers &buffers, const quoit_call_t *call, quoit_request_t **request)>;

struct Kind {
    const char *name;
    Call call;
};

const std::vector<Kind> &kinds()
{
    static const std::vector<Kind> all = {
        {"allreduce", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_allreduce(c, b.send.data(), b.recv.data(), b.count, QUOIT_F32, QUOIT_SUM, o, r);
         }},
        {"reduce", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_reduce(c, b.send.data(), b.recv.data(), b.count, QUOIT_F32, QUOIT_SUM, 0, o, r);
         }},
        {"broadcast", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_broadcast(c, b.recv.data(), b.count, QUOIT_F32, 0, o, r);
         }},
        {"allgather", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_allgather(c, b.send.data(), b.recv.data(), b.count, QUOIT_F32, o, r);
         }},
        {"reduce_scatter", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_reduce_scatter(c, b.send.data(), b.recv.data(), b.count, QUOIT_F32, QUOIT_SUM, o, r);
         }},
        {"alltoall", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_alltoall(c, b.send.data(), b.recv.data(), b.count, QUOIT_F32, o, r);
         }},
        {"gather", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_gather(c, b.send.data(), b.recv.data(), b.count, QUOIT_F32, 0, o, r);
         }},
        {"scatter", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_scatter(c, b.send.data(), b.recv.data(), b.count, QUOIT_F32, 0, o, r);
         }},
        {"barrier", [](quoit_comm_t *c, Buffers &, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_barrier(c, o, r);
         }},
    };
    return all;
}

// The forms whose blocks lie where the caller says.
const std::vector<Kind> &part_kinds()
{
    static const std::vector<Kind> all = {
        {"allgatherv", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_allgatherv(c, b.send.data(), b.recv_parts.data(), QUOIT_F32, o, r);
         }},
        {"reduce_scatterv", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_reduce_scatterv(c, b.send_parts.data(), b.recv.data(), QUOIT_F32, QUOIT_SUM, o, r);
         }},
        {"alltoallv", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_alltoallv(c, b.send_parts.data(), b.recv_parts.data(), QUOIT_F32, o, r);
         }},
        {"gatherv", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_gatherv(c, b.send.data(), b.count, b.recv_parts.data(), QUOIT_F32, 0, o, r);
         }},
        {"scatterv", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             return quoit_scatterv(c, b.send_parts.data(), b.recv.data(), b.count, QUOIT_F32, 0, o, r);
         }},
        {"send and recv", [](quoit_comm_t *c, Buffers &b, const quoit_call_t *o, quoit_request_t **r) {
             int size = quoit_comm_size(c), rank = quoit_comm_rank(c);
             quoit_request_t *sent = nullptr;
             quoit_status_t status = quoit_send(c, b.send.data(), b.count, QUOIT_F32, (rank + 1) % size, 3, o, &sent);
             if (status == QUOIT_OK) status = quoit_recv(c, b.recv.data(), b.count, QUOIT_F32, (rank + size - 1) % size, 3, o, r);
             if (status == QUOIT_OK) status = quoit_request_wait(sent, 20000);
             quoit_request_free(sent);
             return status;
         }},
    };
    return all;
}

// A call of the kind, then one whose end is waited for apart.
quoit_status_t use(const Kind &kind, quoit_comm_t *comm, Buffers &buffers)
{
    quoit_call_t call = QUOIT_CALL_INIT;
    quoit_request_t *request = nullptr;
    quoit_status_t status = kind.call(comm, buffers, &call, nullptr);
    if (status == QUOIT_OK) status = kind.call(comm, buffers, &call, &request);
    if (status == QUOIT_OK) status = quoit_request_wait(request, 20000);
    quoit_request_free(request);
    return status;
}

class Allocations : public testing::TestWithParam<Hosts> {};

// What a kind of call needs (plans, operations, slots, room for messages) is there after some of them, the more the further ranks run ahead of
// each other. So a series without any must come soon; memory that every call takes would show in each.
TEST_P(Allocations, NoneOnTheWayOfData)
{
    enum { SERIES = 12, CALLS = 10 };
    void *frames[4];
    backtrace(frames, 4); // loads what it needs
    for (const std::vector<Kind> *list : {&kinds(), &part_kinds()})
        run_ranks({.host_of = GetParam()}, [&](Rank &self) {
            for (const Kind &kind : *list)
                for (size_t count : {size_t(1), size_t(5000), size_t(300000)}) {
                    Buffers buffers(count, self.size);
                    quoit_status_t status = QUOIT_OK;
                    int taken = 1;
                    for (int series = 0; series < SERIES && taken > 0; series++) {
                        self.meet();
                        if (self.rank == 0) {
                            counted = 0;
                            shown = series < SERIES - 1;
                            counting = series > 0;
                        }
                        self.meet();
                        for (int i = 0; i < CALLS && status == QUOIT_OK; i++) status = use(kind, self.comm, buffers);
                        self.meet();
                        taken = series > 0 ? counted.load() : 1; /* the same on all ranks */
                        self.meet();
                        if (self.rank == 0) counting = false;
                    }
                    ASSERT_EQ(status, QUOIT_OK) << kind.name << ": " << quoit_last_error();
                    EXPECT_EQ(taken, 0) << kind.name << " of " << count << " elements, " << name_of(GetParam()) << " ranks: in each series of " << CALLS;
                }
        });
}

// The counter counts: otherwise the test above could not fail.
TEST(Allocation, IsCounted)
{
    counted = 0;
    shown = true;
    counting = true;
    char *text = nullptr;
    quoit_status_t status = quoit_settings_print(&text);
    counting = false;
    free(text);
    EXPECT_EQ(status, QUOIT_OK);
    EXPECT_GT(counted.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Hosts, Allocations, testing::Values(Hosts{0, 0, 0}, Hosts{0, 1}, Hosts{0, 0, 1}), [](const auto &info) {
    std::string name = "ranks_" + name_of(info.param);
    std::replace(name.begin(), name.end(), '+', '_');
    return name;
});

// ------------------------------------------------------------------ resident memory

// KiB of /proc/self/status.
long status_of(const char *field)
{
    char line[256];
    long value = -1;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, field, strlen(field)) == 0) value = atol(line + strlen(field) + 1);
    if (file) fclose(file);
    return value;
}

// What an allreduce adds to the most that was ever resident, shared memory and all.
int role_peak(ProcessRank &self)
{
    size_t bytes = strtoull(self.argument(0), nullptr, 10);
    if (self.create(60000) != QUOIT_OK) {
        self.say("extra failed: %s", quoit_last_error());
        return 1;
    }
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED || quoit_barrier(self.comm, nullptr, nullptr) != QUOIT_OK) return 2;
    int refs = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    bool reset = refs >= 0 && write(refs, "5", 1) == 1; // the peak begins anew
    close(refs);
    long before = status_of("VmRSS");
    quoit_status_t status = quoit_allreduce(self.comm, memory, memory, bytes / sizeof(float), QUOIT_F32, QUOIT_SUM, nullptr, nullptr);
    if (status != QUOIT_OK || !reset) self.say("extra failed: %s", quoit_last_error());
    else self.say("extra %ld", status_of("VmHWM") - before);
    return 0;
}

TEST(Resident, LargeAllreduceTakesLittleBesideItsBuffers)
{
    std::string bytes = std::to_string(long_run() ? size_t(1) << 30 : size_t(64) << 20);
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}, Hosts{0, 0, 0}, Hosts{0, 0, 1}}) {
        SCOPED_TRACE(name_of(host_of) + " ranks, " + bytes + " bytes");
        Processes ranks("peak", host_of, {bytes});
        for (int rank = 0; rank < ranks.size(); rank++) {
            std::string extra = ranks.wait_line(rank, "extra", 120 * slow());
            printf("rank %d of %s: %s KiB beside the buffers\n", rank, name_of(host_of).c_str(), extra.c_str());
            ASSERT_TRUE(!extra.empty() && extra.find_first_not_of("-0123456789 ") == std::string::npos) << extra << ranks.output(rank);
            EXPECT_LT(atol(extra.c_str()), 32 << 10) << "rank " << rank;
        }
        for (int rank = 0; rank < ranks.size(); rank++) EXPECT_EQ(ranks.wait_exit(rank, 30 * slow()), 0);
    }
}

// 200 groups of all ranks, each used: what is resident, and the time that making them takes; threads and descriptors with and without them. Each rank has
// read what all others share, and the kernel counts it in each of them: so it is looked at as `ps` shows it.
int role_groups(ProcessRank &self)
{
    enum { GROUPS = 200 };
    long before = status_of("VmRSS");
    if (self.create(60000) != QUOIT_OK || quoit_barrier(self.comm, nullptr, nullptr) != QUOIT_OK) {
        self.say("groups failed: %s", quoit_last_error());
        return 1;
    }
    std::vector<int> all;
    for (int rank = 0; rank < self.size; rank++) all.push_back(rank);
    std::vector<float> data(300000, 1.0f);
    before += static_cast<long>(data.size() * sizeof data[0] >> 10);
    quoit_status_t status = quoit_allreduce(self.comm, data.data(), data.data(), data.size(), QUOIT_F32, QUOIT_SUM, nullptr, nullptr);
    int descriptors = entries_of("/proc/self/fd"), threads = entries_of("/proc/self/task");
    std::vector<quoit_comm_t *> groups;
    double begin = seconds();
    for (int i = 0; i < GROUPS && status == QUOIT_OK; i++) {
        quoit_comm_t *group = nullptr;
        status = quoit_comm_create_group(self.comm, all.data(), self.size, ("group " + std::to_string(i)).c_str(), nullptr, &group);
        groups.push_back(group);
    }
    double made = seconds() - begin;
    auto use = [&](size_t how_many, size_t count) {
        for (size_t i = 0; i < how_many; i++)
            if (status == QUOIT_OK) status = quoit_allreduce(groups[i], data.data(), data.data(), count, QUOIT_F32, QUOIT_MAX, nullptr, nullptr);
    };
    use(groups.size(), 1);
    use(groups.size(), 100);
    use(groups.size(), 20000);
    use(6, data.size());
    if (status == QUOIT_OK) status = quoit_barrier(self.comm, nullptr, nullptr); // all have touched what they will
    long own = status_of("VmRSS") - before;
    int more = entries_of("/proc/self/fd") - descriptors, more_threads = entries_of("/proc/self/task") - threads;
    if (status != QUOIT_OK) self.say("groups failed: %s", quoit_last_error());
    for (quoit_comm_t *group : groups) quoit_comm_destroy(group);
    int left = entries_of("/proc/self/fd") - descriptors, left_threads = entries_of("/proc/self/task") - threads;
    if (status == QUOIT_OK) self.say("groups %ld %d %d %d %d %.6f", own, more, more_threads, left, left_threads, made);
    self.listen("go"); // nobody leaves while another one counts
    return 0;
}

class Groups : public testing::TestWithParam<int> {};

TEST_P(Groups, TwoHundredAreCheap)
{
    Processes ranks("groups", Hosts(static_cast<size_t>(GetParam()), 0));
    for (int rank = 0; rank < ranks.size(); rank++) {
        std::string found = ranks.wait_line(rank, "groups", 120 * slow());
        long own = 0;
        int more = 0, more_threads = 0, left = 0, left_threads = 0;
        double made = 0;
        ASSERT_EQ(sscanf(found.c_str(), "%ld %d %d %d %d %lf", &own, &more, &more_threads, &left, &left_threads, &made), 6) << found << ranks.output(rank);
        if (rank == 0) printf("%d ranks: %ld KiB resident; 200 groups made in %.1f ms\n", GetParam(), own, made * 1e3);
        EXPECT_LT(own, 64 << 10) << "KiB, rank " << rank;
        EXPECT_EQ(more, 0) << "descriptors of 200 groups, rank " << rank;
        EXPECT_EQ(more_threads, 0) << "threads of 200 groups, rank " << rank;
        EXPECT_EQ(left, 0) << "descriptors left, rank " << rank;
        EXPECT_EQ(left_threads, 0) << "threads left, rank " << rank;
    }
    for (int rank = 0; rank < ranks.size(); rank++) ranks.tell(rank, "go");
    for (int rank = 0; rank < ranks.size(); rank++) EXPECT_EQ(ranks.wait_exit(rank, 60 * slow()), 0) << ranks.output(rank);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Groups, testing::Values(4, 16));

// ------------------------------------------------------------------ more ranks than processors

// Times that the progress thread went to sleep, so far; 0 when there is none.
long progress_sleeps()
{
    long sleeps = 0;
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/task", error)) {
        std::ifstream name(entry.path() / "comm"), status(entry.path() / "status");
        std::string line;
        if (!std::getline(name, line) || line != "quoit") continue;
        while (std::getline(status, line))
            if (line.rfind("voluntary_ctxt_switches:", 0) == 0) sleeps += atol(line.c_str() + line.find(':') + 1);
    }
    return sleeps;
}

// How often this rank leaves the processor, for each allreduce, and how often its progress thread was woken for it.
int role_switches(ProcessRank &self)
{
    enum { CALLS = 400 };
    size_t count = strtoull(self.argument(0), nullptr, 10);
    std::vector<float> data(count, 1.0f);
    quoit_status_t status = self.create(60000);
    auto run = [&](int calls) {
        for (int i = 0; i < calls && status == QUOIT_OK; i++)
            status = quoit_allreduce(self.comm, data.data(), data.data(), count, QUOIT_F32, QUOIT_MAX, nullptr, nullptr);
    };
    run(20);
    rusage before, after;
    long slept = progress_sleeps();
    getrusage(RUSAGE_SELF, &before);
    run(CALLS);
    getrusage(RUSAGE_SELF, &after);
    slept = progress_sleeps() - slept;
    if (status != QUOIT_OK) self.say("switches failed: %s", quoit_last_error());
    double given = static_cast<double>(after.ru_nvcsw - before.ru_nvcsw + after.ru_nivcsw - before.ru_nivcsw);
    self.say("switches %.3f %.3f", given / static_cast<double>(CALLS), static_cast<double>(slept) / static_cast<double>(CALLS));
    return 0;
}

// Who waits lets the others run, and is back when its turn comes: about one turn a rank for each time that all wait for each other, which is once for
// small ones and twice for larger ones. One that yields to the wrong one, or sleeps, has several. Others on this machine add some.
TEST(Scheduling, OneTurnARank)
{
    const Hosts host_of(8, 0);
    for (auto [count, turns] : {std::pair<size_t, int>{1, 1}, {16384, 2}}) {
        Processes ranks("switches", host_of, {std::to_string(count)});
        double sum = 0;
        for (int rank = 0; rank < ranks.size(); rank++) {
            std::string found = ranks.wait_line(rank, "switches", 120 * slow());
            char *end = nullptr;
            sum += strtod(found.c_str(), &end);
            ASSERT_NE(end, found.c_str()) << found << ranks.output(rank);
        }
        printf("%zu elements, 8 ranks: %.2f turns each\n", count, sum / ranks.size());
        EXPECT_LT(sum / ranks.size(), 6.0 * turns) << count << " elements";
        for (int rank = 0; rank < ranks.size(); rank++) EXPECT_EQ(ranks.wait_exit(rank, 60 * slow()), 0) << ranks.output(rank);
    }
}

// Between hosts, too, the thread that waits sends and receives all by itself.
TEST(Scheduling, NobodyElseIsWoken)
{
    const Hosts host_of = {0, 1};
    Processes ranks("switches", host_of, {"1"});
    for (int rank = 0; rank < ranks.size(); rank++) {
        std::string found = ranks.wait_line(rank, "switches", 120 * slow());
        double given = 0, slept = 0;
        ASSERT_EQ(sscanf(found.c_str(), "%lf %lf", &given, &slept), 2) << found << ranks.output(rank);
        printf("rank %d of two hosts: %.2f turns, the progress thread woken %.2f times\n", rank, given, slept);
        EXPECT_LT(slept, 0.1) << "for each allreduce, rank " << rank;
    }
    for (int rank = 0; rank < ranks.size(); rank++) EXPECT_EQ(ranks.wait_exit(rank, 60 * slow()), 0) << ranks.output(rank);
}

const std::map<std::string, int (*)(ProcessRank &)> roles = {{"peak", role_peak}, {"groups", role_groups}, {"switches", role_switches}};

} // namespace

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role(roles);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
