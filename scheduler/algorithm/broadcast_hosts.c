/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Broadcast over several hosts, and over edges only.
 *
 * Terms: one speaker a host: the root for its own, else the leader. Speakers are counted from the root's host on. Stage 0: "the
 * piece is in my slot", of a speaker. The chain (large) passes a piece from speaker to speaker, chunks behind each other; the
 * binomial tree (small) has the root send to half of those left, and so on.
 *
 *   chain     0 -> 1 -> 2 -> 3            binomial    0 -> 2 -> 3
 *                                                     0 -> 1
 *   speaker   RECV, SEND straight from its slot; its mates copy out of the slot
 *
 * Invariants: each network interface receives the piece once; a slot is sent from only until WAIT, which is before CONSUMED.
 * Cost: chain: c + h - 2 times a chunk's way for c chunks; tree: ceil(log2 h) ways a chunk, all of them sent by the root.
 */
#include "scheduler/algorithm/algorithms.h"

/* Returns how many sends were started. */
static int send_on(builder_t *builder, const circle_t *circle, bool chain, plan_operand_t source)
{
    int index = circle->index, size = circle->size, sent = 0;
    if (chain) {
        if (index + 1 < size) builder_send(builder, source, circle_rank(circle, index + 1));
        return index + 1 < size;
    }
    int limit = 1; /* children lie at distances below the lowest set bit of index; the farthest has the largest tree: first */
    while (limit < size && (index & limit) == 0) limit *= 2;
    for (int distance = limit / 2; distance > 0; distance /= 2) {
        if (index + distance >= size) continue;
        builder_send(builder, source, circle_rank(circle, index + distance));
        sent++;
    }
    return sent;
}

static int parent(const circle_t *circle, bool chain)
{
    int index = circle->index;
    return circle_rank(circle, chain ? index - 1 : index & (index - 1));
}

static void write_root(builder_t *builder, const circle_t *circle, bool chain, bool shared)
{
    builder_copy(builder, operand_recv(), operand_send(), 0);
    int sent = send_on(builder, circle, chain, operand_send());
    if (shared) {
        builder_reclaim(builder);
        builder_copy(builder, operand_slot(builder->me), operand_send(), 0);
        builder_signal(builder, 0);
    }
    if (sent > 0) builder_wait(builder);
    if (shared) builder_consumed(builder);
}

static void write_relay(builder_t *builder, const circle_t *circle, bool chain, bool shared)
{
    plan_operand_t place = shared ? operand_slot(builder->me) : operand_recv();
    if (shared) builder_reclaim(builder);
    builder_recv(builder, place, parent(circle, chain));
    builder_wait(builder);
    int sent = send_on(builder, circle, chain, place);
    if (shared) {
        builder_signal(builder, 0);
        builder_copy(builder, operand_recv(), place, builder_stream(builder));
    }
    if (sent > 0) builder_wait(builder);
    if (shared) builder_consumed(builder);
}

static void write_hosts(builder_t *builder, bool chain)
{
    const topology_t *topology = builder->topology;
    circle_t circle = circle_of_speakers(builder, builder->root);
    int speaker = topology->member[circle_rank(&circle, circle.index)];
    bool shared = builder->members > 1;
    if (builder->rank == builder->root) {
        write_root(builder, &circle, chain, shared);
    } else if (builder->me == speaker) {
        write_relay(builder, &circle, chain, shared);
    } else {
        builder_await(builder, 0, speaker);
        builder_copy(builder, operand_recv(), operand_slot(speaker), builder_stream(builder));
        builder_consumed(builder);
    }
}

void broadcast_chain_write(builder_t *builder) { write_hosts(builder, true); }

void broadcast_binomial_write(builder_t *builder) { write_hosts(builder, false); }
