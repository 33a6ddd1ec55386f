/* SPDX-License-Identifier: Apache-2.0 */
/** The settings table (settings.def): read once from the environment, typed, checked, the same for the whole process. */
#ifndef QUOIT_BASE_SETTINGS_H
#define QUOIT_BASE_SETTINGS_H

#include "base/status.h"

#include <stdbool.h>

typedef enum setting_id {
#define SETTING(name, type, unit, fallback, allowed, text) SETTING_##name,
#include "base/settings.def"
#undef SETTING
    SETTING_COUNT
} setting_id_t;

/** Read the environment on the first call; later calls return the first outcome (text included). Thread-safe, cheap. */
quoit_status_t settings_load(void);

/* Values in force. They load the settings themselves; where loading failed they give the defaults. */
int64_t setting_int(setting_id_t id);          /* INT; SIZE in bytes; DURATION in microseconds; ENUM: index in allowed; BOOL 0/1 */
const char *setting_string(setting_id_t id);   /* STRING; ENUM: its word */
const char *setting_name(setting_id_t id);     /* "QUOIT_TCP_SOCKETS" */

/* The parsers, apart from the environment, so that tests and fuzzers reach them. `what` names the value in errors. */
quoit_status_t parse_int(const char *what, const char *text, int64_t minimum, int64_t maximum, int64_t *value);
quoit_status_t parse_size(const char *what, const char *text, int64_t minimum, int64_t maximum, int64_t *bytes);
quoit_status_t parse_duration(const char *what, const char *text, int64_t minimum, int64_t maximum, int64_t *microseconds);
quoit_status_t parse_bool(const char *what, const char *text, int64_t *value);

/** Forget everything, so that the next call reads the environment anew. For tests. */
void settings_reset(void);

#endif
