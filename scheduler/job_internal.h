/* SPDX-License-Identifier: Apache-2.0 */
/** Between the files of a job: job.c, job_record.c, roster.c and those of the bootstrap. */
#ifndef QUOIT_SCHEDULER_JOB_INTERNAL_H
#define QUOIT_SCHEDULER_JOB_INTERNAL_H

#include "scheduler/job.h"

enum { JOB_RECORD_CAPACITY = 2048 }; /* bytes that are enough for any record */

/** Once hosts are settled: is there a transport between every two hosts' ranks? ERR_NETWORK names the first two that nothing joins. */
quoit_status_t job_check_joined(const job_t *job);
/** Begin a connection to a rank over one transport. ERR_NOT_FOUND (no text): the rank does not offer it. */
quoit_status_t job_connect(job_t *job, int rank, engine_transport_t *transport, int timeout_ms, quoit_endpoint_t **endpoint);

#endif
