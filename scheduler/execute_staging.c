/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which pieces of a chunk are staged, and where: the plan's steps tell, once an operation. Chunk c has place (c mod depth). A rank that has blocks
 * of many others would need much memory for `depth` chunks, so it has fewer in flight then, which concerns nobody else: the others see a
 * rank that is not as far. One chunk it must hold, and of that a block's piece is at most as large as the caller's block.
 */
#include "scheduler/execute_staging.h"

#include "scheduler/comm.h"
#include "scheduler/memory.h"

#include <stdlib.h>

enum { STAGING_LIMIT = 16 << 20, LINE = 64 }; /* bytes: of a side, where it has several chunks in flight */

static execute_staging_t *side_of(execution_t *execution, plan_space_t space) { return space == SPACE_SEND ? &execution->send : &execution->recv; }

static size_t blocks_of(const execution_t *execution) { return execution->plan->uniform ? 1 : (size_t)execution->binding.ranks; }

/* A chunk's piece of one block. */
static plan_piece_t piece_of(const execution_t *execution, size_t chunk, plan_space_t space, size_t block)
{
    const plan_operand_t whole = {.space = (uint8_t)space, .block = execution->plan->uniform ? PLAN_NO_BLOCK : (int32_t)block, .parts = 1, .count = 1};
    plan_piece_t piece;
    plan_locate(&execution->binding, chunk, &whole, &piece);
    return piece;
}

/* ------------------------------------------------------------------ what a plan touches */

static void mark(execution_t *execution, const plan_operand_t *operand, bool copied)
{
    if (operand->space != SPACE_SEND && operand->space != SPACE_RECV) return;
    execute_staging_t *side = side_of(execution, (plan_space_t)operand->space);
    side->place[operand->block == PLAN_NO_BLOCK ? 0 : operand->block] = 0;
    side->copied = side->copied || copied;
}

/* What is read of SEND is to be there before the steps; what is written to RECV, and may be read then, is the result. */
static void mark_all(execution_t *execution)
{
    const plan_t *plan = execution->plan;
    for (int i = 0; i < plan->steps; i++) {
        const plan_step_t *step = &plan->step[i];
        mark(execution, &step->source, step->source.space == SPACE_SEND);
        mark(execution, &step->source2, step->source2.space == SPACE_SEND);
        mark(execution, &step->destination, true);
        mark(execution, &step->second, true);
    }
    if (plan->collective == COLLECTIVE_BROADCAST && plan->rank == plan->root) execution->recv.copied = false; /* it has what it would be given */
}

static quoit_status_t begin_side(execution_t *execution, plan_space_t space)
{
    execute_staging_t *side = side_of(execution, space);
    size_t blocks = blocks_of(execution);
    if (side->place_capacity < blocks) {
        size_t *larger = realloc(side->place, blocks * sizeof *larger);
        if (!larger) return error_set(QUOIT_ERR_NO_MEMORY, "staging of %zu blocks", blocks);
        side->place = larger;
        side->place_capacity = blocks;
    }
    for (size_t block = 0; block < blocks; block++) side->place[block] = EXECUTE_NOT_STAGED;
    side->copied = false;
    return QUOIT_OK;
}

/* Side by side, as in a buffer of blocks that is not larger than a chunk: then one copy moves them all. No chunk has more of a block than the first. */
static void arrange(execution_t *execution, plan_space_t space)
{
    execute_staging_t *side = side_of(execution, space);
    side->stride = 0;
    for (size_t block = 0; block < blocks_of(execution); block++) {
        if (side->place[block] == EXECUTE_NOT_STAGED) continue;
        side->place[block] = side->stride;
        side->stride += piece_of(execution, 0, space, block).count * execution->binding.width;
    }
    side->stride = (side->stride + LINE - 1) / LINE * LINE;
}

/* ------------------------------------------------------------------ memory */

static void limit_depth(execution_t *execution)
{
    size_t stride = execution->send.stride > execution->recv.stride ? execution->send.stride : execution->recv.stride;
    size_t fit = stride > STAGING_LIMIT ? 1 : stride ? STAGING_LIMIT / stride : execution->depth;
    if (execution->depth > execution->binding.chunks) execution->depth = execution->binding.chunks;
    if (execution->depth > fit) execution->depth = fit;
}

static void free_side(engine_t *engine, const device_row_t *row, execute_staging_t *side)
{
    if (!side->memory) return;
    memory_withdraw(engine, side->memory);
    row->host_free(side->memory);
    side->memory = NULL;
    side->capacity = 0;
}

/* Messages are sent from there and received into it. */
static quoit_status_t make_room(execution_t *execution, const device_row_t *row, execute_staging_t *side)
{
    engine_t *engine = execution->operation->comm->engine;
    size_t needed = side->stride * execution->depth;
    void *memory = NULL;
    if (side->capacity >= needed) return QUOIT_OK;
    free_side(engine, row, side);
    quoit_status_t status = row->host_alloc(needed, &memory);
    if (status != QUOIT_OK) return status;
    side->memory = memory;
    side->capacity = needed;
    memory_declare(engine, memory, needed);
    return QUOIT_OK;
}

quoit_status_t execute_staging_begin(execution_t *execution, const device_row_t *row)
{
    quoit_status_t status = begin_side(execution, SPACE_SEND);
    if (status == QUOIT_OK) status = begin_side(execution, SPACE_RECV);
    if (status != QUOIT_OK) return status;
    mark_all(execution);
    arrange(execution, SPACE_SEND);
    arrange(execution, SPACE_RECV);
    limit_depth(execution);
    status = make_room(execution, row, &execution->send);
    return status == QUOIT_OK ? make_room(execution, row, &execution->recv) : status;
}

void execute_staging_destroy(engine_t *engine, execution_t *execution)
{
    execute_staging_t *side[] = {&execution->send, &execution->recv};
    for (int i = 0; i < 2; i++) {
        free_side(engine, execution->row_idle, side[i]);
        free(side[i]->place);
        *side[i] = (execute_staging_t){0};
    }
}

void execute_staging_give_up(const stage_queue_t *queue, execution_t *execution)
{
    execute_staging_t *side[] = {&execution->send, &execution->recv};
    for (int i = 0; i < 2; i++) {
        if (side[i]->memory) memory_withdraw(queue->engine, side[i]->memory);
        stage_give_up(queue, side[i]->memory);
        free(side[i]->place);
        *side[i] = (execute_staging_t){0};
    }
}

/* ------------------------------------------------------------------ places and copies */

static uint8_t *chunk_of(const execution_t *execution, const execute_staging_t *side, size_t chunk)
{
    return side->memory + execution_place_of(execution, chunk) * side->stride;
}

uint8_t *execute_staging_address(const execution_t *execution, size_t chunk, const plan_operand_t *operand, const plan_piece_t *piece)
{
    const execute_staging_t *side = operand->space == SPACE_SEND ? &execution->send : &execution->recv;
    if (piece->count == 0) return side->memory;
    size_t block = operand->block == PLAN_NO_BLOCK ? 0 : (size_t)operand->block;
    plan_piece_t whole = piece_of(execution, chunk, (plan_space_t)operand->space, block);
    return chunk_of(execution, side, chunk) + side->place[block] + (piece->data - whole.data);
}

/* Bytes that lie side by side in both memories. */
typedef struct stretch {
    char *device;
    uint8_t *host;
    size_t bytes;
} stretch_t;

static quoit_status_t copy(execution_t *execution, const stretch_t *stretch, bool in)
{
    if (stretch->bytes == 0) return QUOIT_OK;
    execution->operation->comm->device_staged += stretch->bytes;
    return in ? execution->row->copy(stretch->host, stretch->device, stretch->bytes, DEVICE_TO_HOST, execution->stream)
              : execution->row->copy(stretch->device, stretch->host, stretch->bytes, HOST_TO_DEVICE, execution->stream);
}

quoit_status_t execute_staging_copy(execution_t *execution, size_t chunk, plan_space_t space, size_t *bytes)
{
    const execute_staging_t *side = side_of(execution, space);
    const plan_side_t *buffer = space == SPACE_SEND ? &execution->binding.send : &execution->binding.recv;
    stretch_t stretch = {0};
    quoit_status_t status = QUOIT_OK;
    size_t total = 0;
    for (size_t block = 0; side->copied && status == QUOIT_OK && block < blocks_of(execution); block++) {
        if (side->place[block] == EXECUTE_NOT_STAGED) continue;
        plan_piece_t piece = piece_of(execution, chunk, space, block);
        if (piece.count == 0) continue;
        stretch_t next = {piece.data, chunk_of(execution, side, chunk) + side->place[block], piece.count * execution->binding.width};
        total += next.bytes;
        /* parts may be neighbours by chance, and of two allocations, which no copy may cross */
        if (stretch.bytes > 0 && !buffer->parts && stretch.device + stretch.bytes == next.device && stretch.host + stretch.bytes == next.host) {
            stretch.bytes += next.bytes;
            continue;
        }
        status = copy(execution, &stretch, space == SPACE_SEND);
        stretch = next;
    }
    if (status == QUOIT_OK) status = copy(execution, &stretch, space == SPACE_SEND);
    if (status == QUOIT_OK) *bytes = total;
    return status;
}
