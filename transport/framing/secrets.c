/* SPDX-License-Identifier: Apache-2.0 */
/* See secrets.h. */
#include "transport/framing/secrets.h"

#include "transport/framing/handshake.h"

#include <stdlib.h>
#include <string.h>

typedef struct secret {
    size_t length;
    uint8_t bytes[HANDSHAKE_SECRET_CAPACITY];
} secret_t;

static table_key_t key_of(uint64_t job) { return (table_key_t){0, job}; }

static void secret_free(secret_t *secret)
{
    if (!secret) return;
    explicit_bzero(secret, sizeof *secret);
    free(secret);
}

quoit_status_t secrets_put(table_t *secrets, const char *transport, uint64_t job, const void *secret, size_t length)
{
    if (length > HANDSHAKE_SECRET_CAPACITY)
        return error_set(QUOIT_ERR_INVALID, "%s: secret of %zu bytes; at most %d are allowed", transport, length, HANDSHAKE_SECRET_CAPACITY);
    secret_t *made = calloc(1, sizeof *made);
    if (!made) return error_set(QUOIT_ERR_NO_MEMORY, "%s: no memory for a job's secret", transport);
    made->length = length;
    if (length > 0) memcpy(made->bytes, secret, length);
    secret_t *old = table_take(secrets, key_of(job));
    quoit_status_t status = table_put(secrets, key_of(job), made);
    secret_free(status == QUOIT_OK ? old : made);
    return status;
}

bool secrets_find(const table_t *secrets, uint64_t job, const void **secret, size_t *length)
{
    const secret_t *found = table_get(secrets, key_of(job));
    if (!found) return false;
    *secret = found->bytes;
    *length = found->length;
    return true;
}

void secrets_remove(table_t *secrets, uint64_t job) { secret_free(table_take(secrets, key_of(job))); }

void secrets_destroy(table_t *secrets)
{
    size_t cursor = 0;
    table_key_t key;
    void *secret;
    if (!secrets) return;
    while (table_next(secrets, &cursor, &key, &secret)) secret_free(secret);
    table_destroy(secrets);
}
