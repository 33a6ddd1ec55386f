/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Inside of a channel, shared by the files channel*.c and nobody else.
 *
 * How messages match. Every send puts exactly one start frame on pipe 0: EAGER with the payload, or ASK. All frames but DATA use
 * pipe 0, so start frames arrive in the order of the sends, and the n-th start of a key belongs to the n-th recv of that key: the
 * receiver sees every mismatch. Data may flow earlier than the start is seen (a recv larger than the eager limit is granted at
 * once), but a recv is done only when both its start and all its bytes are here.
 * The sender pairs large grants with large sends of the key in order, and grants of small ones with the small sends that asked.
 * After a mismatch the key is broken for good in that direction: all its messages end in ERR_MISMATCH, so that no later message can
 * slip into an earlier one's place.
 *
 * DATA names a grant; a grant that has ended (cancelled, mismatched) makes its data drain away.
 */
#ifndef QUOIT_TRANSPORT_CHANNEL_INTERNAL_H
#define QUOIT_TRANSPORT_CHANNEL_INTERNAL_H

#include "base/list.h"
#include "transport/framing/channel.h"

#include <assert.h>

enum {
    CHANNEL_NAME_CAPACITY = 256,
    CHANNEL_READ_CAPACITY = 16384,  /* bytes of an inlet's buffer: headers and small payloads */
    CHANNEL_STAGE_CAPACITY = 32512, /* bytes of one piece of an outlet's queue */
    CHANNEL_MIN_PIECE = 32768,      /* a message is not cut smaller than this to spread it over pipes */
    CHANNEL_BLOCK_CLASSES = 12,     /* payload capacities of blocks: 0, 64, 128 ... 65536 */
    CHANNEL_MAX_ANNOUNCED = 1 << 20, /* starts, grants and notices of the peer that nobody took; more is a fault of the peer */
    CHANNEL_CANCELLED_SETS = 256, CHANNEL_CANCELLED_WAYS = 4,
    CHANNEL_TOKEN_SLOT_BITS = 20, /* a token is the low bits of a grant's slot and generation: 32 bits are what verbs carry */
};

/** A send that waits for its grant or is being cut into segments. Lies in transfer->opaque. */
typedef struct send_node {
    list_t link; /* in an entry's large_sends or small_sends, in channel->active or ->writing, or alone once every byte is in some outlet */
    quoit_key_t key;
    const unsigned char *buffer;
    uint64_t length, assigned, written; /* bytes: all, given to outlets, gone */
    uint64_t grant;
    void *writing; /* the transport writes it directly; NULL: it does not */
    void *memory;  /* the buffer is a device's: what direct_ops_t is to be told; NULL: the host's */
} send_node_t;

/** A recv. Lies in transfer->opaque. */
typedef struct recv_node {
    list_t link; /* in an entry's posted (start not seen), else in channel->receiving */
    quoit_key_t key;
    unsigned char *buffer;
    uint64_t length, claimed, received; /* bytes: all, promised by DATA headers, here */
    uint64_t grant;                     /* 0: not announced */
    void *window;                       /* the peer may write into the buffer; NULL: it may not */
    bool started;                       /* its start frame came */
    bool broken;                        /* a segment was cut off by the sender: it never ends by itself */
    void *memory;                       /* as a send's */
    unsigned char *bounce;              /* owned: device memory whose bytes come through the pipes: they wait here for device_host */
} recv_node_t;

static_assert(sizeof(send_node_t) <= sizeof(((quoit_transfer_t *)0)->opaque), "a send fits into the transfer");
static_assert(sizeof(recv_node_t) <= sizeof(((quoit_transfer_t *)0)->opaque), "a recv fits into the transfer");

static inline quoit_transfer_t *send_transfer(send_node_t *send) { return container_of((void *)send, quoit_transfer_t, opaque); }
static inline quoit_transfer_t *recv_transfer(recv_node_t *recv) { return container_of((void *)recv, quoit_transfer_t, opaque); }

/** Something of the peer's that waits for its taker: an EAGER or ASK without recv, a grant without send, a notice. */
typedef struct block {
    list_t link;
    frame_t frame;
    recv_node_t *waiting; /* EAGER: matched before its payload was complete */
    bool complete;        /* the payload is here */
    bool discard;         /* to be freed when the payload is here */
    uint8_t class;
    unsigned char payload[];
} block_t;

/** What is pending for one key; exists while anything is, or when the key is broken. */
typedef struct key_entry {
    struct key_entry *next; /* in its bucket, or among the free */
    quoit_key_t key;
    list_t posted, unexpected;       /* recv_node_t; block_t (EAGER, ASK) */
    list_t large_sends, small_sends; /* send_node_t without grant */
    list_t grants;                   /* block_t: for large sends to come */
    char *broken_send, *broken_recv; /* owned; why messages of this key fail in that direction; NULL: they do not */
} key_entry_t;

/** Grant numbers are slot | generation << 32: looked up without searching, and a stale one is recognised. */
typedef struct grant_slot {
    recv_node_t *recv; /* NULL: free */
    uint32_t generation;
    uint32_t next; /* free list */
} grant_slot_t;

/** Bytes staged for a pipe: copies, so no user memory is referred to. */
typedef struct stage {
    list_t link;
    size_t start, end;
    unsigned char bytes[CHANNEL_STAGE_CAPACITY];
} stage_t;

/** Sending side of one pipe. */
typedef struct outlet {
    list_t stages;
    /* The DATA frame under way. position runs over header, payload and the byte that ends it. */
    bool busy;
    send_node_t *send;            /* NULL: cancelled, zeros follow */
    const unsigned char *payload; /* NULL likewise */
    uint64_t length, position;
    uint8_t header[FRAME_HEADER_SIZE];
    uint8_t trailer;
    bool bye; /* our goodbye is staged */
} outlet_t;

typedef enum inlet_phase { INLET_HEADER, INLET_PAYLOAD, INLET_TRAILER } inlet_phase_t;

/** Receiving side of one pipe. */
typedef struct inlet {
    unsigned char *buffer; /* owned, CHANNEL_READ_CAPACITY bytes */
    size_t start, end;
    inlet_phase_t phase;
    frame_t frame;
    uint64_t payload, done; /* bytes of the frame's payload: all, here */
    recv_node_t *recv;      /* where the payload goes: a recv, */
    block_t *block;         /* or a block; neither: nowhere */
    bool bye;               /* the peer's goodbye came through this pipe */
} inlet_t;

typedef struct channel_rails channel_rails_t;

struct channel {
    channel_config_t config;
    channel_rails_t *rails; /* owned; NULL: no pipe may be lost */
    char name[CHANNEL_NAME_CAPACITY];
    quoit_status_t status;
    char *text; /* owned; why status is not OK */
    bool closing, goodbye;
    bool starving; /* see channel_starves */
    bool failing; /* a frame was lost for lack of memory: the next read or write breaks the channel */
    int count; /* pipes; 0 before channel_open */
    void *pipes[CHANNEL_MAX_PIPES];
    outlet_t outlets[CHANNEL_MAX_PIPES];
    inlet_t inlets[CHANNEL_MAX_PIPES];
    uint64_t sent, received;
    uint64_t unasked; /* bytes: messages up to this size are not granted before they are announced */
    uint64_t borrowed, pieces;

    list_t active;    /* send_node_t with a grant and bytes that no outlet has yet */
    list_t writing;   /* send_node_t that the transport writes directly; with rails, those that wait for receipts only */
    list_t receiving; /* recv_node_t whose start was seen */
    list_t stopped_sends, stopped_recvs; /* of device memory, that wait for channel_device_host */
    list_t notices;   /* block_t */
    block_t *shown;   /* the notice that was given out last */

    uint64_t pool;     /* bytes of credit there are in each direction */
    uint64_t credit;   /* of it, what is left to this side */
    uint64_t held;     /* bytes of the peer's credit that are here and not given back */
    uint64_t consumed; /* of these, what may be given back */

    key_entry_t **buckets; /* owned */
    size_t bucket_count, entry_count;
    key_entry_t *free_entries;
    grant_slot_t *slots; /* owned */
    uint32_t slot_count, free_slot; /* free_slot: UINT32_MAX when there is none */
    list_t free_blocks[CHANNEL_BLOCK_CLASSES], free_stages;
    size_t free_stage_count;
    size_t announced; /* blocks in use */
    size_t broken;    /* keys that a mismatch broke */
    size_t unexpected; /* of these: EAGER and ASK that wait for a recv */
    uint64_t cancelled[CHANNEL_CANCELLED_SETS][CHANNEL_CANCELLED_WAYS];
    uint8_t cancelled_next[CHANNEL_CANCELLED_SETS];
    bool any_cancelled, zero_cancelled; /* zero_cancelled: communicator 0, which is also the mark of an empty place */
};

/* channel.c */
quoit_status_t channel_break(channel_t *channel, quoit_status_t status); /* fails the channel with this thread's text in its name */
bool channel_is_cancelled(const channel_t *channel, uint64_t comm);
void channel_goodbye(channel_t *channel); /* the peer's goodbye is complete */

/* channel_memory.c */
block_t *channel_block_take(channel_t *channel, size_t payload); /* NULL: no memory or too many, text set */
void channel_block_give(channel_t *channel, block_t *block);
key_entry_t *channel_entry_find(channel_t *channel, quoit_key_t key);
key_entry_t *channel_entry_make(channel_t *channel, quoit_key_t key); /* found or new; NULL: no memory, text set */
void channel_entry_release(channel_t *channel, key_entry_t *entry);   /* when nothing is pending for it; NULL is accepted */
quoit_status_t channel_grant_take(channel_t *channel, recv_node_t *recv);
void channel_grant_release(channel_t *channel, recv_node_t *recv);
/** ERR_PROTOCOL for a grant that was never given; *recv is NULL for one that has ended. */
quoit_status_t channel_grant_find(channel_t *channel, uint64_t grant, recv_node_t **recv);
/** False: the grant's slot is beyond what a token can say. */
bool channel_grant_token(uint64_t grant, uint32_t *token);
/** As channel_grant_find. */
quoit_status_t channel_token_find(channel_t *channel, uint32_t token, recv_node_t **recv);
void channel_memory_free(channel_t *channel);

/* channel_match.c */
void channel_send_end(channel_t *channel, send_node_t *send, quoit_status_t status);
void channel_recv_end(channel_t *channel, recv_node_t *recv, quoit_status_t status);
void channel_recv_check(channel_t *channel, recv_node_t *recv); /* ends it when all is here */
/** A start frame came. EAGER: *recv or *block says where the payload goes; neither: nowhere. */
quoit_status_t channel_start_arrived(channel_t *channel, const frame_t *frame, recv_node_t **recv, block_t **block);
quoit_status_t channel_eager_complete(channel_t *channel, recv_node_t *recv, block_t *block, const frame_t *frame);
/** Where the processor may write the message; for device memory only after channel_recv_prepare. */
static inline unsigned char *channel_recv_place(const recv_node_t *recv) { return recv->memory ? recv->bounce : recv->buffer; }
/** Bytes are about to come to the processor: a device's buffer gets memory of ours. */
quoit_status_t channel_recv_prepare(channel_t *channel, recv_node_t *recv);
quoit_status_t channel_grant_arrived(channel_t *channel, const frame_t *frame);
quoit_status_t channel_refuse_arrived(channel_t *channel, const frame_t *frame);
void channel_block_drop(channel_t *channel, block_t *block);
/** The peer's `cost` bytes of credit were used up here; given back in batches. */
void channel_credit_consume(channel_t *channel, uint64_t cost);
static inline uint64_t channel_cost(uint64_t length) { return FRAME_HEADER_SIZE + length; }

/* channel_direct.c */
/** False: the grant does not allow it, or the transport cannot. */
bool channel_write_directly(channel_t *channel, send_node_t *send, const frame_t *grant);
quoit_status_t channel_revoke_arrived(channel_t *channel, const frame_t *frame);
quoit_status_t channel_path_arrived(channel_t *channel, const frame_t *frame);

/* channel_lend.c */
/** Lend the beginning of a message that has not been asked for yet, if that can be, and say so in its ASK; number of bytes. */
uint64_t channel_lend_first(channel_t *channel, const send_node_t *send, frame_t *ask);
/** Lend the next piece of the oldest active send. *lent: its bytes when that was MADE, else 0; NONE also when there is no such send. */
loan_t channel_lend_next(channel_t *channel, size_t *lent);
/** A whole piece came by FRAME_LENT. */
quoit_status_t channel_lent_arrived(channel_t *channel, const frame_t *frame);
/** Copy what came with an ASK to the recv that it met. */
quoit_status_t channel_loan_take(channel_t *channel, recv_node_t *recv, const frame_t *ask);
/** An ASK that nobody will take: its loan goes back, if it has one. */
void channel_loan_drop(channel_t *channel, const frame_t *ask);
/** Is it a loan (of an ASK) that cannot be? ERR_PROTOCOL. */
quoit_status_t channel_loan_check(channel_t *channel, const frame_t *ask);
/** The lender leaves: a message that is here whole becomes a copy of ours. False: no memory. */
bool channel_loan_keep(channel_t *channel, block_t *block);

/* channel_receive.c */
/** Where a piece of a granted message belongs; *recv NULL: nowhere, its recv has ended. */
quoit_status_t channel_piece_claim(channel_t *channel, const frame_t *frame, recv_node_t **recv);

/* channel_send.c */
/** Append a frame to a pipe's queue, all or nothing; `data` holds the payload in `length` bytes, DATA gets its last byte. */
quoit_status_t channel_stage(channel_t *channel, int pipe, const frame_t *frame, const void *data, size_t length);
quoit_status_t channel_send_activate(channel_t *channel, send_node_t *send, const frame_t *grant);
quoit_status_t channel_send_go(channel_t *channel, send_node_t *send); /* through the pipes; it is in no list */
void channel_outlet_forget(channel_t *channel, const send_node_t *send); /* no outlet touches its memory any more */
void channel_outlet_clear(channel_t *channel, int pipe);                 /* forget what is queued; sends have ended */

#endif
