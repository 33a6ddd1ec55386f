/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values of settings, by every row of the table and by every parser alone; quotas of cgroups; patterns of file names. What is taken lies
 * in its range and, written again, means the same.
 */
#include "fuzz.h"

#include "base/cpu.h"
#include "base/log.h"
#include "base/settings_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void by_row(const setting_row_t *row, const char *text)
{
    int64_t number = -77, minimum, maximum, again;
    const char *word = NULL;
    size_t length = 0;
    if (!fuzz_check_status(setting_parse(row, text, &number, &word, &length))) {
        fuzz_check(number == -77 && !word && strstr(error_text(), row->name));
        return;
    }
    fuzz_check(word && length <= strlen(word));
    bool ranged = row->type == SETTING_TYPE_INT || row->type == SETTING_TYPE_SIZE || row->type == SETTING_TYPE_DURATION;
    if (ranged) fuzz_check(setting_range(row, &minimum, &maximum) && number >= minimum && number <= maximum);
    char *shown = fuzz_string((const uint8_t *)word, length);
    fuzz_check(setting_parse(row, shown, &again, &word, &length) == QUOIT_OK && again == number);
    free(shown);
}

static void by_parser(const char *text)
{
    int64_t value = 0;
    char again[32];
    if (fuzz_check_status(parse_int("x", text, INT64_MIN, INT64_MAX, &value))) {
        snprintf(again, sizeof again, "%" PRId64, value);
        int64_t second = ~value;
        fuzz_check(value == INT64_MIN || (parse_int("x", again, INT64_MIN, INT64_MAX, &second) == QUOIT_OK && second == value));
    }
    if (fuzz_check_status(parse_size("x", text, 0, INT64_MAX, &value))) fuzz_check(value >= 0);
    if (fuzz_check_status(parse_duration("x", text, 0, INT64_MAX, &value))) fuzz_check(value >= 0);
    if (fuzz_check_status(parse_bool("x", text, &value))) fuzz_check(value == 0 || value == 1);
    if (fuzz_check_status(parse_enum("x", text, "auto|shm|tcp", &value))) fuzz_check(value >= 0 && value < 3);
    int processors = cpu_parse_max(text);
    fuzz_check(processors >= 0 && processors <= 1 << 20);
}

static void by_pattern(const char *text)
{
    static char path[PATH_MAX];
    if (log_expand_path(text, 12, path)) fuzz_check(memchr(path, '\0', sizeof path) != NULL);
    if (log_rank_path(text, -1, "trace-%r.json", path)) fuzz_check(memchr(path, '\0', sizeof path) != NULL);
}

/* The row that "QUOIT_TCP_SOCKETS=2" names; else one by the first byte. */
static const setting_row_t *draw_row(const char *whole, const char **text)
{
    const char *equals = strchr(whole, '=');
    size_t length = equals ? (size_t)(equals - whole) : 0;
    for (int id = 0; id < SETTING_COUNT && equals; id++) {
        const setting_row_t *row = setting_row((setting_id_t)id);
        *text = equals + 1;
        if (strlen(row->name) == length && memcmp(row->name, whole, length) == 0) return row;
    }
    *text = whole + (whole[0] != '\0');
    return setting_row((setting_id_t)((unsigned char)whole[0] % SETTING_COUNT));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *whole = fuzz_string(data, size);
    const char *text;
    const setting_row_t *row = draw_row(whole, &text);
    by_row(row, text);
    by_parser(text);
    by_pattern(text);
    free(whole);
    return 0;
}

void fuzz_seeds(void)
{
    for (int id = 0; id < SETTING_COUNT; id++) {
        const setting_row_t *row = setting_row((setting_id_t)id);
        char text[300];
        snprintf(text, sizeof text, "%s=%s", row->name, row->fallback);
        fuzz_seed(row->name, text, strlen(text));
    }
    fuzz_seed("limit_of_cgroup", "x150000 100000\n", 15);
    fuzz_seed("path", "x/tmp/%h/trace-%r-%p.json", 25);
}
