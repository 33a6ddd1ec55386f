/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the verbs transport: settings, the device, the control transport; and closing it. */
#include "base/log.h"
#include "base/settings.h"
#include "transport/ip/ip_settings.h"
#include "transport/registry.h"
#include "transport/verbs/verbs.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { FAREWELL_MS = 50, REAP_MS = 5000 };

/* ---------------------------------------------------------------- settings */

typedef struct reader {
    const quoit_transport_environment_t *environment;
    quoit_status_t status; /* of the first value that could not be read */
} reader_t;

static int64_t read_number(reader_t *reader, const char *name, int64_t fallback, int64_t least, int64_t most, bool size)
{
    const char *text = reader->environment->setting(name);
    int64_t value = fallback;
    if (reader->status != QUOIT_OK || text == NULL) return fallback;
    reader->status = size ? parse_size(name, text, least, most, &value) : parse_int(name, text, least, most, &value);
    return value;
}

static bool read_flag(reader_t *reader, const char *name, bool fallback)
{
    const char *text = reader->environment->setting(name);
    int64_t value = fallback;
    if (reader->status != QUOIT_OK || text == NULL) return fallback;
    reader->status = parse_bool(name, text, &value);
    return value != 0;
}

static quoit_status_t read_options(verbs_transport_t *transport, const quoit_transport_environment_t *environment)
{
    reader_t reader = {.environment = environment};
    verbs_options_t *options = &transport->options;
    int64_t timeout = 20 * 1000000;
    options->timeout = (int)read_number(&reader, "VERBS_TIMEOUT", 18, 1, 31, false);
    options->retries = (int)read_number(&reader, "VERBS_RETRY_COUNT", 6, 1, 7, false);
    options->traffic_class = (int)read_number(&reader, "VERBS_TRAFFIC_CLASS", 0, 0, 255, false);
    options->service_level = (int)read_number(&reader, "VERBS_SERVICE_LEVEL", 0, 0, 15, false);
    options->pkey_index = (int)read_number(&reader, "VERBS_PKEY_INDEX", 0, 0, 65535, false);
    options->depth = (uint32_t)read_number(&reader, "VERBS_DEPTH", 32, 8, VERBS_MOST_DEPTH, false);
    options->buffer_size = (uint32_t)read_number(&reader, "VERBS_BUFFER_SIZE", 8 << 10, 1 << 10, 64 << 10, true);
    options->memory.bytes = (size_t)read_number(&reader, "VERBS_REGISTRATION_LIMIT", 4ll << 30, 0, 1ll << 46, true);
    options->memory.entries = (size_t)read_number(&reader, "VERBS_REGISTRATION_ENTRIES", 4096, 0, 1 << 20, false);
    options->memory.watch = options->keep_exported = read_flag(&reader, "VERBS_REGISTRATION_CACHE", true);
    options->memory.relaxed = read_flag(&reader, "VERBS_RELAXED_ORDERING", true);
    options->adaptive_routing = read_flag(&reader, "VERBS_ADAPTIVE_ROUTING", false);
    transport->limits.eager_limit = (uint32_t)read_number(&reader, "EAGER_LIMIT", 8 << 10, 256, 64 << 10, true);
    transport->limits.eager_pool = (uint32_t)read_number(&reader, "EAGER_POOL", 1 << 20, 64 << 10, 64 << 20, true);
    transport->limits.segment_size = (uint32_t)read_number(&reader, "SEGMENT_SIZE", 256 << 10, 4 << 10, 4 << 20, true);
    const char *text = environment->setting("CONNECT_TIMEOUT");
    if (reader.status == QUOIT_OK && text != NULL) reader.status = parse_duration("CONNECT_TIMEOUT", text, 10000, 600000000, &timeout);
    options->connect_ms = (int)((timeout + 999) / 1000);
    return reader.status;
}

/* What other libraries were told counts where Quoit was told nothing, as far as it is said in the same way: "=mlx5_0:1,mlx5_1:1". */
static const char *device_setting(const quoit_transport_environment_t *environment)
{
    const char *text = environment->setting("VERBS_DEVICE"), *foreign = getenv("NCCL_IB_HCA");
    if ((text != NULL && text[0] != '\0') || foreign == NULL || foreign[0] != '=') return text;
    return foreign + 1;
}

static quoit_status_t read_wish(const quoit_transport_environment_t *environment, verbs_wish_t *wish)
{
    reader_t reader = {.environment = environment};
    const char *transports = environment->setting("TRANSPORT");
    *wish = (verbs_wish_t){.device = device_setting(environment),
                           .hardware = transports == NULL || transports[0] == '\0' || strcmp(transports, "auto") == 0,
                           .port = (int)read_number(&reader, "VERBS_PORT", 0, 0, 255, false),
                           .gid_index = (int)read_number(&reader, "VERBS_GID_INDEX", -1, -1, 255, false)};
    return reader.status;
}

/* Rates that the user told count before those of the ports. */
static quoit_status_t correct_rates(const quoit_transport_environment_t *environment, verbs_candidate_t *chosen, int count)
{
    const char *rates = environment->setting("INTERFACE_RATES");
    for (int i = 0; i < count && rates != NULL; i++) {
        quoit_status_t status = ip_settings_rate(rates, chosen[i].device, chosen[i].mbps, &chosen[i].mbps);
        if (status != QUOIT_OK) return status;
    }
    return QUOIT_OK;
}

static quoit_status_t find_devices(const quoit_transport_environment_t *environment, const verbs_library_t **library,
                                   verbs_candidate_t chosen[VERBS_MOST_RAILS], int *chosen_count)
{
    const char *path = environment->setting("VERBS_LIBRARY");
    verbs_wish_t wish;
    verbs_candidate_t *all = NULL;
    int count = 0;
    if (path == NULL || *path == '\0') path = "libibverbs.so.1";
    quoit_status_t status = read_wish(environment, &wish);
    /* Nobody asked for it by name, so nothing is loaded where there is nothing. */
    if (status == QUOIT_OK && wish.hardware && strcmp(path, "libibverbs.so.1") == 0 && access("/sys/class/infiniband", F_OK) != 0)
        status = error_set(QUOIT_ERR_NOT_FOUND, "there is no RDMA device (no /sys/class/infiniband)");
    if (status == QUOIT_OK) status = verbs_library_open(path, library);
    if (status == QUOIT_OK) status = verbs_device_scan(*library, &all, &count);
    if (status == QUOIT_OK) status = verbs_device_choose(all, count, &wish, chosen, chosen_count);
    if (status == QUOIT_OK) status = correct_rates(environment, chosen, *chosen_count);
    free(all);
    return status;
}

quoit_status_t verbs_probe(const quoit_transport_environment_t *environment, char *why, size_t capacity)
{
    const verbs_library_t *library;
    verbs_candidate_t chosen[VERBS_MOST_RAILS];
    int count;
    quoit_status_t status = find_devices(environment, &library, chosen, &count);
    if (status == QUOIT_OK) return QUOIT_OK;
    if (capacity > 0) snprintf(why, capacity, "%s", error_text());
    return QUOIT_ERR_NOT_FOUND;
}

/* ---------------------------------------------------------------- opening */

/* The control connection is one socket, whatever TCP itself uses. */
static const char *control_setting(const char *name)
{
    const char *value;
    if (strcmp(name, "TCP_SOCKETS") == 0) return "1";
    return quoit_setting_get(name, &value) == QUOIT_OK ? value : NULL;
}

/*
 * Python's data loaders fork while memory is registered: without this, older kernels give the child the pages. With it, they keep whole
 * pages of what is registered from children, so then a caller's memory is registered only while it is in use. True: newer kernels, which
 * copy such pages for the child.
 */
static bool prepare_fork(const verbs_library_t *library)
{
    bool can_tell = library->is_fork_initialized != NULL;
    if (!can_tell || library->is_fork_initialized() == IBV_FORK_DISABLED) {
        int error = library->fork_init();
        if (error != 0) log_info("verbs", "ibv_fork_init: %s; a fork while messages move may lose them", strerror(error));
    }
    return can_tell && library->is_fork_initialized() == IBV_FORK_UNNEEDED;
}

static quoit_status_t watch(const verbs_transport_t *transport, int descriptor)
{
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(transport->epoll, EPOLL_CTL_ADD, descriptor, &event) == 0) return QUOIT_OK;
    return error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: cannot watch a descriptor");
}

static quoit_status_t set_nonblocking(int descriptor)
{
    int flags = fcntl(descriptor, F_GETFL);
    if (flags >= 0 && fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0) return QUOIT_OK;
    return error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: cannot make a descriptor of the device non-blocking");
}

static quoit_status_t open_rail(verbs_transport_t *transport, verbs_rail_t *rail)
{
    const verbs_library_t *library = transport->library;
    const char *device = rail->chosen.device;
    struct ibv_device_attr attributes;
    rail->context = verbs_device_open(library, device);
    if (rail->context == NULL) return error_prefix(QUOIT_ERR_SYSTEM, "verbs");
    int error = library->query_device(rail->context, &attributes);
    if (error != 0) return error_set_errno(QUOIT_ERR_SYSTEM, error, "verbs: cannot ask for what %s can do", device);
    rail->most_entries = attributes.max_cqe > 0 ? (unsigned)attributes.max_cqe : 0;
    rail->pd = library->alloc_pd(rail->context);
    if (rail->pd == NULL) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: cannot make a protection domain on %s", device);
    rail->events = library->create_comp_channel(rail->context);
    if (rail->events == NULL) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: cannot make a completion channel on %s", device);
    quoit_status_t status = set_nonblocking(rail->events->fd);
    if (status == QUOIT_OK) status = set_nonblocking(rail->context->async_fd);
    if (status == QUOIT_OK) status = watch(transport, rail->events->fd);
    if (status == QUOIT_OK) status = watch(transport, rail->context->async_fd);
    return status;
}

static quoit_status_t open_devices(verbs_transport_t *transport, const quoit_transport_environment_t *environment)
{
    verbs_candidate_t chosen[VERBS_MOST_RAILS];
    struct ibv_pd *pd[VERBS_MOST_RAILS];
    int count = 0;
    quoit_status_t status = find_devices(environment, &transport->library, chosen, &count);
    if (status != QUOIT_OK) return status;
    if (!prepare_fork(transport->library) && transport->options.memory.watch) {
        log_info("verbs", "registrations of callers' memory are not kept, for this kernel would keep it from children of fork");
        transport->options.memory.watch = false;
    }
    for (int i = 0; i < count && status == QUOIT_OK; i++) {
        verbs_rail_t *rail = &transport->rail[i];
        *rail = (verbs_rail_t){.chosen = chosen[i], .number = i};
        list_init(&rail->cqs);
        transport->rails++;
        status = open_rail(transport, rail);
        pd[i] = rail->pd;
    }
    if (status != QUOIT_OK) return status;
    verbs_memory_init(&transport->memory, transport->library, pd, count, &transport->options.memory);
    transport->limits.rails = (uint32_t)count;
    return verbs_reaper_create(transport->library, &transport->reaper);
}

static void log_rails(const verbs_transport_t *transport)
{
    char gid[VERBS_GID_TEXT], name[VERBS_PORT_TEXT];
    for (int i = 0; i < transport->rails; i++) {
        const verbs_candidate_t *port = &transport->rail[i].chosen;
        log_info("verbs", "%s, GID index %d: %s %s, %u Mb/s%s", verbs_port_text(port, name), port->gid_index, verbs_gid_type_name(port->type),
                 verbs_gid_text(&port->gid, gid), port->mbps, transport->rails > 1 ? ", a rail" : "");
    }
}

static quoit_status_t open_descriptors(verbs_transport_t *transport)
{
    transport->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (transport->epoll < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: cannot make an epoll set");
    transport->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (transport->timer < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "verbs: cannot make a timer");
    return watch(transport, transport->timer);
}

static quoit_status_t open_control(verbs_transport_t *transport, const quoit_transport_environment_t *environment)
{
    quoit_transport_environment_t own = *environment;
    own.setting = control_setting;
    quoit_status_t status = transport_tcp.open(&own, &transport->control);
    if (status != QUOIT_OK) return error_prefix(status, "verbs: the control connections' transport");
    return watch(transport, transport_tcp.descriptor(transport->control));
}

quoit_status_t verbs_open(const quoit_transport_environment_t *environment, quoit_transport_t **result)
{
    verbs_transport_t *transport = calloc(1, sizeof *transport);
    if (transport == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "verbs: no memory to open the transport");
    transport->epoll = transport->timer = -1;
    transport->timer_at = CLOCK_NEVER;
    snprintf(transport->host, sizeof transport->host, "%s", environment->host != NULL ? environment->host : "?");
    list_init(&transport->active);
    quoit_status_t status = endpoints_open(&transport->base, &transport_verbs, &verbs_endpoint_ops, environment->self);
    if (status == QUOIT_OK) status = read_options(transport, environment);
    if (status == QUOIT_OK) status = open_descriptors(transport);
    if (status == QUOIT_OK) status = open_devices(transport, environment);
    if (status == QUOIT_OK) status = open_control(transport, environment);
    if (status != QUOIT_OK) {
        verbs_close(&transport->base.handle);
        return status;
    }
    log_rails(transport);
    *result = &transport->base.handle;
    return QUOIT_OK;
}

/* ---------------------------------------------------------------- closing */

static bool can_say_more(verbs_endpoint_t *endpoint)
{
    bool more = false;
    if (endpoint->broken != QUOIT_OK || (endpoint->base.life != ENDPOINT_STANDING && endpoint->base.life != ENDPOINT_LEAVING)) return false;
    verbs_cqs_poll(endpoint->transport);
    for (int i = 0; i < endpoint->links; i++) {
        verbs_link_t *link = &endpoint->link_of[i];
        if (link->left || link->broken != QUOIT_OK) continue;
        channel_write(endpoint->base.channel, i, VERBS_BUDGET);
        more = more || (channel_wants_write(endpoint->base.channel, i) && verbs_stream_can_write(link)) || link->stream.sent != link->stream.acked;
    }
    return more && channel_status(endpoint->base.channel) == QUOIT_OK;
}

/* What is queued goes out, and is given a moment to arrive: stopping a queue pair takes back what is on its way. */
static void farewell(verbs_transport_t *transport)
{
    uint64_t deadline = clock_deadline(FAREWELL_MS);
    bool more = true;
    for (list_t *place = transport->base.all.next; place != &transport->base.all; place = place->next) {
        verbs_endpoint_t *endpoint = container_of(place, verbs_endpoint_t, base.node);
        if (endpoint->base.life != ENDPOINT_STANDING) continue;
        for (int i = 0; i < endpoint->links; i++) {
            endpoint->link_of[i].stream.all_signalled = true;
            verbs_path_say_last(&endpoint->link_of[i]);
        }
        channel_close(endpoint->base.channel);
    }
    while (more && clock_now() < deadline) {
        more = false;
        for (list_t *place = transport->base.all.next; place != &transport->base.all; place = place->next)
            more = can_say_more(container_of(place, verbs_endpoint_t, base.node)) || more;
    }
}

static void close_rail(const verbs_library_t *library, verbs_rail_t *rail)
{
    if (rail->events != NULL && library->destroy_comp_channel(rail->events) != 0) library->destroy_comp_channel(rail->events);
    if (rail->pd != NULL && library->dealloc_pd(rail->pd) != 0) library->dealloc_pd(rail->pd);
    if (rail->context != NULL && library->close_device(rail->context) != 0) library->close_device(rail->context);
}

/* A queue pair that cannot be destroyed now holds its device: that stays open until the process ends. */
static void close_devices(verbs_transport_t *transport)
{
    bool done = transport->reaper == NULL || verbs_reaper_wait(transport->reaper, REAP_MS);
    if (transport->reaper != NULL) {
        verbs_queues_collect(transport);
        verbs_memory_destroy(&transport->memory);
        for (int i = 0; i < transport->kinds; i++) verbs_memory_destroy(&transport->kind[i].memory);
    }
    if (!done) log_warn("verbs", "queue pairs could not be destroyed within %d s; their device stays open until this process ends", REAP_MS / 1000);
    for (int i = 0; i < transport->rails && done; i++) close_rail(transport->library, &transport->rail[i]);
    verbs_reaper_destroy(transport->reaper);
}

void verbs_close(quoit_transport_t *base)
{
    verbs_transport_t *transport = (verbs_transport_t *)base;
    if (transport == NULL) return;
    farewell(transport);
    endpoints_close(&transport->base);
    if (transport->control != NULL) transport->control->ops->close(transport->control);
    close_devices(transport);
    if (transport->timer >= 0) close(transport->timer);
    if (transport->epoll >= 0) close(transport->epoll);
    free(transport->slots);
    free(transport);
}
