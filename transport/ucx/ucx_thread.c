/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holding UCX's own thread still.
 *
 * One thread of UCX, for all its workers in a process, serves the sockets on which connections are made. A connection that it has accepted
 * but whose first message is not here yet points to its listener, also when that was destroyed, until the worker is gone: its message
 * in between makes the thread call what was freed (seen with 1.13 and with 1.22). Nothing of UCX's API waits for such
 * connections or ends them. But the thread serves descriptors of others, too, one after the other: while it is in a callback of ours it is in
 * none of UCX's. So that is where it stays while listener and worker go.
 */
#include "transport/ucx/ucx.h"

#include "base/doorbell.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { HOLD_MS = 5000 };

/* In UCX's thread. How long it stays is up to whoever holds it; that one waits for nothing. */
static void held(int fd, ucs_event_set_types_t events, void *argument)
{
    ucx_hold_t *hold = argument;
    (void)events;
    doorbell_drain(fd);
    pthread_mutex_lock(&hold->lock);
    hold->there = true;
    pthread_cond_broadcast(&hold->changed);
    while (!hold->over) pthread_cond_wait(&hold->changed, &hold->lock);
    hold->there = false;
    pthread_cond_broadcast(&hold->changed);
    pthread_mutex_unlock(&hold->lock);
}

static bool wait_until_there(ucx_hold_t *hold)
{
    struct timespec until = clock_timespec(clock_deadline(HOLD_MS));
    pthread_mutex_lock(&hold->lock);
    while (!hold->there && pthread_cond_timedwait(&hold->changed, &hold->lock, &until) == 0) {}
    bool there = hold->there;
    pthread_mutex_unlock(&hold->lock);
    return there;
}

quoit_status_t ucx_thread_hold(const ucx_library_t *ucx, ucx_hold_t *hold)
{
    pthread_condattr_t clock;
    *hold = (ucx_hold_t){.ucx = ucx, .fd = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK)}; /* readable from the start */
    if (hold->fd < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "ucx: cannot make a descriptor to hold UCX's thread by");
    pthread_mutex_init(&hold->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&hold->changed, &clock);
    pthread_condattr_destroy(&clock);
    ucs_status_t status = ucx->ucs_async_set_event_handler(UCS_ASYNC_MODE_THREAD_SPINLOCK, hold->fd, UCS_EVENT_SET_EVREAD, held, hold, NULL);
    if (status != UCS_OK) {
        hold->over = true;
        ucx_thread_release(hold);
        return error_set(QUOIT_ERR_SYSTEM, "ucx: UCX's thread takes no callback: %s", ucx->ucs_status_string(status));
    }
    if (wait_until_there(hold)) return QUOIT_OK;
    ucx_thread_release(hold);
    return error_set(QUOIT_ERR_TIMEOUT, "ucx: UCX's thread did not come within %d ms", HOLD_MS);
}

void ucx_thread_release(ucx_hold_t *hold)
{
    pthread_mutex_lock(&hold->lock);
    hold->over = true;
    pthread_cond_broadcast(&hold->changed);
    while (hold->there) pthread_cond_wait(&hold->changed, &hold->lock); /* it has nothing else to do now */
    pthread_mutex_unlock(&hold->lock);
    (void)hold->ucx->ucs_async_remove_handler(hold->fd, 1); /* waits until it has left the callback, or sees to it that it does not come */
    close(hold->fd);
    pthread_cond_destroy(&hold->changed);
    pthread_mutex_destroy(&hold->lock);
}
