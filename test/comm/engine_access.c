/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_access.h"

#include "scheduler/comm.h"

#include <string.h>

void test_engine_set_host(engine_t *engine, unsigned long host) { engine->host_label = host; }

engine_t *test_comm_engine(quoit_comm_t *comm) { return comm->engine; }

static int length_of(const list_t *list)
{
    int count = 0;
    for (const list_t *node = list->next; node != list; node = node->next) count++;
    return count;
}

static int entries_of(table_t *table)
{
    int count = 0;
    size_t cursor = 0;
    table_key_t key;
    void *value;
    while (table_next(table, &cursor, &key, &value)) count++;
    return count;
}

void test_engine_look(engine_t *engine, test_engine_state_t *state)
{
    engine_enter(engine);
    window_collect(engine, false);
    *state = (test_engine_state_t){.running = engine->running,
                                   .transfers = engine->transfers,
                                   .sections = length_of(&engine->sections),
                                   .comms = entries_of(engine->comms),
                                   .peers = entries_of(engine->peers),
                                   .lease_bytes = engine->lease_bytes,
                                   .orphan_bytes = engine->orphan_bytes};
    engine_leave(engine);
}

quoit_status_t test_engine_arena_probe(engine_t *engine, unsigned long *address)
{
    void *memory = NULL;
    engine_enter(engine);
    quoit_status_t status = engine->map->ops->share_alloc(engine->map->transport, 1 << 20, &memory);
    if (status == QUOIT_OK) engine->map->ops->share_free(engine->map->transport, memory);
    engine_leave(engine);
    if (status == QUOIT_OK) *address = (unsigned long)memory;
    return status;
}

unsigned long test_comm_secret(const quoit_comm_t *comm, unsigned char secret[64])
{
    memcpy(secret, comm->job->secret, sizeof comm->job->secret);
    return sizeof comm->job->secret;
}

unsigned long long test_comm_job(const quoit_comm_t *comm) { return comm->job->id; }

bool test_comm_address(const quoit_comm_t *comm, int rank, const char *transport, unsigned long long process[2], unsigned char address[112],
                       unsigned long *length)
{
    const job_record_t *record = &comm->job->record[comm->job_rank[rank]];
    process[0] = record->process.high;
    process[1] = record->process.low;
    for (int i = 0; i < record->addresses; i++) {
        if (strcmp(record->address[i].transport, transport) != 0) continue;
        memcpy(address, record->address[i].address, record->address[i].length);
        *length = record->address[i].length;
        return true;
    }
    return false;
}
