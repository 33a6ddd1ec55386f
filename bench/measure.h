/* SPDX-License-Identifier: Apache-2.0 */
/** One row of the benchmark: warm up, time, gather the longest time of each iteration, verify. */
#ifndef QUOIT_BENCH_MEASURE_H
#define QUOIT_BENCH_MEASURE_H

#include "options.h"

typedef struct bench {
    const options_t *options;
    quoit_comm_t *comm;
    int rank, size;
    void *send, *recv; /* room for the largest size and guard bytes on both ends; owned */
    size_t capacity;   /* bytes of each, without the guards */
} bench_t;

typedef struct row {
    quoit_dtype_t dtype;
    quoit_op_t op;
    bool in_place;
    size_t bytes, count;
    int iterations;
    double *times; /* [iterations] microseconds, the longest among the ranks, in order; owned, see row_clear */
    double minimum, median, p99, maximum, mean; /* microseconds */
    double algbw, busbw;                        /* GB/s, from the median */
    bool checked, same_bits; /* same_bits: every rank has the same result */
    uint64_t wrong;          /* elements, of all ranks */
} row_t;

quoit_status_t bench_allocate(bench_t *bench);
void bench_release(bench_t *bench);

/** Fill dtype, op, in_place and bytes before. On an error the text is quoit_last_error(). */
quoit_status_t bench_measure(bench_t *bench, row_t *row);
void row_clear(row_t *row);

/** Elements that a message of `bytes` holds: at least one. */
size_t bench_count(size_t bytes, quoit_dtype_t dtype);

#endif
