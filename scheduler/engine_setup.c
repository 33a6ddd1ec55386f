/* SPDX-License-Identifier: Apache-2.0 */
/* Engine: making and ending one, its peers, and what its transports report. Driving is in engine.c. */
#include "base/clock.h"
#include "base/copy.h"
#include "base/doorbell.h"
#include "base/forked.h"
#include "base/hmac.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/settings.h"
#include "scheduler/comm.h"
#include "scheduler/control.h"
#include "scheduler/engine_internal.h"
#include "scheduler/journal.h"
#include "scheduler/memory.h"
#include "scheduler/trace.h"
#include "scheduler/window.h"
#include "scheduler/window_pool.h"
#include "transport/process.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ------------------------------------------------------------------ fork */

static _Atomic unsigned fork_generation;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void count_fork(void) { atomic_fetch_add(&fork_generation, 1); }
static void watch_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

unsigned engine_fork_generation(void) { return atomic_load_explicit(&fork_generation, memory_order_relaxed); }

/* ------------------------------------------------------------------ making one */

static quoit_status_t watch_descriptor(engine_t *engine, int descriptor)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(engine->epoll, EPOLL_CTL_ADD, descriptor, &event) != 0)
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "engine: epoll_ctl");
    return QUOIT_OK;
}

/* Open one transport. QUOIT_ERR_NOT_FOUND: there is nothing to use here, and the log says why. */
static quoit_status_t open_transport(engine_t *engine, const quoit_transport_ops_t *ops)
{
    quoit_transport_environment_t environment;
    transport_environment_init(&environment, engine->self, engine->doorbell, log_host());
    char why[256] = "";
    if (setting_int(SETTING_TLS) != 0 && !(ops->flags & (QUOIT_TRANSPORT_SAME_HOST | QUOIT_TRANSPORT_TLS)))
        return error_set(QUOIT_ERR_UNSUPPORTED,
                         "transport %s sends plain text between hosts, and QUOIT_TLS=%s asks for TLS: tcp can do that (QUOIT_TRANSPORT=shm,tcp)",
                         ops->name, setting_string(SETTING_TLS));
    if (ops->probe(&environment, why, sizeof why) != QUOIT_OK) {
        log_info("engine", "transport %s is not used: %s", ops->name, why);
        return error_set(QUOIT_ERR_NOT_FOUND, "transport %s cannot be used: %s", ops->name, why);
    }
    engine_transport_t *slot = &engine->transport[engine->transports];
    memset(slot, 0, sizeof *slot);
    slot->ops = ops;
    quoit_status_t status = ops->open(&environment, &slot->transport);
    if (status != QUOIT_OK) {
        log_info("engine", "transport %s is not used: %s", ops->name, error_text());
        return status;
    }
    slot->address_length = sizeof slot->address;
    status = ops->listen(slot->transport, slot->address, &slot->address_length);
    if (status != QUOIT_OK) goto close_transport;
    int descriptor = ops->descriptor(slot->transport);
    if (descriptor >= 0) {
        status = watch_descriptor(engine, descriptor);
        if (status != QUOIT_OK) goto close_transport;
    }
    engine->transports++;
    return QUOIT_OK;

close_transport:
    ops->close(slot->transport);
    return status;
}

/* Other ranks are told, so that they know why this one uses something else with them. */
static void note_lack(engine_t *engine, const char *transport)
{
    char prefix[96];
    const char *text = error_text();
    snprintf(prefix, sizeof prefix, "transport %s cannot be used: ", transport);
    size_t skip = strlen(prefix);
    if (strncmp(text, prefix, skip) == 0) text += skip;
    if (engine->lacks >= (int)(sizeof engine->lack / sizeof *engine->lack)) return;
    snprintf(engine->lack[engine->lacks].why, sizeof engine->lack[0].why, "%s", text);
    engine->lack[engine->lacks++].transport = transport;
}

static quoit_status_t open_transports(engine_t *engine)
{
    const quoit_transport_ops_t *list[REGISTRY_CAPACITY];
    bool optional[REGISTRY_CAPACITY];
    char lacks[ERROR_TEXT_CAPACITY] = "";
    int count = 0, usable = 0;
    quoit_status_t status = transport_registry_list(list, optional, &count);
    if (status != QUOIT_OK) return status;
    for (int i = 0; i < count; i++) {
        status = open_transport(engine, list[i]);
        if (status == QUOIT_OK) {
            usable += list[i] != &transport_self;
            engine->transport[engine->transports - 1].optional = optional[i];
            continue;
        }
        /* One that was not asked for by name may be missing; bad settings are an error in any case. */
        if (!optional[i] || status == QUOIT_ERR_INVALID) return status;
        size_t length = strlen(lacks);
        snprintf(lacks + length, sizeof lacks - length, "%s%.300s", length > 0 ? "; " : "", error_text());
        /* Shared memory is missed only where there are host mates: bootstrap_hosts.c warns, once a job. */
        if (list[i]->flags & QUOIT_TRANSPORT_MAP)
            snprintf(engine->map_lack, sizeof engine->map_lack, "%s", error_text());
        else
            note_lack(engine, list[i]->name);
        if (!(list[i]->flags & QUOIT_TRANSPORT_MAP) && status != QUOIT_ERR_NOT_FOUND)
            log_warn("engine", "going on without transport %s: %s", list[i]->name, error_text());
    }
    if (usable == 0 && lacks[0]) return error_set(QUOIT_ERR_NOT_FOUND, "no transport can be used: %s", lacks);
    for (int i = 0; i < engine->transports; i++) /* its place is fixed from here on */
        if (!engine->map && engine->transport[i].ops->flags & QUOIT_TRANSPORT_MAP) engine->map = &engine->transport[i];
    return QUOIT_OK;
}

/* Its own, those of its transports, and some for addresses to listen at. When they are not there, that is told, and not that this or that
 * transport cannot be used. */
enum { DESCRIPTORS_AT_ONCE = 24 };

/* One that holds nothing yet but its lock; NULL with a text. */
static engine_t *engine_new(void)
{
    engine_t *engine = calloc(1, sizeof *engine);
    if (!engine) {
        error_set(QUOIT_ERR_NO_MEMORY, "engine: %zu bytes", sizeof *engine);
        return NULL;
    }
    engine->users = 1;
    engine->rank = -1;
    engine->doorbell = engine->epoll = -1;
    engine->fork_generation = engine_fork_generation();
    engine->spin_time = (uint64_t)setting_int(SETTING_SPIN_TIME) * 1000;
    engine->stream_bytes = copy_pays_past();
    engine->device_direct = setting_int(SETTING_DEVICE_DIRECT) != 0;
    engine->publish.way = (publish_way_t)setting_int(SETTING_PUBLISH);
    list_init(&engine->active);
    list_init(&engine->orphans);
    list_init(&engine->sections);
    window_pools_init(engine);
    list_init(&engine->leased);
    list_init(&engine->memory_kept);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&engine->mutex, NULL);
    pthread_cond_init(&engine->free_or_done, &monotonic);
    pthread_cond_init(&engine->progress_wanted, &monotonic);
    pthread_condattr_destroy(&monotonic);
    return engine;
}

/* What it holds, as far as that was come to. */
static void engine_free(engine_t *engine)
{
    window_pool_forget(&engine->section_pool);
    window_pool_forget(&engine->slot_pool);
    for (int i = engine->transports; i-- > 0;) engine->transport[i].ops->close(engine->transport[i].transport);
    if (engine->epoll >= 0) close(engine->epoll);
    if (engine->doorbell >= 0 && !engine->doorbell_is_lent) close(engine->doorbell);
    table_destroy(engine->comms);
    table_destroy(engine->peers);
    pthread_cond_destroy(&engine->free_or_done);
    pthread_cond_destroy(&engine->progress_wanted);
    pthread_mutex_destroy(&engine->mutex);
    free(engine);
}

static quoit_status_t open_descriptors(engine_t *engine)
{
    engine->doorbell = limits_above_standard(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    if (engine->doorbell < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "engine: eventfd");
    engine->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (engine->epoll < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "engine: epoll_create1");
    return watch_descriptor(engine, engine->doorbell);
}

quoit_status_t engine_create(engine_t **result)
{
    pthread_once(&fork_once, watch_forks);
    quoit_status_t status = settings_load();
    if (status == QUOIT_OK) status = limits_descriptors(DESCRIPTORS_AT_ONCE, "engine");
    if (status != QUOIT_OK) return status;
    engine_t *engine = engine_new();
    if (!engine) return QUOIT_ERR_NO_MEMORY;
    status = random_bytes(&engine->self, sizeof engine->self);
    if (status == QUOIT_OK) status = table_create(&engine->peers);
    if (status == QUOIT_OK) status = table_create(&engine->comms);
    if (status == QUOIT_OK) status = open_descriptors(engine);
    if (status == QUOIT_OK) status = open_transports(engine);
    if (status != QUOIT_OK) {
        engine_free(engine);
        return status;
    }
    engine->journal = journal_create(engine->self);
    *result = engine;
    return QUOIT_OK;
}

/* ------------------------------------------------------------------ the process's engine */

static forked_lock_t default_lock = {.mutex = PTHREAD_MUTEX_INITIALIZER};
static engine_t *default_engine;

quoit_status_t engine_default(engine_t **engine)
{
    quoit_status_t status = QUOIT_OK;
    forked_lock(&default_lock);
    if (default_engine && default_engine->fork_generation != engine_fork_generation()) default_engine = NULL; /* the parent's */
    if (default_engine)
        default_engine->users++;
    else
        status = engine_create(&default_engine);
    if (status == QUOIT_OK) *engine = default_engine;
    forked_unlock(&default_lock);
    return status;
}

engine_t *engine_current(void)
{
    forked_lock(&default_lock);
    engine_t *engine = default_engine && default_engine->fork_generation == engine_fork_generation() ? default_engine : NULL;
    if (engine) engine->users++;
    forked_unlock(&default_lock);
    return engine;
}

enum { LINGER_AFTER_FAILURE_US = 500000, QUIET_NS = 500000000 };

/*
 * Let out what peers still need; bounded. The caller owns the engine. After a failure only word of it is under way, and part of it
 * goes to processes that are gone: no reason to wait long. Where ranks that may be alive were left out, what nothing moves of is for them.
 */
static void drain(engine_t *engine)
{
    int64_t linger_us = setting_int(SETTING_LINGER);
    if (engine->failed && linger_us > LINGER_AFTER_FAILURE_US) linger_us = LINGER_AFTER_FAILURE_US;
    uint64_t begun = clock_now(), now = begun, newest = begun, deadline = begun + (uint64_t)linger_us * 1000;
    for (; now < deadline && !(engine->left_out && now >= newest + QUIET_NS); now = clock_now()) {
        bool moved = engine_poll(engine);
        if (moved) newest = now;
        if (engine_transports_idle(engine)) return;
        if (!moved) {
            struct epoll_event events[8];
            doorbell_drain(engine->doorbell); /* else it would end each of these waits at once */
            epoll_wait(engine->epoll, events, 8, 1);
        }
    }
    log_write(engine->failed || engine->left_out ? LOG_INFO : LOG_WARN, "engine", "gave up after %lld ms sending what peers may still need (QUOIT_LINGER)",
              (long long)(now - begun) / 1000000);
}

/* Nobody uses it any more: it lets out what peers need. Its descriptors and memory stay. */
static void end(engine_t *engine)
{
    pthread_mutex_lock(&engine->mutex);
    engine->stop = true;
    bool running = engine->progress_running;
    pthread_cond_signal(&engine->progress_wanted);
    pthread_mutex_unlock(&engine->mutex);
    if (running) {
        doorbell_ring(engine->doorbell); /* it may sleep in epoll */
        pthread_join(engine->progress_thread, NULL);
        engine->progress_running = false;
    }
    engine_enter(engine); /* a thread may be giving memory back */
    window_collect(engine, true); /* lets go of peers, which then get our goodbye */
    drain(engine);
    control_forget(engine);
    if (trace_finish(engine->trace) != QUOIT_OK) log_write(LOG_WARN, "trace", "%s", error_text());
    engine->trace = NULL;
    journal_destroy(engine->journal);
    engine->journal = NULL;
    memory_forget(engine);
    engine_leave(engine);
}

void engine_retain(engine_t *engine)
{
    forked_lock(&default_lock);
    engine->users++;
    forked_unlock(&default_lock);
}

void engine_release(engine_t *engine)
{
    forked_lock(&default_lock);
    bool last = --engine->users == 0;
    if (last && engine == default_engine) default_engine = NULL;
    if (last) engine->ended = true;
    if (last) engine->memory_users++; /* until it has ended */
    forked_unlock(&default_lock);
    if (!last) return;
    end(engine);
    engine_memory_release(engine);
}

void engine_memory_retain(engine_t *engine)
{
    forked_lock(&default_lock);
    engine->memory_users++;
    forked_unlock(&default_lock);
}

void engine_memory_release(engine_t *engine)
{
    forked_lock(&default_lock);
    bool last = --engine->memory_users == 0 && engine->ended;
    forked_unlock(&default_lock);
    if (last) engine_free(engine);
}

bool engine_start_progress(engine_t *engine)
{
    if (!setting_int(SETTING_PROGRESS_THREAD)) return false;
    pthread_mutex_lock(&engine->mutex);
    if (!engine->progress_running && !engine->stop) {
        sigset_t all, before; /* the framework's signals are for its own threads */
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        int failed = pthread_create(&engine->progress_thread, NULL, engine_progress_main, engine);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        engine->progress_running = !failed;
        if (failed && !engine->progress_refused)
            log_write(LOG_WARN, "engine", "no progress thread: %s; operations that nobody waits for stand still until a call is made",
                      strerror(failed));
        engine->progress_refused = failed != 0;
        if (!failed) pthread_setname_np(engine->progress_thread, "quoit");
    }
    bool running = engine->progress_running;
    pthread_mutex_unlock(&engine->mutex);
    return running;
}

/* ------------------------------------------------------------------ peers */

quoit_status_t engine_peer(engine_t *engine, quoit_process_id_t process, const char *name, peer_t **result)
{
    peer_t *peer = table_get(engine->peers, process_key(process));
    if (peer && (peer->left || peer->status != QUOIT_OK)) { /* it is back: what still holds the old peer goes on without it */
        table_take(engine->peers, process_key(process));
        peer = NULL;
    }
    if (!peer) {
        peer = calloc(1, sizeof *peer);
        if (!peer) return error_set(QUOIT_ERR_NO_MEMORY, "engine: a peer of %zu bytes", sizeof *peer);
        peer->process = process;
        peer->engine = engine;
        quoit_status_t status = table_put(engine->peers, process_key(process), peer);
        if (status != QUOIT_OK) {
            free(peer);
            return status;
        }
    }
    snprintf(peer->name, sizeof peer->name, "%s", name);
    peer->users++;
    *result = peer;
    return QUOIT_OK;
}

void engine_peer_release(peer_t *peer)
{
    if (!peer || --peer->users > 0) return;
    if (table_get(peer->engine->peers, process_key(peer->process)) == peer) table_take(peer->engine->peers, process_key(peer->process));
    /* The endpoint of a MAP transport may be both; it was connected once for each. */
    if (peer->message) peer->message->transport->ops->disconnect(peer->message);
    if (peer->map) peer->map->transport->ops->disconnect(peer->map);
    free(peer);
}

engine_transport_t *engine_find_transport(engine_t *engine, const char *name)
{
    for (int i = 0; i < engine->transports; i++)
        if (strcmp(engine->transport[i].ops->name, name) == 0) return &engine->transport[i];
    return NULL;
}

/* ------------------------------------------------------------------ events */

/* Tell all communicators that a process is lost. */
static void tell_lost(engine_t *engine, peer_t *peer)
{
    size_t cursor = 0;
    table_key_t key;
    void *comm;
    while (table_next(engine->comms, &cursor, &key, &comm)) comm_peer_lost(comm, peer);
}

void engine_event(engine_t *engine, const quoit_event_t *event)
{
    if (event->type == QUOIT_EVENT_NOTICE) {
        control_receive(engine, event);
        return;
    }
    peer_t *peer = table_get(engine->peers, process_key(event->peer));
    if (!peer) return; /* a process that no communicator here knows */
    /* An attempt to find a host mate that found none is no loss, nor is a connection that we never asked for. */
    bool memory = event->endpoint == peer->map && peer->proven;
    if (!memory && event->endpoint != peer->message) return;
    if (event->type == QUOIT_EVENT_CLOSED && event->status == QUOIT_OK) {
        peer->left = true;
        return;
    }
    if (peer->status != QUOIT_OK) return;
    /* A host mate whose memory is attached cannot live elsewhere: it has ended, and what it said before may not be read yet. */
    if (event->type == QUOIT_EVENT_CLOSED && event->status == QUOIT_ERR_NOT_FOUND && peer->proven) {
        peer->left = true;
        return;
    }
    if (event->type == QUOIT_EVENT_CLOSED && event->status == QUOIT_ERR_PEER && event->endpoint && !memory) {
        uint64_t sent, received;
        event->endpoint->transport->ops->count(event->endpoint, &sent, &received);
        peer->unheard = received == 0;
    }
    quoit_status_t status = event->type == QUOIT_EVENT_DIED ? QUOIT_ERR_PEER : event->status;
    snprintf(peer->text, sizeof peer->text, "%s", event->text ? event->text : quoit_status_text(status));
    peer->status = status;
    log_info("engine", "%s: %s", peer->name, peer->text);
    tell_lost(engine, peer);
}
