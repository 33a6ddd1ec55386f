/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control: aborts travel as notices along the connections there are, each rank passing the first one on, and envelopes find their
 * communicator. A group may be created here later than on a peer: what comes for it is kept, up to a limit.
 */
#include "scheduler/control.h"

#include "base/log.h"
#include "scheduler/comm.h"
#include "scheduler/inquire.h"
#include "scheduler/job_internal.h"
#include "scheduler/notice.h"
#include "scheduler/shrink.h"
#include "transport/process.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ORPHANS_KEPT = 16 << 20, /* bytes */ REACH_TIMEOUT_MS = 5000 };

typedef struct orphan {
    list_t link;
    quoit_process_id_t peer;
    size_t length;
    unsigned char data[];
} orphan_t;

void control_tell(quoit_endpoint_t *endpoint, const unsigned char *notice, size_t length)
{
    const quoit_transport_ops_t *ops = endpoint->transport->ops;
    if (ops->notify(endpoint, notice, length) == QUOIT_ERR_AGAIN) (void)ops->notify(endpoint, notice, QUOIT_NOTICE_SMALL);
}

/* How the communicator failed. Returns the length. */
static size_t write_word(const quoit_comm_t *comm, unsigned char notice[NOTICE_ABORT_CAPACITY])
{
    return notice_abort_encode(comm->id, comm->rank, (quoit_status_t)atomic_load(&comm->status), comm->finder, comm->cause, notice);
}

/* May the rank of this host that is connected to other hosts be away from the library? Not when it is in the operation that runs here. */
static bool leader_may_be_away(quoit_comm_t *comm)
{
    const topology_t *topology = comm->topology;
    if (topology_rank(topology, topology->host[comm->rank], 0) == comm->rank || !comm->execution.operation) return true;
    const window_section_t *section = comm->window->member[0].section;
    return !section || (uint32_t)(atomic_load(&section->line.current) >> 32) < comm->sequence;
}

/*
 * No connection of this rank's leads to another host, and that of its leader may not be looked at for long. So whoever begins an
 * abort connects to the leaders of the next two hosts, which pass it on. Not for long: they may have ended. But a process on a busy machine
 * may answer after a second, and would wait for its deadline if it heard nothing.
 */
static void reach_other_hosts(quoit_comm_t *comm, const unsigned char *notice, size_t length)
{
    const topology_t *topology = comm->topology;
    for (int next = 1; next <= 2 && next < topology->hosts; next++) {
        int rank = topology_rank(topology, (topology->host[comm->rank] + next) % topology->hosts, 0);
        peer_t *peer = comm->job->peer[comm->job_rank[rank]];
        quoit_endpoint_t *endpoint = NULL;
        if (peer->status != QUOIT_OK || peer->left) continue;
        if (job_endpoint_within(comm->job, comm->job_rank[rank], REACH_TIMEOUT_MS, &endpoint) != QUOIT_OK) continue;
        control_tell(endpoint, notice, length);
    }
}

/*
 * The connection with this peer broke before anything came along it. In the instant in which a connection is made it stands for one side
 * and not yet for the other, which then makes it anew, and would wait for this rank. So word goes along a new connection, which ends with
 * it; it leaves also when the communicator and its job are gone by then.
 */
static void reach_anew(quoit_comm_t *comm, int rank, const unsigned char *notice, size_t length)
{
    job_t *job = comm->job;
    int member = comm->job_rank[rank];
    const job_address_t *address = job_transport(job, job->rank, member, false);
    engine_transport_t *transport = address ? engine_find_transport(job->engine, address->transport) : NULL;
    quoit_endpoint_t *endpoint = NULL;
    if (!transport || job_connect(job, member, transport, REACH_TIMEOUT_MS, &endpoint) != QUOIT_OK) return;
    control_tell(endpoint, notice, length);
    transport->ops->disconnect(endpoint);
}

void control_send_abort(quoit_comm_t *comm)
{
    bool reached = false;
    unsigned char notice[NOTICE_ABORT_CAPACITY];
    size_t length = write_word(comm, notice);
    for (int rank = 0; rank < comm->size; rank++) {
        peer_t *peer = comm->job->peer[comm->job_rank[rank]];
        if (peer->unheard) reach_anew(comm, rank, notice, length);
        if (rank == comm->rank || peer->status != QUOIT_OK || peer->left) continue;
        quoit_endpoint_t *endpoint = peer->message;
        /* Host mates are always told; across hosts the connections that stand are enough: they join all hosts of the communicator. */
        if (!endpoint && peer->map && job_endpoint(comm->job, comm->job_rank[rank], &endpoint) != QUOIT_OK) continue;
        if (!endpoint) continue;
        control_tell(endpoint, notice, length);
        reached = reached || !peer->map;
    }
    if (!reached && !comm->relays && leader_may_be_away(comm)) reach_other_hosts(comm, notice, length);
}

quoit_status_t control_send_unmade(job_t *job, uint64_t id, int rank, int size, const int *ranks, const char *name, quoit_status_t status)
{
    char text[ERROR_TEXT_CAPACITY];
    unsigned char notice[NOTICE_ABORT_CAPACITY];
    int host_before = job->host[job->rank];
    snprintf(text, sizeof text, "%.80s cannot make its part of %.60s: %.700s", job->peer[job->rank]->name, name, error_text());
    size_t length = notice_abort_encode(id, rank, status, rank, text, notice);
    for (int i = 0; i < size; i++) {
        int member = ranks ? ranks[i] : i;
        peer_t *peer = job->peer[member];
        bool first_of_host = job->host[member] != host_before;
        quoit_endpoint_t *endpoint = peer->message;
        host_before = job->host[member];
        if (member == job->rank || peer->status != QUOIT_OK || peer->left) continue;
        /* Host mates, and one of each other host at least: they pass it on. */
        if (!endpoint && (peer->map || first_of_host) && job_endpoint_within(job, member, REACH_TIMEOUT_MS, &endpoint) != QUOIT_OK) continue;
        if (endpoint) control_tell(endpoint, notice, length);
    }
    return error_set(status, "%s", text);
}

/* Whoever asks a communicator that has failed has not heard of it: the connection that the word went along may be what failed. */
static void answer_failed(quoit_comm_t *comm, quoit_endpoint_t *endpoint)
{
    unsigned char notice[NOTICE_ABORT_CAPACITY];
    control_tell(endpoint, notice, write_word(comm, notice));
}

/* endpoint: that it came along; NULL when it was kept. */
static void handle(quoit_comm_t *comm, const notice_header_t *header, quoit_process_id_t from, quoit_endpoint_t *endpoint, const void *data,
                   size_t length)
{
    if (header->source < 0 || header->source >= comm->size) {
        log_warn("control", "a notice for %s claims to come from rank %d of %d", comm->name, header->source, comm->size);
        return;
    }
    peer_t *peer = comm->job->peer[comm->job_rank[header->source]];
    if (!process_same(peer->process, from)) {
        log_warn("control", "a notice for %s claims to come from %s, but another process sent it", comm->name, peer->name);
        return;
    }
    if (header->type == NOTICE_MESSAGE) {
        if (atomic_load_explicit(&comm->status, memory_order_relaxed) == QUOIT_OK) match_envelope(comm, header->source, data, length);
        return;
    }
    if (header->type == NOTICE_SHRINK) {
        shrink_receive(comm, header->source, data, length);
        return;
    }
    if (header->type == NOTICE_CALL && endpoint && atomic_load_explicit(&comm->status, memory_order_relaxed) != QUOIT_OK) {
        answer_failed(comm, endpoint);
        return;
    }
    if (header->type == NOTICE_CALL) {
        inquire_receive(comm, header->source, data, length);
        return;
    }
    quoit_status_t status;
    int finder = header->source;
    char text[NOTICE_ABORT_TEXT + 1];
    if (notice_abort_decode(data, length, &status, &finder, text) != QUOIT_OK) {
        status = QUOIT_ERR_ABORTED;
        snprintf(text, sizeof text, "%s", error_text());
    }
    comm_fail_told(comm, status, finder >= 0 && finder < comm->size ? finder : header->source, text);
}

static void keep(engine_t *engine, const quoit_event_t *event)
{
    orphan_t *orphan = malloc(sizeof *orphan + event->length);
    if (!orphan) {
        log_error("control", "no memory for a notice of %zu bytes; a message is lost", event->length);
        return;
    }
    orphan->peer = event->peer;
    orphan->length = event->length;
    memcpy(orphan->data, event->data, event->length);
    list_append(&engine->orphans, &orphan->link);
    engine->orphan_bytes += event->length;
    while (engine->orphan_bytes > ORPHANS_KEPT) {
        orphan_t *oldest = container_of(list_pop(&engine->orphans), orphan_t, link);
        engine->orphan_bytes -= oldest->length;
        log_warn("control", "dropped a notice of %zu bytes for a communicator that was never created here", oldest->length);
        free(oldest);
    }
}

void control_receive(engine_t *engine, const quoit_event_t *event)
{
    notice_header_t header;
    if (notice_header_decode(event->data, event->length, &header) != QUOIT_OK) {
        log_warn("control", "%s", error_text());
        return;
    }
    quoit_comm_t *comm = engine->noticed;
    if (!comm || comm->id != header.comm) comm = table_get(engine->comms, (table_key_t){0, header.comm});
    if (comm) {
        engine->noticed = comm;
        handle(comm, &header, event->peer, event->endpoint, event->data, event->length);
        return;
    }
    if (header.type == NOTICE_CALL) { /* not kept: it is asked again, and asking must not drive messages out */
        inquire_stranger(engine, event);
        return;
    }
    keep(engine, event);
}

void control_replay(quoit_comm_t *comm)
{
    engine_t *engine = comm->engine;
    for (list_t *node = engine->orphans.next, *next; node != &engine->orphans; node = next) {
        next = node->next;
        orphan_t *orphan = container_of(node, orphan_t, link);
        notice_header_t header;
        if (notice_header_decode(orphan->data, orphan->length, &header) != QUOIT_OK || header.comm != comm->id) continue;
        list_remove(&orphan->link);
        engine->orphan_bytes -= orphan->length;
        handle(comm, &header, orphan->peer, NULL, orphan->data, orphan->length);
        free(orphan);
    }
}

void control_forget(engine_t *engine)
{
    for (list_t *node; (node = list_pop(&engine->orphans));) free(container_of(node, orphan_t, link));
    engine->orphan_bytes = 0;
}
