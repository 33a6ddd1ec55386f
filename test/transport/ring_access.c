/* SPDX-License-Identifier: Apache-2.0 */
/* See ring_access.h. */
#include "ring_access.h"

#include "transport/framing/ring.h"

#include <stdlib.h>

struct ring_access {
    ring_pipe_t pipe;
};

size_t ring_access_bytes(size_t capacity) { return ring_bytes(capacity); }

ring_access_t *ring_access_create(void *out, void *in, size_t capacity)
{
    ring_access_t *ring = malloc(sizeof *ring);
    if (!ring) abort();
    ring->pipe = (ring_pipe_t){.out = out, .in = in, .out_capacity = capacity, .in_capacity = capacity};
    return ring;
}

void ring_access_destroy(ring_access_t *ring) { free(ring); }

quoit_status_t ring_access_write(ring_access_t *ring, const struct iovec *iov, int count, size_t *written)
{
    return ring_pipe_ops.write(&ring->pipe, iov, count, written);
}

quoit_status_t ring_access_read(ring_access_t *ring, const struct iovec *iov, int count, size_t *got)
{
    return ring_pipe_ops.read(&ring->pipe, iov, count, got);
}

bool ring_access_readable(const ring_access_t *ring) { return ring_readable(&ring->pipe); }
bool ring_access_writable(const ring_access_t *ring) { return ring_writable(&ring->pipe); }

void ring_access_lie(ring_access_t *ring, uint64_t read, uint64_t written)
{
    atomic_store(&ring->pipe.out->read, read);
    atomic_store(&ring->pipe.in->written, written);
}
