/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Barrier: an allreduce of nothing.
 *
 * Terms: stage 0: "I am here"; stage 1 of a leader: "all hosts are here". Dissemination (Hensgen, Finkel, Manber 1988): in round k
 * the one at index i tells i + 2^k and hears from i - 2^k; after ceil(log2 n) rounds it has heard, directly or not, of all n.
 *
 *   index    0       1       2       3
 *   round 0  -> 1    -> 2    -> 3    -> 0      empty messages
 *   round 1  -> 2    -> 3    -> 0    -> 1
 *
 * On one host everyone signals and awaits everyone. Among hosts the leaders await their members, disseminate, and signal them.
 * Invariant: nobody is past its last await before everyone has signalled. Cost: one flag exchange on a host, or two and
 * ceil(log2 h) messages a leader among h hosts.
 */
#include "scheduler/algorithm/algorithms.h"

void barrier_flat_write(builder_t *builder)
{
    builder_signal(builder, 0);
    builder_await(builder, 0, PLAN_ALL);
    builder_consumed(builder);
}

static void disseminate(builder_t *builder, const circle_t *circle)
{
    for (int distance = 1; distance < circle->size; distance *= 2) {
        builder_recv(builder, operand_recv(), circle_rank(circle, circle->index - distance));
        builder_send(builder, operand_send(), circle_rank(circle, circle->index + distance));
        builder_wait(builder);
    }
}

void barrier_hosts_write(builder_t *builder)
{
    circle_t circle = circle_of_speakers(builder, builder_first(builder));
    bool shared = builder->members > 1;
    if (builder->me != 0) {
        builder_signal(builder, 0);
        builder_await(builder, 1, 0);
    } else {
        if (shared) builder_await(builder, 0, PLAN_ALL);
        disseminate(builder, &circle);
        if (shared) builder_signal(builder, 1);
    }
    if (shared) builder_consumed(builder);
}
