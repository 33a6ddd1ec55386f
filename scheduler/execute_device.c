/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device buffers: chunk c of the caller's buffer is staged at (c mod depth) * slot_stride of two host buffers, one for SEND and one
 * for RECV. Copies run on a stream of ours; the user's stream is joined to it by an event before and by a host word after.
 */
#include "scheduler/execute_device.h"

#include "scheduler/comm.h"

#include <stdlib.h>
#include <unistd.h>

quoit_status_t operation_device_issue(operation_t *operation, quoit_device_t id, void *stream)
{
    const device_row_t *row = device_find(id);
    if (!row) return error_set(QUOIT_ERR_INVALID, "there is no device with id %d", id);
    if (row->host_readable) return QUOIT_OK;
    if (operation->kind != OPERATION_COLLECTIVE ||
        (operation->description.collective != COLLECTIVE_ALLREDUCE && operation->description.collective != COLLECTIVE_BROADCAST &&
         operation->description.collective != COLLECTIVE_REDUCE))
        return error_set(QUOIT_ERR_UNSUPPORTED, "not supported: %s on buffers of device %s; copy them to the host first",
                         operation->kind == OPERATION_COLLECTIVE ? plan_collective_name(operation->description.collective)
                         : operation->kind == OPERATION_SEND     ? "send"
                                                                 : "recv",
                         row->name);
    operation_device_t *device = &operation->device;
    void *word = NULL;
    quoit_status_t status = row->host_alloc(sizeof *device->word, &word);
    if (status != QUOIT_OK) return status;
    device->word = word;
    __atomic_store_n(device->word, 0, __ATOMIC_RELAXED);
    status = row->event_create(&device->ready);
    if (status != QUOIT_OK) goto free_word;
    status = row->event_record(device->ready, stream);
    if (status == QUOIT_OK) status = row->stream_wait_host(stream, device->word, 1);
    if (status != QUOIT_OK) goto destroy_event;
    device->row = row;
    device->user_stream = stream;
    return QUOIT_OK;

destroy_event:
    row->event_destroy(device->ready);
free_word:
    row->host_free(device->word);
    return status;
}

void operation_device_finish(operation_t *operation)
{
    if (operation->device.row) __atomic_store_n(operation->device.word, 1, __ATOMIC_RELEASE);
}

/* The stream may still have to pass its wait on the word: one of its events tells when the word is of no more use. */
void operation_device_free(operation_t *operation)
{
    operation_device_t *device = &operation->device;
    if (!device->row) return;
    const device_row_t *row = device->row;
    if (row->event_record(device->ready, device->user_stream) == QUOIT_OK)
        while (row->event_query(device->ready) == QUOIT_IN_PROGRESS) usleep(50);
    row->event_destroy(device->ready);
    row->host_free(device->word);
    device->row = NULL;
}

/* Does the plan touch a space as a source, or as a destination? */
static bool plan_uses(const plan_t *plan, plan_space_t space, bool writes)
{
    for (int i = 0; i < plan->steps; i++) {
        const plan_step_t *step = &plan->step[i];
        if (writes ? step->destination.space == space || step->second.space == space
                   : step->source.space == space || step->source2.space == space)
            return true;
    }
    return false;
}

static quoit_status_t make_events(execution_t *execution)
{
    for (int i = 0; i < execution->plan->depth; i++) {
        if (execution->event[i]) continue;
        quoit_status_t status = execution->row->event_create(&execution->event[i]);
        if (status != QUOIT_OK) return status;
    }
    return QUOIT_OK;
}

/* Another device than last time, or larger chunks: everything anew. */
static quoit_status_t make_staging(execution_t *execution, const device_row_t *row, size_t needed)
{
    execute_device_destroy(execution);
    void *memory = NULL;
    quoit_status_t status = row->host_alloc(needed, &memory);
    if (status != QUOIT_OK) return status;
    execution->stage_send = memory;
    status = row->host_alloc(needed, &memory);
    if (status != QUOIT_OK) goto free_send;
    execution->stage_recv = memory;
    status = row->stream_create(&execution->stream);
    if (status != QUOIT_OK) goto free_recv;
    execution->stage_capacity = needed;
    execution->row_idle = row;
    return QUOIT_OK;

free_recv:
    row->host_free(execution->stage_recv);
free_send:
    row->host_free(execution->stage_send);
    execution->stage_send = execution->stage_recv = NULL;
    return status;
}

quoit_status_t execute_device_begin(execution_t *execution)
{
    const device_row_t *row = execution->operation->device.row;
    if (!row) return QUOIT_OK;
    size_t needed = execution->slot_stride * (size_t)execution->plan->depth;
    if (execution->row_idle != row || execution->stage_capacity < needed) {
        quoit_status_t status = make_staging(execution, row, needed);
        if (status != QUOIT_OK) return status;
    }
    execution->row = row;
    execution->reads_send = plan_uses(execution->plan, SPACE_SEND, false);
    execution->writes_recv = plan_uses(execution->plan, SPACE_RECV, true);
    quoit_status_t status = make_events(execution);
    if (status != QUOIT_OK) return status;
    return row->stream_wait_event(execution->stream, execution->operation->device.ready);
}

/* Copies that an early end leaves in the queue read and write staging memory only, but for those into the user's buffer: wait. */
void execute_device_end(execution_t *execution)
{
    if (!execution->row) return;
    bool copies_left = execution->oldest < execution->binding.chunks;
    if (copies_left && execution->row->event_record(execution->event[0], execution->stream) == QUOIT_OK)
        while (execution->row->event_query(execution->event[0]) == QUOIT_IN_PROGRESS) usleep(50);
    execution->row = NULL;
}

void execute_device_destroy(execution_t *execution)
{
    const device_row_t *row = execution->row_idle;
    if (!row || !execution->stream) return;
    row->stream_destroy(execution->stream);
    for (int i = 0; i < EXECUTE_MAX_DEPTH; i++) {
        if (execution->event[i]) row->event_destroy(execution->event[i]);
        execution->event[i] = NULL;
    }
    row->host_free(execution->stage_send);
    row->host_free(execution->stage_recv);
    execution->stream = NULL;
    execution->stage_send = execution->stage_recv = NULL;
    execution->stage_capacity = 0;
    execution->row_idle = NULL;
}

static size_t place_of(const execution_t *execution, size_t chunk)
{
    return (chunk % (size_t)execution->plan->depth) * execution->slot_stride;
}

uint8_t *execute_device_address(const execution_t *execution, size_t chunk, const plan_operand_t *operand, const plan_piece_t *piece)
{
    const plan_binding_t *binding = &execution->binding;
    bool send = operand->space == SPACE_SEND;
    const char *chunk_begin = (send ? binding->send.base : binding->recv.base) + chunk * binding->chunk * binding->width;
    size_t inside = piece->count ? (size_t)(piece->data - chunk_begin) : 0;
    return (send ? execution->stage_send : execution->stage_recv) + place_of(execution, chunk) + inside;
}

static size_t bytes_of(const execution_t *execution, size_t chunk)
{
    const plan_binding_t *binding = &execution->binding;
    size_t begin = chunk * binding->chunk, total = binding->send.count;
    size_t count = total > begin ? total - begin : 0;
    return (count < binding->chunk ? count : binding->chunk) * binding->width;
}

static void ring_engine(void *argument)
{
    uint64_t one = 1;
    ssize_t written = write(((engine_t *)argument)->doorbell, &one, sizeof one);
    (void)written; /* EAGAIN: it rings already */
}

/* Queue a copy, its event, and a ring at the doorbell when it is done. */
static quoit_status_t queue_copy(execution_t *execution, chunk_run_t *run, void *to, const void *from, size_t bytes,
                                 device_direction_t direction)
{
    const device_row_t *row = execution->row;
    device_event_t *event = execution->event[run->chunk % (size_t)execution->plan->depth];
    quoit_status_t status = row->copy(to, from, bytes, direction, execution->stream);
    if (status == QUOIT_OK) status = row->event_record(event, execution->stream);
    if (status == QUOIT_OK) status = row->stream_notify(execution->stream, ring_engine, execution->operation->comm->engine);
    return status;
}

quoit_status_t execute_device_in(execution_t *execution, chunk_run_t *run)
{
    const device_row_t *row = execution->row;
    size_t bytes = bytes_of(execution, run->chunk), at = run->chunk * execution->binding.chunk * execution->binding.width;
    if (run->phase == CHUNK_STAGE_IN) {
        if (!execution->reads_send || bytes == 0) {
            run->phase = CHUNK_STEPS;
            return QUOIT_OK;
        }
        quoit_status_t status = queue_copy(execution, run, execution->stage_send + place_of(execution, run->chunk),
                                           execution->binding.send.base + at, bytes, DEVICE_TO_HOST);
        if (status != QUOIT_OK) return status;
        run->phase = CHUNK_STAGE_IN_WAIT;
    }
    quoit_status_t status = row->event_query(execution->event[run->chunk % (size_t)execution->plan->depth]);
    if (status == QUOIT_OK) run->phase = CHUNK_STEPS;
    return status;
}

quoit_status_t execute_device_out(execution_t *execution, chunk_run_t *run)
{
    const device_row_t *row = execution->row;
    size_t bytes = bytes_of(execution, run->chunk), at = run->chunk * execution->binding.chunk * execution->binding.width;
    if (run->phase == CHUNK_STAGE_OUT) {
        if (!execution->writes_recv || bytes == 0) {
            run->phase = CHUNK_DONE;
            return QUOIT_OK;
        }
        quoit_status_t status = queue_copy(execution, run, execution->binding.recv.base + at,
                                           execution->stage_recv + place_of(execution, run->chunk), bytes, HOST_TO_DEVICE);
        if (status != QUOIT_OK) return status;
        run->phase = CHUNK_STAGE_OUT_WAIT;
    }
    quoit_status_t status = row->event_query(execution->event[run->chunk % (size_t)execution->plan->depth]);
    if (status == QUOIT_OK) run->phase = CHUNK_DONE;
    return status;
}
