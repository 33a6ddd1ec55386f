/* SPDX-License-Identifier: Apache-2.0 */
/** Command line of bench_allreduce: every option typed and checked; errors name the option and the value. */
#ifndef QUOIT_BENCH_OPTIONS_H
#define QUOIT_BENCH_OPTIONS_H

#include "quoit/quoit.h"

#include <stdbool.h>

enum { OPTIONS_MAX_SIZES = 256 };

typedef struct options {
    /* who takes part */
    int launch; /* -n: ranks to start on this host; 0: this process is a rank, or the environment says so */
    int rank, size; /* --rank, --size; -1, 0: not given */
    const char *store;
    int timeout_ms;

    /* what is measured */
    size_t bytes[OPTIONS_MAX_SIZES];
    int sizes;
    bool dtype[QUOIT_DTYPE_COUNT], op[QUOIT_OP_COUNT];
    bool every_dtype, every_op; /* "all": pairs that are not supported are left out instead of refused */
    bool in_place, out_of_place;
    quoit_wire_t wire; /* of the communicator; DEFAULT: the setting's */

    /* how */
    int warmup;
    int iterations;       /* 0: as many as fit in seconds_a_size */
    double seconds_a_size;
    bool barrier;         /* line the ranks up before each iteration */
    bool check;

    /* what comes out */
    bool explain;
    const char *json; /* a path, "-" for standard output, NULL */
    const char *versus; /* a torch backend, NULL */
    const char *python; /* interpreter for versus, NULL: look for one */
    int report;       /* descriptor a launched rank writes its failure to, -1 */
} options_t;

typedef enum options_outcome { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_VERSION, OPTIONS_WRONG } options_outcome_t;

/** Parse. OPTIONS_WRONG has printed to standard error what is wrong, with option and value. */
options_outcome_t options_parse(int argc, char **argv, options_t *options);
void options_print_help(void);

/** "4", "64K", "1M", "2GiB" -> bytes; false when it is none. */
bool options_parse_size(const char *text, size_t *bytes);

#endif
