/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ring in shared memory whose other side writes what it likes into it, positions and bytes, between any two calls. Reads and writes
 * stay inside, give no more than the capacity, and a position that cannot be ends in ERR_PROTOCOL.
 */
#include "fuzz.h"

#include "transport/framing/ring.h"

#include <stdlib.h>

enum { CAPACITY = 256 };

static ring_memory_t *ring_make(void)
{
    ring_memory_t *ring = aligned_alloc(64, ring_bytes(CAPACITY));
    fuzz_check(ring != NULL);
    memset(ring, 0, ring_bytes(CAPACITY));
    return ring;
}

/* What is shown lies in the ring, whatever the positions say. */
static void peek(ring_pipe_t *pipe, size_t length)
{
    const unsigned char *there = ring_pipe_ops.peek(pipe, length);
    if (!there) return;
    fuzz_check(there >= pipe->in->bytes && there + length <= pipe->in->bytes + CAPACITY);
    (void)ring_pipe_ops.skip(pipe, length);
}

static void place(ring_pipe_t *pipe, size_t length)
{
    unsigned char *there = ring_pipe_ops.place(pipe, length);
    if (!there) return;
    fuzz_check(there >= pipe->out->bytes && there + length <= pipe->out->bytes + CAPACITY);
    memset(there, 1, length);
    ring_pipe_ops.commit(pipe, length);
}

static void step(fuzz_input_t *input, ring_pipe_t *pipe)
{
    uint8_t what = fuzz_byte(input);
    size_t first = fuzz_byte(input), second = fuzz_byte(input), moved = 0;
    unsigned char *a = malloc(first + 1), *b = malloc(second + 1);
    fuzz_check(a && b);
    memset(a, what, first);
    memset(b, what, second);
    struct iovec parts[2] = {{a, first}, {b, second}};
    quoit_status_t status = QUOIT_ERR_AGAIN;
    switch (what % 5) {
    case 0:
        if (what & 16) peek(pipe, first);
        status = ring_pipe_ops.read(pipe, parts, 2, &moved);
        break;
    case 1:
        if (what & 16) place(pipe, first);
        status = ring_pipe_ops.write(pipe, parts, 2, &moved);
        break;
    case 2: atomic_store(&pipe->in->written, pipe->in_read + (uint64_t)(int64_t)(int16_t)fuzz_number(input, 2)); break;
    case 3: atomic_store(&pipe->out->read, pipe->out_written - (uint64_t)(int64_t)(int16_t)fuzz_number(input, 2)); break;
    default: atomic_store(what & 8 ? &pipe->in->written : &pipe->out->read, fuzz_number(input, 8)); break;
    }
    if (status == QUOIT_OK)
        fuzz_check(moved > 0 && moved <= first + second && moved <= CAPACITY);
    else
        fuzz_check(moved == 0 && (status == QUOIT_ERR_AGAIN || status == QUOIT_ERR_PROTOCOL));
    (void)ring_readable(pipe);
    (void)ring_writable(pipe);
    free(a);
    free(b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = fuzz_input(data, size);
    ring_pipe_t pipe = {.out = ring_make(), .in = ring_make(), .out_capacity = CAPACITY, .in_capacity = CAPACITY};
    pipe.out_written = pipe.in_read = pipe.in_written = fuzz_number(&input, 8); /* rings run for ever: positions may be about to wrap */
    atomic_store(&pipe.out->read, pipe.out_written);
    atomic_store(&pipe.in->written, pipe.in_read);
    while (fuzz_left(&input) > 0) step(&input, &pipe);
    free(pipe.out);
    free(pipe.in);
    return 0;
}

void fuzz_seeds(void)
{
    fuzz_seed("write_and_read", "\0\0\0\0\0\0\0\0\1\100\100\2\0\0\100\0\0\40\40\3\0\0\40\0\1\377\377", 27);
    fuzz_seed("wraps", "\360\377\377\377\377\377\377\377\1\100\100\2\0\0\100\0\0\40\40", 19);
    fuzz_seed("too_far", "\0\0\0\0\0\0\0\0\2\0\0\1\2\0\10\10\3\0\0\1\2\1\10\10", 24);
}
