/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Rails: a channel over pipes of which some may be lost. Shared by channel*.c and nobody else; channel_rails.c says how it works.
 * A channel without rails has no channel_rails_t, and tests that pointer once where the two part.
 */
#ifndef QUOIT_TRANSPORT_CHANNEL_RAILS_H
#define QUOIT_TRANSPORT_CHANNEL_RAILS_H

#include "transport/framing/channel_internal.h"

enum { RAIL_CAUSE_CAPACITY = 256, RAIL_CLASSES = 11, RAIL_CLASS_LEAST = 128 };

/** A frame that is kept until the peer has it: a copy, or a segment of a send, whose memory stays the send's. */
typedef struct rail_frame {
    list_t link;
    frame_type_t type;
    bool segment;
    uint8_t class;
    unsigned char trailer;
    send_node_t *send;            /* segment: whose; NULL: cancelled on the way */
    const unsigned char *payload; /* segment: in the send's buffer */
    uint64_t length;              /* segment: bytes of it */
    size_t size;                  /* bytes that follow: the header, and for a copy all of it */
    unsigned char bytes[];
} rail_frame_t;

typedef struct rail_pipe {
    list_t queue, unacked; /* rail_frame_t: to be written, the first perhaps in part; written, arrival unknown */
    uint64_t position;     /* bytes of the queue's first that are out */
    uint64_t sent, acked;  /* frames: written whole; known to have arrived */
    uint64_t received, told; /* frames: that came whole; that the peer was told of */
    uint64_t outstanding;  /* bytes of segments in queue and unacked */
    uint32_t weight;
    bool lost, confirmed;  /* given up here; the peer has told what it got */
    bool bye;              /* our goodbye is queued */
    char cause[RAIL_CAUSE_CAPACITY];
} rail_pipe_t;

struct channel_rails {
    rail_pipe_t pipe[CHANNEL_MAX_PIPES];
    int living;
    int control; /* pipe of all frames but segments; -1: `moving` was it, and what of it arrived is not known yet */
    int moving;
    int resume;  /* lost pipe in which a message was cut: its frame comes once more; -1: none */
    size_t open; /* frames that the peer must get: queued, unacknowledged, waiting */
    list_t waiting; /* rail_frame_t, not segments, while there is no control pipe */
    list_t resend;  /* segments of lost pipes */
    list_t free[RAIL_CLASSES];
};

quoit_status_t channel_rails_create(channel_t *channel);
void channel_rails_open(channel_t *channel);
/** Forget what is queued; sends have ended. */
void channel_rails_clear(channel_t *channel);
void channel_rails_free(channel_t *channel);
quoit_status_t channel_rails_stage(channel_t *channel, const frame_t *frame, const void *data, size_t length);
/** The send has ended: no frame touches its memory any more. */
void channel_rails_forget(channel_t *channel, const send_node_t *send);
bool channel_rails_wants_write(const channel_t *channel, int pipe);
int channel_rails_write(channel_t *channel, int pipe, size_t budget);
bool channel_rails_idle(const channel_t *channel);
/** A frame came whole through this pipe. */
void channel_rails_taken(channel_t *channel, int pipe, frame_type_t type);
/** After reading: tell the peer what came. */
void channel_rails_acknowledge(channel_t *channel, int pipe);
/** A frame whose beginning was lost with another pipe: its payload goes where that one's went. False: this is a fresh one. */
bool channel_rails_resume(channel_t *channel, inlet_t *inlet, quoit_status_t *status);
quoit_status_t channel_rails_receipt_arrived(channel_t *channel, int pipe, const frame_t *frame);
quoit_status_t channel_rails_lost_arrived(channel_t *channel, int pipe, const frame_t *frame);

#endif
