/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lending: the part of the protocol that only transports with lend_ops_t use. The sender copies a piece into memory that the peer can read and
 * says where (ASK for the first piece, LENT for the others); the peer copies it to its final place and gives the memory back, by means of
 * the transport's. So a send ends when it is copied, nobody ever touches the other's buffers, and cancelling is a matter of one side.
 */
#include "transport/framing/channel_internal.h"


/* ---------------------------------------------------------------- lender */

uint64_t channel_lend_first(channel_t *channel, const send_node_t *send, frame_t *ask)
{
    const lend_ops_t *lend = channel->config.lend;
    uint64_t part = send->length < lend->piece ? send->length : lend->piece;
    uint64_t place;
    if (part == 0 || channel->count == 0) return 0;
    if (lend->lend(channel->config.lend_context, send->buffer, (size_t)part, true, &place) != LOAN_MADE) return 0;
    ask->direct = true;
    ask->offset = place;
    ask->length = part;
    channel->sent += part;
    channel->pieces++;
    return part;
}

loan_t channel_lend_next(channel_t *channel, size_t *lent)
{
    const lend_ops_t *lend = channel->config.lend;
    *lent = 0;
    if (list_is_empty(&channel->active)) return LOAN_NONE;
    send_node_t *send = container_of(channel->active.next, send_node_t, link);
    uint64_t left = send->length - send->assigned, place;
    size_t part = left < lend->piece ? (size_t)left : lend->piece;
    loan_t loan = part == 0 ? LOAN_NONE : lend->lend(channel->config.lend_context, send->buffer + send->assigned, part, false, &place);
    if (loan != LOAN_MADE) return loan;
    frame_t frame = {.type = FRAME_LENT, .key = {.id = place}, .grant = send->grant, .total = send->length, .offset = send->assigned, .length = part};
    if (channel_stage(channel, 0, &frame, NULL, 0) != QUOIT_OK) channel->failing = true; /* the loan is lost, and the message with it */
    send->assigned += part;
    send->written += part;
    channel->sent += part;
    channel->pieces++;
    list_remove(&send->link);
    if (send->written == send->length) {
        channel_send_end(channel, send, QUOIT_OK);
    } else {
        list_append(&channel->active, &send->link); /* large sends take turns */
    }
    *lent = part;
    return LOAN_MADE;
}

bool channel_starves(const channel_t *channel)
{
    return channel->starving && !channel->outlets[0].busy && list_is_empty(&channel->outlets[0].stages);
}

void channel_count_loans(const channel_t *channel, uint64_t *borrowed, uint64_t *pieces)
{
    *borrowed = channel->borrowed;
    *pieces = channel->pieces;
}

/* ---------------------------------------------------------------- borrower */

static const void *borrow(channel_t *channel, uint64_t place, uint64_t length)
{
    const lend_ops_t *lend = channel->config.lend;
    if (lend && length <= lend->piece) return lend->borrow(channel->config.lend_context, place, (size_t)length);
    error_set(QUOIT_ERR_PROTOCOL, lend ? "a loan of %llu bytes, at most %zu are possible" : "a loan of %llu bytes on a connection without them",
              (unsigned long long)length, lend ? lend->piece : 0);
    return NULL;
}

/* `whole`: bytes of the message, of which this is a piece. */
static void copy(channel_t *channel, void *to, const void *from, uint64_t place, uint64_t length, uint64_t whole)
{
    channel->config.lend->take(to, from, (size_t)length, whole);
    channel->config.lend->give_back(channel->config.lend_context, place);
    channel->borrowed += length;
    channel->received += length;
}

quoit_status_t channel_lent_arrived(channel_t *channel, const frame_t *frame)
{
    recv_node_t *recv;
    quoit_status_t status = channel_piece_claim(channel, frame, &recv);
    if (status != QUOIT_OK) return status;
    const void *from = borrow(channel, frame->key.id, frame->length);
    if (!from) return QUOIT_ERR_PROTOCOL;
    if (!recv) {
        channel->config.lend->give_back(channel->config.lend_context, frame->key.id);
        return QUOIT_OK;
    }
    copy(channel, recv->buffer + frame->offset, from, frame->key.id, frame->length, frame->total);
    recv->received += frame->length;
    channel_recv_check(channel, recv);
    return QUOIT_OK;
}

quoit_status_t channel_loan_check(channel_t *channel, const frame_t *ask)
{
    if (ask->type != FRAME_ASK || !ask->direct) return QUOIT_OK;
    return borrow(channel, ask->offset, ask->length) ? QUOIT_OK : QUOIT_ERR_PROTOCOL;
}

/* Its start fits, so the message has as many bytes as the recv, and they begin here. */
quoit_status_t channel_loan_take(channel_t *channel, recv_node_t *recv, const frame_t *ask)
{
    const void *from = borrow(channel, ask->offset, ask->length);
    if (!from) return QUOIT_ERR_PROTOCOL;
    copy(channel, recv->buffer, from, ask->offset, ask->length, ask->total);
    recv->claimed += ask->length;
    recv->received += ask->length;
    return QUOIT_OK;
}

void channel_loan_drop(channel_t *channel, const frame_t *ask)
{
    if (ask->type != FRAME_ASK || !ask->direct) return;
    channel->config.lend->give_back(channel->config.lend_context, ask->offset);
}

bool channel_loan_keep(channel_t *channel, block_t *block)
{
    frame_t ask = block->frame;
    if (ask.type != FRAME_ASK || !ask.direct || ask.length != ask.total) return false;
    block_t *copied = channel_block_take(channel, (size_t)ask.length);
    const void *from = copied ? borrow(channel, ask.offset, ask.length) : NULL;
    if (!from) {
        if (copied) channel_block_give(channel, copied);
        return false;
    }
    copy(channel, copied->payload, from, ask.offset, ask.length, ask.total);
    copied->frame = (frame_t){.type = FRAME_EAGER, .what = ask.what, .key = ask.key, .total = ask.total, .length = ask.length};
    copied->complete = true;
    channel->held += channel_cost(ask.length); /* as if it had come so; credit is of no more use to anybody */
    list_append(&block->link, &copied->link); /* before the block: at the end of the list that begins with it */
    block->frame.direct = false;
    channel_block_give(channel, block);
    return true;
}
