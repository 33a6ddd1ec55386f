/* SPDX-License-Identifier: Apache-2.0 */
/* Communicator: its operations, from the queue to their end, and its failure. Making and ending one is in comm_create.c. */
#include "scheduler/comm.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "scheduler/control.h"
#include "scheduler/history.h"
#include "scheduler/inquire.h"
#include "scheduler/operation_device.h"
#include "scheduler/trace.h"

#include <stdio.h>
#include <string.h>

enum {
    TIMEOUT_GRACE_MS = 80,     /* see is_overdue: longer than an ASK, its answer and word of the end take (LAST_ASK_MS of inquire.c) */
    TIMEOUT_TOGETHER_MS = 250, /* see time_out_too: more than ranks differ by that began one operation together */
    SETTLE_ROUNDS = 64         /* see settle */
};

const char *comm_rank_name(const quoit_comm_t *comm, int rank)
{
    if (rank < 0 || rank >= comm->size) return "a rank that does not exist";
    return comm->job->peer[comm->job_rank[rank]]->name;
}

void operation_text(const operation_description_t *description, char *text, size_t capacity)
{
    const char *name = description->collective < COLLECTIVE_COUNT ? plan_collective_name((plan_collective_t)description->collective) : "?";
    bool rooted = description->root >= 0, reduces = description->op < QUOIT_OP_COUNT;
    char root[24] = "", count[40] = "", wire[24] = "";
    if (rooted) snprintf(root, sizeof root, ", root %d", description->root);
    if (description->count != UINT64_MAX) snprintf(count, sizeof count, ", %llu elements", (unsigned long long)description->count);
    if (description->wire) snprintf(wire, sizeof wire, ", wire %s", quoit_wire_name((quoit_wire_t)description->wire));
    if (description->collective == COLLECTIVE_BARRIER)
        snprintf(text, capacity, "%s #%u%s%s%s", name, description->sequence, wire[0] ? " (" : "", wire[0] ? wire + 2 : "", wire[0] ? ")" : "");
    else
        snprintf(text, capacity, "%s #%u (%s%s%s%s%s%s)", name, description->sequence, quoit_dtype_name((quoit_dtype_t)description->dtype),
                 reduces ? ", " : "", reduces ? quoit_op_name((quoit_op_t)description->op) : "", count, root, wire);
}

/* ------------------------------------------------------------------ the end of an operation */

void operation_release(operation_t *operation)
{
    if (operation->on_stack || atomic_fetch_sub(&operation->references, 1) != 1) return;
    operation_device_free(operation);
    operation_destroy(operation);
}

void operation_finish(operation_t *operation, quoit_status_t status, const char *text)
{
    engine_t *engine = operation->comm->engine;
    list_remove(&operation->link);
    if (status != QUOIT_OK) snprintf(operation->error, sizeof operation->error, "%s", text);
    operation_device_finish(operation);
    if (operation->kind != OPERATION_COLLECTIVE) engine->transfers--;
    engine->running--;
    engine_completed(engine);
    journal_end(operation->comm->journal, operation, status);
    if (engine->trace) trace_ended(engine->trace, operation, status);
    bool on_stack = operation->on_stack;
    atomic_store_explicit(&operation->status, status, memory_order_release); /* a blocking caller's is gone from here on */
    if (!on_stack) operation_release(operation);
}

/* ------------------------------------------------------------------ failure */

/* Whoever learns of the end on another rank says so itself; here is told what this rank saw. */
static void end_all(quoit_comm_t *comm, quoit_status_t status)
{
    for (int i = 0; i < comm->engine->transports; i++) {
        engine_transport_t *each = &comm->engine->transport[i];
        each->ops->cancel(each->transport, comm->id);
    }
    execute_end(comm);
    while (!list_is_empty(&comm->queue)) operation_finish(container_of(comm->queue.next, operation_t, link), status, comm->error);
    while (!list_is_empty(&comm->messages)) {
        operation_t *operation = container_of(comm->messages.next, operation_t, link);
        match_forget(operation);
        operation_finish(operation, status, comm->error);
    }
}

/* comm->cause and comm->finder are set. */
static void fail(quoit_comm_t *comm, quoit_status_t status, bool tell)
{
    char who[PEER_NAME_CAPACITY + 16] = "";
    if (comm->finder != comm->rank) snprintf(who, sizeof who, " (told by %.80s)", comm_rank_name(comm, comm->finder));
    int prefix = snprintf(comm->error, sizeof comm->error, "[%.63s, rank %d] ", comm->name, comm->rank);
    int room = (int)(sizeof comm->error - (size_t)prefix - strlen(who) - 1);
    snprintf(comm->error + prefix, sizeof comm->error - (size_t)prefix, "%.*s%s", room, comm->cause, who);
    atomic_store_explicit(&comm->status, status, memory_order_release);
    comm->engine->failed = true;
    log_info("comm", "%s", comm->error);
    journal_fail(comm->journal, status, comm->error);
    if (tell) control_send_abort(comm);
    history_dump(comm);
    end_all(comm, status);
}

static void take_word(quoit_comm_t *comm);

void comm_fail(quoit_comm_t *comm, quoit_status_t status, bool tell, const char *format, ...)
{
    if (atomic_load_explicit(&comm->status, memory_order_relaxed) != QUOIT_OK) return;
    if (comm->word != QUOIT_OK) { /* what follows from the end that is known already is not its cause */
        take_word(comm);
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(comm->cause, sizeof comm->cause, format, arguments);
    va_end(arguments);
    comm->finder = comm->rank;
    fail(comm, status, tell);
}

void comm_mismatch_text(const quoit_comm_t *comm, const operation_description_t *here, const char *other, const operation_description_t *there,
                        char text[COMM_MISMATCH_TEXT])
{
    char mine[128], theirs[128];
    operation_text(here, mine, sizeof mine);
    operation_text(there, theirs, sizeof theirs);
    snprintf(text, COMM_MISMATCH_TEXT, "ranks called different operations: %s called %s, but %s called %s%s", comm_rank_name(comm, comm->rank), mine,
             other, theirs, strcmp(mine, theirs) == 0 ? " (an earlier operation already differed)" : "");
}

void comm_fail_mismatch(quoit_comm_t *comm, const operation_description_t *here, int other, const operation_description_t *there)
{
    char text[COMM_MISMATCH_TEXT];
    comm_mismatch_text(comm, here, comm_rank_name(comm, other), there, text);
    comm_fail(comm, QUOIT_ERR_MISMATCH, true, "%s", text);
}

/* Fail with the text of what this operation met. */
static void fail_in(quoit_comm_t *comm, const operation_t *operation, quoit_status_t status)
{
    char text[256], cause[ERROR_TEXT_CAPACITY];
    snprintf(cause, sizeof cause, "%s", error_text());
    operation_text(&operation->description, text, sizeof text);
    comm_fail(comm, status, true, "%s: %s", text, cause);
}

void comm_message_text(const quoit_comm_t *comm, const operation_t *message, char *text, size_t capacity)
{
    bool receives = message->kind == OPERATION_RECV;
    snprintf(text, capacity, "%s %s %s (tag %u, %zu bytes)", receives ? "recv" : "send", receives ? "from" : "to",
             message->peer == QUOIT_ANY_SOURCE ? "any source" : comm_rank_name(comm, message->peer), message->tag, message->bytes);
}

/* What was running, for texts; "" when nothing. */
static void running_text(const quoit_comm_t *comm, char *text, size_t capacity)
{
    text[0] = '\0';
    if (!list_is_empty(&comm->queue)) {
        operation_t *operation = container_of(comm->queue.next, operation_t, link);
        operation_text(&operation->description, text, capacity);
    } else if (!list_is_empty(&comm->messages)) {
        comm_message_text(comm, container_of(comm->messages.next, operation_t, link), text, capacity);
    }
}

void comm_peer_lost(quoit_comm_t *comm, peer_t *peer)
{
    int rank = -1;
    for (int i = 0; i < comm->size && rank < 0; i++)
        if (comm->job->peer[comm->job_rank[i]] == peer) rank = i;
    if (rank < 0 || rank == comm->rank) return;
    /* What it had published before its end may be all that is needed. */
    while (comm->is_active && comm_advance(comm))
        ;
    char running[256], last[160] = "";
    running_text(comm, running, sizeof running);
    if (!running[0] && comm->finished) operation_text(&comm->last, last, sizeof last);
    comm_fail(comm, peer->status, true, "%s is lost: %s%s%s%s%s; restart the job, or go on without that rank (quoit_comm_shrink)", peer->name,
              peer->text, running[0] ? "; this was during " : "", running, last[0] ? "; the last operation was " : "", last);
}

/* ------------------------------------------------------------------ taking and advancing */

static void activate(quoit_comm_t *comm)
{
    if (comm->is_active) return;
    comm->is_active = true;
    comm->wait_begun = 0;
    list_append(&comm->engine->active, &comm->link);
}

static void deactivate(quoit_comm_t *comm)
{
    if (!comm->is_active) return;
    comm->is_active = false;
    list_remove(&comm->link);
}

/* Number and chain it: from here on its place in the order is fixed. */
static void number(quoit_comm_t *comm, operation_t *operation)
{
    operation_description_t *description = &operation->description;
    description->sequence = ++comm->sequence;
    uint64_t hash = hash_combine(comm->hash, (uint64_t)description->collective << 56 | (uint64_t)description->dtype << 48 |
                                                 (uint64_t)description->op << 40 | (uint64_t)description->wire << 32 | (uint32_t)description->root);
    comm->hash = (uint32_t)hash_combine(hash, description->count);
    if (comm->hash == 0) comm->hash = 1; /* 0 fits every message */
    comm->history[comm->sequence % COMM_HISTORY] = (call_t){.hash = comm->hash, .description = *description};
}

void comm_take(quoit_comm_t *comm, operation_t *operation)
{
    bool collective = operation->kind == OPERATION_COLLECTIVE;
    comm->engine->running++;
    if (collective) {
        if (!list_is_empty(&comm->queue)) (void)operation_deadline(operation); /* it starts later than it was issued */
        journal_add(&comm->journal->taken, 1);
    } else {
        comm->engine->transfers++;
        journal_begin(comm->journal, operation, true);
        if (comm->engine->trace) trace_begun(comm->engine->trace, comm, operation);
    }
    list_append(collective ? &comm->queue : &comm->messages, &operation->link);
    quoit_status_t status = atomic_load_explicit(&comm->status, memory_order_relaxed);
    if (status != QUOIT_OK) {
        operation_finish(operation, status, comm->error);
        return;
    }
    /* A message goes as far as it comes, so its place among others is taken: most sends, and recvs of what is here, end with that. */
    if (!collective) (void)match_advance(comm, operation);
    if (!list_is_empty(collective ? &comm->queue : &comm->messages)) activate(comm);
}

static bool advance_queue(quoit_comm_t *comm)
{
    bool moved = false;
    while (!list_is_empty(&comm->queue)) {
        operation_t *operation = container_of(comm->queue.next, operation_t, link);
        quoit_status_t status = QUOIT_OK;
        if (!operation->started) {
            operation->started = moved = true;
            number(comm, operation);
            journal_begin(comm->journal, operation, true);
            if (comm->engine->trace) trace_begun(comm->engine->trace, comm, operation);
            if (inquire_begin(comm)) return true;
            status = execute_begin(comm, operation);
        }
        if (status == QUOIT_OK) status = execute_advance(comm, &moved);
        if (status == QUOIT_IN_PROGRESS) return moved;
        moved = true;
        if (status < 0) {
            fail_in(comm, operation, status);
            return true;
        }
        comm->last = operation->description;
        comm->finished++;
        execute_end(comm);
        operation_finish(operation, QUOIT_OK, "");
    }
    return moved;
}

bool comm_advance(quoit_comm_t *comm)
{
    bool moved = advance_queue(comm);
    for (list_t *node = comm->messages.next, *next; node != &comm->messages; node = next) {
        next = node->next;
        moved |= match_advance(comm, container_of(node, operation_t, link));
        if (atomic_load_explicit(&comm->status, memory_order_relaxed) != QUOIT_OK) break; /* all have ended, `next` too */
    }
    if (list_is_empty(&comm->queue) && list_is_empty(&comm->messages)) deactivate(comm);
    return moved;
}

/* ------------------------------------------------------------------ what may wait a millisecond */

static uint64_t earliest_deadline(const list_t *operations)
{
    uint64_t earliest = CLOCK_NEVER;
    for (const list_t *node = operations->next; node != operations; node = node->next) {
        uint64_t deadline = operation_deadline(container_of(node, operation_t, link));
        if (deadline < earliest) earliest = deadline;
    }
    return earliest;
}

uint64_t comm_deadline(const quoit_comm_t *comm)
{
    uint64_t collective = earliest_deadline(&comm->queue), message = earliest_deadline(&comm->messages);
    return collective < message ? collective : message;
}

/*
 * Ranks that wait for each other time out at almost the same moment, and the first to do so tells all others. One that cannot say
 * who is missing, since those it waits for may themselves be waiting, leaves the word to a better informed one for a while.
 */
static bool is_overdue(quoit_comm_t *comm, operation_t *operation, uint64_t now)
{
    uint64_t deadline = operation_deadline(operation);
    if (deadline > now) return false;
    uint64_t doubt = operation->kind == OPERATION_COLLECTIVE ? execute_doubt(comm) : DOUBT_NONE;
    return now - deadline >= doubt * TIMEOUT_GRACE_MS * 1000000;
}

/* NULL: none of them is. */
static const operation_t *find_overdue(quoit_comm_t *comm, const list_t *operations, uint64_t now)
{
    for (const list_t *node = operations->next; node != operations; node = node->next) {
        operation_t *operation = container_of(node, operation_t, link);
        if (is_overdue(comm, operation, now)) return operation;
    }
    return NULL;
}

static void time_out(quoit_comm_t *comm, const operation_t *operation)
{
    char text[256], missing[640] = "", last[256] = "";
    if (operation->kind == OPERATION_COLLECTIVE) {
        operation_text(&operation->description, text, sizeof text);
        execute_missing(comm, missing, sizeof missing);
        if (comm->finished) operation_text(&comm->last, last, sizeof last);
    } else {
        bool receives = operation->kind == OPERATION_RECV;
        snprintf(text, sizeof text, "%s %s %s with tag %u", receives ? "recv" : "send", receives ? "from" : "to",
                 operation->peer == QUOIT_ANY_SOURCE ? "any source" : comm_rank_name(comm, operation->peer), operation->tag);
        char doing[320] = "";
        if (operation->peer != QUOIT_ANY_SOURCE) inquire_text(comm, operation->peer, doing, sizeof doing);
        snprintf(missing, sizeof missing, "no matching %s came%s%s", receives ? "send" : "recv", doing[0] ? "; " : "", doing);
    }
    comm_fail(comm, QUOIT_ERR_TIMEOUT, true, "%s timed out after %d ms%s%s%s%s%s", text, operation->timeout_ms, missing[0] ? ": " : "", missing,
              operation->started || operation->kind != OPERATION_COLLECTIVE ? "" : " (in an operation before it)",
              last[0] ? "; the last operation that ended here is " : "", last);
}

/*
 * Another rank's word of a timeout, which this rank is about to meet itself: where it knows who is missing, it says so in its own
 * words, in which nobody else is named.
 */
static bool time_out_too(quoit_comm_t *comm)
{
    if (list_is_empty(&comm->queue)) return false;
    operation_t *operation = container_of(comm->queue.next, operation_t, link);
    if (operation_deadline(operation) > clock_now() + TIMEOUT_TOGETHER_MS * UINT64_C(1000000) || execute_doubt(comm) != DOUBT_NONE) return false;
    time_out(comm, operation);
    return true;
}

/*
 * Word has come that ends the communicator. All that an operation still needs may have come before that word, and lie where nobody has
 * looked: then it ends well, as it did on the ranks that were faster. Bounded, so that peers that send on do not put the end off.
 */
static void settle(quoit_comm_t *comm)
{
    const engine_t *engine = comm->engine;
    bool moved = true;
    for (int round = 0; round < SETTLE_ROUNDS && moved && comm->is_active; round++) {
        moved = false;
        while (comm->is_active && comm_advance(comm)) moved = true;
        for (int i = 0; i < engine->transports && comm->is_active; i++)
            if (engine->transport[i].ops->progress(engine->transport[i].transport) > 0) moved = true;
    }
}

/* comm->word, cause and finder are what was told. */
static void take_word(quoit_comm_t *comm)
{
    quoit_status_t status = comm->word;
    comm->word = QUOIT_OK;
    if (status == QUOIT_ERR_TIMEOUT && time_out_too(comm)) return;
    comm->relays = true;
    fail(comm, status, true);
}

void comm_fail_told(quoit_comm_t *comm, quoit_status_t status, int finder, const char *cause)
{
    if (atomic_load_explicit(&comm->status, memory_order_relaxed) != QUOIT_OK) return;
    snprintf(comm->cause, sizeof comm->cause, "%s", cause);
    comm->finder = finder;
    comm->word = status;
    settle(comm);
    if (comm->word != QUOIT_OK) take_word(comm);
}

/* Whoever leaves because of an error has sent word of it before: look at what has come before blaming it for leaving. */
bool comm_word_has_come(quoit_comm_t *comm)
{
    if (comm->left_seen == 0) comm->left_seen = comm->engine->network_polls + 1;
    return comm->engine->network_polls > comm->left_seen;
}

/* A recv from, or a collective with, a process that has said goodbye cannot end. */
static void check_left(quoit_comm_t *comm)
{
    for (list_t *node = comm->messages.next; node != &comm->messages; node = node->next) {
        operation_t *operation = container_of(node, operation_t, link);
        if (operation->kind != OPERATION_RECV || operation->peer == QUOIT_ANY_SOURCE || operation->payload_posted) continue;
        if (!comm->job->peer[comm->job_rank[operation->peer]]->left) continue;
        if (comm_word_has_come(comm))
            comm_fail(comm, QUOIT_ERR_PEER, true, "recv from %s with tag %u: it has left without sending", comm_rank_name(comm, operation->peer),
                      operation->tag);
        return;
    }
    char text[256];
    const char *who = execute_left(comm);
    if (who && comm_word_has_come(comm)) {
        operation_text(&comm->execution.operation->description, text, sizeof text);
        comm_fail(comm, QUOIT_ERR_PEER, true, "%s: %s has destroyed its communicator or ended", text, who);
    }
}

void comm_check(quoit_comm_t *comm, uint64_t now)
{
    history_note(comm, now);
    quoit_status_t status = execute_check(comm);
    if (status < 0) {
        fail_in(comm, comm->execution.operation, status);
        return;
    }
    inquire_check(comm, now);
    stall_check(comm, now);
    if (comm_deadline(comm) > now) {
        check_left(comm);
        return;
    }
    const operation_t *overdue = find_overdue(comm, &comm->queue, now);
    if (!overdue) overdue = find_overdue(comm, &comm->messages, now);
    if (overdue) time_out(comm, overdue);
}

/* ------------------------------------------------------------------ plans */

static bool plan_fits(const plan_t *plan, const plan_request_t *request)
{
    return plan->collective == request->collective && plan->algorithm == request->algorithm && plan->root == request->root &&
           plan->premul == request->premul && plan->share == request->share && plan->wire == request->wire &&
           plan->small == request->small;
}

quoit_status_t comm_plan(quoit_comm_t *comm, const plan_request_t *request, plan_t **plan)
{
    for (int i = 0; i < comm->plan_count; i++) {
        if (!plan_fits(comm->plans[i], request)) continue;
        *plan = comm->plans[i];
        return QUOIT_OK;
    }
    plan_t *made = NULL;
    quoit_status_t status = plan_create(comm->topology, &comm->job->tuning, request, &made);
    if (status != QUOIT_OK) return status;
    if (comm->plan_count < COMM_PLANS) {
        comm->plans[comm->plan_count++] = made;
    } else { /* no operation runs while one begins, so the oldest is in nobody's hands */
        plan_destroy(comm->plans[comm->plan_next]);
        comm->execution.bound = NULL; /* perhaps that one */
        comm->plans[comm->plan_next] = made;
        comm->plan_next = (comm->plan_next + 1) % COMM_PLANS;
    }
    *plan = made;
    return QUOIT_OK;
}
