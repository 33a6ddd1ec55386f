/* SPDX-License-Identifier: Apache-2.0 */
/** Call: what a rank called in a collective. It is compared between ranks, and travels in notices. */
#ifndef QUOIT_SCHEDULER_CALL_H
#define QUOIT_SCHEDULER_CALL_H

#include <stdint.h>

/** What must be alike on all ranks, and what the texts of errors say. */
typedef struct operation_description {
    uint32_t sequence;  /* of the communicator, from 1 */
    uint8_t collective; /* plan_collective_t */
    uint8_t dtype, op;
    uint8_t wire;       /* quoit_wire_t of the communicator, 0: none */
    int32_t root;       /* -1: the collective has none */
    uint64_t count;     /* elements; UINT64_MAX where ranks may differ (alltoallv, gatherv, scatterv) */
} operation_description_t;

/** A collective, and the hash of all collectives up to it. */
typedef struct call {
    uint32_t hash;
    operation_description_t description;
} call_t;

#endif
