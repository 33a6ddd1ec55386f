/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Allocator of an arena's heap: first fit within bins of rising size. Blocks tile the heap in address order; neighbours that are
 * free are merged at once. Lookup of a block by its pointer is a hash table.
 */
#include "transport/shm/shm_arena.h"

#include "base/list.h"
#include "base/log.h"
#include "base/table.h"
#include "transport/shm/shm_header.h"
#include "transport/shm/shm_memory.h"

#include <stdlib.h>
#include <string.h>

enum { BINS = 64, LINE = 64 };

typedef struct block {
    struct block *before, *after; /* in address order; NULL at the ends */
    list_t bin;                   /* in arena.bins while free */
    size_t offset, length;        /* bytes, multiples of LINE */
    bool used;
} block_t;

struct shm_arena {
    shm_memory_t memory;
    size_t heap_start, used;
    block_t *first;      /* owned, as all blocks */
    list_t bins[BINS];   /* bin i: free blocks of 2^i .. 2^(i+1)-1 bytes */
    table_t *allocated;  /* offset -> block */
};

static int bin_of(size_t length) { return 63 - __builtin_clzll(length); }

static table_key_t key_of(size_t offset) { return (table_key_t){.high = offset}; }

static void block_release(shm_arena_t *arena, block_t *block)
{
    block->used = false;
    list_append(&arena->bins[bin_of(block->length)], &block->bin);
}

quoit_status_t shm_arena_probe(size_t size) { return shm_memory_probe(size); }

quoit_status_t shm_arena_create(size_t size, shm_arena_t **arena)
{
    shm_arena_t *made = calloc(1, sizeof *made);
    block_t *heap = calloc(1, sizeof *heap);
    quoit_status_t status = QUOIT_OK;
    if (!made || !heap) {
        status = error_set(QUOIT_ERR_NO_MEMORY, "shm: out of memory");
        goto free_both;
    }
    for (int i = 0; i < BINS; i++) list_init(&made->bins[i]);
    status = shm_memory_open(size, &made->memory);
    if (status) goto free_both;
    made->heap_start = shm_round_up(SHM_HEADER_SIZE + QUOIT_ROOT_SIZE, made->memory.page);
    if (made->memory.size <= made->heap_start) {
        status = error_set(QUOIT_ERR_INVALID, "shm: an arena of %zu bytes is too small, it needs more than %zu", size, made->heap_start);
        goto close_memory;
    }
    status = shm_memory_back(&made->memory, 0, made->heap_start);
    if (!status) status = table_create(&made->allocated);
    if (status) goto close_memory;
    *heap = (block_t){.offset = made->heap_start, .length = made->memory.size - made->heap_start};
    made->first = heap;
    block_release(made, heap);
    *arena = made;
    return QUOIT_OK;
close_memory:
    shm_memory_close(&made->memory);
free_both:
    free(heap);
    free(made);
    return status;
}

void shm_arena_destroy(shm_arena_t *arena)
{
    if (!arena) return;
    for (block_t *block = arena->first, *after; block; block = after) {
        after = block->after;
        free(block);
    }
    table_destroy(arena->allocated);
    shm_memory_close(&arena->memory);
    free(arena);
}

static size_t start_in(const block_t *block, size_t alignment) { return shm_round_up(block->offset, alignment); }

static bool fits(const block_t *block, size_t length, size_t alignment)
{
    size_t gap = start_in(block, alignment) - block->offset;
    return gap <= block->length && length <= block->length - gap;
}

static block_t *find_free(shm_arena_t *arena, size_t length, size_t alignment)
{
    for (int bin = bin_of(length); bin < BINS; bin++) {
        for (list_t *node = arena->bins[bin].next; node != &arena->bins[bin]; node = node->next) {
            block_t *block = container_of(node, block_t, bin);
            if (fits(block, length, alignment)) return block;
        }
    }
    return NULL;
}

static size_t largest_free(const shm_arena_t *arena)
{
    size_t largest = 0;
    for (const block_t *block = arena->first; block; block = block->after) {
        if (!block->used && block->length > largest) largest = block->length;
    }
    return largest;
}

/* Cut `block` in two at `offset`; `rest` becomes the second. Both free, neither in a bin. */
static void split(block_t *block, size_t offset, block_t *rest)
{
    *rest = (block_t){.before = block, .after = block->after, .offset = offset, .length = block->offset + block->length - offset};
    list_init(&rest->bin);
    block->length = offset - block->offset;
    if (block->after) block->after->before = rest;
    block->after = rest;
}

/* Take [start, start + length) out of a free block; `spare` holds two blocks, what is not needed stays there. */
static block_t *carve(shm_arena_t *arena, block_t *block, size_t start, size_t length, block_t *spare[2])
{
    list_remove(&block->bin);
    if (start > block->offset) {
        split(block, start, spare[0]);
        block_release(arena, block);
        block = spare[0];
        spare[0] = NULL;
    }
    if (length < block->length) {
        split(block, start + length, spare[1]);
        block_release(arena, spare[1]);
        spare[1] = NULL;
    }
    block->used = true;
    return block;
}

/* Pages of a block that is about to be given out, zeroed; memory behind the first `backed` bytes. */
static quoit_status_t prepare(shm_arena_t *arena, size_t start, size_t length, size_t backed)
{
    bool whole_pages = length >= SHM_LARGE;
    bool zero = whole_pages && (shm_memory_is_bare(&arena->memory, start, length) || shm_memory_punch(&arena->memory, start, length));
    quoit_status_t status = shm_memory_back(&arena->memory, start, backed);
    if (status) return status;
    if (!zero) memset(arena->memory.base + start, 0, length);
    return QUOIT_OK;
}

static quoit_status_t take(shm_arena_t *arena, size_t length, size_t backed, void **pointer)
{
    size_t alignment = length >= SHM_LARGE ? arena->memory.page : LINE;
    if (length == 0) return error_set(QUOIT_ERR_INVALID, "shm: 0 bytes of shared memory asked for");
    size_t wanted = length <= arena->memory.size ? shm_round_up(length, alignment) : length;
    block_t *block = wanted <= arena->memory.size ? find_free(arena, wanted, alignment) : NULL;
    if (!block) {
        return error_set(QUOIT_ERR_NO_MEMORY, "shm: no room for %zu bytes of shared memory: %zu of %zu bytes are in use, the largest free piece "
                         "has %zu; raise QUOIT_ARENA_SIZE",
                         length, arena->used, arena->memory.size, largest_free(arena));
    }
    block_t *spare[2] = {malloc(sizeof(block_t)), malloc(sizeof(block_t))};
    size_t start = start_in(block, alignment);
    quoit_status_t status = spare[0] && spare[1] ? QUOIT_OK : error_set(QUOIT_ERR_NO_MEMORY, "shm: out of memory");
    if (!status) status = prepare(arena, start, wanted, backed < wanted ? backed : wanted);
    if (status) goto free_spare;
    block = carve(arena, block, start, wanted, spare);
    status = table_put(arena->allocated, key_of(start), block);
    if (status) {
        block_release(arena, block); /* neighbours stay apart until the next free beside them */
        goto free_spare;
    }
    arena->used += wanted;
    *pointer = arena->memory.base + start;
free_spare:
    free(spare[0]);
    free(spare[1]);
    return status;
}

quoit_status_t shm_arena_alloc(shm_arena_t *arena, size_t length, void **pointer) { return take(arena, length, SIZE_MAX, pointer); }

quoit_status_t shm_arena_alloc_bare(shm_arena_t *arena, size_t length, size_t backed, void **pointer)
{
    return take(arena, length, length >= SHM_LARGE ? backed : SIZE_MAX, pointer);
}

quoit_status_t shm_arena_back(shm_arena_t *arena, void *pointer, size_t length)
{
    return shm_memory_back(&arena->memory, (size_t)((unsigned char *)pointer - arena->memory.base), length);
}

/* Both free; the first swallows the second. */
static void merge(block_t *block, block_t *next)
{
    list_remove(&next->bin);
    block->length += next->length;
    block->after = next->after;
    if (next->after) next->after->before = block;
    free(next);
}

void shm_arena_free(shm_arena_t *arena, void *pointer)
{
    if (!pointer) return;
    size_t offset = (size_t)((unsigned char *)pointer - arena->memory.base);
    block_t *block = table_take(arena->allocated, key_of(offset));
    if (!block) {
        log_error("shm", "share_free of %p, which is no shared block of this process (or was freed before)", pointer);
        return;
    }
    arena->used -= block->length;
    if (block->length >= SHM_LARGE) (void)shm_memory_punch(&arena->memory, block->offset, block->length);
    if (block->after && !block->after->used) merge(block, block->after);
    if (block->before && !block->before->used) {
        block_t *before = block->before;
        list_remove(&before->bin);
        merge(before, block);
        block = before;
    }
    block_release(arena, block);
}

bool shm_arena_holds(const shm_arena_t *arena, const void *pointer, size_t length, uint64_t *offset)
{
    uintptr_t base = (uintptr_t)arena->memory.base, address = (uintptr_t)pointer;
    if (address < base + SHM_HEADER_SIZE || address - base > arena->memory.size) return false;
    if (length > arena->memory.size - (address - base)) return false;
    *offset = address - base;
    return true;
}

int shm_arena_descriptor(const shm_arena_t *arena) { return arena->memory.fd; }
unsigned char *shm_arena_base(const shm_arena_t *arena) { return arena->memory.base; }
size_t shm_arena_size(const shm_arena_t *arena) { return arena->memory.size; }
size_t shm_arena_used(const shm_arena_t *arena) { return arena->used; }
