/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Control: notices between engines find their communicator, and word of a failure finds the other ranks. Only for the engine's owner, all of
 * it. What is in a notice: notice.h.
 */
#ifndef QUOIT_SCHEDULER_CONTROL_H
#define QUOIT_SCHEDULER_CONTROL_H

#include "scheduler/job.h"

/** Handle a notice. What comes for a communicator that does not exist here yet is kept, up to a limit. */
void control_receive(engine_t *engine, const quoit_event_t *event);
/** A communicator was made: what had come for it is handled now. */
void control_replay(quoit_comm_t *comm);
/** The engine ends: drop what was kept for communicators that never came. */
void control_forget(engine_t *engine);

/** The communicator has failed (status, cause and finder are set): tell the other ranks, along the connections that stand. */
void control_send_abort(quoit_comm_t *comm);
/** Send one peer word of a failure. Where the pair has no credit the text is cut to what is never refused. */
void control_tell(quoit_endpoint_t *endpoint, const unsigned char *notice, size_t length);
/**
 * This rank could not make a communicator that the other members may have made, or will: it fails there, too. `ranks`: the members' ranks in
 * the job, NULL: all. Returns `status`, with this rank and the communicator named in the text.
 */
quoit_status_t control_send_unmade(job_t *job, uint64_t id, int rank, int size, const int *ranks, const char *name, quoit_status_t status);

#endif
