/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Registrations: which memory the device may read and write. Three kinds:
 *   declared   the owner of the memory said reg() and will say dereg() before it goes away. Registered when first used, whole, and kept.
 *   watched    all other memory, where the kernel tells when it goes away (verbs_watch.h): registered for a transfer, and kept for the next
 *              one until that, so that a buffer used again and again is registered once.
 *   passing    all other memory where the kernel does not: registered for a transfer, shared by all transfers of that moment that lie
 *              inside, and gone with the last of them.
 *   exported   memory of a device, in a verbs_memory_t of its own for each kind of device (verbs_dmabuf.c), so that it is never found for
 *              the host's: registered by a dma-buf, and kept until its allocation is known to be another one, or freed.
 * So no registration outlives its memory: what was unmapped and mapped anew at the same address is never served by an old one, without
 * hooks into malloc or munmap. What is kept without a user is bounded in bytes and entries; the one used longest ago goes first. (A
 * declared one that was dropped so comes back when it is used.)
 */
#ifndef QUOIT_TRANSPORT_VERBS_MEMORY_H
#define QUOIT_TRANSPORT_VERBS_MEMORY_H

#include "base/list.h"
#include "quoit/quoit_transport.h"
#include "transport/verbs/verbs_library.h"
#include "transport/verbs/verbs_watch.h"

#include <stdbool.h>

enum { VERBS_MEMORY_DEVICES = 4 }; /* at most */

typedef struct verbs_memory verbs_memory_t;

typedef struct verbs_region {
    verbs_memory_t *memory; /* whose it is */
    list_t idle; /* in memory->idle: kept without a user */
    uintptr_t base;
    size_t length;
    struct ibv_mr *mr[VERBS_MEMORY_DEVICES]; /* where it is registered; NULL: with a device that takes nothing any more */
    uint64_t shift;   /* exported: what is added to an address for the device: 0 unless the dma-buf has another place in its pages */
    uint64_t block;   /* exported: id of the allocation */
    bool writable, declared, watched, exported;
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

struct verbs_memory {
    const verbs_library_t *library;
    struct ibv_pd *pd[VERBS_MEMORY_DEVICES]; /* all memory is registered with each */
    int devices;
    verbs_memory_config_t config;
    const char *kind;      /* of device whose memory it is; NULL: the host's */
    verbs_watch_t *watch;  /* made when first needed; NULL: not yet, or impossible */
    verbs_region_t **regions; /* owned, ordered by base, then by length */
    size_t count, capacity, longest;
    list_t idle;           /* verbs_region_t, used longest ago first */
    size_t kept, kept_entries; /* of these: bytes, number */
    uint64_t made, dropped; /* registrations */
    uint64_t hits, misses, evicted, invalidated; /* takes that found one, or had to make one; dropped for room; whose memory went away */
};

void verbs_memory_init(verbs_memory_t *memory, const verbs_library_t *library, struct ibv_pd *const *pd, int devices, const verbs_memory_config_t *config);
void verbs_memory_destroy(verbs_memory_t *memory); /* no region may have a user */
/** A registration that covers the bytes, to be given back. An error (text set) when the device takes no more; it may later. */
quoit_status_t verbs_memory_take(verbs_memory_t *memory, const void *pointer, size_t length, bool writable, verbs_region_t **region);
void verbs_memory_give(verbs_region_t *region); /* NULL is accepted */
static inline void verbs_memory_hold(verbs_region_t *region) { region->users++; } /* one that is taken already, once more */
quoit_status_t verbs_memory_declare(verbs_memory_t *memory, const void *pointer, size_t length);
/** Not used by new transfers any more, and unregistered at once unless a transfer is under way. */
void verbs_memory_forget(verbs_memory_t *memory, const void *pointer);

/* verbs_dmabuf.c: a verbs_memory_t whose memory is that of one kind of device; of the calls above only init, give and destroy are for it. */
/** Can all devices register by dma-buf? ERR_UNSUPPORTED with a text. */
quoit_status_t verbs_dmabuf_check(const verbs_memory_t *memory);
quoit_status_t verbs_dmabuf_take(verbs_memory_t *memory, const quoit_device_memory_t *wanted, verbs_region_t **region);
/** Memory was freed. */
void verbs_dmabuf_forget(verbs_memory_t *memory, uintptr_t base, size_t length);

/* What verbs_memory.c does for it. */
/** One that covers the bytes; NULL: none. */
verbs_region_t *verbs_region_find(const verbs_memory_t *memory, uintptr_t base, size_t length, bool writable);
bool verbs_region_insert(verbs_memory_t *memory, verbs_region_t *region);
void verbs_region_hit(verbs_memory_t *memory, verbs_region_t *region); /* a registered one was found, and has one more user */
void verbs_region_forget(verbs_memory_t *memory, verbs_region_t *region);
/** Unregister what has no user, used longest ago first, until so many more bytes and entries fit. */
void verbs_region_make_room(verbs_memory_t *memory, size_t bytes, size_t entries);
void verbs_region_free(verbs_memory_t *memory, verbs_region_t *region); /* it is not in the list */
/** Register the region with one device; NULL with errno. */
typedef struct ibv_mr *(*verbs_register_t)(const verbs_memory_t *memory, struct ibv_pd *pd, const verbs_region_t *region, int access, const void *context);
/** With each device; one that was taken out, where there are others, takes nothing. On failure errno is that of the first that refused it. */
bool verbs_region_register(verbs_memory_t *memory, verbs_region_t *region, bool writable, verbs_register_t one, const void *context);

#endif
