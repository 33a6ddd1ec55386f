/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ticks: the cheapest clock there is, for marks on the data path. A processor's counter where it runs evenly on all cores (one
 * instruction, no call), else the kernel's coarse clock (a few ns, steps of 1 to 10 ms). A reader turns ticks into nanoseconds by
 * two pairs of ticks and CLOCK_MONOTONIC, one taken at the start and one when it reads.
 */
#ifndef QUOIT_BASE_TICKS_H
#define QUOIT_BASE_TICKS_H

#include "base/clock.h"

#include <stdbool.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

/** Whether the counter of this machine may be used: what ticks_now is given ever after. */
static inline bool ticks_have_counter(void)
{
#if defined(__x86_64__)
    unsigned a, b, c, d = 0; /* "invariant TSC" */
    return __get_cpuid(0x80000007u, &a, &b, &c, &d) && d & 1u << 8;
#elif defined(__aarch64__)
    return true;
#else
    return false;
#endif
}

static inline uint64_t ticks_now(bool counter)
{
#if defined(__x86_64__)
    if (counter) return __rdtsc();
#elif defined(__aarch64__)
    if (counter) {
        uint64_t ticks;
        __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
        return ticks;
    }
#endif
    (void)counter;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/** Two moments in both measures; between and near them time is a straight line. */
typedef struct ticks_line {
    uint64_t ticks[2], ns[2];
} ticks_line_t;

/** Nanoseconds of CLOCK_MONOTONIC at `ticks`; 0 stays 0. The line may be another process's: what cannot be becomes 0 or UINT64_MAX. */
static inline uint64_t ticks_to_ns(const ticks_line_t *line, uint64_t ticks)
{
    if (ticks == 0) return 0;
    double span = (double)(line->ticks[1] - line->ticks[0]), rate = span > 0 ? (double)(line->ns[1] - line->ns[0]) / span : 1.0;
    double back = (double)(int64_t)(line->ticks[1] - ticks) * rate; /* from the newer pair: a reader asks for what is recent */
    double ns = (double)line->ns[1] - back;
    return ns < 0 ? 0 : ns >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)ns;
}

#endif
