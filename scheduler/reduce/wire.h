/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Sums through float32 between formats: what crosses the network in another format than it has in memory, and what is divided on
 * its way. Several formats may meet in one call: the first source has one, the others another, the result a third.
 *
 * Formats. Small floats and float32 as everywhere: rounded to nearest, ties to even; NaN becomes the one quiet NaN. int8 is blocks of
 * WIRE_BLOCK elements (the last may be shorter), each a float32 scale followed by one code an element:
 *
 *   code -126..126   code * scale, exactly: scale has at most 17 significant bits
 *   code 127, -127   infinity, minus infinity
 *   code -128        NaN
 *
 * scale is the largest finite magnitude of the block over 126, rounded down; so a finite number is off by at most 1/250 of that
 * magnitude. A block whose largest is below 2^-100 becomes zeros.
 *
 * Every instruction set gives the bits of the scalar one, and so do all lengths and places in memory.
 */
#ifndef QUOIT_SCHEDULER_REDUCE_WIRE_H
#define QUOIT_SCHEDULER_REDUCE_WIRE_H

#include "base/status.h"

#include <stddef.h>

typedef enum wire_type { WIRE_F32, WIRE_F16, WIRE_BF16, WIRE_E4M3, WIRE_E5M2, WIRE_I8, WIRE_TYPES } wire_type_t;

enum { WIRE_BLOCK = 128 }; /* elements that share a scale */

/** Bytes of `count` elements. */
static inline size_t wire_bytes(wire_type_t type, size_t count)
{
    size_t width = type == WIRE_F32 ? sizeof(float) : type == WIRE_F16 || type == WIRE_BF16 ? 2 : 1;
    size_t bytes = count * width;
    return type == WIRE_I8 ? bytes + (count + WIRE_BLOCK - 1) / WIRE_BLOCK * sizeof(float) : bytes;
}

/** result = (source[0] * factor / share + source[1] + ...) / divisor, rounded once. */
typedef struct wire_call {
    wire_type_t first, others, result; /* formats of source[0], of the other sources, of the destination */
    int sources;                       /* 1 or more */
    const void *const *source;
    size_t count;       /* elements */
    void *destination;  /* may equal any one source of the same format */
    float factor, share, divisor; /* 1: nothing */
    float *error;       /* [count] += what the rounding took away, where that is finite; NULL: not wanted */
} wire_call_t;

/** Any thread; the float control word is set aside, as by reduce_run. */
void wire_run(const wire_call_t *call);
/** For tests: with one instruction set. ERR_UNSUPPORTED when this CPU or build lacks it. */
quoit_status_t wire_run_with(const char *isa, const wire_call_t *call);

#endif
