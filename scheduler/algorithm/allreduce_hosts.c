/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Allreduce over several hosts, and over edges only.
 *
 * Terms: h hosts; the leader is a host's member 0. Stage 0: "my input is in my slot"; stage 1: of a member, "my part is reduced
 * in the leader's slot", of a leader that doubles, "the result is in my slot"; stage 2 of a leader: the latter.
 *
 * Two levels (large). 4 ranks on 2 hosts:
 *
 *   host A              host B
 *   0 publish b1        2 publish d1       each publishes what its mates reduce; signal 0, await 0
 *   1 publish a0        3 publish c0
 *   slot 0: a+b         slot 2: c+d        each reduces its part into the leader's slot, over the leader's input; signal 1
 *        0 <--- ring, parts = hosts ---> 2    straight out of and into the leaders' slots; signal 2
 *   RECV <- slot 0      RECV <- slot 2
 *
 * Doubling (small): the members publish all, the leader alone reduces, the leaders double, the members copy.
 * Ring (no windows): every rank is its own host.
 *
 * With a wire format (wire.c) the leader's slot holds its host's sum in float32, and the result whole.
 *
 * Invariants: part i of a leader's slot is read and written by member i only between its stage 0 and stage 1. An element is summed
 * in member order inside a host, then in the order of the ring, whoever does it. A host of one rank works on its own buffers
 * without any window.
 * Cost: each host sends and receives 2(h-1)/h of the piece (two levels), ceil(log2 h) or 2 more times the piece (doubling).
 */
#include "scheduler/algorithm/algorithms.h"
#include "scheduler/algorithm/ring.h"

/* How the circle's ranks exchange their sums, without and with a wire format. */
typedef struct exchange {
    void (*run)(builder_t *builder, const circle_t *circle, plan_operand_t input, plan_operand_t work);
    void (*run_wire)(builder_t *builder, const circle_t *circle, plan_operand_t input, plan_operand_t work, unsigned flags);
} exchange_t;

static const exchange_t ring = {ring_run, ring_wire_run}, doubling = {doubling_run, doubling_wire_run};

/* Out of and into the leader's slot, where its host's sum is. */
static void run_slot(builder_t *builder, const circle_t *circle, const exchange_t *exchange)
{
    plan_operand_t slot = operand_slot(0);
    if (builder_wired(builder)) exchange->run_wire(builder, circle, operand_as(slot, FORM_SUM), slot, 0);
    else exchange->run(builder, circle, slot, slot);
}

/* Without windows: from SEND to RECV, or all in RECV when the values are scaled or divided beforehand. */
static void run_alone(builder_t *builder, const circle_t *circle, const exchange_t *exchange)
{
    unsigned prepare = builder_prepare(builder);
    if (builder_wired(builder)) {
        exchange->run_wire(builder, circle, operand_send(), operand_recv(), prepare);
        return;
    }
    if (prepare) builder_copy(builder, operand_recv(), operand_send(), prepare);
    exchange->run(builder, circle, prepare ? operand_recv() : operand_send(), operand_recv());
}

static void reduce_into_leader(builder_t *builder)
{
    int me = builder->me, members = builder->members;
    builder_reclaim(builder);
    builder_publish_parts(builder, operand_slot(me), operand_send());
    builder_signal(builder, 0);
    builder_await(builder, 0, PLAN_ALL);
    plan_operand_t source = builder_own_source(builder, operand_slot(me), operand_send());
    builder_sum_host(builder, operand_cut(operand_slot(0), me, 1, members), operand_cut(source, me, 1, members));
}

static void collect_from_leader(builder_t *builder, int stage)
{
    if (builder->me == 0) builder_signal(builder, stage);
    else builder_await(builder, stage, 0);
    builder_copy(builder, operand_recv(), operand_slot(0), builder_stream(builder));
    builder_consumed(builder);
}

void allreduce_two_level_write(builder_t *builder)
{
    circle_t circle = circle_of_speakers(builder, builder_first(builder));
    bool leader = builder->me == 0;
    if (leader) ring_begin(builder, &circle);
    if (builder->members == 1) {
        run_alone(builder, &circle, &ring);
        return;
    }
    reduce_into_leader(builder);
    if (leader) {
        builder_await(builder, 1, PLAN_ALL);
        run_slot(builder, &circle, &ring);
    } else {
        builder_signal(builder, 1);
    }
    collect_from_leader(builder, 2);
}

void allreduce_doubling_write(builder_t *builder)
{
    circle_t circle = circle_of_speakers(builder, builder_first(builder));
    plan_operand_t slot = operand_slot(builder->me);
    bool leader = builder->me == 0;
    if (leader) doubling_begin(builder, &circle);
    if (builder->members == 1) {
        run_alone(builder, &circle, &doubling);
        return;
    }
    builder_reclaim(builder);
    if (!leader || builder->request->premul) builder_copy(builder, slot, operand_send(), builder_scale(builder));
    if (leader) {
        builder_await(builder, 0, PLAN_ALL);
        builder_sum_host(builder, slot, builder_own_source(builder, slot, operand_send()));
        run_slot(builder, &circle, &doubling);
    } else {
        builder_signal(builder, 0);
    }
    collect_from_leader(builder, 1);
}

void allreduce_ring_write(builder_t *builder)
{
    circle_t circle = circle_of_all(builder);
    ring_begin(builder, &circle);
    run_alone(builder, &circle, &ring);
}
