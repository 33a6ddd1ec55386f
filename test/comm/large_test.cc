// SPDX-License-Identifier: Apache-2.0
// More elements than 32 bits count, of one byte each, on two ranks: no offset, length or count on the way is cut short. For long runs: it takes
// 9 GB of memory, and a minute.
#include "outcome.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

using namespace comm_test;

namespace {

constexpr size_t COUNT = (size_t{1} << 32) + 4099;

// Of the element's place: no two parts of the buffer look alike.
inline uint8_t value(size_t i, int rank) { return static_cast<uint8_t>(((i + static_cast<size_t>(rank)) * UINT64_C(0x9e3779b97f4a7c15)) >> 56); }

void fill(std::vector<uint8_t> &data, int rank)
{
    for (size_t i = 0; i < data.size(); i++) data[i] = value(i, rank);
}

// The first place that is not as it should be, or the size.
template <class Expected> size_t differs(const std::vector<uint8_t> &data, Expected expected)
{
    for (size_t i = 0; i < data.size(); i++)
        if (data[i] != expected(i)) return i;
    return data.size();
}

int role_large(ProcessRank &self)
{
    if (self.create(600000) != QUOIT_OK) return 1;
    std::vector<uint8_t> data(COUNT);
    auto check = [&](const char *what, quoit_status_t status, auto expected) {
        size_t at = status == QUOIT_OK ? differs(data, expected) : 0;
        self.say("%s %zu %d %s", what, at, status, status == QUOIT_OK ? "" : quoit_last_error());
    };
    quoit_call_t call = QUOIT_CALL_INIT;
    call.timeout_ms = 600000;
    fill(data, self.rank);
    check("allreduce", quoit_allreduce(self.comm, data.data(), data.data(), COUNT, QUOIT_U8, QUOIT_SUM, &call, nullptr),
          [](size_t i) { return static_cast<uint8_t>(value(i, 0) + value(i, 1)); });
    fill(data, self.rank + 2);
    check("broadcast", quoit_broadcast(self.comm, data.data(), COUNT, QUOIT_U8, 1, &call, nullptr), [](size_t i) { return value(i, 3); });
    if (self.rank == 0) fill(data, 4);
    else memset(data.data(), 0, COUNT);
    check("message", self.rank == 0 ? quoit_send(self.comm, data.data(), COUNT, QUOIT_U8, 1, 1, &call, nullptr)
                                    : quoit_recv(self.comm, data.data(), COUNT, QUOIT_U8, 0, 1, &call, nullptr),
          [](size_t i) { return value(i, 4); });
    const size_t half = COUNT / 2, odd = half * 2; /* each gives a half, where it belongs */
    memset(data.data(), 0, COUNT);
    for (size_t i = 0; i < half; i++) data[half * static_cast<size_t>(self.rank) + i] = value(i, self.rank);
    check("allgather", quoit_allgather(self.comm, data.data() + half * static_cast<size_t>(self.rank), data.data(), half, QUOIT_U8, &call, nullptr),
          [=](size_t i) { return i >= odd ? uint8_t{0} : i < half ? value(i, 0) : value(i - half, 1); });
    return 0;
}

size_t available_memory()
{
    std::ifstream file("/proc/meminfo");
    std::string word;
    size_t kib = 0;
    while (file >> word)
        if (word == "MemAvailable:" && file >> kib) break;
    return kib << 10;
}

TEST(Large, MoreThan32BitsCount)
{
    if (!long_run()) return;
    if (available_memory() < 3 * COUNT) GTEST_SKIP() << "needs 13 GB of free memory";
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
        SCOPED_TRACE(name_of(host_of));
        Processes ranks("large", host_of);
        for (const char *what : {"allreduce", "broadcast", "message", "allgather"})
            for (int rank = 0; rank < 2; rank++) {
                size_t at = 0;
                int status = -1;
                std::string line = ranks.wait_line(rank, what, 600 * slow());
                sscanf(line.c_str(), "%zu %d", &at, &status);
                EXPECT_EQ(status, QUOIT_OK) << line;
                EXPECT_EQ(at, COUNT) << what << " on rank " << rank << ": the first wrong element";
            }
        for (int rank = 0; rank < 2; rank++) EXPECT_EQ(ranks.wait_exit(rank, 60), 0) << ranks.output(rank);
    }
}

const std::map<std::string, int (*)(ProcessRank &)> roles = {{"large", role_large}};

} // namespace

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role(roles);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
