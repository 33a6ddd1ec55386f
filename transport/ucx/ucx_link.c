/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A link: one connection of UCX as a byte pipe. Bytes go out as active messages of at most UCX_MESSAGE_SIZE, full ones while there is more to send, copied into a
 * task's memory first: UCX reads it until it says that it has done, and nobody can make it stop earlier, but users' buffers must be theirs
 * again as soon as their communicator is cancelled. For the same reason messages are always eager: a rendezvous would write to the
 * receiver's buffer, or read the sender's, at a time that UCX chooses.
 *
 * Every message has a header: "Qu", version, type, zero 4, sequence 8 (little-endian). Active messages of different length may
 * overtake each other inside UCX; the sequence puts them in order again.
 *
 *   DATA         bytes of the pipe
 *   LAST         nothing follows; in the sequence
 *   RECEIPT      LAST and all before it are here; outside of the sequence. Only now may the connection be closed: closing it at
 *                one end makes UCX drop at the other end what was not received yet
 */
#include "base/log.h"
#include "transport/ucx/ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_ID = 81, FREE_TASKS_KEPT = 32, STRANGER_MESSAGES = 16 };

static table_key_t ep_key(ucp_ep_h ep) { return (table_key_t){0, (uint64_t)(uintptr_t)ep}; }

void ucx_link_touch(ucx_link_t *link)
{
    if (list_is_empty(&link->ready)) list_append(&link->transport->ready, &link->ready);
}

const char *ucx_link_cause(const ucx_link_t *link) { return link->transport->ucx->ucs_status_string(link->broken); }

static void link_break(ucx_link_t *link, ucs_status_t status)
{
    if (link->broken == UCS_OK) link->broken = status;
    ucx_link_touch(link);
}

/* ---------------------------------------------------------------- tasks */

/* Registered once; without, a network that needs that would do it for each message. Where it fails, UCX will say so when it sends. */
static ucx_task_t *task_create(ucx_transport_t *transport)
{
    ucx_task_t *task = malloc(sizeof *task);
    if (!task) return NULL;
    ucp_mem_map_params_t parameters = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
        .address = task->bytes,
        .length = UCX_MESSAGE_SIZE,
    };
    task->memory = NULL;
    if (transport->ucx->minor < UCX_MINOR_PROTOCOLS) return task;
    if (transport->ucx->ucp_mem_map(transport->context, &parameters, &task->memory) != UCS_OK) task->memory = NULL;
    return task;
}

static void task_free(ucx_transport_t *transport, ucx_task_t *task)
{
    if (task->memory) transport->ucx->ucp_mem_unmap(transport->context, task->memory);
    free(task);
}

static ucx_task_t *task_take(ucx_link_t *link, bool flush)
{
    ucx_transport_t *transport = link->transport;
    list_t *node = list_pop(&transport->free_tasks);
    ucx_task_t *task = node ? container_of(node, ucx_task_t, node) : task_create(transport);
    if (!task) return NULL;
    transport->free_task_count -= node != NULL;
    task->transport = transport;
    task->link = link;
    task->flush = flush;
    task->length = 0;
    list_append(&link->tasks, &task->node);
    if (flush) link->flushing = true;
    else link->in_flight++;
    return task;
}

static void task_end(ucx_task_t *task, ucs_status_t status)
{
    ucx_transport_t *transport = task->transport;
    ucx_link_t *link = task->link;
    list_remove(&task->node);
    if (link) {
        if (task->flush) link->flushing = false;
        else link->in_flight--;
        if (status != UCS_OK) link_break(link, status);
    }
    if (transport->free_task_count >= FREE_TASKS_KEPT) {
        task_free(transport, task);
        return;
    }
    list_append(transport->free_tasks.next, &task->node); /* before the first: the next message is filled where the processor's cache has it */
    transport->free_task_count++;
}

static void task_done(void *request, ucs_status_t status, void *user_data)
{
    ucx_task_t *task = user_data;
    ucx_link_t *link = task->link;
    task->transport->ucx->ucp_request_free(request);
    task_end(task, status);
    if (link) ucx_link_touch(link);
}

static ucp_request_param_t task_parameters(ucx_task_t *task, uint32_t flags)
{
    return (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = flags,
        .cb.send = task_done,
        .user_data = task,
    };
}

/* What UCX answered to being asked; the callback comes only for a pointer. */
static void task_started(ucx_task_t *task, ucs_status_ptr_t answer)
{
    if (!UCS_PTR_IS_PTR(answer)) task_end(task, UCS_PTR_STATUS(answer));
}

/* ---------------------------------------------------------------- out */

static bool may_send(const ucx_link_t *link) { return link->ep && link->broken == UCS_OK && link->in_flight < UCX_IN_FLIGHT; }

static void message_send(ucx_link_t *link, ucx_task_t *task, ucx_message_t type)
{
    ucp_request_param_t parameters = task_parameters(task, UCP_AM_SEND_FLAG_EAGER | UCP_AM_SEND_FLAG_REPLY);
    ucx_header_write(type, type == UCX_RECEIPT ? 0 : link->next_out++, task->header);
#if UCP_API_VERSION >= UCP_VERSION(1, 13) /* older headers need not have it */
    if (task->memory && task->length > 0) {
        parameters.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        parameters.memh = task->memory;
    }
#endif
    link->unflushed = true;
    link->transport->counts.messages++;
    task_started(task, link->transport->ucx->ucp_am_send_nbx(link->ep, MESSAGE_ID, task->header, UCX_HEADER_SIZE,
                                                            task->length ? task->bytes : NULL, task->length, &parameters));
}

void ucx_link_push(ucx_link_t *link)
{
    ucx_task_t *task = link->filling;
    link->filling = NULL;
    if (!task) return;
    if (link->ep && link->broken == UCS_OK) message_send(link, task, UCX_DATA);
    else task_end(task, UCS_OK);
}

bool ucx_link_has_room(const ucx_link_t *link) { return link->broken == UCS_OK && (link->filling || may_send(link)); }

bool ucx_link_send(ucx_link_t *link, const void *bytes, size_t length)
{
    ucx_task_t *task = may_send(link) && length <= UCX_MESSAGE_SIZE ? task_take(link, false) : NULL;
    if (!task) return false;
    memcpy(task->bytes, bytes, length);
    task->length = length;
    message_send(link, task, UCX_DATA);
    return true;
}

/* Messages go out when they are full, or are pushed; so frames do not end them. Number of bytes there was room for. */
static size_t message_fill(ucx_link_t *link, const void *bytes, size_t length)
{
    size_t done = 0;
    while (done < length && ucx_link_has_room(link)) {
        if (!link->filling) link->filling = task_take(link, false);
        ucx_task_t *task = link->filling;
        if (!task) break;
        size_t room = UCX_MESSAGE_SIZE - task->length, part = length - done < room ? length - done : room;
        memcpy(task->bytes + task->length, (const uint8_t *)bytes + done, part);
        task->length += part;
        done += part;
        if (task->length == UCX_MESSAGE_SIZE) ucx_link_push(link);
    }
    return done;
}

static quoit_status_t pipe_write(void *pipe, const struct iovec *iov, int count, size_t *written)
{
    ucx_link_t *link = pipe;
    size_t done = 0;
    for (int i = 0; i < count; i++) {
        size_t part = message_fill(link, iov[i].iov_base, iov[i].iov_len);
        done += part;
        if (part < iov[i].iov_len) break;
    }
    *written = done;
    return done > 0 ? QUOIT_OK : QUOIT_ERR_AGAIN; /* broken, too: told when all that came before is read */
}

void ucx_link_send_last(ucx_link_t *link)
{
    ucx_link_push(link);
    ucx_task_t *task = !link->last_sent && may_send(link) ? task_take(link, false) : NULL;
    if (!task) return;
    link->last_sent = true;
    message_send(link, task, UCX_LAST);
}

/* All up to the last message are here when as many came as it has in its sequence. */
static bool all_arrived(const ucx_link_t *link)
{
    if (!link->last_arrived) return false;
    return link->arrived == container_of(link->received.previous, ucx_chunk_t, node)->sequence + 1;
}

void ucx_link_acknowledge(ucx_link_t *link)
{
    ucx_task_t *task = !link->acknowledged && all_arrived(link) && may_send(link) ? task_take(link, false) : NULL;
    if (!task) return;
    link->acknowledged = true;
    message_send(link, task, UCX_RECEIPT);
}

bool ucx_link_flush(ucx_link_t *link)
{
    ucx_link_push(link);
    if (!link->ep || link->broken != UCS_OK) return true;
    if (link->in_flight > 0 || link->flushing) return false;
    if (!link->unflushed) return true;
    ucx_task_t *task = task_take(link, true);
    if (!task) return false;
    ucp_request_param_t parameters = task_parameters(task, 0);
    link->unflushed = false;
    task_started(task, link->transport->ucx->ucp_ep_flush_nbx(link->ep, &parameters));
    return !link->flushing;
}

/* ---------------------------------------------------------------- in */

static ucx_chunk_t *chunk_take(ucx_transport_t *transport)
{
    list_t *node = list_pop(&transport->free_chunks);
    ucx_chunk_t *chunk = node ? container_of(node, ucx_chunk_t, node) : malloc(sizeof *chunk);
    if (chunk) *chunk = (ucx_chunk_t){.length = 0};
    return chunk;
}

/* Its bytes go back to whom they belong; itself to the free list. */
static void chunk_free(ucx_transport_t *transport, ucx_chunk_t *chunk)
{
    list_remove(&chunk->node);
    transport->backlog -= chunk->length;
    if (chunk->owner == UCX_OWNER_US) free(chunk->data);
    else if (chunk->owner == UCX_OWNER_UCX) transport->ucx->ucp_am_data_release(transport->worker, chunk->data);
    if (transport->calling == chunk) transport->calling = NULL;
    list_append(&transport->free_chunks, &chunk->node);
}

static void chunk_insert(ucx_link_t *link, ucx_chunk_t *chunk)
{
    list_t *after = link->received.previous;
    while (after != &link->received && container_of(after, ucx_chunk_t, node)->sequence > chunk->sequence) after = after->previous;
    list_append(after->next, &chunk->node); /* appending to a node puts before it */
    link->transport->backlog += chunk->length;
    link->arrived++;
    link->last_arrived = link->last_arrived || chunk->last;
}

/* Of a chunk that was not read while UCX called: its memory is ours from now on, or the whole link is broken. */
static void chunk_copy(ucx_link_t *link, ucx_chunk_t *chunk)
{
    size_t left = chunk->length - chunk->taken;
    uint8_t *copy = malloc(left > 0 ? left : 1);
    if (!copy) {
        chunk_free(link->transport, chunk);
        link_break(link, UCS_ERR_NO_MEMORY);
        return;
    }
    if (left > 0) memcpy(copy, chunk->data + chunk->taken, left);
    link->transport->backlog -= chunk->taken;
    link->transport->counts.aside += left;
    chunk->data = copy;
    chunk->length = left;
    chunk->taken = 0;
    chunk->owner = UCX_OWNER_US;
}

/*
 * What comes in its order is read at once, out of UCX's memory to its place; so UCX need not keep it for us, which over tcp is a copy. What must wait stays with UCX
 * where it allows that, or is copied aside. True when `data` was kept.
 */
static bool message_take(ucx_link_t *link, ucx_message_t type, uint64_t sequence, void *data, size_t length, bool persistent)
{
    bool unproved = link->kind == UCX_CALLER || (link->kind == UCX_STRANGER && !link->proved);
    if (unproved && (link->arrived >= STRANGER_MESSAGES || length > HANDSHAKE_CAPACITY || type != UCX_DATA)) {
        link_break(link, UCS_ERR_REJECTED);
        return false;
    }
    ucx_chunk_t *chunk = chunk_take(link->transport);
    if (!chunk) {
        link_break(link, UCS_ERR_NO_MEMORY);
        return false;
    }
    chunk->sequence = sequence;
    chunk->last = type == UCX_LAST;
    chunk->data = data;
    chunk->length = length;
    chunk_insert(link, chunk);
    link->transport->calling = chunk;
    if (link->transport->progressing && link->kind == UCX_PIPE) ucx_pipe_read(link);
    bool left = link->transport->calling != NULL;
    link->transport->calling = NULL;
    link->transport->counts.in_place += left ? chunk->taken : length;
    if (!left || length == 0) return false;
    if (persistent) chunk->owner = UCX_OWNER_UCX;
    else chunk_copy(link, chunk);
    return persistent;
}

static ucs_status_t message_arrived(void *arg, const void *header, size_t header_length, void *data, size_t length,
                                    const ucp_am_recv_param_t *param)
{
    ucx_transport_t *transport = arg;
    ucx_message_t type;
    uint64_t sequence;
    ucx_link_t *link = param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP ? table_get(transport->eps, ep_key(param->reply_ep)) : NULL;
    if (!link || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) return UCS_OK; /* of a connection that was closed, or none of ours */
    if (!ucx_header_parse(header, header_length, length, &type, &sequence)) {
        link_break(link, UCS_ERR_INVALID_PARAM);
        return UCS_OK;
    }
    ucx_link_touch(link);
    if (type == UCX_RECEIPT) {
        link->last_acknowledged = link->last_sent;
        return UCS_OK;
    }
    bool kept = message_take(link, type, sequence, data, length, param->recv_attr & UCP_AM_RECV_ATTR_FLAG_DATA);
    return kept ? UCS_INPROGRESS : UCS_OK;
}

quoit_status_t ucx_link_listen_messages(ucx_transport_t *transport)
{
    ucp_am_handler_param_t parameters = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS | UCP_AM_HANDLER_PARAM_FIELD_CB |
                      UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = MESSAGE_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = message_arrived,
        .arg = transport,
    };
    ucs_status_t status = transport->ucx->ucp_worker_set_am_recv_handler(transport->worker, &parameters);
    if (status == UCS_OK) return QUOIT_OK;
    return error_set(QUOIT_ERR_NETWORK, "ucx: cannot receive active messages: %s", transport->ucx->ucs_status_string(status));
}

/* The message that is next, NULL when it is not here. */
static ucx_chunk_t *chunk_next(const ucx_link_t *link)
{
    if (list_is_empty(&link->received)) return NULL;
    ucx_chunk_t *chunk = container_of(link->received.next, ucx_chunk_t, node);
    return chunk->sequence == link->next_in ? chunk : NULL;
}

bool ucx_link_has_bytes(const ucx_link_t *link) { return chunk_next(link) != NULL; }

/* Some of the bytes of the next message were read. */
static void chunk_advance(ucx_link_t *link, ucx_chunk_t *chunk, size_t length)
{
    chunk->taken += length;
    if (chunk->taken < chunk->length) return;
    link->next_in++;
    chunk_free(link->transport, chunk);
}

size_t ucx_link_take(ucx_link_t *link, void *bytes, size_t length)
{
    size_t done = 0;
    for (ucx_chunk_t *chunk; (chunk = chunk_next(link)) && !chunk->last && (done < length || chunk->length == 0);) {
        size_t left = chunk->length - chunk->taken, part = left < length - done ? left : length - done;
        if (part > 0) memcpy((uint8_t *)bytes + done, chunk->data + chunk->taken, part);
        done += part;
        chunk_advance(link, chunk, part);
    }
    return done;
}

static quoit_status_t pipe_read(void *pipe, const struct iovec *iov, int count, size_t *got)
{
    ucx_link_t *link = pipe;
    size_t done = 0;
    for (int i = 0; i < count; i++) {
        size_t part = ucx_link_take(link, iov[i].iov_base, iov[i].iov_len);
        done += part;
        if (part < iov[i].iov_len) break;
    }
    *got = done;
    if (done > 0) return QUOIT_OK;
    if (chunk_next(link)) return QUOIT_ERR_CLOSED;
    if (link->broken == UCS_OK) return QUOIT_ERR_AGAIN;
    return error_set(QUOIT_ERR_PEER, "the connection ended without a goodbye (UCX: %s): the peer's process exited or the link was cut",
                     ucx_link_cause(link));
}

/* Headers and what is small are taken from where they lie, so that nothing after them goes through the channel's buffer. */
static const unsigned char *pipe_peek(void *pipe, size_t length)
{
    const ucx_chunk_t *chunk = chunk_next(pipe);
    return chunk && chunk->length - chunk->taken >= length ? chunk->data + chunk->taken : NULL;
}

static bool pipe_skip(void *pipe, size_t length)
{
    ucx_link_t *link = pipe;
    chunk_advance(link, chunk_next(link), length);
    return chunk_next(link) != NULL || link->broken != UCS_OK;
}

const pipe_ops_t ucx_pipe_ops = {.write = pipe_write, .read = pipe_read, .peek = pipe_peek, .skip = pipe_skip};

/* ---------------------------------------------------------------- life */

static void ep_failed(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    ucx_transport_t *transport = arg;
    ucx_link_t *link = table_get(transport->eps, ep_key(ep));
    if (link) link_break(link, status);
}

ucx_link_t *ucx_link_create(ucx_transport_t *transport, ucx_kind_t kind)
{
    ucx_link_t *link = calloc(1, sizeof *link);
    handshake_t *handshake = malloc(sizeof *handshake);
    if (!link || !handshake) {
        error_set(QUOIT_ERR_NO_MEMORY, "ucx: no memory for a connection");
        free(link);
        free(handshake);
        return NULL;
    }
    link->transport = transport;
    link->kind = kind;
    link->handshake = handshake;
    link->deadline = CLOCK_NEVER;
    list_init(&link->ready);
    list_init(&link->tasks);
    list_init(&link->received);
    list_append(&transport->links, &link->node);
    return link;
}

quoit_status_t ucx_link_open(ucx_link_t *link, ucp_ep_params_t *parameters)
{
    ucx_transport_t *transport = link->transport;
    ucp_ep_h ep;
    parameters->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    parameters->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    parameters->err_handler = (ucp_err_handler_t){.cb = ep_failed, .arg = transport};
    ucs_status_t status = transport->ucx->ucp_ep_create(transport->worker, parameters, &ep);
    if (status != UCS_OK) return error_set(QUOIT_ERR_NETWORK, "%s", transport->ucx->ucs_status_string(status));
    link->ep = ep; /* destroying the link closes it */
    return table_put(transport->eps, ep_key(ep), link);
}

static void ep_closed(void *request, ucs_status_t status, void *user_data)
{
    ucx_transport_t *transport = user_data;
    (void)status;
    transport->ucx->ucp_request_free(request);
    transport->closing--;
}

static void ep_close(ucx_link_t *link)
{
    ucx_transport_t *transport = link->transport;
    ucp_request_param_t parameters = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = ep_closed,
        .user_data = transport,
    };
    table_take(transport->eps, ep_key(link->ep));
    transport->closing++;
    if (!UCS_PTR_IS_PTR(transport->ucx->ucp_ep_close_nbx(link->ep, &parameters))) transport->closing--;
    link->ep = NULL;
}

void ucx_link_destroy(ucx_link_t *link)
{
    if (!link) return;
    ucx_transport_t *transport = link->transport;
    if (link->kind == UCX_STRANGER && !link->proved) transport->stranger_count--;
    list_remove(&link->node);
    if (link->filling) task_end(link->filling, UCS_OK); /* UCX has not seen it */
    while (!list_is_empty(&link->tasks)) {
        ucx_task_t *task = container_of(list_pop(&link->tasks), ucx_task_t, node);
        task->link = NULL;
        list_append(&transport->orphans, &task->node);
    }
    if (link->ep) ep_close(link);
    while (!list_is_empty(&link->received)) chunk_free(transport, container_of(link->received.next, ucx_chunk_t, node));
    list_remove(&link->ready);
    if (link->handshake) explicit_bzero(link->handshake, sizeof *link->handshake);
    free(link->handshake);
    free(link);
}

void ucx_pool_destroy(ucx_transport_t *transport)
{
    for (list_t *node; (node = list_pop(&transport->free_tasks));) task_free(transport, container_of(node, ucx_task_t, node));
    for (list_t *node; (node = list_pop(&transport->orphans));) task_free(transport, container_of(node, ucx_task_t, node));
    for (list_t *node; (node = list_pop(&transport->free_chunks));) free(container_of(node, ucx_chunk_t, node));
}
