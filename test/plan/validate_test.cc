// SPDX-License-Identifier: Apache-2.0
// The validator: one broken rule a test, and the words that name it.
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

void expect_broken(plan_collective_t collective, plan_algorithm_t algorithm, const std::vector<int> &host_of, int rank, const char *what,
                   const std::function<void(plan_t *)> &breakage)
{
    Case one;
    one.host_of = host_of;
    one.collective = collective;
    one.algorithm = algorithm;
    Topology topology = make_topology(host_of);
    Plan plan;
    ASSERT_EQ(create_plan(one, topology.get(), rank, &plan), QUOIT_OK) << error_text();
    ASSERT_EQ(plan_validate(plan.get(), topology.get()), QUOIT_OK) << error_text();
    breakage(plan.get());
    ASSERT_EQ(plan_validate(plan.get(), topology.get()), QUOIT_ERR_INTERNAL) << what;
    EXPECT_NE(std::string(error_text()).find(what), std::string::npos) << error_text();
}

TEST(Validate, WindowRules)
{
    const std::vector<int> host{0, 0, 0};
    auto broken = [&](const char *what, const std::function<void(plan_t *)> &breakage) {
        expect_broken(COLLECTIVE_ALLREDUCE, ALGORITHM_WINDOW, host, 1, what, breakage);
    };
    broken("writes its slot before RECLAIM", [](plan_t *plan) { std::swap(plan->step[0], plan->step[1]); });
    broken("CONSUMED is missing", [](plan_t *plan) { plan->steps--; });
    broken("uses a slot after CONSUMED", [](plan_t *plan) { std::swap(plan->step[plan->steps - 1], plan->step[plan->steps - 2]); });
    broken("uses another's slot before any AWAIT", [](plan_t *plan) { std::swap(plan->step[find(plan, VERB_AWAIT)], plan->step[find(plan, VERB_REDUCE_WINDOW)]); });
    broken("signals a stage twice", [](plan_t *plan) { plan->step[find(plan, VERB_SIGNAL, 1)].stage = 0; });
    broken("stage out of range", [](plan_t *plan) { plan->step[find(plan, VERB_SIGNAL)].stage = PLAN_STAGES; });
    broken("awaits itself", [](plan_t *plan) { plan->step[find(plan, VERB_AWAIT, 1)].peer = 1; });
    broken("awaits a member that the host does not have", [](plan_t *plan) { plan->step[find(plan, VERB_AWAIT, 1)].peer = 3; });
    broken("in a plan without one", [](plan_t *plan) { plan->window = false; });
    broken("reclaims twice", [](plan_t *plan) { plan->step[1] = plan->step[0]; });
    broken("writes the caller's input", [](plan_t *plan) { plan->step[find(plan, VERB_REDUCE_WINDOW)].destination.space = SPACE_SEND; });
    broken("parts out of range", [](plan_t *plan) { plan->step[find(plan, VERB_REDUCE_WINDOW)].source.first = 3; });
    broken("scratch out of range", [](plan_t *plan) { plan->step[find(plan, VERB_REDUCE_WINDOW)].source.space = SPACE_TEMP; });
    broken("mixes blocks", [](plan_t *plan) { plan->step[1].source.block = 0; });
    broken("is no verb", [](plan_t *plan) { plan->step[0].verb = VERB_COUNT; });
    broken("depth", [](plan_t *plan) { plan->depth = 0; });
    broken("scales but is no COPY", [](plan_t *plan) { plan->step[find(plan, VERB_REDUCE_WINDOW)].flags |= STEP_SCALE; });
}

TEST(Validate, TransferRules)
{
    const std::vector<int> hosts{0, 1, 2};
    auto broken = [&](const char *what, const std::function<void(plan_t *)> &breakage) {
        expect_broken(COLLECTIVE_ALLREDUCE, ALGORITHM_RING, hosts, 1, what, breakage);
    };
    broken("transfers are pending", [](plan_t *plan) { plan->steps--; });
    broken("another number of transfers", [](plan_t *plan) { plan->transfers++; });
    broken("is a message to itself", [](plan_t *plan) { plan->step[0].peer = 1; });
    broken("no rank", [](plan_t *plan) { plan->step[0].peer = 3; });
    broken("waits for nothing", [](plan_t *plan) { plan->step[0] = plan->step[find(plan, VERB_WAIT)]; });
    broken("touches what a pending RECV writes", [](plan_t *plan) { std::swap(plan->step[find(plan, VERB_WAIT)], plan->step[find(plan, VERB_REDUCE)]); });
    broken("pending SEND reads", [](plan_t *plan) {
        plan_step_t *first = &plan->step[find(plan, VERB_SEND)];
        plan->step[0].destination = first->source;
        plan->step[0].destination.space = SPACE_RECV;
        std::swap(plan->step[0], *first);
    });
}

TEST(Validate, AnOutputIsReadAfterItWasWritten)
{
    const std::vector<int> hosts{0, 1, 2};
    expect_broken(COLLECTIVE_ALLGATHER, ALGORITHM_TWO_LEVEL, hosts, 1, "reads an output that it has not written",
                  [](plan_t *plan) { plan->step[find(plan, VERB_SEND)].source.block = 2; });
    expect_broken(COLLECTIVE_BROADCAST, ALGORITHM_TWO_LEVEL, hosts, 1, "reads an output that it has not written",
                  [](plan_t *plan) { std::swap(plan->step[find(plan, VERB_RECV)], plan->step[find(plan, VERB_SEND)]); });
}

TEST(Validate, OnlyTheRootHasBuffers)
{
    const std::vector<int> host{0, 0, 0};
    expect_broken(COLLECTIVE_REDUCE, ALGORITHM_WINDOW, host, 2, "an output that only the root has",
                  [](plan_t *plan) { plan->step[find(plan, VERB_REDUCE_WINDOW)].destination.space = SPACE_RECV; });
    expect_broken(COLLECTIVE_BROADCAST, ALGORITHM_WINDOW, host, 2, "an input that only the root has",
                  [](plan_t *plan) { plan->step[find(plan, VERB_COPY)].source.space = SPACE_SEND; });
    expect_broken(COLLECTIVE_ALLGATHER, ALGORITHM_WINDOW, host, 2, "an input that is one block",
                  [](plan_t *plan) { plan->step[find(plan, VERB_COPY)].source.block = 0; });
    expect_broken(COLLECTIVE_REDUCE_SCATTER, ALGORITHM_WINDOW, host, 2, "an output that is one block",
                  [](plan_t *plan) { plan->step[find(plan, VERB_REDUCE_WINDOW)].destination.block = 0; });
    expect_broken(COLLECTIVE_REDUCE_SCATTER, ALGORITHM_WINDOW, host, 2, "a place out of range",
                  [](plan_t *plan) { plan->step[find(plan, VERB_COPY)].destination.place = 3; });
}

} // namespace
} // namespace plantest
