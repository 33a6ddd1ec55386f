/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Frames: what goes over a byte pipe between two processes once the handshake is done. A fixed header, little-endian, then payload.
 * frame_parse is the only place that reads a header from a peer; it trusts nothing.
 */
#ifndef QUOIT_TRANSPORT_FRAME_H
#define QUOIT_TRANSPORT_FRAME_H

#include "base/status.h"
#include "quoit/quoit_transport.h"

#include <stdbool.h>

enum { FRAME_HEADER_SIZE = 64, FRAME_MAGIC = 0x51, FRAME_VERSION = 1, FRAME_KEYS = 4, FRAME_NOTE_MOST = 60 /* bytes */ };
#define FRAME_LENGTH_LIMIT (UINT64_C(1) << 56) /* bytes of a message; keeps sums of lengths from overflowing */

typedef enum frame_type {
    FRAME_EAGER = 1, /* a whole message, unasked: payload follows; uses credit */
    FRAME_ASK,       /* a send that is large, or has no credit: `total` bytes wait for a grant (a large one may have it already). `direct`: the first `length` of them are lent at `offset` */
    FRAME_GRANT,     /* a recv is announced: `length` bytes are welcome */
    FRAME_DATA,      /* a segment of a granted message: `offset`, `length`, payload, then one byte: 1 good, 0 cancelled on the way */
    FRAME_REFUSE,    /* answer to EAGER or ASK that does not fit: the receiver has `total` bytes and `what`, the sender `offset` bytes */
    FRAME_CREDIT,    /* `length` bytes of unasked messages were consumed */
    FRAME_NOTICE,    /* a datagram: payload follows; uses credit when larger than QUOIT_NOTICE_SMALL */
    FRAME_BYE,       /* nothing follows; the end of the pipe is no failure */
    FRAME_REVOKE,    /* the direct grant `grant` has ended: what is not written yet must not be written */
    FRAME_PATH,      /* for the transport's direct path: `what`, `grant`, `total`, `offset` are its own (channel.h, direct_ops_t) */
    FRAME_RECEIPT,   /* rails: `total` frames came whole through this pipe since the beginning */
    FRAME_LOST,      /* rails: pipe `offset` is given up; `total` frames came whole through it */
    FRAME_LENT,      /* as DATA, but the payload does not follow: it is lent at `key.id` (channel.h, lend_ops_t) */
    FRAME_NOTE,      /* a datagram of at most FRAME_NOTE_MOST bytes, which lie in the header: `length` of them, at `inside` */
    FRAME_TYPE_END
} frame_type_t;

typedef struct frame {
    frame_type_t type;
    uint32_t what;   /* operation's hash */
    quoit_key_t key;
    uint64_t grant;  /* GRANT, DATA, LENT: number of the grant, unique per channel and direction */
    uint64_t total;  /* length of the whole message */
    uint64_t offset; /* DATA, LENT: of this segment in the message; direct GRANT: address of the buffer; direct ASK: place of the loan */
    uint64_t length; /* payload bytes that follow this header (GRANT, CREDIT, ASK, LENT: see above, nothing follows) */
    /* GRANT: keys of which each opens the buffer to writes from afar, at `offset`: one for each rail; 0: it is closed to them. ASK: 1 with a loan, see above */
    uint8_t direct;
    uint32_t remote_key[FRAME_KEYS];
    const uint8_t *inside; /* NOTE: its bytes; of one that was read, in the header that it was read from */
} frame_t;

/** Bytes of payload that follow the header (the byte that ends DATA not counted). */
static inline uint64_t frame_payload(const frame_t *frame)
{
    return frame->type == FRAME_EAGER || frame->type == FRAME_NOTICE || frame->type == FRAME_DATA ? frame->length : 0;
}
const char *frame_type_name(frame_type_t type);
void frame_write(const frame_t *frame, uint8_t header[FRAME_HEADER_SIZE]);
/** ERR_PROTOCOL with a text for anything that is no frame of this version, or larger than the limits. */
quoit_status_t frame_parse(const uint8_t header[FRAME_HEADER_SIZE], uint64_t eager_limit, uint64_t segment_limit, frame_t *frame);

#endif
