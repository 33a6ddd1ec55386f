/* SPDX-License-Identifier: Apache-2.0 */
/** What the files of plans share: names of verbs and spaces, and limits that the choice of chunks rests on. */
#ifndef QUOIT_SCHEDULER_PLAN_INTERNAL_H
#define QUOIT_SCHEDULER_PLAN_INTERNAL_H

#include "scheduler/plan.h"

enum {
    PLAN_ALIGNMENT = 64,              /* bytes: parts and chunks begin at multiples of a cache line */
    PLAN_WINDOW_DEPTH = 2,            /* chunks in flight inside one host, and in the small slots */
    PLAN_BLOCK_MESSAGE = 16 << 10,    /* bytes: blocks that cross the network should not be cut finer ... */
    PLAN_SLOT_CAP = 8 << 20,          /* ... unless a slot (or scratch) would grow beyond this many bytes */
    PLAN_RING_PART = 1024,            /* bytes: a ring whose messages would be smaller loses against doubling */
    PLAN_SMALL_SHARED = 4096,         /* bytes: on one host the small slots are for up to this; the larger ring of slots is faster above (WINDOW_RING) */
    PLAN_BROADCAST_PIECE = 8 << 10,   /* bytes, and pieces: how a broadcast inside a host is cut */
    PLAN_BROADCAST_PIECES = 8,
    PLAN_FLAT_EXCESS = 64 << 10       /* bytes that are read from a mate's slot in the time that an exchange of flags takes */
};

/** Does the collective combine elements? */
static inline bool plan_reduces(plan_collective_t collective)
{
    return collective == COLLECTIVE_ALLREDUCE || collective == COLLECTIVE_REDUCE || collective == COLLECTIVE_REDUCE_SCATTER;
}
/** Does the algorithm know windows only, and no edges? */
static inline bool plan_is_of_one_host(plan_algorithm_t algorithm) { return algorithm == ALGORITHM_FLAT || algorithm == ALGORITHM_WINDOW; }

wire_type_t plan_wire_type(quoit_wire_t wire); /* of NONE: any */

const char *plan_space_name(plan_space_t space);

#endif
