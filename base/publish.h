/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Publishing: how a process writes what its host mates read next: slots of the window, and what shm lends for messages.
 *
 * A line that a mate has read lies in that mate's cache, and writing it again takes it away from there. Between cores that share a
 * cache this costs some nanoseconds a line, and nothing when the line has left the reader's own cache meanwhile (WINDOW_RING is that
 * large). Between cores that share none (another socket, another cluster of one socket, or a virtual machine whose processors were spread so)
 * it costs 30 ns and more, whatever the ring's size; a non-temporal store avoids most of that, since it fetches nothing, but there
 * the reader gets the line from memory, which is twice as slow as from a shared cache. Which of the two a machine is cannot be asked for,
 * and in a virtual machine it changes while a job runs. So it is measured: every so often a copy through the cache is timed, and when enough of the
 * newest ones were slow, the next ones go past the cache, until trials show in turn that the cache is fast again. Some mates may be near and others
 * far, so fast and slow copies may alternate: then those that are slow decide, since they cost ten times as much as streaming does to the others.
 *
 * One writer: whoever owns what is written. What is chosen here changes no result, and each process chooses for itself.
 */
#ifndef QUOIT_BASE_PUBLISH_H
#define QUOIT_BASE_PUBLISH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum publish_way { PUBLISH_AUTO, PUBLISH_CACHED, PUBLISH_STREAMED } publish_way_t;

typedef struct publish {
    publish_way_t way;   /* what was asked for */
    bool streams;        /* AUTO: the present choice */
    uint32_t count;      /* copies since the last timed one */
    uint32_t fast;       /* timed ones that were fast, one after the other */
    uint8_t recent;      /* the newest eight that were timed since the last change of mind: a bit for each slow one */
    uint32_t trial;      /* copies past the cache from one trial to the next */
} publish_t;

enum {
    PUBLISH_MINIMUM = 2048,      /* bytes: below, a copy is neither timed nor streamed */
    PUBLISH_SLOW_PS = 180,       /* picoseconds a byte (5.5 GB/s): through a shared cache a copy takes 20 to 110, else 290 and more */
    PUBLISH_PATIENCE = 3,        /* slow ones of eight, or fast ones in turn, before the choice changes: one may be a page fault, a lost time slice, or a nearer mate */
    PUBLISH_SAMPLE = 8,          /* through the cache every so many copies are timed */
    PUBLISH_FIRST_TRIAL = 16,    /* past it, after so many one goes through the cache, for a trial: first touches of new slots look slow, too */
    PUBLISH_TRIAL = 512          /* each trial that was slow doubles that number, up to this */
};

/** Are `bytes` to be written past the cache now? For results that a reduction writes to a slot itself. */
static inline bool publish_streams(const publish_t *publish, size_t bytes)
{
    return bytes >= PUBLISH_MINIMUM && (publish->way == PUBLISH_AUTO ? publish->streams : publish->way == PUBLISH_STREAMED);
}

/** Copy to a slot. Regions do not overlap. */
void publish_copy(publish_t *publish, void *slot, const void *source, size_t bytes);

/** What a timed copy through the cache tells; here for tests. */
void publish_learn(publish_t *publish, size_t bytes, uint64_t nanoseconds);

#endif
