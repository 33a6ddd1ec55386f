/* SPDX-License-Identifier: Apache-2.0 */
/* See endpoint.h. */
#include "transport/framing/endpoint.h"

#include "base/log.h"
#include "transport/process.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void endpoint_nothing(endpoint_t *endpoint) { (void)endpoint; }

static const char *transport_of(const endpoint_t *endpoint) { return endpoint->home->ops->name; }

static quoit_status_t closed_here(const endpoint_t *endpoint)
{
    return error_set(QUOIT_ERR_CLOSED, "%s: the connection with %s was closed here", transport_of(endpoint), endpoint->name);
}

static void change_life(endpoint_t *endpoint, endpoint_life_t life)
{
    endpoint->home->coming += (life == ENDPOINT_COMING) - (endpoint->life == ENDPOINT_COMING);
    endpoint->life = life;
}

/* ---------------------------------------------------------------- all of them */

quoit_status_t endpoints_open(endpoints_t *home, const quoit_transport_ops_t *table, const endpoint_ops_t *ops, quoit_process_id_t self)
{
    home->handle.ops = table;
    home->ops = ops;
    home->self = self;
    list_init(&home->all);
    list_init(&home->eventful);
    return table_create(&home->peers);
}

void endpoints_close(endpoints_t *home)
{
    while (home->peers && !list_is_empty(&home->all)) endpoint_destroy(container_of(home->all.next, endpoint_t, node));
    table_destroy(home->peers);
}

endpoint_t *endpoint_find(const endpoints_t *home, quoit_process_id_t peer) { return table_get(home->peers, process_key(peer)); }

static void forget_peer(endpoint_t *endpoint)
{
    quoit_process_id_t peer = endpoint->handle.peer;
    if (endpoint_find(endpoint->home, peer) != endpoint) return;
    table_take(endpoint->home->peers, process_key(peer));
    endpoint->home->ops->forgotten(endpoint);
}

/* ---------------------------------------------------------------- beginning */

quoit_status_t endpoint_create(endpoint_t *endpoint, endpoints_t *home, quoit_process_id_t peer, const char *name)
{
    endpoint->handle = (quoit_endpoint_t){.transport = &home->handle, .peer = peer};
    endpoint->home = home;
    list_init(&endpoint->node);
    list_init(&endpoint->eventful);
    if (name) snprintf(endpoint->name, sizeof endpoint->name, "%s", name);
    else snprintf(endpoint->name, sizeof endpoint->name, "process %016" PRIx64 "%016" PRIx64, peer.high, peer.low);
    if (!endpoint->description[0]) snprintf(endpoint->description, sizeof endpoint->description, "%s, not connected yet", home->ops->name);
    quoit_status_t status = table_put(home->peers, process_key(peer), endpoint);
    if (status != QUOIT_OK) return status;
    list_append(&home->all, &endpoint->node);
    home->coming++;
    return QUOIT_OK;
}

quoit_status_t endpoint_check_peer(const endpoints_t *home, const secrets_t *jobs, const quoit_peer_t *peer)
{
    if (process_same(peer->process, home->self)) return error_set(QUOIT_ERR_INVALID, "%s: a process does not connect to itself", home->ops->name);
    if (secrets_has(jobs, peer->job)) return QUOIT_OK;
    return error_set(QUOIT_ERR_INVALID, "%s: no secret is known for job %016" PRIx64, home->ops->name, peer->job);
}

void endpoint_join(endpoint_t *endpoint, const quoit_peer_t *peer, quoit_endpoint_t **result)
{
    if (endpoint->count == 0 && peer->name) snprintf(endpoint->name, sizeof endpoint->name, "%s", peer->name);
    endpoint->count++;
    endpoint->left_early = false;
    *result = &endpoint->handle;
}

void endpoint_stand(endpoint_t *endpoint)
{
    change_life(endpoint, ENDPOINT_STANDING);
    endpoint->home->ops->touch(endpoint);
    log_debug(transport_of(endpoint), "connected with %s: %s", endpoint->name, endpoint->description);
    if (endpoint->left_early) endpoint_leave(endpoint);
}

/* ---------------------------------------------------------------- ending */

void endpoint_eventful(endpoint_t *endpoint)
{
    if (list_is_empty(&endpoint->eventful)) list_append(&endpoint->home->eventful, &endpoint->eventful);
}

static void tell_nothing_more(endpoint_t *endpoint)
{
    endpoint->told = true;
    list_remove(&endpoint->eventful);
}

void endpoint_leave(endpoint_t *endpoint)
{
    change_life(endpoint, ENDPOINT_LEAVING);
    tell_nothing_more(endpoint);
    forget_peer(endpoint);
    endpoint->home->ops->leaving(endpoint);
    channel_close(endpoint->channel);
    endpoint->home->ops->touch(endpoint);
}

void endpoint_left(endpoint_t *endpoint)
{
    change_life(endpoint, ENDPOINT_ENDED);
    endpoint->home->ops->released(endpoint);
    endpoint_reap(endpoint);
}

void endpoint_part(endpoint_t *endpoint)
{
    change_life(endpoint, ENDPOINT_PARTED);
    endpoint->home->ops->parted(endpoint);
    forget_peer(endpoint);
    endpoint_eventful(endpoint);
    endpoint_check_parted(endpoint);
}

void endpoint_check_parted(endpoint_t *endpoint)
{
    if (endpoint->life == ENDPOINT_PARTED && channel_peer_closed(endpoint->channel)) endpoint_end(endpoint, QUOIT_OK);
}

static void write_end(endpoint_t *endpoint, quoit_status_t status)
{
    const char *transport = transport_of(endpoint), *text = error_text();
    size_t length = strlen(transport);
    bool named = strncmp(text, transport, length) == 0 && text[length] == ':';
    endpoint->status = status;
    if (status == QUOIT_OK) snprintf(endpoint->text, sizeof endpoint->text, "%s: %s said goodbye", transport, endpoint->name);
    else snprintf(endpoint->text, sizeof endpoint->text, "%s%s%s", named ? "" : transport, named ? "" : ": ", text);
}

void endpoint_end(endpoint_t *endpoint, quoit_status_t status)
{
    if (endpoint->life == ENDPOINT_ENDED) return;
    if (endpoint->life == ENDPOINT_COMING && endpoint->count == 0) endpoint->told = true; /* nobody knows it */
    write_end(endpoint, status);
    change_life(endpoint, ENDPOINT_ENDED);
    endpoint->home->ops->released(endpoint);
    if (endpoint->channel && channel_status(endpoint->channel) == QUOIT_OK) {
        quoit_status_t told = status == QUOIT_OK ? QUOIT_ERR_CLOSED : status;
        error_set(told, "%s", endpoint->text);
        channel_fail(endpoint->channel, told);
    }
    forget_peer(endpoint);
    if (!endpoint->told) endpoint_eventful(endpoint);
}

void endpoint_reap(endpoint_t *endpoint)
{
    if (endpoint->count > 0 || endpoint == endpoint->home->last) return;
    if (endpoint->life == ENDPOINT_ENDED && endpoint->told) endpoint_destroy(endpoint);
}

void endpoint_destroy(endpoint_t *endpoint)
{
    if (!endpoint) return;
    forget_peer(endpoint);
    change_life(endpoint, ENDPOINT_ENDED);
    endpoint->home->ops->released(endpoint);
    list_remove(&endpoint->node);
    list_remove(&endpoint->eventful);
    if (endpoint->home->last == endpoint) endpoint->home->last = NULL;
    if (endpoint->channel && channel_status(endpoint->channel) == QUOIT_OK) channel_fail(endpoint->channel, closed_here(endpoint));
    channel_destroy(endpoint->channel);
    endpoint->home->ops->freed(endpoint);
    free(endpoint);
}

/* ---------------------------------------------------------------- the table's calls */

quoit_status_t endpoint_status(quoit_endpoint_t *handle)
{
    const endpoint_t *endpoint = (endpoint_t *)handle;
    switch (endpoint->life) {
    case ENDPOINT_COMING: return QUOIT_IN_PROGRESS;
    case ENDPOINT_STANDING:
    case ENDPOINT_PARTED: return QUOIT_OK;
    case ENDPOINT_LEAVING: return closed_here(endpoint);
    case ENDPOINT_ENDED: break;
    }
    return error_set(endpoint->status == QUOIT_OK ? QUOIT_ERR_CLOSED : endpoint->status, "%s", endpoint->text);
}

quoit_status_t endpoint_send(quoit_endpoint_t *handle, quoit_key_t key, const void *buffer, size_t length, quoit_transfer_t *transfer)
{
    endpoint_t *endpoint = (endpoint_t *)handle;
    quoit_status_t status = channel_send(endpoint->channel, key, buffer, length, transfer);
    endpoint->home->ops->touch(endpoint);
    return status;
}

quoit_status_t endpoint_recv(quoit_endpoint_t *handle, quoit_key_t key, void *buffer, size_t length, quoit_transfer_t *transfer)
{
    endpoint_t *endpoint = (endpoint_t *)handle;
    quoit_status_t status = channel_recv(endpoint->channel, key, buffer, length, transfer);
    endpoint->home->ops->touch(endpoint);
    endpoint_check_parted(endpoint);
    return status;
}

quoit_status_t endpoint_notify(quoit_endpoint_t *handle, const void *data, size_t length)
{
    endpoint_t *endpoint = (endpoint_t *)handle;
    quoit_status_t status = channel_notify(endpoint->channel, data, length);
    endpoint->home->ops->touch(endpoint);
    return status;
}

void endpoint_disconnect(quoit_endpoint_t *handle)
{
    endpoint_t *endpoint = (endpoint_t *)handle;
    if (endpoint->count > 0) endpoint->count--;
    if (endpoint->count > 0) return;
    switch (endpoint->life) {
    case ENDPOINT_COMING: /* what was sent already is done for its sender, and must still arrive */
        endpoint->left_early = !channel_idle(endpoint->channel);
        if (!endpoint->left_early) endpoint_destroy(endpoint);
        return;
    case ENDPOINT_STANDING: endpoint_leave(endpoint); return;
    case ENDPOINT_LEAVING: return;
    case ENDPOINT_PARTED: endpoint_end(endpoint, QUOIT_OK); break;
    case ENDPOINT_ENDED: break;
    }
    tell_nothing_more(endpoint);
    endpoint_reap(endpoint);
}

void endpoints_cancel(quoit_transport_t *handle, uint64_t comm)
{
    endpoints_t *home = (endpoints_t *)handle;
    for (list_t *node = home->all.next; node != &home->all; node = node->next) {
        endpoint_t *endpoint = container_of(node, endpoint_t, node);
        if (!endpoint->channel) continue;
        channel_cancel(endpoint->channel, comm);
        home->ops->touch(endpoint);
        endpoint_check_parted(endpoint);
    }
}

static bool take_event(endpoint_t *endpoint, quoit_event_t *event)
{
    bool noticed = endpoint->channel && channel_next_notice(endpoint->channel, &event->data, &event->length);
    if (endpoint->channel && !channel_idle(endpoint->channel)) endpoint->home->ops->touch(endpoint); /* the notice before gave its credit back */
    if (noticed) {
        event->type = QUOIT_EVENT_NOTICE;
        return true;
    }
    endpoint_check_parted(endpoint);
    if (endpoint->life != ENDPOINT_ENDED || endpoint->told) return false;
    endpoint->told = true;
    event->type = QUOIT_EVENT_CLOSED;
    event->status = endpoint->status;
    event->text = endpoint->text;
    return true;
}

bool endpoints_next_event(quoit_transport_t *handle, quoit_event_t *event)
{
    endpoints_t *home = (endpoints_t *)handle;
    endpoint_t *last = home->last;
    home->last = NULL;
    if (last) endpoint_reap(last);
    while (!list_is_empty(&home->eventful)) {
        endpoint_t *endpoint = container_of(home->eventful.next, endpoint_t, eventful);
        *event = (quoit_event_t){.peer = endpoint->handle.peer, .endpoint = &endpoint->handle};
        if (take_event(endpoint, event)) {
            home->last = endpoint;
            return true;
        }
        list_remove(&endpoint->eventful);
        endpoint_reap(endpoint);
    }
    return false;
}

const char *endpoint_describe(quoit_endpoint_t *handle) { return ((endpoint_t *)handle)->description; }

void endpoint_count(quoit_endpoint_t *handle, uint64_t *sent, uint64_t *received)
{
    *sent = *received = 0; /* without a channel, too */
    if (((endpoint_t *)handle)->channel) channel_count(((endpoint_t *)handle)->channel, sent, received);
}
