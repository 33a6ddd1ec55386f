/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The simulator's loop: all ranks in turn, each running some steps of some of its chunks in flight as the order of execution in
 * plan.h allows, until all are done or nobody can move. With a seed, whose turn it is and how long it lasts is random, and one rank
 * is slow.
 */
#include "base/hash.h"
#include "scheduler/simulate_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t sim_random(sim_t *sim)
{
    sim->random = hash_mix(sim->random);
    return sim->random >> 8;
}

sim_outcome_t sim_broken(sim_t *sim, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sim->text, sizeof sim->text, format, arguments);
    va_end(arguments);
    return SIM_BROKEN;
}

static quoit_status_t fail(const sim_t *sim, const sim_rank_t *rank, const sim_run_t *run, sim_outcome_t outcome)
{
    const plan_t *plan = rank->plan;
    if (outcome == SIM_NO_MEMORY) return error_set(QUOIT_ERR_NO_MEMORY, "out of memory while simulating %d ranks", sim->simulation->topology->ranks);
    return error_set(QUOIT_ERR_INTERNAL, "simulated %s (%s), rank %d, chunk %zu, step %d: %s", plan_collective_name(plan->collective),
                     plan_algorithm_name(plan->algorithm), rank->rank, run ? run->chunk : 0, run ? run->step : 0, sim->text);
}

/* ---- set-up */

static bool open_rank(sim_t *sim, int number)
{
    enum { GARBAGE = 0xa5 };
    const topology_t *topology = sim->simulation->topology;
    sim_rank_t *rank = &sim->rank[number];
    int host = topology->host[number];
    size_t depth = (size_t)rank->plan->depth, clocks = (size_t)topology->host_size[host];
    size_t temp = depth * (size_t)rank->plan->temps * plan_slot_bytes(rank->binding);
    if (rank->plan->window) rank->window = &sim->window[host];
    rank->run = calloc(depth, sizeof *rank->run);
    rank->passed = calloc((size_t)rank->plan->steps + 1, sizeof *rank->passed);
    rank->ended = calloc(depth, sizeof *rank->ended);
    rank->temp = malloc(temp + 1);
    if (!rank->run || !rank->passed || !rank->ended || !rank->temp) return false;
    memset(rank->temp, GARBAGE, temp);
    for (size_t i = 0; i < depth && rank->window; i++) {
        rank->run[i].clock = calloc(clocks, sizeof *rank->run[i].clock);
        if (!rank->run[i].clock) return false;
    }
    return true;
}

static void close_rank(sim_rank_t *rank)
{
    sim_free_transfers(rank);
    for (int i = 0; rank->run && i < rank->plan->depth; i++) free(rank->run[i].clock);
    free(rank->run);
    free(rank->passed);
    free(rank->ended);
    free(rank->temp);
}

static quoit_status_t open_all(sim_t *sim)
{
    simulation_t *simulation = sim->simulation;
    const topology_t *topology = simulation->topology;
    int largest = 2;
    for (int host = 0; host < topology->hosts; host++)
        if (topology->host_size[host] > largest) largest = topology->host_size[host];
    size_t ranks = (size_t)topology->ranks, hosts = (size_t)topology->hosts;
    sim->rank = calloc(ranks, sizeof *sim->rank);
    sim->window = calloc(hosts, sizeof *sim->window);
    sim->send_free = calloc(hosts, sizeof *sim->send_free);
    sim->receive_free = calloc(hosts, sizeof *sim->receive_free);
    sim->source = calloc((size_t)largest, sizeof *sim->source);
    if (!sim->rank || !sim->window || !sim->send_free || !sim->receive_free || !sim->source)
        return error_set(QUOIT_ERR_NO_MEMORY, "out of memory while simulating %zu ranks", ranks);
    for (int number = 0; number < topology->ranks; number++) {
        sim_rank_t *rank = &sim->rank[number];
        rank->binding = &simulation->binding[number];
        rank->plan = rank->binding->plan;
        rank->rank = number;
        rank->host = topology->host[number];
        rank->me = topology->member[number];
    }
    for (int number = 0; number < topology->ranks; number++)
        if (!open_rank(sim, number)) return fail(sim, &sim->rank[number], NULL, SIM_NO_MEMORY);
    for (int host = 0; host < topology->hosts; host++) {
        sim_outcome_t outcome = sim_window_open(sim, &sim->window[host], host);
        if (outcome != SIM_RAN) return fail(sim, &sim->rank[topology_leader(topology, host)], NULL, outcome);
    }
    return QUOIT_OK;
}

static void close_all(sim_t *sim)
{
    const topology_t *topology = sim->simulation->topology;
    for (int number = 0; sim->rank && number < topology->ranks; number++)
        if (sim->rank[number].plan) close_rank(&sim->rank[number]);
    for (int host = 0; sim->window && host < topology->hosts; host++) sim_window_close(&sim->window[host]);
    free(sim->rank);
    free(sim->window);
    free(sim->send_free);
    free(sim->receive_free);
    free(sim->source);
}

/* ---- running */

static sim_outcome_t run_step(sim_t *sim, sim_rank_t *rank, sim_run_t *run)
{
    const plan_step_t *step = &rank->plan->step[run->step];
    switch (step->verb) {
    case VERB_RECLAIM:
    case VERB_SIGNAL:
    case VERB_AWAIT:
    case VERB_CONSUMED: return sim_run_sync(sim, rank, run, step);
    case VERB_COPY:
    case VERB_REDUCE:
    case VERB_REDUCE_WINDOW:
    case VERB_ENCODE:
    case VERB_DECODE:
    case VERB_SUM_WINDOW: return sim_run_data(sim, rank, run, step);
    case VERB_SEND:
    case VERB_RECV: return sim_start_transfer(sim, rank, run, step);
    case VERB_WAIT: return sim_wait(sim, rank, run);
    default: return sim_broken(sim, "verb %d is none", step->verb);
    }
}

static void start_chunks(sim_rank_t *rank)
{
    size_t depth = (size_t)rank->plan->depth;
    while (rank->started < rank->binding->chunks && rank->started < rank->finished + depth) {
        size_t slot = rank->started % depth;
        sim_run_t *run = &rank->run[slot];
        run->chunk = rank->started++;
        run->step = 0;
        run->time = rank->ended[slot];
        if (rank->window) memset(run->clock, 0, (size_t)rank->window->members * sizeof *run->clock);
    }
}

/* A chunk stays behind the one before it. */
static bool may_run(const sim_rank_t *rank, size_t chunk)
{
    size_t depth = (size_t)rank->plan->depth;
    if (rank->run[chunk % depth].step >= rank->plan->steps) return false;
    return chunk == rank->finished || rank->run[(chunk - 1) % depth].step > rank->run[chunk % depth].step;
}

static sim_outcome_t advance_chunk(sim_t *sim, sim_rank_t *rank, size_t chunk, uint64_t steps, bool *moved)
{
    sim_run_t *run = &rank->run[chunk % (size_t)rank->plan->depth];
    for (; steps > 0 && may_run(rank, chunk); steps--) {
        if (rank->passed[run->step] > run->time) run->time = rank->passed[run->step];
        sim_outcome_t outcome = run_step(sim, rank, run);
        if (outcome != SIM_RAN) return outcome;
        rank->passed[run->step++] = run->time;
        if (run->clock) run->clock[rank->me] = run->step;
        if (run->time > sim->simulation->seconds) sim->simulation->seconds = run->time;
        *moved = true;
    }
    return SIM_RAN;
}

static void finish_chunks(sim_rank_t *rank, bool *moved)
{
    size_t depth = (size_t)rank->plan->depth;
    while (rank->finished < rank->started && rank->run[rank->finished % depth].step >= rank->plan->steps) {
        rank->ended[rank->finished % depth] = rank->run[rank->finished % depth].time;
        rank->finished++;
        *moved = true;
    }
    start_chunks(rank);
}

/* One rank's turn: its chunks in flight, oldest first or from a random one on. */
static quoit_status_t take_turn(sim_t *sim, sim_rank_t *rank, bool *moved)
{
    bool random = sim->simulation->seed != 0;
    finish_chunks(rank, moved);
    size_t flying = rank->started - rank->finished, first = random && flying ? sim_random(sim) % flying : 0;
    for (size_t i = 0; i < flying; i++) {
        size_t chunk = rank->finished + (first + i) % flying;
        uint64_t steps = random ? 1 + sim_random(sim) % 8 : UINT64_MAX;
        sim_outcome_t outcome = advance_chunk(sim, rank, chunk, steps, moved);
        if (outcome > SIM_NOT_YET) return fail(sim, rank, &rank->run[chunk % (size_t)rank->plan->depth], outcome);
    }
    finish_chunks(rank, moved);
    return QUOIT_OK;
}

static quoit_status_t stuck(sim_t *sim)
{
    for (int number = 0; number < sim->simulation->topology->ranks; number++) {
        sim_rank_t *rank = &sim->rank[number];
        if (rank->finished == rank->binding->chunks) continue;
        sim_run_t *run = &rank->run[rank->finished % (size_t)rank->plan->depth];
        sim_broken(sim, "stuck, and so are all others");
        return fail(sim, rank, run, SIM_BROKEN);
    }
    return error_set(QUOIT_ERR_INTERNAL, "simulation is stuck with all chunks done");
}

static bool all_done(const sim_t *sim)
{
    for (int number = 0; number < sim->simulation->topology->ranks; number++)
        if (sim->rank[number].finished < sim->rank[number].binding->chunks) return false;
    return true;
}

/* A transfer may be held back at random, so only so many idle rounds in a row mean that nobody can move. */
static quoit_status_t run_all(sim_t *sim)
{
    enum { IDLE_ROUNDS = 64 };
    uint64_t ranks = (uint64_t)sim->simulation->topology->ranks;
    bool random = sim->simulation->seed != 0;
    int idle = 0, limit = random ? IDLE_ROUNDS : 2;
    while (!all_done(sim)) {
        bool moved = false;
        uint64_t first = random ? sim_random(sim) % ranks : 0, slow = random ? sim_random(sim) % (2 * ranks) : ranks;
        for (uint64_t i = 0; i < ranks; i++) {
            uint64_t number = (first + i) % ranks;
            if (random && idle == 0 && (number == slow || sim_random(sim) % 3 == 0)) continue;
            quoit_status_t status = take_turn(sim, &sim->rank[number], &moved);
            if (status != QUOIT_OK) return status;
        }
        idle = moved ? 0 : idle + 1;
        if (idle >= limit) return stuck(sim);
    }
    return QUOIT_OK;
}

static quoit_status_t check_leftovers(sim_t *sim)
{
    for (int number = 0; number < sim->simulation->topology->ranks; number++) {
        sim_rank_t *rank = &sim->rank[number];
        if (!rank->pending) continue;
        sim_broken(sim, "a %s was never waited for", rank->pending->send ? "SEND" : "RECV");
        return fail(sim, rank, &(sim_run_t){.chunk = rank->pending->chunk, .step = rank->pending->step}, SIM_BROKEN);
    }
    return QUOIT_OK;
}

quoit_status_t simulate_run(simulation_t *simulation)
{
    sim_t sim = {.simulation = simulation, .random = hash_mix(simulation->seed)};
    size_t hosts = (size_t)simulation->topology->hosts;
    memset(simulation->sent, 0, hosts * sizeof *simulation->sent);
    memset(simulation->received, 0, hosts * sizeof *simulation->received);
    simulation->messages = 0;
    simulation->seconds = 0;
    quoit_status_t status = open_all(&sim);
    if (status == QUOIT_OK) status = run_all(&sim);
    if (status == QUOIT_OK) status = check_leftovers(&sim);
    close_all(&sim);
    return status;
}
