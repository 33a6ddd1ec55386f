/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Executor's part for buffers on a device: each chunk is copied to host memory, goes through the same plan as a host buffer, and is
 * copied back; or, where a plan only sends and receives and the transport reaches the device, its messages are direct. All calls are
 * no-ops for host buffers. Nothing here waits: a copy is done when its event says so.
 */
#ifndef QUOIT_SCHEDULER_EXECUTE_DEVICE_H
#define QUOIT_SCHEDULER_EXECUTE_DEVICE_H

#include "scheduler/execute.h"

/** After execute_begin has bound the operation: memory for staging, made anew where the device or the size has changed. */
quoit_status_t execute_device_begin(execution_t *execution);
/** The operation ended, well or not, and its transfers have: waits for copies that are still queued into the user's buffer. */
void execute_device_end(execution_t *execution);
/** Give staging memory, stream and events back. */
void execute_device_destroy(engine_t *engine, execution_t *execution);

/** Move a chunk through its phases before, and after, the steps. IN_PROGRESS while a copy, or the user's stream, is not so far. */
quoit_status_t execute_device_in(execution_t *execution, chunk_run_t *run);
quoit_status_t execute_device_out(execution_t *execution, chunk_run_t *run);

/** Direct chunks: start a message between the device's memory at `address` and a peer. */
quoit_status_t execute_device_transfer(quoit_comm_t *comm, execute_transfer_t *started, quoit_endpoint_t *endpoint, quoit_key_t key, void *address, size_t bytes);
/** Go on with those that stopped for lack of host memory. IN_PROGRESS: one of them is being copied. */
quoit_status_t execute_device_carry(quoit_comm_t *comm, const chunk_run_t *run, execute_transfer_t *mine);
/** All messages of the chunk have ended well: from now on the device's streams see what came. */
quoit_status_t execute_device_arrived(quoit_comm_t *comm, const chunk_run_t *run, execute_transfer_t *mine);

/** Where an element of SEND or RECV is: staged, or of a direct chunk in the device's memory. */
uint8_t *execute_device_address(const execution_t *execution, size_t chunk, const plan_operand_t *operand, const plan_piece_t *piece);

#endif
