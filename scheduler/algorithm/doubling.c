/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Recursive doubling among n ranks, for pieces so small that only the number of rounds counts.
 *
 * Terms: p is the largest power of two up to n, r = n - p. Indexes below 2r form pairs: the odd one folds its values into the even
 * one beforehand and gets the result afterwards. The p that remain are numbered anew, in order; in round k number v exchanges its
 * sum with v xor 2^k and both add the two.
 *
 *   index     0      1      2      3            5 indexes: r = 1
 *   round 0   0 <-> 1        2 <-> 3            fold 1 -> 0; numbers 0:0, 2:1, 3:2, 4:3
 *   round 1   0 <-> 2        1 <-> 3            exchange as on the left; unfold 0 -> 1
 *
 * Invariants: both of a pair add in the order of the lower index first, so they get the same bits, and so does everyone; a sum is
 * sent and waited for before it is added to. Two scratches take turns, so that a receive is posted before the addition that
 * precedes it. Cost: ceil(log2 n) messages of the whole piece, 2 more rounds where n is no power of two.
 */
#include "scheduler/algorithm/ring.h"

fold_t fold_of(const circle_t *circle)
{
    int power = 1, index = circle->index;
    while (power <= circle->size / 2) power *= 2;
    int rest = circle->size - power;
    int number = index >= 2 * rest ? index - rest : index % 2 == 0 ? index / 2 : -1;
    return (fold_t){.power = power, .rest = rest, .number = number};
}

int fold_partner(const circle_t *circle, const fold_t *fold, int distance)
{
    int number = fold->number ^ distance;
    return circle_rank(circle, number < fold->rest ? 2 * number : number + fold->rest);
}

bool fold_has_folded(const circle_t *circle, const fold_t *fold)
{
    return fold->number >= 0 && circle->index < 2 * fold->rest;
}

void doubling_begin(builder_t *builder, const circle_t *circle)
{
    fold_t fold = fold_of(circle);
    int from = fold.number < 0               ? circle_rank(circle, circle->index - 1)
               : fold_has_folded(circle, &fold) ? circle_rank(circle, circle->index + 1)
                                             : fold_partner(circle, &fold, 1);
    plan_form_t form = builder_wired(builder) && fold.number >= 0 ? FORM_WIRE : FORM_WHOLE;
    builder_recv(builder, operand_as(operand_temp(0), form), from);
}

/* The receive before this call went to scratch 0 or 1: `turn` mod 2. */
static void exchange(builder_t *builder, const circle_t *circle, const fold_t *fold, plan_operand_t sum, plan_operand_t work, int turn)
{
    for (int distance = 1; distance < fold->power; distance *= 2, turn++) {
        bool lower = (fold->number & distance) == 0, last = distance * 2 == fold->power;
        plan_operand_t theirs = operand_temp(turn % 2);
        builder_send(builder, sum, fold_partner(circle, fold, distance));
        builder_wait(builder);
        if (!last) builder_recv(builder, operand_temp((turn + 1) % 2), fold_partner(circle, fold, distance * 2));
        plan_operand_t first = lower ? sum : theirs, second = lower ? theirs : sum;
        if (last) builder_reduce_last(builder, work, first, second);
        else builder_reduce(builder, work, first, second, 0);
        sum = work;
    }
}

void doubling_run(builder_t *builder, const circle_t *circle, plan_operand_t input, plan_operand_t work)
{
    fold_t fold = fold_of(circle);
    if (fold.number < 0) {
        builder_send(builder, input, circle_rank(circle, circle->index - 1));
        builder_wait(builder);
        builder_copy(builder, work, operand_temp(0), 0);
        return;
    }
    if (!fold_has_folded(circle, &fold)) {
        exchange(builder, circle, &fold, input, work, 0);
        return;
    }
    int folded = circle_rank(circle, circle->index + 1);
    builder_wait(builder);
    builder_recv(builder, operand_temp(1), fold_partner(circle, &fold, 1));
    builder_reduce(builder, work, input, operand_temp(0), 0);
    exchange(builder, circle, &fold, work, work, 1);
    builder_send(builder, work, folded);
    builder_wait(builder);
}
