/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How many processors this process may really use. Affinity says where it may run; a container's limit is in its cgroup, or in any
 * cgroup above, so the way up to the root is read too. Nothing here fails: what cannot be read does not limit.
 */
#include "base/cpu.h"

#include "base/cpu_internal.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_PROCESSORS = 1 << 20 };

static int least_limit(int a, int b) { return a == 0 || (b != 0 && b < a) ? b : a; }

static bool read_line(const char *path, char *line, size_t capacity)
{
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool read = fgets(line, (int)capacity, file) != NULL;
    fclose(file);
    return read;
}

int cpu_from_quota(long long quota, long long period)
{
    if (quota <= 0 || period <= 0) return 0;
    long long whole = quota / period + (quota % period != 0);
    return whole > MOST_PROCESSORS ? MOST_PROCESSORS : (int)whole;
}

int cpu_parse_max(const char *text)
{
    if (!text || text[0] < '0' || text[0] > '9') return 0; /* "max" too */
    char *end;
    errno = 0;
    long long quota = strtoll(text, &end, 10), period = 100000;
    if (errno || (*end != ' ' && *end != '\n' && *end != '\0')) return 0;
    if (*end == ' ') {
        if (end[1] < '0' || end[1] > '9') return 0;
        period = strtoll(end + 1, &end, 10);
        if (errno || (*end != '\n' && *end != '\0')) return 0;
    }
    return cpu_from_quota(quota, period);
}

static int limit_of_v2(const char *directory)
{
    char path[PATH_MAX], line[128];
    if (snprintf(path, sizeof path, "%s/cpu.max", directory) >= (int)sizeof path) return 0;
    return read_line(path, line, sizeof line) ? cpu_parse_max(line) : 0;
}

static int limit_of_v1(const char *directory)
{
    char path[PATH_MAX], quota[64], period[64];
    if (snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", directory) >= (int)sizeof path) return 0;
    if (!read_line(path, quota, sizeof quota)) return 0;
    if (snprintf(path, sizeof path, "%s/cpu.cfs_period_us", directory) >= (int)sizeof path) return 0;
    if (!read_line(path, period, sizeof period)) return 0;
    return cpu_from_quota(strtoll(quota, NULL, 10), strtoll(period, NULL, 10));
}

/* From mount/group up to mount itself. */
static int limit_upwards(const char *mount, const char *group, int (*limit_of)(const char *directory))
{
    char directory[PATH_MAX];
    size_t root = strlen(mount);
    if (snprintf(directory, sizeof directory, "%s%s", mount, group) >= (int)sizeof directory) return 0;
    int limit = 0;
    while (true) {
        limit = least_limit(limit, limit_of(directory));
        char *slash = strrchr(directory, '/');
        if (!slash || slash < directory + root) return limit;
        *slash = '\0';
    }
}

static bool lists_cpu(const char *controllers)
{
    for (const char *c = controllers; c; c = strchr(c, ','), c = c ? c + 1 : NULL)
        if (!strncmp(c, "cpu", 3) && (c[3] == '\0' || c[3] == ',')) return true;
    return false;
}

int cpu_cgroup_limit(const char *membership, const char *mount)
{
    char line[PATH_MAX], below[PATH_MAX];
    int limit = 0;
    FILE *file = fopen(membership, "re");
    if (!file) return 0;
    while (fgets(line, sizeof line, file)) { /* "4:cpu,cpuacct:/docker/1234" (v1), "0::/user.slice" (v2) */
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group || group[1] != '/') continue;
        *controllers++ = *group++ = '\0';
        if (*controllers == '\0') {
            limit = least_limit(limit, limit_upwards(mount, group, limit_of_v2));
        } else if (lists_cpu(controllers)) {
            if (strcmp(controllers, "cpu") != 0 && snprintf(below, sizeof below, "%s/%s", mount, controllers) < (int)sizeof below)
                limit = least_limit(limit, limit_upwards(below, group, limit_of_v1));
            if (snprintf(below, sizeof below, "%s/cpu", mount) < (int)sizeof below)
                limit = least_limit(limit, limit_upwards(below, group, limit_of_v1));
        }
    }
    fclose(file);
    return limit;
}

static int affinity_count(void)
{
    for (int most = 1024; most <= MOST_PROCESSORS; most *= 2) {
        cpu_set_t *set = CPU_ALLOC(most);
        if (!set) return 0;
        int count = -1;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(most), set) == 0) count = CPU_COUNT_S(CPU_ALLOC_SIZE(most), set);
        bool too_small = count < 0 && errno == EINVAL;
        CPU_FREE(set);
        if (!too_small) return count > 0 ? count : 0;
    }
    return 0;
}

int cpu_capacity(void)
{
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int count = online > 0 && online <= MOST_PROCESSORS ? (int)online : 0;
    count = least_limit(count, cpu_cgroup_limit("/proc/self/cgroup", "/sys/fs/cgroup"));
    return count > 0 ? count : 1;
}

int cpu_count(void) { return least_limit(cpu_capacity(), affinity_count()); }

/* Largest cache that sysfs lists for the first processor, in bytes; 0 when it lists none. */
static size_t cache_size_of_sysfs(void)
{
    size_t largest = 0;
    for (int index = 0; index < 8; index++) {
        char path[96], line[32], *end;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        if (!read_line(path, line, sizeof line)) break; /* they are numbered without gaps */
        unsigned long long size = strtoull(line, &end, 10);
        if (*end == 'K') size <<= 10;
        if (*end == 'M') size <<= 20;
        if (size > largest && size <= (unsigned long long)1 << 40) largest = (size_t)size;
    }
    return largest;
}

/* sysfs comes first: on AMD's processors the C library tells the caches of a whole socket as one, which no core can fill. */
size_t cpu_cache_size(void)
{
    static _Atomic size_t known; /* it does not change, and reading it costs some 15 system calls */
    size_t size = atomic_load_explicit(&known, memory_order_relaxed);
    if (size) return size;
    size = cache_size_of_sysfs();
    long told = size ? 0 : sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (!size) size = told > 0 ? (size_t)told : (size_t)32 << 20;
    atomic_store_explicit(&known, size, memory_order_relaxed);
    return size;
}

bool cpu_list_meets(const char *list, const cpu_set_t *allowed)
{
    const char *at = list;
    while (*at) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (end == at || first < 0) return false;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++)
            if (CPU_ISSET((size_t)cpu, allowed)) return true;
        at = *end == ',' ? end + 1 : end;
        if (*end != ',' && *end != '\0') return false;
    }
    return false;
}
