/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What an allreduce costs as hosts and ranks grow, counted on the plans of all ranks by the simulator: bytes through each host's
 * network interface, messages one after the other on the longest way, connections a rank.
 */
#ifndef QUOIT_BENCH_GROWTH_H
#define QUOIT_BENCH_GROWTH_H

#include "scheduler/plan.h"

typedef struct growth_cost {
    plan_algorithm_t algorithm;
    double sent, received; /* most bytes through one host's interface, over those of the vector */
    uint64_t messages;     /* between hosts, all together, for one chunk */
    int rounds;            /* messages on the longest way */
    int connections;       /* most ranks of other hosts that one rank sends to or receives from */
} growth_cost_t;

/** The layouts' names: "2x4" is 2 hosts with 4 ranks each, "4+3" two hosts with 4 and with 3. ERR_INVALID with what is wrong. */
quoit_status_t growth_parse(const char *text, topology_t **topology);
/** Numbers that a job would hold, from the settings. */
tuning_t growth_tuning(void);
/**
 * An allreduce of `bytes` is chosen as the library chooses. What is simulated is one chunk of it; a large vector, of which that is a
 * part, costs the same share of its bytes in each chunk.
 */
quoit_status_t growth_measure(const topology_t *topology, const tuning_t *tuning, uint64_t bytes, growth_cost_t *cost);

#endif
