/* SPDX-License-Identifier: Apache-2.0 */
/** Everything about a run as JSON: environment, command, rows with the time of each iteration. */
#ifndef QUOIT_BENCH_JSON_H
#define QUOIT_BENCH_JSON_H

#include "environment.h"
#include "measure.h"

#include <stdio.h>

/** Rows are written as they come, so that a run that fails half-way leaves what it has. */
void json_begin(FILE *file, const environment_t *environment, const options_t *options, int argc, char **argv);
void json_row(FILE *file, const row_t *row, int index);
/** environment_describe() was called before; `error` is the text of what ended the run, or NULL. */
void json_end(FILE *file, const environment_t *environment, const char *error);

#endif
