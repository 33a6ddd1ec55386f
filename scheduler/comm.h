/* SPDX-License-Identifier: Apache-2.0 */
/** Communicator: a group of ranks of a job, its queue of operations, its window, its plans and its first error. */
#ifndef QUOIT_SCHEDULER_COMM_H
#define QUOIT_SCHEDULER_COMM_H

#include "scheduler/execute.h"
#include "scheduler/job.h"
#include "scheduler/journal.h"
#include "scheduler/match.h"
#include "scheduler/stall.h"
#include "scheduler/window.h"

enum { COMM_NAME_CAPACITY = 64, COMM_PLANS = 32, COMM_HISTORY = 16, COMM_MISMATCH_TEXT = 768 };

struct quoit_comm {
    engine_t *engine;
    job_t *job;
    uint64_t id;
    uint64_t family;        /* of a group: hash of parent, name and how often that was used; not of its members. 0: none */
    char name[COMM_NAME_CAPACITY];
    unsigned fork_generation;
    int rank, size;
    int *job_rank;          /* [size] rank in the job */
    topology_t *topology;
    int timeout_ms;         /* atomic: any thread may set it (quoit_comm_set_timeout) */
    quoit_wire_t wire;      /* what it wants, never DEFAULT: see plan_wire */

    /* the engine owner's */
    list_t link;            /* engine->active while something is unfinished */
    bool is_active;
    list_t queue;           /* collectives in order of issue */
    list_t messages;        /* sends and recvs not done */
    uint32_t sequence;      /* of the newest collective taken from the queue */
    uint32_t hash;          /* of all collectives so far */
    /* The newest collectives, at their sequence mod COMM_HISTORY: what other ranks' calls are compared with. The journal has more of them but lies
       in memory that other processes may open, and says nothing of hashes. */
    call_t history[COMM_HISTORY];
    uint64_t wait_begun;    /* when the slow part of waiting was first come to, in this operation; 0: not yet */
    uint32_t wait_sequence; /* `sequence` then */
    stall_t stall;          /* of the running collective */
    struct inquiry *inquiry; /* what other ranks told of their calls; NULL until it was asked */
    window_t *window;       /* NULL until the first operation that uses it, or when no rank shares the host */
    execution_t execution;  /* of the head of the queue */
    matcher_t matcher;
    struct shrink *shrink;  /* agreement with the survivors, after a failure; NULL until somebody begins it */
    plan_t *plans[COMM_PLANS];
    int plan_count, plan_next;
    operation_description_t last; /* newest operation that finished */
    uint64_t finished;      /* operations */
    struct stage_lane *lane[DEVICE_MAX]; /* owned; for sends and recvs of device buffers; NULL until they are needed */
    uint64_t device_direct, device_staged; /* bytes of device buffers that transports moved by themselves, and that were copied through the host */
    uint64_t copied, in_place; /* bytes that steps copied, and that they read in others' memory outside of slots */
    uint32_t trace_turn, trace_arrived; /* place is one of this trace; newest operation whose first wait was traced */
    uint16_t trace_place;
    journal_block_t *journal; /* its newest operations, where they can be read from outside */
    bool relays;            /* another rank's failure is being passed on */
    quoit_status_t word;    /* that failure, while what had come before word of it is still taken; else QUOIT_OK */
    uint64_t left_seen;     /* engine->network_polls when somebody was found to have left; 0: nobody */

    /* its first error; status is stored last, with release */
    _Atomic int status;
    char error[ERROR_TEXT_CAPACITY];
    char cause[ERROR_TEXT_CAPACITY]; /* the part of it that other ranks are told */
    int finder;             /* rank that found it */
};

/** As quoit_comm_create, on a given engine (which gets one more user). */
quoit_status_t comm_create_on(engine_t *engine, quoit_store_t *store, int rank, int size, const quoit_comm_config_t *config,
                              quoit_comm_t **comm);

/**
 * A communicator of `ranks` of the job (NULL: all), with the wire format of the job's tuning. Takes one user of the job, none of the engine, on success only. Only for the
 * engine's owner.
 */
quoit_status_t comm_make(job_t *job, uint64_t id, uint64_t family, int rank, int size, const int *ranks, const char *name, int timeout_ms, quoit_comm_t **comm);
/**
 * Check a configuration and read it: *name is left alone when there is none; *timeout_ms is the setting's then, *wire DEFAULT. Older
 * ones, that end before wire, are taken.
 */
quoit_status_t comm_read_config(const quoit_comm_config_t *config, const char **name, int *timeout_ms, quoit_wire_t *wire);

/** Fail: every operation ends with `status` and `text`; nobody touches their buffers any more; the other ranks are told unless they know.
 *  The first call counts. Only for the owner. */
void comm_fail(quoit_comm_t *comm, quoit_status_t status, bool tell, const char *format, ...) __attribute__((format(printf, 4, 5)));
/** As comm_fail, with the cause as another rank found it: kept as it is, and the finder is named once. It is passed on. */
void comm_fail_told(quoit_comm_t *comm, quoit_status_t status, int finder, const char *cause);
/** "ranks called different operations: ...": the call here, and that of the rank named `other`. */
void comm_mismatch_text(const quoit_comm_t *comm, const operation_description_t *here, const char *other, const operation_description_t *there,
                        char text[COMM_MISMATCH_TEXT]);
/** Fail with that text. */
void comm_fail_mismatch(quoit_comm_t *comm, const operation_description_t *here, int other, const operation_description_t *there);
/** Advance what runs. Only for the owner. True when something moved. */
bool comm_advance(quoit_comm_t *comm);
/** Take an operation that was handed in. Only for the owner. */
void comm_take(quoit_comm_t *comm, operation_t *operation);
/** Check deadlines, deaths and mismatches: the slow part of waiting. */
void comm_check(quoit_comm_t *comm, uint64_t now);
/** Earliest deadline of its unfinished operations; CLOCK_NEVER. */
uint64_t comm_deadline(const quoit_comm_t *comm);
/** A plan from the cache, else a new one. */
quoit_status_t comm_plan(quoit_comm_t *comm, const plan_request_t *request, plan_t **plan);
/** "rank 3 (node7, pid 1234)" for a rank of this communicator */
const char *comm_rank_name(const quoit_comm_t *comm, int rank);
/** A send or recv, for texts: "recv from rank 1 (...) (tag 7, 4 bytes)". */
void comm_message_text(const quoit_comm_t *comm, const operation_t *message, char *text, size_t capacity);
/** One of the communicator's processes was lost; `text` tells how. */
void comm_peer_lost(quoit_comm_t *comm, peer_t *peer);

/** Somebody was found to have left: false until the network has been looked at once more, for the word that it may have sent before. */
bool comm_word_has_come(quoit_comm_t *comm);

/** Text of an operation: "allreduce #57 (float32, sum, 1024 elements)". */
void operation_text(const operation_description_t *description, char *text, size_t capacity);
/** The operation's end, once: status and text, references. Only for the owner. */
void operation_finish(operation_t *operation, quoit_status_t status, const char *text);
void operation_release(operation_t *operation);

#endif
