/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of sections and small slots; see window_pool.h. */
#include "scheduler/window_pool.h"

#include <stdlib.h>
#include <string.h>

struct engine_block {
    list_t link;     /* pool->blocks */
    uint8_t *memory; /* of the MAP transport */
    uint32_t used;   /* bit i: piece i */
};

static quoit_status_t add_block(engine_t *engine, engine_pool_t *pool, engine_block_t **block)
{
    engine_block_t *made = calloc(1, sizeof *made);
    void *memory = NULL;
    if (!made) return error_set(QUOIT_ERR_NO_MEMORY, "window: a block");
    quoit_status_t status = engine->map->ops->share_alloc(engine->map->transport, pool->bytes * (size_t)pool->pieces, &memory);
    if (status != QUOIT_OK) {
        free(made);
        return status;
    }
    made->memory = memory;
    list_append(&pool->blocks, &made->link);
    *block = made;
    return QUOIT_OK;
}

quoit_status_t window_pool_take(engine_t *engine, engine_pool_t *pool, void **piece)
{
    engine_block_t *block = NULL;
    const uint32_t full = (uint32_t)(((uint64_t)1 << pool->pieces) - 1);
    quoit_status_t status = QUOIT_OK;
    for (list_t *node = pool->blocks.next; node != &pool->blocks && !block; node = node->next) {
        engine_block_t *each = container_of(node, engine_block_t, link);
        if (each->used != full) block = each;
    }
    if (!block) status = add_block(engine, pool, &block);
    if (status != QUOIT_OK) return status;
    int place = __builtin_ctz(~block->used);
    block->used |= (uint32_t)1 << place;
    *piece = block->memory + pool->bytes * (size_t)place;
    if (pool->zero) memset(*piece, 0, pool->bytes); /* another's before */
    return QUOIT_OK;
}

void window_pool_give(engine_t *engine, engine_pool_t *pool, void *piece)
{
    for (list_t *node = pool->blocks.next; piece && node != &pool->blocks; node = node->next) {
        engine_block_t *block = container_of(node, engine_block_t, link);
        size_t offset = (size_t)((uintptr_t)piece - (uintptr_t)block->memory);
        if ((uintptr_t)piece < (uintptr_t)block->memory || offset >= pool->bytes * (size_t)pool->pieces) continue;
        block->used &= ~((uint32_t)1 << offset / pool->bytes);
        if (block->used) return;
        engine->map->ops->share_free(engine->map->transport, block->memory);
        list_remove(&block->link);
        free(block);
        return;
    }
}

void window_pool_forget(engine_pool_t *pool)
{
    list_t *node;
    while ((node = list_pop(&pool->blocks))) free(container_of(node, engine_block_t, link));
}
