/* SPDX-License-Identifier: Apache-2.0 */
/** What copies and reductions of a plan do to memory, in the simulator, and whether they may. */
#include "scheduler/reduce/reduce.h"
#include "scheduler/simulate_internal.h"

#include <string.h>

static sim_place_t slot_place(const sim_rank_t *rank, const sim_run_t *run, int member, const plan_operand_t *operand, const plan_piece_t *piece)
{
    const sim_window_t *window = rank->window;
    sim_place_t place = {.count = piece->count, .bytes = plan_form_bytes(rank->binding, (plan_form_t)operand->form, piece->count), .owner = member, .offset = piece->offset,
                         .place = operand->block == PLAN_NO_BLOCK ? 0 : operand->place};
    size_t slot = (size_t)member * (size_t)window->depth + run->chunk % (size_t)window->depth;
    place.data = window->slot + slot * window->slot_bytes + piece->offset;
    return place;
}

sim_place_t sim_find(const sim_rank_t *rank, const sim_run_t *run, const plan_operand_t *operand)
{
    plan_piece_t piece;
    plan_locate(rank->binding, run->chunk, operand, &piece);
    if (operand->space == SPACE_SLOT) return slot_place(rank, run, operand->member, operand, &piece);
    sim_place_t place = {.data = (unsigned char *)piece.data, .count = piece.count, .bytes = plan_form_bytes(rank->binding, (plan_form_t)operand->form, piece.count), .owner = -1};
    if (operand->space == SPACE_TEMP) {
        size_t depth = (size_t)rank->plan->depth, temps = (size_t)rank->plan->temps;
        size_t number = run->chunk % depth * temps + (size_t)operand->member;
        place.data = rank->temp + number * plan_slot_bytes(rank->binding) + piece.offset;
    }
    return place;
}

static bool meet(const unsigned char *a, size_t a_bytes, const unsigned char *b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

sim_outcome_t sim_use_place(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const sim_place_t *place, bool write, sim_transfer_t *transfer)
{
    if (place->bytes == 0) return SIM_RAN;
    for (const sim_transfer_t *other = rank->pending; other; other = other->next) {
        if (other->send && !write) continue;
        if (meet(place->data, place->bytes, other->data, other->bytes))
            return sim_broken(sim, "%s what the pending %s of step %d (chunk %zu) %s", write ? "writes" : "reads",
                              other->send ? "SEND" : "RECV", other->step, other->chunk, other->send ? "reads" : "writes");
    }
    return place->owner < 0 ? SIM_RAN : sim_window_use(sim, rank, run, place, write, transfer);
}

static sim_outcome_t run_copy(sim_t *sim, const sim_rank_t *rank, const plan_step_t *step, const sim_place_t *to, const sim_place_t *from)
{
    static const double one[2] = {1.0, 0.0};
    if (to->count != from->count) return sim_broken(sim, "copies %zu elements to %zu", from->count, to->count);
    const double *factor = sim->simulation->factor ? sim->simulation->factor[rank->rank] : one;
    if (step->flags & STEP_SCALE) reduce_scale(sim->simulation->dtype, to->data, from->data, to->count, factor);
    else if (step->flags & STEP_SHARE) reduce_divide(sim->simulation->dtype, to->data, from->data, to->count, rank->plan->share);
    else if (to->data != from->data && to->bytes > 0) memcpy(to->data, from->data, to->bytes);
    return SIM_RAN;
}

/* Inputs of REDUCE_WINDOW in member order, each one's use checked but the own source's, which the caller has checked. */
static sim_outcome_t find_window_sources(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const plan_step_t *step, const sim_place_t *own)
{
    plan_operand_t slot = step->source;
    slot.space = SPACE_SLOT;
    for (int member = 0; member < rank->window->members; member++) {
        slot.member = member;
        sim_place_t place = member == rank->me ? *own : sim_find(rank, run, &slot);
        if (place.count != own->count) return sim_broken(sim, "reduces %zu elements with %zu", place.count, own->count);
        sim->source[member] = place.data;
        if (member == rank->me) continue;
        sim_outcome_t outcome = sim_use_place(sim, rank, run, &place, false, NULL);
        if (outcome != SIM_RAN) return outcome;
    }
    return SIM_RAN;
}

static sim_outcome_t run_reduce(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const plan_step_t *step, const sim_place_t *to,
                                const sim_place_t *from)
{
    const simulation_t *simulation = sim->simulation;
    sim_place_t second = {.count = to->count}, source2;
    sim_outcome_t outcome = SIM_RAN;
    reduce_call_t call = {.dtype = simulation->dtype, .op = simulation->op, .source = sim->source, .count = to->count, .destination = to->data};
    if (step->second.space != SPACE_NONE) second = sim_find(rank, run, &step->second);
    if (second.count != to->count || from->count != to->count)
        return sim_broken(sim, "reduces %zu elements into %zu and %zu", from->count, to->count, second.count);
    if (second.data) outcome = sim_use_place(sim, rank, run, &second, true, NULL);
    if (outcome != SIM_RAN) return outcome;
    if (step->verb == VERB_REDUCE) {
        source2 = sim_find(rank, run, &step->source2);
        if (source2.count != to->count) return sim_broken(sim, "reduces %zu elements with %zu", to->count, source2.count);
        outcome = sim_use_place(sim, rank, run, &source2, false, NULL);
        sim->source[0] = from->data;
        sim->source[1] = source2.data;
        call.sources = 2;
    } else {
        if (!rank->window) return sim_broken(sim, "there is no window");
        outcome = find_window_sources(sim, rank, run, step, from);
        call.sources = rank->window->members;
    }
    if (outcome != SIM_RAN || to->count == 0) return outcome;
    call.copy = second.data;
    if ((step->flags & (STEP_FINISH | STEP_SHARE)) && simulation->op == QUOIT_AVG)
        call.finish.divisor = step->flags & STEP_SHARE ? rank->plan->share : simulation->topology->ranks;
    reduce_run(&call);
    return SIM_RAN;
}

/* As run_reduce, for ENCODE, DECODE and SUM_WINDOW. */
static sim_outcome_t run_convert(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const plan_step_t *step, const sim_place_t *to,
                                 const sim_place_t *from)
{
    const simulation_t *simulation = sim->simulation;
    double factor = simulation->factor ? simulation->factor[rank->rank][0] : 1;
    wire_call_t call = plan_wire_call(rank->plan, step, simulation->dtype, simulation->topology->ranks, factor);
    sim_outcome_t outcome = SIM_RAN;
    if (from->count != to->count) return sim_broken(sim, "makes %zu elements of %zu", to->count, from->count);
    sim->source[0] = from->data;
    if (step->verb == VERB_SUM_WINDOW) {
        if (!rank->window) return sim_broken(sim, "there is no window");
        outcome = find_window_sources(sim, rank, run, step, from);
        call.sources = rank->window->members;
    } else if (call.sources == 2) {
        sim_place_t source2 = sim_find(rank, run, &step->source2);
        if (source2.count != to->count) return sim_broken(sim, "makes %zu elements of %zu", to->count, source2.count);
        outcome = sim_use_place(sim, rank, run, &source2, false, NULL);
        sim->source[1] = source2.data;
    }
    if (outcome != SIM_RAN) return outcome;
    call.source = sim->source;
    call.count = to->count;
    call.destination = to->data;
    if (step->flags & STEP_NOTE && simulation->residual) {
        plan_operand_t elements = step->destination;
        plan_piece_t piece;
        elements.form = FORM_SUM;
        plan_locate(rank->binding, run->chunk, &elements, &piece);
        call.error = simulation->residual[rank->rank] + run->chunk * rank->binding->chunk + piece.offset / sizeof(float);
    }
    wire_run(&call);
    return SIM_RAN;
}

sim_outcome_t sim_run_data(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const plan_step_t *step)
{
    sim_place_t to = sim_find(rank, run, &step->destination), from = sim_find(rank, run, &step->source);
    sim_outcome_t outcome = sim_use_place(sim, rank, run, &from, false, NULL);
    if (outcome == SIM_RAN && (to.data != from.data || step->verb != VERB_COPY)) outcome = sim_use_place(sim, rank, run, &to, true, NULL);
    if (outcome != SIM_RAN) return outcome;
    switch (step->verb) {
    case VERB_COPY: return run_copy(sim, rank, step, &to, &from);
    case VERB_REDUCE:
    case VERB_REDUCE_WINDOW: return run_reduce(sim, rank, run, step, &to, &from);
    default: return run_convert(sim, rank, run, step, &to, &from);
    }
}
