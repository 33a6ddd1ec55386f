/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One rank alone: every collective is a copy of its input to its output (nothing, when they are the same memory), and a barrier
 * is nothing at all.
 *
 *   SEND --COPY--> RECV
 *
 * Invariant: none. Cost: one pass over the data.
 */
#include "scheduler/algorithm/algorithms.h"

void local_write(builder_t *builder)
{
    if (builder->request->collective == COLLECTIVE_BARRIER) return;
    if (builder->plan->uniform) {
        builder_copy(builder, operand_recv(), operand_send(), builder_scale(builder));
        return;
    }
    builder_copy(builder, operand_block(SPACE_RECV, 0, 0, 0), operand_block(SPACE_SEND, 0, 0, 0), builder_scale(builder));
}
