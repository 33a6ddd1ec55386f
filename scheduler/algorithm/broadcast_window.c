/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Broadcast on one host, small or large: the root publishes, everyone else copies.
 *
 * Terms: stage 0: "the piece is in the root's slot".
 *
 *   member   0 = root          1             2             3
 *            SEND -> slot
 *            signal 0          await 0       await 0       await 0
 *                              slot -> RECV  slot -> RECV  slot -> RECV
 *
 * Invariant: the root's slot is written again only when all have consumed it (RECLAIM).
 * Cost: one copy on each member; chunks overlap, so the root writes chunk c+1 while the others read chunk c.
 */
#include "scheduler/algorithm/algorithms.h"

void broadcast_window_write(builder_t *builder)
{
    int root = builder->topology->member[builder->root];
    if (builder->me == root) {
        builder_reclaim(builder);
        builder_copy(builder, operand_slot(root), operand_send(), 0);
        builder_signal(builder, 0);
        builder_copy(builder, operand_recv(), operand_send(), builder_stream(builder));
    } else {
        builder_await(builder, 0, root);
        builder_copy(builder, operand_recv(), operand_slot(root), builder_stream(builder));
    }
    builder_consumed(builder);
}
