/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ring of bytes between two processes. The writer owns `written`, the reader `read`; each keeps its own position in private memory
 * and believes the other's only as far as it is possible: between 0 and the capacity away from its own.
 */
#include "transport/framing/ring.h"

#include "base/status.h"

#include <string.h>

static quoit_status_t impossible(const char *side, uint64_t theirs, uint64_t ours, size_t capacity)
{
    return error_set(QUOIT_ERR_PROTOCOL, "ring: the peer's %s position %llu cannot be (own position %llu, capacity %zu bytes)", side,
                     (unsigned long long)theirs, (unsigned long long)ours, capacity);
}

static void copy_in(ring_memory_t *ring, size_t capacity, uint64_t position, const unsigned char *data, size_t length)
{
    size_t at = (size_t)position & (capacity - 1), first = capacity - at < length ? capacity - at : length;
    memcpy(ring->bytes + at, data, first);
    if (length > first) memcpy(ring->bytes, data + first, length - first);
}

static void copy_out(const ring_memory_t *ring, size_t capacity, uint64_t position, unsigned char *data, size_t length)
{
    size_t at = (size_t)position & (capacity - 1), first = capacity - at < length ? capacity - at : length;
    memcpy(data, ring->bytes + at, first);
    if (length > first) memcpy(data + first, ring->bytes, length - first);
}

/* Look where the reader is. Its line is the reader's, and fetching it costs as much as a short message: only when the room known of is too little. */
static quoit_status_t find_room(ring_pipe_t *pipe)
{
    uint64_t taken = atomic_load_explicit(&pipe->out->read, memory_order_acquire);
    if (pipe->out_written - taken > pipe->out_capacity)
        return impossible("reading", taken, pipe->out_written, pipe->out_capacity);
    pipe->out_room = pipe->out_capacity - (size_t)(pipe->out_written - taken);
    return QUOIT_OK;
}

static unsigned char *ring_place(void *pointer, size_t length)
{
    ring_pipe_t *pipe = pointer;
    size_t at = (size_t)pipe->out_written & (pipe->out_capacity - 1);
    if (length > pipe->out_room && find_room(pipe) != QUOIT_OK) return NULL; /* ring_write says what cannot be */
    return length <= pipe->out_room && length <= pipe->out_capacity - at ? pipe->out->bytes + at : NULL;
}

static void ring_commit(void *pointer, size_t length)
{
    ring_pipe_t *pipe = pointer;
    pipe->out_written += length;
    pipe->out_room -= length;
    atomic_store_explicit(&pipe->out->written, pipe->out_written, memory_order_release);
}

static quoit_status_t ring_write(void *pointer, const struct iovec *iov, int count, size_t *written)
{
    ring_pipe_t *pipe = pointer;
    size_t wanted = 0, total = 0;
    for (int i = 0; i < count; i++) wanted += iov[i].iov_len;
    if (wanted > pipe->out_room) {
        quoit_status_t status = find_room(pipe);
        if (status != QUOIT_OK) return status;
    }
    size_t room = pipe->out_room;
    for (int i = 0; i < count && total < room; i++) {
        size_t part = iov[i].iov_len < room - total ? iov[i].iov_len : room - total;
        if (part == 0) continue;
        copy_in(pipe->out, pipe->out_capacity, pipe->out_written + total, iov[i].iov_base, part);
        total += part;
    }
    if (total == 0) return QUOIT_ERR_AGAIN;
    ring_commit(pipe, total);
    *written = total;
    return QUOIT_OK;
}

/* Everything before it has been read. */
static void publish_read(ring_pipe_t *pipe)
{
    if (!pipe->in_narrow) atomic_store_explicit(&pipe->in->read, pipe->in_read, memory_order_release);
}

static const unsigned char *ring_peek(void *pointer, size_t length)
{
    ring_pipe_t *pipe = pointer;
    size_t at = (size_t)pipe->in_read & (pipe->in_capacity - 1);
    if (pipe->in_written - pipe->in_read < length) {
        uint64_t there = atomic_load_explicit(&pipe->in->written, memory_order_acquire);
        if (there - pipe->in_read < length || there - pipe->in_read > pipe->in_capacity) return NULL; /* ring_read says what cannot be */
        pipe->in_written = there;
    }
    return length <= pipe->in_capacity - at ? pipe->in->bytes + at : NULL;
}

static bool ring_skip(void *pointer, size_t length)
{
    ring_pipe_t *pipe = pointer;
    pipe->in_read += length;
    publish_read(pipe);
    return pipe->in_written != pipe->in_read;
}

static quoit_status_t ring_read(void *pointer, const struct iovec *iov, int count, size_t *got)
{
    ring_pipe_t *pipe = pointer;
    uint64_t there = atomic_load_explicit(&pipe->in->written, memory_order_acquire);
    if (there - pipe->in_read > pipe->in_capacity) return impossible("writing", there, pipe->in_read, pipe->in_capacity);
    size_t ready = (size_t)(there - pipe->in_read), total = 0;
    for (int i = 0; i < count && total < ready; i++) {
        size_t part = iov[i].iov_len < ready - total ? iov[i].iov_len : ready - total;
        if (part == 0) continue;
        copy_out(pipe->in, pipe->in_capacity, pipe->in_read + total, iov[i].iov_base, part);
        total += part;
    }
    if (total == 0) return QUOIT_ERR_AGAIN;
    pipe->in_read += total;
    pipe->in_written = there;
    publish_read(pipe);
    *got = total;
    return QUOIT_OK;
}

const pipe_ops_t ring_pipe_ops = {.write = ring_write, .read = ring_read, .peek = ring_peek, .skip = ring_skip, .place = ring_place, .commit = ring_commit};

void ring_narrow(ring_memory_t *ring, size_t capacity, size_t room) { atomic_store_explicit(&ring->read, room - (uint64_t)capacity, memory_order_relaxed); }

void ring_widen(ring_pipe_t *pipe)
{
    pipe->in_narrow = false;
    atomic_store_explicit(&pipe->in->read, pipe->in_read, memory_order_release);
}

bool ring_writable(const ring_pipe_t *pipe)
{
    return pipe->out_room > 0 || pipe->out_written - atomic_load_explicit(&pipe->out->read, memory_order_acquire) != pipe->out_capacity;
}
