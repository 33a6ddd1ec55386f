/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Log lines. A line is built on the stack and goes out in one write() to a file opened for appending, so lines of many threads and
 * processes do not mix. No lock is held anywhere: a process forked in the middle of a message can log. Files once opened stay open
 * in a list that only grows, one entry for each (path, rank, process) in which they differ.
 */
#include "base/log.h"

#include "base/clock.h"
#include "base/hash.h"
#include "base/settings_table.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_CAPACITY = 2048, LIMITED_COUNT = 64 };

typedef struct log_target {
    struct log_target *next;
    char *path; /* owned, expanded */
    int fd;
} log_target_t;

static _Atomic(log_target_t *) targets;
static atomic_int shown_rank = -1;

static const char *const level_names[] = {[LOG_ERROR] = "error", [LOG_WARN] = "warn", [LOG_INFO] = "info", [LOG_DEBUG] = "debug"};

static pthread_once_t host_once = PTHREAD_ONCE_INIT;
static char host_name[HOST_NAME_MAX + 1] = "?";

static void find_host(void)
{
    char name[HOST_NAME_MAX + 1];
    if (gethostname(name, sizeof name) != 0) return;
    name[sizeof name - 1] = '\0';
    if (name[0]) memcpy(host_name, name, sizeof name);
}

const char *log_host(void)
{
    pthread_once(&host_once, find_host);
    return host_name;
}

void log_set_rank(int rank) { atomic_store_explicit(&shown_rank, rank, memory_order_relaxed); }

bool log_enabled(log_level_t level)
{
    int64_t least = settings_are_loaded() ? setting_int(SETTING_LOG) : (int64_t)LOG_WARN;
    return (int64_t)level <= least;
}

bool log_expand_path(const char *pattern, int rank, char path[PATH_MAX])
{
    size_t length = 0;
    for (const char *c = pattern; *c; c++) {
        char piece[HOST_NAME_MAX + 1] = {*c};
        char kind = *c == '%' ? c[1] : '\0';
        if (kind == 'r' && rank < 0) snprintf(piece, sizeof piece, "none");
        else if (kind == 'r') snprintf(piece, sizeof piece, "%d", rank);
        else if (kind == 'h') snprintf(piece, sizeof piece, "%s", log_host());
        else if (kind == 'p') snprintf(piece, sizeof piece, "%ld", (long)getpid());
        if (kind == 'r' || kind == 'h' || kind == 'p' || kind == '%') c++;
        size_t added = strlen(piece);
        if (length + added >= PATH_MAX) return false;
        memcpy(path + length, piece, added);
        length += added;
    }
    path[length] = '\0';
    return true;
}

static bool is_directory(const char *path)
{
    struct stat found;
    return path[strlen(path) - 1] == '/' || (stat(path, &found) == 0 && S_ISDIR(found.st_mode));
}

bool log_rank_path(const char *pattern, int rank, const char *name, char path[PATH_MAX])
{
    char whole[PATH_MAX];
    size_t length = strlen(pattern);
    const char *slash = strrchr(pattern, '/'), *dot = strrchr(pattern, '.'), *name_begin = slash ? slash + 1 : pattern;
    size_t tail = dot && dot > name_begin ? strlen(dot) : 0;
    bool tells = strstr(pattern, "%r") || strstr(pattern, "%p");
    if (length == 0 || length >= sizeof whole) return false;
    int printed;
    if (is_directory(pattern))
        printed = snprintf(whole, sizeof whole, "%s/%s", pattern, name);
    else
        printed = snprintf(whole, sizeof whole, "%.*s%s%s", (int)(length - tail), pattern, tells ? "" : ".%r", pattern + length - tail);
    return printed > 0 && (size_t)printed < sizeof whole && log_expand_path(whole, rank, path);
}

static void write_whole(int fd, const char *line, size_t length)
{
    ssize_t written;
    do written = write(fd, line, length);
    while (written < 0 && errno == EINTR);
}

/* Add a target for `path`, opened or, with a word on standard error, standing for standard error. */
static int open_target(const char *path)
{
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY, 0600);
    if (fd < 0) {
        char line[PATH_MAX + 160], reason[96];
        int length = snprintf(line, sizeof line, "quoit error log: %s=%s: %s; messages go to standard error\n",
                              setting_name(SETTING_LOG_FILE), path, strerror_r(errno, reason, sizeof reason));
        write_whole(STDERR_FILENO, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
    }
    log_target_t *target = malloc(sizeof *target);
    char *copy = strdup(path);
    if (!target || !copy) { /* the file would be opened for every line: do without */
        free(target);
        free(copy);
        if (fd >= 0) close(fd);
        return STDERR_FILENO;
    }
    *target = (log_target_t){.next = atomic_load(&targets), .path = copy, .fd = fd < 0 ? STDERR_FILENO : fd};
    while (!atomic_compare_exchange_weak(&targets, &target->next, target)) {}
    return target->fd;
}

static int target_fd(void)
{
    char path[PATH_MAX];
    const char *pattern = settings_are_loaded() ? setting_string(SETTING_LOG_FILE) : "";
    if (!*pattern || !log_expand_path(pattern, atomic_load_explicit(&shown_rank, memory_order_relaxed), path)) return STDERR_FILENO;
    for (const log_target_t *target = atomic_load(&targets); target; target = target->next)
        if (!strcmp(target->path, path)) return target->fd;
    return open_target(path);
}

static void write_line(log_level_t level, const char *room, const char *message)
{
    char line[LINE_CAPACITY], origin[48];
    int saved_errno = errno, rank = atomic_load_explicit(&shown_rank, memory_order_relaxed);
    if (rank >= 0) snprintf(origin, sizeof origin, "rank %d", rank);
    else snprintf(origin, sizeof origin, "pid %ld", (long)getpid());
    int printed = snprintf(line, sizeof line, "quoit [%s @ %s] %s %s: %s", origin, log_host(), level_names[level], room, message);
    size_t length = printed < 0 ? 0 : (size_t)printed < sizeof line ? (size_t)printed : sizeof line - 1;
    for (size_t i = 0; i < length; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = ' '; /* what a peer sent shall not forge lines */
    if (length == sizeof line - 1) length--;
    line[length++] = '\n';
    write_whole(target_fd(), line, length);
    errno = saved_errno;
}

void log_write(log_level_t level, const char *room, const char *format, ...)
{
    if (!log_enabled(level)) return;
    char message[LINE_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    write_line(level, room, message);
}

/* One key of log_write_limited. The first entry is for all keys that find no place. */
typedef struct limited {
    uint64_t key, time; /* of the newest line; time 0: free */
    unsigned left_out;
} limited_t;

static limited_t limited[LIMITED_COUNT];
static atomic_flag limited_busy = ATOMIC_FLAG_INIT;

/* The key's entry; else a free or lapsed one, made the key's; else, when LIMITED_COUNT keys are all fresh, the common one. */
static limited_t *limited_find(uint64_t key, uint64_t now)
{
    limited_t *oldest = NULL;
    for (int i = 1; i < LIMITED_COUNT; i++) {
        limited_t *entry = &limited[i];
        if (entry->time && entry->key == key) return entry;
        if (!oldest || entry->time < oldest->time) oldest = entry;
    }
    if (oldest->time && now - oldest->time < 1000000000u) return &limited[0];
    *oldest = (limited_t){.key = key};
    return oldest;
}

/* Whether a line may go out now, and how many were left out before it. */
static bool limited_pass(const char *key, unsigned *left_out)
{
    *left_out = 0;
    for (int tries = 0; atomic_flag_test_and_set_explicit(&limited_busy, memory_order_acquire); tries++) {
        if (tries == 1000) return true; /* held by a thread that a fork left behind, or just slow: rather one line too many */
        usleep(0);
    }
    uint64_t now = clock_now();
    limited_t *entry = limited_find(hash_bytes(0, key, strlen(key)), now);
    bool pass = entry->time == 0 || now - entry->time >= 1000000000u;
    if (pass) {
        *left_out = entry->left_out;
        entry->left_out = 0;
        entry->time = now;
    } else {
        entry->left_out++;
    }
    atomic_flag_clear_explicit(&limited_busy, memory_order_release);
    return pass;
}

void log_write_limited(const char *key, log_level_t level, const char *room, const char *format, ...)
{
    unsigned left_out;
    if (!log_enabled(level) || !limited_pass(key, &left_out)) return;
    char message[LINE_CAPACITY];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (left_out > 0 && length >= 0 && (size_t)length < sizeof message)
        snprintf(message + length, sizeof message - (size_t)length, " (%u like it were left out)", left_out);
    write_line(level, room, message);
}
