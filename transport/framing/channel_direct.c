/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct writing: the part of the protocol that only transports with direct_ops_t use. A grant carries address and key; the sender's
 * transport writes the whole message there and a token tells the receiver that all bytes are in. When a recv ends otherwise while its
 * grant is out, REVOKE says so on the stream, and the transport stops the writing at once, by its own means.
 */
#include "transport/framing/channel_internal.h"

#include <stdlib.h>
#include <string.h>

bool channel_write_directly(channel_t *channel, send_node_t *send, const frame_t *grant)
{
    const direct_ops_t *direct = channel->config.direct;
    uint32_t token;
    if (!direct || !grant->direct || !channel_grant_token(grant->grant, &token)) return false;
    send->writing = direct->begin(channel->config.direct_context, send->buffer, send->length, send->memory, grant->offset, grant->remote_key,
                                  grant->direct, token, send);
    if (!send->writing) return false;
    list_append(&channel->writing, &send->link);
    return true;
}

void channel_written(channel_t *channel, void *send)
{
    send_node_t *node = send;
    node->writing = NULL;
    channel_send_end(channel, node, QUOIT_OK);
}

uint64_t channel_arrived(channel_t *channel, uint32_t token)
{
    recv_node_t *recv = NULL;
    if (channel->status != QUOIT_OK) return 0;
    quoit_status_t status = channel_token_find(channel, token, &recv);
    if (status == QUOIT_OK && recv && (!recv->window || recv->claimed > 0))
        status = error_set(QUOIT_ERR_PROTOCOL, "the end of a direct write, token %08x, of a message that comes otherwise", token);
    if (status != QUOIT_OK) channel_break(channel, status);
    if (status != QUOIT_OK || !recv) return 0;
    uint64_t piece = channel->config.direct->piece(channel->config.direct_context, recv->length), left = recv->length - recv->received;
    if (piece > left) piece = left; /* the pieces' order does not matter: all but one have this size, and the sum tells the last to come */
    recv->received += piece;
    if (recv->received == recv->length) recv->claimed = recv->length;
    channel_recv_check(channel, recv);
    return piece;
}

static bool is_listed(const list_t *list, const list_t *link)
{
    for (const list_t *each = list->next; each != list; each = each->next)
        if (each == link) return true;
    return false;
}

quoit_status_t channel_device_host(channel_t *channel, quoit_transfer_t *transfer, void *host)
{
    recv_node_t *recv = (recv_node_t *)(void *)transfer->opaque;
    send_node_t *send = (send_node_t *)(void *)transfer->opaque;
    if (transfer->status != QUOIT_ERR_AGAIN || !host)
        return error_set(QUOIT_ERR_INVALID, "%s: memory of the host at %p for a transfer that did not ask for any", channel->name, host);
    if (is_listed(&channel->stopped_recvs, &recv->link)) {
        memcpy(host, recv->bounce, recv->length);
        list_remove(&recv->link);
        free(recv->bounce);
        transfer->status = QUOIT_OK;
        return QUOIT_OK;
    }
    list_remove(&send->link);
    send->memory = NULL;
    send->buffer = host;
    transfer->status = QUOIT_IN_PROGRESS;
    quoit_status_t status = channel_send_go(channel, send);
    if (status != QUOIT_OK) channel_break(channel, status);
    return QUOIT_OK;
}

void channel_count_direct(channel_t *channel, uint64_t sent, uint64_t received)
{
    channel->sent += sent;
    channel->received += received;
}

/* The sender's bytes are not wanted any more. Over pipes they would go out and be dropped there; the send is as done. */
quoit_status_t channel_revoke_arrived(channel_t *channel, const frame_t *frame)
{
    if (!channel->config.direct) return error_set(QUOIT_ERR_PROTOCOL, "a revoked grant on a connection without direct writing");
    for (list_t *link = channel->writing.next; link != &channel->writing; link = link->next) {
        send_node_t *send = container_of(link, send_node_t, link);
        if (send->grant != frame->grant) continue;
        channel_send_end(channel, send, QUOIT_OK);
        return QUOIT_OK;
    }
    key_entry_t *entry = channel_entry_find(channel, frame->key);
    if (!entry) return QUOIT_OK;
    for (list_t *link = entry->grants.next; link != &entry->grants; link = link->next) {
        block_t *block = container_of(link, block_t, link);
        if (block->frame.grant == frame->grant) block->frame.direct = 0; /* its send will go through the pipes, and be dropped */
    }
    return QUOIT_OK;
}

quoit_status_t channel_path(channel_t *channel, uint32_t kind, uint64_t epoch, uint64_t number, uint64_t count)
{
    frame_t frame = {.type = FRAME_PATH, .what = kind, .grant = epoch, .offset = number, .total = count};
    return channel_stage(channel, 0, &frame, NULL, 0);
}

quoit_status_t channel_path_arrived(channel_t *channel, const frame_t *frame)
{
    const direct_ops_t *direct = channel->config.direct;
    if (!direct) return error_set(QUOIT_ERR_PROTOCOL, "a frame for the direct path on a connection without one");
    return direct->path(channel->config.direct_context, frame->what, frame->grant, frame->offset, frame->total);
}
