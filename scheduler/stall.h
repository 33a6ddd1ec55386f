/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Stall: a warning of what stands still, long before its time limit is over (half an hour, unless somebody says another): a collective that makes no step, ranks
 * that do not come to creation. After QUOIT_STALL_WARNING, and again each time it has lasted twice as long. Of sends and recvs nothing is said: many
 * programs wait in a recv for as long as nothing is to be done.
 */
#ifndef QUOIT_SCHEDULER_STALL_H
#define QUOIT_SCHEDULER_STALL_H

#include "quoit/quoit.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct stall {
    uint64_t since, next; /* ns: when it came to stand, when to warn next (CLOCK_NEVER: not at all) */
    uint64_t step;        /* of a collective: where it stood then */
} stall_t;

void stall_begin(stall_t *stall, uint64_t now);
/** Once for each time that a warning is due. */
bool stall_is_due(stall_t *stall, uint64_t now);
/** "90 s": for how long it has stood still. */
const char *stall_text(const stall_t *stall, uint64_t now, char text[32]);

/**
 * Has the running collective stood still for so long? Only for the engine's owner. Of the ranks of a host the first one that waits says so, and none of those that wait for
 * others which wait themselves.
 */
void stall_check(quoit_comm_t *comm, uint64_t now);

#endif
