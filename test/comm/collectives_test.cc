// SPDX-License-Identifier: Apache-2.0
// Every collective, on ranks as threads, against naive results.
#include "operations.h"
#include "ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

using namespace comm_test;

namespace {

using Hosts = std::vector<int>;

class Topologies : public testing::TestWithParam<Hosts> {};

std::string print_hosts(const testing::TestParamInfo<Hosts> &info)
{
    std::string text = "ranks_" + name_of(info.param);
    for (char &each : text)
        if (each == '+') each = '_';
    return text + "_" + std::to_string(info.index);
}

quoit_op_t any_op(std::mt19937_64 &random, quoit_dtype_t dtype)
{
    for (;;) {
        auto op = static_cast<quoit_op_t>(random() % QUOIT_OP_COUNT);
        if (quoit_op_check(dtype, op) == QUOIT_OK) return op;
    }
}

quoit_dtype_t any_dtype(std::mt19937_64 &random, bool reduced)
{
    for (;;) {
        auto dtype = static_cast<quoit_dtype_t>(random() % QUOIT_DTYPE_COUNT);
        if (!reduced || quoit_op_check(dtype, QUOIT_SUM) == QUOIT_OK) return dtype;
    }
}

// A case of a collective with blocks of about `bytes`; the same on all ranks.
Case make_case(std::mt19937_64 &random, Collective collective, int size, size_t bytes)
{
    Case one;
    one.collective = collective;
    bool heavy = bytes > 100000; // the reference of narrow floats is slow
    one.dtype = heavy ? (random() % 2 ? QUOIT_F32 : QUOIT_I64) : any_dtype(random, reduces(collective));
    if (reduces(collective)) one.op = any_op(random, one.dtype);
    one.count = (bytes + quoit_dtype_size(one.dtype) - 1) / quoit_dtype_size(one.dtype);
    if (has_parts(collective)) one.counts = uneven_counts(random, collective, size, one.count);
    one.root = static_cast<int>(random() % static_cast<size_t>(size));
    one.in_place = random() % 2;
    one.values = random() % 1000;
    if (random() % 2) one.shared = random(); // on some ranks
    return one;
}

bool works_in_place(Collective collective)
{
    switch (collective) {
    case Collective::Allreduce:
    case Collective::Reduce:
    case Collective::Allgather:
    case Collective::Allgatherv:
    case Collective::ReduceScatter:
    case Collective::ReduceScatterv: return true;
    default: return false;
    }
}

// Around the limits of small (16 KiB), eager (8 KiB), slot (256 KiB) and chunk (512 KiB).
std::vector<size_t> sizes()
{
    std::vector<size_t> all = {0, 1, 3, 64, 1001, 8191, 8192, 8200, 16384, 16388, 65536, 262144, 262152, 1500004};
    if (long_run()) all.insert(all.end(), {2, 63, 4096, 16380, 32768, 524288, 524296, 4000004, 9000004});
    return all;
}

TEST_P(Topologies, EveryCollectiveAtEverySize)
{
    bool good = run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        for (size_t bytes : sizes()) {
            if (has_thread_sanitizer() && bytes > 300000 && !long_run()) continue;
            for (int each = 0; each < static_cast<int>(Collective::Count); each++) {
                auto collective = static_cast<Collective>(each);
                bool wide = !(collective == Collective::Allreduce || collective == Collective::Reduce || collective == Collective::Broadcast);
                size_t limit = wide ? 600000 : 4000004;
                if (bytes > limit && !long_run()) continue;
                Case one = make_case(self.random, collective, self.size, bytes);
                one.in_place = one.in_place && works_in_place(collective);
                std::string wrong = perform(one, self.comm, self.random() % 2);
                EXPECT_EQ(wrong, "");
                if (!wrong.empty()) return;
            }
        }
        EXPECT_EQ(check_edges(self.comm, GetParam()), "");
    });
    EXPECT_TRUE(good);
}

TEST_P(Topologies, EveryRoot)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        for (int root = 0; root < self.size; root++)
            for (int each = 0; each < static_cast<int>(Collective::Count); each++) {
                auto collective = static_cast<Collective>(each);
                if (!is_rooted(collective)) continue;
                for (size_t bytes : {size_t(40), size_t(30000), size_t(300000)}) {
                    if (has_thread_sanitizer() && bytes > 100000) continue;
                    Case one = make_case(self.random, collective, self.size, bytes);
                    one.root = root;
                    one.in_place = one.in_place && works_in_place(collective);
                    std::string wrong = perform(one, self.comm, true);
                    EXPECT_EQ(wrong, "");
                    if (!wrong.empty()) return;
                }
            }
    });
}

TEST_P(Topologies, EveryDtypeAndOp)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        for (int dtype = 0; dtype < QUOIT_DTYPE_COUNT; dtype++)
            for (int op = 0; op < QUOIT_OP_COUNT; op++)
                for (Collective collective : {Collective::Allreduce, Collective::Reduce, Collective::ReduceScatter}) {
                    Case one = make_case(self.random, collective, self.size, 2000);
                    one.dtype = static_cast<quoit_dtype_t>(dtype);
                    one.op = static_cast<quoit_op_t>(op);
                    one.count = 203;
                    if (quoit_op_check(one.dtype, one.op) != QUOIT_OK) {
                        Operation operation(one, self.comm);
                        EXPECT_EQ(operation.issue(nullptr), QUOIT_ERR_UNSUPPORTED);
                        std::string text = std::string("not supported: op ") + quoit_op_name(one.op) + " on " + quoit_dtype_name(one.dtype);
                        EXPECT_NE(std::string(quoit_last_error()).find(text), std::string::npos) << quoit_last_error();
                        continue;
                    }
                    std::string wrong = perform(one, self.comm, true);
                    EXPECT_EQ(wrong, "");
                    if (!wrong.empty()) return;
                }
        for (int dtype = 0; dtype < QUOIT_DTYPE_COUNT; dtype++) { // fnuz forms are moved, too
            Case one = make_case(self.random, Collective::Allgather, self.size, 900);
            one.dtype = static_cast<quoit_dtype_t>(dtype);
            std::string wrong = perform(one, self.comm, true);
            EXPECT_EQ(wrong, "");
            if (!wrong.empty()) return;
        }
    });
}

// Sums that depend on their order: all ranks have the same bits, and so has every repetition.
TEST_P(Topologies, SameBitsEverywhere)
{
    const Hosts &host_of = GetParam();
    std::vector<std::vector<float>> results(host_of.size());
    run_ranks({.host_of = host_of}, [&](Rank &self) {
        for (size_t count : {size_t(100), size_t(5000), size_t(200000)}) {
            std::mt19937 own(static_cast<unsigned>(self.rank) + 7);
            std::vector<float> send(count), first(count), again(count);
            for (float &each : send) each = std::normal_distribution<float>(0, 1)(own) * static_cast<float>(1 << own() % 20);
            for (auto *recv : {&first, &again})
                ASSERT_EQ(quoit_allreduce(self.comm, send.data(), recv->data(), count, QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK)
                    << quoit_last_error();
            EXPECT_EQ(memcmp(first.data(), again.data(), count * sizeof(float)), 0) << "count " << count;
            results[static_cast<size_t>(self.rank)] = first;
            std::vector<float> all(count * static_cast<size_t>(self.size));
            ASSERT_EQ(quoit_allgather(self.comm, first.data(), all.data(), count, QUOIT_F32, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            for (int rank = 0; rank < self.size; rank++)
                EXPECT_EQ(memcmp(first.data(), all.data() + static_cast<size_t>(rank) * count, count * sizeof(float)), 0)
                    << "ranks " << self.rank << " and " << rank << " differ at count " << count;
        }
    });
}

const std::vector<Hosts> topologies = worlds({{0}, {0, 0}, {0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 0, 1},
                                              {0, 0, 0, 0, 1, 1, 1}, {0, 1, 2}, {0, 0, 0, 1, 2, 2}, {2, 0, 1, 0, 2, 0}});
INSTANTIATE_TEST_SUITE_P(All, Topologies, testing::ValuesIn(topologies), print_hosts);

} // namespace
