/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The secrets of the jobs that a transport trusts, for its calls trust and distrust and for the handshake: a table from job to secret.
 * They are wiped when they go. The newest jobs that went are known: who still calls for one need not be kept waiting as for one to come.
 */
#ifndef QUOIT_TRANSPORT_FRAMING_SECRETS_H
#define QUOIT_TRANSPORT_FRAMING_SECRETS_H

#include "transport/framing/handshake.h"

typedef struct secrets secrets_t;

/**
 * A job's secret that one connection keeps while it is on its way: what was sent before the last disconnect must still arrive when the job is
 * not trusted any more, as the word of a communicator's end. All zero: none.
 */
typedef struct job_secret {
    uint64_t job;
    size_t length;
    uint8_t bytes[HANDSHAKE_SECRET_CAPACITY];
} job_secret_t;

quoit_status_t secrets_create(secrets_t **secrets);
/** In place of what the job had before. `transport` names it in errors: ERR_INVALID (longer than HANDSHAKE_SECRET_CAPACITY), ERR_NO_MEMORY. */
quoit_status_t secrets_put(secrets_t *secrets, const char *transport, uint64_t job, const void *secret, size_t length);
bool secrets_has(const secrets_t *secrets, uint64_t job);
/** False: the job is not trusted, and *copy is as before. */
bool secrets_copy(const secrets_t *secrets, uint64_t job, job_secret_t *copy);
void job_secret_wipe(job_secret_t *secret);
void secrets_remove(secrets_t *secrets, uint64_t job);
/**
 * A client has named its job (HANDSHAKE_WANTS_SECRET): give the secret if the job is known, or refuse if it was (REASON_OVER).
 *
 * @param peer_is_here  something for that peer is here, and it is not refused.
 * @param coming        the secret of a connection to it that is on its way; NULL: none is. Of two that call each other the peer's call may be
 *                      the one that stays, so it counts as known.
 * @return OK in both cases; ERR_AGAIN while the job is not known; else handshake_secret's error.
 */
quoit_status_t secrets_answer(const secrets_t *secrets, handshake_t *handshake, bool peer_is_here, const job_secret_t *coming);
/** NULL is accepted. */
void secrets_destroy(secrets_t *secrets);

#endif
