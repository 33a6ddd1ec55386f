/* SPDX-License-Identifier: Apache-2.0 */
/** See lagging_memory.h. A lock of its own, taken last, guards the lists of blocks. */
#include "test/device/lagging_memory.h"

#include "base/list.h"
#include "test/device/lagging_device.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096 };
#define SPACE ((size_t)128 << 30) /* bytes of address space; addresses are never used twice, so a stale pointer is noticed */

/** [begin, begin + bytes) of device memory or of pinned host memory. */
typedef struct block {
    list_t link;
    uintptr_t begin;
    size_t bytes;
    uint64_t id;
} block_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static list_t blocks = {&blocks, &blocks}, pinned = {&pinned, &pinned};
static unsigned char *space; /* SPACE bytes without access; NULL before the first allocation */
static size_t space_used;
static uint64_t last_id;
static unsigned failing_exports;
static uint64_t exports;
static uint64_t pinned_now, pinned_most; /* bytes */
static int file = -1; /* byte i of it is byte i of space */

static block_t *find_block(list_t *list, const void *pointer, size_t bytes)
{
    uintptr_t begin = (uintptr_t)pointer;
    for (list_t *node = list->next; node != list; node = node->next) {
        block_t *block = container_of(node, block_t, link);
        if (begin >= block->begin && begin - block->begin <= block->bytes && bytes <= block->bytes - (begin - block->begin)) return block;
    }
    return NULL;
}

static quoit_status_t add_block(list_t *list, const void *pointer, size_t bytes)
{
    block_t *block = malloc(sizeof *block);
    if (!block) return error_set(QUOIT_ERR_NO_MEMORY, "lagging: no memory");
    block->begin = (uintptr_t)pointer;
    block->bytes = bytes;
    block->id = ++last_id;
    list_append(list, &block->link);
    return QUOIT_OK;
}

/** Bytes of the block that begins there; a wrong pointer ends the test. */
static size_t drop_block(list_t *list, const void *pointer)
{
    block_t *block = NULL;
    for (list_t *node = list->next; node != list && !block; node = node->next)
        if (container_of(node, block_t, link)->begin == (uintptr_t)pointer) block = container_of(node, block_t, link);
    if (!block) {
        fprintf(stderr, "lagging: %p freed, which was not allocated or is freed already\n", pointer);
        abort();
    }
    size_t bytes = block->bytes;
    list_remove(&block->link);
    free(block);
    return bytes;
}

static quoit_status_t space_open(void)
{
    quoit_status_t status;
    if (space) return QUOIT_OK;
    int opened = memfd_create("lagging", MFD_CLOEXEC);
    if (opened < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "lagging: memfd_create");
    if (ftruncate(opened, (off_t)SPACE) != 0) {
        status = error_set_errno(QUOIT_ERR_SYSTEM, errno, "lagging: ftruncate to %zu bytes", SPACE);
        goto close_file;
    }
    void *mapped = mmap(NULL, SPACE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        status = error_set_errno(QUOIT_ERR_SYSTEM, errno, "lagging: reserving %zu bytes of addresses", SPACE);
        goto close_file;
    }
    file = opened;
    space = mapped;
    space_used = 0;
    return QUOIT_OK;
close_file:
    close(opened);
    return status;
}

bool lagging_memory_read(void *to, const void *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(file, (char *)to + done, bytes - done, (const unsigned char *)from - space + (off_t)done);
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

bool lagging_memory_write(void *to, const void *from, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pwrite(file, (const char *)from + done, bytes - done, (unsigned char *)to - space + (off_t)done);
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

static bool fill_with_garbage(unsigned char *begin, size_t bytes)
{
    unsigned char garbage[16 * PAGE];
    memset(garbage, LAGGING_GARBAGE, sizeof garbage);
    for (size_t at = 0; at < bytes; at += sizeof garbage)
        if (!lagging_memory_write(begin + at, garbage, bytes - at < sizeof garbage ? bytes - at : sizeof garbage)) return false;
    return true;
}

quoit_status_t lagging_memory_alloc(size_t bytes, void **pointer)
{
    if (bytes > SPACE / 2) return error_set(QUOIT_ERR_NO_MEMORY, "lagging: %zu bytes are more than the device has", bytes);
    size_t whole = (bytes / PAGE + 2) * PAGE; /* at least a page between neighbours */
    pthread_mutex_lock(&lock);
    quoit_status_t status = space_open();
    if (status != QUOIT_OK) goto out;
    if (whole > SPACE - space_used) {
        status = error_set(QUOIT_ERR_NO_MEMORY, "lagging: %zu bytes asked, all %zu bytes of addresses used up", bytes, SPACE);
        goto out;
    }
    unsigned char *begin = space + space_used;
    if (!fill_with_garbage(begin, bytes)) {
        status = error_set_errno(QUOIT_ERR_NO_MEMORY, errno, "lagging: %zu bytes", bytes);
        goto out;
    }
    status = add_block(&blocks, begin, bytes);
    if (status != QUOIT_OK) goto out;
    space_used += whole;
    *pointer = begin;
out:
    pthread_mutex_unlock(&lock);
    return status;
}

void lagging_memory_free(void *pointer)
{
    if (!pointer) return;
    pthread_mutex_lock(&lock);
    size_t bytes = drop_block(&blocks, pointer);
    device_freed(&lagging_device, pointer, bytes);
    if (bytes > 0)
        fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (unsigned char *)pointer - space, (off_t)((bytes + PAGE - 1) / PAGE * PAGE));
    pthread_mutex_unlock(&lock);
}

quoit_status_t lagging_memory_host_alloc(size_t bytes, void **pointer)
{
    void *memory;
    if (posix_memalign(&memory, PAGE, bytes ? bytes : 1) != 0) return error_set(QUOIT_ERR_NO_MEMORY, "lagging: no memory for %zu bytes", bytes);
    pthread_mutex_lock(&lock);
    quoit_status_t status = add_block(&pinned, memory, bytes);
    if (status == QUOIT_OK) pinned_now += bytes;
    if (pinned_now > pinned_most) pinned_most = pinned_now;
    pthread_mutex_unlock(&lock);
    if (status == QUOIT_OK) *pointer = memory;
    else free(memory);
    return status;
}

void lagging_memory_host_free(void *pointer)
{
    if (!pointer) return;
    pthread_mutex_lock(&lock);
    pinned_now -= drop_block(&pinned, pointer);
    pthread_mutex_unlock(&lock);
    free(pointer);
}

quoit_status_t lagging_memory_check(const void *pointer, size_t bytes)
{
    pthread_mutex_lock(&lock);
    bool found = bytes == 0 || find_block(&blocks, pointer, bytes);
    pthread_mutex_unlock(&lock);
    if (found) return QUOIT_OK;
    return error_set(QUOIT_ERR_INVALID, "lagging: %zu bytes at %p are no memory of this device", bytes, pointer);
}

quoit_status_t lagging_memory_block(const void *pointer, size_t bytes, device_block_t *result)
{
    pthread_mutex_lock(&lock);
    const block_t *block = find_block(&blocks, pointer, bytes);
    if (block) *result = (device_block_t){.base = (const void *)block->begin, .bytes = block->bytes, .id = block->id};
    pthread_mutex_unlock(&lock);
    if (block) return QUOIT_OK;
    return error_set(QUOIT_ERR_INVALID, "lagging: %zu bytes at %p are no memory of this device", bytes, pointer);
}

quoit_status_t lagging_memory_export(const void *pointer, size_t bytes, int *descriptor, uint64_t *offset)
{
    quoit_status_t status = QUOIT_OK;
    int copy = -1;
    pthread_mutex_lock(&lock);
    exports++;
    if (failing_exports > 0 && failing_exports-- > 0)
        status = error_set(QUOIT_ERR_UNSUPPORTED, "lagging: this memory is not exported");
    else if (!find_block(&blocks, pointer, bytes))
        status = error_set(QUOIT_ERR_INVALID, "lagging: %zu bytes at %p are no memory of this device", bytes, pointer);
    else if ((copy = fcntl(file, F_DUPFD_CLOEXEC, 0)) < 0)
        status = error_set_errno(QUOIT_ERR_SYSTEM, errno, "lagging: a descriptor");
    if (status == QUOIT_OK) {
        *descriptor = copy;
        *offset = (uint64_t)((const unsigned char *)pointer - space);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void lagging_memory_fail_exports(unsigned count)
{
    pthread_mutex_lock(&lock);
    failing_exports = count;
    exports = 0;
    pthread_mutex_unlock(&lock);
}

uint64_t lagging_memory_exports(void)
{
    pthread_mutex_lock(&lock);
    uint64_t count = exports;
    pthread_mutex_unlock(&lock);
    return count;
}

void lagging_memory_pinned(uint64_t *now, uint64_t *most, bool anew)
{
    pthread_mutex_lock(&lock);
    if (anew) pinned_most = pinned_now;
    *now = pinned_now;
    *most = pinned_most;
    pthread_mutex_unlock(&lock);
}

bool lagging_memory_is_pinned(const void *pointer, size_t bytes)
{
    pthread_mutex_lock(&lock);
    bool found = find_block(&pinned, pointer, bytes);
    pthread_mutex_unlock(&lock);
    return found;
}

void lagging_memory_release(void)
{
    pthread_mutex_lock(&lock);
    for (list_t *node; (node = list_pop(&blocks));) free(container_of(node, block_t, link));
    if (space) munmap(space, SPACE);
    if (file >= 0) close(file);
    space = NULL;
    file = -1;
    pthread_mutex_unlock(&lock);
}
