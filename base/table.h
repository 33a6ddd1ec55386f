/* SPDX-License-Identifier: Apache-2.0 */
/** Hash table from 128-bit keys to pointers; open addressing, grows by doubling. Not thread-safe. */
#ifndef QUOIT_BASE_TABLE_H
#define QUOIT_BASE_TABLE_H

#include "base/status.h"

#include <stdbool.h>

typedef struct table_key {
    uint64_t high, low;
} table_key_t;

typedef struct table table_t;

quoit_status_t table_create(table_t **table);
void table_destroy(table_t *table); /* does not touch the values; NULL is accepted */
/** Insert or replace. value must not be NULL. */
quoit_status_t table_put(table_t *table, table_key_t key, void *value);
void *table_get(const table_t *table, table_key_t key); /* NULL when absent */
void *table_take(table_t *table, table_key_t key);      /* removes; NULL when absent */
size_t table_count(const table_t *table);
/** Walk: start with *cursor = 0; false at the end. No insertion during a walk; table_take of the current key is allowed. */
bool table_next(const table_t *table, size_t *cursor, table_key_t *key, void **value);

#endif
