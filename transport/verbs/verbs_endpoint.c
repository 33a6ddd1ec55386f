/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint's life. COMING: the control connection is made (by either side); each side makes its queue pairs and says HELLO with their
 * numbers; on the other's HELLO it connects them and says READY; with both READY it is STANDING. Then ENDED (something broke, or the peer
 * said goodbye, after PARTED if its last messages wait to be received) or LEAVING (disconnected here): the rest and the goodbye go out,
 * and when the peer's device has acknowledged them the queue pairs and the control connection go.
 *
 * What goes wrong below (a completion, a posting, a registration) is remembered by verbs_endpoint_break, and done by progress: queue
 * pairs are never destroyed under the feet of whoever uses them.
 */
#include "transport/verbs/verbs.h"

#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---------------------------------------------------------------- making and freeing */

verbs_endpoint_t *verbs_endpoint_find(const verbs_transport_t *transport, quoit_process_id_t peer)
{
    return table_get(transport->peers, (table_key_t){peer.high, peer.low});
}

static void forget_peer(verbs_endpoint_t *endpoint)
{
    quoit_process_id_t peer = endpoint->base.peer;
    if (verbs_endpoint_find(endpoint->transport, peer) == endpoint) table_take(endpoint->transport->peers, (table_key_t){peer.high, peer.low});
}

static void change_life(verbs_endpoint_t *endpoint, verbs_life_t life)
{
    endpoint->transport->coming += (life == VERBS_COMING) - (endpoint->life == VERBS_COMING);
    endpoint->life = life;
}

static quoit_status_t make_channel(verbs_endpoint_t *endpoint, const verbs_limits_t *limits)
{
    channel_config_t config = {.ops = &verbs_stream_ops,
                               .eager_limit = limits->eager_limit,
                               .eager_pool = limits->eager_pool,
                               .segment_size = limits->segment_size,
                               .direct = &verbs_direct_ops,
                               .direct_context = endpoint};
    endpoint->limits = *limits;
    return channel_create(&config, endpoint->name, &endpoint->channel);
}

verbs_endpoint_t *verbs_endpoint_create(verbs_transport_t *transport, quoit_process_id_t peer, const char *name, const verbs_limits_t *limits)
{
    verbs_endpoint_t *endpoint = calloc(1, sizeof *endpoint);
    if (endpoint == NULL) {
        error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for an endpoint");
        return NULL;
    }
    endpoint->base.transport = &transport->base;
    endpoint->base.peer = peer;
    endpoint->transport = transport;
    endpoint->deadline = CLOCK_NEVER;
    list_init(&endpoint->link);
    list_init(&endpoint->eventful);
    list_init(&endpoint->active);
    verbs_direct_init(&endpoint->direct);
    if (name != NULL)
        snprintf(endpoint->name, sizeof endpoint->name, "%s", name);
    else
        snprintf(endpoint->name, sizeof endpoint->name, "process %016" PRIx64 "%016" PRIx64, peer.high, peer.low);
    snprintf(endpoint->description, sizeof endpoint->description, "verbs %s port %d, not connected yet", transport->chosen.device, transport->chosen.port);
    if (make_channel(endpoint, limits) != QUOIT_OK) goto free_endpoint;
    if (table_put(transport->peers, (table_key_t){peer.high, peer.low}, endpoint) != QUOIT_OK) goto destroy_channel;
    list_append(&transport->endpoints, &endpoint->link);
    transport->coming++;
    verbs_endpoint_wake(endpoint);
    return endpoint;

destroy_channel:
    channel_destroy(endpoint->channel);
free_endpoint:
    free(endpoint);
    return NULL;
}

static void release_control(verbs_endpoint_t *endpoint)
{
    quoit_endpoint_t *control = endpoint->control;
    if (control == NULL) return;
    endpoint->control = NULL;
    control->user = NULL;
    control->transport->ops->disconnect(control);
}

/* End of all use of the device: the queue pairs go first, so that nothing is read or written once transfers end. */
static void release_queues(verbs_endpoint_t *endpoint)
{
    verbs_queues_destroy(endpoint);
    if (endpoint->direct.qp == NULL) {
        endpoint->direct.state = VERBS_PATH_BROKEN;
        endpoint->direct.write_count = 0;
    }
}

void verbs_endpoint_destroy(verbs_endpoint_t *endpoint)
{
    if (endpoint == NULL) return;
    forget_peer(endpoint);
    change_life(endpoint, VERBS_ENDED);
    release_queues(endpoint);
    if (channel_status(endpoint->channel) == QUOIT_OK) {
        error_set(QUOIT_ERR_CLOSED, "verbs: the connection with %s was closed here", endpoint->name);
        channel_fail(endpoint->channel, QUOIT_ERR_CLOSED);
    }
    channel_destroy(endpoint->channel);
    verbs_direct_destroy(endpoint);
    free(endpoint->stream.memory);
    release_control(endpoint);
    list_remove(&endpoint->link);
    list_remove(&endpoint->eventful);
    list_remove(&endpoint->active);
    if (endpoint->transport->last == endpoint) endpoint->transport->last = NULL;
    free(endpoint);
}

void verbs_endpoint_reap(verbs_endpoint_t *endpoint)
{
    if (endpoint->count > 0 || endpoint == endpoint->transport->last) return;
    if (endpoint->life == VERBS_ENDED && endpoint->told) verbs_endpoint_destroy(endpoint);
}

/* ---------------------------------------------------------------- ends */

void verbs_endpoint_eventful(verbs_endpoint_t *endpoint)
{
    if (list_is_empty(&endpoint->eventful)) list_append(&endpoint->transport->eventful, &endpoint->eventful);
}

void verbs_endpoint_wake(verbs_endpoint_t *endpoint)
{
    if (list_is_empty(&endpoint->active)) list_append(&endpoint->transport->active, &endpoint->active);
}

void verbs_endpoint_break(verbs_endpoint_t *endpoint, quoit_status_t status)
{
    verbs_endpoint_wake(endpoint);
    if (endpoint->broken != QUOIT_OK) return;
    endpoint->broken = status;
    snprintf(endpoint->broken_text, sizeof endpoint->broken_text, "%s", error_text());
}

/* It ends with this thread's error text (status OK: goodbye of the peer). */
static void end(verbs_endpoint_t *endpoint, quoit_status_t status)
{
    if (endpoint->life == VERBS_ENDED) return;
    bool stood = endpoint->life == VERBS_STANDING || endpoint->life == VERBS_PARTED, gone = endpoint->life == VERBS_LEAVING;
    if (status == QUOIT_OK)
        snprintf(endpoint->text, sizeof endpoint->text, "verbs: %s said goodbye", endpoint->name);
    else
        snprintf(endpoint->text, sizeof endpoint->text, "%s%s", strncmp(error_text(), "verbs: ", 7) == 0 ? "" : "verbs: ", error_text());
    endpoint->status = status;
    change_life(endpoint, VERBS_ENDED);
    release_queues(endpoint);
    if (channel_status(endpoint->channel) == QUOIT_OK) {
        error_set(status == QUOIT_OK ? QUOIT_ERR_CLOSED : status, "%s", endpoint->text);
        channel_fail(endpoint->channel, status == QUOIT_OK ? QUOIT_ERR_CLOSED : status);
    }
    forget_peer(endpoint);
    release_control(endpoint);
    if (!gone && (stood || endpoint->count > 0)) {
        verbs_endpoint_eventful(endpoint);
    } else {
        endpoint->told = true; /* nobody knows it, or wants to */
        verbs_endpoint_reap(endpoint);
    }
}

/* The peer said goodbye. Nothing more can come or go, but what came may wait. */
static void part(verbs_endpoint_t *endpoint)
{
    change_life(endpoint, VERBS_PARTED);
    release_queues(endpoint);
    forget_peer(endpoint);
    release_control(endpoint);
    verbs_endpoint_eventful(endpoint);
    verbs_endpoint_check_parted(endpoint);
}

void verbs_endpoint_check_parted(verbs_endpoint_t *endpoint)
{
    if (endpoint->life == VERBS_PARTED && channel_peer_closed(endpoint->channel)) end(endpoint, QUOIT_OK);
}

static void leave(verbs_endpoint_t *endpoint)
{
    change_life(endpoint, VERBS_LEAVING);
    verbs_endpoint_wake(endpoint);
    endpoint->told = true;
    endpoint->stream.all_signalled = true;
    list_remove(&endpoint->eventful);
    forget_peer(endpoint);
    verbs_direct_say_last(endpoint);
    channel_close(endpoint->channel);
}

/* ---------------------------------------------------------------- coming */

static void stand(verbs_endpoint_t *endpoint)
{
    void *pipe = endpoint;
    change_life(endpoint, VERBS_STANDING);
    endpoint->deadline = CLOCK_NEVER;
    verbs_direct_start(endpoint);
    channel_open(endpoint->channel, endpoint->name, &pipe, 1);
    verbs_endpoint_eventful(endpoint);
    log_debug("verbs", "connected with %s: %s", endpoint->name, endpoint->description);
    if (endpoint->left_early) leave(endpoint);
}

static quoit_status_t tell(verbs_endpoint_t *endpoint, const void *bytes, size_t length)
{
    quoit_status_t status = endpoint->control->transport->ops->notify(endpoint->control, bytes, length);
    return status == QUOIT_OK ? QUOIT_OK : error_prefix(status, "verbs: %s: the control connection", endpoint->name);
}

static quoit_status_t say_hello(verbs_endpoint_t *endpoint)
{
    verbs_transport_t *transport = endpoint->transport;
    uint8_t bytes[VERBS_HELLO_SIZE];
    endpoint->hello_sent = true;
    quoit_status_t status = verbs_queues_create(endpoint);
    if (status != QUOIT_OK) return status;
    verbs_hello_t hello = {.gid_type = (uint8_t)transport->chosen.type,
                           .lid = transport->chosen.lid,
                           .mtu = (uint8_t)transport->chosen.mtu,
                           .ethernet = transport->chosen.ethernet,
                           .stream_qpn = endpoint->stream.qp->qp_num,
                           .stream_psn = endpoint->stream.psn,
                           .direct_qpn = endpoint->direct.qp->qp_num,
                           .direct_psn = endpoint->direct.psn,
                           .depth = transport->options.depth,
                           .buffer_size = transport->options.buffer_size,
                           .direct_recvs = VERBS_DIRECT_RECVS,
                           .limits = endpoint->limits,
                           .pid = (uint32_t)getpid()};
    memcpy(hello.gid, transport->chosen.gid.raw, sizeof hello.gid);
    memcpy(hello.host, transport->host, sizeof hello.host);
    verbs_hello_write(&hello, bytes);
    return tell(endpoint, bytes, sizeof bytes);
}

static quoit_status_t check_hello(const verbs_endpoint_t *endpoint, const verbs_hello_t *hello)
{
    const verbs_transport_t *transport = endpoint->transport;
    const verbs_limits_t *ours = &endpoint->limits, *theirs = &hello->limits;
    if (hello->ethernet != transport->chosen.ethernet || hello->gid_type != transport->chosen.type)
        return error_set(QUOIT_ERR_NETWORK,
                         "verbs: %s uses %s, here %s port %d uses %s (GID index %d); choose ports and GIDs that fit with QUOIT_VERBS_DEVICE and "
                         "QUOIT_VERBS_GID_INDEX",
                         endpoint->name, verbs_gid_type_name((verbs_gid_type_t)hello->gid_type), transport->chosen.device, transport->chosen.port,
                         verbs_gid_type_name(transport->chosen.type), transport->chosen.gid_index);
    if (ours->eager_limit != theirs->eager_limit || ours->eager_pool != theirs->eager_pool || ours->segment_size != theirs->segment_size)
        return error_set(QUOIT_ERR_PROTOCOL, "verbs: %s uses other limits than agreed: eager %u, pool %u, segment %u; here %u, %u, %u",
                         endpoint->name, theirs->eager_limit, theirs->eager_pool, theirs->segment_size, ours->eager_limit, ours->eager_pool,
                         ours->segment_size);
    return QUOIT_OK;
}

static void describe(verbs_endpoint_t *endpoint, const verbs_hello_t *hello)
{
    const verbs_transport_t *transport = endpoint->transport;
    char own[VERBS_GID_TEXT], theirs[VERBS_GID_TEXT];
    union ibv_gid gid;
    memcpy(gid.raw, hello->gid, sizeof gid.raw);
    snprintf(endpoint->description, sizeof endpoint->description, "verbs %s port %d, %s %s -> %s, queue pairs %u and %u",
             transport->chosen.device, transport->chosen.port, verbs_gid_type_name(transport->chosen.type),
             verbs_gid_text(&transport->chosen.gid, own), verbs_gid_text(&gid, theirs), endpoint->stream.qp->qp_num, endpoint->direct.qp->qp_num);
}

static quoit_status_t hello_came(verbs_endpoint_t *endpoint, const verbs_hello_t *hello)
{
    uint8_t ready[VERBS_READY_SIZE];
    verbs_stream_t *stream = &endpoint->stream;
    if (endpoint->hello_came) return error_set(QUOIT_ERR_PROTOCOL, "verbs: %s said HELLO twice", endpoint->name);
    size_t length = strlen(endpoint->name);
    if (endpoint->count == 0 && strchr(endpoint->name, '(') == NULL)
        snprintf(endpoint->name + length, sizeof endpoint->name - length, " (%s, pid %u)", hello->host, hello->pid);
    quoit_status_t status = check_hello(endpoint, hello);
    if (status == QUOIT_OK && !endpoint->hello_sent) status = say_hello(endpoint);
    if (status != QUOIT_OK) return status;
    endpoint->hello_came = true;
    endpoint->peer_hello = *hello;
    stream->credits = hello->depth;
    stream->limit = hello->buffer_size < endpoint->transport->options.buffer_size ? hello->buffer_size : endpoint->transport->options.buffer_size;
    describe(endpoint, hello);
    status = verbs_queue_connect(endpoint, stream->qp, hello, hello->stream_qpn, stream->psn, hello->stream_psn);
    if (status == QUOIT_OK) status = verbs_queue_connect(endpoint, endpoint->direct.qp, hello, hello->direct_qpn, endpoint->direct.psn, hello->direct_psn);
    if (status != QUOIT_OK) return status;
    verbs_ready_write(ready);
    status = tell(endpoint, ready, sizeof ready);
    endpoint->ready_sent = status == QUOIT_OK;
    return status;
}

/* Ask for the control connection, unless an endpoint that leaves still uses the old one. */
static quoit_status_t ask_for_control(verbs_endpoint_t *endpoint)
{
    verbs_transport_t *transport = endpoint->transport;
    for (list_t *link = transport->endpoints.next; link != &transport->endpoints; link = link->next) {
        verbs_endpoint_t *other = container_of(link, verbs_endpoint_t, link);
        if (other != endpoint && other->control != NULL && other->base.peer.high == endpoint->base.peer.high &&
            other->base.peer.low == endpoint->base.peer.low)
            return QUOIT_OK;
    }
    quoit_peer_t peer = {.process = endpoint->base.peer,
                         .job = endpoint->job,
                         .address = endpoint->address,
                         .address_length = endpoint->address_length,
                         .name = endpoint->name,
                         .timeout_ms = clock_left_ms(endpoint->deadline)};
    if (peer.timeout_ms == 0) peer.timeout_ms = 1;
    quoit_status_t status = transport->control->ops->connect(transport->control, &peer, &endpoint->control);
    if (status == QUOIT_OK) endpoint->control->user = endpoint;
    return status;
}

static int coming_progress(verbs_endpoint_t *endpoint)
{
    if (endpoint->control == NULL) {
        quoit_status_t status = ask_for_control(endpoint);
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
                                                 endpoint->name, endpoint->hello_sent ? "stands" : "is not there yet"));
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
            verbs_endpoint_destroy(endpoint);
            return;
        }
        endpoint->control->user = endpoint;
        endpoint->deadline = clock_deadline(transport->options.connect_ms);
    }
    if (type == VERBS_NOTICE_READY) {
        endpoint->ready_came = true;
        return;
    }
    status = endpoint->life == VERBS_COMING ? hello_came(endpoint, &hello) : error_set(QUOIT_ERR_PROTOCOL, "verbs: %s said HELLO again", endpoint->name);
    if (status != QUOIT_OK) verbs_endpoint_break(endpoint, status);
}

/* Whatever the device has delivered. */
static void take_all(verbs_endpoint_t *endpoint)
{
    do {
        verbs_cqs_poll(endpoint->transport);
        verbs_direct_tell(endpoint);
    } while (channel_read(endpoint->channel, 0, VERBS_BUDGET) > 0);
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
    if (endpoint->life == VERBS_COMING && event->status == QUOIT_OK && endpoint->ready_sent && endpoint->ready_came) stand(endpoint);
    if (endpoint->life == VERBS_STANDING && event->status == QUOIT_OK) take_all(endpoint);
    if (endpoint->life == VERBS_STANDING && channel_status(endpoint->channel) == QUOIT_ERR_CLOSED) {
        part(endpoint);
    } else if (endpoint->life == VERBS_STANDING && event->status == QUOIT_OK) {
        end(endpoint, QUOIT_OK);
    } else {
        quoit_status_t status = event->status == QUOIT_OK ? QUOIT_ERR_CLOSED : event->status;
        end(endpoint, error_set(status, "verbs: %s: the control connection ended: %s", endpoint->name, text));
    }
}

/* ---------------------------------------------------------------- progress */

static int stream_progress(verbs_endpoint_t *endpoint)
{
    int done = verbs_direct_tell(endpoint);
    if (endpoint->stream.arrived_count > 0) {
        done += channel_read(endpoint->channel, 0, VERBS_BUDGET);
        verbs_endpoint_eventful(endpoint);
    }
    endpoint->retry = false;
    done += verbs_direct_progress(endpoint);
    if (channel_wants_write(endpoint->channel, 0) && verbs_stream_can_write(endpoint)) done += channel_write(endpoint->channel, 0, VERBS_BUDGET);
    return done + verbs_stream_return_credit(endpoint);
}

static int standing_progress(verbs_endpoint_t *endpoint)
{
    int done = stream_progress(endpoint);
    quoit_status_t status = channel_status(endpoint->channel);
    if (status == QUOIT_ERR_CLOSED) {
        part(endpoint);
        return done + 1;
    }
    if (status != QUOIT_OK) verbs_endpoint_break(endpoint, status);
    if (verbs_endpoint_has_work(endpoint)) verbs_endpoint_wake(endpoint);
    return done;
}

static int leaving_progress(verbs_endpoint_t *endpoint)
{
    const void *data;
    size_t length;
    int done = stream_progress(endpoint);
    list_remove(&endpoint->eventful);
    while (channel_next_notice(endpoint->channel, &data, &length)) {}
    bool over = channel_status(endpoint->channel) != QUOIT_OK; /* the peer left too: it needs nothing more */
    if (!over && !(channel_idle(endpoint->channel) && endpoint->stream.sent == endpoint->stream.acked)) {
        verbs_endpoint_wake(endpoint);
        return done;
    }
    end(endpoint, QUOIT_OK);
    return done + 1;
}

/* The endpoint may be gone afterwards. */
int verbs_endpoint_progress(verbs_endpoint_t *endpoint)
{
    int done = 0;
    if (endpoint->life == VERBS_COMING) done = coming_progress(endpoint);
    else if (endpoint->life == VERBS_ENDED) return 0;
    if (endpoint->broken != QUOIT_OK && endpoint->life != VERBS_ENDED && endpoint->life != VERBS_PARTED) {
        /* Its goodbye may be among what came before the error. */
        if (endpoint->life == VERBS_STANDING) take_all(endpoint);
        if (endpoint->life == VERBS_STANDING && channel_status(endpoint->channel) == QUOIT_ERR_CLOSED)
            part(endpoint);
        else
            end(endpoint, error_set(endpoint->broken, "%s", endpoint->broken_text));
        return done + 1;
    }
    if (endpoint->life == VERBS_COMING) verbs_endpoint_wake(endpoint); /* it has a deadline */
    if (endpoint->life == VERBS_LEAVING) return done + leaving_progress(endpoint);
    return endpoint->life == VERBS_STANDING ? done + standing_progress(endpoint) : done;
}

bool verbs_endpoint_has_work(const verbs_endpoint_t *endpoint)
{
    if (endpoint->broken != QUOIT_OK && endpoint->life != VERBS_ENDED && endpoint->life != VERBS_PARTED) return true;
    if (endpoint->life == VERBS_COMING) return endpoint->control == NULL || (endpoint->ready_sent && endpoint->ready_came);
    if (endpoint->life != VERBS_STANDING && endpoint->life != VERBS_LEAVING) return false;
    return endpoint->retry || endpoint->stream.arrived_count > 0 || verbs_direct_has_work(endpoint) ||
           (channel_wants_write(endpoint->channel, 0) && verbs_stream_can_write(endpoint));
}

bool verbs_endpoint_is_idle(const verbs_endpoint_t *endpoint)
{
    if (endpoint->life == VERBS_LEAVING) return false;
    return endpoint->life == VERBS_ENDED || endpoint->life == VERBS_PARTED || channel_idle(endpoint->channel);
}

/* ---------------------------------------------------------------- the table's calls */

quoit_status_t verbs_connect(quoit_transport_t *base, const quoit_peer_t *peer, quoit_endpoint_t **result)
{
    verbs_transport_t *transport = (verbs_transport_t *)base;
    verbs_endpoint_t *endpoint = verbs_endpoint_find(transport, peer->process);
    verbs_limits_t limits;
    if (endpoint != NULL) {
        if (endpoint->count == 0 && peer->name != NULL) snprintf(endpoint->name, sizeof endpoint->name, "%s", peer->name);
        endpoint->count++;
        endpoint->left_early = false;
        *result = &endpoint->base;
        return QUOIT_OK;
    }
    if (peer->process.high == transport->self.high && peer->process.low == transport->self.low)
        return error_set(QUOIT_ERR_INVALID, "verbs: a process does not connect to itself");
    quoit_status_t status = verbs_limits_parse(peer->address, peer->address_length, &limits);
    if (status != QUOIT_OK || peer->address_length > QUOIT_ADDRESS_CAPACITY)
        return error_prefix(QUOIT_ERR_PROTOCOL, "address of %s", peer->name != NULL ? peer->name : "a peer");
    limits = verbs_limits_least(limits, transport->limits);
    endpoint = verbs_endpoint_create(transport, peer->process, peer->name, &limits);
    if (endpoint == NULL) return QUOIT_ERR_NO_MEMORY;
    endpoint->job = peer->job;
    endpoint->address_length = peer->address_length - VERBS_LIMITS_SIZE;
    memcpy(endpoint->address, (const uint8_t *)peer->address + VERBS_LIMITS_SIZE, endpoint->address_length);
    endpoint->deadline = clock_deadline(peer->timeout_ms > 0 ? peer->timeout_ms : transport->options.connect_ms);
    status = ask_for_control(endpoint);
    if (status != QUOIT_OK) {
        char text[ERROR_TEXT_CAPACITY];
        snprintf(text, sizeof text, "%s", error_text());
        verbs_endpoint_destroy(endpoint);
        return error_set(status, "verbs: %s", text);
    }
    endpoint->count = 1;
    transport->woken = true;
    *result = &endpoint->base;
    return QUOIT_OK;
}

quoit_status_t verbs_endpoint_status(quoit_endpoint_t *base)
{
    verbs_endpoint_t *endpoint = (verbs_endpoint_t *)base;
    switch (endpoint->life) {
    case VERBS_COMING: return QUOIT_IN_PROGRESS;
    case VERBS_STANDING:
    case VERBS_PARTED: return QUOIT_OK;
    case VERBS_LEAVING: return error_set(QUOIT_ERR_CLOSED, "verbs: the connection with %s was closed here", endpoint->name);
    case VERBS_ENDED: break;
    }
    return error_set(endpoint->status == QUOIT_OK ? QUOIT_ERR_CLOSED : endpoint->status, "%s", endpoint->text);
}

void verbs_disconnect(quoit_endpoint_t *base)
{
    verbs_endpoint_t *endpoint = (verbs_endpoint_t *)base;
    if (endpoint->count > 0) endpoint->count--;
    if (endpoint->count > 0) return;
    if (endpoint->life == VERBS_STANDING) {
        leave(endpoint);
    } else if (endpoint->life == VERBS_COMING) {
        endpoint->left_early = !channel_idle(endpoint->channel); /* what was sent is done for its sender, and must still arrive */
        if (!endpoint->left_early) verbs_endpoint_destroy(endpoint);
    } else if (endpoint->life != VERBS_LEAVING) {
        if (endpoint->life == VERBS_PARTED) end(endpoint, QUOIT_OK);
        endpoint->told = true;
        list_remove(&endpoint->eventful);
        verbs_endpoint_reap(endpoint);
    }
}
