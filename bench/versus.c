/* SPDX-License-Identifier: Apache-2.0 */
/*
 * --vs: find an interpreter and the script, and execute it. The script is, in this order, vs.py beside this program, bench_vs.py one
 * folder up (the Python package), ../share/quoit/bench_vs.py (an installed tree), the source tree, or the module quoit.bench_vs.
 */
#include "versus.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ARGUMENTS = 32 };

static void own_folder(char *folder, size_t capacity)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    snprintf(folder, capacity, "%s", length > 0 ? dirname(path) : ".");
}

static bool find_file(const char *folder, const char *const *names, int count, int mode, char *path, size_t capacity)
{
    for (int i = 0; i < count; i++) {
        int length = snprintf(path, capacity, names[i][0] == '/' ? "%.0s%s" : "%s/%s", folder, names[i]);
        if (length > 0 && (size_t)length < capacity && access(path, mode) == 0)
            return true;
    }
    return false;
}

static const char *find_python(const options_t *options, const char *folder, char *path, size_t capacity)
{
    static const char *const names[] = {"python", "python3", "../../../../../bin/python"}; /* in a venv: bin, or lib/pythonX/site-packages/quoit/bin */
    const char *variable = getenv("PYTHON");
    if (options->python != NULL)
        return options->python;
    if (variable != NULL && *variable != '\0')
        return variable;
    return find_file(folder, names, 3, X_OK, path, capacity) ? path : "python3";
}

static void print_sizes(const options_t *options, char *text, size_t capacity)
{
    size_t length = 0;
    for (int i = 0; i < options->sizes && length < capacity; i++)
        length += (size_t)snprintf(text + length, capacity - length, "%s%zu", i == 0 ? "" : ",", options->bytes[i]);
}

void versus_execute(const options_t *options, const ranks_t *ranks)
{
    static const char *const scripts[] = {"vs.py", "../bench_vs.py", "../share/quoit/bench_vs.py", BENCH_SOURCE_DIR "/vs.py"};
    char folder[PATH_MAX], script[PATH_MAX + 64], python[PATH_MAX + 64], sizes[OPTIONS_MAX_SIZES * 21], number[4][32];
    const char *arguments[MAX_ARGUMENTS];
    int count = 0, dtype = 0, op = 0;
    own_folder(folder, sizeof folder);
    while (!options->dtype[dtype])
        dtype++;
    while (!options->op[op])
        op++;
    print_sizes(options, sizes, sizeof sizes);
    arguments[count++] = find_python(options, folder, python, sizeof python);
    arguments[count++] = "-P"; /* the script's folder may be the package's: its modules must not hide others */
    if (find_file(folder, scripts, 4, R_OK, script, sizeof script)) {
        arguments[count++] = script;
    } else {
        arguments[count++] = "-m";
        arguments[count++] = "quoit.bench_vs";
    }
    snprintf(number[0], sizeof number[0], "%g", options->seconds_a_size);
    snprintf(number[1], sizeof number[1], "%d", options->timeout_ms / 1000 + 1);
    const char *common[] = {"--vs", options->versus, "--sizes", sizes, "--dtype", quoit_dtype_name((quoit_dtype_t)dtype), "--op",
                            quoit_op_name((quoit_op_t)op), "--time", number[0], "--timeout", number[1]};
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++)
        arguments[count++] = common[i];
    snprintf(number[2], sizeof number[2], "%d", ranks != NULL ? ranks->rank : options->launch);
    snprintf(number[3], sizeof number[3], "%d", ranks != NULL ? ranks->size : 0);
    arguments[count++] = ranks != NULL ? "--rank" : "-n";
    arguments[count++] = number[2];
    if (ranks != NULL) {
        arguments[count++] = "--size";
        arguments[count++] = number[3];
        arguments[count++] = "--store";
        arguments[count++] = ranks->store;
    }
    if (!options->check)
        arguments[count++] = "--no-check";
    arguments[count] = NULL;
    fflush(NULL);
    execvp(arguments[0], (char *const *)arguments);
    fprintf(stderr, "bench_allreduce: --vs %s: cannot execute %s: %s; --python or the variable PYTHON names an interpreter\n", options->versus,
            arguments[0], strerror(errno));
}
