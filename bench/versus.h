/* SPDX-License-Identifier: Apache-2.0 */
/** --vs: hand over to the Python script that times quoit and another torch backend side by side. */
#ifndef QUOIT_BENCH_VERSUS_H
#define QUOIT_BENCH_VERSUS_H

#include "ranks.h"

/**
 * Replace this process by the script. ranks NULL: the script starts options->launch ranks itself. Returns only when it could not be
 * executed, after printing why.
 */
void versus_execute(const options_t *options, const ranks_t *ranks);

#endif
