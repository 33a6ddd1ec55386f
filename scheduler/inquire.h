/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Inquiry: a rank that has waited for a while tells the ranks it waits for what it called, and asks what they are doing. So a
 * mismatch is found between ranks none of whose messages meet, both calls are known where only a hash was seen, and the text of a
 * timeout says what the others do. See docs/design.md (Failures).
 */
#ifndef QUOIT_SCHEDULER_INQUIRE_H
#define QUOIT_SCHEDULER_INQUIRE_H

#include "quoit/quoit_transport.h"
#include "scheduler/operation.h"

typedef struct inquiry inquiry_t;
typedef struct notice_header notice_header_t;
typedef struct engine engine_t;

/** Ask whom this communicator waits for, if it is time to. Only for the engine's owner, as all of these. */
void inquire_check(quoit_comm_t *comm, uint64_t now);
/** When inquire_check has something to do next. */
uint64_t inquire_wake(const quoit_comm_t *comm);
/** The operation of this sequence number begins here: true when the communicator failed because another rank calls something else. */
bool inquire_begin(quoit_comm_t *comm);
/** A rank told what it does. */
void inquire_receive(quoit_comm_t *comm, int source, const void *data, size_t length);
/** The same for a communicator that does not exist here: perhaps it was made of other members than its namesake here. */
void inquire_stranger(engine_t *engine, const quoit_event_t *event);
/** A message of `rank` had another operation's hash: true while its call is not known yet, and it is worth waiting for. */
bool inquire_dispute(quoit_comm_t *comm, int rank);
/** Is this rank in the running operation? 1 yes, 0 no, -1 it has not told since the operation began. */
int inquire_is_in(const quoit_comm_t *comm, int rank);
/** What is known of it: "it is in allreduce #7 (...) too", "its newest call is ...", "it does not answer"; "" in the first moments. */
void inquire_text(const quoit_comm_t *comm, int rank, char *text, size_t capacity);
void inquire_destroy(inquiry_t *inquiry); /* NULL is accepted */

#endif
