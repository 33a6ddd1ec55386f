/* SPDX-License-Identifier: Apache-2.0 */
/** Keys hashed to 128 bits with random seeds; entries of equal hash, unlikely as they are, form a chain. */
#include "base/store_map.h"

#include "base/hash.h"
#include "base/hmac.h"

#include <stdlib.h>
#include <string.h>

quoit_status_t store_map_init(store_map_t *map)
{
    quoit_status_t status = random_bytes(map->seeds, sizeof map->seeds);
    return status == QUOIT_OK ? table_create(&map->table) : status;
}

static table_key_t hash_of(const store_map_t *map, const char *key)
{
    size_t length = strlen(key);
    return (table_key_t){hash_bytes(map->seeds[0], key, length), hash_bytes(map->seeds[1], key, length)};
}

store_key_t *store_map_find(const store_map_t *map, const char *key)
{
    store_key_t *entry = table_get(map->table, hash_of(map, key));
    while (entry && strcmp(entry->text, key) != 0) entry = entry->next;
    return entry;
}

quoit_status_t store_map_insert(store_map_t *map, const char *key, store_key_t *entry)
{
    table_key_t hash = hash_of(map, key);
    char *text = strdup(key);
    if (!text) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for key \"%s\"", key);
    store_key_t *next = table_get(map->table, hash);
    quoit_status_t status = table_put(map->table, hash, entry);
    if (status != QUOIT_OK) {
        free(text);
        return status;
    }
    entry->text = text;
    entry->next = next;
    return QUOIT_OK;
}

static void release_text(store_key_t *entry)
{
    free(entry->text);
    entry->text = NULL;
    entry->next = NULL;
}

void store_map_remove(store_map_t *map, store_key_t *entry)
{
    table_key_t hash = hash_of(map, entry->text);
    store_key_t *first = table_get(map->table, hash);
    if (first != entry) {
        store_key_t *before = first;
        while (before->next != entry) before = before->next;
        before->next = entry->next;
    } else if (entry->next) {
        (void)table_put(map->table, hash, entry->next); /* replaces, which takes no memory */
    } else {
        (void)table_take(map->table, hash);
    }
    release_text(entry);
}

store_key_t *store_map_pop(store_map_t *map, size_t *cursor)
{
    void *entry;
    if (!map->table || !table_next(map->table, cursor, NULL, &entry)) return NULL;
    --*cursor; /* a chain's rest stays in the same place */
    store_map_remove(map, entry);
    return entry;
}

void store_map_release(store_map_t *map)
{
    table_destroy(map->table);
    map->table = NULL;
}
