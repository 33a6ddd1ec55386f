/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Plans: making one from a request with the writer of its algorithm, and joining one with the buffers of a call, which says where
 * each operand of each chunk lies.
 */
#include "scheduler/plan.h"

#include "scheduler/algorithm/algorithms.h"
#include "scheduler/plan_internal.h"

#include <stdint.h>
#include <stdlib.h>

static bool is_uniform(plan_collective_t collective)
{
    return collective == COLLECTIVE_ALLREDUCE || collective == COLLECTIVE_REDUCE || collective == COLLECTIVE_BROADCAST ||
           collective == COLLECTIVE_BARRIER;
}

static bool has_root(plan_collective_t collective)
{
    return collective == COLLECTIVE_REDUCE || collective == COLLECTIVE_BROADCAST || collective == COLLECTIVE_GATHER ||
           collective == COLLECTIVE_SCATTER;
}

/* Does the algorithm go with the number of ranks and hosts? Whether windows can be had is the caller's knowledge. */
static bool fits(plan_algorithm_t algorithm, const topology_t *topology)
{
    switch (algorithm) {
    case ALGORITHM_LOCAL: return topology->ranks == 1;
    case ALGORITHM_FLAT:
    case ALGORITHM_WINDOW: return topology->hosts == 1 && topology->ranks > 1;
    case ALGORITHM_TWO_LEVEL:
    case ALGORITHM_DOUBLING: return topology->hosts > 1;
    default: return topology->ranks > 1;
    }
}

static quoit_status_t check_request(const topology_t *topology, const plan_request_t *request)
{
    const char *collective = plan_collective_name(request->collective), *algorithm = plan_algorithm_name(request->algorithm);
    int ranks = topology->ranks;
    if (request->rank < 0 || request->rank >= ranks)
        return error_set(QUOIT_ERR_INVALID, "plan of %s: rank %d is not one of 0..%d", collective, request->rank, ranks - 1);
    if (request->root < 0 || request->root >= ranks)
        return error_set(QUOIT_ERR_INVALID, "plan of %s: root %d is not one of 0..%d", collective, request->root, ranks - 1);
    if (!algorithm_writer(request->collective, request->algorithm))
        return error_set(QUOIT_ERR_INVALID, "plan of %s: there is no algorithm %s for it", collective, algorithm);
    if (!fits(request->algorithm, topology))
        return error_set(QUOIT_ERR_INVALID, "plan of %s: algorithm %s does not fit %d ranks on %d hosts", collective, algorithm,
                         ranks, topology->hosts);
    if ((request->premul || request->share) && !plan_reduces(request->collective))
        return error_set(QUOIT_ERR_INVALID, "plan of %s: a premul factor, or an average's share, goes with reductions only", collective);
    if (request->wire > QUOIT_WIRE_NONE && (!plan_reduces(request->collective) || request->wire >= QUOIT_WIRE_COUNT))
        return error_set(QUOIT_ERR_INVALID, "plan of %s: wire format %s goes with reductions only", collective, quoit_wire_name(request->wire));
    if (request->premul && request->share) return error_set(QUOIT_ERR_INVALID, "plan of %s: an average with a premul factor", collective);
    return QUOIT_OK;
}

static int choose_depth(const tuning_t *tuning, const plan_request_t *request)
{
    if (request->algorithm == ALGORITHM_LOCAL) return 1;
    if (request->small || plan_is_of_one_host(request->algorithm)) return PLAN_WINDOW_DEPTH;
    return tuning->net_depth > 0 ? tuning->net_depth : 1;
}

/* Scratch buffers are counted from the steps that use them. */
static int count_temps(const plan_t *plan)
{
    int temps = 0;
    for (int i = 0; i < plan->steps; i++) {
        const plan_step_t *step = &plan->step[i];
        const plan_operand_t *operand[] = {&step->destination, &step->second, &step->source, &step->source2};
        for (int k = 0; k < 4; k++)
            if (operand[k]->space == SPACE_TEMP && operand[k]->member >= temps) temps = operand[k]->member + 1;
    }
    return temps;
}

quoit_status_t plan_create(const topology_t *topology, const tuning_t *tuning, const plan_request_t *request, plan_t **plan)
{
    quoit_status_t status = check_request(topology, request);
    if (status != QUOIT_OK) return status;
    plan_t *made = calloc(1, sizeof *made);
    if (!made) goto no_memory;
    made->collective = request->collective;
    made->algorithm = request->algorithm;
    made->rank = request->rank;
    made->root = has_root(request->collective) ? request->root : 0;
    made->uniform = is_uniform(request->collective);
    made->premul = request->premul;
    made->share = request->share;
    made->wire = request->wire;
    made->block_side = request->collective == COLLECTIVE_ALLGATHER || request->collective == COLLECTIVE_GATHER ? SPACE_RECV : SPACE_SEND;
    made->depth = choose_depth(tuning, request);
    made->places = 1;
    made->small = request->small;

    int host = topology->host[request->rank];
    builder_t builder = {.topology = topology,
                         .request = request,
                         .plan = made,
                         .rank = request->rank,
                         .root = made->root,
                         .host = host,
                         .hosts = topology->hosts,
                         .me = topology->member[request->rank],
                         .members = topology->host_size[host]};
    algorithm_writer(request->collective, request->algorithm)(&builder);
    if (builder.failed) goto no_memory;
    made->temps = count_temps(made);
    *plan = made;
    return QUOIT_OK;

no_memory:
    plan_destroy(made);
    return error_set(QUOIT_ERR_NO_MEMORY, "out of memory for the plan of %s among %d ranks", plan_collective_name(request->collective),
                     topology->ranks);
}

void plan_destroy(plan_t *plan)
{
    if (!plan) return;
    free(plan->step);
    free(plan);
}

/* ---- binding */

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* Elements of the largest block of one side, as far as this rank knows them. */
static size_t largest_block(const plan_side_t *side, int ranks)
{
    if (!side->parts) return side->count;
    size_t largest = 0;
    for (int rank = 0; rank < ranks; rank++) largest = larger(largest, side->parts[rank].count);
    return largest;
}

/* Bytes that one place of a slot should have: see PLAN_BLOCK_MESSAGE. */
static size_t net_place_bytes(size_t net_chunk, size_t places)
{
    size_t floor = smaller(smaller(net_chunk, PLAN_BLOCK_MESSAGE), PLAN_SLOT_CAP / places);
    return larger(net_chunk / places, floor);
}

/* The ring cuts a piece into as many messages as there are ranks; its scratch is as large as the piece. */
static size_t ring_piece_bytes(size_t net_chunk, size_t ranks, size_t total)
{
    size_t wanted = smaller(net_chunk, SIZE_MAX / ranks) * ranks, cap = larger(net_chunk, PLAN_SLOT_CAP);
    return smaller(smaller(wanted, cap), larger(total, 1));
}

/* The others read one piece while the root writes the next: so in several, of which none is too small to pay for its flags. */
static size_t broadcast_chunk_bytes(const tuning_t *tuning, size_t bytes)
{
    size_t piece = bytes / PLAN_BROADCAST_PIECES;
    return smaller((size_t)tuning->slot_size, larger(piece, PLAN_BROADCAST_PIECE));
}

static size_t chunk_bytes(const plan_binding_t *binding, const tuning_t *tuning, size_t count)
{
    const plan_t *plan = binding->plan;
    size_t places = (size_t)plan->places, net_chunk = (size_t)tuning->net_chunk_size;
    if (plan->small) return PLAN_SMALL_SLOT / places;
    switch (plan->algorithm) {
    case ALGORITHM_LOCAL:
    case ALGORITHM_FLAT:
    case ALGORITHM_WINDOW:
        if (plan->collective == COLLECTIVE_BROADCAST) return broadcast_chunk_bytes(tuning, count * binding->width);
        return (size_t)tuning->slot_size / places;
    case ALGORITHM_RING:
        if (plan->uniform) return ring_piece_bytes(net_chunk, (size_t)binding->ranks, count * binding->width + PLAN_ALIGNMENT - 1);
        return net_chunk;
    case ALGORITHM_TWO_LEVEL: return net_place_bytes(net_chunk, places);
    default: return net_chunk;
    }
}

void plan_bind(plan_binding_t *binding, const tuning_t *tuning)
{
    size_t count = larger(largest_block(&binding->send, binding->ranks), largest_block(&binding->recv, binding->ranks));
    size_t width = larger(binding->width, 1); /* a barrier may have none */
    size_t chunk = chunk_bytes(binding, tuning, count);
    chunk /= plan_is_wired(binding->plan) && binding->plan->small && width < sizeof(float) ? width + sizeof(float) : width; /* sums beside */
    size_t unit = larger(PLAN_ALIGNMENT / width, 1);
    if (chunk > unit) chunk -= chunk % unit;
    if (!binding->plan->small && plan_is_of_one_host(binding->plan->algorithm)) chunk = smaller(chunk, (count + unit - 1) / unit * unit); /* slots no larger than used */
    binding->chunk = larger(chunk, 1);
    binding->chunks = larger(count / binding->chunk + (count % binding->chunk != 0), 1);
}

size_t plan_part_begin(size_t count, size_t width, int parts, int index)
{
    if (index <= 0) return 0;
    if (index >= parts) return count;
    size_t unit = larger(PLAN_ALIGNMENT / width, 1);
    size_t units = count / unit + (count % unit != 0), whole = units / (size_t)parts, rest = units % (size_t)parts;
    return smaller((whole * (size_t)index + rest * (size_t)index / (size_t)parts) * unit, count);
}

/* Elements of the block (or uniform vector) that an operand of `space` is cut from. */
static size_t operand_total(const plan_binding_t *binding, plan_space_t space, int block)
{
    if (binding->plan->uniform) return larger(binding->send.count, binding->recv.count);
    if (space != SPACE_SEND && space != SPACE_RECV) space = (plan_space_t)binding->plan->block_side;
    const plan_side_t *side = space == SPACE_SEND ? &binding->send : &binding->recv;
    return side->parts ? side->parts[block].count : side->count;
}

static char *side_address(const plan_side_t *side, int block, size_t element, size_t width)
{
    if (block == PLAN_NO_BLOCK) return side->base + element * width;
    if (side->parts) return (char *)side->parts[block].data + element * width;
    return side->base + ((size_t)block * side->stride + element) * width;
}

/* ---- forms */

size_t plan_form_bytes(const plan_binding_t *binding, plan_form_t form, size_t count)
{
    switch (form) {
    case FORM_SUM: return count * sizeof(float);
    case FORM_WIRE: return wire_bytes(plan_wire_type(binding->plan->wire), count);
    default: return count * binding->width;
    }
}

/* Bytes from one element's place to the next in wire form; scales of int8 find room between parts, which begin 16 elements apart at least. */
static size_t wire_stride(const plan_t *plan) { return plan->wire == QUOIT_WIRE_F32 ? sizeof(float) : 2; }

/* A place has room for the scale of a part of one element, too. */
static size_t wire_place_bytes(const plan_binding_t *binding) { return binding->chunk * wire_stride(binding->plan) + PLAN_ALIGNMENT; }

size_t plan_wired_slot_bytes(const plan_binding_t *binding)
{
    size_t places = (size_t)binding->plan->places, sums = places * binding->chunk * sizeof(float), wire = places * wire_place_bytes(binding);
    size_t slot = binding->width == sizeof(float) ? sums : places * binding->chunk * binding->width + sums;
    return larger(slot, wire); /* the wire form is in scratch only */
}

static size_t form_offset(const plan_binding_t *binding, const plan_operand_t *operand, size_t from)
{
    size_t place = operand->block == PLAN_NO_BLOCK ? 0 : (size_t)operand->place, places = (size_t)binding->plan->places;
    if (operand->form == FORM_WIRE) return place * wire_place_bytes(binding) + from * wire_stride(binding->plan);
    bool behind = operand->space == SPACE_SLOT && binding->width != sizeof(float);
    return (behind ? places * binding->chunk * binding->width : 0) + (place * binding->chunk + from) * sizeof(float);
}

/* ---- places */

/* Elements of this chunk in a block (or uniform vector) of `total`, and where they begin. */
static size_t chunk_of(const plan_binding_t *binding, size_t chunk, size_t total, size_t *begin)
{
    *begin = chunk < binding->chunks ? smaller(chunk * binding->chunk, total) : total;
    return smaller(binding->chunk, total - *begin);
}

size_t plan_input_offset(const plan_binding_t *binding, size_t chunk, const plan_operand_t *operand)
{
    size_t width = binding->width, begin, before = 0;
    size_t count = chunk_of(binding, chunk, operand_total(binding, SPACE_SLOT, operand->block), &begin);
    if (operand->block != PLAN_NO_BLOCK && binding->plan->block_side == SPACE_SEND) { /* else a SEND is one block */
        before = binding->send.parts ? 0 : (size_t)operand->block * binding->send.stride;
        for (int block = 0; binding->send.parts && block < operand->block; block++) before += binding->send.parts[block].count;
    }
    return (before + begin + plan_part_begin(count, width, operand->parts, operand->first)) * width;
}

/* All of a block or vector, of which there is one chunk: no part of it is to be found, and nothing to be divided. */
static bool is_all(const plan_binding_t *binding, const plan_operand_t *operand)
{
    return operand->space != SPACE_NONE && operand->form == FORM_WHOLE && binding->chunks == 1 && operand->first == 0 && operand->count == operand->parts;
}

static void locate_all(const plan_binding_t *binding, const plan_operand_t *operand, plan_piece_t *piece)
{
    size_t count = operand_total(binding, (plan_space_t)operand->space, operand->block);
    *piece = (plan_piece_t){.count = count};
    if (operand->space == SPACE_SEND || operand->space == SPACE_RECV) {
        const plan_side_t *side = operand->space == SPACE_SEND ? &binding->send : &binding->recv;
        if (count > 0) piece->data = side_address(side, operand->block, 0, binding->width);
    } else if (operand->block != PLAN_NO_BLOCK) {
        piece->offset = (size_t)operand->place * binding->chunk * binding->width;
    }
}

static __attribute__((noinline)) void locate_part(const plan_binding_t *binding, size_t chunk, const plan_operand_t *operand, plan_piece_t *piece)
{
    size_t width = binding->width, begin, total = operand_total(binding, (plan_space_t)operand->space, operand->block);
    size_t count = chunk_of(binding, chunk, total, &begin);
    size_t from = plan_part_begin(count, width, operand->parts, operand->first);
    size_t to = plan_part_begin(count, width, operand->parts, operand->first + operand->count);
    *piece = (plan_piece_t){.count = to - from};
    switch (operand->space) {
    case SPACE_SEND:
        if (to > from) piece->data = side_address(&binding->send, operand->block, begin + from, width);
        break;
    case SPACE_RECV:
        if (to > from) piece->data = side_address(&binding->recv, operand->block, begin + from, width);
        break;
    case SPACE_SLOT:
    case SPACE_TEMP:
        if (operand->form != FORM_WHOLE) {
            piece->offset = form_offset(binding, operand, from);
            break;
        }
        piece->offset = ((operand->block == PLAN_NO_BLOCK ? 0 : (size_t)operand->place) * binding->chunk + from) * width;
        break;
    default: piece->count = 0; break;
    }
}

void plan_locate(const plan_binding_t *binding, size_t chunk, const plan_operand_t *operand, plan_piece_t *piece)
{
    if (chunk == 0 && is_all(binding, operand)) locate_all(binding, operand, piece);
    else locate_part(binding, chunk, operand, piece);
}
