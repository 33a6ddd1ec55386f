/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Messages in the simulator. A SEND is done only when the RECV that matches it took its bytes, which is the strictest that a
 * transport may be; with a seed that happens at some random poll of either WAIT. Between hosts a message holds the sender's and
 * the receiver's interface for beta seconds a byte and is alpha seconds on its way.
 */
#include "scheduler/simulate_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The oldest transfer of `rank` that has no partner yet and is the other end of `mine`. Lists are newest first. */
static sim_transfer_t *find_partner(sim_rank_t *rank, const sim_transfer_t *mine)
{
    sim_transfer_t *found = NULL;
    for (sim_transfer_t *other = rank->pending; other; other = other->next)
        if (!other->partner && !other->done && other->send != mine->send && other->peer == mine->rank && other->chunk == mine->chunk) found = other;
    return found;
}

/* Room on the interfaces, bytes, and the end of both transfers. */
static void account(sim_t *sim, sim_transfer_t *send, sim_transfer_t *recv)
{
    simulation_t *simulation = sim->simulation;
    const topology_t *topology = simulation->topology;
    int from = topology->host[send->rank], to = topology->host[recv->rank];
    double begin = send->time > recv->time ? send->time : recv->time;
    send->done = recv->done = true;
    send->time = recv->time = begin;
    if (from == to) return;
    double wire = (double)send->bytes * simulation->beta;
    if (sim->send_free[from] > begin) begin = sim->send_free[from];
    sim->send_free[from] = send->time = begin + wire;
    double arrival = begin + simulation->alpha;
    if (sim->receive_free[to] > arrival) arrival = sim->receive_free[to];
    sim->receive_free[to] = recv->time = arrival + wire;
    simulation->sent[from] += send->bytes;
    simulation->received[to] += send->bytes;
    simulation->messages++;
}

static sim_outcome_t deliver(sim_t *sim, sim_transfer_t *transfer)
{
    sim_transfer_t *send = transfer->send ? transfer : transfer->partner, *recv = send->partner;
    if (send->bytes != recv->bytes)
        return sim_broken(sim, "%zu bytes from rank %d (step %d) meet a RECV of %zu bytes on rank %d (step %d)", send->bytes, send->rank,
                          send->step, recv->bytes, recv->rank, recv->step);
    if (send->bytes > 0) memcpy(recv->data, send->data, send->bytes);
    account(sim, send, recv);
    return SIM_RAN;
}

sim_outcome_t sim_start_transfer(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const plan_step_t *step)
{
    bool send = step->verb == VERB_SEND;
    const plan_operand_t *operand = send ? &step->source : &step->destination;
    plan_piece_t piece;
    plan_locate(rank->binding, run->chunk, operand, &piece);
    if (plan_skips(operand, &piece)) return SIM_RAN;
    sim_place_t place = sim_find(rank, run, operand);
    sim_transfer_t *made = calloc(1, sizeof *made);
    if (!made) return SIM_NO_MEMORY;
    *made = (sim_transfer_t){.send = send, .rank = rank->rank, .peer = step->peer, .step = run->step, .chunk = run->chunk,
                             .bytes = place.bytes, .data = place.data, .time = run->time};
    sim_outcome_t outcome = sim_use_place(sim, rank, run, &place, !send, made);
    made->next = rank->pending;
    rank->pending = made;
    if (outcome != SIM_RAN) return outcome;
    made->partner = find_partner(&sim->rank[step->peer], made);
    if (!made->partner) return SIM_RAN;
    made->partner->partner = made;
    return SIM_RAN;
}

sim_outcome_t sim_wait(sim_t *sim, sim_rank_t *rank, sim_run_t *run)
{
    bool ready = true;
    for (sim_transfer_t *transfer = rank->pending; transfer; transfer = transfer->next) {
        if (transfer->chunk != run->chunk || transfer->done) continue;
        bool now = transfer->partner && (sim->simulation->seed == 0 || sim_random(sim) % 4 != 0);
        if (now && deliver(sim, transfer) != SIM_RAN) return SIM_BROKEN;
        ready = ready && now;
    }
    if (!ready) return SIM_NOT_YET;
    for (sim_transfer_t **link = &rank->pending; *link;) {
        sim_transfer_t *transfer = *link;
        if (transfer->chunk != run->chunk) {
            link = &transfer->next;
            continue;
        }
        if (transfer->time > run->time) run->time = transfer->time;
        if (transfer->log) transfer->log->use[transfer->use].step = run->step;
        if (transfer->partner) transfer->partner->partner = NULL; /* which is done too, and waits for its own WAIT */
        *link = transfer->next;
        free(transfer);
    }
    return SIM_RAN;
}

void sim_free_transfers(sim_rank_t *rank)
{
    while (rank->pending) {
        sim_transfer_t *next = rank->pending->next;
        free(rank->pending);
        rank->pending = next;
    }
}
