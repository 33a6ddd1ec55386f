/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and inputs of fuzz targets. */
#include "fuzz.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

enum { DESCRIPTORS_SEEN = 64 };

void fuzz_fail(const char *text, const char *file, int line)
{
    fprintf(stderr, "%s:%d: does not hold: %s\n(the newest error text is: %s)\n", file, line, text, error_text());
    abort();
}

void fuzz_check_text(const char *text, size_t capacity)
{
    size_t length = strnlen(text, capacity);
    fuzz_check(length < capacity);
    for (size_t i = 0; i < length; i++) fuzz_check((unsigned char)text[i] >= 0x20 && text[i] != 0x7f);
}

bool fuzz_check_status(quoit_status_t status)
{
    if (status == QUOIT_OK || status == QUOIT_IN_PROGRESS) return status == QUOIT_OK;
    fuzz_check(status < 0 && status >= QUOIT_ERR_INTERNAL);
    fuzz_check(error_text()[0] != '\0');
    fuzz_check(strnlen(error_text(), ERROR_TEXT_CAPACITY) < ERROR_TEXT_CAPACITY);
    return false;
}

void *fuzz_copy(const void *bytes, size_t length)
{
    void *copy = malloc(length ? length : 1);
    fuzz_check(copy != NULL);
    if (length > 0) memcpy(copy, bytes, length);
    return copy;
}

char *fuzz_string(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    fuzz_check(text != NULL);
    if (size > 0) memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

void fuzz_patch(fuzz_input_t *input, uint8_t *bytes, size_t length, int most)
{
    for (int i = 0; i < most && fuzz_left(input) > 3; i++) {
        size_t offset = (size_t)fuzz_number(input, 2), count, wanted = fuzz_byte(input);
        const uint8_t *from = fuzz_take(input, wanted, &count);
        if (offset >= length) continue;
        memcpy(bytes + offset, from, count < length - offset ? count : length - offset);
    }
}

/* ------------------------------------------------------------------ descriptors */

bool fuzz_descriptors_are_back(void)
{
    static int before = -1;
    struct pollfd all[DESCRIPTORS_SEEN]; /* one call for all of them */
    int count = 0;
    for (int i = 0; i < DESCRIPTORS_SEEN; i++) all[i] = (struct pollfd){.fd = i};
    fuzz_check(poll(all, DESCRIPTORS_SEEN, 0) >= 0);
    for (int i = 0; i < DESCRIPTORS_SEEN; i++) count += !(all[i].revents & POLLNVAL);
    if (before < 0) before = count;
    return count == before;
}

/* ------------------------------------------------------------------ JSON */

/* By hand: a sanitizer's strspn measures the whole text first, at each of its words. */
static const char *skip_space(const char *at)
{
    while (*at == ' ' || *at == '\n') at++;
    return at;
}

static bool is_plain(char one) { return one != '\0' && strchr("-+.0123456789eEtruefalsn", one) != NULL; }

static const char *skip_string(const char *at)
{
    fuzz_check(*at == '"');
    for (at++; *at != '"'; at++) {
        fuzz_check((unsigned char)*at >= 0x20);
        if (*at == '\\') {
            at++;
            fuzz_check(*at && strchr("\"\\/bfnrtu", *at));
        }
    }
    return at + 1;
}

static const char *skip_value(const char *at, int depth)
{
    fuzz_check(depth < 20);
    at = skip_space(at);
    if (*at == '"') return skip_string(at);
    if (*at != '{' && *at != '[') {
        fuzz_check(is_plain(*at));
        while (is_plain(*at)) at++;
        return at;
    }
    char end = *at == '{' ? '}' : ']';
    at = skip_space(at + 1);
    while (*at != end) {
        if (end == '}') {
            at = skip_space(skip_string(at));
            fuzz_check(*at == ':');
            at++;
        }
        at = skip_space(skip_value(at, depth + 1));
        fuzz_check(*at == ',' || *at == end);
        if (*at == ',') at = skip_space(at + 1);
    }
    return at + 1;
}

void fuzz_check_json(const char *text) { fuzz_check(*skip_space(skip_value(text, 0)) == '\0'); }
