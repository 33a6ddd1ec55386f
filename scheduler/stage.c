/* SPDX-License-Identifier: Apache-2.0 */
/* See stage.h. */
#include "scheduler/stage.h"

#include "base/doorbell.h"
#include "scheduler/comm.h"
#include "scheduler/memory.h"

#include <stdlib.h>
#include <unistd.h>

enum { KEPT = 4, KEPT_BYTES = 64 << 20, WASTE = 4, POLL_US = 50 };

/** What a communicator has for one device. */
struct stage_lane {
    stage_queue_t queue; /* owns its stream */
    list_t idle; /* stage_t, used longest ago first */
    int kept;
};

static quoit_status_t find_lane(quoit_comm_t *comm, quoit_device_t device, stage_lane_t **result)
{
    const device_row_t *row = device_find(device);
    if (comm->lane[device]) {
        *result = comm->lane[device];
        return QUOIT_OK;
    }
    stage_lane_t *lane = calloc(1, sizeof *lane);
    if (!lane) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for copies of device %s", row->name);
    quoit_status_t status = row->stream_create(&lane->queue.stream);
    if (status != QUOIT_OK) {
        free(lane);
        return status;
    }
    lane->queue.engine = comm->engine;
    lane->queue.row = row;
    list_init(&lane->idle);
    *result = comm->lane[device] = lane;
    return QUOIT_OK;
}

static void destroy(stage_t *stage)
{
    const device_row_t *row = stage->lane->queue.row;
    memory_withdraw(stage->lane->queue.engine, stage->memory);
    row->event_destroy(stage->event);
    row->host_free(stage->memory);
    free(stage);
}

static quoit_status_t create(stage_lane_t *lane, size_t bytes, stage_t **result)
{
    stage_t *stage = calloc(1, sizeof *stage);
    void *memory = NULL;
    if (!stage) return error_set(QUOIT_ERR_NO_MEMORY, "no memory to copy %zu bytes of device %s", bytes, lane->queue.row->name);
    stage->lane = lane;
    list_init(&stage->link);
    quoit_status_t status = lane->queue.row->host_alloc(bytes, &memory);
    if (status != QUOIT_OK) goto free_stage;
    status = lane->queue.row->event_create(&stage->event);
    if (status != QUOIT_OK) goto free_memory;
    stage->memory = memory;
    stage->capacity = bytes;
    memory_declare(lane->queue.engine, memory, bytes);
    *result = stage;
    return QUOIT_OK;

free_memory:
    lane->queue.row->host_free(memory);
free_stage:
    free(stage);
    return status;
}

quoit_status_t stage_take(quoit_comm_t *comm, quoit_device_t device, size_t bytes, stage_t **result)
{
    stage_lane_t *lane = NULL;
    quoit_status_t status = find_lane(comm, device, &lane);
    if (status != QUOIT_OK) return status;
    for (list_t *node = lane->idle.next; node != &lane->idle; node = node->next) {
        stage_t *stage = container_of(node, stage_t, link);
        if (stage->capacity < bytes || stage->capacity / WASTE > bytes) continue;
        list_remove(&stage->link);
        lane->kept--;
        *result = stage;
        return QUOIT_OK;
    }
    return create(lane, bytes, result);
}

static void wake(void *engine) { doorbell_ring(((engine_t *)engine)->doorbell); }

quoit_status_t stage_queue_end(const stage_queue_t *queue, device_event_t *done)
{
    quoit_status_t status = queue->row->event_record(done, queue->stream);
    return status == QUOIT_OK ? queue->row->stream_notify(queue->stream, wake, queue->engine) : status;
}

quoit_status_t stage_copy(stage_t *stage, void *device_memory, size_t bytes, device_direction_t direction)
{
    void *host = stage->memory;
    bool out = direction == DEVICE_TO_HOST;
    const stage_queue_t *queue = &stage->lane->queue;
    stage->copies = true;
    quoit_status_t status = queue->row->copy(out ? host : device_memory, out ? device_memory : host, bytes, direction, queue->stream);
    return status == QUOIT_OK ? stage_queue_end(queue, stage->event) : status;
}

quoit_status_t stage_query(stage_t *stage)
{
    quoit_status_t status = stage->lane->queue.row->event_query(stage->event);
    if (status != QUOIT_IN_PROGRESS) stage->copies = false;
    return status;
}

void stage_give(stage_t *stage)
{
    if (!stage) return;
    stage_lane_t *lane = stage->lane;
    while (stage->copies && stage_query(stage) == QUOIT_IN_PROGRESS) usleep(POLL_US);
    if (stage->capacity > KEPT_BYTES / KEPT) {
        destroy(stage);
        return;
    }
    list_append(&lane->idle, &stage->link);
    if (++lane->kept <= KEPT) return;
    lane->kept--;
    destroy(container_of(list_pop(&lane->idle), stage_t, link));
}

void stages_destroy(quoit_comm_t *comm)
{
    for (int i = 0; i < DEVICE_MAX; i++) {
        stage_lane_t *lane = comm->lane[i];
        if (!lane) continue;
        lane->queue.row->stream_destroy(lane->queue.stream);
        for (list_t *node; (node = list_pop(&lane->idle));) destroy(container_of(node, stage_t, link));
        free(lane);
        comm->lane[i] = NULL;
    }
}
