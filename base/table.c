/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Hash table from 128-bit keys to pointers. Linear probing; a removed entry leaves a mark behind, so that nothing moves and a walk
 * may remove what it stands on. Marks are swept when the table is rebuilt, and at once where a run of entries ends with them.
 */
#include "base/table.h"

#include "base/hash.h"

#include <stdlib.h>

enum { FIRST_CAPACITY = 16 };

typedef struct slot {
    table_key_t key;
    void *value; /* NULL: never used; REMOVED: a mark */
} slot_t;

struct table {
    slot_t *slots;   /* owned */
    size_t capacity; /* a power of two */
    size_t count, marks;
};

static char removed_mark;
#define REMOVED ((void *)&removed_mark)

static bool key_equal(table_key_t a, table_key_t b) { return a.high == b.high && a.low == b.low; }

static size_t slot_home(const table_t *table, table_key_t key)
{
    return (size_t)hash_combine(key.high, key.low) & (table->capacity - 1);
}

static slot_t *find(const table_t *table, table_key_t key)
{
    for (size_t i = slot_home(table, key); table->slots[i].value; i = (i + 1) & (table->capacity - 1)) {
        slot_t *slot = &table->slots[i];
        if (slot->value != REMOVED && key_equal(slot->key, key)) return slot;
    }
    return NULL;
}

/* The key is absent and there is a free slot. */
static void insert_absent(table_t *table, table_key_t key, void *value)
{
    size_t i = slot_home(table, key);
    while (table->slots[i].value && table->slots[i].value != REMOVED) i = (i + 1) & (table->capacity - 1);
    if (table->slots[i].value == REMOVED) table->marks--;
    table->slots[i] = (slot_t){.key = key, .value = value};
    table->count++;
}

static quoit_status_t rebuild(table_t *table, size_t capacity)
{
    slot_t *old = table->slots, *slots = calloc(capacity, sizeof *slots);
    size_t old_capacity = table->capacity;
    if (!slots) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for a table of %zu entries", capacity);
    table->slots = slots;
    table->capacity = capacity;
    table->count = table->marks = 0;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i].value && old[i].value != REMOVED) insert_absent(table, old[i].key, old[i].value);
    free(old);
    return QUOIT_OK;
}

quoit_status_t table_create(table_t **result)
{
    table_t *table = calloc(1, sizeof *table);
    if (!table) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for a table");
    quoit_status_t status = rebuild(table, FIRST_CAPACITY);
    if (status != QUOIT_OK) {
        free(table);
        return status;
    }
    *result = table;
    return QUOIT_OK;
}

void table_destroy(table_t *table)
{
    if (!table) return;
    free(table->slots);
    free(table);
}

quoit_status_t table_put(table_t *table, table_key_t key, void *value)
{
    if (!value) return error_set(QUOIT_ERR_INVALID, "a table holds no NULL values");
    slot_t *slot = find(table, key);
    if (slot) {
        slot->value = value;
        return QUOIT_OK;
    }
    size_t limit = table->capacity / 4 * 3;
    if (table->count + table->marks + 1 > limit) {
        bool crowded = table->count + 1 > limit / 2; /* else it is mostly marks, and the same size will do */
        if (crowded && table->capacity > SIZE_MAX / 2 / sizeof *slot) return error_set(QUOIT_ERR_NO_MEMORY, "table is full");
        quoit_status_t status = rebuild(table, crowded ? table->capacity * 2 : table->capacity);
        if (status != QUOIT_OK) return status;
    }
    insert_absent(table, key, value);
    return QUOIT_OK;
}

void *table_get(const table_t *table, table_key_t key)
{
    const slot_t *slot = find(table, key);
    return slot ? slot->value : NULL;
}

void *table_take(table_t *table, table_key_t key)
{
    slot_t *slot = find(table, key);
    if (!slot) return NULL;
    void *value = slot->value;
    slot->value = REMOVED;
    table->count--;
    table->marks++;
    size_t mask = table->capacity - 1, i = (size_t)(slot - table->slots);
    if (table->slots[(i + 1) & mask].value) return value;
    for (; table->slots[i].value == REMOVED; i = (i - 1) & mask) { /* no search goes on past an empty slot: these marks serve none */
        table->slots[i].value = NULL;
        table->marks--;
    }
    return value;
}

size_t table_count(const table_t *table) { return table->count; }

bool table_next(const table_t *table, size_t *cursor, table_key_t *key, void **value)
{
    for (size_t i = *cursor; i < table->capacity; i++) {
        const slot_t *slot = &table->slots[i];
        if (!slot->value || slot->value == REMOVED) continue;
        *cursor = i + 1;
        if (key) *key = slot->key;
        if (value) *value = slot->value;
        return true;
    }
    *cursor = table->capacity;
    return false;
}
