/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times one collective of one library, for bench/compare, which takes several libraries in turns:
 *
 *     loop COLLECTIVE DTYPE SIZES SECONDS PIN        e.g.  loop allreduce float32 4,1024,1048576 0.1 pin
 *
 * SIZES are bytes that a rank gives (allgather: its block). PIN is "pin" (local rank r runs on the r-th processor that it may use, modulo
 * their number; done before the library begins) or "free". Rank 0 prints a line of JSON for the library, then one for each size: the
 * number of iterations, and of their times, each the longest among the ranks, the least, the median and the 99th percentile, in
 * microseconds. The root of a broadcast moves on by one each time, so that no rank can run ahead; a ping-pong is given as half of its way.
 * Every result is compared with what it must be before anything is timed.
 */
#include "peer.h"

#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_ITERATIONS = 20000, TRIAL = 5 };

static int rank, size;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static void usage(void)
{
    fprintf(stderr, "usage: loop allreduce|broadcast|allgather|reduce_scatter|alltoall|barrier|pingpong float32|bfloat16 BYTES,... SECONDS pin|free\n");
    exit(2);
}

static void pin(void)
{
    static const char *const names[] = {"LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK"};
    const char *text = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !text; i++) text = getenv(names[i]);
    cpu_set_t may, one;
    if (!text || sched_getaffinity(0, sizeof may, &may) != 0) {
        fprintf(stderr, "loop: cannot pin: no local rank in the environment\n");
        exit(1);
    }
    int turn = atoi(text) % CPU_COUNT(&may), cpu = 0;
    while (!CPU_ISSET(cpu, &may) || turn-- > 0) cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static size_t width(peer_dtype_t dtype) { return dtype == PEER_BF16 ? 2 : 4; }

/* Small whole numbers: exact in both dtypes, also when summed. */
static void fill(void *buffer, size_t count, peer_dtype_t dtype, int seed)
{
    for (size_t i = 0; i < count; i++) {
        float value = (float)((i + (size_t)seed) % 4);
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        if (dtype == PEER_BF16) ((uint16_t *)buffer)[i] = (uint16_t)(bits >> 16);
        else ((float *)buffer)[i] = value;
    }
}

static float at(const void *buffer, size_t i, peer_dtype_t dtype)
{
    uint32_t bits = dtype == PEER_BF16 ? (uint32_t)((const uint16_t *)buffer)[i] << 16 : ((const uint32_t *)buffer)[i];
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool is_sum(const peer_call_t *call, size_t i, size_t offset)
{
    float sum = 0;
    for (int each = 0; each < size; each++) sum += (float)((i + offset + (size_t)each) % 4);
    return at(call->recv, i, call->dtype) == sum;
}

/* What rank's `fill` with seed rank must have become. */
static bool is_right(const peer_call_t *call)
{
    size_t count = call->count;
    for (size_t i = 0; i < count; i++) {
        switch (call->collective) {
        case PEER_ALLREDUCE:
            if (!is_sum(call, i, 0)) return false;
            break;
        case PEER_REDUCE_SCATTER:
            if (!is_sum(call, i, (size_t)rank * count)) return false;
            break;
        case PEER_BROADCAST:
            if (at(call->recv, i, call->dtype) != (float)((i + (size_t)call->root) % 4)) return false;
            break;
        case PEER_ALLGATHER:
        case PEER_ALLTOALL:
            for (size_t from = 0; from < (size_t)size; from++) {
                size_t offset = call->collective == PEER_ALLTOALL ? (size_t)rank * count : 0;
                if (at(call->recv, from * count + i, call->dtype) != (float)((i + offset + from) % 4)) return false;
            }
            break;
        case PEER_PINGPONG:
            if (rank < 2 && at(call->recv, i, call->dtype) != (float)((i + (size_t)(1 - rank)) % 4)) return false;
            break;
        default: break;
        }
    }
    return true;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The times of `iterations` calls, each the longest among the ranks. */
static void time_calls(peer_call_t *call, double *times, int iterations)
{
    for (int i = 0; i < iterations; i++) {
        call->root = i % size;
        double start = now();
        peer_run(call);
        times[i] = now() - start;
    }
    peer_longest(times, iterations);
}

static void measure(peer_call_t *call, size_t bytes, double seconds)
{
    static double times[MOST_ITERATIONS];
    time_calls(call, times, TRIAL);
    qsort(times, TRIAL, sizeof *times, compare);
    double wanted = seconds * 1e6 / times[TRIAL / 2];
    int iterations = wanted < 5 ? 5 : wanted > MOST_ITERATIONS ? MOST_ITERATIONS : (int)wanted;
    time_calls(call, times, iterations);
    qsort(times, (size_t)iterations, sizeof *times, compare);
    double share = call->collective == PEER_PINGPONG ? 0.5 : 1;
    if (rank == 0)
        printf("{\"bytes\": %zu, \"iterations\": %d, \"least\": %.3f, \"median\": %.3f, \"p99\": %.3f}\n", bytes, iterations, times[0] * share,
               times[iterations / 2] * share, times[(int)(iterations * 0.99)] * share);
    fflush(stdout);
}

static void run_size(peer_collective_t collective, peer_dtype_t dtype, size_t bytes, double seconds)
{
    size_t ranks = (size_t)size, elements = bytes / width(dtype);
    bool blocks = collective == PEER_REDUCE_SCATTER || collective == PEER_ALLTOALL;
    size_t count = blocks ? elements / ranks : elements;
    if (count == 0 && collective != PEER_BARRIER) count = 1;
    size_t room = count * width(dtype) * (blocks || collective == PEER_ALLGATHER ? ranks : 1) + 64;
    peer_call_t call = {.collective = collective, .dtype = dtype, .count = count};
    void *send = aligned_alloc(64, (room + 63) / 64 * 64);
    call.recv = aligned_alloc(64, (room + 63) / 64 * 64);
    call.send = send;
    if (!send || !call.recv) {
        fprintf(stderr, "loop: out of memory at %zu bytes\n", bytes);
        exit(1);
    }
    memset(call.recv, 0, room);
    fill(send, blocks ? count * ranks : count, dtype, rank);
    if (collective == PEER_BROADCAST) fill(call.recv, count, dtype, rank);
    call.root = size - 1;
    peer_run(&call);
    if (!is_right(&call)) {
        fprintf(stderr, "loop: wrong result at %zu bytes on rank %d\n", bytes, rank);
        exit(1);
    }
    measure(&call, bytes, seconds);
    free(send);
    free(call.recv);
}

static int find(const char *const *names, int count, const char *wanted)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], wanted) == 0) return i;
    usage();
    return -1;
}

int main(int argc, char **argv)
{
    static const char *const collectives[] = {"allreduce", "broadcast", "allgather", "reduce_scatter", "alltoall", "barrier", "pingpong"};
    static const char *const dtypes[] = {"float32", "bfloat16"};
    if (argc != 6) usage();
    peer_collective_t collective = (peer_collective_t)find(collectives, PEER_COLLECTIVES, argv[1]);
    peer_dtype_t dtype = (peer_dtype_t)find(dtypes, PEER_DTYPES, argv[2]);
    double seconds = atof(argv[4]);
    if (strcmp(argv[5], "pin") == 0) pin();
    else if (strcmp(argv[5], "free") != 0) usage();
    char *sizes = argv[3];
    peer_begin(&argc, &argv, &rank, &size);
    if (rank == 0) printf("{\"library\": \"%s\", \"ranks\": %d, \"has_dtype\": %s}\n", peer_name(), size, peer_has(dtype) ? "true" : "false");
    if (peer_has(dtype) && (collective != PEER_PINGPONG || size >= 2))
        for (char *next = strtok(sizes, ","); next; next = strtok(NULL, ",")) run_size(collective, dtype, strtoull(next, NULL, 10), seconds);
    peer_end();
    return 0;
}
