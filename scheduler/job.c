/* SPDX-License-Identifier: Apache-2.0 */
/* Job: its peers and their endpoints. Bootstrap is in bootstrap.c. */
#include "scheduler/job.h"

#include "base/settings.h"
#include "scheduler/job_internal.h"
#include "scheduler/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ endpoints */

enum { MANY_TRANSPORTS = 128 };

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

/* Joins only processes that share a host; known of transports that are loaded here, and of no other. */
static bool is_of_one_host(const char *name)
{
    const quoit_transport_ops_t *ops = transport_registry_find(name);
    return ops && ops->flags & QUOIT_TRANSPORT_SAME_HOST;
}

const job_ban_t *job_ban(const job_t *job, int a, int b, const char *transport)
{
    for (int i = 0; i < job->bans; i++) {
        const job_ban_t *ban = &job->ban[i];
        int one = job->host[ban->one], other = job->host[ban->other];
        bool between = (one == job->host[a] && other == job->host[b]) || (one == job->host[b] && other == job->host[a]);
        if (between && (!transport || strcmp(ban->transport, transport) == 0)) return ban;
    }
    return NULL;
}

const job_address_t *job_transport_after(const job_t *job, int a, int b, bool mates, const job_address_t *address)
{
    const job_record_t *lower = &job->record[a < b ? a : b], *higher = &job->record[a < b ? b : a];
    for (int i = address ? (int)(address - lower->address) + 1 : 0; i < lower->addresses; i++) {
        const char *name = lower->address[i].transport;
        if (strcmp(name, transport_self.name) == 0 || (!mates && is_of_one_host(name))) continue;
        if (address_of(higher, name) && !job_ban(job, a, b, name)) return &lower->address[i];
    }
    return NULL;
}

const job_address_t *job_transport(const job_t *job, int a, int b, bool mates) { return job_transport_after(job, a, b, mates, NULL); }

static const job_lack_t *lack_of(const job_record_t *record, const char *transport)
{
    for (int i = 0; i < record->lacks; i++)
        if (strcmp(record->lack[i].transport, transport) == 0) return &record->lack[i];
    return NULL;
}

/* The first that `one` has or wanted, and `other` wanted and has not. */
static const job_lack_t *lack_beside(const job_record_t *one, const job_record_t *other, const char *chosen)
{
    for (int i = 0; i < one->addresses && strcmp(one->address[i].transport, chosen) != 0; i++) {
        const job_lack_t *lack = lack_of(other, one->address[i].transport);
        if (lack) return lack;
    }
    return NULL;
}

const char *job_explain_transport(const job_t *job, int rank, char *text, size_t capacity)
{
    const job_record_t *own = &job->record[job->rank], *other = &job->record[rank];
    bool mates = job->peer[rank]->map;
    const job_address_t *address = rank == job->rank ? NULL : job_transport(job, job->rank, rank, mates);
    const char *name = rank == job->rank ? transport_self.name : address ? address->transport : NULL;
    const job_ban_t *ban = job_ban(job, job->rank, rank, NULL);
    const job_lack_t *theirs = name && rank != job->rank ? lack_beside(own, other, name) : NULL;
    const job_lack_t *ours = name && rank != job->rank && !theirs ? lack_beside(other, own, name) : NULL;
    const job_lack_t *lack = theirs ? theirs : ours;
    snprintf(text, capacity, "%s", name ? name : "nothing in common");
    size_t used = strlen(text);
    if (ban && used < capacity)
        snprintf(text + used, capacity - used, " (%s does not work between the two: %s)", ban->transport, ban->why);
    else if (lack && used < capacity)
        snprintf(text + used, capacity - used, " (rank %d has no %s: %s)", theirs ? rank : job->rank, lack->transport, lack->why);
    return text;
}

/* "shm, tcp; not verbs: there is no RDMA device" */
static void list_transports(const job_record_t *record, char *text, size_t capacity)
{
    snprintf(text, capacity, "nothing");
    size_t used = 0;
    for (int i = 0; i < record->addresses && used < capacity; i++) {
        if (strcmp(record->address[i].transport, transport_self.name) == 0) continue;
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", used ? ", " : "", record->address[i].transport);
    }
    used = strlen(text);
    for (int i = 0; i < record->lacks && used < capacity; i++)
        used += (size_t)snprintf(text + used, capacity - used, "; not %s: %s", record->lack[i].transport, record->lack[i].why);
}

/* A transport that both have, and that cannot help them; NULL: none. */
static const char *shared_memory_only(const job_record_t *a, const job_record_t *b)
{
    for (int i = 0; i < a->addresses; i++) {
        const char *name = a->address[i].transport;
        if (strcmp(name, transport_self.name) != 0 && is_of_one_host(name) && address_of(b, name)) return name;
    }
    return NULL;
}

static quoit_status_t cannot_join(const job_t *job, int one, int other)
{
    const job_record_t *a = &job->record[one], *b = &job->record[other];
    const char *vain = shared_memory_only(a, b);
    char first[400], second[400];
    list_transports(a, first, sizeof first);
    list_transports(b, second, sizeof second);
    return error_set(QUOIT_ERR_NETWORK,
                     "no transport joins rank %d (%s, pid %d; it has %s) and rank %d (%s, pid %d; it has %s); QUOIT_TRANSPORT must name one that both hosts can use%s%s%s",
                     a->rank, a->host, a->pid, first, b->rank, b->host, b->pid, second, vain ? "; " : "", vain ? vain : "",
                     vain ? " is for ranks that share memory, and these do not" : "");
}

quoit_status_t job_endpoint(job_t *job, int rank, quoit_endpoint_t **endpoint)
{
    int timeout_ms = job->peer[rank]->message ? 0 : (int)(setting_int(SETTING_CONNECT_TIMEOUT) / 1000); /* no setting is read for each message */
    return job_endpoint_within(job, rank, timeout_ms, endpoint);
}

quoit_status_t job_endpoint_within(job_t *job, int rank, int timeout_ms, quoit_endpoint_t **endpoint)
{
    peer_t *peer = job->peer[rank];
    if (peer->message) {
        *endpoint = peer->message;
        return QUOIT_OK;
    }
    const job_address_t *address = rank == job->rank ? NULL : job_transport(job, job->rank, rank, peer->map);
    const char *name = rank == job->rank ? transport_self.name : address ? address->transport : NULL;
    engine_transport_t *transport = name ? engine_find_transport(job->engine, name) : NULL;
    quoit_status_t status = transport ? job_connect(job, rank, transport, timeout_ms, &peer->message) : QUOIT_ERR_NOT_FOUND;
    if (status == QUOIT_ERR_NOT_FOUND) return cannot_join(job, job->rank, rank);
    if (status == QUOIT_OK) *endpoint = peer->message;
    return status;
}

/* ------------------------------------------------------------------ do all ranks have something in common? */

/* Bit i: the record has the i-th of `name`, to which its own are added. */
static void name_transports(const job_record_t *record, const char *name[MANY_TRANSPORTS], int *names, uint64_t has[2])
{
    has[0] = has[1] = 0;
    for (int i = 0; i < record->addresses; i++) {
        int at = 0;
        if (strcmp(record->address[i].transport, transport_self.name) == 0 || is_of_one_host(record->address[i].transport)) continue;
        while (at < *names && strcmp(name[at], record->address[i].transport) != 0) at++;
        if (at == MANY_TRANSPORTS) continue;
        if (at == *names) name[(*names)++] = record->address[i].transport;
        has[at / 64] |= (uint64_t)1 << at % 64;
    }
}

quoit_status_t job_check_joined(const job_t *job)
{
    const char *name[MANY_TRANSPORTS];
    int names = 0, one = -1, other = -1;
    uint64_t(*has)[2] = calloc((size_t)job->size, sizeof *has);
    if (!has) return error_set(QUOIT_ERR_NO_MEMORY, "bootstrap: transports of %d ranks", job->size);
    for (int rank = 0; rank < job->size; rank++) name_transports(&job->record[rank], name, &names, has[rank]);
    for (int rank = 1; rank < job->size && other < 0; rank++)
        for (int first = 0; first < rank && other < 0; first++)
            if (job->host[first] != job->host[rank] && !(has[first][0] & has[rank][0]) && !(has[first][1] & has[rank][1])) one = first, other = rank;
    free(has);
    return other < 0 ? QUOIT_OK : cannot_join(job, one, other);
}

/* ------------------------------------------------------------------ end */

void job_release(job_t *job)
{
    if (!job || --job->users > 0) return;
    for (int i = 0; i < job->engine->transports; i++)
        job->engine->transport[i].ops->distrust(job->engine->transport[i].transport, job->id);
    if (job->is_marked) window_unmark(job->engine, job->mark);
    for (int i = 0; job->peer && i < job->size; i++) engine_peer_release(job->peer[i]);
    explicit_bzero(job->secret, sizeof job->secret);
    table_destroy(job->groups);
    free(job->ban);
    free(job->peer);
    free(job->record);
    free(job->host);
    free(job);
}

/* ------------------------------------------------------------------ topology */

quoit_status_t job_topology(const job_t *job, const int *job_rank, int size, topology_t **topology)
{
    int *host = malloc((size_t)size * sizeof *host);
    uint64_t *reach = malloc((size_t)size * sizeof *reach);
    quoit_status_t status = host && reach ? QUOIT_OK : error_set(QUOIT_ERR_NO_MEMORY, "the topology of %d ranks", size);
    for (int i = 0; i < size && status == QUOIT_OK; i++) {
        int rank = job_rank ? job_rank[i] : i;
        host[i] = job->host[rank];
        reach[i] = machine_reach(&job->record[rank].machine);
    }
    if (status == QUOIT_OK) status = topology_create(size, host, reach, topology);
    free(host);
    free(reach);
    return status;
}
