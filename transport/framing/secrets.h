/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The secrets of the jobs that a transport trusts, for its calls trust and distrust and for the handshake: a table from job to secret.
 * They are wiped when they go.
 */
#ifndef QUOIT_TRANSPORT_FRAMING_SECRETS_H
#define QUOIT_TRANSPORT_FRAMING_SECRETS_H

#include "base/status.h"
#include "base/table.h"

#include <stdbool.h>

/** In place of what the job had before. `transport` names it in errors: ERR_INVALID (longer than HANDSHAKE_SECRET_CAPACITY), ERR_NO_MEMORY. */
quoit_status_t secrets_put(table_t *secrets, const char *transport, uint64_t job, const void *secret, size_t length);
/** False: the job is not trusted. The secret stays the table's. */
bool secrets_find(const table_t *secrets, uint64_t job, const void **secret, size_t *length);
void secrets_remove(table_t *secrets, uint64_t job);
/** The table too; NULL is accepted. */
void secrets_destroy(table_t *secrets);

#endif
