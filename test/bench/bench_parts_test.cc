// SPDX-License-Identifier: Apache-2.0
// Parts of bench_allreduce that need no ranks: sizes, options, ranks from the environment, and the patterns that verify results:
// a right result is accepted, and each single wrong element is found.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <list>
#include <map>
#include <string>
#include <vector>

extern "C" {
#include "bench/options.h"
#include "bench/pattern.h"
#include "bench/ranks.h"
#include "scheduler/reduce/reduce.h"
}

namespace {

// As those of a program, the words stay: options point to them.
bool parse(std::vector<std::string> words, options_t *options, options_outcome_t expected = OPTIONS_RUN)
{
    static std::list<std::vector<std::string>> kept;
    std::vector<char *> arguments{const_cast<char *>("bench_allreduce")};
    for (auto &word : kept.emplace_back(std::move(words)))
        arguments.push_back(word.data());
    return options_parse(static_cast<int>(arguments.size()), arguments.data(), options) == expected;
}

TEST(Size, Suffixes)
{
    const std::map<std::string, size_t> right{{"0", 0},         {"4", 4},           {"1k", 1024},         {"64K", 65536},
                                              {"1M", 1 << 20}, {"2MiB", 2 << 20}, {"3GB", 3ull << 30}, {"1KiB", 1024}};
    for (const auto &[text, bytes] : right) {
        size_t parsed = 77;
        EXPECT_TRUE(options_parse_size(text.c_str(), &parsed)) << text;
        EXPECT_EQ(parsed, bytes) << text;
    }
    for (const char *text : {"", "K", "-1", "+1", " 1", "1X", "1 K", "1KK", "0x10", "1.5M", "99999999999999999999", "9999999999G"}) {
        size_t parsed = 77;
        EXPECT_FALSE(options_parse_size(text, &parsed)) << text;
        EXPECT_EQ(parsed, 77u) << text;
    }
}

TEST(Options, Defaults)
{
    options_t options;
    ASSERT_TRUE(parse({}, &options));
    EXPECT_EQ(options.bytes[0], 4u);
    EXPECT_EQ(options.bytes[options.sizes - 1], size_t{64} << 20);
    EXPECT_TRUE(options.dtype[QUOIT_F32] && options.op[QUOIT_SUM] && options.in_place && !options.out_of_place && options.check);
}

TEST(Options, SizesByFactor)
{
    options_t options;
    ASSERT_TRUE(parse({"--min", "1K", "--max=8K", "--factor", "2"}, &options));
    ASSERT_EQ(options.sizes, 4);
    EXPECT_EQ(options.bytes[3], 8192u);
    ASSERT_TRUE(parse({"--sizes", "3,1M"}, &options));
    ASSERT_EQ(options.sizes, 2);
    EXPECT_EQ(options.bytes[1], size_t{1} << 20);
}

TEST(Options, WrongOnesNameOptionAndValue)
{
    const std::vector<std::vector<std::string>> wrong{{"--iterations", "0"},       {"--iterations=x"},    {"--factor", "1"},
                                                      {"--sizes", "1M,,2M"},       {"--dtype", "float33"}, {"--op", "sums"},
                                                      {"--min", "8", "--max", "4"}, {"--timeout", "nan"},   {"-n", "2", "--rank", "0"},
                                                      {"--rank", "1"},             {"--rank", "2", "--size", "2", "--store", "file:///x"}};
    for (const auto &words : wrong) {
        options_t options;
        testing::internal::CaptureStderr();
        bool refused = parse(words, &options, OPTIONS_WRONG);
        std::string text = testing::internal::GetCapturedStderr();
        EXPECT_TRUE(refused) << words[0];
        EXPECT_NE(text.find(words[0].substr(0, words[0].find('='))), std::string::npos) << text;
    }
    options_t options;
    EXPECT_TRUE(parse({"--help"}, &options, OPTIONS_HELP));
    EXPECT_TRUE(parse({"--version"}, &options, OPTIONS_VERSION));
    testing::internal::CaptureStderr();
    EXPECT_TRUE(parse({"--nonsense"}, &options, OPTIONS_WRONG));
    EXPECT_TRUE(parse({"--json"}, &options, OPTIONS_WRONG));
    EXPECT_TRUE(parse({"--check=1"}, &options, OPTIONS_WRONG));
    testing::internal::GetCapturedStderr();
}

TEST(Slurm, FirstHost)
{
    const std::map<std::string, std::string> right{{"node1", "node1"}, {"a,b", "a"},           {"n[007-009,12],g3", "n007"},
                                                   {"n[5]", "n5"},     {"rack[1-2]n,x", "rack1n"}, {"n[10,3]", "n10"}};
    char host[64];
    for (const auto &[list, first] : right) {
        ASSERT_TRUE(ranks_first_host(list.c_str(), host, sizeof host)) << list;
        EXPECT_EQ(first, host) << list;
    }
    for (const char *list : {"", "n[", "n[]", "n[a-b]", "n[1", "n[1-2]m[3-4]", ","})
        EXPECT_FALSE(ranks_first_host(list, host, sizeof host)) << list;
    EXPECT_FALSE(ranks_first_host("averylongname", host, 8));
}

/* The environment of one launcher, and nothing of another. */
class Environment : public testing::Test {
protected:
    void SetUp() override
    {
        for (const char *name : {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
                                 "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE",
                                 "PMIX_RANK", "PMIX_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST",
                                 "SLURM_JOB_ID", "SLURM_STEP_ID", "MPI_LOCALNRANKS", "PMIX_LOCAL_SIZE", "PRTE_NUM_PROCS", "QUOIT_STORE"})
            unsetenv(name);
        ASSERT_TRUE(parse({}, &options));
    }
    void TearDown() override { SetUp(); }
    ranks_outcome_t find(const std::map<std::string, std::string> &variables)
    {
        for (const auto &[name, value] : variables)
            setenv(name.c_str(), value.c_str(), 1);
        testing::internal::CaptureStderr();
        ranks_outcome_t outcome = ranks_find(&options, &ranks);
        text = testing::internal::GetCapturedStderr();
        return outcome;
    }
    options_t options;
    ranks_t ranks = {};
    std::string text;
};

TEST_F(Environment, NothingMeansALaunchHere) { EXPECT_EQ(find({}), RANKS_NONE); }

TEST_F(Environment, PlainVariables)
{
    ASSERT_EQ(find({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}}), RANKS_FOUND) << text;
    EXPECT_EQ(ranks.rank, 1);
    EXPECT_EQ(ranks.size, 3);
    EXPECT_STREQ(ranks.store, "env://");
}

TEST_F(Environment, TorchrunKeepsItsPort)
{
    ASSERT_EQ(find({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "fd77::1"}, {"MASTER_PORT", "29500"},
                    {"TORCHELASTIC_USE_AGENT_STORE", "True"}}),
              RANKS_FOUND)
        << text;
    EXPECT_EQ(std::string(ranks.store).rfind("tcp://[fd77::1]:", 0), 0u) << ranks.store;
    EXPECT_EQ(std::string(ranks.store).find(":29500"), std::string::npos) << ranks.store;
}

TEST_F(Environment, Slurm)
{
    ASSERT_EQ(find({{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NODELIST", "n[03-04]"}, {"SLURM_JOB_ID", "1234567"}}),
              RANKS_FOUND)
        << text;
    EXPECT_EQ(ranks.rank, 5);
    EXPECT_STREQ(ranks.store, "tcp://n03:24567");
}

TEST_F(Environment, SlurmBatchScriptIsNoStep) { EXPECT_EQ(find({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}}), RANKS_NONE); }

TEST_F(Environment, OpenMpiOnOneHost)
{
    ASSERT_EQ(find({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}}), RANKS_FOUND) << text;
    EXPECT_EQ(std::string(ranks.store).rfind("tcp://127.0.0.1:2", 0), 0u) << ranks.store;
}

TEST_F(Environment, MpichOnOneHostAndUnderSlurm)
{
    ASSERT_EQ(find({{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALNRANKS", "3"}}), RANKS_FOUND) << text;
    EXPECT_EQ(ranks.rank, 2);
    EXPECT_EQ(ranks.size, 3);
    EXPECT_STREQ(ranks.origin, "MPICH or Intel MPI");
    EXPECT_EQ(std::string(ranks.store).rfind("tcp://127.0.0.1:2", 0), 0u) << ranks.store;
    SetUp();
    ASSERT_EQ(find({{"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"SLURM_STEP_NODELIST", "n[7,9]"}, {"SLURM_JOB_ID", "5"}}), RANKS_FOUND) << text; // srun --mpi=pmi2
    EXPECT_EQ(ranks.rank, 1);
    EXPECT_STREQ(ranks.store, "tcp://n7:20005");
}

TEST_F(Environment, Pmix)
{
    ASSERT_EQ(find({{"PMIX_RANK", "1"}, {"PRTE_NUM_PROCS", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}), RANKS_FOUND) << text;
    EXPECT_EQ(ranks.rank, 1);
    EXPECT_EQ(ranks.size, 2);
    EXPECT_STREQ(ranks.origin, "PMIx");
    EXPECT_STREQ(ranks.store, "env://");
}

TEST_F(Environment, OptionsGoBeforeIt)
{
    const std::map<std::string, std::string> launcher{{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}};
    ASSERT_TRUE(parse({"--store", "tcp://b:29600"}, &options));
    ASSERT_EQ(find(launcher), RANKS_FOUND) << text;
    EXPECT_EQ(ranks.rank, 1);
    EXPECT_STREQ(ranks.store, "tcp://b:29600");
    ASSERT_TRUE(parse({"--rank", "3", "--size", "5", "--store", "file:///x"}, &options));
    ASSERT_EQ(find(launcher), RANKS_FOUND) << text;
    EXPECT_EQ(ranks.rank, 3);
    EXPECT_EQ(ranks.size, 5);
    EXPECT_STREQ(ranks.store, "file:///x");
}

TEST_F(Environment, WhatIsMissingIsNamed)
{
    EXPECT_EQ(find({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}}), RANKS_WRONG);
    EXPECT_NE(text.find("MASTER_ADDR"), std::string::npos) << text;
    SetUp();
    EXPECT_EQ(find({{"RANK", "1"}}), RANKS_WRONG);
    EXPECT_NE(text.find("WORLD_SIZE"), std::string::npos) << text;
    SetUp();
    EXPECT_EQ(find({{"RANK", "7"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}), RANKS_WRONG);
    EXPECT_NE(text.find("RANK=7"), std::string::npos) << text;
}

/* ---------------------------------------------------------------- patterns */

/* The result of all ranks' inputs, by the library's kernels. */
std::vector<char> reduce(quoit_dtype_t dtype, quoit_op_t op, int ranks, size_t count, unsigned round)
{
    std::vector<std::vector<char>> inputs;
    std::vector<const void *> sources;
    for (int rank = 0; rank < ranks; rank++) {
        pattern_t *pattern = pattern_create(dtype, op, rank, ranks);
        inputs.emplace_back(count * quoit_dtype_size(dtype));
        pattern_fill(pattern, round, inputs.back().data(), count);
        if (op == QUOIT_PREMUL_SUM) {
            double factor[2];
            pattern_factor(pattern, factor);
            reduce_scale(dtype, inputs.back().data(), inputs.back().data(), count, factor);
        }
        pattern_destroy(pattern);
    }
    for (auto &input : inputs)
        sources.push_back(input.data());
    std::vector<char> result(count * quoit_dtype_size(dtype));
    reduce_call_t call = {};
    call.dtype = dtype;
    call.op = op;
    call.sources = ranks;
    call.source = sources.data();
    call.count = count;
    call.destination = result.data();
    call.finish.divisor = op == QUOIT_AVG ? ranks : 0;
    reduce_run(&call);
    return result;
}

TEST(Pattern, AcceptsRightResultsAndFindsEachWrongElement)
{
    const size_t count = 5000; // more than two periods
    for (int ranks : {1, 2, 3, 9}) {
        for (int dtype = 0; dtype < QUOIT_DTYPE_COUNT; dtype++) {
            for (int op = 0; op < QUOIT_OP_COUNT; op++) {
                auto type = static_cast<quoit_dtype_t>(dtype);
                auto operation = static_cast<quoit_op_t>(op);
                if (quoit_op_check(type, operation) != QUOIT_OK)
                    continue;
                SCOPED_TRACE(std::string(quoit_dtype_name(type)) + " " + quoit_op_name(operation) + ", " + std::to_string(ranks) + " ranks");
                auto result = reduce(type, operation, ranks, count, 3);
                pattern_t *pattern = pattern_create(type, operation, 0, ranks);
                EXPECT_EQ(pattern_count_wrong(pattern, 3, result.data(), count), 0u);
                size_t width = quoit_dtype_size(type);
                for (size_t place : {size_t{0}, size_t{2038}, size_t{2039}, count - 1}) {
                    auto damaged = result;
                    damaged[place * width + width - 1] ^= type == QUOIT_BOOL ? 1 : 0x48; // the byte that weighs most
                    EXPECT_EQ(pattern_count_wrong(pattern, 3, damaged.data(), count), 1u) << "place " << place;
                }
                pattern_destroy(pattern);
            }
        }
    }
}

TEST(Pattern, FindsStaleAndSwappedAndEmptyResults)
{
    const size_t count = 100000, width = 4;
    auto result = reduce(QUOIT_F32, QUOIT_SUM, 4, count, 1);
    pattern_t *pattern = pattern_create(QUOIT_F32, QUOIT_SUM, 0, 4);
    EXPECT_EQ(pattern_count_wrong(pattern, 1, result.data(), count), 0u);
    EXPECT_GT(pattern_count_wrong(pattern, 2, result.data(), count), count * 9 / 10) << "the result of an earlier round";
    auto swapped = result;
    std::memcpy(swapped.data(), result.data() + 16384 * width, 16384 * width);
    std::memcpy(swapped.data() + 16384 * width, result.data(), 16384 * width);
    EXPECT_GT(pattern_count_wrong(pattern, 1, swapped.data(), count), size_t{30000}) << "two chunks swapped";
    std::vector<char> zeros(count * width);
    EXPECT_GT(pattern_count_wrong(pattern, 1, zeros.data(), count), count * 9 / 10) << "nothing was written";
    pattern_destroy(pattern);
    pattern = pattern_create(QUOIT_F32, QUOIT_SUM, 0, 4);
    EXPECT_GT(pattern_count_wrong(pattern, 1, zeros.data(), count), count * 9 / 10) << "nothing was written, and nothing was seen before";
    pattern_destroy(pattern);
}

TEST(Pattern, FindsChangedInputs)
{
    const size_t count = 5000;
    pattern_t *pattern = pattern_create(QUOIT_I16, QUOIT_SUM, 1, 2);
    std::vector<int16_t> input(count);
    pattern_fill(pattern, 5, input.data(), count);
    EXPECT_EQ(pattern_count_changed(pattern, 5, input.data(), count), 0u);
    input[4999]++;
    input[0]++;
    EXPECT_EQ(pattern_count_changed(pattern, 5, input.data(), count), 2u);
    pattern_destroy(pattern);
}

} // namespace
