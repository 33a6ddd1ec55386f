/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Executor's part for buffers on a device: each chunk is copied to host memory, goes through the same plan as a host buffer, and is
 * copied back; or, where a plan only sends and receives and the transport reaches the device, its messages are direct. All calls are
 * no-ops for host buffers. Nothing here waits: a copy is done when its event says so.
 */
#ifndef QUOIT_SCHEDULER_EXECUTE_DEVICE_H
#define QUOIT_SCHEDULER_EXECUTE_DEVICE_H

#include "scheduler/execute.h"

/* At issue, on the caller's thread: order the operation after what the user's stream holds, and the user's stream after it. */
quoit_status_t operation_device_issue(operation_t *operation, quoit_device_t device, void *stream);
/* At the end: let the user's stream go on; later give back what was made for it. */
void operation_device_finish(operation_t *operation);
void operation_device_free(operation_t *operation);

quoit_status_t execute_device_begin(execution_t *execution);
void execute_device_end(execution_t *execution);
void execute_device_destroy(engine_t *engine, execution_t *execution);
/* Move a chunk through its phases before and after the steps. */
quoit_status_t execute_device_in(execution_t *execution, chunk_run_t *run);
quoit_status_t execute_device_out(execution_t *execution, chunk_run_t *run);
/* Direct chunks: start a message; look at those that were started (IN_PROGRESS: one is being copied through the host); they have ended well. */
quoit_status_t execute_device_transfer(quoit_comm_t *comm, execute_transfer_t *started, quoit_endpoint_t *endpoint, quoit_key_t key, void *address, size_t bytes);
quoit_status_t execute_device_carry(quoit_comm_t *comm, const chunk_run_t *run, execute_transfer_t *mine);
quoit_status_t execute_device_arrived(quoit_comm_t *comm, const chunk_run_t *run, execute_transfer_t *mine);
/* Where an element of SEND or RECV is: staged, or of a direct chunk in the device's memory. */
uint8_t *execute_device_address(const execution_t *execution, size_t chunk, const plan_operand_t *operand, const plan_piece_t *piece);

#endif
