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

/** Recursive doubling's numbers: p, the largest power of two up to n, and r = n - p ranks that fold themselves away. */
typedef struct fold {
    int power, rest; /* p and r */
    int number;      /* of this rank among the p, -1 for one that folds itself away */
} fold_t;

fold_t fold_of(const circle_t *circle);
/** Rank of the circle whose number differs from this one's in the bit `distance`. */
int fold_partner(const circle_t *circle, const fold_t *fold, int distance);
/** Has another folded its values into this rank's? */
bool fold_has_folded(const circle_t *circle, const fold_t *fold);

/** The same with a wire format. flags: STEP_SCALE or STEP_SHARE, what is still to be done to `input`. The first receive is posted. */
void ring_wire_run(builder_t *builder, const circle_t *circle, plan_operand_t input, plan_operand_t work, unsigned flags);
void doubling_wire_run(builder_t *builder, const circle_t *circle, plan_operand_t input, plan_operand_t work, unsigned flags);

#endif
