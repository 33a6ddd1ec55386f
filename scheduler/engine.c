/* SPDX-License-Identifier: Apache-2.0 */
/* Engine: ownership, the loop that drives, waiting, the progress thread. See engine.h; set-up and peers are in engine_setup.c. */
#include "scheduler/engine.h"

#include "base/clock.h"
#include "base/cpu.h"
#include "base/doorbell.h"
#include "base/log.h"
#include "base/settings.h"
#include "scheduler/comm.h"
#include "scheduler/engine_internal.h"
#include "scheduler/inquire.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

enum {
    LOOK_POLLS = 4,            /* polls before the first look at who shares this processor */
    SPIN_POLLS = 128,          /* polls with a pause before the first yield, when there are processors for everyone */
    QUIET_NETWORK_POLLS = 16,  /* without messages under way the transports are looked at every so often only */
    CHECK_INTERVAL_NS = 1000000,
    SLEEP_LIMIT_MS = 1000,     /* an operation under way is looked at once a second even if nobody rings */
    ENTER_YIELDS = 64,
    LISTEN_AFTER_MS = 100,     /* without a call the progress thread listens; shorter pauses would make calls wake it, and pay for that */
    LISTEN_PAUSE_MS = 1        /* between two things that it hears: a stream of them is no reason to take a processor */
};

/* ------------------------------------------------------------------ ownership */

static void disarm(engine_t *engine, int armed)
{
    for (int i = 0; i < armed; i++) engine->transport[i].ops->disarm(engine->transport[i].transport);
}

/* Tell all that may ring or wake a descriptor to do so from here on. False: one has something to do at once. */
static bool arm(engine_t *engine)
{
    for (int armed = 0; armed < engine->transports; armed++) {
        engine_transport_t *each = &engine->transport[armed];
        if (each->ops->arm(each->transport) == QUOIT_OK) continue;
        disarm(engine, armed);
        return false;
    }
    atomic_store(&engine->sleeping, 1);
    doorbell_drain(engine->doorbell);
    return true;
}

static void be_awake(engine_t *engine)
{
    atomic_store(&engine->sleeping, 0);
    disarm(engine, engine->transports);
}

/* The progress thread listens, but owns nothing meanwhile, so nobody waits for it to wake. Who leaves tells it: nothing is armed any more. */
static bool enter_heard(engine_t *engine)
{
    int heard = OWNED_NOT_HEARD;
    if (!atomic_compare_exchange_strong(&engine->owned, &heard, OWNED)) return false;
    be_awake(engine);
    return true;
}

bool engine_try_enter(engine_t *engine)
{
    int owned = OWNED_NOT;
    return atomic_compare_exchange_strong(&engine->owned, &owned, OWNED) || (owned == OWNED_NOT_HEARD && enter_heard(engine));
}

/* Wait on the condition for at most `milliseconds`; the mutex is held. */
static void wait_condition(engine_t *engine, pthread_cond_t *condition, int milliseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(milliseconds % 1000) * 1000000;
    until.tv_sec += milliseconds / 1000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(condition, &engine->mutex, &until);
}

void engine_enter(engine_t *engine)
{
    if (engine_try_enter(engine)) return;
    atomic_fetch_add(&engine->claims, 1);
    if (atomic_load(&engine->sleeping)) doorbell_ring(engine->doorbell);
    for (int i = 0; i < ENTER_YIELDS; i++) {
        if (engine_try_enter(engine)) goto out;
        sched_yield();
    }
    pthread_mutex_lock(&engine->mutex);
    while (!engine_try_enter(engine)) {
        if (atomic_load(&engine->sleeping)) doorbell_ring(engine->doorbell);
        wait_condition(engine, &engine->free_or_done, 10); /* the limit bounds what a lost race could cost */
    }
    pthread_mutex_unlock(&engine->mutex);
out:
    atomic_fetch_sub(&engine->claims, 1);
}

static void wake_waiters(engine_t *engine)
{
    pthread_mutex_lock(&engine->mutex);
    pthread_cond_broadcast(&engine->free_or_done);
    pthread_mutex_unlock(&engine->mutex);
}

bool engine_transports_idle(const engine_t *engine)
{
    for (const engine_transport_t *each = engine->transport, *end = each + engine->transports; each < end; each++)
        if (!each->ops->idle(each->transport)) return false;
    return true;
}

static void wake_progress(engine_t *engine)
{
    if (!engine_start_progress(engine)) return;
    pthread_mutex_lock(&engine->mutex);
    engine->work = true;
    pthread_cond_signal(&engine->progress_wanted);
    pthread_mutex_unlock(&engine->mutex);
    if (atomic_load(&engine->hears)) doorbell_ring(engine->doorbell);
}

static void leave(engine_t *engine, bool idle)
{
    bool unfinished = engine->running > 0 || !idle;
    engine->owner_is_progress = false;
    atomic_store(&engine->owned, OWNED_NOT);
    if (atomic_load(&engine->waiting) || atomic_load(&engine->claims))
        wake_waiters(engine);
    else if (unfinished || atomic_load(&engine->submitted))
        wake_progress(engine);
    else if (atomic_load_explicit(&engine->hears, memory_order_relaxed))
        doorbell_ring(engine->doorbell);
}

void engine_leave(engine_t *engine) { leave(engine, engine_transports_idle(engine)); }

void engine_submit(engine_t *engine, operation_t *operation, bool unattended)
{
    (void)operation_deadline(operation); /* from now on, whenever the owner comes to it */
    operation_t *newest = atomic_load_explicit(&engine->submitted, memory_order_relaxed);
    do operation->next_submitted = newest;
    while (!atomic_compare_exchange_weak(&engine->submitted, &newest, operation));
    if (!unattended) return;
    if (atomic_load(&engine->sleeping))
        doorbell_ring(engine->doorbell);
    else if (atomic_load(&engine->owned) != OWNED)
        wake_progress(engine);
}

/* ------------------------------------------------------------------ driving (the owner) */

static bool take_submitted(engine_t *engine)
{
    if (!atomic_load_explicit(&engine->submitted, memory_order_relaxed)) return false;
    operation_t *newest = atomic_exchange(&engine->submitted, NULL), *oldest = NULL;
    while (newest) { /* the stack holds the newest first: turn it round */
        operation_t *next = newest->next_submitted;
        newest->next_submitted = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        operation_t *next = oldest->next_submitted; /* taking may end, and so free, the operation */
        comm_take(oldest->comm, oldest);
        oldest = next;
    }
    return true;
}

static bool advance_active(engine_t *engine)
{
    bool moved = false;
    for (list_t *node = engine->active.next, *next; node != &engine->active; node = next) {
        next = node->next;
        moved |= comm_advance(container_of(node, quoit_comm_t, link));
    }
    return moved;
}

static bool poll_transports(engine_t *engine)
{
    bool moved = false;
    engine->network_polls++;
    for (const engine_transport_t *each = engine->transport, *end = each + engine->transports; each < end; each++) {
        moved |= each->ops->progress(each->transport) > 0;
        quoit_event_t event;
        while (each->ops->next_event(each->transport, &event)) {
            engine_event(engine, &event);
            moved = true;
        }
    }
    return moved;
}

/* Deadlines, deaths, mismatches: what may wait a millisecond. */
static void check_active(engine_t *engine)
{
    uint64_t now = clock_now();
    if (now < engine->next_check) return;
    engine->next_check = now + CHECK_INTERVAL_NS;
    for (list_t *node = engine->active.next, *next; node != &engine->active; node = next) {
        next = node->next;
        comm_check(container_of(node, quoit_comm_t, link), now);
    }
}

/* Only the owner counts. */
static uint64_t count_poll(engine_t *engine)
{
    uint64_t polls = atomic_load_explicit(&engine->polls, memory_order_relaxed) + 1;
    atomic_store_explicit(&engine->polls, polls, memory_order_relaxed);
    return polls;
}

static bool poll_once(engine_t *engine, bool all)
{
    bool moved = take_submitted(engine);
    moved |= advance_active(engine);
    uint64_t polls = count_poll(engine);
    if (all || engine->transfers > 0 || polls % QUIET_NETWORK_POLLS == 0) moved |= poll_transports(engine);
    if (engine->completed) {
        engine->completed = false;
        if (atomic_load(&engine->waiting)) wake_waiters(engine);
    }
    return moved;
}

void engine_leave_written(engine_t *engine)
{
    bool quiet = engine_transports_idle(engine);
    if (!quiet) {
        poll_transports(engine);
        quiet = engine_transports_idle(engine);
    }
    leave(engine, quiet);
}

bool engine_try_enter_quiet(engine_t *engine)
{
    if (atomic_load_explicit(&engine->progress_refused, memory_order_relaxed) || !engine_try_enter(engine)) return false; /* refused: see_out */
    if (count_poll(engine) % QUIET_NETWORK_POLLS == 0) poll_transports(engine);
    if (!atomic_load_explicit(&engine->submitted, memory_order_relaxed)) return true;
    engine_leave(engine);
    return false;
}

bool engine_poll(engine_t *engine)
{
    check_active(engine);
    return poll_once(engine, true);
}

void engine_completed(engine_t *engine) { engine->completed = true; }

static bool is_done(operation_t *operation)
{
    return atomic_load_explicit(&operation->status, memory_order_acquire) != QUOIT_IN_PROGRESS;
}

/* Sleep while others drive. True: this thread owns the engine now; false: the operation is done, or the deadline is over. */
static bool await_ownership(engine_t *engine, operation_t *operation, uint64_t deadline)
{
    bool entered = false;
    atomic_fetch_add(&engine->waiting, 1);
    if (atomic_load(&engine->sleeping)) doorbell_ring(engine->doorbell);
    pthread_mutex_lock(&engine->mutex);
    while (!is_done(operation) && !(entered = engine_try_enter(engine))) {
        int left = clock_left_ms(deadline);
        if (left == 0) break;
        wait_condition(engine, &engine->free_or_done, left < 0 || left > SLEEP_LIMIT_MS ? SLEEP_LIMIT_MS : left);
    }
    pthread_mutex_unlock(&engine->mutex);
    atomic_fetch_sub(&engine->waiting, 1);
    /* Whoever left meanwhile may have counted on this thread to go on: pass that to the next waiter, or the progress thread. */
    if (!entered && engine_try_enter(engine)) engine_leave(engine);
    return entered;
}

/* Let threads in that claim the engine, then own it again; false as in await_ownership. */
static bool give_way(engine_t *engine, operation_t *operation, uint64_t deadline)
{
    engine_leave(engine);
    for (int i = 0; i < ENTER_YIELDS && atomic_load(&engine->claims); i++) sched_yield();
    return await_ownership(engine, operation, deadline);
}

static bool somebody_wants_in(engine_t *engine)
{
    return atomic_load(&engine->claims) || (engine->owner_is_progress && atomic_load(&engine->waiting));
}

/* The first deadline, or question, of all that runs. */
static uint64_t earliest_deadline(engine_t *engine)
{
    uint64_t earliest = CLOCK_NEVER;
    for (list_t *node = engine->active.next; node != &engine->active; node = node->next) {
        uint64_t one = inquire_wake(container_of(node, quoit_comm_t, link));
        if (one < earliest) earliest = one;
    }
    return earliest;
}

/*
 * Sleep until somebody rings, a descriptor is ready, or the deadline. First say so (arm, sleeping), then look at everything once
 * more: whoever published before saw nobody asleep and is seen by that look; whoever publishes later rings.
 */
static void sleep_until(engine_t *engine, uint64_t deadline)
{
    if (!arm(engine)) {
        poll_transports(engine);
        return;
    }
    bool stay = !somebody_wants_in(engine) && !atomic_load(&engine->submitted) && !poll_once(engine, true);
    if (stay) {
        uint64_t earliest = earliest_deadline(engine);
        int limit = clock_left_ms(deadline < earliest ? deadline : earliest);
        if (limit < 0 || limit > SLEEP_LIMIT_MS) limit = SLEEP_LIMIT_MS;
        struct epoll_event events[8];
        epoll_wait(engine->epoll, events, 8, limit); /* EINTR: a signal; the caller looks at everything anyway */
    }
    be_awake(engine);
    if (stay) {
        doorbell_drain(engine->doorbell);
        engine->next_check = 0;
        poll_transports(engine);
    }
}

/* Does somebody we wait for need the processor that we poll on? */
static bool is_in_the_way(engine_t *engine)
{
    unsigned cpu = 0;
    if (getcpu(&cpu, NULL) != 0) return false;
    window_tell_cpu(engine, cpu);
    for (list_t *node = engine->active.next; node != &engine->active; node = node->next) {
        quoit_comm_t *comm = container_of(node, quoit_comm_t, link);
        if (comm->window && window_shares_cpu(comm->window, cpu)) return true;
    }
    return false;
}

/* What to do when nothing moved: pause, yield, sleep. */
static void relax(engine_t *engine, unsigned *idle, uint64_t *idle_since, uint64_t deadline)
{
    unsigned count = ++*idle;
    if (engine->spin && count < SPIN_POLLS && !engine->owner_is_progress) {
        if (count == LOOK_POLLS) engine->in_the_way = is_in_the_way(engine);
        if (count < LOOK_POLLS || !engine->in_the_way) {
            cpu_relax();
            return;
        }
    }
    uint64_t now = clock_now();
    if (!*idle_since) *idle_since = now;
    check_active(engine);
    if (engine->completed) return; /* a deadline is over, perhaps that of what is waited for here */
    if (now - *idle_since < engine->spin_time) {
        sched_yield();
        return;
    }
    sleep_until(engine, deadline);
    /* What woke us may not be ours: then a few polls are enough before the next sleep. */
    *idle_since = clock_now() - engine->spin_time + engine->spin_time / 4;
}

/* The owner drives until its operation is done or the deadline is over. Returns without owning the engine. */
static void drive(engine_t *engine, operation_t *operation, uint64_t deadline)
{
    unsigned idle = 0;
    uint64_t idle_since = 0;
    while (!is_done(operation)) {
        if (somebody_wants_in(engine) && !give_way(engine, operation, deadline)) return;
        if (poll_once(engine, false)) {
            idle = 0;
            idle_since = 0;
            continue;
        }
        if (is_done(operation)) break;
        relax(engine, &idle, &idle_since, deadline);
        if (deadline != CLOCK_NEVER && clock_now() >= deadline) break;
    }
    engine_leave_written(engine);
}

/* The system gave no thread that would go on: what peers still need of ended operations leaves before the call returns. Bounded. */
static void see_out(engine_t *engine, uint64_t deadline)
{
    uint64_t linger = clock_now() + (uint64_t)setting_int(SETTING_LINGER) * 1000, idle_since = 0;
    unsigned idle = 0;
    if (linger < deadline) deadline = linger;
    if (!engine_try_enter(engine)) return; /* the owner sees to it */
    while (!engine_transports_idle(engine) && !somebody_wants_in(engine) && clock_now() < deadline)
        if (!poll_once(engine, true)) relax(engine, &idle, &idle_since, deadline);
    engine_leave(engine);
}

static void attend(engine_t *engine, operation_t *operation, uint64_t deadline, bool entered)
{
    if (entered || await_ownership(engine, operation, deadline)) drive(engine, operation, deadline);
    if (atomic_load_explicit(&engine->progress_refused, memory_order_relaxed)) see_out(engine, deadline);
}

void engine_wait(engine_t *engine, operation_t *operation, uint64_t deadline) { attend(engine, operation, deadline, engine_try_enter(engine)); }

void engine_run(engine_t *engine, operation_t *operation)
{
    bool entered = engine_try_enter(engine);
    if (entered) {
        take_submitted(engine); /* they were handed in before */
        comm_take(operation->comm, operation);
    } else {
        engine_submit(engine, operation, false);
        entered = engine_try_enter(engine);
    }
    attend(engine, operation, CLOCK_NEVER, entered);
}

/* ------------------------------------------------------------------ the progress thread */

static bool is_work_left(engine_t *engine)
{
    return engine->running > 0 || !engine_transports_idle(engine) || atomic_load(&engine->submitted);
}

static void drive_unattended(engine_t *engine)
{
    if (!engine_try_enter(engine)) return; /* the owner sees to it, and calls again when it leaves */
    engine->owner_is_progress = true;
    unsigned idle = 0;
    uint64_t idle_since = 0;
    while (is_work_left(engine)) {
        if (somebody_wants_in(engine)) break;
        if (poll_once(engine, false)) {
            idle = 0;
            idle_since = 0;
        } else
            relax(engine, &idle, &idle_since, CLOCK_NEVER);
        if (engine->stop) break;
    }
    engine_leave(engine);
}

/*
 * Sleep until something arrives, and take it in, as sleep_until does it; but nobody owns the engine meanwhile. poll, not epoll_wait: of several that wait in that,
 * an event may wake one alone, and that might be this thread where another sleeps for its operation. False: there was something else to do, or somebody called.
 */
static bool listen_once(engine_t *engine)
{
    if (!engine_try_enter(engine)) return false;
    if (!arm(engine)) {
        poll_transports(engine);
        engine_leave(engine);
        return false;
    }
    if (engine->stop || somebody_wants_in(engine) || atomic_load(&engine->waiting) || poll_once(engine, true) || is_work_left(engine)) {
        be_awake(engine);
        engine_leave(engine);
        return false;
    }
    atomic_store(&engine->hears, 1);
    atomic_store(&engine->owned, OWNED_NOT_HEARD);
    struct pollfd all = {.fd = engine->epoll, .events = POLLIN};
    while (poll(&all, 1, -1) < 0 && errno == EINTR) continue;
    atomic_store(&engine->hears, 0);
    if (!enter_heard(engine)) return false; /* somebody else did */
    doorbell_drain(engine->doorbell);
    engine->owner_is_progress = true;
    poll_once(engine, true);
    engine_leave(engine);
    return true;
}

/* The mutex is held, and released meanwhile. *seen: the engine's polls when this was last called. */
static void await_work(engine_t *engine, uint64_t *seen)
{
    if (!engine->listens) {
        pthread_cond_wait(&engine->progress_wanted, &engine->mutex);
        return;
    }
    uint64_t polls = atomic_load_explicit(&engine->polls, memory_order_relaxed);
    int pause = LISTEN_AFTER_MS;
    if (polls == *seen) {
        pthread_mutex_unlock(&engine->mutex);
        if (listen_once(engine)) pause = LISTEN_PAUSE_MS;
        pthread_mutex_lock(&engine->mutex);
        polls = atomic_load_explicit(&engine->polls, memory_order_relaxed);
    }
    *seen = polls;
    if (!engine->work && !engine->stop) wait_condition(engine, &engine->progress_wanted, pause);
}

void *engine_progress_main(void *argument)
{
    engine_t *engine = argument;
    uint64_t seen = 0;
    pthread_mutex_lock(&engine->mutex);
    while (!engine->stop) {
        while (!engine->work && !engine->stop) await_work(engine, &seen);
        engine->work = false;
        if (engine->stop) break;
        pthread_mutex_unlock(&engine->mutex);
        drive_unattended(engine);
        pthread_mutex_lock(&engine->mutex);
    }
    pthread_mutex_unlock(&engine->mutex);
    return NULL;
}

void engine_listen(engine_t *engine)
{
    if (!engine_start_progress(engine)) return;
    pthread_mutex_lock(&engine->mutex);
    if (!engine->listens) pthread_cond_signal(&engine->progress_wanted);
    engine->listens = true;
    pthread_mutex_unlock(&engine->mutex);
}
