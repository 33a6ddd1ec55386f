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
 *
 * The mark (shm_mail_t) that says in which ring the data is goes the same way. A publisher leaves it out while the sleeper follows its
 * ring, and the sleeper ceases to follow only before it goes to sleep:
 *
 *   publisher   store data; look at the mark; unless it says FOLLOWED, set it; look at `asleep`; ...
 *   sleeper     mark = NONE of all that it followed; asleep = 1; barrier; look at all marks, and into those rings once more; ...
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
/** Publisher, between its store and its look at what the sleeper stores. `fence`: see above. */
static inline void shm_wait_order(bool fence)
{
    if (fence) {
        __sync_synchronize();
    } else {
        __asm__ __volatile__("" ::: "memory");
    }
}

/** Publisher, after its store: does `peer` sleep, and is to be woken? One load. */
static inline bool shm_wait_asleep(const shm_header_t *peer, bool fence)
{
    shm_wait_order(fence);
    return __atomic_load_n(&peer->asleep, __ATOMIC_ACQUIRE) != 0;
}

#endif
