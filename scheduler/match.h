/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Matching of sends and recvs by (source, tag), one matcher a communicator over all transports. A send announces itself with an
 * envelope (a notice); small payloads ride in it, larger ones follow as a keyed message once the recv is posted.
 */
#ifndef QUOIT_SCHEDULER_MATCH_H
#define QUOIT_SCHEDULER_MATCH_H

#include "scheduler/operation.h"

typedef struct matcher {
    list_t posted;     /* recvs without a match, oldest first */
    list_t unexpected; /* envelopes without a match, oldest first */
    list_t spare;      /* envelopes that were, for the next ones */
    int spares;
    uint64_t *next;    /* [size] number of the next message to each rank; made at the first send */
} matcher_t;

void matcher_init(matcher_t *matcher);
void matcher_clear(matcher_t *matcher); /* frees envelopes; operations must have ended */
/**
 * A blocking send of host memory that goes out whole in its envelope, before the call returns: it is over then, and never was an operation. False, and nothing
 * was sent: it is to be an operation, because it is too large, or something is in its way.
 */
bool match_send_at_once(quoit_comm_t *comm, int peer, uint32_t tag, const void *buffer, size_t count, quoit_dtype_t dtype);
/** Start or go on with a send or recv. True when something moved. */
bool match_advance(quoit_comm_t *comm, operation_t *operation);
/** An envelope came from `source` (communicator rank). */
void match_envelope(quoit_comm_t *comm, int source, const void *data, size_t length);
/** The number of the next message to this rank; ERR_NO_MEMORY. */
quoit_status_t match_take_number(quoit_comm_t *comm, int rank, uint64_t *number);
/** Under this key a payload that does not ride in its envelope is sent and received. */
quoit_key_t match_payload_key(const quoit_comm_t *comm, uint64_t number);
/** The operation's transfer ended in an error: the communicator fails with it, and the text names the peer. */
void match_transfer_failed(quoit_comm_t *comm, const operation_t *operation);
/** It ends before its time: take it out of the lists, and give back what it held of a device's. */
void match_forget(operation_t *operation);

#endif
