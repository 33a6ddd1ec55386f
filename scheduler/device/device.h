/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Device table: one row of functions a kind of memory. Nothing above this line may read a device buffer with the CPU, or take work
 * for done because a call returned.
 *
 * Streams are FIFO queues of the device. Events mark a point in a stream; both belong to the device of the row. All calls but
 * `alloc` and `free` return at once; errors of queued work come out of event_query. Rows fill every member: what a device lacks is
 * a function that answers ERR_UNSUPPORTED with a text. Only those of the last part, memory that a transport reaches by itself, may be
 * NULL: then all of the device's buffers are staged.
 */
#ifndef QUOIT_SCHEDULER_DEVICE_H
#define QUOIT_SCHEDULER_DEVICE_H

#include "base/status.h"
#include "quoit/quoit_transport.h"

#include <stdbool.h>

typedef struct device_row device_row_t;
typedef struct device_event device_event_t;

enum { DEVICE_MAX = 8 }; /* rows of the table */

/** An allocation. */
typedef struct device_block {
    const void *base;
    size_t bytes;
    uint64_t id; /* no other allocation of the device has had it, or will */
} device_block_t;

typedef enum device_direction { DEVICE_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_DEVICE } device_direction_t;

struct device_row {
    const char *name;
    bool host_readable; /* the CPU may read and write buffers directly; streams are then ignored and work is done at return */

    quoit_status_t (*alloc)(size_t bytes, void **pointer);
    void (*free)(void *pointer);
    /* Host memory that the device copies to and from without a bounce (pinned). */
    quoit_status_t (*host_alloc)(size_t bytes, void **pointer);
    void (*host_free)(void *pointer);
    /** QUOIT_OK when [pointer, pointer+bytes) is memory of this device, else ERR_INVALID with a text. */
    quoit_status_t (*check)(const void *pointer, size_t bytes);

    quoit_status_t (*stream_create)(void **stream); /* for Quoit's own copies, beside the user's streams */
    void (*stream_destroy)(void *stream);           /* waits for what is queued */
    quoit_status_t (*copy)(void *destination, const void *source, size_t bytes, device_direction_t direction, void *stream);

    quoit_status_t (*event_create)(device_event_t **event);
    void (*event_destroy)(device_event_t *event);
    quoit_status_t (*event_record)(device_event_t *event, void *stream);
    quoit_status_t (*event_query)(device_event_t *event);               /* QUOIT_OK, QUOIT_IN_PROGRESS, or an error */
    quoit_status_t (*stream_wait_event)(void *stream, device_event_t *event);
    /** The stream goes on when *word >= value; the host stores with release order. word is from host_alloc. */
    quoit_status_t (*stream_wait_host)(void *stream, const uint64_t *word, uint64_t value);
    /** Call function(argument) on a thread of the device when the stream gets there; it must not call into the device or block. */
    quoit_status_t (*stream_notify)(void *stream, void (*function)(void *argument), void *argument);

    /* -- memory that a transport reaches by itself: see docs/design.md, "Reaching a device's memory" */
    /** The allocation that [pointer, pointer + bytes) lies in. Asked for each buffer, so it is to be quick. ERR_INVALID with a text. */
    quoit_status_t (*block)(const void *pointer, size_t bytes, device_block_t *block);
    /**
     * A dma-buf of [pointer, pointer + bytes): a descriptor, the caller's to close, and where in it `pointer` is. Rows that can only export whole
     * pages export those around it. An error with a text where this memory cannot be exported.
     */
    quoit_status_t (*export_dmabuf)(const void *pointer, size_t bytes, int *descriptor, uint64_t *offset);
    /** What others wrote to the device's memory before this call is seen by what its streams begin after it. NULL: it always is. */
    quoit_status_t (*settle)(void);
};

extern const device_row_t device_host;

/** Row of a device id; NULL for a value that is none. */
const device_row_t *device_find(quoit_device_t device);
/** Add a row (a test's, or CUDA's when its driver was found). The row must live as long as the process. */
quoit_status_t device_register(const device_row_t *row, quoit_device_t *device);

/** What a transport is told of a buffer; calls the row's `block`. Rows without it: ERR_UNSUPPORTED. */
quoit_status_t device_describe(const device_row_t *row, const void *pointer, size_t bytes, quoit_device_memory_t *memory);

/** Memory was freed. */
typedef struct device_freed {
    const device_row_t *row; /* NULL: more than could be remembered, of any row */
    const void *pointer;
    size_t bytes;
} device_freed_t;

/** For rows: memory of the device was, or is about to be, freed. Any thread; it only writes it down. */
void device_freed(const device_row_t *row, const void *pointer, size_t bytes);
/** Next that was freed since *position, which begins with 0. False: none. A quick look when there is none. */
bool device_freed_next(uint64_t *position, device_freed_t *freed);

#endif
