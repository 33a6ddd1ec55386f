/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inquiry. Terms: a *call* is a collective's description and the hash of all collectives up to it; ASK tells the own newest calls and
 * wants an answer, TELL is that answer. Both are compared with what was called here under the same number, now, before (the newest
 * COMM_HISTORY calls are remembered) or when that number comes. The hashes are equal exactly if all calls so far were.
 *
 * Cost: none before a wait of FIRST_ASK_MS; then one small notice to each awaited rank, ever more seldom, and one shortly before the
 * deadline.
 */
#include "scheduler/inquire.h"

#include "base/clock.h"
#include "base/log.h"
#include "scheduler/comm.h"
#include "scheduler/control.h"
#include "scheduler/notice.h"
#include "transport/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FIRST_ASK_MS = 100,  /* of waiting, which no operation that goes well takes; pauses double, up to ... */
    ASK_MOST_MS = 5000,
    LAST_ASK_MS = 60,    /* before the deadline: time for the answers */
    DISPUTE_MS = 1000,   /* for the call behind a hash that was not ours */
    ASKED_AT_ONCE = 64   /* ranks */
};

typedef struct told {
    bool known, running;
    uint32_t sequence;       /* of the newest call; 0: none yet */
    int calls;
    call_t call[NOTICE_CALLS]; /* the newest first */
    char doing[NOTICE_CALL_TEXT]; /* "now it is in allreduce #3 (...) of group x", "it waits for rank 3 (...)" */
    uint64_t at;
} told_t;

struct inquiry {
    uint64_t next;           /* when to ask again */
    uint64_t asked;          /* when was asked first; 0: not yet */
    int pause_ms;
    bool asked_last;
    int disputed;            /* whose call is awaited, -1 */
    uint64_t dispute_until;
    told_t told[];
};

void inquire_destroy(inquiry_t *inquiry) { free(inquiry); }

static inquiry_t *inquiry_of(quoit_comm_t *comm)
{
    if (comm->inquiry) return comm->inquiry;
    comm->inquiry = calloc(1, sizeof *comm->inquiry + (size_t)comm->size * sizeof comm->inquiry->told[0]);
    if (comm->inquiry) comm->inquiry->disputed = -1;
    return comm->inquiry;
}

static bool has_failed(const quoit_comm_t *comm) { return atomic_load_explicit(&comm->status, memory_order_relaxed) != QUOIT_OK; }

/* ------------------------------------------------------------------ telling */

static int awaited(quoit_comm_t *comm, int ranks[ASKED_AT_ONCE])
{
    int count = execute_awaited(comm, ranks, ASKED_AT_ONCE);
    for (const list_t *node = comm->messages.next; node != &comm->messages && count < ASKED_AT_ONCE; node = node->next) {
        const operation_t *operation = container_of(node, const operation_t, link);
        if (operation->peer != QUOIT_ANY_SOURCE) ranks[count++] = operation->peer;
    }
    return count;
}

/* The oldest send or recv of this rank that has not ended. */
static void message_text(quoit_comm_t *comm, char text[NOTICE_CALL_TEXT])
{
    if (list_is_empty(&comm->messages)) return;
    const operation_t *operation = container_of(comm->messages.next, operation_t, link);
    const char *peer = operation->peer == QUOIT_ANY_SOURCE ? "any source" : comm_rank_name(comm, operation->peer);
    snprintf(text, NOTICE_CALL_TEXT, "it waits for its %s %.70s with tag %u", operation->kind == OPERATION_SEND ? "send to" : "recv from", peer,
             operation->tag);
}

/* Whom this rank waits for, or what it does instead: another communicator's operation, or sends and recvs. */
static void doing_text(quoit_comm_t *comm, char text[NOTICE_CALL_TEXT])
{
    int ranks[ASKED_AT_ONCE];
    text[0] = '\0';
    if (comm->execution.operation) {
        if (awaited(comm, ranks) > 0) snprintf(text, NOTICE_CALL_TEXT, "it waits for %.80s", comm_rank_name(comm, ranks[0]));
        return;
    }
    for (const list_t *node = comm->engine->active.next; node != &comm->engine->active; node = node->next) {
        const quoit_comm_t *other = container_of(node, const quoit_comm_t, link);
        char what[80];
        if (other == comm || !other->execution.operation) continue;
        operation_text(&other->execution.operation->description, what, sizeof what);
        snprintf(text, NOTICE_CALL_TEXT, "now it is in %.70s of %.24s", what, other->name);
        return;
    }
    message_text(comm, text);
}

static void members_text(const quoit_comm_t *comm, char text[NOTICE_CALL_TEXT])
{
    size_t length = 0;
    for (int rank = 0; rank < comm->size && length < NOTICE_CALL_TEXT - 16; rank++)
        length += (size_t)snprintf(text + length, NOTICE_CALL_TEXT - length, "%s%d", rank ? ", " : "", comm->job_rank[rank]);
    if (length >= NOTICE_CALL_TEXT - 16) snprintf(text + length, NOTICE_CALL_TEXT - length, ", ...");
}

/* Nothing comes of it without credit or after the connection's end: then it is asked again, or the loss is told. */
static void send_call(quoit_comm_t *comm, int rank, bool ask)
{
    unsigned char notice[NOTICE_CALL_CAPACITY];
    quoit_endpoint_t *endpoint = NULL;
    notice_call_t call = {.ask = ask,
                          .running = comm->execution.operation != NULL,
                          .target = rank,
                          .family = comm->family};
    for (uint32_t sequence = comm->sequence; sequence > 0 && call.calls < NOTICE_CALLS; sequence--)
        call.call[call.calls++] = comm->history[sequence % COMM_HISTORY];
    doing_text(comm, call.doing);
    if (comm->family) members_text(comm, call.members);
    if (job_endpoint(comm->job, comm->job_rank[rank], &endpoint) != QUOIT_OK) return;
    (void)endpoint->transport->ops->notify(endpoint, notice, notice_call_encode(comm->id, comm->rank, &call, notice));
}

/* Connections are not made for it, but inside the host, where they cost nothing. */
static bool can_ask(const quoit_comm_t *comm, int rank)
{
    const peer_t *peer = comm->job->peer[comm->job_rank[rank]];
    if (!peer->message && comm->topology->host[rank] == comm->topology->host[comm->rank] && comm->window) {
        const window_section_t *section = comm->window->member[comm->topology->member[rank]].section;
        if (section && atomic_load_explicit(&section->left, memory_order_acquire)) return false; /* it may have ended by now */
    }
    return rank != comm->rank && peer->status == QUOIT_OK && !peer->left && (peer->message || peer->map);
}

void inquire_check(quoit_comm_t *comm, uint64_t now)
{
    if (has_failed(comm)) return;
    if (comm->wait_begun == 0 || comm->wait_sequence != comm->sequence) {
        comm->wait_begun = now;
        comm->wait_sequence = comm->sequence;
        if (comm->inquiry) comm->inquiry->asked = 0;
        return;
    }
    uint64_t deadline = comm_deadline(comm), first = clock_after(comm->wait_begun, FIRST_ASK_MS);
    bool late = deadline != CLOCK_NEVER && clock_after(now, LAST_ASK_MS) >= deadline;
    if (now < first && !late) return;
    inquiry_t *inquiry = inquiry_of(comm);
    if (!inquiry) return;
    if (inquiry->asked == 0) {
        inquiry->pause_ms = FIRST_ASK_MS;
        inquiry->next = now;
        inquiry->asked_last = false;
    }
    bool last = late && !inquiry->asked_last;
    if (now < inquiry->next && !last) return;
    int ranks[ASKED_AT_ONCE], count = awaited(comm, ranks);
    for (int i = 0; i < count; i++)
        if (can_ask(comm, ranks[i])) send_call(comm, ranks[i], true);
    if (inquiry->asked == 0) inquiry->asked = now;
    inquiry->asked_last = inquiry->asked_last || last;
    inquiry->pause_ms = inquiry->pause_ms * 2 < ASK_MOST_MS ? inquiry->pause_ms * 2 : ASK_MOST_MS;
    inquiry->next = clock_after(now, inquiry->pause_ms);
}

uint64_t inquire_wake(const quoit_comm_t *comm)
{
    const inquiry_t *inquiry = comm->inquiry;
    uint64_t deadline = comm_deadline(comm), wake = deadline;
    if (comm->wait_begun == 0 || comm->wait_sequence != comm->sequence) return clock_now() + 1000000;
    uint64_t next = inquiry && inquiry->asked ? inquiry->next : clock_after(comm->wait_begun, FIRST_ASK_MS);
    if (next < wake) wake = next;
    bool last = deadline != CLOCK_NEVER && deadline > (uint64_t)LAST_ASK_MS * 1000000 && !(inquiry && inquiry->asked && inquiry->asked_last);
    if (last && deadline - (uint64_t)LAST_ASK_MS * 1000000 < wake) wake = deadline - (uint64_t)LAST_ASK_MS * 1000000;
    if (inquiry && inquiry->dispute_until > clock_now() && inquiry->dispute_until < wake) wake = inquiry->dispute_until;
    return wake;
}

/* ------------------------------------------------------------------ comparing */

/* True when the communicator failed: the oldest call that `source` told and that is not what was called here under its number. */
static bool differs(quoit_comm_t *comm, int source)
{
    const told_t *told = &comm->inquiry->told[source];
    for (int i = told->calls; i-- > 0;) {
        const call_t *there = &told->call[i];
        uint32_t sequence = there->description.sequence;
        if (sequence == 0 || sequence > comm->sequence || comm->sequence - sequence >= COMM_HISTORY) continue;
        const call_t *here = &comm->history[sequence % COMM_HISTORY];
        if (here->hash == there->hash) continue;
        comm_fail_mismatch(comm, &here->description, source, &there->description);
        return true;
    }
    return false;
}

bool inquire_begin(quoit_comm_t *comm)
{
    if (!comm->inquiry) return false;
    for (int rank = 0; rank < comm->size; rank++)
        if (comm->inquiry->told[rank].sequence >= comm->sequence && differs(comm, rank)) return true;
    return false;
}

void inquire_receive(quoit_comm_t *comm, int source, const void *data, size_t length)
{
    notice_call_t call;
    inquiry_t *inquiry = inquiry_of(comm);
    if (!inquiry || has_failed(comm)) return;
    if (notice_call_decode(data, length, &call) != QUOIT_OK) {
        log_warn("inquire", "%s: %s", comm_rank_name(comm, source), error_text());
        return;
    }
    told_t *told = &inquiry->told[source];
    *told = (told_t){.known = true, .running = call.running, .calls = call.calls, .at = clock_now()};
    memcpy(told->call, call.call, sizeof told->call);
    if (call.calls) told->sequence = call.call[0].description.sequence;
    snprintf(told->doing, sizeof told->doing, "%s", call.doing);
    if (differs(comm, source)) return;
    if (inquiry->disputed == source && told->sequence >= comm->sequence) inquiry->dispute_until = 0; /* the calls are the same: it is something else */
    if (call.ask) send_call(comm, source, false);
}

bool inquire_dispute(quoit_comm_t *comm, int rank)
{
    inquiry_t *inquiry = inquiry_of(comm);
    uint64_t now = clock_now();
    if (!inquiry) return false;
    if (inquiry->disputed < 0) {
        inquiry->disputed = rank;
        inquiry->dispute_until = clock_after(now, DISPUTE_MS);
        send_call(comm, rank, true);
    }
    return now < inquiry->dispute_until;
}

/* ------------------------------------------------------------------ groups of other members */

/* A communicator of the family that a peer asks about, under another id, in which that peer is too; *source is its rank. NULL: none. */
static quoit_comm_t *find_namesake(engine_t *engine, uint64_t family, uint64_t id, quoit_process_id_t peer, int *source)
{
    size_t cursor = 0;
    table_key_t key;
    void *value;
    while (table_next(engine->comms, &cursor, &key, &value)) {
        quoit_comm_t *comm = value;
        if (comm->family != family || comm->id == id || has_failed(comm)) continue;
        for (int rank = 0; rank < comm->size; rank++) {
            if (!process_same(comm->job->peer[comm->job_rank[rank]]->process, peer)) continue;
            *source = rank;
            return comm;
        }
    }
    return NULL;
}

/* "ranks made group x of different members: ...", with what both sides called in it. */
static void namesakes_text(const quoit_comm_t *comm, int source, const notice_call_t *call, char text[NOTICE_ABORT_TEXT])
{
    char members[NOTICE_CALL_TEXT], what[128] = "";
    members_text(comm, members);
    if (comm->sequence) operation_text(&comm->history[comm->sequence % COMM_HISTORY].description, what, sizeof what);
    snprintf(text, NOTICE_ABORT_TEXT, "ranks made group %s of different members: %s of ranks %s%s%s, but %s of ranks %s", comm->name,
             comm_rank_name(comm, comm->rank), members, what[0] ? ", and called " : "", what, comm_rank_name(comm, source), call->members);
    if (!call->calls) return;
    size_t end = strlen(text);
    operation_text(&call->call[0].description, what, sizeof what);
    snprintf(text + end, NOTICE_ABORT_TEXT - end, ", and called %s", what);
}

void inquire_stranger(engine_t *engine, const quoit_event_t *event)
{
    notice_header_t header;
    notice_call_t call;
    if (notice_header_decode(event->data, event->length, &header) != QUOIT_OK || notice_call_decode(event->data, event->length, &call) != QUOIT_OK ||
        call.family == 0)
        return;
    int source = 0;
    quoit_comm_t *comm = find_namesake(engine, call.family, header.comm, event->peer, &source);
    if (!comm) return;
    char text[NOTICE_ABORT_TEXT];
    unsigned char notice[NOTICE_ABORT_CAPACITY];
    quoit_endpoint_t *endpoint = NULL;
    namesakes_text(comm, source, &call, text);
    size_t length = notice_abort_encode(header.comm, call.target, QUOIT_ERR_MISMATCH, call.target, text, notice);
    if (job_endpoint(comm->job, comm->job_rank[source], &endpoint) == QUOIT_OK) control_tell(endpoint, notice, length);
    comm_fail(comm, QUOIT_ERR_MISMATCH, true, "%s", text);
}

/* ------------------------------------------------------------------ texts */

int inquire_is_in(const quoit_comm_t *comm, int rank)
{
    const inquiry_t *inquiry = comm->inquiry;
    if (!inquiry || comm->wait_sequence != comm->sequence || !inquiry->told[rank].known || inquiry->told[rank].at < comm->wait_begun) return -1;
    return inquiry->told[rank].sequence >= comm->sequence;
}

/* Of a rank that does not answer: "; tcp, not connected yet: tried 10.0.0.7:41230 (no answer)", or "" when there is a connection. */
static void connection_text(const quoit_comm_t *comm, int rank, char *text, size_t capacity)
{
    const peer_t *peer = comm->job->peer[comm->job_rank[rank]];
    text[0] = '\0';
    if (rank == comm->rank || !peer->message || peer->message->transport->ops->endpoint_status(peer->message) != QUOIT_IN_PROGRESS) return;
    snprintf(text, capacity, "; %s", peer->message->transport->ops->describe(peer->message));
}

void inquire_text(const quoit_comm_t *comm, int rank, char *text, size_t capacity)
{
    const inquiry_t *inquiry = comm->inquiry;
    char what[128] = "";
    const bool here = comm->execution.operation != NULL; /* else sends and recvs alone wait here */
    text[0] = '\0';
    if (!inquiry || comm->wait_sequence != comm->sequence || inquiry->asked == 0) return;
    const told_t *told = &inquiry->told[rank];
    if (told->known && told->calls) operation_text(&told->call[0].description, what, sizeof what);
    if (!told->known || told->at < comm->wait_begun) {
        char connection[256];
        connection_text(comm, rank, connection, sizeof connection);
        snprintf(text, capacity, "it does not answer%s%s%s", what[0] ? "; the newest call known of it is " : "", what, connection);
    } else if (told->sequence == 0)
        snprintf(text, capacity, "it has not called anything yet");
    else if (!told->running)
        snprintf(text, capacity, "its newest call is %s, which ended", what);
    else if (told->sequence < comm->sequence)
        snprintf(text, capacity, "it is still in %s", what);
    else
        snprintf(text, capacity, here ? "it is in %s too" : "it is in %s", what);
    size_t length = strlen(text);
    if (told->doing[0] && told->at >= comm->wait_begun && length < capacity) snprintf(text + length, capacity - length, "; %s", told->doing);
}
