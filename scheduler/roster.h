/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Roster: the bytes that rank 0 publishes at bootstrap, apart from stores. Either the job (incarnation, secret, tuning, everyone's
 * record), or a failure: a status and a text, and the nonces of those whom it is for, or before either a question to one rank. And the list of hosts that settles who shares
 * memory, and what another rank publishes in place of its proof when it has failed. Whoever can write to the store can write these, so
 * every field is checked before any is used.
 */
#ifndef QUOIT_SCHEDULER_ROSTER_H
#define QUOIT_SCHEDULER_ROSTER_H

#include "scheduler/job_internal.h"

/** Bytes that are enough for the roster of `size` ranks. */
size_t roster_capacity(int size);
/** Returns the length. `bytes` has room for roster_capacity. */
size_t roster_encode(const job_t *job, uint8_t *bytes);
/**
 * Read a roster for rank job->rank of job->size. Sets id, secret, tuning and records of `job`, only on success.
 *
 * @param nonce  this rank's in this attempt
 * @return ERR_AGAIN: it is a question, or of another attempt; the text says who this rank was in its roster. A failure that is for this rank: its status and text. ERR_MISMATCH: a world of another
 *         size. ERR_PROTOCOL: no roster.
 */
quoit_status_t roster_decode(const uint8_t *bytes, size_t length, uint64_t nonce, job_t *job);

/** A failure for the ranks from 1 on, by their nonces (0: none). NULL: no memory. To be freed. */
uint8_t *roster_failure_encode(const uint64_t *nonce, int size, quoit_status_t status, const char *text, size_t *length);
bool roster_is_failure(const uint8_t *bytes, size_t length);
/** Is it a roster of so few ranks that `rank` is none of them? */
bool roster_lacks(const uint8_t *bytes, size_t length, int rank);
/** Of how many ranks a roster is. */
uint32_t roster_size(const uint8_t *roster);
/** Is it the failure of an attempt, a question, or the roster of another incarnation than `id`? */
bool roster_is_other(const uint8_t *bytes, size_t length, uint64_t id);

enum { ROSTER_REFUSAL_CAPACITY = 1024 };
/** A rank has failed: in place of its record or its proof, neither of which begins so. Returns the length. */
size_t roster_refusal_encode(quoit_status_t status, const char *text, uint8_t bytes[ROSTER_REFUSAL_CAPACITY]);
bool roster_is_refusal(const uint8_t *bytes, size_t length);
/** Its status and text; ERR_PROTOCOL when it is none. */
quoit_status_t roster_refusal_decode(const uint8_t *bytes, size_t length);

enum { ROSTER_QUESTION_SIZE = 24 };
/**
 * In the place of the roster, of the rank whose record has this nonce: does it still wait? Then it says so by giving `question` back, a number that
 * nobody can have known before.
 */
void roster_question_encode(int rank, uint64_t nonce, uint64_t question, uint8_t bytes[ROSTER_QUESTION_SIZE]);
/** False: it is no question, and nothing is written. */
bool roster_question_decode(const uint8_t *bytes, size_t length, int *rank, uint64_t *nonce, uint64_t *question);

/** hosts[r]: the lowest rank that shares r's host. `bytes` has room for 4 a rank. */
void roster_hosts_encode(const int *hosts, int size, uint8_t *bytes);
/** ERR_PROTOCOL when it is no such list of `size` ranks. */
quoit_status_t roster_hosts_decode(const uint8_t *bytes, size_t length, int size, int *hosts);

#endif
