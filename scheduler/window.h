/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Window: what the ranks of one host share in one communicator. Each member owns a *section* in its own process's shared memory:
 * a line of counters that the others poll, and what describes its current operation; two small slots; and large slots that are leased
 * while they are needed. Members find each other's section in the directory at the root of each process's memory, and in it where the slots are.
 *
 * One writer a word. A counter only rises. Nothing here is a lock: a member that is killed or stopped leaves nothing held.
 *
 *   line   stage[s]  ticket of the newest chunk whose stage s is signalled      written by the owner, polled by the members
 *          consumed  ticket up to which the owner has read the others' slots
 *          current   sequence << 32 | hash of all operations so far
 *          tiny      slots of operations of up to 8 bytes: they come with the signal that they wait for
 *   state  lease     number of the lease whose handle the section holds
 *          left      1: the owner has destroyed the communicator
 *
 * What a member has read of small slots is told with its next operation, in the same store of the line, since nobody waits for it before: a slot is
 * written again two operations later. What the owner has seen of `consumed` it remembers, and looks again only when that is not enough.
 *
 * A member whose input lies in its shared memory (scheduler/memory.h) need not copy it into slots: it tells in its section where that
 * is and of which operation, before that operation's first signal, and the others read it there.
 */
#ifndef QUOIT_SCHEDULER_WINDOW_H
#define QUOIT_SCHEDULER_WINDOW_H

#include "scheduler/engine.h"
#include "scheduler/operation.h"
#include "scheduler/plan.h"

enum { WINDOW_SMALL_DEPTH = 2, WINDOW_SMALL = WINDOW_SMALL_DEPTH * PLAN_SMALL_SLOT, WINDOW_HISTORY = 16, WINDOW_TINY = 8 /* bytes */ };

typedef struct window_line {
    _Alignas(64) _Atomic uint64_t stage[PLAN_STAGES];
    _Atomic uint64_t consumed;
    _Atomic uint64_t current;
    uint8_t tiny[WINDOW_SMALL_DEPTH][WINDOW_TINY];
} window_line_t;

/*
 * Bytes that the large slots rotate through, for all members alike. Some twice what a core's own cache holds (about 1 MiB today):
 * a slot that is written again has then left the caches of those who read it, and writing it is up to five times as fast.
 */
enum { WINDOW_RING = 2 << 20, WINDOW_RING_OF_MANY = WINDOW_RING / 2 /* among more than two: their caches see the slots of all */ };

typedef struct window_section {
    window_line_t line;
    _Alignas(64) _Atomic uint64_t lease;
    _Atomic uint64_t left;
    _Atomic uint64_t failed; /* 1: the newest operation has failed here; its signals are taken back, and what its input holds is of no more use */
    /* The newest operations, at their sequence mod WINDOW_HISTORY: a member may be ahead of others, but not by that much. */
    _Alignas(64) _Atomic uint64_t recent[WINDOW_HISTORY]; /* as `current` */
    _Alignas(64) operation_description_t description[WINDOW_HISTORY];
    _Alignas(64) uint8_t lease_handle[QUOIT_HANDLE_CAPACITY];
    uint8_t small_handle[QUOIT_HANDLE_CAPACITY]; /* of the small slots: WINDOW_SMALL bytes */
    /* The owner's input of the operation whose first ticket is input_ticket; before that it may still be another's. */
    _Alignas(64) _Atomic uint64_t input_ticket;
    uint8_t input_handle[QUOIT_HANDLE_CAPACITY];
} window_section_t;

/** One member as seen from here. */
typedef struct window_member {
    peer_t *peer;
    window_section_t *section; /* NULL until found in its directory */
    uint8_t *small;            /* its small slots */
    uint64_t consumed;         /* newest value seen */
    bool left;                 /* not found: it has destroyed the communicator before this process came */
    uint64_t lease;            /* number of the lease that `large` belongs to */
    uint8_t *large;            /* its leased slots, here */
    size_t large_bytes;
    uint64_t input_ticket;     /* of the operation that `input` belongs to */
    const uint8_t *input;      /* its input, here; NULL: in its slots */
    size_t input_length;
} window_member_t;

typedef struct window {
    engine_t *engine;
    uint64_t comm;             /* id */
    list_t link;               /* engine->sections after close */
    int members, me;
    int entry;                 /* own entry in the directory */
    window_section_t *section; /* own */
    bool failed;               /* closed after a failure */
    bool busy;                 /* an operation runs: the lease stays */
    uint64_t ticket;           /* tickets given to operations so far: the same on all members */
    uint64_t read;             /* small slots are read up to this ticket; to be told */
    uint8_t *lease;            /* own large slots, NULL when none */
    size_t lease_bytes;
    bool lease_outgrown;       /* to be made larger once it is reclaimed */
    uint64_t lease_ticket;     /* of the last operation that used it */
    list_t lease_link;         /* engine->leased */
    size_t large_stride;       /* layout in which the large slots were last used */
    size_t large_slots;
    window_member_t member[];
} window_t;

/** Of a new engine. */
void window_pools_init(engine_t *engine);
/** Make and publish the own section. peer[i]: member i's process; all but `me` must be mapped. */
quoit_status_t window_create(engine_t *engine, uint64_t comm, int members, int me, peer_t *const *peer, window_t **window);
/**
 * Leave: peers may still read what was published, so the memory goes when all have left (window_collect). NULL is accepted.
 * A member that never came is not waited for when there was no operation, or too much is kept for such: coming later it is told that
 * this one has left. Nor when the communicator has failed: all that it would find here is the error, which it has been told.
 */
void window_close(window_t *window, bool failed);
/** Free closed windows that nobody reads any more; all of them when `force`. */
void window_collect(engine_t *engine, bool force);

/**
 * A mark: a number, no communicator's, that host mates find in this process's directory. Only for the engine's owner. Unmarked, it can still
 * be found until its entry is needed for something else.
 */
quoit_status_t window_mark(engine_t *engine, uint64_t id, int *mark);
void window_unmark(engine_t *engine, int mark);
bool window_is_marked(const peer_t *peer, uint64_t id);

/** Section of a member: QUOIT_OK, ERR_AGAIN while it has not come, or an error. */
quoit_status_t window_find(window_t *window, int member);
/** Begin an operation: publish sequence, hash, description. */
void window_begin(window_t *window, const operation_description_t *description, uint32_t hash);
/** Own large slots of at least `bytes` in all. ERR_NO_MEMORY with a text. */
quoit_status_t window_lease(window_t *window, size_t bytes);
/**
 * A member's large slots (after its first signal of this operation), of which the first `needed` bytes are to be used; NULL with an error
 * text when it published fewer, or nonsense.
 */
uint8_t *window_large(window_t *window, int member, size_t needed);
/**
 * Tell, before the first signal of the operation whose first ticket is `ticket`, that the own input is to be read where it lies.
 * False (no error text) when that is not memory of this process that is shared.
 */
bool window_share_input(window_t *window, const void *input, size_t bytes, uint64_t ticket);
/** The input that a member shares in that operation, after its first signal; *input is NULL when it does not. */
quoit_status_t window_input(window_t *window, int member, uint64_t ticket, const uint8_t **input, size_t *length);
/**
 * The operation whose tickets are those after `base` has failed here, and its input may be written by its owner at once: take back what was
 * signalled of it. Else a member that comes to it later would find all that it needs, and end it well, where the others have an error.
 */
void window_fail(window_t *window, uint64_t base);
/** Has this member done so? Then its signals do not tell whether it came. */
bool window_has_failed(const window_t *window, int member);
/** After reading inputs of that operation where they lie: has one of their owners failed, so that what was read may be anything? */
bool window_is_withdrawn(const window_t *window, uint64_t ticket);
/** Give the lease back if all members have consumed everything in it; what they have read of small slots since may be untold. */
void window_try_return(window_t *window);

/** QUOIT_OK when all other members have consumed up to `ticket`, IN_PROGRESS until then; ERR_PROTOCOL for a member that publishes nonsense. */
quoit_status_t window_consumed(window_t *window, uint64_t ticket);
/**
 * Tell the host mates which processor this thread waits on, and ask whether one of them was last seen on it: then polling only keeps
 * it from running, and yielding at once lets it publish.
 */
void window_tell_cpu(engine_t *engine, unsigned cpu);
bool window_shares_cpu(window_t *window, unsigned cpu);
/** Small slots are read up to this ticket: told when the next operation begins. */
static inline void window_read_small(window_t *window, uint64_t ticket) { window->read = ticket; }
/** Store with release and wake members that sleep. */
void window_signal(window_t *window, _Atomic uint64_t *word, uint64_t ticket);

#endif
