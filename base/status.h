/* SPDX-License-Identifier: Apache-2.0 */
/** Status and error text: the first to know writes the text, everyone above passes the status on. */
#ifndef QUOIT_BASE_STATUS_H
#define QUOIT_BASE_STATUS_H

#include "quoit/quoit.h"

#include <stdarg.h>

enum { ERROR_TEXT_CAPACITY = 1024 }; /* bytes with the NUL; longer texts are cut */

/** Remember the text for this thread (quoit_last_error) and return `status`, so that one can write `return error_set(...)`. */
quoit_status_t error_set(quoit_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** As error_set, with ": <strerror(number)>" appended. */
quoit_status_t error_set_errno(quoit_status_t status, int number, const char *format, ...) __attribute__((format(printf, 3, 4)));
/** Put "context: " in front of this thread's text; returns `status`. For the rare place that knows more than the first to know. */
quoit_status_t error_prefix(quoit_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *error_text(void);
void error_clear(void);

#endif
