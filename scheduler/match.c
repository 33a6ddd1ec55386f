/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matching. An envelope tells source, tag, length and the number of the message between the two ranks; a payload of at most the
 * eager limit rides in it. A larger one is a keyed message that the receiver asks for when a recv matches: its bytes go straight
 * to the user's buffer. Envelopes of one sender arrive in the order sent, so messages of one (source, tag) match in order.
 */
#include "scheduler/match.h"

#include "scheduler/comm.h"
#include "scheduler/match_device.h"
#include "scheduler/notice.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_SPARES = 32, LEAST_PAYLOAD = 256 /* bytes: so that most envelopes fit most messages */ };

typedef struct envelope {
    list_t link;
    size_t capacity; /* bytes of payload */
    int source;
    notice_message_t message;
    unsigned char payload[]; /* when message.inside */
} envelope_t;

void matcher_init(matcher_t *matcher)
{
    list_init(&matcher->posted);
    list_init(&matcher->unexpected);
    list_init(&matcher->spare);
    matcher->spares = 0;
    matcher->next = NULL;
}

void matcher_clear(matcher_t *matcher)
{
    for (list_t *node; (node = list_pop(&matcher->unexpected));) free(container_of(node, envelope_t, link));
    for (list_t *node; (node = list_pop(&matcher->spare));) free(container_of(node, envelope_t, link));
    matcher->spares = 0;
    free(matcher->next);
    matcher->next = NULL;
}

void match_forget(operation_t *operation)
{
    if (operation->device.row) match_device_release(operation);
    if (operation->kind == OPERATION_RECV && operation->started) list_remove(&operation->match_link);
}

/* Keys of collectives have the top bit clear: see execute.c. */
quoit_key_t match_payload_key(const quoit_comm_t *comm, uint64_t number) { return (quoit_key_t){comm->id, (uint64_t)1 << 63 | number}; }

static bool fits(const operation_t *recv, int source, uint32_t tag)
{
    return recv->tag == tag && (recv->peer == QUOIT_ANY_SOURCE || recv->peer == source);
}

/* Join a recv and an envelope. */
static void deliver(quoit_comm_t *comm, operation_t *recv, int source, const notice_message_t *message, const void *payload)
{
    list_remove(&recv->match_link);
    recv->source = source;
    if (message->bytes != recv->bytes) {
        comm_fail(comm, QUOIT_ERR_MISMATCH, true, "%s sent %llu bytes with tag %u, but %s receives %zu bytes; both counts must be equal",
                  comm_rank_name(comm, source), (unsigned long long)message->bytes, message->tag, comm_rank_name(comm, comm->rank), recv->bytes);
        return;
    }
    if (recv->device.row) {
        quoit_status_t status = match_device_deliver(comm, recv, message, payload);
        if (status < 0) comm_fail(comm, status, true, "recv from %s: %s", comm_rank_name(comm, source), error_text());
        return;
    }
    if (message->inside) {
        memcpy(recv->recv.base, payload, recv->bytes);
        operation_finish(recv, QUOIT_OK, "");
        return;
    }
    quoit_endpoint_t *endpoint = NULL;
    quoit_status_t status = job_endpoint(comm->job, comm->job_rank[source], &endpoint);
    if (status == QUOIT_OK)
        status = endpoint->transport->ops->recv(endpoint, match_payload_key(comm, message->number), recv->recv.base, recv->bytes, &recv->transfer);
    recv->payload_posted = true;
    if (status < 0) comm_fail(comm, status, true, "recv from %s: %s", comm_rank_name(comm, source), error_text());
}

/* One that was used before, if it has the room. NULL: out of memory. */
static envelope_t *envelope_take(matcher_t *matcher, size_t payload)
{
    for (list_t *node = matcher->spare.next; node != &matcher->spare; node = node->next) {
        envelope_t *found = container_of(node, envelope_t, link);
        if (found->capacity < payload) continue;
        list_remove(&found->link);
        matcher->spares--;
        return found;
    }
    size_t capacity = payload < LEAST_PAYLOAD ? LEAST_PAYLOAD : payload;
    envelope_t *made = malloc(sizeof *made + capacity);
    if (made) made->capacity = capacity;
    return made;
}

/* The one that has been spare for longest makes room: it may be too small for what comes now. */
static void envelope_give(matcher_t *matcher, envelope_t *envelope)
{
    list_append(&matcher->spare, &envelope->link);
    if (matcher->spares < MOST_SPARES) matcher->spares++;
    else free(container_of(list_pop(&matcher->spare), envelope_t, link));
}

void match_envelope(quoit_comm_t *comm, int source, const void *data, size_t length)
{
    notice_message_t message;
    const void *payload = NULL;
    if (notice_message_decode(data, length, &message, &payload) != QUOIT_OK) {
        comm_fail(comm, QUOIT_ERR_PROTOCOL, true, "%s: %s", comm_rank_name(comm, source), error_text());
        return;
    }
    for (list_t *node = comm->matcher.posted.next; node != &comm->matcher.posted; node = node->next) {
        operation_t *recv = container_of(node, operation_t, match_link);
        if (!fits(recv, source, message.tag)) continue;
        deliver(comm, recv, source, &message, payload);
        return;
    }
    size_t inside = message.inside ? (size_t)message.bytes : 0;
    envelope_t *kept = envelope_take(&comm->matcher, inside);
    if (!kept) {
        comm_fail(comm, QUOIT_ERR_NO_MEMORY, true, "an unexpected message of %zu bytes from %s", inside, comm_rank_name(comm, source));
        return;
    }
    kept->source = source;
    kept->message = message;
    if (inside) memcpy(kept->payload, payload, inside);
    list_append(&comm->matcher.unexpected, &kept->link);
}

static bool start_recv(quoit_comm_t *comm, operation_t *recv)
{
    recv->started = true;
    list_append(&comm->matcher.posted, &recv->match_link);
    for (list_t *node = comm->matcher.unexpected.next; node != &comm->matcher.unexpected; node = node->next) {
        envelope_t *kept = container_of(node, envelope_t, link);
        if (!fits(recv, kept->source, kept->message.tag)) continue;
        list_remove(&kept->link);
        deliver(comm, recv, kept->source, &kept->message, kept->payload);
        envelope_give(&comm->matcher, kept);
        break;
    }
    return true;
}

quoit_status_t match_take_number(quoit_comm_t *comm, int rank, uint64_t *number)
{
    if (!comm->matcher.next) comm->matcher.next = calloc((size_t)comm->size, sizeof *comm->matcher.next);
    if (!comm->matcher.next) return error_set(QUOIT_ERR_NO_MEMORY, "counters for %d ranks", comm->size);
    *number = comm->matcher.next[rank]++;
    return QUOIT_OK;
}

/*
 * A message in its envelope, if it is small and the pair has credit for it; else ERR_AGAIN or ERR_INVALID (the pair's limit is lower), and nothing has gone. It
 * needs no number: no payload follows that would have to be found.
 */
static quoit_status_t send_inside(quoit_comm_t *comm, quoit_endpoint_t *endpoint, uint32_t tag, const void *buffer, size_t bytes)
{
    const quoit_transport_ops_t *ops = endpoint->transport->ops;
    size_t most = ops->flags & QUOIT_TRANSPORT_SAME_HOST ? NOTICE_PAYLOAD_LOCAL : NOTICE_PAYLOAD_CAPACITY;
    if (bytes > most || bytes + NOTICE_MESSAGE_SIZE > comm->job->tuning.eager_limit) return QUOIT_ERR_INVALID;
    unsigned char inside[NOTICE_MESSAGE_SIZE + NOTICE_PAYLOAD_CAPACITY];
    notice_message_t message = {.tag = tag, .bytes = bytes, .inside = true};
    notice_message_encode(comm->id, comm->rank, &message, inside);
    if (bytes) memcpy(inside + NOTICE_MESSAGE_SIZE, buffer, bytes);
    return ops->notify(endpoint, inside, NOTICE_MESSAGE_SIZE + bytes);
}

bool match_send_at_once(quoit_comm_t *comm, int peer, uint32_t tag, const void *buffer, size_t count, quoit_dtype_t dtype)
{
    size_t bytes = count * quoit_dtype_size(dtype);
    quoit_endpoint_t *endpoint = NULL;
    if (bytes > NOTICE_PAYLOAD_LOCAL || !engine_try_enter_quiet(comm->engine)) return false;
    /* Sends before it have been announced (comm_take). Whatever fails is told by an operation, and what is traced is one. */
    bool gone = !comm->engine->trace && atomic_load_explicit(&comm->status, memory_order_relaxed) == QUOIT_OK &&
                job_endpoint(comm->job, comm->job_rank[peer], &endpoint) == QUOIT_OK && send_inside(comm, endpoint, tag, buffer, bytes) == QUOIT_OK;
    if (gone) journal_sent(comm->journal, peer, tag, count, dtype);
    engine_leave_written(comm->engine);
    return gone;
}

/* Announce a message, its payload inside if that can be. */
static quoit_status_t announce(quoit_comm_t *comm, operation_t *send, quoit_endpoint_t *endpoint)
{
    const quoit_transport_ops_t *ops = endpoint->transport->ops;
    notice_message_t message = {.tag = send->tag, .bytes = send->bytes};
    quoit_status_t status = send_inside(comm, endpoint, send->tag, send->send.base, send->bytes);
    if (status != QUOIT_ERR_AGAIN && status != QUOIT_ERR_INVALID) return status;
    status = match_take_number(comm, send->peer, &message.number);
    if (status != QUOIT_OK) return status;
    unsigned char bare[NOTICE_MESSAGE_SIZE];
    notice_message_encode(comm->id, comm->rank, &message, bare);
    status = ops->notify(endpoint, bare, sizeof bare);
    if (status != QUOIT_OK) return status;
    send->payload_posted = true;
    return ops->send(endpoint, match_payload_key(comm, message.number), send->send.base, send->bytes, &send->transfer);
}

static bool advance_send(quoit_comm_t *comm, operation_t *send)
{
    if (!send->envelope_sent) {
        quoit_endpoint_t *endpoint = NULL;
        quoit_status_t status = job_endpoint(comm->job, comm->job_rank[send->peer], &endpoint);
        if (status == QUOIT_OK) status = announce(comm, send, endpoint);
        if (status < 0) {
            comm_fail(comm, status, true, "send to %s: %s", comm_rank_name(comm, send->peer), error_text());
            return true;
        }
        send->envelope_sent = true;
        if (!send->payload_posted) {
            operation_finish(send, QUOIT_OK, "");
            return true;
        }
    }
    return false;
}

bool match_advance(quoit_comm_t *comm, operation_t *operation)
{
    bool receives = operation->kind == OPERATION_RECV;
    if (receives && !operation->started) return start_recv(comm, operation);
    if (operation->device.row) return match_device_advance(comm, operation);
    if (!receives && advance_send(comm, operation)) return true;
    if (!operation->payload_posted || operation->transfer.status == QUOIT_IN_PROGRESS) return false;
    if (operation->transfer.status == QUOIT_OK) {
        operation_finish(operation, QUOIT_OK, "");
        return true;
    }
    match_transfer_failed(comm, operation);
    return true;
}

void match_transfer_failed(quoit_comm_t *comm, const operation_t *operation)
{
    int other = operation->kind == OPERATION_RECV ? operation->source : operation->peer;
    peer_t *peer = comm->job->peer[comm->job_rank[other]];
    comm_fail(comm, operation->transfer.status, true, "%s %s: %s%s%s", operation->kind == OPERATION_RECV ? "recv from" : "send to",
              peer->name, quoit_status_text(operation->transfer.status), peer->status != QUOIT_OK ? ": " : "", peer->text);
}
