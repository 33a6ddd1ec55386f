/* SPDX-License-Identifier: Apache-2.0 */
/* Job: its peers and their endpoints. Bootstrap is in bootstrap.c. */
#include "scheduler/job.h"

#include "base/settings.h"
#include "scheduler/job_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ endpoints */

static const job_address_t *address_of(const job_record_t *record, const char *transport)
{
    for (int i = 0; i < record->addresses; i++)
        if (strcmp(record->address[i].transport, transport) == 0) return &record->address[i];
    return NULL;
}

quoit_status_t job_connect(job_t *job, int rank, engine_transport_t *transport, int timeout_ms, quoit_endpoint_t **endpoint)
{
    const job_address_t *address = address_of(&job->record[rank], transport->ops->name);
    if (!address) return QUOIT_ERR_NOT_FOUND;
    quoit_peer_t peer = {.process = job->record[rank].process,
                         .job = job->id,
                         .address = address->address,
                         .address_length = address->length,
                         .name = job->peer[rank]->name,
                         .timeout_ms = timeout_ms};
    return transport->ops->connect(transport->transport, &peer, endpoint);
}

quoit_status_t job_endpoint(job_t *job, int rank, quoit_endpoint_t **endpoint)
{
    return job_endpoint_within(job, rank, (int)(setting_int(SETTING_CONNECT_TIMEOUT) / 1000), endpoint);
}

quoit_status_t job_endpoint_within(job_t *job, int rank, int timeout_ms, quoit_endpoint_t **endpoint)
{
    peer_t *peer = job->peer[rank];
    if (peer->message) {
        *endpoint = peer->message;
        return QUOIT_OK;
    }
    engine_t *engine = job->engine;
    for (int i = 0; i < engine->transports; i++) {
        engine_transport_t *transport = &engine->transport[i];
        bool self = transport->ops == &transport_self, same_host = transport->ops->flags & QUOIT_TRANSPORT_SAME_HOST;
        if (!(transport->ops->flags & QUOIT_TRANSPORT_MESSAGE) || self != (rank == job->rank)) continue;
        if (same_host && !self && !peer->map) continue;
        quoit_status_t status = job_connect(job, rank, transport, timeout_ms, &peer->message);
        if (status == QUOIT_ERR_NOT_FOUND) continue; /* the peer does not offer it */
        if (status == QUOIT_OK) *endpoint = peer->message;
        return status;
    }
    char ours[128] = "";
    for (int i = 0; i < engine->transports; i++) {
        size_t length = strlen(ours);
        snprintf(ours + length, sizeof ours - length, "%s%s", length ? ", " : "", engine->transport[i].ops->name);
    }
    return error_set(QUOIT_ERR_NETWORK, "no transport joins this process to %s; here are %s (QUOIT_TRANSPORT)", peer->name, ours);
}

/* ------------------------------------------------------------------ end */

void job_release(job_t *job)
{
    if (!job || --job->users > 0) return;
    for (int i = 0; i < job->engine->transports; i++)
        job->engine->transport[i].ops->distrust(job->engine->transport[i].transport, job->id);
    for (int i = 0; job->peer && i < job->size; i++) engine_peer_release(job->peer[i]);
    memset(job->secret, 0, sizeof job->secret);
    table_destroy(job->groups);
    free(job->peer);
    free(job->record);
    free(job->host);
    free(job);
}
