/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executor: runs the steps of a plan for a communicator's current operation. Chunks in flight are visited oldest first; a chunk may
 * run a step only when the chunk before it is past that step, so signals and messages of a stage keep their order.
 * Device buffers go through staging memory of the host: see execute_device.c.
 */
#include "scheduler/execute.h"

#include "base/copy.h"
#include "scheduler/comm.h"
#include "scheduler/execute_device.h"
#include "scheduler/inquire.h"
#include "scheduler/memory.h"
#include "scheduler/reduce/reduce.h"
#include "scheduler/trace.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ where things are */

static uint64_t ticket_of(const execution_t *execution, size_t chunk) { return execution->base + chunk + 1; }

/* This chunk's slot of a member; NULL with an error text when the member told nonsense. */
static uint8_t *slot_of(quoit_comm_t *comm, int member, size_t chunk)
{
    execution_t *execution = &comm->execution;
    window_t *window = comm->window;
    uint64_t ticket = ticket_of(execution, chunk);
    if (execution->tiny) return window->member[member].section->line.tiny[ticket % WINDOW_SMALL_DEPTH];
    if (execution->plan->small) return window->member[member].small + ticket % WINDOW_SMALL_DEPTH * PLAN_SMALL_SLOT;
    size_t at = (size_t)(ticket % execution->slots) * execution->slot_stride;
    uint8_t *large = window_large(window, member, at + execution->slot_stride);
    return large ? large + at : NULL;
}

static uint8_t *scratch_of(const execution_t *execution, int number, size_t chunk)
{
    size_t run = chunk % (size_t)execution->plan->depth;
    return execution->scratch + (run * (size_t)execution->plan->temps + (size_t)number) * execution->slot_stride;
}

/* Address of an operand. */
static quoit_status_t resolve(quoit_comm_t *comm, size_t chunk, const plan_operand_t *operand, uint8_t **address, size_t *count)
{
    execution_t *execution = &comm->execution;
    plan_piece_t piece;
    plan_locate(&execution->binding, chunk, operand, &piece);
    *count = piece.count;
    uint8_t *base;
    switch (operand->space) {
    case SPACE_SEND:
    case SPACE_RECV:
        *address = execution->row ? execute_device_address(execution, chunk, operand, &piece) : (uint8_t *)piece.data;
        return QUOIT_OK;
    case SPACE_SLOT:
        base = slot_of(comm, operand->member, chunk);
        break;
    default:
        base = scratch_of(execution, operand->member, chunk);
        break;
    }
    if (!base) return QUOIT_ERR_PROTOCOL; /* window_large has said why */
    *address = base + piece.offset;
    return QUOIT_OK;
}

/* A SLOT with a member's input: in that slot, or where the member says that it lies. */
static quoit_status_t resolve_input(quoit_comm_t *comm, size_t chunk, const plan_operand_t *operand, uint8_t **address, size_t *count)
{
    execution_t *execution = &comm->execution;
    const uint8_t *input = NULL;
    size_t length = 0;
    quoit_status_t status = window_input(comm->window, operand->member, execution->base + 1, &input, &length);
    if (status != QUOIT_OK || !input) return status != QUOIT_OK ? status : resolve(comm, chunk, operand, address, count);
    plan_piece_t piece;
    plan_locate(&execution->binding, chunk, operand, &piece);
    size_t offset = plan_input_offset(&execution->binding, chunk, operand), bytes = piece.count * execution->binding.width;
    if (offset > length || bytes > length - offset)
        return error_set(QUOIT_ERR_PROTOCOL, "%s shares an input of %zu bytes, of which bytes %zu to %zu were to be read",
                         comm->window->member[operand->member].peer->name, length, offset, offset + bytes);
    execution->reads_inputs = true;
    comm->in_place += bytes;
    *address = (uint8_t *)input + offset;
    *count = piece.count;
    return QUOIT_OK;
}

/* ------------------------------------------------------------------ steps */

bool execute_disagrees(quoit_comm_t *comm, int member)
{
    window_t *window = comm->window;
    window_section_t *theirs = window->member[member].section;
    uint64_t same = (uint64_t)comm->sequence << 32 | comm->hash, current = atomic_load_explicit(&theirs->line.current, memory_order_acquire);
    if (current == same || (uint32_t)(current >> 32) < comm->sequence) return false;
    _Atomic uint64_t *recent = &theirs->recent[comm->sequence % WINDOW_HISTORY]; /* it may be ahead */
    current = atomic_load_explicit(recent, memory_order_acquire);
    if ((uint32_t)(current >> 32) != comm->sequence || current == same) return false;
    operation_description_t mine = comm->history[comm->sequence % COMM_HISTORY].description, other = theirs->description[comm->sequence % WINDOW_HISTORY];
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(recent, memory_order_relaxed) != current) return false; /* overwritten: the next operation differs, too */
    /* The hash is of all operations so far: an earlier one may be where they parted. */
    for (uint32_t sequence = comm->sequence - 1; sequence > 0 && comm->sequence - sequence < COMM_HISTORY; sequence--) {
        const call_t *call = &comm->history[sequence % COMM_HISTORY];
        recent = &theirs->recent[sequence % WINDOW_HISTORY];
        current = atomic_load_explicit(recent, memory_order_acquire);
        operation_description_t earlier = theirs->description[sequence % WINDOW_HISTORY];
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(recent, memory_order_relaxed) != current || current == ((uint64_t)sequence << 32 | call->hash) ||
            (uint32_t)(current >> 32) != sequence)
            break;
        mine = call->description;
        other = earlier;
    }
    char mine_text[128], other_text[128];
    operation_text(&mine, mine_text, sizeof mine_text);
    operation_text(&other, other_text, sizeof other_text);
    error_set(QUOIT_ERR_MISMATCH, "ranks called different operations: %s called %s, but %s called %s%s",
              comm_rank_name(comm, comm->rank), mine_text, window->member[member].peer->name, other_text,
              strcmp(mine_text, other_text) == 0 ? " (an earlier operation already differed)" : "");
    return true;
}

static quoit_status_t await_member(quoit_comm_t *comm, int member, int stage, uint64_t ticket, chunk_run_t *run)
{
    window_t *window = comm->window;
    window_section_t *section = window->member[member].section;
    if (!section) {
        quoit_status_t status = window_find(window, member);
        if (status != QUOIT_OK) return status == QUOIT_ERR_AGAIN ? QUOIT_IN_PROGRESS : status;
        section = window->member[member].section;
    }
    if (atomic_load_explicit(&section->line.stage[stage], memory_order_acquire) < ticket) return QUOIT_IN_PROGRESS;
    window->member[member].consumed = atomic_load_explicit(&section->line.consumed, memory_order_acquire); /* while the line is here */
    if (run->chunk == 0 && execute_disagrees(comm, member)) return QUOIT_ERR_MISMATCH;
    return QUOIT_OK;
}

static quoit_status_t await(quoit_comm_t *comm, chunk_run_t *run, const plan_step_t *step)
{
    window_t *window = comm->window;
    uint64_t ticket = ticket_of(&comm->execution, run->chunk);
    if (step->peer != PLAN_ALL) return await_member(comm, step->peer, step->stage, ticket, run);
    for (int i = 0; i < window->members; i++) {
        if (i == window->me) continue;
        quoit_status_t outcome = await_member(comm, i, step->stage, ticket, run);
        if (outcome != QUOIT_OK) return outcome;
    }
    return QUOIT_OK;
}

/* The own slot of this chunk is free when all have consumed what it held before. */
static quoit_status_t reclaim(quoit_comm_t *comm, chunk_run_t *run)
{
    execution_t *execution = &comm->execution;
    uint64_t ticket = ticket_of(execution, run->chunk);
    uint64_t slots = execution->plan->small ? WINDOW_SMALL_DEPTH : execution->slots;
    bool fresh = !execution->plan->small && !execution->layout_kept && run->chunk < slots;
    uint64_t needed = fresh ? execution->base : ticket > slots ? ticket - slots : 0;
    quoit_status_t status = window_consumed(comm->window, needed);
    if (status != QUOIT_OK) return status;
    if (execution->plan->small || (comm->window->lease && !comm->window->lease_outgrown)) return QUOIT_OK;
    /* First use: everything before this operation is consumed (fresh), so the lease may be made or made larger. */
    return window_lease(comm->window, execution->slot_stride * slots);
}

/* A copy that is multiplied by the premul factor, or divided by avg's share. */
static void copy_changed(const quoit_comm_t *comm, const plan_step_t *step, void *to, const void *from, size_t count)
{
    const operation_t *operation = comm->execution.operation;
    if (step->flags & STEP_SCALE) reduce_scale(operation->description.dtype, to, from, count, operation->factor);
    else reduce_divide(operation->description.dtype, to, from, count, comm->execution.plan->share);
}

static quoit_status_t copy(quoit_comm_t *comm, chunk_run_t *run, const plan_step_t *step)
{
    execution_t *execution = &comm->execution;
    uint8_t *to, *from;
    size_t count, source_count;
    bool input = step->flags & STEP_INPUT;
    if (input && execution->shares && step->destination.space == SPACE_SLOT) return QUOIT_OK; /* publishing is left out */
    quoit_status_t status = resolve(comm, run->chunk, &step->destination, &to, &count);
    if (status == QUOIT_OK)
        status = input && step->source.space == SPACE_SLOT ? resolve_input(comm, run->chunk, &step->source, &from, &source_count)
                                                           : resolve(comm, run->chunk, &step->source, &from, &source_count);
    if (status != QUOIT_OK) return status;
    if (source_count < count) count = source_count;
    if (count == 0) return QUOIT_OK;
    if (step->flags & (STEP_SCALE | STEP_SHARE))
        copy_changed(comm, step, to, from, count);
    else if (to == from)
        return QUOIT_OK;
    else if (step->destination.space == SPACE_SLOT)
        publish_copy(&comm->engine->publish, to, from, count * execution->binding.width);
    else
        copy_bytes(to, from, count * execution->binding.width, step->flags & STEP_STREAM && execution->streams);
    comm->copied += count * execution->binding.width;
    return QUOIT_OK;
}

/* Inputs of a reduction over the window, in member order; one's own is known. */
static inline quoit_status_t find_window_sources(quoit_comm_t *comm, chunk_run_t *run, const plan_step_t *step, uint8_t *own)
{
    plan_operand_t theirs = step->source;
    theirs.space = SPACE_SLOT;
    for (int i = 0; i < comm->window->members; i++) {
        size_t unused;
        theirs.member = i;
        uint8_t *each = own;
        quoit_status_t status = QUOIT_OK;
        if (i != comm->window->me)
            status = step->flags & STEP_INPUT ? resolve_input(comm, run->chunk, &theirs, &each, &unused)
                                              : resolve(comm, run->chunk, &theirs, &each, &unused);
        if (status != QUOIT_OK) return status;
        comm->execution.source[i] = each;
    }
    return QUOIT_OK;
}

/* Is what a reduction writes there to go past the cache? */
static bool stores_past(const quoit_comm_t *comm, const plan_step_t *step, const plan_operand_t *where, size_t count)
{
    const execution_t *execution = &comm->execution;
    if (where->space == SPACE_SLOT) return publish_streams(&comm->engine->publish, count * execution->binding.width);
    return step->flags & STEP_STREAM && execution->streams;
}

static quoit_status_t reduce(quoit_comm_t *comm, chunk_run_t *run, const plan_step_t *step)
{
    execution_t *execution = &comm->execution;
    operation_t *operation = execution->operation;
    bool window = step->verb == VERB_REDUCE_WINDOW;
    uint8_t *to, *second = NULL, *source;
    size_t count, unused;
    quoit_status_t status = resolve(comm, run->chunk, &step->destination, &to, &count);
    if (status != QUOIT_OK || count == 0) return status;
    if (step->second.space != SPACE_NONE) status = resolve(comm, run->chunk, &step->second, &second, &unused);
    if (status == QUOIT_OK) status = resolve(comm, run->chunk, &step->source, &source, &unused);
    if (status != QUOIT_OK) return status;
    int sources = 2;
    if (!window) {
        execution->source[0] = source;
        status = resolve(comm, run->chunk, &step->source2, &source, &unused);
        if (status != QUOIT_OK) return status;
        execution->source[1] = source;
    } else {
        sources = comm->window->members;
        status = find_window_sources(comm, run, step, source);
        if (status != QUOIT_OK) return status;
    }
    reduce_call_t call = {.dtype = operation->description.dtype,
                          .op = operation->description.op,
                          .sources = sources,
                          .source = execution->source,
                          .count = count,
                          .destination = to,
                          .copy = second,
                          .stream = stores_past(comm, step, &step->destination, count),
                          .stream_copy = stores_past(comm, step, &step->second, count)};
    if (step->flags & (STEP_FINISH | STEP_SHARE) && operation->description.op == QUOIT_AVG)
        call.finish.divisor = step->flags & STEP_SHARE ? execution->plan->share : comm->size;
    reduce_run(&call);
    return QUOIT_OK;
}

/* Where in the caller's residual the elements of a step belong: those of a uniform piece. */
static float *residual_at(const execution_t *execution, const chunk_run_t *run, const plan_operand_t *operand)
{
    plan_piece_t piece;
    plan_operand_t whole = *operand;
    whole.space = SPACE_TEMP;
    whole.form = FORM_SUM; /* counts in elements of float32 */
    plan_locate(&execution->binding, run->chunk, &whole, &piece);
    return execution->operation->residual + run->chunk * execution->binding.chunk + piece.offset / sizeof(float);
}

static __attribute__((noinline)) quoit_status_t convert(quoit_comm_t *comm, chunk_run_t *run, const plan_step_t *step)
{
    execution_t *execution = &comm->execution;
    operation_t *operation = execution->operation;
    uint8_t *to, *source;
    size_t count, unused;
    quoit_status_t status = resolve(comm, run->chunk, &step->destination, &to, &count);
    if (status != QUOIT_OK || count == 0) return status;
    status = resolve(comm, run->chunk, &step->source, &source, &unused);
    if (status != QUOIT_OK) return status;
    wire_call_t call = plan_wire_call(execution->plan, step, (quoit_dtype_t)operation->description.dtype, comm->size, operation->factor[0]);
    execution->source[0] = source;
    if (step->verb == VERB_SUM_WINDOW) {
        call.sources = comm->window->members;
        status = find_window_sources(comm, run, step, source);
    } else if (call.sources == 2) {
        status = resolve(comm, run->chunk, &step->source2, &source, &unused);
        execution->source[1] = source;
    }
    if (status != QUOIT_OK) return status;
    call.source = execution->source;
    call.count = count;
    call.destination = to;
    if (step->flags & STEP_NOTE && operation->residual) call.error = residual_at(execution, run, &step->destination);
    wire_run(&call);
    return QUOIT_OK;
}

/* Unique for operation and chunk; the messages of one chunk on one edge have the same key and match in the order of their steps. */
static quoit_key_t message_key(const quoit_comm_t *comm, size_t chunk)
{
    return (quoit_key_t){comm->id, (uint64_t)comm->sequence << 32 | (uint32_t)chunk};
}

static quoit_status_t start_transfer(quoit_comm_t *comm, chunk_run_t *run, const plan_step_t *step)
{
    execution_t *execution = &comm->execution;
    bool receives = step->verb == VERB_RECV;
    const plan_operand_t *operand = receives ? &step->destination : &step->source;
    plan_piece_t piece;
    plan_locate(&execution->binding, run->chunk, operand, &piece);
    if (plan_skips(operand, &piece)) return QUOIT_OK;
    uint8_t *address;
    size_t count;
    quoit_status_t status = resolve(comm, run->chunk, operand, &address, &count);
    quoit_endpoint_t *endpoint = NULL;
    if (status == QUOIT_OK) status = job_endpoint(comm->job, comm->job_rank[step->peer], &endpoint);
    if (status != QUOIT_OK) return status;
    size_t place = (run->chunk % (size_t)execution->plan->depth) * (size_t)execution->plan->transfers + (size_t)run->transfers;
    execute_transfer_t *started = &execution->transfer[place];
    started->peer = step->peer;
    started->receives = receives;
    started->transfer.what = comm->hash;
    const quoit_transport_ops_t *ops = endpoint->transport->ops;
    size_t bytes = operand->form == FORM_WHOLE ? count * execution->binding.width
                                               : plan_form_bytes(&execution->binding, (plan_form_t)operand->form, count);
    if (run->direct)
        status = execute_device_transfer(comm, started, endpoint, message_key(comm, run->chunk), address, bytes);
    else
        status = receives ? ops->recv(endpoint, message_key(comm, run->chunk), address, bytes, &started->transfer)
                          : ops->send(endpoint, message_key(comm, run->chunk), address, bytes, &started->transfer);
    if (status < 0) return status;
    run->transfers++;
    comm->engine->transfers++;
    return QUOIT_OK;
}

static quoit_status_t wait_transfers(quoit_comm_t *comm, chunk_run_t *run)
{
    execution_t *execution = &comm->execution;
    execute_transfer_t *mine = &execution->transfer[(run->chunk % (size_t)execution->plan->depth) * (size_t)execution->plan->transfers];
    bool pending = false;
    if (run->direct) {
        quoit_status_t status = execute_device_carry(comm, run, mine);
        if (status != QUOIT_OK) return status;
    }
    for (int i = 0; i < run->transfers; i++) {
        if (mine[i].transfer.status == QUOIT_IN_PROGRESS) {
            pending = true;
        } else if (mine[i].transfer.status == QUOIT_ERR_CLOSED && !comm_word_has_come(comm)) {
            pending = true; /* it said goodbye, and may have said why before */
        } else if (mine[i].transfer.status == QUOIT_ERR_MISMATCH && inquire_dispute(comm, mine[i].peer)) {
            pending = true; /* only a hash was seen: the other side says what it called */
        } else if (mine[i].transfer.status < 0) {
            return execute_explain_transfer(comm, &mine[i]);
        }
    }
    if (pending) return QUOIT_IN_PROGRESS;
    quoit_status_t status = run->direct ? execute_device_arrived(comm, run, mine) : QUOIT_OK;
    if (status != QUOIT_OK) return status;
    comm->engine->transfers -= run->transfers;
    run->transfers = 0;
    return QUOIT_OK;
}

/*
 * Is it told now that a chunk's slots were read? Nobody waits for it before the slots have gone round: so once a quarter of them, and at the end. A member
 * that waits to write the slot of ticket t has signalled all before t, so the others come to t - 1 and have told of t - slots at least.
 */
static inline bool tells_consumed(const execution_t *execution, size_t chunk)
{
    return (ticket_of(execution, chunk) & execution->quiet) == 0 || chunk + 1 == execution->binding.chunks;
}

static inline __attribute__((always_inline)) quoit_status_t run_step(quoit_comm_t *comm, chunk_run_t *run)
{
    execution_t *execution = &comm->execution;
    const plan_step_t *step = &execution->plan->step[run->step];
    uint64_t ticket = ticket_of(execution, run->chunk);
    switch (step->verb) {
    case VERB_RECLAIM: return reclaim(comm, run);
    case VERB_SIGNAL: window_signal(comm->window, &comm->window->section->line.stage[step->stage], ticket); return QUOIT_OK;
    case VERB_AWAIT: return await(comm, run, step);
    case VERB_CONSUMED:
        if (execution->plan->small && execution->binding.chunks == 1) window_read_small(comm->window, ticket); /* nobody waits for it now */
        else if (tells_consumed(execution, run->chunk)) window_signal(comm->window, &comm->window->section->line.consumed, ticket);
        return QUOIT_OK;
    case VERB_COPY: return copy(comm, run, step);
    case VERB_REDUCE:
    case VERB_REDUCE_WINDOW: return reduce(comm, run, step);
    case VERB_SEND:
    case VERB_RECV: return start_transfer(comm, run, step);
    case VERB_WAIT: return wait_transfers(comm, run);
    case VERB_ENCODE:
    case VERB_DECODE:
    case VERB_SUM_WINDOW: return convert(comm, run, step);
    default: return error_set(QUOIT_ERR_INTERNAL, "plan has a step of kind %d", step->verb);
    }
}

/* ------------------------------------------------------------------ chunks */

/* Run one chunk as far as it goes; steps from `limit` on are not open to it yet. Made twice: nothing asks for a trace at each step. */
static inline __attribute__((always_inline)) quoit_status_t run_chunk(quoit_comm_t *comm, chunk_run_t *run, int limit, bool *moved, trace_t *trace)
{
    execution_t *execution = &comm->execution;
    if (trace && run->since == 0) run->since = clock_now();
    if (run->phase < CHUNK_STEPS) {
        quoit_status_t status = execute_device_in(execution, run);
        if (status < 0) return status;
        if (run->phase < CHUNK_STEPS) return QUOIT_IN_PROGRESS;
        *moved = true;
    }
    while (run->phase == CHUNK_STEPS && run->step < limit) {
        quoit_status_t outcome = run_step(comm, run);
        if (outcome != QUOIT_OK) return outcome;
        *moved = true;
        if (trace) run->since = trace_step(trace, comm, &execution->plan->step[run->step], run->chunk, run->since);
        if (++run->step == execution->plan->steps) run->phase = execution->row ? CHUNK_STAGE_OUT : CHUNK_DONE;
    }
    if (run->phase > CHUNK_STEPS && run->phase < CHUNK_DONE) {
        quoit_status_t status = execute_device_out(execution, run);
        if (status < 0) return status;
        if (run->phase < CHUNK_DONE) return QUOIT_IN_PROGRESS;
        *moved = true;
    }
    return run->phase == CHUNK_DONE ? QUOIT_OK : QUOIT_IN_PROGRESS;
}

static chunk_run_t *run_of(execution_t *execution, size_t chunk) { return &execution->run[chunk % (size_t)execution->plan->depth]; }

static inline __attribute__((always_inline)) void start_chunks(execution_t *execution)
{
    while (execution->next < execution->binding.chunks && execution->next - execution->oldest < (size_t)execution->plan->depth) {
        chunk_run_t *run = run_of(execution, execution->next);
        *run = (chunk_run_t){.chunk = execution->next, .phase = execution->row ? CHUNK_STAGE_IN : CHUNK_STEPS};
        if (execution->plan->steps == 0) run->phase = execution->row ? CHUNK_STAGE_IN : CHUNK_DONE;
        execution->next++;
    }
}

bool execute_awaits_readers(const quoit_comm_t *comm)
{
    const execution_t *execution = &comm->execution;
    return execution->operation && execution->shares && execution->plan->awaits_readers && execution->oldest == execution->binding.chunks;
}

/*
 * All chunks are done. What others read where it lies is the caller's again when they have read it; and what was read so is good unless
 * its owner has failed meanwhile and given it back to its caller: word of that failure ends this operation, too.
 */
static quoit_status_t settle_inputs(quoit_comm_t *comm)
{
    execution_t *execution = &comm->execution;
    quoit_status_t status = execute_awaits_readers(comm) ? window_consumed(comm->window, execution->base + execution->binding.chunks) : QUOIT_OK;
    if (status != QUOIT_OK) return status;
    return execution->reads_inputs && window_is_withdrawn(comm->window, execution->base + 1) ? QUOIT_IN_PROGRESS : QUOIT_OK;
}

static inline __attribute__((always_inline)) quoit_status_t advance(quoit_comm_t *comm, bool *moved, trace_t *trace)
{
    execution_t *execution = &comm->execution;
    for (;;) {
        start_chunks(execution);
        int limit = execution->plan->steps;
        for (size_t chunk = execution->oldest; chunk < execution->next; chunk++) {
            chunk_run_t *run = run_of(execution, chunk);
            quoit_status_t outcome = run_chunk(comm, run, limit, moved, trace);
            if (outcome < 0) return outcome;
            if (run->phase == CHUNK_STEPS) limit = run->step;
            if (run->phase < CHUNK_STEPS) break;
        }
        size_t before = execution->oldest;
        while (execution->oldest < execution->next && run_of(execution, execution->oldest)->phase == CHUNK_DONE) execution->oldest++;
        if (execution->oldest == execution->binding.chunks) return execution->plan->shares_inputs ? settle_inputs(comm) : QUOIT_OK;
        if (execution->oldest == before) return QUOIT_IN_PROGRESS;
    }
}

static __attribute__((noinline)) quoit_status_t advance_traced(quoit_comm_t *comm, bool *moved) { return advance(comm, moved, comm->engine->trace); }

quoit_status_t execute_advance(quoit_comm_t *comm, bool *moved)
{
    if (comm->engine->trace) return advance_traced(comm, moved);
    return advance(comm, moved, NULL);
}

/* ------------------------------------------------------------------ begin and end */

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
    execution->binding = (plan_binding_t){
        .plan = execution->plan, .send = operation->send, .recv = operation->recv, .width = operation->width, .ranks = comm->size};
    plan_bind(&execution->binding, &comm->job->tuning);
    execution->slot_stride = stride_for(plan_slot_bytes(&execution->binding));
    execution->slots = (comm->window && comm->window->members > 2 ? WINDOW_RING_OF_MANY : WINDOW_RING) / execution->slot_stride;
    if (execution->slots < (size_t)execution->plan->depth) execution->slots = (size_t)execution->plan->depth;
    execution->quiet = execution->plan->small ? 0 : quiet_of(execution->slots);
    execution->tiny = execution->plan->small && execution->plan->places == 1 && execution->binding.chunks == 1 && !plan_is_wired(execution->plan) &&
                      operation->description.count * operation->width <= WINDOW_TINY;
    execution->next = execution->oldest = 0;
    /* What is only moved is, up to twice that size, still in the cache for whoever moves it on (measured: docs/performance.md). */
    execution->streams = execution->binding.chunks * plan_slot_bytes(&execution->binding) >= comm->engine->stream_bytes * (operation->reduces ? 1 : 2);
    execution->shares = execution->reads_inputs = false;
    status = make_room(comm);
    if (status != QUOIT_OK) return status;
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

void execute_end(quoit_comm_t *comm)
{
    execution_t *execution = &comm->execution;
    if (!execution->operation) return;
    for (size_t chunk = execution->oldest; chunk < execution->next; chunk++) {
        chunk_run_t *run = run_of(execution, chunk);
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
