/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The UCX transport's own types, and what its files offer each other.
 *
 *   ucx.c           the table of calls, opening and closing, progress, the timer
 *   ucx_endpoint.c  an endpoint that stands or leaves; its life is transport/framing/endpoint.h's
 *   ucx_connect.c   the side that connects       ucx_accept.c   the side that listens; jobs' secrets
 *   ucx_link.c      a connection of UCX as a byte pipe: active messages out and in, flushing, closing
 *   ucx_thread.c    UCX's own thread, held still while we close
 *   ucx_library.c   UCX itself, opened at run time
 *
 * A link is one connection of UCX. It belongs to nobody while its peer has proved nothing, then to an endpoint, and at the end to
 * itself, until its last word is out. UCX calls back inside ucp_worker_progress and inside the calls that send; these callbacks only
 * queue and mark (list `ready`), and inside ucp_worker_progress read what came into the channel. Links are freed in progress alone, so what progress
 * holds does not vanish under a callback.
 */
#ifndef QUOIT_TRANSPORT_UCX_H
#define QUOIT_TRANSPORT_UCX_H

#include "base/clock.h"
#include "base/list.h"
#include "base/table.h"
#include "transport/framing/endpoint.h"
#include "transport/framing/handshake.h"
#include "transport/framing/secrets.h"
#include "transport/ip/ip_settings.h"
#include "transport/process.h"
#include "transport/ucx/ucx_header.h"
#include "transport/ucx/ucx_library.h"

#include <pthread.h>

enum {
    UCX_MAX_STRANGERS = 64,          /* connections that have proved nothing yet */
    UCX_BUDGET = 256 * 1024,         /* bytes one call of progress moves, about, in each direction */
    UCX_IN_FLIGHT = 8,               /* active messages of a link that UCX has not let go of, with the one that is being filled */
    UCX_BACKLOG = 4 * 1024 * 1024,   /* received bytes that wait to be read, from which on UCX is left alone */
    UCX_TEXT_CAPACITY = 256,
    UCX_HANDSHAKE_MS = 10000,        /* from the first byte to the proof */
    UCX_REFUSED_MS = 1000,           /* to hear why, and to close */
    UCX_FAREWELL_MS = 10000          /* for the peer to say that it has our last byte */
};

typedef struct ucx_transport ucx_transport_t;
typedef struct ucx_endpoint ucx_endpoint_t;
typedef struct ucx_link ucx_link_t;

/** Something that UCX does for us and tells the end of; its bytes are UCX's until then. */
typedef struct ucx_task {
    list_t node; /* link->tasks, transport->orphans or a free list */
    ucx_transport_t *transport;
    ucx_link_t *link; /* NULL: it is gone */
    bool flush;       /* else a message */
    size_t length;    /* of bytes, filled */
    ucp_mem_h memory; /* of bytes, registered while the task is there; NULL: UCX sees to that itself */
    uint8_t header[UCX_HEADER_SIZE];
    uint8_t bytes[UCX_MESSAGE_SIZE];
} ucx_task_t;

/** Whose the bytes of a message are that came. */
typedef enum ucx_owner {
    UCX_OWNER_CALLBACK, /* UCX's, until its callback returns */
    UCX_OWNER_UCX,      /* UCX's, until they are released */
    UCX_OWNER_US        /* malloc'ed */
} ucx_owner_t;

/** A message that came. */
typedef struct ucx_chunk {
    list_t node; /* link->received in order of sequence, or a free list */
    uint64_t sequence;
    uint8_t *data;
    size_t length, taken; /* bytes: all, read */
    ucx_owner_t owner;
    bool last; /* the peer sends nothing more */
} ucx_chunk_t;

typedef enum ucx_kind {
    UCX_STRANGER, /* accepted; the handshake runs, then the preamble comes */
    UCX_CALLER,   /* connecting; the handshake runs, then the preamble goes out */
    UCX_PIPE,     /* of an endpoint that stands, or says goodbye */
    UCX_FAREWELL  /* nobody's; what was said last goes out, then it is closed */
} ucx_kind_t;

struct ucx_link {
    list_t node, ready; /* all links; those with something to do */
    ucx_transport_t *transport;
    ucx_endpoint_t *endpoint; /* NULL: a stranger that has proved nothing, or FAREWELL */
    ucx_kind_t kind;
    ucp_ep_h ep;
    ip_name_t remote;
    uint64_t deadline;      /* STRANGER, CALLER, FAREWELL */
    handshake_t *handshake; /* owned; STRANGER, CALLER */
    int address;            /* CALLER: number of the address */
    bool proved;            /* STRANGER: the verdict was given; CALLER: our proof is out */
    bool hears_out;         /* it was told why it is refused, and closes when it has heard that */
    uint8_t preamble[IP_PREAMBLE_SIZE];
    size_t preamble_done;

    list_t tasks; /* under way */
    ucx_task_t *filling; /* one of them, a message that UCX has not been given yet; only while more bytes are about to follow */
    int in_flight;
    uint64_t next_out, next_in, arrived; /* messages: sent, read, received */
    list_t received;
    bool unflushed, flushing; /* sent since the last flush; one is under way */
    ucs_status_t broken;      /* UCS_OK: it stands, or is on its way */
    bool last_sent, last_acknowledged, last_arrived, acknowledged; /* our last word and its receipt; the peer's and ours */
};

/** One address of a peer while it is tried. */
typedef struct ucx_target {
    ip_name_t name;
    uint64_t retry_at;
    int retry_ms;
    bool hopeless;  /* no use trying again */
    char cause[96]; /* how the newest try ended; "": none ended */
} ucx_target_t;

struct ucx_endpoint {
    endpoint_t base;
    ucx_transport_t *transport;
    ip_limits_t limits;
    ucx_link_t *link; /* STANDING, LEAVING */

    /* COMING */
    bool calling;
    uint64_t started, deadline, next_try;
    job_secret_t secret; /* what the calls prove; wiped when the connection stands */
    ucx_target_t targets[IP_MAX_ADDRESSES];
    int target_count, next_target;
    ucx_link_t *caller;   /* this side's try */
    ucx_link_t *incoming; /* the peer's, proved */
};

typedef struct ucx_listener {
    ucx_transport_t *transport;
    ucp_listener_h handle;
    ip_name_t name;
} ucx_listener_t;

struct ucx_transport {
    endpoints_t base;
    char host[IP_HOST_CAPACITY];
    const ucx_library_t *ucx;
    ip_limits_t limits;
    int connect_ms;
    ip_choice_t choice;
    ucp_context_h context;
    ucp_worker_h worker;
    int epoll, timer, worker_fd;
    uint64_t timer_at;
    ucx_listener_t listeners[IP_MAX_ADDRESSES];
    int listener_count;
    struct {
        ucp_conn_request_h handle;
        ucx_listener_t *listener;
    } requests[UCX_MAX_STRANGERS]; /* to be accepted */
    int request_count;
    table_t *eps; /* ucp_ep_h -> link */
    secrets_t *jobs;
    list_t links, ready, orphans;
    list_t free_tasks, free_chunks;
    int free_task_count;
    int stranger_count;
    size_t backlog; /* bytes in all `received` lists */
    ucx_chunk_t *calling; /* the message for which UCX calls back, while it is in no memory but UCX's; NULL: it was read */
    bool progressing; /* UCX is called for its progress, so what it receives may be read at once */
    int closing;      /* connections that UCX is still closing */
    struct {
        uint64_t messages; /* sent */
        uint64_t in_place; /* bytes read out of UCX's memory while it called back */
        uint64_t aside;    /* bytes copied aside, to be read later */
    } counts;
};

/* ---- ucx.c */
void ucx_transport_wake_at(ucx_transport_t *transport, uint64_t when);

/* ---- ucx_link.c */
quoit_status_t ucx_link_listen_messages(ucx_transport_t *transport);
/** Without a connection yet. NULL: no memory, text set. */
ucx_link_t *ucx_link_create(ucx_transport_t *transport, ucx_kind_t kind);
/** Begin the connection that `parameters` describe (its error handling is filled in here). */
quoit_status_t ucx_link_open(ucx_link_t *link, ucp_ep_params_t *parameters);
void ucx_link_destroy(ucx_link_t *link); /* closes without waiting; NULL is accepted */
void ucx_link_touch(ucx_link_t *link);   /* onto the ready list */
/** All or nothing, at most UCX_MESSAGE_SIZE bytes; false when there is no room now, or it is broken. */
bool ucx_link_send(ucx_link_t *link, const void *bytes, size_t length);
void ucx_link_push(ucx_link_t *link); /* the message that is being filled goes out as it is */
bool ucx_link_has_room(const ucx_link_t *link);
/** Read at most `length` bytes; 0: none are here. */
size_t ucx_link_take(ucx_link_t *link, void *bytes, size_t length);
bool ucx_link_has_bytes(const ucx_link_t *link);
void ucx_link_send_last(ucx_link_t *link);    /* once: nothing follows */
void ucx_link_acknowledge(ucx_link_t *link);  /* the peer's last message, when it is here with all before it */
/** True when UCX has handed all to the network; begins to see to it where it has not. */
bool ucx_link_flush(ucx_link_t *link);
void ucx_pool_destroy(ucx_transport_t *transport);
const char *ucx_link_cause(const ucx_link_t *link); /* UCX's text for why it broke */
extern const pipe_ops_t ucx_pipe_ops; /* pipe: ucx_link_t * */

/* ---- ucx_thread.c */
/** UCX's own thread while it stands still. */
typedef struct ucx_hold {
    const ucx_library_t *ucx;
    int fd;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t changed;
    bool there, over;
} ucx_hold_t;

/**
 * On return UCX's thread is between two callbacks and stays there until it is released, for all workers of this process: so be quick. A second
 * one waits for the first. On failure nothing is held.
 */
quoit_status_t ucx_thread_hold(const ucx_library_t *ucx, ucx_hold_t *hold);
void ucx_thread_release(ucx_hold_t *hold);

/* ---- ucx_accept.c */
quoit_status_t ucx_listen(quoit_transport_t *base, void *address, size_t *length);
quoit_status_t ucx_trust(quoit_transport_t *base, uint64_t job, const void *secret, size_t length);
void ucx_distrust(quoit_transport_t *base, uint64_t job);
int ucx_accept_requests(ucx_transport_t *transport);
void ucx_stranger_step(ucx_link_t *stranger);
void ucx_stranger_overdue(ucx_link_t *stranger);
/** Strangers that wait for this process's old connection to end: look again. */
void ucx_strangers_look(ucx_transport_t *transport, quoit_process_id_t peer);

/* ---- ucx_connect.c */
quoit_status_t ucx_connect(quoit_transport_t *base, const quoit_peer_t *peer, quoit_endpoint_t **endpoint);
/** Begin or go on calling. An endpoint that nobody wants any more may be gone afterwards. */
void ucx_call_step(ucx_endpoint_t *endpoint, uint64_t now);
void ucx_caller_step(ucx_link_t *caller);
void ucx_call_drop(ucx_endpoint_t *endpoint);
/** What the handshake has to say and to hear, as far as it goes; true when something moved. */
bool ucx_handshake_move(ucx_link_t *link);

/* ---- ucx_endpoint.c */
extern const endpoint_ops_t ucx_endpoint_ops;
ucx_endpoint_t *ucx_endpoint_create(ucx_transport_t *transport, quoit_process_id_t peer, const char *name);
static inline ucx_endpoint_t *ucx_endpoint_find(const ucx_transport_t *transport, quoit_process_id_t peer)
{
    return (ucx_endpoint_t *)endpoint_find(&transport->base, peer);
}
quoit_status_t ucx_endpoint_set_limits(ucx_endpoint_t *endpoint, ip_limits_t limits);
void ucx_endpoint_establish(ucx_endpoint_t *endpoint, ucx_link_t *link);
size_t ucx_pipe_step(ucx_link_t *pipe); /* bytes moved, about */
void ucx_pipe_read(ucx_link_t *pipe);    /* what has come; from UCX's callback too: nothing of UCX is called, and nothing is freed */
void ucx_farewell_begin(ucx_link_t *link, int ms); /* it is nobody's from now on */
void ucx_farewell_step(ucx_link_t *link);
bool ucx_endpoint_is_idle(ucx_endpoint_t *endpoint);

#endif
