/* SPDX-License-Identifier: Apache-2.0 */
/** Doorbell: an eventfd, which does not block, that wakes who sleeps on it. Only that it rang counts, not how often. */
#ifndef QUOIT_BASE_DOORBELL_H
#define QUOIT_BASE_DOORBELL_H

#include <stdint.h>
#include <unistd.h>

/** Any thread, and any process that has the descriptor. */
static inline void doorbell_ring(int doorbell)
{
    const uint64_t one = 1;
    ssize_t written = write(doorbell, &one, sizeof one);
    (void)written; /* EAGAIN: the counter is full, so it rings already */
}

/** What rang before is over. For timerfds, too. */
static inline void doorbell_drain(int doorbell)
{
    uint64_t count;
    ssize_t got = read(doorbell, &count, sizeof count);
    (void)got; /* EAGAIN: nobody rang */
}

#endif
