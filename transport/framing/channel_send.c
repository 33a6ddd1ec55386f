/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing: each pipe has a queue of staged bytes (small frames, copied, so that many go out in one call) and at most one DATA frame
 * under way, whose payload is read from the user's memory. Staged bytes go first, but never into the middle of a DATA frame. A pipe
 * takes the next segment when it has nothing left, so the least loaded pipe carries most.
 */
#include "transport/framing/channel_rails.h"

#include <stdlib.h>
#include <string.h>

enum { IOV_CAPACITY = 40, ZERO_PAGE = 4096, FREE_STAGES_KEPT = 8 };

static const unsigned char zero_page[ZERO_PAGE];

typedef struct gather {
    struct iovec iov[IOV_CAPACITY];
    int count;
    size_t bytes, budget;
} gather_t;

/* False when it did not fit whole: nothing may follow then. */
static bool gather_add(gather_t *gather, const void *data, size_t length)
{
    if (length == 0) return true;
    size_t room = gather->budget - gather->bytes;
    if (gather->count == IOV_CAPACITY || room == 0) return false;
    size_t part = length < room ? length : room;
    gather->iov[gather->count++] = (struct iovec){.iov_base = (void *)(uintptr_t)data, .iov_len = part};
    gather->bytes += part;
    return part == length;
}

/* ---------------------------------------------------------------- staged bytes */

static bool stages_reserve(channel_t *channel, size_t bytes)
{
    size_t wanted = (bytes + CHANNEL_STAGE_CAPACITY - 1) / CHANNEL_STAGE_CAPACITY;
    while (channel->free_stage_count < wanted) {
        stage_t *stage = malloc(sizeof *stage);
        if (!stage) return false;
        list_append(&channel->free_stages, &stage->link);
        channel->free_stage_count++;
    }
    return true;
}

/* Room was reserved. */
static void stages_append(channel_t *channel, outlet_t *outlet, const void *data, size_t length)
{
    const unsigned char *bytes = data;
    while (length > 0) {
        stage_t *stage = list_is_empty(&outlet->stages) ? NULL : container_of(outlet->stages.previous, stage_t, link);
        if (!stage || stage->end == CHANNEL_STAGE_CAPACITY) {
            stage = container_of(list_pop(&channel->free_stages), stage_t, link);
            channel->free_stage_count--;
            stage->start = stage->end = 0;
            list_append(&outlet->stages, &stage->link);
        }
        size_t room = CHANNEL_STAGE_CAPACITY - stage->end, part = length < room ? length : room;
        memcpy(stage->bytes + stage->end, bytes, part);
        stage->end += part;
        bytes += part;
        length -= part;
    }
}

/* Pipes that are memory, with nothing before this: is it of use to write at once? */
static bool is_open_to(const channel_t *channel, int pipe)
{
    const outlet_t *outlet = &channel->outlets[pipe];
    return channel->config.in_memory && pipe < channel->count && !outlet->busy && list_is_empty(&outlet->stages);
}

/* The frame is written where it is to lie, if there is room for all of it in one piece; `bytes` long. */
static bool write_in_place(channel_t *channel, int pipe, const frame_t *frame, const void *data, size_t length, size_t bytes)
{
    const pipe_ops_t *ops = channel->config.ops;
    unsigned char *place = ops->place ? ops->place(channel->pipes[pipe], bytes) : NULL;
    if (!place) return false;
    frame_write(frame, place);
    if (length > 0) memcpy(place + FRAME_HEADER_SIZE, data, length);
    if (frame->type == FRAME_DATA) place[bytes - 1] = 1;
    ops->commit(channel->pipes[pipe], bytes);
    channel->sent += bytes;
    return true;
}

/* What the pipe takes at once need not be staged; bytes that it took. */
static size_t write_at_once(channel_t *channel, int pipe, const struct iovec *iov, int count)
{
    size_t written = 0;
    if (channel->config.ops->write(channel->pipes[pipe], iov, count, &written) != QUOIT_OK) return 0; /* channel_write will find out */
    channel->sent += written;
    return written;
}

quoit_status_t channel_stage(channel_t *channel, int pipe, const frame_t *frame, const void *data, size_t length)
{
    if (channel->rails) return channel_rails_stage(channel, frame, data, length);
    outlet_t *outlet = &channel->outlets[pipe];
    bool dead = channel->status != QUOIT_OK && !(channel->goodbye && frame->type == FRAME_BYE);
    if (outlet->bye || dead) return QUOIT_OK; /* nobody will read it */
    bool open = is_open_to(channel, pipe);
    size_t bytes = FRAME_HEADER_SIZE + length + (frame->type == FRAME_DATA);
    if (open && write_in_place(channel, pipe, frame, data, length, bytes)) return QUOIT_OK;
    if (!stages_reserve(channel, bytes))
        return error_set(QUOIT_ERR_NO_MEMORY, "no memory to queue a frame %s of %zu bytes", frame_type_name(frame->type), length);
    uint8_t header[FRAME_HEADER_SIZE], good = 1;
    frame_write(frame, header);
    const struct iovec part[] = {{header, sizeof header}, {(void *)(uintptr_t)data, length}, {&good, frame->type == FRAME_DATA}};
    size_t done = open ? write_at_once(channel, pipe, part, 3) : 0;
    for (int i = 0; i < 3; i++) {
        size_t skipped = done < part[i].iov_len ? done : part[i].iov_len;
        if (skipped < part[i].iov_len) /* data may be NULL where there is none */
            stages_append(channel, outlet, (const unsigned char *)part[i].iov_base + skipped, part[i].iov_len - skipped);
        done -= skipped;
    }
    return QUOIT_OK;
}

static void stage_release(channel_t *channel, stage_t *stage)
{
    list_remove(&stage->link);
    if (channel->free_stage_count >= FREE_STAGES_KEPT) {
        free(stage);
        return;
    }
    list_append(&channel->free_stages, &stage->link);
    channel->free_stage_count++;
}

static bool gather_stages(gather_t *gather, const outlet_t *outlet)
{
    for (const list_t *link = outlet->stages.next; link != &outlet->stages; link = link->next) {
        const stage_t *stage = container_of(link, stage_t, link);
        if (!gather_add(gather, stage->bytes + stage->start, stage->end - stage->start)) return false;
    }
    return true;
}

static size_t stages_advance(channel_t *channel, outlet_t *outlet, size_t written)
{
    while (written > 0 && !list_is_empty(&outlet->stages)) {
        stage_t *stage = container_of(outlet->stages.next, stage_t, link);
        size_t left = stage->end - stage->start, part = written < left ? written : left;
        stage->start += part;
        written -= part;
        if (stage->start == stage->end) stage_release(channel, stage);
    }
    return written;
}

/* ---------------------------------------------------------------- segments */

quoit_status_t channel_send_activate(channel_t *channel, send_node_t *send, const frame_t *grant)
{
    send->grant = grant->grant;
    if (channel_write_directly(channel, send, grant)) return QUOIT_OK;
    if (send->memory) {
        list_append(&channel->stopped_sends, &send->link);
        send_transfer(send)->status = QUOIT_ERR_AGAIN;
        return QUOIT_OK;
    }
    return channel_send_go(channel, send);
}

quoit_status_t channel_send_go(channel_t *channel, send_node_t *send)
{
    if (send->assigned > 0 || send->length > channel->config.eager_limit) {
        list_append(&channel->active, &send->link);
        return QUOIT_OK;
    }
    frame_t frame = {.type = FRAME_DATA, .key = send->key, .grant = send->grant, .total = send->length, .length = send->length};
    quoit_status_t status = channel_stage(channel, 0, &frame, send->buffer, send->length);
    if (status == QUOIT_OK) channel_send_end(channel, send, QUOIT_OK);
    else list_append(&channel->active, &send->link);
    return status;
}

/* Bytes of the next segment: enough pieces for every pipe, none larger than a segment, none so small that headers count. */
static uint64_t piece_size(const channel_t *channel, const send_node_t *send)
{
    uint64_t left = send->length - send->assigned, count = (uint64_t)channel->count;
    uint64_t piece = ((send->length + count - 1) / count + 63) & ~(uint64_t)63;
    if (piece < CHANNEL_MIN_PIECE) piece = CHANNEL_MIN_PIECE;
    if (piece > channel->config.segment_size) piece = channel->config.segment_size;
    if (channel->config.lend && piece > channel->config.lend->piece) piece = channel->config.lend->piece; /* the next may find a loan */
    return piece < left ? piece : left;
}

static void take_segment(channel_t *channel, outlet_t *outlet)
{
    list_t *link = list_pop(&channel->active);
    if (!link) return;
    send_node_t *send = container_of(link, send_node_t, link);
    frame_t frame = {.type = FRAME_DATA,
                     .key = send->key,
                     .grant = send->grant,
                     .total = send->length,
                     .offset = send->assigned,
                     .length = piece_size(channel, send)};
    frame_write(&frame, outlet->header);
    outlet->busy = true;
    outlet->send = send;
    outlet->payload = send->buffer + send->assigned;
    outlet->length = frame.length;
    outlet->position = 0;
    send->assigned += frame.length;
    if (send->assigned < send->length) list_append(&channel->active, link); /* at the end: large sends take turns */
}

void channel_outlet_forget(channel_t *channel, const send_node_t *send)
{
    if (channel->rails) {
        channel_rails_forget(channel, send);
        return;
    }
    for (int i = 0; i < channel->count; i++) {
        outlet_t *outlet = &channel->outlets[i];
        if (!outlet->busy || outlet->send != send) continue;
        outlet->send = NULL;
        outlet->payload = NULL;
        if (outlet->position == 0) outlet->busy = false;
    }
}

static bool gather_data(gather_t *gather, outlet_t *outlet)
{
    uint64_t position = outlet->position, end = FRAME_HEADER_SIZE + outlet->length;
    outlet->trailer = outlet->send ? 1 : 0;
    if (position < FRAME_HEADER_SIZE) {
        if (!gather_add(gather, outlet->header + position, FRAME_HEADER_SIZE - position)) return false;
        position = FRAME_HEADER_SIZE;
    }
    if (outlet->payload && !gather_add(gather, outlet->payload + (position - FRAME_HEADER_SIZE), end - position)) return false;
    if (!outlet->payload) {
        for (; position < end; position += ZERO_PAGE)
            if (!gather_add(gather, zero_page, end - position < ZERO_PAGE ? end - position : ZERO_PAGE)) return false;
    }
    return gather_add(gather, &outlet->trailer, 1);
}

/* Bytes of `written` that are left over once the DATA frame has had its share. */
static size_t data_advance(channel_t *channel, outlet_t *outlet, size_t written)
{
    uint64_t left = FRAME_HEADER_SIZE + outlet->length + 1 - outlet->position;
    uint64_t part = written < left ? written : left;
    outlet->position += part;
    if (part < left) return 0;
    send_node_t *send = outlet->send;
    outlet->busy = false;
    outlet->send = NULL;
    if (send) {
        send->written += outlet->length;
        if (send->written == send->length) channel_send_end(channel, send, QUOIT_OK);
    }
    return written - part;
}

void channel_outlet_clear(channel_t *channel, int pipe)
{
    outlet_t *outlet = &channel->outlets[pipe];
    while (!list_is_empty(&outlet->stages)) stage_release(channel, container_of(outlet->stages.next, stage_t, link));
    outlet->busy = false;
    outlet->send = NULL;
}

/* ---------------------------------------------------------------- the calls */

bool channel_wants_write(const channel_t *channel, int pipe)
{
    if (pipe < 0 || pipe >= channel->count) return false;
    if (channel->rails) return channel_rails_wants_write(channel, pipe);
    const outlet_t *outlet = &channel->outlets[pipe];
    bool queued = outlet->busy || !list_is_empty(&outlet->stages) || !list_is_empty(&channel->active);
    if (!queued && !channel->closing) return false; /* as nearly always */
    if (channel->status != QUOIT_OK && !(channel->goodbye && channel->closing)) return false;
    return queued || (channel->closing && !outlet->bye && list_is_empty(&channel->writing));
}

bool channel_idle(const channel_t *channel)
{
    if (channel->rails) return channel_rails_idle(channel);
    if (channel->status != QUOIT_OK) return true;
    if (channel->count == 0) return list_is_empty(&channel->outlets[0].stages) && !channel->closing;
    for (int i = 0; i < channel->count; i++)
        if (channel_wants_write(channel, i)) return false;
    return list_is_empty(&channel->writing);
}

/* The pipe takes no more. What it still holds is read: the peer's goodbye may be in it, and then this is no failure. */
static void write_failed(channel_t *channel, int pipe, quoit_status_t status)
{
    char text[ERROR_TEXT_CAPACITY];
    strncpy(text, error_text(), sizeof text - 1);
    text[sizeof text - 1] = 0;
    while (channel->status == QUOIT_OK && !channel->inlets[pipe].bye && channel_read(channel, pipe, 1 << 20) > 0) {}
    if (channel->inlets[pipe].bye) {
        if (channel->outlets[pipe].send) channel_send_end(channel, channel->outlets[pipe].send, QUOIT_ERR_CLOSED);
        channel_outlet_clear(channel, pipe);
        channel->outlets[pipe].bye = true;
    } else if (channel->status == QUOIT_OK) {
        error_set(status, "%s", text);
        channel_break(channel, status);
    }
}

/* What the next call writes: bytes of the DATA frame that has begun, staged bytes, a fresh DATA frame. */
static void fill_gather(channel_t *channel, outlet_t *outlet, bool segments, gather_t *gather)
{
    bool begun = outlet->busy && outlet->position > 0;
    if (begun && !gather_data(gather, outlet)) return;
    if (!begun && !outlet->busy && segments) take_segment(channel, outlet);
    if (channel->closing && !outlet->busy && list_is_empty(&channel->active) && list_is_empty(&channel->writing) && !outlet->bye) {
        frame_t frame = {.type = FRAME_BYE};
        if (channel_stage(channel, (int)(outlet - channel->outlets), &frame, NULL, 0) == QUOIT_OK) outlet->bye = true;
    }
    if (gather_stages(gather, outlet) && outlet->busy && !begun) gather_data(gather, outlet);
}

int channel_write(channel_t *channel, int pipe, size_t budget)
{
    int handled = 0;
    if (channel->rails) return pipe >= 0 && pipe < channel->count ? channel_rails_write(channel, pipe, budget) : 0;
    while (budget > 0 && channel_wants_write(channel, pipe)) {
        outlet_t *outlet = &channel->outlets[pipe];
        size_t lent = 0;
        loan_t loan = channel->config.lend && !outlet->busy ? channel_lend_next(channel, &lent) : LOAN_NONE;
        channel->starving = loan == LOAN_LATER;
        gather_t gather = {.count = 0, .bytes = 0, .budget = budget};
        bool begun = outlet->busy && outlet->position > 0;
        fill_gather(channel, outlet, loan == LOAN_NONE, &gather);
        if (gather.count == 0 && lent == 0) break;
        size_t written = 0; /* a piece that was lent may have been told already */
        quoit_status_t status = gather.count > 0 ? channel->config.ops->write(channel->pipes[pipe], gather.iov, gather.count, &written) : QUOIT_OK;
        if (status == QUOIT_ERR_AGAIN) break;
        if (status != QUOIT_OK) {
            write_failed(channel, pipe, status);
            return handled + 1;
        }
        channel->sent += written;
        budget -= written;
        budget -= lent < budget ? lent : budget;
        handled++;
        size_t rest = begun ? data_advance(channel, outlet, written) : written;
        rest = stages_advance(channel, outlet, rest);
        if (rest > 0) data_advance(channel, outlet, rest);
    }
    return handled;
}
