// SPDX-License-Identifier: Apache-2.0
// Every collective with every algorithm that fits, on every grouping of up to 6 ranks and sampled ones of up to 33, against a naive
// result. Sizes, roots, in place, layouts, and the turns of the simulated ranks are drawn from seeds.
#include <gtest/gtest.h>

#include "test/support/built.h"
#include "world.h"

namespace plantest {
namespace {

bool is_uniform(plan_collective_t collective)
{
    return collective == COLLECTIVE_ALLREDUCE || collective == COLLECTIVE_REDUCE || collective == COLLECTIVE_BROADCAST ||
           collective == COLLECTIVE_BARRIER;
}

bool reduces(plan_collective_t collective)
{
    return collective == COLLECTIVE_ALLREDUCE || collective == COLLECTIVE_REDUCE || collective == COLLECTIVE_REDUCE_SCATTER;
}

bool has_root(plan_collective_t collective)
{
    return collective == COLLECTIVE_REDUCE || collective == COLLECTIVE_BROADCAST || collective == COLLECTIVE_GATHER ||
           collective == COLLECTIVE_SCATTER;
}

// 64 elements of 8 bytes are a chunk of small_tuning().
size_t draw_count(Random &random, bool block)
{
    static const size_t uniform[] = {0, 1, 7, 64, 65, 333, 700}, blocks[] = {0, 0, 1, 3, 8, 65, 130};
    return block ? blocks[random.below(7)] : uniform[random.below(7)];
}

void draw_counts(Case &one, Random &random)
{
    size_t ranks = one.host_of.size(), blocks = one.collective == COLLECTIVE_ALLTOALL ? ranks * ranks : ranks;
    one.counts.clear();
    if (is_uniform(one.collective)) {
        one.counts.push_back(one.collective == COLLECTIVE_BARRIER ? 0 : draw_count(random, false));
        if (one.small && one.collective != COLLECTIVE_BARRIER && random.below(8) == 0) one.counts[0] = 2100; // more than a small slot holds
        return;
    }
    size_t equal = draw_count(random, true);
    bool even = one.collective == COLLECTIVE_ALLTOALL && (one.algorithm == ALGORITHM_FLAT || one.algorithm == ALGORITHM_WINDOW); // all ranks must know all
    for (size_t i = 0; i < blocks; i++) one.counts.push_back(one.parts && !even ? draw_count(random, true) : equal);
}

void draw_values(Case &one, Random &random)
{
    static const quoit_op_t integer_ops[] = {QUOIT_SUM, QUOIT_PROD, QUOIT_MIN, QUOIT_MAX, QUOIT_BXOR, QUOIT_BAND, QUOIT_AVG};
    static const quoit_dtype_t moved[] = {QUOIT_I64, QUOIT_F32, QUOIT_U8};
    one.op = QUOIT_SUM;
    one.premul = false;
    if (!reduces(one.collective)) {
        one.dtype = moved[random.below(3)];
        return;
    }
    size_t kind = random.below(4);
    one.dtype = kind == 0 ? QUOIT_F64 : kind == 1 ? QUOIT_F32 : QUOIT_I64;
    if (kind >= 2) one.op = integer_ops[random.below(7)];
    if (kind < 2 && random.below(2)) {
        one.op = QUOIT_PREMUL_SUM;
        one.premul = true;
    }
}

void draw(Case &one, Random &random)
{
    size_t ranks = one.host_of.size();
    one.root = has_root(one.collective) ? static_cast<int>(random.below(ranks)) : 0;
    one.in_place = one.collective != COLLECTIVE_ALLTOALL && random.below(2);
    one.parts = !is_uniform(one.collective) && random.below(2);
    one.tuning.net_depth = 1 + static_cast<int>(random.below(4));
    one.data_seed = random.next();
    one.reach.clear();
    for (size_t rank = 0; rank < ranks && one.data_seed % 2; rank++) one.reach.push_back(random.below(3)); // others than the lowest ranks lead
    draw_values(one, random);
    draw_counts(one, random);
}

void run_case(const Case &one, int seeds, uint64_t first_seed)
{
    World world(one);
    ASSERT_EQ(world.error, "") << one.describe();
    ASSERT_EQ(world.validate(), "") << one.describe();
    for (int i = 0; i < seeds; i++) {
        uint64_t seed = i == 0 ? 0 : first_seed + static_cast<uint64_t>(i);
        ASSERT_EQ(world.run(seed), "") << "seed " << seed << ", " << one.describe();
    }
}

// Every algorithm that fits, in its large and its small form.
template <typename Visit> int for_each_algorithm(Case one, Visit visit)
{
    int fitting = 0;
    for (int algorithm = 0; algorithm < ALGORITHM_COUNT; algorithm++) {
        one.algorithm = static_cast<plan_algorithm_t>(algorithm);
        one.small = false;
        if (!plan_fits(one)) continue;
        fitting++;
        bool direct_blocks = one.collective == COLLECTIVE_ALLTOALL || one.collective == COLLECTIVE_GATHER || one.collective == COLLECTIVE_SCATTER;
        for (int small = 0; small < (direct_blocks && one.algorithm == ALGORITHM_DIRECT ? 1 : 2); small++) {
            one.small = small == 1;
            visit(one);
            if (::testing::Test::HasFatalFailure()) return fitting;
        }
    }
    return fitting;
}

class Collectives : public ::testing::TestWithParam<int> {
  protected:
    plan_collective_t collective() const { return static_cast<plan_collective_t>(GetParam()); }
};

TEST_P(Collectives, EveryGroupingOfFewRanks)
{
    Random random(100 + static_cast<uint64_t>(GetParam()));
    int most = long_run() ? 7 : built_sanitized() ? 5 : 6; // a sanitizer looks at memory only, which five ranks use as six do
    for (int ranks = 1; ranks <= most; ranks++) {
        for_each_grouping(ranks, [&](const std::vector<int> &host_of) {
            if (HasFatalFailure()) return;
            Case one;
            one.host_of = host_of;
            one.collective = collective();
            int fitting = for_each_algorithm(one, [&](Case &exact) {
                for (int sample = 0; sample < (long_run() ? 6 : 4); sample++) {
                    draw(exact, random);
                    run_case(exact, 3, random.next());
                    if (HasFatalFailure()) return;
                }
            });
            ASSERT_GE(fitting, 1) << one.describe();
        });
        if (HasFatalFailure()) return;
    }
}

class Rooted : public Collectives {};

TEST_P(Rooted, EveryRoot)
{
    Random random(200 + static_cast<uint64_t>(GetParam()));
    static const std::vector<std::vector<int>> groupings = {
        {0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 1, 1, 1}, {0, 1, 0, 1, 2, 1, 0}, {0, 1, 2, 3, 4, 5, 6}, {0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4}};
    for (const std::vector<int> &host_of : groupings) {
        Case one;
        one.host_of = host_of;
        one.collective = collective();
        for_each_algorithm(one, [&](Case &exact) {
            for (int root = 0; root < exact.ranks(); root++) {
                draw(exact, random);
                exact.root = root;
                run_case(exact, 3, random.next());
                if (HasFatalFailure()) return;
            }
        });
        if (HasFatalFailure()) return;
    }
}

TEST_P(Collectives, UpTo33Ranks)
{
    Random random(300 + static_cast<uint64_t>(GetParam()));
    for (int ranks = 7; ranks <= 33; ranks++) {
        for (int sample = 0; sample < (long_run() ? 12 : built_sanitized() ? 2 : 4); sample++) {
            Case one;
            one.host_of = sample == 0 ? std::vector<int>(static_cast<size_t>(ranks), 0) : random.grouping(ranks);
            one.collective = collective();
            for_each_algorithm(one, [&](Case &exact) {
                draw(exact, random);
                run_case(exact, 2, random.next());
            });
            if (HasFatalFailure()) return;
        }
    }
}

std::string name_of(const ::testing::TestParamInfo<int> &info) { return plan_collective_name(static_cast<plan_collective_t>(info.param)); }

INSTANTIATE_TEST_SUITE_P(All, Collectives, ::testing::Range(0, static_cast<int>(COLLECTIVE_COUNT)), name_of);
INSTANTIATE_TEST_SUITE_P(All, Rooted, ::testing::Values(COLLECTIVE_REDUCE, COLLECTIVE_BROADCAST, COLLECTIVE_GATHER, COLLECTIVE_SCATTER), name_of);

// A barrier says nothing through data: each rank's plan must depend on every other rank, or it could end early.
TEST(Barrier, NobodyEndsWhileOneIsMissing)
{
    Random random(7);
    for (int ranks = 2; ranks <= 12; ranks++) {
        for (int sample = 0; sample < 6; sample++) {
            Case one;
            one.host_of = sample == 0 ? std::vector<int>(static_cast<size_t>(ranks), 0) : random.grouping(ranks);
            one.collective = COLLECTIVE_BARRIER;
            one.counts = {0};
            for_each_algorithm(one, [&](Case &exact) {
                int missing = static_cast<int>(random.below(static_cast<size_t>(ranks)));
                World world(exact);
                ASSERT_EQ(world.error, "");
                // The missing rank has no signal and no message for anyone: a WAIT at its very start never ends.
                plan_t *plan = world.plan(missing);
                for (int i = 0; i < plan->steps; i++) plan->step[i] = plan->step[0];
                plan->step[0].verb = VERB_RECV;
                plan->step[0].peer = (missing + 1) % ranks;
                plan->step[0].destination.space = SPACE_RECV;
                plan->step[0].destination.parts = plan->step[0].destination.count = 1;
                plan->step[0].destination.block = PLAN_NO_BLOCK;
                for (int i = 1; i < plan->steps; i++) plan->step[i].verb = VERB_WAIT;
                std::string error = world.run(random.next() | 1);
                ASSERT_NE(error.find("stuck"), std::string::npos) << error << "\n" << exact.describe();
            });
            if (::testing::Test::HasFatalFailure()) return;
        }
    }
}

} // namespace
} // namespace plantest
