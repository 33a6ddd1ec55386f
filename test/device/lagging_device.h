/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A device for tests, named "lagging": its memory kills a CPU that touches it, and nothing is done when a call returns.
 *
 * Device pointers are addresses without access (SIGSEGV). What they stand for lies in a file in memory that is never mapped; only
 * the streams' threads read and write it. Each stream is a FIFO queue with a thread of its own, which waits a random time (the
 * lag) before each command. Host memory of a copy is read or written when the stream gets there, as on a real device: a buffer
 * reused too early shows. Fresh device memory is full of LAGGING_GARBAGE.
 *
 * A buffer's dma-buf is that file and its place in it: what a network adapter of a test maps, and the processor's side does not.
 *
 * A command that fails marks its stream: copies and reductions behind it are left out, every event recorded behind it answers with
 * the error, streams that wait for such an event are marked as well. Waits, events and notifications go on, so nobody hangs.
 * Stream NULL is the device's default stream; it orders with no other.
 */
#ifndef TEST_DEVICE_LAGGING_DEVICE_H
#define TEST_DEVICE_LAGGING_DEVICE_H

#include "scheduler/device/device.h"

enum { LAGGING_GARBAGE = 0xcb };

typedef struct lagging_counters {
    uint64_t copies, bytes;  /* copies queued, and their bytes */
    uint64_t unpinned;       /* those of them whose host side is not from host_alloc */
    uint64_t exports;        /* dma-bufs asked for */
    uint64_t settled;        /* calls of settle */
    uint64_t pinned, pinned_most; /* bytes from host_alloc that are not given back yet, and the most that were since the counters were set to zero */
} lagging_counters_t;

/** Any number of times; always the same id. */
quoit_status_t lagging_device_register(quoit_device_t *device);
extern const device_row_t lagging_device; /* usable without registering */

/** Microseconds before each command, drawn evenly; at first 0..2000. For commands not begun yet. */
void lagging_device_set_lag(unsigned minimum_us, unsigned maximum_us);
/** Of the lags of streams created from now on; at first 1. */
void lagging_device_set_seed(uint64_t seed);

/** The copy queued next (by any thread, on any stream) fails when it is carried out, with ERR_SYSTEM. */
void lagging_device_fail_next_copy(void);
/** From now on copies wait when their turn comes, and with them their streams, until it is false: a device that hangs. */
void lagging_device_hold_copies(bool hold);
/** The next dma-bufs that are asked for, so many, are not exported (ERR_UNSUPPORTED). */
void lagging_device_fail_exports(unsigned count);
/** Forget a failure not yet used and the marks of all streams, hold nothing, and set the counters to zero. */
void lagging_device_reset(void);
lagging_counters_t lagging_device_counters(void);

/** Copy and wait until it is done, at most 30 s; on a stream of their own. */
quoit_status_t lagging_device_upload(void *device_memory, const void *host_memory, size_t bytes);
quoit_status_t lagging_device_download(void *host_memory, const void *device_memory, size_t bytes);
/** Wait until the event is done, at most 30 s. */
quoit_status_t lagging_device_wait(device_event_t *event);

/**
 * Finish what is queued, join all threads and give all device memory back, including what was not freed. A stream that waits for a
 * word of the host gives up after 5 s. Nobody else may use the device meanwhile; it comes to life again at the next call.
 */
void lagging_device_shutdown(void);

#endif
