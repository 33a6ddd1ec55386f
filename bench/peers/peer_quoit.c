/* SPDX-License-Identifier: Apache-2.0 */
/* See peer.h. Ranks are told by RANK, WORLD_SIZE and QUOIT_STORE. */
#include "peer.h"

#include "quoit/quoit.h"

#include <stdio.h>
#include <stdlib.h>

static quoit_comm_t *comm;
static int rank, size;

static void must(quoit_status_t status, const char *what)
{
    if (status == QUOIT_OK) return;
    fprintf(stderr, "%s: %s\n", what, quoit_last_error());
    exit(1);
}

static int number(const char *name)
{
    const char *text = getenv(name);
    if (text) return atoi(text);
    fprintf(stderr, "%s is not set: ranks are told by RANK, WORLD_SIZE and QUOIT_STORE\n", name);
    exit(2);
}

void peer_begin(int *argc, char ***argv, int *my_rank, int *my_size)
{
    (void)argc;
    (void)argv;
    *my_rank = rank = number("RANK");
    *my_size = size = number("WORLD_SIZE");
    quoit_store_t *store;
    must(quoit_store_open("env://", rank, size, 30000, &store), "store");
    must(quoit_comm_create(store, rank, size, NULL, &comm), "quoit_comm_create");
    quoit_store_close(store);
}

const char *peer_name(void)
{
    static char text[64];
    snprintf(text, sizeof text, "quoit %s", quoit_version());
    return text;
}

bool peer_has(peer_dtype_t dtype) { return dtype < PEER_DTYPES; }

static void pingpong(const peer_call_t *call, quoit_dtype_t dtype)
{
    if (rank > 1) return;
    if (rank == 0) must(quoit_send(comm, call->send, call->count, dtype, 1, 7, NULL, NULL), "quoit_send");
    must(quoit_recv(comm, call->recv, call->count, dtype, 1 - rank, 7, NULL, NULL), "quoit_recv");
    if (rank == 1) must(quoit_send(comm, call->send, call->count, dtype, 0, 7, NULL, NULL), "quoit_send");
}

void peer_run(const peer_call_t *call)
{
    quoit_dtype_t dtype = call->dtype == PEER_BF16 ? QUOIT_BF16 : QUOIT_F32;
    switch (call->collective) {
    case PEER_ALLREDUCE: must(quoit_allreduce(comm, call->send, call->recv, call->count, dtype, QUOIT_SUM, NULL, NULL), "allreduce"); break;
    case PEER_BROADCAST: must(quoit_broadcast(comm, call->recv, call->count, dtype, call->root, NULL, NULL), "broadcast"); break;
    case PEER_ALLGATHER: must(quoit_allgather(comm, call->send, call->recv, call->count, dtype, NULL, NULL), "allgather"); break;
    case PEER_REDUCE_SCATTER:
        must(quoit_reduce_scatter(comm, call->send, call->recv, call->count, dtype, QUOIT_SUM, NULL, NULL), "reduce_scatter");
        break;
    case PEER_ALLTOALL: must(quoit_alltoall(comm, call->send, call->recv, call->count, dtype, NULL, NULL), "alltoall"); break;
    case PEER_BARRIER: must(quoit_barrier(comm, NULL, NULL), "barrier"); break;
    case PEER_PINGPONG: pingpong(call, dtype); break;
    case PEER_COLLECTIVES: break;
    }
}

void peer_longest(double *times, int count)
{
    must(quoit_allreduce(comm, times, times, (size_t)count, QUOIT_F64, QUOIT_MAX, NULL, NULL), "allreduce");
}

void peer_end(void) { quoit_comm_destroy(comm); }
