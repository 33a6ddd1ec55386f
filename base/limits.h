/* SPDX-License-Identifier: Apache-2.0 */
/** Limits that the system sets this process, asked for before work begins that cannot be left half done, or that would end the process. */
#ifndef QUOIT_BASE_LIMITS_H
#define QUOIT_BASE_LIMITS_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

/**
 * QUOIT_OK when this process can open `count` more descriptors now; else ERR_SYSTEM with a text that tells `what` needs them, how many
 * there are, and what to do. Other threads may open some in between.
 */
quoit_status_t limits_descriptors(int count, const char *what);

/** May a file have so many bytes? Making one larger than 'ulimit -f' allows would raise SIGXFSZ. Sets errno to EFBIG when not. */
bool limits_file_size(size_t bytes);

#endif
