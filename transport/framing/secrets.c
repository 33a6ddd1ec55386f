/* SPDX-License-Identifier: Apache-2.0 */
/* See secrets.h. */
#include "transport/framing/secrets.h"

#include "base/table.h"
#include "transport/framing/handshake.h"

#include <stdlib.h>
#include <string.h>

typedef struct secret {
    size_t length;
    uint8_t bytes[HANDSHAKE_SECRET_CAPACITY];
} secret_t;

enum { KNOWN_OVER = 64 };

struct secrets {
    table_t *table;            /* {0, job} -> secret_t */
    uint64_t over[KNOWN_OVER]; /* job n that went lies at n mod KNOWN_OVER */
    uint64_t gone;
};

static table_key_t key_of(uint64_t job) { return (table_key_t){0, job}; }

static void secret_free(secret_t *secret)
{
    if (!secret) return;
    explicit_bzero(secret, sizeof *secret);
    free(secret);
}

quoit_status_t secrets_create(secrets_t **secrets)
{
    secrets_t *made = calloc(1, sizeof *made);
    if (!made) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for the secrets of jobs");
    quoit_status_t status = table_create(&made->table);
    if (status != QUOIT_OK) {
        free(made);
        return status;
    }
    *secrets = made;
    return QUOIT_OK;
}

quoit_status_t secrets_put(secrets_t *secrets, const char *transport, uint64_t job, const void *secret, size_t length)
{
    if (length > HANDSHAKE_SECRET_CAPACITY)
        return error_set(QUOIT_ERR_INVALID, "%s: secret of %zu bytes; at most %d are allowed", transport, length, HANDSHAKE_SECRET_CAPACITY);
    secret_t *made = calloc(1, sizeof *made);
    if (!made) return error_set(QUOIT_ERR_NO_MEMORY, "%s: no memory for a job's secret", transport);
    made->length = length;
    if (length > 0) memcpy(made->bytes, secret, length);
    secret_t *old = table_take(secrets->table, key_of(job));
    quoit_status_t status = table_put(secrets->table, key_of(job), made);
    secret_free(status == QUOIT_OK ? old : made);
    return status;
}

bool secrets_find(const secrets_t *secrets, uint64_t job, const void **secret, size_t *length)
{
    const secret_t *found = table_get(secrets->table, key_of(job));
    if (!found) return false;
    *secret = found->bytes;
    *length = found->length;
    return true;
}

void secrets_remove(secrets_t *secrets, uint64_t job)
{
    secret_t *found = table_take(secrets->table, key_of(job));
    if (found) secrets->over[secrets->gone++ % KNOWN_OVER] = job;
    secret_free(found);
}

bool secrets_is_over(const secrets_t *secrets, uint64_t job)
{
    if (table_get(secrets->table, key_of(job))) return false;
    for (uint64_t i = 0; i < secrets->gone && i < KNOWN_OVER; i++)
        if (secrets->over[i] == job) return true;
    return false;
}

void secrets_destroy(secrets_t *secrets)
{
    size_t cursor = 0;
    table_key_t key;
    void *secret;
    if (!secrets) return;
    while (table_next(secrets->table, &cursor, &key, &secret)) secret_free(secret);
    table_destroy(secrets->table);
    free(secrets);
}
