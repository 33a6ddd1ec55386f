/* SPDX-License-Identifier: Apache-2.0 */
/** Sends and recvs of device buffers: see match_device.c. */
#ifndef QUOIT_SCHEDULER_MATCH_DEVICE_H
#define QUOIT_SCHEDULER_MATCH_DEVICE_H

#include "scheduler/notice.h"
#include "scheduler/operation.h"

/** Go on; true when something moved. */
bool match_device_advance(quoit_comm_t *comm, operation_t *operation);
/** A recv has met its envelope, whose length fits. `payload`: what lies in it. */
quoit_status_t match_device_deliver(quoit_comm_t *comm, operation_t *recv, const notice_message_t *message, const void *payload);
/** It ends, well or not: what it held is given back, and no copy of it is under way any more. Transfers have ended. */
void match_device_release(operation_t *operation);

#endif
