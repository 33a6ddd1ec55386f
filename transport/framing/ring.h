/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ring of bytes in memory that two processes (or one) share: one writer, one reader, no locks. A pipe for channel.h.
 * Offsets rise for ever; each is written by one side only. A position that a peer cannot have written is ERR_PROTOCOL.
 */
#ifndef QUOIT_TRANSPORT_RING_H
#define QUOIT_TRANSPORT_RING_H

#include "transport/framing/channel.h"

#include <stdatomic.h>

/** In shared memory, followed by `capacity` bytes (a power of two). All zero is an empty ring. */
typedef struct ring_memory {
    _Alignas(64) _Atomic uint64_t written; /* the writer's */
    _Alignas(64) _Atomic uint64_t read;    /* the reader's */
    _Alignas(64) unsigned char bytes[];
} ring_memory_t;

/** A channel's pipe: two rings, one a direction. The capacities are kept here, not read from memory a peer can write. */
typedef struct ring_pipe {
    ring_memory_t *out, *in;
    size_t out_capacity, in_capacity; /* bytes */
    uint64_t out_written, in_read;    /* this side's own positions */
    uint64_t in_written;              /* the writer's, when it was last looked at by peek */
    size_t out_room;                  /* bytes that were free when the reader's position was last looked at, less what was written since */
    bool in_narrow;                   /* see ring_narrow */
} ring_pipe_t;

extern const pipe_ops_t ring_pipe_ops; /* pipe: ring_pipe_t * */

static inline size_t ring_bytes(size_t capacity) { return sizeof(ring_memory_t) + capacity; }
/**
 * The reader, before the writer knows of the ring: it may only write the first `room` bytes, for the rest has no memory yet. What is published
 * says that the bytes beyond are yet to be read. With in_narrow set, nothing that is read makes room, until ring_widen.
 */
void ring_narrow(ring_memory_t *ring, size_t capacity, size_t room);
/** The reader: all of the ring may be written. */
void ring_widen(ring_pipe_t *pipe);
static inline bool ring_readable(const ring_pipe_t *pipe)
{
    return atomic_load_explicit(&pipe->in->written, memory_order_acquire) != pipe->in_read;
}
bool ring_writable(const ring_pipe_t *pipe);

#endif
