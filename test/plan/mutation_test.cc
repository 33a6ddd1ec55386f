// SPDX-License-Identifier: Apache-2.0
// Are the checks worth anything? Break one rank's plan in one place and see whether the validator, the simulator, or the result
// tells. Every AWAIT, WAIT, SIGNAL, RECLAIM and CONSUMED of an allreduce must be missed when it is gone.
#include <gtest/gtest.h>

#include <cstring>
#include <iostream>

#include "world.h"

namespace plantest {
namespace {

const std::vector<std::vector<int>> groupings = {{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 0, 0, 1, 1, 2, 1}, {0, 1, 2, 3, 4}};

bool is_sync(const plan_step_t &step) { return step.verb <= VERB_CONSUMED || step.verb == VERB_WAIT; }

void remove_step(plan_t *plan, int at)
{
    std::memmove(plan->step + at, plan->step + at + 1, static_cast<size_t>(plan->steps - at - 1) * sizeof *plan->step);
    plan->steps--;
}

bool caught(World &world, int seeds)
{
    if (!world.validate().empty()) return true;
    for (int seed = 0; seed < seeds; seed++)
        if (!world.run(static_cast<uint64_t>(seed)).empty()) return true;
    return false;
}

Case mutation_case(const std::vector<int> &host_of, plan_collective_t collective, plan_algorithm_t algorithm, bool small)
{
    Case one;
    one.host_of = host_of;
    one.collective = collective;
    one.algorithm = algorithm;
    one.small = small;
    bool uniform = collective == COLLECTIVE_ALLREDUCE || collective == COLLECTIVE_REDUCE || collective == COLLECTIVE_BROADCAST;
    // Several chunks, and parts that are not empty.
    size_t ranks = host_of.size();
    one.counts = std::vector<size_t>(uniform ? 1 : collective == COLLECTIVE_ALLTOALL ? ranks * ranks : ranks,
                                     small ? 10000 / (uniform ? 1 : ranks) : 64 * 8);
    one.tuning.slot_size = one.tuning.net_chunk_size = 1024;
    return one;
}

TEST(Mutation, NoSyncStepOfAllreduceIsIdle)
{
    int removed = 0;
    for (const std::vector<int> &host_of : groupings) {
        for (int algorithm = 0; algorithm < ALGORITHM_COUNT; algorithm++) {
            for (bool small : {false, true}) {
                Case one = mutation_case(host_of, COLLECTIVE_ALLREDUCE, static_cast<plan_algorithm_t>(algorithm), small);
                if (!plan_fits(one)) continue;
                for (int rank = 0; rank < one.ranks(); rank++) {
                    World whole(one);
                    for (int at = 0; at < whole.plan(rank)->steps; at++) {
                        plan_step_t step = whole.plan(rank)->step[at];
                        if (!is_sync(step)) continue;
                        World world(one);
                        remove_step(world.plan(rank), at);
                        removed++;
                        ASSERT_TRUE(caught(world, 3)) << "rank " << rank << " without step " << at << " (verb " << int{step.verb} << "), "
                                                      << one.describe();
                    }
                }
            }
        }
    }
    EXPECT_GT(removed, 300);
}

// Swapped neighbours, or a step moved elsewhere, may be harmless; most are not.
TEST(Mutation, MostDisordersAreCaught)
{
    Random random(4711);
    static const plan_collective_t collectives[] = {COLLECTIVE_ALLREDUCE, COLLECTIVE_REDUCE, COLLECTIVE_BROADCAST,
                                                    COLLECTIVE_ALLGATHER, COLLECTIVE_REDUCE_SCATTER, COLLECTIVE_ALLTOALL};
    int tried = 0, found = 0, removed = 0, removed_found = 0;
    while (tried < (long_run() ? 4000 : 400)) {
        Case one = mutation_case(groupings[random.below(groupings.size())], collectives[random.below(6)],
                                 static_cast<plan_algorithm_t>(random.below(ALGORITHM_COUNT)), random.below(2));
        if (one.collective == COLLECTIVE_ALLTOALL && one.algorithm == ALGORITHM_DIRECT) one.small = false;
        if (!plan_fits(one)) continue;
        World world(one);
        plan_t *plan = world.plan(static_cast<int>(random.below(one.host_of.size())));
        int at = static_cast<int>(random.below(static_cast<size_t>(plan->steps)));
        if (plan->steps < 2 || !is_sync(plan->step[at])) continue;
        if (random.below(2)) {
            remove_step(plan, at);
            removed++;
            removed_found += caught(world, 4);
            continue;
        }
        int to = static_cast<int>(random.below(static_cast<size_t>(plan->steps)));
        if (to == at) continue;
        std::swap(plan->step[at], plan->step[to]);
        tried++;
        found += caught(world, 4);
    }
    std::cout << "[          ] caught " << removed_found << " of " << removed << " sync steps removed, " << found << " of " << tried
              << " swapped\n";
    EXPECT_GE(removed_found, removed * 95 / 100);
    EXPECT_GE(found, tried * 80 / 100);
}

} // namespace
} // namespace plantest
