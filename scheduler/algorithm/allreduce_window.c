/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Allreduce on one host, out of the window.
 *
 * Terms: m members; a piece has m parts, member i answers for part i. Stage 0: "my input is in my slot"; stage 1: "my part's
 * result is in my slot".
 *
 * Flat (two members, or small): everyone publishes all of it and reduces all of it, so there is one exchange of flags.
 *
 *   member   0            1            2            3
 *   publish  [a0 a1..]    [b0 b1..]    [c0 c1..]    [d0 d1..]      each to its own slot; signal 0, await 0
 *   reduce   a+b+c+d      a+b+c+d      a+b+c+d      a+b+c+d        each to its own RECV
 *
 * Window (large): everyone publishes what the others reduce, reduces its own part straight from its private input and the others'
 * slots, writes it to its output and to its slot, and collects the other parts.
 *
 *   publish  [. a1 a2 a3] [b0 . b2 b3] [c0 c1 . c3] [d0 d1 d2 .]   signal 0, await 0
 *   reduce   s0 to slot   s1 to slot   s2 to slot   s3 to slot     signal 1; await 1 of each, copy its part
 *
 * Invariant: an element is summed in member order by whoever sums it, so all ranks get the same bits. A member's input may lie in
 * shared memory and be its output too: it writes part j there after j's stage 1, and nobody else reads its own part.
 * Cost, in passes over the piece on each member: flat 1 copy and m reads; window (m-1)/m copied, one part read m times and written
 * twice, (m-1)/m collected.
 */
#include "scheduler/algorithm/algorithms.h"

void allreduce_flat_write(builder_t *builder)
{
    plan_operand_t slot = operand_slot(builder->me);
    builder_share_inputs(builder, true);
    builder_reclaim(builder);
    builder_copy(builder, slot, operand_send(), builder_scale(builder) | builder->input);
    builder_signal(builder, 0);
    builder_await(builder, 0, PLAN_ALL);
    builder_reduce_window(builder, operand_recv(), operand_none(), builder_own_source(builder, slot, operand_send()),
                          STEP_FINISH | builder->input | builder_stream(builder));
    builder_consumed(builder);
}

/* The second result never equals a source but the first may: with a premul factor the own source is the slot. */
static void reduce_own_part(builder_t *builder)
{
    int me = builder->me, members = builder->members;
    plan_operand_t slot = operand_cut(operand_slot(me), me, 1, members);
    plan_operand_t recv = operand_cut(operand_recv(), me, 1, members);
    plan_operand_t send = operand_cut(operand_send(), me, 1, members);
    if (builder->request->premul) builder_reduce_window(builder, slot, recv, slot, STEP_FINISH);
    else builder_reduce_window(builder, recv, slot, send, STEP_FINISH | builder->input);
}

void allreduce_window_write(builder_t *builder)
{
    int members = builder->members;
    builder_share_inputs(builder, false); /* who has signalled stage 1 has read all inputs */
    builder_reclaim(builder);
    builder_publish_parts(builder, operand_slot(builder->me), operand_send());
    builder_signal(builder, 0);
    builder_await(builder, 0, PLAN_ALL);
    reduce_own_part(builder);
    builder_signal(builder, 1);
    for (int step = 1; step < members; step++) {
        int peer = (builder->me + step) % members; /* members start at different ones, so that they do not all read one slot */
        builder_await(builder, 1, peer);
        builder_copy(builder, operand_cut(operand_recv(), peer, 1, members), operand_cut(operand_slot(peer), peer, 1, members),
                     builder_stream(builder));
    }
    builder_consumed(builder);
}
