/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `self`: a process and itself. One channel whose pipe is a ring that ends where it begins: what is written is read back
 * as if a peer had sent it, so send and recv of one endpoint meet, with the same rules as between processes. All work is done in
 * progress; nothing ever happens while the process sleeps, so there is no descriptor.
 */
#include "base/settings.h"
#include "transport/framing/channel.h"
#include "transport/framing/ring.h"
#include "transport/process.h"
#include "transport/registry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SELF_RING_CAPACITY = 256 * 1024, SELF_BUDGET = 128 * 1024, SELF_NAME_CAPACITY = 128 };

typedef struct self_endpoint {
    quoit_endpoint_t base;
    channel_t *channel;   /* owned */
    ring_memory_t *ring;  /* owned */
    ring_pipe_t pipe;
    int connects;
    bool closed_told;
    char text[ERROR_TEXT_CAPACITY]; /* of the CLOSED event */
} self_endpoint_t;

typedef struct self_transport {
    quoit_transport_t base;
    quoit_process_id_t self;
    self_endpoint_t *endpoint; /* owned; NULL until connect */
    char name[SELF_NAME_CAPACITY];
} self_transport_t;

static self_transport_t *of_transport(quoit_transport_t *transport) { return (self_transport_t *)(void *)transport; }
static self_endpoint_t *of_endpoint(quoit_endpoint_t *endpoint) { return (self_endpoint_t *)(void *)endpoint; }

static quoit_status_t unsupported(const char *call)
{
    return error_set(QUOIT_ERR_UNSUPPORTED, "self: %s is not supported: a process sees its own memory anyway", call);
}

static quoit_status_t self_probe(const quoit_transport_environment_t *environment, char *why, size_t capacity)
{
    (void)environment;
    if (capacity > 0) why[0] = 0;
    return QUOIT_OK;
}

static quoit_status_t self_open(const quoit_transport_environment_t *environment, quoit_transport_t **transport)
{
    self_transport_t *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return error_set(QUOIT_ERR_NO_MEMORY, "self: no memory for the transport");
    fresh->base.ops = &transport_self;
    fresh->self = environment->self;
    snprintf(fresh->name, sizeof fresh->name, "self %016llx%016llx", (unsigned long long)environment->self.high,
             (unsigned long long)environment->self.low);
    *transport = &fresh->base;
    return QUOIT_OK;
}

static void endpoint_destroy(self_endpoint_t *endpoint)
{
    if (!endpoint) return;
    if (endpoint->channel) {
        error_set(QUOIT_ERR_CLOSED, "self: the endpoint was closed");
        channel_fail(endpoint->channel, QUOIT_ERR_CLOSED);
        channel_destroy(endpoint->channel);
    }
    free(endpoint->ring);
    free(endpoint);
}

static void self_close(quoit_transport_t *transport)
{
    if (!transport) return;
    endpoint_destroy(of_transport(transport)->endpoint);
    free(transport);
}

/* ---------------------------------------------------------------- connections */

static quoit_status_t self_listen(quoit_transport_t *transport, void *address, size_t *length)
{
    self_transport_t *self = of_transport(transport);
    if (*length < sizeof self->self)
        return error_set(QUOIT_ERR_INVALID, "self: an address has %zu bytes, there is room for %zu", sizeof self->self, *length);
    memcpy(address, &self->self, sizeof self->self);
    *length = sizeof self->self;
    return QUOIT_OK;
}

static quoit_status_t self_trust(quoit_transport_t *transport, uint64_t job, const void *secret, size_t length)
{
    (void)transport, (void)job, (void)secret, (void)length;
    return QUOIT_OK;
}

static void self_distrust(quoit_transport_t *transport, uint64_t job) { (void)transport, (void)job; }

static quoit_status_t endpoint_create(self_transport_t *self, self_endpoint_t **endpoint)
{
    self_endpoint_t *fresh = calloc(1, sizeof *fresh);
    if (!fresh) return error_set(QUOIT_ERR_NO_MEMORY, "self: no memory for the endpoint");
    channel_config_t config = {
        .ops = &ring_pipe_ops,
        .eager_limit = (size_t)setting_int(SETTING_EAGER_LIMIT),
        .eager_pool = (size_t)setting_int(SETTING_EAGER_POOL),
        .segment_size = (size_t)setting_int(SETTING_SEGMENT_SIZE),
    };
    fresh->base = (quoit_endpoint_t){.transport = &self->base, .peer = self->self};
    fresh->ring = aligned_alloc(64, ring_bytes(SELF_RING_CAPACITY));
    quoit_status_t status = fresh->ring ? channel_create(&config, self->name, &fresh->channel)
                                        : error_set(QUOIT_ERR_NO_MEMORY, "self: no memory for the ring");
    if (status != QUOIT_OK) {
        endpoint_destroy(fresh);
        return status;
    }
    memset(fresh->ring, 0, sizeof *fresh->ring);
    fresh->pipe = (ring_pipe_t){.out = fresh->ring,
                                .in = fresh->ring,
                                .out_capacity = SELF_RING_CAPACITY,
                                .in_capacity = SELF_RING_CAPACITY};
    void *pipe = &fresh->pipe;
    channel_open(fresh->channel, NULL, &pipe, 1);
    *endpoint = fresh;
    return QUOIT_OK;
}

static quoit_status_t self_connect(quoit_transport_t *transport, const quoit_peer_t *peer, quoit_endpoint_t **endpoint)
{
    self_transport_t *self = of_transport(transport);
    if (!process_same(peer->process, self->self))
        return error_set(QUOIT_ERR_INVALID, "self: cannot reach %s: it is another process, and self joins a process with itself only",
                         peer->name ? peer->name : "the peer");
    if (!self->endpoint) {
        quoit_status_t status = endpoint_create(self, &self->endpoint);
        if (status != QUOIT_OK) return status;
    }
    self->endpoint->connects++;
    *endpoint = &self->endpoint->base;
    return QUOIT_OK;
}

static quoit_status_t self_endpoint_status(quoit_endpoint_t *endpoint) { return channel_status(of_endpoint(endpoint)->channel); }

static void self_disconnect(quoit_endpoint_t *endpoint)
{
    self_endpoint_t *own = of_endpoint(endpoint);
    if (--own->connects > 0) return;
    of_transport(endpoint->transport)->endpoint = NULL;
    endpoint_destroy(own);
}

/* ---------------------------------------------------------------- messages */

static quoit_status_t self_send(quoit_endpoint_t *endpoint, quoit_key_t key, const void *buffer, size_t length,
                                quoit_transfer_t *transfer)
{
    return channel_send(of_endpoint(endpoint)->channel, key, buffer, length, transfer);
}

static quoit_status_t self_recv(quoit_endpoint_t *endpoint, quoit_key_t key, void *buffer, size_t length, quoit_transfer_t *transfer)
{
    return channel_recv(of_endpoint(endpoint)->channel, key, buffer, length, transfer);
}

static void self_cancel(quoit_transport_t *transport, uint64_t comm)
{
    self_endpoint_t *endpoint = of_transport(transport)->endpoint;
    if (endpoint) channel_cancel(endpoint->channel, comm);
}

static quoit_status_t self_notify(quoit_endpoint_t *endpoint, const void *data, size_t length)
{
    return channel_notify(of_endpoint(endpoint)->channel, data, length);
}

static bool self_next_event(quoit_transport_t *transport, quoit_event_t *event)
{
    self_endpoint_t *endpoint = of_transport(transport)->endpoint;
    if (!endpoint) return false;
    *event = (quoit_event_t){.peer = endpoint->base.peer, .endpoint = &endpoint->base};
    if (channel_next_notice(endpoint->channel, &event->data, &event->length)) {
        event->type = QUOIT_EVENT_NOTICE;
        return true;
    }
    if (endpoint->closed_told) return false;
    event->status = channel_status(endpoint->channel);
    if (event->status == QUOIT_OK) return false;
    endpoint->closed_told = true;
    snprintf(endpoint->text, sizeof endpoint->text, "%s", error_text());
    event->type = QUOIT_EVENT_CLOSED;
    event->text = endpoint->text;
    return true;
}

static int self_progress(quoit_transport_t *transport)
{
    self_endpoint_t *endpoint = of_transport(transport)->endpoint;
    if (!endpoint) return 0;
    int done = channel_write(endpoint->channel, 0, SELF_BUDGET);
    return done + channel_read(endpoint->channel, 0, SELF_BUDGET);
}

static bool nothing_to_do(const self_endpoint_t *endpoint)
{
    return !endpoint || channel_status(endpoint->channel) != QUOIT_OK ||
           (channel_idle(endpoint->channel) && !ring_readable(&endpoint->pipe));
}

static bool self_idle(quoit_transport_t *transport) { return nothing_to_do(of_transport(transport)->endpoint); }

static int self_descriptor(quoit_transport_t *transport)
{
    (void)transport;
    return -1;
}

static quoit_status_t self_arm(quoit_transport_t *transport)
{
    return nothing_to_do(of_transport(transport)->endpoint) ? QUOIT_OK : QUOIT_ERR_AGAIN;
}

static void self_disarm(quoit_transport_t *transport) { (void)transport; }

/* ---------------------------------------------------------------- memory */

static quoit_status_t self_reg(quoit_transport_t *transport, const void *pointer, size_t length)
{
    (void)transport, (void)pointer, (void)length;
    return QUOIT_OK;
}

static void self_dereg(quoit_transport_t *transport, const void *pointer) { (void)transport, (void)pointer; }

static quoit_status_t self_share_alloc(quoit_transport_t *transport, size_t length, void **pointer)
{
    (void)transport, (void)length, (void)pointer;
    return unsupported("share_alloc");
}

static void self_share_free(quoit_transport_t *transport, void *pointer) { (void)transport, (void)pointer; }

static quoit_status_t self_share_root(quoit_transport_t *transport, void **pointer)
{
    (void)transport, (void)pointer;
    return unsupported("share_root");
}

static quoit_status_t self_export_memory(quoit_transport_t *transport, const void *pointer, size_t length, void *handle)
{
    (void)transport, (void)pointer, (void)length, (void)handle;
    return unsupported("export_memory");
}

static quoit_status_t self_attach(quoit_endpoint_t *endpoint, const void *handle, void **pointer, size_t *length)
{
    (void)endpoint, (void)handle, (void)pointer, (void)length;
    return unsupported("attach");
}

static void self_ring(quoit_endpoint_t *endpoint) { (void)endpoint; }

static const char *self_describe(quoit_endpoint_t *endpoint) { return of_transport(endpoint->transport)->name; }

static void self_count(quoit_endpoint_t *endpoint, uint64_t *sent, uint64_t *received)
{
    channel_count(of_endpoint(endpoint)->channel, sent, received);
}

const quoit_transport_ops_t transport_self = {
    .abi = QUOIT_TRANSPORT_ABI,
    .struct_size = sizeof(quoit_transport_ops_t),
    .name = "self",
    .flags = QUOIT_TRANSPORT_MESSAGE | QUOIT_TRANSPORT_SAME_HOST,
    .probe = self_probe,
    .open = self_open,
    .close = self_close,
    .listen = self_listen,
    .trust = self_trust,
    .distrust = self_distrust,
    .connect = self_connect,
    .endpoint_status = self_endpoint_status,
    .disconnect = self_disconnect,
    .send = self_send,
    .recv = self_recv,
    .cancel = self_cancel,
    .notify = self_notify,
    .next_event = self_next_event,
    .progress = self_progress,
    .idle = self_idle,
    .descriptor = self_descriptor,
    .arm = self_arm,
    .disarm = self_disarm,
    .reg = self_reg,
    .dereg = self_dereg,
    .share_alloc = self_share_alloc,
    .share_free = self_share_free,
    .share_root = self_share_root,
    .export_memory = self_export_memory,
    .attach = self_attach,
    .ring = self_ring,
    .describe = self_describe,
    .count = self_count,
};
