/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel's memory: blocks by size class, key entries in a hash table, grant slots. All are kept in free lists, so that a channel
 * in its steady state allocates nothing; what the free lists can hold is bounded by what was once in use.
 */
#include "base/hash.h"
#include "transport/framing/channel_internal.h"

#include <stdlib.h>
#include <string.h>

static int block_class(size_t payload)
{
    if (payload == 0) return 0;
    int class = 1;
    while (((size_t)32 << class) < payload) class++;
    return class;
}

block_t *channel_block_take(channel_t *channel, size_t payload)
{
    int class = block_class(payload);
    if (channel->announced >= CHANNEL_MAX_ANNOUNCED || class >= CHANNEL_BLOCK_CLASSES) {
        error_set(QUOIT_ERR_PROTOCOL, "more than %d messages, grants and notices of the peer wait to be taken", CHANNEL_MAX_ANNOUNCED);
        return NULL;
    }
    list_t *link = list_pop(&channel->free_blocks[class]);
    block_t *block = link ? container_of(link, block_t, link) : NULL;
    if (!block) {
        block = malloc(sizeof *block + (class ? (size_t)32 << class : 0));
        if (!block) {
            error_set(QUOIT_ERR_NO_MEMORY, "no memory for a message of %zu bytes", payload);
            return NULL;
        }
        block->class = (uint8_t)class;
    }
    list_init(&block->link);
    block->waiting = NULL;
    block->complete = block->discard = false;
    channel->announced++;
    return block;
}

void channel_block_give(channel_t *channel, block_t *block)
{
    list_remove(&block->link);
    list_append(&channel->free_blocks[block->class], &block->link);
    channel->announced--;
}

static size_t bucket_of(const channel_t *channel, quoit_key_t key)
{
    return hash_combine(key.comm, key.id) & (channel->bucket_count - 1);
}

key_entry_t *channel_entry_find(channel_t *channel, quoit_key_t key)
{
    if (channel->entry_count == 0) return NULL;
    key_entry_t *entry = channel->buckets[bucket_of(channel, key)];
    while (entry && (entry->key.comm != key.comm || entry->key.id != key.id)) entry = entry->next;
    return entry;
}

static bool buckets_grow(channel_t *channel)
{
    size_t old_count = channel->bucket_count, count = old_count ? old_count * 2 : 64;
    key_entry_t **old = channel->buckets, **buckets = calloc(count, sizeof *buckets);
    if (!buckets) return old_count > 0; /* longer chains will do */
    channel->buckets = buckets;
    channel->bucket_count = count;
    for (size_t i = 0; i < old_count; i++) {
        for (key_entry_t *entry = old[i], *next; entry; entry = next) {
            next = entry->next;
            size_t bucket = bucket_of(channel, entry->key);
            entry->next = buckets[bucket];
            buckets[bucket] = entry;
        }
    }
    free(old);
    return true;
}

key_entry_t *channel_entry_make(channel_t *channel, quoit_key_t key)
{
    key_entry_t *entry = channel_entry_find(channel, key);
    if (entry) return entry;
    if (channel->entry_count >= channel->bucket_count && !buckets_grow(channel)) goto no_memory;
    entry = channel->free_entries;
    if (entry) channel->free_entries = entry->next;
    else entry = malloc(sizeof *entry);
    if (!entry) goto no_memory;
    *entry = (key_entry_t){.key = key};
    list_init(&entry->posted);
    list_init(&entry->unexpected);
    list_init(&entry->large_sends);
    list_init(&entry->small_sends);
    list_init(&entry->grants);
    size_t bucket = bucket_of(channel, key);
    entry->next = channel->buckets[bucket];
    channel->buckets[bucket] = entry;
    channel->entry_count++;
    return entry;

no_memory:
    error_set(QUOIT_ERR_NO_MEMORY, "no memory for the messages of another key (there are %zu)", channel->entry_count);
    return NULL;
}

void channel_entry_release(channel_t *channel, key_entry_t *entry)
{
    if (!entry || entry->broken_send || entry->broken_recv || !list_is_empty(&entry->posted) ||
        !list_is_empty(&entry->unexpected) || !list_is_empty(&entry->large_sends) || !list_is_empty(&entry->small_sends) ||
        !list_is_empty(&entry->grants))
        return;
    key_entry_t **place = &channel->buckets[bucket_of(channel, entry->key)];
    while (*place != entry) place = &(*place)->next;
    *place = entry->next;
    entry->next = channel->free_entries;
    channel->free_entries = entry;
    channel->entry_count--;
}

static bool slots_grow(channel_t *channel)
{
    uint32_t old = channel->slot_count, count = old ? old * 2 : 64;
    if (count > (uint32_t)1 << 30) return false;
    grant_slot_t *slots = realloc(channel->slots, count * sizeof *slots);
    if (!slots) return false;
    for (uint32_t i = old; i < count; i++)
        slots[i] = (grant_slot_t){.generation = 0, .next = i + 1 < count ? i + 1 : channel->free_slot};
    channel->slots = slots;
    channel->slot_count = count;
    channel->free_slot = old;
    return true;
}

quoit_status_t channel_grant_take(channel_t *channel, recv_node_t *recv)
{
    if (channel->free_slot == UINT32_MAX && !slots_grow(channel))
        return error_set(QUOIT_ERR_NO_MEMORY, "no memory to announce another recv (%u are announced)", channel->slot_count);
    uint32_t index = channel->free_slot;
    grant_slot_t *slot = &channel->slots[index];
    channel->free_slot = slot->next;
    slot->recv = recv;
    slot->generation++;
    if (slot->generation == 0) slot->generation = 1;
    recv->grant = (uint64_t)slot->generation << 32 | index;
    return QUOIT_OK;
}

void channel_grant_release(channel_t *channel, recv_node_t *recv)
{
    if (recv->grant == 0) return;
    uint32_t index = (uint32_t)recv->grant;
    channel->slots[index].recv = NULL;
    channel->slots[index].next = channel->free_slot;
    channel->free_slot = index;
    recv->grant = 0;
}

quoit_status_t channel_grant_find(channel_t *channel, uint64_t grant, recv_node_t **recv)
{
    uint32_t index = (uint32_t)grant, generation = (uint32_t)(grant >> 32);
    if (index >= channel->slot_count || generation == 0 || channel->slots[index].generation == 0)
        return error_set(QUOIT_ERR_PROTOCOL, "data for grant %llu, which was never given", (unsigned long long)grant);
    const grant_slot_t *slot = &channel->slots[index];
    *recv = slot->recv && slot->generation == generation ? slot->recv : NULL;
    return QUOIT_OK;
}

bool channel_grant_token(uint64_t grant, uint32_t *token)
{
    uint32_t slot = (uint32_t)grant, generation = (uint32_t)(grant >> 32);
    if (slot >> CHANNEL_TOKEN_SLOT_BITS != 0) return false;
    *token = slot | generation << CHANNEL_TOKEN_SLOT_BITS;
    return true;
}

quoit_status_t channel_token_find(channel_t *channel, uint32_t token, recv_node_t **recv)
{
    uint32_t index = token & ((1u << CHANNEL_TOKEN_SLOT_BITS) - 1), again;
    if (index >= channel->slot_count || channel->slots[index].generation == 0)
        return error_set(QUOIT_ERR_PROTOCOL, "the end of a direct write, token %08x, which was never given", token);
    const grant_slot_t *slot = &channel->slots[index];
    bool same = channel_grant_token((uint64_t)slot->generation << 32 | index, &again) && again == token;
    *recv = same ? slot->recv : NULL;
    return QUOIT_OK;
}

static void blocks_free(list_t *list)
{
    for (list_t *link; (link = list_pop(list));) free(container_of(link, block_t, link));
}

void channel_memory_free(channel_t *channel)
{
    for (int i = 0; i < CHANNEL_MAX_PIPES; i++) {
        for (list_t *link; (link = list_pop(&channel->outlets[i].stages));) free(container_of(link, stage_t, link));
        inlet_t *inlet = &channel->inlets[i];
        if (inlet->block && list_is_empty(&inlet->block->link)) free(inlet->block);
        free(inlet->buffer);
    }
    for (size_t i = 0; i < channel->bucket_count; i++) {
        for (key_entry_t *entry = channel->buckets[i], *next; entry; entry = next) {
            next = entry->next;
            blocks_free(&entry->unexpected);
            blocks_free(&entry->grants);
            free(entry->broken_send);
            free(entry->broken_recv);
            free(entry);
        }
    }
    for (key_entry_t *entry = channel->free_entries, *next; entry; entry = next) {
        next = entry->next;
        free(entry);
    }
    free(channel->buckets);
    free(channel->slots);
    for (int i = 0; i < CHANNEL_BLOCK_CLASSES; i++) blocks_free(&channel->free_blocks[i]);
    blocks_free(&channel->notices);
    free(channel->shown);
    for (list_t *link; (link = list_pop(&channel->free_stages));) free(container_of(link, stage_t, link));
}
