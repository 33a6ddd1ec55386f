/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device buffers: when a chunk is copied to the host memory of execute_staging.c, and from it. Copies run on a stream of ours; operation_device.c joins
 * the user's stream to it.
 *
 * Direct chunks: a broadcast's plan on a rank that shares no window only passes one buffer on. Where the transport of all its peers reaches
 * that buffer, chunks above the eager limit are sent from and received into it. Each rank decides for itself; what cannot go on without a
 * processor (ERR_AGAIN) is copied through host memory of its own.
 */
#include "scheduler/execute_device.h"

#include "scheduler/comm.h"
#include "scheduler/execute_staging.h"
#include "scheduler/stage.h"

static stage_queue_t queue_of(const execution_t *execution)
{
    return (stage_queue_t){execution->operation->comm->engine, execution->row, execution->stream};
}

static quoit_status_t make_events(execution_t *execution)
{
    for (size_t i = 0; i < execution->depth; i++) {
        if (execution->event[i]) continue;
        quoit_status_t status = execution->row->event_create(&execution->event[i]);
        if (status != QUOIT_OK) return status;
    }
    return QUOIT_OK;
}

/* Another device than last time: everything anew. */
static quoit_status_t change_row(execution_t *execution, const device_row_t *row)
{
    if (execution->row_idle == row) return QUOIT_OK;
    execute_device_destroy(execution->operation->comm->engine, execution);
    quoit_status_t status = row->stream_create(&execution->stream);
    if (status == QUOIT_OK) execution->row_idle = row;
    return status;
}

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
    quoit_status_t status = change_row(execution, row);
    if (status == QUOIT_OK) status = execute_staging_begin(execution, row);
    if (status != QUOIT_OK) return status;
    execution->row = row;
    execution->user_is_ready = false;
    reach_buffer(execution);
    return make_events(execution);
}

/* The device hangs, and may use all of this for ever. */
static void give_up(const stage_queue_t *queue, execution_t *execution)
{
    execute_staging_give_up(queue, execution);
    stage_give_up(queue, execution->stream);
    for (int i = 0; i < EXECUTE_MAX_DEPTH; i++) {
        stage_give_up(queue, execution->event[i]);
        execution->event[i] = NULL;
    }
    execution->stream = NULL;
    execution->row_idle = NULL;
}

/* Copies that an early end leaves in the queue read and write staging memory only, but for those into the user's buffer: wait. */
void execute_device_end(execution_t *execution)
{
    if (!execution->row) return;
    const stage_queue_t queue = queue_of(execution);
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
    if (!row) return;
    row->stream_destroy(execution->stream);
    for (int i = 0; i < EXECUTE_MAX_DEPTH; i++) {
        if (execution->event[i]) row->event_destroy(execution->event[i]);
        execution->event[i] = NULL;
    }
    execute_staging_destroy(engine, execution);
    execution->stream = NULL;
    execution->row_idle = NULL;
}

uint8_t *execute_device_address(const execution_t *execution, size_t chunk, const plan_operand_t *operand, const plan_piece_t *piece)
{
    if (execution->run[execution_place_of(execution, chunk)].direct) return (uint8_t *)piece->data;
    return execute_staging_address(execution, chunk, operand, piece);
}

/* ------------------------------------------------------------------ phases */

static device_event_t *event_of(const execution_t *execution, size_t chunk) { return execution->event[execution_place_of(execution, chunk)]; }

/* Begin to copy a chunk, to the host or back. IN_PROGRESS: its event will tell; QUOIT_OK: there is nothing to copy. */
static quoit_status_t begin_copy(execution_t *execution, size_t chunk, plan_space_t space)
{
    size_t bytes = 0;
    quoit_status_t status = execute_staging_copy(execution, chunk, space, &bytes);
    if (status != QUOIT_OK || bytes == 0) return status;
    const stage_queue_t queue = queue_of(execution);
    status = stage_queue_end(&queue, event_of(execution, chunk));
    return status == QUOIT_OK ? QUOIT_IN_PROGRESS : status;
}

/* The caller has one buffer, as it is in a plan that passes it on. */
static bool goes_directly(const execution_t *execution, size_t chunk)
{
    const plan_binding_t *binding = &execution->binding;
    size_t begin = chunk * binding->chunk, total = binding->recv.count, count = total > begin ? total - begin : 0;
    if (count > binding->chunk) count = binding->chunk;
    return execution->reach.region && count * binding->width > execution->operation->comm->job->tuning.eager_limit;
}

quoit_status_t execute_device_in(execution_t *execution, chunk_run_t *run)
{
    const device_row_t *row = execution->row;
    quoit_status_t status = QUOIT_OK;
    if (!execution->user_is_ready) { /* nothing of ours is queued behind it, so the operation can end while the user's stream stands still */
        status = row->event_query(execution->operation->device.ready);
        if (status != QUOIT_OK) return status;
        execution->user_is_ready = true;
    }
    if (run->phase == CHUNK_STAGE_IN) {
        run->direct = goes_directly(execution, run->chunk);
        status = run->direct ? QUOIT_OK : begin_copy(execution, run->chunk, SPACE_SEND);
        if (status == QUOIT_IN_PROGRESS) run->phase = CHUNK_STAGE_IN_WAIT;
    }
    if (run->phase == CHUNK_STAGE_IN_WAIT) status = row->event_query(event_of(execution, run->chunk));
    if (status == QUOIT_OK) run->phase = execution->plan->steps > 0 ? CHUNK_STEPS : CHUNK_DONE;
    return status;
}

quoit_status_t execute_device_out(execution_t *execution, chunk_run_t *run)
{
    quoit_status_t status = QUOIT_OK;
    if (run->phase == CHUNK_STAGE_OUT) {
        status = run->direct ? QUOIT_OK : begin_copy(execution, run->chunk, SPACE_RECV);
        if (status == QUOIT_IN_PROGRESS) run->phase = CHUNK_STAGE_OUT_WAIT;
    }
    if (run->phase == CHUNK_STAGE_OUT_WAIT) status = execution->row->event_query(event_of(execution, run->chunk));
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
