/* SPDX-License-Identifier: Apache-2.0 */
/** Which rank this process is, and where the ranks meet: from the options or from what torchrun, MPI or Slurm left in the environment. */
#ifndef QUOIT_BENCH_RANKS_H
#define QUOIT_BENCH_RANKS_H

#include "options.h"

typedef struct ranks {
    int rank, size;
    char store[512];        /* URL for quoit_store_open */
    const char *origin;     /* "options", "torchrun", "Open MPI", ... */
} ranks_t;

typedef enum ranks_outcome { RANKS_NONE, RANKS_FOUND, RANKS_WRONG } ranks_outcome_t;

/** RANKS_NONE: nothing says that this is one rank of several. RANKS_WRONG has printed which variable is wrong or missing. */
ranks_outcome_t ranks_find(const options_t *options, ranks_t *ranks);

/** First host of a Slurm list: "node[007-009,12],gpu3" -> "node007". False when the list is malformed or does not fit. */
bool ranks_first_host(const char *list, char *host, size_t capacity);

#endif
