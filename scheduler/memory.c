/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks that callers hold, found by their address in one table a process; and blocks given back that are kept for the next caller
 * of about that size, since making memory costs the system as much as using it. See memory.h.
 */
#include "scheduler/memory.h"

#include "base/forked.h"
#include "base/log.h"
#include "base/settings.h"
#include "scheduler/comm.h"

#include <stdio.h>
#include <stdlib.h>

enum { KEPT_BLOCKS = 16, ALIGNMENT = 64 };

typedef struct memory_block {
    list_t kept;      /* engine->memory_kept while nobody holds it */
    void *pointer;
    size_t bytes;     /* room in it */
    engine_t *engine; /* NULL: ordinary memory */
} memory_block_t;

static void forget_parents(void);

static forked_lock_t lock = {.mutex = PTHREAD_MUTEX_INITIALIZER, .forget = forget_parents}; /* guards `blocks`, nothing else */
static table_t *blocks; /* address -> memory_block_t that a caller holds */
static bool in_child;   /* blocks of the parent are no error here */

static void forget_parents(void)
{
    blocks = NULL;
    in_child = true;
}

static table_key_t key_of(const void *pointer) { return (table_key_t){.high = (uintptr_t)pointer}; }

static quoit_status_t remember(memory_block_t *block)
{
    forked_lock(&lock);
    quoit_status_t status = blocks ? QUOIT_OK : table_create(&blocks);
    if (status == QUOIT_OK) status = table_put(blocks, key_of(block->pointer), block);
    forked_unlock(&lock);
    return status;
}

static memory_block_t *take(const void *pointer)
{
    forked_lock(&lock);
    memory_block_t *block = blocks ? table_take(blocks, key_of(pointer)) : NULL;
    forked_unlock(&lock);
    return block;
}

/* ------------------------------------------------------------------ registration (the engine's owner) */

void memory_declare(engine_t *engine, const void *pointer, size_t bytes)
{
    for (int i = 0; i < engine->transports; i++) {
        const engine_transport_t *each = &engine->transport[i];
        if (each->ops->flags & QUOIT_TRANSPORT_PUT && each->ops->reg(each->transport, pointer, bytes) != QUOIT_OK)
            log_debug("memory", "transport %s does not keep %zu bytes registered: %s", each->ops->name, bytes, error_text());
    }
}

void memory_withdraw(engine_t *engine, const void *pointer)
{
    for (int i = 0; pointer && i < engine->transports; i++)
        if (engine->transport[i].ops->flags & QUOIT_TRANSPORT_PUT) engine->transport[i].ops->dereg(engine->transport[i].transport, pointer);
}

quoit_status_t memory_share(engine_t *engine, size_t bytes, void **pointer)
{
    void *memory = NULL;
    quoit_status_t status = engine->map->ops->share_alloc(engine->map->transport, bytes, &memory);
    if (status != QUOIT_OK) return status;
    memory_declare(engine, memory, bytes);
    *pointer = memory;
    return QUOIT_OK;
}

void memory_unshare(engine_t *engine, void *pointer)
{
    memory_withdraw(engine, pointer);
    engine->map->ops->share_free(engine->map->transport, pointer);
}

/* ------------------------------------------------------------------ shared memory (the engine's owner) */

static void give_back(engine_t *engine, memory_block_t *block)
{
    memory_unshare(engine, block->pointer);
    engine->memory_bytes -= block->bytes;
    free(block);
}

static void drop_kept(engine_t *engine)
{
    while (!list_is_empty(&engine->memory_kept)) {
        memory_block_t *block = container_of(engine->memory_kept.next, memory_block_t, kept);
        list_remove(&block->kept);
        give_back(engine, block);
    }
    engine->memory_kept_count = 0;
}

/* A kept block that is not much larger than asked for; NULL: none. */
static memory_block_t *reuse(engine_t *engine, size_t bytes)
{
    memory_block_t *best = NULL;
    for (list_t *node = engine->memory_kept.next; node != &engine->memory_kept; node = node->next) {
        memory_block_t *block = container_of(node, memory_block_t, kept);
        if (block->bytes >= bytes && block->bytes - bytes <= bytes / 4 && (!best || block->bytes < best->bytes)) best = block;
    }
    if (!best) return NULL;
    list_remove(&best->kept);
    engine->memory_kept_count--;
    return best;
}

/* A quarter of the arena is Quoit's own, for slots and rings. */
static size_t limit(void) { return (size_t)setting_int(SETTING_ARENA_SIZE) / 4 * 3; }

static quoit_status_t make(engine_t *engine, size_t bytes, void **pointer)
{
    if (bytes > limit() || engine->memory_bytes > limit() - bytes) drop_kept(engine);
    if (bytes > limit() || engine->memory_bytes > limit() - bytes)
        return error_set(QUOIT_ERR_NO_MEMORY, "%zu bytes asked for, %zu of %zu are held (three quarters of QUOIT_ARENA_SIZE)", bytes,
                         engine->memory_bytes, limit());
    quoit_status_t status = memory_share(engine, bytes, pointer);
    if (status != QUOIT_ERR_NO_MEMORY || list_is_empty(&engine->memory_kept)) return status;
    drop_kept(engine);
    return memory_share(engine, bytes, pointer);
}

/* From here on buffers in [low, low + span) are looked at more closely: it only grows. */
static void widen(engine_t *engine, const void *pointer, size_t bytes)
{
    uintptr_t low = (uintptr_t)pointer, high = low + bytes;
    if (engine->memory_span) {
        if (engine->memory_low < low) low = engine->memory_low;
        if (engine->memory_low + engine->memory_span > high) high = engine->memory_low + engine->memory_span;
    }
    engine->memory_low = low;
    engine->memory_span = high - low;
}

/* *block is the caller's to fill when it is new, or one that was kept. */
static quoit_status_t get_shared(engine_t *engine, size_t bytes, memory_block_t **block)
{
    if (!engine->map) return error_set(QUOIT_ERR_UNSUPPORTED, "no transport in use shares memory");
    memory_block_t *kept = reuse(engine, bytes);
    if (kept) {
        free(*block);
        *block = kept;
        return QUOIT_OK;
    }
    quoit_status_t status = make(engine, bytes, &(*block)->pointer);
    if (status != QUOIT_OK) return status;
    (*block)->bytes = bytes;
    (*block)->engine = engine;
    engine->memory_bytes += bytes;
    widen(engine, (*block)->pointer, bytes);
    return QUOIT_OK;
}

void memory_count(const engine_t *engine, uint64_t *shared)
{
    *shared = engine->memory_bytes;
    for (const list_t *node = engine->memory_kept.next; node != &engine->memory_kept; node = node->next)
        *shared -= container_of(node, memory_block_t, kept)->bytes;
}

void memory_forget(engine_t *engine)
{
    if (engine->map) drop_kept(engine);
}

/* ------------------------------------------------------------------ calls */

static quoit_status_t get_ordinary(memory_block_t *block, size_t bytes, const char *why)
{
    log_write_limited("memory", LOG_WARN, "memory", "ordinary memory is given out, which collectives copy as any other: %s", why);
    block->bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    block->engine = NULL;
    block->pointer = aligned_alloc(ALIGNMENT, block->bytes);
    return block->pointer ? QUOIT_OK : error_set(QUOIT_ERR_NO_MEMORY, "quoit_memory_alloc: %zu bytes", bytes);
}

/* What a caller held. */
static void put_back(memory_block_t *block)
{
    engine_t *engine = block->engine;
    if (!engine) {
        free(block->pointer);
        free(block);
        return;
    }
    engine_enter(engine);
    if (engine->memory_kept_count < KEPT_BLOCKS && !engine->stop) {
        list_append(&engine->memory_kept, &block->kept);
        engine->memory_kept_count++;
    } else {
        give_back(engine, block);
    }
    engine_leave(engine);
    engine_memory_release(engine);
}

quoit_status_t quoit_memory_alloc(quoit_comm_t *comm, size_t bytes, void **memory)
{
    if (!comm || !memory) return error_set(QUOIT_ERR_INVALID, "quoit_memory_alloc: comm or memory is NULL");
    if (comm->fork_generation != engine_fork_generation())
        return error_set(QUOIT_ERR_FORKED, "quoit_memory_alloc: communicator %s belongs to the parent process", comm->name);
    if (bytes == 0 || bytes > SIZE_MAX / 2) return error_set(QUOIT_ERR_INVALID, "quoit_memory_alloc: %zu bytes", bytes);
    memory_block_t *block = calloc(1, sizeof *block);
    if (!block) return error_set(QUOIT_ERR_NO_MEMORY, "quoit_memory_alloc: out of memory");
    engine_t *engine = comm->engine;
    engine_enter(engine);
    quoit_status_t status = get_shared(engine, bytes, &block);
    engine_leave(engine);
    if (status == QUOIT_OK) {
        engine_memory_retain(engine);
    } else {
        char why[ERROR_TEXT_CAPACITY];
        snprintf(why, sizeof why, "%s", error_text());
        status = get_ordinary(block, bytes, why);
    }
    if (status != QUOIT_OK) {
        free(block);
        return status;
    }
    status = remember(block);
    if (status != QUOIT_OK) {
        put_back(block);
        return status;
    }
    *memory = block->pointer;
    return QUOIT_OK;
}

void quoit_memory_free(void *memory)
{
    if (!memory) return;
    memory_block_t *block = take(memory);
    if (block)
        put_back(block);
    else if (!in_child)
        log_error("memory", "quoit_memory_free of %p, which did not come from quoit_memory_alloc (or was freed before)", memory);
}
