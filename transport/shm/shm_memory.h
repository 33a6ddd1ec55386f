/* SPDX-License-Identifier: Apache-2.0 */
/** Memory behind an arena: the memfd, its mapping, and which of its pages are backed. Knows no blocks: see shm_arena.h. */
#ifndef QUOIT_SHM_MEMORY_H
#define QUOIT_SHM_MEMORY_H

#include "base/status.h"

#include <stdbool.h>

typedef struct shm_memory {
    int fd;
    unsigned char *base;
    size_t size, page; /* bytes */
    uint64_t *backed;  /* a bit a page: taken with fallocate; owned */
    bool no_fallocate; /* not supported here: pages come when they are touched */
} shm_memory_t;

quoit_status_t shm_memory_open(size_t size, shm_memory_t *memory);
void shm_memory_close(shm_memory_t *memory);
/** Take the pages that [offset, offset + length) lies in; those taken already stay as they are. */
quoit_status_t shm_memory_back(shm_memory_t *memory, size_t offset, size_t length);
/** Is there memory behind none of these pages? They read as zero then. False where that is not known. */
bool shm_memory_is_bare(const shm_memory_t *memory, size_t offset, size_t length);
/** Give back whole pages; they read as zero afterwards. False when the system cannot: then nothing has changed. */
bool shm_memory_punch(shm_memory_t *memory, size_t offset, size_t length);
quoit_status_t shm_memory_probe(size_t size);
/** Core files leave this mapping out: a process that crashes is dead to its peers when its core file is written, and not before. */
void shm_memory_keep_from_cores(void *base, size_t size);

static inline size_t shm_round_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

#endif
