/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation on device buffers and the user's stream. At issue three things are queued there: an event (the operation may touch the buffers
 * from here on), a wait for a word in host memory (what comes behind it sees the result), and another event behind that wait. At the
 * operation's end the word becomes 1.
 */
#include "scheduler/operation_device.h"

#include "base/doorbell.h"
#include "base/forked.h"
#include "scheduler/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

static void ring_once(void *argument)
{
    int doorbell = (int)(intptr_t)argument;
    doorbell_ring(doorbell);
    close(doorbell);
}

/* The user's stream may get there when the engine is long gone: it rings at a descriptor of its own. */
static quoit_status_t ring_when_reached(const engine_t *engine, const device_row_t *row, void *stream)
{
    int doorbell = fcntl(engine->doorbell, F_DUPFD_CLOEXEC, 0);
    if (doorbell < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "a descriptor for a device's stream");
    quoit_status_t status = row->stream_notify(stream, ring_once, (void *)(intptr_t)doorbell);
    if (status != QUOIT_OK) close(doorbell);
    return status;
}

quoit_status_t operation_device_issue(operation_t *operation, quoit_device_t id, void *stream)
{
    const device_row_t *row = device_find(id);
    if (!row) return error_set(QUOIT_ERR_INVALID, "there is no device with id %d", id);
    if (row->host_readable) return QUOIT_OK;
    operation_device_t *device = &operation->device;
    *device = (operation_device_t){.row = NULL};
    void *word = NULL;
    quoit_status_t status = row->host_alloc(sizeof *device->word, &word);
    if (status != QUOIT_OK) return status;
    device->word = word;
    __atomic_store_n(device->word, 0, __ATOMIC_RELAXED);
    status = row->event_create(&device->ready);
    if (status != QUOIT_OK) goto free_word;
    status = row->event_create(&device->passed);
    if (status != QUOIT_OK) goto destroy_ready;
    status = row->event_record(device->ready, stream);
    if (status == QUOIT_OK) status = ring_when_reached(operation->engine, row, stream);
    if (status == QUOIT_OK) status = row->stream_wait_host(stream, device->word, 1);
    if (status == QUOIT_OK) status = row->event_record(device->passed, stream);
    if (status != QUOIT_OK) goto destroy_passed;
    device->row = row;
    device->id = id;
    return QUOIT_OK;

destroy_passed:
    row->event_destroy(device->passed);
destroy_ready:
    row->event_destroy(device->ready);
free_word:
    row->host_free(device->word);
    return status;
}

void operation_device_finish(operation_t *operation)
{
    if (operation->device.row) __atomic_store_n(operation->device.word, 1, __ATOMIC_RELEASE);
}

/* ------------------------------------------------------------------ what a stream may still use */

/*
 * A stream may be long in coming to its wait for the word, when it stands still for a reason of the user's. So what belongs to an
 * operation that is over is put aside, and given back when its stream has passed.
 */
typedef struct leftover {
    struct leftover *next;
    operation_device_t device;
} leftover_t;

static void forget_leftovers(void);

static forked_lock_t leftover_lock = {.mutex = PTHREAD_MUTEX_INITIALIZER, .forget = forget_leftovers};
static leftover_t *leftovers;

static void forget_leftovers(void) { leftovers = NULL; } /* of the parent's streams */

static bool try_free(operation_device_t *device)
{
    if (device->row->event_query(device->passed) == QUOIT_IN_PROGRESS) return false;
    device->row->event_destroy(device->passed);
    device->row->event_destroy(device->ready);
    device->row->host_free(device->word);
    return true;
}

void operation_device_free(operation_t *operation)
{
    operation_device_t *device = &operation->device;
    if (!device->row) return;
    forked_lock(&leftover_lock);
    for (leftover_t **each = &leftovers; *each;) {
        leftover_t *one = *each;
        if (!try_free(&one->device)) {
            each = &one->next;
            continue;
        }
        *each = one->next;
        free(one);
    }
    if (!try_free(device)) {
        leftover_t *one = malloc(sizeof *one);
        if (one) { /* else its memory is lost, for the stream may still read it */
            *one = (leftover_t){.next = leftovers, .device = *device};
            leftovers = one;
        }
    }
    forked_unlock(&leftover_lock);
    device->row = NULL;
}
