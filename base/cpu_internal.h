/* SPDX-License-Identifier: Apache-2.0 */
/** The cgroup part of cpu.c with its two paths as arguments, so that tests can lay out trees of their own. */
#ifndef QUOIT_BASE_CPU_INTERNAL_H
#define QUOIT_BASE_CPU_INTERNAL_H

/**
 * Least limit, in whole processors, on the way from the process's own cgroup to the root.
 *
 * @param membership  what /proc/self/cgroup is
 * @param mount       what /sys/fs/cgroup is
 * @return 0 when there is none
 */
int cpu_cgroup_limit(const char *membership, const char *mount);
/** cgroup v1: quota and period in microseconds to whole processors, rounded up; 0 when unlimited. */
int cpu_from_quota(long long quota, long long period);

#endif
