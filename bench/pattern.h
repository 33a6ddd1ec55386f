/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the ranks put in and what must come out. Elements follow a pattern that depends on rank, place and round, with a period that
 * is prime, so that swapped or stale chunks show. Integers, bool, min, max and the 16- and 8-bit floats are compared exactly (their
 * values are chosen so that no order of summation rounds); float32, float64 and complex within n * epsilon * sum of magnitudes.
 */
#ifndef QUOIT_BENCH_PATTERN_H
#define QUOIT_BENCH_PATTERN_H

#include "quoit/quoit.h"

typedef struct pattern pattern_t;

/** NULL when out of memory. The pair must have passed quoit_op_check. */
pattern_t *pattern_create(quoit_dtype_t dtype, quoit_op_t op, int rank, int ranks);
void pattern_destroy(pattern_t *pattern); /* NULL is accepted */

/** This rank's factor for premul_sum, for quoit_call_t. */
void pattern_factor(const pattern_t *pattern, double factor[2]);
/** Write this rank's input. */
void pattern_fill(const pattern_t *pattern, unsigned round, void *buffer, size_t count);
/** Elements of a result that are not what they must be. */
size_t pattern_count_wrong(pattern_t *pattern, unsigned round, const void *buffer, size_t count);
/** Elements of an input that were changed. */
size_t pattern_count_changed(const pattern_t *pattern, unsigned round, const void *buffer, size_t count);

#endif
