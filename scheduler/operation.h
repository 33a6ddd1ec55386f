/* SPDX-License-Identifier: Apache-2.0 */
/** Operation: one call of a collective, a send or a recv, from its issue to its end. The public quoit_request_t is one. */
#ifndef QUOIT_SCHEDULER_OPERATION_H
#define QUOIT_SCHEDULER_OPERATION_H

#include "base/clock.h"
#include "base/list.h"
#include "quoit/quoit_transport.h"
#include "scheduler/call.h"
#include "scheduler/device/device.h"
#include "scheduler/plan.h"
#include "scheduler/reach.h"

#include <stdatomic.h>

typedef struct operation operation_t;

typedef enum operation_kind { OPERATION_COLLECTIVE, OPERATION_SEND, OPERATION_RECV } operation_kind_t;

/** The device's side of an operation on device buffers: see operation_device.c. */
typedef struct operation_device {
    const device_row_t *row;
    device_event_t *ready;  /* recorded on the user's stream when the operation was issued */
    device_event_t *passed; /* the same, behind the wait for the word */
    uint64_t *word;         /* host memory that the user's stream waits for; 1 when the operation is over */
    /* send and recv: see match_device.c */
    quoit_device_t id;
    uint8_t phase;
    bool user_is_ready, decided, stopped; /* its stream has come to it; which way it goes; that the direct one came to an end */
    uint64_t number;        /* of the message */
    reach_t reach;
    struct stage *stage;    /* owned; NULL: none */
} operation_device_t;

struct operation {
    operation_t *next_submitted;
    list_t link;               /* in the communicator's queue, or in its list of p2p operations */
    quoit_comm_t *comm;        /* not to be touched once the operation is done */
    struct engine *engine;
    unsigned fork_generation;
    operation_kind_t kind;
    bool on_stack;             /* a blocking call's: never freed */
    bool started;
    _Atomic int status;        /* quoit_status_t: IN_PROGRESS until the end; stored with release */
    _Atomic int references;    /* the user's and the engine's */
    uint64_t deadline;         /* absolute ns; 0: nobody has asked yet, see operation_deadline */
    int timeout_ms;            /* as it was given, for texts */
    operation_description_t description;
    plan_algorithm_t algorithm;
    bool small;
    bool reduces;              /* combines elements: op means something */
    plan_side_t send, recv;
    size_t width;
    double factor[2];
    quoit_wire_t wire;         /* see plan_wire */
    int64_t share;             /* see plan_share */
    float *residual;           /* [count] the caller's; NULL: not wanted */
    uint64_t journal_number;   /* of its entry in the communicator's journal; 0: none yet */
    uint64_t trace_begun;      /* ns; 0: nobody traced it then */
    /* send and recv */
    int peer;                  /* communicator rank, or QUOIT_ANY_SOURCE */
    uint32_t tag;
    int source;                /* recv: who it came from */
    size_t bytes;
    bool envelope_sent, payload_posted;
    list_t match_link;         /* recv: in the matcher's posted list */
    /* From here on only what operation_clear names is cleared: the rest is written before it is read. */
    quoit_part_t *parts;       /* copies of the caller's part arrays; owned, kept for the next use of the operation; NULL on the stack */
    size_t parts_capacity;
    operation_device_t device; /* row NULL: host */
    quoit_transfer_t transfer;
    char error[512];           /* text of the error it ended with */
};

/** Memory of an operation that is not on the stack, from those that ended if there are some; its content is undefined but for the parts. NULL: out of memory. */
operation_t *operation_create(void);
/** All zeros, as far as it may be read before it is written; the room for parts is kept. */
void operation_clear(operation_t *operation);
/**
 * When it times out. A blocking call that runs at once has no deadline before the first look at it: most end before, and need no clock. That look is the
 * engine's, within CHECK_INTERVAL_NS of waiting.
 */
static inline uint64_t operation_deadline(operation_t *operation)
{
    if (operation->deadline == 0) operation->deadline = clock_deadline(operation->timeout_ms);
    return operation->deadline;
}
/** When it was issued, ns; 0: just now, since nobody has asked for its deadline. */
static inline uint64_t operation_issued(const operation_t *operation)
{
    return operation->deadline ? operation->deadline - (uint64_t)operation->timeout_ms * 1000000u : 0;
}
/** Room for `count` parts, whose content is undefined; false when there is no memory. */
bool operation_make_parts(operation_t *operation, size_t count);
/** Nobody uses it any more. NULL is accepted. */
void operation_destroy(operation_t *operation);

#endif
