/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command line of bench_allreduce. One table names each option with its argument, its default and its text, so that --help cannot
 * forget one; the parsers below turn arguments into checked values.
 */
#include "options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef enum kind {
    KIND_HEADING,
    KIND_RANKS,
    KIND_RANK,
    KIND_SIZE,
    KIND_STORE,
    KIND_TIMEOUT,
    KIND_MIN,
    KIND_MAX,
    KIND_FACTOR,
    KIND_SIZES,
    KIND_DTYPE,
    KIND_OP,
    KIND_WIRE,
    KIND_IN_PLACE,
    KIND_OUT_OF_PLACE,
    KIND_WARMUP,
    KIND_ITERATIONS,
    KIND_TIME,
    KIND_BARRIER,
    KIND_CHECK,
    KIND_NO_CHECK,
    KIND_EXPLAIN,
    KIND_JSON,
    KIND_VERSUS,
    KIND_PYTHON,
    KIND_REPORT,
    KIND_VERSION,
    KIND_HELP
} kind_t;

typedef struct row {
    kind_t kind;
    const char *name, *alias, *argument, *text; /* text NULL: not shown */
} row_t;

static const row_t rows[] = {
    {.kind = KIND_HEADING, .text = "Who takes part"},
    {KIND_RANKS, "--ranks", "-n", "N", "start N ranks on this host (default 2, unless the environment or --rank makes\nthis process one rank of several)"},
    {KIND_RANK, "--rank", NULL, "R", "be rank R of --size ranks that meet in --store"},
    {KIND_SIZE, "--size", NULL, "N", "number of ranks, with --rank"},
    {KIND_STORE, "--store", NULL, "URL", "where the ranks meet: tcp://host:port (rank 0 serves it), file:///path or\nenv:// (MASTER_ADDR, MASTER_PORT)"},
    {KIND_TIMEOUT, "--timeout", NULL, "SECONDS", "time limit of joining and of each operation (default 120)"},
    {.kind = KIND_HEADING, .text = "What is measured"},
    {KIND_MIN, "--min", NULL, "SIZE", "smallest message (default 4)"},
    {KIND_MAX, "--max", NULL, "SIZE", "largest message (default 64M)"},
    {KIND_FACTOR, "--factor", NULL, "F", "each size is F times the one before (default 4)"},
    {KIND_SIZES, "--sizes", NULL, "LIST", "these sizes instead: 4,64K,1M"},
    {KIND_DTYPE, "--dtype", NULL, "LIST", "float32 (default), others separated by commas, or all"},
    {KIND_OP, "--op", NULL, "LIST", "sum (default), others separated by commas, or all"},
    {KIND_WIRE, "--wire-dtype", NULL, "FORMAT", "what sums of floats are between hosts: none, float32, bf16, fp16, int8 (default: the\nsetting's); with the last three results are rounded, and not checked"},
    {KIND_IN_PLACE, "--in-place", NULL, NULL, "send and receive buffer are the same (default)"},
    {KIND_OUT_OF_PLACE, "--out-of-place", NULL, NULL, "two buffers; with --in-place: rows of both kinds"},
    {.kind = KIND_HEADING, .text = "How"},
    {KIND_WARMUP, "--warmup", NULL, "N", "iterations before the timed ones, at each size (default 5)"},
    {KIND_ITERATIONS, "--iterations", "-i", "N", "timed iterations at each size (default: what fits in --time)"},
    {KIND_TIME, "--time", NULL, "SECONDS", "time for each size, 10 to 20000 iterations (default 0.3)"},
    {KIND_BARRIER, "--barrier", NULL, NULL, "line the ranks up before each iteration (default: back to back)"},
    {KIND_CHECK, "--check", NULL, NULL, "verify every element at each size, before and after timing (default)"},
    {KIND_NO_CHECK, "--no-check", NULL, NULL, "do not"},
    {.kind = KIND_HEADING, .text = "What comes out"},
    {KIND_EXPLAIN, "--explain", NULL, NULL, "print the plan each size would run, and measure nothing"},
    {KIND_JSON, "--json", NULL, "FILE", "everything, with the time of each iteration; - for standard output\n(the table then goes to standard error)"},
    {KIND_VERSUS, "--vs", NULL, "BACKEND", "afterwards, time quoit and this torch.distributed backend (gloo) side by side\nin one Python process a rank"},
    {KIND_PYTHON, "--python", NULL, "PATH", "interpreter for --vs (default: $PYTHON, one beside this program, python3)"},
    {KIND_REPORT, "--report-descriptor", NULL, "FD", NULL},
    {KIND_VERSION, "--version", NULL, NULL, "version of the library"},
    {KIND_HELP, "--help", "-h", NULL, "this text"},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static void print_option(const row_t *row)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s%s%s", row->alias ? row->alias : "", row->alias ? ", " : "", row->name, row->argument ? " " : "",
             row->argument ? row->argument : "");
    printf("  %-22s ", left);
    for (const char *from = row->text;;) {
        const char *end = strchr(from, '\n');
        if (end == NULL) {
            puts(from);
            return;
        }
        printf("%.*s\n%25s", (int)(end - from), from, "");
        from = end + 1;
    }
}

void options_print_help(void)
{
    puts("usage: bench_allreduce [options]\n"
         "\n"
         "Times allreduce of the quoit library over a range of message sizes, checks the results, and prints a table.\n"
         "Times are, for each iteration, the longest among the ranks; bandwidths are made from the median.");
    for (int i = 0; i < ROWS; i++) {
        if (rows[i].kind == KIND_HEADING)
            printf("\n%s\n", rows[i].text);
        else if (rows[i].text != NULL)
            print_option(&rows[i]);
    }
    puts("\n"
         "Sizes take K, M, G (1024-based). Data types:");
    for (int dtype = 0; dtype < QUOIT_DTYPE_COUNT; dtype++)
        printf("%s%s", dtype == 0 ? "  " : dtype == QUOIT_DTYPE_COUNT / 2 ? "\n  " : " ", quoit_dtype_name((quoit_dtype_t)dtype));
    puts("\nOperations:");
    for (int op = 0; op < QUOIT_OP_COUNT; op++)
        printf("%s%s", op == 0 ? "  " : " ", quoit_op_name((quoit_op_t)op));
    puts("\n\n"
         "Several hosts: start one process a rank with torchrun (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), mpirun\n"
         "(OMPI_COMM_WORLD_*, PMI_*, PMIX_RANK) or srun (SLURM_*); or by hand:\n"
         "  host a$ bench_allreduce --rank 0 --size 2 --store tcp://a:29600\n"
         "  host b$ bench_allreduce --rank 1 --size 2 --store tcp://a:29600\n"
         "\n"
         "Columns: bytes and count of one rank's buffer; where: in or out of place; min, median and 99th percentile in\n"
         "microseconds; algbw: bytes / median; busbw: algbw * 2(n-1)/n, what a ring moves per rank and direction, so that\n"
         "figures of different numbers of ranks compare; wrong: elements that are not what they must be, of all ranks.\n"
         "\n"
         "Examples\n"
         "  bench_allreduce -n 4\n"
         "  bench_allreduce -n 2 --sizes 4,1M,64M --dtype bfloat16 --json result.json\n"
         "  bench_allreduce -n 2 --vs gloo\n"
         "  QUOIT_TRANSPORT=tcp bench_allreduce -n 2 --max 16M\n"
         "\n"
         "Exit status: 0 all well, 1 a rank failed or a result was wrong, 2 wrong usage.");
}

static bool wrong(const char *option, const char *value, const char *expected)
{
    fprintf(stderr, "bench_allreduce: %s %s: expected %s\n", option, value, expected);
    return false;
}

static bool read_int(const char *option, const char *text, long minimum, long maximum, int *value)
{
    char *end, expected[64];
    errno = 0;
    long number = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || number < minimum || number > maximum) {
        snprintf(expected, sizeof expected, "an integer from %ld to %ld", minimum, maximum);
        return wrong(option, text, expected);
    }
    *value = (int)number;
    return true;
}

static bool read_double(const char *option, const char *text, double minimum, double maximum, double *value)
{
    char *end, expected[64];
    double number = strtod(text, &end);
    if (end == text || *end != '\0' || !(number >= minimum && number <= maximum)) {
        snprintf(expected, sizeof expected, "a number from %g to %g", minimum, maximum);
        return wrong(option, text, expected);
    }
    *value = number;
    return true;
}

bool options_parse_size(const char *text, size_t *bytes)
{
    static const char *const suffixes[] = {"", "K", "M", "G", "KB", "MB", "GB", "KiB", "MiB", "GiB"};
    static const int shifts[] = {0, 10, 20, 30, 10, 20, 30, 10, 20, 30};
    char *end;
    errno = 0;
    if (*text < '0' || *text > '9')
        return false;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0)
        return false;
    for (size_t i = 0; i < sizeof shifts / sizeof shifts[0]; i++) {
        if (strcasecmp(end, suffixes[i]) != 0)
            continue;
        if (number > (SIZE_MAX >> 1) >> shifts[i])
            return false;
        *bytes = (size_t)number << shifts[i];
        return true;
    }
    return false;
}

static bool read_size(const char *option, const char *text, size_t *bytes)
{
    if (options_parse_size(text, bytes) && *bytes > 0)
        return true;
    return wrong(option, text, "a size such as 4, 64K, 1M or 2G");
}

/* Call `take` for each word of a list separated by commas; false as soon as it is. */
static bool each_word(const char *option, const char *list, bool (*take)(const char *option, const char *word, options_t *options),
                      options_t *options)
{
    char *copy = strdup(list), *rest = copy;
    bool fine = copy != NULL;
    for (char *word; fine && (word = strsep(&rest, ",")) != NULL;)
        fine = take(option, word, options);
    free(copy);
    return fine;
}

static bool take_size(const char *option, const char *word, options_t *options)
{
    if (options->sizes == OPTIONS_MAX_SIZES) {
        fprintf(stderr, "bench_allreduce: %s: more than %d sizes\n", option, OPTIONS_MAX_SIZES);
        return false;
    }
    if (!read_size(option, word, &options->bytes[options->sizes]))
        return false;
    options->sizes++;
    return true;
}

static bool take_dtype(const char *option, const char *word, options_t *options)
{
    static const struct {
        const char *name;
        quoit_dtype_t dtype;
    } aliases[] = {{"double", QUOIT_F64}, {"f64", QUOIT_F64},   {"float", QUOIT_F32}, {"f32", QUOIT_F32},  {"half", QUOIT_F16},
                   {"f16", QUOIT_F16},    {"bf16", QUOIT_BF16}, {"i32", QUOIT_I32},   {"i64", QUOIT_I64}, {"fp16", QUOIT_F16}};
    if (strcmp(word, "all") == 0) {
        options->every_dtype = true;
        for (int i = 0; i < QUOIT_DTYPE_COUNT; i++)
            options->dtype[i] = true;
        return true;
    }
    for (int i = 0; i < QUOIT_DTYPE_COUNT; i++) {
        if (strcmp(word, quoit_dtype_name((quoit_dtype_t)i)) == 0)
            return options->dtype[i] = true;
    }
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        if (strcmp(word, aliases[i].name) == 0)
            return options->dtype[aliases[i].dtype] = true;
    }
    return wrong(option, word, "a data type (--help lists them) or all");
}

static bool take_op(const char *option, const char *word, options_t *options)
{
    if (strcmp(word, "all") == 0) {
        options->every_op = true;
        for (int i = 0; i < QUOIT_OP_COUNT; i++)
            options->op[i] = true;
        return true;
    }
    for (int i = 0; i < QUOIT_OP_COUNT; i++) {
        if (strcmp(word, quoit_op_name((quoit_op_t)i)) == 0)
            return options->op[i] = true;
    }
    return wrong(option, word, "an operation (--help lists them) or all");
}

static bool take_wire(const char *option, const char *word, options_t *options)
{
    for (int i = QUOIT_WIRE_NONE; i < QUOIT_WIRE_COUNT; i++)
        if (strcmp(word, quoit_wire_name((quoit_wire_t)i)) == 0)
            options->wire = (quoit_wire_t)i;
    return options->wire != QUOIT_WIRE_DEFAULT || wrong(option, word, "none, float32, bf16, fp16 or int8");
}

/* What only counts once all options are known. */
typedef struct range {
    size_t minimum, maximum;
    double factor, timeout;
} range_t;

static bool take_option(const row_t *row, const char *option, const char *value, options_t *options, range_t *range)
{
    switch (row->kind) {
    case KIND_RANKS: return read_int(option, value, 1, 4096, &options->launch);
    case KIND_RANK: return read_int(option, value, 0, INT_MAX - 1, &options->rank);
    case KIND_SIZE: return read_int(option, value, 1, INT_MAX, &options->size);
    case KIND_STORE: options->store = value; return true;
    case KIND_TIMEOUT: return read_double(option, value, 0.001, 432000, &range->timeout);
    case KIND_MIN: return read_size(option, value, &range->minimum);
    case KIND_MAX: return read_size(option, value, &range->maximum);
    case KIND_FACTOR: return read_double(option, value, 1.01, 1e6, &range->factor);
    case KIND_SIZES: return each_word(option, value, take_size, options);
    case KIND_DTYPE: return each_word(option, value, take_dtype, options);
    case KIND_OP: return each_word(option, value, take_op, options);
    case KIND_WIRE: return take_wire(option, value, options);
    case KIND_IN_PLACE: return options->in_place = true;
    case KIND_OUT_OF_PLACE: return options->out_of_place = true;
    case KIND_WARMUP: return read_int(option, value, 0, 1000000, &options->warmup);
    case KIND_ITERATIONS: return read_int(option, value, 1, 100000000, &options->iterations);
    case KIND_TIME: return read_double(option, value, 0.001, 86400, &options->seconds_a_size);
    case KIND_BARRIER: return options->barrier = true;
    case KIND_CHECK: return options->check = true;
    case KIND_NO_CHECK: options->check = false; return true;
    case KIND_EXPLAIN: return options->explain = true;
    case KIND_JSON: options->json = value; return true;
    case KIND_VERSUS: options->versus = value; return true;
    case KIND_PYTHON: options->python = value; return true;
    case KIND_REPORT: return read_int(option, value, 0, INT_MAX, &options->report);
    default: return false;
    }
}

static const row_t *find_row(const char *name, size_t length)
{
    for (int i = 0; i < ROWS; i++) {
        const char *names[] = {rows[i].name, rows[i].alias};
        for (int j = 0; j < 2; j++) {
            if (names[j] != NULL && strlen(names[j]) == length && memcmp(names[j], name, length) == 0)
                return &rows[i];
        }
    }
    return NULL;
}

static bool any(const bool *flags, int count)
{
    for (int i = 0; i < count; i++) {
        if (flags[i])
            return true;
    }
    return false;
}

static bool make_sizes(const range_t *range, options_t *options)
{
    if (options->sizes > 0)
        return true;
    if (range->minimum > range->maximum) {
        fprintf(stderr, "bench_allreduce: --min %zu is larger than --max %zu\n", range->minimum, range->maximum);
        return false;
    }
    size_t bytes = range->minimum;
    while (bytes <= range->maximum) {
        if (options->sizes == OPTIONS_MAX_SIZES) {
            fprintf(stderr, "bench_allreduce: --factor %g: more than %d sizes between --min and --max\n", range->factor, OPTIONS_MAX_SIZES);
            return false;
        }
        options->bytes[options->sizes++] = bytes;
        double next = ceil((double)bytes * range->factor);
        if (next > (double)range->maximum)
            break;
        bytes = (size_t)next;
    }
    return true;
}

/* Defaults that depend on what else was said, and what does not go together. */
static bool settle(const range_t *range, options_t *options)
{
    if (!make_sizes(range, options))
        return false;
    if (!any(options->dtype, QUOIT_DTYPE_COUNT))
        options->dtype[QUOIT_F32] = true;
    if (!any(options->op, QUOIT_OP_COUNT))
        options->op[QUOIT_SUM] = true;
    if (!options->out_of_place)
        options->in_place = true;
    options->timeout_ms = (int)(range->timeout * 1000);
    if (options->wire > QUOIT_WIRE_F32)
        options->check = false; /* results are rounded */
    if (options->launch > 0 && options->rank >= 0) {
        fprintf(stderr, "bench_allreduce: -n %d and --rank %d exclude each other: -n starts ranks, --rank is one\n", options->launch, options->rank);
        return false;
    }
    if (options->rank >= 0 && (options->size == 0 || options->store == NULL)) {
        fprintf(stderr, "bench_allreduce: --rank %d needs --size N and --store URL\n", options->rank);
        return false;
    }
    if (options->rank >= 0 && options->rank >= options->size) {
        fprintf(stderr, "bench_allreduce: --rank %d: expected less than --size %d\n", options->rank, options->size);
        return false;
    }
    return true;
}

options_outcome_t options_parse(int argc, char **argv, options_t *options)
{
    range_t range = {.minimum = 4, .maximum = (size_t)64 << 20, .factor = 4, .timeout = 120};
    memset(options, 0, sizeof *options);
    options->rank = -1;
    options->warmup = 5;
    options->seconds_a_size = 0.3;
    options->check = true;
    options->report = -1;
    for (int i = 1; i < argc; i++) {
        const char *argument = argv[i], *equals = strncmp(argument, "--", 2) == 0 ? strchr(argument, '=') : NULL;
        const row_t *row = find_row(argument, equals != NULL ? (size_t)(equals - argument) : strlen(argument));
        if (row == NULL) {
            fprintf(stderr, "bench_allreduce: unknown option %s (--help lists them)\n", argument);
            return OPTIONS_WRONG;
        }
        if (row->kind == KIND_HELP)
            return OPTIONS_HELP;
        if (row->kind == KIND_VERSION)
            return OPTIONS_VERSION;
        const char *value = NULL;
        if (row->argument == NULL && equals != NULL) {
            fprintf(stderr, "bench_allreduce: %s takes no value\n", argument);
            return OPTIONS_WRONG;
        }
        if (row->argument != NULL) {
            value = equals != NULL ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
            if (value == NULL) {
                fprintf(stderr, "bench_allreduce: %s needs a value: %s\n", argument, row->argument);
                return OPTIONS_WRONG;
            }
        }
        if (!take_option(row, row->name, value, options, &range))
            return OPTIONS_WRONG;
    }
    return settle(&range, options) ? OPTIONS_RUN : OPTIONS_WRONG;
}
