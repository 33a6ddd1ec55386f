/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Parsers of the settings' types. Each takes the whole text or nothing, checks overflow, and says in its error what it was given and
 * what it wants: "QUOIT_TCP_SOCKETS=0: expected an integer from 1 to 16".
 */
#include "base/settings_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { SHOWN_CAPACITY = 32 };

typedef struct suffix {
    const char *text;
    int64_t factor;
} suffix_t;

static const suffix_t size_suffixes[] = {{"G", 1 << 30}, {"GB", 1 << 30}, {"GiB", 1 << 30}, {"M", 1 << 20}, {"MB", 1 << 20},
                                         {"MiB", 1 << 20}, {"K", 1 << 10}, {"KB", 1 << 10}, {"KiB", 1 << 10}, {"B", 1},
                                         {NULL, 0}};
static const suffix_t duration_suffixes[] = {{"min", 60000000}, {"s", 1000000}, {"ms", 1000}, {"us", 1}, {NULL, 0}};

/* Decimal digits at *text, which moves behind them; false when there are none or they overflow. */
static bool read_digits(const char **text, int64_t *value)
{
    const char *c = *text;
    int64_t sum = 0;
    if (*c < '0' || *c > '9') return false;
    for (; *c >= '0' && *c <= '9'; c++)
        if (__builtin_mul_overflow(sum, 10, &sum) || __builtin_add_overflow(sum, *c - '0', &sum)) return false;
    *text = c;
    *value = sum;
    return true;
}

/* Number with an optional suffix; `unit` is what counts when there is none. */
static bool read_scaled(const char *text, const suffix_t *suffixes, int64_t unit, int64_t *value)
{
    int64_t number, factor = unit;
    if (!read_digits(&text, &number)) return false;
    if (*text) {
        while (suffixes->text && strcasecmp(suffixes->text, text) != 0) suffixes++;
        if (!suffixes->text) return false;
        factor = suffixes->factor;
    }
    return !__builtin_mul_overflow(number, factor, value);
}

/* The value with the largest suffix that divides it, as people would write it. */
static const char *show_scaled(int64_t value, const suffix_t *suffixes, char shown[SHOWN_CAPACITY])
{
    for (; suffixes->text; suffixes++) {
        if (value == 0 || value % suffixes->factor != 0) continue;
        const char *name = suffixes->factor == 1 && suffixes->text[0] == 'B' ? "" : suffixes->text;
        snprintf(shown, SHOWN_CAPACITY, "%" PRId64 "%s", value / suffixes->factor, name);
        return shown;
    }
    snprintf(shown, SHOWN_CAPACITY, "%" PRId64, value);
    return shown;
}

quoit_status_t parse_int(const char *what, const char *text, int64_t minimum, int64_t maximum, int64_t *value)
{
    const char *c = text + (*text == '-' || *text == '+');
    int64_t number;
    if (!read_digits(&c, &number) || *c) goto bad;
    if (*text == '-') number = -number;
    if (number < minimum || number > maximum) goto bad;
    *value = number;
    return QUOIT_OK;
bad:
    return error_set(QUOIT_ERR_INVALID, "%s=%.100s: expected an integer from %" PRId64 " to %" PRId64, what, text, minimum, maximum);
}

quoit_status_t parse_size(const char *what, const char *text, int64_t minimum, int64_t maximum, int64_t *bytes)
{
    int64_t number;
    char least[SHOWN_CAPACITY], most[SHOWN_CAPACITY];
    if (read_scaled(text, size_suffixes, 1, &number) && number >= minimum && number <= maximum) {
        *bytes = number;
        return QUOIT_OK;
    }
    return error_set(QUOIT_ERR_INVALID, "%s=%.100s: expected a size from %s to %s bytes, such as 64K or 1MiB", what, text,
                     show_scaled(minimum, size_suffixes, least), show_scaled(maximum, size_suffixes, most));
}

quoit_status_t parse_duration_unit(const char *what, const char *text, int64_t unit, int64_t minimum, int64_t maximum,
                                   int64_t *microseconds)
{
    int64_t number;
    char least[SHOWN_CAPACITY], most[SHOWN_CAPACITY];
    if (read_scaled(text, duration_suffixes, unit, &number) && number >= minimum && number <= maximum) {
        *microseconds = number;
        return QUOIT_OK;
    }
    return error_set(QUOIT_ERR_INVALID, "%s=%.100s: expected a duration from %s to %s, with us, ms, s or min (without: %s)", what,
                     text, show_scaled(minimum, duration_suffixes, least), show_scaled(maximum, duration_suffixes, most),
                     unit == 1 ? "us" : "ms");
}

quoit_status_t parse_duration(const char *what, const char *text, int64_t minimum, int64_t maximum, int64_t *microseconds)
{
    return parse_duration_unit(what, text, 1000, minimum, maximum, microseconds);
}

quoit_status_t parse_bool(const char *what, const char *text, int64_t *value)
{
    static const char *const words[][2] = {{"0", "1"}, {"no", "yes"}, {"off", "on"}, {"false", "true"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        for (int truth = 0; truth < 2; truth++)
            if (!strcasecmp(text, words[i][truth])) {
                *value = truth;
                return QUOIT_OK;
            }
    return error_set(QUOIT_ERR_INVALID, "%s=%.100s: expected yes or no (or 1/0, on/off, true/false)", what, text);
}

/* The word number `index` of "a|b|c"; NULL past the last. */
static const char *enum_word(const char *allowed, int64_t index, size_t *length)
{
    for (; index > 0; index--) {
        allowed = strchr(allowed, '|');
        if (!allowed) return NULL;
        allowed++;
    }
    *length = strcspn(allowed, "|");
    return allowed;
}

quoit_status_t parse_enum(const char *what, const char *text, const char *allowed, int64_t *index)
{
    size_t length;
    const char *word;
    for (int64_t i = 0; (word = enum_word(allowed, i, &length)); i++)
        if (strlen(text) == length && !strncasecmp(text, word, length)) {
            *index = i;
            return QUOIT_OK;
        }
    return error_set(QUOIT_ERR_INVALID, "%s=%.100s: expected one of %s", what, text, allowed);
}

static int64_t unit_of(const setting_row_t *row) { return strcmp(row->unit, "us") == 0 ? 1 : 1000; }

static quoit_status_t parse_number(const setting_row_t *row, const char *text, int64_t minimum, int64_t maximum, int64_t *number)
{
    switch (row->type) {
    case SETTING_TYPE_SIZE: return parse_size(row->name, text, minimum, maximum, number);
    case SETTING_TYPE_DURATION: return parse_duration_unit(row->name, text, unit_of(row), minimum, maximum, number);
    default: return parse_int(row->name, text, minimum, maximum, number);
    }
}

bool setting_range(const setting_row_t *row, int64_t *minimum, int64_t *maximum)
{
    char least[SHOWN_CAPACITY];
    const char *dots = strstr(row->allowed, "..");
    if (!dots || (size_t)(dots - row->allowed) >= sizeof least) return false;
    snprintf(least, sizeof least, "%.*s", (int)(dots - row->allowed), row->allowed);
    return parse_number(row, least, INT64_MIN, INT64_MAX, minimum) == QUOIT_OK &&
           parse_number(row, dots + 2, INT64_MIN, INT64_MAX, maximum) == QUOIT_OK && *minimum <= *maximum;
}

static quoit_status_t parse_ranged(const setting_row_t *row, const char *text, int64_t *number)
{
    int64_t minimum, maximum;
    if (!setting_range(row, &minimum, &maximum))
        return error_set(QUOIT_ERR_INTERNAL, "setting %s: \"%s\" is no range", row->name, row->allowed);
    return parse_number(row, text, minimum, maximum, number);
}

quoit_status_t setting_parse(const setting_row_t *row, const char *text, int64_t *number, const char **word, size_t *length)
{
    quoit_status_t status = QUOIT_OK;
    int64_t value = 0;
    const char *shown = text;
    size_t shown_length = strlen(text);
    switch (row->type) {
    case SETTING_TYPE_INT:
    case SETTING_TYPE_SIZE:
    case SETTING_TYPE_DURATION: status = parse_ranged(row, text, &value); break;
    case SETTING_TYPE_BOOL:
        status = parse_bool(row->name, text, &value);
        shown = value ? "yes" : "no";
        shown_length = strlen(shown);
        break;
    case SETTING_TYPE_ENUM:
        status = parse_enum(row->name, text, row->allowed, &value);
        if (status == QUOIT_OK) shown = enum_word(row->allowed, value, &shown_length);
        break;
    case SETTING_TYPE_STRING: break;
    }
    if (status != QUOIT_OK) return error_set(status, "%s (%s)", error_text(), row->text);
    *number = value;
    *word = shown;
    *length = shown_length;
    return QUOIT_OK;
}
