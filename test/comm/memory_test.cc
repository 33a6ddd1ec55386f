// SPDX-License-Identifier: Apache-2.0
// Memory from quoit_memory_alloc: that inputs in it are read where they lie, by counted bytes; that they are the caller's again only when
// all have read them; what failure, destruction, fork and too little of it do.
#include "operations.h"
#include "outcome.h"

#include <sys/wait.h>
#include <unistd.h>

using namespace comm_test;

namespace {

// Of this rank's communicator: `name` is memory, copied or in_place.
uint64_t counted(quoit_comm_t *comm, const std::string &name)
{
    char *text = nullptr;
    EXPECT_EQ(quoit_comm_describe(comm, QUOIT_FORMAT_JSON, &text), QUOIT_OK) << quoit_last_error();
    std::string json = text ? text : "";
    free(text);
    size_t at = json.find("\"" + name + "\": ");
    EXPECT_NE(at, std::string::npos) << json;
    return at == std::string::npos ? 0 : strtoull(json.c_str() + at + name.size() + 4, nullptr, 10);
}

struct Counts {
    uint64_t copied, in_place;
};

// What one call added to the counters.
Counts count(const Case &one, quoit_comm_t *comm, bool blocking = true)
{
    uint64_t copied = counted(comm, "copied"), in_place = counted(comm, "in_place");
    EXPECT_EQ(perform(one, comm, blocking), "");
    return {counted(comm, "copied") - copied, counted(comm, "in_place") - in_place};
}

float *floats(quoit_comm_t *comm, size_t count)
{
    void *memory = nullptr;
    EXPECT_EQ(quoit_memory_alloc(comm, count * sizeof(float), &memory), QUOIT_OK) << quoit_last_error();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
    return static_cast<float *>(memory);
}

// A block of 1 MiB: several chunks, whose parts are all the same among 2 and 4 ranks.
enum { COUNT = 1 << 18 };
constexpr uint64_t BYTES = COUNT * sizeof(float);

class Sizes : public testing::TestWithParam<Hosts> {};

TEST_P(Sizes, NothingIsPublished)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        uint64_t others = static_cast<uint64_t>(self.size) - 1, all = others + 1;
        for (bool in_place : {false, true}) {
            Case one;
            one.count = COUNT;
            one.in_place = in_place;
            one.collective = Collective::Allreduce;
            Counts plain = count(one, self.comm);
            EXPECT_EQ(plain.in_place, 0u);
            bool flat = all == 2; /* everyone publishes all; else parts are published, and collected */
            EXPECT_EQ(plain.copied, flat ? BYTES : 2 * BYTES * others / all);
            one.shared = ~UINT64_C(0);
            Counts shared = count(one, self.comm);
            uint64_t read = !flat ? BYTES * others / all : in_place ? 0 : BYTES; /* a result in its place would spoil what the other reads */
            EXPECT_EQ(shared.copied, flat ? BYTES - read : BYTES * others / all);
            EXPECT_EQ(shared.in_place, read);

            one.collective = Collective::ReduceScatter;
            one.shared = 0;
            plain = count(one, self.comm);
            EXPECT_EQ(plain.in_place, 0u);
            EXPECT_EQ(plain.copied, BYTES * others);
            one.shared = ~UINT64_C(0);
            shared = count(one, self.comm);
            EXPECT_EQ(shared.copied, 0u);
            EXPECT_EQ(shared.in_place, BYTES * others);

            if (!in_place) { /* which it does not do */
                one.collective = Collective::Alltoall;
                one.shared = 0;
                plain = count(one, self.comm);
                EXPECT_EQ(plain.in_place, 0u);
                EXPECT_EQ(plain.copied, BYTES * (2 * others + 1)) << "published, fetched, and the own one";
                one.shared = ~UINT64_C(0);
                shared = count(one, self.comm);
                EXPECT_EQ(shared.copied, BYTES * (others + 1));
                EXPECT_EQ(shared.in_place, BYTES * others);
            }

            one.collective = Collective::Allgather;
            one.shared = 0;
            plain = count(one, self.comm);
            EXPECT_EQ(plain.in_place, 0u);
            EXPECT_EQ(plain.copied, BYTES * (others + 1 + !in_place));
            one.shared = ~UINT64_C(0);
            shared = count(one, self.comm, false);
            EXPECT_EQ(shared.copied, BYTES * (others + !in_place));
            EXPECT_EQ(shared.in_place, BYTES * others);

            one.shared = 1; /* rank 0 alone */
            shared = count(one, self.comm);
            EXPECT_EQ(shared.in_place, self.rank == 0 ? 0 : BYTES);
            EXPECT_EQ(shared.copied, BYTES * (others + !in_place + (self.rank != 0)));
        }
        Case small; /* goes through the small slots as ever */
        small.count = 1000;
        small.shared = ~UINT64_C(0);
        EXPECT_EQ(count(small, self.comm).in_place, 0u);
        Case scaled;
        scaled.count = COUNT;
        scaled.op = QUOIT_PREMUL_SUM;
        scaled.shared = ~UINT64_C(0);
        EXPECT_EQ(count(scaled, self.comm).in_place, 0u);
        EXPECT_EQ(counted(self.comm, "memory"), 0u) << "not all was given back";
    });
}

INSTANTIATE_TEST_SUITE_P(All, Sizes, testing::Values(Hosts{0, 0}, Hosts{0, 0, 0, 0}), print_hosts);

// An operation ends when the others have read: whoever writes to its input then spoils nothing.
TEST(Memory, IsTheCallersAgain)
{
    run_ranks({.host_of = {0, 0, 0}}, [&](Rank &self) {
        size_t n = static_cast<size_t>(self.size);
        float *send = floats(self.comm, COUNT * n);
        std::vector<float> recv(COUNT * n);
        int rounds = has_sanitizer() ? 5 : 30;
        for (int round = 0; round < rounds; round++) {
            auto value = [&](size_t rank) { return static_cast<float>(round * 10) + static_cast<float>(rank); };
            std::fill(send, send + COUNT * n, value(static_cast<size_t>(self.rank)));
            ASSERT_EQ(quoit_allgather(self.comm, send, recv.data(), COUNT, QUOIT_F32, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            std::fill(send, send + COUNT * n, -1.0f);
            for (size_t i = 0; i < recv.size(); i += 61) ASSERT_EQ(recv[i], value(i / COUNT)) << "round " << round << ", element " << i;

            std::fill(send, send + COUNT * n, value(static_cast<size_t>(self.rank)));
            ASSERT_EQ(quoit_reduce_scatter(self.comm, send, recv.data(), COUNT, QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            std::fill(send, send + COUNT * n, -1.0f);
            for (size_t i = 0; i < COUNT; i += 61) ASSERT_EQ(recv[i], value(0) + value(1) + value(2)) << "round " << round << ", element " << i;

            for (size_t i = 0; i < COUNT * n; i++) send[i] = value(static_cast<size_t>(self.rank)) + 100.0f * static_cast<float>(i / COUNT);
            ASSERT_EQ(quoit_alltoall(self.comm, send, recv.data(), COUNT, QUOIT_F32, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            std::fill(send, send + COUNT * n, -1.0f);
            for (size_t i = 0; i < recv.size(); i += 61)
                ASSERT_EQ(recv[i], value(i / COUNT) + 100.0f * static_cast<float>(self.rank)) << "round " << round << ", element " << i;

            std::fill(send, send + COUNT, value(static_cast<size_t>(self.rank)));
            ASSERT_EQ(quoit_allreduce(self.comm, send, send, COUNT, QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            for (size_t i = 0; i < COUNT; i += 61) ASSERT_EQ(send[i], value(0) + value(1) + value(2)) << "round " << round << ", element " << i;
        }
        quoit_memory_free(send);
    });
}

// Rank 0 fails after it has published, and writes to its input; rank 1, which has not read it yet, must not take that for the result.
TEST(Memory, InputOfAFailedRankIsNoResult)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        for (Collective collective : {Collective::Allgather, Collective::Allreduce, Collective::ReduceScatter, Collective::Alltoall}) {
            int both[] = {0, 1};
            quoit_comm_t *comm = nullptr;
            ASSERT_EQ(quoit_comm_create_group(self.comm, both, 2, "failing", nullptr, &comm), QUOIT_OK) << quoit_last_error();
            const size_t count = 8192; /* one chunk */
            float *send = floats(comm, 2 * count);
            std::vector<float> recv(2 * count);
            std::fill(send, send + 2 * count, 1.0f);
            auto issue = [&](int timeout_ms, quoit_request_t **request) {
                quoit_call_t call = QUOIT_CALL_INIT;
                call.timeout_ms = timeout_ms;
                call.flags = QUOIT_CALL_ATTENDED; /* nobody drives it but this thread */
                if (collective == Collective::Allgather) return quoit_allgather(comm, send, recv.data(), count, QUOIT_F32, &call, request);
                if (collective == Collective::Alltoall) return quoit_alltoall(comm, send, recv.data(), count, QUOIT_F32, &call, request);
                if (collective == Collective::Allreduce) return quoit_allreduce(comm, send, recv.data(), count, QUOIT_F32, QUOIT_SUM, &call, request);
                return quoit_reduce_scatter(comm, send, recv.data(), count, QUOIT_F32, QUOIT_SUM, &call, request);
            };
            quoit_request_t *request = nullptr;
            if (self.rank == 1) {
                ASSERT_EQ(issue(20000, &request), QUOIT_OK) << quoit_last_error();
                EXPECT_EQ(quoit_request_test(request), QUOIT_IN_PROGRESS); /* it has published, and awaits rank 0 */
            }
            self.meet();
            if (self.rank == 0) {
                EXPECT_EQ(issue(200, nullptr), QUOIT_ERR_TIMEOUT) << quoit_last_error();
                std::fill(send, send + 2 * count, -7.0f);
            }
            self.meet();
            if (self.rank == 1) {
                EXPECT_EQ(quoit_request_wait(request, -1), QUOIT_ERR_TIMEOUT) << name_of(collective) << ": it has read " << recv[0] << " and " << recv[count];
                EXPECT_NE(std::string(quoit_request_error(request)).find("told by rank 0"), std::string::npos) << quoit_request_error(request);
                quoit_request_free(request);
            }
            self.meet();
            quoit_memory_free(send);
            quoit_comm_destroy(comm);
        }
    });
}

// 48 of 64 MiB can be had; then ordinary memory is given out, and all works as before.
TEST(Memory, TooLittleOfIt)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        std::vector<float *> blocks;
        for (int i = 0; i < 60; i++) blocks.push_back(floats(self.comm, COUNT));
        EXPECT_EQ(counted(self.comm, "memory"), 48u << 20);
        EXPECT_GE(quoit_memory_alloc(self.comm, 0, reinterpret_cast<void **>(&blocks[0])), QUOIT_ERR_INVALID);
        for (float *each : {blocks.front(), blocks.back()}) {
            std::fill(each, each + COUNT, 2.0f);
            EXPECT_EQ(quoit_allreduce(self.comm, each, each, COUNT, QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(each[COUNT - 1], 4.0f);
        }
        for (float *each : blocks) quoit_memory_free(each);
        EXPECT_EQ(counted(self.comm, "memory"), 0u);
        float *large = floats(self.comm, 40 * COUNT); /* what was kept makes room for it */
        EXPECT_EQ(counted(self.comm, "memory"), 40u << 20);
        quoit_memory_free(large);
        quoit_memory_free(nullptr);
    });
}

// Large slots of groups that rest are lent to others, also when a small operation came last: 48 groups would want more than there is.
TEST(Memory, RestingGroupsGiveTheirSlotsBack)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        int both[] = {0, 1};
        std::vector<quoit_comm_t *> groups(48);
        std::vector<float> data(16384);
        for (quoit_comm_t *&group : groups) {
            ASSERT_EQ(quoit_comm_create_group(self.comm, both, 2, "resting", nullptr, &group), QUOIT_OK) << quoit_last_error();
            for (size_t count : {data.size(), size_t{1}}) {
                std::fill(data.begin(), data.end(), 1.0f);
                ASSERT_EQ(quoit_allreduce(group, data.data(), data.data(), count, QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
                EXPECT_EQ(data[count - 1], 2.0f);
            }
        }
        for (quoit_comm_t *group : groups) quoit_comm_destroy(group);
    });
}

quoit_comm_t *alone(MemoryStore &memory)
{
    quoit_comm_t *comm = nullptr;
    quoit_store_t *store = memory.open();
    EXPECT_EQ(quoit_comm_create(store, 0, 1, nullptr, &comm), QUOIT_OK) << quoit_last_error();
    quoit_store_close(store);
    return comm;
}

// It outlives the last communicator of the process, and does not harm the next one.
TEST(Memory, OutlivesItsCommunicator)
{
    MemoryStore first, second;
    quoit_comm_t *comm = alone(first);
    float *one = floats(comm, COUNT), *two = floats(comm, COUNT);
    quoit_memory_free(two);
    EXPECT_EQ(counted(comm, "memory"), BYTES);
    quoit_comm_destroy(comm);
    std::fill(one, one + COUNT, 3.0f);
    comm = alone(second);
    EXPECT_EQ(counted(comm, "memory"), 0u) << "the new engine has no blocks yet";
    float *three = floats(comm, COUNT);
    EXPECT_EQ(quoit_allreduce(comm, one, three, COUNT, QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
    EXPECT_EQ(three[COUNT - 1], 3.0f);
    quoit_memory_free(one);
    quoit_comm_destroy(comm);
    quoit_memory_free(three);
}

// A child sees the parent's memory, and cannot free it.
TEST(Memory, Fork)
{
    MemoryStore store;
    quoit_comm_t *comm = alone(store);
    float *memory = floats(comm, COUNT);
    memory[0] = 1;
    pid_t child = fork();
    if (child == 0) {
        void *more = nullptr;
        bool good = memory[0] == 1 && quoit_memory_alloc(comm, 100, &more) == QUOIT_ERR_FORKED;
        memory[0] = 2;
        quoit_memory_free(memory);
        memory[1] = 3; /* still there */
        _exit(good ? 0 : 1);
    }
    ASSERT_GT(child, 0);
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(memory[0], 2.0f);
    EXPECT_EQ(memory[1], 3.0f);
    EXPECT_EQ(counted(comm, "memory"), BYTES);
    quoit_memory_free(memory);
    EXPECT_EQ(counted(comm, "memory"), 0u);
    quoit_comm_destroy(comm);
}

} // namespace
