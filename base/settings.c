/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The settings in force. The environment is read once, under a lock, by whichever call comes first; from then on reading a value is
 * a load from an array that no longer changes. An empty variable counts as unset. A bad value leaves its setting at the default and
 * makes settings_load fail with the text about the first of them.
 */
#include "base/settings_table.h"

#include "base/forked.h"
#include "base/log.h"
#include "base/text.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX "QUOIT_"
#define TEST_PREFIX "QUOIT_TEST_"

typedef struct setting_value {
    int64_t number;
    char *word; /* owned; NULL: the row's default */
} setting_value_t;

static const setting_row_t rows[SETTING_COUNT] = {
#define SETTING(NAME, TYPE, UNIT, FALLBACK, ALLOWED, TEXT) \
    [SETTING_##NAME] = {PREFIX #NAME, SETTING_TYPE_##TYPE, UNIT, FALLBACK, ALLOWED, TEXT},
#include "base/settings.def"
#undef SETTING
};

static forked_lock_t lock = {.mutex = PTHREAD_MUTEX_INITIALIZER}; /* of all below, until loaded */
static atomic_bool loaded;
static setting_value_t values[SETTING_COUNT];
static char *overrides[SETTING_COUNT]; /* owned; by quoit_setting_set before loading */
static quoit_status_t outcome;
static char outcome_text[ERROR_TEXT_CAPACITY];

const setting_row_t *setting_row(setting_id_t id) { return &rows[id]; }

const char *setting_name(setting_id_t id) { return rows[id].name; }

const char *setting_type_name(setting_type_t type)
{
    static const char *const names[] = {[SETTING_TYPE_INT] = "int",           [SETTING_TYPE_SIZE] = "size",
                                        [SETTING_TYPE_DURATION] = "duration", [SETTING_TYPE_BOOL] = "bool",
                                        [SETTING_TYPE_ENUM] = "enum",         [SETTING_TYPE_STRING] = "string"};
    return names[type];
}

bool settings_are_loaded(void) { return atomic_load_explicit(&loaded, memory_order_acquire); }

static quoit_status_t value_fill(setting_id_t id, const char *text)
{
    int64_t number;
    const char *word;
    size_t length;
    quoit_status_t status = setting_parse(&rows[id], text, &number, &word, &length);
    if (status != QUOIT_OK) return status;
    char *copy = strndup(word, length);
    if (!copy) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for setting %s", rows[id].name);
    values[id] = (setting_value_t){.number = number, .word = copy};
    return QUOIT_OK;
}

static void load_locked(void)
{
    outcome = QUOIT_OK;
    outcome_text[0] = '\0';
    for (int id = 0; id < SETTING_COUNT; id++) {
        const char *text = overrides[id] ? overrides[id] : getenv(rows[id].name);
        bool given = text && *text;
        quoit_status_t status = value_fill((setting_id_t)id, given ? text : rows[id].fallback);
        if (status == QUOIT_OK) continue;
        if (outcome == QUOIT_OK) {
            outcome = status;
            snprintf(outcome_text, sizeof outcome_text, "%s", error_text());
        }
        if (given) (void)value_fill((setting_id_t)id, rows[id].fallback);
    }
}

/* Edit distance (Levenshtein), by one row of the classic table; names longer than the row count as far from everything. */
static size_t distance(const char *a, size_t a_length, const char *b)
{
    size_t row[64], b_length = strlen(b);
    if (b_length >= sizeof row / sizeof row[0] || a_length >= sizeof row / sizeof row[0]) return SIZE_MAX;
    for (size_t j = 0; j <= b_length; j++) row[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            size_t shift = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = change < shift ? change : shift;
        }
    }
    return row[b_length];
}

/* Is one of them the other and further words? QUOIT_WIRE means QUOIT_WIRE_DTYPE. */
static bool lacks_words(const char *a, size_t a_length, const char *b)
{
    size_t b_length = strlen(b), shorter = a_length < b_length ? a_length : b_length;
    const char *longer = a_length < b_length ? b : a;
    return a_length != b_length && !memcmp(a, b, shorter) && longer[shorter] == '_';
}

/*
 * The setting whose full name resembles `name` most, first among those that lack words or have some more; NULL when two thirds of the longer
 * one's letters behind the prefix are others.
 */
static const char *nearest_name(const char *name, size_t length)
{
    size_t least = SIZE_MAX;
    bool lacks = false;
    const char *nearest = NULL;
    for (int id = 0; id < SETTING_COUNT; id++) {
        size_t far = distance(name, length, rows[id].name);
        bool this_lacks = lacks_words(name, length, rows[id].name);
        if (far == SIZE_MAX || this_lacks < lacks || (this_lacks == lacks && far >= least)) continue;
        least = far;
        lacks = this_lacks;
        nearest = rows[id].name;
    }
    if (!nearest || lacks) return nearest;
    size_t longer = (length > strlen(nearest) ? length : strlen(nearest)) - strlen(PREFIX);
    return least * 3 < longer * 2 ? nearest : NULL;
}

static bool is_setting(const char *name, size_t length)
{
    for (int id = 0; id < SETTING_COUNT; id++)
        if (strlen(rows[id].name) == length && !memcmp(rows[id].name, name, length)) return true;
    return false;
}

static void warn_unknown(void)
{
    for (char **variable = environ; variable && *variable; variable++) {
        size_t length = strcspn(*variable, "=");
        if (strncmp(*variable, PREFIX, strlen(PREFIX)) != 0 || !strncmp(*variable, TEST_PREFIX, strlen(TEST_PREFIX))) continue;
        if (is_setting(*variable, length)) continue;
        const char *nearest = nearest_name(*variable, length);
        log_warn("settings", "there is no setting %.*s, it has no effect; %s%s", length > 100 ? 100 : (int)length, *variable,
                 nearest ? "the nearest name is " : "docs/settings.md lists all", nearest ? nearest : "");
    }
}

/* After this the values do not change. Leaves this thread's error text alone when all is well. */
static void ensure_loaded(void)
{
    if (settings_are_loaded()) return;
    forked_lock(&lock);
    bool mine = !atomic_load_explicit(&loaded, memory_order_relaxed);
    if (mine) {
        load_locked();
        atomic_store_explicit(&loaded, true, memory_order_release);
    }
    forked_unlock(&lock);
    if (mine) warn_unknown(); /* now the log knows its level and file */
}

quoit_status_t settings_load(void)
{
    ensure_loaded();
    return outcome == QUOIT_OK ? QUOIT_OK : error_set(outcome, "%s", outcome_text);
}

int64_t setting_int(setting_id_t id)
{
    ensure_loaded();
    return values[id].number;
}

const char *setting_string(setting_id_t id)
{
    ensure_loaded();
    return values[id].word ? values[id].word : rows[id].fallback;
}

void settings_reset(void)
{
    forked_lock(&lock);
    for (int id = 0; id < SETTING_COUNT; id++) {
        free(values[id].word);
        free(overrides[id]);
        values[id] = (setting_value_t){0};
        overrides[id] = NULL;
    }
    atomic_store_explicit(&loaded, false, memory_order_release);
    forked_unlock(&lock);
}

static quoit_status_t find_setting(const char *name, setting_id_t *id)
{
    if (!name) return error_set(QUOIT_ERR_INVALID, "the name of the setting is NULL");
    for (int i = 0; i < SETTING_COUNT; i++)
        if (!strcmp(rows[i].name + strlen(PREFIX), name)) {
            *id = (setting_id_t)i;
            return QUOIT_OK;
        }
    char full[64];
    bool prefixed = !strncmp(name, PREFIX, strlen(PREFIX));
    snprintf(full, sizeof full, "%s%s", prefixed ? "" : PREFIX, name);
    const char *nearest = nearest_name(full, strlen(full));
    if (!nearest) return error_set(QUOIT_ERR_INVALID, "there is no setting \"%.100s\"; quoit_settings_print lists all", name);
    return error_set(QUOIT_ERR_INVALID, "there is no setting \"%.100s\"; the nearest name is \"%s\"", name, nearest + strlen(PREFIX));
}

quoit_status_t quoit_setting_set(const char *name, const char *value)
{
    setting_id_t id = 0;
    int64_t number;
    const char *word;
    size_t length;
    quoit_status_t status = find_setting(name, &id);
    if (status != QUOIT_OK) return status;
    if (!value) return error_set(QUOIT_ERR_INVALID, "the value for setting %s is NULL", name);
    status = setting_parse(&rows[id], *value ? value : rows[id].fallback, &number, &word, &length);
    if (status != QUOIT_OK) return status;
    char *copy = strdup(*value ? value : rows[id].fallback);
    if (!copy) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for setting %s", name);
    forked_lock(&lock);
    if (atomic_load_explicit(&loaded, memory_order_relaxed)) {
        status = error_set(QUOIT_ERR_INVALID, "setting %s cannot be changed any more: the settings are in use since the first call "
                           "that needed one; set it before, or in the environment as %s", name, rows[id].name);
    } else {
        char *old = overrides[id];
        overrides[id] = copy;
        copy = old;
    }
    forked_unlock(&lock);
    free(copy);
    return status;
}

quoit_status_t quoit_setting_get(const char *name, const char **value)
{
    setting_id_t id = 0;
    quoit_status_t status = find_setting(name, &id);
    if (status != QUOIT_OK) return status;
    if (!value) return error_set(QUOIT_ERR_INVALID, "quoit_setting_get(\"%s\"): value is NULL", name);
    *value = setting_string(id);
    return QUOIT_OK;
}

quoit_status_t quoit_setting_get_number(const char *name, int64_t *value)
{
    setting_id_t id = 0;
    quoit_status_t status = find_setting(name, &id);
    if (status != QUOIT_OK) return status;
    if (!value) return error_set(QUOIT_ERR_INVALID, "quoit_setting_get_number(\"%s\"): value is NULL", name);
    if (rows[id].type == SETTING_TYPE_STRING) return error_set(QUOIT_ERR_INVALID, "setting \"%s\" is no number; quoit_setting_get has its text", name);
    *value = setting_int(id);
    return QUOIT_OK;
}

static void measure(size_t *width, const char *cell)
{
    size_t length = strlen(cell);
    if (length > *width && length <= 40) *width = length; /* one long path shall not stretch the table */
}

static const char *shown(const char *cell) { return *cell ? cell : "-"; }

quoit_status_t quoit_settings_print(char **result)
{
    if (!result) return error_set(QUOIT_ERR_INVALID, "quoit_settings_print: text is NULL");
    text_t text = {0};
    size_t name = strlen("NAME"), value = strlen("VALUE"), fallback = strlen("DEFAULT"), type = strlen("TYPE"), unit = strlen("UNIT");
    for (int id = 0; id < SETTING_COUNT; id++) {
        measure(&name, rows[id].name);
        measure(&value, setting_string((setting_id_t)id));
        measure(&fallback, rows[id].fallback);
        measure(&type, setting_type_name(rows[id].type));
        measure(&unit, rows[id].unit);
    }
    text_append(&text, "%-*s  %-*s  %-*s  %-*s  %-*s  %s\n", (int)name, "NAME", (int)value, "VALUE", (int)fallback, "DEFAULT", (int)type,
                "TYPE", (int)unit, "UNIT", "DESCRIPTION");
    for (int id = 0; id < SETTING_COUNT; id++)
        text_append(&text, "%-*s  %-*s  %-*s  %-*s  %-*s  %s [%s]\n", (int)name, rows[id].name, (int)value,
                    shown(setting_string((setting_id_t)id)), (int)fallback, shown(rows[id].fallback), (int)type,
                    setting_type_name(rows[id].type), (int)unit, shown(rows[id].unit), rows[id].text, rows[id].allowed);
    if (outcome != QUOIT_OK) text_append(&text, "error: %s\n", outcome_text);
    return text_finish(&text, result);
}
