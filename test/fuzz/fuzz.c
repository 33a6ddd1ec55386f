/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and inputs of fuzz targets. */
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>

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
