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

/**
 * A descriptor that was just opened (or an error, below 0), moved above those of stdin, stdout and stderr. The system gives out the lowest
 * number that is free, so one of these means that the process, a daemon perhaps, has closed some of them: whoever writes to stderr then would
 * write into the memory that processes share. So each of the three that is closed becomes /dev/null, which programs it starts do not inherit.
 */
int limits_above_standard(int fd);

#endif
