/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Registrations: which memory the device may read and write. Three kinds:
 *   declared   the owner of the memory said reg() and will say dereg() before it goes away. Registered when first used, whole, and kept.
 *   watched    all other memory, where the kernel tells when it goes away (verbs_watch.h): registered for a transfer, and kept for the next
 *              one until that, so that a buffer used again and again is registered once.
 *   passing    all other memory where the kernel does not: registered for a transfer, shared by all transfers of that moment that lie
 *              inside, and gone with the last of them.
 * So no registration outlives its memory: what was unmapped and mapped anew at the same address is never served by an old one, without
 * hooks into malloc or munmap. What is kept without a user is bounded in bytes and entries; the one used longest ago goes first. (A
 * declared one that was dropped so comes back when it is used.)
 */
#ifndef QUOIT_TRANSPORT_VERBS_MEMORY_H
#define QUOIT_TRANSPORT_VERBS_MEMORY_H

#include "base/list.h"
#include "transport/verbs/verbs_library.h"
#include "transport/verbs/verbs_watch.h"

#include <stdbool.h>

enum { VERBS_MEMORY_DEVICES = 4 }; /* at most */

typedef struct verbs_region {
    list_t idle; /* in memory->idle: kept without a user */
    uintptr_t base;
    size_t length;
    struct ibv_mr *mr[VERBS_MEMORY_DEVICES]; /* where it is registered; NULL: with a device that takes nothing any more */
    bool writable, declared, watched;
    bool registered;  /* else declared only */
    bool refused;     /* declared: the device did not take it whole, so its pieces are not declared */
    bool forgotten;   /* not in the list any more; freed with its last user */
    unsigned users;
} verbs_region_t;

typedef struct verbs_memory_config {
    size_t bytes, entries; /* that may be registered without a user */
    bool watch;            /* keep memory that nobody declared, if the kernel can watch it */
    bool relaxed;          /* writes of the device may pass each other on their way through PCIe */
} verbs_memory_config_t;

typedef struct verbs_memory {
    const verbs_library_t *library;
    struct ibv_pd *pd[VERBS_MEMORY_DEVICES]; /* all memory is registered with each */
    int devices;
    verbs_memory_config_t config;
    verbs_watch_t *watch;  /* made when first needed; NULL: not yet, or impossible */
    verbs_region_t **regions; /* owned, ordered by base, then by length */
    size_t count, capacity, longest;
    list_t idle;           /* verbs_region_t, used longest ago first */
    size_t kept, kept_entries; /* of these: bytes, number */
    uint64_t made, dropped; /* registrations */
    uint64_t hits, misses, evicted, invalidated; /* takes that found one, or had to make one; dropped for room; whose memory went away */
} verbs_memory_t;

void verbs_memory_init(verbs_memory_t *memory, const verbs_library_t *library, struct ibv_pd *const *pd, int devices, const verbs_memory_config_t *config);
void verbs_memory_destroy(verbs_memory_t *memory); /* no region may have a user */
/** A registration that covers the bytes, to be given back. An error (text set) when the device takes no more; it may later. */
quoit_status_t verbs_memory_take(verbs_memory_t *memory, const void *pointer, size_t length, bool writable, verbs_region_t **region);
void verbs_memory_give(verbs_memory_t *memory, verbs_region_t *region);
quoit_status_t verbs_memory_declare(verbs_memory_t *memory, const void *pointer, size_t length);
/** Not used by new transfers any more, and unregistered at once unless a transfer is under way. */
void verbs_memory_forget(verbs_memory_t *memory, const void *pointer);

#endif
