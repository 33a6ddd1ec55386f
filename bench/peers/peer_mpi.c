/* SPDX-License-Identifier: Apache-2.0 */
/* See peer.h. Any MPI; bfloat16 where its headers know it. */
#include "peer.h"

#include <mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static void must(int code, const char *what)
{
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length;
    MPI_Error_string(code, text, &length);
    fprintf(stderr, "%s: %s\n", what, text);
    exit(1);
}

void peer_begin(int *argc, char ***argv, int *my_rank, int *my_size)
{
    must(MPI_Init(argc, argv), "MPI_Init");
    must(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    must(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    *my_rank = rank;
    *my_size = size;
}

const char *peer_name(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, "\n")] = '\0';
    for (char *each = text; *each; each++)
        if (*each == '"' || *each == '\\' || (unsigned char)*each < ' ') *each = ' ';
    return text;
}

bool peer_has(peer_dtype_t dtype)
{
#ifdef MPIX_BFLOAT16
    return dtype == PEER_F32 || dtype == PEER_BF16;
#else
    return dtype == PEER_F32;
#endif
}

static MPI_Datatype type_of(peer_dtype_t dtype)
{
#ifdef MPIX_BFLOAT16
    if (dtype == PEER_BF16) return MPIX_BFLOAT16;
#endif
    (void)dtype;
    return MPI_FLOAT;
}

static void pingpong(const peer_call_t *call, MPI_Datatype type)
{
    int count = (int)call->count;
    if (rank == 0) {
        must(MPI_Send(call->send, count, type, 1, 7, MPI_COMM_WORLD), "MPI_Send");
        must(MPI_Recv(call->recv, count, type, 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
    } else if (rank == 1) {
        must(MPI_Recv(call->recv, count, type, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE), "MPI_Recv");
        must(MPI_Send(call->send, count, type, 0, 7, MPI_COMM_WORLD), "MPI_Send");
    }
}

void peer_run(const peer_call_t *call)
{
    MPI_Datatype type = type_of(call->dtype);
    MPI_Comm world = MPI_COMM_WORLD;
    int count = (int)call->count;
    switch (call->collective) {
    case PEER_ALLREDUCE: must(MPI_Allreduce(call->send, call->recv, count, type, MPI_SUM, world), "MPI_Allreduce"); break;
    case PEER_BROADCAST: must(MPI_Bcast(call->recv, count, type, call->root, world), "MPI_Bcast"); break;
    case PEER_ALLGATHER: must(MPI_Allgather(call->send, count, type, call->recv, count, type, world), "MPI_Allgather"); break;
    case PEER_REDUCE_SCATTER:
        must(MPI_Reduce_scatter_block(call->send, call->recv, count, type, MPI_SUM, world), "MPI_Reduce_scatter_block");
        break;
    case PEER_ALLTOALL: must(MPI_Alltoall(call->send, count, type, call->recv, count, type, world), "MPI_Alltoall"); break;
    case PEER_BARRIER: must(MPI_Barrier(world), "MPI_Barrier"); break;
    case PEER_PINGPONG: pingpong(call, type); break;
    case PEER_COLLECTIVES: break;
    }
}

void peer_longest(double *times, int count)
{
    must(MPI_Allreduce(MPI_IN_PLACE, times, count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD), "MPI_Allreduce");
}

void peer_end(void) { must(MPI_Finalize(), "MPI_Finalize"); }
