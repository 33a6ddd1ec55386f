/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel's life: made without pipes, opened, failed or said goodbye to, destroyed; cancelling a communicator; notices.
 */
#include "base/hash.h"
#include "transport/framing/channel_rails.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

quoit_status_t channel_create(const channel_config_t *config, const char *name, channel_t **channel)
{
    channel_t *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for the connection to %s", name);
    fresh->config = *config;
    /* A small message that had no credit is one segment. */
    if (fresh->config.segment_size < config->eager_limit) fresh->config.segment_size = config->eager_limit;
    snprintf(fresh->name, sizeof fresh->name, "%s", name);
    /* Whatever was consumed is given back in quarters of the pool: three quarters must suffice for the largest message. */
    uint64_t least = 2 * channel_cost(config->eager_limit > QUOIT_NOTICE_SMALL ? config->eager_limit : QUOIT_NOTICE_SMALL);
    fresh->pool = fresh->credit = config->eager_pool > least ? config->eager_pool : least;
    fresh->unasked = config->lend && config->lend->piece > config->eager_limit ? config->lend->piece : config->eager_limit;
    fresh->free_slot = UINT32_MAX;
    list_init(&fresh->active);
    list_init(&fresh->writing);
    list_init(&fresh->stopped_sends);
    list_init(&fresh->stopped_recvs);
    list_init(&fresh->receiving);
    list_init(&fresh->notices);
    list_init(&fresh->free_stages);
    for (int i = 0; i < CHANNEL_BLOCK_CLASSES; i++) list_init(&fresh->free_blocks[i]);
    for (int i = 0; i < CHANNEL_MAX_PIPES; i++) list_init(&fresh->outlets[i].stages);
    if (config->rails && channel_rails_create(fresh) != QUOIT_OK) {
        free(fresh);
        return QUOIT_ERR_NO_MEMORY;
    }
    *channel = fresh;
    return QUOIT_OK;
}

void channel_open(channel_t *channel, const char *name, void *const *pipes, int count)
{
    if (channel->status != QUOIT_OK) return;
    if (name) snprintf(channel->name, sizeof channel->name, "%s", name);
    for (int i = 0; i < count && i < CHANNEL_MAX_PIPES; i++) {
        channel->pipes[i] = pipes[i];
        channel->inlets[i].buffer = malloc(CHANNEL_READ_CAPACITY);
        if (!channel->inlets[i].buffer) {
            error_set(QUOIT_ERR_NO_MEMORY, "no memory for the connection's buffers");
            channel_break(channel, QUOIT_ERR_NO_MEMORY);
            return;
        }
    }
    channel->count = count < CHANNEL_MAX_PIPES ? count : CHANNEL_MAX_PIPES;
    if (channel->rails) channel_rails_open(channel);
}

void channel_destroy(channel_t *channel)
{
    if (!channel) return;
    while (!list_is_empty(&channel->stopped_recvs))
        channel_recv_end(channel, container_of(channel->stopped_recvs.next, recv_node_t, link), QUOIT_ERR_CLOSED);
    channel_rails_free(channel);
    channel_memory_free(channel);
    free(channel->text);
    free(channel);
}

/* ---------------------------------------------------------------- ends */

static void end_sends(channel_t *channel, list_t *list, quoit_status_t status)
{
    while (!list_is_empty(list)) channel_send_end(channel, container_of(list->next, send_node_t, link), status);
}

static void end_recvs(channel_t *channel, list_t *list, quoit_status_t status)
{
    while (!list_is_empty(list)) channel_recv_end(channel, container_of(list->next, recv_node_t, link), status);
}

/* Drop what came of the key: all, or (only_asks) what can never be fetched any more. */
static void drop_unexpected(channel_t *channel, key_entry_t *entry, bool only_asks)
{
    for (list_t *link = entry->unexpected.next, *next; link != &entry->unexpected; link = next) {
        next = link->next;
        block_t *block = container_of(link, block_t, link);
        bool kept = only_asks && block->complete && (block->frame.type == FRAME_EAGER || channel_loan_keep(channel, block));
        if (!kept) channel_block_drop(channel, block);
    }
}

static void entry_end(channel_t *channel, key_entry_t *entry, quoit_status_t status, bool only_asks)
{
    end_sends(channel, &entry->large_sends, status);
    end_sends(channel, &entry->small_sends, status);
    end_recvs(channel, &entry->posted, status);
    while (!list_is_empty(&entry->grants)) channel_block_drop(channel, container_of(entry->grants.next, block_t, link));
    drop_unexpected(channel, entry, only_asks);
}

/* End all transfers. The status must be set already, so that nothing is staged on the way. */
static void end_everything(channel_t *channel, bool only_asks)
{
    quoit_status_t status = channel->status;
    for (int i = 0; i < channel->count; i++)
        if (channel->outlets[i].send) channel_send_end(channel, channel->outlets[i].send, status);
    end_sends(channel, &channel->active, status);
    end_sends(channel, &channel->writing, status);
    end_sends(channel, &channel->stopped_sends, status);
    if (!only_asks) end_recvs(channel, &channel->stopped_recvs, status); /* all of it is here */
    end_recvs(channel, &channel->receiving, status);
    for (size_t i = 0; i < channel->bucket_count; i++) {
        for (key_entry_t *entry = channel->buckets[i], *next; entry; entry = next) {
            next = entry->next;
            entry_end(channel, entry, status, only_asks);
            channel_entry_release(channel, entry);
        }
    }
}

void channel_fail(channel_t *channel, quoit_status_t status)
{
    if (channel->status != QUOIT_OK) return;
    channel->status = status;
    channel->text = strdup(error_text());
    end_everything(channel, false);
    for (int i = 0; i < CHANNEL_MAX_PIPES; i++) channel_outlet_clear(channel, i);
    if (channel->rails) channel_rails_clear(channel);
}

quoit_status_t channel_break(channel_t *channel, quoit_status_t status)
{
    if (channel->status != QUOIT_OK) return channel->status;
    error_prefix(status, "%s", channel->name);
    channel_fail(channel, status);
    return status;
}

void channel_goodbye(channel_t *channel)
{
    if (channel->status != QUOIT_OK) return;
    error_set(QUOIT_ERR_CLOSED, "%s said goodbye", channel->name);
    channel->goodbye = true;
    channel->status = QUOIT_ERR_CLOSED;
    channel->text = strdup(error_text());
    end_everything(channel, true);
}

quoit_status_t channel_status(const channel_t *channel)
{
    if (channel->status == QUOIT_OK) return QUOIT_OK;
    return error_set(channel->status, "%s", channel->text ? channel->text : quoit_status_text(channel->status));
}

void channel_close(channel_t *channel) { channel->closing = true; }

bool channel_peer_closed(const channel_t *channel)
{
    return channel->goodbye && list_is_empty(&channel->notices) && channel->unexpected == 0 && list_is_empty(&channel->stopped_recvs);
}

void channel_count(const channel_t *channel, uint64_t *sent, uint64_t *received)
{
    *sent = channel->sent;
    *received = channel->received;
}

/* ---------------------------------------------------------------- cancelled communicators */

bool channel_is_cancelled(const channel_t *channel, uint64_t comm)
{
    if (!channel->any_cancelled) return false;
    if (comm == 0) return channel->zero_cancelled;
    const uint64_t *set = channel->cancelled[hash_mix(comm) % CHANNEL_CANCELLED_SETS];
    for (int i = 0; i < CHANNEL_CANCELLED_WAYS; i++)
        if (set[i] == comm) return true;
    return false;
}

/* Bounded: the newest CHANNEL_CANCELLED_WAYS of each set are known; of older ones nothing is under way any more. */
static void remember_cancelled(channel_t *channel, uint64_t comm)
{
    if (channel_is_cancelled(channel, comm)) return;
    channel->any_cancelled = true;
    if (comm == 0) {
        channel->zero_cancelled = true;
        return;
    }
    size_t set = hash_mix(comm) % CHANNEL_CANCELLED_SETS;
    channel->cancelled[set][channel->cancelled_next[set]] = comm;
    channel->cancelled_next[set] = (uint8_t)((channel->cancelled_next[set] + 1) % CHANNEL_CANCELLED_WAYS);
}

static void cancel_list_sends(channel_t *channel, list_t *list, uint64_t comm)
{
    for (list_t *link = list->next, *next; link != list; link = next) {
        next = link->next;
        send_node_t *send = container_of(link, send_node_t, link);
        if (send->key.comm == comm) channel_send_end(channel, send, QUOIT_ERR_ABORTED);
    }
}

static void cancel_list_recvs(channel_t *channel, list_t *list, uint64_t comm)
{
    for (list_t *link = list->next, *next; link != list; link = next) {
        next = link->next;
        recv_node_t *recv = container_of(link, recv_node_t, link);
        if (recv->key.comm == comm) channel_recv_end(channel, recv, QUOIT_ERR_ABORTED);
    }
}

/* A broken key is forgotten with its communicator. */
static void forget_broken(channel_t *channel, char **text)
{
    if (!*text) return;
    free(*text);
    *text = NULL;
    channel->broken--;
}

void channel_cancel(channel_t *channel, uint64_t comm)
{
    remember_cancelled(channel, comm);
    for (int i = 0; i < channel->count; i++) {
        send_node_t *send = channel->outlets[i].send;
        if (send && send->key.comm == comm) channel_send_end(channel, send, QUOIT_ERR_ABORTED);
    }
    cancel_list_sends(channel, &channel->active, comm);
    cancel_list_sends(channel, &channel->writing, comm);
    cancel_list_sends(channel, &channel->stopped_sends, comm);
    cancel_list_recvs(channel, &channel->stopped_recvs, comm);
    cancel_list_recvs(channel, &channel->receiving, comm);
    for (size_t i = 0; i < channel->bucket_count; i++) {
        for (key_entry_t *entry = channel->buckets[i], *next; entry; entry = next) {
            next = entry->next;
            if (entry->key.comm != comm) continue;
            entry_end(channel, entry, QUOIT_ERR_ABORTED, false);
            forget_broken(channel, &entry->broken_send);
            forget_broken(channel, &entry->broken_recv);
            channel_entry_release(channel, entry);
        }
    }
}

/* ---------------------------------------------------------------- notices */

quoit_status_t channel_notify(channel_t *channel, const void *data, size_t length)
{
    size_t limit = channel->config.eager_limit > QUOIT_NOTICE_SMALL ? channel->config.eager_limit : QUOIT_NOTICE_SMALL;
    if ((!data && length > 0) || length > limit)
        return error_set(QUOIT_ERR_INVALID, "notice of %zu bytes: at most %zu are possible (QUOIT_EAGER_LIMIT)", length, limit);
    quoit_status_t status = channel_status(channel);
    if (status != QUOIT_OK) return status;
    if (channel->closing) return error_set(QUOIT_ERR_CLOSED, "%s: the connection was closed here", channel->name);
    if (length <= FRAME_NOTE_MOST) {
        frame_t note = {.type = FRAME_NOTE, .total = length, .length = length, .inside = data};
        return channel_stage(channel, 0, &note, NULL, 0);
    }
    uint64_t cost = length > QUOIT_NOTICE_SMALL ? channel_cost(length) : 0;
    if (cost > channel->credit)
        return error_set(QUOIT_ERR_AGAIN, "%s: notice of %zu bytes, but only %llu bytes of credit are left", channel->name, length,
                         (unsigned long long)channel->credit);
    frame_t frame = {.type = FRAME_NOTICE, .total = length, .length = length};
    status = channel_stage(channel, 0, &frame, data, length);
    if (status == QUOIT_OK) channel->credit -= cost;
    return status;
}

bool channel_next_notice(channel_t *channel, const void **data, size_t *length)
{
    if (channel->shown) {
        block_t *block = channel->shown;
        channel->shown = NULL;
        if (block->frame.length > QUOIT_NOTICE_SMALL) channel_credit_consume(channel, channel_cost(block->frame.length));
        channel_block_give(channel, block);
    }
    list_t *link = list_pop(&channel->notices);
    if (!link) return false;
    channel->shown = container_of(link, block_t, link);
    *data = channel->shown->payload;
    *length = (size_t)channel->shown->frame.length;
    return true;
}

bool channel_has_notice(const channel_t *channel)
{
    return !list_is_empty(&channel->notices) || (channel->shown && channel->shown->frame.length > QUOIT_NOTICE_SMALL);
}
