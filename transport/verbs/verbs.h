/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The verbs transport's own types, and what its files offer each other.
 *
 *   verbs.c            the table of calls, progress, events, sleeping
 *   verbs_open.c       settings, opening and closing
 *   verbs_endpoint.c   an endpoint's life: standing, leaving, ended          verbs_coming.c   how it comes to stand
 *   verbs_hello.c      what two endpoints tell each other over the control connection; a parser that trusts nothing
 *   verbs_rails.c      several devices: which of them carry, and leaving one that is lost
 *   verbs_queue.c      queue pairs: making them, their states, what their completions and errors mean
 *   verbs_cq.c         completion queues, which endpoints share
 *   verbs_stream.c     the stream queue pair: a byte pipe out of SENDs into posted buffers, with credit
 *   verbs_direct.c     the direct queue pair: RDMA writes into granted buffers        verbs_reset.c   stopping them
 *   verbs_memory.c     registrations              verbs_watch.c    memory that goes away
 *   verbs_dmabuf.c     those of a device's memory
 *   verbs_reaper.c     a thread that destroys queue pairs
 *   verbs_device.c     device, port, GID          verbs_place.c    where a device is attached
 *   verbs_library.c    libibverbs at run time
 *
 * A connection of two processes is three things. The *control connection* is one of the tcp transport's, used through its table of
 * calls like any user of it: it listens, proves the job's secret before anything else is read, settles who of two callers stays,
 * carries the queue pairs' numbers (HELLO) and tells at once when the peer's process ends. The *stream* carries a channel's frames
 * (transport/framing) just as a socket would. The *direct path* is where the bytes of granted messages are written.
 * A path of its own, because stopping it is the only way to take back a grant: the queue pair is reset, and a new epoch begins.
 *
 * A *rail* is a port of a device that the transport uses; a *link* an endpoint's part of a rail: one stream, one direct path. Link i of a
 * connection joins the i-th rails of both sides. With one link all is as if there were no rails; with several the channel runs with rails
 * (framing/channel_rails.c) over the streams, and messages are written in pieces, shared out over the direct paths.
 */
#ifndef QUOIT_TRANSPORT_VERBS_H
#define QUOIT_TRANSPORT_VERBS_H

#include "base/clock.h"
#include "base/list.h"
#include "base/table.h"
#include "transport/framing/endpoint.h"
#include "transport/process.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_hello.h"
#include "transport/verbs/verbs_memory.h"
#include "transport/verbs/verbs_reaper.h"

#include <assert.h>

enum {
    VERBS_BUDGET = 128 * 1024, /* bytes of the stream that one call of progress moves for an endpoint */
    VERBS_DIRECT_RECVS = 32,   /* ends of messages that may be under way to one side */
    VERBS_DIRECT_SENDS = 64,   /* writes that may be under way from one side */
    VERBS_LEAST_DEPTH = 8,
    VERBS_MOST_DEPTH = 1024,
    VERBS_KINDS = 8, /* of devices whose memory is sent from and received into */
    VERBS_MANY = 64, /* endpoints; those that come later have fewer buffers */
    VERBS_TEXT_CAPACITY = 256,
    VERBS_KIND_CAPACITY = 32
};

static_assert((int)VERBS_MOST_RAILS == (int)FRAME_KEYS, "a grant has a key for each rail");

typedef struct verbs_transport verbs_transport_t;
typedef struct verbs_endpoint verbs_endpoint_t;
typedef struct verbs_link verbs_link_t;

/** A port of a device that the transport uses. */
typedef struct verbs_rail {
    verbs_candidate_t chosen;
    int number; /* in the transport's list */
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *events;
    list_t cqs;            /* verbs_cq_t */
    unsigned most_entries; /* of a completion queue of this device */
    bool told;             /* the log has the warning that it is left */
} verbs_rail_t;

/** A completion queue that some links of a rail share. */
typedef struct verbs_cq {
    list_t link;
    verbs_rail_t *rail;
    struct ibv_cq *cq;
    unsigned room, users; /* links: for which it is large enough; that there are */
    bool armed;           /* the completion channel will tell of the next completion */
} verbs_cq_t;

/** A place in the table of those that have queue pairs: what the number in a completion finds. */
typedef struct verbs_slot {
    verbs_endpoint_t *endpoint; /* NULL: free */
    uint8_t generation;
} verbs_slot_t;

/** A send that is written in pieces, over several links. */
typedef struct verbs_message {
    list_t link; /* in endpoint->messages while pieces are to be made of it, else alone */
    const unsigned char *buffer;
    uint64_t length, cut, done; /* bytes: all, made pieces of, known to be there */
    uint64_t address;
    uint32_t keys[VERBS_MOST_RAILS], token;
    void *send; /* the channel's */
    verbs_region_t *region;
} verbs_message_t;

/** What is written with one end: a send, or a piece of one. */
typedef struct verbs_put {
    list_t link;
    const unsigned char *buffer;
    uint64_t length, posted, address;
    uint32_t key, token;
    void *send;               /* the channel's */
    verbs_message_t *message; /* of which it is a piece; NULL: it is the send itself, whose registration it holds */
    verbs_region_t *region;
    uint64_t sequence;        /* of its end among the epoch's; 0: not posted whole */
    unsigned attempts;        /* epochs that ended in an error while it was the first */
} verbs_put_t;

/** One posted write. */
typedef struct verbs_write {
    verbs_put_t *put; /* NULL: taken back */
    uint32_t length;
    bool last;
} verbs_write_t;

typedef struct verbs_stream {
    struct ibv_qp *qp;
    uint32_t psn, limit, inlined; /* limit: bytes of the largest message; inlined: of the largest that is sent inline */
    unsigned char *memory; /* owned: depth buffers to receive, depth to send */
    size_t bytes;
    struct ibv_mr *mr;
    uint32_t sent, acked;  /* messages, modulo 2^32 */
    uint32_t unsignalled;
    uint32_t credits;      /* buffers the peer has posted for us */
    uint32_t owed;         /* buffers posted anew that the peer does not know of */
    uint32_t arrived_first, arrived_count, position; /* buffers with bytes to read; bytes read of the first */
    struct verbs_arrived {
        uint32_t slot, length;
    } *arrived; /* owned: depth of them */
    bool all_signalled; /* leaving: the end must be known to have arrived */
} verbs_stream_t;

typedef enum verbs_path {
    VERBS_PATH_DOWN,  /* reset here, and the peer was told; its reset is waited for */
    VERBS_PATH_READY, /* both have reset; the peer may write already */
    VERBS_PATH_UP,
    VERBS_PATH_LOST,  /* its rail is left, and the others go on */
    VERBS_PATH_BROKEN /* no use any more: the endpoint ends */
} verbs_path_t;

typedef struct verbs_direct {
    struct ibv_qp *qp;
    uint32_t psn;
    verbs_path_t state;
    uint64_t epoch, doubtful_epoch; /* the latter: of those in doubtful */
    uint64_t ends_sent, ends_done, ends_taken; /* in this epoch: ends posted; known to have arrived; taken from the peer */
    uint64_t ends_before; /* known to have arrived in the epoch before */
    uint32_t flying; /* puts that are posted, whose arrival is not known */
    uint32_t credits, peer_recvs, owed;
    verbs_write_t writes[VERBS_DIRECT_SENDS];
    uint32_t write_first, write_count, unsignalled;
    list_t waiting, posted, doubtful; /* verbs_put_t */
    uint32_t late[2 * VERBS_DIRECT_RECVS]; /* tokens that came; told to the channel at a good moment */
    uint32_t late_count;
    bool stopping;                /* errors mean nothing now */
    enum ibv_wc_status error;     /* of a completion in this epoch */
    unsigned errors;              /* epochs in a row that ended so */
} verbs_direct_t;

struct verbs_link {
    verbs_endpoint_t *endpoint;
    verbs_rail_t *rail;
    int number;      /* the channel's pipe, and the rail's number */
    verbs_cq_t *cq;  /* while it has queue pairs */
    verbs_grave_t *grave; /* owned: to bury its queue pairs in */
    verbs_hello_t peer; /* once it came */
    uint32_t depth;     /* buffers of the stream, in each direction */
    uint32_t weight; /* Mb/s, of the slower end */
    uint64_t turn;   /* bytes it was given over its weight: who has least has the next piece */
    char route[VERBS_TEXT_CAPACITY]; /* "mlx5_0 port 1, RoCE v2 10.0.0.3 -> 10.0.0.7" */
    verbs_stream_t stream;
    verbs_direct_t direct;
    bool retry;            /* a queue was full although it should not have been: try again */
    bool left, told;       /* the connection goes on without it; the log has it */
    quoit_status_t broken; /* one of several: what progress is to leave it with; text in cause */
    char cause[VERBS_TEXT_CAPACITY];
};

struct verbs_endpoint {
    endpoint_t base;
    list_t active; /* progress looks at it; has_work implies it */
    verbs_transport_t *transport;
    verbs_limits_t limits;
    quoit_endpoint_t *control; /* held by one connect; NULL: gone, or not asked for yet */
    uint64_t job;              /* COMING, and the control connection is still to be asked for: */
    uint8_t address[QUOIT_ADDRESS_CAPACITY];
    size_t address_length; /* 0: the peer began */
    uint64_t deadline;
    bool hello_sent, ready_sent, ready_came;
    int hellos;      /* of the peer's links, that came */
    uint32_t number; /* while it has queue pairs: in the wr_id of its work; 0: none */
    int links;
    verbs_link_t *link_of; /* owned: [links] */
    list_t messages, again;     /* several links: verbs_message_t to be cut; verbs_put_t that a link did not deliver */
    list_t finished, free_puts; /* verbs_put_t */
    bool news;                  /* ends came, or puts are finished: the channel is to be told */
    list_t free_messages;       /* verbs_message_t */
    quoit_status_t broken; /* what progress is to end it with; text in broken_text */
    char broken_text[ERROR_TEXT_CAPACITY];
};

typedef struct verbs_options {
    int timeout, retries;            /* local ACK timeout (4.096 us * 2^timeout), transport retries */
    int traffic_class, service_level, pkey_index;
    uint32_t depth, buffer_size;
    verbs_memory_config_t memory;
    bool keep_exported;    /* VERBS_REGISTRATION_CACHE, whatever the kernel can watch */
    bool adaptive_routing; /* the end of a message that is written is sent apart */
    int connect_ms;
} verbs_options_t;

/** A kind of device whose memory is reached by dma-buf, and what of it is registered. */
typedef struct verbs_kind {
    char name[VERBS_KIND_CAPACITY];
    verbs_memory_t memory;
} verbs_kind_t;

struct verbs_transport {
    endpoints_t base;
    char host[VERBS_HOST_CAPACITY];
    const verbs_library_t *library;
    verbs_options_t options;
    verbs_limits_t limits;
    verbs_rail_t rail[VERBS_MOST_RAILS];
    int rails;
    verbs_reaper_t *reaper; /* owned */
    verbs_slot_t *slots;    /* owned */
    unsigned slot_count, numbers; /* the latter: slots in use */
    verbs_memory_t memory;
    verbs_kind_t kind[VERBS_KINDS]; /* those that device_reach was asked for */
    int kinds;
    bool told_unregistered; /* the log has the warning that memory could not be registered */
    quoit_transport_t *control; /* a transport of its own: tcp */
    int epoll, timer;
    uint64_t timer_at;
    unsigned turn; /* calls of progress */
    bool woken;            /* look at everything at the next progress */
    list_t active;
};

/* ---- verbs_open.c */
quoit_status_t verbs_probe(const quoit_transport_environment_t *environment, char *why, size_t capacity);
quoit_status_t verbs_open(const quoit_transport_environment_t *environment, quoit_transport_t **transport);
void verbs_close(quoit_transport_t *base);

/* ---- verbs_queue.c */
quoit_status_t verbs_random(uint32_t *value); /* 24 bits */
/** A part of a completion queue, both queue pairs (states INIT), receives posted. On failure what was made is kept for bury. */
quoit_status_t verbs_queues_create(verbs_link_t *link);
/** End of the device's access to memory, before this returns. The queue pairs themselves are destroyed when the reaper comes to it. */
void verbs_queues_bury(verbs_link_t *link);
/** What the reaper has done: completion queues lose a user. */
void verbs_queues_collect(verbs_transport_t *transport);
quoit_status_t verbs_queue_init(verbs_link_t *link, struct ibv_qp *qp, bool writable);
quoit_status_t verbs_queue_connect(verbs_link_t *link, struct ibv_qp *qp, uint32_t number, uint32_t own_psn, uint32_t peer_psn);
/** State ERR or RESET. */
quoit_status_t verbs_queue_stop(verbs_link_t *link, struct ibv_qp *qp, enum ibv_qp_state state);
/**
 * It neither reads nor writes any more: reset, or, where it cannot be (its device fails), destroyed here and NULL, however long that takes.
 * 0, or why neither could be done. NULL is at rest.
 */
int verbs_queue_rest(verbs_link_t *link, struct ibv_qp **qp);
/** A piece of work has ended. Nothing but the endpoint's own state changes; errors are remembered there. */
void verbs_queue_completed(verbs_endpoint_t *endpoint, const struct ibv_wc *completion);
const char *verbs_completion_meaning(enum ibv_wc_status status);
quoit_status_t verbs_completion_status(enum ibv_wc_status status);

enum { VERBS_STREAM_RECV = 1, VERBS_STREAM_SEND, VERBS_DIRECT_RECV, VERBS_DIRECT_WRITE };
enum { VERBS_INDEX_BITS = 16 };
/* kind 4 bits, epoch 16, endpoint's number 24, link 4, index 16 */
static inline uint64_t verbs_work_id(const verbs_link_t *link, int kind, uint64_t epoch, uint32_t index)
{
    return (uint64_t)kind << 60 | (epoch & 0xffff) << 44 | (uint64_t)link->endpoint->number << 20 | (uint64_t)link->number << VERBS_INDEX_BITS |
           (index & ((1u << VERBS_INDEX_BITS) - 1));
}
static inline int verbs_work_kind(uint64_t id) { return (int)(id >> 60); }
static inline uint64_t verbs_work_epoch(uint64_t id) { return id >> 44 & 0xffff; }
static inline uint32_t verbs_work_number(uint64_t id) { return (uint32_t)(id >> 20) & 0xffffff; }
static inline int verbs_work_link(uint64_t id) { return (int)(id >> VERBS_INDEX_BITS) & 15; }
static inline uint32_t verbs_work_index(uint64_t id) { return (uint32_t)id & ((1u << VERBS_INDEX_BITS) - 1); }

/* ---- verbs_cq.c */
/** A number, until it is given back. */
quoit_status_t verbs_number_take(verbs_endpoint_t *endpoint);
void verbs_number_give(verbs_endpoint_t *endpoint);
/** Room in a completion queue of the link's rail, until it leaves. */
quoit_status_t verbs_cq_join(verbs_link_t *link);
void verbs_cq_leave(verbs_transport_t *transport, verbs_cq_t *cq); /* the queue pairs of one link are gone */
/** Take the completions of all endpoints; number of them. May be called while a channel walks its lists: see verbs_direct.c. */
int verbs_cqs_poll(verbs_transport_t *transport);
bool verbs_cqs_arm(verbs_transport_t *transport); /* false: one could not be */
void verbs_cqs_take_events(verbs_transport_t *transport);

/* ---- verbs_stream.c */
extern const pipe_ops_t verbs_stream_ops; /* pipe: verbs_link_t * */
/** Buffers for one more endpoint, where there are so many others. */
uint32_t verbs_stream_depth(uint32_t wanted, unsigned others);
quoit_status_t verbs_stream_prepare(verbs_link_t *link); /* memory, and its receives */
void verbs_stream_received(verbs_link_t *link, uint32_t slot, uint32_t length, uint32_t immediate);
void verbs_stream_sent(verbs_link_t *link, uint32_t index);
bool verbs_stream_can_write(const verbs_link_t *link);
/** Give credit back when enough is owed; number of messages sent. */
int verbs_stream_return_credit(verbs_link_t *link);

/* ---- verbs_direct.c */
extern const direct_ops_t verbs_direct_ops; /* context: verbs_endpoint_t * */
void verbs_direct_init(verbs_direct_t *direct);
quoit_status_t verbs_direct_prepare(verbs_link_t *link); /* receives for ends of messages */
void verbs_direct_start(verbs_link_t *link);
void verbs_direct_end_came(verbs_link_t *link, uint32_t token);
void verbs_direct_written(verbs_link_t *link, uint32_t index);
/** It is at the peer. */
void verbs_put_written(verbs_endpoint_t *endpoint, verbs_put_t *put);
/** Tell the channel which messages came whole, and which went. To be done before the stream is read: a goodbye there ends what has not come. */
int verbs_direct_tell(verbs_endpoint_t *endpoint);
/** Post what can be, begin anew after an error; number of things done. */
int verbs_direct_progress(verbs_link_t *link);
bool verbs_direct_has_work(const verbs_link_t *link);
void verbs_direct_destroy(verbs_endpoint_t *endpoint); /* the queue pairs are gone already */

/* ---- verbs_reset.c */
/** May the device be reading or writing for this path? */
bool verbs_path_is_live(const verbs_direct_t *direct);
/** The path begins anew: the queue pair is reset when this returns. */
void verbs_path_reset(verbs_link_t *link);
/** The device's access ends, and the path begins anew where the connection goes on. */
void verbs_path_stop(verbs_link_t *link);
/** The rail is left: what it did not deliver goes over the others, once the peer has told what came. */
void verbs_path_leave(verbs_link_t *link);
/** To be said before the goodbye. */
void verbs_path_say_last(verbs_link_t *link);
/** A frame of the peer's for the path of one of the links. */
quoit_status_t verbs_path_arrived(void *context, uint32_t kind, uint64_t epoch, uint64_t number, uint64_t count);

/* ---- verbs_rails.c */
/** Remember this thread's text as the reason why the link is to be left, or, being the only one, the endpoint is to end. */
void verbs_link_break(verbs_link_t *link, quoit_status_t status);
/** Leave those that broke, here or over there; number of things done. Several links only. */
int verbs_rails_look(verbs_endpoint_t *endpoint);
/** Does it carry messages now? */
static inline bool verbs_link_carries(const verbs_link_t *link) { return !link->left && link->broken == QUOIT_OK && link->direct.state == VERBS_PATH_UP; }
/** Is it this link's turn to take a piece of so many bytes? */
bool verbs_rails_is_next(const verbs_link_t *link, uint64_t bytes);
void verbs_rails_took(verbs_link_t *link, uint64_t bytes);
void verbs_rails_describe(verbs_endpoint_t *endpoint);

/* ---- verbs_endpoint.c */
extern const endpoint_ops_t verbs_endpoint_ops;
verbs_endpoint_t *verbs_endpoint_create(verbs_transport_t *transport, quoit_process_id_t peer, const char *name, const verbs_limits_t *limits);
static inline verbs_endpoint_t *verbs_endpoint_find(const verbs_transport_t *transport, quoit_process_id_t peer)
{
    return (verbs_endpoint_t *)endpoint_find(&transport->base, peer);
}
/** Remember this thread's text as the reason why the endpoint is to end; the first counts. */
void verbs_endpoint_break(verbs_endpoint_t *endpoint, quoit_status_t status);
/** Something happened to it: the next progress is to look at it. */
void verbs_endpoint_wake(verbs_endpoint_t *endpoint);
int verbs_endpoint_progress(verbs_endpoint_t *endpoint); /* it is not active, unless it makes itself so again */
bool verbs_endpoint_has_work(const verbs_endpoint_t *endpoint);
bool verbs_endpoint_is_idle(const verbs_endpoint_t *endpoint);
void verbs_endpoint_end(verbs_endpoint_t *endpoint, quoit_status_t status); /* with this thread's error text; OK: goodbye of the peer */
void verbs_endpoint_take_all(verbs_endpoint_t *endpoint); /* whatever the devices have delivered */

/* ---- verbs_coming.c */
int verbs_coming_progress(verbs_endpoint_t *endpoint);
/** Ask for the control connection, unless an endpoint that leaves still uses the old one. */
quoit_status_t verbs_coming_ask(verbs_endpoint_t *endpoint);
/** Events of the control connection. */
void verbs_control_notice(verbs_transport_t *transport, const quoit_event_t *event);
void verbs_control_closed(verbs_transport_t *transport, const quoit_event_t *event);

quoit_status_t verbs_connect(quoit_transport_t *base, const quoit_peer_t *peer, quoit_endpoint_t **result);

#endif
