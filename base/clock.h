/* SPDX-License-Identifier: Apache-2.0 */
/** Time and deadlines: nanoseconds of CLOCK_MONOTONIC. */
#ifndef QUOIT_BASE_CLOCK_H
#define QUOIT_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CLOCK_NEVER UINT64_MAX

static inline uint64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/** `milliseconds` (not negative) after `time`. */
static inline uint64_t clock_after(uint64_t time, int milliseconds) { return time + (uint64_t)milliseconds * 1000000u; }

/** As the kernel takes a time. */
static inline struct timespec clock_timespec(uint64_t time)
{
    return (struct timespec){.tv_sec = (time_t)(time / 1000000000u), .tv_nsec = (long)(time % 1000000000u)};
}

/** Deadline `milliseconds` from now; negative: never. */
static inline uint64_t clock_deadline(int64_t milliseconds)
{
    return milliseconds < 0 ? CLOCK_NEVER : clock_now() + (uint64_t)milliseconds * 1000000u;
}

/** Milliseconds left, rounded up, 0 when over, at most 2^30; CLOCK_NEVER gives -1 (as poll() takes it). */
static inline int clock_left_ms(uint64_t deadline)
{
    if (deadline == CLOCK_NEVER) return -1;
    uint64_t now = clock_now();
    if (now >= deadline) return 0;
    uint64_t left = (deadline - now + 999999u) / 1000000u;
    return left > (1u << 30) ? 1 << 30 : (int)left;
}

#endif
