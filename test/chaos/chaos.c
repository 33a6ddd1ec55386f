/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of transport `chaos`: each goes to the wrapped transport, unless the script has other plans. See chaos.h. */
#include "chaos_internal.h"

#include "base/clock.h"
#include "base/hash.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { LATE_PROGRESSES = 20 /* calls of progress that a late message waits, at most */ };

typedef struct chaos_endpoint {
    quoit_endpoint_t base; /* first */
    list_t link;
    quoit_endpoint_t *inner; /* NULL: gone */
    int count;               /* connects less disconnects */
    char *description;       /* owned; as the wrapped transport said it last */
} chaos_endpoint_t;

/* A send or recv that the wrapped transport does not know of yet. */
typedef struct chaos_message {
    list_t link;
    chaos_endpoint_t *endpoint;
    quoit_key_t key;
    bool receives;
    void *buffer;
    size_t length;
    quoit_transfer_t *transfer;
    int wait;
} chaos_message_t;

chaos_script_t chaos_script = {.cut = -1, .fail_call = -1};
struct chaos_tally chaos_tally;
static quoit_transport_ops_t table;
static const quoit_transport_ops_t *wrapped;

static chaos_transport_t *of(quoit_transport_t *base) { return (chaos_transport_t *)base; }
static chaos_endpoint_t *endpoint_of(quoit_endpoint_t *base) { return (chaos_endpoint_t *)base; }

static const char *call_name(int call)
{
    static const char *const names[] = {
#define CHAOS_NAME(name) #name,
        CHAOS_CALLS(CHAOS_NAME)
#undef CHAOS_NAME
    };
    return call >= 0 && call < CHAOS_CALL_COUNT ? names[call] : "?";
}

/* QUOIT_OK, or what this call is to fail with (text set). */
static quoit_status_t may_fail(const quoit_transport_environment_t *environment, chaos_call_t call)
{
    uint64_t number = atomic_fetch_add(&chaos_tally.calls[call], 1);
    if (chaos_script.fail_call != (int)call || chaos_script.fail_at != number) return QUOIT_OK;
    char text[96];
    atomic_store(&chaos_tally.failed, true);
    snprintf(text, sizeof text, "chaos: call %s #%llu fails", call_name((int)call), (unsigned long long)number);
    environment->error(text);
    return (quoit_status_t)chaos_script.fail_status;
}

static bool happens(chaos_transport_t *transport, int percent) { return percent > 0 && (int)chaos_draw(&transport->random, 100) < percent; }

/* ------------------------------------------------------------------ open and close */

static quoit_status_t chaos_probe(const quoit_transport_environment_t *environment, char *why, size_t capacity)
{
    return wrapped->probe(environment, why, capacity);
}

static quoit_status_t chaos_open(const quoit_transport_environment_t *environment, quoit_transport_t **result)
{
    quoit_status_t status = may_fail(environment, CHAOS_CALL_open);
    if (status != QUOIT_OK) return status;
    chaos_transport_t *transport = calloc(1, sizeof *transport);
    if (!transport) {
        environment->error("chaos: no memory");
        return QUOIT_ERR_NO_MEMORY;
    }
    *transport = (chaos_transport_t){.base = {&table}, .environment = *environment, .ops = wrapped, .random = chaos_script.seed ^ environment->self.low};
    list_init(&transport->endpoints);
    list_init(&transport->late);
    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (transport->epoll < 0) {
        free(transport);
        environment->error("chaos: cannot make an epoll descriptor");
        return QUOIT_ERR_SYSTEM;
    }
    status = wrapped->open(environment, &transport->inner);
    if (status != QUOIT_OK) {
        close(transport->epoll);
        free(transport);
        return status;
    }
    struct epoll_event event = {.events = EPOLLIN};
    int descriptor = wrapped->descriptor(transport->inner);
    if (descriptor >= 0) (void)epoll_ctl(transport->epoll, EPOLL_CTL_ADD, descriptor, &event);
    *result = &transport->base;
    return QUOIT_OK;
}

static void endpoint_free(chaos_endpoint_t *endpoint)
{
    list_remove(&endpoint->link);
    free(endpoint->description);
    free(endpoint);
}

static void chaos_close(quoit_transport_t *base)
{
    if (!base) return;
    chaos_transport_t *transport = of(base);
    for (list_t *node; (node = list_pop(&transport->late));) free(container_of(node, chaos_message_t, link));
    transport->ops->close(transport->inner);
    chaos_relays_close(transport->relays);
    while (!list_is_empty(&transport->endpoints)) endpoint_free(container_of(transport->endpoints.next, chaos_endpoint_t, link));
    close(transport->epoll);
    free(transport);
}

/* ------------------------------------------------------------------ connections */

static bool wants_relays(void)
{
    return chaos_script.relays || chaos_script.cut >= 0 || chaos_script.split > 0 || chaos_script.hold_us > 0;
}

static quoit_status_t put_relays(chaos_transport_t *transport, void *bytes, size_t capacity, size_t *length)
{
    ip_address_t address;
    quoit_status_t status = ip_address_parse(bytes, *length, &address);
    if (status == QUOIT_OK) status = chaos_relays_open(transport->epoll, transport->random, &address, &transport->relays);
    if (status == QUOIT_OK) status = ip_address_write(&address, bytes, &capacity);
    if (status == QUOIT_OK)
        *length = capacity;
    else
        transport->environment.error(error_text());
    return status;
}

static quoit_status_t chaos_listen(quoit_transport_t *base, void *address, size_t *length)
{
    chaos_transport_t *transport = of(base);
    size_t capacity = *length;
    quoit_status_t status = may_fail(&transport->environment, CHAOS_CALL_listen);
    if (status == QUOIT_OK) status = transport->ops->listen(transport->inner, address, length);
    if (status == QUOIT_OK && wants_relays() && strcmp(wrapped->name, "tcp") == 0) status = put_relays(transport, address, capacity, length);
    return status;
}

static quoit_status_t chaos_trust(quoit_transport_t *base, uint64_t job, const void *secret, size_t length)
{
    quoit_status_t status = may_fail(&of(base)->environment, CHAOS_CALL_trust);
    return status == QUOIT_OK ? of(base)->ops->trust(of(base)->inner, job, secret, length) : status;
}

static void chaos_distrust(quoit_transport_t *base, uint64_t job) { of(base)->ops->distrust(of(base)->inner, job); }

/* Ours for one of the wrapped transport's; NULL: no memory. */
static chaos_endpoint_t *wrap(chaos_transport_t *transport, quoit_endpoint_t *inner)
{
    if (inner->user) return inner->user;
    chaos_endpoint_t *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint) return NULL;
    endpoint->base = (quoit_endpoint_t){.transport = &transport->base, .peer = inner->peer};
    endpoint->inner = inner;
    inner->user = endpoint;
    list_append(&transport->endpoints, &endpoint->link);
    return endpoint;
}

static quoit_status_t chaos_connect(quoit_transport_t *base, const quoit_peer_t *peer, quoit_endpoint_t **result)
{
    chaos_transport_t *transport = of(base);
    quoit_endpoint_t *inner = NULL;
    quoit_status_t status = may_fail(&transport->environment, CHAOS_CALL_connect);
    if (status == QUOIT_OK) status = transport->ops->connect(transport->inner, peer, &inner);
    if (status != QUOIT_OK) return status;
    chaos_endpoint_t *endpoint = wrap(transport, inner);
    if (!endpoint) {
        transport->ops->disconnect(inner);
        transport->environment.error("chaos: no memory");
        return QUOIT_ERR_NO_MEMORY;
    }
    endpoint->count++;
    *result = &endpoint->base;
    return QUOIT_OK;
}

static quoit_status_t chaos_endpoint_status(quoit_endpoint_t *base) { return of(base->transport)->ops->endpoint_status(endpoint_of(base)->inner); }

static void chaos_disconnect(quoit_endpoint_t *base)
{
    chaos_endpoint_t *endpoint = endpoint_of(base);
    chaos_transport_t *transport = of(base->transport);
    bool last = --endpoint->count == 0;
    if (last) endpoint->inner->user = NULL;
    transport->ops->disconnect(endpoint->inner);
    if (!last) return;
    for (list_t *node = transport->late.next, *next; node != &transport->late; node = next) { /* its transfers have ended: there is none */
        next = node->next;
        if (container_of(node, chaos_message_t, link)->endpoint != endpoint) continue;
        list_remove(node);
        free(container_of(node, chaos_message_t, link));
    }
    endpoint_free(endpoint);
}

/* ------------------------------------------------------------------ messages */

static quoit_status_t hand_on(chaos_message_t *message)
{
    chaos_transport_t *transport = of(message->endpoint->base.transport);
    quoit_endpoint_t *inner = message->endpoint->inner;
    return message->receives ? transport->ops->recv(inner, message->key, message->buffer, message->length, message->transfer)
                             : transport->ops->send(inner, message->key, message->buffer, message->length, message->transfer);
}

/* Messages of one key keep their order. */
static bool has_late(const chaos_transport_t *transport, const chaos_message_t *wanted)
{
    for (const list_t *node = transport->late.next; node != &transport->late; node = node->next) {
        const chaos_message_t *message = container_of(node, const chaos_message_t, link);
        if (message == wanted) return false;
        if (message->endpoint == wanted->endpoint && message->receives == wanted->receives && message->key.comm == wanted->key.comm && message->key.id == wanted->key.id)
            return true;
    }
    return false;
}

static quoit_status_t chaos_message(quoit_endpoint_t *base, quoit_key_t key, void *buffer, size_t length, quoit_transfer_t *transfer, bool receives)
{
    chaos_transport_t *transport = of(base->transport);
    chaos_message_t message = {.endpoint = endpoint_of(base), .key = key, .receives = receives, .buffer = buffer, .length = length, .transfer = transfer};
    quoit_status_t status = may_fail(&transport->environment, receives ? CHAOS_CALL_recv : CHAOS_CALL_send);
    if (status != QUOIT_OK) {
        if (!chaos_script.fail_transfer) return status;
        transfer->status = status;
        return QUOIT_OK;
    }
    chaos_message_t *late = happens(transport, chaos_script.late) || has_late(transport, &message) ? malloc(sizeof *late) : NULL;
    if (!late) return hand_on(&message);
    *late = message;
    late->wait = (int)chaos_draw(&transport->random, LATE_PROGRESSES);
    transfer->status = QUOIT_IN_PROGRESS;
    list_append(&transport->late, &late->link);
    atomic_fetch_add(&chaos_tally.late, 1);
    return QUOIT_OK;
}

static quoit_status_t chaos_send(quoit_endpoint_t *base, quoit_key_t key, const void *buffer, size_t length, quoit_transfer_t *transfer)
{
    return chaos_message(base, key, (void *)(uintptr_t)buffer, length, transfer, false);
}

static quoit_status_t chaos_recv(quoit_endpoint_t *base, quoit_key_t key, void *buffer, size_t length, quoit_transfer_t *transfer)
{
    return chaos_message(base, key, buffer, length, transfer, true);
}

static int hand_on_late(chaos_transport_t *transport)
{
    int handed = 0;
    for (list_t *node = transport->late.next, *next; node != &transport->late; node = next) {
        chaos_message_t *message = container_of(node, chaos_message_t, link);
        next = node->next;
        if (--message->wait > 0 || has_late(transport, message)) continue;
        list_remove(&message->link);
        quoit_status_t status = hand_on(message);
        if (status != QUOIT_OK) message->transfer->status = status;
        free(message);
        handed++;
    }
    return handed;
}

static void chaos_cancel(quoit_transport_t *base, uint64_t comm)
{
    chaos_transport_t *transport = of(base);
    for (list_t *node = transport->late.next, *next; node != &transport->late; node = next) {
        chaos_message_t *message = container_of(node, chaos_message_t, link);
        next = node->next;
        if (message->key.comm != comm) continue;
        list_remove(&message->link);
        message->transfer->status = QUOIT_ERR_ABORTED;
        free(message);
    }
    transport->ops->cancel(transport->inner, comm);
}

static quoit_status_t chaos_notify(quoit_endpoint_t *base, const void *data, size_t length)
{
    chaos_transport_t *transport = of(base->transport);
    quoit_status_t status = may_fail(&transport->environment, CHAOS_CALL_notify);
    if (status == QUOIT_OK && length > QUOIT_NOTICE_SMALL && happens(transport, chaos_script.refuse)) {
        atomic_fetch_add(&chaos_tally.refused, 1);
        transport->environment.error("chaos: no credit now");
        status = QUOIT_ERR_AGAIN;
    }
    return status == QUOIT_OK ? transport->ops->notify(endpoint_of(base)->inner, data, length) : status;
}

static bool chaos_next_event(quoit_transport_t *base, quoit_event_t *event)
{
    chaos_transport_t *transport = of(base);
    if (!transport->ops->next_event(transport->inner, event)) return false;
    chaos_endpoint_t *endpoint = event->endpoint ? wrap(transport, event->endpoint) : NULL;
    event->endpoint = endpoint ? &endpoint->base : NULL;
    return true;
}

static int chaos_progress(quoit_transport_t *base)
{
    chaos_transport_t *transport = of(base);
    if (happens(transport, chaos_script.idle)) {
        atomic_fetch_add(&chaos_tally.idle, 1);
        return 0;
    }
    int moved = hand_on_late(transport);
    if (transport->relays) moved += chaos_relays_step(transport->relays);
    moved += transport->ops->progress(transport->inner);
    if (transport->relays) moved += chaos_relays_step(transport->relays);
    return moved;
}

static bool chaos_idle(quoit_transport_t *base)
{
    chaos_transport_t *transport = of(base);
    return transport->ops->idle(transport->inner) && (!transport->relays || !chaos_relays_busy(transport->relays));
}

/* ------------------------------------------------------------------ sleeping */

static int chaos_descriptor(quoit_transport_t *base) { return of(base)->epoll; }

static quoit_status_t chaos_arm(quoit_transport_t *base)
{
    chaos_transport_t *transport = of(base);
    quoit_status_t status = may_fail(&transport->environment, CHAOS_CALL_arm);
    if (status != QUOIT_OK) return status;
    if (!list_is_empty(&transport->late) || (transport->relays && chaos_relays_busy(transport->relays))) return QUOIT_ERR_AGAIN;
    if (transport->relays) { /* edges that were seen are forgotten */
        struct epoll_event events[16];
        while (epoll_wait(transport->epoll, events, 16, 0) == 16) {}
        if (chaos_relays_step(transport->relays) > 0) return QUOIT_ERR_AGAIN;
    }
    return transport->ops->arm(transport->inner);
}

static void chaos_disarm(quoit_transport_t *base) { of(base)->ops->disarm(of(base)->inner); }

/* ------------------------------------------------------------------ memory */

static quoit_status_t chaos_reg(quoit_transport_t *base, const void *pointer, size_t length)
{
    quoit_status_t status = may_fail(&of(base)->environment, CHAOS_CALL_reg);
    return status == QUOIT_OK ? of(base)->ops->reg(of(base)->inner, pointer, length) : status;
}

static void chaos_dereg(quoit_transport_t *base, const void *pointer) { of(base)->ops->dereg(of(base)->inner, pointer); }

static quoit_status_t chaos_share_alloc(quoit_transport_t *base, size_t length, void **pointer)
{
    quoit_status_t status = may_fail(&of(base)->environment, CHAOS_CALL_share_alloc);
    return status == QUOIT_OK ? of(base)->ops->share_alloc(of(base)->inner, length, pointer) : status;
}

static void chaos_share_free(quoit_transport_t *base, void *pointer) { of(base)->ops->share_free(of(base)->inner, pointer); }

static quoit_status_t chaos_share_root(quoit_transport_t *base, void **pointer)
{
    quoit_status_t status = may_fail(&of(base)->environment, CHAOS_CALL_share_root);
    return status == QUOIT_OK ? of(base)->ops->share_root(of(base)->inner, pointer) : status;
}

static quoit_status_t chaos_export(quoit_transport_t *base, const void *pointer, size_t length, void *handle)
{
    quoit_status_t status = may_fail(&of(base)->environment, CHAOS_CALL_export_memory);
    return status == QUOIT_OK ? of(base)->ops->export_memory(of(base)->inner, pointer, length, handle) : status;
}

static quoit_status_t chaos_attach(quoit_endpoint_t *base, const void *handle, void **pointer, size_t *length)
{
    quoit_status_t status = may_fail(&of(base->transport)->environment, CHAOS_CALL_attach);
    return status == QUOIT_OK ? of(base->transport)->ops->attach(endpoint_of(base)->inner, handle, pointer, length) : status;
}

static void chaos_ring(quoit_endpoint_t *base) { of(base->transport)->ops->ring(endpoint_of(base)->inner); }

/* ------------------------------------------------------------------ texts */

static const char *chaos_describe(quoit_endpoint_t *base)
{
    chaos_endpoint_t *endpoint = endpoint_of(base);
    const char *inner = of(base->transport)->ops->describe(endpoint->inner);
    char *text = NULL;
    if (asprintf(&text, "chaos over %s", inner) < 0) return inner;
    free(endpoint->description);
    endpoint->description = text;
    return text;
}

static void chaos_count(quoit_endpoint_t *base, uint64_t *sent, uint64_t *received)
{
    of(base->transport)->ops->count(endpoint_of(base)->inner, sent, received);
}

/* ------------------------------------------------------------------ what the object exports */

#define EXPORTED __attribute__((visibility("default")))

EXPORTED void chaos_begin(const chaos_script_t *script);
EXPORTED void chaos_look(chaos_counts_t *counts);
EXPORTED const char *chaos_call_name(int call);
EXPORTED const quoit_transport_ops_t *quoit_transport_plugin(void);

void chaos_begin(const chaos_script_t *script)
{
    chaos_script = *script;
    for (int i = 0; i < CHAOS_CALL_COUNT; i++) atomic_store(&chaos_tally.calls[i], 0);
    atomic_store(&chaos_tally.bytes, 0);
    atomic_store(&chaos_tally.late, 0);
    atomic_store(&chaos_tally.refused, 0);
    atomic_store(&chaos_tally.idle, 0);
    atomic_store(&chaos_tally.portions, 0);
    atomic_store(&chaos_tally.cut, false);
    atomic_store(&chaos_tally.failed, false);
}

void chaos_look(chaos_counts_t *counts)
{
    for (int i = 0; i < CHAOS_CALL_COUNT; i++) counts->calls[i] = atomic_load(&chaos_tally.calls[i]);
    counts->bytes = atomic_load(&chaos_tally.bytes);
    counts->late = atomic_load(&chaos_tally.late);
    counts->refused = atomic_load(&chaos_tally.refused);
    counts->idle = atomic_load(&chaos_tally.idle);
    counts->portions = atomic_load(&chaos_tally.portions);
    counts->cut = atomic_load(&chaos_tally.cut);
    counts->failed = atomic_load(&chaos_tally.failed);
}

const char *chaos_call_name(int call) { return call_name(call); }

static const quoit_transport_ops_t *find_wrapped(void)
{
    const char *name = getenv("QUOIT_TEST_CHAOS");
    bool is_path = name && strchr(name, '/');
    void *object = is_path ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
    void *symbol = is_path ? (object ? dlsym(object, "quoit_transport_plugin") : NULL) : dlsym(RTLD_DEFAULT, "chaos_wrapped");
    if (!name || !symbol) return NULL;
    quoit_transport_plugin_t plugin;
    const quoit_transport_ops_t *(*find)(const char *);
    memcpy(&plugin, &symbol, sizeof symbol);
    memcpy(&find, &symbol, sizeof symbol);
    return is_path ? plugin() : find(name);
}

const quoit_transport_ops_t *quoit_transport_plugin(void)
{
    wrapped = find_wrapped();
    if (!wrapped) return NULL;
    table = (quoit_transport_ops_t){.abi = QUOIT_TRANSPORT_ABI,
                                    .struct_size = sizeof table,
                                    .name = "chaos",
                                    .flags = wrapped->flags & ~(uint32_t)(wrapped->flags & QUOIT_TRANSPORT_MAP ? QUOIT_TRANSPORT_DEVICE : QUOIT_TRANSPORT_DEVICE | QUOIT_TRANSPORT_SAME_HOST),
                                    .probe = chaos_probe,
                                    .open = chaos_open,
                                    .close = chaos_close,
                                    .listen = chaos_listen,
                                    .trust = chaos_trust,
                                    .distrust = chaos_distrust,
                                    .connect = chaos_connect,
                                    .endpoint_status = chaos_endpoint_status,
                                    .disconnect = chaos_disconnect,
                                    .send = chaos_send,
                                    .recv = chaos_recv,
                                    .cancel = chaos_cancel,
                                    .notify = chaos_notify,
                                    .next_event = chaos_next_event,
                                    .progress = chaos_progress,
                                    .idle = chaos_idle,
                                    .descriptor = chaos_descriptor,
                                    .arm = chaos_arm,
                                    .disarm = chaos_disarm,
                                    .reg = chaos_reg,
                                    .dereg = chaos_dereg,
                                    .share_alloc = chaos_share_alloc,
                                    .share_free = chaos_share_free,
                                    .share_root = chaos_share_root,
                                    .export_memory = chaos_export,
                                    .attach = chaos_attach,
                                    .ring = chaos_ring,
                                    .describe = chaos_describe,
                                    .count = chaos_count};
    return &table;
}
