/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Memory behind an arena. The memfd is sparse: its size is address space, pages are taken block by block. It is sealed against
 * shrinking and growing, so that a peer that maps it can never run past its end.
 */
#include "transport/shm/shm_memory.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

enum { PIECE = 32 << 20 }; /* bytes of one fallocate call: a signal undoes a call, not everything */

static quoit_status_t make_memfd(int *fd)
{
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int made = memfd_create("quoit-arena", flags | MFD_NOEXEC_SEAL);
    if (made < 0 && errno == EINVAL) made = memfd_create("quoit-arena", flags); /* Linux before 6.3 */
    if (made < 0 && (errno == EMFILE || errno == ENFILE)) {
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "shm: no descriptor left for shared memory");
    }
    if (made < 0) {
        return error_set_errno(QUOIT_ERR_NOT_FOUND, errno, "shm: this system allows no memfd_create (old kernel or a seccomp filter)");
    }
    if (fchmod(made, 0600) != 0) log_debug("shm", "the memory's file keeps the rights of a memfd: %s", strerror(errno));
    *fd = made;
    return QUOIT_OK;
}

static quoit_status_t check_limit(int resource, const char *limit, size_t size)
{
    struct rlimit value;
    if (getrlimit(resource, &value) != 0 || value.rlim_cur == RLIM_INFINITY || value.rlim_cur >= size) return QUOIT_OK;
    return error_set(QUOIT_ERR_NO_MEMORY, "shm: QUOIT_ARENA_SIZE is %zu bytes, but the limit '%s' is %llu bytes; lower the one or raise the "
                     "other",
                     size, limit, (unsigned long long)value.rlim_cur);
}

/* ftruncate beyond the limit of file sizes would raise SIGXFSZ, hence the look at limits first. */
static quoit_status_t check_limits(size_t size)
{
    quoit_status_t status = check_limit(RLIMIT_FSIZE, "ulimit -f", size);
    return status ? status : check_limit(RLIMIT_AS, "ulimit -v", size);
}

static quoit_status_t map_file(int fd, size_t size, int protection, unsigned char **base)
{
    int flags = MAP_NORESERVE | (fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);
    void *mapped = mmap(NULL, size, protection, flags, fd, 0);
    if (mapped == MAP_FAILED) {
        return error_set_errno(QUOIT_ERR_NO_MEMORY, errno, "shm: cannot map %zu bytes of shared memory; lower QUOIT_ARENA_SIZE or raise 'ulimit -v'", size);
    }
    *base = mapped;
    return QUOIT_OK;
}

void shm_memory_keep_from_cores(void *base, size_t size) { (void)madvise(base, size, MADV_DONTDUMP); }

quoit_status_t shm_memory_probe(size_t size)
{
    int fd = -1;
    unsigned char *base = NULL;
    quoit_status_t status = check_limits(size);
    if (!status) status = make_memfd(&fd);
    if (status) return status;
    close(fd);
    status = map_file(-1, size, PROT_NONE, &base);
    if (!status) munmap(base, size);
    return status;
}

quoit_status_t shm_memory_open(size_t size, shm_memory_t *memory)
{
    shm_memory_t made = {.fd = -1, .page = (size_t)sysconf(_SC_PAGESIZE)};
    made.size = shm_round_up(size, made.page);
    quoit_status_t status = check_limits(made.size);
    if (!status) status = make_memfd(&made.fd);
    if (status) return status;
    if (ftruncate(made.fd, (off_t)made.size) != 0) {
        status = error_set_errno(QUOIT_ERR_NO_MEMORY, errno, "shm: cannot make shared memory of %zu bytes; lower QUOIT_ARENA_SIZE", made.size);
        goto fail;
    }
    if (fcntl(made.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        status = error_set_errno(QUOIT_ERR_NOT_FOUND, errno, "shm: shared memory cannot be sealed here");
        goto fail;
    }
    status = map_file(made.fd, made.size, PROT_READ | PROT_WRITE, &made.base);
    if (status) goto fail;
    made.backed = calloc((made.size / made.page + 63) / 64, sizeof *made.backed);
    if (!made.backed) {
        status = error_set(QUOIT_ERR_NO_MEMORY, "shm: out of memory for the page table of an arena of %zu bytes", made.size);
        goto fail;
    }
    (void)madvise(made.base, made.size, MADV_HUGEPAGE); /* a wish; kernels without it say no */
    shm_memory_keep_from_cores(made.base, made.size);
    *memory = made;
    return QUOIT_OK;
fail:
    shm_memory_close(&made);
    return status;
}

void shm_memory_close(shm_memory_t *memory)
{
    if (memory->base) munmap(memory->base, memory->size);
    if (memory->fd >= 0) close(memory->fd);
    free(memory->backed);
    *memory = (shm_memory_t){.fd = -1};
}

/* 0, or an errno. */
static int change_range(int fd, int mode, size_t offset, size_t length)
{
    while (length > 0) {
        size_t piece = length < PIECE ? length : PIECE;
        if (fallocate(fd, mode, (off_t)offset, (off_t)piece) != 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        offset += piece;
        length -= piece;
    }
    return 0;
}

static bool page_is_backed(const shm_memory_t *memory, size_t page) { return memory->backed[page / 64] >> (page % 64) & 1; }

static void mark_pages(shm_memory_t *memory, size_t first, size_t end, bool backed)
{
    for (size_t page = first; page < end; page++) {
        uint64_t bit = UINT64_C(1) << (page % 64);
        if (backed) {
            memory->backed[page / 64] |= bit;
        } else {
            memory->backed[page / 64] &= ~bit;
        }
    }
}

/* Pages [first, end), none of which is backed. All or none. */
static quoit_status_t back_pages(shm_memory_t *memory, size_t first, size_t end)
{
    size_t offset = first * memory->page, length = (end - first) * memory->page;
    int error = change_range(memory->fd, 0, offset, length);
    if (error == ENOSPC || error == ENOMEM || error == EDQUOT) {
        (void)change_range(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length);
        return error_set_errno(QUOIT_ERR_NO_MEMORY, error, "shm: the system has no memory for %zu more shared bytes (RAM, swap or the limit of this "
                               "container)",
                               length);
    }
    if (error) {
        log_info("shm", "fallocate does not work here (error %d): pages are taken when they are touched", error);
        memory->no_fallocate = true;
        return QUOIT_OK;
    }
    mark_pages(memory, first, end, true);
    return QUOIT_OK;
}

quoit_status_t shm_memory_back(shm_memory_t *memory, size_t offset, size_t length)
{
    size_t end = (offset + length + memory->page - 1) / memory->page;
    size_t page = offset / memory->page;
    while (page < end && !memory->no_fallocate) {
        if (page_is_backed(memory, page)) {
            page++;
            continue;
        }
        size_t last = page + 1;
        while (last < end && !page_is_backed(memory, last)) last++;
        quoit_status_t status = back_pages(memory, page, last);
        if (status) return status;
        page = last;
    }
    return QUOIT_OK;
}

bool shm_memory_is_bare(const shm_memory_t *memory, size_t offset, size_t length)
{
    bool bare = !memory->no_fallocate;
    for (size_t page = offset / memory->page; bare && page < (offset + length) / memory->page; page++) bare = !page_is_backed(memory, page);
    return bare;
}

bool shm_memory_punch(shm_memory_t *memory, size_t offset, size_t length)
{
    if (memory->no_fallocate || change_range(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length) != 0) return false;
    mark_pages(memory, offset / memory->page, (offset + length) / memory->page, false);
    return true;
}
