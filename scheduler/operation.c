/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the operations that outlive the call that issued them. What ended is kept for the next one, up to SPARES of the whole process, so
 * that the data path takes no memory; an operation may be released by any thread, when its communicator and engine are gone.
 *
 * Each place of the table is taken and filled by one atomic exchange, so there is no lock that fork() could find held.
 */
#include "scheduler/operation.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* Parts of more than so many bytes are given back: thousands of ranks times SPARES would be too much to keep. */
enum { SPARES = 64, KEPT_PARTS = 64 << 10 };

#if defined(__SANITIZE_ADDRESS__)
#define KEEPS_SPARES 0 /* whoever uses a request after its end is to be found out */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KEEPS_SPARES 0
#endif
#endif
#ifndef KEEPS_SPARES
#define KEEPS_SPARES 1
#endif

static _Atomic(operation_t *) spare[SPARES];

operation_t *operation_create(void)
{
    operation_t *operation = NULL;
    for (int i = 0; i < SPARES && !operation; i++)
        if (atomic_load_explicit(&spare[i], memory_order_relaxed)) operation = atomic_exchange_explicit(&spare[i], NULL, memory_order_acquire);
    if (operation) return operation;
    operation = malloc(sizeof *operation);
    if (!operation) return NULL;
    operation->parts = NULL;
    operation->parts_capacity = 0;
    return operation;
}

void operation_clear(operation_t *operation)
{
    memset(operation, 0, offsetof(operation_t, parts));
    memset(&operation->transfer, 0, offsetof(quoit_transfer_t, opaque));
    operation->device.row = NULL;
    operation->error[0] = '\0';
}

bool operation_make_parts(operation_t *operation, size_t count)
{
    if (operation->parts_capacity >= count) return true;
    quoit_part_t *larger = malloc(count * sizeof *larger);
    if (!larger) return false;
    free(operation->parts);
    operation->parts = larger;
    operation->parts_capacity = count;
    return true;
}

void operation_destroy(operation_t *operation)
{
    if (!operation) return;
    if (operation->parts_capacity > KEPT_PARTS / sizeof *operation->parts) {
        free(operation->parts);
        operation->parts = NULL;
        operation->parts_capacity = 0;
    }
    for (int i = 0; KEEPS_SPARES && i < SPARES; i++) {
        operation_t *none = NULL;
        if (!atomic_load_explicit(&spare[i], memory_order_relaxed) &&
            atomic_compare_exchange_strong_explicit(&spare[i], &none, operation, memory_order_release, memory_order_relaxed))
            return;
    }
    free(operation->parts);
    free(operation);
}
