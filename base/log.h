/* SPDX-License-Identifier: Apache-2.0 */
/** Log: one line a message, "quoit [rank 3 @ node7] warn tcp: text", written with one write(). */
#ifndef QUOIT_BASE_LOG_H
#define QUOIT_BASE_LOG_H

#include <limits.h>
#include <stdbool.h>

typedef enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level_t;

/** Is this level printed? Before the settings are read: errors and warnings are. */
bool log_enabled(log_level_t level);
/** Any thread, also in a child of fork(). Longer lines than 2 KiB are cut, control characters become spaces; errno stays as it is. */
void log_write(log_level_t level, const char *room, const char *format, ...) __attribute__((format(printf, 3, 4)));
/** Rank shown in each line from now on; -1: none yet. */
void log_set_rank(int rank);
/** At most one line a second for one `key` (e.g. a stray peer's address), with the number of those left out. */
void log_write_limited(const char *key, log_level_t level, const char *room, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/** Name of this host for messages (gethostname, "?" when it fails). */
const char *log_host(void);
/** "%r", "%h", "%p" to rank ("none" when it is negative), host, pid, in a new path. False when the result does not fit. */
bool log_expand_path(const char *pattern, int rank, char path[PATH_MAX]);
/**
 * A file of one rank: as log_expand_path; where the pattern tells neither rank nor pid, the rank is added, before the ending of the name;
 * a pattern that ends in "/", or is a directory, is one for `name`, which has %r in it.
 */
bool log_rank_path(const char *pattern, int rank, const char *name, char path[PATH_MAX]);

/* Arguments are evaluated only when the level is on. */
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...) (log_enabled(LOG_INFO) ? log_write(LOG_INFO, __VA_ARGS__) : (void)0)
#define log_debug(...) (log_enabled(LOG_DEBUG) ? log_write(LOG_DEBUG, __VA_ARGS__) : (void)0)

#endif
