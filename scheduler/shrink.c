/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Going on with the survivors: the ranks that are left of a failed communicator agree on one list of members.
 *
 * Terms. A rank is *lost* for certain (its process died, or said goodbye), or *doubtful* (its connection broke without such a proof,
 * or it kept silent for too long). Both only ever grow, and travel with every notice. The *leader* is the lowest rank that is neither;
 * so leaders only rise, and a leader's rank serves as the number of its term.
 *
 *   JOIN   member -> leader   "I follow you", again whenever it has a new leader or knows of a further loss
 *   LEAD   leader -> all      "I lead"; whoever still followed an earlier one learns that it is lost
 *   OFFER  leader -> members  the list: all that joined
 *   TAKE   member -> leader   "I take your offer", if it follows that leader still
 *   GO     leader -> all      it is decided: enough have taken it. Nobody in it: the rest is too small a part to go on, see enough
 *
 * Invariant: an offer is decided when those that have taken it are enough to go on without all others that may live; and a rank takes none of a term
 * that it has left. So of two offers that are decided, by leaders who know nothing of each other, both have been taken by some rank (unless it
 * died), and that rank has told the later leader of the earlier offer with its JOIN; that leader then offers the same list. A leader with an offer
 * that nobody takes cannot go on by itself: those that had joined it may be in another part by now. What is decided is passed on before a rank returns.
 *
 * Cost: four notices a rank, and one to each rank that it is connected to already.
 */
#include "scheduler/shrink.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/settings.h"
#include "scheduler/comm.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RELAY_FURTHER = 3 /* ranks of the list that a GO is passed on to although nothing joins them yet: the next leaders */ };
enum { FLAG_JOINED = 1, FLAG_TAKEN = 2, FLAG_OWES_LEAD = 4, FLAG_OWES_OFFER = 8, FLAG_OWES_TAKE = 16, FLAG_OWES_GO = 32 };

typedef struct rank_state {
    uint8_t mark;  /* shrink_mark_t: UNKNOWN, DOUBTFUL, LOST */
    uint8_t list;  /* shrink_mark_t of the list that was decided, offered, or taken */
    uint8_t flags;
} rank_state_t;

struct shrink {
    bool calling;            /* this rank is in quoit_comm_shrink */
    bool made;               /* it has made the new communicator, of which there can be one: its id is a function of the list */
    bool decided;            /* `rank[].list` is what this rank goes by */
    bool offered;            /* this rank leads, and has offered `rank[].list` */
    bool heard;              /* `rank[].list` is another leader's offer, taken, or heard of */
    int term;                /* of the list */
    int leader, told;        /* told: whom our newest JOIN went to; -1 */
    bool answered;           /* the leader has said that it leads */
    int given_up;            /* leaders that kept silent */
    uint64_t begun, deadline;
    uint64_t patient_until;  /* of a leader */
    int timeout_ms;
    rank_state_t rank[];
};

static shrink_t *state_of(quoit_comm_t *comm)
{
    if (comm->shrink) return comm->shrink;
    comm->shrink = calloc(1, sizeof *comm->shrink + (size_t)comm->size * sizeof comm->shrink->rank[0]);
    if (comm->shrink) comm->shrink->told = -1;
    return comm->shrink;
}

void shrink_destroy(shrink_t *shrink) { free(shrink); }

/* ------------------------------------------------------------------ what is known of the others */

static peer_t *peer_of(const quoit_comm_t *comm, int rank) { return comm->job->peer[comm->job_rank[rank]]; }

/* A mark only rises. What is new is told to the leader. */
static void set_mark(shrink_t *shrink, int rank, shrink_mark_t mark)
{
    if (shrink->rank[rank].mark >= mark) return;
    shrink->rank[rank].mark = (uint8_t)mark;
    shrink->told = -1;
}

static void look_at_peers(quoit_comm_t *comm, shrink_t *shrink)
{
    for (int rank = 0; rank < comm->size; rank++) {
        const peer_t *peer = peer_of(comm, rank);
        if (rank == comm->rank) continue;
        if (peer->left || peer->status == QUOIT_ERR_PEER)
            set_mark(shrink, rank, SHRINK_LOST);
        else if (peer->status != QUOIT_OK)
            set_mark(shrink, rank, SHRINK_DOUBTFUL);
    }
}

static void choose_leader(quoit_comm_t *comm, shrink_t *shrink)
{
    int leader = 0;
    while (leader != comm->rank && shrink->rank[leader].mark != SHRINK_UNKNOWN) leader++;
    if (leader == shrink->leader) return;
    shrink->leader = leader;
    shrink->told = -1;
    shrink->answered = false;
}

/* ------------------------------------------------------------------ notices */

/* QUOIT_ERR_AGAIN: later. Anything else that fails is found as the peer's loss. */
static quoit_status_t send_notice(quoit_comm_t *comm, shrink_t *shrink, int rank, shrink_kind_t kind)
{
    unsigned char notice[NOTICE_PAYLOAD_CAPACITY];
    quoit_endpoint_t *endpoint = NULL;
    quoit_status_t status = job_endpoint(comm->job, comm->job_rank[rank], &endpoint);
    if (status != QUOIT_OK) return status;
    bool tells_list = kind == SHRINK_GO || kind == SHRINK_OFFER;
    notice_shrink_t message = {.kind = kind, .term = tells_list ? shrink->term : shrink->leader, .size = comm->size};
    size_t length = notice_shrink_encode(comm->id, comm->rank, &message, notice);
    for (int i = 0; i < comm->size; i++)
        notice_shrink_set_mark(notice, i, (shrink_mark_t)(tells_list ? shrink->rank[i].list : shrink->rank[i].mark));
    return endpoint->transport->ops->notify(endpoint, notice, length);
}

static void send_owed(quoit_comm_t *comm, shrink_t *shrink)
{
    static const struct { uint8_t flag; shrink_kind_t kind; } owed[] = {
        {FLAG_OWES_LEAD, SHRINK_LEAD}, {FLAG_OWES_OFFER, SHRINK_OFFER}, {FLAG_OWES_TAKE, SHRINK_TAKE}, {FLAG_OWES_GO, SHRINK_GO}};
    for (int rank = 0; rank < comm->size; rank++) {
        uint8_t *flags = &shrink->rank[rank].flags;
        for (size_t i = 0; i < sizeof owed / sizeof *owed; i++)
            if (*flags & owed[i].flag && send_notice(comm, shrink, rank, owed[i].kind) != QUOIT_ERR_AGAIN) *flags &= (uint8_t)~owed[i].flag;
    }
}

static bool owes_anything(const quoit_comm_t *comm, const shrink_t *shrink)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (shrink->rank[rank].flags & FLAG_OWES_GO) return true;
    return false;
}

/* The list is this rank's now; whoever may not know it is told, those that it leaves out too. */
static void decide(quoit_comm_t *comm, shrink_t *shrink, int term)
{
    int further = 0;
    shrink->decided = true;
    shrink->heard = false;
    shrink->term = term;
    for (int rank = 0; rank < comm->size; rank++) {
        const peer_t *peer = peer_of(comm, rank);
        if (rank == comm->rank || peer->status != QUOIT_OK || peer->left) continue;
        bool member = shrink->rank[rank].list == SHRINK_MEMBER, joined = peer->message || peer->map;
        bool next = member && !joined && further < RELAY_FURTHER;
        if (joined || next || (member && term == comm->rank)) shrink->rank[rank].flags |= FLAG_OWES_GO;
        further += next;
    }
}

/* ------------------------------------------------------------------ receiving */

static void merge(quoit_comm_t *comm, shrink_t *shrink, const void *data)
{
    for (int rank = 0; rank < comm->size; rank++) {
        shrink_mark_t mark = notice_shrink_mark(data, rank);
        if (rank != comm->rank && (mark == SHRINK_DOUBTFUL || mark == SHRINK_LOST)) set_mark(shrink, rank, mark);
    }
}

static void copy_list(quoit_comm_t *comm, shrink_t *shrink, const void *data, int term)
{
    for (int rank = 0; rank < comm->size; rank++) shrink->rank[rank].list = (uint8_t)notice_shrink_mark(data, rank);
    shrink->term = term;
}

/* Our leader's, or one of an earlier term, of which our leader is to know. What we offer ourselves stays. */
static void take_offer(quoit_comm_t *comm, shrink_t *shrink, int source, const void *data, int term)
{
    bool current = shrink->calling && term == shrink->leader && source == shrink->leader;
    if (shrink->decided || shrink->offered || (shrink->heard && shrink->term >= term && !current)) return;
    copy_list(comm, shrink, data, term);
    shrink->heard = true;
    if (current) {
        shrink->answered = true;
        shrink->rank[source].flags |= FLAG_OWES_TAKE;
    } else {
        shrink->told = -1;
    }
}

static bool names_nobody(const quoit_comm_t *comm, const void *data)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (notice_shrink_mark(data, rank) == SHRINK_MEMBER) return false;
    return true;
}

/* That nobody goes on is the word of one leader for those that follow it; a list that is decided is everybody's. */
static void take_go(quoit_comm_t *comm, shrink_t *shrink, const void *data, int term)
{
    if (shrink->decided || (names_nobody(comm, data) && !(shrink->calling && term == shrink->leader))) return;
    copy_list(comm, shrink, data, term);
    decide(comm, shrink, term);
}

void shrink_receive(quoit_comm_t *comm, int source, const void *data, size_t length)
{
    shrink_t *shrink = state_of(comm);
    notice_shrink_t message;
    if (!shrink) {
        log_error("shrink", "no memory for the agreement of %d ranks", comm->size);
        return;
    }
    if (notice_shrink_decode(data, length, &message) != QUOIT_OK || message.size != comm->size || message.term < 0 || message.term >= comm->size) {
        log_warn("shrink", "%s sent a notice that does not fit communicator %s", comm_rank_name(comm, source), comm->name);
        return;
    }
    if (message.kind == SHRINK_GO) {
        take_go(comm, shrink, data, message.term);
        return;
    }
    if (message.kind == SHRINK_OFFER) {
        take_offer(comm, shrink, source, data, message.term);
        return;
    }
    merge(comm, shrink, data);
    if (message.kind == SHRINK_TAKE) {
        if (shrink->offered && message.term == comm->rank) shrink->rank[source].flags |= FLAG_TAKEN;
        return;
    }
    if (shrink->decided) { /* it came late, or again: it is told what was decided, in the term it is in */
        shrink->term = message.term;
        (void)send_notice(comm, shrink, source, SHRINK_GO);
    }
    if (message.kind == SHRINK_LEAD) {
        choose_leader(comm, shrink);
        shrink->answered = shrink->answered || source == shrink->leader;
        return;
    }
    if (message.term == comm->rank) shrink->rank[source].flags |= FLAG_JOINED | (shrink->calling ? FLAG_OWES_LEAD : 0);
}

/* ------------------------------------------------------------------ the leader */

/*
 * May some of the ranks go on without the others? Those lost for certain do not count. The others may be alive, and may take us for lost: so the
 * part with more ranks goes on, of two equal parts the one with the lowest rank.
 */
static bool enough(const quoit_comm_t *comm, const shrink_t *shrink, bool (*goes_on)(const quoit_comm_t *comm, const shrink_t *shrink, int rank))
{
    int on = 0, others = 0, lowest_on = comm->size, lowest_other = comm->size;
    for (int rank = comm->size - 1; rank >= 0; rank--) {
        if (shrink->rank[rank].mark == SHRINK_LOST) continue;
        bool is_on = goes_on(comm, shrink, rank);
        on += is_on;
        others += !is_on;
        *(is_on ? &lowest_on : &lowest_other) = rank;
    }
    return on > others || (on == others && lowest_on < lowest_other);
}

static bool is_left(const quoit_comm_t *comm, const shrink_t *shrink, int rank)
{
    (void)comm;
    return shrink->rank[rank].mark == SHRINK_UNKNOWN;
}

static bool has_taken(const quoit_comm_t *comm, const shrink_t *shrink, int rank)
{
    return rank == comm->rank || shrink->rank[rank].flags & FLAG_TAKEN;
}

/* Tell every rank, once: those that have joined, and those that follow an earlier leader, or are gone without our knowing. */
static void announce(quoit_comm_t *comm, shrink_t *shrink, uint64_t now)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank && shrink->rank[rank].mark == SHRINK_UNKNOWN) shrink->rank[rank].flags |= FLAG_OWES_LEAD;
    shrink->answered = true;
    shrink->told = comm->rank;
    /* Half the time is for ranks that have not called; those that only just learn who leads get a little more. */
    uint64_t span = shrink->deadline - shrink->begun, half = shrink->begun + span / 2;
    shrink->patient_until = now + span / 8 > half ? now + span / 8 : half;
}

static void offer(const quoit_comm_t *comm, shrink_t *shrink)
{
    for (int rank = 0; rank < comm->size; rank++)
        if (rank != comm->rank && shrink->rank[rank].list == SHRINK_MEMBER && !(shrink->rank[rank].flags & FLAG_TAKEN))
            shrink->rank[rank].flags |= FLAG_OWES_OFFER;
}

/* All that are left have joined, or had their time: what is offered to them? False: not yet, or they are too few. */
static bool choose_list(quoit_comm_t *comm, shrink_t *shrink, uint64_t now)
{
    for (int rank = 0; rank < comm->size; rank++) {
        rank_state_t *state = &shrink->rank[rank];
        if (rank == comm->rank || state->mark != SHRINK_UNKNOWN || state->flags & FLAG_JOINED) continue;
        if (now < shrink->patient_until) return false;
        set_mark(shrink, rank, SHRINK_DOUBTFUL);
    }
    bool are_enough = enough(comm, shrink, is_left);
    for (int rank = 0; rank < comm->size && !(are_enough && shrink->heard); rank++) {
        uint8_t mark = shrink->rank[rank].mark;
        shrink->rank[rank].list = mark == SHRINK_UNKNOWN && are_enough ? SHRINK_MEMBER : mark;
    }
    if (!are_enough) decide(comm, shrink, comm->rank);
    return are_enough;
}

static void lead(quoit_comm_t *comm, shrink_t *shrink, uint64_t now)
{
    if (!shrink->answered) announce(comm, shrink, now);
    if (!shrink->offered && choose_list(comm, shrink, now)) {
        shrink->offered = true;
        shrink->heard = false;
        shrink->term = comm->rank;
        offer(comm, shrink);
    }
    if (shrink->offered && enough(comm, shrink, has_taken)) decide(comm, shrink, comm->rank);
}

/* ------------------------------------------------------------------ members */

static void follow(quoit_comm_t *comm, shrink_t *shrink, uint64_t now)
{
    uint64_t span = shrink->deadline - shrink->begun;
    if (shrink->told != shrink->leader) {
        quoit_status_t status = send_notice(comm, shrink, shrink->leader, SHRINK_JOIN);
        if (status == QUOIT_ERR_AGAIN) return;
        if (shrink->heard && shrink->term != shrink->leader)
            if (send_notice(comm, shrink, shrink->leader, SHRINK_OFFER) == QUOIT_ERR_AGAIN) return;
        shrink->told = shrink->leader;
    }
    /* A leader leaves silent ranks out at half the time: so one that lives has spoken by now. */
    if (!shrink->answered && now >= shrink->begun + span / 8 * 5 + span / 16 * (uint64_t)shrink->given_up) {
        shrink->given_up++;
        set_mark(shrink, shrink->leader, SHRINK_DOUBTFUL);
    }
}

/* One round. True when it is over. */
static bool advance(quoit_comm_t *comm, shrink_t *shrink, uint64_t now)
{
    if (!shrink->decided) {
        look_at_peers(comm, shrink);
        choose_leader(comm, shrink);
        if (shrink->leader == comm->rank)
            lead(comm, shrink, now);
        else
            follow(comm, shrink, now);
    }
    send_owed(comm, shrink);
    return shrink->decided && !owes_anything(comm, shrink);
}

/* ------------------------------------------------------------------ the call */

/* "rank 3 (node7, pid 12), rank 5 (...)": those whose mark, or place in the list, is `wanted`. */
static void list_ranks(const quoit_comm_t *comm, bool of_list, shrink_mark_t wanted, char *text, size_t capacity)
{
    text[0] = '\0';
    for (int rank = 0; rank < comm->size; rank++) {
        const rank_state_t *state = &comm->shrink->rank[rank];
        if ((of_list ? state->list : state->mark) != wanted || (!of_list && wanted == SHRINK_UNKNOWN && (rank == comm->rank || state->flags & (comm->shrink->offered ? FLAG_TAKEN : FLAG_JOINED))))
            continue;
        size_t length = strlen(text);
        snprintf(text + length, capacity - length, "%s%s", length ? ", " : "", comm_rank_name(comm, rank));
    }
}

static quoit_status_t tell_timeout(const quoit_comm_t *comm)
{
    const shrink_t *shrink = comm->shrink;
    char who[600];
    if (shrink->leader != comm->rank)
        return error_set(QUOIT_ERR_TIMEOUT, "[%s, rank %d] shrink timed out after %d ms: %s, the lowest rank that is left, has not said who goes on%s",
                         comm->name, comm->rank, shrink->timeout_ms, comm_rank_name(comm, shrink->leader),
                         shrink->answered ? "" : "; nothing was heard of it");
    list_ranks(comm, false, SHRINK_UNKNOWN, who, sizeof who);
    bool cut_off = !who[0]; /* they had joined, and their connections broke before they took the offer */
    if (cut_off) list_ranks(comm, false, SHRINK_DOUBTFUL, who, sizeof who);
    return error_set(QUOIT_ERR_TIMEOUT, "[%s, rank %d] shrink timed out after %d ms: waiting for %s%s", comm->name, comm->rank, shrink->timeout_ms, who,
                     cut_off ? ", whose connections broke meanwhile" : "");
}

/* What was decided, if it is not that this rank goes on. */
static quoit_status_t tell_outcome(const quoit_comm_t *comm)
{
    const shrink_t *shrink = comm->shrink;
    char members[320], doubtful[320];
    if (shrink->rank[comm->rank].list == SHRINK_MEMBER) return QUOIT_OK;
    list_ranks(comm, true, SHRINK_MEMBER, members, sizeof members);
    list_ranks(comm, true, SHRINK_DOUBTFUL, doubtful, sizeof doubtful);
    if (members[0])
        return error_set(QUOIT_ERR_ABORTED, "[%s, rank %d] the others (%s) went on without this rank: it did not call quoit_comm_shrink in time, or its "
                         "connections broke", comm->name, comm->rank, members);
    return error_set(QUOIT_ERR_NETWORK, "[%s, rank %d] too few are left to go on: %s may be alive behind a cut link, or stopped, and may go on "
                     "themselves; restart the job", comm->name, comm->rank, doubtful);
}

static quoit_status_t agree(quoit_comm_t *comm, int timeout_ms)
{
    engine_t *engine = comm->engine;
    engine_enter(engine);
    shrink_t *shrink = state_of(comm);
    quoit_status_t status = shrink ? QUOIT_OK : error_set(QUOIT_ERR_NO_MEMORY, "shrink: %d ranks", comm->size);
    if (status == QUOIT_OK && shrink->calling) status = error_set(QUOIT_ERR_INVALID, "another thread is shrinking communicator %s", comm->name);
    if (status == QUOIT_OK && shrink->made)
        status = error_set(QUOIT_ERR_INVALID, "communicator %s has been shrunk already; what came of it can be shrunk when it has failed", comm->name);
    if (status != QUOIT_OK) {
        engine_leave(engine);
        return status;
    }
    shrink->calling = true;
    shrink->timeout_ms = timeout_ms;
    shrink->begun = clock_now();
    shrink->deadline = clock_deadline(timeout_ms);
    shrink->told = -1;
    shrink->answered = false;
    if (shrink->offered && !shrink->decided) offer(comm, shrink); /* in a call before this one, that ended in a timeout */
    for (;;) {
        bool moved = engine_poll(engine);
        uint64_t now = clock_now();
        if (advance(comm, shrink, now)) break;
        if (now >= shrink->deadline) {
            if (!shrink->decided) status = tell_timeout(comm);
            break;
        }
        if (moved) continue;
        engine_leave(engine); /* other threads have their turn */
        poll(NULL, 0, 1);
        engine_enter(engine);
    }
    shrink->calling = false;
    if (status == QUOIT_OK) status = tell_outcome(comm);
    engine_leave(engine);
    return status;
}

/* The members' new communicator. All compute the same id without a word. */
static quoit_status_t make(quoit_comm_t *comm, const char *name, int timeout_ms, quoit_comm_t **result)
{
    int count = 0, own = -1;
    bool left_out = false;
    int *job_ranks = malloc((size_t)comm->size * sizeof *job_ranks);
    if (!job_ranks) return error_set(QUOIT_ERR_NO_MEMORY, "shrink: %d ranks", comm->size);
    uint64_t id = hash_combine(comm->id, 0x736872696e6b); /* "shrink" */
    engine_enter(comm->engine);
    for (int rank = 0; rank < comm->size; rank++) {
        if (comm->shrink->rank[rank].list != SHRINK_MEMBER) {
            left_out = left_out || comm->shrink->rank[rank].mark != SHRINK_LOST;
            continue;
        }
        if (rank == comm->rank) own = count;
        job_ranks[count++] = comm->job_rank[rank];
        id = hash_combine(id, (uint64_t)comm->job_rank[rank]);
    }
    window_collect(comm->engine, false);
    quoit_status_t status = comm_make(comm->job, id, 0, own, count, job_ranks, name, timeout_ms, result);
    if (status == QUOIT_OK) {
        engine_retain(comm->engine);
        comm->engine->failed = false;
        comm->engine->left_out = comm->engine->left_out || left_out;
        comm->shrink->made = true;
        log_info("shrink", "[%s, rank %d] goes on as rank %d of %d", comm->name, comm->rank, own, count);
    }
    engine_leave(comm->engine);
    free(job_ranks);
    return status;
}

static bool has_failed(quoit_comm_t *comm)
{
    if (atomic_load_explicit(&comm->status, memory_order_acquire) != QUOIT_OK) return true;
    engine_enter(comm->engine);
    engine_poll(comm->engine); /* word of it may have come while this rank was away */
    engine_leave(comm->engine);
    return atomic_load_explicit(&comm->status, memory_order_acquire) != QUOIT_OK;
}

quoit_status_t quoit_comm_shrink(quoit_comm_t *comm, const quoit_comm_config_t *config, quoit_comm_t **newcomm)
{
    static const char suffix[] = "/shrunk";
    char own_name[COMM_NAME_CAPACITY];
    int timeout_ms = 0;
    quoit_wire_t wire = QUOIT_WIRE_DEFAULT;
    if (!comm || !newcomm) return error_set(QUOIT_ERR_INVALID, "quoit_comm_shrink: %s is NULL", comm ? "newcomm" : "comm");
    if (comm->fork_generation != engine_fork_generation())
        return error_set(QUOIT_ERR_FORKED, "communicator %s belongs to the parent process", comm->name);
    if (!has_failed(comm))
        return error_set(QUOIT_ERR_INVALID, "communicator %s has not failed; quoit_comm_abort ends it, then its ranks can go on in a smaller one", comm->name);
    size_t length = strlen(comm->name);
    bool has_suffix = length >= sizeof suffix - 1 && strcmp(comm->name + length - (sizeof suffix - 1), suffix) == 0;
    snprintf(own_name, sizeof own_name, "%.50s%s", comm->name, has_suffix ? "" : suffix);
    const char *name = own_name;
    quoit_status_t status = comm_read_config(config, &name, &timeout_ms, &wire);
    if (status == QUOIT_OK && notice_shrink_length(comm->size) > (size_t)setting_int(SETTING_EAGER_LIMIT))
        status = error_set(QUOIT_ERR_UNSUPPORTED, "shrinking %d ranks needs notices of %zu bytes; raise QUOIT_EAGER_LIMIT to that", comm->size,
                           notice_shrink_length(comm->size));
    if (status != QUOIT_OK) return status;
    if (!config || config->timeout_ms == 0) timeout_ms = __atomic_load_n(&comm->timeout_ms, __ATOMIC_RELAXED);
    status = agree(comm, timeout_ms);
    if (status != QUOIT_OK) return status;
    quoit_comm_t *made = NULL;
    status = make(comm, name, timeout_ms, &made);
    if (status != QUOIT_OK) return status;
    made->wire = wire == QUOIT_WIRE_DEFAULT ? comm->wire : wire;
    *newcomm = made;
    return QUOIT_OK;
}
