/* SPDX-License-Identifier: Apache-2.0 */
/** History: a communicator's journal as its own process tells it, when asked and when it fails. */
#ifndef QUOIT_SCHEDULER_HISTORY_H
#define QUOIT_SCHEDULER_HISTORY_H

#include "scheduler/comm.h"

/** Give the new communicator its block, with its members. */
quoit_status_t history_create(quoit_comm_t *comm);
/** Note who the running collective waits for, at most ten times a second. Only for the engine's owner. */
void history_note(quoit_comm_t *comm, uint64_t now);
/** The communicator has failed, its operations have not been ended yet: log and dump (settings LOG and DUMP). */
void history_dump(quoit_comm_t *comm);

#endif
