/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What transports are told of a device's memory: a buffer's allocation and its dma-buf, from the row; and what was freed, which each engine
 * reads at its own pace from a short history.
 */
#include "scheduler/device/device.h"

#include "base/forked.h"

#include <stdatomic.h>

enum { HISTORY = 64 };

static quoit_status_t export_dmabuf(const quoit_device_memory_t *memory, const void *pointer, size_t length, int *descriptor, uint64_t *offset)
{
    const device_row_t *row = memory->context;
    if (!row->export_dmabuf) return error_set(QUOIT_ERR_UNSUPPORTED, "device %s exports no dma-buf", row->name);
    return row->export_dmabuf(pointer, length, descriptor, offset);
}

quoit_status_t device_describe(const device_row_t *row, const void *pointer, size_t bytes, quoit_device_memory_t *memory)
{
    device_block_t block;
    if (!row->block) return error_set(QUOIT_ERR_UNSUPPORTED, "device %s does not tell its allocations", row->name);
    quoit_status_t status = row->block(pointer, bytes, &block);
    if (status != QUOIT_OK) return status;
    *memory = (quoit_device_memory_t){.struct_size = sizeof *memory,
                                      .kind = row->name,
                                      .pointer = pointer,
                                      .length = bytes,
                                      .block = block.base,
                                      .block_length = block.bytes,
                                      .block_id = block.id,
                                      .export_dmabuf = export_dmabuf,
                                      .context = row};
    return QUOIT_OK;
}

/* ------------------------------------------------------------------ what was freed */

static struct {
    forked_lock_t lock;
    device_freed_t entry[HISTORY]; /* number n at n mod HISTORY */
    _Atomic uint64_t count;
} history = {.lock = {.mutex = PTHREAD_MUTEX_INITIALIZER}};

void device_freed(const device_row_t *row, const void *pointer, size_t bytes)
{
    forked_lock(&history.lock);
    uint64_t count = atomic_load_explicit(&history.count, memory_order_relaxed);
    history.entry[count % HISTORY] = (device_freed_t){.row = row, .pointer = pointer, .bytes = bytes};
    atomic_store_explicit(&history.count, count + 1, memory_order_release);
    forked_unlock(&history.lock);
}

bool device_freed_next(uint64_t *position, device_freed_t *freed)
{
    if (atomic_load_explicit(&history.count, memory_order_acquire) == *position) return false;
    forked_lock(&history.lock);
    uint64_t count = atomic_load_explicit(&history.count, memory_order_relaxed);
    bool known = count - *position <= HISTORY;
    *freed = known ? history.entry[*position % HISTORY] : (device_freed_t){0};
    *position = known ? *position + 1 : count;
    forked_unlock(&history.lock);
    return true;
}
