/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Journal: what each communicator did last, kept where it can be read from outside. An engine has one: a memfd named
 * "quoit-journal" of which every communicator holds a *block* (who it is, its members, its newest operations, what it waits for).
 *
 * The engine's owner writes, by plain stores: no lock, no allocation, no call. Readers: the process itself (history.c), and any
 * process of the same user through /proc/<pid>/fd, which needs no thread of this process to answer (journal_read.c): it may be
 * stopped, or stuck in a user's code. A reader copies first and checks then; an entry whose number has changed meanwhile is left out.
 */
#ifndef QUOIT_SCHEDULER_JOURNAL_H
#define QUOIT_SCHEDULER_JOURNAL_H

#include "base/text.h"
#include "base/ticks.h"
#include "scheduler/engine.h"
#include "scheduler/operation.h"

enum {
    JOURNAL_RING = 64, /* operations remembered of each kind: collectives, sends and recvs */
    JOURNAL_NAME = 64, JOURNAL_NOTE = 640, JOURNAL_ERROR = 1024,
    JOURNAL_PAGE = 4096, JOURNAL_PAGES = 16384, JOURNAL_BLOCKS = 2048,
    JOURNAL_VERSION = 1
};
#define JOURNAL_MAGIC 0x3174696f7571ull /* "quoit1" */
#define JOURNAL_FILE "quoit-journal"    /* memfd's name, as /proc/<pid>/fd shows it */

/** One operation: a cache line. */
typedef struct journal_entry {
    _Alignas(64) _Atomic uint64_t number; /* in its ring, from 1; 0 while the entry is being written */
    uint64_t issued;                      /* ns of CLOCK_MONOTONIC; 0: it started at once */
    _Atomic uint64_t started, ended;      /* ticks; 0: not yet */
    uint64_t count;                       /* elements; UINT64_MAX: not the same on all ranks */
    uint32_t sequence;                    /* of a collective */
    uint32_t tag;
    int32_t other;                        /* root or peer; -1: none, or any */
    _Atomic int32_t status;               /* QUOIT_IN_PROGRESS until it ended */
    uint8_t kind, collective, dtype, op, algorithm;
} journal_entry_t;

typedef struct journal_ring {
    _Atomic uint64_t newest; /* number of the newest entry */
    _Atomic uint64_t ended;  /* how many have ended */
    journal_entry_t entry[JOURNAL_RING];
} journal_ring_t;

typedef struct journal_member {
    uint64_t process_high, process_low;
    int32_t pid, host; /* host: number in the communicator */
    char host_name[JOURNAL_NAME];
} journal_member_t;

typedef struct journal_block {
    _Atomic uint64_t id; /* of the communicator; stored last */
    char name[JOURNAL_NAME];
    int32_t rank, size, hosts;
    int32_t counter;               /* of ticks_now */
    _Atomic uint64_t taken;        /* collectives handed in */
    _Atomic int32_t status;        /* first error; its text is stored before */
    char error[JOURNAL_ERROR];
    /* Who is waited for, written while waiting, some ten times a second; odd while being written */
    _Atomic uint64_t note_turn;
    uint64_t note_time;            /* ns */
    uint32_t note_sequence;        /* of the collective that waits */
    char note[JOURNAL_NOTE];
    journal_ring_t collective, message;
    journal_member_t member[];     /* [size] */
} journal_block_t;

typedef struct journal_header {
    uint64_t magic;
    uint32_t version, ring, entry_size, block_size; /* the layout, for readers of another build */
    int32_t pid, counter;
    uint64_t process_high, process_low; /* of the engine */
    uint64_t ticks, ns;                 /* one moment */
    char library[16];
    char host[JOURNAL_NAME];
    _Atomic uint64_t block[JOURNAL_BLOCKS]; /* first page << 32 | pages; 0: free */
} journal_header_t;

/** Never fails: without a memfd it lives in private memory, and only the process itself can read it. */
journal_t *journal_create(quoit_process_id_t process);
void journal_destroy(journal_t *journal); /* NULL is accepted */
/** Room for a communicator of `size` ranks, cleared, to be filled and then shown (journal_publish). NULL: no memory. */
journal_block_t *journal_block_create(journal_t *journal, int size);
/** From now on readers see it. */
void journal_publish(journal_block_t *block, uint64_t id);
void journal_block_destroy(journal_t *journal, journal_block_t *block); /* NULL is accepted */

/* ------------------------------------------------------------------ writing: the engine's owner, on the data path */

static inline void journal_add(_Atomic uint64_t *word, uint64_t more)
{
    atomic_store_explicit(word, atomic_load_explicit(word, memory_order_relaxed) + more, memory_order_relaxed);
}

/** Takes the oldest entry of a ring; between the two a reader takes it for nobody's. */
static inline journal_entry_t *journal_open(journal_ring_t *ring, uint64_t *number)
{
    *number = atomic_load_explicit(&ring->newest, memory_order_relaxed) + 1;
    journal_entry_t *entry = &ring->entry[*number % JOURNAL_RING];
    atomic_store_explicit(&entry->number, 0, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    return entry;
}

static inline void journal_close(journal_ring_t *ring, journal_entry_t *entry, uint64_t number, uint64_t started, uint64_t ended, int status)
{
    atomic_store_explicit(&entry->started, started, memory_order_relaxed);
    atomic_store_explicit(&entry->ended, ended, memory_order_relaxed);
    atomic_store_explicit(&entry->status, status, memory_order_relaxed);
    atomic_store_explicit(&entry->number, number, memory_order_release);
    atomic_store_explicit(&ring->newest, number, memory_order_release);
}

/** The operation starts (or ends without having started). */
static inline void journal_begin(journal_block_t *block, operation_t *operation, bool starts)
{
    bool collective = operation->kind == OPERATION_COLLECTIVE;
    journal_ring_t *ring = collective ? &block->collective : &block->message;
    journal_entry_t *entry = journal_open(ring, &operation->journal_number);
    entry->issued = operation_issued(operation);
    entry->count = collective ? operation->description.count : operation->recv.count;
    entry->sequence = operation->description.sequence;
    entry->tag = operation->tag;
    entry->other = collective ? operation->description.root : operation->peer;
    entry->kind = (uint8_t)operation->kind;
    entry->collective = operation->description.collective;
    entry->dtype = operation->description.dtype;
    entry->op = operation->description.op;
    entry->algorithm = (uint8_t)operation->algorithm;
    journal_close(ring, entry, operation->journal_number, starts ? ticks_now(block->counter) : 0, 0, QUOIT_IN_PROGRESS);
}

/** A send that was over at once. */
static inline void journal_sent(journal_block_t *block, int peer, uint32_t tag, size_t count, quoit_dtype_t dtype)
{
    uint64_t number, now = ticks_now(block->counter);
    journal_ring_t *ring = &block->message;
    journal_entry_t *entry = journal_open(ring, &number);
    entry->issued = 0;
    entry->count = count;
    entry->sequence = 0;
    entry->tag = tag;
    entry->other = peer;
    entry->kind = OPERATION_SEND;
    entry->collective = entry->algorithm = 0;
    entry->dtype = (uint8_t)dtype;
    entry->op = QUOIT_OP_COUNT;
    journal_close(ring, entry, number, now, now, QUOIT_OK);
    journal_add(&ring->ended, 1);
}

/** The operation ends. Its entry may be another's by now: more operations than the ring holds came after it. */
static inline void journal_end(journal_block_t *block, operation_t *operation, int status)
{
    if (!operation->journal_number) journal_begin(block, operation, false);
    journal_ring_t *ring = operation->kind == OPERATION_COLLECTIVE ? &block->collective : &block->message;
    journal_entry_t *entry = &ring->entry[operation->journal_number % JOURNAL_RING];
    journal_add(&ring->ended, 1);
    if (atomic_load_explicit(&entry->number, memory_order_relaxed) != operation->journal_number) return;
    if (operation->kind == OPERATION_RECV && entry->other < 0 && status == QUOIT_OK) entry->other = operation->source;
    atomic_store_explicit(&entry->ended, ticks_now(block->counter), memory_order_relaxed);
    atomic_store_explicit(&entry->status, status, memory_order_release);
}

/** Who the running collective waits for; away from the data path. */
void journal_note(journal_block_t *block, uint64_t now, uint32_t sequence, const char *text);
/** The communicator's first error. */
void journal_fail(journal_block_t *block, int status, const char *text);

/* ------------------------------------------------------------------ reading */

/** What a reader knows beside the block. */
typedef struct journal_view {
    int32_t pid;
    char host[JOURNAL_NAME];
    quoit_process_id_t process;
    ticks_line_t line;
    uint64_t now;          /* ns of CLOCK_MONOTONIC */
    int64_t to_real;       /* ns from CLOCK_MONOTONIC to CLOCK_REALTIME */
    bool look_at_mates;    /* read the journals of host mates, too */
} journal_view_t;

/** The view of the own process, for blocks of this journal. */
void journal_view_own(const journal_t *journal, journal_view_t *view);
/** A stable copy of a block, by malloc; `source` may be written meanwhile, and is read by nothing but memcpy. */
journal_block_t *journal_block_copy(const journal_block_t *source);

/** Append a communicator as text, or as one JSON object. */
void journal_print_text(const journal_block_t *block, const journal_view_t *view, text_t *text);
void journal_print_json(const journal_block_t *block, const journal_view_t *view, text_t *text);

/** Another process's journals: `show` is called once for each communicator, with copies. ERR_NOT_FOUND, ERR_SYSTEM with a text. */
typedef void journal_show_t(void *context, const journal_block_t *block, const journal_view_t *view);
quoit_status_t journal_read_process(int pid, journal_show_t *show, void *context);
/** The same for one journal, open as `fd`, of process `pid`. */
quoit_status_t journal_read_file(int fd, int pid, journal_show_t *show, void *context);
/** Number of the newest collective that a process has begun on a communicator; false when it cannot be told. */
bool journal_read_newest(int pid, quoit_process_id_t process, uint64_t comm, uint32_t *sequence, char *text, size_t capacity);

#endif
