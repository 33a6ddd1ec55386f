/* SPDX-License-Identifier: Apache-2.0 */
/* Window: sections, the directory at the root of each process's memory, leases. See window.h. */
#include "scheduler/window.h"

#include "base/log.h"
#include "scheduler/memory.h"
#include "scheduler/window_pool.h"

#include <stdlib.h>
#include <string.h>

/*
 * Directory: a process tells its host mates where its sections are. An entry's communicator id is stored last, with release;
 * TOMBSTONE keeps the chain of probes whole after a section is gone. Ids 0 and 1 are never given to a communicator.
 *
 * A member that never came is told by `left` that there is nothing for it any more. Its own entry comes before it looks for others, and the
 * owner sets `left` before it looks whether it has come, with a fence on both sides between the two: so the one that comes sees `left`, or
 * the owner sees that it has come, and keeps the section. When there is no free entry, one with that mark is used again.
 */
enum { LINE = 64 }; /* bytes; what is shared begins with one */
enum { LEASES_SEEN = 40 << 20, LEASES_LEAST = 2 << 20 }; /* bytes of large slots that resting communicators may hold on to: see leases_kept */
enum { ABSENT_KEPT = 4 << 20 };  /* bytes that destroyed communicators may hold for members that have not come yet */
enum { DIRECTORY_ENTRIES = 640 /* fit the root: communicators of a process at a time */, DIRECTORY_MAGIC = 0x51444952, DIRECTORY_EMPTY = 0, DIRECTORY_TOMBSTONE = 1 };

typedef struct directory_entry {
    _Atomic uint64_t comm;
    uint8_t handle[QUOIT_HANDLE_CAPACITY];
    _Atomic uint64_t left; /* 1: its owner has destroyed the communicator, and nothing lies where the handle says */
} directory_entry_t;

typedef struct directory {
    _Atomic uint64_t magic;
    _Atomic uint64_t cpu; /* the processor its thread that waits was last seen on: see window_shares_cpu */
    uint64_t unused[6];
    directory_entry_t entry[DIRECTORY_ENTRIES];
} directory_t;

_Static_assert(sizeof(directory_t) <= QUOIT_ROOT_SIZE, "the directory lies in the root");
_Static_assert(sizeof(window_line_t) == 64, "a line is one cache line");

static const quoit_transport_ops_t *map_ops(const window_t *window) { return window->engine->map->ops; }
static quoit_transport_t *map_transport(const window_t *window) { return window->engine->map->transport; }

static quoit_status_t own_directory(engine_t *engine, directory_t **directory)
{
    void *root = NULL;
    quoit_status_t status = engine->map->ops->share_root(engine->map->transport, &root);
    if (status != QUOIT_OK) return status;
    *directory = root;
    atomic_store_explicit(&(*directory)->magic, DIRECTORY_MAGIC, memory_order_release);
    return QUOIT_OK;
}

/* A free entry of the own directory, else one whose communicator has been left; NULL: none. */
static directory_entry_t *find_room(directory_t *directory, uint64_t comm)
{
    directory_entry_t *spare = NULL;
    for (int probe = 0; probe < DIRECTORY_ENTRIES; probe++) {
        directory_entry_t *entry = &directory->entry[(comm + (uint64_t)probe) % DIRECTORY_ENTRIES];
        if (atomic_load_explicit(&entry->comm, memory_order_relaxed) <= DIRECTORY_TOMBSTONE) return entry;
        if (!spare && atomic_load_explicit(&entry->left, memory_order_relaxed) == 1) spare = entry;
    }
    return spare;
}

/* Show an entry; its handle is read by who looks for a section only. */
static quoit_status_t show(engine_t *engine, uint64_t id, const uint8_t handle[QUOIT_HANDLE_CAPACITY], int *place)
{
    directory_t *directory;
    quoit_status_t status = own_directory(engine, &directory);
    if (status != QUOIT_OK) return status;
    directory_entry_t *entry = find_room(directory, id);
    if (!entry)
        return error_set(QUOIT_ERR_NO_MEMORY, "window: this process already has %d communicators that share memory; destroy some first",
                         DIRECTORY_ENTRIES);
    atomic_store_explicit(&entry->comm, DIRECTORY_TOMBSTONE, memory_order_relaxed);
    __sync_synchronize(); /* whoever reads the new handle sees that the entry is not the old one's any more */
    memcpy(entry->handle, handle, QUOIT_HANDLE_CAPACITY);
    atomic_store_explicit(&entry->left, 0, memory_order_relaxed);
    atomic_store_explicit(&entry->comm, id, memory_order_release);
    __sync_synchronize(); /* before others are looked for: see above */
    *place = (int)(entry - directory->entry);
    return QUOIT_OK;
}

static quoit_status_t publish(window_t *window)
{
    uint8_t handle[QUOIT_HANDLE_CAPACITY];
    quoit_status_t status = map_ops(window)->export_memory(map_transport(window), window->section, sizeof *window->section, handle);
    return status == QUOIT_OK ? show(window->engine, window->comm, handle, &window->entry) : status;
}

/* The entry of a communicator in a peer's directory; NULL when it is not there. */
static directory_entry_t *look_up(directory_t *directory, uint64_t comm)
{
    for (int probe = 0; probe < DIRECTORY_ENTRIES; probe++) {
        directory_entry_t *entry = &directory->entry[(comm + (uint64_t)probe) % DIRECTORY_ENTRIES];
        uint64_t found = atomic_load_explicit(&entry->comm, memory_order_acquire);
        if (found == comm) return entry;
        if (found == DIRECTORY_EMPTY) return NULL;
    }
    return NULL;
}

/*
 * What a member published, here: at least `needed` bytes at an address that `alignment` divides, whatever its handle says. A handle is
 * always a copy: the member could change the original between the look and the use.
 */
static quoit_status_t attach(const window_member_t *member, const uint8_t *handle, const char *what, size_t needed, size_t alignment,
                             void **memory, size_t *length)
{
    quoit_endpoint_t *map = member->peer->map;
    void *there = NULL;
    size_t bytes = 0;
    quoit_status_t status = map->transport->ops->attach(map, handle, &there, &bytes);
    if (status == QUOIT_ERR_INVALID) return error_prefix(QUOIT_ERR_PROTOCOL, "%s published %s", member->peer->name, what);
    if (status != QUOIT_OK) return status;
    if (bytes < needed || (uintptr_t)there % alignment != 0)
        return error_set(QUOIT_ERR_PROTOCOL, "%s published %s of %zu bytes at an address that ends in %02x; it must have %zu, at a multiple of %zu",
                         member->peer->name, what, bytes, (unsigned)((uintptr_t)there & 255), needed, alignment);
    *memory = there;
    *length = bytes;
    return QUOIT_OK;
}

static quoit_status_t peer_directory(const peer_t *peer, directory_t **directory)
{
    quoit_endpoint_t *map = peer->map;
    void *root = NULL;
    size_t length = 0;
    quoit_status_t status = map->transport->ops->attach(map, NULL, &root, &length);
    if (status != QUOIT_OK) return status;
    if (length < sizeof **directory) return error_set(QUOIT_ERR_PROTOCOL, "%s shares a root of %zu bytes", peer->name, length);
    *directory = root;
    return QUOIT_OK;
}

enum { SECTIONS_TOGETHER = 16, SLOTS_TOGETHER = 2 }; /* pieces of a block, see window_pool.h: many sections share pages; slots are large, and a communicator has two */

void window_pools_init(engine_t *engine)
{
    engine->section_pool = (engine_pool_t){.bytes = sizeof(window_section_t), .pieces = SECTIONS_TOGETHER, .zero = true};
    engine->slot_pool = (engine_pool_t){.bytes = WINDOW_SMALL, .pieces = SLOTS_TOGETHER};
    list_init(&engine->section_pool.blocks);
    list_init(&engine->slot_pool.blocks);
}

quoit_status_t window_create(engine_t *engine, uint64_t comm, int members, int me, peer_t *const *peer, window_t **result)
{
    window_t *window = calloc(1, sizeof *window + (size_t)members * sizeof window->member[0]);
    if (!window) return error_set(QUOIT_ERR_NO_MEMORY, "window: %d members", members);
    window->engine = engine;
    window->comm = comm;
    window->members = members;
    window->me = me;
    list_init(&window->link);
    list_init(&window->lease_link);
    for (int i = 0; i < members; i++) window->member[i].peer = peer[i];
    void *memory = NULL, *slots = NULL;
    quoit_status_t status = window_pool_take(engine, &engine->section_pool, &memory);
    if (status == QUOIT_OK) status = window_pool_take(engine, &engine->slot_pool, &slots);
    if (status != QUOIT_OK) goto free_section;
    window->section = window->member[me].section = memory;
    window->member[me].small = slots;
    status = map_ops(window)->export_memory(map_transport(window), slots, WINDOW_SMALL, window->section->small_handle);
    if (status == QUOIT_OK) status = publish(window);
    if (status != QUOIT_OK) goto free_section;
    for (int i = 0; i < members; i++) window->member[i].peer->users++; /* the window may outlive the communicator's job */
    *result = window;
    return QUOIT_OK;

free_section:
    window_pool_give(engine, &engine->slot_pool, slots);
    window_pool_give(engine, &engine->section_pool, memory);
    free(window);
    return status;
}

quoit_status_t window_find(window_t *window, int index)
{
    window_member_t *member = &window->member[index];
    if (member->section) return QUOIT_OK;
    directory_t *directory;
    quoit_status_t status = peer_directory(member->peer, &directory);
    if (status != QUOIT_OK) return status;
    directory_entry_t *entry = look_up(directory, window->comm);
    if (!entry) return QUOIT_ERR_AGAIN;
    uint8_t handle[QUOIT_HANDLE_CAPACITY];
    memcpy(handle, entry->handle, sizeof handle);
    member->left = atomic_load_explicit(&entry->left, memory_order_relaxed) == 1;
    atomic_thread_fence(memory_order_acquire);
    if (member->left || atomic_load_explicit(&entry->comm, memory_order_relaxed) != window->comm) return QUOIT_ERR_AGAIN;
    void *section = NULL, *small = NULL;
    size_t length = 0;
    status = attach(member, handle, "a section", sizeof *member->section, LINE, &section, &length);
    if (status != QUOIT_OK) return status;
    memcpy(handle, ((const window_section_t *)section)->small_handle, sizeof handle);
    status = attach(member, handle, "small slots", WINDOW_SMALL, LINE, &small, &length);
    if (status != QUOIT_OK) return status;
    member->section = section;
    member->small = small;
    return QUOIT_OK;
}

/* ------------------------------------------------------------------ marks */

quoit_status_t window_mark(engine_t *engine, uint64_t id, int *mark)
{
    const uint8_t none[QUOIT_HANDLE_CAPACITY] = {0};
    return show(engine, id, none, mark);
}

void window_unmark(engine_t *engine, int mark)
{
    directory_t *directory;
    if (own_directory(engine, &directory) == QUOIT_OK) atomic_store_explicit(&directory->entry[mark].left, 1, memory_order_release);
}

bool window_is_marked(const peer_t *peer, uint64_t id)
{
    directory_t *directory;
    return peer_directory(peer, &directory) == QUOIT_OK && look_up(directory, id);
}

/* ------------------------------------------------------------------ operations */

void window_begin(window_t *window, const operation_description_t *description, uint32_t hash)
{
    window_section_t *section = window->section;
    uint32_t at = description->sequence % WINDOW_HISTORY;
    uint64_t current = (uint64_t)description->sequence << 32 | hash;
    atomic_store_explicit(&section->recent[at], 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release); /* whoever sees the new description sees that `recent` is not the old one's any more */
    section->description[at] = *description;
    atomic_store_explicit(&section->recent[at], current, memory_order_release);
    if (window->read > atomic_load_explicit(&section->line.consumed, memory_order_relaxed))
        atomic_store_explicit(&section->line.consumed, window->read, memory_order_release);
    atomic_store_explicit(&section->line.current, current, memory_order_release);
}

static void drop_lease(window_t *window)
{
    if (!window->lease) return;
    memory_unshare(window->engine, window->lease);
    list_remove(&window->lease_link);
    window->engine->lease_bytes -= window->lease_bytes;
    window->lease = NULL;
    window->lease_bytes = 0;
    window->lease_outgrown = false;
    window->large_stride = 0;
}

/* Each process of the host has all others' mapped, as far as it has read them. So the limit is one for what a process sees of all. */
static size_t leases_kept(const engine_t *engine)
{
    size_t share = (size_t)LEASES_SEEN / (size_t)(engine->host_ranks > 1 ? engine->host_ranks : 1);
    return share > LEASES_LEAST ? share : LEASES_LEAST;
}

/* Leases of communicators that rest are kept for their next operation, up to a limit: then the longest held go first. */
static void make_room(engine_t *engine, size_t bytes)
{
    const size_t kept = leases_kept(engine);
    for (list_t *node = engine->leased.next, *next; node != &engine->leased && engine->lease_bytes + bytes > kept; node = next) {
        next = node->next;
        window_try_return(container_of(node, window_t, lease_link));
    }
}

quoit_status_t window_lease(window_t *window, size_t bytes)
{
    if (window->lease && window->lease_bytes >= bytes) return QUOIT_OK;
    size_t stride = window->large_stride;
    /* Only when all have consumed what lies in it: the executor reclaims before it asks for a larger one. */
    drop_lease(window);
    make_room(window->engine, bytes);
    void *memory = NULL;
    quoit_status_t status = memory_share(window->engine, bytes, &memory);
    if (status != QUOIT_OK) return status;
    status = map_ops(window)->export_memory(map_transport(window), memory, bytes, window->section->lease_handle);
    if (status != QUOIT_OK) {
        memory_unshare(window->engine, memory);
        return status;
    }
    window->lease = memory;
    window->lease_bytes = bytes;
    window->large_stride = stride;
    window->engine->lease_bytes += bytes;
    list_append(&window->engine->leased, &window->lease_link);
    uint64_t number = atomic_load_explicit(&window->section->lease, memory_order_relaxed) + 1;
    atomic_store_explicit(&window->section->lease, number, memory_order_release);
    return QUOIT_OK;
}

uint8_t *window_large(window_t *window, int index, size_t needed)
{
    if (index == window->me) return window->lease;
    window_member_t *member = &window->member[index];
    uint64_t number = atomic_load_explicit(&member->section->lease, memory_order_acquire);
    if (number != member->lease || needed > member->large_bytes) {
        uint8_t handle[QUOIT_HANDLE_CAPACITY];
        memcpy(handle, member->section->lease_handle, sizeof handle);
        void *memory = NULL;
        size_t length = 0;
        if (attach(member, handle, "large slots", needed, LINE, &memory, &length) != QUOIT_OK) return NULL;
        member->large = memory;
        member->large_bytes = length;
        member->lease = number;
    }
    return member->large;
}

bool window_share_input(window_t *window, const void *input, size_t bytes, uint64_t ticket)
{
    window_section_t *section = window->section;
    if (map_ops(window)->export_memory(map_transport(window), input, bytes, section->input_handle) != QUOIT_OK) return false;
    atomic_store_explicit(&section->input_ticket, ticket, memory_order_release);
    return true;
}

static quoit_status_t look_for_input(window_member_t *member, uint64_t ticket)
{
    member->input = NULL;
    member->input_ticket = ticket;
    if (atomic_load_explicit(&member->section->input_ticket, memory_order_acquire) != ticket) return QUOIT_OK;
    uint8_t handle[QUOIT_HANDLE_CAPACITY];
    memcpy(handle, member->section->input_handle, sizeof handle);
    void *memory = NULL;
    size_t length = 0;
    quoit_status_t status = attach(member, handle, "an input", 0, 1, &memory, &length);
    if (status != QUOIT_OK) return status;
    member->input = memory;
    member->input_length = length;
    return QUOIT_OK;
}

quoit_status_t window_input(window_t *window, int index, uint64_t ticket, const uint8_t **input, size_t *length)
{
    window_member_t *member = &window->member[index];
    quoit_status_t status = member->input_ticket == ticket ? QUOIT_OK : look_for_input(member, ticket);
    if (status != QUOIT_OK) return status;
    *input = member->input;
    *length = member->input_length;
    return QUOIT_OK;
}

void window_fail(window_t *window, uint64_t base)
{
    atomic_store_explicit(&window->section->failed, 1, memory_order_relaxed); /* seen by who sees the signals go */
    for (int stage = 0; stage < PLAN_STAGES; stage++) {
        _Atomic uint64_t *ticket = &window->section->line.stage[stage];
        if (atomic_load_explicit(ticket, memory_order_relaxed) > base) atomic_store_explicit(ticket, base, memory_order_release);
    }
    atomic_thread_fence(memory_order_seq_cst); /* before whatever the input's owner writes there */
}

bool window_has_failed(const window_t *window, int member)
{
    const window_section_t *section = window->member[member].section;
    return section && atomic_load_explicit(&section->failed, memory_order_relaxed);
}

bool window_is_withdrawn(const window_t *window, uint64_t ticket)
{
    atomic_thread_fence(memory_order_acquire); /* after the reads: who has seen what was written since sees this, too */
    for (int i = 0; i < window->members; i++) {
        const window_member_t *member = &window->member[i];
        if (i == window->me || member->input_ticket != ticket || !member->input) continue;
        if (atomic_load_explicit(&member->section->failed, memory_order_relaxed)) return true;
    }
    return false;
}

void window_tell_cpu(engine_t *engine, unsigned cpu)
{
    directory_t *directory;
    if (engine->map && own_directory(engine, &directory) == QUOIT_OK) atomic_store_explicit(&directory->cpu, cpu, memory_order_relaxed);
}

bool window_shares_cpu(window_t *window, unsigned cpu)
{
    for (int i = 0; i < window->members; i++) {
        directory_t *directory;
        if (i == window->me || peer_directory(window->member[i].peer, &directory) != QUOIT_OK) continue;
        if (atomic_load_explicit(&directory->cpu, memory_order_relaxed) == cpu) return true;
    }
    return false;
}

quoit_status_t window_consumed(window_t *window, uint64_t ticket)
{
    for (int i = 0; i < window->members && ticket > 0; i++) {
        if (i == window->me) continue;
        window_member_t *member = &window->member[i];
        if (member->consumed >= ticket) continue;
        quoit_status_t status = window_find(window, i);
        if (status != QUOIT_OK) return status == QUOIT_ERR_PROTOCOL ? status : QUOIT_IN_PROGRESS; /* the end of a member is told by its event */
        member->consumed = atomic_load_explicit(&member->section->line.consumed, memory_order_acquire);
        if (member->consumed < ticket) return QUOIT_IN_PROGRESS;
    }
    return QUOIT_OK;
}

void window_try_return(window_t *window)
{
    if (window->lease && !window->busy && window_consumed(window, window->lease_ticket) == QUOIT_OK) drop_lease(window);
}

void window_signal(window_t *window, _Atomic uint64_t *word, uint64_t ticket)
{
    atomic_store_explicit(word, ticket, memory_order_release);
    for (int i = 0; i < window->members; i++)
        if (i != window->me) window->member[i].peer->map->transport->ops->ring(window->member[i].peer->map);
}

/* ------------------------------------------------------------------ end */

void window_close(window_t *window, bool failed)
{
    if (!window) return;
    window->failed = failed;
    /* Look for the members before leaving: once all have left, their entries may vanish. */
    for (int i = 0; i < window->members; i++) (void)window_find(window, i);
    atomic_store_explicit(&window->section->left, 1, memory_order_release);
    list_append(&window->engine->sections, &window->link);
    window_collect(window->engine, false);
}

typedef enum presence { PRESENT, ABSENT, GONE } presence_t;

/*
 * A member of a communicator that this process has left: is it still here, has it not come yet, or has it left, too? The entry of one
 * that has come vanishes only after all members have left, or never came.
 */
static presence_t presence_of(window_t *window, int index)
{
    window_member_t *member = &window->member[index];
    if (member->peer->status != QUOIT_OK || member->peer->left) return GONE;
    directory_t *directory;
    if (peer_directory(member->peer, &directory) != QUOIT_OK) return GONE;
    if (!look_up(directory, window->comm)) return member->section || window->failed ? GONE : ABSENT;
    if (window_find(window, index) != QUOIT_OK) return member->left ? GONE : PRESENT;
    bool left = atomic_load_explicit(&member->section->left, memory_order_acquire) == 1;
    /* The section was the member's only if the entry still stands after the look. */
    return left || !look_up(directory, window->comm) ? GONE : PRESENT;
}

/* The least that can be said of all of them: PRESENT when one is, else ABSENT when one is. */
static presence_t presence_of_all(window_t *window)
{
    presence_t all = GONE;
    for (int i = 0; i < window->members && all != PRESENT; i++) {
        presence_t one = i == window->me ? GONE : presence_of(window, i);
        if (one < all) all = one;
    }
    return all;
}

/* Nothing is here any more for members that have not come. False: one has come meanwhile, and may have found the section. */
static bool turn_away(window_t *window)
{
    directory_t *directory;
    if (own_directory(window->engine, &directory) != QUOIT_OK) return false;
    atomic_store_explicit(&directory->entry[window->entry].left, 1, memory_order_release);
    __sync_synchronize();
    return presence_of_all(window) != PRESENT;
}

/*
 * keep_entry: members that have not come find in it that nobody is here. keep_memory: peers may still look for it and read it, and have it
 * mapped; it goes with the last mapping.
 */
static void window_free(window_t *window, bool keep_entry, bool keep_memory)
{
    list_remove(&window->link);
    directory_t *directory;
    if (!keep_entry && own_directory(window->engine, &directory) == QUOIT_OK)
        atomic_store_explicit(&directory->entry[window->entry].comm, DIRECTORY_TOMBSTONE, memory_order_release);
    if (keep_memory) {
        if (window->lease) list_remove(&window->lease_link);
        memory_withdraw(window->engine, window->lease);
    } else {
        drop_lease(window);
        window_pool_give(window->engine, &window->engine->slot_pool, window->member[window->me].small);
        window_pool_give(window->engine, &window->engine->section_pool, window->section);
    }
    for (int i = 0; i < window->members; i++) engine_peer_release(window->member[i].peer);
    free(window);
}

/*
 * What others wait for stays. For members that have not come something may lie here, a broadcast of ours perhaps, if there ever was an
 * operation; it is kept for them as long as it is among the newest, up to a limit.
 */
void window_collect(engine_t *engine, bool force)
{
    size_t kept = 0;
    for (list_t *node = engine->sections.previous, *previous; node != &engine->sections; node = previous) {
        previous = node->previous;
        window_t *window = container_of(node, window_t, link);
        size_t bytes = sizeof *window->section + WINDOW_SMALL + window->lease_bytes;
        presence_t all = presence_of_all(window);
        bool useless = window->ticket == 0 || (kept > 0 && kept + bytes > ABSENT_KEPT);
        if (all == GONE)
            window_free(window, false, false);
        else if (all == ABSENT && useless && turn_away(window))
            window_free(window, true, false);
        else if (force)
            window_free(window, true, true);
        else if (all == ABSENT)
            kept += bytes;
    }
}
