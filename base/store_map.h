/* SPDX-License-Identifier: Apache-2.0 */
/** Map from keys of a store to entries that the caller owns; an entry begins with a store_key_t. */
#ifndef QUOIT_BASE_STORE_MAP_H
#define QUOIT_BASE_STORE_MAP_H

#include "base/table.h"

/** Head of an entry. */
typedef struct store_key {
    char *text;             /* owned by the map */
    struct store_key *next; /* with the same hash */
} store_key_t;

typedef struct store_map {
    table_t *table;    /* owned */
    uint64_t seeds[2]; /* random: nobody outside can aim at one hash */
} store_map_t;

quoit_status_t store_map_init(store_map_t *map);
/** NULL when absent. */
store_key_t *store_map_find(const store_map_t *map, const char *key);
/** `entry` becomes the entry of `key`, which is absent; the text is copied. */
quoit_status_t store_map_insert(store_map_t *map, const char *key, store_key_t *entry);
/** Unlink; the entry is the caller's again. */
void store_map_remove(store_map_t *map, store_key_t *entry);
/** Some entry, unlinked; NULL when empty. Start with *cursor = 0; no insertion between the calls. */
store_key_t *store_map_pop(store_map_t *map, size_t *cursor);
/** The map must be empty; one that was never initialised is accepted when zeroed. */
void store_map_release(store_map_t *map);

#endif
