/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Channel: the message protocol between two processes over one or more byte pipes (TCP sockets, a ring in shared memory, a ring of
 * one's own for self): keys, eager messages, grants, credit, cancellation, goodbye. Transports that move bytes in order share it.
 *
 * A message of at most the eager limit is one frame; a larger one is announced, and cut into segments that go over all pipes, least
 * loaded first, and land at their final place. Segments may overtake each other and everything else; all other frames use pipe 0 and
 * keep their order, so messages of one key match in order.
 *
 * Nothing here calls back or flushes by itself: send, recv, notify and cancel queue frames, which leave with channel_write (look at
 * channel_wants_write after these calls and after channel_read, which queues grants and credit). Where a pipe is memory, they are written
 * at once if nothing is before them.
 *
 * A transport that can write into the peer's memory gives direct_ops_t: then a large recv is announced with address and key where
 * that is possible, and the sender writes there instead of cutting the message into segments. Everything else stays as it is.
 *
 * One whose peer can read some of its memory gives lend_ops_t: then a large message is copied there, piece by piece, the pipe carries only
 * where each piece lies, and the peer copies it to its final place. The first piece goes along with the announcement.
 *
 * With *rails* any pipe may be lost and the others go on: see channel_config_t, channel_lose, and channel_rails.c.
 *
 * After a mismatch the key is of no more use in that direction until its communicator is cancelled: its messages end in ERR_MISMATCH.
 * An eager send that has ended already stays QUOIT_OK. A cancelled communicator stays cancelled: sends and recvs end in ERR_ABORTED.
 */
#ifndef QUOIT_TRANSPORT_CHANNEL_H
#define QUOIT_TRANSPORT_CHANNEL_H

#include "quoit/quoit_transport.h"
#include "transport/framing/frame.h"

#include <sys/uio.h>

/** A byte pipe: in order, reliable, never blocking. */
typedef struct pipe_ops {
    /** Some of the bytes, at least one; ERR_AGAIN when it is full; another error (with text) when it is broken. */
    quoit_status_t (*write)(void *pipe, const struct iovec *iov, int count, size_t *written);
    /** Some bytes; ERR_AGAIN when there are none; ERR_CLOSED at its end; another error (with text) when it is broken. */
    quoit_status_t (*read)(void *pipe, const struct iovec *iov, int count, size_t *got);
    /**
     * Pipes that are memory, else NULL: the next `length` bytes where they lie, though the peer may still write there; NULL when there are not that many in one
     * piece (but perhaps some, to be read). With skip they are read; false: there are no more.
     */
    const unsigned char *(*peek)(void *pipe, size_t length);
    bool (*skip)(void *pipe, size_t length);
    /** Likewise: room for the next `length` bytes, in one piece, else NULL (there may be some, to be written); with commit they are written. */
    unsigned char *(*place)(void *pipe, size_t length);
    void (*commit)(void *pipe, size_t length);
} pipe_ops_t;

/**
 * Writing into the peer's memory, beside the pipes. `context` is the configuration's. None of these calls waits, and none may use
 * the channel but for channel_path.
 */
typedef struct direct_ops {
    /**
     * May the peer write there? Number of keys that open it; 0: no, its bytes come through the pipes. `window` is what conceal is given.
     * memory: NULL, or what channel_device_recv was given for a buffer that is a device's.
     */
    unsigned (*expose)(void *context, void *buffer, size_t length, void *memory, uint64_t *address, uint32_t keys[FRAME_KEYS], void **window);
    /** The recv has ended. `revoke`: not by its bytes' arrival, so the peer may be writing; when this returns it cannot any more. */
    void (*conceal)(void *context, void *window, bool revoke);
    /** Write; channel_written(send) tells the end, channel_arrived(token) is to be called on the other side. NULL: use the pipes. */
    void *(*begin)(void *context, const void *buffer, size_t length, void *memory, uint64_t address, const uint32_t *keys, unsigned count, uint32_t token,
                   void *send);
    /** The send has ended some other way: when this returns its buffer is not read any more. */
    void (*end)(void *context, void *writing);
    /** The peer called channel_path. An error (with text) breaks the channel. */
    quoit_status_t (*path)(void *context, uint32_t kind, uint64_t epoch, uint64_t number, uint64_t count);
    /** Bytes of the pieces in which a message of this length is written, the last may be smaller: each brings the token once. Both sides say the same. */
    uint64_t (*piece)(void *context, uint64_t length);
} direct_ops_t;

typedef enum loan { LOAN_NONE, LOAN_LATER, LOAN_MADE } loan_t;

/** Memory of this side that the peer can read, beside the pipes. None of these calls waits, and none may use the channel. */
typedef struct lend_ops {
    size_t piece; /* most bytes of a loan; messages up to this size are sent unasked; the same on both sides */
    /**
     * Copy `length` bytes, at most a piece, to where the peer reads them, and say where. NONE: use the pipe. LATER: the peer is about to give
     * back some. `unasked`: its receiver may not be there for long.
     */
    loan_t (*lend)(void *context, const void *data, size_t length, bool unasked, uint64_t *place);
    /** What the peer lent; NULL (with text) for what it cannot have lent. */
    const void *(*borrow)(void *context, uint64_t place, size_t length);
    void (*take)(void *to, const void *from, size_t length, uint64_t whole); /* copy it to its place; `whole`: bytes of the message */
    void (*give_back)(void *context, uint64_t place); /* only what borrow has let through */
    size_t least; /* bytes from which a message is lent though it would fit a frame, whose bytes are copied more often; 0: none is */
} lend_ops_t;

enum { CHANNEL_MAX_PIPES = 16 };

typedef struct channel_config {
    const pipe_ops_t *ops;
    size_t eager_limit, eager_pool, segment_size; /* bytes; the same on both sides (part of the transports' address) */
    const direct_ops_t *direct;                   /* NULL: the pipes carry all */
    void *direct_context;
    const lend_ops_t *lend;                       /* NULL: the pipes carry all. One pipe, no rails */
    void *lend_context;
    bool in_memory; /* writing and reading a pipe cost no system call, and a read that is not filled has emptied it */
    bool rails; /* both sides: a pipe that breaks is given up, what it did not deliver goes over the others; sends end when they have arrived */
} channel_config_t;

typedef enum channel_pipe_state {
    CHANNEL_PIPE_GOOD,
    CHANNEL_PIPE_SUSPENDED, /* given up here, to be closed; whether the peer lives is not known yet */
    CHANNEL_PIPE_LOST       /* the peer has given it up too */
} channel_pipe_state_t;

typedef struct channel channel_t;

/** Without pipes at first: sends and receives queue until channel_open. `name` is copied, and may be renamed by channel_open. */
quoit_status_t channel_create(const channel_config_t *config, const char *name, channel_t **channel);
/** The connection stands: from now on the pipes are used. They stay the caller's and must outlive the channel. */
void channel_open(channel_t *channel, const char *name, void *const *pipes, int count);
void channel_destroy(channel_t *channel); /* NULL is accepted; transfers must have ended (channel_fail ends them) */

/** End every transfer with `status`; all later calls fail with it. The text is this thread's error text, remembered. */
void channel_fail(channel_t *channel, quoit_status_t status);
/** Rails: give up a pipe, with this thread's error text as the cause. Its last one, and one of a channel without rails, is the channel's end. */
void channel_lose(channel_t *channel, int pipe, quoit_status_t status);
/** Is it still of use? Else close it, and know why not. */
channel_pipe_state_t channel_pipe_state(const channel_t *channel, int pipe, const char **cause);
/** Rails: large messages are spread over the pipes in proportion to their weights (rates). */
void channel_weigh(channel_t *channel, int pipe, uint32_t weight);
/** QUOIT_OK, or what it failed with (text set for this thread). After the peer's goodbye: ERR_CLOSED. */
quoit_status_t channel_status(const channel_t *channel);

/** An error is returned for bad arguments only; whatever else is wrong (a failed channel too) is told by transfer->status. */
quoit_status_t channel_send(channel_t *channel, quoit_key_t key, const void *buffer, size_t length, quoit_transfer_t *transfer);
quoit_status_t channel_recv(channel_t *channel, quoit_key_t key, void *buffer, size_t length, quoit_transfer_t *transfer);
/**
 * The same for buffers that no processor may touch; `memory` is for direct_ops_t, and not NULL. A transfer that cannot go directly stops
 * with ERR_AGAIN; channel_device_host goes on with it: see device_host in quoit_transport.h.
 */
quoit_status_t channel_device_send(channel_t *channel, quoit_key_t key, void *memory, const void *buffer, size_t length, quoit_transfer_t *transfer);
quoit_status_t channel_device_recv(channel_t *channel, quoit_key_t key, void *memory, void *buffer, size_t length, quoit_transfer_t *transfer);
quoit_status_t channel_device_host(channel_t *channel, quoit_transfer_t *transfer, void *host);
quoit_status_t channel_notify(channel_t *channel, const void *data, size_t length);
void channel_cancel(channel_t *channel, uint64_t comm);
/** Say goodbye once everything before it is out. channel_idle tells when. */
void channel_close(channel_t *channel);
bool channel_idle(const channel_t *channel);      /* nothing queued, nothing half-sent */
/**
 * The peer's goodbye came on every pipe and all that came before it was taken. From the goodbye on channel_status is ERR_CLOSED and
 * transfers in progress have ended so, but messages that are here already still meet their recv, and notices are still given out.
 */
bool channel_peer_closed(const channel_t *channel);

/** Next NOTICE, oldest first. The data is valid until the next call. */
bool channel_next_notice(channel_t *channel, const void **data, size_t *length);
/** Is channel_next_notice to be called once more before long: for another one, or because the credit of the last one is given back by that? */
bool channel_has_notice(const channel_t *channel);

/** Read from pipe number `pipe` until it is empty (or the peer's goodbye came through it; the pipe's end after that is no failure) or `budget` bytes are in; number of frames or pieces handled. A broken pipe or peer fails the channel. */
int channel_read(channel_t *channel, int pipe, size_t budget);
/** Write what is queued for pipe number `pipe`, likewise. */
int channel_write(channel_t *channel, int pipe, size_t budget);
/** True when channel_write could do something once the pipe has room (for EPOLLOUT). */
bool channel_wants_write(const channel_t *channel, int pipe);
void channel_count(const channel_t *channel, uint64_t *sent, uint64_t *received);

/** Lending: all that channel_write could do waits for the peer to give back a loan. */
bool channel_starves(const channel_t *channel);
/** Bytes taken from loans so far, and pieces that were lent. */
void channel_count_loans(const channel_t *channel, uint64_t *borrowed, uint64_t *pieces);

/** Direct writing: every byte of the send that begin was given is at the peer. It ends, and `end` is not called. */
void channel_written(channel_t *channel, void *send);
/** A piece of the grant with this token was written whole by the peer; its bytes. 0: the grant has ended; one that was never given breaks the channel. */
uint64_t channel_arrived(channel_t *channel, uint32_t token);
/** Bytes that moved past the pipes, for channel_count. */
void channel_count_direct(channel_t *channel, uint64_t sent, uint64_t received);
/** Call `path` on the other side, in order with grants and revocations. */
quoit_status_t channel_path(channel_t *channel, uint32_t kind, uint64_t epoch, uint64_t number, uint64_t count);

#endif
