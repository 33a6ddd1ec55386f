/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Journal: reading another process's. /proc/<pid>/fd opens its memfd anew for whoever may look into that process (the same user,
 * or root); Yama's limit on attaching does not apply to it. Everything is read by pread into own memory and checked there: what
 * the other writes meanwhile, or has written to mislead, can only make the answer wrong, not this process.
 */
#include "scheduler/comm.h"
#include "scheduler/journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILES_CAPACITY = 64, READ_TRIES = 3 };

/* One journal of a process. */
typedef struct source {
    int fd;
    journal_header_t header;
} source_t;

static bool read_whole(int fd, void *memory, size_t bytes, uint64_t offset)
{
    return pread(fd, memory, bytes, (off_t)offset) == (ssize_t)bytes;
}

/* The pid that the process knows itself by: the last one of NSpid when it lives in a container. */
static int inner_pid(int pid)
{
    char path[64], line[256];
    int inner = pid;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    if (!file) return pid;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "NSpid:", 6) != 0) continue;
        char *last = strrchr(line, '\t');
        if (last) inner = atoi(last + 1);
    }
    fclose(file);
    return inner;
}

static bool is_journal(const char *directory, const char *name)
{
    char path[PATH_MAX], target[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    ssize_t length = readlink(path, target, sizeof target - 1);
    if (length < 0) return false;
    target[length] = '\0';
    return strncmp(target, "/memfd:" JOURNAL_FILE, sizeof "/memfd:" JOURNAL_FILE - 1) == 0;
}

/* Open the journals of a process; a forked child's copies of its parent's are left out. Returns how many, or -1 with errno. */
static int open_sources(int pid, source_t *source, int capacity)
{
    char directory[64];
    snprintf(directory, sizeof directory, "/proc/%d/fd", pid);
    DIR *entries = opendir(directory);
    if (!entries) return -1;
    int count = 0, inner = inner_pid(pid);
    for (struct dirent *entry; count < capacity && (entry = readdir(entries));) {
        if (!is_journal(directory, entry->d_name)) continue;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        source_t *each = &source[count];
        each->fd = open(path, O_RDONLY | O_CLOEXEC);
        if (each->fd < 0) continue;
        const journal_header_t *header = &each->header;
        bool ours = read_whole(each->fd, &each->header, sizeof each->header, 0) && header->magic == JOURNAL_MAGIC && header->pid == inner;
        if (ours)
            count++;
        else
            close(each->fd);
    }
    closedir(entries);
    return count;
}

static bool same_layout(const journal_header_t *header)
{
    return header->version == JOURNAL_VERSION && header->ring == JOURNAL_RING && header->entry_size == sizeof(journal_entry_t) &&
           header->block_size == sizeof(journal_block_t);
}

static void clean_text(char *text, size_t capacity) { text_copy_printable(text, text, strnlen(text, capacity - 1)); }

static void clean_texts(journal_block_t *block)
{
    clean_text(block->name, sizeof block->name);
    clean_text(block->error, sizeof block->error);
    clean_text(block->note, sizeof block->note);
    for (int i = 0; i < block->size; i++) clean_text(block->member[i].host_name, JOURNAL_NAME);
}

/* A copy of the block at this place of the table; NULL when there is none, or none to be trusted. */
static journal_block_t *read_block(const source_t *source, int place)
{
    uint64_t where = atomic_load(&source->header.block[place]);
    size_t first = (size_t)(where >> 32), pages = (size_t)(uint32_t)where, bytes = pages * JOURNAL_PAGE;
    if (pages == 0 || first + pages > JOURNAL_PAGES || bytes < sizeof(journal_block_t)) return NULL;
    journal_block_t *block = aligned_alloc(64, bytes);
    if (!block) return NULL;
    for (int tries = 0; tries < READ_TRIES; tries++) { /* again when a note was being written */
        if (!read_whole(source->fd, block, bytes, first * JOURNAL_PAGE)) break;
        bool fits = atomic_load(&block->id) != 0 && block->size > 0 && block->rank >= 0 && block->rank < block->size &&
                    (size_t)block->size <= (bytes - sizeof *block) / sizeof block->member[0];
        if (!fits) break;
        if (atomic_load(&block->note_turn) & 1 && tries + 1 < READ_TRIES) continue;
        clean_texts(block);
        return block;
    }
    free(block);
    return NULL;
}

static void view_of(const source_t *source, int pid, journal_view_t *view)
{
    const journal_header_t *header = &source->header;
    struct timespec real;
    *view = (journal_view_t){.pid = pid, .process = {header->process_high, header->process_low}, .look_at_mates = true};
    text_copy_printable(view->host, header->host, strnlen(header->host, sizeof view->host - 1));
    view->now = clock_now();
    clock_gettime(CLOCK_REALTIME, &real);
    view->to_real = (int64_t)((uint64_t)real.tv_sec * 1000000000u + (uint64_t)real.tv_nsec - view->now);
    view->line = (ticks_line_t){{header->ticks, ticks_now(header->counter)}, {header->ns, view->now}};
}

static quoit_status_t foreign_layout(const source_t *source, int pid)
{
    char library[sizeof source->header.library];
    text_copy_printable(library, source->header.library, strnlen(source->header.library, sizeof library - 1));
    return error_set(QUOIT_ERR_MISMATCH, "process %d runs Quoit %s, whose journal this version (%s) cannot read", pid, library, quoit_version());
}

static quoit_status_t show_source(const source_t *source, int pid, journal_show_t *show, void *context)
{
    if (!same_layout(&source->header))
        return foreign_layout(source, pid);
    journal_view_t view;
    view_of(source, pid, &view);
    for (int place = 0; place < JOURNAL_BLOCKS; place++) {
        journal_block_t *block = read_block(source, place);
        if (block) show(context, block, &view);
        free(block);
    }
    return QUOIT_OK;
}

quoit_status_t journal_read_file(int fd, int pid, journal_show_t *show, void *context)
{
    source_t source = {.fd = fd};
    if (!read_whole(fd, &source.header, sizeof source.header, 0) || source.header.magic != JOURNAL_MAGIC)
        return error_set(QUOIT_ERR_NOT_FOUND, "the file of process %d is no journal of Quoit", pid);
    return show_source(&source, pid, show, context);
}

quoit_status_t journal_read_process(int pid, journal_show_t *show, void *context)
{
    source_t *source = calloc(FILES_CAPACITY, sizeof *source);
    if (!source) return error_set(QUOIT_ERR_NO_MEMORY, "reading the journals of process %d", pid);
    quoit_status_t status = QUOIT_OK;
    int count = open_sources(pid, source, FILES_CAPACITY);
    if (count < 0)
        status = error_set(QUOIT_ERR_SYSTEM, "process %d: /proc/%d/fd: %s; it must live, and belong to the same user", pid, pid, strerror(errno));
    else if (count == 0)
        status = error_set(QUOIT_ERR_NOT_FOUND, "process %d has no journal of Quoit: it has made no communicator, or it is a child forked by one that has", pid);
    for (int i = 0; i < count; i++) {
        if (status == QUOIT_OK) status = show_source(&source[i], pid, show, context);
        close(source[i].fd);
    }
    free(source);
    return status;
}

/* ------------------------------------------------------------------ host mates */

static bool newest_of(const journal_block_t *block, uint32_t *sequence, char *text, size_t capacity)
{
    uint64_t newest = atomic_load(&block->collective.newest);
    const journal_entry_t *entry = &block->collective.entry[newest % JOURNAL_RING];
    *sequence = newest ? entry->sequence : 0;
    if (newest && atomic_load(&entry->number) != newest) return false; /* it is at work */
    operation_description_t description = {.sequence = entry->sequence, .collective = entry->collective, .dtype = entry->dtype, .op = entry->op,
                                           .root = entry->other, .count = entry->count};
    operation_text(&description, text, capacity);
    return true;
}

bool journal_read_newest(int pid, quoit_process_id_t process, uint64_t comm, uint32_t *sequence, char *text, size_t capacity)
{
    source_t *source = calloc(FILES_CAPACITY, sizeof *source);
    if (!source) return false;
    bool found = false, known = false;
    int count = open_sources(pid, source, FILES_CAPACITY);
    for (int i = 0; i < count; i++) {
        const journal_header_t *header = &source[i].header;
        bool wanted = same_layout(header) && header->process_high == process.high && header->process_low == process.low;
        known |= wanted;
        for (int place = 0; wanted && !found && place < JOURNAL_BLOCKS; place++) {
            journal_block_t *block = read_block(&source[i], place);
            if (block && atomic_load(&block->id) == comm) found = newest_of(block, sequence, text, capacity);
            free(block);
        }
        close(source[i].fd);
    }
    free(source);
    if (known && !found) *sequence = 0; /* it has not made this communicator yet */
    return known;
}
