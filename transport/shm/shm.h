/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Shared memory transport, inside. It joins processes of one host (strictly: of one network namespace, where the names of abstract
 * Unix sockets live) that run under one user.
 *
 *   transport   one engine: its arena, its listener, an epoll set over all descriptors below
 *   link        one control socket: connecting, handshake, exchange of info and descriptors, then only its end is of interest,
 *               and the peer's last words before it
 *   endpoint    one peer: its arena mapped here, its doorbell, and a channel over two rings. Each side allocates the ring that it
 *               reads from in its own arena, so nobody's allocator depends on a peer.
 *
 * Files: shm.c (calls, open, close), shm_progress.c (polling, sleeping, events), shm_link.c (control sockets), shm_exchange.c (info
 * and descriptors), shm_endpoint.c (life of an endpoint), shm_arena.c and shm_memory.c (memory), shm_info.c (bytes from peers),
 * shm_wait.c (asleep and doorbell), shm_loans.c (memory that carries the larger messages).
 */
#ifndef QUOIT_SHM_H
#define QUOIT_SHM_H

#include "base/list.h"
#include "base/table.h"
#include "transport/framing/channel.h"
#include "transport/framing/handshake.h"
#include "transport/framing/ring.h"
#include "transport/framing/secrets.h"
#include "transport/shm/shm_arena.h"
#include "transport/shm/shm_header.h"
#include "transport/shm/shm_info.h"
#include "transport/shm/shm_loans.h"

#include <sys/types.h>

enum {
    SHM_TEXT_CAPACITY = 512,
    SHM_PEER_NAME_CAPACITY = 160,
    SHM_DESCRIPTORS = 3,               /* arena, doorbell, pidfd */
    SHM_MAX_STRANGERS = 1024,          /* connections at once that have not proved themselves */
    SHM_PROGRESS_BUDGET = 128 << 10,   /* bytes moved by one call of progress */
    SHM_ENDPOINT_BUDGET = 64 << 10,    /* of it, for one endpoint */
    SHM_FLUSH_TURNS = 2,               /* pieces written at once to an endpoint */
    SHM_MOST_FOLLOWED = 16,            /* rings that are looked at without a mark: a line each, in every call of progress */
    SHM_LEND_LEAST = 3072,             /* bytes: at 2 KiB a frame is quicker, at 4 KiB a loan */
    SHM_DOUBT_MS = 250,                /* between a socket's end and a pidfd's word: the kernel closes sockets first */
    SHM_RETRY_MS = 2,                  /* a step that the kernel put off (full backlog) */
    SHM_PATIENCE_MS = 20,              /* for the connection that the lower process id begins */
    SHM_NARROW_PAGES = 4               /* of a mailbox that has not been needed yet: what a process says at its end fits */
};

typedef struct shm_transport shm_transport_t;
typedef struct shm_endpoint shm_endpoint_t;

/** What an epoll event points at. */
typedef enum shm_source { SHM_SOURCE_LISTENER, SHM_SOURCE_TIMER, SHM_SOURCE_BELL, SHM_SOURCE_LINK, SHM_SOURCE_PIDFD } shm_source_t;

typedef enum shm_phase {
    SHM_PHASE_DIALLING,  /* connect() has not succeeded yet */
    SHM_PHASE_HANDSHAKE,
    SHM_PHASE_INFO,      /* proved; info and descriptors are on their way */
    SHM_PHASE_UP,        /* the endpoint stands; only the end of the socket is of interest */
    SHM_PHASE_DROPPED    /* closed; freed at the end of the round of events */
} shm_phase_t;

typedef struct shm_link {
    shm_source_t source; /* SHM_SOURCE_LINK; first */
    list_t node;         /* transport->links; transport->dropped */
    shm_transport_t *transport;
    shm_endpoint_t *endpoint; /* NULL: incoming and not proved yet */
    shm_phase_t phase;
    bool incoming, info_sent;
    bool retry; /* something was put off; step again soon */
    int fd;
    pid_t pid;         /* the peer's as seen from here; 0: not visible */
    uint64_t deadline; /* for an incoming link to become an endpoint */
    handshake_t handshake;
    uint8_t in[SHM_INFO_SIZE];
    size_t in_length;
    int fds[SHM_DESCRIPTORS]; /* received, owned until the endpoint takes them */
    int fd_count;
} shm_link_t;

typedef enum shm_state { SHM_CONNECTING, SHM_OPEN, SHM_ENDED } shm_state_t;

struct shm_endpoint {
    quoit_endpoint_t base; /* first */
    shm_source_t source;   /* SHM_SOURCE_PIDFD */
    list_t node;           /* transport->endpoints */
    list_t active;         /* transport->active while bytes can be moved, or wait for room */
    list_t events;         /* transport->events while next_event has something to tell */
    shm_state_t state;
    int references;
    bool leaving;   /* the caller has dropped it; it says goodbye and goes */
    bool exposed;   /* the peer has our mailbox and may write to it until `gone` */
    bool gone;      /* the peer writes no more */
    bool farewell;  /* its goodbye came; messages from before it may wait for their taker */
    bool died, died_told, closed_told;
    quoit_status_t status; /* ENDED: why; QUOIT_OK: the peer said goodbye */
    char text[SHM_TEXT_CAPACITY];
    char name[SHM_PEER_NAME_CAPACITY];
    char description[SHM_PEER_NAME_CAPACITY];
    uint64_t deadline; /* CONNECTING: of the connection; OPEN with doubt: until then the pidfd may speak */
    uint64_t dial_at;  /* CONNECTING without a link: when this side begins one; CLOCK_NEVER: it does not */
    uint64_t job;        /* for which it was asked for last */
    job_secret_t secret; /* what the connection proves; none when this side has asked for no connection yet, wiped when it stands */
    bool doubt;        /* the socket ended without goodbye and the process still seems to live */

    shm_link_t *link; /* NULL: waiting for the peer's, or ended */
    channel_t *channel; /* NULL while incoming, before the peer's limits are known */
    shm_limits_t limits; /* of the channel */
    ring_pipe_t pipe;
    uint64_t told; /* position in the peer's ring up to which it has been told to look */
    void *mailbox; /* the ring we read from, in our arena */
    shm_debt_t debt; /* of our pool, what the peer has */
    int slot;      /* index of that mailbox in mail[] and transport->slots; -1: none */

    shm_header_t *peer; /* the peer's arena, mapped; NULL before OPEN */
    size_t peer_size;
    uint8_t *peer_mail; /* our byte in its mail array */
    bool fence;         /* see shm_wait.h */
    bool followed;      /* its ring is looked at in every call of progress */
    bool same_process;  /* another engine of this process: a pidfd says nothing */
    int doorbell, pidfd;
};

struct shm_transport {
    quoit_transport_t base; /* first */
    quoit_transport_environment_t environment;
    shm_arena_t *arena;
    shm_header_t *header; /* at the arena's beginning */
    shm_limits_t limits;
    size_t mailbox_capacity;
    size_t narrow_room; /* bytes of a mailbox that has not been needed yet */
    shm_loans_t loans;
    unsigned open; /* endpoints that stand */
    int connect_timeout_ms;
    bool registered; /* for membarrier */
    bool forked;     /* being closed in a forked child: what is shared with the parent stays as it is */
    pid_t owner;
    int epoll, timer, listener, pidfd, bell;
    shm_source_t listener_source, timer_source, bell_source;
    uint64_t listener_pause; /* time at which accepting goes on after a lack of descriptors; 0: it is on */

    list_t endpoints, active, events, links, dropped;
    secrets_t *jobs;
    table_t *by_process; /* process -> the endpoint that connect() gives out */
    shm_endpoint_t *slots[SHM_MAX_PEERS];
    int slot_limit; /* slots from here on are free */
    shm_endpoint_t *followed[SHM_MOST_FOLLOWED];
    int follows;
    uint64_t quiet_mail[SHM_MAX_PEERS / 8]; /* header->mail as it is when none has come: SHM_MAIL_FOLLOWED of those */
    int strangers;  /* incoming links without endpoint */
    shm_endpoint_t *told; /* whose CLOSED was the last event; not freed before the next next_event */
    char told_text[SHM_TEXT_CAPACITY];

    unsigned calls;     /* of progress */
    bool due;           /* look at descriptors and deadlines in the next call of progress */
    bool pending;       /* set-ups, doubts or farewells are under way */
    uint64_t kept;      /* when descriptors were looked at last */
};

/* shm_link.c */
quoit_status_t shm_listener_open(shm_transport_t *transport, void *address, size_t *length);
void shm_listener_accept(shm_transport_t *transport);
/** Begin a connection for the endpoint, under its secret; errors end the endpoint. */
void shm_link_dial(shm_endpoint_t *endpoint);
/** Move as far as it goes without waiting. */
void shm_link_step(shm_link_t *link);
void shm_link_drop(shm_link_t *link); /* closes; freed later. NULL is accepted */
/** This thread's error text ends the link, and the endpoint that hangs on it. */
void shm_link_fail(shm_link_t *link, quoit_status_t status);

/* shm_exchange.c */
/** Info and descriptors, both directions; opens the endpoint at its end. */
void shm_exchange_step(shm_link_t *link);

/* shm_endpoint.c */
quoit_status_t shm_endpoint_create(shm_transport_t *transport, quoit_process_id_t process, const char *name, shm_endpoint_t **endpoint);
quoit_status_t shm_endpoint_make_channel(shm_endpoint_t *endpoint, shm_limits_t peer);
quoit_status_t shm_endpoint_make_mailbox(shm_endpoint_t *endpoint); /* slot and ring; does nothing when there */
void shm_endpoint_open(shm_endpoint_t *endpoint);
/** What channel calls have queued goes out, and the peer is told. Number of things done. */
int shm_endpoint_flush(shm_endpoint_t *endpoint);
void shm_endpoint_activate(shm_endpoint_t *endpoint); /* the next call of progress moves what there is to move */
int shm_endpoint_move(shm_endpoint_t *endpoint, size_t budget, size_t *moved);
bool shm_endpoint_has_work(const shm_endpoint_t *endpoint);
/** Bytes are in its ring that it has not been told of. */
static inline bool shm_endpoint_has_untold(const shm_endpoint_t *endpoint) { return endpoint->pipe.out_written != endpoint->told; }
void shm_endpoint_ring(shm_endpoint_t *endpoint);
/** It is of no more use; status QUOIT_OK: the peer's goodbye. The text is this thread's error text otherwise. */
void shm_endpoint_end(shm_endpoint_t *endpoint, quoit_status_t status);
void shm_endpoint_socket_ended(shm_endpoint_t *endpoint);
void shm_endpoint_socket_spoke(shm_endpoint_t *endpoint, const void *bytes, size_t length); /* the peer's last words, or nonsense */
void shm_endpoint_process_ended(shm_endpoint_t *endpoint);
void shm_endpoint_check_goodbye(shm_endpoint_t *endpoint); /* something that came before it was taken */
void shm_endpoint_check_deadline(shm_endpoint_t *endpoint, uint64_t now);
void shm_endpoint_leave(shm_endpoint_t *endpoint);
/** Nobody needs it any more: neither the caller nor a peer that might write to its mailbox. */
bool shm_endpoint_is_over(const shm_endpoint_t *endpoint);
void shm_endpoint_free(shm_endpoint_t *endpoint);

/* shm_progress.c */
int shm_progress(quoit_transport_t *transport);
bool shm_next_event(quoit_transport_t *transport, quoit_event_t *event);
quoit_status_t shm_arm(quoit_transport_t *transport);
void shm_disarm(quoit_transport_t *transport);
void shm_unfollow(shm_endpoint_t *endpoint); /* from now on it has to mark what it writes */
void shm_reap(shm_transport_t *transport); /* frees what is over; not while events are being handled */
quoit_status_t shm_watch(shm_transport_t *transport, int fd, uint32_t events, shm_source_t *source);
/** Before a descriptor is closed: a forked child may keep what it refers to alive, and with it the events. -1 is accepted. */
void shm_unwatch(shm_transport_t *transport, int fd);

#endif
