/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Status texts, the library's version, and the error text of each thread. The text is formatted beside the old one and copied over
 * it at the end, so the old text may itself be an argument.
 */
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define STRING_OF(x) #x
#define VERSION_TEXT(major, minor, patch) STRING_OF(major) "." STRING_OF(minor) "." STRING_OF(patch)

static _Thread_local char newest[ERROR_TEXT_CAPACITY];

/* A text that was cut may end inside a UTF-8 sequence, which strict readers refuse: drop the piece. */
static void drop_partial_character(char *text, size_t length)
{
    size_t start = length;
    while (start > 0 && length - start < 3 && ((unsigned char)text[start - 1] & 0xc0) == 0x80) start--;
    if (start == 0) return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t needed = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (needed > length - start) text[start - 1] = '\0';
}

static size_t append(char *text, size_t length, const char *more)
{
    size_t added = strnlen(more, ERROR_TEXT_CAPACITY), room = ERROR_TEXT_CAPACITY - 1 - length;
    size_t copied = added < room ? added : room;
    memcpy(text + length, more, copied);
    text[length + copied] = '\0';
    if (copied < added) drop_partial_character(text, length + copied);
    return strlen(text);
}

static size_t format_into(char *text, const char *format, va_list arguments)
{
    int length = vsnprintf(text, ERROR_TEXT_CAPACITY, format, arguments);
    if (length < 0) text[0] = '\0';
    if (length >= ERROR_TEXT_CAPACITY) drop_partial_character(text, ERROR_TEXT_CAPACITY - 1);
    return strlen(text);
}

quoit_status_t error_set(quoit_status_t status, const char *format, ...)
{
    char text[ERROR_TEXT_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    size_t length = format_into(text, format, arguments);
    va_end(arguments);
    memcpy(newest, text, length + 1);
    return status;
}

quoit_status_t error_set_errno(quoit_status_t status, int number, const char *format, ...)
{
    char text[ERROR_TEXT_CAPACITY], reason[128];
    va_list arguments;
    va_start(arguments, format);
    size_t length = format_into(text, format, arguments);
    va_end(arguments);
    length = append(text, length, ": ");
    length = append(text, length, strerror_r(number, reason, sizeof reason));
    if (number == EMFILE) length = append(text, length, "; raise 'ulimit -n'");
    if (number == ENFILE) length = append(text, length, "; raise fs.file-max, the limit of the whole system");
    memcpy(newest, text, length + 1);
    return status;
}

quoit_status_t error_prefix(quoit_status_t status, const char *format, ...)
{
    char text[ERROR_TEXT_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    size_t length = format_into(text, format, arguments);
    va_end(arguments);
    length = append(text, length, ": ");
    length = append(text, length, newest);
    memcpy(newest, text, length + 1);
    return status;
}

const char *error_text(void) { return newest; }

void error_clear(void) { newest[0] = '\0'; }

const char *quoit_last_error(void) { return newest; }

const char *quoit_status_text(quoit_status_t status)
{
    switch (status) {
#define STATUS_CASE(name, value, text) \
    case QUOIT_##name: return text;
        QUOIT_STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *quoit_version(void)
{
    return VERSION_TEXT(QUOIT_VERSION_MAJOR, QUOIT_VERSION_MINOR, QUOIT_VERSION_PATCH);
}
