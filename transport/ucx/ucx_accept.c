/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that listens, and the secrets of jobs. UCX accepts whoever speaks its protocol; to us it is a stranger, one of at most
 * UCX_MAX_STRANGERS, with a deadline, and its bytes are read by the handshake's parser alone. One that is refused costs a line in the
 * log (a second and source), is told why, and is closed when it has gone or after a second.
 */
#include "base/log.h"
#include "transport/ucx/ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- jobs */

quoit_status_t ucx_trust(quoit_transport_t *base, uint64_t id, const void *secret, size_t length)
{
    ucx_transport_t *transport = (ucx_transport_t *)base;
    quoit_status_t status = secrets_put(transport->jobs, "ucx", id, secret, length);
    if (status != QUOIT_OK) return status;
    for (list_t *node = transport->links.next; node != &transport->links; node = node->next) {
        ucx_link_t *link = container_of(node, ucx_link_t, node);
        if (link->kind == UCX_STRANGER && link->handshake->state == HANDSHAKE_WANTS_SECRET) ucx_link_touch(link);
    }
    return QUOIT_OK;
}

void ucx_distrust(quoit_transport_t *base, uint64_t job) { secrets_remove(((ucx_transport_t *)base)->jobs, job); }

/* ---------------------------------------------------------------- strangers */

static void log_stranger(const ucx_link_t *stranger, log_level_t level, const char *what, const char *cause)
{
    char source[IP_NAME_CAPACITY], name[IP_NAME_CAPACITY];
    ip_name_t host = stranger->remote;
    if (!log_enabled(level)) return;
    ip_name_set_port(&host, 0);
    log_write_limited(ip_name_text(&host, source), level, "ucx", "connection from %s %s: %s", ip_name_text(&stranger->remote, name),
                      what, cause);
}

/* It was accepted, but the connection did not come to stand. */
static void incoming_lost(ucx_link_t *link, const char *cause)
{
    ucx_endpoint_t *endpoint = link->endpoint;
    if (endpoint->incoming == link) endpoint->incoming = NULL;
    ucx_link_destroy(link);
    if (endpoint->base.life != ENDPOINT_COMING) return;
    if (endpoint->calling) {
        ucx_call_step(endpoint, clock_now());
        return;
    }
    error_set(QUOIT_ERR_TIMEOUT, "ucx: %s began to connect and did not finish: %s", endpoint->base.name, cause);
    endpoint_end(&endpoint->base, QUOIT_ERR_TIMEOUT);
    endpoint_reap(&endpoint->base);
}

void ucx_stranger_overdue(ucx_link_t *stranger)
{
    if (stranger->proved) {
        incoming_lost(stranger, "no preamble came");
        return;
    }
    log_stranger(stranger, LOG_WARN, "dropped", "no proof of the job's secret came in time");
    ucx_link_destroy(stranger);
}

static void refuse(ucx_link_t *stranger)
{
    handshake_reason_t reason = stranger->handshake->reason;
    log_level_t level = reason == HANDSHAKE_REASON_TIE ? LOG_DEBUG : reason == HANDSHAKE_REASON_PROCESS || reason == HANDSHAKE_REASON_OVER ? LOG_INFO : LOG_WARN;
    log_stranger(stranger, level, "refused", handshake_reason_text(reason));
    ucx_farewell_begin(stranger, UCX_REFUSED_MS);
}

/* Give the secret if the job is known; else it waits, for as long as a connection may take. */
static bool give_secret(ucx_link_t *stranger)
{
    ucx_transport_t *transport = stranger->transport;
    const ucx_endpoint_t *endpoint = ucx_endpoint_find(transport, stranger->handshake->peer);
    const job_secret_t *coming = endpoint && endpoint->base.life == ENDPOINT_COMING ? &endpoint->secret : NULL;
    quoit_status_t status = secrets_answer(transport->jobs, stranger->handshake, endpoint != NULL, coming);
    if (status != QUOIT_ERR_AGAIN) return status == QUOIT_OK;
    stranger->deadline = clock_deadline(transport->connect_ms);
    ucx_transport_wake_at(transport, stranger->deadline);
    return false;
}

/*
 * The client has proved itself. False: its older connection stands, whose end must come first (connections have no order among
 * them); it waits. Of two that call each other the lower's connection stays, as soon as the lower's proof is out: the peer may have
 * taken it already.
 */
static bool verdict(ucx_link_t *stranger)
{
    ucx_transport_t *transport = stranger->transport;
    quoit_process_id_t peer = stranger->handshake->peer;
    ucx_endpoint_t *endpoint = ucx_endpoint_find(transport, peer);
    if (endpoint && endpoint->base.life == ENDPOINT_STANDING) return false;
    bool ours_stays = endpoint && endpoint->caller && endpoint->caller->proved && process_is_lower(transport->base.self, peer);
    if (!endpoint) endpoint = ucx_endpoint_create(transport, peer, NULL);
    if (ours_stays || !endpoint) {
        handshake_refuse(stranger->handshake, HANDSHAKE_REASON_TIE);
        return true;
    }
    ucx_call_drop(endpoint);
    ucx_link_destroy(endpoint->incoming); /* an older attempt of this peer: it has given that up */
    endpoint->incoming = stranger;
    stranger->endpoint = endpoint;
    stranger->proved = true;
    transport->stranger_count--;
    stranger->deadline = clock_deadline(UCX_HANDSHAKE_MS);
    ucx_transport_wake_at(transport, stranger->deadline);
    handshake_accept(stranger->handshake);
    return true;
}

void ucx_strangers_look(ucx_transport_t *transport, quoit_process_id_t peer)
{
    for (list_t *node = transport->links.next; node != &transport->links; node = node->next) {
        ucx_link_t *link = container_of(node, ucx_link_t, node);
        if (link->kind == UCX_STRANGER && link->handshake->state == HANDSHAKE_WANTS_VERDICT && process_same(link->handshake->peer, peer))
            ucx_link_touch(link);
    }
}

static quoit_status_t agree_on_limits(ucx_endpoint_t *endpoint, ip_limits_t theirs)
{
    ip_limits_t ours = endpoint->base.channel ? endpoint->limits : endpoint->transport->limits;
    bool same = ours.eager_limit == theirs.eager_limit && ours.eager_pool == theirs.eager_pool && ours.segment_size == theirs.segment_size;
    bool within = theirs.eager_limit <= ours.eager_limit && theirs.eager_pool <= ours.eager_pool && theirs.segment_size <= ours.segment_size;
    if (endpoint->base.channel && same) return QUOIT_OK;
    if (!endpoint->base.channel && within) return ucx_endpoint_set_limits(endpoint, theirs);
    return error_set(QUOIT_ERR_PROTOCOL, "ucx: %s uses other limits than agreed: eager %u, pool %u, segment %u; here %u, %u, %u",
                     endpoint->base.name, theirs.eager_limit, theirs.eager_pool, theirs.segment_size, ours.eager_limit,
                     ours.eager_pool, ours.segment_size);
}

static void read_preamble(ucx_link_t *incoming)
{
    ucx_endpoint_t *endpoint = incoming->endpoint;
    ip_preamble_t preamble;
    incoming->preamble_done += ucx_link_take(incoming, incoming->preamble + incoming->preamble_done,
                                             sizeof incoming->preamble - incoming->preamble_done);
    if (incoming->preamble_done < sizeof incoming->preamble) {
        if (incoming->broken != UCS_OK) incoming_lost(incoming, ucx_link_cause(incoming));
        return;
    }
    quoit_status_t status = ip_preamble_parse(incoming->preamble, &preamble);
    size_t length = strlen(endpoint->base.name);
    if (status == QUOIT_OK && endpoint->base.count == 0 && !strchr(endpoint->base.name, '('))
        snprintf(endpoint->base.name + length, sizeof endpoint->base.name - length, " (%s, pid %u)", preamble.host, preamble.pid);
    if (status == QUOIT_OK) status = agree_on_limits(endpoint, preamble.limits);
    if (status == QUOIT_OK) {
        ucx_endpoint_establish(endpoint, incoming);
        return;
    }
    log_warn("ucx", "%s", error_text());
    incoming_lost(incoming, "its preamble is not understood");
}

void ucx_stranger_step(ucx_link_t *stranger)
{
    handshake_t *handshake = stranger->handshake;
    for (bool moved = true; moved;) {
        moved = ucx_handshake_move(stranger);
        if (handshake->state == HANDSHAKE_WANTS_SECRET && give_secret(stranger)) moved = true;
        if (handshake->state == HANDSHAKE_WANTS_VERDICT && stranger->broken == UCS_OK && verdict(stranger)) moved = true;
    }
    if (handshake->state == HANDSHAKE_FAILED) {
        refuse(stranger);
    } else if (stranger->proved) {
        size_t unsaid;
        handshake_output(handshake, &unsaid);
        if (unsaid == 0 || stranger->broken != UCS_OK) read_preamble(stranger);
    } else if (stranger->broken != UCS_OK) {
        /* After its HELLO it is a peer that gave up, or found another way; before any byte that may be, too. */
        log_level_t level = handshake->job ? LOG_DEBUG : stranger->arrived == 0 ? LOG_INFO : LOG_WARN;
        log_stranger(stranger, level, "dropped", ucx_link_cause(stranger));
        ucx_link_destroy(stranger);
    }
}

/* ---------------------------------------------------------------- listening */

static void request_arrived(ucp_conn_request_h request, void *arg)
{
    ucx_listener_t *listener = arg;
    ucx_transport_t *transport = listener->transport;
    if (transport->request_count + transport->stranger_count >= UCX_MAX_STRANGERS) {
        log_write_limited("accept", LOG_WARN, "ucx", "connection refused: %d that have not proved the job's secret are open already",
                          UCX_MAX_STRANGERS);
        transport->ucx->ucp_listener_reject(listener->handle, request);
        return;
    }
    transport->requests[transport->request_count].handle = request;
    transport->requests[transport->request_count].listener = listener;
    transport->request_count++;
}

static void accept_request(ucx_transport_t *transport, ucx_listener_t *listener, ucp_conn_request_h request)
{
    ucp_conn_request_attr_t about = {.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR};
    ucp_ep_params_t parameters = {.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST, .conn_request = request};
    bool known = transport->ucx->ucp_conn_request_query(request, &about) == UCS_OK;
    ucx_link_t *stranger = ucx_link_create(transport, UCX_STRANGER);
    if (!stranger) {
        log_warn("ucx", "%s", error_text());
        transport->ucx->ucp_listener_reject(listener->handle, request);
        return;
    }
    transport->stranger_count++;
    stranger->remote.any.sa_family = AF_INET;
    if (known && about.client_address.ss_family == AF_INET6) memcpy(&stranger->remote.v6, &about.client_address, sizeof stranger->remote.v6);
    if (known && about.client_address.ss_family == AF_INET) memcpy(&stranger->remote.v4, &about.client_address, sizeof stranger->remote.v4);
    handshake_listen(stranger->handshake, transport->base.self);
    stranger->deadline = clock_deadline(UCX_HANDSHAKE_MS);
    ucx_transport_wake_at(transport, stranger->deadline);
    if (ucx_link_open(stranger, &parameters) != QUOIT_OK) {
        log_stranger(stranger, LOG_WARN, "dropped", error_text());
        ucx_link_destroy(stranger);
    }
}

int ucx_accept_requests(ucx_transport_t *transport)
{
    int count = transport->request_count;
    for (int i = 0; i < count; i++) accept_request(transport, transport->requests[i].listener, transport->requests[i].handle);
    transport->request_count -= count; /* accepting lets UCX call back for none: it does not progress */
    return count;
}

/* One listener on this address and a port of the kernel's choice. */
static quoit_status_t listen_on(ucx_transport_t *transport, const ip_interface_t *interface)
{
    char text[IP_NAME_CAPACITY];
    ucx_listener_t *listener = &transport->listeners[transport->listener_count];
    ucp_listener_attr_t about = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    *listener = (ucx_listener_t){.transport = transport, .name = interface->address};
    ucp_listener_params_t parameters = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .sockaddr = {.addr = &interface->address.any, .addrlen = ip_name_size(&interface->address)},
        .conn_handler = {.cb = request_arrived, .arg = listener},
    };
    ucs_status_t status = transport->ucx->ucp_listener_create(transport->worker, &parameters, &listener->handle);
    if (status == UCS_OK) {
        status = transport->ucx->ucp_listener_query(listener->handle, &about);
        if (status == UCS_OK) memcpy(&listener->name, &about.sockaddr, ip_name_size(&interface->address));
        else transport->ucx->ucp_listener_destroy(listener->handle);
    }
    if (status != UCS_OK)
        return error_set(QUOIT_ERR_NETWORK, "ucx: cannot listen on %s of interface %s: %s", ip_name_text(&interface->address, text),
                         interface->name, transport->ucx->ucs_status_string(status));
    transport->listener_count++;
    return QUOIT_OK;
}

quoit_status_t ucx_listen(quoit_transport_t *base, void *bytes, size_t *length)
{
    ucx_transport_t *transport = (ucx_transport_t *)base;
    ip_address_t address = {.limits = transport->limits};
    quoit_status_t status = QUOIT_OK;
    for (int i = 0; i < transport->choice.count && transport->listener_count <= i; i++) {
        status = listen_on(transport, &transport->choice.chosen[i]);
        if (status == QUOIT_OK) continue;
        if (transport->choice.named) return status;
        log_warn("ucx", "%s", error_text());
    }
    if (transport->listener_count == 0) return status;
    for (int i = 0; i < transport->listener_count; i++) address.names[address.count++] = transport->listeners[i].name;
    return ip_address_write(&address, bytes, length);
}
