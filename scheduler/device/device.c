/* SPDX-License-Identifier: Apache-2.0 */
/** The device table: ids are positions, the host is 0; rows are added, never removed, so reading needs no lock. */
#include "scheduler/device/device.h"

#include "base/forked.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { NAMES_CAPACITY = 256 };

static const device_row_t *rows[DEVICE_MAX] = {[QUOIT_DEVICE_HOST] = &device_host};
static atomic_int row_count = 1; /* released after the row is written */
static forked_lock_t register_lock = {.mutex = PTHREAD_MUTEX_INITIALIZER};

const device_row_t *device_find(quoit_device_t device)
{
    return device >= 0 && device < atomic_load_explicit(&row_count, memory_order_acquire) ? rows[device] : NULL;
}

/** Id of the row called `name`, -1 when there is none. */
static quoit_device_t find_name(const char *name)
{
    int count = atomic_load_explicit(&row_count, memory_order_acquire);
    for (int i = 0; i < count; i++)
        if (strcmp(rows[i]->name, name) == 0) return i;
    return -1;
}

quoit_status_t device_register(const device_row_t *row, quoit_device_t *device)
{
    quoit_status_t status = QUOIT_OK;
    forked_lock(&register_lock);
    int count = atomic_load_explicit(&row_count, memory_order_relaxed);
    if (find_name(row->name) >= 0) {
        status = error_set(QUOIT_ERR_INVALID, "device: \"%s\" is registered already", row->name);
    } else if (count == DEVICE_MAX) {
        status = error_set(QUOIT_ERR_INVALID, "device: no room for \"%s\", the table holds %d", row->name, DEVICE_MAX);
    } else {
        rows[count] = row;
        atomic_store_explicit(&row_count, count + 1, memory_order_release);
        *device = count;
    }
    forked_unlock(&register_lock);
    return status;
}

quoit_status_t quoit_device_find(const char *name, quoit_device_t *device)
{
    char names[NAMES_CAPACITY] = "";
    size_t length = 0;
    if (!name || !device) return error_set(QUOIT_ERR_INVALID, "quoit_device_find: %s is NULL", name ? "device" : "name");
    quoit_device_t found = find_name(name);
    if (found >= 0) {
        *device = found;
        return QUOIT_OK;
    }
    int count = atomic_load_explicit(&row_count, memory_order_acquire);
    for (int i = 0; i < count && length < sizeof names; i++)
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i ? ", " : "", rows[i]->name);
    return error_set(QUOIT_ERR_NOT_FOUND, "no device \"%s\"; there are: %s", name, names);
}
