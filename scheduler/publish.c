/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing: see publish.h. */
#include "scheduler/publish.h"

#include "base/clock.h"
#include "scheduler/reduce/reduce.h"

void publish_learn(publish_t *publish, size_t bytes, uint64_t nanoseconds)
{
    bool slow = nanoseconds * 1000 > bytes * PUBLISH_SLOW_PS;
    publish->slow = slow ? publish->slow + 1 : 0;
    if (publish->streams && slow && publish->trial < PUBLISH_TRIAL) publish->trial *= 2;
    bool streams = publish->streams ? slow : publish->slow >= PUBLISH_PATIENCE; /* a fast one cannot be luck, a slow one can be bad luck */
    if (streams == publish->streams) return;
    publish->streams = streams;
    publish->trial = PUBLISH_FIRST_TRIAL;
}

void publish_copy(publish_t *publish, void *slot, const void *source, size_t bytes)
{
    if (publish->way != PUBLISH_AUTO || bytes < PUBLISH_MINIMUM) {
        reduce_copy(slot, source, bytes, publish_streams(publish, bytes));
        return;
    }
    /* While slow ones come in turn, the next is timed at once. */
    uint32_t interval = publish->streams ? publish->trial : publish->slow > 0 ? 1 : PUBLISH_SAMPLE;
    if (++publish->count < interval) {
        reduce_copy(slot, source, bytes, publish->streams);
        return;
    }
    publish->count = 0;
    uint64_t start = clock_now();
    reduce_copy(slot, source, bytes, false);
    publish_learn(publish, bytes, clock_now() - start);
}
