/* SPDX-License-Identifier: Apache-2.0 */
/* See secrets.h. */
#include "transport/framing/secrets.h"

#include "base/table.h"

#include <stdlib.h>
#include <string.h>

enum { KNOWN_OVER = 64 };

struct secrets {
    table_t *table;            /* {0, job} -> job_secret_t */
    uint64_t over[KNOWN_OVER]; /* job n that went lies at n mod KNOWN_OVER */
    uint64_t gone;
};

static table_key_t key_of(uint64_t job) { return (table_key_t){0, job}; }

void job_secret_wipe(job_secret_t *secret) { explicit_bzero(secret, sizeof *secret); }

static void secret_free(job_secret_t *secret)
{
    if (!secret) return;
    job_secret_wipe(secret);
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
    job_secret_t *made = calloc(1, sizeof *made);
    if (!made) return error_set(QUOIT_ERR_NO_MEMORY, "%s: no memory for a job's secret", transport);
    made->job = job;
    made->length = length;
    if (length > 0) memcpy(made->bytes, secret, length);
    job_secret_t *old = table_take(secrets->table, key_of(job));
    quoit_status_t status = table_put(secrets->table, key_of(job), made);
    secret_free(status == QUOIT_OK ? old : made);
    return status;
}

bool secrets_has(const secrets_t *secrets, uint64_t job) { return table_get(secrets->table, key_of(job)) != NULL; }

void secrets_remove(secrets_t *secrets, uint64_t job)
{
    job_secret_t *found = table_take(secrets->table, key_of(job));
    if (found) secrets->over[secrets->gone++ % KNOWN_OVER] = job;
    secret_free(found);
}

/* Was the job, which is not known now, removed not long ago? */
static bool is_over(const secrets_t *secrets, uint64_t job)
{
    for (uint64_t i = 0; i < secrets->gone && i < KNOWN_OVER; i++)
        if (secrets->over[i] == job) return true;
    return false;
}

bool secrets_copy(const secrets_t *secrets, uint64_t job, job_secret_t *copy)
{
    const job_secret_t *found = table_get(secrets->table, key_of(job));
    if (!found) return false;
    *copy = *found;
    return true;
}

quoit_status_t secrets_answer(const secrets_t *secrets, handshake_t *handshake, bool peer_is_here, const job_secret_t *coming)
{
    const job_secret_t *found = table_get(secrets->table, key_of(handshake->job));
    if (found) return handshake_secret(handshake, found->bytes, found->length);
    if (coming && coming->length > 0 && coming->job == handshake->job) return handshake_secret(handshake, coming->bytes, coming->length);
    if (peer_is_here || !is_over(secrets, handshake->job)) return QUOIT_ERR_AGAIN;
    handshake_refuse(handshake, HANDSHAKE_REASON_OVER);
    return QUOIT_OK;
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
