/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What processes of a host tell each other as bytes: the address (through the caller's store), the info message (over the control
 * socket, with the descriptors), the last words of a side that gives the connection up (over that, too), and the handle of a piece of
 * shared memory (through the caller). Little-endian, versioned, each with
 * one parser that checks every field before anything is used.
 */
#ifndef QUOIT_SHM_INFO_H
#define QUOIT_SHM_INFO_H

#include "base/status.h"
#include "quoit/quoit_transport.h"
#include "transport/process.h"

enum { SHM_ADDRESS_SIZE = 40, SHM_INFO_SIZE = 96, SHM_NAME_CAPACITY = 48 };
enum { SHM_WORDS_HEADER = 12, SHM_WORDS_TEXT = 511, SHM_WORDS_CAPACITY = SHM_WORDS_HEADER + SHM_WORDS_TEXT };

/* Limits of what is accepted from a peer; those of the settings lie within. Bytes. */
#define SHM_ARENA_LIMIT (UINT64_C(1) << 40)
enum {
    SHM_EAGER_MIN = 256,
    SHM_EAGER_MAX = 65536,
    SHM_POOL_MIN = 65536,
    SHM_POOL_MAX = 64 << 20,
    SHM_SEGMENT_MIN = 4096,
    SHM_SEGMENT_MAX = 4 << 20,
    SHM_MAILBOX_MIN = 4096,
    SHM_MAILBOX_MAX = 16 << 20
};

/** Sizes that both sides of a pair must agree on: each takes the smaller of the two. */
typedef struct shm_limits {
    uint32_t eager, pool, segment; /* bytes */
} shm_limits_t;

typedef struct shm_address {
    quoit_process_id_t process;
    shm_limits_t limits;
} shm_address_t;

typedef struct shm_info {
    quoit_process_id_t process;
    shm_limits_t limits;
    uint64_t arena_size;
    uint64_t mailbox_offset; /* of the ring, in the sender's arena, that the receiver of this message writes to */
    uint64_t mailbox_capacity;
    uint32_t slot; /* index in the header's mail array that goes with it */
    uint32_t pid;
    uint32_t descriptors; /* that come along: arena, doorbell, and a pidfd where there is one */
} shm_info_t;

shm_limits_t shm_limits_least(shm_limits_t a, shm_limits_t b);

void shm_address_write(const shm_address_t *address, uint8_t bytes[SHM_ADDRESS_SIZE]);
quoit_status_t shm_address_parse(const void *bytes, size_t length, shm_address_t *address);
/** Name of the abstract socket, without the leading NUL. */
void shm_address_name(quoit_process_id_t process, char name[SHM_NAME_CAPACITY]);

void shm_info_write(const shm_info_t *info, uint8_t bytes[SHM_INFO_SIZE]);
/** ERR_PROTOCOL, and which field, for anything that a sound peer cannot have sent. */
quoit_status_t shm_info_parse(const uint8_t bytes[SHM_INFO_SIZE], shm_info_t *info);

/** Why the connection has failed; what is longer than SHM_WORDS_TEXT is cut. Returns the length. */
size_t shm_words_write(quoit_status_t status, const char *text, uint8_t bytes[SHM_WORDS_CAPACITY]);
/** told: ERR_NO_MEMORY, ERR_SYSTEM, ERR_PROTOCOL, and ERR_PEER for whatever else the bytes say. Nothing is written unless QUOIT_OK is returned; else ERR_PROTOCOL. */
quoit_status_t shm_words_parse(const void *bytes, size_t length, quoit_status_t *told, char text[SHM_WORDS_TEXT + 1]);

void shm_handle_write(quoit_process_id_t process, uint64_t offset, uint64_t length, uint8_t bytes[QUOIT_HANDLE_CAPACITY]);
/** ERR_INVALID for what is no handle of `process`, or does not lie in its arena of `arena_size` bytes. */
quoit_status_t shm_handle_parse(const uint8_t bytes[QUOIT_HANDLE_CAPACITY], quoit_process_id_t process, uint64_t arena_size,
                                uint64_t *offset, uint64_t *length);

#endif
