/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a job: RANK and WORLD_SIZE say which, MASTER_ADDR and MASTER_PORT where the ranks meet.
 *
 *   machine_rank check COUNT...        every collective with so many elements, each result compared; prints "checked N"
 *   machine_rank endless COUNT LIMIT   allreduce after allreduce, each with LIMIT ms, until one fails; prints "ready" after the first, and
 *                                      "ended SECONDS STATUS TEXT" of the one that failed
 *   machine_rank stream COUNT TIMES    rank 0 sends to rank 1, eight messages at a time; prints "flight BYTES SOCKETS": the most bytes that
 *                                      TCP had sent without acknowledgement at once, and how many sockets ever had any
 *
 * All print the communicator's description as JSON before they leave, unless it failed. Status 1: something is wrong, and is printed.
 */
#include "quoit/quoit.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

enum { JOIN_MS = 60000, OPERATION_MS = 60000, MESSAGES = 8, MOST_DESCRIPTORS = 64 };

typedef struct job {
    int rank, size;
    quoit_comm_t *comm;
    float *send, *recv; /* room for size * count elements */
    size_t count;
    int checked;
} job_t;

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static bool good(quoit_status_t status, const char *what)
{
    if (status == QUOIT_OK) return true;
    printf("%s: %s: %s\n", what, quoit_status_text(status), quoit_last_error());
    return false;
}

static bool join(job_t *job)
{
    const char *rank = getenv("RANK"), *size = getenv("WORLD_SIZE");
    quoit_store_t *store = NULL;
    quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
    config.timeout_ms = OPERATION_MS;
    job->rank = rank != NULL ? atoi(rank) : 0;
    job->size = size != NULL ? atoi(size) : 1;
    if (!good(quoit_store_open("env://", job->rank, job->size, JOIN_MS, &store), "store")) return false;
    quoit_status_t status = quoit_comm_create(store, job->rank, job->size, &config, &job->comm);
    quoit_store_close(store);
    return good(status, "join");
}

static bool describe(const job_t *job)
{
    char *text;
    if (!good(quoit_comm_describe(job->comm, QUOIT_FORMAT_JSON, &text), "describe")) return false;
    puts(text);
    free(text);
    return true;
}

/* ---------------------------------------------------------------- check */

/* Small whole numbers: sums of them are exact. */
static float value(int rank, size_t element) { return (float)(rank + 1) * (float)((element * 7 + 3) % 13); }

static float sum(const job_t *job, size_t element) { return value(0, element) * (float)(job->size * (job->size + 1) / 2); }

/* What this rank gives: element i of its part for rank r is element r * count + i. */
static void fill(const job_t *job)
{
    size_t all = job->count * (size_t)job->size;
    for (size_t i = 0; i < all; i++) {
        job->send[i] = value(job->rank, i);
        job->recv[i] = -1;
    }
}

static bool equal(const char *what, const job_t *job, size_t at, float found, float expected)
{
    if (found == expected) return true;
    printf("%s of %zu elements among %d ranks: element %zu on rank %d is %g, not %g\n", what, job->count, job->size, at, job->rank, found, expected);
    return false;
}

typedef float expected_t(const job_t *job, int part, size_t element);

static float expect_sum(const job_t *job, int part, size_t element) { return sum(job, (size_t)part * job->count + element); }
static float expect_my_sum(const job_t *job, int part, size_t element) { return sum(job, (size_t)(job->rank + part) * job->count + element); }
static float expect_of_rank(const job_t *job, int part, size_t element) { return (void)job, value(part, element); }
static float expect_of_root(const job_t *job, int part, size_t element) { return (void)job, (void)part, value(0, element); }
static float expect_for_me(const job_t *job, int part, size_t element) { return value(part, (size_t)job->rank * job->count + element); }
static float expect_my_part(const job_t *job, int part, size_t element) { return (void)part, value(0, (size_t)job->rank * job->count + element); }

/* `parts` blocks of count elements were received. */
static bool compare(const char *what, job_t *job, quoit_status_t status, int parts, expected_t *expected)
{
    if (!good(status, what)) return false;
    for (int part = 0; part < parts; part++)
        for (size_t i = 0; i < job->count; i++) {
            size_t at = (size_t)part * job->count + i;
            if (!equal(what, job, at, job->recv[at], expected(job, part, i))) return false;
        }
    job->checked++;
    fill(job);
    return true;
}

static bool check_message(job_t *job)
{
    int other = (job->rank + 1) % job->size, from = (job->rank + job->size - 1) % job->size;
    quoit_request_t *request = NULL;
    quoit_status_t status = quoit_send(job->comm, job->send, job->count, QUOIT_F32, other, 5, NULL, &request);
    if (!good(status, "send")) return false;
    status = quoit_recv(job->comm, job->recv, job->count, QUOIT_F32, from, 5, NULL, NULL);
    if (status == QUOIT_OK) status = quoit_request_wait(request, -1);
    quoit_request_free(request);
    if (!good(status, "send and recv")) return false;
    for (size_t i = 0; i < job->count; i++)
        if (!equal("recv", job, i, job->recv[i], value(from, i))) return false;
    job->checked++;
    fill(job);
    return true;
}

static bool check_all(job_t *job)
{
    quoit_comm_t *comm = job->comm;
    float *send = job->send, *recv = job->recv;
    size_t count = job->count;
    int last = job->size - 1, at_last = job->rank == last;
    fill(job);
    return compare("allreduce", job, quoit_allreduce(comm, send, recv, count, QUOIT_F32, QUOIT_SUM, NULL, NULL), 1, expect_sum) &&
           compare("reduce", job, quoit_reduce(comm, send, recv, count, QUOIT_F32, QUOIT_SUM, last, NULL, NULL), at_last, expect_sum) &&
           compare("broadcast", job, quoit_broadcast(comm, job->rank == 0 ? memcpy(recv, send, count * sizeof *recv) : recv, count, QUOIT_F32, 0, NULL, NULL),
                   1, expect_of_root) &&
           compare("allgather", job, quoit_allgather(comm, send, recv, count, QUOIT_F32, NULL, NULL), job->size, expect_of_rank) &&
           compare("reduce_scatter", job, quoit_reduce_scatter(comm, send, recv, count, QUOIT_F32, QUOIT_SUM, NULL, NULL), 1, expect_my_sum) &&
           compare("alltoall", job, quoit_alltoall(comm, send, recv, count, QUOIT_F32, NULL, NULL), job->size, expect_for_me) &&
           compare("gather", job, quoit_gather(comm, send, recv, count, QUOIT_F32, last, NULL, NULL), at_last ? job->size : 0, expect_of_rank) &&
           compare("scatter", job, quoit_scatter(comm, send, recv, count, QUOIT_F32, 0, NULL, NULL), 1, expect_my_part) &&
           compare("barrier", job, quoit_barrier(comm, NULL, NULL), 0, expect_sum) && check_message(job);
}

static bool allocate(job_t *job, const char *count)
{
    job->count = strtoul(count, NULL, 10);
    size_t bytes = (job->count * (size_t)job->size + 1) * sizeof *job->send;
    free(job->send);
    free(job->recv);
    job->send = calloc(1, bytes);
    job->recv = calloc(1, bytes);
    if (job->send != NULL && job->recv != NULL) return true;
    puts("no memory");
    return false;
}

static bool check(job_t *job, char **counts)
{
    for (; *counts != NULL; counts++)
        if (!allocate(job, *counts) || !check_all(job)) return false;
    printf("checked %d\n", job->checked);
    return describe(job);
}

/* ---------------------------------------------------------------- the others */

static bool endless(job_t *job, char **words)
{
    quoit_call_t call = QUOIT_CALL_INIT;
    double begun;
    quoit_status_t status;
    if (words[0] == NULL || words[1] == NULL || !allocate(job, words[0])) return false;
    for (int i = 0;; i++) {
        call.timeout_ms = i == 0 ? OPERATION_MS : atoi(words[1]);
        begun = seconds();
        status = quoit_allreduce(job->comm, job->send, job->recv, job->count, QUOIT_F32, QUOIT_SUM, &call, NULL);
        if (status != QUOIT_OK) break;
        if (i == 0) {
            describe(job);
            printf("ready\n");
        }
    }
    printf("ended %.3f %s: %s\n", seconds() - begun, quoit_status_text(status), quoit_last_error());
    return true;
}

typedef struct flight {
    size_t most;                 /* bytes on their way, of all sockets together */
    bool seen[MOST_DESCRIPTORS]; /* this socket had some */
} flight_t;

static void look(flight_t *flight)
{
    size_t all = 0;
    for (int fd = 0; fd < MOST_DESCRIPTORS; fd++) {
        struct tcp_info info;
        socklen_t size = sizeof info;
        if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
        size_t bytes = (size_t)info.tcpi_unacked * info.tcpi_snd_mss;
        flight->seen[fd] = flight->seen[fd] || bytes > 100000; /* frames of control are small */
        all += bytes;
    }
    if (all > flight->most) flight->most = all;
}

static bool finish(quoit_request_t *request, flight_t *flight)
{
    quoit_status_t status = QUOIT_IN_PROGRESS;
    while (request != NULL && (status = quoit_request_wait(request, 1)) == QUOIT_IN_PROGRESS) look(flight);
    quoit_request_free(request);
    return request == NULL || good(status, "wait");
}

static void tell(const flight_t *flight)
{
    int sockets = 0;
    for (int fd = 0; fd < MOST_DESCRIPTORS; fd++) sockets += flight->seen[fd];
    printf("flight %zu %d\n", flight->most, sockets);
}

static bool stream(job_t *job, char **words)
{
    flight_t flight = {0};
    quoit_request_t *request[MESSAGES] = {NULL};
    bool fine = words[0] != NULL && words[1] != NULL && allocate(job, words[0]);
    int times = fine ? atoi(words[1]) : 0;
    for (int i = 0; fine && i < times + MESSAGES; i++) {
        quoit_request_t **mine = &request[i % MESSAGES];
        fine = finish(*mine, &flight);
        *mine = NULL;
        if (!fine || i >= times) continue;
        uint32_t tag = (uint32_t)(i % MESSAGES);
        fine = good(job->rank == 0 ? quoit_send(job->comm, job->send, job->count, QUOIT_F32, 1, tag, NULL, mine)
                                   : quoit_recv(job->comm, job->recv, job->count, QUOIT_F32, 0, tag, NULL, mine), "message"); /* nobody looks at them */
    }
    tell(&flight);
    return fine && describe(job);
}

int main(int argc, char **argv)
{
    job_t job = {0};
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 3) {
        fprintf(stderr, "usage: %s check COUNT... | endless COUNT LIMIT | stream COUNT TIMES\n", argv[0]);
        return 2;
    }
    bool fine = join(&job);
    if (fine && strcmp(argv[1], "check") == 0) fine = check(&job, argv + 2);
    else if (fine && strcmp(argv[1], "endless") == 0) fine = endless(&job, argv + 2);
    else if (fine) fine = stream(&job, argv + 2);
    quoit_comm_destroy(job.comm);
    free(job.send);
    free(job.recv);
    return fine ? 0 : 1;
}
