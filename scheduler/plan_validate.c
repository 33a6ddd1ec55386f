/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The rules of plan.h, as far as one rank's plan shows them: numbers in range, buffers this rank may touch, RECLAIM before writing,
 * AWAIT before reading or writing another's slot, nothing after CONSUMED, nothing in the way of a pending transfer, WAIT at the end.
 * What takes all ranks' plans to see (a signal that nobody gives, a read before the write) is the simulator's.
 */
#include "scheduler/plan_internal.h"

#include <stdlib.h>

typedef struct check {
    const plan_t *plan;
    const topology_t *topology;
    int members, me;
    int step;           /* being checked */
    bool reclaimed, consumed;
    unsigned signalled; /* stages, as bits */
    bool *awaited;      /* [members] */
    int pending_from;   /* transfers since the last WAIT lie in steps [pending_from, step) */
    int pending, transfers;
} check_t;

static quoit_status_t broken(const check_t *check, const char *what)
{
    const plan_t *plan = check->plan;
    const char *verb = check->step < plan->steps ? plan_verb_name((plan_verb_t)plan->step[check->step].verb) : "end";
    return error_set(QUOIT_ERR_INTERNAL, "plan of %s (%s) for rank %d, step %d (%s): %s", plan_collective_name(plan->collective),
                     plan_algorithm_name(plan->algorithm), plan->rank, check->step, verb, what);
}

static bool caller_memory(const plan_operand_t *operand) { return operand->space == SPACE_SEND || operand->space == SPACE_RECV; }

/* May the two be the same memory? SEND and RECV may be one buffer, but for alltoall. Equal shares of different cuts never overlap
   more than their fractions do, because every cut rounds the same way. */
static bool overlap(const plan_t *plan, const plan_operand_t *a, const plan_operand_t *b)
{
    if (a->space == SPACE_NONE || b->space == SPACE_NONE || plan->collective == COLLECTIVE_BARRIER) return false; /* it has no bytes */
    if (caller_memory(a) && caller_memory(b)) {
        if (a->space != b->space && plan->collective == COLLECTIVE_ALLTOALL) return false;
        if (a->block != b->block) return false;
    } else {
        if (a->space != b->space || a->member != b->member) return false;
        if (a->block != PLAN_NO_BLOCK && b->block != PLAN_NO_BLOCK && a->place != b->place) return false;
    }
    int64_t a_end = (int64_t)a->first + a->count, b_end = (int64_t)b->first + b->count;
    return (int64_t)a->first * b->parts < b_end * a->parts && (int64_t)b->first * a->parts < a_end * b->parts;
}

static const char *bad_buffer(const check_t *check, const plan_operand_t *operand, bool writes)
{
    const plan_t *plan = check->plan;
    plan_collective_t collective = plan->collective;
    if (operand->space == SPACE_SEND) {
        if (writes) return "writes the caller's input";
        if (plan->rank != plan->root && (collective == COLLECTIVE_BROADCAST || collective == COLLECTIVE_SCATTER))
            return "reads an input that only the root has";
        bool single = collective == COLLECTIVE_ALLGATHER || collective == COLLECTIVE_GATHER;
        if (single && operand->block != plan->rank) return "reads another rank's block of an input that is one block";
    }
    if (operand->space == SPACE_RECV) {
        if (plan->rank != plan->root && (collective == COLLECTIVE_REDUCE || collective == COLLECTIVE_GATHER))
            return "touches an output that only the root has";
        bool single = collective == COLLECTIVE_REDUCE_SCATTER || collective == COLLECTIVE_SCATTER;
        if (single && operand->block != plan->rank) return "touches another rank's block of an output that is one block";
    }
    return NULL;
}

static const char *bad_slot(const check_t *check, const plan_operand_t *operand, bool writes)
{
    if (!check->plan->window) return "uses a slot in a plan without a window";
    if (operand->member < 0 || operand->member >= check->members) return "names a member that the host does not have";
    if (check->consumed) return "uses a slot after CONSUMED";
    if (operand->member == check->me) return writes && !check->reclaimed ? "writes its slot before RECLAIM" : NULL;
    if (!check->awaited[operand->member]) return "uses another's slot before any AWAIT of its owner";
    return NULL;
}

/* The form in which the plan's first use of a scratch has it. */
static int scratch_form(const check_t *check, int number)
{
    for (int i = 0; i < check->plan->steps; i++) {
        const plan_step_t *step = &check->plan->step[i];
        const plan_operand_t *operand[] = {&step->destination, &step->second, &step->source, &step->source2};
        for (int k = 0; k < 4; k++)
            if (operand[k]->space == SPACE_TEMP && operand[k]->member == number) return operand[k]->form;
    }
    return FORM_WHOLE;
}

static const char *bad_operand(const check_t *check, const plan_operand_t *operand, bool writes)
{
    const plan_t *plan = check->plan;
    if (operand->space == SPACE_NONE || operand->space > SPACE_TEMP) return "has an operand without a space";
    if (operand->parts < 1 || operand->first < 0 || operand->count < 1 || operand->first > operand->parts - operand->count)
        return "has parts out of range";
    if (plan->uniform != (operand->block == PLAN_NO_BLOCK)) return "mixes blocks and uniform pieces";
    if (!plan->uniform && (operand->block < 0 || operand->block >= check->topology->ranks)) return "names a block of no rank";
    if (operand->place < 0 || operand->place >= plan->places) return "has a place out of range";
    if (operand->space == SPACE_TEMP && (operand->member < 0 || operand->member >= plan->temps)) return "names a scratch out of range";
    if (operand->form != FORM_WHOLE && !plan_is_wired(plan)) return "has a form in a plan without a wire format";
    if (operand->form != FORM_WHOLE && operand->space != SPACE_SLOT && operand->space != SPACE_TEMP) return "has another form than whole in the caller's memory";
    if (operand->form == FORM_WIRE && operand->space == SPACE_SLOT) return "has a wire form in a slot";
    if (operand->space == SPACE_TEMP && scratch_form(check, operand->member) != operand->form) return "uses a scratch in two forms";
    if (operand->space == SPACE_SLOT) return bad_slot(check, operand, writes);
    return bad_buffer(check, operand, writes);
}

/* A pending SEND may be read beside, a pending RECV may not be touched. */
static const char *bad_pending(const check_t *check, const plan_operand_t *operand, bool writes)
{
    for (int i = check->pending_from; i < check->step; i++) {
        const plan_step_t *step = &check->plan->step[i];
        if (step->verb == VERB_RECV && overlap(check->plan, &step->destination, operand)) return "touches what a pending RECV writes";
        if (step->verb == VERB_SEND && writes && overlap(check->plan, &step->source, operand)) return "writes what a pending SEND reads";
    }
    return NULL;
}

/* Buffers on a device: of an output only what the plan has written is where its steps look. */
static bool is_written(const check_t *check, const plan_operand_t *operand)
{
    for (int i = 0; i < check->step; i++) {
        const plan_operand_t *written[] = {&check->plan->step[i].destination, &check->plan->step[i].second};
        for (int k = 0; k < 2; k++)
            if (written[k]->space == SPACE_RECV && overlap(check->plan, written[k], operand)) return true;
    }
    return false;
}

static const char *bad_use(const check_t *check, const plan_operand_t *operand, bool writes)
{
    const char *what = bad_operand(check, operand, writes);
    if (!what && !writes && operand->space == SPACE_RECV && check->plan->collective != COLLECTIVE_BARRIER && !is_written(check, operand))
        return "reads an output that it has not written";
    return what || check->pending == 0 ? what : bad_pending(check, operand, writes);
}

static const char *bad_window_sources(const check_t *check, const plan_operand_t *source)
{
    plan_operand_t slot = *source;
    slot.space = SPACE_SLOT;
    const char *what = NULL;
    for (int member = 0; member < check->members && !what; member++) {
        slot.member = member;
        if (member != check->me) what = bad_use(check, &slot, false);
    }
    return what;
}

static const char *check_data(const check_t *check, const plan_step_t *step)
{
    bool converts = step->verb == VERB_ENCODE || step->verb == VERB_DECODE, plain = !converts && step->verb != VERB_SUM_WINDOW;
    const char *what = bad_use(check, &step->source, false);
    if (!what) what = bad_use(check, &step->destination, true);
    if (!what && (plain || (step->verb == VERB_DECODE)) && step->destination.form == FORM_WIRE) what = "writes a wire form";
    if (!what && plain && (step->source.form != FORM_WHOLE || step->destination.form != FORM_WHOLE)) what = "works on another form than whole";
    if (!what && step->verb == VERB_SUM_WINDOW && step->destination.form != FORM_SUM) what = "writes another form than sums";
    if (!what && step->second.space != SPACE_NONE) what = bad_use(check, &step->second, true);
    if (!what && (step->verb == VERB_REDUCE || (converts && step->source2.space != SPACE_NONE))) what = bad_use(check, &step->source2, false);
    if (!what && (step->verb == VERB_REDUCE_WINDOW || step->verb == VERB_SUM_WINDOW)) what = bad_window_sources(check, &step->source);
    if (!what && step->second.space != SPACE_NONE && step->verb != VERB_REDUCE && step->verb != VERB_REDUCE_WINDOW) what = "has a second destination";
    if (!what && (step->flags & STEP_SCALE) && step->verb != VERB_COPY && !converts) what = "scales but is no COPY";
    if (!what && (step->flags & STEP_FINISH) && (step->verb == VERB_COPY || step->verb == VERB_SUM_WINDOW)) what = "finishes but is not the last sum";
    if (!what && (step->flags & STEP_SHARE) && (check->plan->share == 0 || step->verb == VERB_REDUCE)) what = "divides by a share that there is not";
    if (!what && (step->flags & STEP_NOTE) && step->verb != VERB_ENCODE) what = "notes an error but does not encode";
    if (!what && (step->flags & STEP_INPUT) && !check->plan->shares_inputs) what = "reads inputs where they lie in a plan that does not share them";
    if (!what && (step->flags & STEP_INPUT) && (step->flags & STEP_SCALE)) what = "takes for an unchanged input what it scales";
    return what;
}

static const char *check_transfer(check_t *check, const plan_step_t *step)
{
    if (step->peer < 0 || step->peer >= check->topology->ranks) return "names a peer that is no rank";
    if (step->peer == check->plan->rank) return "is a message to itself";
    const char *what = step->verb == VERB_SEND ? bad_use(check, &step->source, false) : bad_use(check, &step->destination, true);
    if (check->pending++ == 0) check->pending_from = check->step;
    check->transfers++;
    return what;
}

static const char *check_sync(check_t *check, const plan_step_t *step)
{
    if (!check->plan->window) return "is a window's step in a plan without one";
    if (check->consumed) return "comes after CONSUMED";
    switch (step->verb) {
    case VERB_RECLAIM:
        if (check->reclaimed) return "reclaims twice";
        check->reclaimed = true;
        return NULL;
    case VERB_SIGNAL:
        if (step->stage >= PLAN_STAGES) return "has a stage out of range";
        if (check->signalled & (1u << step->stage)) return "signals a stage twice";
        check->signalled |= 1u << step->stage;
        return NULL;
    case VERB_AWAIT:
        if (step->stage >= PLAN_STAGES) return "has a stage out of range";
        if (step->peer != PLAN_ALL && (step->peer < 0 || step->peer >= check->members)) return "awaits a member that the host does not have";
        if (step->peer == check->me) return "awaits itself";
        for (int member = 0; member < check->members; member++)
            if (step->peer == PLAN_ALL || step->peer == member) check->awaited[member] = true;
        return NULL;
    default:
        if (check->pending > 0) return "is reached with transfers pending";
        check->consumed = true;
        return NULL;
    }
}

static const char *check_step(check_t *check, const plan_step_t *step)
{
    switch (step->verb) {
    case VERB_RECLAIM:
    case VERB_SIGNAL:
    case VERB_AWAIT:
    case VERB_CONSUMED: return check_sync(check, step);
    case VERB_COPY:
    case VERB_REDUCE:
    case VERB_REDUCE_WINDOW:
    case VERB_ENCODE:
    case VERB_DECODE:
    case VERB_SUM_WINDOW: return check_data(check, step);
    case VERB_SEND:
    case VERB_RECV: return check_transfer(check, step);
    case VERB_WAIT:
        if (check->pending == 0) return "waits for nothing";
        check->pending = 0;
        return NULL;
    default: return "is no verb";
    }
}

static const char *check_end(const check_t *check)
{
    if (check->pending > 0) return "transfers are pending";
    if (check->plan->window && !check->consumed) return "CONSUMED is missing";
    if (check->transfers != check->plan->transfers) return "the plan tells another number of transfers";
    return NULL;
}

quoit_status_t plan_validate(const plan_t *plan, const topology_t *topology)
{
    int host = topology->host[plan->rank];
    check_t check = {.plan = plan, .topology = topology, .members = topology->host_size[host], .me = topology->member[plan->rank]};
    if (plan->depth < 1 || plan->places < 1 || plan->temps < 0) return broken(&check, "depth, places or scratch buffers out of range");
    check.awaited = calloc((size_t)check.members, sizeof *check.awaited);
    if (!check.awaited) return error_set(QUOIT_ERR_NO_MEMORY, "out of memory while checking the plan of rank %d", plan->rank);
    const char *what = NULL;
    while (!what && check.step < plan->steps) {
        what = check_step(&check, &plan->step[check.step]);
        if (!what) check.step++;
    }
    if (!what) what = check_end(&check);
    quoit_status_t status = what ? broken(&check, what) : QUOIT_OK;
    free(check.awaited);
    return status;
}
