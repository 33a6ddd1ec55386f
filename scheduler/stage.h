/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Host memory through which sends and recvs of device buffers are copied, with the stream and event of each copy. A communicator keeps a
 * few of them, so that one in its stride allocates nothing. Only for the engine's owner; nothing here waits but stage_give
 * and stage_await, for QUOIT_LINGER at most.
 */
#ifndef QUOIT_SCHEDULER_STAGE_H
#define QUOIT_SCHEDULER_STAGE_H

#include "base/list.h"
#include "scheduler/device/device.h"
#include "scheduler/engine.h"

/** Where copies of Quoit's own to and from a device are queued: a stream of the row, beside those of users. */
typedef struct stage_queue {
    engine_t *engine;
    const device_row_t *row;
    void *stream; /* of the row */
} stage_queue_t;

/** `done` tells when what was queued so far is done; that also wakes the engine. */
quoit_status_t stage_queue_end(const stage_queue_t *queue, device_event_t *done);

typedef struct stage_lane stage_lane_t; /* what a communicator has for one device */

typedef struct stage {
    list_t link;
    stage_lane_t *lane;
    uint8_t *memory; /* pinned */
    size_t capacity;
    device_event_t *event;
    bool copies; /* one is queued, and not known to be done */
} stage_t;

/** At least so many bytes (not 0). */
quoit_status_t stage_take(quoit_comm_t *comm, quoit_device_t device, size_t bytes, stage_t **stage);
/** Queue a copy between it and the device's memory; the engine is woken when it is done. */
quoit_status_t stage_copy(stage_t *stage, void *device_memory, size_t bytes, device_direction_t direction);
/** Is the copy done? As event_query. */
quoit_status_t stage_query(stage_t *stage);
/** Wait for what is queued before `done` was recorded. False, with a warning: the device hangs, so what it uses must be given up. */
bool stage_await(const stage_queue_t *queue, device_event_t *done);
/** The device may use it for ever: memory, an event or a stream of the row's, NULL too. */
void stage_give_up(const stage_queue_t *queue, void *pointer);
/** It may be used otherwise; a copy that is queued is waited for, or its memory is given up. NULL is accepted. */
void stage_give(stage_t *stage);
/** The communicator ends; all have been given back. */
void stages_destroy(quoit_comm_t *comm);

#endif
