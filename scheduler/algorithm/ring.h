/* SPDX-License-Identifier: Apache-2.0 */
/** The ring and the doubling exchange that several allreduces share. */
#ifndef QUOIT_SCHEDULER_ALGORITHM_RING_H
#define QUOIT_SCHEDULER_ALGORITHM_RING_H

#include "scheduler/algorithm/builder.h"

/** Post the first receive of ring_run: to be written at the very start of a chunk, so that the grant is ahead of the data. */
void ring_begin(builder_t *builder, const circle_t *circle);
/**
 * Allreduce round the circle. input: this rank's values; work: where sums and in the end all results go (may be the same memory).
 * Uses scratch 0.
 */
void ring_run(builder_t *builder, const circle_t *circle, plan_operand_t input, plan_operand_t work);

/** The same pair for recursive doubling. Uses scratch 0 and 1. The result is in `work`. */
void doubling_begin(builder_t *builder, const circle_t *circle);
void doubling_run(builder_t *builder, const circle_t *circle, plan_operand_t input, plan_operand_t work);

#endif
