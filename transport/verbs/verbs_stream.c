/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stream: the channel's bytes, cut into SENDs of at most a buffer. The peer has posted `depth` buffers, and every SEND uses up one of
 * them: `credits` counts those that are left. Buffers posted anew are told with the 32 bits that every SEND carries (stream's in the
 * lower half, the direct path's in the upper one), or by an empty SEND when a quarter is owed and nothing else goes out. The last
 * credit is kept for such empty ones; so two sides that both have used up theirs still get them back, and a receiver is never not ready.
 *
 * Where a process has many peers, those that come later have fewer buffers: of many, few have much to say at a time.
 *
 * Send buffers are a ring. One send in depth/4 asks for a completion, which frees all buffers up to it. Small ones go inline.
 */
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint32_t depth_of(const verbs_link_t *link) { return link->depth; }

uint32_t verbs_stream_depth(uint32_t wanted, unsigned others)
{
    uint32_t few = wanted / 4 > VERBS_LEAST_DEPTH ? wanted / 4 : VERBS_LEAST_DEPTH;
    return others < VERBS_MANY || wanted < few ? wanted : few;
}

static unsigned char *recv_buffer(verbs_link_t *link, uint32_t slot)
{
    return link->stream.memory + (size_t)slot * link->endpoint->transport->options.buffer_size;
}

static unsigned char *send_buffer(verbs_link_t *link, uint32_t message)
{
    return recv_buffer(link, depth_of(link) + message % depth_of(link));
}

static int post_recv(verbs_link_t *link, uint32_t slot)
{
    struct ibv_sge place = {.addr = (uintptr_t)recv_buffer(link, slot),
                            .length = link->endpoint->transport->options.buffer_size,
                            .lkey = link->stream.mr->lkey};
    struct ibv_recv_wr work = {.wr_id = verbs_work_id(link, VERBS_STREAM_RECV, 0, slot), .sg_list = &place, .num_sge = 1}, *bad;
    return ibv_post_recv(link->stream.qp, &work, &bad);
}

quoit_status_t verbs_stream_prepare(verbs_link_t *link)
{
    verbs_stream_t *stream = &link->stream;
    verbs_transport_t *transport = link->endpoint->transport;
    stream->bytes = 2 * (size_t)depth_of(link) * transport->options.buffer_size;
    stream->memory = aligned_alloc(4096, stream->bytes);
    stream->arrived = malloc(depth_of(link) * sizeof *stream->arrived);
    if (stream->memory == NULL || stream->arrived == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "verbs: %s: no memory for %zu bytes of buffers", link->endpoint->base.name, stream->bytes);
    stream->mr = transport->library->reg_mr(link->rail->pd, stream->memory, stream->bytes, IBV_ACCESS_LOCAL_WRITE);
    if (stream->mr == NULL)
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: %s: cannot register %zu bytes of buffers (ulimit -l bounds what may be locked)",
                               link->endpoint->base.name, stream->bytes);
    for (uint32_t slot = 0; slot < depth_of(link); slot++) {
        int error = post_recv(link, slot);
        if (error != 0) return error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: %s: cannot post receive %u of %u", link->endpoint->base.name, slot, depth_of(link));
    }
    return QUOIT_OK;
}

/* ---------------------------------------------------------------- sending */

/* 0, or what post_send said. The message's bytes are in its buffer. */
static int post_message(verbs_link_t *link, uint32_t length)
{
    verbs_stream_t *stream = &link->stream;
    uint32_t quarter = depth_of(link) / 4;
    bool signalled = stream->all_signalled || stream->unsignalled + 1 >= quarter;
    struct ibv_sge place = {.addr = (uintptr_t)send_buffer(link, stream->sent), .length = length, .lkey = stream->mr->lkey};
    struct ibv_send_wr work = {.wr_id = verbs_work_id(link, VERBS_STREAM_SEND, 0, stream->sent),
                               .sg_list = &place,
                               .num_sge = length > 0,
                               .opcode = IBV_WR_SEND_WITH_IMM,
                               .send_flags = (signalled ? IBV_SEND_SIGNALED : 0u) | (length <= stream->inlined ? IBV_SEND_INLINE : 0u),
                               .imm_data = htobe32(stream->owed | link->direct.owed << 16)},
                       *bad;
    int error = ibv_post_send(stream->qp, &work, &bad);
    if (error != 0) return error;
    stream->unsignalled = signalled ? 0 : stream->unsignalled + 1;
    stream->sent++;
    stream->credits--;
    stream->owed = link->direct.owed = 0;
    return 0;
}

/* A full queue is not expected, but no failure. */
static quoit_status_t refused(verbs_link_t *link, int error)
{
    if (error == ENOMEM || error == EAGAIN) {
        link->retry = true;
        return QUOIT_ERR_AGAIN;
    }
    return error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: %s: cannot post a send", link->endpoint->base.name);
}

bool verbs_stream_can_write(const verbs_link_t *link)
{
    const verbs_stream_t *stream = &link->stream;
    return stream->qp != NULL && stream->credits > 1 && stream->sent - stream->acked < depth_of(link);
}

static quoit_status_t stream_write(void *pipe, const struct iovec *iov, int count, size_t *written)
{
    verbs_link_t *link = pipe;
    verbs_stream_t *stream = &link->stream;
    size_t total = 0, offset = 0;
    int at = 0;
    while (at < count && verbs_stream_can_write(link)) {
        unsigned char *buffer = send_buffer(link, stream->sent);
        uint32_t length = 0;
        int next = at;
        size_t begin = offset;
        while (next < count && length < stream->limit) {
            size_t part = iov[next].iov_len - begin, room = stream->limit - length;
            if (part > room) part = room;
            memcpy(buffer + length, (const char *)iov[next].iov_base + begin, part);
            length += (uint32_t)part;
            begin += part;
            if (begin < iov[next].iov_len) break;
            next++;
            begin = 0;
        }
        int error = post_message(link, length);
        if (error != 0) {
            quoit_status_t status = refused(link, error);
            if (total == 0) return status;
            link->retry = true; /* what went out is told first */
            break;
        }
        total += length;
        at = next;
        offset = begin;
    }
    *written = total;
    return total > 0 ? QUOIT_OK : QUOIT_ERR_AGAIN;
}

int verbs_stream_return_credit(verbs_link_t *link)
{
    verbs_stream_t *stream = &link->stream;
    bool due = stream->owed >= depth_of(link) / 4 || link->direct.owed >= VERBS_DIRECT_RECVS / 4;
    if (!due || stream->credits == 0 || stream->sent - stream->acked >= depth_of(link)) return 0;
    int error = post_message(link, 0);
    if (error == 0) return 1;
    if (refused(link, error) != QUOIT_ERR_AGAIN) verbs_link_break(link, QUOIT_ERR_SYSTEM);
    return 0;
}

/* The index has the low bits of the message's number; far fewer are under way. */
void verbs_stream_sent(verbs_link_t *link, uint32_t index)
{
    link->stream.acked += (index + 1 - link->stream.acked) & ((1u << VERBS_INDEX_BITS) - 1);
}

/* ---------------------------------------------------------------- receiving */

static void post_again(verbs_link_t *link, uint32_t slot)
{
    int error = post_recv(link, slot);
    if (error == 0)
        link->stream.owed++;
    else
        verbs_link_break(link, error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: %s: cannot post a receive", link->endpoint->base.name));
}

void verbs_stream_received(verbs_link_t *link, uint32_t slot, uint32_t length, uint32_t immediate)
{
    verbs_stream_t *stream = &link->stream;
    stream->credits += immediate & 0xffff;
    link->direct.credits += immediate >> 16;
    if (stream->credits > link->peer.depth || link->direct.credits > 2 * link->peer.direct_recvs) {
        verbs_link_break(link, error_set(QUOIT_ERR_PROTOCOL, "verbs: %s gives back more buffers than it has", link->endpoint->base.name));
        return;
    }
    if (length == 0) {
        post_again(link, slot);
        return;
    }
    uint32_t at = (stream->arrived_first + stream->arrived_count++) % depth_of(link);
    stream->arrived[at].slot = slot;
    stream->arrived[at].length = length;
}

static quoit_status_t stream_read(void *pipe, const struct iovec *iov, int count, size_t *got)
{
    verbs_link_t *link = pipe;
    verbs_stream_t *stream = &link->stream;
    size_t total = 0, offset = 0;
    int at = 0;
    while (at < count && stream->arrived_count > 0) {
        uint32_t slot = stream->arrived[stream->arrived_first].slot, length = stream->arrived[stream->arrived_first].length;
        size_t part = length - stream->position, room = iov[at].iov_len - offset;
        if (part > room) part = room;
        memcpy((char *)iov[at].iov_base + offset, recv_buffer(link, slot) + stream->position, part);
        total += part;
        stream->position += (uint32_t)part;
        offset += part;
        if (stream->position == length) {
            stream->arrived_first = (stream->arrived_first + 1) % depth_of(link);
            stream->arrived_count--;
            stream->position = 0;
            if (stream->qp != NULL) post_again(link, slot);
        }
        if (offset == iov[at].iov_len) {
            at++;
            offset = 0;
        }
    }
    *got = total;
    return total > 0 ? QUOIT_OK : QUOIT_ERR_AGAIN;
}

const pipe_ops_t verbs_stream_ops = {.write = stream_write, .read = stream_read};
