/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport's table of calls: progress, events, sleeping. The completion queues are looked at in every call of progress, and of the
 * endpoints only the active ones: those that a completion or a call has done something to, and that are not done with it; what
 * needs a system call to be looked at (the control connections, events of the device) in every 16th, and always after a sleep or while
 * a connection is coming.
 */
#include "transport/verbs/verbs.h"

#include "base/log.h"
#include "transport/registry.h"
#include "transport/unmapped.h"

#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { LOOK_EVERY = 16 };

static verbs_transport_t *own(quoit_transport_t *base) { return (verbs_transport_t *)base; }

/* ---------------------------------------------------------------- listening and trust: the control transport's */

static quoit_status_t verbs_listen(quoit_transport_t *base, void *address, size_t *length)
{
    verbs_transport_t *transport = own(base);
    if (*length < VERBS_LIMITS_SIZE) return error_set(QUOIT_ERR_INVALID, "verbs: there is room for an address of %zu bytes", *length);
    size_t rest = *length - VERBS_LIMITS_SIZE;
    quoit_status_t status = transport->control->ops->listen(transport->control, (uint8_t *)address + VERBS_LIMITS_SIZE, &rest);
    if (status != QUOIT_OK) return status;
    verbs_limits_write(&transport->limits, address);
    *length = VERBS_LIMITS_SIZE + rest;
    return QUOIT_OK;
}

static quoit_status_t verbs_trust(quoit_transport_t *base, uint64_t job, const void *secret, size_t length)
{
    own(base)->woken = true;
    return own(base)->control->ops->trust(own(base)->control, job, secret, length);
}

static void verbs_distrust(quoit_transport_t *base, uint64_t job) { own(base)->control->ops->distrust(own(base)->control, job); }

/* ---------------------------------------------------------------- events of devices */

static const char *event_meaning(enum ibv_event_type type)
{
    switch (type) {
    case IBV_EVENT_DEVICE_FATAL: return "the device failed";
    case IBV_EVENT_PORT_ERR: return "the port went down";
    case IBV_EVENT_PORT_ACTIVE: return "the port is up";
    case IBV_EVENT_CQ_ERR: return "a completion queue overflowed";
    case IBV_EVENT_QP_FATAL: return "a queue pair failed";
    case IBV_EVENT_QP_REQ_ERR: return "a queue pair received an invalid request";
    case IBV_EVENT_QP_ACCESS_ERR: return "the peer wrote where it may not";
    case IBV_EVENT_GID_CHANGE: return "the GID table changed";
    default: return "an event";
    }
}

/* Does an event of this device end a link? */
static bool ends_link(const verbs_rail_t *rail, const verbs_link_t *link, enum ibv_event_type type, const struct ibv_cq *cq, int port)
{
    if (link->rail != rail || link->left) return false;
    if (cq != NULL) return link->cq != NULL && link->cq->cq == cq;
    /* A port may come back in time for the only link; of several the others can go on at once. */
    return type == IBV_EVENT_DEVICE_FATAL || (type == IBV_EVENT_PORT_ERR && port == rail->chosen.port && link->endpoint->links > 1);
}

/* Errors of queue pairs come as completions too; only what nothing else tells ends connections here. */
static void take_event(verbs_transport_t *transport, verbs_rail_t *rail, enum ibv_event_type type, const struct ibv_cq *cq, int port)
{
    log_write(type == IBV_EVENT_DEVICE_FATAL || type == IBV_EVENT_CQ_ERR ? LOG_ERROR : LOG_INFO, "verbs", "%s: %s (event %d)",
              rail->chosen.device, event_meaning(type), (int)type);
    for (list_t *place = transport->base.all.next; place != &transport->base.all; place = place->next) {
        verbs_endpoint_t *endpoint = container_of(place, verbs_endpoint_t, base.node);
        for (int i = 0; i < endpoint->links; i++) {
            verbs_link_t *link = &endpoint->link_of[i];
            if (!ends_link(rail, link, type, cq, port)) continue;
            if (cq != NULL) link->cq->room = 0; /* nobody joins it any more */
            verbs_link_break(link, error_set(QUOIT_ERR_SYSTEM, "verbs: %s (%s): %s of this host reports: %s (event %d)", endpoint->base.name,
                                             endpoint->base.description, rail->chosen.device, event_meaning(type), (int)type));
        }
    }
}

static int take_device_events(verbs_transport_t *transport)
{
    struct ibv_async_event event;
    int done = 0;
    for (int i = 0; i < transport->rails; i++) {
        while (transport->library->get_async_event(transport->rail[i].context, &event) == 0) {
            enum ibv_event_type type = event.event_type;
            const struct ibv_cq *cq = type == IBV_EVENT_CQ_ERR ? event.element.cq : NULL;
            int port = type == IBV_EVENT_PORT_ERR ? event.element.port_num : 0;
            transport->library->ack_async_event(&event);
            take_event(transport, &transport->rail[i], type, cq, port);
            done++;
        }
    }
    return done;
}

/* ---------------------------------------------------------------- progress */

static int take_control_events(verbs_transport_t *transport)
{
    const quoit_transport_ops_t *ops = transport->control->ops;
    quoit_event_t event;
    int done = ops->progress(transport->control);
    while (ops->next_event(transport->control, &event)) {
        if (event.type == QUOIT_EVENT_NOTICE) verbs_control_notice(transport, &event);
        else if (event.type == QUOIT_EVENT_CLOSED) verbs_control_closed(transport, &event);
        done++;
    }
    return done;
}

/* The timer rings when the earliest connection that is coming has had its time. */
static void set_timer(verbs_transport_t *transport)
{
    uint64_t earliest = CLOCK_NEVER, expirations;
    for (list_t *link = transport->base.all.next; link != &transport->base.all; link = link->next) {
        const verbs_endpoint_t *endpoint = container_of(link, verbs_endpoint_t, base.node);
        if (endpoint->base.life == ENDPOINT_COMING && endpoint->deadline < earliest) earliest = endpoint->deadline;
    }
    if (earliest == transport->timer_at) return;
    struct itimerspec at = {.it_value = {.tv_sec = 0}};
    if (earliest != CLOCK_NEVER) at.it_value = clock_timespec(earliest + 1);
    if (timerfd_settime(transport->timer, TFD_TIMER_ABSTIME, &at, NULL) == 0) transport->timer_at = earliest;
    if (read(transport->timer, &expirations, sizeof expirations) < 0) return; /* nothing had rung */
}

static int verbs_progress(quoit_transport_t *base)
{
    verbs_transport_t *transport = own(base);
    bool look = transport->woken || transport->base.coming > 0 || ++transport->turn % LOOK_EVERY == 0;
    int done = 0;
    if (look) {
        transport->woken = false;
        done += take_control_events(transport);
        done += take_device_events(transport);
        verbs_queues_collect(transport);
    }
    done += verbs_cqs_poll(transport);
    list_t now, *link; /* who becomes active again is looked at next time */
    list_init(&now);
    while ((link = list_pop(&transport->active)) != NULL) list_append(&now, link);
    while ((link = list_pop(&now)) != NULL) done += verbs_endpoint_progress(container_of(link, verbs_endpoint_t, active));
    if (look && (transport->base.coming > 0 || transport->timer_at != CLOCK_NEVER)) set_timer(transport);
    return done;
}

static bool verbs_idle(quoit_transport_t *base)
{
    verbs_transport_t *transport = own(base);
    for (list_t *link = transport->base.all.next; link != &transport->base.all; link = link->next)
        if (!verbs_endpoint_is_idle(container_of(link, verbs_endpoint_t, base.node))) return false;
    return transport->control->ops->idle(transport->control);
}

/* ---------------------------------------------------------------- sleeping */

static int verbs_descriptor(quoit_transport_t *base) { return own(base)->epoll; }

static quoit_status_t verbs_arm(quoit_transport_t *base)
{
    verbs_transport_t *transport = own(base);
    transport->woken = true;
    if (!list_is_empty(&transport->base.eventful)) return QUOIT_ERR_AGAIN;
    if (transport->control->ops->arm(transport->control) != QUOIT_OK) return QUOIT_ERR_AGAIN;
    quoit_status_t status = verbs_cqs_arm(transport) ? QUOIT_OK : QUOIT_ERR_AGAIN;
    if (verbs_cqs_poll(transport) > 0) status = QUOIT_ERR_AGAIN;
    for (list_t *link = transport->active.next; link != &transport->active; link = link->next)
        if (verbs_endpoint_has_work(container_of(link, verbs_endpoint_t, active))) status = QUOIT_ERR_AGAIN;
    if (status != QUOIT_OK) transport->control->ops->disarm(transport->control);
    return status;
}

static void verbs_disarm(quoit_transport_t *base)
{
    verbs_transport_t *transport = own(base);
    transport->control->ops->disarm(transport->control);
    verbs_cqs_take_events(transport);
}

/* ---------------------------------------------------------------- memory */

static quoit_status_t verbs_reg(quoit_transport_t *base, const void *pointer, size_t length)
{
    return verbs_memory_declare(&own(base)->memory, pointer, length);
}

static void verbs_dereg(quoit_transport_t *base, const void *pointer) { verbs_memory_forget(&own(base)->memory, pointer); }

/* ---------------------------------------------------------------- memory of devices */

static verbs_kind_t *find_kind(verbs_transport_t *transport, const char *name)
{
    for (int i = 0; i < transport->kinds; i++)
        if (strcmp(transport->kind[i].name, name) == 0) return &transport->kind[i];
    return NULL;
}

static quoit_status_t verbs_device_reach(quoit_transport_t *base, const char *name)
{
    verbs_transport_t *transport = own(base);
    verbs_memory_config_t config = transport->options.memory;
    if (find_kind(transport, name) != NULL) return QUOIT_OK;
    if (transport->kinds == VERBS_KINDS || strlen(name) >= VERBS_KIND_CAPACITY)
        return error_set(QUOIT_ERR_UNSUPPORTED, "verbs: there is no room for device %s, beside %d others", name, transport->kinds);
    config.watch = transport->options.keep_exported;
    verbs_kind_t *kind = &transport->kind[transport->kinds];
    verbs_memory_init(&kind->memory, transport->library, transport->memory.pd, transport->memory.devices, &config);
    quoit_status_t status = verbs_dmabuf_check(&kind->memory);
    if (status != QUOIT_OK) return error_prefix(status, "verbs");
    snprintf(kind->name, sizeof kind->name, "%s", name);
    kind->memory.kind = kind->name;
    transport->kinds++;
    return QUOIT_OK;
}

static quoit_status_t verbs_device_take(quoit_transport_t *base, const quoit_device_memory_t *memory, quoit_region_t **region)
{
    verbs_kind_t *kind = find_kind(own(base), memory->kind);
    verbs_region_t *taken;
    if (kind == NULL) return error_set(QUOIT_ERR_INVALID, "verbs: device %s was not asked for by device_reach", memory->kind);
    quoit_status_t status = verbs_dmabuf_take(&kind->memory, memory, &taken);
    if (status == QUOIT_OK) *region = (quoit_region_t *)taken;
    return status;
}

static void verbs_device_give(quoit_transport_t *base, quoit_region_t *region)
{
    (void)base;
    verbs_memory_give((verbs_region_t *)region);
}

static void verbs_device_forget(quoit_transport_t *base, const char *name, const void *pointer, size_t length)
{
    verbs_kind_t *kind = find_kind(own(base), name);
    if (kind != NULL) verbs_dmabuf_forget(&kind->memory, (uintptr_t)pointer, length);
}

static quoit_status_t verbs_device_send(quoit_endpoint_t *base, quoit_key_t key, quoit_region_t *region, const void *buffer, size_t length,
                                        quoit_transfer_t *transfer)
{
    verbs_endpoint_t *endpoint = (verbs_endpoint_t *)base;
    verbs_endpoint_wake(endpoint);
    return channel_device_send(endpoint->base.channel, key, region, buffer, length, transfer);
}

static quoit_status_t verbs_device_recv(quoit_endpoint_t *base, quoit_key_t key, quoit_region_t *region, void *buffer, size_t length,
                                        quoit_transfer_t *transfer)
{
    verbs_endpoint_t *endpoint = (verbs_endpoint_t *)base;
    verbs_endpoint_wake(endpoint);
    quoit_status_t status = channel_device_recv(endpoint->base.channel, key, region, buffer, length, transfer);
    endpoint_check_parted(&endpoint->base);
    return status;
}

static quoit_status_t verbs_device_host(quoit_endpoint_t *base, quoit_transfer_t *transfer, void *host)
{
    verbs_endpoint_t *endpoint = (verbs_endpoint_t *)base;
    verbs_endpoint_wake(endpoint);
    quoit_status_t status = channel_device_host(endpoint->base.channel, transfer, host);
    endpoint_check_parted(&endpoint->base);
    return status;
}

/* ---------------------------------------------------------------- the table */

const quoit_transport_ops_t transport_verbs = {
    .abi = QUOIT_TRANSPORT_ABI,
    .struct_size = sizeof(quoit_transport_ops_t),
    .name = "verbs",
    .flags = QUOIT_TRANSPORT_MESSAGE | QUOIT_TRANSPORT_PUT | QUOIT_TRANSPORT_DEVICE,
    .probe = verbs_probe,
    .open = verbs_open,
    .close = verbs_close,
    .listen = verbs_listen,
    .trust = verbs_trust,
    .distrust = verbs_distrust,
    .connect = verbs_connect,
    .endpoint_status = endpoint_status,
    .disconnect = endpoint_disconnect,
    .send = endpoint_send,
    .recv = endpoint_recv,
    .cancel = endpoints_cancel,
    .notify = endpoint_notify,
    .next_event = endpoints_next_event,
    .progress = verbs_progress,
    .idle = verbs_idle,
    .descriptor = verbs_descriptor,
    .arm = verbs_arm,
    .disarm = verbs_disarm,
    .reg = verbs_reg,
    .dereg = verbs_dereg,
    .share_alloc = unmapped_share_alloc,
    .share_free = unmapped_share_free,
    .share_root = unmapped_share_root,
    .export_memory = unmapped_export,
    .attach = unmapped_attach,
    .ring = unmapped_ring,
    .describe = endpoint_describe,
    .count = endpoint_count,
    .device_reach = verbs_device_reach,
    .device_take = verbs_device_take,
    .device_give = verbs_device_give,
    .device_forget = verbs_device_forget,
    .device_send = verbs_device_send,
    .device_recv = verbs_device_recv,
    .device_host = verbs_device_host,
};
