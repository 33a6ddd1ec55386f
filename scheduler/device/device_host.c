/* SPDX-License-Identifier: Apache-2.0 */
/** The host's row: memory is malloc's, there are no queues, and all work is done when a call returns. */
#include "scheduler/device/device.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };

struct device_event {
    char nothing; /* what an event marks on the host lies in the past */
};

static quoit_status_t host_row_alloc(size_t bytes, void **pointer)
{
    void *memory;
    if (posix_memalign(&memory, ALIGNMENT, bytes ? bytes : 1) != 0)
        return error_set(QUOIT_ERR_NO_MEMORY, "host: no memory for %zu bytes", bytes);
    *pointer = memory;
    return QUOIT_OK;
}

static quoit_status_t host_check(const void *pointer, size_t bytes)
{
    if (!pointer && bytes > 0) return error_set(QUOIT_ERR_INVALID, "host: NULL is no buffer of %zu bytes", bytes);
    if ((uintptr_t)pointer > UINTPTR_MAX - bytes) return error_set(QUOIT_ERR_INVALID, "host: %zu bytes do not fit behind %p", bytes, pointer);
    return QUOIT_OK;
}

static quoit_status_t host_stream_create(void **stream)
{
    *stream = NULL;
    return QUOIT_OK;
}

static void host_stream_destroy(void *stream) { (void)stream; }

static quoit_status_t host_copy(void *destination, const void *source, size_t bytes, device_direction_t direction, void *stream)
{
    (void)direction, (void)stream;
    if (bytes > 0) memmove(destination, source, bytes);
    return QUOIT_OK;
}

static quoit_status_t host_event_create(device_event_t **event)
{
    device_event_t *created = malloc(sizeof *created);
    if (!created) return error_set(QUOIT_ERR_NO_MEMORY, "host: no memory for an event");
    *event = created;
    return QUOIT_OK;
}

static void host_event_destroy(device_event_t *event) { free(event); }

static quoit_status_t host_event_record(device_event_t *event, void *stream)
{
    (void)event, (void)stream;
    return QUOIT_OK;
}

static quoit_status_t host_event_query(device_event_t *event)
{
    (void)event;
    return QUOIT_OK;
}

static quoit_status_t host_stream_wait_event(void *stream, device_event_t *event)
{
    (void)stream, (void)event;
    return QUOIT_OK;
}

static quoit_status_t host_stream_wait_host(void *stream, const uint64_t *word, uint64_t value)
{
    (void)stream;
    uint64_t now = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if (now >= value) return QUOIT_OK;
    return error_set(QUOIT_ERR_UNSUPPORTED, "host: there is no queue that could wait until the word, now %llu, is %llu",
                     (unsigned long long)now, (unsigned long long)value);
}

static quoit_status_t host_stream_notify(void *stream, void (*function)(void *argument), void *argument)
{
    (void)stream;
    function(argument);
    return QUOIT_OK;
}

const device_row_t device_host = {
    .name = "host",
    .host_readable = true,
    .alloc = host_row_alloc,
    .free = free,
    .host_alloc = host_row_alloc,
    .host_free = free,
    .check = host_check,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .copy = host_copy,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .event_query = host_event_query,
    .stream_wait_event = host_stream_wait_event,
    .stream_wait_host = host_stream_wait_host,
    .stream_notify = host_stream_notify,
};
