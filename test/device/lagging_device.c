/* SPDX-License-Identifier: Apache-2.0 */
/** Streams and events of the lagging device. One lock guards everything but the bytes; one condition is told of every change. */
#include "test/device/lagging_device.h"
#include "test/device/lagging_memory.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/list.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_CAPACITY = 200, WAIT_LIMIT_MS = 30000, ENDING_LIMIT_MS = 5000, POLL_US = 20 };

/** Status and text of the first failure; QUOIT_OK while there is none. */
typedef struct failure {
    quoit_status_t status;
    char text[TEXT_CAPACITY];
} failure_t;

struct device_event {
    int references;           /* the owner and each queued command */
    uint64_t recorded, done;  /* numbers of the newest record queued and the newest carried out */
    failure_t failure;        /* of the stream at the record carried out */
};

typedef struct stream {
    list_t link, queue;
    pthread_t thread;
    bool ending;
    uint64_t random;
    failure_t failure;
} stream_t;

typedef enum kind { COPY, RECORD, WAIT_EVENT, WAIT_HOST, NOTIFY } kind_t;

typedef struct command {
    list_t link;
    kind_t kind;
    bool fail;
    void *destination;
    const void *source; /* copy */
    size_t bytes;
    device_direction_t direction;
    device_event_t *event;     /* record, wait */
    const uint64_t *word;      /* wait for the host */
    uint64_t number;           /* of the record; or the word's value */
    void (*function)(void *argument);
    void *argument;
} command_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static list_t streams = {&streams, &streams};
static stream_t *default_stream;
static unsigned lag_minimum_us = 0, lag_maximum_us = 2000;
static uint64_t seed = 1, streams_created;
static bool fail_next_copy, holds_copies;
static lagging_counters_t counters;

static void failure_set(failure_t *failure, quoit_status_t status, const char *text)
{
    if (failure->status != QUOIT_OK) return;
    failure->status = status;
    snprintf(failure->text, sizeof failure->text, "%s", text);
}

/* ---------------------------------------------------------------- carrying out */

static void event_release(device_event_t *event)
{
    if (--event->references == 0) free(event);
}

/** True when all device memory of the copy is allocated; else the calling thread's error text says what is not. */
static bool is_backed(const command_t *copy)
{
    return (copy->direction == HOST_TO_DEVICE || lagging_memory_check(copy->source, copy->bytes) == QUOIT_OK) &&
           (copy->direction == DEVICE_TO_HOST || lagging_memory_check(copy->destination, copy->bytes) == QUOIT_OK);
}

static bool run_copy(const command_t *command)
{
    if (command->direction == HOST_TO_DEVICE) return lagging_memory_write(command->destination, command->source, command->bytes);
    if (command->direction == DEVICE_TO_HOST) return lagging_memory_read(command->destination, command->source, command->bytes);
    void *bounce = malloc(command->bytes + 1);
    bool done = bounce && lagging_memory_read(bounce, command->source, command->bytes) && lagging_memory_write(command->destination, bounce, command->bytes);
    free(bounce);
    return done;
}

/** Called and left with the lock held, which is open while bytes move. */
static void work_copy(stream_t *stream, command_t *command)
{
    char text[TEXT_CAPACITY];
    while (holds_copies) pthread_cond_wait(&changed, &lock);
    if (stream->failure.status != QUOIT_OK) return;
    if (command->fail) {
        snprintf(text, sizeof text, "lagging: copy of %zu bytes failed, as the test asked", command->bytes);
    } else if (!is_backed(command)) {
        snprintf(text, sizeof text, "lagging: copy of %zu bytes: memory was freed while the work was queued", command->bytes);
    } else {
        pthread_mutex_unlock(&lock);
        bool done = run_copy(command);
        int number = errno;
        pthread_mutex_lock(&lock);
        if (done) return;
        snprintf(text, sizeof text, "lagging: copy of %zu bytes: errno %d", command->bytes, number);
    }
    failure_set(&stream->failure, QUOIT_ERR_SYSTEM, text);
}

/** Polls with the lock open, so that only this stream stands still. */
static void run_wait_host(stream_t *stream, const command_t *command)
{
    uint64_t deadline = CLOCK_NEVER;
    while (__atomic_load_n(command->word, __ATOMIC_ACQUIRE) < command->number) {
        if (stream->ending && deadline == CLOCK_NEVER) deadline = clock_deadline(ENDING_LIMIT_MS);
        if (clock_now() >= deadline) {
            failure_set(&stream->failure, QUOIT_ERR_TIMEOUT, "lagging: the stream was destroyed while it waited for a word of the host");
            return;
        }
        pthread_mutex_unlock(&lock);
        usleep(POLL_US);
        pthread_mutex_lock(&lock);
    }
}

/** With the lock held; it is opened where the command takes time. */
static void run_command(stream_t *stream, command_t *command)
{
    device_event_t *event = command->event;
    switch (command->kind) {
    case COPY: work_copy(stream, command); break;
    case RECORD:
        if (command->number > event->done) {
            event->done = command->number;
            event->failure = stream->failure;
        }
        break;
    case WAIT_EVENT:
        while (event->done < command->number) pthread_cond_wait(&changed, &lock);
        if (event->failure.status != QUOIT_OK) failure_set(&stream->failure, event->failure.status, event->failure.text);
        break;
    case WAIT_HOST: run_wait_host(stream, command); break;
    case NOTIFY:
        pthread_mutex_unlock(&lock);
        command->function(command->argument);
        pthread_mutex_lock(&lock);
        break;
    }
    if (event) event_release(event);
}

static void *stream_main(void *argument)
{
    stream_t *stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (list_is_empty(&stream->queue) && !stream->ending) pthread_cond_wait(&changed, &lock);
        list_t *node = list_pop(&stream->queue);
        if (!node) break;
        unsigned lag = lag_minimum_us;
        stream->random = hash_mix(stream->random);
        if (lag_maximum_us > lag) lag += (unsigned)(stream->random % (lag_maximum_us - lag + 1));
        if (lag > 0) {
            pthread_mutex_unlock(&lock);
            usleep(lag);
            pthread_mutex_lock(&lock);
        }
        command_t *command = container_of(node, command_t, link);
        run_command(stream, command);
        free(command);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

/* ---------------------------------------------------------------- queueing */

/** With the lock held. */
static quoit_status_t stream_open(stream_t **stream)
{
    stream_t *created = calloc(1, sizeof *created);
    if (!created) return error_set(QUOIT_ERR_NO_MEMORY, "lagging: no memory for a stream");
    list_init(&created->queue);
    created->random = hash_combine(seed, streams_created++);
    int number = pthread_create(&created->thread, NULL, stream_main, created);
    if (number != 0) {
        free(created);
        return error_set_errno(QUOIT_ERR_SYSTEM, number, "lagging: thread of a stream");
    }
    list_append(&streams, &created->link);
    *stream = created;
    return QUOIT_OK;
}

static quoit_status_t lagging_stream_create(void **stream)
{
    stream_t *created;
    pthread_mutex_lock(&lock);
    quoit_status_t status = stream_open(&created);
    pthread_mutex_unlock(&lock);
    if (status == QUOIT_OK) *stream = created;
    return status;
}

static void lagging_stream_destroy(void *stream_)
{
    stream_t *stream = stream_;
    if (!stream) return;
    pthread_mutex_lock(&lock);
    stream->ending = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    pthread_mutex_lock(&lock);
    list_remove(&stream->link);
    pthread_mutex_unlock(&lock);
    free(stream);
}

/** Takes the command, also when it fails; with the lock held. */
static quoit_status_t enqueue(void *stream_, command_t *command)
{
    stream_t *stream = stream_ ? stream_ : default_stream;
    if (!stream) {
        quoit_status_t status = stream_open(&default_stream);
        if (status != QUOIT_OK) {
            free(command);
            return status;
        }
        stream = default_stream;
    }
    if (command->event) command->event->references++;
    list_append(&stream->queue, &command->link);
    pthread_cond_broadcast(&changed);
    return QUOIT_OK;
}

static command_t *command_create(kind_t kind)
{
    command_t *command = calloc(1, sizeof *command);
    if (!command) error_set(QUOIT_ERR_NO_MEMORY, "lagging: no memory for a command");
    else command->kind = kind;
    return command;
}

static quoit_status_t enqueue_copy(void *stream, command_t *command)
{
    pthread_mutex_lock(&lock);
    if (command->bytes > 0 && !is_backed(command)) {
        free(command);
        pthread_mutex_unlock(&lock);
        return QUOIT_ERR_INVALID;
    }
    const void *host = command->direction == HOST_TO_DEVICE ? command->source : command->destination;
    counters.copies++;
    counters.bytes += command->bytes;
    counters.unpinned += command->direction != DEVICE_TO_DEVICE && !lagging_memory_is_pinned(host, command->bytes);
    command->fail = fail_next_copy;
    fail_next_copy = false;
    quoit_status_t status = enqueue(stream, command);
    pthread_mutex_unlock(&lock);
    return status;
}

static quoit_status_t lagging_copy(void *destination, const void *source, size_t bytes, device_direction_t direction, void *stream)
{
    command_t *command = command_create(COPY);
    if (!command) return QUOIT_ERR_NO_MEMORY;
    command->destination = destination;
    command->source = source;
    command->bytes = bytes;
    command->direction = direction;
    return enqueue_copy(stream, command);
}

static quoit_status_t lagging_event_create(device_event_t **event)
{
    device_event_t *created = calloc(1, sizeof *created);
    if (!created) return error_set(QUOIT_ERR_NO_MEMORY, "lagging: no memory for an event");
    created->references = 1;
    *event = created;
    return QUOIT_OK;
}

static void lagging_event_destroy(device_event_t *event)
{
    if (!event) return;
    pthread_mutex_lock(&lock);
    event_release(event);
    pthread_mutex_unlock(&lock);
}

static quoit_status_t enqueue_event(kind_t kind, void *stream, device_event_t *event)
{
    command_t *command = command_create(kind);
    if (!command) return QUOIT_ERR_NO_MEMORY;
    pthread_mutex_lock(&lock);
    if (kind == RECORD) event->recorded++;
    command->event = event;
    command->number = event->recorded;
    quoit_status_t status = enqueue(stream, command);
    if (status != QUOIT_OK && kind == RECORD) event->recorded--;
    pthread_mutex_unlock(&lock);
    return status;
}

static quoit_status_t lagging_event_record(device_event_t *event, void *stream) { return enqueue_event(RECORD, stream, event); }
static quoit_status_t lagging_stream_wait_event(void *stream, device_event_t *event) { return enqueue_event(WAIT_EVENT, stream, event); }

/** With the lock held. */
static quoit_status_t query(device_event_t *event)
{
    if (event->done < event->recorded) return QUOIT_IN_PROGRESS;
    if (event->failure.status == QUOIT_OK) return QUOIT_OK;
    return error_set(event->failure.status, "%s", event->failure.text);
}

static quoit_status_t lagging_event_query(device_event_t *event)
{
    pthread_mutex_lock(&lock);
    quoit_status_t status = query(event);
    pthread_mutex_unlock(&lock);
    return status;
}

static quoit_status_t lagging_stream_wait_host(void *stream, const uint64_t *word, uint64_t value)
{
    command_t *command = command_create(WAIT_HOST);
    if (!command) return QUOIT_ERR_NO_MEMORY;
    command->word = word;
    command->number = value;
    pthread_mutex_lock(&lock);
    quoit_status_t status;
    if (lagging_memory_is_pinned(word, sizeof *word)) {
        status = enqueue(stream, command);
    } else {
        free(command);
        status = error_set(QUOIT_ERR_INVALID, "lagging: a stream can only wait for a word from host_alloc, not %p", (const void *)word);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

static quoit_status_t lagging_stream_notify(void *stream, void (*function)(void *argument), void *argument)
{
    command_t *command = command_create(NOTIFY);
    if (!command) return QUOIT_ERR_NO_MEMORY;
    command->function = function;
    command->argument = argument;
    pthread_mutex_lock(&lock);
    quoit_status_t status = enqueue(stream, command);
    pthread_mutex_unlock(&lock);
    return status;
}

static quoit_status_t lagging_settle(void)
{
    pthread_mutex_lock(&lock);
    counters.settled++;
    pthread_mutex_unlock(&lock);
    return QUOIT_OK;
}

const device_row_t lagging_device = {
    .name = "lagging",
    .host_readable = false,
    .alloc = lagging_memory_alloc,
    .free = lagging_memory_free,
    .host_alloc = lagging_memory_host_alloc,
    .host_free = lagging_memory_host_free,
    .check = lagging_memory_check,
    .stream_create = lagging_stream_create,
    .stream_destroy = lagging_stream_destroy,
    .copy = lagging_copy,
    .event_create = lagging_event_create,
    .event_destroy = lagging_event_destroy,
    .event_record = lagging_event_record,
    .event_query = lagging_event_query,
    .stream_wait_event = lagging_stream_wait_event,
    .stream_wait_host = lagging_stream_wait_host,
    .stream_notify = lagging_stream_notify,
    .block = lagging_memory_block,
    .export_dmabuf = lagging_memory_export,
    .settle = lagging_settle,
};

/* ---------------------------------------------------------------- for tests */

quoit_status_t lagging_device_register(quoit_device_t *device)
{
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static quoit_device_t registered = -1;
    quoit_status_t status = QUOIT_OK;
    pthread_mutex_lock(&once);
    if (registered < 0) status = device_register(&lagging_device, &registered);
    if (status == QUOIT_OK) *device = registered;
    pthread_mutex_unlock(&once);
    return status;
}

void lagging_device_set_lag(unsigned minimum_us, unsigned maximum_us)
{
    pthread_mutex_lock(&lock);
    lag_minimum_us = minimum_us;
    lag_maximum_us = maximum_us;
    pthread_mutex_unlock(&lock);
}

void lagging_device_set_seed(uint64_t value)
{
    pthread_mutex_lock(&lock);
    seed = value;
    streams_created = 0;
    pthread_mutex_unlock(&lock);
}

void lagging_device_fail_next_copy(void)
{
    pthread_mutex_lock(&lock);
    fail_next_copy = true;
    pthread_mutex_unlock(&lock);
}

void lagging_device_hold_copies(bool hold)
{
    pthread_mutex_lock(&lock);
    holds_copies = hold;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void lagging_device_fail_exports(unsigned count) { lagging_memory_fail_exports(count); }

void lagging_device_reset(void)
{
    pthread_mutex_lock(&lock);
    fail_next_copy = holds_copies = false;
    pthread_cond_broadcast(&changed);
    lagging_memory_fail_exports(0);
    uint64_t now, most;
    lagging_memory_pinned(&now, &most, true);
    counters = (lagging_counters_t){0};
    for (list_t *node = streams.next; node != &streams; node = node->next)
        container_of(node, stream_t, link)->failure = (failure_t){0};
    pthread_mutex_unlock(&lock);
}

lagging_counters_t lagging_device_counters(void)
{
    pthread_mutex_lock(&lock);
    lagging_counters_t now = counters;
    now.exports = lagging_memory_exports();
    lagging_memory_pinned(&now.pinned, &now.pinned_most, false);
    pthread_mutex_unlock(&lock);
    return now;
}

quoit_status_t lagging_device_wait(device_event_t *event)
{
    uint64_t deadline = clock_deadline(WAIT_LIMIT_MS);
    quoit_status_t status;
    while ((status = lagging_event_query(event)) == QUOIT_IN_PROGRESS) {
        if (clock_now() >= deadline) return error_set(QUOIT_ERR_TIMEOUT, "lagging: event not done after %d ms", WAIT_LIMIT_MS);
        usleep(POLL_US);
    }
    return status;
}

/** The helpers' copies count neither as the tested code's copies nor as the failure it waits for. */
static quoit_status_t copy_and_wait(void *destination, const void *source, size_t bytes, device_direction_t direction)
{
    void *stream = NULL;
    device_event_t *event = NULL;
    quoit_status_t status = lagging_stream_create(&stream);
    if (status != QUOIT_OK) return status;
    status = lagging_event_create(&event);
    if (status != QUOIT_OK) goto destroy_stream;

    command_t *command = command_create(COPY);
    status = command ? QUOIT_OK : QUOIT_ERR_NO_MEMORY;
    if (status != QUOIT_OK) goto destroy_event;
    command->destination = destination;
    command->source = source;
    command->bytes = bytes;
    command->direction = direction;
    pthread_mutex_lock(&lock);
    status = bytes == 0 || is_backed(command) ? enqueue(stream, command) : QUOIT_ERR_INVALID;
    if (status == QUOIT_ERR_INVALID) free(command);
    pthread_mutex_unlock(&lock);
    if (status == QUOIT_OK) status = lagging_event_record(event, stream);
    if (status == QUOIT_OK) status = lagging_device_wait(event);
destroy_event:
    lagging_event_destroy(event);
destroy_stream:
    lagging_stream_destroy(stream);
    return status;
}

quoit_status_t lagging_device_upload(void *device_memory, const void *host_memory, size_t bytes)
{
    return copy_and_wait(device_memory, host_memory, bytes, HOST_TO_DEVICE);
}

quoit_status_t lagging_device_download(void *host_memory, const void *device_memory, size_t bytes)
{
    return copy_and_wait(host_memory, device_memory, bytes, DEVICE_TO_HOST);
}

void lagging_device_shutdown(void)
{
    pthread_mutex_lock(&lock);
    while (!list_is_empty(&streams)) {
        stream_t *stream = container_of(streams.next, stream_t, link);
        pthread_mutex_unlock(&lock);
        lagging_stream_destroy(stream);
        pthread_mutex_lock(&lock);
    }
    default_stream = NULL;
    pthread_mutex_unlock(&lock);
    lagging_memory_release();
}
