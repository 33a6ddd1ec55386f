// SPDX-License-Identifier: Apache-2.0
// Wire formats between hosts, over the real transports: errors within their bounds, the same bits on all ranks, the bytes that the
// connections count, averages that must not overflow, residuals, and ranks that want different formats.
#include "ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstring>

using namespace comm_test;

namespace {

using Hosts = std::vector<int>;
using Group = std::unique_ptr<quoit_comm_t, void (*)(quoit_comm_t *)>;

const quoit_wire_t formats[] = {QUOIT_WIRE_BF16, QUOIT_WIRE_F16, QUOIT_WIRE_I8};

double unit_of(quoit_wire_t wire) { return wire == QUOIT_WIRE_BF16 ? 0x1p-8 : wire == QUOIT_WIRE_F16 ? 0x1p-11 : 1.0 / 250; }

// All ranks of the world, with a wire format of their own.
quoit_status_t make_group(Rank &self, quoit_wire_t wire, const std::string &name, Group *group)
{
    std::vector<int> ranks;
    for (int rank = 0; rank < self.size; rank++) ranks.push_back(rank);
    quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
    config.wire = wire;
    quoit_comm_t *made = nullptr;
    quoit_status_t status = quoit_comm_create_group(self.comm, ranks.data(), self.size, name.c_str(), &config, &made);
    group->reset(made);
    return status;
}

float value_of(uint64_t salt, int rank, size_t i)
{
    std::minstd_rand one(static_cast<unsigned>(salt % 65521 + i * 977 + static_cast<size_t>(rank) * 31337 + 1));
    one.discard(2);
    return static_cast<float>(one() % 20001) / 10000.0f - 1.0f;
}

struct Model {
    std::vector<double> exact;
    double largest = 0; // of the sums of magnitudes
};

Model model_of(uint64_t salt, int size, size_t count)
{
    Model model;
    for (size_t i = 0; i < count; i++) {
        double sum = 0, weight = 0;
        for (int rank = 0; rank < size; rank++) {
            double each = static_cast<double>(value_of(salt, rank, i));
            sum += each;
            weight += std::fabs(each);
        }
        model.exact.push_back(sum);
        model.largest = std::max(model.largest, weight);
    }
    return model;
}

std::string compare(const float *got, const double *exact, size_t count, double bound)
{
    for (size_t i = 0; i < count; i++)
        if (!(std::fabs(static_cast<double>(got[i]) - exact[i]) <= bound))
            return "element " + std::to_string(i) + " of " + std::to_string(count) + " is " + std::to_string(got[i]) + " for " + std::to_string(exact[i]) +
                   ", bound " + std::to_string(bound);
    return "";
}

// "" when all ranks hold the same bytes.
std::string same_everywhere(quoit_comm_t *comm, const std::vector<float> &mine)
{
    std::vector<float> first = mine;
    if (quoit_broadcast(comm, first.data(), first.size() * 4, QUOIT_U8, 0, nullptr, nullptr) != QUOIT_OK) return quoit_last_error();
    return std::memcmp(first.data(), mine.data(), mine.size() * 4) == 0 ? "" : "this rank holds other bits than rank 0";
}

class Wire : public testing::TestWithParam<Hosts> {};

TEST_P(Wire, SumsAreWithinTheirBound)
{
    bool good = run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        size_t size = static_cast<size_t>(self.size);
        for (quoit_wire_t wire : formats) {
            Group group(nullptr, quoit_comm_destroy);
            ASSERT_EQ(make_group(self, wire, quoit_wire_name(wire), &group), QUOIT_OK) << quoit_last_error();
            for (size_t count : {size_t(0), size_t(1), size_t(129), size_t(3000), size_t(300001)}) {
                if (has_thread_sanitizer() && count > 10000) continue;
                uint64_t salt = self.random();
                SCOPED_TRACE(std::string(quoit_wire_name(wire)) + ", count " + std::to_string(count) + ", salt " + std::to_string(salt));
                Model model = model_of(salt, self.size, count * (count > 10000 ? 1 : size));
                double bound = (hosts_of(GetParam()) + 1) * unit_of(wire) * model.largest * 1.1;
                std::vector<float> send, recv(count);
                for (size_t i = 0; i < model.exact.size(); i++) send.push_back(value_of(salt, self.rank, i));
                std::vector<float> residual(count, 5);
                quoit_call_t call = QUOIT_CALL_INIT;
                call.residual = residual.data();
                ASSERT_EQ(quoit_allreduce(group.get(), send.data(), recv.data(), count, QUOIT_F32, QUOIT_SUM, &call, nullptr), QUOIT_OK) << quoit_last_error();
                ASSERT_EQ(compare(recv.data(), model.exact.data(), count, bound), "");
                ASSERT_EQ(same_everywhere(self.comm, recv), "");
                std::vector<double> noted(residual.begin(), residual.end());
                ASSERT_EQ(quoit_allreduce(self.comm, noted.data(), noted.data(), count, QUOIT_F64, QUOIT_SUM, nullptr, nullptr), QUOIT_OK);
                for (size_t i = 0; i < count; i++) ASSERT_NEAR(noted[i] + static_cast<double>(recv[i]), model.exact[i], 1e-5) << "result and residuals are the sum: element " << i;
                if (count > 10000) continue;
                int root = static_cast<int>(salt % size);
                std::fill(recv.begin(), recv.end(), 0.0f);
                ASSERT_EQ(quoit_reduce(group.get(), send.data(), recv.data(), count, QUOIT_F32, QUOIT_SUM, root, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
                if (self.rank == root) {
                    ASSERT_EQ(compare(recv.data(), model.exact.data(), count, bound), "");
                }
                ASSERT_EQ(quoit_reduce_scatter(group.get(), send.data(), recv.data(), count, QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
                ASSERT_EQ(compare(recv.data(), model.exact.data() + count * static_cast<size_t>(self.rank), count, bound), "");
                std::vector<float> least(count);
                ASSERT_EQ(quoit_allreduce(group.get(), send.data(), least.data(), count, QUOIT_F32, QUOIT_MIN, nullptr, nullptr), QUOIT_OK);
                for (size_t i = 0; i < count; i++) {
                    float right = send[i];
                    for (int rank = 0; rank < self.size; rank++) right = std::min(right, value_of(salt, rank, i));
                    ASSERT_EQ(least[i], right) << "a minimum goes whole";
                }
            }
        }
    });
    EXPECT_TRUE(good);
}

// An average of the largest number is that number, whatever is on the wire; each rank's fp16 is 65504.
TEST_P(Wire, AveragesDoNotOverflow)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        for (quoit_wire_t wire : {QUOIT_WIRE_NONE, QUOIT_WIRE_F32, QUOIT_WIRE_I8})
            for (size_t count : {size_t(5), size_t(60000)}) {
                Group group(nullptr, quoit_comm_destroy);
                ASSERT_EQ(make_group(self, wire, "averages", &group), QUOIT_OK) << quoit_last_error();
                std::vector<uint16_t> send(count, 0x7bff), recv(count);
                ASSERT_EQ(quoit_allreduce(group.get(), send.data(), recv.data(), count, QUOIT_F16, QUOIT_AVG, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
                for (size_t i = 0; i < count; i++) { // finite, and in the last binade: within 3 %
                    ASSERT_LT(recv[i], 0x7c00) << quoit_wire_name(wire) << " element " << i;
                    ASSERT_GT(recv[i], 0x7bff - 64) << quoit_wire_name(wire) << " element " << i;
                }
                std::vector<uint16_t> share(count);
                std::vector<uint16_t> blocks(count * static_cast<size_t>(self.size), 0x7bff);
                ASSERT_EQ(quoit_reduce_scatter(group.get(), blocks.data(), share.data(), count, QUOIT_F16, QUOIT_AVG, nullptr, nullptr), QUOIT_OK);
                for (uint16_t each : share) ASSERT_TRUE(each < 0x7c00 && each > 0x7bff - 64) << quoit_wire_name(wire);
            }
    });
}

std::string print_hosts(const testing::TestParamInfo<Hosts> &info)
{
    std::string text = "ranks_" + name_of(info.param);
    for (char &each : text)
        if (each == '+') each = '_';
    return text;
}

INSTANTIATE_TEST_SUITE_P(All, Wire, testing::Values(Hosts{0, 1}, Hosts{0, 0, 1}, Hosts{0, 1, 2}, Hosts{0, 0, 1, 1, 2}), print_hosts);

// What this rank has sent, of all its connections.
uint64_t bytes_sent(quoit_comm_t *comm)
{
    char *text = nullptr;
    if (quoit_comm_describe(comm, QUOIT_FORMAT_JSON, &text) != QUOIT_OK) return 0;
    uint64_t sum = 0;
    for (const char *at = text; (at = std::strstr(at, "\"sent\": ")); at++) sum += std::strtoull(at + 8, nullptr, 10);
    free(text);
    return sum;
}

TEST(WireBytes, AreAsFewAsPromised)
{
    const Hosts host_of = {0, 0, 1, 1, 2};
    std::map<quoit_wire_t, std::atomic<uint64_t>> sent;
    for (quoit_wire_t wire : {QUOIT_WIRE_NONE, QUOIT_WIRE_BF16, QUOIT_WIRE_F16, QUOIT_WIRE_I8}) sent[wire] = 0;
    run_ranks({.host_of = host_of}, [&](Rank &self) {
        std::vector<float> data(400000, 1.0f);
        for (auto &[wire, total] : sent) {
            Group group(nullptr, quoit_comm_destroy);
            ASSERT_EQ(make_group(self, wire, "bytes", &group), QUOIT_OK) << quoit_last_error();
            ASSERT_EQ(quoit_barrier(group.get(), nullptr, nullptr), QUOIT_OK);
            self.meet();
            uint64_t before = bytes_sent(group.get());
            ASSERT_EQ(quoit_allreduce(group.get(), data.data(), data.data(), data.size(), QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK);
            self.meet();
            total += bytes_sent(group.get()) - before;
        }
    });
    double plain = static_cast<double>(sent[QUOIT_WIRE_NONE]);
    ASSERT_GE(plain, 400000.0 * 4 * 2 * 2); // 2 (h - 1) vectors, of three hosts together
    EXPECT_NEAR(static_cast<double>(sent[QUOIT_WIRE_BF16]) / plain, 0.5, 0.01);
    EXPECT_NEAR(static_cast<double>(sent[QUOIT_WIRE_F16]) / plain, 0.5, 0.01);
    EXPECT_NEAR(static_cast<double>(sent[QUOIT_WIRE_I8]) / plain, 0.258, 0.01);
}

// ------------------------------------------------------------------ what is told, and who differs

TEST(WireConfig, IsDescribedAndExplained)
{
    run_ranks({.host_of = {0, 1}}, [&](Rank &self) {
        Group group(nullptr, quoit_comm_destroy);
        ASSERT_EQ(make_group(self, QUOIT_WIRE_I8, "described", &group), QUOIT_OK);
        char *text = nullptr;
        ASSERT_EQ(quoit_comm_describe(group.get(), QUOIT_FORMAT_TEXT, &text), QUOIT_OK);
        EXPECT_NE(std::string(text).find("between hosts: int8"), std::string::npos) << text;
        free(text);
        ASSERT_EQ(quoit_comm_describe(group.get(), QUOIT_FORMAT_JSON, &text), QUOIT_OK);
        EXPECT_NE(std::string(text).find("\"wire\": \"int8\""), std::string::npos) << text;
        free(text);
        ASSERT_EQ(quoit_explain_allreduce(group.get(), 100000, QUOIT_F32, &text), QUOIT_OK);
        for (const char *each : {"between hosts as int8", "encode TEMP(1) wire", "decode RECV"}) EXPECT_NE(std::string(text).find(each), std::string::npos) << text;
        free(text);
    });
}

// ctest runs this program once more with QUOIT_WIRE_DTYPE=bf16.
TEST(WireConfig, IsTheSettingsUnlessToldOtherwise)
{
    const char *setting = std::getenv("QUOIT_WIRE_DTYPE");
    std::string expected = std::string("\"wire\": \"") + (setting ? setting : "none") + "\"";
    run_ranks({.host_of = {0, 1}}, [&](Rank &self) {
        Group group(nullptr, quoit_comm_destroy), other(nullptr, quoit_comm_destroy);
        ASSERT_EQ(make_group(self, QUOIT_WIRE_DEFAULT, "default", &group), QUOIT_OK);
        ASSERT_EQ(make_group(self, QUOIT_WIRE_NONE, "none", &other), QUOIT_OK);
        for (quoit_comm_t *comm : {self.comm, group.get(), other.get()}) {
            char *text = nullptr;
            ASSERT_EQ(quoit_comm_describe(comm, QUOIT_FORMAT_JSON, &text), QUOIT_OK);
            EXPECT_NE(std::string(text).find(comm == other.get() ? "\"wire\": \"none\"" : expected), std::string::npos) << text;
            free(text);
        }
    });
}

TEST(WireConfig, RanksOfAGroupThatDifferAreBothNamed)
{
    for (const Hosts &host_of : {Hosts{0, 1}, Hosts{0, 0}})
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            Group group(nullptr, quoit_comm_destroy);
            ASSERT_EQ(make_group(self, self.rank == 0 ? QUOIT_WIRE_BF16 : QUOIT_WIRE_I8, "odd", &group), QUOIT_OK);
            std::vector<float> data(100, 1);
            EXPECT_EQ(quoit_allreduce(group.get(), data.data(), data.data(), data.size(), QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_ERR_MISMATCH);
            std::string text = quoit_last_error();
            for (const char *each : {"wire bf16", "wire int8", "rank 0 ", "rank 1 "}) EXPECT_NE(text.find(each), std::string::npos) << each << ": " << text;
        });
}

TEST(WireConfig, RanksOfAWorldThatDifferAreBothNamed)
{
    run_engines({.host_of = {0, 1}}, [&](Rank &self, MemoryStore &shared) {
        quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
        config.timeout_ms = 20000;
        config.wire = self.rank == 0 ? QUOIT_WIRE_NONE : QUOIT_WIRE_F16;
        quoit_store_t *store = shared.open();
        EXPECT_EQ(comm_create_on(self.engine, store, self.rank, self.size, &config, &self.comm), QUOIT_ERR_MISMATCH);
        std::string text = quoit_last_error();
        for (const char *each : {"barrier #1 (wire fp16)", "rank 0 ", "rank 1 "}) EXPECT_NE(text.find(each), std::string::npos) << each << ": " << text;
        quoit_store_close(store);
    });
}

TEST(WireConfig, IsChecked)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        Group group(nullptr, quoit_comm_destroy);
        EXPECT_EQ(make_group(self, QUOIT_WIRE_COUNT, "bad", &group), QUOIT_ERR_INVALID);
        std::vector<int> ranks = {0, 1};
        quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
        quoit_comm_t *made = nullptr;
        config.struct_size = offsetof(quoit_comm_config_t, wire); // as callers that know no wire have it
        config.wire = QUOIT_WIRE_COUNT;
        EXPECT_EQ(quoit_comm_create_group(self.comm, ranks.data(), 2, "old", &config, &made), QUOIT_OK) << quoit_last_error();
        quoit_comm_destroy(made);
        config.struct_size = 12;
        EXPECT_EQ(quoit_comm_create_group(self.comm, ranks.data(), 2, "bad", &config, &made), QUOIT_ERR_INVALID);
        std::vector<float> data(4), residual(4);
        quoit_call_t call = QUOIT_CALL_INIT;
        call.residual = residual.data();
        EXPECT_EQ(quoit_allreduce(self.comm, data.data(), data.data(), 2, QUOIT_F32, QUOIT_MAX, &call, nullptr), QUOIT_ERR_UNSUPPORTED);
        EXPECT_EQ(quoit_allreduce(self.comm, data.data(), data.data(), 2, QUOIT_F64, QUOIT_SUM, &call, nullptr), QUOIT_ERR_UNSUPPORTED);
    });
}

} // namespace
