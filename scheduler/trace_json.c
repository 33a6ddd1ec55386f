/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trace: a partial file as JSON of the Trace Event Format, which Perfetto and chrome://tracing read. A rank is a process; each
 * communicator has one track for its operations and one for each chunk in flight; operations that wait in the queue, and messages,
 * overlap and are asynchronous events. Times are microseconds of CLOCK_MONOTONIC; "otherData" says how to join those of other ranks.
 */
#include "base/text.h"
#include "scheduler/comm.h"
#include "scheduler/execute.h"
#include "scheduler/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { TRACKS = EXECUTE_MAX_DEPTH + 1 }; /* of a communicator: operations, and each chunk in flight */

/* A partial file in memory. */
typedef struct input {
    trace_header_t *header; /* owned */
    trace_event_t *ring;
    uint64_t first, written; /* events [first, written) are there */
    uint32_t comms;
    uint64_t newest;         /* time of the newest event */
} input_t;

typedef struct output {
    FILE *file;
    bool any;
} output_t;

/* ------------------------------------------------------------------ reading */

static bool fits(const trace_header_t *header, size_t bytes)
{
    return bytes >= sizeof *header && header->magic == TRACE_MAGIC && header->version == TRACE_VERSION &&
           header->event_size == sizeof(trace_event_t) && header->capacity > 0 &&
           header->capacity <= (bytes - sizeof *header) / sizeof(trace_event_t) && atomic_load(&header->comms) <= TRACE_COMMS;
}

/* All of an open file. */
static quoit_status_t read_file(int fd, const char *path, char **data, size_t *bytes)
{
    struct stat found;
    if (fstat(fd, &found) != 0 || !S_ISREG(found.st_mode)) return error_set(QUOIT_ERR_INVALID, "trace: %s is no file", path);
    char *memory = malloc((size_t)found.st_size + 1);
    if (!memory) return error_set(QUOIT_ERR_NO_MEMORY, "trace: %lld bytes of %s", (long long)found.st_size, path);
    size_t done = 0;
    for (ssize_t got; done < (size_t)found.st_size && (got = pread(fd, memory + done, (size_t)found.st_size - done, (off_t)done)) > 0;) done += (size_t)got;
    *data = memory;
    *bytes = done;
    return QUOIT_OK;
}

static quoit_status_t read_input(int fd, const char *path, input_t *input)
{
    char *data = NULL;
    size_t bytes = 0;
    quoit_status_t status = read_file(fd, path, &data, &bytes);
    if (status != QUOIT_OK) return status;
    trace_header_t *header = (trace_header_t *)(void *)data;
    if (!fits(header, bytes)) {
        free(data);
        return error_set(QUOIT_ERR_INVALID, "trace: %s is no partial trace of this version of Quoit", path);
    }
    header->host[TRACE_NAME - 1] = header->boot[sizeof header->boot - 1] = '\0';
    for (int i = 0; i < TRACE_COMMS; i++) header->comm[i].name[TRACE_NAME - 1] = '\0';
    *input = (input_t){.header = header, .ring = (trace_event_t *)(void *)(data + sizeof *header), .comms = atomic_load(&header->comms)};
    input->written = atomic_load(&header->written);
    input->first = input->written > header->capacity ? input->written - header->capacity : 0;
    if (input->first && !header->ended) input->first++; /* it was being overwritten when the process was killed */
    input->newest = header->began;
    for (uint64_t i = input->first; i < input->written; i++) {
        const trace_event_t *event = &input->ring[i % header->capacity];
        uint64_t at = event->end ? event->end : event->begin;
        if (at > input->newest) input->newest = at;
    }
    return QUOIT_OK;
}

/* ------------------------------------------------------------------ writing */

static void put_string(output_t *out, const char *string)
{
    text_t text = {0};
    text_append_json(&text, string);
    fputs(text.failed || !text.data ? "\"\"" : text.data, out->file);
    free(text.data);
}

static void put_time(output_t *out, const char *key, uint64_t ns)
{
    fprintf(out->file, ", \"%s\": %llu.%03llu", key, (unsigned long long)ns / 1000, (unsigned long long)ns % 1000);
}

static uint64_t track(const trace_event_t *event, int which) { return (uint64_t)event->comm * TRACKS + 1 + (uint64_t)which; }

static void open_event(output_t *out, const char *phase, int rank, uint64_t thread, const char *name)
{
    fprintf(out->file, "%s{\"ph\": \"%s\", \"pid\": %d, \"tid\": %llu, \"name\": ", out->any ? ",\n" : "", phase, rank, (unsigned long long)thread);
    out->any = true;
    put_string(out, name);
}

static void put_metadata(output_t *out, const char *what, int rank, uint64_t thread, const char *name)
{
    open_event(out, "M", rank, thread, what);
    fputs(", \"args\": {\"name\": ", out->file);
    put_string(out, name);
    fputs("}}", out->file);
}

static void put_names(output_t *out, const input_t *input, const bool *used)
{
    char name[160];
    const trace_header_t *header = input->header;
    snprintf(name, sizeof name, "rank %d (%s, pid %d)", header->rank, header->host, header->pid);
    put_metadata(out, "process_name", header->rank, 0, name);
    for (uint32_t comm = 0; comm < input->comms; comm++) {
        for (int i = 0; i < TRACKS; i++) {
            uint64_t thread = (uint64_t)comm * TRACKS + 1 + (uint64_t)i;
            if (i > 0 && !used[thread]) continue;
            if (i == 0)
                snprintf(name, sizeof name, "%s", header->comm[comm].name);
            else
                snprintf(name, sizeof name, "%s: chunks, lane %d", header->comm[comm].name, i - 1);
            put_metadata(out, "thread_name", header->rank, thread, name);
        }
    }
}

static void put_arguments(output_t *out, const input_t *input, const trace_event_t *event, bool unfinished)
{
    bool collective = event->kind == OPERATION_COLLECTIVE;
    fputs(", \"args\": {\"communicator\": ", out->file);
    put_string(out, input->header->comm[event->comm].name);
    fprintf(out->file, ", \"id\": \"%016llx\"", (unsigned long long)input->header->comm[event->comm].id);
    if (collective) fprintf(out->file, ", \"sequence\": %u", event->sequence);
    if (event->count != UINT64_MAX) fprintf(out->file, ", \"count\": %llu", (unsigned long long)event->count);
    fprintf(out->file, ", \"dtype\": \"%s\"", quoit_dtype_name((quoit_dtype_t)event->dtype));
    if (collective && event->op < QUOIT_OP_COUNT) fprintf(out->file, ", \"op\": \"%s\"", quoit_op_name((quoit_op_t)event->op));
    if (event->other >= 0) fprintf(out->file, ", \"%s\": %d", collective ? "root" : "peer", event->other);
    if (!collective) fprintf(out->file, ", \"tag\": %u", event->chunk);
    if (collective && event->algorithm < ALGORITHM_COUNT)
        fprintf(out->file, ", \"algorithm\": \"%s\"", plan_algorithm_name((plan_algorithm_t)event->algorithm));
    fputs(", \"status\": ", out->file);
    put_string(out, unfinished ? "unfinished" : event->status == QUOIT_OK ? "done" : quoit_status_text((quoit_status_t)event->status));
    fputs("}}", out->file);
}

/* Something that overlaps others of its kind: begin and end are two events, joined by an id. */
static void put_overlapping(output_t *out, const input_t *input, const trace_event_t *event, const char *name, const char *category, uint64_t begin,
                            uint64_t end, bool unfinished)
{
    for (int i = 0; i < 2; i++) {
        open_event(out, i ? "e" : "b", input->header->rank, track(event, 0), name);
        fprintf(out->file, ", \"cat\": \"%s\", \"id\": \"%s %d %u %u\"", category, category, input->header->rank, event->comm, event->sequence);
        put_time(out, "ts", i ? end : begin);
        if (i)
            fputs("}", out->file);
        else
            put_arguments(out, input, event, unfinished);
    }
}

static void put_slice(output_t *out, const input_t *input, int which, const trace_event_t *event, const char *name, const char *category, uint64_t end)
{
    open_event(out, "X", input->header->rank, track(event, which), name);
    fprintf(out->file, ", \"cat\": \"%s\"", category);
    put_time(out, "ts", event->begin);
    put_time(out, "dur", end > event->begin ? end - event->begin : 0);
}

static void put_operation(output_t *out, const input_t *input, const trace_event_t *event, bool unfinished)
{
    uint64_t end = unfinished ? input->newest : event->end;
    if (event->kind != OPERATION_COLLECTIVE) {
        put_overlapping(out, input, event, event->kind == OPERATION_RECV ? "recv" : "send", "message", event->issued, end, unfinished);
        return;
    }
    const char *name = event->collective < COLLECTIVE_COUNT ? plan_collective_name((plan_collective_t)event->collective) : "?";
    if (event->begin > event->issued) put_overlapping(out, input, event, "queued", "queue", event->issued, event->begin, unfinished);
    put_slice(out, input, 0, event, name, "collective", end);
    put_arguments(out, input, event, unfinished);
}

static const char *category_of(const trace_event_t *event)
{
    switch (event->verb) {
    case VERB_SEND:
    case VERB_RECV:
    case VERB_WAIT: return event->type == TRACE_ARRIVAL ? "network,start-up" : "network";
    case VERB_COPY:
    case VERB_REDUCE:
    case VERB_REDUCE_WINDOW:
    case VERB_ENCODE:
    case VERB_DECODE:
    case VERB_SUM_WINDOW: return "work";
    default: return event->type == TRACE_ARRIVAL ? "host,start-up" : "host";
    }
}

static void put_step(output_t *out, const input_t *input, const trace_event_t *event)
{
    const char *verb = event->verb < VERB_COUNT ? plan_verb_name((plan_verb_t)event->verb) : "?";
    put_slice(out, input, 1 + event->lane, event, event->type == TRACE_ARRIVAL ? "start-up wait" : verb, category_of(event), event->end);
    fprintf(out->file, ", \"args\": {\"verb\": \"%s\", \"sequence\": %u, \"chunk\": %u", verb, event->sequence, event->chunk);
    if (event->other >= 0 && event->verb != VERB_COPY && event->verb != VERB_REDUCE && event->verb != VERB_REDUCE_WINDOW)
        fprintf(out->file, ", \"peer\": %d", event->other);
    fputs("}}", out->file);
}

/* Whether an operation that began has ended, too: looked for among what follows. */
static bool has_end(const input_t *input, uint64_t from, const trace_event_t *begun)
{
    for (uint64_t i = from; i < input->written; i++) {
        const trace_event_t *event = &input->ring[i % input->header->capacity];
        bool same = event->comm == begun->comm && event->sequence == begun->sequence && event->kind == begun->kind;
        if (event->type == TRACE_ENDED && same) return true;
    }
    return false;
}

/* An operation that had begun and not ended is found by this: few can be open at the end, and only the last ones are looked at. */
enum { OPEN_LOOK = 100000 };

static void put_events(output_t *out, const input_t *input, bool *used)
{
    uint64_t look = input->written > OPEN_LOOK ? input->written - OPEN_LOOK : 0;
    for (uint64_t i = input->first; i < input->written; i++) {
        const trace_event_t *event = &input->ring[i % input->header->capacity];
        if (event->comm >= input->comms || event->lane >= TRACKS - 1) continue;
        if (event->type == TRACE_ENDED) put_operation(out, input, event, false);
        if (event->type == TRACE_BEGUN && i >= look && !has_end(input, i + 1, event)) put_operation(out, input, event, true);
        if (event->type == TRACE_STEP || event->type == TRACE_ARRIVAL) {
            put_step(out, input, event);
            used[track(event, 1 + event->lane)] = true;
        }
    }
}

static void put_other(output_t *out, const input_t *input)
{
    const trace_header_t *header = input->header;
    fprintf(out->file, "],\n\"displayTimeUnit\": \"ns\",\n\"otherData\": {\"quoit\": \"%s\", \"rank\": %d, \"pid\": %d, \"host\": ", quoit_version(),
            header->rank, header->pid);
    put_string(out, header->host);
    fputs(", \"boot\": ", out->file);
    put_string(out, header->boot);
    fprintf(out->file, ", \"to_real_ns\": %lld, \"overwritten\": %llu, \"complete\": %s}}\n", (long long)header->to_real,
            (unsigned long long)input->first, header->ended ? "true" : "false");
}

quoit_status_t trace_convert_open(int partial_fd, const char *partial, const char *path)
{
    input_t input;
    quoit_status_t status = read_input(partial_fd, partial, &input);
    if (status != QUOIT_OK) return status;
    bool *used = calloc((size_t)TRACE_COMMS * TRACKS + 1, sizeof *used);
    int fd = used ? open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW, 0600) : -1;
    output_t out = {.file = fd >= 0 ? fdopen(fd, "w") : NULL};
    if (!out.file) {
        status = error_set_errno(QUOIT_ERR_SYSTEM, errno, "trace: %s; what was recorded is in %s", path, partial);
        if (fd >= 0) close(fd);
        goto free_input;
    }
    fputs("{\"traceEvents\": [\n", out.file);
    put_events(&out, &input, used);
    put_names(&out, &input, used);
    put_other(&out, &input);
    bool failed = ferror(out.file);
    if (fclose(out.file) != 0 || failed) status = error_set_errno(QUOIT_ERR_SYSTEM, errno, "trace: writing %s; what was recorded is in %s", path, partial);
free_input:
    free(used);
    free(input.header);
    return status;
}

quoit_status_t trace_convert(const char *partial, const char *path)
{
    int fd = open(partial, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a pipe nobody writes is no file, and not waited for */
    if (fd < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "trace: %s", partial);
    quoit_status_t status = trace_convert_open(fd, partial, path);
    close(fd);
    return status;
}
