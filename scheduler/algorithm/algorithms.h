/* SPDX-License-Identifier: Apache-2.0 */
/** The writers of plans, one for each collective and algorithm that go together, and the table that plan_create looks them up in. */
#ifndef QUOIT_SCHEDULER_ALGORITHM_ALGORITHMS_H
#define QUOIT_SCHEDULER_ALGORITHM_ALGORITHMS_H

#include "scheduler/algorithm/builder.h"

builder_write_t local_write;

builder_write_t allreduce_flat_write, allreduce_window_write, allreduce_two_level_write, allreduce_doubling_write,
    allreduce_ring_write;
builder_write_t broadcast_window_write, broadcast_chain_write, broadcast_binomial_write;
builder_write_t reduce_flat_write, reduce_window_write, reduce_chain_write, reduce_binomial_write;
builder_write_t barrier_flat_write, barrier_hosts_write;
builder_write_t allgather_window_write, allgather_two_level_write;
builder_write_t reduce_scatter_window_write, reduce_scatter_two_level_write;
builder_write_t alltoall_window_write, alltoall_direct_write, gather_direct_write, scatter_direct_write;

/** NULL when the collective has no such algorithm. */
builder_write_t *algorithm_writer(plan_collective_t collective, plan_algorithm_t algorithm);

#endif
