/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Engine: what moves operations. It holds the opened transports, the peers that communicators share, and the operations that run.
 *
 * One thread at a time *owns* the engine (engine_enter .. engine_leave) and drives all of it, its own operation first; nothing in
 * here needs another lock. Threads that wait for an operation while somebody else drives sleep until it is done or the engine is
 * free. What nobody waits for is driven by one progress thread, which gives way at once and sleeps when there is nothing to do.
 * New operations come in through a lock-free stack, so issuing one never waits for the owner.
 *
 * Below it: transport/ (moves bytes), window.h (shared slots). Above it: communicators (comm.h), which queue operations here.
 */
#ifndef QUOIT_SCHEDULER_ENGINE_H
#define QUOIT_SCHEDULER_ENGINE_H

#include "base/list.h"
#include "base/publish.h"
#include "base/status.h"
#include "base/table.h"
#include "quoit/quoit_transport.h"
#include "scheduler/device/device.h"
#include "transport/registry.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct engine engine_t;
typedef struct operation operation_t;
typedef struct journal journal_t;
typedef struct trace trace_t;

enum { PEER_NAME_CAPACITY = 192 };

/** A process we talk to; shared by all communicators it is in, counted. Our own process is one too. */
typedef struct peer {
    quoit_process_id_t process;
    engine_t *engine;
    int users;                    /* jobs that hold it */
    quoit_endpoint_t *map;        /* same host: its memory is readable here; NULL otherwise */
    quoit_endpoint_t *message;    /* for send, recv, notify; NULL until first used between hosts */
    char name[PEER_NAME_CAPACITY]; /* "rank 3 (node7, pid 1234)" */
    quoit_status_t status;        /* QUOIT_OK, or how it was lost */
    bool left;                    /* it said goodbye */
    bool unheard;                 /* its connection broke before a byte of it came: it may not know that this side took it for standing */
    bool proven;                  /* bootstrap: its memory was attached */
    char text[ERROR_TEXT_CAPACITY]; /* why, when status is an error */
} peer_t;

typedef struct engine_block engine_block_t; /* window_pool.c */

/** Pieces of shared memory of one kind. */
typedef struct engine_pool {
    list_t blocks;
    size_t bytes; /* of a piece */
    int pieces;   /* in a block, at most 32 */
    bool zero;    /* pieces are cleared when they are taken */
} engine_pool_t;

typedef struct engine_transport {
    const quoit_transport_ops_t *ops;
    quoit_transport_t *transport;
    uint8_t address[QUOIT_ADDRESS_CAPACITY];
    size_t address_length;
    bool optional; /* the setting lets this process do without it */
    uint8_t reaches[DEVICE_MAX];    /* REACH_...: see reach.h */
    bool told_unreached[DEVICE_MAX]; /* the log has a warning that some buffer is not */
} engine_transport_t;

enum { REACH_UNKNOWN, REACH_YES, REACH_NO };

/** Nobody owns it; a thread does; nobody, but the progress thread sleeps on everything that may arrive, and everything is armed for that. */
enum { OWNED_NOT, OWNED, OWNED_NOT_HEARD };

struct engine {
    quoit_process_id_t self;
    int doorbell, epoll; /* owned */
    bool doorbell_is_lent; /* a device that hangs may ring it after the engine's end: it stays open */
    unsigned fork_generation;
    uint64_t host_label;         /* engines with different ones count as different hosts; set by tests with ranks as threads */
    int users;           /* communicators */
    int memory_users;    /* blocks of memory that callers hold; counted under the same lock */
    bool ended;          /* the last user has gone: only memory is kept */

    /* ownership */
    _Atomic int owned;       /* OWNED_... */
    _Atomic int claims, sleeping, waiting;
    _Atomic int hears;       /* the progress thread listens, or has not noticed yet that somebody took the engine from it */
    pthread_mutex_t mutex;   /* guards the two condition variables, `work` and `listens`, nothing else */
    pthread_cond_t free_or_done;
    pthread_cond_t progress_wanted;
    bool work;               /* for the progress thread */
    bool listens;            /* it hears other hosts while nobody calls: engine_listen */
    _Atomic bool stop;
    bool progress_running;
    _Atomic bool progress_refused; /* the system gave no thread: it is asked again, and that was told */
    pthread_t progress_thread;
    _Atomic(operation_t *) submitted; /* newest first */
    trace_t *trace;          /* NULL: nobody wants a timeline; the owner's */
    bool trace_taken;        /* the setting's trace was begun */
    int rank;                /* in the job, -1 before the first communicator */
    journal_t *journal;      /* what communicators did last; written by the owner */

    /* the owner's */
    engine_transport_t transport[REGISTRY_CAPACITY];
    int transports;
    engine_transport_t *map;     /* the MAP transport, NULL when there is none */
    char map_lack[256];          /* why there is none though settings allow one; "" otherwise */
    struct {
        const char *transport;
        char why[160];
    } lack[2];                   /* of transports that leave the host: those that were wanted and are not here */
    int lacks;
    table_t *peers;              /* process id -> peer_t */
    table_t *comms;              /* {0, communicator id} -> quoit_comm_t */
    quoit_comm_t *noticed;       /* of them, whose notice came last; NULL: none, or it has gone */
    list_t active;               /* communicators with unfinished operations */
    list_t orphans;              /* notices for communicators that do not exist here yet */
    list_t sections;             /* windows of destroyed communicators, kept until all local members have left */
    size_t orphan_bytes;
    uintptr_t memory_low;        /* callers' memory lies in [memory_low, memory_low + memory_span): see memory.h */
    size_t memory_span;          /* 0: nobody has asked for any */
    size_t memory_bytes;         /* of it, given out or kept */
    list_t memory_kept;          /* blocks given back */
    int memory_kept_count;
    engine_pool_t section_pool, slot_pool; /* of windows: see window_pool.h */
    list_t leased;               /* windows that hold large slots, longest held first */
    size_t lease_bytes;
    int running;                 /* operations not done */
    int transfers;               /* messages under way, and sends and recvs not done: the network must be polled */
    bool failed;                 /* a communicator failed at some time */
    bool left_out;               /* one was shrunk without ranks that may be alive, and read what they are sent, or not */
    bool completed;              /* an operation ended since the last wake-up of waiters */
    bool in_the_way;             /* a host mate we wait for was last seen on our processor */
    bool owner_is_progress;      /* the owner gives way to threads that wait */
    uint64_t next_check;
    bool spin;                   /* enough processors for the ranks of this host */
    int host_ranks;              /* of the largest job */
    _Atomic uint64_t polls;      /* the progress thread looks whether anybody calls */
    uint64_t network_polls;
    uint64_t spin_time;          /* ns */
    size_t stream_bytes;         /* results of at least this size are stored past the cache */
    publish_t publish;           /* how slots are written */
    bool device_direct;          /* transports may reach devices' memory by themselves */
    uint64_t freed_seen;         /* of the device table's history: told to transports */
};

/** The process's engine, made when first used; counted. */
quoit_status_t engine_default(engine_t **engine);
/** The same if there is one, with one more user; else NULL. */
engine_t *engine_current(void);
/** A new one, users == 1: for tests with ranks as threads. */
quoit_status_t engine_create(engine_t **engine);
/** One user more. */
void engine_retain(engine_t *engine);
/** One user less; the last one drains what peers still need (bounded by setting LINGER) and frees it. */
void engine_release(engine_t *engine);

/** A caller holds one block more, or less, of the engine's memory, which stays mapped as long: see memory.h. */
void engine_memory_retain(engine_t *engine);
void engine_memory_release(engine_t *engine);

/** Own the engine; waits for the owner to give way (within one step). */
void engine_enter(engine_t *engine);
/** The same if it is free; else false at once. */
bool engine_try_enter(engine_t *engine);
/**
 * Own it for a call that ends at once and needs no operation: false, and not owned, when it is not free or operations that were handed in before are still to
 * be taken. Looks at the transports as often as other calls do.
 */
bool engine_try_enter_quiet(engine_t *engine);
/** As engine_leave, but first write what is left of messages that have ended here, rather than wake a thread for it. */
void engine_leave_written(engine_t *engine);
/** Give it up and wake who goes on: threads that wait or claim it, else the progress thread when work is left. */
void engine_leave(engine_t *engine);

/** Hand an operation in. Any thread, no waiting. `unattended`: the caller will not wait for it at once. */
void engine_submit(engine_t *engine, operation_t *operation, bool unattended);
/** Drive (or sleep while another thread drives) until the operation is done or the deadline is over. */
void engine_wait(engine_t *engine, operation_t *operation, uint64_t deadline);
/** Hand in a blocking operation and drive until it ends: as submit and wait, but without the two when the engine is free. */
void engine_run(engine_t *engine, operation_t *operation);
/** One round without waiting; only for the owner. True when something moved. */
bool engine_poll(engine_t *engine);
/**
 * From now on the progress thread takes in what comes from other hosts while nobody calls: questions, connections, news of failures.
 * Without it they wait for the next call, and a rank that is busy elsewhere looks to its peers like one that was stopped.
 */
void engine_listen(engine_t *engine);
/** An operation was finished: wake whoever sleeps for it. Only for the owner. */
void engine_completed(engine_t *engine);

/** Only for the owner: the peer with this process id, made if need be, with one more user. */
quoit_status_t engine_peer(engine_t *engine, quoit_process_id_t process, const char *name, peer_t **peer);
void engine_peer_release(peer_t *peer);
/** The opened transport of that name; NULL when there is none. */
engine_transport_t *engine_find_transport(engine_t *engine, const char *name);

/** Number that changes in the child after fork(). */
unsigned engine_fork_generation(void);

#endif
