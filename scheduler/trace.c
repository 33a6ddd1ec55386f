/* SPDX-License-Identifier: Apache-2.0 */
/* Trace: the mapped ring, and what is recorded. See trace.h; the JSON is written by trace_json.c. */
#include "scheduler/trace.h"

#include "base/forked.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/settings.h"
#include "scheduler/comm.h"
#include "scheduler/engine_internal.h"
#include "scheduler/trace_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct trace {
    int fd;                 /* of the partial file, which another process may have replaced by its own */
    trace_header_t *header; /* mapped */
    trace_event_t *ring;
    size_t bytes;
    uint32_t turn;          /* number of this trace in the process: communicators remember their place with it */
    char path[PATH_MAX], partial[PATH_MAX];
};

static _Atomic uint32_t turns;

/* ------------------------------------------------------------------ the file */

static void read_boot_id(char boot[40])
{
    snprintf(boot, 40, "unknown");
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (!file) return;
    if (fgets(boot, 40, file)) boot[strcspn(boot, "\n")] = '\0';
    fclose(file);
}

static void write_header(trace_header_t *header, int rank, uint64_t capacity)
{
    struct timespec real;
    header->version = TRACE_VERSION;
    header->event_size = sizeof(trace_event_t);
    header->capacity = capacity;
    header->rank = rank;
    header->pid = (int32_t)getpid();
    snprintf(header->host, sizeof header->host, "%s", log_host());
    read_boot_id(header->boot);
    header->began = clock_now();
    clock_gettime(CLOCK_REALTIME, &real);
    header->to_real = (int64_t)((uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec - header->began);
    header->magic = TRACE_MAGIC;
}

/*
 * A new file: one that is there, of an earlier process or of one that lives and has it mapped, is taken out of the way and not cut off, which
 * would end that process by SIGBUS. -1 with errno.
 */
static int create_file(const char *path)
{
    int fd = -1;
    for (int tries = 0; fd < 0 && tries < 8; tries++) {
        if (unlink(path) != 0 && errno != ENOENT) return -1;
        fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0600);
        if (fd < 0 && errno != EEXIST) return -1;
    }
    return fd;
}

/* Unless another process has put its own there since. */
static void remove_file(int fd, const char *path)
{
    struct stat own, there;
    if (fstat(fd, &own) == 0 && lstat(path, &there) == 0 && own.st_dev == there.st_dev && own.st_ino == there.st_ino) unlink(path);
}

quoit_status_t trace_create(const char *pattern, int rank, trace_t **result)
{
    trace_t *trace = calloc(1, sizeof *trace);
    if (!trace) return error_set(QUOIT_ERR_NO_MEMORY, "trace: %zu bytes", sizeof *trace);
    quoit_status_t status = QUOIT_OK;
    int printed = -1, fd = -1;
    if (log_rank_path(pattern, rank, "quoit-trace.%r.json", trace->path))
        printed = snprintf(trace->partial, sizeof trace->partial, "%s.partial", trace->path);
    if (printed < 0 || (size_t)printed >= sizeof trace->partial) {
        status = error_set(QUOIT_ERR_INVALID, "trace: \"%s\" is no path, or too long a one", pattern);
        goto free_trace;
    }
    trace->bytes = sizeof(trace_header_t) + (size_t)setting_int(SETTING_TRACE_SIZE);
    fd = create_file(trace->partial);
    if (fd < 0) {
        status = error_set_errno(QUOIT_ERR_SYSTEM, errno, "trace: %s", trace->partial);
        goto free_trace;
    }
    int refused = limits_file_size(trace->bytes) ? posix_fallocate(fd, 0, (off_t)trace->bytes) : EFBIG; /* a full disk is told now, not by SIGBUS later */
    void *memory = refused ? MAP_FAILED : mmap(NULL, trace->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        status = error_set_errno(QUOIT_ERR_SYSTEM, refused ? refused : errno, "trace: %zu bytes for %s (QUOIT_TRACE_SIZE)", trace->bytes, trace->partial);
        remove_file(fd, trace->partial);
        goto close_file;
    }
    trace->fd = fd;
    trace->header = memory;
    trace->ring = (trace_event_t *)(void *)((char *)memory + sizeof(trace_header_t));
    trace->turn = atomic_fetch_add(&turns, 1) + 1;
    write_header(trace->header, rank, (trace->bytes - sizeof(trace_header_t)) / sizeof(trace_event_t));
    *result = trace;
    return QUOIT_OK;

close_file:
    close(fd);
free_trace:
    free(trace);
    return status;
}

quoit_status_t trace_finish(trace_t *trace)
{
    if (!trace) return QUOIT_OK;
    trace->header->ended = clock_now();
    munmap(trace->header, trace->bytes);
    quoit_status_t status = trace_convert_open(trace->fd, trace->partial, trace->path);
    if (status == QUOIT_OK) {
        remove_file(trace->fd, trace->partial);
        log_info("trace", "the timeline is in %s", trace->path);
    }
    close(trace->fd);
    free(trace);
    return status;
}

/* ------------------------------------------------------------------ asked for */

/* Guards the two below. A call's wish waits here while there is no engine that could fulfil it. */
static forked_lock_t wish_lock = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static char *wish;     /* owned */
static unsigned taken; /* traces begun for the setting: a process that makes its world anew writes another file */

static trace_t *begin(const char *pattern, int rank)
{
    trace_t *trace = NULL;
    if (trace_create(pattern, rank, &trace) != QUOIT_OK) log_warn("trace", "no timeline: %s", error_text());
    return trace;
}

void trace_begin_wanted(engine_t *engine, int rank)
{
    engine->rank = rank;
    forked_lock(&wish_lock);
    const char *setting = setting_string(SETTING_TRACE);
    char numbered[PATH_MAX];
    if (!engine->trace && wish) {
        engine->trace = begin(wish, rank);
        free(wish);
        wish = NULL;
    } else if (!engine->trace && *setting && !engine->trace_taken) {
        engine->trace_taken = true;
        bool json = strlen(setting) >= 5 && strcmp(setting + strlen(setting) - 5, ".json") == 0;
        int stem = (int)strlen(setting) - (json ? 5 : 0);
        if (taken++ == 0)
            snprintf(numbered, sizeof numbered, "%s", setting);
        else
            snprintf(numbered, sizeof numbered, "%.*s-%u%s", stem, setting, taken, setting + stem);
        engine->trace = begin(numbered, rank);
    }
    forked_unlock(&wish_lock);
}

quoit_status_t quoit_trace_start(const char *path)
{
    if (!path || !*path) return error_set(QUOIT_ERR_INVALID, "quoit_trace_start: the path is NULL or empty");
    quoit_status_t status = settings_load();
    if (status != QUOIT_OK) return status;
    engine_t *engine = engine_current();
    forked_lock(&wish_lock);
    bool asked = wish != NULL, ready = engine && engine->rank >= 0;
    if (!asked && !ready) {
        wish = strdup(path);
        if (!wish) status = error_set(QUOIT_ERR_NO_MEMORY, "quoit_trace_start: a path");
    }
    forked_unlock(&wish_lock);
    if (asked) status = error_set(QUOIT_ERR_INVALID, "quoit_trace_start: a trace was asked for before; quoit_trace_stop ends it");
    if (!asked && ready) {
        trace_t *trace = NULL;
        engine_enter(engine);
        if (engine->trace)
            status = error_set(QUOIT_ERR_INVALID, "quoit_trace_start: a trace runs already; quoit_trace_stop ends it");
        else
            status = trace_create(path, engine->rank, &trace);
        if (trace) engine->trace = trace;
        engine_leave(engine);
    }
    if (engine) engine_release(engine);
    return status;
}

quoit_status_t quoit_trace_stop(void)
{
    forked_lock(&wish_lock);
    free(wish);
    wish = NULL;
    forked_unlock(&wish_lock);
    engine_t *engine = engine_current();
    if (!engine) return QUOIT_OK;
    engine_enter(engine);
    trace_t *trace = engine->trace;
    engine->trace = NULL;
    engine_leave(engine);
    quoit_status_t status = trace_finish(trace); /* nobody drives meanwhile in vain: the file is written outside the engine */
    engine_release(engine);
    return status;
}

quoit_status_t quoit_trace_convert(const char *partial, const char *path)
{
    if (!partial || !path) return error_set(QUOIT_ERR_INVALID, "quoit_trace_convert: a path is NULL");
    return trace_convert(partial, path);
}

/* ------------------------------------------------------------------ recording */

static uint16_t place_of(trace_t *trace, quoit_comm_t *comm)
{
    if (comm->trace_turn == trace->turn) return comm->trace_place;
    trace_header_t *header = trace->header;
    uint32_t place = atomic_load_explicit(&header->comms, memory_order_relaxed);
    if (place == TRACE_COMMS) place--;
    trace_comm_t *entry = &header->comm[place];
    snprintf(entry->name, sizeof entry->name, "%s", place == TRACE_COMMS - 1 ? "other communicators" : comm->name);
    entry->rank = comm->rank;
    entry->size = comm->size;
    entry->id = comm->id;
    atomic_store_explicit(&header->comms, place + 1, memory_order_release);
    comm->trace_turn = trace->turn;
    comm->trace_place = (uint16_t)place;
    return comm->trace_place;
}

/* The event is counted when it is whole. */
static void store(trace_t *trace, const trace_event_t *event)
{
    uint64_t number = atomic_load_explicit(&trace->header->written, memory_order_relaxed);
    trace->ring[number % trace->header->capacity] = *event;
    atomic_store_explicit(&trace->header->written, number + 1, memory_order_release);
}

static void describe(trace_t *trace, quoit_comm_t *comm, operation_t *operation, trace_event_t *event)
{
    bool collective = operation->kind == OPERATION_COLLECTIVE;
    const operation_description_t *description = &operation->description;
    (void)operation_deadline(operation);
    event->issued = operation_issued(operation);
    event->count = collective ? description->count : operation->bytes / operation->width;
    event->sequence = collective ? description->sequence : (uint32_t)operation->journal_number;
    event->chunk = operation->tag;
    event->other = collective ? description->root : operation->kind == OPERATION_RECV && operation->peer < 0 ? operation->source : operation->peer;
    event->comm = place_of(trace, comm);
    event->kind = (uint8_t)operation->kind;
    event->collective = description->collective;
    event->dtype = description->dtype;
    event->op = description->op;
    event->algorithm = (uint8_t)operation->algorithm;
}

void trace_begun(trace_t *trace, quoit_comm_t *comm, operation_t *operation)
{
    (void)operation_deadline(operation); /* tells when it was issued, which is not after its begin */
    trace_event_t event = {.type = TRACE_BEGUN, .begin = clock_now()};
    describe(trace, comm, operation, &event);
    operation->trace_begun = event.begin;
    store(trace, &event);
}

void trace_ended(trace_t *trace, operation_t *operation, int status)
{
    trace_event_t event = {.type = TRACE_ENDED, .end = clock_now(), .status = status};
    describe(trace, operation->comm, operation, &event);
    event.begin = operation->trace_begun ? operation->trace_begun : event.issued;
    store(trace, &event);
}

uint64_t trace_step(trace_t *trace, quoit_comm_t *comm, const plan_step_t *step, size_t chunk, uint64_t since)
{
    const execution_t *execution = &comm->execution;
    uint32_t sequence = execution->operation->description.sequence;
    bool waits = step->verb == VERB_AWAIT || step->verb == VERB_WAIT;
    trace_event_t event = {.type = TRACE_STEP, .begin = since, .end = clock_now()};
    if (waits && chunk == 0 && comm->trace_arrived != sequence) { /* until here the others may not even have called */
        comm->trace_arrived = sequence;
        event.type = TRACE_ARRIVAL;
    }
    event.sequence = sequence;
    event.chunk = (uint32_t)chunk;
    event.lane = (uint8_t)execution_place_of(execution, chunk);
    event.other = step->peer;
    event.comm = place_of(trace, comm);
    event.collective = execution->operation->description.collective;
    event.verb = step->verb;
    store(trace, &event);
    return event.end;
}
