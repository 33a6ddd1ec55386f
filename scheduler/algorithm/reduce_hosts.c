/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Reduce over several hosts, and over edges only: broadcast's chain and tree, backwards.
 *
 * Terms: one speaker a host: the root for its own, else the leader; counted from the root's host on. Stage 0: "my input is in my
 * slot"; stage 1: "my part is reduced in the speaker's slot". A speaker has its host's sum in its slot, adds what its children in
 * the chain or tree send, in order, and sends the sum to its parent; the root's last addition goes to RECV.
 *
 *   chain (large)     3 -> 2 -> 1 -> 0        binomial (small)    3 -> 2 -> 0
 *                                                                 1 -> 0
 *
 * Invariants: own sum first, then the children by rising distance: always the order of the circle. Nobody but the root touches
 * RECV. Two scratches take turns, so that the next child's receive is posted before this one's addition.
 * Cost: each host sends the piece once; chain: c + h - 2 ways for c chunks; tree: ceil(log2 h) ways a chunk.
 */
#include "scheduler/algorithm/algorithms.h"

/* Distance to the next child after the one at `distance` (0: the first), or 0 when there is none. */
static int next_child(const circle_t *circle, bool chain, int distance)
{
    int next = distance == 0 ? 1 : distance * 2;
    if (chain) return distance == 0 && circle->index + 1 < circle->size ? 1 : 0;
    return (circle->index & next) == 0 && next < circle->size && circle->index + next < circle->size ? next : 0;
}

static void post(builder_t *builder, const circle_t *circle, int distance, int turn)
{
    if (distance > 0) builder_recv(builder, operand_temp(turn % 2), circle_rank(circle, circle->index + distance));
}

/* The first child's receive is posted. sum: this host's; work: where sums may be kept. */
static void climb(builder_t *builder, const circle_t *circle, bool chain, plan_operand_t sum, plan_operand_t work)
{
    bool root = builder->rank == builder->root;
    int turn = 0;
    for (int distance = next_child(circle, chain, 0); distance > 0; turn++) {
        int next = next_child(circle, chain, distance);
        bool last = root && next == 0;
        builder_wait(builder);
        post(builder, circle, next, turn + 1);
        builder_reduce(builder, last ? operand_recv() : work, sum, operand_temp(turn % 2), last ? STEP_FINISH : 0);
        sum = work;
        distance = next;
    }
    if (root) return;
    builder_send(builder, sum, circle_rank(circle, chain ? circle->index - 1 : circle->index & (circle->index - 1)));
    builder_wait(builder);
}

static void begin(builder_t *builder, const circle_t *circle, bool chain)
{
    post(builder, circle, next_child(circle, chain, 0), 0);
}

static void write_alone(builder_t *builder, const circle_t *circle, bool chain)
{
    plan_operand_t work = operand_temp(2), sum = builder_own_source(builder, work, operand_send());
    begin(builder, circle, chain);
    if (builder->request->premul) builder_copy(builder, work, operand_send(), STEP_SCALE);
    climb(builder, circle, chain, sum, work);
}

/* Parts for everyone (large). Returns after the speaker's slot holds the host's sum, on the speaker. */
static void reduce_parts(builder_t *builder, int speaker)
{
    int me = builder->me, members = builder->members;
    plan_operand_t slot = operand_slot(me), source = builder_own_source(builder, slot, operand_send());
    builder_reclaim(builder);
    builder_publish_parts(builder, slot, operand_send());
    builder_signal(builder, 0);
    builder_await(builder, 0, PLAN_ALL);
    builder_reduce_window(builder, operand_cut(operand_slot(speaker), me, 1, members), operand_none(),
                          operand_cut(source, me, 1, members), 0);
    if (me == speaker) builder_await(builder, 1, PLAN_ALL);
    else builder_signal(builder, 1);
}

/* All by the speaker (small). */
static void reduce_whole(builder_t *builder, int speaker)
{
    plan_operand_t slot = operand_slot(builder->me);
    builder_reclaim(builder);
    if (builder->me != speaker || builder->request->premul) builder_copy(builder, slot, operand_send(), builder_scale(builder));
    if (builder->me != speaker) {
        builder_signal(builder, 0);
        return;
    }
    builder_await(builder, 0, PLAN_ALL);
    builder_reduce_window(builder, slot, operand_none(), builder_own_source(builder, slot, operand_send()), 0);
}

static void write_hosts(builder_t *builder, bool chain)
{
    circle_t circle = circle_of_speakers(builder, builder->root);
    int speaker = builder->topology->member[circle_rank(&circle, circle.index)];
    if (builder->members == 1) {
        write_alone(builder, &circle, chain);
        return;
    }
    if (builder->me == speaker) begin(builder, &circle, chain);
    if (chain) reduce_parts(builder, speaker);
    else reduce_whole(builder, speaker);
    if (builder->me == speaker) climb(builder, &circle, chain, operand_slot(speaker), operand_slot(speaker));
    builder_consumed(builder);
}

void reduce_chain_write(builder_t *builder) { write_hosts(builder, true); }

void reduce_binomial_write(builder_t *builder) { write_hosts(builder, false); }

void reduce_direct_write(builder_t *builder)
{
    circle_t circle = circle_of_all(builder, builder->root);
    write_alone(builder, &circle, !builder->request->small);
}
