/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matching: recvs with the start frames of sends, grants with sends, and what becomes of a key when they do not fit.
 * channel_internal.h says how messages match; nothing here reads or writes a pipe.
 */
#include "transport/framing/channel_internal.h"

#include <stdlib.h>
#include <string.h>

static bool is_large(const channel_t *channel, uint64_t length) { return length > channel->unasked; }

static bool operations_fit(uint32_t a, uint32_t b) { return a == 0 || b == 0 || a == b; }

static quoit_status_t mismatch(const channel_t *channel, quoit_key_t key, uint64_t send_length, uint32_t send_what,
                               uint64_t recv_length, uint32_t recv_what)
{
    return error_set(QUOIT_ERR_MISMATCH,
                     "%s: message %llx of communicator %llx does not match: the sender has %llu bytes of operation %08x, the "
                     "receiver wants %llu bytes of operation %08x; the ranks called different operations",
                     channel->name, (unsigned long long)key.id, (unsigned long long)key.comm, (unsigned long long)send_length,
                     send_what, (unsigned long long)recv_length, recv_what);
}

/* Remember this thread's text as the reason why messages of a key fail. */
static quoit_status_t remember_broken(channel_t *channel, char **text)
{
    if (*text) return QUOIT_OK;
    if (channel->broken >= CHANNEL_MAX_ANNOUNCED / 16)
        return error_set(QUOIT_ERR_PROTOCOL, "messages of %zu keys did not match", channel->broken);
    *text = strdup(error_text());
    if (!*text) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for the text of a mismatch");
    channel->broken++;
    return QUOIT_OK;
}

/* ---------------------------------------------------------------- ends */

void channel_send_end(channel_t *channel, send_node_t *send, quoit_status_t status)
{
    list_remove(&send->link);
    channel_outlet_forget(channel, send);
    if (send->writing) channel->config.direct->end(channel->config.direct_context, send->writing);
    send->writing = NULL;
    send_transfer(send)->status = status;
}

/* The peer's right to write ends. If it may be writing, it is told which grant that was before it hears of the path's new beginning. */
static void conceal(channel_t *channel, recv_node_t *recv, bool revoke)
{
    void *window = recv->window;
    frame_t frame = {.type = FRAME_REVOKE, .key = recv->key, .grant = recv->grant};
    if (!window) return;
    recv->window = NULL;
    /* Untold, the peer would write once more after the path's new beginning. */
    if (revoke && channel_stage(channel, 0, &frame, NULL, 0) != QUOIT_OK) channel->failing = true;
    channel->config.direct->conceal(channel->config.direct_context, window, revoke);
}

quoit_status_t channel_recv_prepare(channel_t *channel, recv_node_t *recv)
{
    if (!recv->memory || recv->bounce || recv->length == 0) return QUOIT_OK;
    recv->bounce = malloc(recv->length);
    if (recv->bounce) return QUOIT_OK;
    return error_set(QUOIT_ERR_NO_MEMORY, "%s: no memory for a message of %llu bytes that cannot be written to a device directly", channel->name,
                     (unsigned long long)recv->length);
}

/* Its bytes are in memory of ours; it ends when they are fetched. */
static void recv_stop(channel_t *channel, recv_node_t *recv)
{
    list_append(&channel->stopped_recvs, &recv->link);
    recv_transfer(recv)->status = QUOIT_ERR_AGAIN;
}

void channel_recv_end(channel_t *channel, recv_node_t *recv, quoit_status_t status)
{
    list_remove(&recv->link);
    conceal(channel, recv, status != QUOIT_OK);
    channel_grant_release(channel, recv);
    for (int i = 0; i < channel->count; i++) {
        inlet_t *inlet = &channel->inlets[i];
        if (inlet->recv == recv) inlet->recv = NULL;
        if (inlet->block && inlet->block->waiting == recv) {
            inlet->block->waiting = NULL;
            inlet->block->discard = true;
        }
    }
    quoit_transfer_t *transfer = recv_transfer(recv);
    if (status == QUOIT_OK) transfer->length = recv->length;
    if (status == QUOIT_OK && recv->bounce) {
        recv_stop(channel, recv);
        return;
    }
    free(recv->bounce);
    transfer->status = status;
}

void channel_recv_check(channel_t *channel, recv_node_t *recv)
{
    if (recv->started && !recv->broken && recv->received == recv->length) channel_recv_end(channel, recv, QUOIT_OK);
}

void channel_credit_consume(channel_t *channel, uint64_t cost)
{
    channel->consumed += cost;
    if (channel->consumed < channel->pool / 4) return;
    frame_t frame = {.type = FRAME_CREDIT, .length = channel->consumed};
    if (channel_stage(channel, 0, &frame, NULL, 0) != QUOIT_OK) return; /* no memory now: given back with the next one */
    channel->held -= channel->consumed;
    channel->consumed = 0;
}

static void block_done(channel_t *channel, block_t *block)
{
    if (block->frame.type == FRAME_EAGER ||
        (block->frame.type == FRAME_NOTICE && block->frame.length > QUOIT_NOTICE_SMALL))
        channel_credit_consume(channel, channel_cost(block->frame.length));
    channel_block_give(channel, block);
}

void channel_block_drop(channel_t *channel, block_t *block)
{
    list_remove(&block->link);
    if (block->frame.type == FRAME_EAGER || block->frame.type == FRAME_ASK) channel->unexpected--;
    channel_loan_drop(channel, &block->frame);
    if (block->complete) block_done(channel, block);
    else block->discard = true;
}

/* ---------------------------------------------------------------- receiving side */

/* Everything of the key ends in the mismatch whose text is this thread's; `recv` may be in no list. */
static quoit_status_t break_recv(channel_t *channel, key_entry_t *entry, recv_node_t *recv)
{
    quoit_status_t status = remember_broken(channel, &entry->broken_recv);
    channel_recv_end(channel, recv, QUOIT_ERR_MISMATCH);
    while (!list_is_empty(&entry->posted))
        channel_recv_end(channel, container_of(entry->posted.next, recv_node_t, link), QUOIT_ERR_MISMATCH);
    while (!list_is_empty(&entry->unexpected))
        channel_block_drop(channel, container_of(entry->unexpected.next, block_t, link));
    return status;
}

static bool start_fits(recv_node_t *recv, const frame_t *start)
{
    return recv->length == start->total && operations_fit(recv_transfer(recv)->what, start->what);
}

static quoit_status_t refuse(channel_t *channel, key_entry_t *entry, recv_node_t *recv, const frame_t *start)
{
    uint32_t what = recv_transfer(recv)->what;
    frame_t answer = {.type = FRAME_REFUSE, .what = what, .key = start->key, .total = recv->length, .offset = start->total};
    quoit_status_t status = channel_stage(channel, 0, &answer, NULL, 0);
    if (status != QUOIT_OK) return status;
    mismatch(channel, start->key, start->total, start->what, recv->length, what);
    return break_recv(channel, entry, recv);
}

static quoit_status_t announce(channel_t *channel, recv_node_t *recv)
{
    if (recv->grant != 0) return QUOIT_OK;
    quoit_status_t status = channel_grant_take(channel, recv);
    if (status != QUOIT_OK) return status;
    frame_t frame = {.type = FRAME_GRANT,
                     .what = recv_transfer(recv)->what,
                     .key = recv->key,
                     .grant = recv->grant,
                     .total = recv->length,
                     .length = recv->length};
    const direct_ops_t *direct = channel->config.direct;
    uint32_t token;
    if (direct && is_large(channel, recv->length) && channel_grant_token(recv->grant, &token))
        frame.direct = (uint8_t)direct->expose(channel->config.direct_context, recv->buffer, recv->length, recv->memory, &frame.offset,
                                               frame.remote_key, &recv->window);
    return channel_stage(channel, 0, &frame, NULL, 0);
}

/* The start of `recv` is known and fits. */
static void recv_started(channel_t *channel, recv_node_t *recv)
{
    list_remove(&recv->link);
    list_append(&channel->receiving, &recv->link);
    recv->started = true;
}

/* An ASK and its recv met. */
static quoit_status_t ask_started(channel_t *channel, recv_node_t *recv, const frame_t *ask)
{
    quoit_status_t status = ask->direct ? channel_loan_take(channel, recv, ask) : QUOIT_OK;
    bool whole = ask->direct && ask->length == ask->total;
    if (status == QUOIT_OK && !whole) status = announce(channel, recv);
    if (status == QUOIT_OK) channel_recv_check(channel, recv);
    return status;
}

quoit_status_t channel_start_arrived(channel_t *channel, const frame_t *frame, recv_node_t **recv, block_t **block)
{
    bool eager = frame->type == FRAME_EAGER;
    *recv = NULL;
    *block = NULL;
    key_entry_t *entry = channel_entry_find(channel, frame->key);
    quoit_status_t status = channel_loan_check(channel, frame);
    if (status != QUOIT_OK) return status;
    if (entry && entry->broken_recv) {
        channel_loan_drop(channel, frame);
        return QUOIT_OK;
    }
    if (entry && !list_is_empty(&entry->posted)) {
        recv_node_t *first = container_of(entry->posted.next, recv_node_t, link);
        if (!start_fits(first, frame)) {
            channel_loan_drop(channel, frame);
            return refuse(channel, entry, first, frame);
        }
        recv_started(channel, first);
        channel_entry_release(channel, entry);
        if (eager) {
            *recv = first;
            return channel_recv_prepare(channel, first);
        }
        return ask_started(channel, first, frame);
    }
    if (channel_is_cancelled(channel, frame->key.comm)) {
        channel_loan_drop(channel, frame);
        return QUOIT_OK;
    }
    entry = channel_entry_make(channel, frame->key);
    if (!entry) return QUOIT_ERR_NO_MEMORY;
    block_t *fresh = channel_block_take(channel, eager ? (size_t)frame->length : 0);
    if (!fresh) {
        channel_entry_release(channel, entry);
        return QUOIT_ERR_PROTOCOL;
    }
    fresh->frame = *frame;
    fresh->complete = !eager;
    list_append(&entry->unexpected, &fresh->link);
    channel->unexpected++;
    if (eager) *block = fresh;
    return QUOIT_OK;
}

quoit_status_t channel_eager_complete(channel_t *channel, recv_node_t *recv, block_t *block, const frame_t *frame)
{
    if (!block) {
        if (recv) channel_recv_end(channel, recv, QUOIT_OK);
        channel_credit_consume(channel, channel_cost(frame->length));
        return QUOIT_OK;
    }
    block->complete = true;
    recv_node_t *waiting = block->waiting;
    if (!waiting && !block->discard) return QUOIT_OK;
    if (waiting) {
        quoit_status_t status = channel_recv_prepare(channel, waiting);
        if (status != QUOIT_OK) return status;
        if (waiting->length > 0) memcpy(channel_recv_place(waiting), block->payload, waiting->length);
        block->waiting = NULL;
        channel_recv_end(channel, waiting, QUOIT_OK);
    }
    block_done(channel, block);
    return QUOIT_OK;
}

/* A recv meets the oldest start that came before it. */
static quoit_status_t take_unexpected(channel_t *channel, key_entry_t *entry, recv_node_t *recv)
{
    block_t *block = container_of(entry->unexpected.next, block_t, link);
    if (!start_fits(recv, &block->frame)) return refuse(channel, entry, recv, &block->frame);
    list_remove(&block->link);
    channel->unexpected--;
    channel_entry_release(channel, entry);
    recv_started(channel, recv);
    if (block->frame.type == FRAME_ASK) {
        frame_t ask = block->frame;
        channel_block_give(channel, block);
        return ask_started(channel, recv, &ask);
    }
    block->waiting = recv;
    return block->complete ? channel_eager_complete(channel, NULL, block, &block->frame) : QUOIT_OK;
}

static quoit_status_t recv_ended_before(channel_t *channel, const key_entry_t *entry, quoit_key_t key)
{
    if (entry && entry->broken_recv) return error_set(QUOIT_ERR_MISMATCH, "%s", entry->broken_recv);
    if (channel_is_cancelled(channel, key.comm))
        return error_set(QUOIT_ERR_ABORTED, "%s: communicator %llx was cancelled", channel->name, (unsigned long long)key.comm);
    if (entry && !list_is_empty(&entry->unexpected)) return QUOIT_OK;
    return channel_status(channel);
}

static quoit_status_t post_recv(channel_t *channel, quoit_key_t key, void *memory, void *buffer, size_t length, quoit_transfer_t *transfer)
{
    if (!transfer || (!buffer && length > 0) || length > FRAME_LENGTH_LIMIT)
        return error_set(QUOIT_ERR_INVALID, "recv of %zu bytes to %p: no such buffer, or no transfer", length, buffer);
    key_entry_t *entry = channel_entry_find(channel, key);
    transfer->status = recv_ended_before(channel, entry, key);
    if (transfer->status != QUOIT_OK) return QUOIT_OK;

    recv_node_t *recv = (recv_node_t *)(void *)transfer->opaque;
    *recv = (recv_node_t){.key = key, .buffer = buffer, .length = length, .memory = memory};
    list_init(&recv->link);
    transfer->status = QUOIT_IN_PROGRESS;
    quoit_status_t status = QUOIT_OK;
    if (entry && !list_is_empty(&entry->unexpected)) {
        status = take_unexpected(channel, entry, recv);
    } else {
        if (!entry) entry = channel_entry_make(channel, key);
        if (!entry) {
            transfer->status = QUOIT_ERR_NO_MEMORY;
            return QUOIT_OK;
        }
        list_append(&entry->posted, &recv->link);
        if (is_large(channel, length)) status = announce(channel, recv);
    }
    if (status != QUOIT_OK) channel_break(channel, status);
    if (status != QUOIT_OK && transfer->status == QUOIT_IN_PROGRESS) channel_recv_end(channel, recv, status);
    return QUOIT_OK;
}

quoit_status_t channel_recv(channel_t *channel, quoit_key_t key, void *buffer, size_t length, quoit_transfer_t *transfer)
{
    return post_recv(channel, key, NULL, buffer, length, transfer);
}

/* Only direct writing spares the processor the bytes; a peer that lends copies them by itself. */
static quoit_status_t check_device(const channel_t *channel)
{
    if (channel->config.direct && !channel->config.lend) return QUOIT_OK;
    return error_set(QUOIT_ERR_UNSUPPORTED, "%s: messages of this connection go through the processor", channel->name);
}

quoit_status_t channel_device_recv(channel_t *channel, quoit_key_t key, void *memory, void *buffer, size_t length, quoit_transfer_t *transfer)
{
    quoit_status_t status = check_device(channel);
    return status == QUOIT_OK ? post_recv(channel, key, length > 0 ? memory : NULL, buffer, length, transfer) : status;
}

/* ---------------------------------------------------------------- sending side */

static void end_sends_of(channel_t *channel, list_t *list, quoit_key_t key)
{
    for (list_t *link = list->next, *next; link != list; link = next) {
        next = link->next;
        send_node_t *send = container_of(link, send_node_t, link);
        if (send->key.comm == key.comm && send->key.id == key.id) channel_send_end(channel, send, QUOIT_ERR_MISMATCH);
    }
}

/* Everything of the key ends in the mismatch whose text is this thread's. */
static quoit_status_t break_send(channel_t *channel, key_entry_t *entry)
{
    quoit_status_t status = remember_broken(channel, &entry->broken_send);
    while (!list_is_empty(&entry->large_sends))
        channel_send_end(channel, container_of(entry->large_sends.next, send_node_t, link), QUOIT_ERR_MISMATCH);
    while (!list_is_empty(&entry->small_sends))
        channel_send_end(channel, container_of(entry->small_sends.next, send_node_t, link), QUOIT_ERR_MISMATCH);
    while (!list_is_empty(&entry->grants)) channel_block_drop(channel, container_of(entry->grants.next, block_t, link));
    end_sends_of(channel, &channel->active, entry->key);
    end_sends_of(channel, &channel->writing, entry->key);
    end_sends_of(channel, &channel->stopped_sends, entry->key);
    return status;
}

/* The grant of `block` or `frame` and a send met: the send goes off, or the key breaks. */
static quoit_status_t grant_matched(channel_t *channel, key_entry_t *entry, send_node_t *send, const frame_t *grant)
{
    uint32_t what = send_transfer(send)->what;
    if (send->length != grant->total || !operations_fit(what, grant->what)) {
        mismatch(channel, send->key, send->length, what, grant->total, grant->what);
        return break_send(channel, entry);
    }
    list_remove(&send->link);
    channel_entry_release(channel, entry);
    return channel_send_activate(channel, send, grant);
}

quoit_status_t channel_grant_arrived(channel_t *channel, const frame_t *frame)
{
    key_entry_t *entry = channel_entry_find(channel, frame->key);
    if (entry && entry->broken_send) return QUOIT_OK;
    bool large = is_large(channel, frame->total);
    if (entry) {
        list_t *sends = large ? &entry->large_sends : &entry->small_sends;
        if (!list_is_empty(sends))
            return grant_matched(channel, entry, container_of(sends->next, send_node_t, link), frame);
    }
    if (!large || channel_is_cancelled(channel, frame->key.comm)) return QUOIT_OK;
    entry = channel_entry_make(channel, frame->key);
    if (!entry) return QUOIT_ERR_NO_MEMORY;
    block_t *block = channel_block_take(channel, 0);
    if (!block) {
        channel_entry_release(channel, entry);
        return QUOIT_ERR_PROTOCOL;
    }
    block->frame = *frame;
    block->complete = true;
    list_append(&entry->grants, &block->link);
    return QUOIT_OK;
}

quoit_status_t channel_refuse_arrived(channel_t *channel, const frame_t *frame)
{
    if (channel_is_cancelled(channel, frame->key.comm)) return QUOIT_OK;
    key_entry_t *entry = channel_entry_make(channel, frame->key);
    if (!entry) return QUOIT_ERR_NO_MEMORY;
    uint32_t what = 0;
    if (!list_is_empty(&entry->large_sends))
        what = send_transfer(container_of(entry->large_sends.next, send_node_t, link))->what;
    else if (!list_is_empty(&entry->small_sends))
        what = send_transfer(container_of(entry->small_sends.next, send_node_t, link))->what;
    mismatch(channel, frame->key, frame->offset, what, frame->total, frame->what);
    return break_send(channel, entry);
}

static quoit_status_t send_ended_before(channel_t *channel, quoit_key_t key)
{
    quoit_status_t status = channel_status(channel);
    if (status != QUOIT_OK) return status;
    if (channel->closing) return error_set(QUOIT_ERR_CLOSED, "%s: the connection was closed here", channel->name);
    if (channel_is_cancelled(channel, key.comm))
        return error_set(QUOIT_ERR_ABORTED, "%s: communicator %llx was cancelled", channel->name, (unsigned long long)key.comm);
    const key_entry_t *entry = channel->broken > 0 ? channel_entry_find(channel, key) : NULL;
    if (entry && entry->broken_send) return error_set(QUOIT_ERR_MISMATCH, "%s", entry->broken_send);
    return QUOIT_OK;
}

/* Announce the send, and start it when its recv was announced before. */
static quoit_status_t send_ask(channel_t *channel, send_node_t *send)
{
    frame_t frame = {.type = FRAME_ASK, .what = send_transfer(send)->what, .key = send->key, .total = send->length};
    bool large = is_large(channel, send->length);
    key_entry_t *entry = channel_entry_make(channel, send->key);
    if (entry && channel->config.lend) send->assigned = send->written = channel_lend_first(channel, send, &frame);
    quoit_status_t status = entry ? channel_stage(channel, 0, &frame, NULL, 0) : QUOIT_ERR_NO_MEMORY;
    if (status != QUOIT_OK) {
        channel_entry_release(channel, entry);
        return status;
    }
    if (send->written > 0 && send->written == send->length) {
        channel_entry_release(channel, entry);
        channel_send_end(channel, send, QUOIT_OK);
        return QUOIT_OK;
    }
    list_append(large ? &entry->large_sends : &entry->small_sends, &send->link);
    if (!large || list_is_empty(&entry->grants)) return QUOIT_OK;
    block_t *block = container_of(entry->grants.next, block_t, link);
    frame_t grant = block->frame;
    channel_block_drop(channel, block);
    return grant_matched(channel, entry, send, &grant);
}

/* One that fits a frame goes by a loan instead. False: there is none. */
static bool send_lent(channel_t *channel, quoit_key_t key, const void *buffer, size_t length, quoit_transfer_t *transfer)
{
    const lend_ops_t *lend = channel->config.lend;
    if (!lend || lend->least == 0 || length < lend->least) return false;
    frame_t frame = {.type = FRAME_ASK, .what = transfer->what, .key = key, .total = length};
    send_node_t send = {.key = key, .buffer = buffer, .length = length};
    if (channel_lend_first(channel, &send, &frame) < length) return false;
    transfer->status = channel_stage(channel, 0, &frame, NULL, 0);
    if (transfer->status != QUOIT_OK) channel->failing = true; /* the loan is lost */
    return true;
}

static quoit_status_t post_send(channel_t *channel, quoit_key_t key, void *memory, const void *buffer, size_t length, quoit_transfer_t *transfer)
{
    if (!transfer || (!buffer && length > 0) || length > FRAME_LENGTH_LIMIT)
        return error_set(QUOIT_ERR_INVALID, "send of %zu bytes from %p: no such buffer, or no transfer", length, buffer);
    transfer->status = send_ended_before(channel, key);
    if (transfer->status != QUOIT_OK) return QUOIT_OK;
    uint64_t cost = channel_cost(length);
    if (length <= channel->config.eager_limit && cost <= channel->credit && !memory) {
        if (send_lent(channel, key, buffer, length, transfer)) return QUOIT_OK;
        frame_t frame = {.type = FRAME_EAGER, .what = transfer->what, .key = key, .total = length, .length = length};
        transfer->status = channel_stage(channel, 0, &frame, buffer, length);
        if (transfer->status == QUOIT_OK) channel->credit -= cost;
        return QUOIT_OK;
    }
    send_node_t *send = (send_node_t *)(void *)transfer->opaque;
    *send = (send_node_t){.key = key, .buffer = buffer, .length = length, .memory = memory};
    list_init(&send->link);
    transfer->status = QUOIT_IN_PROGRESS;
    quoit_status_t status = send_ask(channel, send);
    if (status == QUOIT_OK) return QUOIT_OK;
    if (transfer->status == QUOIT_IN_PROGRESS) channel_send_end(channel, send, status);
    return QUOIT_OK;
}

quoit_status_t channel_send(channel_t *channel, quoit_key_t key, const void *buffer, size_t length, quoit_transfer_t *transfer)
{
    return post_send(channel, key, NULL, buffer, length, transfer);
}

quoit_status_t channel_device_send(channel_t *channel, quoit_key_t key, void *memory, const void *buffer, size_t length, quoit_transfer_t *transfer)
{
    quoit_status_t status = check_device(channel);
    return status == QUOIT_OK ? post_send(channel, key, length > 0 ? memory : NULL, buffer, length, transfer) : status;
}
