/* SPDX-License-Identifier: Apache-2.0 */
/** What tests in C++ need of the engine, whose own headers have C11 atomics. */
#ifndef TEST_COMM_ENGINE_ACCESS_H
#define TEST_COMM_ENGINE_ACCESS_H

#include "quoit/quoit.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct engine engine_t;

quoit_status_t engine_create(engine_t **engine);
void engine_release(engine_t *engine);
quoit_status_t comm_create_on(engine_t *engine, quoit_store_t *store, int rank, int size, const quoit_comm_config_t *config,
                              quoit_comm_t **comm);

void test_engine_set_host(engine_t *engine, unsigned long host);
void test_engine_never_polls(engine_t *engine); // sleeps as soon as there is nothing to do
engine_t *test_comm_engine(quoit_comm_t *comm);
/** Things the engine still keeps; each 0 when nothing is. */
typedef struct test_engine_state {
    int running, transfers;        /* operations and messages under way */
    int sections;                  /* windows of destroyed communicators */
    int comms, peers;
    unsigned long lease_bytes, orphan_bytes;
} test_engine_state_t;
void test_engine_look(engine_t *engine, test_engine_state_t *state);
/** Bytes in use of the memory shared inside the host: allocates and frees a block and says where it lay. */
quoit_status_t test_engine_arena_probe(engine_t *engine, unsigned long *address);
/** The secret of the communicator's job. Returns its length. */
unsigned long test_comm_secret(const quoit_comm_t *comm, unsigned char secret[64]);
/** Its job's id, and where the process of a rank listens for `transport`: process id (high, low) and address. False: it does not. */
unsigned long long test_comm_job(const quoit_comm_t *comm);
bool test_comm_address(const quoit_comm_t *comm, int rank, const char *transport, unsigned long long process[2], unsigned char address[112],
                       unsigned long *length);

/** Lies that a rank can tell its host mates in the memory that it shares: see test_comm_lie. */
typedef enum test_lie {
    LIE_SECTION_SHORT,     /* it ends with the arena, after one line */
    LIE_SECTION_OUTSIDE,   /* beyond the arena */
    LIE_SECTION_UNALIGNED,
    LIE_SMALL_SHORT,       /* small slots that end with the arena, after one line */
    LIE_SMALL_NONE,        /* bytes that are no handle */
    LIE_SLOTS_SHORT,       /* large slots that end with the arena, after one line */
    LIE_SLOTS_NONE,        /* bytes that are no handle */
    LIE_INPUT_SHORT,       /* the input of the next operation, of one line, where the arena ends */
    LIE_INPUT_NONE
} test_lie_t;
/** From here on this rank's shared memory says so. False: it shares none. */
bool test_comm_lie(quoit_comm_t *comm, test_lie_t lie);

/**
 * Is that the record of `rank`, as it sets it in the store? Then `again` is the same with one interface, near to the rank and faster than any; its
 * length, else 0.
 */
size_t record_bring_near(const void *record, size_t length, int rank, unsigned char *again, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif
