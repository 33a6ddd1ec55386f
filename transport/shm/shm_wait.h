/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Sleeping without losing a wake-up.
 *
 *   publisher   store data (release); look at the sleeper's `asleep`; if set, write to its doorbell
 *   sleeper     asleep = 1; barrier; look at all data; if there is none, sleep on the doorbell; asleep = 0
 *
 * Each side stores, then loads what the other stores. Unless both are ordered, both loads may miss, and the wake-up is lost. A full
 * fence in the publisher would cost every message some 20 ns, so the sleeper pays for both: membarrier(GLOBAL_EXPEDITED) makes all
 * threads of the registered processes pass a full barrier, and the publisher needs none. Where one of the two sides cannot use
 * membarrier, the publisher fences: the sleeper says so in its header (SHM_FLAG_FENCE), a publisher knows it of itself.
 */
#ifndef QUOIT_SHM_WAIT_H
#define QUOIT_SHM_WAIT_H

#include "transport/shm/shm_header.h"

/** Register this process for membarrier. False when the kernel, or a filter of system calls, has none. Repeating it is harmless. */
bool shm_wait_register(void);
/**
 * Sleeper: from now on publishers ring. The caller looks at all data once more after this, and sleeps only if there is none.
 * False: a filter installed since forbids the barrier, and sleeping would not be safe.
 */
bool shm_wait_arm(shm_header_t *own, bool registered);
void shm_wait_disarm(shm_header_t *own);
/** Publisher, after its store: wake `peer` if it sleeps. One load when it does not. `fence`: see above. */
static inline bool shm_wait_asleep(const shm_header_t *peer, bool fence)
{
    if (fence) {
        __sync_synchronize();
    } else {
        __asm__ __volatile__("" ::: "memory");
    }
    return __atomic_load_n(&peer->asleep, __ATOMIC_ACQUIRE) != 0;
}

#endif
