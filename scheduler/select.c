/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Which algorithm a collective runs with: a pure function of topology, frozen tuning and size, so that all ranks choose alike. Ranks of one
 * host always share a window: sharing memory is what makes them one host. To make room for a new algorithm, change the choice for its
 * collective here.
 */
#include "scheduler/plan_internal.h"

typedef struct choice {
    const topology_t *topology;
    const tuning_t *tuning;
    uint64_t bytes;
    bool small; /* bytes are few enough for the latency-bound algorithms */
} choice_t;

static int bits_for(int count)
{
    int bits = 0;
    while (bits < 31 && (1ll << bits) < count) bits++;
    return bits;
}

/* A ring of h leaders sends 2(h-1) messages one after the other; with tiny ones that is worse than log2 h whole vectors. */
static bool ring_pays(const choice_t *choice)
{
    return !choice->small && choice->bytes / (uint64_t)choice->topology->hosts >= PLAN_RING_PART;
}

/* The chain takes chunks + h - 2 ways, the tree chunks * log2 h. */
static bool chain_pays(const choice_t *choice)
{
    if (choice->small) return false;
    uint64_t piece = choice->tuning->net_chunk_size ? choice->tuning->net_chunk_size : 1;
    uint64_t chunks = choice->bytes / piece + 1, hosts = (uint64_t)choice->topology->hosts;
    return chunks + hosts - 2 <= chunks * (uint64_t)bits_for(choice->topology->hosts);
}

/*
 * Flat reads (m-1) vectors of the others where window reads 2(m-1)/m, but has one exchange of flags less, and publishes as much. So
 * between two ranks it always wins, and among more while what it reads too much takes no longer than the exchange.
 */
static bool flat_pays(const choice_t *choice)
{
    uint64_t members = (uint64_t)choice->topology->ranks;
    return members == 2 || choice->bytes <= PLAN_FLAT_EXCESS * members / ((members - 1) * (members - 2));
}

static plan_algorithm_t choose_allreduce(const choice_t *choice)
{
    if (choice->topology->hosts == 1) return choice->small || flat_pays(choice) ? ALGORITHM_FLAT : ALGORITHM_WINDOW;
    return ring_pays(choice) ? ALGORITHM_TWO_LEVEL : ALGORITHM_DOUBLING;
}

static plan_algorithm_t choose_rooted(const choice_t *choice)
{
    if (choice->topology->hosts == 1) return choice->small ? ALGORITHM_FLAT : ALGORITHM_WINDOW;
    return chain_pays(choice) ? ALGORITHM_TWO_LEVEL : ALGORITHM_DOUBLING;
}

static plan_algorithm_t choose_blocks(const choice_t *choice)
{
    if (choice->topology->hosts == 1) return choice->small ? ALGORITHM_FLAT : ALGORITHM_WINDOW;
    return ALGORITHM_TWO_LEVEL;
}

/* Of the v-form no rank knows all blocks (and it tells 0 bytes): only messages do. */
static bool alltoall_is_even(const choice_t *choice) { return choice->topology->hosts == 1 && choice->bytes > 0; }

static plan_algorithm_t choose_alltoall(const choice_t *choice)
{
    if (!alltoall_is_even(choice)) return ALGORITHM_DIRECT;
    return choice->small ? ALGORITHM_FLAT : ALGORITHM_WINDOW;
}

static plan_algorithm_t choose_barrier(const choice_t *choice)
{
    return choice->topology->hosts == 1 ? ALGORITHM_FLAT : ALGORITHM_DOUBLING;
}

static quoit_status_t force_allreduce(const choice_t *choice, plan_algorithm_t *algorithm)
{
    const topology_t *topology = choice->topology;
    plan_algorithm_t wanted = (plan_algorithm_t)choice->tuning->allreduce;
    const char *name = plan_algorithm_name(wanted), *reason = NULL;
    bool window = plan_is_of_one_host(wanted);
    bool leaders = wanted == ALGORITHM_TWO_LEVEL || wanted == ALGORITHM_DOUBLING;
    if (!window && !leaders && wanted != ALGORITHM_RING) reason = "is not one that allreduce can be told to use";
    else if (window && topology->hosts > 1) reason = "needs all ranks on one host";
    else if (leaders && topology->hosts == 1) reason = "needs ranks on several hosts";
    if (reason)
        return error_set(QUOIT_ERR_INVALID, "allreduce: algorithm %s %s; here are %d ranks on %d host%s (leave the choice of the algorithm to "
                         "\"auto\", or take another)", name, reason, topology->ranks, topology->hosts, topology->hosts == 1 ? "" : "s");
    *algorithm = wanted;
    return QUOIT_OK;
}

/* Places of one block each that a slot needs: see the writers of allgather and reduce_scatter. */
static uint64_t places_of(plan_collective_t collective, const topology_t *topology)
{
    return topology->hosts == 1 && collective == COLLECTIVE_ALLGATHER ? 1 : (uint64_t)topology->ranks;
}

static bool is_small(const choice_t *choice, plan_collective_t collective)
{
    switch (collective) {
    case COLLECTIVE_BARRIER: return true;
    case COLLECTIVE_GATHER:
    case COLLECTIVE_SCATTER: return false; /* the length of chunks must not depend on what only some ranks know */
    case COLLECTIVE_ALLTOALL:
        if (!alltoall_is_even(choice)) return false;
        /* fall through */
    case COLLECTIVE_ALLGATHER:
    case COLLECTIVE_REDUCE_SCATTER: {
        uint64_t room = PLAN_SMALL_SLOT / places_of(collective, choice->topology);
        return choice->bytes <= choice->tuning->small_limit && room >= PLAN_ALIGNMENT && choice->bytes <= room;
    }
    default: return choice->bytes <= choice->tuning->small_limit && choice->bytes <= PLAN_SMALL_SLOT;
    }
}

static plan_algorithm_t choose(const choice_t *choice, plan_collective_t collective)
{
    switch (collective) {
    case COLLECTIVE_ALLREDUCE: return choose_allreduce(choice);
    case COLLECTIVE_REDUCE:
    case COLLECTIVE_BROADCAST: return choose_rooted(choice);
    case COLLECTIVE_ALLGATHER:
    case COLLECTIVE_REDUCE_SCATTER: return choose_blocks(choice);
    case COLLECTIVE_BARRIER: return choose_barrier(choice);
    case COLLECTIVE_ALLTOALL: return choose_alltoall(choice);
    default: return ALGORITHM_DIRECT;
    }
}

quoit_status_t plan_select(const topology_t *topology, const tuning_t *tuning, plan_collective_t collective, uint64_t bytes,
                           plan_algorithm_t *algorithm, bool *small)
{
    choice_t choice = {.topology = topology, .tuning = tuning, .bytes = bytes};
    choice.small = is_small(&choice, collective);
    plan_algorithm_t chosen = ALGORITHM_LOCAL;
    if (topology->ranks > 1) {
        chosen = choose(&choice, collective);
        quoit_status_t status =
            collective == COLLECTIVE_ALLREDUCE && tuning->allreduce >= 0 ? force_allreduce(&choice, &chosen) : QUOIT_OK;
        if (status != QUOIT_OK) return status;
    }
    *algorithm = chosen;
    uint64_t slot = bytes * (plan_sends_blocks(collective) ? (uint64_t)topology->ranks : 1);
    *small = choice.small && (topology->hosts > 1 || slot <= PLAN_SMALL_SHARED);
    return QUOIT_OK;
}
