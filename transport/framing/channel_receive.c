/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading: one state machine a pipe over header, payload, ending byte. Headers and small payloads come through a buffer; the bulk of
 * a payload is read straight to its final place, together with the bytes that follow it, in one call.
 */
#include "transport/framing/channel_rails.h"

#include <stdio.h>
#include <string.h>

enum { LAST_BYTES = 16 << 20 }; /* read of a pipe when another one has ended: more than a socket holds */

quoit_status_t channel_piece_claim(channel_t *channel, const frame_t *frame, recv_node_t **result)
{
    recv_node_t *recv;
    quoit_status_t status = channel_grant_find(channel, frame->grant, &recv);
    *result = NULL;
    if (status != QUOIT_OK || !recv) return status;
    if (recv->received > recv->claimed) return error_set(QUOIT_ERR_PROTOCOL, "data of a message that is written directly");
    if (frame->total != recv->length || frame->length > recv->length - recv->claimed)
        return error_set(QUOIT_ERR_PROTOCOL, "data of %llu bytes for a message of %llu, where %llu of %llu bytes are missing",
                         (unsigned long long)frame->length, (unsigned long long)frame->total,
                         (unsigned long long)(recv->length - recv->claimed), (unsigned long long)recv->length);
    status = channel_recv_prepare(channel, recv);
    if (status != QUOIT_OK) return status;
    recv->claimed += frame->length;
    *result = recv;
    return QUOIT_OK;
}

static quoit_status_t notice_begin(channel_t *channel, inlet_t *inlet)
{
    inlet->block = channel_block_take(channel, (size_t)inlet->frame.length);
    if (!inlet->block) return QUOIT_ERR_PROTOCOL;
    inlet->block->frame = inlet->frame;
    return QUOIT_OK;
}

/* A notice that is here already. */
static quoit_status_t note_arrived(channel_t *channel, const frame_t *frame)
{
    block_t *block = channel_block_take(channel, (size_t)frame->length);
    if (!block) return QUOIT_ERR_PROTOCOL;
    block->frame.type = frame->type;
    block->frame.length = frame->length;
    if (frame->length > 0) memcpy(block->payload, frame->inside, (size_t)frame->length);
    block->complete = true;
    list_append(&channel->notices, &block->link);
    return QUOIT_OK;
}

/* The peer spends its credit; more than the pool is a fault of the peer. */
static quoit_status_t credit_spent(channel_t *channel, const frame_t *frame)
{
    channel->held += channel_cost(frame->length);
    if (channel->held > channel->pool)
        return error_set(QUOIT_ERR_PROTOCOL, "unasked messages of %llu bytes, beyond the pool of %llu",
                         (unsigned long long)channel->held, (unsigned long long)channel->pool);
    return QUOIT_OK;
}

static quoit_status_t credit_arrived(channel_t *channel, const frame_t *frame)
{
    if (frame->length > channel->pool - channel->credit)
        return error_set(QUOIT_ERR_PROTOCOL, "credit of %llu bytes, more than was spent", (unsigned long long)frame->length);
    channel->credit += frame->length;
    return QUOIT_OK;
}

static quoit_status_t bye_arrived(channel_t *channel, inlet_t *inlet)
{
    inlet->bye = true;
    for (int i = 0; i < channel->count; i++)
        if (!channel->inlets[i].bye && !channel->rails) return QUOIT_OK; /* with rails it was said when all had arrived */
    channel_goodbye(channel);
    return QUOIT_OK;
}

/* A header was parsed: where does its payload go? */
static quoit_status_t frame_begin(channel_t *channel, inlet_t *inlet)
{
    const frame_t *frame = &inlet->frame;
    quoit_status_t status;
    inlet->recv = NULL;
    inlet->block = NULL;
    if (channel->rails && channel_rails_resume(channel, inlet, &status)) return status;
    if (!channel->rails && inlet != channel->inlets && frame->type != FRAME_DATA && frame->type != FRAME_BYE)
        return error_set(QUOIT_ERR_PROTOCOL, "frame %s on pipe %d, it belongs to the first", frame_type_name(frame->type),
                         (int)(inlet - channel->inlets));
    switch (frame->type) {
    case FRAME_EAGER:
        status = credit_spent(channel, frame);
        return status == QUOIT_OK ? channel_start_arrived(channel, frame, &inlet->recv, &inlet->block) : status;
    case FRAME_ASK: return channel_start_arrived(channel, frame, &inlet->recv, &inlet->block);
    case FRAME_GRANT: return channel_grant_arrived(channel, frame);
    case FRAME_DATA: return channel_piece_claim(channel, frame, &inlet->recv);
    case FRAME_LENT: return channel_lent_arrived(channel, frame);
    case FRAME_REFUSE: return channel_refuse_arrived(channel, frame);
    case FRAME_CREDIT: return credit_arrived(channel, frame);
    case FRAME_NOTICE:
        status = frame->length > QUOIT_NOTICE_SMALL ? credit_spent(channel, frame) : QUOIT_OK;
        return status == QUOIT_OK ? notice_begin(channel, inlet) : status;
    case FRAME_NOTE: return note_arrived(channel, frame);
    case FRAME_REVOKE: return channel_revoke_arrived(channel, frame);
    case FRAME_PATH: return channel_path_arrived(channel, frame);
    case FRAME_RECEIPT:
    case FRAME_LOST:
        if (!channel->rails) return error_set(QUOIT_ERR_PROTOCOL, "a frame %s on a connection without rails", frame_type_name(frame->type));
        return frame->type == FRAME_LOST ? channel_rails_lost_arrived(channel, (int)(inlet - channel->inlets), frame)
                                         : channel_rails_receipt_arrived(channel, (int)(inlet - channel->inlets), frame);
    default: return bye_arrived(channel, inlet);
    }
}

/* The payload is here, and for DATA the byte that tells whether it is good. */
static quoit_status_t frame_end(channel_t *channel, inlet_t *inlet, bool good)
{
    recv_node_t *recv = inlet->recv;
    block_t *block = inlet->block;
    inlet->recv = NULL;
    inlet->block = NULL;
    inlet->phase = INLET_HEADER;
    if (channel->rails) channel_rails_taken(channel, (int)(inlet - channel->inlets), inlet->frame.type);
    switch (inlet->frame.type) {
    case FRAME_EAGER: return channel_eager_complete(channel, recv, block, &inlet->frame);
    case FRAME_NOTICE:
        block->complete = true;
        list_append(&channel->notices, &block->link);
        return QUOIT_OK;
    case FRAME_DATA:
        if (!recv) return QUOIT_OK;
        if (good) recv->received += inlet->frame.length;
        else recv->broken = true;
        channel_recv_check(channel, recv);
        return QUOIT_OK;
    default: return QUOIT_OK;
    }
}

static unsigned char *payload_place(const inlet_t *inlet)
{
    if (inlet->payload == 0) return NULL;
    if (inlet->recv) return channel_recv_place(inlet->recv) + inlet->frame.offset + inlet->done;
    if (inlet->block) return inlet->block->payload + inlet->done;
    return NULL;
}

static inline __attribute__((always_inline)) quoit_status_t header_arrived(channel_t *channel, inlet_t *inlet, const unsigned char *header)
{
    quoit_status_t status = frame_parse(header, channel->config.eager_limit, channel->config.segment_size, &inlet->frame);
    if (status == QUOIT_OK) status = frame_begin(channel, inlet);
    inlet->payload = frame_payload(&inlet->frame);
    inlet->done = 0;
    inlet->phase = INLET_PAYLOAD;
    return status;
}

/* One step over bytes in the buffer; *moved false: more bytes are needed. */
static quoit_status_t inlet_step(channel_t *channel, inlet_t *inlet, bool *moved)
{
    size_t available = inlet->end - inlet->start;
    const unsigned char *bytes = inlet->buffer + inlet->start;
    quoit_status_t status = QUOIT_OK;
    *moved = false;
    if (inlet->phase == INLET_HEADER) {
        if (available < FRAME_HEADER_SIZE) return QUOIT_OK;
        if (inlet->bye) return error_set(QUOIT_ERR_PROTOCOL, "%zu bytes after the goodbye", available);
        inlet->start += FRAME_HEADER_SIZE;
        status = header_arrived(channel, inlet, bytes);
        *moved = true;
    }
    if (status == QUOIT_OK && inlet->phase == INLET_PAYLOAD) {
        uint64_t left = inlet->payload - inlet->done;
        available = inlet->end - inlet->start;
        size_t part = available < left ? available : (size_t)left;
        unsigned char *place = part > 0 ? payload_place(inlet) : NULL;
        if (place) memcpy(place, inlet->buffer + inlet->start, part);
        inlet->start += part;
        inlet->done += part;
        if (part > 0) *moved = true;
        if (inlet->done < inlet->payload) return QUOIT_OK;
        *moved = true;
        if (inlet->frame.type != FRAME_DATA) return frame_end(channel, inlet, true);
        inlet->phase = INLET_TRAILER;
    }
    if (status == QUOIT_OK && inlet->phase == INLET_TRAILER && inlet->start < inlet->end) {
        unsigned char trailer = inlet->buffer[inlet->start++];
        *moved = true;
        if (trailer > 1) return error_set(QUOIT_ERR_PROTOCOL, "data that ends with byte %u instead of 0 or 1", trailer);
        return frame_end(channel, inlet, trailer == 1);
    }
    return status;
}

/* Handle all that is in the buffer; number of steps. */
static int inlet_consume(channel_t *channel, inlet_t *inlet)
{
    int handled = 0;
    bool moved;
    do {
        quoit_status_t status = inlet_step(channel, inlet, &moved);
        if (status != QUOIT_OK) {
            channel_break(channel, status);
            return handled + 1;
        }
        handled += moved;
    } while (moved && inlet->start < inlet->end && channel->status == QUOIT_OK); /* each step goes as far as the bytes allow */
    return handled;
}

/* Read once: the payload under way to its place, what follows it to the buffer. *emptied: a further read would find nothing. */
static quoit_status_t inlet_fill(channel_t *channel, int pipe, size_t budget, size_t *got, bool *emptied)
{
    inlet_t *inlet = &channel->inlets[pipe];
    struct iovec iov[2];
    int count = 0;
    size_t left = inlet->end - inlet->start, direct = 0, room = CHANNEL_READ_CAPACITY;
    if (left > 0) memmove(inlet->buffer, inlet->buffer + inlet->start, left);
    inlet->start = 0;
    inlet->end = left;
    unsigned char *place = inlet->phase == INLET_PAYLOAD ? payload_place(inlet) : NULL;
    if (place) {
        uint64_t missing = inlet->payload - inlet->done;
        direct = missing < budget ? (size_t)missing : budget;
        iov[count++] = (struct iovec){.iov_base = place, .iov_len = direct};
        /* After a segment comes most likely another one, whose payload is better read to its place. */
        room = direct < missing ? 0 : inlet->frame.type == FRAME_DATA ? FRAME_HEADER_SIZE + 1 : CHANNEL_READ_CAPACITY;
    }
    if (room > CHANNEL_READ_CAPACITY - left) room = CHANNEL_READ_CAPACITY - left;
    if (room > 0) iov[count++] = (struct iovec){.iov_base = inlet->buffer + left, .iov_len = room};
    quoit_status_t status = channel->config.ops->read(channel->pipes[pipe], iov, count, got);
    if (status != QUOIT_OK) return status;
    *emptied = channel->config.in_memory && *got < direct + room;
    size_t placed = *got < direct ? *got : direct;
    inlet->done += placed;
    inlet->end += *got - placed;
    return QUOIT_OK;
}

/*
 * Where a pipe is memory: the frame that begins there is taken from its place, a copy of its header at once (whatever the peer does to it meanwhile), and its
 * payload if all of it is there; else that comes by what is read next. Number of bytes; 0: nothing begins there, or it is to be read.
 */
static size_t take_in_place(channel_t *channel, int pipe, bool *emptied)
{
    inlet_t *inlet = &channel->inlets[pipe];
    const pipe_ops_t *ops = channel->config.ops;
    uint8_t header[FRAME_HEADER_SIZE];
    if (inlet->phase != INLET_HEADER || inlet->start < inlet->end) return 0;
    const unsigned char *there = ops->peek(channel->pipes[pipe], sizeof header);
    if (!there) return 0;
    memcpy(header, there, sizeof header);
    *emptied = !ops->skip(channel->pipes[pipe], sizeof header);
    size_t got = sizeof header;
    quoit_status_t status = header_arrived(channel, inlet, header);
    if (status == QUOIT_OK && inlet->frame.type != FRAME_DATA) {
        size_t length = (size_t)inlet->payload;
        there = length > 0 ? ops->peek(channel->pipes[pipe], length) : NULL;
        if (there) {
            unsigned char *place = payload_place(inlet);
            if (place) memcpy(place, there, length);
            *emptied = !ops->skip(channel->pipes[pipe], length);
            got += length;
        }
        if (there || length == 0) status = frame_end(channel, inlet, true);
    }
    if (status != QUOIT_OK) channel_break(channel, status);
    return got;
}

/* ERR_AGAIN: all that is there was read, or the budget is spent; else how the pipe ended. *handled rises by the steps. */
static quoit_status_t read_pipe(channel_t *channel, int pipe, size_t budget, int *handled)
{
    inlet_t *inlet = &channel->inlets[pipe];
    bool emptied = false;
    while (budget > 0 && !emptied && channel->status == QUOIT_OK && !inlet->bye) {
        uint64_t borrowed = channel->borrowed;
        size_t got = channel->config.ops->peek ? take_in_place(channel, pipe, &emptied) : 0;
        if (got > 0) {
            ++*handled;
        } else {
            quoit_status_t status = inlet_fill(channel, pipe, budget, &got, &emptied);
            if (status != QUOIT_OK) return status;
            *handled += 1 + inlet_consume(channel, inlet);
        }
        channel->received += got;
        got += (size_t)(channel->borrowed - borrowed);
        budget -= got < budget ? got : budget;
    }
    return QUOIT_ERR_AGAIN;
}

/* One pipe has ended, which ends all. The others may hold the rest of messages that came before. Keeps this thread's text. */
static void read_others(channel_t *channel, int ended)
{
    char text[ERROR_TEXT_CAPACITY];
    int handled = 0;
    snprintf(text, sizeof text, "%s", error_text());
    for (int pipe = 0; pipe < channel->count && channel->status == QUOIT_OK; pipe++)
        if (pipe != ended) (void)read_pipe(channel, pipe, LAST_BYTES, &handled);
    error_set(QUOIT_ERR_PEER, "%s", text);
}

int channel_read(channel_t *channel, int pipe, size_t budget)
{
    if (pipe < 0 || pipe >= channel->count) return 0;
    int handled = 0;
    if (channel->rails && channel->rails->pipe[pipe].lost) return 0;
    if (channel->failing) channel_break(channel, error_set(QUOIT_ERR_NO_MEMORY, "no memory to tell the peer that a message has ended"));
    quoit_status_t status = read_pipe(channel, pipe, budget, &handled);
    if (status != QUOIT_ERR_AGAIN) {
        if (status == QUOIT_ERR_CLOSED)
            status = error_set(QUOIT_ERR_PEER, "the connection ended without a goodbye: the peer's process exited or the link was cut");
        if (!channel->rails) read_others(channel, pipe);
        channel_lose(channel, pipe, status);
        return handled + 1;
    }
    if (channel->rails) channel_rails_acknowledge(channel, pipe);
    return handled;
}
