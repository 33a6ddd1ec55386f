/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device buffers: chunk c of the caller's buffer is staged at (c mod depth) * slot_stride of two host buffers, one for SEND and one
 * for RECV. Copies run on a stream of ours; operation_device.c joins the user's stream to it.
 *
 * Direct chunks: a broadcast's plan on a rank that shares no window only passes one buffer on. Where the transport of all its peers reaches
 * that buffer, chunks above the eager limit are sent from and received into it. Each rank decides for itself; what cannot go on without a
 * processor (ERR_AGAIN) is copied through host memory of its own.
 */
#include "scheduler/execute_device.h"

#include "scheduler/comm.h"
#include "scheduler/memory.h"
#include "scheduler/stage.h"

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

/* Another device than last time, or larger chunks: everything anew. Messages between hosts are sent from there and received into it. */
static quoit_status_t make_staging(execution_t *execution, const device_row_t *row, size_t needed)
{
    engine_t *engine = execution->operation->comm->engine;
    execute_device_destroy(engine, execution);
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
    memory_declare(engine, execution->stage_send, needed);
    memory_declare(engine, execution->stage_recv, needed);
    return QUOIT_OK;

free_recv:
    row->host_free(execution->stage_recv);
free_send:
    row->host_free(execution->stage_send);
    execution->stage_send = execution->stage_recv = NULL;
    return status;
}

/* The root of a broadcast has what it would be given. */
static bool owns_result(const plan_t *plan) { return plan->collective == COLLECTIVE_BROADCAST && plan->rank == plan->root; }

/* The transport that joins the rank with all its peers in this plan, if it has nothing to do but pass the buffer on; else NULL. */
static quoit_transport_t *passes_on(const execution_t *execution)
{
    quoit_comm_t *comm = execution->operation->comm;
    const plan_t *plan = execution->plan;
    quoit_transport_t *transport = NULL;
    if (plan->collective != COLLECTIVE_BROADCAST || plan->window || plan_is_wired(plan)) return NULL;
    for (int i = 0; i < plan->steps; i++) {
        const plan_step_t *step = &plan->step[i];
        if (step->verb != VERB_SEND && step->verb != VERB_RECV) continue;
        quoit_endpoint_t *endpoint = NULL;
        if (job_endpoint(comm->job, comm->job_rank[step->peer], &endpoint) != QUOIT_OK) return NULL; /* start_transfer will say why */
        if (transport && endpoint->transport != transport) return NULL;
        transport = endpoint->transport;
    }
    return transport;
}

static void reach_buffer(execution_t *execution)
{
    quoit_comm_t *comm = execution->operation->comm;
    const plan_side_t *buffer = &execution->binding.recv;
    size_t bytes = buffer->count * execution->binding.width;
    if (bytes <= comm->job->tuning.eager_limit) return;
    quoit_transport_t *transport = passes_on(execution);
    if (transport) (void)reach_take(comm->engine, transport, execution->operation->device.id, buffer->base, bytes, &execution->reach);
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
    execution->writes_recv = plan_uses(execution->plan, SPACE_RECV, true) && !owns_result(execution->plan);
    execution->user_is_ready = false;
    reach_buffer(execution);
    return make_events(execution);
}

/* The device hangs, and may use all of this for ever. */
static void give_up(const stage_queue_t *queue, execution_t *execution)
{
    memory_withdraw(queue->engine, execution->stage_send);
    memory_withdraw(queue->engine, execution->stage_recv);
    stage_give_up(queue, execution->stage_send);
    stage_give_up(queue, execution->stage_recv);
    stage_give_up(queue, execution->stream);
    for (int i = 0; i < EXECUTE_MAX_DEPTH; i++) {
        stage_give_up(queue, execution->event[i]);
        execution->event[i] = NULL;
    }
    execution->stream = NULL;
    execution->stage_send = execution->stage_recv = NULL;
    execution->stage_capacity = 0;
    execution->row_idle = NULL;
}

/* Copies that an early end leaves in the queue read and write staging memory only, but for those into the user's buffer: wait. */
void execute_device_end(execution_t *execution)
{
    if (!execution->row) return;
    const stage_queue_t queue = {execution->operation->comm->engine, execution->row, execution->stream};
    bool copies_left = execution->event[0] && execution->oldest < execution->binding.chunks;
    if (copies_left && execution->row->event_record(execution->event[0], execution->stream) == QUOIT_OK && !stage_await(&queue, execution->event[0]))
        give_up(&queue, execution);
    for (int i = 0; execution->reach.region && i < execution->plan->depth * execution->plan->transfers; i++) {
        stage_give(execution->transfer[i].stage);
        execution->transfer[i].stage = NULL;
    }
    reach_give(&execution->reach);
    execution->row = NULL;
}

void execute_device_destroy(engine_t *engine, execution_t *execution)
{
    const device_row_t *row = execution->row_idle;
    if (!row || !execution->stream) return;
    row->stream_destroy(execution->stream);
    for (int i = 0; i < EXECUTE_MAX_DEPTH; i++) {
        if (execution->event[i]) row->event_destroy(execution->event[i]);
        execution->event[i] = NULL;
    }
    memory_withdraw(engine, execution->stage_send);
    memory_withdraw(engine, execution->stage_recv);
    row->host_free(execution->stage_send);
    row->host_free(execution->stage_recv);
    execution->stream = NULL;
    execution->stage_send = execution->stage_recv = NULL;
    execution->stage_capacity = 0;
    execution->row_idle = NULL;
}

static size_t place_of(const execution_t *execution, size_t chunk)
{
    return execution_place_of(execution, chunk) * execution->slot_stride;
}

uint8_t *execute_device_address(const execution_t *execution, size_t chunk, const plan_operand_t *operand, const plan_piece_t *piece)
{
    const plan_binding_t *binding = &execution->binding;
    bool send = operand->space == SPACE_SEND;
    if (execution->run[execution_place_of(execution, chunk)].direct) return (uint8_t *)piece->data;
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

static device_event_t *event_of(const execution_t *execution, size_t chunk) { return execution->event[execution_place_of(execution, chunk)]; }

static quoit_status_t copy_chunk(execution_t *execution, size_t chunk, void *to, const void *from, size_t bytes, device_direction_t direction)
{
    quoit_comm_t *comm = execution->operation->comm;
    comm->device_staged += bytes;
    return stage_queue_copy(&(stage_queue_t){comm->engine, execution->row, execution->stream}, to, from, bytes, direction, event_of(execution, chunk));
}

quoit_status_t execute_device_in(execution_t *execution, chunk_run_t *run)
{
    const device_row_t *row = execution->row;
    size_t bytes = bytes_of(execution, run->chunk), at = run->chunk * execution->binding.chunk * execution->binding.width;
    if (!execution->user_is_ready) { /* nothing of ours is queued behind it, so the operation can end while the user's stream stands still */
        quoit_status_t status = row->event_query(execution->operation->device.ready);
        if (status != QUOIT_OK) return status;
        execution->user_is_ready = true;
    }
    if (run->phase == CHUNK_STAGE_IN) {
        run->direct = execution->reach.region && bytes > execution->operation->comm->job->tuning.eager_limit;
        if (run->direct || !execution->reads_send || bytes == 0) {
            run->phase = CHUNK_STEPS;
            return QUOIT_OK;
        }
        quoit_status_t status = copy_chunk(execution, run->chunk, execution->stage_send + place_of(execution, run->chunk),
                                           execution->binding.send.base + at, bytes, DEVICE_TO_HOST);
        if (status != QUOIT_OK) return status;
        run->phase = CHUNK_STAGE_IN_WAIT;
    }
    quoit_status_t status = row->event_query(event_of(execution, run->chunk));
    if (status == QUOIT_OK) run->phase = CHUNK_STEPS;
    return status;
}

quoit_status_t execute_device_out(execution_t *execution, chunk_run_t *run)
{
    const device_row_t *row = execution->row;
    size_t bytes = bytes_of(execution, run->chunk), at = run->chunk * execution->binding.chunk * execution->binding.width;
    if (run->phase == CHUNK_STAGE_OUT) {
        if (run->direct || !execution->writes_recv || bytes == 0) {
            run->phase = CHUNK_DONE;
            return QUOIT_OK;
        }
        quoit_status_t status = copy_chunk(execution, run->chunk, execution->binding.recv.base + at,
                                           execution->stage_recv + place_of(execution, run->chunk), bytes, HOST_TO_DEVICE);
        if (status != QUOIT_OK) return status;
        run->phase = CHUNK_STAGE_OUT_WAIT;
    }
    quoit_status_t status = row->event_query(event_of(execution, run->chunk));
    if (status == QUOIT_OK) run->phase = CHUNK_DONE;
    return status;
}

/* ------------------------------------------------------------------ direct chunks */

quoit_status_t execute_device_transfer(quoit_comm_t *comm, execute_transfer_t *started, quoit_endpoint_t *endpoint, quoit_key_t key, void *address, size_t bytes)
{
    const quoit_transport_ops_t *ops = endpoint->transport->ops;
    quoit_region_t *region = comm->execution.reach.region;
    started->device_memory = address;
    started->bytes = bytes;
    comm->device_direct += bytes;
    return started->receives ? ops->device_recv(endpoint, key, region, address, bytes, &started->transfer)
                             : ops->device_send(endpoint, key, region, address, bytes, &started->transfer);
}

/* It has stopped for lack of host memory: a send's bytes are copied there first, those of a recv are there already. */
static quoit_status_t through_host(quoit_comm_t *comm, execute_transfer_t *stopped)
{
    quoit_endpoint_t *endpoint = NULL;
    quoit_status_t status = job_endpoint(comm->job, comm->job_rank[stopped->peer], &endpoint);
    if (status == QUOIT_OK && !stopped->stage) {
        status = stage_take(comm, comm->execution.operation->device.id, stopped->bytes, &stopped->stage);
        comm->device_direct -= stopped->bytes;
        comm->device_staged += stopped->bytes;
        if (status == QUOIT_OK && !stopped->receives) status = stage_copy(stopped->stage, stopped->device_memory, stopped->bytes, DEVICE_TO_HOST);
    }
    if (status == QUOIT_OK && !stopped->receives) status = stage_query(stopped->stage);
    if (status != QUOIT_OK) return status;
    status = endpoint->transport->ops->device_host(endpoint, &stopped->transfer, stopped->stage->memory);
    if (status == QUOIT_OK && stopped->receives) status = stage_copy(stopped->stage, stopped->device_memory, stopped->bytes, HOST_TO_DEVICE);
    return status;
}

quoit_status_t execute_device_carry(quoit_comm_t *comm, const chunk_run_t *run, execute_transfer_t *mine)
{
    bool pending = false;
    for (int i = 0; i < run->transfers; i++) {
        execute_transfer_t *each = &mine[i];
        quoit_status_t status = QUOIT_OK;
        if (each->transfer.status == QUOIT_ERR_AGAIN) status = through_host(comm, each);
        if (status == QUOIT_OK && each->stage && each->receives && each->transfer.status == QUOIT_OK) status = stage_query(each->stage);
        if (status < 0) return status;
        pending = pending || status == QUOIT_IN_PROGRESS;
    }
    return pending ? QUOIT_IN_PROGRESS : QUOIT_OK;
}

quoit_status_t execute_device_arrived(quoit_comm_t *comm, const chunk_run_t *run, execute_transfer_t *mine)
{
    const device_row_t *row = comm->execution.row;
    bool landed = false;
    for (int i = 0; i < run->transfers; i++) {
        landed = landed || (mine[i].receives && !mine[i].stage);
        stage_give(mine[i].stage);
        mine[i].stage = NULL;
    }
    return landed && row->settle ? row->settle() : QUOIT_OK;
}
