/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Trace: a timeline of an engine's operations and of their stages, when it is asked for (setting TRACE, quoit_trace_start).
 *
 * While it runs, an event is 64 bytes stored into a mapped file, "<path>.partial": a ring of a fixed size whose disk space was taken
 * at the start, so that no event can fail and none makes a system call. The kernel has the pages: SIGKILL loses at most the event
 * being written. At the end whoever ends it (never the data path) writes the ring as JSON to <path> and removes the partial file;
 * what a killed process leaves behind is turned into JSON by trace_convert. Another process that is told the same path makes a file of
 * its own in that place, and takes nothing from under this one.
 */
#ifndef QUOIT_SCHEDULER_TRACE_H
#define QUOIT_SCHEDULER_TRACE_H

#include "base/clock.h"
#include "scheduler/engine.h"
#include "scheduler/operation.h"

typedef enum trace_type { TRACE_BEGUN = 1, TRACE_ENDED, TRACE_STEP, TRACE_ARRIVAL } trace_type_t;

/** One event; times in ns of CLOCK_MONOTONIC. */
typedef struct trace_event {
    uint64_t begin, end; /* BEGUN: end is 0 */
    uint64_t issued;     /* of an operation */
    uint64_t count;      /* of an operation: elements */
    uint32_t sequence;   /* of the collective; of a message: its number in the journal */
    uint32_t chunk;      /* STEP: its chunk; a message: its tag */
    int32_t other;       /* root or peer */
    int32_t status;
    uint16_t comm;       /* place in the file's table */
    uint8_t type, kind, collective, dtype, op, algorithm;
    uint8_t verb;        /* STEP */
    uint8_t lane;        /* STEP: which of the chunks in flight */
    uint8_t unused[6];
} trace_event_t;

/** `rank`: shown in the timeline, and %r in the pattern (see log_rank_path). */
quoit_status_t trace_create(const char *pattern, int rank, trace_t **trace);
/** End it: write the JSON file. The trace is freed in any case; NULL is accepted. ERR_SYSTEM: the partial file is still there. */
quoit_status_t trace_finish(trace_t *trace);
/** As trace_finish does it, from a partial file. */
quoit_status_t trace_convert(const char *partial, const char *path);
/** The same of an open file; `partial` is for texts. */
quoit_status_t trace_convert_open(int partial_fd, const char *partial, const char *path);

/** Begin the trace that was asked for by setting or call, if any, when the engine gets its first communicator. */
void trace_begin_wanted(engine_t *engine, int rank);

/* The engine's owner, while a trace runs. */
void trace_begun(trace_t *trace, quoit_comm_t *comm, operation_t *operation);
void trace_ended(trace_t *trace, operation_t *operation, int status);
/** A step of the running collective is done; `since`: when the one before it was. Returns now. */
uint64_t trace_step(trace_t *trace, quoit_comm_t *comm, const plan_step_t *step, size_t chunk, uint64_t since);

#endif
