/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Store in a file that all ranks can lock: a log to which records are only appended, the last record of a key counts.
 *
 *   file    "QUOITST1", then records
 *   record  magic u32, key length u32, value length u32, checksum u64 (of lengths, key and value), key, value; little-endian
 *
 * Whoever appends holds the exclusive lock and first cuts off what a killed writer left unfinished behind the last good record. A
 * reader takes the shared lock, only when the file has grown, and reads on from where it stopped. The file is opened by name for
 * each call, so one that was removed and made anew is noticed.
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/store_internal.h"
#include "base/store_map.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAGIC "QUOITST1"
enum { FILE_HEADER_SIZE = 8, RECORD_HEADER_SIZE = 20, RECORD_MAGIC = 0x52545351, SHORTEST_PAUSE_MS = 1, LONGEST_PAUSE_MS = 50 };

typedef struct file_entry {
    store_key_t key; /* first */
    off_t offset;    /* of the value */
    size_t length;
} file_entry_t;

typedef struct file_store {
    quoit_store_t base;
    char *path;     /* owned */
    int timeout_ms; /* for locks */
    pthread_mutex_t mutex;
    store_map_t map;  /* what has been read */
    off_t read_up_to; /* 0, or behind a good record */
    dev_t device;     /* of the file that was read */
    ino_t inode;
} file_store_t;

static uint64_t record_checksum(const uint8_t *body, size_t key_length, size_t value_length)
{
    return hash_bytes(hash_combine(key_length, value_length), body, key_length + value_length);
}

static void pause_ms(int milliseconds)
{
    struct timespec time = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

/* Pause before the next look, doubling; at most what is left. */
static void pause_before_next(int *pause, uint64_t deadline)
{
    int left = clock_left_ms(deadline);
    pause_ms(left >= 0 && left < *pause ? left : *pause);
    *pause = *pause * 2 > LONGEST_PAUSE_MS ? LONGEST_PAUSE_MS : *pause * 2;
}

/* false: end of file or error, told by *number (0: end). */
static bool read_at(int fd, void *data, size_t length, off_t offset, int *number)
{
    for (size_t done = 0; done < length;) {
        ssize_t got = pread(fd, (uint8_t *)data + done, length - done, offset + (off_t)done);
        if (got < 0 && errno == EINTR) continue;
        *number = got < 0 ? errno : 0;
        if (got <= 0) return false;
        done += (size_t)got;
    }
    return true;
}

static quoit_status_t write_at(const file_store_t *self, int fd, const void *data, size_t length, off_t offset)
{
    for (size_t done = 0; done < length;) {
        ssize_t put = pwrite(fd, (const uint8_t *)data + done, length - done, offset + (off_t)done);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "store %s: write of %zu bytes", self->base.description, length);
        done += (size_t)put;
    }
    return QUOIT_OK;
}

static quoit_status_t lock_file(const file_store_t *self, int fd, int kind, uint64_t deadline)
{
    for (int pause = SHORTEST_PAUSE_MS; flock(fd, kind | LOCK_NB) != 0;) {
        if (errno == EINTR) continue;
        if (errno != EWOULDBLOCK) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "store %s: flock", self->base.description);
        if (clock_left_ms(deadline) == 0)
            return error_set(QUOIT_ERR_TIMEOUT, "store %s: another process holds the lock of the file all the time; if it is stopped, "
                             "continue or kill it", self->base.description);
        pause_before_next(&pause, deadline);
    }
    return QUOIT_OK;
}

/* Unlocks by name: a child forked meanwhile shares the descriptor, so closing alone would leave the lock with it. */
static void close_file(int fd)
{
    (void)flock(fd, LOCK_UN);
    close(fd);
}

static void forget_all(file_store_t *self)
{
    size_t cursor = 0;
    for (store_key_t *entry; (entry = store_map_pop(&self->map, &cursor));) free(entry);
    self->read_up_to = 0;
}

static quoit_status_t remember(file_store_t *self, const char *key, off_t offset, size_t length)
{
    file_entry_t *entry = (file_entry_t *)store_map_find(&self->map, key);
    if (!entry) {
        entry = calloc(1, sizeof *entry);
        if (!entry) return error_set(QUOIT_ERR_NO_MEMORY, "store %s: no memory", self->base.description);
        quoit_status_t status = store_map_insert(&self->map, key, &entry->key);
        if (status != QUOIT_OK) {
            free(entry);
            return status;
        }
    }
    entry->offset = offset;
    entry->length = length;
    return QUOIT_OK;
}

/* One record at self->read_up_to. *good: false when there is no whole one. */
static quoit_status_t read_record(file_store_t *self, int fd, off_t size, bool *good)
{
    uint8_t header[RECORD_HEADER_SIZE];
    int number = 0;
    off_t body_at = self->read_up_to + RECORD_HEADER_SIZE;
    *good = false;
    if (size - self->read_up_to < RECORD_HEADER_SIZE) return QUOIT_OK;
    if (!read_at(fd, header, sizeof header, self->read_up_to, &number)) goto unread;
    size_t key_length = bytes_get32(header + 4), value_length = bytes_get32(header + 8);
    uint64_t checksum = bytes_get64(header + 12);
    if (bytes_get32(header) != RECORD_MAGIC || key_length < 1 || key_length > STORE_KEY_MAX || value_length > STORE_VALUE_MAX) return QUOIT_OK;
    if (size - body_at < (off_t)(key_length + value_length)) return QUOIT_OK;
    uint8_t *body = malloc(key_length + value_length);
    if (!body) return error_set(QUOIT_ERR_NO_MEMORY, "store %s: no memory for a record of %zu bytes", self->base.description, value_length);
    quoit_status_t status = QUOIT_OK;
    bool whole = read_at(fd, body, key_length + value_length, body_at, &number);
    if (whole && record_checksum(body, key_length, value_length) == checksum && !memchr(body, '\0', key_length)) {
        char key[STORE_KEY_MAX + 1];
        memcpy(key, body, key_length);
        key[key_length] = '\0';
        status = remember(self, key, body_at + (off_t)key_length, value_length);
        *good = status == QUOIT_OK;
        if (*good) self->read_up_to = body_at + (off_t)(key_length + value_length);
    }
    free(body);
    if (whole) return status;
unread:
    return number == 0 ? QUOIT_OK : error_set_errno(QUOIT_ERR_SYSTEM, number, "store %s: read", self->base.description);
}

static quoit_status_t not_a_store(const file_store_t *self)
{
    return error_set(QUOIT_ERR_INVALID, "store %s: the file exists and is no Quoit store; name another one", self->base.description);
}

/* Read what is new. The file is locked. */
static quoit_status_t catch_up(file_store_t *self, int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "store %s: fstat", self->base.description);
    if (info.st_dev != self->device || info.st_ino != self->inode || info.st_size < self->read_up_to) forget_all(self);
    self->device = info.st_dev;
    self->inode = info.st_ino;
    if (self->read_up_to == 0) {
        uint8_t header[FILE_HEADER_SIZE];
        int number = 0;
        if (info.st_size < FILE_HEADER_SIZE) return QUOIT_OK;
        if (!read_at(fd, header, sizeof header, 0, &number) || memcmp(header, FILE_MAGIC, FILE_HEADER_SIZE) != 0) return not_a_store(self);
        self->read_up_to = FILE_HEADER_SIZE;
    }
    quoit_status_t status = QUOIT_OK;
    for (bool good = true; good && status == QUOIT_OK;) status = read_record(self, fd, info.st_size, &good);
    return status;
}

/* Make the end of the file a good place to append to. The file is locked for writing and has been read. */
static quoit_status_t mend_tail(file_store_t *self, int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "store %s: fstat", self->base.description);
    if (self->read_up_to == 0) {
        char start[FILE_HEADER_SIZE];
        int number = 0;
        if (info.st_size >= FILE_HEADER_SIZE) return not_a_store(self); /* something wrote there without the lock since it was read */
        size_t there = (size_t)info.st_size;
        if (there > 0 && (!read_at(fd, start, there, 0, &number) || memcmp(start, FILE_MAGIC, there) != 0)) return not_a_store(self);
        quoit_status_t status = write_at(self, fd, FILE_MAGIC, FILE_HEADER_SIZE, 0);
        if (status == QUOIT_OK) self->read_up_to = FILE_HEADER_SIZE;
        return status;
    }
    if (info.st_size == self->read_up_to) return QUOIT_OK;
    log_info("store", "%s: cutting off %lld bytes of a record that was not finished", self->base.description,
             (long long)(info.st_size - self->read_up_to));
    if (ftruncate(fd, self->read_up_to) != 0)
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "store %s: ftruncate", self->base.description);
    return QUOIT_OK;
}

static quoit_status_t open_file(const file_store_t *self, int *result)
{
    struct stat info;
    int fd = open(self->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600);
    if (fd < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "store %s: open", self->base.description);
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return error_set(QUOIT_ERR_INVALID, "store %s: not a regular file", self->base.description);
    }
    *result = fd;
    return QUOIT_OK;
}

static quoit_status_t append_record(file_store_t *self, int fd, const char *key, const void *value, size_t length)
{
    size_t key_length = strlen(key);
    uint8_t *record = malloc(RECORD_HEADER_SIZE + key_length + length);
    if (!record) return error_set(QUOIT_ERR_NO_MEMORY, "store %s: no memory for a value of %zu bytes", self->base.description, length);
    uint8_t *body = record + RECORD_HEADER_SIZE;
    memcpy(body, key, key_length);
    if (length > 0) memcpy(body + key_length, value, length);
    uint64_t checksum = record_checksum(body, key_length, length);
    bytes_put32(record, RECORD_MAGIC);
    bytes_put32(record + 4, (uint32_t)key_length);
    bytes_put32(record + 8, (uint32_t)length);
    bytes_put64(record + 12, checksum);
    quoit_status_t status = catch_up(self, fd);
    if (status == QUOIT_OK) status = mend_tail(self, fd);
    if (status == QUOIT_OK) status = write_at(self, fd, record, RECORD_HEADER_SIZE + key_length + length, self->read_up_to);
    free(record);
    return status;
}

static quoit_status_t file_set(quoit_store_t *store, const char *key, const void *value, size_t length)
{
    file_store_t *self = (file_store_t *)store;
    int fd;
    if (length > STORE_VALUE_MAX)
        return error_set(QUOIT_ERR_INVALID, "store %s: a value has at most %d bytes, this one %zu", store->description, STORE_VALUE_MAX, length);
    pthread_mutex_lock(&self->mutex);
    quoit_status_t status = open_file(self, &fd);
    if (status == QUOIT_OK) {
        status = lock_file(self, fd, LOCK_EX, clock_deadline(self->timeout_ms));
        if (status == QUOIT_OK) status = append_record(self, fd, key, value, length);
        close_file(fd);
    }
    pthread_mutex_unlock(&self->mutex);
    return status;
}

/* The value at once, or *found = false. */
static quoit_status_t look(file_store_t *self, int fd, const char *key, uint64_t lock_deadline, void **value, size_t *length, bool *found)
{
    struct stat info;
    quoit_status_t status = QUOIT_OK;
    bool unread = fstat(fd, &info) != 0 || info.st_dev != self->device || info.st_ino != self->inode || info.st_size != self->read_up_to;
    if (unread) status = lock_file(self, fd, LOCK_SH, lock_deadline);
    if (unread && status == QUOIT_OK) status = catch_up(self, fd);
    if (status != QUOIT_OK) return status;
    const file_entry_t *entry = (const file_entry_t *)store_map_find(&self->map, key);
    *found = entry != NULL;
    if (!entry) return QUOIT_OK;
    int number = 0;
    void *data = malloc(entry->length ? entry->length : 1);
    if (!data) return error_set(QUOIT_ERR_NO_MEMORY, "store %s: no memory for a value of %zu bytes", self->base.description, entry->length);
    if (!read_at(fd, data, entry->length, entry->offset, &number)) {
        free(data);
        return error_set_errno(QUOIT_ERR_SYSTEM, number ? number : EIO, "store %s: read", self->base.description);
    }
    *value = data;
    *length = entry->length;
    return QUOIT_OK;
}

static quoit_status_t file_get(quoit_store_t *store, const char *key, int timeout_ms, void **value, size_t *length)
{
    file_store_t *self = (file_store_t *)store;
    uint64_t deadline = clock_deadline(timeout_ms);
    for (int pause = SHORTEST_PAUSE_MS;;) {
        bool found = false;
        int fd, lock_ms = clock_left_ms(deadline) > 1000 ? clock_left_ms(deadline) : 1000; /* a late reader gets its look too */
        pthread_mutex_lock(&self->mutex);
        quoit_status_t status = open_file(self, &fd);
        if (status == QUOIT_OK) {
            status = look(self, fd, key, clock_deadline(lock_ms), value, length, &found);
            close_file(fd);
        }
        pthread_mutex_unlock(&self->mutex);
        if (status != QUOIT_OK || found) return status;
        if (clock_left_ms(deadline) == 0)
            return error_set(QUOIT_ERR_TIMEOUT, "store %s: key \"%s\" did not appear within %d ms", store->description, key, timeout_ms);
        pause_before_next(&pause, deadline);
    }
}

static void file_close(quoit_store_t *store)
{
    file_store_t *self = (file_store_t *)store;
    if (self->map.table) forget_all(self);
    store_map_release(&self->map);
    pthread_mutex_destroy(&self->mutex);
    free(self->path);
    free(self);
}

static const store_calls_t file_calls = {.set = file_set, .get = file_get, .close = file_close};

quoit_status_t store_file_open(const char *path, int timeout_ms, quoit_store_t **store)
{
    file_store_t *self = calloc(1, sizeof *self);
    size_t length = strlen(path) + sizeof "file://";
    char *description = malloc(length);
    quoit_status_t status = QUOIT_ERR_NO_MEMORY;
    int fd;
    if (!self || !description || !(self->path = strdup(path))) {
        error_set(status, "no memory for a store");
        goto fail;
    }
    snprintf(description, length, "file://%s", path);
    self->base = (quoit_store_t){.calls = &file_calls, .description = description, .owner = getpid()};
    self->timeout_ms = timeout_ms;
    pthread_mutex_init(&self->mutex, NULL);
    status = store_map_init(&self->map);
    if (status == QUOIT_OK) status = open_file(self, &fd);
    if (status != QUOIT_OK) goto fail;
    status = lock_file(self, fd, LOCK_SH, clock_deadline(timeout_ms));
    if (status == QUOIT_OK) status = catch_up(self, fd); /* says now when the file is something else */
    close_file(fd);
    if (status != QUOIT_OK) goto fail;
    *store = &self->base;
    return QUOIT_OK;
fail:
    if (self) file_close(&self->base);
    free(description);
    return status;
}
