/* SPDX-License-Identifier: Apache-2.0 */
/* Destroying queue pairs: see verbs_reaper.h. */
#include "transport/verbs/verbs_reaper.h"

#include "base/clock.h"
#include "base/log.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct verbs_reaper {
    const verbs_library_t *library;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t given, done_one;
    list_t todo, done; /* verbs_grave_t */
    pthread_t thread;
    bool running, busy, stop, orphaned; /* orphaned: nobody waits for the thread, it frees the reaper */
    atomic_uint ready;                  /* graves in done */
};

/* An interrupted call succeeds the second time. */
static void told(const char *what, int error)
{
    if (error != 0) log_warn("verbs", "cannot destroy %s: %s", what, strerror(error));
}

static void bury(const verbs_library_t *library, verbs_grave_t *grave)
{
    for (int i = 0; i < 2; i++)
        if (grave->queue[i] != NULL && library->destroy_qp(grave->queue[i]) != 0) told("a queue pair", library->destroy_qp(grave->queue[i]));
    if (grave->mr != NULL && library->dereg_mr(grave->mr) != 0) told("a registration", library->dereg_mr(grave->mr));
    free(grave->memory);
    grave->queue[0] = grave->queue[1] = NULL;
    grave->mr = NULL;
    grave->memory = NULL;
}

static void reaper_free(verbs_reaper_t *reaper)
{
    for (list_t *link; (link = list_pop(&reaper->done)) != NULL;) free(container_of(link, verbs_grave_t, link));
    pthread_cond_destroy(&reaper->given);
    pthread_cond_destroy(&reaper->done_one);
    pthread_mutex_destroy(&reaper->lock);
    free(reaper);
}

static void *run(void *argument)
{
    verbs_reaper_t *reaper = argument;
    pthread_mutex_lock(&reaper->lock);
    for (;;) {
        list_t *link = list_pop(&reaper->todo);
        if (link == NULL && reaper->stop) break;
        if (link == NULL) {
            pthread_cond_wait(&reaper->given, &reaper->lock);
            continue;
        }
        reaper->busy = true;
        pthread_mutex_unlock(&reaper->lock);
        bury(reaper->library, container_of(link, verbs_grave_t, link));
        pthread_mutex_lock(&reaper->lock);
        reaper->busy = false;
        list_append(&reaper->done, link);
        atomic_fetch_add_explicit(&reaper->ready, 1, memory_order_release);
        pthread_cond_broadcast(&reaper->done_one);
    }
    bool orphaned = reaper->orphaned;
    pthread_mutex_unlock(&reaper->lock);
    if (orphaned) reaper_free(reaper);
    return NULL;
}

/* The lock is held. */
static bool start(verbs_reaper_t *reaper)
{
    sigset_t all, before; /* signals are for the program's own threads */
    if (reaper->running) return true;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    int error = pthread_create(&reaper->thread, NULL, run, reaper);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    reaper->running = error == 0;
    if (reaper->running) pthread_setname_np(reaper->thread, "quoit-reaper");
    return reaper->running;
}

quoit_status_t verbs_reaper_create(const verbs_library_t *library, verbs_reaper_t **result)
{
    pthread_condattr_t clock;
    verbs_reaper_t *reaper = calloc(1, sizeof *reaper);
    if (reaper == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for what destroys queue pairs");
    reaper->library = library;
    list_init(&reaper->todo);
    list_init(&reaper->done);
    pthread_mutex_init(&reaper->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&reaper->given, NULL);
    pthread_cond_init(&reaper->done_one, &clock);
    pthread_condattr_destroy(&clock);
    *result = reaper;
    return QUOIT_OK;
}

void verbs_reaper_give(verbs_reaper_t *reaper, verbs_grave_t *grave)
{
    pthread_mutex_lock(&reaper->lock);
    bool threaded = start(reaper);
    if (threaded) {
        list_append(&reaper->todo, &grave->link);
        pthread_cond_signal(&reaper->given);
    }
    pthread_mutex_unlock(&reaper->lock);
    if (threaded) return;
    bury(reaper->library, grave);
    pthread_mutex_lock(&reaper->lock);
    list_append(&reaper->done, &grave->link);
    atomic_fetch_add_explicit(&reaper->ready, 1, memory_order_release);
    pthread_mutex_unlock(&reaper->lock);
}

verbs_grave_t *verbs_reaper_take(verbs_reaper_t *reaper)
{
    if (atomic_load_explicit(&reaper->ready, memory_order_acquire) == 0) return NULL;
    pthread_mutex_lock(&reaper->lock);
    list_t *link = list_pop(&reaper->done);
    if (link != NULL) atomic_fetch_sub_explicit(&reaper->ready, 1, memory_order_relaxed);
    pthread_mutex_unlock(&reaper->lock);
    return link != NULL ? container_of(link, verbs_grave_t, link) : NULL;
}

bool verbs_reaper_wait(verbs_reaper_t *reaper, int limit_ms)
{
    uint64_t deadline = clock_deadline(limit_ms);
    struct timespec until = clock_timespec(deadline);
    bool in_time = true;
    pthread_mutex_lock(&reaper->lock);
    while (in_time && (reaper->busy || !list_is_empty(&reaper->todo))) in_time = pthread_cond_timedwait(&reaper->done_one, &reaper->lock, &until) == 0;
    bool done = !reaper->busy && list_is_empty(&reaper->todo);
    pthread_mutex_unlock(&reaper->lock);
    return done;
}

void verbs_reaper_destroy(verbs_reaper_t *reaper)
{
    if (reaper == NULL) return;
    pthread_mutex_lock(&reaper->lock);
    bool running = reaper->running;
    reaper->stop = true;
    reaper->orphaned = reaper->busy || !list_is_empty(&reaper->todo);
    bool orphaned = reaper->orphaned;
    pthread_t thread = reaper->thread;
    pthread_cond_signal(&reaper->given);
    pthread_mutex_unlock(&reaper->lock);
    if (orphaned) {
        pthread_detach(thread);
        return;
    }
    if (running) pthread_join(thread, NULL);
    reaper_free(reaper);
}
