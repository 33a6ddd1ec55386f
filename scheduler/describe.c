/* SPDX-License-Identifier: Apache-2.0 */
/* Describing a communicator: for people, and as JSON. */
#include "base/settings.h"
#include "base/text.h"
#include "scheduler/comm.h"
#include "scheduler/memory.h"

#include <stdio.h>
#include <string.h>

enum { EDGE_TEXT = 512 };

/* What joins us to a rank, and where it is not what was wanted, why. */
static void edge_texts(quoit_comm_t *comm, int rank, char description[EDGE_TEXT], uint64_t *sent, uint64_t *received)
{
    char chosen[300] = "";
    const char *edge;
    peer_t *peer = comm->job->peer[comm->job_rank[rank]];
    *sent = *received = 0;
    edge = rank == comm->rank ? "self" : peer->map ? "shm" : "not connected";
    if (rank != comm->rank && peer->message) {
        edge = peer->message->transport->ops->describe(peer->message);
        peer->message->transport->ops->count(peer->message, sent, received);
    }
    if (rank != comm->rank && !peer->map) job_explain_transport(comm->job, comm->job_rank[rank], chosen, sizeof chosen);
    const char *why = strchr(chosen, ' '); /* the name alone says nothing new */
    if (why && !peer->message) why = chosen;
    snprintf(description, EDGE_TEXT, "%s%s%s", edge, why && !peer->message ? ", " : "", why ? why : "");
}

/* "off", "psk", "certificates": of all ranks, see scheduler/bootstrap.c */
static const char *tls_mode(void) { return setting_string(SETTING_TLS); }

/* ": eth0 25000 Mb/s at NUMA node 1, eth1" */
static void append_nics(text_t *text, const machine_t *machine)
{
    for (int i = 0; i < machine->nics; i++) {
        const machine_nic_t *nic = &machine->nic[i];
        text_append(text, "%s %s", i ? "," : ":", nic->name);
        if (nic->mbps > 0) text_append(text, " %u Mb/s", nic->mbps);
        if (nic->numa_node >= 0 && machine->numa_nodes > 1) text_append(text, " at NUMA node %d", nic->numa_node);
    }
}

static void append_nics_json(text_t *text, const machine_t *machine)
{
    text_append(text, ", \"nics\": [");
    for (int i = 0; i < machine->nics; i++) {
        const machine_nic_t *nic = &machine->nic[i];
        text_append(text, "%s{\"name\": ", i ? ", " : "");
        text_append_json(text, nic->name);
        text_append(text, ", \"mbps\": %u, \"numa_node\": %d, \"near\": %s}", nic->mbps, nic->numa_node, nic->near ? "true" : "false");
    }
    text_append(text, "]");
}

static void describe_text(quoit_comm_t *comm, text_t *text)
{
    char summary[128];
    topology_summary(comm->topology, summary, sizeof summary);
    text_append(text, "communicator %s: rank %d of %d, %s", comm->name, comm->rank, comm->size, summary);
    if (setting_int(SETTING_TLS) != 0) text_append(text, ", TLS between hosts (%s)", tls_mode());
    text_append(text, "\n");
    if (comm->wire > QUOIT_WIRE_NONE) text_append(text, "sums of floats between hosts: %s\n", quoit_wire_name(comm->wire));
    char error[ERROR_TEXT_CAPACITY];
    if (quoit_comm_error(comm, error, sizeof error) != QUOIT_OK) text_append(text, "failed: %s\n", error);
    for (int host = 0; host < comm->topology->hosts; host++) {
        text_append(text, "host %d", host);
        append_nics(text, &comm->job->record[comm->job_rank[topology_leader(comm->topology, host)]].machine);
        text_append(text, "\n");
        for (int member = 0; member < comm->topology->host_size[host]; member++) {
            int rank = topology_rank(comm->topology, host, member);
            char edge[EDGE_TEXT];
            uint64_t sent, received;
            edge_texts(comm, rank, edge, &sent, &received);
            text_append(text, "  %s: %s", comm_rank_name(comm, rank), edge);
            if (sent || received)
                text_append(text, ", %llu bytes sent, %llu received", (unsigned long long)sent, (unsigned long long)received);
            text_append(text, "\n");
        }
    }
    text_append(text, "%llu collectives done\n", (unsigned long long)comm->finished);
    if (comm->device_direct || comm->device_staged)
        text_append(text, "device buffers: %llu bytes moved by transports themselves, %llu copied through host memory\n",
                    (unsigned long long)comm->device_direct, (unsigned long long)comm->device_staged);
    uint64_t shared;
    memory_count(comm->engine, &shared);
    if (shared || comm->in_place)
        text_append(text, "%llu bytes of shared memory are held by callers; %llu bytes were copied, %llu read where they lie in others' memory\n",
                    (unsigned long long)shared, (unsigned long long)comm->copied, (unsigned long long)comm->in_place);
}

static void describe_json(quoit_comm_t *comm, text_t *text)
{
    char error[ERROR_TEXT_CAPACITY];
    quoit_status_t status = quoit_comm_error(comm, error, sizeof error);
    text_append(text, "{\"name\": ");
    text_append_json(text, comm->name);
    text_append(text, ", \"version\": \"%s\", \"rank\": %d, \"size\": %d, \"hosts\": %d, \"status\": ", quoit_version(), comm->rank, comm->size,
                comm->topology->hosts);
    text_append_json(text, quoit_status_text(status));
    text_append(text, ", \"wire\": \"%s\", \"error\": ", quoit_wire_name(comm->wire));
    text_append_json(text, error);
    uint64_t shared;
    memory_count(comm->engine, &shared);
    text_append(text, ", \"tls\": \"%s\", \"finished\": %llu, \"memory\": %llu, \"copied\": %llu, \"in_place\": %llu, \"device_direct\": %llu, "
                "\"device_staged\": %llu, \"ranks\": [", tls_mode(),
                (unsigned long long)comm->finished, (unsigned long long)shared, (unsigned long long)comm->copied, (unsigned long long)comm->in_place,
                (unsigned long long)comm->device_direct, (unsigned long long)comm->device_staged);
    for (int rank = 0; rank < comm->size; rank++) {
        const job_record_t *record = &comm->job->record[comm->job_rank[rank]];
        char edge[EDGE_TEXT];
        uint64_t sent, received;
        edge_texts(comm, rank, edge, &sent, &received);
        text_append(text, "%s{\"rank\": %d, \"host\": %d, \"hostname\": ", rank ? ", " : "", rank, comm->topology->host[rank]);
        text_append_json(text, record->host);
        text_append(text, ", \"pid\": %d, \"cores\": %d, \"edge\": ", record->pid, record->machine.cores);
        text_append_json(text, edge);
        text_append(text, ", \"sent\": %llu, \"received\": %llu", (unsigned long long)sent, (unsigned long long)received);
        append_nics_json(text, &record->machine);
        text_append(text, "}");
    }
    text_append(text, "]}");
}

static quoit_status_t check(quoit_comm_t *comm, char **result, const char *what)
{
    if (!comm || !result) return error_set(QUOIT_ERR_INVALID, "%s: comm or text is NULL", what);
    if (comm->fork_generation != engine_fork_generation())
        return error_set(QUOIT_ERR_FORKED, "%s: communicator %s belongs to the parent process", what, comm->name);
    return QUOIT_OK;
}

quoit_status_t quoit_comm_describe(quoit_comm_t *comm, quoit_format_t format, char **result)
{
    quoit_status_t status = check(comm, result, "quoit_comm_describe");
    if (status != QUOIT_OK) return status;
    if (format != QUOIT_FORMAT_TEXT && format != QUOIT_FORMAT_JSON)
        return error_set(QUOIT_ERR_INVALID, "quoit_comm_describe: %d is no format", (int)format);
    text_t text = {0};
    engine_enter(comm->engine);
    if (format == QUOIT_FORMAT_JSON)
        describe_json(comm, &text);
    else
        describe_text(comm, &text);
    engine_leave(comm->engine);
    return text_finish(&text, result);
}

quoit_status_t quoit_explain_allreduce(quoit_comm_t *comm, size_t count, quoit_dtype_t dtype, char **result)
{
    quoit_status_t status = check(comm, result, "quoit_explain_allreduce");
    if (status != QUOIT_OK) return status;
    size_t width = quoit_dtype_size(dtype);
    if (width == 0) return error_set(QUOIT_ERR_INVALID, "quoit_explain_allreduce: %d is no dtype", (int)dtype);
    plan_request_t request = {.collective = COLLECTIVE_ALLREDUCE, .rank = comm->rank};
    if (count > SIZE_MAX / 2 / width) return error_set(QUOIT_ERR_INVALID, "quoit_explain_allreduce: %zu elements of %zu bytes are too many", count, width);
    status = plan_select(comm->topology, &comm->job->tuning, COLLECTIVE_ALLREDUCE, count * width, &request.algorithm, &request.small);
    if (status != QUOIT_OK) return status;
    request.wire = plan_wire(comm->topology, COLLECTIVE_ALLREDUCE, request.algorithm, dtype, QUOIT_SUM, comm->wire);
    plan_t *plan = NULL;
    status = plan_create(comm->topology, &comm->job->tuning, &request, &plan);
    if (status != QUOIT_OK) return status;
    plan_binding_t binding = {.plan = plan, .send = {.count = count}, .recv = {.count = count}, .width = width, .ranks = comm->size};
    plan_bind(&binding, &comm->job->tuning);
    char summary[128];
    text_t text = {0};
    topology_summary(comm->topology, summary, sizeof summary);
    text_append(&text, "allreduce of %zu %s elements, %s: %zu chunks of %zu elements, %d in flight\n", count, quoit_dtype_name(dtype), summary,
                binding.chunks, binding.chunk, plan->depth);
    plan_print(plan, &text);
    plan_destroy(plan);
    return text_finish(&text, result);
}
