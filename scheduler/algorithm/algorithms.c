/* SPDX-License-Identifier: Apache-2.0 */
/** The table of collectives and algorithms. A new algorithm: its file, its declaration, one line here. */
#include "scheduler/algorithm/algorithms.h"

#include <stddef.h>

static builder_write_t *const writers[COLLECTIVE_COUNT][ALGORITHM_COUNT] = {
    [COLLECTIVE_ALLREDUCE] = {[ALGORITHM_LOCAL] = local_write,
                              [ALGORITHM_FLAT] = allreduce_flat_write,
                              [ALGORITHM_WINDOW] = allreduce_window_write,
                              [ALGORITHM_TWO_LEVEL] = allreduce_two_level_write,
                              [ALGORITHM_DOUBLING] = allreduce_doubling_write,
                              [ALGORITHM_RING] = allreduce_ring_write},
    [COLLECTIVE_REDUCE] = {[ALGORITHM_LOCAL] = local_write,
                           [ALGORITHM_FLAT] = reduce_flat_write,
                           [ALGORITHM_WINDOW] = reduce_window_write,
                           [ALGORITHM_TWO_LEVEL] = reduce_chain_write,
                           [ALGORITHM_DOUBLING] = reduce_binomial_write},
    [COLLECTIVE_BROADCAST] = {[ALGORITHM_LOCAL] = local_write,
                              [ALGORITHM_FLAT] = broadcast_window_write,
                              [ALGORITHM_WINDOW] = broadcast_window_write,
                              [ALGORITHM_TWO_LEVEL] = broadcast_chain_write,
                              [ALGORITHM_DOUBLING] = broadcast_binomial_write},
    [COLLECTIVE_BARRIER] = {[ALGORITHM_LOCAL] = local_write,
                            [ALGORITHM_FLAT] = barrier_flat_write,
                            [ALGORITHM_DOUBLING] = barrier_hosts_write},
    [COLLECTIVE_ALLGATHER] = {[ALGORITHM_LOCAL] = local_write,
                              [ALGORITHM_FLAT] = allgather_window_write,
                              [ALGORITHM_WINDOW] = allgather_window_write,
                              [ALGORITHM_TWO_LEVEL] = allgather_two_level_write},
    [COLLECTIVE_REDUCE_SCATTER] = {[ALGORITHM_LOCAL] = local_write,
                                   [ALGORITHM_FLAT] = reduce_scatter_window_write,
                                   [ALGORITHM_WINDOW] = reduce_scatter_window_write,
                                   [ALGORITHM_TWO_LEVEL] = reduce_scatter_two_level_write},
    [COLLECTIVE_ALLTOALL] = {[ALGORITHM_LOCAL] = local_write,
                             [ALGORITHM_FLAT] = alltoall_window_write,
                             [ALGORITHM_WINDOW] = alltoall_window_write,
                             [ALGORITHM_DIRECT] = alltoall_direct_write},
    [COLLECTIVE_GATHER] = {[ALGORITHM_LOCAL] = local_write, [ALGORITHM_DIRECT] = gather_direct_write},
    [COLLECTIVE_SCATTER] = {[ALGORITHM_LOCAL] = local_write, [ALGORITHM_DIRECT] = scatter_direct_write},
};

builder_write_t *algorithm_writer(plan_collective_t collective, plan_algorithm_t algorithm)
{
    if ((unsigned)collective >= COLLECTIVE_COUNT || (unsigned)algorithm >= ALGORITHM_COUNT) return NULL;
    return writers[collective][algorithm];
}
