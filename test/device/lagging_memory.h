/* SPDX-License-Identifier: Apache-2.0 */
/** Memory of the lagging device (see lagging_device.h): addresses without access, and a file in memory behind them. */
#ifndef TEST_DEVICE_LAGGING_MEMORY_H
#define TEST_DEVICE_LAGGING_MEMORY_H

#include "scheduler/device/device.h"

#include <stdbool.h>

/* Members of the device's row. */
quoit_status_t lagging_memory_alloc(size_t bytes, void **pointer);
void lagging_memory_free(void *pointer);
quoit_status_t lagging_memory_host_alloc(size_t bytes, void **pointer);
void lagging_memory_host_free(void *pointer);
quoit_status_t lagging_memory_check(const void *pointer, size_t bytes);
quoit_status_t lagging_memory_block(const void *pointer, size_t bytes, device_block_t *block);
/* The descriptor is of the file; a test's NIC maps it. */
quoit_status_t lagging_memory_export(const void *pointer, size_t bytes, int *descriptor, uint64_t *offset);

/** The next exports fail; those asked for are counted anew. */
void lagging_memory_fail_exports(unsigned count);
uint64_t lagging_memory_exports(void);

/** Bytes from host_alloc: now, and at most since `anew` was last told. */
void lagging_memory_pinned(uint64_t *now, uint64_t *most, bool anew);
/** Is it memory from host_alloc? */
bool lagging_memory_is_pinned(const void *pointer, size_t bytes);
/* All of the bytes, or false with errno. `from` and `to` in turn are device memory that lagging_memory_check accepts. */
bool lagging_memory_read(void *to, const void *from, size_t bytes);
bool lagging_memory_write(void *to, const void *from, size_t bytes);
/** Give all device memory back, freed or not. */
void lagging_memory_release(void);

#endif
