/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the transport `pipes`: plugin_pipe.c has the calls, plugin_pipe_link.c sockets, endpoints and handshakes. */
#ifndef QUOIT_TEST_PLUGIN_PIPE_H
#define QUOIT_TEST_PLUGIN_PIPE_H

#include "base/clock.h"
#include "base/list.h"
#include "base/status.h"
#include "quoit/quoit_transport.h"
#include "transport/framing/channel.h"
#include "transport/framing/handshake.h"

enum { BUDGET = 128 * 1024, NAME_CAPACITY = 160, JOBS = 64, STRAY_MS = 20000 };

typedef struct pipe_transport pipe_transport_t;
typedef struct pipe_endpoint pipe_endpoint_t;

typedef struct pipe_link {
    list_t link;
    int fd;
    handshake_t handshake;
    pipe_endpoint_t *endpoint; /* NULL: accepted, and not proved yet */
    uint64_t deadline;
    uint32_t watched; /* epoll events asked for */
} pipe_link_t;

struct pipe_endpoint {
    quoit_endpoint_t base;
    list_t link;
    channel_t *channel;  /* owned */
    pipe_link_t *socket; /* owned; the channel's pipe */
    pipe_link_t *caller; /* our own try to connect, in transport->links */
    int connects;
    bool standing, leaving, closed_told;
    uint64_t deadline;
    char name[NAME_CAPACITY], text[ERROR_TEXT_CAPACITY];
};

struct pipe_transport {
    quoit_transport_t base;
    quoit_transport_environment_t environment;
    size_t eager_limit, eager_pool, segment_size;
    int epoll, listener;
    struct {
        bool used;
        uint64_t job;
        size_t length;
        uint8_t secret[HANDSHAKE_SECRET_CAPACITY];
    } jobs[JOBS];
    list_t links, endpoints; /* links that shake hands; endpoints */
};

static inline pipe_transport_t *of_transport(quoit_transport_t *transport) { return (pipe_transport_t *)(void *)transport; }
static inline pipe_endpoint_t *of_endpoint(quoit_endpoint_t *endpoint) { return (pipe_endpoint_t *)(void *)endpoint; }
static inline bool same(quoit_process_id_t a, quoit_process_id_t b) { return a.high == b.high && a.low == b.low; }
static inline bool lower(quoit_process_id_t a, quoit_process_id_t b) { return a.high != b.high ? a.high < b.high : a.low < b.low; }

/* This object has an error text of its own; what was written to it goes to the library's. */
static inline quoit_status_t tell(const pipe_transport_t *transport, quoit_status_t status)
{
    if (error_text()[0]) transport->environment.error(error_text());
    error_clear();
    return status;
}

/* plugin_pipe_link.c */
void pipe_link_watch(pipe_transport_t *transport, pipe_link_t *link, uint32_t events);
void pipe_link_destroy(pipe_link_t *link);
pipe_link_t *pipe_link_create(pipe_transport_t *transport, int fd); /* NULL: no memory, text set */
int pipe_link_progress(pipe_transport_t *transport, pipe_link_t *link);
int pipe_link_accept(pipe_transport_t *transport);
pipe_endpoint_t *pipe_endpoint_find(pipe_transport_t *transport, quoit_process_id_t peer);
pipe_endpoint_t *pipe_endpoint_create(pipe_transport_t *transport, quoit_process_id_t peer, const char *name);
void pipe_endpoint_destroy(pipe_endpoint_t *endpoint);

#endif
