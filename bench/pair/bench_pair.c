/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bandwidth of messages from rank 0 to rank 1, over the transport that QUOIT_TRANSPORT names: what bench/ucx sets beside ucx_perftest.
 * `window` messages are under way at a time, all of them from one buffer and into one, as ucx_perftest has it: with one for each, the bytes of 16 large
 * messages come from memory, where there they come from a processor's cache. The clock stops when rank 1 has said that the last one is there.
 *
 *   bench_pair RANK STORE BYTES COUNT WARMUP [WINDOW]      prints (rank 0) MB/s, 10^6 bytes a second
 */
#include "quoit/quoit.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_WINDOW = 64, TIMEOUT_MS = 60000, TAG = 1, ACKNOWLEDGEMENT = 2 };

typedef struct pair {
    quoit_comm_t *comm;
    int rank;
    size_t bytes;
    int window;
    unsigned char *buffer; /* owned: one message */
    quoit_request_t *request[MOST_WINDOW]; /* of message number modulo window; NULL: none */
} pair_t;

static void must(quoit_status_t status, const char *what)
{
    if (status == QUOIT_OK) return;
    fprintf(stderr, "bench_pair: %s: %s\n", what, quoit_last_error());
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void finish(quoit_request_t **request)
{
    if (*request == NULL) return;
    must(quoit_request_wait(*request, TIMEOUT_MS), "a message");
    quoit_request_free(*request);
    *request = NULL;
}

/* `count` messages, then a word back. */
static void run(pair_t *pair, long count)
{
    unsigned char word = 0;
    for (long i = 0; i < count; i++) {
        int at = (int)(i % pair->window);
        finish(&pair->request[at]);
        if (pair->rank == 0)
            must(quoit_send(pair->comm, pair->buffer, pair->bytes, QUOIT_U8, 1, TAG, NULL, &pair->request[at]), "quoit_send");
        else
            must(quoit_recv(pair->comm, pair->buffer, pair->bytes, QUOIT_U8, 0, TAG, NULL, &pair->request[at]), "quoit_recv");
    }
    for (int at = 0; at < pair->window; at++) finish(&pair->request[at]);
    if (pair->rank == 0)
        must(quoit_recv(pair->comm, &word, 1, QUOIT_U8, 1, ACKNOWLEDGEMENT, NULL, NULL), "the word back");
    else
        must(quoit_send(pair->comm, &word, 1, QUOIT_U8, 0, ACKNOWLEDGEMENT, NULL, NULL), "the word back");
}

static long number(const char *text, long least, long most)
{
    char *end = NULL;
    long value = strtol(text, &end, 10);
    if (*text && *end == '\0' && value >= least && value <= most) return value;
    fprintf(stderr, "bench_pair: %s: expected a number of %ld to %ld\n", text, least, most);
    exit(2);
}

int main(int count, char **arguments)
{
    if (count < 6 || count > 7) {
        fprintf(stderr, "bench_pair RANK STORE BYTES COUNT WARMUP [WINDOW]\n");
        return 2;
    }
    pair_t pair = {.rank = (int)number(arguments[1], 0, 1),
                   .bytes = (size_t)number(arguments[3], 1, 1l << 30),
                   .window = count == 7 ? (int)number(arguments[6], 1, MOST_WINDOW) : 16};
    long messages = number(arguments[4], 1, 1l << 40), warmup = number(arguments[5], 0, 1l << 40);
    pair.buffer = aligned_alloc(4096, (pair.bytes + 4095) / 4096 * 4096);
    if (pair.buffer == NULL) {
        fprintf(stderr, "bench_pair: no memory for messages of %zu bytes\n", pair.bytes);
        return 1;
    }
    memset(pair.buffer, pair.rank, pair.bytes);
    quoit_store_t *store = NULL;
    must(quoit_store_open(arguments[2], pair.rank, 2, TIMEOUT_MS, &store), "store");
    must(quoit_comm_create(store, pair.rank, 2, NULL, &pair.comm), "quoit_comm_create");
    quoit_store_close(store);
    run(&pair, warmup);
    double begun = now();
    run(&pair, messages);
    double seconds = now() - begun;
    if (pair.rank == 0) printf("%.2f\n", (double)pair.bytes * (double)messages / seconds / 1e6);
    if (pair.rank == 1 && pair.buffer[0] != 0) {
        fprintf(stderr, "bench_pair: nothing arrived\n");
        return 1;
    }
    quoit_comm_destroy(pair.comm);
    free(pair.buffer);
    return 0;
}
