/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that goes away: see verbs_watch.h. */
#include "transport/verbs/verbs_watch.h"

#include "base/doorbell.h"
#include "base/forked.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REMEMBERED = 64 };

struct verbs_watch {
    int events, stop; /* owned: the userfaultfd; an eventfd that ends the thread */
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    struct {
        uintptr_t from, to;
    } gone[REMEMBERED];
    int count;
    bool all; /* more went than can be remembered */
};

static const uint64_t features = UFFD_FEATURE_EVENT_UNMAP | UFFD_FEATURE_EVENT_REMAP | UFFD_FEATURE_EVENT_REMOVE;

uintptr_t verbs_page_below(uintptr_t address) { return address & ~((uintptr_t)sysconf(_SC_PAGESIZE) - 1); }
uintptr_t verbs_page_above(uintptr_t address) { return verbs_page_below(address + (uintptr_t)sysconf(_SC_PAGESIZE) - 1); }

/* ---------------------------------------------------------------- the thread */

static void remember(verbs_watch_t *watch, uintptr_t from, uintptr_t to)
{
    if (watch->count == REMEMBERED) {
        watch->all = true;
        return;
    }
    watch->gone[watch->count].from = from;
    watch->gone[watch->count++].to = to;
}

/* The lock is held. */
static void take_event(verbs_watch_t *watch)
{
    struct uffd_msg message;
    if (read(watch->events, &message, sizeof message) != sizeof message) return;
    if (message.event == UFFD_EVENT_UNMAP || message.event == UFFD_EVENT_REMOVE)
        remember(watch, message.arg.remove.start, message.arg.remove.end);
    if (message.event != UFFD_EVENT_REMAP) return;
    remember(watch, message.arg.remap.from, message.arg.remap.from + message.arg.remap.len);
    verbs_watch_end(watch, message.arg.remap.to, message.arg.remap.to + message.arg.remap.len);
}

static void *run(void *argument)
{
    verbs_watch_t *watch = argument;
    struct pollfd descriptors[2] = {{.fd = watch->events, .events = POLLIN}, {.fd = watch->stop, .events = POLLIN}};
    while (descriptors[1].revents == 0) {
        if (poll(descriptors, 2, -1) < 0) continue;
        if (descriptors[0].revents == 0) continue;
        pthread_mutex_lock(&watch->lock);
        take_event(watch);
        pthread_mutex_unlock(&watch->lock);
    }
    return NULL;
}

static int start_thread(verbs_watch_t *watch)
{
    sigset_t all, before; /* signals are for the program's own threads */
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(&watch->thread, NULL, run, watch);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0) pthread_setname_np(watch->thread, "quoit-watch");
    return error;
}

/* ---------------------------------------------------------------- making one */

/* Without privileges only faults of user mode are told; we want none at all. */
static int open_events(void)
{
    int flags = O_CLOEXEC | O_NONBLOCK;
#ifdef UFFD_USER_MODE_ONLY
    int events = (int)syscall(SYS_userfaultfd, flags | UFFD_USER_MODE_ONLY);
    if (events >= 0 || errno != EINVAL) return events;
#endif
    return (int)syscall(SYS_userfaultfd, flags);
}

quoit_status_t verbs_watch_create(verbs_watch_t **result)
{
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    quoit_status_t status = QUOIT_OK;
    verbs_watch_t *watch = calloc(1, sizeof *watch);
    if (watch == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory to watch memory");
    pthread_mutex_init(&watch->lock, NULL);
    watch->stop = -1;
    watch->events = open_events();
    if (watch->events < 0) {
        status = error_set_errno(QUOIT_ERR_UNSUPPORTED, errno, "userfaultfd");
        goto free_watch;
    }
    if (ioctl(watch->events, UFFDIO_API, &api) != 0 || (api.features & features) != features) {
        status = error_set(QUOIT_ERR_UNSUPPORTED, "userfaultfd of this kernel does not tell of memory that goes away");
        goto close_events;
    }
    watch->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (watch->stop < 0) {
        status = error_set_errno(QUOIT_ERR_SYSTEM, errno, "eventfd");
        goto close_events;
    }
    int error = start_thread(watch);
    if (error != 0) {
        status = error_set_errno(QUOIT_ERR_SYSTEM, error, "a thread that watches memory");
        goto close_stop;
    }
    forked_close(watch->events); /* a child that keeps it would keep the parent's memory watched when nobody reads any more */
    *result = watch;
    return QUOIT_OK;

close_stop:
    close(watch->stop);
close_events:
    close(watch->events);
free_watch:
    pthread_mutex_destroy(&watch->lock);
    free(watch);
    return status;
}

void verbs_watch_destroy(verbs_watch_t *watch)
{
    if (watch == NULL) return;
    doorbell_ring(watch->stop);
    pthread_join(watch->thread, NULL);
    close(watch->stop);
    if (forked_keep(watch->events)) close(watch->events);
    pthread_mutex_destroy(&watch->lock);
    free(watch);
}

/* ---------------------------------------------------------------- ranges */

/* In this mode a page that is missing or written to is no event: nothing is write-protected. */
bool verbs_watch_begin(verbs_watch_t *watch, uintptr_t base, size_t length)
{
    uintptr_t from = verbs_page_below(base), to = verbs_page_above(base + length);
    struct uffdio_register range = {.range = {.start = from, .len = to - from}, .mode = UFFDIO_REGISTER_MODE_WP};
    return ioctl(watch->events, UFFDIO_REGISTER, &range) == 0;
}

/* A range of which nothing is mapped any more is no failure. */
void verbs_watch_end(verbs_watch_t *watch, uintptr_t from, uintptr_t to)
{
    struct uffdio_range range = {.start = from, .len = to - from};
    if (to > from) ioctl(watch->events, UFFDIO_UNREGISTER, &range);
}

bool verbs_watch_next(verbs_watch_t *watch, uintptr_t *from, uintptr_t *to)
{
    bool found = false;
    pthread_mutex_lock(&watch->lock);
    if (watch->all) {
        watch->all = false;
        watch->count = 0;
        *from = 0;
        *to = UINTPTR_MAX;
        found = true;
    } else if (watch->count > 0) {
        *from = watch->gone[--watch->count].from;
        *to = watch->gone[watch->count].to;
        found = true;
    }
    pthread_mutex_unlock(&watch->lock);
    return found;
}
