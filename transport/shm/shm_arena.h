/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Arena: one sealed, sparse memfd, and the allocator of its heap.
 *
 * Peers can write every byte of it, so what the allocator believes lies in private memory: blocks in address order, free ones also
 * in bins by size. Blocks of SHM_LARGE and more own whole pages, which go back to the system when they are freed. Pages are taken
 * with fallocate when a block is allocated: too little memory is an error then, not a SIGBUS later.
 */
#ifndef QUOIT_SHM_ARENA_H
#define QUOIT_SHM_ARENA_H

#include "base/status.h"

#include <stdbool.h>

enum { SHM_LARGE = 65536 }; /* bytes; from here on blocks begin and end at pages */

typedef struct shm_arena shm_arena_t;

/**
 * ERR_NOT_FOUND when this system gives no memfd (kernel, filter of system calls), ERR_NO_MEMORY when `size` bytes do not fit into
 * a limit; the text names it.
 */
quoit_status_t shm_arena_create(size_t size, shm_arena_t **arena);
void shm_arena_destroy(shm_arena_t *arena); /* NULL is accepted */
/** Would shm_arena_create succeed? Leaves nothing behind. */
quoit_status_t shm_arena_probe(size_t size);

/** 64-byte aligned and zero. ERR_NO_MEMORY tells what is used and which setting or limit is in the way. */
quoit_status_t shm_arena_alloc(shm_arena_t *arena, size_t length, void **pointer);
/**
 * The same, for a block that may never be used as a whole: there is memory behind its first `backed` bytes. Before more is touched, shm_arena_back
 * takes the rest. A block below SHM_LARGE has all of it at once.
 */
quoit_status_t shm_arena_alloc_bare(shm_arena_t *arena, size_t length, size_t backed, void **pointer);
/** Memory behind the first `length` bytes of a block; ERR_NO_MEMORY when the system has none. Nothing to do where there is memory already. */
quoit_status_t shm_arena_back(shm_arena_t *arena, void *pointer, size_t length);
/** NULL is accepted; anything else that did not come from shm_arena_alloc is logged and left alone. */
void shm_arena_free(shm_arena_t *arena, void *pointer);
/** Does [pointer, pointer + length) lie in what is shared with the caller's consent: root or heap? */
bool shm_arena_holds(const shm_arena_t *arena, const void *pointer, size_t length, uint64_t *offset);

int shm_arena_descriptor(const shm_arena_t *arena); /* stays the arena's */
unsigned char *shm_arena_base(const shm_arena_t *arena);
size_t shm_arena_size(const shm_arena_t *arena);
size_t shm_arena_used(const shm_arena_t *arena); /* bytes in allocated blocks */

#endif
