/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Allgather: every rank's block to all ranks.
 *
 * Terms: stage 0: "my block is in my slot"; stage 1 of a leader: "the blocks of all other hosts are in my slot". With several
 * hosts a block's place in a slot is its rank's position in topology->order.
 *
 *   one host       each publishes its block and copies the others' out of their slots
 *   two levels     4 ranks on 2 hosts:  0 publish a | 1 publish b        2 publish c | 3 publish d
 *                                       0 -- a (slot 0), b (slot 1) --> 2      ring of leaders, a host's blocks in each round
 *                                       0 <-- c (slot 2), d (slot 3) -- 2      received into the leader's slot
 *                                       RECV <- slots 0, 1, and slot 0: c, d
 *   ranks alone    every rank is its own host: straight from RECV to RECV
 *
 * Invariants: round k passes on what round k-1 brought, after its WAIT. A slot that is being sent from is consumed after the WAIT.
 * A block without elements is no message, for sender and receiver alike.
 * Cost: each host's interface sends and receives every foreign block once; inside a host one copy in, n copies out a rank.
 */
#include "scheduler/algorithm/algorithms.h"

static plan_operand_t recv_block(int rank) { return operand_block(SPACE_RECV, 0, rank, 0); }

static plan_operand_t send_block(const builder_t *builder) { return operand_block(SPACE_SEND, 0, builder->rank, 0); }

void allgather_window_write(builder_t *builder)
{
    builder_share_inputs(builder, true);
    builder_reclaim(builder);
    builder_copy(builder, operand_block(SPACE_SLOT, builder->me, builder->rank, 0), send_block(builder), builder->input);
    builder_signal(builder, 0);
    builder_copy(builder, recv_block(builder->rank), send_block(builder), builder_stream(builder));
    for (int step = 1; step < builder->members; step++) {
        int peer = (builder->me + step) % builder->members, rank = topology_rank(builder->topology, builder->host, peer);
        builder_await(builder, 0, peer);
        builder_copy(builder, recv_block(rank), operand_block(SPACE_SLOT, peer, rank, 0), builder_stream(builder) | builder->input);
    }
    builder_consumed(builder);
}

/* Where this rank finds a block: in its member's slot, in the leader's, or in RECV when there is no window. */
static plan_operand_t block_at(const builder_t *builder, int rank, bool shared)
{
    const topology_t *topology = builder->topology;
    if (!shared) return recv_block(rank);
    int member = topology->host[rank] == builder->host ? topology->member[rank] : 0;
    return operand_block(SPACE_SLOT, member, rank, topology->position[rank]);
}

static void post(builder_t *builder, const circle_t *circle, int round, bool shared)
{
    int group = circle->index - round - 1;
    for (int item = 0; item < circle_group_size(circle, group); item++)
        builder_recv(builder, block_at(builder, circle_group_rank(circle, group, item), shared), circle_previous(circle));
}

static void forward(builder_t *builder, const circle_t *circle, int round, bool shared)
{
    int group = circle->index - round;
    for (int item = 0; item < circle_group_size(circle, group); item++)
        builder_send(builder, block_at(builder, circle_group_rank(circle, group, item), shared), circle_next(circle));
}

/* Round 0's receives are posted. */
static void pass_round(builder_t *builder, const circle_t *circle, bool shared)
{
    for (int round = 0; round < circle->size - 1; round++) {
        forward(builder, circle, round, shared);
        builder_wait(builder);
        if (round + 2 < circle->size) post(builder, circle, round + 1, shared);
    }
}

static void write_alone(builder_t *builder, const circle_t *circle)
{
    post(builder, circle, 0, false);
    builder_copy(builder, recv_block(builder->rank), send_block(builder), 0);
    pass_round(builder, circle, false);
}

static void collect(builder_t *builder, bool home)
{
    const topology_t *topology = builder->topology;
    for (int step = 0; step < topology->ranks; step++) {
        int rank = topology->order[(topology->position[builder->rank] + step) % topology->ranks];
        if ((topology->host[rank] == builder->host) != home || rank == builder->rank) continue;
        builder_copy(builder, recv_block(rank), block_at(builder, rank, true), builder_stream(builder));
    }
}

void allgather_two_level_write(builder_t *builder)
{
    circle_t circle = circle_of_speakers(builder, builder_first(builder));
    bool leader = builder->me == 0;
    builder->plan->places = builder->topology->ranks;
    if (builder->members == 1) {
        write_alone(builder, &circle);
        return;
    }
    builder_reclaim(builder);
    if (leader) post(builder, &circle, 0, true);
    builder_copy(builder, block_at(builder, builder->rank, true), send_block(builder), 0);
    builder_signal(builder, 0);
    builder_copy(builder, recv_block(builder->rank), send_block(builder), builder_stream(builder));
    builder_await(builder, 0, PLAN_ALL);
    if (leader) {
        pass_round(builder, &circle, true);
        builder_signal(builder, 1);
        collect(builder, true);
    } else {
        collect(builder, true);
        builder_await(builder, 1, 0);
    }
    collect(builder, false);
    builder_consumed(builder);
}
