/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Simulator: runs the plans of all ranks in one thread, without transports, against real buffers; counts bytes over each host's
 * network interface, and time under an alpha-beta model. Messages and signals are delivered as the plan's rules allow; with a seed
 * the ranks take turns at random, so that a missing wait shows as a wrong result or a stuck run.
 */
#ifndef QUOIT_SCHEDULER_SIMULATE_H
#define QUOIT_SCHEDULER_SIMULATE_H

#include "scheduler/plan.h"

typedef struct simulation {
    /* in */
    const topology_t *topology;
    const tuning_t *tuning;
    quoit_dtype_t dtype;
    quoit_op_t op;
    const double (*factor)[2]; /* [ranks] premul_sum: each rank's factor; NULL: all 1 */
    plan_binding_t *binding; /* [ranks], bound */
    float *const *residual;  /* [ranks][count] += what encoding takes away, of uniform collectives; NULL: not wanted */
    uint64_t seed;           /* 0: round robin */
    double alpha, beta;      /* seconds a message, seconds a byte over a network interface */
    /* out */
    uint64_t *sent, *received; /* [hosts] bytes through the host's interface; the caller's arrays */
    uint64_t messages;         /* between hosts */
    double seconds;            /* time of the last event under the model */
} simulation_t;

/** ERR_INTERNAL with a text naming rank, chunk and step when the run is stuck or a rule is broken (a slot overwritten while it is read). */
quoit_status_t simulate_run(simulation_t *simulation);

#endif
