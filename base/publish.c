/* SPDX-License-Identifier: Apache-2.0 */
/* Publishing: see publish.h. */
#include "base/publish.h"

#include "base/clock.h"
#include "base/copy.h"

void publish_learn(publish_t *publish, size_t bytes, uint64_t nanoseconds)
{
    bool slow = nanoseconds * 1000 > bytes * PUBLISH_SLOW_PS;
    publish->recent = (uint8_t)(publish->recent << 1 | slow);
    publish->fast = slow ? 0 : publish->fast + 1;
    if (publish->streams && slow && publish->trial < PUBLISH_TRIAL) publish->trial *= 2;
    bool streams = publish->streams ? publish->fast < PUBLISH_PATIENCE : __builtin_popcount(publish->recent) >= PUBLISH_PATIENCE;
    if (streams == publish->streams) return;
    publish->streams = streams;
    publish->recent = 0;
    publish->fast = 0;
    publish->trial = PUBLISH_FIRST_TRIAL;
}

void publish_copy(publish_t *publish, void *slot, const void *source, size_t bytes)
{
    if (publish->way != PUBLISH_AUTO || bytes < PUBLISH_MINIMUM) {
        copy_bytes(slot, source, bytes, publish_streams(publish, bytes));
        return;
    }
    /* While there is a doubt, the next is timed at once. */
    bool doubt = publish->streams ? publish->fast > 0 : publish->recent != 0;
    uint32_t interval = doubt ? 1 : publish->streams ? publish->trial : PUBLISH_SAMPLE;
    if (++publish->count < interval) {
        copy_bytes(slot, source, bytes, publish->streams);
        return;
    }
    publish->count = 0;
    uint64_t start = clock_now();
    copy_bytes(slot, source, bytes, false);
    publish_learn(publish, bytes, clock_now() - start);
}
