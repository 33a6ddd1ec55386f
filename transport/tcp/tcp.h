/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The TCP transport's own types, and what its files offer each other.
 *
 *   tcp.c             the table of calls, opening and closing, progress, the timer
 *   tcp_endpoint.c    an endpoint that stands or leaves: its sockets; its life is transport/framing/endpoint.h's
 *   tcp_connect.c     the side that connects: a peer's addresses in turn, then the further sockets
 *   tcp_accept.c      the side that listens: strangers, proofs, which of two connections stays
 *   tcp_socket.c      a socket: options, epoll, bytes in and out (the channel's pipe), whether the peer's host still answers
 *   tcp_rails.c       several network interfaces to one peer: which sockets go where, and what happens when one is lost
 *   tcp_secure.c      a socket with TLS: its handshake, bytes in and out; what TLS has read ahead
 * Which addresses are told to peers, and how: transport/ip.
 *
 * Sockets belong to the transport while nobody has proved anything (list `strangers`), then to an endpoint. A socket is freed only
 * at the end of progress: events already fetched from epoll may still name it.
 */
#ifndef QUOIT_TRANSPORT_TCP_H
#define QUOIT_TRANSPORT_TCP_H

#include "base/clock.h"
#include "base/list.h"
#include "base/table.h"
#include "transport/framing/endpoint.h"
#include "transport/framing/handshake.h"
#include "transport/framing/secrets.h"
#include "transport/ip/ip_address.h"
#include "transport/ip/ip_interface.h"
#include "transport/ip/ip_settings.h"
#include "transport/process.h"
#include "transport/tls/tls.h"

enum {
    TCP_MAX_STRANGERS = 64,   /* connections that have proved nothing yet */
    TCP_BUDGET = 128 * 1024,  /* bytes one call of progress moves, about */
    TCP_TEXT_CAPACITY = 256,
    TCP_CAUSE_CAPACITY = 224
};

/** Times, in milliseconds. Not settings: tests make them short. */
typedef struct tcp_times {
    int handshake;   /* from the first byte's connection to the proof; and from the first socket to the last of an attempt */
    int stagger;     /* until the next address is tried beside one that does not answer */
    int retry_least, retry_most; /* pause before an address is tried again, doubling */
    int silence;     /* a host that acknowledges nothing for so long is taken for lost */
    int rail;        /* the same for one of several rails, which costs less; twice that for it to be connected */
} tcp_times_t;

#define TCP_TIMES_DEFAULT {.handshake = 10000, .stagger = 250, .retry_least = 20, .retry_most = 1000, .silence = 20000, .rail = 2000}

typedef enum tcp_kind {
    TCP_LISTENER,
    TCP_TIMER,
    TCP_STRANGER, /* accepted; the handshake runs, then the preamble comes */
    TCP_REFUSED,  /* has been told so; its bytes are read and dropped until it closes */
    TCP_CALLER,   /* connecting; then the handshake runs, then the preamble goes out */
    TCP_PIPE,     /* part of an endpoint that stands, or says goodbye */
    TCP_DEAD      /* closed, waits to be freed */
} tcp_kind_t;

typedef struct tcp_transport tcp_transport_t;
typedef struct tcp_endpoint tcp_endpoint_t;

typedef struct tcp_socket {
    list_t link; /* strangers, callers, incoming, or graveyard; PIPE: `buffered` */
    tcp_kind_t kind;
    int fd;
    uint32_t armed; /* epoll events asked for */
    tcp_transport_t *transport;
    tcp_endpoint_t *endpoint; /* NULL: stranger */
    ip_name_t remote;
    uint64_t deadline;      /* STRANGER, REFUSED, CALLER */
    tls_session_t *tls;     /* owned; NULL: plain text, and while a caller is not connected */
    bool secured;           /* its handshake is done */
    handshake_t *handshake; /* owned; NULL once done, and while a caller is not connected */
    int address, pipe;      /* CALLER: number of the address; CALLER, PIPE: number of the pipe */
    int rail;               /* the listening side's number for the interface it arrives at; 0 without rails */
    uint32_t mbps;          /* of the slower of its two interfaces; 0: unknown */
    bool proved, ready;     /* STRANGER, CALLER: handshake done; preamble through too */
    uint8_t preamble[IP_PREAMBLE_SIZE];
    size_t preamble_done;
    uint64_t attempt; /* STRANGER, once ready */
    bool ended;       /* STRANGER, ready: its peer has said all and left, and that is here */
    size_t drained;   /* REFUSED: bytes dropped so far */
    /* PIPE */
    bool blocked, dry, muted; /* no room to write; nothing more to read since epoll told; not in the epoll set any more */
    int write_error;     /* errno of a write: told only when everything that came before has been read */
    uint64_t pending_since; /* first look at which bytes lay unacknowledged; 0: none */
    bool suspect;
} tcp_socket_t;

/** One address of a peer while it is tried. */
typedef struct tcp_target {
    ip_name_t name;
    tcp_socket_t *socket; /* under way; NULL: none */
    uint64_t retry_at;
    int retry_ms, refusals;
    bool hopeless, refused_by_tls; /* no use trying again; because of TLS */
    int rail;
    uint32_t mbps;
    char cause[TCP_CAUSE_CAPACITY]; /* how the newest try ended; "": no try ended */
} tcp_target_t;

/** One of several interfaces that carry together. */
typedef struct tcp_rail {
    char text[TCP_TEXT_CAPACITY]; /* "eth1 (10.1.0.3 -> 10.1.0.7:41230)"; "": not in use */
    int own;                      /* bit of the own interface in transport->rails_left */
    bool told;                    /* that it was left */
} tcp_rail_t;

struct tcp_endpoint {
    endpoint_t base;
    list_t dirty; /* those with something to write */
    tcp_transport_t *transport;
    ip_limits_t limits;
    tcp_socket_t *pipes[CHANNEL_MAX_PIPES];
    int pipe_count;
    uint64_t wake; /* when tcp_endpoint_wake is to be called; CLOCK_NEVER */

    /* COMING: this side calls */
    bool calling;
    uint64_t attempt, started, deadline, newest_try;
    tcp_target_t targets[IP_MAX_ADDRESSES];
    job_secret_t secret; /* what the calls prove; wiped when the connection stands */
    int target_count;
    list_t callers;
    tcp_socket_t *chosen; /* the caller whose server has proved itself; the others were dropped */
    /* COMING: the peer called */
    list_t incoming; /* its sockets, all proved */

    int8_t lost_rail[CHANNEL_MAX_PIPES]; /* of pipes that are closed */
    tcp_rail_t *rails;     /* owned, [IP_MAX_ADDRESSES]; NULL: one interface, or either side's are not several */
    unsigned sockets;      /* rails: wanted by both sides' settings */
    int rail_count;        /* rails, calling: in common */
    unsigned bad_rails;    /* rails, calling: a bit for each that could not be connected */

    /* STANDING */
    bool watched;
    /* LEAVING */
    bool shut, flushed; /* shutdown() done; all bytes acknowledged */
};

struct tcp_transport {
    endpoints_t base;
    char host[IP_HOST_CAPACITY];
    tcp_times_t times;
    ip_limits_t limits;
    int connect_ms;
    ip_choice_t choice;
    int epoll;
    tcp_socket_t *timer, *listeners[IP_MAX_ADDRESSES];
    int listener_count;
    uint64_t timer_at, accept_at; /* what the timer is set to; when to accept again after running out of descriptors */
    tls_context_t *tls; /* NULL: plain text */
    secrets_t *jobs;
    list_t strangers, dirty, graveyard;
    uint64_t looked; /* when progress asked the kernel last, while there is nobody */
    unsigned quiet_calls; /* of progress, while there is nobody */
    bool due;             /* the next call of progress asks the kernel in any case */
    unsigned rails_left; /* a bit for each of the own interfaces of which a loss was told */
    list_t buffered; /* pipes with TLS that may hold what epoll does not see */
    int stranger_count;
};

/** As the table's open, with other times. */
quoit_status_t tcp_open(const quoit_transport_environment_t *environment, const tcp_times_t *times, quoit_transport_t **transport);

/* ---- tcp.c */
void tcp_transport_wake_at(tcp_transport_t *transport, uint64_t when);

/* ---- tcp_socket.c */
/** A socket of the transport around `fd`, which becomes its own (closed even on failure). NULL with a text when out of memory. */
tcp_socket_t *tcp_socket_create(tcp_transport_t *transport, tcp_kind_t kind, int fd, uint32_t events);
void tcp_socket_destroy(tcp_socket_t *socket); /* closes now, frees at the end of progress; NULL is accepted */
void tcp_socket_bury(tcp_transport_t *transport);
void tcp_socket_arm(tcp_socket_t *socket, uint32_t events);
/** The peer's end of stream was reached, in order: nothing more is to be heard of this socket. */
void tcp_socket_mute(tcp_socket_t *socket);
/** Options while the connection is being made, and once it stands. */
void tcp_socket_set_coming(tcp_socket_t *socket);
void tcp_socket_set_standing(tcp_socket_t *socket);
/**
 * 0: went (some of it, told in *done); EAGAIN; another errno; ECONNRESET for an end of stream; EPROTO: see tls_session_cause. What went
 * may wait for a flush.
 */
int tcp_socket_send(tcp_socket_t *socket, const void *bytes, size_t length, size_t *done);
int tcp_socket_receive(tcp_socket_t *socket, void *bytes, size_t length, size_t *done);
/** Send what the handshake has to send, read what it wants. 0: its state changed; EAGAIN: no more now; else errno. */
int tcp_socket_shake(tcp_socket_t *socket);
/** Read and drop at most `most` bytes; true when the end of the stream (or an error) was met. */
bool tcp_socket_drain(tcp_socket_t *socket, size_t most);
size_t tcp_socket_unacknowledged(const tcp_socket_t *socket);
/** "eth0": of the socket's own address; "?" when unknown. Returns `name`. */
const char *tcp_socket_interface(const tcp_socket_t *socket, char name[IF_NAMESIZE]);
/** Look whether the peer's host answers; true when it has been silent too long. */
bool tcp_socket_is_silent(tcp_socket_t *socket, uint64_t now, int limit_ms);
extern const pipe_ops_t tcp_pipe_ops; /* pipe: tcp_socket_t * */
/** The error of reading that a socket ended with, 0 for its end of stream, as a status with a text. */
quoit_status_t tcp_socket_tell_end(const tcp_socket_t *socket, int error);

/* ---- tcp_secure.c: all of it does nothing, or is not used, where a socket has no TLS */
/** The transport's TLS for a socket that is connected, if it has any. False with a text. */
bool tcp_socket_begin_tls(tcp_socket_t *socket, bool server);
/** As tls_session_handshake; 0 without TLS. */
int tcp_socket_secure(tcp_socket_t *socket);
/** Bytes that were taken wait in TLS for room in the socket. */
static inline bool tcp_socket_is_staged(const tcp_socket_t *socket)
{
    return socket->tls != NULL && socket->write_error == 0 && tls_session_is_staged(socket->tls);
}
/** 0: nothing is staged; EAGAIN, or what broke. */
int tcp_socket_flush(tcp_socket_t *socket);
int tcp_secure_send(tcp_socket_t *socket, const void *bytes, size_t length, size_t *done);
int tcp_secure_receive(tcp_socket_t *socket, void *bytes, size_t length, size_t *done);
/** What to ask epoll for after EAGAIN. `output`: there is something to send. */
uint32_t tcp_socket_interest(const tcp_socket_t *socket, bool output);
/** This pipe was not read until it was dry: read again at the next progress. */
void tcp_pipe_keep_reading(tcp_socket_t *pipe);
/** Read those; number of things done. */
int tcp_read_buffered(tcp_transport_t *transport);
extern const pipe_ops_t tcp_secure_pipe_ops;

/* ---- tcp_accept.c */
quoit_status_t tcp_listen(quoit_transport_t *base, void *address, size_t *length);
quoit_status_t tcp_trust(quoit_transport_t *base, uint64_t job, const void *secret, size_t length);
void tcp_distrust(quoit_transport_t *base, uint64_t job);
void tcp_accept_ready(tcp_socket_t *listener);
void tcp_stranger_ready(tcp_socket_t *stranger, uint32_t events);
void tcp_refused_ready(tcp_socket_t *refused);
/** Drop what is overdue; the next deadline. */
uint64_t tcp_strangers_wake(tcp_transport_t *transport, uint64_t now);

/* ---- tcp_connect.c */
quoit_status_t tcp_connect(quoit_transport_t *base, const quoit_peer_t *peer, quoit_endpoint_t **endpoint);
/** Begin, or go on, calling a peer whose targets are known. An endpoint that nobody wants any more may be gone afterwards. */
void tcp_call_step(tcp_endpoint_t *endpoint);
void tcp_call_ready(tcp_socket_t *caller, uint32_t events);
/** Give up this side's attempt (the peer's stays, or the endpoint ends). */
void tcp_call_drop(tcp_endpoint_t *endpoint);
/** Calling: "tcp, not connected yet: tried 10.0.0.7:4123 (no answer)", the endpoint's description. */
const char *tcp_call_text(tcp_endpoint_t *endpoint);

/* ---- tcp_endpoint.c */
extern const endpoint_ops_t tcp_endpoint_ops;
tcp_endpoint_t *tcp_endpoint_create(tcp_transport_t *transport, quoit_process_id_t peer, const char *name);
static inline tcp_endpoint_t *tcp_endpoint_find(const tcp_transport_t *transport, quoit_process_id_t peer)
{
    return (tcp_endpoint_t *)endpoint_find(&transport->base, peer);
}
quoit_status_t tcp_endpoint_set_limits(tcp_endpoint_t *endpoint, ip_limits_t limits, bool rails);
/** All sockets are there: the connection stands. They become the endpoint's pipes, in this order. */
void tcp_endpoint_establish(tcp_endpoint_t *endpoint, tcp_socket_t *const *sockets, int count);
void tcp_endpoint_wake_at(tcp_endpoint_t *endpoint, uint64_t when);
void tcp_endpoint_wake(tcp_endpoint_t *endpoint, uint64_t now);
int tcp_pipe_ready(tcp_socket_t *pipe, uint32_t events, size_t budget);
/** Write what waits; bytes written. Puts the endpoint on the dirty list again when there is more and room for it. */
uint64_t tcp_endpoint_flush(tcp_endpoint_t *endpoint);
void tcp_endpoint_touch(tcp_endpoint_t *endpoint); /* something to write: onto the dirty list */
bool tcp_endpoint_is_idle(tcp_endpoint_t *endpoint);
void tcp_endpoint_farewell(tcp_endpoint_t *endpoint); /* for close: what can be said without waiting */

/* ---- tcp_rails.c: all of it does nothing, or is not used, where an endpoint has no rails */
/** Before calling: which of the peer's addresses are tried, on how many sockets. */
void tcp_rails_begin(tcp_endpoint_t *endpoint, const ip_address_t *address);
/** The address that a further socket goes to. */
int tcp_rails_address(const tcp_endpoint_t *endpoint, int pipe);
/** Bind a socket to the interface that faces its target. 0 or what broke. */
int tcp_rails_bind(tcp_socket_t *caller);
/** This further socket has failed: if only its rail is to blame, the endpoint goes on without that, and true is returned. */
bool tcp_rails_pass_over(tcp_socket_t *caller, const char *cause);
/** The pipes are there: names and weights of the rails, and the endpoint's description. */
void tcp_rails_establish(tcp_endpoint_t *endpoint);
/** After the channel has read or written: close what it has given up, and tell of it once. */
void tcp_rails_look(tcp_endpoint_t *endpoint);
/** The pipe's host is silent. True when other rails go on without this one. */
bool tcp_rails_lose(tcp_endpoint_t *endpoint, const tcp_socket_t *pipe);
/** How long a pipe may be silent. */
int tcp_rails_silence(const tcp_endpoint_t *endpoint, const tcp_socket_t *pipe);
#endif
