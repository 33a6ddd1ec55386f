/* SPDX-License-Identifier: Apache-2.0 */
/** The pass of wire.h: block by block through float32 that stays in the first-level cache, by the kernels of one instruction set. */
#include "scheduler/reduce/wire.h"

#include "scheduler/reduce/kernel.h"

#include <math.h>

/* What was lost, of values that the format could hold: an infinity or NaN leaves no error that could be made up for. */
static void note_error(const kernel_table_t *table, const wire_call_t *call, const unsigned char *stored, const float *wanted, float *error, size_t count)
{
    float kept[KERNEL_WIRE_PIECE] __attribute__((aligned(64)));
    table->wire_load[call->result](kept, stored, count);
    for (size_t i = 0; i < count; i++) {
        float lost = wanted[i] - kept[i];
        if (isfinite(lost)) error[i] += lost;
    }
}

void kernel_wire_run(const kernel_table_t *table, const wire_call_t *call)
{
    float sum[KERNEL_WIRE_PIECE] __attribute__((aligned(64)));
    for (size_t at = 0; at < call->count; at += KERNEL_WIRE_PIECE) {
        size_t count = call->count - at < KERNEL_WIRE_PIECE ? call->count - at : KERNEL_WIRE_PIECE;
        size_t other = wire_bytes(call->others, at);
        table->wire_load[call->first](sum, (const unsigned char *)call->source[0] + wire_bytes(call->first, at), count);
        if (call->factor != 1 || call->share != 1) table->wire_scale(sum, count, call->factor, call->share);
        for (int i = 1; i < call->sources; i++) table->wire_add[call->others](sum, (const unsigned char *)call->source[i] + other, count);
        if (call->divisor != 1) table->wire_scale(sum, count, 1, call->divisor);
        unsigned char *to = (unsigned char *)call->destination + wire_bytes(call->result, at);
        table->wire_store[call->result](to, sum, count);
        if (call->error) note_error(table, call, to, sum, call->error + at, count);
    }
}
