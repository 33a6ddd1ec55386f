/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The secrets of the jobs that a transport trusts, for its calls trust and distrust and for the handshake: a table from job to secret.
 * They are wiped when they go. The newest jobs that went are known: who still calls for one need not be kept waiting as for one to come.
 */
#ifndef QUOIT_TRANSPORT_FRAMING_SECRETS_H
#define QUOIT_TRANSPORT_FRAMING_SECRETS_H

#include "base/status.h"

#include <stdbool.h>

typedef struct secrets secrets_t;

quoit_status_t secrets_create(secrets_t **secrets);
/** In place of what the job had before. `transport` names it in errors: ERR_INVALID (longer than HANDSHAKE_SECRET_CAPACITY), ERR_NO_MEMORY. */
quoit_status_t secrets_put(secrets_t *secrets, const char *transport, uint64_t job, const void *secret, size_t length);
/** False: the job is not trusted. The secret stays the table's. */
bool secrets_find(const secrets_t *secrets, uint64_t job, const void **secret, size_t *length);
void secrets_remove(secrets_t *secrets, uint64_t job);
/** Was it removed, not long ago? */
bool secrets_is_over(const secrets_t *secrets, uint64_t job);
/** NULL is accepted. */
void secrets_destroy(secrets_t *secrets);

#endif
