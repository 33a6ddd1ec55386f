// SPDX-License-Identifier: Apache-2.0
// Averages of small floats over several hosts: what a host gives is divided before it crosses, so no sum of the ranks' values is
// ever rounded to the dtype, and values near its largest number average to what they should.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "floats.h"

namespace plantest {
namespace {

double largest_of(quoit_dtype_t dtype)
{
    return dtype == QUOIT_F16 ? 65504 : dtype == QUOIT_BF16 ? 0x1.fep+127 / 16 : dtype == QUOIT_F8_E4M3 ? 448 : 57344;
}

// One rounding inside the host, one a hop; each of a partial sum that is no larger than what was added.
double bound(const Sum &sum, double weight)
{
    double hops = static_cast<double>(sum.ranks());
    return (1 + hops) * (unit_of(sum.dtype) * weight * 1.1 + step_of(sum.dtype) / 2);
}

template <typename Check> void for_each_sum(Random &random, const Check &check)
{
    static const std::vector<std::vector<int>> groupings = {
        {0, 1}, {0, 1, 2}, {0, 0, 1, 1, 2, 2}, {0, 0, 0, 1, 2, 2}, {0, 1, 2, 3, 4}, {0, 1, 2, 1, 0, 3, 4, 5, 6, 6, 0}};
    for (const std::vector<int> &host_of : groupings)
        for (plan_collective_t collective : {COLLECTIVE_ALLREDUCE, COLLECTIVE_REDUCE, COLLECTIVE_REDUCE_SCATTER})
            for (plan_algorithm_t algorithm : {ALGORITHM_TWO_LEVEL, ALGORITHM_DOUBLING, ALGORITHM_RING})
                for (quoit_dtype_t dtype : {QUOIT_F16, QUOIT_BF16, QUOIT_F8_E4M3, QUOIT_F8_E5M2}) {
                    Sum sum;
                    sum.host_of = host_of;
                    sum.collective = collective;
                    sum.algorithm = algorithm;
                    sum.dtype = dtype;
                    sum.op = QUOIT_AVG;
                    sum.small = random.below(2);
                    sum.in_place = random.below(2);
                    sum.root = collective == COLLECTIVE_REDUCE ? static_cast<int>(random.below(host_of.size())) : 0;
                    sum.count = 1 + random.below(400);
                    if (!sum_fits(sum)) continue;
                    check(sum);
                    if (::testing::Test::HasFatalFailure()) return;
                }
}

// Each rank's numbers are the largest or the one below it: whatever way the sums are rounded, the average is one of those, or near.
TEST(Average, OfTheLargestNumbersIsFinite)
{
    Random random(21);
    int sums = 0;
    for_each_sum(random, [&](Sum sum) {
        double largest = largest_of(sum.dtype), below = largest * (1 - 1.5 * unit_of(sum.dtype));
        uint64_t data = random.next();
        sum.count += 2000;
        SumResult result = run_sum(
            sum, [&](int rank, size_t i) { return i < 16 || Random(data + static_cast<uint64_t>(rank) * 7919 + i * 104729).below(4) ? largest : below; },
            random.next());
        ASSERT_EQ(result.error, "") << sum.describe();
        sums++;
        for (int rank = 0; rank < sum.ranks(); rank++)
            for (double each : result.value[static_cast<size_t>(rank)]) {
                ASSERT_TRUE(std::isfinite(each)) << "rank " << rank << ", data " << data << ", " << sum.describe();
                ASSERT_LE(std::fabs(each - largest), bound(sum, largest) + largest - below) << "rank " << rank << ", " << sum.describe();
            }
    });
    EXPECT_GE(sums, 144);
}

TEST(Average, IsWithinItsBoundAndTheSameOnAllRanks)
{
    Random random(22);
    for_each_sum(random, [&](const Sum &sum) {
        double largest = largest_of(sum.dtype);
        uint64_t data = random.next();
        SumResult result = run_sum(
            sum,
            [&](int rank, size_t i) {
                Random one(data + static_cast<uint64_t>(rank) * 7919 + i * 104729);
                double share = static_cast<double>(one.below(2000001)) / 1000000 - 1;
                return one.below(4) == 0 ? share : share * largest; // some of them tiny beside the others
            },
            random.next());
        ASSERT_EQ(result.error, "") << sum.describe();
        check_sum(sum, result, [&](double weight) { return bound(sum, weight); }, "data " + std::to_string(data));
    });
}

} // namespace
} // namespace plantest
