/* SPDX-License-Identifier: Apache-2.0 */
/** Growing text, doubled when full. After running out of memory once it ignores what follows and text_finish tells. */
#include "base/text.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 256 };

/* Room for `more` bytes and a NUL. */
static bool reserve(text_t *text, size_t more)
{
    if (text->failed) return false;
    if (more < text->capacity - text->length) return true; /* length < capacity, or both 0 */
    size_t needed = text->length + more + 1;
    size_t capacity = text->capacity ? text->capacity : FIRST_CAPACITY;
    while (capacity < needed && capacity <= SIZE_MAX / 2) capacity *= 2;
    char *data = needed > more && capacity >= needed ? realloc(text->data, capacity) : NULL;
    if (!data) {
        text->failed = true;
        return false;
    }
    text->data = data;
    text->capacity = capacity;
    return true;
}

void text_append(text_t *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0) text->failed = true;
    if (length < 0 || !reserve(text, (size_t)length)) return;
    va_start(arguments, format);
    vsnprintf(text->data + text->length, (size_t)length + 1, format, arguments);
    va_end(arguments);
    text->length += (size_t)length;
}

static void append_bytes(text_t *text, const char *bytes, size_t length)
{
    if (!reserve(text, length)) return;
    memcpy(text->data + text->length, bytes, length);
    text->length += length;
    text->data[text->length] = '\0';
}

/* Bytes of the UTF-8 character at `bytes`, 0 when it is none. Surrogates, overlong forms and values past U+10FFFF are none. */
static size_t utf8_length(const unsigned char *bytes)
{
    size_t length = bytes[0] < 0x80 ? 1 : bytes[0] >> 5 == 6 ? 2 : bytes[0] >> 4 == 14 ? 3 : bytes[0] >> 3 == 30 ? 4 : 0;
    for (size_t i = 1; i < length; i++)
        if ((bytes[i] & 0xc0) != 0x80) return 0; /* the closing NUL ends up here too */
    if (length == 2 && bytes[0] < 0xc2) return 0;
    if (length == 3 && ((bytes[0] == 0xe0 && bytes[1] < 0xa0) || (bytes[0] == 0xed && bytes[1] > 0x9f))) return 0;
    if (length == 4 && ((bytes[0] == 0xf0 && bytes[1] < 0x90) || bytes[0] > 0xf4 || (bytes[0] == 0xf4 && bytes[1] > 0x8f))) return 0;
    return length;
}

void text_append_json(text_t *text, const char *string)
{
    append_bytes(text, "\"", 1);
    for (const unsigned char *c = (const unsigned char *)string; *c;) {
        size_t length = utf8_length(c);
        if (length == 0) append_bytes(text, "\\ufffd", 6);
        else if (*c == '"' || *c == '\\') text_append(text, "\\%c", *c);
        else if (*c == '\n') append_bytes(text, "\\n", 2);
        else if (*c == '\t') append_bytes(text, "\\t", 2);
        else if (*c < 0x20 || *c == 0x7f) text_append(text, "\\u%04x", *c);
        else append_bytes(text, (const char *)c, length);
        c += length ? length : 1;
    }
    append_bytes(text, "\"", 1);
}

void text_copy_printable(char *to, const void *bytes, size_t length)
{
    const unsigned char *from = bytes;
    for (size_t i = 0; i < length; i++) to[i] = from[i] < 0x20 || from[i] == 0x7f ? '?' : (char)from[i];
    to[length] = '\0';
}

quoit_status_t text_finish(text_t *text, char **result)
{
    append_bytes(text, "", 0);
    char *data = text->data;
    bool failed = text->failed;
    size_t length = text->length;
    *text = (text_t){0};
    if (failed) {
        free(data);
        return error_set(QUOIT_ERR_NO_MEMORY, "no memory for a text of more than %zu bytes", length);
    }
    *result = data;
    return QUOIT_OK;
}
