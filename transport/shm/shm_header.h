/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Layout of an arena: the memory a process shares with its peers. One page of header, then the root (the caller's), then the heap.
 *
 *   0                 4096                    69632 (rounded up to a page)                    size
 *   | header          | root, 64 KiB          | heap: mailboxes, sections, ...                |
 *
 * The owner writes everything in the header but `mail`: a peer that was given slot i marks mail[i] after it has put bytes into its
 * ring, unless the owner follows that ring (see shm_progress.c), and the owner clears it. Nothing in here is a lock, so a peer that is
 * killed leaves nothing held. The fields are plain integers reached through the compiler's atomic builtins, because tests read this header as C++.
 */
#ifndef QUOIT_SHM_HEADER_H
#define QUOIT_SHM_HEADER_H

#include "quoit/quoit_transport.h"

#define SHM_HEADER_MAGIC 0x616e6572615f7451u /* "Qt_arena" */
#define SHM_ALIGNED __attribute__((aligned(64)))

enum {
    SHM_HEADER_VERSION = 3,
    SHM_HEADER_SIZE = 4096,
    SHM_MAX_PEERS = 1024, /* peers of one engine on its host; a multiple of 8 */
    SHM_FLAG_FENCE = 1    /* the owner has no membarrier: who rings must fence between its store and its look at `asleep` */
};

typedef enum shm_mail {
    SHM_MAIL_NONE,
    SHM_MAIL_MARKED, /* look into the ring */
    SHM_MAIL_FOLLOWED /* the owner looks into the ring in any case: nothing is to be written here */
} shm_mail_t;

typedef struct shm_header {
    uint64_t magic, size;
    quoit_process_id_t process;
    uint32_t version, flags, pid;
    SHM_ALIGNED uint32_t asleep;             /* 1: ring the doorbell after a store that the owner waits for */
    uint32_t starving;                       /* 1: and after a loan was given back */
    SHM_ALIGNED uint32_t cpu;                /* where the owner ran lately */
    SHM_ALIGNED uint8_t mail[SHM_MAX_PEERS]; /* shm_mail_t, of each slot */
} shm_header_t;

#endif
