// SPDX-License-Identifier: Apache-2.0
// Plans with a wire format, in the simulator: the error against float64 within its bound, the same bits on all ranks, the bytes
// between hosts, one rounding in all with float32, what becomes of infinities and NaN, and the residual's identity.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "floats.h"

namespace plantest {
namespace {

const std::vector<std::vector<int>> groupings = {
    {0, 1}, {0, 0, 1}, {0, 1, 2}, {0, 0, 1, 1}, {0, 1, 1, 2, 2, 2}, {0, 1, 2, 3, 4}, {0, 1, 0, 2, 1, 3, 3, 4, 5, 6, 0}, {0, 0, 0}};
const plan_algorithm_t algorithms[] = {ALGORITHM_TWO_LEVEL, ALGORITHM_DOUBLING, ALGORITHM_RING};

double wire_unit_of(quoit_wire_t wire)
{
    return wire == QUOIT_WIRE_BF16 ? 0x1p-8 : wire == QUOIT_WIRE_F16 ? 0x1p-11 : wire == QUOIT_WIRE_I8 ? 1.0 / 250 : 0x1p-24;
}

int hosts_of(const std::vector<int> &host_of) { return 1 + *std::max_element(host_of.begin(), host_of.end()); }

// Ranks that encode one after the other.
double hops_of(const Sum &sum)
{
    bool leaders = sum.algorithm == ALGORITHM_TWO_LEVEL || sum.algorithm == ALGORITHM_DOUBLING;
    return leaders ? hosts_of(sum.host_of) : sum.ranks();
}

// Each of them rounds a partial sum, which is no larger than what was added (int8: than the largest of its block); then the result is
// rounded to the dtype.
double bound(const Sum &sum, double weight, double largest_weight)
{
    double of = sum.wire == QUOIT_WIRE_I8 ? largest_weight : weight, step = sum.wire == QUOIT_WIRE_F16 ? 0x1p-24 : 0x1p-100;
    return (hops_of(sum) + 1) * (wire_unit_of(sum.wire) * of * 1.1 + step + weight * 0x1p-22) + unit_of(sum.dtype) * weight * 1.1 + step_of(sum.dtype);
}

double draw(uint64_t data, int rank, size_t i)
{
    Random one(data + static_cast<uint64_t>(rank) * 7919 + i * 104729);
    double value = static_cast<double>(one.below(2000001)) / 1000000 - 1;
    return one.below(8) == 0 ? value * 100 : value;
}

struct Pair {
    quoit_wire_t wire;
    quoit_dtype_t dtype;
};
const Pair pairs[] = {{QUOIT_WIRE_BF16, QUOIT_F32}, {QUOIT_WIRE_F16, QUOIT_F32}, {QUOIT_WIRE_I8, QUOIT_F32}, {QUOIT_WIRE_I8, QUOIT_BF16},
                      {QUOIT_WIRE_I8, QUOIT_F16},   {QUOIT_WIRE_F32, QUOIT_F16}, {QUOIT_WIRE_F32, QUOIT_BF16}, {QUOIT_WIRE_F32, QUOIT_F8_E4M3}};

template <typename Check> void for_each_sum(Random &random, const Check &check)
{
    static const size_t counts[] = {0, 1, 7, 16, 128, 129, 333, 1100};
    for (const std::vector<int> &host_of : groupings)
        for (plan_collective_t collective : {COLLECTIVE_ALLREDUCE, COLLECTIVE_REDUCE, COLLECTIVE_REDUCE_SCATTER})
            for (plan_algorithm_t algorithm : algorithms)
                for (const Pair &pair : pairs) {
                    Sum sum;
                    sum.host_of = host_of;
                    sum.collective = collective;
                    sum.algorithm = algorithm;
                    sum.wire = pair.wire;
                    sum.dtype = pair.dtype;
                    sum.op = random.below(3) == 0 ? QUOIT_AVG : random.below(2) ? QUOIT_PREMUL_SUM : QUOIT_SUM;
                    sum.small = random.below(2);
                    sum.in_place = random.below(2);
                    sum.root = collective == COLLECTIVE_REDUCE ? static_cast<int>(random.below(host_of.size())) : 0;
                    sum.count = counts[random.below(8)];
                    sum.tuning.net_depth = 1 + static_cast<int>(random.below(4));
                    sum.tuning.net_chunk_size = random.below(2) ? 512 : 2048;
                    if (!sum_fits(sum)) continue;
                    check(sum);
                    if (::testing::Test::HasFatalFailure()) return;
                }
}

TEST(Wire, WithinItsBoundAndTheSameOnAllRanks)
{
    Random random(31);
    int sums = 0, rounds = long_run() ? 12 : 1;
    for (int round = 0; round < rounds; round++)
        for_each_sum(random, [&](const Sum &sum) {
            uint64_t data = random.next();
            SumResult result = run_sum(sum, [&](int rank, size_t i) { return draw(data, rank, i); }, random.next());
            ASSERT_EQ(result.error, "") << sum.describe();
            sums++;
            double largest = result.weight.empty() ? 0 : *std::max_element(result.weight.begin(), result.weight.end());
            check_sum(sum, result, [&](double weight) { return bound(sum, weight, largest); }, "data " + std::to_string(data));
        });
    EXPECT_GE(sums, 300 * rounds);
}

// The turns of the ranks change nothing, nor does working in place.
TEST(Wire, SameBitsInAllRuns)
{
    Random random(32);
    for_each_sum(random, [&](Sum sum) {
        if (sum.collective != COLLECTIVE_ALLREDUCE || random.below(4) != 0) return;
        uint64_t data = random.next();
        auto value = [&](int rank, size_t i) { return draw(data, rank, i); };
        SumResult first = run_sum(sum, value, 0);
        sum.in_place = !sum.in_place;
        SumResult second = run_sum(sum, value, random.next() | 1);
        ASSERT_EQ(first.error + second.error, "") << sum.describe();
        ASSERT_EQ(first.output[0], second.output[0]) << sum.describe();
    });
}

// Small whole numbers add exactly in float32: with that on the wire the result is the exact sum, rounded once. `World` expects that.
TEST(Wire, Float32RoundsOnceInAll)
{
    Random random(33);
    for (const std::vector<int> &host_of : groupings)
        for (plan_collective_t collective : {COLLECTIVE_ALLREDUCE, COLLECTIVE_REDUCE, COLLECTIVE_REDUCE_SCATTER})
            for (plan_algorithm_t algorithm : algorithms)
                for (quoit_op_t op : {QUOIT_SUM, QUOIT_AVG}) {
                    Case one;
                    one.host_of = host_of;
                    one.collective = collective;
                    one.algorithm = algorithm;
                    one.dtype = QUOIT_BF16; // sums of many need more than its 8 bits
                    one.op = op;
                    one.wire = QUOIT_WIRE_F32;
                    one.small = random.below(2);
                    one.in_place = random.below(2);
                    one.root = collective == COLLECTIVE_REDUCE ? static_cast<int>(random.below(host_of.size())) : 0;
                    one.data_seed = random.next();
                    one.counts = std::vector<size_t>(collective == COLLECTIVE_REDUCE_SCATTER ? host_of.size() : 1, 1 + random.below(300));
                    if (!plan_fits(one)) continue;
                    World world(one);
                    ASSERT_EQ(world.error, "") << one.describe();
                    ASSERT_EQ(world.validate(), "") << one.describe();
                    ASSERT_EQ(world.run(random.next()), "") << one.describe();
                }
}

uint64_t total(const std::vector<uint64_t> &bytes) { return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}); }

TEST(Wire, BytesBetweenHosts)
{
    struct Ratio {
        quoit_wire_t wire;
        quoit_dtype_t dtype;
        double least, most;
    };
    for (const Ratio &one : {Ratio{QUOIT_WIRE_BF16, QUOIT_F32, 0.5, 0.5}, Ratio{QUOIT_WIRE_F16, QUOIT_F32, 0.5, 0.5},
                             Ratio{QUOIT_WIRE_I8, QUOIT_F32, 0.257, 0.262}, Ratio{QUOIT_WIRE_I8, QUOIT_BF16, 0.515, 0.524}})
        for (const std::vector<int> &host_of : {std::vector<int>{0, 1}, {0, 0, 1, 1}, {0, 0, 1, 2, 2}, {0, 1, 1, 1, 2, 3}})
            for (plan_collective_t collective : {COLLECTIVE_ALLREDUCE, COLLECTIVE_REDUCE, COLLECTIVE_REDUCE_SCATTER})
                for (plan_algorithm_t algorithm : {ALGORITHM_TWO_LEVEL, ALGORITHM_RING}) {
                    Sum sum;
                    sum.host_of = host_of;
                    sum.collective = collective;
                    sum.algorithm = algorithm;
                    sum.dtype = one.dtype;
                    sum.count = 50001;
                    sum.tuning.net_chunk_size = sum.tuning.slot_size = 65536;
                    if (!sum_fits(sum)) continue;
                    auto value = [](int, size_t) { return 1.0; };
                    SumResult plain = run_sum(sum, value, 0);
                    sum.wire = one.wire;
                    SumResult wired = run_sum(sum, value, 0);
                    ASSERT_EQ(plain.error + wired.error, "") << sum.describe();
                    double ratio = static_cast<double>(total(wired.sent)) / static_cast<double>(total(plain.sent));
                    EXPECT_GE(ratio, one.least - 1e-9) << sum.describe();
                    EXPECT_LE(ratio, one.most + 1e-9) << sum.describe();
                }
}

// Float32 on the wire doubles what goes up to the sum, but the result goes round in the dtype.
TEST(Wire, Float32CostsHalfAsMuchAgain)
{
    Sum sum;
    sum.host_of = {0, 0, 1, 1, 2};
    sum.algorithm = ALGORITHM_TWO_LEVEL;
    sum.dtype = QUOIT_BF16;
    sum.count = 30000;
    auto value = [](int, size_t) { return 1.0; };
    SumResult plain = run_sum(sum, value, 0);
    sum.wire = QUOIT_WIRE_F32;
    SumResult wide = run_sum(sum, value, 0);
    ASSERT_EQ(plain.error + wide.error, "");
    EXPECT_EQ(2 * total(wide.sent), 3 * total(plain.sent));
}

TEST(Wire, InfinitiesAndNanArrive)
{
    const double infinity = std::numeric_limits<double>::infinity(), nan = std::nan("");
    Random random(34);
    for (quoit_wire_t wire : {QUOIT_WIRE_BF16, QUOIT_WIRE_F16, QUOIT_WIRE_I8})
        for (plan_algorithm_t algorithm : algorithms)
            for (quoit_op_t op : {QUOIT_SUM, QUOIT_AVG}) {
                Sum sum;
                sum.host_of = {0, 0, 1, 2, 2};
                sum.algorithm = algorithm;
                sum.wire = wire;
                sum.op = op;
                sum.count = 400;
                SumResult result = run_sum(
                    sum,
                    [&](int rank, size_t i) {
                        if (rank == 3 && i % 100 == 10) return infinity;
                        if (rank == 1 && i % 100 == 20) return -infinity;
                        if (rank == 4 && i % 100 == 30) return nan;
                        if (rank >= 3 && i % 100 == 40) return rank == 3 ? infinity : -infinity;
                        return 1.0;
                    },
                    random.next());
                ASSERT_EQ(result.error, "");
                for (size_t i = 0; i < sum.count; i++) {
                    double got = result.value[2][i];
                    switch (i % 100) {
                    case 10: ASSERT_EQ(got, infinity) << sum.describe(); break;
                    case 20: ASSERT_EQ(got, -infinity) << sum.describe(); break;
                    case 30:
                    case 40: ASSERT_TRUE(std::isnan(got)) << sum.describe(); break;
                    default: ASSERT_NEAR(got, op == QUOIT_AVG ? 1 : 5, 0.1) << "element " << i << ", " << sum.describe();
                    }
                }
            }
}

// An average of numbers that the format holds is one that it holds, also when their sum is none.
TEST(Wire, AverageOfTheLargest)
{
    for (const std::vector<int> &host_of : groupings)
        for (plan_algorithm_t algorithm : algorithms) {
            Sum sum;
            sum.host_of = host_of;
            sum.algorithm = algorithm;
            sum.wire = QUOIT_WIRE_F16;
            sum.op = QUOIT_AVG;
            sum.count = 40;
            if (!sum_fits(sum) || hosts_of(host_of) == 1) continue;
            SumResult result = run_sum(sum, [](int, size_t) { return 65504.0; }, 3);
            ASSERT_EQ(result.error, "") << sum.describe();
            ASSERT_NEAR(result.value[0][0], 65504, 65504 * hops_of(sum) * 0x1p-10) << sum.describe();
        }
}

// What came out and what the encoding ranks noted is what went in, element by element.
TEST(Wire, ResultAndResidualsAreTheSum)
{
    Random random(35);
    int sums = 0;
    for_each_sum(random, [&](Sum sum) {
        if (sum.collective == COLLECTIVE_REDUCE_SCATTER || sum.dtype != QUOIT_F32) return;
        sum.op = QUOIT_SUM;
        sum.residual = true;
        sum.count += 1;
        uint64_t data = random.next();
        SumResult result = run_sum(sum, [&](int rank, size_t i) { return draw(data, rank, i); }, random.next());
        ASSERT_EQ(result.error, "") << sum.describe();
        double noted = 0;
        for (size_t i = 0; i < sum.count; i++) {
            double whole = result.value[static_cast<size_t>(sum.root)][i];
            for (const std::vector<float> &each : result.residual) {
                whole += static_cast<double>(each[i]);
                noted += std::fabs(static_cast<double>(each[i]));
            }
            ASSERT_NEAR(whole, result.exact[i], (hops_of(sum) + 3) * 0x1p-23 * (result.weight[i] + 1)) << "element " << i << ", " << sum.describe();
        }
        sums++;
        if (sum.count > 100 && hosts_of(sum.host_of) > 1) {
            ASSERT_GT(noted, 0) << sum.describe();
        }
    });
    EXPECT_GE(sums, 60);
}

// Where no wire format is fit, there is none: what goes whole is said here, and in docs/wire.md.
TEST(Wire, WhatItIsFor)
{
    Topology two = make_topology({0, 0, 1}), one = make_topology({0, 0, 0});
    auto wire = [&](quoit_dtype_t dtype, quoit_op_t op, quoit_wire_t wanted) {
        return plan_wire(two.get(), COLLECTIVE_ALLREDUCE, ALGORITHM_TWO_LEVEL, dtype, op, wanted);
    };
    EXPECT_EQ(wire(QUOIT_F32, QUOIT_SUM, QUOIT_WIRE_BF16), QUOIT_WIRE_BF16);
    EXPECT_EQ(wire(QUOIT_F32, QUOIT_AVG, QUOIT_WIRE_I8), QUOIT_WIRE_I8);
    EXPECT_EQ(wire(QUOIT_BF16, QUOIT_SUM, QUOIT_WIRE_I8), QUOIT_WIRE_I8);
    EXPECT_EQ(wire(QUOIT_BF16, QUOIT_SUM, QUOIT_WIRE_F32), QUOIT_WIRE_F32);
    for (quoit_wire_t wanted : {QUOIT_WIRE_F32, QUOIT_WIRE_BF16, QUOIT_WIRE_F16, QUOIT_WIRE_I8}) {
        EXPECT_EQ(wire(QUOIT_F64, QUOIT_SUM, wanted), QUOIT_WIRE_NONE);
        EXPECT_EQ(wire(QUOIT_I32, QUOIT_SUM, wanted), QUOIT_WIRE_NONE);
        EXPECT_EQ(wire(QUOIT_C64, QUOIT_SUM, wanted), QUOIT_WIRE_NONE);
        EXPECT_EQ(wire(QUOIT_F32, QUOIT_MAX, wanted), QUOIT_WIRE_NONE);
        EXPECT_EQ(wire(QUOIT_F32, QUOIT_PROD, wanted), QUOIT_WIRE_NONE);
        EXPECT_EQ(plan_wire(two.get(), COLLECTIVE_ALLGATHER, ALGORITHM_TWO_LEVEL, QUOIT_F32, QUOIT_SUM, wanted), QUOIT_WIRE_NONE);
        EXPECT_EQ(plan_wire(one.get(), COLLECTIVE_ALLREDUCE, ALGORITHM_WINDOW, QUOIT_F32, QUOIT_SUM, wanted), QUOIT_WIRE_NONE);
        EXPECT_EQ(plan_wire(one.get(), COLLECTIVE_ALLREDUCE, ALGORITHM_WINDOW, QUOIT_BF16, QUOIT_SUM, wanted), QUOIT_WIRE_NONE);
    }
    EXPECT_EQ(wire(QUOIT_F32, QUOIT_SUM, QUOIT_WIRE_F32), QUOIT_WIRE_NONE);
    EXPECT_EQ(wire(QUOIT_F16, QUOIT_SUM, QUOIT_WIRE_BF16), QUOIT_WIRE_NONE);
    EXPECT_EQ(plan_wire(one.get(), COLLECTIVE_ALLREDUCE, ALGORITHM_RING, QUOIT_F32, QUOIT_SUM, QUOIT_WIRE_I8), QUOIT_WIRE_NONE);
}

} // namespace
} // namespace plantest
