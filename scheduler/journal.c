/* SPDX-License-Identifier: Apache-2.0 */
/* Journal: its memory, by pages of which only the used ones exist. See journal.h. */
#include "scheduler/journal.h"

#include "base/limits.h"
#include "base/log.h"
#include "scheduler/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct journal {
    int fd;                          /* owned; -1: private memory */
    uint8_t *base;                   /* NULL: not even that; blocks come from malloc */
    bool used[JOURNAL_PAGES];
    journal_header_t *header;
    bool counter;
    quoit_process_id_t process;
    uint64_t ticks, ns;
};

enum { HEADER_PAGES = (sizeof(journal_header_t) + JOURNAL_PAGE - 1) / JOURNAL_PAGE };
#define JOURNAL_SIZE ((size_t)JOURNAL_PAGES * JOURNAL_PAGE)

_Static_assert(sizeof(journal_entry_t) == 64, "an entry is one cache line");

/* A memfd that only its owner may open, of a size that nobody can change. -1: none, errno says why. */
static int make_file(void)
{
    if (!limits_file_size(JOURNAL_SIZE)) return -1;
    int fd = memfd_create(JOURNAL_FILE, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (fchmod(fd, 0600) == 0 && ftruncate(fd, (off_t)JOURNAL_SIZE) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0) return fd;
    int reason = errno;
    close(fd);
    errno = reason;
    return -1;
}

static void write_header(journal_t *journal)
{
    journal_header_t *header = journal->header;
    header->version = JOURNAL_VERSION;
    header->ring = JOURNAL_RING;
    header->entry_size = sizeof(journal_entry_t);
    header->block_size = sizeof(journal_block_t);
    header->pid = (int32_t)getpid();
    header->counter = journal->counter;
    header->process_high = journal->process.high;
    header->process_low = journal->process.low;
    header->ticks = journal->ticks;
    header->ns = journal->ns;
    snprintf(header->library, sizeof header->library, "%s", quoit_version());
    snprintf(header->host, sizeof header->host, "%s", log_host());
    header->magic = JOURNAL_MAGIC;
}

journal_t *journal_create(quoit_process_id_t process)
{
    journal_t *journal = calloc(1, sizeof *journal);
    if (!journal) return NULL;
    journal->process = process;
    journal->counter = ticks_have_counter();
    journal->ticks = ticks_now(journal->counter);
    journal->ns = clock_now();
    journal->fd = make_file();
    if (journal->fd < 0) {
        log_info("journal", "no memory file: %s; quoit debug cannot see this process", strerror(errno));
        return journal;
    }
    void *base = mmap(NULL, JOURNAL_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, journal->fd, 0);
    if (base == MAP_FAILED) {
        log_info("journal", "mapping %zu bytes: %s; quoit debug cannot see this process", JOURNAL_SIZE, strerror(errno));
        close(journal->fd);
        journal->fd = -1;
        return journal;
    }
    journal->base = base;
    journal->header = base;
    for (int i = 0; i < HEADER_PAGES; i++) journal->used[i] = true;
    write_header(journal);
    return journal;
}

void journal_destroy(journal_t *journal)
{
    if (!journal) return;
    if (journal->base) munmap(journal->base, JOURNAL_SIZE);
    if (journal->fd >= 0) close(journal->fd);
    free(journal);
}

/* ------------------------------------------------------------------ blocks */

/* First of `count` free pages in a row; -1 when there are none. */
static int find_pages(const journal_t *journal, int count)
{
    int run = 0;
    for (int page = 0; page < JOURNAL_PAGES; page++) {
        run = journal->used[page] ? 0 : run + 1;
        if (run == count) return page - count + 1;
    }
    return -1;
}

static int find_place(journal_t *journal)
{
    for (int i = 0; i < JOURNAL_BLOCKS; i++)
        if (atomic_load_explicit(&journal->header->block[i], memory_order_relaxed) == 0) return i;
    return -1;
}

journal_block_t *journal_block_create(journal_t *journal, int size)
{
    size_t bytes = sizeof(journal_block_t) + (size_t)size * sizeof(journal_member_t);
    int pages = (int)((bytes + JOURNAL_PAGE - 1) / JOURNAL_PAGE), place = -1, first = -1;
    if (journal && journal->base && pages < JOURNAL_PAGES) {
        place = find_place(journal);
        first = find_pages(journal, pages);
    }
    journal_block_t *block = NULL;
    if (place >= 0 && first >= 0) {
        block = (journal_block_t *)(void *)(journal->base + (size_t)first * JOURNAL_PAGE);
        memset(block, 0, bytes); /* another's before */
        for (int i = 0; i < pages; i++) journal->used[first + i] = true;
        atomic_store_explicit(&journal->header->block[place], (uint64_t)first << 32 | (uint32_t)pages, memory_order_release);
    } else { /* more communicators than the journal holds: these can be asked from inside only */
        block = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!block) return NULL;
        memset(block, 0, bytes);
    }
    block->size = size;
    block->counter = journal ? journal->counter : ticks_have_counter();
    return block;
}

void journal_publish(journal_block_t *block, uint64_t id) { atomic_store_explicit(&block->id, id, memory_order_release); }

void journal_block_destroy(journal_t *journal, journal_block_t *block)
{
    if (!block) return;
    uint8_t *at = (uint8_t *)block;
    if (!journal || !journal->base || at < journal->base || at >= journal->base + JOURNAL_SIZE) {
        free(block);
        return;
    }
    uint32_t first = (uint32_t)((size_t)(at - journal->base) / JOURNAL_PAGE);
    atomic_store_explicit(&block->id, 0, memory_order_release);
    for (int i = 0; i < JOURNAL_BLOCKS; i++) {
        uint64_t found = atomic_load_explicit(&journal->header->block[i], memory_order_relaxed);
        if (found == 0 || (uint32_t)(found >> 32) != first) continue;
        for (uint32_t page = 0; page < (uint32_t)found; page++) journal->used[first + page] = false;
        atomic_store_explicit(&journal->header->block[i], 0, memory_order_release);
        return;
    }
}

/* ------------------------------------------------------------------ away from the data path */

void journal_note(journal_block_t *block, uint64_t now, uint32_t sequence, const char *text)
{
    uint64_t turn = atomic_load_explicit(&block->note_turn, memory_order_relaxed);
    atomic_store_explicit(&block->note_turn, turn + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    block->note_time = now;
    block->note_sequence = sequence;
    snprintf(block->note, sizeof block->note, "%s", text);
    atomic_store_explicit(&block->note_turn, turn + 2, memory_order_release);
}

void journal_fail(journal_block_t *block, int status, const char *text)
{
    snprintf(block->error, sizeof block->error, "%s", text);
    atomic_store_explicit(&block->status, status, memory_order_release);
}

static void join(journal_view_t *view, bool counter, uint64_t ticks, uint64_t ns)
{
    struct timespec real;
    view->now = clock_now();
    clock_gettime(CLOCK_REALTIME, &real);
    view->to_real = (int64_t)((uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec - view->now);
    view->line = (ticks_line_t){{ticks, ticks_now(counter)}, {ns, view->now}};
}

void journal_view_own(const journal_t *journal, journal_view_t *view)
{
    *view = (journal_view_t){.pid = (int32_t)getpid(), .look_at_mates = true};
    if (journal) view->process = journal->process;
    snprintf(view->host, sizeof view->host, "%s", log_host());
    join(view, journal && journal->counter, journal ? journal->ticks : 0, journal ? journal->ns : 0);
}

journal_block_t *journal_block_copy(const journal_block_t *source)
{
    size_t bytes = sizeof *source + (size_t)source->size * sizeof source->member[0];
    journal_block_t *copy = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (copy) memcpy(copy, source, bytes);
    return copy;
}
