/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Alltoall on one host, when all blocks have the same number of elements: everyone publishes what the others want, and fetches its own.
 *
 * Terms: stage 0: "my blocks for the others are in my slot". The block for a member lies at its index as place.
 *
 *   member   0                    1                    2                    3
 *            b c d -> slot 0      a c d -> slot 1      a b d -> slot 2      a b c -> slot 3     (the blocks for members a, b, c, d)
 *            signal 0             signal 0             signal 0             signal 0
 *            a -> RECV            b -> RECV            c -> RECV            d -> RECV
 *            a of slots 1, 2, 3   b of slots 2, 3, 0   c of slots 3, 0, 1   d of slots 0, 1, 2
 *
 * Invariants: all ranks know all counts, so that they cut the same chunks (the v-form goes by messages: direct.c). What a member publishes
 * for the next one comes first, and it is fetched first: members begin at different slots.
 * Cost: every block but one's own is copied twice, by its sender and its receiver, once if its sender's input lies in shared memory; one
 * exchange of flags a chunk.
 */
#include "scheduler/algorithm/algorithms.h"

void alltoall_window_write(builder_t *builder)
{
    const topology_t *topology = builder->topology;
    int me = builder->me, members = builder->members, rank = builder->rank;
    builder->plan->places = members;
    builder_share_inputs(builder, true);
    builder_reclaim(builder);
    for (int step = 1; step < members; step++) {
        int member = (me + members - step) % members, to = topology_rank(topology, builder->host, member);
        builder_copy(builder, operand_block(SPACE_SLOT, me, to, member), operand_block(SPACE_SEND, 0, to, member), builder->input);
    }
    builder_signal(builder, 0);
    builder_copy(builder, operand_block(SPACE_RECV, 0, rank, 0), operand_block(SPACE_SEND, 0, rank, 0), builder_stream(builder));
    for (int step = 1; step < members; step++) {
        int member = (me + step) % members, from = topology_rank(topology, builder->host, member);
        builder_await(builder, 0, member);
        builder_copy(builder, operand_block(SPACE_RECV, 0, from, 0), operand_block(SPACE_SLOT, member, rank, me), builder_stream(builder) | builder->input);
    }
    builder_consumed(builder);
}
