/* SPDX-License-Identifier: Apache-2.0 */
/** Log: one line a message, "quoit [rank 3 @ node7] warn tcp: text", written with one write(). */
#ifndef QUOIT_BASE_LOG_H
#define QUOIT_BASE_LOG_H

#include <stdbool.h>

typedef enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG } log_level_t;

bool log_enabled(log_level_t level);
void log_write(log_level_t level, const char *room, const char *format, ...) __attribute__((format(printf, 3, 4)));
/** Rank shown in each line from now on; -1: none yet. */
void log_set_rank(int rank);
/** At most one line a second for one `key` (e.g. a stray peer's address), with the number of those left out. */
void log_write_limited(const char *key, log_level_t level, const char *room, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/** Name of this host for messages (gethostname, "?" when it fails). */
const char *log_host(void);

/* Arguments are evaluated only when the level is on. */
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_info(...) (log_enabled(LOG_INFO) ? log_write(LOG_INFO, __VA_ARGS__) : (void)0)
#define log_debug(...) (log_enabled(LOG_DEBUG) ? log_write(LOG_DEBUG, __VA_ARGS__) : (void)0)

#endif
