/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executor: runs the steps of a plan for a communicator's current operation. Chunks in flight are visited oldest first; a chunk may
 * run a step only when the chunk before it is past that step, so signals and messages of a stage keep their order.
 * What precedes the first step and follows the last is in execute_begin.c, whom a step waits for in execute_text.c. Device buffers go
 * through staging memory of the host: see execute_device.c.
 */
#include "scheduler/execute.h"

#include "base/copy.h"
#include "scheduler/comm.h"
#include "scheduler/execute_device.h"
#include "scheduler/inquire.h"
#include "scheduler/memory.h"
#include "scheduler/reduce/reduce.h"
#include "scheduler/trace.h"

/* ------------------------------------------------------------------ where things are */

/* This chunk's slot of a member; NULL with an error text when the member told nonsense. */
static uint8_t *slot_of(quoit_comm_t *comm, int member, size_t chunk)
{
    execution_t *execution = &comm->execution;
    window_t *window = comm->window;
    uint64_t ticket = execution_ticket_of(execution, chunk);
    if (execution->tiny) return window->member[member].section->line.tiny[ticket % WINDOW_SMALL_DEPTH];
    if (execution->plan->small) return window->member[member].small + ticket % WINDOW_SMALL_DEPTH * PLAN_SMALL_SLOT;
    size_t at = (size_t)(ticket % execution->slots) * execution->slot_stride;
    uint8_t *large = window_large(window, member, at + execution->slot_stride);
    return large ? large + at : NULL;
}

static uint8_t *scratch_of(const execution_t *execution, int number, size_t chunk)
{
    return execution->scratch + (execution_place_of(execution, chunk) * (size_t)execution->plan->temps + (size_t)number) * execution->slot_stride;
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

/* The usual case, told by the line that is read anyway: the member is in this operation, and all before it were the same, too. */
static inline bool is_in_step(const quoit_comm_t *comm, const window_section_t *theirs)
{
    return atomic_load_explicit(&theirs->line.current, memory_order_acquire) == ((uint64_t)comm->sequence << 32 | comm->hash);
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
    if (run->chunk == 0 && !is_in_step(comm, section) && execute_disagrees(comm, member)) return QUOIT_ERR_MISMATCH;
    return QUOIT_OK;
}

static quoit_status_t await(quoit_comm_t *comm, chunk_run_t *run, const plan_step_t *step)
{
    window_t *window = comm->window;
    uint64_t ticket = execution_ticket_of(&comm->execution, run->chunk);
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
    quoit_status_t status = window_consumed(comm->window, execution_ticket_to_reclaim(execution, run->chunk));
    if (status != QUOIT_OK) return status;
    if (execution->plan->small || (comm->window->lease && !comm->window->lease_outgrown)) return QUOIT_OK;
    /* First use: all before this operation was consumed, so the lease may be made or made larger. */
    return window_lease(comm->window, execution->slot_stride * execution->slots);
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
    execute_transfer_t *started = execution_transfers_of(execution, run->chunk) + run->transfers;
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
    execute_transfer_t *mine = execution_transfers_of(&comm->execution, run->chunk);
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
    return (execution_ticket_of(execution, chunk) & execution->quiet) == 0 || chunk + 1 == execution->binding.chunks;
}

static inline __attribute__((always_inline)) quoit_status_t run_step(quoit_comm_t *comm, chunk_run_t *run, const plan_step_t *step)
{
    execution_t *execution = &comm->execution;
    uint64_t ticket = execution_ticket_of(execution, run->chunk);
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
    const plan_t *plan = execution->plan;
    while (run->phase == CHUNK_STEPS && run->step < limit) {
        const plan_step_t *step = &plan->step[run->step];
        quoit_status_t outcome = run_step(comm, run, step);
        if (outcome != QUOIT_OK) return outcome;
        *moved = true;
        if (trace) run->since = trace_step(trace, comm, step, run->chunk, run->since);
        if (++run->step == plan->steps) run->phase = execution->row ? CHUNK_STAGE_OUT : CHUNK_DONE;
    }
    if (run->phase > CHUNK_STEPS && run->phase < CHUNK_DONE) {
        quoit_status_t status = execute_device_out(execution, run);
        if (status < 0) return status;
        if (run->phase < CHUNK_DONE) return QUOIT_IN_PROGRESS;
        *moved = true;
    }
    return run->phase == CHUNK_DONE ? QUOIT_OK : QUOIT_IN_PROGRESS;
}

static inline chunk_run_t *run_of(execution_t *execution, size_t chunk) { return &execution->run[execution_place_of(execution, chunk)]; }

static inline __attribute__((always_inline)) void start_chunks(execution_t *execution)
{
    while (execution->next < execution->binding.chunks && execution->next - execution->oldest < execution->depth) {
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
