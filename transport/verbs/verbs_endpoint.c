/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint of verbs: its links, and its progress. Its life is told in transport/framing/endpoint.h; COMING is verbs_coming.c's. LEAVING: the rest
 * and the goodbye go out, and when the peer's device has acknowledged them the queue pairs and the control connection go.
 *
 * What goes wrong below (a completion, a posting, a registration) is remembered by verbs_endpoint_break, and done by progress: queue
 * pairs are never destroyed under the feet of whoever uses them.
 */
#include "transport/verbs/verbs.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- making and freeing */

static quoit_status_t make_channel(verbs_endpoint_t *endpoint, const verbs_limits_t *limits)
{
    channel_config_t config = {.ops = &verbs_stream_ops,
                               .eager_limit = limits->eager_limit,
                               .eager_pool = limits->eager_pool,
                               .segment_size = limits->segment_size,
                               .direct = &verbs_direct_ops,
                               .direct_context = endpoint,
                               .rails = limits->rails > 1};
    endpoint->limits = *limits;
    return channel_create(&config, endpoint->base.name, &endpoint->base.channel);
}

static bool make_links(verbs_endpoint_t *endpoint, int count)
{
    endpoint->link_of = calloc((size_t)count, sizeof *endpoint->link_of);
    if (endpoint->link_of == NULL) return false;
    endpoint->links = count;
    for (int i = 0; i < count; i++) {
        verbs_link_t *link = &endpoint->link_of[i];
        *link = (verbs_link_t){.endpoint = endpoint, .rail = &endpoint->transport->rail[i], .number = i, .weight = 1};
        verbs_direct_init(&link->direct);
    }
    return true;
}

verbs_endpoint_t *verbs_endpoint_create(verbs_transport_t *transport, quoit_process_id_t peer, const char *name, const verbs_limits_t *limits)
{
    verbs_endpoint_t *endpoint = calloc(1, sizeof *endpoint);
    if (endpoint == NULL) goto no_memory;
    endpoint->transport = transport;
    endpoint->deadline = CLOCK_NEVER;
    list_init(&endpoint->active);
    list_init(&endpoint->messages);
    list_init(&endpoint->again);
    list_init(&endpoint->finished);
    list_init(&endpoint->free_puts);
    list_init(&endpoint->free_messages);
    if (!make_links(endpoint, (int)limits->rails < transport->rails ? (int)limits->rails : transport->rails)) goto no_memory;
    snprintf(endpoint->base.description, sizeof endpoint->base.description, "verbs %s port %d, not connected yet", transport->rail[0].chosen.device,
             transport->rail[0].chosen.port);
    if (endpoint_create(&endpoint->base, &transport->base, peer, name) != QUOIT_OK) goto free_endpoint;
    verbs_endpoint_wake(endpoint);
    if (make_channel(endpoint, limits) == QUOIT_OK) return endpoint;
    endpoint_destroy(&endpoint->base);
    return NULL;

free_endpoint:
    free(endpoint->link_of);
    free(endpoint);
    return NULL;
no_memory:
    free(endpoint);
    error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory for an endpoint");
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

/* End of all use of the devices: the queue pairs go first, so that nothing is read or written once transfers end. */
static void release_queues(verbs_endpoint_t *endpoint)
{
    for (int i = 0; i < endpoint->links; i++) {
        verbs_link_t *link = &endpoint->link_of[i];
        verbs_queues_bury(link);
        link->direct.state = VERBS_PATH_BROKEN;
        link->direct.write_count = 0;
    }
    verbs_number_give(endpoint);
}

static void wake(endpoint_t *base) { verbs_endpoint_wake((verbs_endpoint_t *)base); }

/* What is said last may ask for an answer; the device's acknowledgements are waited for. */
static void leaving(endpoint_t *base)
{
    verbs_endpoint_t *endpoint = (verbs_endpoint_t *)base;
    for (int i = 0; i < endpoint->links; i++) {
        endpoint->link_of[i].stream.all_signalled = true;
        verbs_path_say_last(&endpoint->link_of[i]);
    }
}

static void released(endpoint_t *base)
{
    verbs_endpoint_t *endpoint = (verbs_endpoint_t *)base;
    release_queues(endpoint);
    release_control(endpoint);
}

static void freed(endpoint_t *base)
{
    verbs_endpoint_t *endpoint = (verbs_endpoint_t *)base;
    verbs_direct_destroy(endpoint);
    free(endpoint->link_of);
    list_remove(&endpoint->active);
}

const endpoint_ops_t verbs_endpoint_ops = {
    .name = "verbs",
    .touch = wake,
    .leaving = leaving,
    .parted = released,
    .released = released,
    .forgotten = endpoint_nothing,
    .freed = freed,
};

/* ---------------------------------------------------------------- ends */

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

void verbs_endpoint_end(verbs_endpoint_t *endpoint, quoit_status_t status)
{
    endpoint_end(&endpoint->base, status);
    endpoint_reap(&endpoint->base);
}

void verbs_endpoint_take_all(verbs_endpoint_t *endpoint)
{
    int read;
    do {
        read = 0;
        verbs_cqs_poll(endpoint->transport);
        verbs_direct_tell(endpoint);
        for (int i = 0; i < endpoint->links; i++) read += channel_read(endpoint->base.channel, i, VERBS_BUDGET);
    } while (read > 0);
}

/* ---------------------------------------------------------------- progress */

static int link_progress(verbs_link_t *link)
{
    channel_t *channel = link->endpoint->base.channel;
    link->retry = false;
    int done = verbs_direct_progress(link);
    if (channel_wants_write(channel, link->number) && verbs_stream_can_write(link)) done += channel_write(channel, link->number, VERBS_BUDGET);
    return done + verbs_stream_return_credit(link);
}

static int stream_progress(verbs_endpoint_t *endpoint)
{
    int done = endpoint->news ? verbs_direct_tell(endpoint) : 0, read = 0;
    for (int i = 0; i < endpoint->links; i++) {
        if (endpoint->link_of[i].stream.arrived_count == 0) continue;
        read += channel_read(endpoint->base.channel, i, VERBS_BUDGET);
        endpoint_eventful(&endpoint->base);
    }
    if (endpoint->links > 1) done += verbs_rails_look(endpoint);
    for (int i = 0; i < endpoint->links; i++)
        if (!endpoint->link_of[i].left) done += link_progress(&endpoint->link_of[i]);
    return done + read;
}

static int standing_progress(verbs_endpoint_t *endpoint)
{
    int done = stream_progress(endpoint);
    quoit_status_t status = channel_status(endpoint->base.channel);
    if (status == QUOIT_ERR_CLOSED) {
        endpoint_part(&endpoint->base);
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
    list_remove(&endpoint->base.eventful);
    while (channel_next_notice(endpoint->base.channel, &data, &length)) {}
    bool over = channel_status(endpoint->base.channel) != QUOIT_OK; /* the peer left too: it needs nothing more */
    bool arrived = channel_idle(endpoint->base.channel);
    for (int i = 0; i < endpoint->links; i++) arrived = arrived && (endpoint->link_of[i].left || endpoint->link_of[i].stream.sent == endpoint->link_of[i].stream.acked);
    if (!over && !arrived) {
        verbs_endpoint_wake(endpoint);
        return done;
    }
    verbs_endpoint_end(endpoint, QUOIT_OK);
    return done + 1;
}

/* The endpoint may be gone afterwards. */
int verbs_endpoint_progress(verbs_endpoint_t *endpoint)
{
    int done = 0;
    if (endpoint->base.life == ENDPOINT_COMING) done = verbs_coming_progress(endpoint);
    else if (endpoint->base.life == ENDPOINT_ENDED) return 0;
    if (endpoint->broken != QUOIT_OK && endpoint->base.life != ENDPOINT_ENDED && endpoint->base.life != ENDPOINT_PARTED) {
        /* Its goodbye may be among what came before the error. */
        if (endpoint->base.life == ENDPOINT_STANDING) verbs_endpoint_take_all(endpoint);
        if (endpoint->base.life == ENDPOINT_STANDING && channel_status(endpoint->base.channel) == QUOIT_ERR_CLOSED)
            endpoint_part(&endpoint->base);
        else
            verbs_endpoint_end(endpoint, error_set(endpoint->broken, "%s", endpoint->broken_text));
        return done + 1;
    }
    if (endpoint->base.life == ENDPOINT_COMING) verbs_endpoint_wake(endpoint); /* it has a deadline */
    if (endpoint->base.life == ENDPOINT_LEAVING) return done + leaving_progress(endpoint);
    return endpoint->base.life == ENDPOINT_STANDING ? done + standing_progress(endpoint) : done;
}

static bool link_has_work(const verbs_link_t *link)
{
    if (link->left) return false;
    return link->retry || link->broken != QUOIT_OK || link->stream.arrived_count > 0 || verbs_direct_has_work(link) ||
           (channel_wants_write(link->endpoint->base.channel, link->number) && verbs_stream_can_write(link));
}

bool verbs_endpoint_has_work(const verbs_endpoint_t *endpoint)
{
    if (endpoint->broken != QUOIT_OK && endpoint->base.life != ENDPOINT_ENDED && endpoint->base.life != ENDPOINT_PARTED) return true;
    if (endpoint->base.life == ENDPOINT_COMING) return endpoint->control == NULL || (endpoint->ready_sent && endpoint->ready_came);
    if (endpoint->base.life != ENDPOINT_STANDING && endpoint->base.life != ENDPOINT_LEAVING) return false;
    bool work = endpoint->news;
    for (int i = 0; i < endpoint->links && !work; i++) work = link_has_work(&endpoint->link_of[i]);
    return work;
}

bool verbs_endpoint_is_idle(const verbs_endpoint_t *endpoint)
{
    if (endpoint->base.life == ENDPOINT_LEAVING) return false;
    return endpoint->base.life == ENDPOINT_ENDED || endpoint->base.life == ENDPOINT_PARTED || channel_idle(endpoint->base.channel);
}

/* ---------------------------------------------------------------- the table's calls */

quoit_status_t verbs_connect(quoit_transport_t *base, const quoit_peer_t *peer, quoit_endpoint_t **result)
{
    verbs_transport_t *transport = (verbs_transport_t *)base;
    verbs_endpoint_t *endpoint = verbs_endpoint_find(transport, peer->process);
    verbs_limits_t limits;
    if (endpoint != NULL) {
        endpoint_join(&endpoint->base, peer, result);
        return QUOIT_OK;
    }
    if (process_same(peer->process, transport->base.self))
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
    status = verbs_coming_ask(endpoint);
    if (status != QUOIT_OK) {
        char text[ERROR_TEXT_CAPACITY];
        snprintf(text, sizeof text, "%s", error_text());
        endpoint_destroy(&endpoint->base);
        return error_set(status, "verbs: %s", text);
    }
    endpoint->base.count = 1;
    transport->woken = true;
    *result = &endpoint->base.handle;
    return QUOIT_OK;
}
