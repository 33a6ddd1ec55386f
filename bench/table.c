/* SPDX-License-Identifier: Apache-2.0 */
/* The table that people read: some lines on who took part, a row a size, a closing line. */
#include "table.h"

#include <stdlib.h>
#include <string.h>

void table_size(size_t bytes, char *text, size_t capacity)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t value = bytes, unit = 0;
    while (value >= 1024 && value % 1024 == 0 && unit < 4) {
        value /= 1024;
        unit++;
    }
    snprintf(text, capacity, "%zu %s", value, units[unit]);
}

static void print_ranks_of(FILE *file, const environment_t *environment, int first)
{
    const char *host = environment->place[first].host;
    int count = 0;
    for (int rank = 0; rank < environment->ranks; rank++)
        count += strcmp(environment->place[rank].host, host) == 0;
    fprintf(file, "%s%s x%d", first == 0 ? "" : ", ", host, count);
}

void table_begin(FILE *file, const environment_t *environment, const options_t *options)
{
    fprintf(file, "# bench_allreduce, quoit %s: %d rank%s, %d host%s (", environment->version, environment->ranks,
            environment->ranks == 1 ? "" : "s", environment->hosts, environment->hosts == 1 ? "" : "s");
    for (int rank = 0; rank < environment->ranks; rank++) {
        bool seen = false;
        for (int before = 0; before < rank && !seen; before++)
            seen = strcmp(environment->place[before].host, environment->place[rank].host) == 0;
        if (!seen)
            print_ranks_of(file, environment, rank);
    }
    fprintf(file, "), ranks from %s\n# %s, %d cores for this rank, %s\n", environment->origin, environment->cpu, environment->cores,
            environment->kernel);
    for (int i = 0; i < environment->settings; i++)
        fprintf(file, "# %s=%s\n", environment->setting[i].name, environment->setting[i].value);
    fprintf(file, "# %s%s\n", options->check ? "every element checked" : "results not checked",
            options->barrier ? ", ranks lined up before each iteration" : "");
    fprintf(file, "%11s %10s %13s %10s %5s %6s %11s %11s %11s %8s %8s %6s\n", "bytes", "count", "dtype", "op", "where", "iters", "min us",
            "median us", "p99 us", "algbw", "busbw", "wrong");
    fprintf(file, "%11s %10s %13s %10s %5s %6s %11s %11s %11s %8s %8s %6s\n", "", "", "", "", "", "", "", "", "", "GB/s", "GB/s", "");
}

void table_row(FILE *file, const row_t *row)
{
    char wrong[32] = "-";
    if (row->checked)
        snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)row->wrong);
    fprintf(file, "%11zu %10zu %13s %10s %5s %6d %11.2f %11.2f %11.2f %8.3f %8.3f %6s%s\n", row->bytes, row->count,
            quoit_dtype_name(row->dtype), quoit_op_name(row->op), row->in_place ? "in" : "out", row->iterations, row->minimum, row->median,
            row->p99, row->algbw, row->busbw, wrong, row->checked && !row->same_bits ? "  ranks differ" : "");
    fflush(file);
}

void table_end(FILE *file, uint64_t wrong, bool checked)
{
    if (checked)
        fprintf(file, "# %s: %llu wrong elements\n", wrong == 0 ? "all results right" : "WRONG RESULTS", (unsigned long long)wrong);
    fflush(file);
}
