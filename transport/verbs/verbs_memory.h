/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Registrations: which memory the device may read and write. Two kinds:
 *   declared   the owner of the memory said reg() and will say dereg() before it goes away. Registered when first used, whole, and
 *              kept; when all kept ones together exceed the limit, the one used longest ago goes first (and comes back when used).
 *   passing    all other memory: registered for a transfer, shared by all transfers of that moment that lie inside, and gone with the
 *              last of them. So no registration outlives what its user promised to keep: memory that was unmapped and mapped anew at
 *              the same address is never served by an old one, without hooks into malloc or munmap.
 */
#ifndef QUOIT_TRANSPORT_VERBS_MEMORY_H
#define QUOIT_TRANSPORT_VERBS_MEMORY_H

#include "transport/verbs/verbs_library.h"

#include <stdbool.h>

typedef struct verbs_region {
    uintptr_t base;
    size_t length;
    struct ibv_mr *mr; /* NULL: declared, not registered now */
    bool writable, declared;
    bool refused;     /* declared: the device did not take it whole, so its pieces are passing */
    bool forgotten;   /* not in the list any more; freed with its last user */
    unsigned users;
    uint64_t used; /* when last: a count */
} verbs_region_t;

typedef struct verbs_memory {
    const verbs_library_t *library;
    struct ibv_pd *pd;
    size_t limit, kept; /* bytes of declared memory that may be, and are, registered without a user */
    uint64_t clock;
    verbs_region_t **regions; /* owned, ordered by base, then by length */
    size_t count, capacity, longest;
    uint64_t made, dropped; /* registrations, for tests and the log */
} verbs_memory_t;

void verbs_memory_init(verbs_memory_t *memory, const verbs_library_t *library, struct ibv_pd *pd, size_t limit);
void verbs_memory_destroy(verbs_memory_t *memory); /* no region may have a user */
/** A registration that covers the bytes, to be given back. An error (text set) when the device takes no more; it may later. */
quoit_status_t verbs_memory_take(verbs_memory_t *memory, const void *pointer, size_t length, bool writable, verbs_region_t **region);
void verbs_memory_give(verbs_memory_t *memory, verbs_region_t *region);
quoit_status_t verbs_memory_declare(verbs_memory_t *memory, const void *pointer, size_t length);
/** Not used by new transfers any more, and unregistered at once unless a transfer is under way. */
void verbs_memory_forget(verbs_memory_t *memory, const void *pointer);

#endif
