/* SPDX-License-Identifier: Apache-2.0 */
/* Registrations: see verbs_memory.h. */
#include "transport/verbs/verbs_memory.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void verbs_memory_init(verbs_memory_t *memory, const verbs_library_t *library, struct ibv_pd *pd, size_t limit)
{
    *memory = (verbs_memory_t){.library = library, .pd = pd, .limit = limit};
}

/* ---------------------------------------------------------------- the ordered list */

/* Number of regions that begin before (base, length). */
static size_t place_of(const verbs_memory_t *memory, uintptr_t base, size_t length)
{
    size_t low = 0, high = memory->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const verbs_region_t *region = memory->regions[middle];
        if (region->base < base || (region->base == base && region->length < length))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool insert(verbs_memory_t *memory, verbs_region_t *region)
{
    if (memory->count == memory->capacity) {
        size_t capacity = memory->capacity > 0 ? 2 * memory->capacity : 16;
        verbs_region_t **regions = realloc(memory->regions, capacity * sizeof *regions);
        if (regions == NULL) return false;
        memory->regions = regions;
        memory->capacity = capacity;
    }
    size_t place = place_of(memory, region->base, region->length);
    memmove(memory->regions + place + 1, memory->regions + place, (memory->count - place) * sizeof *memory->regions);
    memory->regions[place] = region;
    memory->count++;
    if (region->length > memory->longest) memory->longest = region->length;
    return true;
}

static void take_out(verbs_memory_t *memory, verbs_region_t *region)
{
    if (region->forgotten) return;
    region->forgotten = true;
    size_t place = place_of(memory, region->base, region->length);
    while (memory->regions[place] != region) place++;
    memory->count--;
    memmove(memory->regions + place, memory->regions + place + 1, (memory->count - place) * sizeof *memory->regions);
}

/* ---------------------------------------------------------------- the device's part */

static quoit_status_t register_region(verbs_memory_t *memory, verbs_region_t *region, bool writable)
{
    int access = writable ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0;
    struct ibv_mr *mr = memory->library->reg_mr(memory->pd, (void *)region->base, region->length, access);
    if (mr == NULL)
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: cannot register %zu bytes at %p (ulimit -l bounds what may be locked)",
                               region->length, (void *)region->base);
    region->mr = mr;
    region->writable = writable;
    memory->made++;
    return QUOIT_OK;
}

static void unregister(verbs_memory_t *memory, verbs_region_t *region)
{
    if (region->mr == NULL) return;
    int error = memory->library->dereg_mr(region->mr);
    if (error != 0) error = memory->library->dereg_mr(region->mr); /* an interrupted one succeeds the second time */
    if (error != 0) log_warn("verbs", "cannot unregister %zu bytes at %p: %s", region->length, (void *)region->base, strerror(error));
    region->mr = NULL;
    memory->dropped++;
}

static void region_free(verbs_memory_t *memory, verbs_region_t *region)
{
    unregister(memory, region);
    free(region);
}

/* Unregister what is declared and unused, used longest ago first, until `room` more bytes fit. */
static void make_room(verbs_memory_t *memory, size_t room)
{
    while (memory->kept > 0 && memory->kept + room > memory->limit) {
        verbs_region_t *oldest = NULL;
        for (size_t i = 0; i < memory->count; i++) {
            verbs_region_t *region = memory->regions[i];
            if (!region->declared || region->mr == NULL || region->users > 0) continue;
            if (oldest == NULL || region->used < oldest->used) oldest = region;
        }
        if (oldest == NULL) return;
        memory->kept -= oldest->length;
        unregister(memory, oldest);
    }
}

/* ---------------------------------------------------------------- taking and giving */

static bool covers(const verbs_region_t *region, uintptr_t base, size_t length)
{
    return region->base <= base && length <= region->length && base - region->base <= region->length - length;
}

static verbs_region_t *find(const verbs_memory_t *memory, uintptr_t base, size_t length, bool writable)
{
    for (size_t i = place_of(memory, base, SIZE_MAX); i-- > 0;) {
        verbs_region_t *region = memory->regions[i];
        if (region->refused) continue;
        if (covers(region, base, length) && (region->mr == NULL || region->writable || !writable)) return region;
        if (base - region->base > memory->longest) return NULL;
    }
    return NULL;
}

static quoit_status_t use(verbs_memory_t *memory, verbs_region_t *region)
{
    if (region->mr == NULL) {
        make_room(memory, region->length);
        if (register_region(memory, region, true) != QUOIT_OK && register_region(memory, region, false) != QUOIT_OK) {
            region->refused = true;
            return QUOIT_ERR_SYSTEM;
        }
    } else if (region->declared && region->users == 0) {
        memory->kept -= region->length;
    }
    region->users++;
    region->used = ++memory->clock;
    return QUOIT_OK;
}

quoit_status_t verbs_memory_take(verbs_memory_t *memory, const void *pointer, size_t length, bool writable, verbs_region_t **result)
{
    uintptr_t base = (uintptr_t)pointer;
    verbs_region_t *region = find(memory, base, length, writable);
    if (region != NULL && use(memory, region) == QUOIT_OK) {
        if (region->writable || !writable) {
            *result = region;
            return QUOIT_OK;
        }
        verbs_memory_give(memory, region); /* memory that cannot be written: the device says so itself below */
    }
    region = calloc(1, sizeof *region);
    if (region == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for a registration");
    region->base = base;
    region->length = length;
    quoit_status_t status = register_region(memory, region, writable);
    if (status != QUOIT_OK && memory->kept > 0) { /* what is kept without a user may be in the way */
        make_room(memory, memory->limit);
        status = register_region(memory, region, writable);
    }
    if (status == QUOIT_OK && !insert(memory, region)) status = error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for a registration");
    if (status != QUOIT_OK) {
        region_free(memory, region);
        return status;
    }
    region->users = 1;
    region->used = ++memory->clock;
    *result = region;
    return QUOIT_OK;
}

void verbs_memory_give(verbs_memory_t *memory, verbs_region_t *region)
{
    if (region == NULL || --region->users > 0) return;
    if (region->declared && !region->forgotten) {
        memory->kept += region->length;
        make_room(memory, 0);
        return;
    }
    take_out(memory, region);
    region_free(memory, region);
}

quoit_status_t verbs_memory_declare(verbs_memory_t *memory, const void *pointer, size_t length)
{
    if (length == 0) return QUOIT_OK;
    verbs_region_t *region = calloc(1, sizeof *region);
    if (region == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for a registration");
    *region = (verbs_region_t){.base = (uintptr_t)pointer, .length = length, .declared = true};
    if (insert(memory, region)) return QUOIT_OK;
    free(region);
    return error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for a registration");
}

void verbs_memory_forget(verbs_memory_t *memory, const void *pointer)
{
    uintptr_t base = (uintptr_t)pointer;
    for (size_t i = place_of(memory, base, 0); i < memory->count && memory->regions[i]->base == base; i++) {
        verbs_region_t *region = memory->regions[i];
        if (!region->declared) continue;
        take_out(memory, region);
        if (region->users > 0) return;
        if (region->mr != NULL) memory->kept -= region->length;
        region_free(memory, region);
        return;
    }
}

void verbs_memory_destroy(verbs_memory_t *memory)
{
    while (memory->count > 0) {
        verbs_region_t *region = memory->regions[memory->count - 1];
        take_out(memory, region);
        region_free(memory, region);
    }
    free(memory->regions);
    *memory = (verbs_memory_t){.count = 0};
}
