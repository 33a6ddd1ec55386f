/* SPDX-License-Identifier: Apache-2.0 */
/** Executor: runs the plan of a communicator's current operation, several chunks in flight, never blocking. */
#ifndef QUOIT_SCHEDULER_EXECUTE_H
#define QUOIT_SCHEDULER_EXECUTE_H

#include "scheduler/operation.h"
#include "scheduler/window.h"

enum { EXECUTE_MAX_DEPTH = 16 };
#define EXECUTE_NOT_STAGED SIZE_MAX

/** Where a chunk stands. Device buffers: copied to the host before step 0 and back after the last step. */
typedef enum chunk_phase { CHUNK_STAGE_IN, CHUNK_STAGE_IN_WAIT, CHUNK_STEPS, CHUNK_STAGE_OUT, CHUNK_STAGE_OUT_WAIT, CHUNK_DONE } chunk_phase_t;

typedef struct chunk_run {
    size_t chunk;
    chunk_phase_t phase;
    int step;
    int transfers; /* started and not yet waited for */
    bool direct;   /* device buffers: its messages leave from and land in the device's memory, nothing is copied before or after */
    uint64_t since; /* traced: when the step before ended, ns; 0: not yet known */
} chunk_run_t;

/** One transfer and whom it joins, for texts. */
typedef struct execute_transfer {
    quoit_transfer_t transfer;
    int peer; /* communicator rank */
    bool receives;
    /* of a direct chunk */
    void *device_memory;
    size_t bytes;
    struct stage *stage; /* owned: the transfer stopped, and goes through host memory; NULL: it does not */
} execute_transfer_t;

/** Host memory of a device's row through which the blocks of SEND, or of RECV, go: the caller's are on the device. */
typedef struct execute_staging {
    uint8_t *memory;      /* owned; [execution.depth][stride] */
    size_t capacity;
    size_t stride;        /* bytes of a chunk: its pieces of all blocks that the plan touches, one behind the other */
    size_t *place;        /* owned; [blocks], uniform: [1]. Where in a chunk's bytes the piece of a block is; EXECUTE_NOT_STAGED */
    size_t place_capacity;
    bool copied;          /* SEND: to here before the steps; RECV: from here after them */
} execute_staging_t;

typedef struct execution {
    operation_t *operation; /* NULL: nothing runs */
    plan_t *plan;
    plan_binding_t binding;
    const plan_t *bound;    /* the plan that the binding, and what follows from it, was made for; NULL: none that can be used again */
    uint64_t count;         /* elements that were called for then */
    uint64_t base;          /* ticket before chunk 0 */
    size_t depth;           /* chunks in flight at most: the plan's, or fewer where a device's staging would grow too large */
    size_t next, oldest;    /* chunks: next to start, oldest in flight */
    chunk_run_t run[EXECUTE_MAX_DEPTH];
    bool layout_kept;       /* the large slots are used as by the operation before */
    size_t slot_stride;     /* bytes from one slot to the next */
    bool tiny;              /* its slots are in the line that is polled */
    size_t slots;           /* large ones that a rank rotates through, at least the plan's depth */
    uint64_t quiet;         /* of this many slots, read one after the other, it is not told at once: a power of two less one */
    bool shares;            /* the own input is read where it lies: nothing of it is published */
    bool reads_inputs;      /* inputs of others were, too: they may be withdrawn */
    bool streams;           /* the result does not fit the cache: STEP_STREAM pays */
    /* grow only, so that a communicator in its stride allocates nothing */
    execute_transfer_t *transfer; /* [depth * plan->transfers] */
    size_t transfer_capacity;
    uint8_t *scratch;       /* TEMP: [depth][temps] */
    size_t scratch_capacity;
    const void **source;    /* [members] for reductions over the window */
    int source_capacity;
    /* device */
    const device_row_t *row;      /* of the operation that runs; NULL: host buffers */
    const device_row_t *row_idle; /* whose stream, staging buffers and events are kept here */
    bool user_is_ready;           /* the user's stream has come to the operation */
    void *stream;
    reach_t reach;                /* the buffer, where the operation's transport reaches it: large chunks are direct */
    execute_staging_t send, recv;
    device_event_t *event[EXECUTE_MAX_DEPTH];
} execution_t;

/** A chunk in flight has this place in whatever there are `depth` of: runs, scratch, staging, events. */
static inline size_t execution_place_of(const execution_t *execution, size_t chunk) { return chunk % execution->depth; }
/** The transfers of a chunk in flight: room for plan->transfers, of which those of its run are started. */
static inline execute_transfer_t *execution_transfers_of(const execution_t *execution, size_t chunk)
{
    return &execution->transfer[execution_place_of(execution, chunk) * (size_t)execution->plan->transfers];
}
static inline uint64_t execution_ticket_of(const execution_t *execution, size_t chunk) { return execution->base + chunk + 1; }
/** The ticket that all members must have consumed before the chunk's own slot may be written again; 0: none. */
static inline uint64_t execution_ticket_to_reclaim(const execution_t *execution, size_t chunk)
{
    const bool small = execution->plan->small;
    uint64_t ticket = execution_ticket_of(execution, chunk), slots = small ? WINDOW_SMALL_DEPTH : execution->slots;
    if (!small && !execution->layout_kept && chunk < slots) return execution->base; /* first use in this layout */
    return ticket > slots ? ticket - slots : 0;
}

/** Begin the operation: plan, binding, memory. An error (text set) fails the communicator. */
quoit_status_t execute_begin(quoit_comm_t *comm, operation_t *operation);
/** Run what can run. QUOIT_OK: the operation is done; IN_PROGRESS; or an error (text set). *moved: something happened. */
quoit_status_t execute_advance(quoit_comm_t *comm, bool *moved);
/** The operation ended (well or not): give back what it held. */
void execute_end(quoit_comm_t *comm);
void execute_destroy(quoit_comm_t *comm); /* only for the owner */
/** All chunks are done, but others still read the own input. */
bool execute_awaits_readers(const quoit_comm_t *comm);
/** Who is being waited for: "rank 3 (node7, pid 12), which last called allreduce #56" ...; "" when nobody. */
void execute_missing(quoit_comm_t *comm, char *text, size_t capacity);
/** Ranks being waited for; returns their number, at most `capacity`. */
int execute_awaited(quoit_comm_t *comm, int *ranks, int capacity);
/** How sure is it who is missing? Somebody has not come for certain; only messages lack; those awaited are in the operation, too. */
typedef enum execute_doubt { DOUBT_NONE, DOUBT_MESSAGES, DOUBT_MATES } execute_doubt_t;
execute_doubt_t execute_doubt(quoit_comm_t *comm);

/** Name of a member that this operation waits for and that has left; NULL: none. */
const char *execute_left(quoit_comm_t *comm);
/** ERR_MISMATCH (text set) when a host mate runs another operation of the same number. */
quoit_status_t execute_check(quoit_comm_t *comm);
/** Does that member run another operation of the same number? The text names both. */
bool execute_disagrees(quoit_comm_t *comm, int member);
/** Text and status of why a transfer failed: the peer's loss explains more than what the connection saw. */
quoit_status_t execute_explain_transfer(quoit_comm_t *comm, const execute_transfer_t *failed);

#endif
