/* SPDX-License-Identifier: Apache-2.0 */
/** Where a benchmark ran: versions, hosts, CPU, settings. Goes into the table's head and whole into the JSON. */
#ifndef QUOIT_BENCH_ENVIRONMENT_H
#define QUOIT_BENCH_ENVIRONMENT_H

#include "quoit/quoit.h"

typedef struct place {
    char host[64];
    int32_t pid, cores;
} place_t;

typedef struct environment {
    const char *version, *origin; /* borrowed */
    int ranks, hosts;             /* hosts: as the library sees them */
    int cores;                    /* that this rank may use */
    char cpu[96], kernel[200], started[32];
    place_t *place; /* [ranks] owned */
    struct {
        char *name, *value; /* owned */
    } *setting;             /* those that the environment changes; owned */
    int settings;
    char *describe, *describe_json; /* owned; NULL when the library gave none */
} environment_t;

/** Collective: gathers the ranks' places. On an error the text is quoit_last_error(). */
quoit_status_t environment_gather(quoit_comm_t *comm, const char *origin, environment_t *environment);
/** Ask the communicator to describe itself, after the measuring, when its counters say something. Not collective. */
void environment_describe(quoit_comm_t *comm, environment_t *environment);
void environment_clear(environment_t *environment);

#endif
