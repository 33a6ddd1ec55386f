/* SPDX-License-Identifier: Apache-2.0 */
/** Notices: the small datagrams between engines, and the one parser for them. Little-endian; nothing in them is trusted. */
#ifndef QUOIT_SCHEDULER_NOTICE_H
#define QUOIT_SCHEDULER_NOTICE_H

#include "base/status.h"
#include "scheduler/call.h"

#include <stdbool.h>

enum { NOTICE_HEADER_SIZE = 16, NOTICE_MESSAGE_SIZE = 40, NOTICE_PAYLOAD_CAPACITY = 8192, NOTICE_ABORT_TEXT = 900, NOTICE_SHRINK_SIZE = 28 };
/* Bytes of a message that ride in its envelope to a rank of this host: what is larger shm lends (SHM_LEND_LEAST), and copies it less often. */
enum { NOTICE_PAYLOAD_LOCAL = 3071 };
enum { NOTICE_ABORT_SIZE = 24, NOTICE_ABORT_CAPACITY = NOTICE_ABORT_SIZE + NOTICE_ABORT_TEXT };
enum { NOTICE_CALLS = 8, NOTICE_CALL_TEXT = 120, NOTICE_CALL_SIZE = 32, NOTICE_CALL_CAPACITY = NOTICE_CALL_SIZE + 24 * NOTICE_CALLS + 2 * NOTICE_CALL_TEXT };

typedef enum notice_type { NOTICE_MESSAGE = 1, NOTICE_ABORT = 2, NOTICE_SHRINK = 3, NOTICE_CALL = 4 } notice_type_t;

typedef struct notice_header {
    notice_type_t type;
    int32_t source; /* rank in the communicator */
    uint64_t comm;
} notice_header_t;

/** A message's envelope. */
typedef struct notice_message {
    uint32_t tag;
    bool inside; /* the payload follows */
    uint64_t bytes, number;
} notice_message_t;

quoit_status_t notice_header_decode(const void *data, size_t length, notice_header_t *header);

void notice_message_encode(uint64_t comm, int source, const notice_message_t *message, unsigned char notice[NOTICE_MESSAGE_SIZE]);
quoit_status_t notice_message_decode(const void *data, size_t length, notice_message_t *message, const void **payload);

/** finder: rank that found what the text tells. Returns the notice's length; notice has room for NOTICE_ABORT_CAPACITY. */
size_t notice_abort_encode(uint64_t comm, int source, quoit_status_t status, int finder, const char *text, unsigned char *notice);
/** text: room for NOTICE_ABORT_TEXT + 1. A status that is none becomes ERR_ABORTED. */
quoit_status_t notice_abort_decode(const void *data, size_t length, quoit_status_t *status, int *finder, char *text);

/* What a rank called of late: see inquire.c. */
typedef struct notice_call {
    bool ask, running; /* wants an answer; the call has not ended there */
    int32_t target;    /* rank that it is sent to */
    uint64_t family;   /* of a group: equal for groups of one parent, name and number; 0: none */
    int calls;         /* of `call`, at most NOTICE_CALLS; 0: it has not called anything */
    call_t call[NOTICE_CALLS]; /* the newest first */
    char doing[NOTICE_CALL_TEXT], members[NOTICE_CALL_TEXT];
} notice_call_t;

/** Returns the notice's length, at most NOTICE_CALL_CAPACITY. */
size_t notice_call_encode(uint64_t comm, int source, const notice_call_t *message, unsigned char *notice);
quoit_status_t notice_call_decode(const void *data, size_t length, notice_call_t *message);

/* Agreement of the survivors: see shrink.c. Two bits a rank follow. */
typedef enum shrink_kind { SHRINK_JOIN = 1, SHRINK_LEAD = 2, SHRINK_GO = 3, SHRINK_OFFER = 4, SHRINK_TAKE = 5 } shrink_kind_t;
typedef enum shrink_mark { SHRINK_UNKNOWN, SHRINK_DOUBTFUL, SHRINK_LOST, SHRINK_MEMBER } shrink_mark_t;

typedef struct notice_shrink {
    shrink_kind_t kind;
    int32_t term, size; /* size: ranks of the communicator */
} notice_shrink_t;

size_t notice_shrink_length(int size);
/** Returns the notice's length; all marks are UNKNOWN. */
size_t notice_shrink_encode(uint64_t comm, int source, const notice_shrink_t *message, unsigned char *notice);
void notice_shrink_set_mark(unsigned char *notice, int rank, shrink_mark_t mark);
/** On QUOIT_OK there is a mark for each of `size` ranks. */
quoit_status_t notice_shrink_decode(const void *data, size_t length, notice_shrink_t *message);
shrink_mark_t notice_shrink_mark(const void *data, int rank);

#endif
