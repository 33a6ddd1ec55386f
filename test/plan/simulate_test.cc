// SPDX-License-Identifier: Apache-2.0
// The simulator itself: what it must call out although no single plan shows it.
#include <gtest/gtest.h>

#include <functional>

#include "world.h"

namespace plantest {
namespace {

int find(const plan_t *plan, plan_verb_t verb, int nth = 0)
{
    for (int i = 0; i < plan->steps; i++)
        if (plan->step[i].verb == verb && nth-- == 0) return i;
    return -1;
}

void remove_step(plan_t *plan, int at)
{
    for (int i = at; i + 1 < plan->steps; i++) plan->step[i] = plan->step[i + 1];
    plan->steps--;
}

// Told with any seed, round robin included, since it does not hang on luck.
void expect_broken(plan_algorithm_t algorithm, const std::vector<int> &host_of, const char *what, const std::function<void(World &)> &breakage)
{
    Case one;
    one.host_of = host_of;
    one.algorithm = algorithm;
    one.counts = {576}; // chunks and parts of one length, also in the ring of three
    for (uint64_t seed = 0; seed < 5; seed++) {
        World world(one);
        breakage(world);
        std::string error = world.run(seed);
        EXPECT_NE(error.find(what), std::string::npos) << "seed " << seed << ": \"" << error << "\" does not say: " << what;
    }
}

TEST(Simulate, MissingAwaitIsARace)
{
    expect_broken(ALGORITHM_WINDOW, {0, 0, 0}, "without having awaited", [](World &world) { remove_step(world.plan(1), find(world.plan(1), VERB_AWAIT, 1)); });
    expect_broken(ALGORITHM_TWO_LEVEL, {0, 0, 1}, "without having awaited", [](World &world) { remove_step(world.plan(0), find(world.plan(0), VERB_AWAIT, 1)); });
}

TEST(Simulate, MissingReclaim)
{
    expect_broken(ALGORITHM_WINDOW, {0, 0, 0}, "not reclaimed", [](World &world) { remove_step(world.plan(1), find(world.plan(1), VERB_RECLAIM)); });
}

TEST(Simulate, MissingSignalAndConsumedAreStuck)
{
    expect_broken(ALGORITHM_WINDOW, {0, 0, 0}, "stuck", [](World &world) { remove_step(world.plan(2), find(world.plan(2), VERB_SIGNAL)); });
    expect_broken(ALGORITHM_WINDOW, {0, 0, 0}, "stuck", [](World &world) { remove_step(world.plan(2), find(world.plan(2), VERB_CONSUMED)); });
}

TEST(Simulate, MissingWait)
{
    expect_broken(ALGORITHM_RING, {0, 1, 2}, "pending", [](World &world) { remove_step(world.plan(0), find(world.plan(0), VERB_WAIT)); });
    expect_broken(ALGORITHM_RING, {0, 1, 2}, "never waited for", [](World &world) { world.plan(0)->steps--; });
}

TEST(Simulate, MissingSendAndWrongPeer)
{
    expect_broken(ALGORITHM_RING, {0, 1, 2}, "stuck", [](World &world) { remove_step(world.plan(1), find(world.plan(1), VERB_SEND)); });
    expect_broken(ALGORITHM_RING, {0, 1, 2}, "stuck", [](World &world) { world.plan(1)->step[find(world.plan(1), VERB_SEND)].peer = 0; });
}

TEST(Simulate, MessagesMustBeOfOneLength)
{
    expect_broken(ALGORITHM_RING, {0, 1, 2}, "meet a RECV of", [](World &world) {
        plan_operand_t *source = &world.plan(1)->step[find(world.plan(1), VERB_SEND)].source;
        source->first = 0;
        source->count = source->parts;
    });
}

TEST(Simulate, LostStepsGiveWrongResults)
{
    expect_broken(ALGORITHM_RING, {0, 1, 2}, "is wrong", [](World &world) {
        plan_step_t *step = &world.plan(1)->step[find(world.plan(1), VERB_REDUCE)];
        step->verb = VERB_COPY;
        step->flags = 0;
    });
}

TEST(Simulate, WindowsOfDifferentLayout)
{
    expect_broken(ALGORITHM_WINDOW, {0, 0, 0}, "lay out their window differently", [](World &world) { world.plan(1)->depth = 3; });
}

} // namespace
} // namespace plantest
