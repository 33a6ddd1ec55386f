/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Reduce-scatter: rank r receives the reduction of everyone's block r.
 *
 * Terms: stage 0: "my input is in my slot"; stage 1: "my part of every block is reduced in the leader's slot"; stage 2 of a leader:
 * "my host's blocks are complete in my slot". A block's place in a slot is its rank's member index, with several hosts its
 * position in topology->order.
 *
 *   one host       each publishes all blocks but its own, and reduces its own block out of the window
 *   two levels     4 ranks on 2 hosts; each member reduces its part of all four blocks into the leader's slot
 *                    0 [a b | c d]                  2 [a b | c d]
 *                    0 -- c d of host A --> 2       2 -- a b of host B --> 0     ring, shares = blocks of a host
 *                    RECV of 0, 1 <- slot 0         RECV of 2, 3 <- slot 2
 *   ranks alone    every rank is its own host: the same ring, out of SEND
 *
 * Invariants: what is sent round starts at the host after the one that keeps it and adds up on the way: one order. In place (RECV
 * is one's own block of SEND) is safe, since nobody else reads it and it is read before, or while, it is written.
 * Cost: each host's interface sends and receives every foreign block once.
 */
#include "scheduler/algorithm/algorithms.h"

static plan_operand_t send_block(int rank, int place) { return operand_block(SPACE_SEND, 0, rank, place); }

static plan_operand_t recv_block(const builder_t *builder) { return operand_block(SPACE_RECV, 0, builder->rank, 0); }

void reduce_scatter_window_write(builder_t *builder)
{
    const topology_t *topology = builder->topology;
    int me = builder->me, members = builder->members;
    builder->plan->places = members;
    builder_share_inputs(builder, true);
    builder_reclaim(builder);
    for (int step = 1; step <= members; step++) { /* one's own comes last, and only scaled: a factor is applied once */
        int member = (me + step) % members, rank = topology_rank(topology, builder->host, member);
        if (member == me && !builder->request->premul) continue;
        builder_copy(builder, operand_block(SPACE_SLOT, me, rank, member), send_block(rank, member), builder_scale(builder) | builder->input);
    }
    builder_signal(builder, 0);
    builder_await(builder, 0, PLAN_ALL);
    plan_operand_t own = builder_own_source(builder, operand_block(SPACE_SLOT, me, builder->rank, me), send_block(builder->rank, me));
    builder_reduce_window(builder, recv_block(builder), operand_none(), own, STEP_FINISH | builder->input);
    builder_consumed(builder);
}

/* How the sums go round the circle: where the values of this rank (or host) are, and where what arrives and is added up goes. */
typedef struct passing {
    const circle_t *circle;
    plan_space_t input; /* SEND, SLOT (the leader's), or TEMP: scaled or divided just before it is needed */
    bool shared;        /* sums are kept in the leader's slot, else in the scratch they arrive in */
} passing_t;

static int place_of(const builder_t *builder, int rank)
{
    return builder->plan->places == 1 ? 0 : builder->topology->position[rank];
}

/* Blocks have places of their own in scratch 0, or where there is one place only two scratches take turns. */
static plan_operand_t arriving(const builder_t *builder, int rank, int round)
{
    plan_operand_t block = operand_block(SPACE_TEMP, builder->plan->places == 1 ? round % 2 : 0, rank, place_of(builder, rank));
    return operand_as(block, builder_wired(builder) ? FORM_WIRE : FORM_WHOLE);
}

static plan_operand_t input_block(const builder_t *builder, const passing_t *passing, int rank)
{
    int number = passing->input == SPACE_TEMP ? (builder->plan->places == 1 ? 2 : 1) : 0; /* the scratch after the arriving ones */
    return operand_block(passing->input, number, rank, place_of(builder, rank));
}

/* The scratch for scaled or divided values is free: what was sent from it has been waited for. */
static plan_operand_t take_input(builder_t *builder, const passing_t *passing, int rank)
{
    plan_operand_t input = input_block(builder, passing, rank);
    if (passing->input == SPACE_TEMP) builder_copy(builder, input, send_block(rank, 0), builder_prepare(builder));
    return input;
}

static void post(builder_t *builder, const passing_t *passing, int round)
{
    const circle_t *circle = passing->circle;
    int group = circle->index - round - 2;
    for (int item = 0; item < circle_group_size(circle, group); item++)
        builder_recv(builder, arriving(builder, circle_group_rank(circle, group, item), round), circle_previous(circle));
}

static void send_on(builder_t *builder, const passing_t *passing, int round)
{
    const circle_t *circle = passing->circle;
    int group = circle->index - round - 1;
    for (int item = 0; item < circle_group_size(circle, group); item++) {
        int rank = circle_group_rank(circle, group, item);
        plan_operand_t sum = round == 0        ? take_input(builder, passing, rank)
                             : passing->shared ? input_block(builder, passing, rank)
                                               : arriving(builder, rank, round - 1);
        builder_send(builder, sum, circle_next(circle));
    }
}

static void add(builder_t *builder, const passing_t *passing, int round, bool last)
{
    const circle_t *circle = passing->circle;
    int group = circle->index - round - 2;
    for (int item = 0; item < circle_group_size(circle, group); item++) {
        int rank = circle_group_rank(circle, group, item);
        plan_operand_t arrived = arriving(builder, rank, round), mine = take_input(builder, passing, rank);
        plan_operand_t sum = rank == builder->rank ? recv_block(builder) : passing->shared ? mine : arrived;
        if (last) builder_reduce_last(builder, sum, arrived, mine);
        else builder_reduce(builder, sum, arrived, mine, 0);
    }
}

/* ---- with a wire format: what is sent is encoded in a scratch of its own, from decoded arrivals and own values at once */

static plan_operand_t wire_out(const builder_t *builder, int rank)
{
    return operand_as(operand_block(SPACE_TEMP, builder->plan->places == 1 ? 2 : 1, rank, place_of(builder, rank)), FORM_WIRE);
}

/* Own values, and what is still to be done to them. */
static plan_operand_t wire_input(const builder_t *builder, const passing_t *passing, int rank, unsigned *flags)
{
    *flags = passing->shared ? 0 : builder_prepare(builder);
    return passing->shared ? operand_as(input_block(builder, passing, rank), FORM_SUM) : send_block(rank, 0);
}

/* round -1: of the group whose sums begin here. */
static void wire_encode(builder_t *builder, const passing_t *passing, int round)
{
    const circle_t *circle = passing->circle;
    int group = circle->index - round - 2;
    for (int item = 0; item < circle_group_size(circle, group); item++) {
        int rank = circle_group_rank(circle, group, item);
        unsigned flags;
        plan_operand_t mine = wire_input(builder, passing, rank, &flags);
        builder_convert(builder, wire_out(builder, rank), mine, round < 0 ? operand_none() : arriving(builder, rank, round), flags);
    }
}

static void wire_finish(builder_t *builder, const passing_t *passing, int round)
{
    const circle_t *circle = passing->circle;
    for (int item = 0; item < circle_group_size(circle, circle->index); item++) {
        int rank = circle_group_rank(circle, circle->index, item);
        unsigned flags;
        plan_operand_t mine = wire_input(builder, passing, rank, &flags);
        plan_operand_t result = rank == builder->rank ? recv_block(builder) : input_block(builder, passing, rank);
        builder_convert(builder, result, mine, arriving(builder, rank, round), flags | STEP_FINISH);
    }
}

static void pass_round_wire(builder_t *builder, const passing_t *passing)
{
    const circle_t *circle = passing->circle;
    int last = circle->size - 2;
    wire_encode(builder, passing, -1);
    for (int round = 0; round <= last; round++) {
        int group = circle->index - round - 1;
        for (int item = 0; item < circle_group_size(circle, group); item++)
            builder_send(builder, wire_out(builder, circle_group_rank(circle, group, item)), circle_next(circle));
        builder_wait(builder);
        if (round < last) {
            post(builder, passing, round + 1);
            wire_encode(builder, passing, round);
        } else {
            wire_finish(builder, passing, round);
        }
    }
}

/* Round 0's receives are posted. */
static void pass_round(builder_t *builder, const passing_t *passing)
{
    int last = passing->circle->size - 2;
    if (builder_wired(builder)) {
        pass_round_wire(builder, passing);
        return;
    }
    for (int round = 0; round <= last; round++) {
        send_on(builder, passing, round);
        builder_wait(builder);
        if (round < last) post(builder, passing, round + 1);
        add(builder, passing, round, round == last);
    }
}

static void write_alone(builder_t *builder, const circle_t *circle)
{
    passing_t passing = {.circle = circle, .input = builder_prepare(builder) ? SPACE_TEMP : SPACE_SEND, .shared = false};
    post(builder, &passing, 0);
    pass_round(builder, &passing);
}

static void reduce_into_leader(builder_t *builder)
{
    const topology_t *topology = builder->topology;
    int me = builder->me, members = builder->members;
    builder_reclaim(builder);
    for (int place = 0; place < topology->ranks; place++) {
        int rank = topology->order[place];
        builder_publish_parts(builder, operand_block(SPACE_SLOT, me, rank, place), send_block(rank, place));
    }
    builder_signal(builder, 0);
    builder_await(builder, 0, PLAN_ALL);
    for (int place = 0; place < topology->ranks; place++) {
        int rank = topology->order[place];
        plan_operand_t own = builder_own_source(builder, operand_block(SPACE_SLOT, me, rank, place), send_block(rank, place));
        builder_sum_host(builder, operand_cut(operand_block(SPACE_SLOT, 0, rank, place), me, 1, members), operand_cut(own, me, 1, members));
    }
}

void reduce_scatter_two_level_write(builder_t *builder)
{
    circle_t circle = circle_of_speakers(builder, builder_first(builder));
    passing_t passing = {.circle = &circle, .input = SPACE_SLOT, .shared = true};
    builder->plan->places = builder->topology->ranks;
    if (builder->members == 1) {
        write_alone(builder, &circle);
        return;
    }
    if (builder->me == 0) post(builder, &passing, 0);
    reduce_into_leader(builder);
    if (builder->me == 0) {
        builder_await(builder, 1, PLAN_ALL);
        pass_round(builder, &passing);
        builder_signal(builder, 2);
    } else {
        builder_signal(builder, 1);
        builder_await(builder, 2, 0);
        builder_copy(builder, recv_block(builder), operand_block(SPACE_SLOT, 0, builder->rank, builder->topology->position[builder->rank]),
                     builder_stream(builder));
    }
    builder_consumed(builder);
}
