/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Reduce on one host, out of the window.
 *
 * Terms: stage 0: "my input is in my slot"; stage 1: "my part's result is in my slot".
 *
 *   flat (small)     0 publish all    1 = root     2 publish all    3 publish all     signal 0
 *                                     await 0, reduce all into RECV
 *   window (large)   each publishes what the others reduce, reduces its part into its own slot (the root into RECV), signals 1;
 *                    the root copies the other parts out of the slots
 *
 * Invariants: nobody but the root touches RECV; an element is summed in member order.
 * Cost: flat: one copy each, m reads at the root; window: as allreduce, but only the root collects.
 */
#include "scheduler/algorithm/algorithms.h"

void reduce_flat_write(builder_t *builder)
{
    plan_operand_t slot = operand_slot(builder->me);
    bool root = builder->rank == builder->root;
    if (!root || builder->request->premul) {
        builder_reclaim(builder);
        builder_copy(builder, slot, operand_send(), builder_scale(builder));
    }
    if (root) {
        builder_await(builder, 0, PLAN_ALL);
        builder_reduce_window(builder, operand_recv(), operand_none(), builder_own_source(builder, slot, operand_send()), STEP_FINISH);
    } else {
        builder_signal(builder, 0);
    }
    builder_consumed(builder);
}

void reduce_window_write(builder_t *builder)
{
    int me = builder->me, members = builder->members;
    bool root = builder->rank == builder->root;
    plan_operand_t slot = operand_slot(me), source = builder_own_source(builder, slot, operand_send());
    builder_reclaim(builder);
    builder_publish_parts(builder, slot, operand_send());
    builder_signal(builder, 0);
    builder_await(builder, 0, PLAN_ALL);
    builder_reduce_window(builder, operand_cut(root ? operand_recv() : slot, me, 1, members), operand_none(),
                          operand_cut(source, me, 1, members), STEP_FINISH);
    if (!root) builder_signal(builder, 1);
    for (int step = 1; root && step < members; step++) {
        int peer = (me + step) % members;
        builder_await(builder, 1, peer);
        builder_copy(builder, operand_cut(operand_recv(), peer, 1, members), operand_cut(operand_slot(peer), peer, 1, members),
                     builder_stream(builder));
    }
    builder_consumed(builder);
}
