/* SPDX-License-Identifier: Apache-2.0 */
/* See stage.h. */
#include "scheduler/stage.h"

#include "base/clock.h"
#include "base/doorbell.h"
#include "base/log.h"
#include "base/settings.h"
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
    bool hangs; /* a copy of it was given up */
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

static void wake(void *doorbell) { doorbell_ring((int)(intptr_t)doorbell); }

quoit_status_t stage_queue_end(const stage_queue_t *queue, device_event_t *done)
{
    quoit_status_t status = queue->row->event_record(done, queue->stream);
    return status == QUOIT_OK ? queue->row->stream_notify(queue->stream, wake, (void *)(intptr_t)queue->engine->doorbell) : status;
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

bool stage_await(const stage_queue_t *queue, device_event_t *done)
{
    const int64_t limit_us = setting_int(SETTING_LINGER);
    uint64_t deadline = clock_now() + (uint64_t)limit_us * 1000;
    while (queue->row->event_query(done) == QUOIT_IN_PROGRESS) {
        if (clock_now() < deadline) {
            usleep(POLL_US);
            continue;
        }
        log_warn("device", "device %s has not ended a copy of an operation that is over, for %lld ms (QUOIT_LINGER): what it may still use is never freed, "
                           "and it may yet write to the buffer", queue->row->name, (long long)limit_us / 1000);
        return false;
    }
    return true;
}

/* A device that hangs may come to it at any time, or never. Kept where it can be seen that nobody has forgotten it. */
typedef struct given_up {
    struct given_up *next;
    void *pointer;
} given_up_t;

void stage_give_up(const stage_queue_t *queue, void *pointer)
{
    static _Atomic(given_up_t *) all;
    queue->engine->doorbell_is_lent = true; /* the stream rings it, whenever that is */
    given_up_t *one = pointer ? malloc(sizeof *one) : NULL;
    if (!one) return;
    *one = (given_up_t){.next = atomic_load(&all), .pointer = pointer};
    while (!atomic_compare_exchange_weak(&all, &one->next, one)) {}
}

/* Not a second wait for a device that has hung. */
static bool is_over(stage_t *stage)
{
    stage_lane_t *lane = stage->lane;
    if (!stage->copies || stage_query(stage) != QUOIT_IN_PROGRESS) return true;
    lane->hangs = lane->hangs || !stage_await(&lane->queue, stage->event);
    return !lane->hangs;
}

void stage_give(stage_t *stage)
{
    if (!stage) return;
    stage_lane_t *lane = stage->lane;
    if (!is_over(stage)) {
        memory_withdraw(lane->queue.engine, stage->memory);
        stage_give_up(&lane->queue, stage->memory);
        stage_give_up(&lane->queue, stage->event);
        free(stage);
        return;
    }
    stage->copies = false;
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
        if (lane->hangs) stage_give_up(&lane->queue, lane->queue.stream);
        else lane->queue.row->stream_destroy(lane->queue.stream);
        for (list_t *node; (node = list_pop(&lane->idle));) destroy(container_of(node, stage_t, link));
        free(lane);
        comm->lane[i] = NULL;
    }
}
