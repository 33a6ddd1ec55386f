/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Reduction kernels: one pass over n inputs, on the CPU, chosen by instruction set at run time.
 *
 * The order of summation is the order of `source`, element by element: ((s0 + s1) + s2) + ...
 * 16- and 8-bit floats are accumulated in float32 and rounded once (to nearest, ties to even) at the end. Every instruction set
 * gives the same bits as the scalar oracle: no fused multiply-add, no reassociation; the caller's rounding mode and
 * flush-to-zero flags are set aside on entry and restored on return.
 * A result that is NaN is always the one positive quiet NaN of its type, since CPUs differ in which operand's payload they keep. In
 * float8_e4m3fn, which has no infinity, too large a result becomes +-448, as in PyTorch (2.13).
 * A zero in a sum or average of complex numbers is +0.0, as in PyTorch's sum (whose addition multiplies by 1 + 0i first).
 * min and max: NaN wins; of -0.0 and +0.0 min gives -0.0, max +0.0 (so that the result does not depend on who holds which).
 * Integers wrap around. bool holds 0 or 1 (any other byte counts as 1); sum and max are "or", prod and min are "and".
 */
#ifndef QUOIT_SCHEDULER_REDUCE_H
#define QUOIT_SCHEDULER_REDUCE_H

#include "base/status.h"

#include <stdbool.h>

/** What happens to the result before it is rounded and stored. */
typedef struct reduce_finish {
    /* avg: the sum is divided by this many ranks (floats: in float32 or wider, before rounding; integers: truncated). 0, 1: nothing. */
    int64_t divisor;
} reduce_finish_t;

typedef struct reduce_call {
    quoit_dtype_t dtype;
    quoit_op_t op;              /* AVG and PREMUL_SUM sum */
    int sources;                /* 1 or more; any number */
    const void *const *source;  /* each `count` elements, any alignment; must not overlap unless equal */
    size_t count;               /* elements */
    void *destination;          /* `count` elements; may equal any one source */
    void *copy;                 /* second destination for the same result, or NULL */
    bool stream, stream_copy;   /* destination, copy: non-temporal stores, where the CPU has any */
    reduce_finish_t finish;
} reduce_call_t;

/** dtype and op must have passed quoit_op_check. */
void reduce_run(const reduce_call_t *call);

/**
 * premul_sum's first half: destination[i] = source[i] * factor, rounded to dtype. May be in place. Complex numbers are multiplied by the
 * complex factor; when its imaginary part is 0, each of their parts by the real one.
 */
void reduce_scale(quoit_dtype_t dtype, void *destination, const void *source, size_t count, const double factor[2]);

/** avg's second half alone: destination[i] = source[i] / divisor, rounded to dtype. May be in place. */
void reduce_divide(quoit_dtype_t dtype, void *destination, const void *source, size_t count, int64_t divisor);

/** Instruction set in use: "scalar", "avx2", "avx512", "neon". Setting ISA may lower it; one this CPU lacks falls back with a warning. */
const char *reduce_isa(void);

/** For tests: run with one instruction set. ERR_UNSUPPORTED when this CPU or build lacks it. */
quoit_status_t reduce_run_with(const char *isa, const reduce_call_t *call);

#endif
