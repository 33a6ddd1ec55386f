/* SPDX-License-Identifier: Apache-2.0 */
/* Loading UCX: its functions, its signal handlers, its log. See ucx_library.h. */
#include "transport/ucx/ucx_library.h"

#include "base/forked.h"
#include "base/log.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    forked_lock_t lock;
    bool tried;
    quoit_status_t status;
    char why[512]; /* status is not OK */
    ucx_library_t library;
} shared = {.lock = {.mutex = PTHREAD_MUTEX_INITIALIZER}};

/* ---------------------------------------------------------------- signals */

/* Those UCX may take (its setting ERROR_SIGNALS), and the rest that end a process. */
static const int watched_signals[] = {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGABRT, SIGHUP, SIGINT, SIGTERM, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM};
enum { WATCHED_SIGNALS = sizeof watched_signals / sizeof watched_signals[0] };

static void signals_keep(struct sigaction kept[WATCHED_SIGNALS])
{
    for (int i = 0; i < WATCHED_SIGNALS; i++) sigaction(watched_signals[i], NULL, &kept[i]);
}

static void signals_restore(const struct sigaction kept[WATCHED_SIGNALS])
{
    for (int i = 0; i < WATCHED_SIGNALS; i++) {
        struct sigaction now;
        if (sigaction(watched_signals[i], NULL, &now) == 0 && now.sa_sigaction != kept[i].sa_sigaction)
            sigaction(watched_signals[i], &kept[i], NULL);
    }
}

/* ---------------------------------------------------------------- log */

/* UCX's levels; only the numbers of its enum ucs_log_level_t and the shape of ucs_log_func_t are used. */
enum { UCX_LEVEL_FATAL, UCX_LEVEL_ERROR, UCX_LEVEL_WARN, UCX_LEVEL_DIAG, UCX_LEVEL_INFO };

typedef int (*ucx_log_handler_t)(const char *, unsigned, const char *, int, const void *, const char *, va_list);
typedef void (*ucx_log_push_t)(ucx_log_handler_t);

/* An error of UCX is told by us, too, with the peer's name, or is no error for us (a peer that left); so it is a warning here. */
static log_level_t level_of(int level)
{
    if (level <= UCX_LEVEL_FATAL) return LOG_ERROR;
    if (level <= UCX_LEVEL_WARN) return LOG_WARN;
    return level <= UCX_LEVEL_INFO ? LOG_INFO : LOG_DEBUG;
}

/* UCX writes to standard output by itself, where the program's own results may go. Called by its threads, too. */
__attribute__((format(printf, 6, 0))) static int log_received(const char *file, unsigned line, const char *function, int level,
                                                              const void *component, const char *format, va_list arguments)
{
    char text[512];
    const char *slash = strrchr(file, '/');
    (void)function, (void)component;
    if (log_enabled(level_of(level))) {
        vsnprintf(text, sizeof text, format, arguments);
        log_write(level_of(level), "ucx", "UCX %s:%u: %s", slash ? slash + 1 : file, line, text);
    }
    return 0; /* UCS_LOG_FUNC_RC_STOP */
}

static void log_take(void *handle)
{
    ucx_log_push_t push;
    void *symbol = dlsym(handle, "ucs_log_push_handler");
    if (!symbol) return;
    memcpy(&push, &symbol, sizeof push);
    push(log_received);
}

/* ---------------------------------------------------------------- loading */

static bool functions_find(void *handle, ucx_library_t *library, const char **missing)
{
    void *symbol;
#define UCX_FUNCTION_FIND(name) \
    symbol = dlsym(handle, #name); \
    if (!symbol) *missing = #name; \
    memcpy(&library->name, &symbol, sizeof symbol);
    *missing = NULL;
    UCX_FUNCTION_LIST(UCX_FUNCTION_FIND)
#undef UCX_FUNCTION_FIND
    return *missing == NULL;
}

static bool user_says(const char *variable)
{
    const char *text = getenv(variable);
    return text && text[0];
}

static quoit_status_t library_load(const char *path)
{
    struct sigaction kept[WATCHED_SIGNALS];
    const char *missing;
    unsigned major, minor, release;
    void *there = dlopen("libucs.so.0", RTLD_NOW | RTLD_NOLOAD);
    bool ours = there == NULL;
    if (there) dlclose(there);
    signals_keep(kept);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) return error_set(QUOIT_ERR_NOT_FOUND, "cannot open UCX: %s (QUOIT_UCX_LIBRARY says where it is)", dlerror());
    if (ours && !user_says("UCX_HANDLE_ERRORS") && !user_says("UCX_ERROR_SIGNALS")) signals_restore(kept);
    if (!functions_find(handle, &shared.library, &missing))
        return error_set(QUOIT_ERR_NOT_FOUND, "%s has no function %s: no UCX of version %d.%d or newer", path, missing, UCX_API_MAJOR,
                         UCX_API_MINOR);
    shared.library.ucp_get_version(&major, &minor, &release);
    if (major != UCX_API_MAJOR || minor < UCX_API_MINOR)
        return error_set(QUOIT_ERR_NOT_FOUND, "%s is UCX %u.%u.%u; %d.%d or a newer %d is needed", path, major, minor, release,
                         UCX_API_MAJOR, UCX_API_MINOR, UCX_API_MAJOR);
    if (ours && !user_says("UCX_LOG_FILE")) log_take(handle);
    shared.library.minor = minor;
    snprintf(shared.library.version, sizeof shared.library.version, "%u.%u.%u", major, minor, release);
    log_info("ucx", "UCX %s from %s", shared.library.version, path);
    return QUOIT_OK;
}

quoit_status_t ucx_library_open(const quoit_transport_environment_t *environment, const ucx_library_t **library)
{
    const char *path = environment->setting("UCX_LIBRARY");
    forked_lock(&shared.lock);
    if (!shared.tried) {
        shared.status = library_load(path && path[0] ? path : "libucp.so.0");
        if (shared.status != QUOIT_OK) snprintf(shared.why, sizeof shared.why, "%s", error_text());
        shared.tried = true;
    }
    quoit_status_t status = shared.status;
    forked_unlock(&shared.lock);
    if (status != QUOIT_OK) return error_set(status, "%s", shared.why);
    *library = &shared.library;
    return QUOIT_OK;
}
