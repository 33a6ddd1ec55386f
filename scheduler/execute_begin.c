/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executor: what an operation needs before its first step (a plan, its binding to the caller's buffers, the layout of the slots, scratch),
 * and what it gives back at its end. Memory only grows, so that a communicator in its stride allocates nothing.
 */
#include "scheduler/comm.h"
#include "scheduler/execute_device.h"
#include "scheduler/memory.h"

#include <stdlib.h>
#include <string.h>

static quoit_status_t grow(void **memory, size_t *capacity, size_t needed, const char *what)
{
    if (*capacity >= needed) return QUOIT_OK;
    void *larger = realloc(*memory, needed);
    if (!larger) return error_set(QUOIT_ERR_NO_MEMORY, "%s: %zu bytes", what, needed);
    memset((char *)larger + *capacity, 0, needed - *capacity);
    *memory = larger;
    *capacity = needed;
    return QUOIT_OK;
}

static quoit_status_t make_room(quoit_comm_t *comm)
{
    execution_t *execution = &comm->execution;
    const plan_t *plan = execution->plan;
    size_t transfers = (size_t)plan->depth * (size_t)plan->transfers * sizeof *execution->transfer;
    quoit_status_t status = grow((void **)&execution->transfer, &execution->transfer_capacity, transfers, "transfers of a plan");
    if (status != QUOIT_OK) return status;
    size_t scratch = (size_t)plan->depth * (size_t)plan->temps * execution->slot_stride;
    if (scratch > execution->scratch_capacity) { /* its content is of no more use: no copying as realloc would */
        memory_withdraw(comm->engine, execution->scratch);
        free(execution->scratch);
        execution->scratch_capacity = 0;
        execution->scratch = aligned_alloc(4096, (scratch + 4095) / 4096 * 4096);
        if (!execution->scratch) return error_set(QUOIT_ERR_NO_MEMORY, "scratch of a plan: %zu bytes", scratch);
        execution->scratch_capacity = scratch;
        memory_declare(comm->engine, execution->scratch, scratch);
    }
    int sources = comm->window && comm->window->members > 2 ? comm->window->members : 2;
    size_t have = (size_t)execution->source_capacity * sizeof *execution->source;
    status = grow((void **)&execution->source, &have, (size_t)sources * sizeof *execution->source, "sources of a reduction");
    if (status == QUOIT_OK) execution->source_capacity = (int)(have / sizeof *execution->source);
    return status;
}

/* Does the operation find its large slots as the one before left them? Else they are reclaimed whole before their first use. */
static void keep_layout(quoit_comm_t *comm)
{
    execution_t *execution = &comm->execution;
    window_t *window = comm->window;
    window->lease_ticket = window->ticket;
    execution->layout_kept = window->lease && window->large_stride == execution->slot_stride && window->large_slots == execution->slots;
    if (execution->layout_kept) return;
    window->large_stride = execution->slot_stride;
    window->large_slots = execution->slots;
    size_t needed = execution->slot_stride * execution->slots;
    window->lease_outgrown = window->lease && window->lease_bytes < needed;
}

/* Is the caller's input to be read where it lies? Its plan allows it; in the flat one the others read what the result would overwrite. */
static void share_input(quoit_comm_t *comm)
{
    execution_t *execution = &comm->execution;
    const plan_side_t *send = &execution->binding.send, *recv = &execution->binding.recv;
    if (send->parts || execution->operation->device.row || !memory_is_shared(comm->engine, send->base)) return;
    size_t blocks = plan_sends_blocks(execution->plan->collective) ? (size_t)comm->size : 1;
    size_t bytes = blocks * send->count * execution->binding.width;
    if (execution->plan->algorithm == ALGORITHM_FLAT && execution->plan->collective == COLLECTIVE_ALLREDUCE && send->base < recv->base + bytes &&
        recv->base < send->base + bytes)
        return;
    execution->shares = bytes > 0 && window_share_input(comm->window, send->base, bytes, execution->base + 1);
}

/* Whole pages; below the ring a power of two, so that operations of many sizes find few layouts, and a number of slots that is quick to divide by. */
static size_t stride_for(size_t bytes)
{
    size_t pages = (bytes + 4095) / 4096 * 4096, stride = 4096;
    if (pages >= WINDOW_RING) return pages;
    while (stride < pages) stride *= 2;
    return stride;
}

/* The largest power of two that is at most a quarter of the slots, less one. */
static uint64_t quiet_of(size_t slots) { return slots < 8 ? 0 : (UINT64_C(1) << (61 - __builtin_clzll(slots))) - 1; }

/* Was the operation before of the same plan, for buffers of the same sizes? What follows from these is as it was. */
static bool is_like_before(const execution_t *execution, const operation_t *operation)
{
    const plan_binding_t *binding = &execution->binding;
    return execution->bound == execution->plan && binding->width == operation->width && binding->send.count == operation->send.count &&
           binding->recv.count == operation->recv.count && execution->count == operation->description.count && !binding->send.parts &&
           !binding->recv.parts && !operation->send.parts && !operation->recv.parts;
}

/* What follows from the plan and the sizes of the buffers: chunks, slots, memory. */
static quoit_status_t lay_out(quoit_comm_t *comm, const operation_t *operation)
{
    execution_t *execution = &comm->execution;
    const plan_t *plan = execution->plan;
    execution->bound = NULL;
    execution->binding = (plan_binding_t){.plan = plan, .send = operation->send, .recv = operation->recv, .width = operation->width, .ranks = comm->size};
    plan_bind(&execution->binding, &comm->job->tuning);
    size_t slot = plan_slot_bytes(&execution->binding);
    execution->slot_stride = stride_for(slot);
    execution->slots = (comm->window && comm->window->members > 2 ? WINDOW_RING_OF_MANY : WINDOW_RING) / execution->slot_stride;
    if (execution->slots < (size_t)plan->depth) execution->slots = (size_t)plan->depth;
    execution->quiet = plan->small ? 0 : quiet_of(execution->slots);
    execution->count = operation->description.count;
    execution->tiny = plan->small && plan->places == 1 && execution->binding.chunks == 1 && !plan_is_wired(plan) &&
                      execution->count * operation->width <= WINDOW_TINY;
    /* What is only moved is, up to twice that size, still in the cache for whoever moves it on (measured: docs/performance.md). */
    execution->streams = execution->binding.chunks * slot >= comm->engine->stream_bytes * (operation->reduces ? 1 : 2);
    quoit_status_t status = make_room(comm);
    if (status == QUOIT_OK) execution->bound = plan;
    return status;
}

quoit_status_t execute_begin(quoit_comm_t *comm, operation_t *operation)
{
    execution_t *execution = &comm->execution;
    plan_request_t request = {.collective = (plan_collective_t)operation->description.collective,
                              .algorithm = operation->algorithm,
                              .rank = comm->rank,
                              .root = operation->description.root < 0 ? 0 : operation->description.root,
                              .premul = operation->description.op == QUOIT_PREMUL_SUM && operation->reduces,
                              .share = operation->share,
                              .wire = operation->wire,
                              .small = operation->small};
    quoit_status_t status = comm_plan(comm, &request, &execution->plan);
    if (status != QUOIT_OK) return status;
    execution->operation = operation;
    execution->depth = (size_t)execution->plan->depth;
    execution->next = execution->oldest = 0;
    execution->shares = execution->reads_inputs = false;
    if (is_like_before(execution, operation)) {
        execution->binding.send = operation->send;
        execution->binding.recv = operation->recv;
    } else {
        status = lay_out(comm, operation);
        if (status != QUOIT_OK) return status;
    }
    if (comm->window) {
        execution->base = comm->window->ticket;
        comm->window->ticket += execution->binding.chunks * (execution->plan->window ? 1 : 0);
        if (execution->plan->window && !execution->plan->small) keep_layout(comm);
        comm->window->busy = true;
        if (execution->plan->shares_inputs) share_input(comm);
        window_begin(comm->window, &operation->description, comm->hash);
    }
    return execute_device_begin(execution);
}

/* ------------------------------------------------------------------ end */

void execute_end(quoit_comm_t *comm)
{
    execution_t *execution = &comm->execution;
    if (!execution->operation) return;
    for (size_t chunk = execution->oldest; chunk < execution->next; chunk++) {
        chunk_run_t *run = &execution->run[execution_place_of(execution, chunk)];
        comm->engine->transfers -= run->transfers; /* cancelled by whoever ends an operation early */
        run->transfers = 0;
    }
    execute_device_end(execution);
    if (comm->window && atomic_load_explicit(&comm->status, memory_order_relaxed) != QUOIT_OK) window_fail(comm->window, execution->base);
    if (comm->window) comm->window->busy = false;
    comm->left_seen = 0;
    execution->operation = NULL;
}

void execute_destroy(quoit_comm_t *comm)
{
    execution_t *execution = &comm->execution;
    memory_withdraw(comm->engine, execution->scratch);
    execute_device_destroy(comm->engine, execution);
    free(execution->transfer);
    free(execution->scratch);
    free(execution->source);
    memset(execution, 0, sizeof *execution);
}
