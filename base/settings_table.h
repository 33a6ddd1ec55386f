/* SPDX-License-Identifier: Apache-2.0 */
/** The rows of settings.def, and the parsing of one value by its row: what settings.c and settings_parse.c share, and tests read. */
#ifndef QUOIT_BASE_SETTINGS_TABLE_H
#define QUOIT_BASE_SETTINGS_TABLE_H

#include "base/settings.h"

#include <stddef.h>

typedef enum setting_type {
    SETTING_TYPE_INT,
    SETTING_TYPE_SIZE,
    SETTING_TYPE_DURATION,
    SETTING_TYPE_BOOL,
    SETTING_TYPE_ENUM,
    SETTING_TYPE_STRING
} setting_type_t;

typedef struct setting_row {
    const char *name; /* "QUOIT_TCP_SOCKETS" */
    setting_type_t type;
    const char *unit, *fallback, *allowed, *text;
} setting_row_t;

/** The row of a setting; id must be valid. */
const setting_row_t *setting_row(setting_id_t id);
const char *setting_type_name(setting_type_t type);

/**
 * Parse `text` as a value of `row`.
 *
 * @param number  as setting_int() tells it; 0 for STRING
 * @param word    the text to show: ENUM and BOOL their canonical word (a constant, or part of the row), else `text` itself
 * @param length  bytes of word
 * @return ERR_INVALID, "QUOIT_TCP_SOCKETS=0: expected an integer from 1 to 16 (TCP connections per pair of processes)"
 */
quoit_status_t setting_parse(const setting_row_t *row, const char *text, int64_t *number, const char **word, size_t *length);

/** As parse_duration; a number without a suffix counts `unit` microseconds. */
quoit_status_t parse_duration_unit(const char *what, const char *text, int64_t unit, int64_t minimum, int64_t maximum,
                                   int64_t *microseconds);
/** As setting_parse for ENUM, with `allowed` "a|b|c". */
quoit_status_t parse_enum(const char *what, const char *text, const char *allowed, int64_t *index);
/** Split "min..max" and parse both ends as values of the row's type; false when the row is wrong (a test keeps them right). */
bool setting_range(const setting_row_t *row, int64_t *minimum, int64_t *maximum);

/** True once the environment has been read (by whatever call). Does not read it. */
bool settings_are_loaded(void);

#endif
