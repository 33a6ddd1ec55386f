/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Windows in the simulator. Every use of a slot is logged with the step that made it, and each chunk in flight carries a vector
 * clock: how many steps of each member are known to be done, learnt from the signals it awaited. A use that overlaps an earlier one
 * (one of the two a write) by a step that is not known to be done breaks a rule, whatever the order of this run happened to be. So a
 * missing AWAIT shows in every run, not only in an unlucky one.
 */
#include "scheduler/simulate_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static size_t slot_index(const sim_window_t *window, int member, size_t chunk)
{
    return (size_t)member * (size_t)window->depth + chunk % (size_t)window->depth;
}

static sim_signal_t **signal_at(const sim_window_t *window, int member, int stage, size_t chunk)
{
    return &window->signal[((size_t)member * PLAN_STAGES + (size_t)stage) * window->chunks + chunk];
}

static bool allocate(sim_window_t *window)
{
    size_t members = (size_t)window->members, slots = members * (size_t)window->depth;
    window->slot = malloc(slots * window->slot_bytes + 1);
    window->log = calloc(slots * (size_t)window->places, sizeof *window->log);
    window->owner_chunk = calloc(slots, sizeof *window->owner_chunk);
    window->owner_step = calloc(slots, sizeof *window->owner_step);
    window->signalled = calloc(members * PLAN_STAGES, sizeof *window->signalled);
    window->signal = calloc(members * PLAN_STAGES * window->chunks, sizeof *window->signal);
    window->consumed = calloc(members, sizeof *window->consumed);
    window->consumed_time = calloc(members * window->chunks, sizeof *window->consumed_time);
    return window->slot && window->log && window->owner_chunk && window->owner_step && window->signalled && window->signal &&
           window->consumed && window->consumed_time;
}

sim_outcome_t sim_window_open(sim_t *sim, sim_window_t *window, int host)
{
    const topology_t *topology = sim->simulation->topology;
    int members = topology->host_size[host];
    const sim_rank_t *first = &sim->rank[topology_leader(topology, host)];
    for (int member = 0; member < members; member++) {
        const sim_rank_t *rank = &sim->rank[topology_rank(topology, host, member)];
        if (rank->plan->window != first->plan->window)
            return sim_broken(sim, "ranks %d and %d: only one of the plans uses their window", first->rank, rank->rank);
        if (!rank->plan->window) continue;
        if (rank->plan->depth != first->plan->depth || rank->plan->places != first->plan->places ||
            plan_slot_bytes(rank->binding) != plan_slot_bytes(first->binding) || rank->binding->chunks != first->binding->chunks)
            return sim_broken(sim, "ranks %d and %d lay out their window differently", first->rank, rank->rank);
    }
    if (!first->plan->window) return SIM_RAN;
    window->members = members;
    window->depth = first->plan->depth;
    window->places = first->plan->places;
    window->slot_bytes = plan_slot_bytes(first->binding);
    window->chunks = first->binding->chunks;
    return allocate(window) ? SIM_RAN : SIM_NO_MEMORY;
}

void sim_window_close(sim_window_t *window)
{
    size_t slots = (size_t)window->members * (size_t)window->depth, signals = (size_t)window->members * PLAN_STAGES * window->chunks;
    for (size_t i = 0; window->log && i < slots * (size_t)window->places; i++) free(window->log[i].use);
    for (size_t i = 0; window->signal && i < signals; i++) free(window->signal[i]);
    free(window->slot);
    free(window->log);
    free(window->owner_chunk);
    free(window->owner_step);
    free(window->signalled);
    free(window->signal);
    free(window->consumed);
    free(window->consumed_time);
}

static sim_outcome_t run_reclaim(sim_rank_t *rank, sim_run_t *run)
{
    enum { GARBAGE = 0xa5 };
    sim_window_t *window = rank->window;
    size_t depth = (size_t)window->depth, slot = slot_index(window, rank->me, run->chunk);
    for (int member = 0; run->chunk >= depth && member < window->members; member++) {
        if (window->consumed[member] <= run->chunk - depth) return SIM_NOT_YET;
        double time = window->consumed_time[(size_t)member * window->chunks + run->chunk - depth];
        if (time > run->time) run->time = time;
    }
    window->owner_chunk[slot] = run->chunk + 1;
    window->owner_step[slot] = run->step;
    memset(window->slot + slot * window->slot_bytes, GARBAGE, window->slot_bytes);
    for (int place = 0; place < window->places; place++) window->log[slot * (size_t)window->places + (size_t)place].uses = 0;
    return SIM_RAN;
}

static sim_outcome_t run_signal(sim_t *sim, sim_rank_t *rank, sim_run_t *run, int stage)
{
    sim_window_t *window = rank->window;
    size_t *signalled = &window->signalled[rank->me * PLAN_STAGES + stage];
    if (*signalled != run->chunk) return sim_broken(sim, "stage %d is signalled out of order", stage);
    sim_signal_t *signal = malloc(sizeof *signal + (size_t)window->members * sizeof signal->clock[0]);
    if (!signal) return SIM_NO_MEMORY;
    signal->time = run->time;
    memcpy(signal->clock, run->clock, (size_t)window->members * sizeof signal->clock[0]);
    signal->clock[rank->me] = run->step + 1;
    *signal_at(window, rank->me, stage, run->chunk) = signal;
    *signalled = run->chunk + 1;
    return SIM_RAN;
}

static sim_outcome_t run_await(sim_rank_t *rank, sim_run_t *run, int stage, int peer)
{
    const sim_window_t *window = rank->window;
    for (int member = 0; member < window->members; member++) {
        bool awaited = member != rank->me && (peer == PLAN_ALL || peer == member);
        if (awaited && window->signalled[member * PLAN_STAGES + stage] <= run->chunk) return SIM_NOT_YET;
    }
    for (int member = 0; member < window->members; member++) {
        if (member == rank->me || (peer != PLAN_ALL && peer != member)) continue;
        const sim_signal_t *signal = *signal_at(window, member, stage, run->chunk);
        if (signal->time > run->time) run->time = signal->time;
        for (int other = 0; other < window->members; other++)
            if (signal->clock[other] > run->clock[other]) run->clock[other] = signal->clock[other];
    }
    return SIM_RAN;
}

sim_outcome_t sim_run_sync(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const plan_step_t *step)
{
    sim_window_t *window = rank->window;
    if (!window) return sim_broken(sim, "there is no window");
    switch (step->verb) {
    case VERB_RECLAIM: return run_reclaim(rank, run);
    case VERB_SIGNAL: return run_signal(sim, rank, run, step->stage);
    case VERB_AWAIT: return run_await(rank, run, step->stage, step->peer);
    default:
        if (window->consumed[rank->me] != run->chunk) return sim_broken(sim, "chunks are consumed out of order");
        window->consumed_time[(size_t)rank->me * window->chunks + run->chunk] = run->time;
        window->consumed[rank->me] = run->chunk + 1;
        return SIM_RAN;
    }
}

static bool add_use(sim_log_t *log, const sim_use_t *use)
{
    if (log->uses == log->capacity) {
        int capacity = log->capacity ? log->capacity * 2 : 8;
        sim_use_t *grown = realloc(log->use, (size_t)capacity * sizeof *grown);
        if (!grown) return false;
        log->use = grown;
        log->capacity = capacity;
    }
    log->use[log->uses++] = *use;
    return true;
}

static sim_outcome_t check_conflicts(sim_t *sim, const sim_rank_t *rank, const sim_run_t *run, const sim_log_t *log, const sim_use_t *use)
{
    for (int i = 0; i < log->uses; i++) {
        const sim_use_t *other = &log->use[i];
        bool meets = other->begin < use->end && use->begin < other->end && (other->write || use->write);
        if (!meets || other->member == rank->me) continue;
        if (other->step != INT_MAX && run->clock[other->member] > other->step) continue;
        return sim_broken(sim, "%s bytes %zu..%zu of a slot that member %d %s in its step %d%s, without having awaited that",
                          use->write ? "writes" : "reads", use->begin, use->end, other->member, other->write ? "wrote" : "read",
                          other->step == INT_MAX ? -1 : other->step, other->step == INT_MAX ? " (a pending transfer)" : "");
    }
    return SIM_RAN;
}

sim_outcome_t sim_window_use(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const sim_place_t *place, bool write,
                             sim_transfer_t *transfer)
{
    sim_window_t *window = rank->window;
    size_t slot = slot_index(window, place->owner, run->chunk);
    if (window->consumed[rank->me] > run->chunk) return sim_broken(sim, "uses member %d's slot after CONSUMED", place->owner);
    if (window->owner_chunk[slot] != run->chunk + 1)
        return sim_broken(sim, "uses member %d's slot, which was not reclaimed for this chunk", place->owner);
    if (place->owner != rank->me && run->clock[place->owner] <= window->owner_step[slot])
        return sim_broken(sim, "uses member %d's slot without proof that it was reclaimed for this chunk", place->owner);
    sim_log_t *log = &window->log[slot * (size_t)window->places + (size_t)place->place];
    sim_use_t use = {.begin = place->offset, .end = place->offset + place->bytes, .member = rank->me, .step = run->step, .write = write};
    sim_outcome_t outcome = check_conflicts(sim, rank, run, log, &use);
    if (outcome != SIM_RAN) return outcome;
    if (transfer) {
        use.step = INT_MAX;
        transfer->log = log;
        transfer->use = log->uses;
    }
    return add_use(log, &use) ? SIM_RAN : SIM_NO_MEMORY;
}
