/* SPDX-License-Identifier: Apache-2.0 */
/* Journal: a communicator's block as text and as JSON. Works on copies, which may come from another process: every field is checked. */
#include "scheduler/comm.h"
#include "scheduler/journal.h"

#include <stdio.h>
#include <string.h>

/* One operation as read, times in ns of CLOCK_MONOTONIC. */
typedef struct shown {
    const journal_entry_t *entry;
    uint64_t issued, started, ended; /* 0: not yet */
    int status;
} shown_t;

static uint64_t clamp(uint64_t ns, uint64_t least) { return ns && ns < least ? least : ns; }

/* The entry with this number in its ring; false when it was overwritten or is being written. */
static bool find_entry(const journal_ring_t *ring, uint64_t number, const journal_view_t *view, shown_t *shown)
{
    const journal_entry_t *entry = &ring->entry[number % JOURNAL_RING];
    if (atomic_load(&entry->number) != number) return false;
    shown->entry = entry;
    /* The two clocks differ by some ns: times of one operation shall not run backwards. */
    shown->started = clamp(ticks_to_ns(&view->line, atomic_load(&entry->started)), entry->issued);
    shown->issued = entry->issued ? entry->issued : shown->started;
    shown->ended = clamp(ticks_to_ns(&view->line, atomic_load(&entry->ended)), shown->started ? shown->started : shown->issued);
    shown->status = atomic_load(&entry->status);
    return true;
}

static uint64_t oldest_of(const journal_ring_t *ring)
{
    uint64_t newest = atomic_load(&ring->newest);
    return newest > JOURNAL_RING ? newest - JOURNAL_RING + 1 : 1;
}

static bool is_running(const shown_t *shown) { return shown->status == QUOIT_IN_PROGRESS; }

/* The collective that runs: there is at most one, and it is the newest. */
static bool find_running(const journal_block_t *block, const journal_view_t *view, shown_t *shown)
{
    uint64_t newest = atomic_load(&block->collective.newest);
    return newest && find_entry(&block->collective, newest, view, shown) && is_running(shown);
}

static uint64_t queued(const journal_block_t *block)
{
    uint64_t taken = atomic_load(&block->taken), begun = atomic_load(&block->collective.newest);
    return taken > begun ? taken - begun : 0;
}

static const char *note_of(const journal_block_t *block, const shown_t *running)
{
    bool fits = !(atomic_load(&block->note_turn) & 1) && block->note_sequence == running->entry->sequence;
    return fits && memchr(block->note, '\0', sizeof block->note) ? block->note : "";
}

static const char *member_name(const journal_block_t *block, int rank, char *text, size_t capacity)
{
    if (rank < 0 || rank >= block->size)
        snprintf(text, capacity, "any rank");
    else
        snprintf(text, capacity, "rank %d (%.63s, pid %d)", rank, block->member[rank].host_name, block->member[rank].pid);
    return text;
}

static void operation_name(const journal_block_t *block, const journal_entry_t *entry, char *text, size_t capacity)
{
    char name[160];
    operation_description_t description = {.sequence = entry->sequence, .collective = entry->collective, .dtype = entry->dtype, .op = entry->op,
                                           .root = entry->other, .count = entry->count};
    if (entry->kind == OPERATION_COLLECTIVE) {
        operation_text(&description, text, capacity);
        return;
    }
    bool receives = entry->kind == OPERATION_RECV;
    snprintf(text, capacity, "%s %s (%s, %llu elements, tag %u)", receives ? "recv from" : "send to",
             member_name(block, entry->other, name, sizeof name), quoit_dtype_name((quoit_dtype_t)entry->dtype),
             (unsigned long long)entry->count, entry->tag);
}

static const char *algorithm_name(const journal_entry_t *entry)
{
    bool told = entry->kind == OPERATION_COLLECTIVE && entry->algorithm < ALGORITHM_COUNT;
    return told ? plan_algorithm_name((plan_algorithm_t)entry->algorithm) : "";
}

/* "12 us", "3.45 s" */
static const char *span_text(uint64_t ns, char text[32])
{
    if (ns < 10000000u)
        snprintf(text, 32, "%llu us", (unsigned long long)(ns + 500) / 1000);
    else if (ns < 10000000000u)
        snprintf(text, 32, "%llu ms", (unsigned long long)ns / 1000000);
    else
        snprintf(text, 32, "%llu.%llu s", (unsigned long long)ns / 1000000000, (unsigned long long)(ns / 100000000 % 10));
    return text;
}

static uint64_t ago(const journal_view_t *view, uint64_t ns) { return view->now > ns ? view->now - ns : 0; }

/* ------------------------------------------------------------------ text */

static void print_operation(const journal_block_t *block, const journal_view_t *view, const shown_t *shown, text_t *text)
{
    char name[320], first[32], second[32];
    operation_name(block, shown->entry, name, sizeof name);
    const char *algorithm = algorithm_name(shown->entry);
    text_append(text, "    %s%s%s: issued %s ago", name, algorithm[0] ? ", " : "", algorithm, span_text(ago(view, shown->issued), first));
    if (is_running(shown))
        text_append(text, shown->started ? ", running\n" : ", queued\n");
    else if (shown->started)
        text_append(text, ", queued %s, took %s, %s\n", span_text(shown->started - shown->issued, first),
                    span_text(shown->ended - shown->started, second), shown->status == QUOIT_OK ? "done" : quoit_status_text(shown->status));
    else
        text_append(text, ", never started, %s\n", quoit_status_text(shown->status));
}

static void print_ring(const journal_block_t *block, const journal_view_t *view, const journal_ring_t *ring, const char *what, text_t *text)
{
    uint64_t newest = atomic_load(&ring->newest);
    if (newest == 0) return;
    text_append(text, "  newest %s, of %llu:\n", what, (unsigned long long)newest);
    uint64_t oldest = oldest_of(ring);
    for (uint64_t number = oldest; number <= newest && number - oldest < JOURNAL_RING; number++) { /* whatever another process has written */
        shown_t shown;
        if (find_entry(ring, number, view, &shown)) print_operation(block, view, &shown, text);
    }
}

/* What the journal of a host mate says of this communicator, seen from a running operation. */
static void print_mate(const journal_block_t *block, const journal_view_t *view, int rank, const shown_t *running, text_t *text)
{
    const journal_member_t *member = &block->member[rank];
    char what[320];
    uint32_t sequence = 0;
    quoit_process_id_t process = {member->process_high, member->process_low};
    if (rank == block->rank || member->host != block->member[block->rank].host || !view->look_at_mates) return;
    if (!journal_read_newest(member->pid, process, atomic_load(&block->id), &sequence, what, sizeof what)) {
        text_append(text, ": its journal cannot be read (gone, or of another user or container)");
        return;
    }
    if (sequence == 0)
        text_append(text, ": has not called anything");
    else
        text_append(text, ": its newest call is %s", what);
    if (running && sequence < running->entry->sequence) text_append(text, "; HAS NOT ARRIVED at #%u", running->entry->sequence);
}

static void print_members(const journal_block_t *block, const journal_view_t *view, const shown_t *running, text_t *text)
{
    for (int rank = 0; rank < block->size; rank++) {
        char name[160];
        text_append(text, "  host %d: %s%s", block->member[rank].host, member_name(block, rank, name, sizeof name), rank == block->rank ? ", this process" : "");
        print_mate(block, view, rank, running, text);
        text_append(text, "\n");
    }
}

void journal_print_text(const journal_block_t *block, const journal_view_t *view, text_t *text)
{
    shown_t shown, *running = find_running(block, view, &shown) ? &shown : NULL;
    char name[320], span[32];
    text_append(text, "communicator %.63s: rank %d of %d on %d host%s (pid %d @ %.63s)\n", block->name, block->rank, block->size, block->hosts,
                block->hosts == 1 ? "" : "s", view->pid, view->host);
    if (atomic_load(&block->status) != QUOIT_OK) text_append(text, "  failed: %.*s\n", JOURNAL_ERROR - 1, block->error);
    print_members(block, view, running, text);
    if (running) {
        operation_name(block, running->entry, name, sizeof name);
        text_append(text, "  runs %s, issued %s ago\n", name, span_text(ago(view, running->issued), span));
        const char *note = note_of(block, running);
        if (note[0]) text_append(text, "    %s; seen %s ago\n", note, span_text(ago(view, block->note_time), span));
    } else
        text_append(text, "  no collective runs\n");
    if (queued(block)) text_append(text, "  %llu more collectives are queued\n", (unsigned long long)queued(block));
    uint64_t open = atomic_load(&block->message.newest) - atomic_load(&block->message.ended);
    if (open) text_append(text, "  %llu sends and recvs are under way\n", (unsigned long long)open);
    print_ring(block, view, &block->collective, "collectives", text);
    print_ring(block, view, &block->message, "sends and recvs", text);
}

/* ------------------------------------------------------------------ JSON */

/* Unix time in seconds, or null. */
static void json_time(text_t *text, const char *key, const journal_view_t *view, uint64_t ns)
{
    uint64_t real = ns + (uint64_t)view->to_real;
    if (ns == 0)
        text_append(text, ", \"%s\": null", key);
    else
        text_append(text, ", \"%s\": %llu.%09llu", key, (unsigned long long)real / 1000000000, (unsigned long long)real % 1000000000);
}

static void json_operation(const journal_view_t *view, const shown_t *shown, text_t *text)
{
    const journal_entry_t *entry = shown->entry;
    bool collective = entry->kind == OPERATION_COLLECTIVE;
    const char *name = entry->kind == OPERATION_SEND ? "send" : entry->kind == OPERATION_RECV ? "recv"
                       : entry->collective < COLLECTIVE_COUNT ? plan_collective_name((plan_collective_t)entry->collective) : "?";
    text_append(text, "{\"operation\": \"%s\"", name);
    if (collective) text_append(text, ", \"sequence\": %u", entry->sequence);
    if (entry->count == UINT64_MAX)
        text_append(text, ", \"count\": null");
    else
        text_append(text, ", \"count\": %llu", (unsigned long long)entry->count);
    text_append(text, ", \"dtype\": \"%s\"", quoit_dtype_name((quoit_dtype_t)entry->dtype));
    if (collective && entry->op < QUOIT_OP_COUNT) text_append(text, ", \"op\": \"%s\"", quoit_op_name((quoit_op_t)entry->op));
    if (entry->other >= 0) text_append(text, ", \"%s\": %d", collective ? "root" : "peer", entry->other);
    if (!collective) text_append(text, ", \"tag\": %u", entry->tag);
    if (collective) text_append(text, ", \"algorithm\": \"%s\"", algorithm_name(entry));
    json_time(text, "issued", view, shown->issued);
    json_time(text, "started", view, shown->started);
    json_time(text, "ended", view, shown->ended);
    text_append(text, ", \"status\": ");
    text_append_json(text, is_running(shown) ? "running" : shown->status == QUOIT_OK ? "done" : quoit_status_text(shown->status));
    text_append(text, "}");
}

static bool json_ring(const journal_view_t *view, const journal_ring_t *ring, bool first, text_t *text)
{
    uint64_t newest = atomic_load(&ring->newest);
    uint64_t oldest = oldest_of(ring);
    for (uint64_t number = oldest; number <= newest && number - oldest < JOURNAL_RING; number++) { /* whatever another process has written */
        shown_t shown;
        if (!find_entry(ring, number, view, &shown)) continue;
        if (!first) text_append(text, ", ");
        json_operation(view, &shown, text);
        first = false;
    }
    return first;
}

static void json_members(const journal_block_t *block, const journal_view_t *view, text_t *text)
{
    int own_host = block->member[block->rank].host;
    for (int rank = 0; rank < block->size; rank++) {
        const journal_member_t *member = &block->member[rank];
        char host[JOURNAL_NAME], what[320];
        snprintf(host, sizeof host, "%s", member->host_name);
        text_append(text, "%s{\"rank\": %d, \"host\": %d, \"hostname\": ", rank ? ", " : "", rank, member->host);
        text_append_json(text, host);
        text_append(text, ", \"pid\": %d", member->pid);
        uint32_t sequence = 0;
        quoit_process_id_t process = {member->process_high, member->process_low};
        if (view->look_at_mates && rank != block->rank && member->host == own_host &&
            journal_read_newest(member->pid, process, atomic_load(&block->id), &sequence, what, sizeof what))
            text_append(text, ", \"sequence\": %u", sequence);
        text_append(text, "}");
    }
}

void journal_print_json(const journal_block_t *block, const journal_view_t *view, text_t *text)
{
    shown_t shown, *running = find_running(block, view, &shown) ? &shown : NULL;
    int status = atomic_load(&block->status);
    text_append(text, "{\"communicator\": ");
    text_append_json(text, block->name);
    text_append(text, ", \"rank\": %d, \"size\": %d, \"hosts\": %d, \"pid\": %d, \"hostname\": ", block->rank, block->size, block->hosts, view->pid);
    text_append_json(text, view->host);
    text_append(text, ", \"status\": ");
    text_append_json(text, status == QUOIT_OK ? "ok" : quoit_status_text(status));
    text_append(text, ", \"error\": ");
    text_append_json(text, status == QUOIT_OK ? "" : block->error);
    text_append(text, ", \"queued\": %llu, \"running\": ", (unsigned long long)queued(block));
    if (running)
        json_operation(view, running, text);
    else
        text_append(text, "null");
    text_append(text, ", \"waiting\": ");
    text_append_json(text, running ? note_of(block, running) : "");
    text_append(text, ", \"members\": [");
    json_members(block, view, text);
    text_append(text, "], \"operations\": [");
    json_ring(view, &block->message, json_ring(view, &block->collective, true, text), text);
    text_append(text, "]}");
}
