/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measuring one row. Each rank notes the duration of each of its iterations; after the loop one allreduce (max) turns them into the
 * longest of each iteration. Nothing else happens inside the loop. What is verified: one operation before timing and one after,
 * each on fresh input, with the bytes around the buffers guarded, the input unchanged when out of place, and the result's hash the
 * same on every rank.
 */
#include "measure.h"

#include "pattern.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { GUARD = 4096, GUARD_BYTE = 0xA5, MIN_ITERATIONS = 10, MAX_ITERATIONS = 20000 };

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

size_t bench_count(size_t bytes, quoit_dtype_t dtype)
{
    size_t count = bytes / quoit_dtype_size(dtype);
    return count > 0 ? count : 1;
}

quoit_status_t bench_allocate(bench_t *bench)
{
    bench->capacity = 16;
    for (int i = 0; i < bench->options->sizes; i++) {
        if (bench->options->bytes[i] > bench->capacity)
            bench->capacity = bench->options->bytes[i];
    }
    for (int i = 0; i < 2; i++) {
        void *memory;
        size_t length = bench->capacity + 2 * GUARD;
        if (posix_memalign(&memory, 4096, length) != 0)
            return QUOIT_ERR_NO_MEMORY;
        memset(memory, GUARD_BYTE, length);
        *(i == 0 ? &bench->send : &bench->recv) = (char *)memory + GUARD;
    }
    return QUOIT_OK;
}

void bench_release(bench_t *bench)
{
    free(bench->send != NULL ? (char *)bench->send - GUARD : NULL);
    free(bench->recv != NULL ? (char *)bench->recv - GUARD : NULL);
    bench->send = bench->recv = NULL;
}

void row_clear(row_t *row)
{
    free(row->times);
    row->times = NULL;
}

/* One operation of the row, as it is timed. */
typedef struct operation {
    quoit_comm_t *comm;
    const void *send;
    void *recv;
    const row_t *row;
    quoit_call_t call;
} operation_t;

static quoit_status_t run(const operation_t *operation)
{
    return quoit_allreduce(operation->comm, operation->send, operation->recv, operation->row->count, operation->row->dtype,
                           operation->row->op, &operation->call, NULL);
}

static quoit_status_t agree(quoit_comm_t *comm, void *values, size_t count, quoit_dtype_t dtype, quoit_op_t op)
{
    return quoit_allreduce(comm, values, values, count, dtype, op, NULL, NULL);
}

/* ---------------------------------------------------------------- verifying */

static bool guards_are_whole(const void *buffer, size_t bytes)
{
    const unsigned char *before = (const unsigned char *)buffer - GUARD, *after = (const unsigned char *)buffer + bytes;
    for (int i = 0; i < GUARD; i++) {
        if (before[i] != GUARD_BYTE || after[i] != GUARD_BYTE)
            return false;
    }
    return true;
}

static uint64_t hash_of(const void *data, size_t bytes)
{
    const unsigned char *from = data;
    uint64_t hash = bytes;
    for (; bytes >= 8; bytes -= 8, from += 8) {
        uint64_t word;
        memcpy(&word, from, 8);
        hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    for (; bytes > 0; bytes--, from++)
        hash = (hash ^ *from) * 0x100000001b3u;
    return hash;
}

/* Run once on fresh input and add what is wrong, over all ranks, to the row. */
static quoit_status_t verify(bench_t *bench, const operation_t *operation, pattern_t *pattern, unsigned round, row_t *row)
{
    size_t bytes = row->count * quoit_dtype_size(row->dtype);
    void *send = (void *)operation->send, *recv = operation->recv;
    memset((char *)recv + bytes, GUARD_BYTE, GUARD);
    pattern_fill(pattern, round, send, row->count);
    if (send != recv)
        memset(recv, GUARD_BYTE, bytes);
    quoit_status_t status = run(operation);
    if (status != QUOIT_OK)
        return status;
    uint64_t wrong = pattern_count_wrong(pattern, round, recv, row->count);
    if (send != recv)
        wrong += pattern_count_changed(pattern, round, send, row->count);
    wrong += !guards_are_whole(recv, bytes);
    uint64_t hash[2] = {hash_of(recv, bytes), 0};
    hash[1] = ~hash[0]; /* the least of the complements is the complement of the greatest */
    if ((status = agree(bench->comm, &wrong, 1, QUOIT_U64, QUOIT_SUM)) != QUOIT_OK ||
        (status = agree(bench->comm, hash, 2, QUOIT_U64, QUOIT_MIN)) != QUOIT_OK)
        return status;
    row->wrong += wrong;
    row->same_bits = row->same_bits && hash[0] == ~hash[1];
    row->checked = true;
    return QUOIT_OK;
}

/* ---------------------------------------------------------------- timing */

static quoit_status_t time_loop(bench_t *bench, const operation_t *operation, int iterations, double *times)
{
    bool barrier = bench->options->barrier;
    for (int i = 0; i < iterations; i++) {
        quoit_status_t status;
        if (barrier && (status = quoit_barrier(bench->comm, NULL, NULL)) != QUOIT_OK)
            return status;
        double start = now_us();
        if ((status = run(operation)) != QUOIT_OK)
            return status;
        times[i] = now_us() - start;
    }
    return QUOIT_OK;
}

/* Every rank must run the same number: the slowest's estimate counts. */
static quoit_status_t choose_iterations(bench_t *bench, const operation_t *operation, int *iterations)
{
    const options_t *options = bench->options;
    int tries = options->warmup > 0 ? options->warmup : 1;
    double *times, best = INFINITY, budget = options->seconds_a_size * 1e6;
    if (options->iterations > 0 && options->warmup == 0) {
        *iterations = options->iterations;
        return QUOIT_OK;
    }
    times = malloc((size_t)tries * sizeof *times);
    if (times == NULL)
        return QUOIT_ERR_NO_MEMORY;
    quoit_status_t status = time_loop(bench, operation, tries, times);
    for (int i = 0; i < tries && status == QUOIT_OK; i++)
        best = fmin(best, times[i]);
    free(times);
    if (status == QUOIT_OK)
        status = agree(bench->comm, &best, 1, QUOIT_F64, QUOIT_MAX);
    if (status != QUOIT_OK)
        return status;
    double fit = budget / fmax(best, 0.01);
    *iterations = options->iterations > 0 ? options->iterations
                                          : (int)fmin(fmax(fit, MIN_ITERATIONS), MAX_ITERATIONS);
    return QUOIT_OK;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static quoit_status_t summarise(const bench_t *bench, row_t *row)
{
    size_t count = (size_t)row->iterations;
    double *sorted = malloc(count * sizeof *sorted), total = 0;
    if (sorted == NULL)
        return QUOIT_ERR_NO_MEMORY;
    memcpy(sorted, row->times, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare);
    for (size_t i = 0; i < count; i++)
        total += sorted[i];
    row->minimum = sorted[0];
    row->maximum = sorted[count - 1];
    row->median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
    row->p99 = sorted[(size_t)ceil(0.99 * (double)count) - 1];
    row->mean = total / (double)count;
    free(sorted);
    double bytes = (double)row->count * (double)quoit_dtype_size(row->dtype);
    row->algbw = bytes / fmax(row->median, 1e-3) / 1e3;
    row->busbw = row->algbw * 2 * (bench->size - 1) / bench->size;
    return QUOIT_OK;
}

static quoit_status_t time_row(bench_t *bench, const operation_t *operation, row_t *row)
{
    quoit_status_t status = choose_iterations(bench, operation, &row->iterations);
    if (status != QUOIT_OK)
        return status;
    row->times = calloc((size_t)row->iterations, sizeof *row->times);
    if (row->times == NULL)
        return QUOIT_ERR_NO_MEMORY;
    if ((status = quoit_barrier(bench->comm, NULL, NULL)) != QUOIT_OK ||
        (status = time_loop(bench, operation, row->iterations, row->times)) != QUOIT_OK ||
        (status = agree(bench->comm, row->times, (size_t)row->iterations, QUOIT_F64, QUOIT_MAX)) != QUOIT_OK)
        return status;
    return summarise(bench, row);
}

quoit_status_t bench_measure(bench_t *bench, row_t *row)
{
    row->count = bench_count(row->bytes, row->dtype);
    row->bytes = row->count * quoit_dtype_size(row->dtype);
    row->same_bits = true;
    pattern_t *pattern = pattern_create(row->dtype, row->op, bench->rank, bench->size);
    if (pattern == NULL)
        return QUOIT_ERR_NO_MEMORY;
    operation_t operation = {.comm = bench->comm, .send = row->in_place ? bench->recv : bench->send, .recv = bench->recv, .row = row,
                             .call = QUOIT_CALL_INIT};
    pattern_factor(pattern, operation.call.factor);
    pattern_fill(pattern, 0, (void *)operation.send, row->count);
    quoit_status_t status = QUOIT_OK;
    if (bench->options->check)
        status = verify(bench, &operation, pattern, 1, row);
    if (status == QUOIT_OK)
        status = time_row(bench, &operation, row);
    if (status == QUOIT_OK && bench->options->check)
        status = verify(bench, &operation, pattern, 2, row);
    pattern_destroy(pattern);
    return status;
}
