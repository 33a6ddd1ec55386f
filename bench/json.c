/* SPDX-License-Identifier: Apache-2.0 */
/* JSON of a run. Numbers are printed with enough digits to be read back; times are microseconds, bandwidths GB/s (1e9). */
#include "json.h"

static void print_string(FILE *file, const char *text)
{
    if (text == NULL) {
        fputs("null", file);
        return;
    }
    fputc('"', file);
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(file, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(file, "\\u%04x", *c);
        else
            fputc(*c, file);
    }
    fputc('"', file);
}

static void print_member(FILE *file, const char *name, const char *value)
{
    fprintf(file, "  \"%s\": ", name);
    print_string(file, value);
    fputs(",\n", file);
}

static void print_places(FILE *file, const environment_t *environment)
{
    fputs("  \"ranks\": [", file);
    for (int rank = 0; rank < environment->ranks; rank++) {
        const place_t *place = &environment->place[rank];
        fprintf(file, "%s\n    {\"rank\": %d, \"host\": ", rank == 0 ? "" : ",", rank);
        print_string(file, place->host);
        fprintf(file, ", \"pid\": %d, \"cores\": %d}", place->pid, place->cores);
    }
    fputs("\n  ],\n", file);
}

static void print_settings(FILE *file, const environment_t *environment)
{
    fputs("  \"settings\": {", file);
    for (int i = 0; i < environment->settings; i++) {
        fputs(i == 0 ? "" : ", ", file);
        print_string(file, environment->setting[i].name);
        fputs(": ", file);
        print_string(file, environment->setting[i].value);
    }
    fputs("},\n", file);
}

void json_begin(FILE *file, const environment_t *environment, const options_t *options, int argc, char **argv)
{
    fputs("{\n", file);
    print_member(file, "program", "bench_allreduce");
    print_member(file, "format", "1");
    print_member(file, "version", environment->version);
    print_member(file, "started", environment->started);
    fputs("  \"command\": [", file);
    for (int i = 0; i < argc; i++) {
        fputs(i == 0 ? "" : ", ", file);
        print_string(file, argv[i]);
    }
    fputs("],\n", file);
    print_member(file, "ranks_from", environment->origin);
    print_member(file, "cpu", environment->cpu);
    print_member(file, "kernel", environment->kernel);
    print_member(file, "compiler", __VERSION__);
    fprintf(file, "  \"size\": %d,\n  \"hosts\": %d,\n", environment->ranks, environment->hosts);
    print_places(file, environment);
    print_settings(file, environment);
    fprintf(file, "  \"warmup\": %d,\n  \"barrier\": %s,\n  \"check\": %s,\n  \"rows\": [", options->warmup,
            options->barrier ? "true" : "false", options->check ? "true" : "false");
}

void json_row(FILE *file, const row_t *row, int index)
{
    fprintf(file, "%s\n    {\"bytes\": %zu, \"count\": %zu, \"dtype\": \"%s\", \"op\": \"%s\", \"in_place\": %s, \"iterations\": %d,\n",
            index == 0 ? "" : ",", row->bytes, row->count, quoit_dtype_name(row->dtype), quoit_op_name(row->op),
            row->in_place ? "true" : "false", row->iterations);
    fprintf(file, "     \"min_us\": %.3f, \"median_us\": %.3f, \"p99_us\": %.3f, \"max_us\": %.3f, \"mean_us\": %.3f,\n", row->minimum,
            row->median, row->p99, row->maximum, row->mean);
    fprintf(file, "     \"algbw_GBps\": %.6g, \"busbw_GBps\": %.6g,\n", row->algbw, row->busbw);
    if (row->checked)
        fprintf(file, "     \"wrong\": %llu, \"same_bits\": %s,\n", (unsigned long long)row->wrong, row->same_bits ? "true" : "false");
    else
        fputs("     \"wrong\": null, \"same_bits\": null,\n", file);
    fputs("     \"times_us\": [", file);
    for (int i = 0; i < row->iterations; i++)
        fprintf(file, "%s%.3f", i == 0 ? "" : ",", row->times[i]);
    fputs("]}", file);
    fflush(file);
}

void json_end(FILE *file, const environment_t *environment, const char *error)
{
    fputs("\n  ],\n", file);
    print_member(file, "describe_text", environment->describe);
    fprintf(file, "  \"describe\": %s,\n  \"error\": ", environment->describe_json != NULL ? environment->describe_json : "null");
    print_string(file, error);
    fputs("\n}\n", file);
    fflush(file);
}
