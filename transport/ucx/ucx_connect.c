/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that connects: the peer's addresses in turn, one connection at a time, failed ones again with growing pauses until the
 * deadline. UCX does not tell when a connection stands, so an address that stays silent gets its share of the time, and then the
 * next one has its turn. A peer that does not know the job yet is silent, too: the only address is never given up early.
 */
#include "base/log.h"
#include "base/text.h"
#include "transport/ucx/ucx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIE_PAUSE_MS = 500, RETRY_LEAST_MS = 20, RETRY_MOST_MS = 1000, SILENT_MS = 1000 };

void ucx_call_drop(ucx_endpoint_t *endpoint)
{
    ucx_link_destroy(endpoint->caller);
    endpoint->caller = NULL;
}

/* ---------------------------------------------------------------- failing */

/* "10.0.0.7:4123 (Connection refused), [fd00::7]:4123 (no answer)" */
static void give_up(ucx_endpoint_t *endpoint, quoit_status_t status, uint64_t now)
{
    text_t text = {0};
    char *tried = NULL, name[IP_NAME_CAPACITY];
    for (int i = 0; i < endpoint->target_count; i++)
        text_append(&text, "%s%s (%s)", i == 0 ? "" : ", ", ip_name_text(&endpoint->targets[i].name, name),
                    endpoint->targets[i].cause[0] ? endpoint->targets[i].cause : "no answer");
    quoit_status_t listed = text_finish(&text, &tried);
    error_set(status,
              "ucx: cannot reach %s: tried %s during %.3g s; is that process still alive, do firewalls let the hosts connect, and do "
              "UCX_TLS and UCX_NET_DEVICES leave something that joins them? QUOIT_INTERFACE chooses other addresses",
              endpoint->base.name, listed == QUOIT_OK ? tried : "its addresses", (double)(now - endpoint->started) / 1e9);
    free(tried);
    endpoint_end(&endpoint->base, status);
}

/* The caller is not destroyed here: it may still have something to say. */
static void target_failed(ucx_endpoint_t *endpoint, ucx_target_t *target, int pause_ms, const char *cause)
{
    char name[IP_NAME_CAPACITY];
    uint64_t now = clock_now();
    snprintf(target->cause, sizeof target->cause, "%s", cause);
    log_debug("ucx", "%s at %s: %s", endpoint->base.name, ip_name_text(&target->name, name), cause);
    if (target->retry_ms == 0) target->retry_ms = RETRY_LEAST_MS;
    target->retry_at = clock_after(now, pause_ms > 0 ? pause_ms : target->retry_ms);
    target->retry_ms = target->retry_ms * 2 < RETRY_MOST_MS ? target->retry_ms * 2 : RETRY_MOST_MS;
}

/* ---------------------------------------------------------------- calling */

static quoit_status_t start_caller(ucx_endpoint_t *endpoint, int address)
{
    ucx_transport_t *transport = endpoint->transport;
    const ip_name_t *name = &endpoint->targets[address].name;
    ucp_ep_params_t parameters = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
        .sockaddr = {.addr = &name->any, .addrlen = ip_name_size(name)},
    };
    ucx_link_t *caller = ucx_link_create(transport, UCX_CALLER);
    if (!caller) return QUOIT_ERR_NO_MEMORY;
    caller->endpoint = endpoint;
    caller->remote = *name;
    caller->address = address;
    quoit_status_t status = handshake_connect(caller->handshake, endpoint->secret.job, transport->base.self, endpoint->base.handle.peer, 1, 0, endpoint->secret.bytes,
                                              endpoint->secret.length);
    if (status == QUOIT_OK) status = ucx_link_open(caller, &parameters);
    if (status != QUOIT_OK) {
        ucx_link_destroy(caller);
        return status;
    }
    endpoint->caller = caller;
    ucx_link_touch(caller);
    return QUOIT_OK;
}

/* An address that may be tried now, after the one tried last; -1: none. *wake: when one may be. */
static int next_target(const ucx_endpoint_t *endpoint, uint64_t now, uint64_t *wake)
{
    for (int i = 0; i < endpoint->target_count; i++) {
        int address = (endpoint->next_target + i) % endpoint->target_count;
        const ucx_target_t *target = &endpoint->targets[address];
        if (target->hopeless) continue;
        if (target->retry_at <= now) return address;
        if (target->retry_at < *wake) *wake = target->retry_at;
    }
    return -1;
}

static bool all_hopeless(const ucx_endpoint_t *endpoint)
{
    for (int i = 0; i < endpoint->target_count; i++)
        if (!endpoint->targets[i].hopeless) return false;
    return true;
}

void ucx_call_step(ucx_endpoint_t *endpoint, uint64_t now)
{
    uint64_t wake = endpoint->deadline;
    if (now >= endpoint->deadline || all_hopeless(endpoint)) {
        give_up(endpoint, now >= endpoint->deadline ? QUOIT_ERR_TIMEOUT : QUOIT_ERR_NETWORK, now);
        endpoint_reap(&endpoint->base);
        return;
    }
    if (endpoint->caller && !endpoint->caller->proved && endpoint->target_count > 1 && endpoint->next_try <= now) {
        target_failed(endpoint, &endpoint->targets[endpoint->caller->address], 0, "no answer");
        ucx_call_drop(endpoint);
    }
    while (!endpoint->caller && !endpoint->incoming) {
        int address = next_target(endpoint, now, &wake);
        if (address < 0) break;
        endpoint->next_target = address + 1;
        endpoint->next_try = clock_after(now, SILENT_MS);
        if (start_caller(endpoint, address) != QUOIT_OK) target_failed(endpoint, &endpoint->targets[address], 0, error_text());
    }
    if (endpoint->caller && !endpoint->caller->proved && endpoint->target_count > 1 && endpoint->next_try < wake) wake = endpoint->next_try;
    ucx_transport_wake_at(endpoint->transport, wake);
}

/* ---------------------------------------------------------------- a caller */

bool ucx_handshake_move(ucx_link_t *link)
{
    handshake_t *handshake = link->handshake;
    uint8_t bytes[HANDSHAKE_CAPACITY];
    size_t length, wanted = handshake_wants(handshake);
    const void *output = handshake_output(handshake, &length);
    bool moved = length > 0 && ucx_link_send(link, output, length);
    if (moved) {
        handshake_sent(handshake, length);
        link->hears_out = handshake->state == HANDSHAKE_FAILED; /* closing now could destroy the reason on its way */
    }
    size_t got = wanted > 0 ? ucx_link_take(link, bytes, wanted < sizeof bytes ? wanted : sizeof bytes) : 0;
    if (got > 0) handshake_received(handshake, bytes, got);
    return moved || got > 0;
}

static bool send_preamble(ucx_link_t *caller)
{
    ucx_endpoint_t *endpoint = caller->endpoint;
    ip_preamble_t preamble = {.limits = endpoint->limits, .pid = (uint32_t)getpid()};
    memcpy(preamble.host, endpoint->transport->host, sizeof preamble.host);
    ip_preamble_write(&preamble, caller->preamble);
    return ucx_link_send(caller, caller->preamble, sizeof caller->preamble);
}

static void caller_refused(ucx_link_t *caller)
{
    ucx_endpoint_t *endpoint = caller->endpoint;
    ucx_target_t *target = &endpoint->targets[caller->address];
    handshake_reason_t reason = caller->handshake->reason;
    if (reason == HANDSHAKE_REASON_SECRET || reason == HANDSHAKE_REASON_VERSION || reason == HANDSHAKE_REASON_OVER) target->hopeless = true;
    target_failed(endpoint, target, reason == HANDSHAKE_REASON_TIE ? TIE_PAUSE_MS : 0, handshake_reason_text(reason));
    endpoint->caller = NULL;
    ucx_farewell_begin(caller, UCX_REFUSED_MS); /* the reason goes out, so that the server can tell it, too */
    ucx_call_step(endpoint, clock_now());
}

void ucx_caller_step(ucx_link_t *caller)
{
    ucx_endpoint_t *endpoint = caller->endpoint;
    handshake_t *handshake = caller->handshake;
    while (ucx_handshake_move(caller)) {}
    /* After HELLO is out, the only thing there can be to send is the proof. */
    if (handshake->step != 0 && handshake->state != HANDSHAKE_FAILED) caller->proved = true;
    if (handshake->state == HANDSHAKE_FAILED) {
        caller_refused(caller);
    } else if (handshake->state == HANDSHAKE_DONE && send_preamble(caller)) {
        ucx_endpoint_establish(endpoint, caller);
    } else if (caller->broken != UCS_OK) {
        target_failed(endpoint, &endpoint->targets[caller->address], 0, ucx_link_cause(caller));
        ucx_call_drop(endpoint);
        ucx_call_step(endpoint, clock_now());
    }
}

/* ---------------------------------------------------------------- the table's call */

static quoit_status_t begin_calling(ucx_endpoint_t *endpoint, const quoit_peer_t *peer, const ip_address_t *address)
{
    ucx_transport_t *transport = endpoint->transport;
    if (!endpoint->base.channel) {
        quoit_status_t status = ucx_endpoint_set_limits(endpoint, ip_limits_least(transport->limits, address->limits));
        if (status != QUOIT_OK) return status;
    }
    endpoint->target_count = address->count;
    for (int i = 0; i < address->count; i++) {
        endpoint->targets[i] = (ucx_target_t){.name = address->names[i]};
        ip_choice_set_scope(&transport->choice, &endpoint->targets[i].name);
    }
    endpoint->started = clock_now();
    endpoint->deadline = clock_deadline(peer->timeout_ms > 0 ? peer->timeout_ms : transport->connect_ms);
    endpoint->calling = true;
    endpoint->base.count = 1;
    return QUOIT_OK;
}

quoit_status_t ucx_connect(quoit_transport_t *base, const quoit_peer_t *peer, quoit_endpoint_t **result)
{
    ucx_transport_t *transport = (ucx_transport_t *)base;
    ucx_endpoint_t *endpoint = ucx_endpoint_find(transport, peer->process);
    ip_address_t address;
    if (endpoint && (endpoint->base.life == ENDPOINT_STANDING || endpoint->calling)) {
        if (endpoint->base.left_early) (void)secrets_copy(transport->jobs, peer->job, &endpoint->secret);
        endpoint_join(&endpoint->base, peer, result);
        return QUOIT_OK;
    }
    quoit_status_t status = endpoint_check_peer(&transport->base, transport->jobs, peer);
    if (status != QUOIT_OK) return status;
    status = ip_address_parse(peer->address, peer->address_length, &address);
    if (status != QUOIT_OK) return error_prefix(status, "address of %s", peer->name ? peer->name : "a peer");
    bool fresh = !endpoint;
    if (fresh) endpoint = ucx_endpoint_create(transport, peer->process, peer->name);
    if (!endpoint) return QUOIT_ERR_NO_MEMORY;
    if (!fresh && peer->name) snprintf(endpoint->base.name, sizeof endpoint->base.name, "%s", peer->name);
    status = begin_calling(endpoint, peer, &address);
    if (status != QUOIT_OK) {
        if (fresh) endpoint_destroy(&endpoint->base);
        return status;
    }
    (void)secrets_copy(transport->jobs, peer->job, &endpoint->secret); /* it is there: see above */
    ucx_call_step(endpoint, clock_now());
    *result = &endpoint->base.handle;
    return QUOIT_OK;
}
