/* SPDX-License-Identifier: Apache-2.0 */
/** Sleeping: the system calls behind shm_wait.h. */
#include "transport/shm/shm_wait.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool membarrier_call(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

bool shm_wait_register(void)
{
    return membarrier_call(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) && membarrier_call(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

bool shm_wait_arm(shm_header_t *own, bool registered)
{
    __atomic_store_n(&own->asleep, 1, __ATOMIC_SEQ_CST);
    if (!registered) {
        __sync_synchronize(); /* SHM_FLAG_FENCE is set: publishers do the same */
        return true;
    }
    return membarrier_call(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
}

void shm_wait_disarm(shm_header_t *own) { __atomic_store_n(&own->asleep, 0, __ATOMIC_RELAXED); }
