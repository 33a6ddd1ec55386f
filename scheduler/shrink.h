/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Shrink: how the survivors of a failed communicator agree on who is left. The protocol is told in docs/design.md (Going on with the
 * survivors) and at the top of shrink.c.
 */
#ifndef QUOIT_SCHEDULER_SHRINK_H
#define QUOIT_SCHEDULER_SHRINK_H

#include "base/status.h"
#include "scheduler/notice.h"

typedef struct shrink shrink_t;

/** A notice of the agreement came from `source` (communicator rank). Only for the engine's owner. */
void shrink_receive(quoit_comm_t *comm, int source, const void *data, size_t length);
void shrink_destroy(shrink_t *shrink); /* NULL is accepted */

#endif
