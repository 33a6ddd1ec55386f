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
} ring_pipe_t;

extern const pipe_ops_t ring_pipe_ops; /* pipe: ring_pipe_t * */

static inline size_t ring_bytes(size_t capacity) { return sizeof(ring_memory_t) + capacity; }
bool ring_readable(const ring_pipe_t *pipe);
bool ring_writable(const ring_pipe_t *pipe);

#endif
