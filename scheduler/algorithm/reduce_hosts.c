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

/* Scratches: 0 and 1 arrivals, 2 sums or prepared values; with a wire format 2 sums (float32), 3 what is sent. */
enum { WORK = 2, OUT = 3 };

static plan_operand_t arrival(const builder_t *builder, int turn)
{
    return operand_as(operand_temp(turn % 2), builder_wired(builder) ? FORM_WIRE : FORM_WHOLE);
}

static void post(builder_t *builder, const circle_t *circle, int distance, int turn)
{
    if (distance > 0) builder_recv(builder, arrival(builder, turn), circle_rank(circle, circle->index + distance));
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
        if (last) builder_reduce_last(builder, operand_recv(), sum, operand_temp(turn % 2));
        else builder_reduce(builder, work, sum, operand_temp(turn % 2), 0);
        sum = work;
        distance = next;
    }
    if (root) return;
    builder_send(builder, sum, circle_rank(circle, chain ? circle->index - 1 : circle->index & (circle->index - 1)));
    builder_wait(builder);
}

/* The same with a wire format. Each sum is decoded, added to and encoded at once where no other child follows. flags: what is still to
   be done to `sum`. */
static void climb_wire(builder_t *builder, const circle_t *circle, bool chain, plan_operand_t sum, unsigned flags)
{
    bool root = builder->rank == builder->root, encoded = false;
    plan_operand_t out = operand_as(operand_temp(OUT), FORM_WIRE), work = operand_as(operand_temp(WORK), FORM_SUM);
    int turn = 0;
    for (int distance = next_child(circle, chain, 0); distance > 0; turn++) {
        int next = next_child(circle, chain, distance);
        builder_wait(builder);
        post(builder, circle, next, turn + 1);
        plan_operand_t to = next != 0 ? work : root ? operand_recv() : out;
        encoded = next == 0;
        builder_convert(builder, to, sum, arrival(builder, turn), flags | (next != 0 ? 0 : root ? STEP_FINISH : STEP_NOTE));
        sum = work;
        flags = 0;
        distance = next;
    }
    if (root) return;
    if (!encoded) builder_convert(builder, out, sum, operand_none(), flags | STEP_NOTE);
    builder_send(builder, out, circle_rank(circle, chain ? circle->index - 1 : circle->index & (circle->index - 1)));
    builder_wait(builder);
}

static void begin(builder_t *builder, const circle_t *circle, bool chain)
{
    post(builder, circle, next_child(circle, chain, 0), 0);
}

static void write_alone(builder_t *builder, const circle_t *circle, bool chain)
{
    unsigned prepare = builder_prepare(builder);
    plan_operand_t work = operand_temp(WORK), sum = prepare ? work : operand_send();
    begin(builder, circle, chain);
    if (builder_wired(builder)) {
        climb_wire(builder, circle, chain, operand_send(), prepare);
        return;
    }
    if (prepare) builder_copy(builder, work, operand_send(), prepare);
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
    builder_sum_host(builder, operand_cut(operand_slot(speaker), me, 1, members), operand_cut(source, me, 1, members));
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
    builder_sum_host(builder, slot, builder_own_source(builder, slot, operand_send()));
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
    plan_operand_t sum = operand_slot(speaker);
    if (builder->me == speaker && builder_wired(builder)) climb_wire(builder, &circle, chain, operand_as(sum, FORM_SUM), 0);
    else if (builder->me == speaker) climb(builder, &circle, chain, sum, sum);
    builder_consumed(builder);
}

void reduce_chain_write(builder_t *builder) { write_hosts(builder, true); }

void reduce_binomial_write(builder_t *builder) { write_hosts(builder, false); }
