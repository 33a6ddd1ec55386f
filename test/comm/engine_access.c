/* SPDX-License-Identifier: Apache-2.0 */
#include "engine_access.h"

#include "scheduler/comm.h"
#include "transport/shm/shm_header.h"
#include "transport/shm/shm_info.h"

#include <string.h>

void test_engine_set_host(engine_t *engine, unsigned long host) { engine->host_label = host; }

void test_engine_never_polls(engine_t *engine)
{
    engine_enter(engine);
    engine->spin_time = 0;
    engine->spin = false;
    engine_leave(engine);
}

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

/* Where the own directory tells of the section: behind the communicator's id. */
static uint8_t *section_handle(void *root, uint64_t comm)
{
    uint64_t *word = root, *end = word + QUOIT_ROOT_SIZE / sizeof *word;
    while (word < end && *word != comm) word++;
    return word < end ? (uint8_t *)(word + 1) : NULL;
}

bool test_comm_lie(quoit_comm_t *comm, test_lie_t lie)
{
    engine_t *engine = comm->engine;
    void *root = NULL;
    if (!comm->window || engine->map->ops->share_root(engine->map->transport, &root) != QUOIT_OK) return false;
    window_section_t *section = comm->window->section;
    uint64_t base = (uint64_t)(uintptr_t)root - SHM_HEADER_SIZE, size = ((const shm_header_t *)(uintptr_t)base)->size, whole = sizeof *section;
    uint8_t *handle = section_handle(root, comm->id);
    if (!handle) return false;
    switch (lie) {
    case LIE_SECTION_SHORT: shm_handle_write(engine->self, size - 64, 64, handle); return true;
    case LIE_SECTION_OUTSIDE: shm_handle_write(engine->self, size - 64, whole, handle); return true;
    case LIE_SECTION_UNALIGNED: shm_handle_write(engine->self, (uint64_t)(uintptr_t)section - base + 8, whole, handle); return true;
    case LIE_SMALL_SHORT: shm_handle_write(engine->self, size - 64, 64, section->small_handle); return true;
    case LIE_SMALL_NONE: memset(section->small_handle, 0xee, sizeof section->small_handle); return true;
    case LIE_SLOTS_SHORT:
    case LIE_SLOTS_NONE:
        if (lie == LIE_SLOTS_SHORT) shm_handle_write(engine->self, size - 64, 64, section->lease_handle);
        else memset(section->lease_handle, 0xee, sizeof section->lease_handle);
        atomic_fetch_add(&section->lease, 1);
        return true;
    case LIE_INPUT_SHORT:
    case LIE_INPUT_NONE:
        if (lie == LIE_INPUT_SHORT) shm_handle_write(engine->self, size - 64, 64, section->input_handle);
        else memset(section->input_handle, 0xee, sizeof section->input_handle);
        atomic_store(&section->input_ticket, comm->window->ticket + 1);
        return true;
    }
    return false;
}

size_t record_bring_near(const void *record, size_t length, int rank, unsigned char *again, size_t capacity)
{
    job_record_t known;
    size_t used = 0;
    if (job_record_decode(record, length, &used, &known) != QUOIT_OK || used != length || known.rank != rank) return 0;
    known.machine.nics = 1;
    known.machine.nic[0] = (machine_nic_t){.name = "fast0", .mbps = 4000000, .numa_node = 1, .near = true};
    return job_record_encode(&known, again, capacity);
}
