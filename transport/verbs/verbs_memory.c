/* SPDX-License-Identifier: Apache-2.0 */
/* Registrations: see verbs_memory.h. */
#include "transport/verbs/verbs_memory.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

void verbs_memory_init(verbs_memory_t *memory, const verbs_library_t *library, struct ibv_pd *const *pd, int devices, const verbs_memory_config_t *config)
{
    *memory = (verbs_memory_t){.library = library, .devices = devices, .config = *config};
    for (int i = 0; i < devices; i++) memory->pd[i] = pd[i];
    list_init(&memory->idle);
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

bool verbs_region_insert(verbs_memory_t *memory, verbs_region_t *region)
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

static struct ibv_mr *register_bytes(const verbs_memory_t *memory, struct ibv_pd *pd, const verbs_region_t *region, int access, const void *context)
{
    const verbs_library_t *library = memory->library;
    (void)context;
    if (memory->config.relaxed && library->reg_mr_iova2 != NULL) /* an optional flag: devices that do not know it ignore it */
        return library->reg_mr_iova2(pd, (void *)region->base, region->length, region->base, (unsigned)access | IBV_ACCESS_RELAXED_ORDERING);
    return library->reg_mr(pd, (void *)region->base, region->length, access);
}

static void unregister_all(const verbs_memory_t *memory, verbs_region_t *region)
{
    for (int i = 0; i < memory->devices; i++) {
        int error = region->mr[i] != NULL ? memory->library->dereg_mr(region->mr[i]) : 0;
        if (error != 0) error = memory->library->dereg_mr(region->mr[i]); /* an interrupted one succeeds the second time */
        if (error != 0) log_warn("verbs", "cannot unregister %zu bytes at %p: %s", region->length, (void *)region->base, strerror(error));
        region->mr[i] = NULL;
    }
}

static bool is_gone(int error) { return error == EIO || error == ENODEV || error == ENXIO; }

bool verbs_region_register(verbs_memory_t *memory, verbs_region_t *region, bool writable, verbs_register_t one, const void *context)
{
    int access = writable ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE : 0, made = 0, error = 0;
    for (int i = 0; i < memory->devices && error == 0; i++) {
        region->mr[i] = one(memory, memory->pd[i], region, access, context);
        made += region->mr[i] != NULL;
        if (region->mr[i] == NULL && (!is_gone(errno) || made + memory->devices - i == 1)) error = errno != 0 ? errno : EINVAL;
    }
    if (error != 0) {
        unregister_all(memory, region);
        errno = error;
        return false;
    }
    region->registered = true;
    region->writable = writable;
    memory->made++;
    return true;
}

static quoit_status_t register_region(verbs_memory_t *memory, verbs_region_t *region, bool writable)
{
    if (verbs_region_register(memory, region, writable, register_bytes, NULL)) return QUOIT_OK;
    return error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: cannot register %zu bytes at %p (ulimit -l bounds what may be locked)", region->length,
                           (void *)region->base);
}

static void unregister(verbs_memory_t *memory, verbs_region_t *region)
{
    if (!region->registered) return;
    unregister_all(memory, region);
    region->registered = false;
    memory->dropped++;
}

void verbs_region_free(verbs_memory_t *memory, verbs_region_t *region)
{
    unregister(memory, region);
    free(region);
}

/* ---------------------------------------------------------------- what is kept without a user */

static void keep(verbs_memory_t *memory, verbs_region_t *region)
{
    list_append(&memory->idle, &region->idle);
    memory->kept += region->length;
    memory->kept_entries++;
}

static void keep_no_longer(verbs_memory_t *memory, verbs_region_t *region)
{
    if (list_is_empty(&region->idle)) return;
    list_remove(&region->idle);
    memory->kept -= region->length;
    memory->kept_entries--;
}

/* Its pages are not watched any more, but for those of other watched regions. It is out of the list. */
static void watch_no_longer(const verbs_memory_t *memory, const verbs_region_t *region)
{
    uintptr_t at = verbs_page_below(region->base), end = verbs_page_above(region->base + region->length);
    size_t first = place_of(memory, at > memory->longest ? at - memory->longest : 0, 0);
    for (size_t i = first; i < memory->count && memory->regions[i]->base < end; i++) {
        const verbs_region_t *other = memory->regions[i];
        uintptr_t from = verbs_page_below(other->base), to = verbs_page_above(other->base + other->length);
        if (!other->watched || to <= at) continue;
        if (from > at) verbs_watch_end(memory->watch, at, from);
        at = to;
    }
    if (at < end) verbs_watch_end(memory->watch, at, end);
}

/* Not found any more; freed now, or with its last user. */
void verbs_region_forget(verbs_memory_t *memory, verbs_region_t *region)
{
    keep_no_longer(memory, region);
    take_out(memory, region);
    if (region->watched) watch_no_longer(memory, region);
    if (region->users == 0) verbs_region_free(memory, region);
}

void verbs_region_make_room(verbs_memory_t *memory, size_t bytes, size_t entries)
{
    while (!list_is_empty(&memory->idle) &&
           (memory->kept + bytes > memory->config.bytes || memory->kept_entries + entries > memory->config.entries)) {
        verbs_region_t *oldest = container_of(memory->idle.next, verbs_region_t, idle);
        memory->evicted++;
        keep_no_longer(memory, oldest);
        if (oldest->declared) unregister(memory, oldest);
        else verbs_region_forget(memory, oldest);
    }
}

/* Registrations of memory that has gone away serve nobody any more. */
static void drop_gone(verbs_memory_t *memory)
{
    uintptr_t from, to;
    while (verbs_watch_next(memory->watch, &from, &to)) {
        for (size_t i = memory->count; i-- > 0;) {
            verbs_region_t *region = memory->regions[i];
            if (!region->watched || region->base >= to || region->base + region->length <= from) continue;
            memory->invalidated++;
            verbs_region_forget(memory, region);
        }
    }
}

/* Can memory that nobody declared be kept? */
static bool can_watch(verbs_memory_t *memory)
{
    if (memory->watch != NULL || !memory->config.watch) return memory->watch != NULL;
    if (verbs_watch_create(&memory->watch) == QUOIT_OK) return true;
    log_info("verbs", "registrations are not kept, for nobody would tell when their memory goes away: %s", error_text());
    memory->config.watch = false;
    return false;
}

/* ---------------------------------------------------------------- taking and giving */

static bool covers(const verbs_region_t *region, uintptr_t base, size_t length)
{
    return region->base <= base && length <= region->length && base - region->base <= region->length - length;
}

verbs_region_t *verbs_region_find(const verbs_memory_t *memory, uintptr_t base, size_t length, bool writable)
{
    for (size_t i = place_of(memory, base, SIZE_MAX); i-- > 0;) {
        verbs_region_t *region = memory->regions[i];
        if (base - region->base > memory->longest) return NULL;
        if (region->refused) continue;
        if (covers(region, base, length) && (!region->registered || region->writable || !writable)) return region;
    }
    return NULL;
}

void verbs_region_hit(verbs_memory_t *memory, verbs_region_t *region)
{
    memory->hits++;
    keep_no_longer(memory, region);
    region->users++;
}

static quoit_status_t use(verbs_memory_t *memory, verbs_region_t *region)
{
    if (!region->registered) {
        memory->misses++;
        verbs_region_make_room(memory, region->length, 1);
        if (register_region(memory, region, true) != QUOIT_OK && register_region(memory, region, false) != QUOIT_OK) {
            region->refused = true;
            return QUOIT_ERR_SYSTEM;
        }
        region->users++;
    } else {
        verbs_region_hit(memory, region);
    }
    return QUOIT_OK;
}

/* What is to be kept may serve both ways later; memory that cannot be written is only read. */
static quoit_status_t register_anew(verbs_memory_t *memory, verbs_region_t *region, bool writable)
{
    quoit_status_t status = register_region(memory, region, writable || region->watched);
    if (status != QUOIT_OK && region->watched && !writable) status = register_region(memory, region, false);
    return status;
}

static quoit_status_t make(verbs_memory_t *memory, uintptr_t base, size_t length, bool writable, verbs_region_t **result)
{
    verbs_region_t *region = calloc(1, sizeof *region);
    if (region == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for a registration");
    *region = (verbs_region_t){.memory = memory, .base = base, .length = length, .users = 1};
    list_init(&region->idle);
    region->watched = length <= memory->config.bytes && can_watch(memory) && verbs_watch_begin(memory->watch, base, length);
    memory->misses++;
    verbs_region_make_room(memory, region->watched ? length : 0, region->watched);
    quoit_status_t status = register_anew(memory, region, writable);
    if (status != QUOIT_OK && !list_is_empty(&memory->idle)) { /* what is kept without a user may be in the way */
        verbs_region_make_room(memory, memory->config.bytes, memory->config.entries);
        status = register_anew(memory, region, writable);
    }
    if (status == QUOIT_OK && !verbs_region_insert(memory, region)) status = error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for a registration");
    if (status != QUOIT_OK) {
        if (region->watched) watch_no_longer(memory, region);
        verbs_region_free(memory, region);
        return status;
    }
    *result = region;
    return QUOIT_OK;
}

quoit_status_t verbs_memory_take(verbs_memory_t *memory, const void *pointer, size_t length, bool writable, verbs_region_t **result)
{
    uintptr_t base = (uintptr_t)pointer;
    if (memory->watch != NULL) drop_gone(memory);
    verbs_region_t *region = verbs_region_find(memory, base, length, writable);
    if (region != NULL && use(memory, region) == QUOIT_OK) {
        if (region->writable || !writable) {
            *result = region;
            return QUOIT_OK;
        }
        verbs_memory_give(region); /* memory that cannot be written: the device says so itself below */
    }
    return make(memory, base, length, writable, result);
}

void verbs_memory_give(verbs_region_t *region)
{
    if (region == NULL || --region->users > 0) return;
    verbs_memory_t *memory = region->memory;
    if (region->forgotten) {
        verbs_region_free(memory, region);
    } else if (region->declared || region->watched || region->exported) {
        keep(memory, region);
        verbs_region_make_room(memory, 0, 0);
    } else {
        verbs_region_forget(memory, region);
    }
}

quoit_status_t verbs_memory_declare(verbs_memory_t *memory, const void *pointer, size_t length)
{
    if (length == 0) return QUOIT_OK;
    verbs_region_t *region = calloc(1, sizeof *region);
    if (region == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for a registration");
    *region = (verbs_region_t){.memory = memory, .base = (uintptr_t)pointer, .length = length, .declared = true};
    list_init(&region->idle);
    if (verbs_region_insert(memory, region)) return QUOIT_OK;
    free(region);
    return error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for a registration");
}

void verbs_memory_forget(verbs_memory_t *memory, const void *pointer)
{
    uintptr_t base = (uintptr_t)pointer;
    for (size_t i = place_of(memory, base, 0); i < memory->count && memory->regions[i]->base == base; i++) {
        if (!memory->regions[i]->declared) continue;
        verbs_region_forget(memory, memory->regions[i]);
        return;
    }
}

void verbs_memory_destroy(verbs_memory_t *memory)
{
    if (memory->made > 0)
        log_info("verbs", "registrations%s%s: %llu made, %llu transfers found one, %llu did not; %llu dropped for room, %llu whose memory went away",
                 memory->kind != NULL ? " of device " : "", memory->kind != NULL ? memory->kind : "", (unsigned long long)memory->made, (unsigned long long)memory->hits, (unsigned long long)memory->misses,
                 (unsigned long long)memory->evicted, (unsigned long long)memory->invalidated);
    while (memory->count > 0) verbs_region_forget(memory, memory->regions[memory->count - 1]);
    verbs_watch_destroy(memory->watch);
    free(memory->regions);
    *memory = (verbs_memory_t){.count = 0};
    list_init(&memory->idle);
}
