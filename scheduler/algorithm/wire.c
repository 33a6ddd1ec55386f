/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ring and recursive doubling of ring.c and doubling.c, where the edges carry a wire format: the same rounds, partners and parts.
 *
 * Terms: arrivals are scratch 0 (doubling: 0 and 1 in turn); `out`, scratch 1 (doubling: 2), is what this rank sends. Both are wire.
 * Own values come from `input` (whole, or the host's SUMs) with `flags` for what is still to be done to them; they are used once.
 *
 *   ring, part p of 3 hosts   host p+1: encode own -> host p+2: encode(decode + own) -> host p: decode + own, finished: encode
 *                             that code goes round; each host, p too, decodes it into `work`
 *   doubling                  both of a pair encode their sums and add the two decoded ones, their own as the other sees it
 *
 * Invariants: what is added and what is the result is the same decoded code on all ranks, so all get the same bits. A sum is rounded
 * once a hop, to the wire format; between, it is float32. With float32 as the wire format the result goes round whole, in the
 * caller's dtype: it is rounded once in all. Each encoding that the result suffers from carries STEP_NOTE on exactly one rank.
 * Cost: as ring and doubling, in bytes of the wire format; what doubling sends to those that folded themselves away is whole.
 */
#include "scheduler/algorithm/ring.h"

static bool is_wide(const builder_t *builder) { return builder->request->wire == QUOIT_WIRE_F32; }

static plan_operand_t wire_temp(int number) { return operand_as(operand_temp(number), FORM_WIRE); }

/* ------------------------------------------------------------------ ring */

typedef struct wire_ring {
    builder_t *builder;
    const circle_t *circle;
    plan_operand_t input, work;
    unsigned flags;
} wire_ring_t;

static plan_operand_t part(const wire_ring_t *ring, plan_operand_t whole, int offset)
{
    return operand_cut(whole, circle_wrap(ring->circle, ring->circle->index + offset), 1, ring->circle->size);
}

static void reduce_scatter_rounds(const wire_ring_t *ring)
{
    builder_t *builder = ring->builder;
    int last = ring->circle->size - 2;
    builder_convert(builder, part(ring, wire_temp(1), -1), part(ring, ring->input, -1), operand_none(), ring->flags | STEP_NOTE);
    for (int round = 0; round <= last; round++) {
        plan_operand_t arrived = part(ring, wire_temp(0), -round - 2), mine = part(ring, ring->input, -round - 2);
        builder_send(builder, part(ring, wire_temp(1), -round - 1), circle_next(ring->circle));
        builder_wait(builder);
        if (round < last) {
            builder_recv(builder, part(ring, wire_temp(0), -round - 3), circle_previous(ring->circle));
            builder_convert(builder, part(ring, wire_temp(1), -round - 2), mine, arrived, ring->flags | STEP_NOTE);
        } else if (is_wide(builder)) {
            builder_recv(builder, part(ring, ring->work, -1), circle_previous(ring->circle));
            builder_convert(builder, part(ring, ring->work, 0), mine, arrived, ring->flags | STEP_FINISH);
        } else {
            builder_recv(builder, part(ring, wire_temp(1), -1), circle_previous(ring->circle));
            builder_convert(builder, part(ring, wire_temp(1), 0), mine, arrived, ring->flags | STEP_FINISH | STEP_NOTE);
        }
    }
}

static void allgather_rounds(const wire_ring_t *ring)
{
    builder_t *builder = ring->builder;
    int last = ring->circle->size - 2;
    bool wide = is_wide(builder);
    plan_operand_t carried = wide ? ring->work : wire_temp(1);
    builder_send(builder, part(ring, carried, 0), circle_next(ring->circle));
    if (!wide) builder_convert(builder, part(ring, ring->work, 0), part(ring, carried, 0), operand_none(), 0);
    for (int round = 0; round <= last; round++) {
        builder_wait(builder);
        if (round < last) {
            builder_recv(builder, part(ring, carried, -round - 2), circle_previous(ring->circle));
            builder_send(builder, part(ring, carried, -round - 1), circle_next(ring->circle));
        }
        if (!wide) builder_convert(builder, part(ring, ring->work, -round - 1), part(ring, carried, -round - 1), operand_none(), 0);
    }
}

void ring_wire_run(builder_t *builder, const circle_t *circle, plan_operand_t input, plan_operand_t work, unsigned flags)
{
    wire_ring_t ring = {.builder = builder, .circle = circle, .input = input, .work = work, .flags = flags};
    reduce_scatter_rounds(&ring);
    allgather_rounds(&ring);
}

/* ------------------------------------------------------------------ doubling */

enum { OUT = 2 };

/* The receive before this call went to scratch 0 or 1: `turn` mod 2. The own sum is encoded in OUT. */
static void exchange(builder_t *builder, const circle_t *circle, const fold_t *fold, plan_operand_t work, int turn)
{
    for (int distance = 1; distance < fold->power; distance *= 2, turn++) {
        bool lower = (fold->number & distance) == 0, last = distance * 2 == fold->power;
        bool speaks = (fold->number & (2 * distance - 1)) == 0; /* of the ranks that hold the new sum, which all encode alike */
        plan_operand_t theirs = wire_temp(turn % 2), own = wire_temp(OUT);
        plan_operand_t first = lower ? own : theirs, second = lower ? theirs : own;
        builder_send(builder, own, fold_partner(circle, fold, distance));
        builder_wait(builder);
        if (last) {
            builder_convert(builder, work, first, second, STEP_FINISH);
        } else {
            builder_recv(builder, wire_temp((turn + 1) % 2), fold_partner(circle, fold, distance * 2));
            builder_convert(builder, own, first, second, speaks ? STEP_NOTE : 0);
        }
    }
}

void doubling_wire_run(builder_t *builder, const circle_t *circle, plan_operand_t input, plan_operand_t work, unsigned flags)
{
    fold_t fold = fold_of(circle);
    plan_operand_t own = wire_temp(OUT);
    if (fold.number < 0) {
        builder_convert(builder, own, input, operand_none(), flags | STEP_NOTE);
        builder_send(builder, own, circle_rank(circle, circle->index - 1));
        builder_wait(builder);
        builder_copy(builder, work, operand_temp(0), 0);
        return;
    }
    if (!fold_has_folded(circle, &fold)) {
        builder_convert(builder, own, input, operand_none(), flags | STEP_NOTE);
        exchange(builder, circle, &fold, work, 0);
        return;
    }
    builder_wait(builder);
    builder_recv(builder, wire_temp(1), fold_partner(circle, &fold, 1));
    builder_convert(builder, own, input, wire_temp(0), flags | STEP_NOTE);
    exchange(builder, circle, &fold, work, 1);
    builder_send(builder, work, circle_rank(circle, circle->index + 1));
    builder_wait(builder);
}
