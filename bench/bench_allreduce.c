/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_allreduce: times allreduce over message sizes, verified. This file is the order of events: who am I (launcher, or a rank),
 * join, measure the rows, print, leave.
 */
#include "environment.h"
#include "json.h"
#include "launch.h"
#include "measure.h"
#include "options.h"
#include "ranks.h"
#include "table.h"
#include "versus.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct session {
    const options_t *options;
    ranks_t ranks;
    bench_t bench;
    environment_t environment;
    FILE *table, *json; /* rank 0 only, else NULL */
    bool progress;
    char what[160];     /* what is being measured, for messages */
    int rows;
    uint64_t wrong;
    bool ranks_differ;
} session_t;

/* Tell the launcher through its pipe, or a person through standard error. */
static void report(const session_t *session, const char *what, quoit_status_t status)
{
    const char *text = quoit_last_error();
    if (*text == '\0' || status == QUOIT_ERR_NO_MEMORY)
        text = quoit_status_text(status);
    if (session->options->report >= 0)
        dprintf(session->options->report, "%s: %s", what, text);
    else
        fprintf(stderr, "bench_allreduce: rank %d: %s: %s\n", session->ranks.rank, what, text);
}

static quoit_status_t join(session_t *session)
{
    const options_t *options = session->options;
    quoit_store_t *store = NULL;
    quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
    config.name = "bench";
    config.timeout_ms = options->timeout_ms;
    config.wire = options->wire;
    snprintf(session->what, sizeof session->what, "opening the store %.100s", session->ranks.store);
    quoit_status_t status = quoit_store_open(session->ranks.store, session->ranks.rank, session->ranks.size, options->timeout_ms, &store);
    if (status != QUOIT_OK)
        return status;
    snprintf(session->what, sizeof session->what, "joining %d ranks at %.100s", session->ranks.size, session->ranks.store);
    status = quoit_comm_create(store, session->ranks.rank, session->ranks.size, &config, &session->bench.comm);
    quoit_store_close(store);
    if (status != QUOIT_OK)
        return status;
    session->bench.options = options;
    session->bench.rank = session->ranks.rank;
    session->bench.size = session->ranks.size;
    snprintf(session->what, sizeof session->what, "gathering the ranks' host names");
    return environment_gather(session->bench.comm, options->report >= 0 ? "-n" : session->ranks.origin, &session->environment);
}

static bool open_outputs(session_t *session)
{
    const options_t *options = session->options;
    bool to_stdout = options->json != NULL && strcmp(options->json, "-") == 0;
    if (session->ranks.rank != 0)
        return true;
    session->table = to_stdout ? stderr : stdout;
    session->progress = isatty(STDERR_FILENO) == 1;
    if (options->json == NULL)
        return true;
    session->json = to_stdout ? stdout : fopen(options->json, "we");
    if (session->json == NULL) {
        snprintf(session->what, sizeof session->what, "--json %.100s: cannot write: %s", options->json, strerror(errno));
        return false;
    }
    return true;
}

/* ---------------------------------------------------------------- rows */

static void show_progress(const session_t *session)
{
    if (session->progress)
        fprintf(stderr, "\r\033[K%s", session->what);
}

static void clear_progress(const session_t *session)
{
    if (session->progress)
        fputs("\r\033[K", stderr);
}

static quoit_status_t measure(session_t *session, row_t *row)
{
    char size[32];
    table_size(row->bytes, size, sizeof size);
    snprintf(session->what, sizeof session->what, "allreduce of %s, %s %s, %s place", size, quoit_dtype_name(row->dtype),
             quoit_op_name(row->op), row->in_place ? "in" : "out of");
    show_progress(session);
    quoit_status_t status = bench_measure(&session->bench, row);
    clear_progress(session);
    if (status != QUOIT_OK)
        return status;
    session->wrong += row->wrong;
    session->ranks_differ = session->ranks_differ || !row->same_bits;
    if (session->table != NULL)
        table_row(session->table, row);
    if (session->json != NULL)
        json_row(session->json, row, session->rows);
    session->rows++;
    return QUOIT_OK;
}

static quoit_status_t explain(session_t *session, const row_t *row)
{
    char *text, size[32];
    size_t count = bench_count(row->bytes, row->dtype);
    quoit_status_t status = quoit_explain_allreduce(session->bench.comm, count, row->dtype, &text);
    if (status != QUOIT_OK)
        return status;
    if (session->table != NULL) {
        table_size(count * quoit_dtype_size(row->dtype), size, sizeof size);
        fprintf(session->table, "# rank 0, %s, %zu elements of %s\n%s\n", size, count, quoit_dtype_name(row->dtype), text);
    }
    free(text);
    return QUOIT_OK;
}

static quoit_status_t measure_sizes(session_t *session, quoit_dtype_t dtype, quoit_op_t op)
{
    const options_t *options = session->options;
    for (int place = 0; place < 2; place++) {
        if (place == 0 ? !options->in_place : !options->out_of_place)
            continue;
        size_t before = 0;
        for (int i = 0; i < options->sizes; i++) {
            row_t row = {.dtype = dtype, .op = op, .in_place = place == 0, .bytes = options->bytes[i]};
            size_t bytes = bench_count(row.bytes, dtype) * quoit_dtype_size(dtype);
            if (bytes == before) /* sizes below one element are all one element */
                continue;
            before = bytes;
            quoit_status_t status = options->explain ? explain(session, &row) : measure(session, &row);
            row_clear(&row);
            if (status != QUOIT_OK)
                return status;
        }
    }
    return QUOIT_OK;
}

/* All pairs of data type and operation; a pair that is not supported is passed over when it came from "all". */
static quoit_status_t measure_all(session_t *session)
{
    const options_t *options = session->options;
    for (int dtype = 0; dtype < QUOIT_DTYPE_COUNT; dtype++) {
        for (int op = 0; op < QUOIT_OP_COUNT; op++) {
            if (!options->dtype[dtype] || !options->op[op])
                continue;
            quoit_status_t status = quoit_op_check((quoit_dtype_t)dtype, (quoit_op_t)op);
            if (status != QUOIT_OK && (options->every_dtype || options->every_op))
                continue;
            snprintf(session->what, sizeof session->what, "--dtype %s --op %s", quoit_dtype_name((quoit_dtype_t)dtype),
                     quoit_op_name((quoit_op_t)op));
            if (status == QUOIT_OK)
                status = measure_sizes(session, (quoit_dtype_t)dtype, (quoit_op_t)op);
            if (status != QUOIT_OK)
                return status;
        }
    }
    return QUOIT_OK;
}

static quoit_status_t benchmark(session_t *session, int argc, char **argv)
{
    const options_t *options = session->options;
    quoit_status_t status = bench_allocate(&session->bench);
    if (status != QUOIT_OK) {
        snprintf(session->what, sizeof session->what, "allocating two buffers of %zu bytes", session->bench.capacity);
        return status;
    }
    if (session->table != NULL && !options->explain)
        table_begin(session->table, &session->environment, options);
    if (session->json != NULL)
        json_begin(session->json, &session->environment, options, argc, argv);
    status = measure_all(session);
    environment_describe(session->bench.comm, &session->environment);
    if (session->table != NULL && !options->explain && status == QUOIT_OK)
        table_end(session->table, session->wrong, options->check);
    if (session->json != NULL)
        json_end(session->json, &session->environment, status == QUOIT_OK ? NULL : quoit_last_error());
    return status;
}

/* ---------------------------------------------------------------- one rank, from start to end */

static int run_rank(session_t *session, int argc, char **argv)
{
    quoit_status_t status = QUOIT_ERR_INVALID;
    char failed[160] = "";
    if (!open_outputs(session)) {
        if (session->options->report >= 0)
            dprintf(session->options->report, "%s", session->what);
        else
            fprintf(stderr, "bench_allreduce: rank %d: %s\n", session->ranks.rank, session->what);
        return 1;
    }
    status = join(session);
    if (status == QUOIT_OK)
        status = benchmark(session, argc, argv);
    if (status != QUOIT_OK) {
        clear_progress(session);
        snprintf(failed, sizeof failed, "%s", session->what);
        report(session, failed, status);
        if (session->bench.comm != NULL)
            quoit_comm_abort(session->bench.comm, failed);
    }
    quoit_comm_destroy(session->bench.comm);
    bench_release(&session->bench);
    environment_clear(&session->environment);
    if (session->json != NULL && session->json != stdout)
        fclose(session->json);
    if (status == QUOIT_OK && (session->wrong > 0 || session->ranks_differ)) {
        if (session->ranks.rank == 0 && session->options->report >= 0)
            dprintf(session->options->report, "%llu elements are wrong%s", (unsigned long long)session->wrong,
                    session->ranks_differ ? ", and the ranks' results differ" : "");
        return 1;
    }
    return status == QUOIT_OK ? 0 : 1;
}

int main(int argc, char **argv)
{
    options_t options;
    session_t session = {.options = &options};
    switch (options_parse(argc, argv, &options)) {
    case OPTIONS_HELP: options_print_help(); return 0;
    case OPTIONS_VERSION: printf("quoit %s\n", quoit_version()); return 0;
    case OPTIONS_WRONG: return 2;
    case OPTIONS_RUN: break;
    }
    ranks_outcome_t outcome = options.launch > 0 ? RANKS_NONE : ranks_find(&options, &session.ranks);
    if (outcome == RANKS_WRONG)
        return 2;
    int status;
    if (outcome == RANKS_FOUND) {
        status = run_rank(&session, argc, argv);
    } else {
        if (options.launch == 0)
            options.launch = 2;
        status = launch_ranks(options.launch, argc, argv);
    }
    if (status != 0 || options.versus == NULL || options.explain || options.report >= 0)
        return status;
    versus_execute(&options, outcome == RANKS_FOUND ? &session.ranks : NULL);
    return 1;
}
