/* SPDX-License-Identifier: Apache-2.0 */
/* History: making a communicator's block, notes, the dump on failure, and the public calls. See history.h and journal.h. */
#include "scheduler/history.h"

#include "base/log.h"
#include "base/settings.h"
#include "scheduler/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NOTE_INTERVAL_NS = 100000000 };

quoit_status_t history_create(quoit_comm_t *comm)
{
    journal_block_t *block = journal_block_create(comm->engine->journal, comm->size);
    if (!block) return error_set(QUOIT_ERR_NO_MEMORY, "the journal of a communicator of %d ranks", comm->size);
    snprintf(block->name, sizeof block->name, "%s", comm->name);
    block->rank = comm->rank;
    block->hosts = comm->topology->hosts;
    for (int i = 0; i < comm->size; i++) {
        const job_record_t *record = &comm->job->record[comm->job_rank[i]];
        journal_member_t *member = &block->member[i];
        member->process_high = record->process.high;
        member->process_low = record->process.low;
        member->pid = record->pid;
        member->host = comm->topology->host[i];
        snprintf(member->host_name, sizeof member->host_name, "%s", record->host);
    }
    journal_publish(block, comm->id);
    comm->journal = block;
    return QUOIT_OK;
}

void history_note(quoit_comm_t *comm, uint64_t now)
{
    journal_block_t *block = comm->journal;
    if (!comm->execution.operation || now - block->note_time < NOTE_INTERVAL_NS) return;
    char text[JOURNAL_NOTE];
    execute_missing(comm, text, sizeof text);
    journal_note(block, now, comm->execution.operation->description.sequence, text);
}

/* ------------------------------------------------------------------ the dump */

static bool is_json(const char *path)
{
    size_t length = strlen(path);
    return length >= 5 && strcmp(path + length - 5, ".json") == 0;
}

/* False with errno: a full disk takes a part, and says at the next call why it takes no more. */
static bool write_all(int fd, const char *data, size_t length)
{
    while (length > 0) {
        ssize_t written = write(fd, data, length);
        if (written < 0 && errno != EINTR) return false;
        if (written > 0) {
            data += written;
            length -= (size_t)written;
        }
    }
    return true;
}

static void write_dump(const quoit_comm_t *comm, const char *pattern, const journal_block_t *copy, const journal_view_t *view)
{
    static _Atomic int dumps; /* the first of a process begins the file anew */
    char path[PATH_MAX], *data = NULL;
    text_t text = {0};
    if (!log_rank_path(pattern, comm->job->rank, "quoit-dump.%r.txt", path)) {
        log_warn("dump", "QUOIT_DUMP=%s is too long a path", pattern);
        return;
    }
    if (is_json(path)) {
        journal_print_json(copy, view, &text);
        text_append(&text, "\n");
    } else
        journal_print_text(copy, view, &text);
    if (text_finish(&text, &data) != QUOIT_OK) return;
    int begin = atomic_fetch_add(&dumps, 1) == 0 ? O_TRUNC : O_APPEND;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | begin, 0600);
    if (fd < 0 || !write_all(fd, data, strlen(data)))
        log_warn("dump", "QUOIT_DUMP: %s: %s", path, strerror(errno));
    else
        log_info("dump", "the newest operations of %s are in %s", comm->name, path);
    if (fd >= 0) close(fd);
    free(data);
}

static void log_dump(const journal_block_t *copy, const journal_view_t *view)
{
    char *data = NULL, *rest = NULL;
    text_t text = {0};
    journal_print_text(copy, view, &text);
    if (text_finish(&text, &data) != QUOIT_OK) return;
    for (char *line = strtok_r(data, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) log_info("dump", "%s", line);
    free(data);
}

void history_dump(quoit_comm_t *comm)
{
    const char *pattern = setting_string(SETTING_DUMP);
    if (!*pattern && !log_enabled(LOG_INFO)) return;
    journal_view_t view;
    journal_view_own(comm->engine->journal, &view);
    journal_block_t *copy = journal_block_copy(comm->journal);
    if (!copy) return;
    if (*pattern) write_dump(comm, pattern, copy, &view);
    if (log_enabled(LOG_INFO)) log_dump(copy, &view);
    free(copy);
}

/* ------------------------------------------------------------------ public calls */

static quoit_status_t check_format(quoit_format_t format, char **result, const char *what)
{
    if (!result) return error_set(QUOIT_ERR_INVALID, "%s: text is NULL", what);
    if (format != QUOIT_FORMAT_TEXT && format != QUOIT_FORMAT_JSON) return error_set(QUOIT_ERR_INVALID, "%s: %d is no format", what, (int)format);
    return QUOIT_OK;
}

quoit_status_t quoit_comm_history(quoit_comm_t *comm, quoit_format_t format, char **result)
{
    if (!comm) return error_set(QUOIT_ERR_INVALID, "quoit_comm_history: comm is NULL");
    if (comm->fork_generation != engine_fork_generation())
        return error_set(QUOIT_ERR_FORKED, "quoit_comm_history: communicator %s belongs to the parent process", comm->name);
    quoit_status_t status = check_format(format, result, "quoit_comm_history");
    if (status != QUOIT_OK) return status;
    engine_enter(comm->engine);
    journal_view_t view;
    journal_view_own(comm->engine->journal, &view);
    journal_block_t *copy = journal_block_copy(comm->journal);
    engine_leave(comm->engine);
    if (!copy) return error_set(QUOIT_ERR_NO_MEMORY, "the history of %s", comm->name);
    text_t text = {0};
    if (format == QUOIT_FORMAT_JSON)
        journal_print_json(copy, &view, &text);
    else
        journal_print_text(copy, &view, &text);
    free(copy);
    return text_finish(&text, result);
}

typedef struct report {
    text_t text;
    quoit_format_t format;
    int shown;
} report_t;

static void show(void *context, const journal_block_t *block, const journal_view_t *view)
{
    report_t *report = context;
    if (report->format == QUOIT_FORMAT_JSON) {
        if (report->shown) text_append(&report->text, ", ");
        journal_print_json(block, view, &report->text);
    } else
        journal_print_text(block, view, &report->text);
    report->shown++;
}

/* "stopped" for T and t, and so on: why nothing moves may be as simple as that. */
static void process_state(int pid, char state[32])
{
    char path[64], line[256];
    snprintf(state, 32, "unknown");
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *file = fopen(path, "re");
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        const char *open = strncmp(line, "State:", 6) == 0 ? strchr(line, '(') : NULL;
        if (open) snprintf(state, 32, "%.*s", (int)strcspn(open + 1, ")"), open + 1);
    }
    fclose(file);
}

quoit_status_t quoit_process_history(int pid, quoit_format_t format, char **result)
{
    quoit_status_t status = check_format(format, result, "quoit_process_history");
    if (status != QUOIT_OK) return status;
    report_t report = {.format = format};
    char state[32];
    process_state(pid, state);
    if (format == QUOIT_FORMAT_JSON)
        text_append(&report.text, "{\"pid\": %d, \"state\": \"%s\", \"communicators\": [", pid, state);
    else
        text_append(&report.text, "process %d is %s\n", pid, state);
    status = journal_read_process(pid, show, &report);
    if (format == QUOIT_FORMAT_JSON)
        text_append(&report.text, "]}");
    else if (report.shown == 0)
        text_append(&report.text, "it has no communicator now\n");
    if (status == QUOIT_OK) return text_finish(&report.text, result);
    free(report.text.data);
    return status;
}
