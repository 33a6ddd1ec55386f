/* SPDX-License-Identifier: Apache-2.0 */
/** Growing text, for descriptions and JSON. Running out of memory is remembered and told at the end. */
#ifndef QUOIT_BASE_TEXT_H
#define QUOIT_BASE_TEXT_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef struct text text_t;
struct text {
    char *data; /* owned; NULL while empty */
    size_t length, capacity;
    bool failed;
};

void text_append(text_t *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** With quotes, escaped as JSON asks. */
void text_append_json(text_t *text, const char *string);
/** Hand the text over, to be freed with free(); ERR_NO_MEMORY when something was lost (nothing is left to free then). */
quoit_status_t text_finish(text_t *text, char **result);

/** `length` bytes from elsewhere as a text for logs and terminals, which control characters would drive. `to` has room for one more. */
void text_copy_printable(char *to, const void *bytes, size_t length);

#endif
