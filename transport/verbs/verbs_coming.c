/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an endpoint comes to stand: the control connection is made (by either side); each side makes its queue pairs and says HELLO with their
 * numbers, one for each link; on the other's last HELLO it connects them and says READY; with both READY it is STANDING.
 *
 * Of several links one that cannot be made, or connected, is left as soon as the others stand, as one that is lost later.
 */
#include "transport/verbs/verbs.h"

#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void stand(verbs_endpoint_t *endpoint)
{
    void *pipes[VERBS_MOST_RAILS];
    endpoint->deadline = CLOCK_NEVER;
    for (int i = 0; i < endpoint->links; i++) {
        verbs_link_t *link = &endpoint->link_of[i];
        pipes[i] = link;
        if (link->broken == QUOIT_OK) verbs_direct_start(link);
    }
    channel_open(endpoint->base.channel, endpoint->base.name, pipes, endpoint->links);
    for (int i = 0; i < endpoint->links; i++) channel_weigh(endpoint->base.channel, i, endpoint->link_of[i].weight);
    endpoint_eventful(&endpoint->base);
    endpoint_stand(&endpoint->base);
}

static quoit_status_t tell(verbs_endpoint_t *endpoint, const void *bytes, size_t length)
{
    quoit_status_t status = endpoint->control->transport->ops->notify(endpoint->control, bytes, length);
    return status == QUOIT_OK ? QUOIT_OK : error_prefix(status, "verbs: %s: the control connection", endpoint->base.name);
}

/* What one link is to the peer; without queue pairs: nothing. */
static quoit_status_t say_link(verbs_endpoint_t *endpoint, const verbs_link_t *link, bool usable)
{
    verbs_transport_t *transport = endpoint->transport;
    const verbs_candidate_t *port = &link->rail->chosen;
    uint8_t bytes[VERBS_HELLO_SIZE];
    verbs_hello_t hello = {.link = (uint8_t)link->number,
                           .mbps = port->mbps,
                           .gid_type = (uint8_t)port->type,
                           .lid = port->lid,
                           .mtu = (uint8_t)port->mtu,
                           .ethernet = port->ethernet,
                           .stream_qpn = usable ? link->stream.qp->qp_num : 0,
                           .stream_psn = link->stream.psn,
                           .direct_qpn = usable ? link->direct.qp->qp_num : 0,
                           .direct_psn = link->direct.psn,
                           .depth = link->depth,
                           .buffer_size = transport->options.buffer_size,
                           .direct_recvs = VERBS_DIRECT_RECVS,
                           .limits = endpoint->limits,
                           .pid = (uint32_t)getpid()};
    memcpy(hello.gid, port->gid.raw, sizeof hello.gid);
    memcpy(hello.host, transport->host, sizeof hello.host);
    verbs_hello_write(&hello, bytes);
    return tell(endpoint, bytes, sizeof bytes);
}

static quoit_status_t say_hello(verbs_endpoint_t *endpoint)
{
    endpoint->hello_sent = true;
    int usable = 0;
    quoit_status_t status = verbs_number_take(endpoint);
    for (int i = 0; i < endpoint->links && status == QUOIT_OK; i++) {
        verbs_link_t *link = &endpoint->link_of[i];
        status = verbs_queues_create(link);
        usable += status == QUOIT_OK;
        if (status == QUOIT_OK || endpoint->links == 1) continue;
        verbs_link_break(link, status);
        if (i < endpoint->links - 1 || usable > 0) status = QUOIT_OK;
    }
    for (int i = 0; i < endpoint->links && status == QUOIT_OK; i++)
        status = say_link(endpoint, &endpoint->link_of[i], endpoint->link_of[i].broken == QUOIT_OK);
    return status;
}

static bool same_kind(const verbs_link_t *link)
{
    const verbs_candidate_t *port = &link->rail->chosen;
    return link->peer.ethernet == port->ethernet && link->peer.gid_type == port->type;
}

static quoit_status_t check_hello(const verbs_link_t *link)
{
    const verbs_endpoint_t *endpoint = link->endpoint;
    const verbs_candidate_t *port = &link->rail->chosen;
    const verbs_limits_t *ours = &endpoint->limits, *theirs = &link->peer.limits;
    if (ours->eager_limit != theirs->eager_limit || ours->eager_pool != theirs->eager_pool || ours->segment_size != theirs->segment_size ||
        ours->rails != theirs->rails)
        return error_set(QUOIT_ERR_PROTOCOL, "verbs: %s uses other limits than agreed: eager %u, pool %u, segment %u, rails %u; here %u, %u, %u, %u",
                         endpoint->base.name, theirs->eager_limit, theirs->eager_pool, theirs->segment_size, theirs->rails, ours->eager_limit,
                         ours->eager_pool, ours->segment_size, ours->rails);
    if (same_kind(link)) return QUOIT_OK;
    return error_set(QUOIT_ERR_NETWORK,
                     "verbs: %s uses %s, here %s port %d uses %s (GID index %d); choose ports and GIDs that fit with QUOIT_VERBS_DEVICE and "
                     "QUOIT_VERBS_GID_INDEX",
                     endpoint->base.name, verbs_gid_type_name((verbs_gid_type_t)link->peer.gid_type), port->device, port->port,
                     verbs_gid_type_name(port->type), port->gid_index);
}

static uint32_t slower(uint32_t a, uint32_t b) { return a == 0 ? b : b == 0 || a < b ? a : b; }

static quoit_status_t connect_link(verbs_link_t *link)
{
    const verbs_hello_t *peer = &link->peer;
    uint32_t own = link->endpoint->transport->options.buffer_size;
    link->stream.credits = peer->depth;
    link->stream.limit = peer->buffer_size < own ? peer->buffer_size : own;
    link->weight = slower(peer->mbps, link->rail->chosen.mbps);
    if (link->weight == 0) link->weight = 1;
    if (link->broken != QUOIT_OK) return QUOIT_OK;
    if (peer->stream_qpn == 0) return error_set(QUOIT_ERR_NETWORK, "verbs: %s: it has no queue pairs there", link->endpoint->base.name);
    quoit_status_t status = verbs_queue_connect(link, link->stream.qp, peer->stream_qpn, link->stream.psn, peer->stream_psn);
    if (status == QUOIT_OK) status = verbs_queue_connect(link, link->direct.qp, peer->direct_qpn, link->direct.psn, peer->direct_psn);
    return status;
}

/* Of several links one may be missing. */
static quoit_status_t connect_links(verbs_endpoint_t *endpoint)
{
    quoit_status_t status = QUOIT_OK;
    int usable = 0;
    for (int i = 0; i < endpoint->links; i++) {
        verbs_link_t *link = &endpoint->link_of[i];
        quoit_status_t one = check_hello(link);
        if (one == QUOIT_ERR_PROTOCOL) return one;
        if (one == QUOIT_OK) one = connect_link(link);
        if (one != QUOIT_OK) status = one;
        if (one != QUOIT_OK && endpoint->links > 1) verbs_link_break(link, one);
        usable += one == QUOIT_OK && link->broken == QUOIT_OK;
    }
    if (usable > 0) return QUOIT_OK;
    const verbs_link_t *first = &endpoint->link_of[0];
    return status != QUOIT_OK ? status : error_set(first->broken, "verbs: %s: %s", endpoint->base.name, first->cause);
}

static quoit_status_t hello_came(verbs_endpoint_t *endpoint, const verbs_hello_t *hello)
{
    uint8_t ready[VERBS_READY_SIZE];
    if (endpoint->hellos == endpoint->links || hello->link != endpoint->hellos)
        return error_set(QUOIT_ERR_PROTOCOL, "verbs: %s said HELLO for link %u, where %d of %d were expected", endpoint->base.name, hello->link,
                         endpoint->hellos, endpoint->links);
    size_t length = strlen(endpoint->base.name);
    if (endpoint->base.count == 0 && strchr(endpoint->base.name, '(') == NULL)
        snprintf(endpoint->base.name + length, sizeof endpoint->base.name - length, " (%s, pid %u)", hello->host, hello->pid);
    endpoint->link_of[endpoint->hellos++].peer = *hello;
    if (endpoint->hellos < endpoint->links) return QUOIT_OK;
    quoit_status_t status = endpoint->hello_sent ? QUOIT_OK : say_hello(endpoint);
    if (status == QUOIT_OK) status = connect_links(endpoint);
    if (status != QUOIT_OK) return status;
    verbs_rails_describe(endpoint);
    verbs_ready_write(ready);
    status = tell(endpoint, ready, sizeof ready);
    endpoint->ready_sent = status == QUOIT_OK;
    return status;
}

quoit_status_t verbs_coming_ask(verbs_endpoint_t *endpoint)
{
    verbs_transport_t *transport = endpoint->transport;
    for (list_t *link = transport->base.all.next; link != &transport->base.all; link = link->next) {
        verbs_endpoint_t *other = container_of(link, verbs_endpoint_t, base.node);
        if (other != endpoint && other->control != NULL && process_same(other->base.handle.peer, endpoint->base.handle.peer)) return QUOIT_OK;
    }
    quoit_peer_t peer = {.process = endpoint->base.handle.peer,
                         .job = endpoint->job,
                         .address = endpoint->address,
                         .address_length = endpoint->address_length,
                         .name = endpoint->base.name,
                         .timeout_ms = clock_left_ms(endpoint->deadline)};
    if (peer.timeout_ms == 0) peer.timeout_ms = 1;
    quoit_status_t status = transport->control->ops->connect(transport->control, &peer, &endpoint->control);
    if (status == QUOIT_OK) endpoint->control->user = endpoint;
    return status;
}

int verbs_coming_progress(verbs_endpoint_t *endpoint)
{
    if (endpoint->control == NULL) {
        quoit_status_t status = verbs_coming_ask(endpoint);
        if (status != QUOIT_OK) verbs_endpoint_break(endpoint, status);
    }
    if (endpoint->control != NULL && !endpoint->hello_sent) {
        quoit_status_t status = endpoint->control->transport->ops->endpoint_status(endpoint->control);
        if (status == QUOIT_OK) status = say_hello(endpoint);
        if (status != QUOIT_OK && status != QUOIT_IN_PROGRESS) verbs_endpoint_break(endpoint, status);
    }
    if (endpoint->broken == QUOIT_OK && endpoint->ready_sent && endpoint->ready_came) {
        stand(endpoint);
        return 1;
    }
    if (endpoint->broken == QUOIT_OK && clock_now() > endpoint->deadline)
        verbs_endpoint_break(endpoint, error_set(QUOIT_ERR_TIMEOUT, "verbs: %s: the control connection %s, but the peer's queue pairs did not come in time",
                                                 endpoint->base.name, endpoint->hello_sent ? "stands" : "is not there yet"));
    return 0;
}

void verbs_control_notice(verbs_transport_t *transport, const quoit_event_t *event)
{
    verbs_endpoint_t *endpoint = event->endpoint->user;
    verbs_notice_t type;
    verbs_hello_t hello;
    quoit_status_t status = verbs_notice_parse(event->data, event->length, &type, &hello);
    if (status != QUOIT_OK) {
        if (endpoint != NULL) verbs_endpoint_break(endpoint, status);
        else log_warn("verbs", "%s", error_text());
        return;
    }
    if (endpoint == NULL) {
        if (type != VERBS_NOTICE_HELLO) return;
        verbs_limits_t limits = verbs_limits_least(transport->limits, hello.limits);
        quoit_peer_t peer = {.process = event->peer};
        endpoint = verbs_endpoint_create(transport, event->peer, NULL, &limits);
        if (endpoint == NULL || transport->control->ops->connect(transport->control, &peer, &endpoint->control) != QUOIT_OK) {
            log_warn("verbs", "a connection cannot be taken: %s", error_text());
            if (endpoint != NULL) endpoint_destroy(&endpoint->base);
            return;
        }
        endpoint->control->user = endpoint;
        endpoint->deadline = clock_deadline(transport->options.connect_ms);
    }
    if (type == VERBS_NOTICE_READY) {
        endpoint->ready_came = true;
        return;
    }
    status = endpoint->base.life == ENDPOINT_COMING ? hello_came(endpoint, &hello) : error_set(QUOIT_ERR_PROTOCOL, "verbs: %s said HELLO again", endpoint->base.name);
    if (status != QUOIT_OK) verbs_endpoint_break(endpoint, status);
}

/* The control connection is over. A peer that left in good order has said so on the stream too, and its device has delivered it. */
void verbs_control_closed(verbs_transport_t *transport, const quoit_event_t *event)
{
    verbs_endpoint_t *endpoint = event->endpoint->user;
    (void)transport;
    if (endpoint == NULL) return;
    char text[ERROR_TEXT_CAPACITY];
    snprintf(text, sizeof text, "%s", event->text != NULL ? event->text : "");
    /* All was ready, and the peer's last words and goodbye came before this side looked. */
    if (endpoint->base.life == ENDPOINT_COMING && event->status == QUOIT_OK && endpoint->ready_sent && endpoint->ready_came) stand(endpoint);
    if (endpoint->base.life == ENDPOINT_STANDING && event->status == QUOIT_OK) verbs_endpoint_take_all(endpoint);
    if (endpoint->base.life == ENDPOINT_STANDING && channel_status(endpoint->base.channel) == QUOIT_ERR_CLOSED) {
        endpoint_part(&endpoint->base);
    } else if (endpoint->base.life == ENDPOINT_STANDING && event->status == QUOIT_OK) {
        verbs_endpoint_end(endpoint, QUOIT_OK);
    } else {
        quoit_status_t status = event->status == QUOIT_OK ? QUOIT_ERR_CLOSED : event->status;
        verbs_endpoint_end(endpoint, error_set(status, "verbs: %s: the control connection ended: %s", endpoint->base.name, text));
    }
}
