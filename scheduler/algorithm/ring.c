/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ring allreduce (Patarasuk & Yuan 2009): reduce-scatter, then allgather, round a circle of n ranks.
 *
 * Terms: a piece has n parts. In round k of the reduce-scatter index i sends part i-k-1 to i+1, receives part i-k-2 from i-1 into
 * scratch, and adds its own values; after n-1 rounds it holds the result of part i. In round k of the allgather it sends part i-k
 * and receives part i-k-1, in place.
 *
 *   index     0          1          2          3          (part that is sent)
 *   round 0   3 ->1      0 ->2      1 ->3      2 ->0      reduce-scatter: each receiver adds its own
 *   round 1   2 ->1      3 ->2      0 ->3      1 ->0
 *   round 2   1 ->1      2 ->2      3 ->3      0 ->0      now index i has all of part i
 *   round 0   0 ->1      1 ->2      2 ->3      3 ->0      allgather
 *   ...
 *
 * Invariants: the sum of part p begins at index p+1 and goes round once, whoever runs: same bits everywhere. A part is received
 * into `work` only after the send that read it was waited for. The receive of a round is posted before the addition of the round
 * before. Cost: 2(n-1) messages of 1/n of the piece, sent and received by each.
 */
#include "scheduler/algorithm/ring.h"

static plan_operand_t part(const circle_t *circle, plan_operand_t whole, int index)
{
    return operand_cut(whole, circle_wrap(circle, index), 1, circle->size);
}

static void post_reduce_scatter(builder_t *builder, const circle_t *circle, int round)
{
    plan_operand_t arriving = operand_as(operand_temp(0), builder_wired(builder) ? FORM_WIRE : FORM_WHOLE);
    builder_recv(builder, part(circle, arriving, circle->index - round - 2), circle_previous(circle));
}

static void post_allgather(builder_t *builder, const circle_t *circle, plan_operand_t work, int round)
{
    builder_recv(builder, part(circle, work, circle->index - round - 1), circle_previous(circle));
}

void ring_begin(builder_t *builder, const circle_t *circle)
{
    post_reduce_scatter(builder, circle, 0);
}

void ring_run(builder_t *builder, const circle_t *circle, plan_operand_t input, plan_operand_t work)
{
    int index = circle->index, last = circle->size - 2;
    for (int round = 0; round <= last; round++) {
        plan_operand_t mine = part(circle, input, index - round - 2), sum = part(circle, work, index - round - 2);
        builder_send(builder, part(circle, round == 0 ? input : work, index - round - 1), circle_next(circle));
        builder_wait(builder);
        if (round < last) post_reduce_scatter(builder, circle, round + 1);
        else post_allgather(builder, circle, work, 0);
        plan_operand_t arrived = part(circle, operand_temp(0), index - round - 2);
        if (round < last) builder_reduce(builder, sum, arrived, mine, 0);
        else builder_reduce_last(builder, sum, arrived, mine);
    }
    for (int round = 0; round <= last; round++) {
        builder_send(builder, part(circle, work, index - round), circle_next(circle));
        builder_wait(builder);
        if (round < last) post_allgather(builder, circle, work, round + 1);
    }
}
