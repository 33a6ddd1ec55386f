/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Alltoall, gather, scatter: a message from each sender to each receiver. One's own block is a copy.
 *
 * Terms: in round k of an alltoall rank r sends to r + k and receives from r - k; rounds go in groups that end with a WAIT.
 *
 *   rank      0        1        2        3
 *   round 1   ->1 <-3  ->2 <-0  ->3 <-1  ->0 <-2
 *   round 2   ->2 <-2  ->3 <-3  ->0 <-0  ->1 <-1
 *   round 3   ->3 <-1  ->0 <-2  ->1 <-3  ->2 <-0
 *
 * Invariants: both ends of a message have it in the same group, so the lowest group that anyone is in can always move; receives
 * are posted before sends. A rank knows only its own blocks: a block without elements is no message for either end.
 * Cost: every block crosses once; at most GROUP messages of a chunk are open in each direction.
 */
#include "scheduler/algorithm/algorithms.h"

enum { GROUP = 8 };

static void copy_own(builder_t *builder)
{
    int rank = builder->rank;
    builder_copy(builder, operand_block(SPACE_RECV, 0, rank, 0), operand_block(SPACE_SEND, 0, rank, 0), 0);
}

static void receive_from(builder_t *builder, int rank, int block)
{
    builder_recv(builder, operand_block(SPACE_RECV, 0, block, 0), rank);
}

static void send_to(builder_t *builder, int rank, int block)
{
    builder_send(builder, operand_block(SPACE_SEND, 0, block, 0), rank);
}

void alltoall_direct_write(builder_t *builder)
{
    int ranks = builder->topology->ranks, rank = builder->rank;
    for (int first = 1; first < ranks; first += GROUP) {
        int end = first + GROUP < ranks ? first + GROUP : ranks;
        for (int round = first; round < end; round++) {
            int from = (rank - round + ranks) % ranks;
            receive_from(builder, from, from);
        }
        for (int round = first; round < end; round++) {
            int to = (rank + round) % ranks;
            send_to(builder, to, to);
        }
        if (first == 1) copy_own(builder);
        builder_wait(builder);
    }
}

void gather_direct_write(builder_t *builder)
{
    int ranks = builder->topology->ranks, root = builder->root;
    if (builder->rank != root) {
        send_to(builder, root, builder->rank);
        builder_wait(builder);
        return;
    }
    for (int round = 1; round < ranks; round++) {
        int from = (root + round) % ranks;
        receive_from(builder, from, from);
        if (round == 1) copy_own(builder);
        if (round % GROUP == 0 || round + 1 == ranks) builder_wait(builder);
    }
}

void scatter_direct_write(builder_t *builder)
{
    int ranks = builder->topology->ranks, root = builder->root;
    if (builder->rank != root) {
        receive_from(builder, root, builder->rank);
        builder_wait(builder);
        return;
    }
    for (int round = 1; round < ranks; round++) {
        int to = (root + round) % ranks;
        send_to(builder, to, to);
        if (round == 1) copy_own(builder);
        if (round % GROUP == 0 || round + 1 == ranks) builder_wait(builder);
    }
}
