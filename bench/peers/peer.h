/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What loop.c asks of a library of collectives: the same loop, the same buffers and the same clock for each of them. One file
 * implements it for Quoit, one for MPI (compiled with each MPI's own mpicc).
 */
#ifndef QUOIT_BENCH_PEER_H
#define QUOIT_BENCH_PEER_H

#include <stdbool.h>
#include <stddef.h>

typedef enum peer_collective {
    PEER_ALLREDUCE, PEER_BROADCAST, PEER_ALLGATHER, PEER_REDUCE_SCATTER, PEER_ALLTOALL, PEER_BARRIER,
    PEER_PINGPONG, /* between ranks 0 and 1; the others do nothing */
    PEER_COLLECTIVES
} peer_collective_t;

typedef enum peer_dtype { PEER_F32, PEER_BF16, PEER_DTYPES } peer_dtype_t;

typedef struct peer_call {
    peer_collective_t collective;
    peer_dtype_t dtype;
    /* elements: allreduce, broadcast, ping-pong: of the vector; allgather: a rank's block; reduce_scatter, alltoall: one of `size` blocks */
    size_t count;
    int root;
    const void *send;
    void *recv; /* broadcast: the buffer */
} peer_call_t;

/* Every function ends the process with a text on standard error when the library fails. */

void peer_begin(int *argc, char ***argv, int *rank, int *size);
/** The library's name and version, for the head of the output. */
const char *peer_name(void);
bool peer_has(peer_dtype_t dtype);
void peer_run(const peer_call_t *call); /* returns when the result may be used */
/** Each of `count` times becomes the longest among the ranks. */
void peer_longest(double *times, int count);
void peer_end(void);

#endif
