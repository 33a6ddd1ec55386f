/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registrations of a device's memory, by dma-buf. The list, and what is kept, are verbs_memory.c's; here is how such memory is registered,
 * and how it is known to be the same as before: by the id of its allocation, which is looked at in each use, since no kernel tells when a
 * device's memory goes away. A registration keeps the pages alive, so what was freed is unregistered when that is told, when its
 * addresses come with another id, or for room.
 *
 * The descriptor is closed once all devices have registered it: the kernel holds what it stands for.
 */
#include "transport/verbs/verbs_memory.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct exported {
    int descriptor;
    uint64_t offset; /* of the region's first byte in the dma-buf */
} exported_t;

static uint64_t in_page(uint64_t address) { return address - verbs_page_below(address); }

static struct ibv_mr *register_dmabuf(const verbs_memory_t *memory, struct ibv_pd *pd, const verbs_region_t *region, int access, const void *context)
{
    const exported_t *exported = context;
    if (memory->config.relaxed) access |= IBV_ACCESS_RELAXED_ORDERING;
    return memory->library->reg_dmabuf_mr(pd, exported->offset, region->length, region->base + region->shift, exported->descriptor, access);
}

/* A descriptor that is none: a device that knows the call says so, one that does not says that. */
quoit_status_t verbs_dmabuf_check(const verbs_memory_t *memory)
{
    if (memory->library->reg_dmabuf_mr == NULL)
        return error_set(QUOIT_ERR_UNSUPPORTED, "libibverbs has no ibv_reg_dmabuf_mr (rdma-core 34 and newer have it)");
    for (int i = 0; i < memory->devices; i++) {
        errno = 0;
        struct ibv_mr *mr = memory->library->reg_dmabuf_mr(memory->pd[i], 0, 0, 0, -1, 0);
        int error = errno;
        if (mr != NULL) memory->library->dereg_mr(mr);
        if (error == EOPNOTSUPP || error == EPROTONOSUPPORT)
            return error_set(QUOIT_ERR_UNSUPPORTED, "%s, or this kernel, does not register a dma-buf: %s", memory->pd[i]->context->device->name,
                             strerror(error));
    }
    return QUOIT_OK;
}

/* What lies in [base, base + length), but for regions of the allocation with the id *spared; NULL: of none. */
static void forget_within(verbs_memory_t *memory, uintptr_t base, size_t length, const uint64_t *spared)
{
    for (size_t i = memory->count; i-- > 0;) {
        verbs_region_t *region = memory->regions[i];
        bool apart = region->base >= base ? region->base - base >= length : base - region->base >= region->length;
        if (apart || (spared != NULL && region->block == *spared)) continue;
        memory->invalidated++;
        verbs_region_forget(memory, region);
    }
}

void verbs_dmabuf_forget(verbs_memory_t *memory, uintptr_t base, size_t length) { forget_within(memory, base, length, NULL); }

static quoit_status_t register_region(verbs_memory_t *memory, verbs_region_t *region, const quoit_device_memory_t *wanted)
{
    exported_t exported = {.descriptor = -1};
    quoit_status_t status = wanted->export_dmabuf(wanted, (const void *)region->base, region->length, &exported.descriptor, &exported.offset);
    if (status != QUOIT_OK) return status;
    /* Both must lie at the same place of a page; the address is ours to choose. */
    region->shift = in_page(exported.offset) - in_page(region->base);
    bool done = verbs_region_register(memory, region, true, register_dmabuf, &exported);
    if (!done && !list_is_empty(&memory->idle)) { /* what is kept without a user may be in the way */
        verbs_region_make_room(memory, memory->config.bytes, memory->config.entries);
        done = verbs_region_register(memory, region, true, register_dmabuf, &exported);
    }
    if (!done)
        status = error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: cannot register %zu bytes at %p of device %s by their dma-buf", region->length,
                                 (void *)region->base, wanted->kind);
    close(exported.descriptor);
    return status;
}

/* Whole pages, as far as the allocation goes: buffers that lie side by side in them share a registration. */
static void widen(const quoit_device_memory_t *wanted, uintptr_t *base, size_t *length)
{
    uintptr_t begin = verbs_page_below((uintptr_t)wanted->pointer), end = verbs_page_above((uintptr_t)wanted->pointer + wanted->length);
    uintptr_t first = (uintptr_t)wanted->block, last = first + wanted->block_length;
    *base = begin > first ? begin : first;
    *length = (end < last ? end : last) - *base;
}

static quoit_status_t make(verbs_memory_t *memory, const quoit_device_memory_t *wanted, verbs_region_t **result)
{
    verbs_region_t *region = calloc(1, sizeof *region);
    if (region == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for a registration");
    *region = (verbs_region_t){.memory = memory, .users = 1, .block = wanted->block_id};
    list_init(&region->idle);
    widen(wanted, &region->base, &region->length);
    region->exported = memory->config.watch && region->length <= memory->config.bytes;
    memory->misses++;
    verbs_region_make_room(memory, region->exported ? region->length : 0, region->exported);
    quoit_status_t status = register_region(memory, region, wanted);
    if (status == QUOIT_OK && !verbs_region_insert(memory, region)) status = error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for a registration");
    if (status != QUOIT_OK) {
        verbs_region_free(memory, region);
        return status;
    }
    *result = region;
    return QUOIT_OK;
}

quoit_status_t verbs_dmabuf_take(verbs_memory_t *memory, const quoit_device_memory_t *wanted, verbs_region_t **result)
{
    uintptr_t base = (uintptr_t)wanted->pointer, block = (uintptr_t)wanted->block;
    if (wanted->length == 0 || base < block || wanted->length > wanted->block_length || base - block > wanted->block_length - wanted->length)
        return error_set(QUOIT_ERR_INVALID, "verbs: %zu bytes at %p of device %s do not lie in the %zu bytes at %p", wanted->length, wanted->pointer,
                         wanted->kind, wanted->block_length, wanted->block);
    verbs_region_t *region = verbs_region_find(memory, base, wanted->length, true);
    if (region != NULL && region->block == wanted->block_id) {
        verbs_region_hit(memory, region);
        *result = region;
        return QUOIT_OK;
    }
    forget_within(memory, block, wanted->block_length, &wanted->block_id); /* allocations that were where this one is */
    return make(memory, wanted, result);
}
