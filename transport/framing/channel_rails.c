/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: pipes over different network interfaces, any of which may be lost without loss of the channel.
 *
 *   segments         go out over the pipe that will have delivered them first: the one with the least of (bytes whose arrival is not known)
 *                    over weight. So bytes go in proportion to the weights while pipes keep to them, and a pipe that is slower than
 *                    its weight says gets less.
 *   all else         goes in order through one pipe, the control pipe, as ever.
 *   RECEIPT          after each reading, on the same pipe: how many frames came whole through it. A frame is kept until then, a copy or, of a
 *                    segment, the place in the send's buffer: therefore a send ends when its last segment is known to be there.
 *   a lost pipe      is never read again: what was under way in it is gone for certain, and can be sent again without coming twice. Each
 *                    side tells the other through another pipe by LOST how many frames it got; what lies behind that number in the other's
 *                    list goes out anew. Only then the control pipe moves, so that order is kept.
 *
 * The first LOST of a pipe makes the other side give it up, too, so both sides agree on which are left. Whoever gives up a pipe says LOST of all
 * that it has given up, since the word of an earlier one may have gone down with this one; hearing it twice does no harm. (Were it kept until
 * a receipt, each side's word of one pipe could lie in the pipe that the other has left, for ever.) The goodbye is said when nothing is unacknowledged, so one of them suffices. With the last pipe the
 * channel breaks. A frame that was cut in its payload has had its effects (its recv was found, credit spent): its successor takes over its
 * place. A segment that was cut counts as not announced.
 */
#include "transport/framing/channel_rails.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IOV_CAPACITY = 40, ZERO_PAGE = 4096, WEIGHT_MOST = 1 << 24, PIECES = 16 };

static const unsigned char zero_page[ZERO_PAGE];

/* Not kept, not counted: they are of no use once their pipe is gone. */
static bool is_passing(frame_type_t type) { return type == FRAME_RECEIPT || type == FRAME_LOST || type == FRAME_BYE; }

static uint64_t frame_size(const rail_frame_t *frame) { return frame->size + (frame->segment ? frame->length + 1 : 0); }

static rail_frame_t *first_of(const list_t *list) { return list_is_empty(list) ? NULL : container_of(list->next, rail_frame_t, link); }

/* ---------------------------------------------------------------- memory */

static rail_frame_t *frame_make(channel_t *channel, frame_type_t type, size_t size)
{
    channel_rails_t *rails = channel->rails;
    int class = 0;
    while (((size_t)RAIL_CLASS_LEAST << class) < size) class++;
    list_t *link = class < RAIL_CLASSES ? list_pop(&rails->free[class]) : NULL;
    rail_frame_t *frame = link ? container_of(link, rail_frame_t, link) : malloc(sizeof *frame + ((size_t)RAIL_CLASS_LEAST << class));
    if (!frame) {
        error_set(QUOIT_ERR_NO_MEMORY, "no memory to queue a frame %s of %zu bytes", frame_type_name(type), size);
        return NULL;
    }
    *frame = (rail_frame_t){.type = type, .class = (uint8_t)class, .size = size};
    list_init(&frame->link);
    rails->open += !is_passing(type);
    return frame;
}

static void frame_drop(channel_t *channel, rail_frame_t *frame)
{
    channel_rails_t *rails = channel->rails;
    list_remove(&frame->link);
    rails->open -= !is_passing(frame->type);
    if (frame->class < RAIL_CLASSES)
        list_append(&rails->free[frame->class], &frame->link);
    else
        free(frame);
}

static void drop_all(channel_t *channel, list_t *list)
{
    while (!list_is_empty(list)) frame_drop(channel, first_of(list));
}

quoit_status_t channel_rails_create(channel_t *channel)
{
    channel_rails_t *rails = calloc(1, sizeof *rails);
    if (!rails) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for the rails of a connection");
    for (int i = 0; i < CHANNEL_MAX_PIPES; i++) {
        list_init(&rails->pipe[i].queue);
        list_init(&rails->pipe[i].unacked);
        rails->pipe[i].weight = 1;
    }
    for (int i = 0; i < RAIL_CLASSES; i++) list_init(&rails->free[i]);
    list_init(&rails->waiting);
    list_init(&rails->resend);
    rails->control = rails->moving = rails->resume = -1;
    channel->rails = rails;
    return QUOIT_OK;
}

void channel_rails_clear(channel_t *channel)
{
    channel_rails_t *rails = channel->rails;
    drop_all(channel, &rails->waiting);
    drop_all(channel, &rails->resend);
    for (int i = 0; i < CHANNEL_MAX_PIPES; i++) {
        drop_all(channel, &rails->pipe[i].queue);
        drop_all(channel, &rails->pipe[i].unacked);
        rails->pipe[i].position = rails->pipe[i].outstanding = 0;
    }
}

void channel_rails_free(channel_t *channel)
{
    if (!channel->rails) return;
    channel_rails_clear(channel);
    for (int i = 0; i < RAIL_CLASSES; i++)
        for (list_t *link; (link = list_pop(&channel->rails->free[i])) != NULL;) free(container_of(link, rail_frame_t, link));
    free(channel->rails);
    channel->rails = NULL;
}

/* ---------------------------------------------------------------- queueing */

/* Behind what is there, but before a segment of which nothing is out yet. */
static void push(rail_pipe_t *pipe, rail_frame_t *frame)
{
    list_t *place = &pipe->queue;
    if (!list_is_empty(&pipe->queue)) {
        rail_frame_t *last = container_of(pipe->queue.previous, rail_frame_t, link);
        bool begun = last == first_of(&pipe->queue) && pipe->position > 0;
        if (last->segment && !begun) place = &last->link;
    }
    list_append(place, &frame->link);
}

static int first_living(const channel_t *channel)
{
    int pipe = 0;
    while (pipe < channel->count - 1 && channel->rails->pipe[pipe].lost) pipe++;
    return pipe;
}

static quoit_status_t stage_on(channel_t *channel, list_t *waiting, rail_pipe_t *pipe, const frame_t *frame, const void *data, size_t length)
{
    size_t trailer = frame->type == FRAME_DATA;
    rail_frame_t *fresh = frame_make(channel, frame->type, FRAME_HEADER_SIZE + length + trailer);
    if (!fresh) return QUOIT_ERR_NO_MEMORY;
    frame_write(frame, fresh->bytes);
    if (length > 0) memcpy(fresh->bytes + FRAME_HEADER_SIZE, data, length);
    if (trailer) fresh->bytes[FRAME_HEADER_SIZE + length] = 1;
    if (waiting)
        list_append(waiting, &fresh->link);
    else
        push(pipe, fresh);
    return QUOIT_OK;
}

quoit_status_t channel_rails_stage(channel_t *channel, const frame_t *frame, const void *data, size_t length)
{
    channel_rails_t *rails = channel->rails;
    bool bye = rails->control >= 0 && rails->pipe[rails->control].bye;
    if (channel->status != QUOIT_OK || bye) return QUOIT_OK; /* nobody will read it */
    if (rails->control < 0) return stage_on(channel, &rails->waiting, NULL, frame, data, length);
    return stage_on(channel, NULL, &rails->pipe[rails->control], frame, data, length);
}

/* What was kept back while there was no control pipe. */
static void release_waiting(channel_t *channel)
{
    channel_rails_t *rails = channel->rails;
    for (list_t *link; (link = list_pop(&rails->waiting)) != NULL;) push(&rails->pipe[rails->control], container_of(link, rail_frame_t, link));
}

void channel_rails_open(channel_t *channel)
{
    channel->rails->living = channel->count;
    channel->rails->control = 0;
    release_waiting(channel);
}

/* ---------------------------------------------------------------- segments */

static bool has_segments(const channel_t *channel) { return !list_is_empty(&channel->rails->resend) || !list_is_empty(&channel->active); }

/* Enough pieces to come near to the weights, none so small that headers count: a message that is no larger than one goes whole. */
static uint64_t piece_size(const channel_t *channel)
{
    const rail_frame_t *again = first_of(&channel->rails->resend);
    if (again) return again->length;
    const send_node_t *send = container_of(channel->active.next, send_node_t, link);
    uint64_t left = send->length - send->assigned, piece = ((send->length + PIECES - 1) / PIECES + 63) & ~(uint64_t)63;
    if (piece < CHANNEL_MIN_PIECE) piece = CHANNEL_MIN_PIECE;
    if (piece > channel->config.segment_size) piece = channel->config.segment_size;
    return piece < left ? piece : left;
}

/* Would this pipe have delivered the next piece first? */
static bool is_best(const channel_t *channel, int pipe)
{
    const rail_pipe_t *all = channel->rails->pipe, *one = &all[pipe];
    uint64_t piece = piece_size(channel);
    for (int i = 0; i < channel->count; i++) {
        if (i == pipe || all[i].lost) continue;
        uint64_t mine = (one->outstanding + piece) * all[i].weight, others = (all[i].outstanding + piece) * one->weight;
        if (mine > others || (mine == others && i < pipe)) return false;
    }
    return true;
}

static bool take_segment(channel_t *channel, rail_pipe_t *pipe)
{
    channel_rails_t *rails = channel->rails;
    rail_frame_t *frame = first_of(&rails->resend);
    if (frame) {
        list_remove(&frame->link);
    } else {
        send_node_t *send = container_of(channel->active.next, send_node_t, link);
        frame_t header = {.type = FRAME_DATA, .key = send->key, .grant = send->grant, .total = send->length, .offset = send->assigned,
                          .length = piece_size(channel)};
        frame = frame_make(channel, FRAME_DATA, FRAME_HEADER_SIZE);
        if (!frame) return false;
        frame_write(&header, frame->bytes);
        frame->segment = true;
        frame->send = send;
        frame->payload = send->buffer + send->assigned;
        frame->length = header.length;
        send->assigned += header.length;
        list_remove(&send->link); /* large sends take turns; one that is out whole waits for its receipts */
        list_append(send->assigned < send->length ? &channel->active : &channel->writing, &send->link);
    }
    pipe->outstanding += frame->length;
    list_append(&pipe->queue, &frame->link);
    return true;
}

/* It arrived. */
static void settle(channel_t *channel, rail_pipe_t *pipe, rail_frame_t *frame)
{
    send_node_t *send = frame->send;
    uint64_t length = frame->length;
    if (frame->segment) pipe->outstanding -= length;
    frame_drop(channel, frame);
    if (!send) return;
    send->written += length;
    if (send->written == send->length) channel_send_end(channel, send, QUOIT_OK);
}

static void forget_in(channel_t *channel, list_t *list, rail_pipe_t *pipe, const send_node_t *send, bool sent)
{
    for (list_t *link = list->next, *next; link != list; link = next) {
        rail_frame_t *frame = container_of(link, rail_frame_t, link);
        next = link->next;
        if (frame->send != send) continue;
        frame->send = NULL;
        frame->payload = NULL;
        if (sent || (pipe && link == list->next && pipe->position > 0)) continue; /* it is counted, or must be finished */
        if (pipe) pipe->outstanding -= frame->length;
        frame_drop(channel, frame);
    }
}

void channel_rails_forget(channel_t *channel, const send_node_t *send)
{
    channel_rails_t *rails = channel->rails;
    if (send->assigned == send->written) return; /* none is left */
    forget_in(channel, &rails->resend, NULL, send, false);
    for (int i = 0; i < channel->count; i++) {
        forget_in(channel, &rails->pipe[i].queue, &rails->pipe[i], send, false);
        forget_in(channel, &rails->pipe[i].unacked, &rails->pipe[i], send, true);
    }
}

/* ---------------------------------------------------------------- writing */

typedef struct gather {
    struct iovec iov[IOV_CAPACITY];
    int count;
    size_t bytes, budget;
} gather_t;

/* Bytes from `skip` on; *skip becomes what of it lies beyond. False when it did not fit whole. */
static bool gather_add(gather_t *gather, const void *data, uint64_t length, uint64_t *skip)
{
    if (*skip >= length) {
        *skip -= length;
        return true;
    }
    uint64_t left = length - *skip;
    size_t room = gather->budget - gather->bytes, part = left < room ? (size_t)left : room;
    if (gather->count == IOV_CAPACITY || part == 0) return false;
    gather->iov[gather->count++] = (struct iovec){.iov_base = (unsigned char *)(uintptr_t)data + *skip, .iov_len = part};
    gather->bytes += part;
    *skip = 0;
    return part == left;
}

static bool gather_frame(gather_t *gather, rail_frame_t *frame, uint64_t skip)
{
    if (!gather_add(gather, frame->bytes, frame->size, &skip)) return false;
    if (!frame->segment) return true;
    if (frame->payload && !gather_add(gather, frame->payload, frame->length, &skip)) return false;
    for (uint64_t at = 0; !frame->payload && at < frame->length; at += ZERO_PAGE)
        if (!gather_add(gather, zero_page, frame->length - at < ZERO_PAGE ? frame->length - at : ZERO_PAGE, &skip)) return false;
    frame->trailer = frame->send ? 1 : 0;
    return gather_add(gather, &frame->trailer, 1, &skip);
}

static bool may_say_bye(const channel_t *channel, const rail_pipe_t *pipe)
{
    return channel->closing && !pipe->bye && list_is_empty(&channel->active) && list_is_empty(&channel->writing) &&
           (channel->goodbye || channel->rails->open == 0);
}

bool channel_rails_wants_write(const channel_t *channel, int number)
{
    const rail_pipe_t *pipe = &channel->rails->pipe[number];
    if (pipe->lost || (channel->status != QUOIT_OK && !(channel->goodbye && channel->closing))) return false;
    return !list_is_empty(&pipe->queue) || (has_segments(channel) && is_best(channel, number)) || may_say_bye(channel, pipe);
}

/* The queue is empty: what is to follow? */
static bool fill(channel_t *channel, int number)
{
    rail_pipe_t *pipe = &channel->rails->pipe[number];
    if (has_segments(channel) && is_best(channel, number)) return take_segment(channel, pipe);
    if (!may_say_bye(channel, pipe)) return false;
    frame_t frame = {.type = FRAME_BYE};
    pipe->bye = stage_on(channel, NULL, pipe, &frame, NULL, 0) == QUOIT_OK;
    return pipe->bye;
}

static void advance(channel_t *channel, rail_pipe_t *pipe, size_t written)
{
    while (written > 0) {
        rail_frame_t *frame = first_of(&pipe->queue);
        uint64_t left = frame_size(frame) - pipe->position;
        if (written < left) {
            pipe->position += written;
            return;
        }
        written -= (size_t)left;
        pipe->position = 0;
        if (is_passing(frame->type)) {
            frame_drop(channel, frame);
            continue;
        }
        list_remove(&frame->link);
        list_append(&pipe->unacked, &frame->link);
        pipe->sent++;
    }
}

int channel_rails_write(channel_t *channel, int number, size_t budget)
{
    rail_pipe_t *pipe = &channel->rails->pipe[number];
    int handled = 0;
    while (budget > 0 && channel_rails_wants_write(channel, number)) {
        gather_t gather = {.budget = budget};
        size_t written = 0;
        if (list_is_empty(&pipe->queue) && !fill(channel, number)) break;
        uint64_t skip = pipe->position;
        for (list_t *link = pipe->queue.next; link != &pipe->queue; link = link->next) {
            if (!gather_frame(&gather, container_of(link, rail_frame_t, link), skip)) break;
            skip = 0;
        }
        quoit_status_t status = channel->config.ops->write(channel->pipes[number], gather.iov, gather.count, &written);
        if (status == QUOIT_ERR_AGAIN) break;
        handled++;
        if (status != QUOIT_OK) {
            channel_lose(channel, number, status);
            break;
        }
        channel->sent += written;
        budget -= written;
        advance(channel, pipe, written);
    }
    return handled;
}

bool channel_rails_idle(const channel_t *channel)
{
    const channel_rails_t *rails = channel->rails;
    if (channel->status != QUOIT_OK) return true;
    if (rails->open > 0 || !list_is_empty(&channel->active) || !list_is_empty(&channel->writing)) return false;
    for (int i = 0; i < channel->count; i++)
        if (!rails->pipe[i].lost && (!list_is_empty(&rails->pipe[i].queue) || (channel->closing && !rails->pipe[i].bye))) return false;
    return channel->count > 0 || !channel->closing;
}

/* ---------------------------------------------------------------- receipts */

void channel_rails_taken(channel_t *channel, int number, frame_type_t type)
{
    if (!is_passing(type)) channel->rails->pipe[number].received++;
}

void channel_rails_acknowledge(channel_t *channel, int number)
{
    rail_pipe_t *pipe = &channel->rails->pipe[number];
    if (pipe->received == pipe->told || pipe->lost || pipe->bye || channel->status != QUOIT_OK) return;
    frame_t frame = {.type = FRAME_RECEIPT, .total = pipe->received};
    if (stage_on(channel, NULL, pipe, &frame, NULL, 0) == QUOIT_OK) pipe->told = pipe->received; /* else with the next */
}

/* The peer has so many frames of this pipe. */
static quoit_status_t arrived(channel_t *channel, int number, uint64_t count)
{
    rail_pipe_t *pipe = &channel->rails->pipe[number];
    if (count < pipe->acked || count > pipe->sent)
        return error_set(QUOIT_ERR_PROTOCOL, "a receipt for %llu frames of pipe %d, of which %llu were sent and %llu known to have come",
                         (unsigned long long)count, number, (unsigned long long)pipe->sent, (unsigned long long)pipe->acked);
    for (; pipe->acked < count; pipe->acked++) settle(channel, pipe, first_of(&pipe->unacked));
    return QUOIT_OK;
}

quoit_status_t channel_rails_receipt_arrived(channel_t *channel, int number, const frame_t *frame)
{
    return arrived(channel, number, frame->total);
}

/* ---------------------------------------------------------------- losing a pipe */

static void abandon_inlet(channel_t *channel, int number)
{
    inlet_t *inlet = &channel->inlets[number];
    bool cut = inlet->phase != INLET_HEADER;
    inlet->start = inlet->end = 0;
    if (cut && inlet->frame.type != FRAME_DATA) {
        channel->rails->resume = number;
        return;
    }
    if (cut && inlet->recv) inlet->recv->claimed -= inlet->frame.length;
    inlet->recv = NULL;
    inlet->phase = INLET_HEADER;
}

void channel_lose(channel_t *channel, int number, quoit_status_t status)
{
    channel_rails_t *rails = channel->rails;
    if (!rails) {
        channel_break(channel, status);
        return;
    }
    rail_pipe_t *pipe = &rails->pipe[number];
    if (number < 0 || number >= channel->count || pipe->lost) return;
    if (channel->status == QUOIT_OK && rails->living == 1) {
        channel_break(channel, status);
        return;
    }
    snprintf(pipe->cause, sizeof pipe->cause, "%s", error_text());
    pipe->lost = true;
    rails->living--;
    if (channel->status != QUOIT_OK || rails->pipe[first_living(channel)].bye) return;
    abandon_inlet(channel, number);
    if (rails->control == number) {
        rails->control = -1;
        rails->moving = number;
    }
    for (int i = 0; i < channel->count; i++) {
        frame_t frame = {.type = FRAME_LOST, .offset = (uint64_t)i, .total = rails->pipe[i].received};
        if (!rails->pipe[i].lost) continue;
        if (stage_on(channel, NULL, &rails->pipe[first_living(channel)], &frame, NULL, 0) != QUOIT_OK) channel->failing = true;
    }
}

/* What did not arrive goes out anew: segments by whichever pipe is best, the rest, in order, by the new control pipe. */
static void send_again(channel_t *channel, rail_pipe_t *pipe, list_t *list, list_t *control)
{
    while (!list_is_empty(list)) {
        rail_frame_t *frame = first_of(list);
        if (frame->segment) pipe->outstanding -= frame->length;
        if (is_passing(frame->type) || (frame->segment && !frame->send)) {
            frame_drop(channel, frame);
            continue;
        }
        list_remove(&frame->link);
        list_append(frame->segment ? &channel->rails->resend : control, &frame->link);
    }
}

quoit_status_t channel_rails_lost_arrived(channel_t *channel, int by, const frame_t *frame)
{
    channel_rails_t *rails = channel->rails;
    int number = (int)frame->offset;
    list_t control;
    bool impossible = frame->offset >= (uint64_t)channel->count || number == by;
    if (!impossible && rails->pipe[number].confirmed && rails->pipe[number].acked == frame->total) return QUOIT_OK; /* heard before */
    if (impossible || rails->pipe[number].confirmed)
        return error_set(QUOIT_ERR_PROTOCOL, "word of the loss of pipe %llu, which cannot be", (unsigned long long)frame->offset);
    rail_pipe_t *pipe = &rails->pipe[number];
    if (!pipe->lost) channel_lose(channel, number, error_set(QUOIT_ERR_NETWORK, "the other side gave it up"));
    if (channel->status != QUOIT_OK) return QUOIT_OK; /* told already */
    quoit_status_t status = arrived(channel, number, frame->total);
    if (status != QUOIT_OK) return status;
    pipe->confirmed = true;
    pipe->position = 0;
    list_init(&control);
    send_again(channel, pipe, &pipe->unacked, &control);
    send_again(channel, pipe, &pipe->queue, &control);
    if (rails->moving == number) {
        rails->moving = -1;
        rails->control = first_living(channel);
        for (list_t *link; (link = list_pop(&control)) != NULL;) push(&rails->pipe[rails->control], container_of(link, rail_frame_t, link));
        release_waiting(channel);
    }
    drop_all(channel, &control); /* it was given up behind the goodbye, so no other pipe is to carry them */
    return QUOIT_OK;
}

bool channel_rails_resume(channel_t *channel, inlet_t *inlet, quoit_status_t *status)
{
    channel_rails_t *rails = channel->rails;
    if (rails->resume < 0 || (inlet->frame.type != FRAME_EAGER && inlet->frame.type != FRAME_NOTICE)) return false;
    inlet_t *before = &channel->inlets[rails->resume];
    const frame_t *old = &before->frame, *fresh = &inlet->frame;
    *status = QUOIT_OK;
    if (old->type != fresh->type || old->length != fresh->length || old->key.comm != fresh->key.comm || old->key.id != fresh->key.id)
        *status = error_set(QUOIT_ERR_PROTOCOL, "another message than the one that was cut when its pipe was lost");
    inlet->recv = before->recv;
    inlet->block = before->block;
    before->recv = NULL;
    before->block = NULL;
    before->phase = INLET_HEADER;
    rails->resume = -1;
    return true;
}

channel_pipe_state_t channel_pipe_state(const channel_t *channel, int number, const char **cause)
{
    if (!channel->rails || !channel->rails->pipe[number].lost) return CHANNEL_PIPE_GOOD;
    *cause = channel->rails->pipe[number].cause;
    return channel->rails->pipe[number].confirmed ? CHANNEL_PIPE_LOST : CHANNEL_PIPE_SUSPENDED;
}

void channel_weigh(channel_t *channel, int number, uint32_t weight)
{
    if (!channel->rails) return;
    channel->rails->pipe[number].weight = weight == 0 ? 1 : weight < WEIGHT_MOST ? weight : WEIGHT_MOST;
}
