/* SPDX-License-Identifier: Apache-2.0 */
/** Processors: how many this process may really use, and what to do while polling. */
#ifndef QUOIT_BASE_CPU_H
#define QUOIT_BASE_CPU_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>

/** Whole processors this process may use: the least of online, affinity, and the cgroup's cpu.max (v2) or quota (v1), at least 1. */
int cpu_count(void);
/** The same for all processes of this container or host together: whatever this one is pinned to. */
int cpu_capacity(void);
/** Parse the text of cgroup v2's cpu.max ("max 100000", "150000 100000"); 0 when unlimited or unreadable, else rounded up. */
int cpu_parse_max(const char *text);
/** Bytes of the last-level cache, a guess of 32 MiB when unknown. */
size_t cpu_cache_size(void);

/** Does the list "0-3,8" name a processor of the set? */
bool cpu_list_meets(const char *list, const cpu_set_t *allowed);

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
