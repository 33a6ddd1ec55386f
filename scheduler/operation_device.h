/* SPDX-License-Identifier: Apache-2.0 */
/** How an operation on device buffers is ordered with the user's stream. All calls do nothing for an operation on host buffers. */
#ifndef QUOIT_SCHEDULER_OPERATION_DEVICE_H
#define QUOIT_SCHEDULER_OPERATION_DEVICE_H

#include "scheduler/operation.h"

/**
 * At issue, on the caller's thread: order the operation after what the user's stream holds, and the user's stream after it. On success the
 * caller sees to operation_device_free. ERR_INVALID: no such device.
 */
quoit_status_t operation_device_issue(operation_t *operation, quoit_device_t device, void *stream);
/** The operation has ended: let the user's stream go on. Only for the engine's owner. */
void operation_device_finish(operation_t *operation);
/** Give back what issue made, once the stream has passed it. Any thread, after finish. */
void operation_device_free(operation_t *operation);

#endif
