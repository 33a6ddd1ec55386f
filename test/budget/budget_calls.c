/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole calls of the public API, to be run under callgrind by budget_test.cc: two ranks of this process, each with an engine of its own, driven
 * by one thread. So nobody ever waits: a message is there when its recv is called, and the other rank has come to a collective before. For
 * each call some rounds; what the library executes in it is collected, and written with the call's name.
 *
 *   budget_calls STORE
 */
#include "quoit/quoit.h"
#include "scheduler/comm.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <valgrind/callgrind.h>

enum { ROUNDS = 8, LIMIT_MS = 60000, MOST = 4096 };

typedef struct budget_rank {
    int rank;
    const char *store;
    quoit_comm_t *comm;
    engine_t *engine;
    pthread_t thread;
} budget_rank_t;

static budget_rank_t budget_rank[2];
static unsigned char budget_from[2][MOST], budget_to[2][MOST];

static void budget_check(quoit_status_t status, const char *what)
{
    if (status == QUOIT_OK) return;
    fprintf(stderr, "budget_calls: %s: %s\n", what, quoit_last_error());
    exit(1);
}

static void *budget_join(void *argument)
{
    budget_rank_t *rank = argument;
    quoit_store_t *store = NULL;
    quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
    config.timeout_ms = LIMIT_MS;
    budget_check(quoit_store_open(rank->store, rank->rank, 2, LIMIT_MS, &store), "store");
    budget_check(engine_create(&rank->engine), "engine");
    budget_check(comm_create_on(rank->engine, store, rank->rank, 2, &config, &rank->comm), "communicator");
    quoit_store_close(store);
    return NULL;
}

static void *budget_leave(void *argument)
{
    budget_rank_t *rank = argument;
    quoit_comm_destroy(rank->comm);
    engine_release(rank->engine);
    return NULL;
}

static void budget_both(void *(*body)(void *))
{
    for (int i = 0; i < 2; i++)
        if (pthread_create(&budget_rank[i].thread, NULL, body, &budget_rank[i]) != 0) exit(1);
    for (int i = 0; i < 2; i++) pthread_join(budget_rank[i].thread, NULL);
}

/* There and back, as a ping-pong does. */
static void budget_messages(size_t bytes, const char *name)
{
    for (int round = 0; round < ROUNDS; round++) {
        CALLGRIND_ZERO_STATS;
        for (int from = 0; from < 2; from++) {
            budget_from[from][0] = (unsigned char)(round + from);
            CALLGRIND_TOGGLE_COLLECT;
            quoit_status_t sent = quoit_send(budget_rank[from].comm, budget_from[from], bytes, QUOIT_U8, 1 - from, 7, NULL, NULL);
            quoit_status_t got = quoit_recv(budget_rank[1 - from].comm, budget_to[1 - from], bytes, QUOIT_U8, from, 7, NULL, NULL);
            CALLGRIND_TOGGLE_COLLECT;
            budget_check(sent, "send");
            budget_check(got, "recv");
            if (budget_to[1 - from][0] != budget_from[from][0]) budget_check(QUOIT_ERR_INTERNAL, "what came is not what was sent");
        }
        CALLGRIND_DUMP_STATS_AT(name);
    }
}

typedef quoit_status_t budget_collective_t(budget_rank_t *rank, const quoit_call_t *call, quoit_request_t **request);

static quoit_status_t budget_allreduce(budget_rank_t *rank, const quoit_call_t *call, quoit_request_t **request)
{
    return quoit_allreduce(rank->comm, budget_from[rank->rank], budget_to[rank->rank], 1, QUOIT_F32, QUOIT_SUM, call, request);
}

static quoit_status_t budget_alltoall(budget_rank_t *rank, const quoit_call_t *call, quoit_request_t **request)
{
    return quoit_alltoall(rank->comm, budget_from[rank->rank], budget_to[rank->rank], 1, QUOIT_F32, call, request);
}

static quoit_status_t budget_barrier(budget_rank_t *rank, const quoit_call_t *call, quoit_request_t **request)
{
    return quoit_barrier(rank->comm, call, request);
}

/* Rank 1 comes first and goes as far as it can; counted is rank 0's call, which finds all that it waits for. */
static void budget_collectives(budget_collective_t *collective, const char *name)
{
    for (int round = 0; round < ROUNDS; round++) {
        quoit_call_t call = QUOIT_CALL_INIT;
        quoit_request_t *request = NULL;
        call.flags = QUOIT_CALL_ATTENDED;
        budget_check(collective(&budget_rank[1], &call, &request), name);
        (void)quoit_request_test(request);
        CALLGRIND_ZERO_STATS;
        CALLGRIND_TOGGLE_COLLECT;
        quoit_status_t status = collective(&budget_rank[0], NULL, NULL);
        CALLGRIND_TOGGLE_COLLECT;
        CALLGRIND_DUMP_STATS_AT(name);
        budget_check(status, name);
        budget_check(quoit_request_wait(request, LIMIT_MS), name);
        quoit_request_free(request);
    }
}

int main(int count, char **arguments)
{
    if (count != 2) return 2;
    for (int i = 0; i < 2; i++) budget_rank[i] = (budget_rank_t){.rank = i, .store = arguments[1]};
    budget_both(budget_join);
    budget_messages(4, "4 bytes there and back");
    budget_messages(1024, "1 KiB there and back");
    budget_messages(4096, "4 KiB there and back");
    budget_collectives(budget_allreduce, "allreduce of 4 bytes");
    budget_collectives(budget_alltoall, "alltoall of 4 bytes");
    budget_collectives(budget_barrier, "barrier");
    budget_both(budget_leave);
    puts("done");
    return 0;
}
