/* SPDX-License-Identifier: Apache-2.0 */
/** The partial file of a trace: a header, then the ring of events. Read by the machine that wrote it. */
#ifndef QUOIT_SCHEDULER_TRACE_FILE_H
#define QUOIT_SCHEDULER_TRACE_FILE_H

#include "scheduler/trace.h"

enum { TRACE_COMMS = 512, TRACE_NAME = 64, TRACE_VERSION = 1 };
#define TRACE_MAGIC 0x3163617274716full

typedef struct trace_comm {
    char name[TRACE_NAME];
    int32_t rank, size;
    uint64_t id;
} trace_comm_t;

typedef struct trace_header {
    uint64_t magic;
    uint32_t version, event_size;
    uint64_t capacity;           /* events */
    int32_t rank, pid;
    char host[TRACE_NAME], boot[40]; /* boot: id of the running kernel; traces with the same one have the same clock */
    int64_t to_real;             /* ns from CLOCK_MONOTONIC to CLOCK_REALTIME, when the trace began */
    uint64_t began, ended;       /* ended: 0 while it runs */
    _Atomic uint64_t written;    /* events so far; the newest `capacity` are there */
    _Atomic uint32_t comms;
    trace_comm_t comm[TRACE_COMMS]; /* the last place stands for all that find no other */
} trace_header_t;

_Static_assert(sizeof(trace_event_t) == 64, "an event is one cache line");

#endif
