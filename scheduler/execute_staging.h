/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Executor's part for buffers on a device: the host memory through which they go. What a chunk takes from and puts into the caller's buffers is
 * one piece, or in collectives of blocks one for each block that the rank's plan touches; all pieces of SEND lie side by side in a chunk's part of
 * one memory, and those of RECV in another. Plans know nothing of it. Nothing here waits.
 */
#ifndef QUOIT_SCHEDULER_EXECUTE_STAGING_H
#define QUOIT_SCHEDULER_EXECUTE_STAGING_H

#include "scheduler/execute.h"
#include "scheduler/stage.h"

/** The operation is bound: memory for its pieces, of `row`, whose memory is there already if there is any. It may lower execution->depth. */
quoit_status_t execute_staging_begin(execution_t *execution, const device_row_t *row);
/** Give the memory back. */
void execute_staging_destroy(engine_t *engine, execution_t *execution);
/** A device that hangs may use the memory for ever (stage_give_up): the next operation has other memory. */
void execute_staging_give_up(const stage_queue_t *queue, execution_t *execution);
/** Queue the copies of a chunk's pieces of SEND to the host, or of RECV to the device. *bytes: how many; 0: nothing is to be copied. */
quoit_status_t execute_staging_copy(execution_t *execution, size_t chunk, plan_space_t space, size_t *bytes);
/** Where an element of SEND or RECV is. */
uint8_t *execute_staging_address(const execution_t *execution, size_t chunk, const plan_operand_t *operand, const plan_piece_t *piece);

#endif
