/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends and recvs of device buffers. Envelopes and keys are those of host buffers, so the other side never knows. A send is announced at
 * once, for the order of messages; its bytes are looked at when the user's stream has come to it. A buffer goes
 *   directly   where the transport of that pair reaches it, and it is larger than the eager limit;
 *   staged     else: through host memory, copied whole before it is sent, or after it was received.
 * Each side decides for itself. A direct one that cannot be carried on without a processor (ERR_AGAIN) becomes a staged one.
 */
#include "scheduler/match_device.h"

#include "scheduler/comm.h"
#include "scheduler/stage.h"

#include <string.h>

/** NEW: a send is not announced, a recv not matched. WAITS for the user's stream, or to be staged. */
enum { MESSAGE_NEW, MESSAGE_WAITS, MESSAGE_COPIES_OUT, MESSAGE_MOVES, MESSAGE_LANDED, MESSAGE_COPIES_IN, MESSAGE_OVER };

static bool is_recv(const operation_t *operation) { return operation->kind == OPERATION_RECV; }

static quoit_status_t go(operation_t *operation, uint8_t phase)
{
    operation->device.phase = phase;
    return QUOIT_OK;
}

static quoit_status_t find_endpoint(quoit_comm_t *comm, const operation_t *operation, quoit_endpoint_t **endpoint)
{
    int other = is_recv(operation) ? operation->source : operation->peer;
    return job_endpoint(comm->job, comm->job_rank[other], endpoint);
}

static quoit_status_t user_is_ready(operation_t *operation)
{
    operation_device_t *device = &operation->device;
    if (device->user_is_ready) return QUOIT_OK;
    quoit_status_t status = device->row->event_query(device->ready);
    device->user_is_ready = status == QUOIT_OK;
    return status;
}

static quoit_status_t take_stage(quoit_comm_t *comm, operation_t *operation)
{
    quoit_status_t status = stage_take(comm, operation->device.id, operation->bytes, &operation->device.stage);
    if (status == QUOIT_OK) comm->device_staged += operation->bytes;
    return status;
}

static quoit_status_t announce(quoit_comm_t *comm, operation_t *send)
{
    quoit_endpoint_t *endpoint = NULL;
    unsigned char bare[NOTICE_MESSAGE_SIZE];
    quoit_status_t status = find_endpoint(comm, send, &endpoint);
    if (status == QUOIT_OK) status = match_take_number(comm, send->peer, &send->device.number);
    if (status != QUOIT_OK) return status;
    notice_message_t message = {.tag = send->tag, .bytes = send->bytes, .number = send->device.number};
    notice_message_encode(comm->id, comm->rank, &message, bare);
    status = endpoint->transport->ops->notify(endpoint, bare, sizeof bare);
    if (status != QUOIT_OK) return status;
    send->envelope_sent = true;
    return go(send, MESSAGE_WAITS);
}

quoit_status_t match_device_deliver(quoit_comm_t *comm, operation_t *recv, const notice_message_t *message, const void *payload)
{
    recv->payload_posted = true;
    recv->device.number = message->number;
    if (!message->inside) return go(recv, MESSAGE_WAITS);
    if (recv->bytes == 0) return go(recv, MESSAGE_OVER);
    quoit_status_t status = take_stage(comm, recv);
    if (status != QUOIT_OK) return status;
    memcpy(recv->device.stage->memory, payload, recv->bytes);
    return go(recv, MESSAGE_LANDED);
}

/* The keyed message, from host memory or into it. */
static quoit_status_t move_staged(quoit_comm_t *comm, operation_t *operation, quoit_endpoint_t *endpoint)
{
    const quoit_transport_ops_t *ops = endpoint->transport->ops;
    quoit_key_t key = match_payload_key(comm, operation->device.number);
    void *host = operation->device.stage ? operation->device.stage->memory : NULL;
    operation->payload_posted = true;
    quoit_status_t status = is_recv(operation) ? ops->recv(endpoint, key, host, operation->bytes, &operation->transfer)
                                               : ops->send(endpoint, key, host, operation->bytes, &operation->transfer);
    return status == QUOIT_OK ? go(operation, MESSAGE_MOVES) : status;
}

static quoit_status_t move_directly(quoit_comm_t *comm, operation_t *operation, quoit_endpoint_t *endpoint)
{
    const quoit_transport_ops_t *ops = endpoint->transport->ops;
    quoit_key_t key = match_payload_key(comm, operation->device.number);
    quoit_region_t *region = operation->device.reach.region;
    operation->payload_posted = true;
    quoit_status_t status = is_recv(operation)
                                ? ops->device_recv(endpoint, key, region, operation->recv.base, operation->bytes, &operation->transfer)
                                : ops->device_send(endpoint, key, region, operation->send.base, operation->bytes, &operation->transfer);
    return status == QUOIT_OK ? go(operation, MESSAGE_MOVES) : status;
}

static quoit_status_t copy_out(quoit_comm_t *comm, operation_t *send)
{
    quoit_status_t status = take_stage(comm, send);
    if (status == QUOIT_OK) status = stage_copy(send->device.stage, (void *)send->send.base, send->bytes, DEVICE_TO_HOST);
    return status == QUOIT_OK ? go(send, MESSAGE_COPIES_OUT) : status;
}

/* Which way? A recv into host memory need not wait for the user's stream. */
static quoit_status_t begin(quoit_comm_t *comm, operation_t *operation)
{
    operation_device_t *device = &operation->device;
    quoit_endpoint_t *endpoint = NULL;
    quoit_status_t status = find_endpoint(comm, operation, &endpoint);
    if (status != QUOIT_OK) return status;
    if (!device->decided && operation->bytes > comm->job->tuning.eager_limit)
        (void)reach_take(comm->engine, endpoint->transport, device->id, operation->send.base, operation->bytes, &device->reach);
    device->decided = true;
    bool waits = device->reach.region || (!is_recv(operation) && operation->bytes > 0);
    if (waits) status = user_is_ready(operation);
    if (status != QUOIT_OK) return status;
    if (device->reach.region) return move_directly(comm, operation, endpoint);
    if (operation->bytes == 0) return move_staged(comm, operation, endpoint);
    if (!is_recv(operation)) return copy_out(comm, operation);
    status = take_stage(comm, operation);
    return status == QUOIT_OK ? move_staged(comm, operation, endpoint) : status;
}

static quoit_status_t copied_out(quoit_comm_t *comm, operation_t *send)
{
    quoit_endpoint_t *endpoint = NULL;
    quoit_status_t status = stage_query(send->device.stage);
    if (status == QUOIT_OK) status = find_endpoint(comm, send, &endpoint);
    if (status != QUOIT_OK) return status;
    if (!send->device.stopped) return move_staged(comm, send, endpoint);
    if (send->transfer.status == QUOIT_ERR_AGAIN) /* else it has ended meanwhile */
        status = endpoint->transport->ops->device_host(endpoint, &send->transfer, send->device.stage->memory);
    return status == QUOIT_OK ? go(send, MESSAGE_MOVES) : status;
}

/* The transport cannot go on without a processor. */
static quoit_status_t stopped(quoit_comm_t *comm, operation_t *operation)
{
    quoit_endpoint_t *endpoint = NULL;
    operation->device.stopped = true;
    if (!is_recv(operation)) return copy_out(comm, operation);
    quoit_status_t status = find_endpoint(comm, operation, &endpoint);
    if (status == QUOIT_OK) status = take_stage(comm, operation);
    if (status == QUOIT_OK) status = endpoint->transport->ops->device_host(endpoint, &operation->transfer, operation->device.stage->memory);
    return status == QUOIT_OK ? go(operation, MESSAGE_LANDED) : status;
}

static quoit_status_t moved(quoit_comm_t *comm, operation_t *operation)
{
    const operation_device_t *device = &operation->device;
    bool direct = device->reach.region && !device->stopped;
    if (operation->transfer.status == QUOIT_ERR_AGAIN && direct) return stopped(comm, operation);
    if (operation->transfer.status != QUOIT_OK) return operation->transfer.status;
    if (direct) comm->device_direct += operation->bytes;
    if (!is_recv(operation) || operation->bytes == 0) return go(operation, MESSAGE_OVER);
    if (!direct) return go(operation, MESSAGE_LANDED);
    quoit_status_t status = device->row->settle ? device->row->settle() : QUOIT_OK;
    return status == QUOIT_OK ? go(operation, MESSAGE_OVER) : status;
}

static quoit_status_t copy_in(operation_t *recv)
{
    quoit_status_t status = user_is_ready(recv);
    if (status == QUOIT_OK) status = stage_copy(recv->device.stage, (void *)recv->recv.base, recv->bytes, HOST_TO_DEVICE);
    return status == QUOIT_OK ? go(recv, MESSAGE_COPIES_IN) : status;
}

/* QUOIT_OK: in another phase. */
static quoit_status_t step(quoit_comm_t *comm, operation_t *operation)
{
    quoit_status_t status;
    switch (operation->device.phase) {
    case MESSAGE_NEW: return is_recv(operation) ? QUOIT_IN_PROGRESS : announce(comm, operation);
    case MESSAGE_WAITS: return begin(comm, operation);
    case MESSAGE_COPIES_OUT: return copied_out(comm, operation);
    case MESSAGE_MOVES: return moved(comm, operation);
    case MESSAGE_LANDED: return copy_in(operation);
    case MESSAGE_COPIES_IN:
        status = stage_query(operation->device.stage);
        return status == QUOIT_OK ? go(operation, MESSAGE_OVER) : status;
    default: return error_set(QUOIT_ERR_INTERNAL, "a message in phase %d", operation->device.phase);
    }
}

bool match_device_advance(quoit_comm_t *comm, operation_t *operation)
{
    bool any = false;
    while (operation->device.phase != MESSAGE_OVER) {
        quoit_status_t status = step(comm, operation);
        if (status == QUOIT_IN_PROGRESS) return any;
        any = true;
        if (status == QUOIT_OK) continue;
        if (operation->device.phase == MESSAGE_MOVES && status == operation->transfer.status) match_transfer_failed(comm, operation);
        else comm_fail(comm, status, true, "%s %s: %s", is_recv(operation) ? "recv from" : "send to",
                       comm_rank_name(comm, is_recv(operation) ? operation->source : operation->peer), error_text());
        return true;
    }
    match_device_release(operation);
    operation_finish(operation, QUOIT_OK, "");
    return true;
}

void match_device_release(operation_t *operation)
{
    reach_give(&operation->device.reach);
    stage_give(operation->device.stage);
    operation->device.stage = NULL;
}
