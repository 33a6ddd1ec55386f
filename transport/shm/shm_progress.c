/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Polling, sleeping, events.
 *
 * A call of progress with nothing to do reads eight mail bytes at a time, and a line of each ring that it follows, and makes no system
 * call. Descriptors (set-up of connections, ends of sockets and processes) are looked at when something said so, every 8th call while a
 * set-up is under way, and else when a clock, read every 8th call, is 200 us on.
 *
 * What may be freed is freed only by shm_reap, after a round of events: until then events may still point at it.
 */
#include "transport/shm/shm.h"

#include "base/clock.h"
#include "base/doorbell.h"
#include "base/log.h"
#include "transport/shm/shm_wait.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { KEEP_NS = 200000, KEEP_CALLS = 8, EVENTS_AT_ONCE = 64 };

quoit_status_t shm_watch(shm_transport_t *transport, int fd, uint32_t events, shm_source_t *source)
{
    struct epoll_event event = {.events = events, .data.ptr = source};
    if (epoll_ctl(transport->epoll, EPOLL_CTL_ADD, fd, &event) == 0) return QUOIT_OK;
    return error_set_errno(QUOIT_ERR_SYSTEM, errno, "shm: cannot watch a descriptor");
}

void shm_unwatch(shm_transport_t *transport, int fd)
{
    if (fd >= 0 && !transport->forked) (void)epoll_ctl(transport->epoll, EPOLL_CTL_DEL, fd, NULL);
}

/* ---------------------------------------------------------------- descriptors and deadlines */

static void handle_event(shm_transport_t *transport, shm_source_t *source)
{
    shm_link_t *link = (shm_link_t *)source;
    shm_endpoint_t *endpoint = container_of(source, shm_endpoint_t, source);
    switch (*source) {
    case SHM_SOURCE_LISTENER: shm_listener_accept(transport); break;
    case SHM_SOURCE_TIMER: doorbell_drain(transport->timer); break;
    case SHM_SOURCE_BELL: doorbell_drain(transport->bell); break;
    case SHM_SOURCE_LINK: shm_link_step(link); break;
    case SHM_SOURCE_PIDFD:
        if (endpoint->pidfd >= 0) shm_endpoint_process_ended(endpoint);
        break;
    }
}

static void step_links(shm_transport_t *transport, uint64_t now)
{
    list_t work, *node;
    list_init(&work);
    while ((node = list_pop(&transport->links))) list_append(&work, node);
    while ((node = list_pop(&work))) {
        shm_link_t *link = container_of(node, shm_link_t, node);
        list_append(&transport->links, node); /* before the step, which may drop this link or another */
        if (!link->endpoint && now >= link->deadline) {
            bool unknown = link->handshake.state == HANDSHAKE_WANTS_SECRET;
            shm_link_fail(link, error_set(QUOIT_ERR_TIMEOUT, unknown ? "shm: it belongs to a job that this process does not know"
                                                                     : "shm: its proof did not come in time"));
        } else if (link->retry || link->phase == SHM_PHASE_DIALLING) {
            shm_link_step(link);
        }
    }
}

static void resume_listener(shm_transport_t *transport, uint64_t now)
{
    if (transport->listener_pause == 0 || now < transport->listener_pause) return;
    transport->listener_pause = 0;
    if (shm_watch(transport, transport->listener, EPOLLIN, &transport->listener_source)) {
        log_error("shm", "the listener is lost: %s", error_text());
    }
}

static bool endpoint_is_pending(const shm_endpoint_t *endpoint) { return endpoint->state == SHM_CONNECTING || endpoint->doubt; }

static void step_pending(shm_transport_t *transport, uint64_t now)
{
    step_links(transport, now);
    resume_listener(transport, now);
    bool pending = transport->strangers > 0 || transport->listener_pause != 0;
    for (list_t *node = transport->endpoints.next; node != &transport->endpoints; node = node->next) {
        shm_endpoint_t *endpoint = container_of(node, shm_endpoint_t, node);
        if (endpoint_is_pending(endpoint)) shm_endpoint_check_deadline(endpoint, now);
        pending = pending || endpoint_is_pending(endpoint);
    }
    transport->pending = pending;
}

static int keep(shm_transport_t *transport, uint64_t now)
{
    struct epoll_event events[EVENTS_AT_ONCE];
    transport->due = false;
    transport->kept = now;
    __atomic_store_n(&transport->header->cpu, (uint32_t)sched_getcpu(), __ATOMIC_RELAXED);
    int count = epoll_wait(transport->epoll, events, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < count; i++) handle_event(transport, events[i].data.ptr);
    if (count == EVENTS_AT_ONCE) transport->due = true;
    if (transport->pending) step_pending(transport, now);
    shm_reap(transport);
    return count > 0 ? count : 0;
}

void shm_reap(shm_transport_t *transport)
{
    list_t *node, *next;
    for (node = transport->endpoints.next; node != &transport->endpoints; node = next) {
        shm_endpoint_t *endpoint = container_of(node, shm_endpoint_t, node);
        next = node->next;
        if (endpoint != transport->told && shm_endpoint_is_over(endpoint)) shm_endpoint_free(endpoint);
    }
    while ((node = list_pop(&transport->dropped))) free(container_of(node, shm_link_t, node));
}

/* ---------------------------------------------------------------- bytes */

/*
 * A pair that exchanges many short messages would spend most of their time on the mark: it is in a line of its own, which each of them has to
 * take from the other twice a message. So the ring of a peer that has marked is followed, and looked at itself, until this process sleeps.
 */
static void follow(shm_transport_t *transport, shm_endpoint_t *endpoint)
{
    if (!endpoint->followed) {
        endpoint->followed = true;
        transport->followed[transport->follows++] = endpoint;
        ((uint8_t *)transport->quiet_mail)[endpoint->slot] = SHM_MAIL_FOLLOWED;
    }
    __atomic_store_n(&transport->header->mail[endpoint->slot], SHM_MAIL_FOLLOWED, __ATOMIC_RELAXED);
}

void shm_unfollow(shm_endpoint_t *endpoint)
{
    shm_transport_t *transport = (shm_transport_t *)endpoint->base.transport;
    if (!endpoint->followed) return;
    int place = 0;
    while (transport->followed[place] != endpoint) place++;
    transport->followed[place] = transport->followed[--transport->follows];
    endpoint->followed = false;
    ((uint8_t *)transport->quiet_mail)[endpoint->slot] = SHM_MAIL_NONE;
    if (!transport->forked) __atomic_store_n(&transport->header->mail[endpoint->slot], SHM_MAIL_NONE, __ATOMIC_RELAXED);
}

static void collect_mark(shm_transport_t *transport, int slot)
{
    uint8_t *mark = &transport->header->mail[slot];
    shm_endpoint_t *endpoint = transport->slots[slot];
    if (__atomic_load_n(mark, __ATOMIC_ACQUIRE) == ((const uint8_t *)transport->quiet_mail)[slot]) return;
    if (endpoint && (endpoint->followed || (endpoint->state == SHM_OPEN && transport->follows < SHM_MOST_FOLLOWED)))
        follow(transport, endpoint);
    else
        __atomic_exchange_n(mark, SHM_MAIL_NONE, __ATOMIC_ACQUIRE); /* reads the newest mark, so what was written before it is seen */
    if (endpoint) shm_endpoint_activate(endpoint);
}

static void collect_mail(shm_transport_t *transport)
{
    const uint64_t *mail = (const uint64_t *)(const void *)transport->header->mail;
    for (int word = 0; word * 8 < transport->slot_limit; word++) {
        if (__atomic_load_n(&mail[word], __ATOMIC_RELAXED) == transport->quiet_mail[word]) continue;
        for (int slot = word * 8; slot < word * 8 + 8; slot++) collect_mark(transport, slot);
    }
}

static int move(shm_endpoint_t *endpoint, size_t *budget)
{
    size_t moved, share = *budget < SHM_ENDPOINT_BUDGET ? *budget : SHM_ENDPOINT_BUDGET;
    int done = shm_endpoint_move(endpoint, share, &moved);
    *budget -= moved < *budget ? moved : *budget;
    return done;
}

/* What came into a ring that is followed is read at once, unless the endpoint has its turn anyway. */
static int move_followed(shm_transport_t *transport, size_t *budget)
{
    int done = 0;
    for (int i = 0; i < transport->follows; i++) {
        shm_endpoint_t *endpoint = transport->followed[i];
        if (!ring_readable(&endpoint->pipe) || !list_is_empty(&endpoint->active)) continue;
        if (*budget == 0) shm_endpoint_activate(endpoint);
        else done += move(endpoint, budget);
    }
    return done;
}

static int move_active(shm_transport_t *transport, size_t *budget)
{
    list_t work, *node;
    int done = 0;
    list_init(&work);
    while ((node = list_pop(&transport->active))) list_append(&work, node);
    while ((node = list_pop(&work))) {
        list_append(&transport->active, node); /* behind those that have not had their turn; it leaves by itself when all is done */
        if (*budget > 0) done += move(container_of(node, shm_endpoint_t, active), budget);
    }
    return done;
}

int shm_progress(quoit_transport_t *base)
{
    shm_transport_t *transport = (shm_transport_t *)base;
    size_t budget = SHM_PROGRESS_BUDGET;
    collect_mail(transport);
    int done = list_is_empty(&transport->active) ? 0 : move_active(transport, &budget);
    done += move_followed(transport, &budget);
    bool look = transport->due;
    if (++transport->calls % KEEP_CALLS == 0 && !look) look = transport->pending || clock_now() - transport->kept >= KEEP_NS;
    if (look) done += keep(transport, clock_now());
    return done;
}

/* ---------------------------------------------------------------- events */

static void tell_end(shm_transport_t *transport, shm_endpoint_t *endpoint, quoit_event_type_t type, quoit_event_t *event)
{
    snprintf(transport->told_text, sizeof transport->told_text, "%s", endpoint->text);
    *event = (quoit_event_t){.type = type,
                             .peer = endpoint->base.peer,
                             .endpoint = &endpoint->base,
                             .status = endpoint->status,
                             .text = transport->told_text};
}

/* It may have more to tell: what is due after the last notice is found out by asking once more. In turn with others. */
static void come_again(shm_transport_t *transport, shm_endpoint_t *endpoint)
{
    bool more = endpoint->state != SHM_OPEN || endpoint->farewell || channel_has_notice(endpoint->channel);
    if (more && list_is_empty(&endpoint->events)) list_append(&transport->events, &endpoint->events);
}

/* False: the endpoint has nothing more to tell. */
static bool tell(shm_transport_t *transport, shm_endpoint_t *endpoint, quoit_event_t *event)
{
    const void *data;
    size_t length;
    bool notice = endpoint->channel && channel_next_notice(endpoint->channel, &data, &length);
    if (endpoint->state == SHM_OPEN && (shm_endpoint_has_untold(endpoint) || channel_wants_write(endpoint->channel, 0)))
        shm_endpoint_flush(endpoint); /* credit that the one before gave back */
    if (notice) {
        *event = (quoit_event_t){
            .type = QUOIT_EVENT_NOTICE, .peer = endpoint->base.peer, .endpoint = &endpoint->base, .data = data, .length = length};
        return true;
    }
    shm_endpoint_check_goodbye(endpoint);
    list_remove(&endpoint->events); /* it may have ended just now, and come back to the list */
    if (endpoint->died && !endpoint->died_told) {
        endpoint->died_told = true;
        tell_end(transport, endpoint, QUOIT_EVENT_DIED, event);
        return true;
    }
    if (endpoint->state == SHM_ENDED && !endpoint->closed_told) {
        endpoint->closed_told = true;
        tell_end(transport, endpoint, QUOIT_EVENT_CLOSED, event);
        transport->told = endpoint;
        return true;
    }
    return false;
}

bool shm_next_event(quoit_transport_t *base, quoit_event_t *event)
{
    shm_transport_t *transport = (shm_transport_t *)base;
    if (transport->told) transport->due = true; /* it may be over */
    transport->told = NULL;
    while (!list_is_empty(&transport->events)) {
        shm_endpoint_t *endpoint = container_of(list_pop(&transport->events), shm_endpoint_t, events);
        if (!tell(transport, endpoint, event)) continue;
        come_again(transport, endpoint);
        return true;
    }
    return false;
}

/* ---------------------------------------------------------------- sleeping */

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

static uint64_t next_deadline(const shm_transport_t *transport)
{
    uint64_t next = transport->listener_pause ? transport->listener_pause : CLOCK_NEVER;
    for (const list_t *node = transport->links.next; node != &transport->links; node = node->next) {
        const shm_link_t *link = container_of(node, shm_link_t, node);
        if (!link->endpoint) next = earlier(next, link->deadline);
        if (link->retry) next = earlier(next, clock_deadline(SHM_RETRY_MS));
    }
    for (const list_t *node = transport->endpoints.next; node != &transport->endpoints; node = node->next) {
        const shm_endpoint_t *endpoint = container_of(node, shm_endpoint_t, node);
        if (!endpoint_is_pending(endpoint)) continue;
        next = earlier(next, endpoint->deadline);
        if (endpoint->state == SHM_CONNECTING && !endpoint->link) next = earlier(next, endpoint->dial_at);
    }
    return next;
}

static void set_timer(shm_transport_t *transport)
{
    uint64_t next = next_deadline(transport);
    if (next == CLOCK_NEVER) return;
    struct itimerspec when = {.it_value = clock_timespec(next)};
    (void)timerfd_settime(transport->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

static bool has_work(const shm_transport_t *transport)
{
    if (transport->due || !list_is_empty(&transport->events)) return true;
    for (int slot = 0; slot < transport->slot_limit; slot++) {
        if (__atomic_load_n(&transport->header->mail[slot], __ATOMIC_RELAXED) != SHM_MAIL_NONE) return true;
    }
    for (const list_t *node = transport->active.next; node != &transport->active; node = node->next) {
        if (shm_endpoint_has_work(container_of(node, shm_endpoint_t, active))) return true;
    }
    return false;
}

quoit_status_t shm_arm(quoit_transport_t *base)
{
    shm_transport_t *transport = (shm_transport_t *)base;
    bool starving = false;
    while (transport->follows > 0) {
        shm_endpoint_t *endpoint = transport->followed[0];
        shm_unfollow(endpoint);
        shm_endpoint_activate(endpoint); /* so that has_work looks into its ring */
    }
    for (const list_t *node = transport->active.next; node != &transport->active; node = node->next) {
        const shm_endpoint_t *endpoint = container_of(node, shm_endpoint_t, active);
        starving = starving || channel_starves(endpoint->channel);
    }
    __atomic_store_n(&transport->header->starving, starving, __ATOMIC_RELAXED); /* ordered by what follows */
    bool safe = shm_wait_arm(transport->header, transport->registered);
    if (!safe || has_work(transport)) {
        shm_wait_disarm(transport->header);
        return QUOIT_ERR_AGAIN;
    }
    if (transport->pending) set_timer(transport);
    return QUOIT_OK;
}

void shm_disarm(quoit_transport_t *base)
{
    shm_transport_t *transport = (shm_transport_t *)base;
    shm_wait_disarm(transport->header);
    transport->due = true; /* the descriptor may be what ended the sleep */
}
