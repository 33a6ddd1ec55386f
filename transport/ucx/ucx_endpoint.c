/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint's life: COMING (ucx_connect.c calls the peer, or ucx_accept.c has a proof of it), STANDING, then ENDED (something broke;
 * or the peer said goodbye, after PARTED if its last messages wait to be received) or LEAVING (disconnected here).
 *
 * Leaving: what is queued goes out, then the channel's goodbye, then the link's LAST; the peer answers with a RECEIPT when all of it
 * has arrived, and only then is the connection closed. A connection that breaks after LAST is taken for a receipt: the peer closes
 * only when it has read the goodbye, or has died.
 */
#include "base/log.h"
#include "transport/ucx/ucx.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ucx_endpoint_t *ucx_endpoint_create(ucx_transport_t *transport, quoit_process_id_t peer, const char *name)
{
    ucx_endpoint_t *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint) {
        error_set(QUOIT_ERR_NO_MEMORY, "ucx: no memory for an endpoint");
        return NULL;
    }
    endpoint->base = (quoit_endpoint_t){.transport = &transport->base, .peer = peer};
    endpoint->transport = transport;
    list_init(&endpoint->node);
    list_init(&endpoint->eventful);
    if (name) snprintf(endpoint->name, sizeof endpoint->name, "%s", name);
    else snprintf(endpoint->name, sizeof endpoint->name, "process %016" PRIx64 "%016" PRIx64, peer.high, peer.low);
    snprintf(endpoint->description, sizeof endpoint->description, "ucx, not connected yet");
    if (table_put(transport->peers, process_key(peer), endpoint) != QUOIT_OK) {
        free(endpoint);
        return NULL;
    }
    list_append(&transport->endpoints, &endpoint->node);
    return endpoint;
}

ucx_endpoint_t *ucx_endpoint_find(const ucx_transport_t *transport, quoit_process_id_t peer)
{
    return table_get(transport->peers, process_key(peer));
}

/* New connections with this peer get another endpoint. */
static void forget_peer(ucx_endpoint_t *endpoint)
{
    quoit_process_id_t peer = endpoint->base.peer;
    if (ucx_endpoint_find(endpoint->transport, peer) != endpoint) return;
    table_take(endpoint->transport->peers, process_key(peer));
    ucx_strangers_look(endpoint->transport, peer);
}

static void drop_links(ucx_endpoint_t *endpoint)
{
    ucx_call_drop(endpoint);
    ucx_link_destroy(endpoint->incoming);
    ucx_link_destroy(endpoint->link);
    endpoint->incoming = endpoint->link = NULL;
}

void ucx_endpoint_destroy(ucx_endpoint_t *endpoint)
{
    if (!endpoint) return;
    forget_peer(endpoint);
    drop_links(endpoint);
    list_remove(&endpoint->node);
    list_remove(&endpoint->eventful);
    if (endpoint->transport->last == endpoint) endpoint->transport->last = NULL;
    if (endpoint->channel && channel_status(endpoint->channel) == QUOIT_OK) {
        error_set(QUOIT_ERR_CLOSED, "ucx: the connection with %s was closed here", endpoint->name);
        channel_fail(endpoint->channel, QUOIT_ERR_CLOSED);
    }
    channel_destroy(endpoint->channel);
    job_secret_wipe(&endpoint->secret);
    free(endpoint);
}

void ucx_endpoint_reap(ucx_endpoint_t *endpoint)
{
    if (endpoint->count > 0 || endpoint == endpoint->transport->last) return;
    bool gone = endpoint->life == UCX_ENDED && endpoint->told;
    bool left = endpoint->life == UCX_LEAVING && !endpoint->link;
    if (gone || left) ucx_endpoint_destroy(endpoint);
}

quoit_status_t ucx_endpoint_set_limits(ucx_endpoint_t *endpoint, ip_limits_t limits)
{
    channel_config_t config = {.ops = &ucx_pipe_ops,
                               .eager_limit = limits.eager_limit,
                               .eager_pool = limits.eager_pool,
                               .segment_size = limits.segment_size};
    quoit_status_t status = channel_create(&config, endpoint->name, &endpoint->channel);
    if (status == QUOIT_OK) endpoint->limits = limits;
    return status;
}

/* ---------------------------------------------------------------- standing */

/* UCX's own account of the connection: its transports and devices. */
static void log_choice(const ucx_endpoint_t *endpoint)
{
    char *text = NULL;
    size_t length = 0;
    FILE *stream = log_enabled(LOG_DEBUG) ? open_memstream(&text, &length) : NULL;
    if (!stream) return;
    endpoint->transport->ucx->ucp_ep_print_info(endpoint->link->ep, stream);
    fclose(stream);
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n"));)
        if (strspn(line, "# ") < strlen(line)) log_debug("ucx", "%s: %s", endpoint->name, line + strspn(line, "# "));
    free(text);
}

/* Nobody here wants it any more: the rest goes out, then the goodbye. */
static void leave(ucx_endpoint_t *endpoint)
{
    endpoint->life = UCX_LEAVING;
    endpoint->told = true;
    list_remove(&endpoint->eventful);
    forget_peer(endpoint);
    channel_close(endpoint->channel);
    ucx_link_touch(endpoint->link);
}

void ucx_endpoint_establish(ucx_endpoint_t *endpoint, ucx_link_t *link)
{
    char remote[IP_NAME_CAPACITY];
    void *pipe = link;
    if (endpoint->caller == link) endpoint->caller = NULL;
    if (endpoint->incoming == link) endpoint->incoming = NULL;
    drop_links(endpoint);
    job_secret_wipe(&endpoint->secret);
    link->kind = UCX_PIPE;
    link->deadline = CLOCK_NEVER;
    endpoint->link = link;
    endpoint->life = UCX_STANDING;
    snprintf(endpoint->description, sizeof endpoint->description, "ucx %s %s", endpoint->transport->ucx->version,
             ip_name_text(&link->remote, remote));
    channel_open(endpoint->channel, endpoint->name, &pipe, 1);
    ucx_link_touch(link);
    log_debug("ucx", "connected with %s: %s", endpoint->name, endpoint->description);
    log_choice(endpoint);
    if (endpoint->left_early) leave(endpoint);
}

void ucx_endpoint_end(ucx_endpoint_t *endpoint, quoit_status_t status)
{
    if (endpoint->life == UCX_ENDED) return;
    bool stood = endpoint->life != UCX_COMING, waited = endpoint->count > 0;
    if (status == QUOIT_OK) snprintf(endpoint->text, sizeof endpoint->text, "ucx: %s said goodbye", endpoint->name);
    else snprintf(endpoint->text, sizeof endpoint->text, "%s%s", strncmp(error_text(), "ucx: ", 5) == 0 ? "" : "ucx: ", error_text());
    endpoint->status = status;
    endpoint->life = UCX_ENDED;
    if (endpoint->channel && channel_status(endpoint->channel) == QUOIT_OK) {
        quoit_status_t told = status == QUOIT_OK ? QUOIT_ERR_CLOSED : status;
        error_set(told, "%s", endpoint->text);
        channel_fail(endpoint->channel, told);
    }
    drop_links(endpoint);
    forget_peer(endpoint);
    if (!stood && !waited) endpoint->told = true; /* nobody knows it */
    else if (list_is_empty(&endpoint->eventful)) list_append(&endpoint->transport->eventful, &endpoint->eventful);
}

/* ---------------------------------------------------------------- the end of a link */

void ucx_farewell_begin(ucx_link_t *link, int ms)
{
    if (link->kind == UCX_STRANGER && !link->proved) link->transport->stranger_count--;
    link->kind = UCX_FAREWELL;
    link->endpoint = NULL;
    link->deadline = clock_deadline(ms);
    ucx_transport_wake_at(link->transport, link->deadline);
    ucx_link_touch(link);
}

/* What is there to say is said; the connection is closed when it is out. A peer that was told a reason closes by itself. */
void ucx_farewell_step(ucx_link_t *link)
{
    size_t unsaid = 0;
    if (link->handshake->state == HANDSHAKE_FAILED) {
        while (ucx_handshake_move(link)) {}
        handshake_output(link->handshake, &unsaid);
    } else {
        ucx_link_acknowledge(link);
        unsaid = !link->acknowledged;
    }
    if (link->broken != UCS_OK || (unsaid == 0 && ucx_link_flush(link) && !link->hears_out)) ucx_link_destroy(link);
}

/* Nothing more can come or go, but what came may wait. */
static void part(ucx_endpoint_t *endpoint)
{
    ucx_link_t *link = endpoint->link;
    endpoint->link = NULL;
    endpoint->life = UCX_PARTED;
    forget_peer(endpoint);
    ucx_farewell_begin(link, UCX_FAREWELL_MS);
    ucx_endpoint_check_parted(endpoint);
}

void ucx_endpoint_check_parted(ucx_endpoint_t *endpoint)
{
    if (endpoint->life == UCX_PARTED && channel_peer_closed(endpoint->channel)) ucx_endpoint_end(endpoint, QUOIT_OK);
}

/* ---------------------------------------------------------------- a pipe */

static void drop_notices(ucx_endpoint_t *endpoint)
{
    const void *data;
    size_t length;
    while (channel_next_notice(endpoint->channel, &data, &length)) {}
}

/* The peer's bytes mean nothing any more, but its goodbye does: then it needs nothing from us. */
static void leaving_step(ucx_endpoint_t *endpoint)
{
    ucx_link_t *link = endpoint->link;
    quoit_status_t status = channel_status(endpoint->channel);
    drop_notices(endpoint);
    if (status == QUOIT_OK && link->broken == UCS_OK && channel_idle(endpoint->channel)) ucx_link_send_last(link);
    bool over = link->last_acknowledged || link->broken != UCS_OK || (status != QUOIT_OK && status != QUOIT_ERR_CLOSED);
    if (status == QUOIT_ERR_CLOSED) {
        endpoint->link = NULL;
        ucx_farewell_begin(link, UCX_FAREWELL_MS);
    } else if (over) {
        endpoint->link = NULL;
        ucx_link_destroy(link);
    }
    ucx_endpoint_reap(endpoint);
}

size_t ucx_pipe_step(ucx_link_t *pipe)
{
    ucx_endpoint_t *endpoint = pipe->endpoint;
    uint64_t sent, received, sent_after, received_after;
    channel_count(endpoint->channel, &sent, &received);
    channel_read(endpoint->channel, 0, UCX_BUDGET);
    if (channel_wants_write(endpoint->channel, 0)) channel_write(endpoint->channel, 0, UCX_BUDGET);
    channel_count(endpoint->channel, &sent_after, &received_after);
    size_t moved = (size_t)(sent_after - sent + received_after - received);
    bool room = pipe->in_flight < UCX_IN_FLIGHT && pipe->broken == UCS_OK;
    if (moved > 0 && (ucx_link_has_bytes(pipe) || (room && channel_wants_write(endpoint->channel, 0)))) ucx_link_touch(pipe);
    if (endpoint->life == UCX_LEAVING) {
        leaving_step(endpoint);
        return moved;
    }
    if (received_after > received && list_is_empty(&endpoint->eventful))
        list_append(&endpoint->transport->eventful, &endpoint->eventful);
    quoit_status_t status = channel_status(endpoint->channel);
    if (status == QUOIT_ERR_CLOSED) part(endpoint);
    else if (status != QUOIT_OK) ucx_endpoint_end(endpoint, status);
    return moved;
}

/* ---------------------------------------------------------------- leaving */

bool ucx_endpoint_is_idle(ucx_endpoint_t *endpoint)
{
    switch (endpoint->life) {
    case UCX_COMING: return !endpoint->calling || channel_idle(endpoint->channel);
    case UCX_STANDING: return channel_idle(endpoint->channel) && ucx_link_flush(endpoint->link);
    case UCX_LEAVING: return false; /* the receipt is missing */
    case UCX_PARTED:
    case UCX_ENDED: break;
    }
    return true;
}

void ucx_disconnect(quoit_endpoint_t *base)
{
    ucx_endpoint_t *endpoint = (ucx_endpoint_t *)base;
    if (endpoint->count > 0) endpoint->count--;
    if (endpoint->count > 0) return;
    if (endpoint->life == UCX_STANDING) {
        leave(endpoint);
    } else if (endpoint->life == UCX_COMING) {
        /* What was sent already is done for its sender, and must still arrive. */
        endpoint->left_early = !channel_idle(endpoint->channel);
        if (!endpoint->left_early) ucx_endpoint_destroy(endpoint);
    } else {
        if (endpoint->life == UCX_PARTED) ucx_endpoint_end(endpoint, QUOIT_OK);
        endpoint->told = true;
        list_remove(&endpoint->eventful);
        ucx_endpoint_reap(endpoint);
    }
}

void ucx_endpoint_farewell(ucx_endpoint_t *endpoint)
{
    if (endpoint->life == UCX_STANDING) leave(endpoint);
}

quoit_status_t ucx_endpoint_status(quoit_endpoint_t *base)
{
    ucx_endpoint_t *endpoint = (ucx_endpoint_t *)base;
    switch (endpoint->life) {
    case UCX_COMING: return QUOIT_IN_PROGRESS;
    case UCX_STANDING:
    case UCX_PARTED: return QUOIT_OK;
    case UCX_LEAVING: return error_set(QUOIT_ERR_CLOSED, "ucx: the connection with %s was closed here", endpoint->name);
    case UCX_ENDED: break;
    }
    return error_set(endpoint->status == QUOIT_OK ? QUOIT_ERR_CLOSED : endpoint->status, "%s", endpoint->text);
}
