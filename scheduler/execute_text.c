/* SPDX-License-Identifier: Apache-2.0 */
/* Executor: who an operation waits for, and whether the others do something else. The slow part of waiting, and texts. */
#include "scheduler/comm.h"
#include "scheduler/inquire.h"

#include <stdio.h>
#include <string.h>

/* The step a chunk waits at; NULL when it does not wait in the steps. */
static const plan_step_t *waits_at(const execution_t *execution, const chunk_run_t *run)
{
    if (run->phase != CHUNK_STEPS || run->step >= execution->plan->steps) return NULL;
    return &execution->plan->step[run->step];
}

static const chunk_run_t *oldest_run(const execution_t *execution)
{
    if (!execution->operation || execution->oldest >= execution->next) return NULL;
    return &execution->run[execution_place_of(execution, execution->oldest)];
}

/* Is it members that are waited for, by the step or, after the last one, because they read the own input? */
static bool awaits_members(const quoit_comm_t *comm, const plan_step_t *step)
{
    return step ? step->verb == VERB_AWAIT || step->verb == VERB_RECLAIM : execute_awaits_readers(comm);
}

/* Does this member hold up the step, or without one the end? */
static bool holds_up(const quoit_comm_t *comm, const chunk_run_t *run, const plan_step_t *step, int member)
{
    const execution_t *execution = &comm->execution;
    const window_t *window = comm->window;
    if (member == window->me) return false;
    if (!step) {
        const window_section_t *reader = window->member[member].section;
        return !reader || atomic_load(&reader->line.consumed) < execution->base + execution->binding.chunks;
    }
    const window_section_t *section = window->member[member].section;
    if (step->verb == VERB_AWAIT)
        return (step->peer == PLAN_ALL || step->peer == member) &&
               (!section || atomic_load(&section->line.stage[step->stage]) < execution_ticket_of(execution, run->chunk));
    if (step->verb != VERB_RECLAIM) return false;
    uint64_t needed = execution_ticket_to_reclaim(execution, run->chunk);
    return !section ? needed > 0 : atomic_load(&section->line.consumed) < needed;
}

static void append(char *text, size_t capacity, const char *name, const char *more)
{
    size_t length = strlen(text);
    snprintf(text + length, capacity - length, "%s%s%s", length ? ", " : "waiting for ", name, more);
}

/* A host mate's newest call is in its section; what else it does, if it is not in this operation, it tells itself. */
static void append_member(const quoit_comm_t *comm, int member, char *text, size_t capacity)
{
    const window_member_t *other = &comm->window->member[member];
    char more[400] = " (has not created this communicator)", what[160];
    int rank = topology_rank(comm->topology, comm->topology->host[comm->rank], member);
    if (other->section && inquire_is_in(comm, rank) >= 0) {
        inquire_text(comm, rank, more + 2, sizeof more - 3);
        memcpy(more, " (", 2);
        strcat(more, ")");
    } else if (other->section) {
        uint32_t sequence = (uint32_t)(atomic_load(&other->section->line.current) >> 32);
        operation_description_t description = other->section->description[sequence % WINDOW_HISTORY];
        operation_text(&description, what, sizeof what);
        if (sequence == 0)
            snprintf(more, sizeof more, " (has not called anything yet)");
        else if (sequence < comm->sequence)
            snprintf(more, sizeof more, " (its newest call is %s)", what);
        else
            snprintf(more, sizeof more, " (it is in %s too)", what);
    }
    append(text, capacity, other->peer->name, more);
}

/* Is it the first unfinished transfer with its peer? */
static bool is_first_of_peer(const execute_transfer_t *transfer, int which)
{
    if (transfer[which].transfer.status != QUOIT_IN_PROGRESS) return false;
    for (int i = 0; i < which; i++)
        if (transfer[i].transfer.status == QUOIT_IN_PROGRESS && transfer[i].peer == transfer[which].peer) return false;
    return true;
}

int execute_awaited(quoit_comm_t *comm, int *ranks, int capacity)
{
    const execution_t *execution = &comm->execution;
    const chunk_run_t *run = oldest_run(execution);
    const plan_step_t *step = run ? waits_at(execution, run) : NULL;
    int count = 0;
    bool members = awaits_members(comm, step);
    if (!step && !members) return 0;
    if (members) {
        for (int i = 0; i < comm->window->members && count < capacity; i++)
            if (holds_up(comm, run, step, i)) ranks[count++] = topology_rank(comm->topology, comm->topology->host[comm->rank], i);
        return count;
    }
    const execute_transfer_t *mine = execution_transfers_of(execution, run->chunk);
    for (int i = 0; i < run->transfers && count < capacity; i++)
        if (is_first_of_peer(mine, i)) ranks[count++] = mine[i].peer;
    return count;
}

/* Over messages: what those that are awaited have told of themselves. */
static execute_doubt_t doubt_of_messages(quoit_comm_t *comm)
{
    int ranks[16], count = execute_awaited(comm, ranks, 16), inside = 0;
    for (int i = 0; i < count; i++) {
        int in = inquire_is_in(comm, ranks[i]);
        if (in == 0) return DOUBT_NONE;
        inside += in > 0;
    }
    return count > 0 && inside == count ? DOUBT_MATES : DOUBT_MESSAGES;
}

execute_doubt_t execute_doubt(quoit_comm_t *comm)
{
    const chunk_run_t *run = oldest_run(&comm->execution);
    const plan_step_t *step = run ? waits_at(&comm->execution, run) : NULL;
    if (!awaits_members(comm, step)) return doubt_of_messages(comm);
    for (int i = 0; i < comm->window->members; i++) {
        if (!holds_up(comm, run, step, i)) continue;
        const window_section_t *section = comm->window->member[i].section;
        if (!section || (uint32_t)(atomic_load(&section->line.current) >> 32) < comm->sequence) return DOUBT_NONE;
    }
    return DOUBT_MATES;
}

/* A peer is named once, whatever it is awaited for. */
static void append_transfers(quoit_comm_t *comm, const execute_transfer_t *transfer, int count, int first, char *text, size_t capacity)
{
    const int peer = transfer[first].peer;
    bool sends = false, receives = false; /* as the peer sees it */
    for (int i = first; i < count; i++) {
        if (transfer[i].transfer.status != QUOIT_IN_PROGRESS || transfer[i].peer != peer) continue;
        sends = sends || transfer[i].receives;
        receives = receives || !transfer[i].receives;
    }
    char more[400], doing[320];
    inquire_text(comm, peer, doing, sizeof doing);
    snprintf(more, sizeof more, " (%s%s%s%s%s)", sends ? "to send" : "", sends && receives ? " and " : "", receives ? "to receive" : "", doing[0] ? "; " : "", doing);
    append(text, capacity, comm_rank_name(comm, peer), more);
}

void execute_missing(quoit_comm_t *comm, char *text, size_t capacity)
{
    text[0] = '\0';
    const execution_t *execution = &comm->execution;
    const chunk_run_t *run = oldest_run(execution);
    const plan_step_t *step = run ? waits_at(execution, run) : NULL;
    bool members = awaits_members(comm, step);
    if (!step && !members) return;
    if (members) {
        for (int i = 0; i < comm->window->members; i++)
            if (holds_up(comm, run, step, i) && !window_has_failed(comm->window, i)) append_member(comm, i, text, capacity);
        /* Whose own wait is over already came, and is named only if nobody else is missing. */
        const bool nobody = text[0] == '\0';
        for (int i = 0; nobody && i < comm->window->members; i++)
            if (holds_up(comm, run, step, i)) append_member(comm, i, text, capacity);
        return;
    }
    const execute_transfer_t *mine = execution_transfers_of(execution, run->chunk);
    for (int i = 0; i < run->transfers; i++)
        if (is_first_of_peer(mine, i)) append_transfers(comm, mine, run->transfers, i, text, capacity);
}

/* A member that has left cannot publish any more what this operation waits for. */
const char *execute_left(quoit_comm_t *comm)
{
    const execution_t *execution = &comm->execution;
    const chunk_run_t *run = oldest_run(execution);
    const plan_step_t *step = run ? waits_at(execution, run) : NULL;
    if (!awaits_members(comm, step)) return NULL;
    for (int i = 0; i < comm->window->members; i++) {
        const window_member_t *member = &comm->window->member[i];
        bool left = member->peer->left || member->left || (member->section && atomic_load_explicit(&member->section->left, memory_order_acquire));
        if (left && holds_up(comm, run, step, i)) return member->peer->name;
    }
    return NULL;
}

/* A member's call of this number, with sequence << 32 | hash. False: it has not come to it, or has been many further calls since. */
static bool read_call(const window_section_t *section, uint32_t sequence, uint64_t *current, operation_description_t *description)
{
    const _Atomic uint64_t *recent = &section->recent[sequence % WINDOW_HISTORY];
    *current = atomic_load_explicit(recent, memory_order_acquire);
    *description = section->description[sequence % WINDOW_HISTORY];
    atomic_thread_fence(memory_order_acquire);
    return (uint32_t)(*current >> 32) == sequence && atomic_load_explicit(recent, memory_order_relaxed) == *current; /* else it was overwritten */
}

bool execute_disagrees(quoit_comm_t *comm, int member)
{
    const window_member_t *other = &comm->window->member[member];
    const call_t *here = NULL;
    operation_description_t there = {0};
    /* The hash is of all calls so far: the first that differ may be earlier ones. */
    for (uint32_t sequence = comm->sequence; sequence > 0 && comm->sequence - sequence < COMM_HISTORY; sequence--) {
        const call_t *mine = &comm->history[sequence % COMM_HISTORY];
        operation_description_t theirs;
        uint64_t current;
        if (!read_call(other->section, sequence, &current, &theirs) || current == ((uint64_t)sequence << 32 | mine->hash)) break;
        here = mine;
        there = theirs;
    }
    if (!here) return false;
    char text[COMM_MISMATCH_TEXT];
    comm_mismatch_text(comm, &here->description, other->peer->name, &there, text);
    error_set(QUOIT_ERR_MISMATCH, "%s", text);
    return true;
}

/* Any host mate that runs another operation of the same number, whether this plan waits for it or not. */
quoit_status_t execute_check(quoit_comm_t *comm)
{
    if (!comm->execution.operation || !comm->window) return QUOIT_OK;
    for (int i = 0; i < comm->window->members; i++) {
        if (i == comm->window->me || !comm->window->member[i].section) continue;
        if (execute_disagrees(comm, i)) return QUOIT_ERR_MISMATCH;
    }
    return QUOIT_OK;
}

quoit_status_t execute_explain_transfer(quoit_comm_t *comm, const execute_transfer_t *failed)
{
    quoit_status_t status = failed->transfer.status;
    char cause[ERROR_TEXT_CAPACITY] = "";
    peer_t *peer = comm->job->peer[comm->job_rank[failed->peer]];
    if (peer->status != QUOIT_OK)
        snprintf(cause, sizeof cause, "%s", peer->text);
    else if (status == QUOIT_ERR_CLOSED)
        return error_set(QUOIT_ERR_PEER, "%s has destroyed its communicator or ended", comm_rank_name(comm, failed->peer));
    else if (peer->message) {
        error_clear();
        if (peer->message->transport->ops->endpoint_status(peer->message) < 0 || status == QUOIT_ERR_MISMATCH)
            snprintf(cause, sizeof cause, "%s", error_text());
    }
    return error_set(status, "%s %s: %s%s%s", failed->receives ? "receiving from" : "sending to", comm_rank_name(comm, failed->peer),
                     quoit_status_text(status), cause[0] ? ": " : "", cause);
}
