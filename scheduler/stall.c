/* SPDX-License-Identifier: Apache-2.0 */
/* Warnings of what stands still: see stall.h. */
#include "scheduler/stall.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "scheduler/comm.h"

#include <stdio.h>

enum { AWAITED_AT_ONCE = 64 /* ranks */ };

void stall_begin(stall_t *stall, uint64_t now)
{
    const int64_t limit_us = setting_int(SETTING_STALL_WARNING);
    stall->since = now;
    stall->next = limit_us > 0 ? now + (uint64_t)limit_us * 1000 : CLOCK_NEVER;
}

bool stall_is_due(stall_t *stall, uint64_t now)
{
    if (now < stall->next) return false;
    stall->next = now + (now - stall->since);
    return true;
}

const char *stall_text(const stall_t *stall, uint64_t now, char text[32])
{
    snprintf(text, 32, "%.3g s", (double)(now - stall->since) / 1e9);
    return text;
}

/* Changes whenever the collective has done something. */
static uint64_t step_of(const quoit_comm_t *comm)
{
    const execution_t *execution = &comm->execution;
    const chunk_run_t *run = &execution->run[execution_place_of(execution, execution->oldest)];
    return (uint64_t)comm->sequence << 40 ^ (uint64_t)execution->oldest << 8 ^ (uint64_t)(unsigned)run->step;
}

static bool somebody_else_tells(quoit_comm_t *comm)
{
    const topology_t *topology = comm->topology;
    int awaited[AWAITED_AT_ONCE], count = execute_awaited(comm, awaited, AWAITED_AT_ONCE);
    if (execute_doubt(comm) == DOUBT_MATES) return true; /* they are in the operation too, and know for whom they wait */
    for (int rank = 0; rank < comm->rank; rank++) {
        bool is_awaited = topology->host[rank] != topology->host[comm->rank];
        for (int i = 0; i < count && !is_awaited; i++) is_awaited = awaited[i] == rank;
        if (!is_awaited) return true;
    }
    return false;
}

void stall_check(quoit_comm_t *comm, uint64_t now)
{
    if (!comm->execution.operation || comm->execution.depth == 0) return;
    const uint64_t step = step_of(comm); /* never 0, as before the first operation */
    if (comm->stall.step != step) {
        comm->stall.step = step;
        stall_begin(&comm->stall, now);
        return;
    }
    char missing[640], operation[256], time[32];
    if (!stall_is_due(&comm->stall, now) || somebody_else_tells(comm)) return;
    execute_missing(comm, missing, sizeof missing);
    operation_text(&comm->execution.operation->description, operation, sizeof operation);
    if (missing[0]) log_warn("stall", "[%s, rank %d] %s has stood still for %s: %s", comm->name, comm->rank, operation, stall_text(&comm->stall, now, time), missing);
}
