/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint of ucx: its links, and its bytes while it stands or leaves. Its life is told in transport/framing/endpoint.h; COMING: ucx_connect.c
 * calls the peer, or ucx_accept.c has a proof of it.
 *
 * Leaving: what is queued goes out, then the channel's goodbye, then the link's LAST; the peer answers with a RECEIPT when all of it
 * has arrived, and only then is the connection closed. A connection that breaks after LAST is taken for a receipt: the peer closes
 * only when it has read the goodbye, or has died.
 */
#include "base/log.h"
#include "transport/ucx/ucx.h"

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
    endpoint->transport = transport;
    if (endpoint_create(&endpoint->base, &transport->base, peer, name) == QUOIT_OK) return endpoint;
    free(endpoint);
    return NULL;
}

static void drop_links(ucx_endpoint_t *endpoint)
{
    ucx_call_drop(endpoint);
    ucx_link_destroy(endpoint->incoming);
    ucx_link_destroy(endpoint->link);
    endpoint->incoming = endpoint->link = NULL;
}

static void touch(endpoint_t *base)
{
    ucx_endpoint_t *endpoint = (ucx_endpoint_t *)base;
    if (endpoint->link) ucx_link_touch(endpoint->link);
}

/* The peer waits for the receipt. */
static void parted(endpoint_t *base)
{
    ucx_endpoint_t *endpoint = (ucx_endpoint_t *)base;
    ucx_farewell_begin(endpoint->link, UCX_FAREWELL_MS);
    endpoint->link = NULL;
}

static void released(endpoint_t *base) { drop_links((ucx_endpoint_t *)base); }

static void forgotten(endpoint_t *base) { ucx_strangers_look(((ucx_endpoint_t *)base)->transport, base->handle.peer); }

static void freed(endpoint_t *base) { job_secret_wipe(&((ucx_endpoint_t *)base)->secret); }

const endpoint_ops_t ucx_endpoint_ops = {
    .name = "ucx",
    .touch = touch,
    .leaving = endpoint_nothing,
    .parted = parted,
    .released = released,
    .forgotten = forgotten,
    .freed = freed,
};

quoit_status_t ucx_endpoint_set_limits(ucx_endpoint_t *endpoint, ip_limits_t limits)
{
    channel_config_t config = {.ops = &ucx_pipe_ops,
                               .eager_limit = limits.eager_limit,
                               .eager_pool = limits.eager_pool,
                               .segment_size = limits.segment_size};
    quoit_status_t status = channel_create(&config, endpoint->base.name, &endpoint->base.channel);
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
        if (strspn(line, "# ") < strlen(line)) log_debug("ucx", "%s: %s", endpoint->base.name, line + strspn(line, "# "));
    free(text);
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
    snprintf(endpoint->base.description, sizeof endpoint->base.description, "ucx %s %s", endpoint->transport->ucx->version,
             ip_name_text(&link->remote, remote));
    channel_open(endpoint->base.channel, endpoint->base.name, &pipe, 1);
    log_choice(endpoint);
    endpoint_stand(&endpoint->base);
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

/* ---------------------------------------------------------------- a pipe */

static void drop_notices(ucx_endpoint_t *endpoint)
{
    const void *data;
    size_t length;
    while (channel_next_notice(endpoint->base.channel, &data, &length)) {}
}

/* The peer's bytes mean nothing any more, but its goodbye does: then it needs nothing from us. */
static void leaving_step(ucx_endpoint_t *endpoint)
{
    ucx_link_t *link = endpoint->link;
    quoit_status_t status = channel_status(endpoint->base.channel);
    drop_notices(endpoint);
    if (status == QUOIT_OK && link->broken == UCS_OK && channel_idle(endpoint->base.channel)) ucx_link_send_last(link);
    bool over = link->last_acknowledged || link->broken != UCS_OK || (status != QUOIT_OK && status != QUOIT_ERR_CLOSED);
    if (status == QUOIT_ERR_CLOSED) parted(&endpoint->base);
    if (status == QUOIT_ERR_CLOSED || over) endpoint_left(&endpoint->base);
}

void ucx_pipe_read(ucx_link_t *pipe)
{
    if (channel_read(pipe->endpoint->base.channel, 0, SIZE_MAX) > 0) endpoint_eventful(&pipe->endpoint->base);
}

/* More is about to follow what is written already: then the message that is being filled waits for it. */
static bool has_more(const ucx_link_t *pipe) { return ucx_link_has_room(pipe) && channel_wants_write(pipe->endpoint->base.channel, 0); }

size_t ucx_pipe_step(ucx_link_t *pipe)
{
    ucx_endpoint_t *endpoint = pipe->endpoint;
    uint64_t sent, received, sent_after, received_after;
    channel_count(endpoint->base.channel, &sent, &received);
    if (ucx_link_has_bytes(pipe) || pipe->broken != UCS_OK) channel_read(endpoint->base.channel, 0, UCX_BUDGET); /* most was read when it came */
    if (channel_wants_write(endpoint->base.channel, 0)) channel_write(endpoint->base.channel, 0, UCX_BUDGET);
    channel_count(endpoint->base.channel, &sent_after, &received_after);
    size_t moved = (size_t)(sent_after - sent + received_after - received);
    bool more = moved > 0 && has_more(pipe);
    if (!more) ucx_link_push(pipe);
    if (more || (moved > 0 && ucx_link_has_bytes(pipe))) ucx_link_touch(pipe);
    if (endpoint->base.life == ENDPOINT_LEAVING) {
        leaving_step(endpoint);
        return moved;
    }
    if (received_after > received) endpoint_eventful(&endpoint->base);
    quoit_status_t status = channel_status(endpoint->base.channel);
    if (status == QUOIT_ERR_CLOSED) endpoint_part(&endpoint->base);
    else if (status != QUOIT_OK) endpoint_end(&endpoint->base, status);
    return moved;
}

/* ---------------------------------------------------------------- leaving */

bool ucx_endpoint_is_idle(ucx_endpoint_t *endpoint)
{
    switch (endpoint->base.life) {
    case ENDPOINT_COMING: return !endpoint->calling || channel_idle(endpoint->base.channel);
    case ENDPOINT_STANDING: return channel_idle(endpoint->base.channel) && ucx_link_flush(endpoint->link);
    case ENDPOINT_LEAVING: return false; /* the receipt is missing */
    case ENDPOINT_PARTED:
    case ENDPOINT_ENDED: break;
    }
    return true;
}
