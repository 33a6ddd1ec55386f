/* SPDX-License-Identifier: Apache-2.0 */
/** The table that people read. */
#ifndef QUOIT_BENCH_TABLE_H
#define QUOIT_BENCH_TABLE_H

#include "environment.h"
#include "measure.h"

#include <stdio.h>

void table_begin(FILE *file, const environment_t *environment, const options_t *options);
void table_row(FILE *file, const row_t *row);
void table_end(FILE *file, uint64_t wrong, bool checked);

/** "1 KiB", "64 MiB", "12 B" */
void table_size(size_t bytes, char *text, size_t capacity);

#endif
