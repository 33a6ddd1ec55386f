/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What this host looks like to this process. hwloc is opened at run time, so that one binary runs with and without it; only its
 * header is needed to build, and without that the kernel's files are asked alone.
 */
#include "base/cpu.h"
#include "base/settings.h"
#include "scheduler/topology.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef QUOIT_HAVE_HWLOC_H
#include <hwloc.h>
#endif

enum { PATH_CAPACITY = 512 };

/* First line of a file; false when it cannot be read. */
static bool read_line(const char *path, char *line, size_t capacity)
{
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool read = fgets(line, (int)capacity, file) != NULL;
    fclose(file);
    if (read) line[strcspn(line, "\n")] = '\0';
    return read;
}

/* ---- network interfaces */

static uint32_t interface_speed(const char *name)
{
    char path[PATH_CAPACITY], line[64];
    snprintf(path, sizeof path, "/sys/class/net/%s/operstate", name);
    if (!read_line(path, line, sizeof line) || strcmp(line, "up") != 0) return 0;
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", name);
    if (!read_line(path, line, sizeof line)) return 0;
    long speed = strtol(line, NULL, 10); /* -1 where the driver does not know */
    return speed > 0 && speed <= 10000000 ? (uint32_t)speed : 0;
}

static uint32_t fastest_interface(void)
{
    DIR *directory = opendir("/sys/class/net");
    if (!directory) return 0;
    uint32_t fastest = 0;
    for (const struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "lo") == 0) continue;
        uint32_t speed = interface_speed(entry->d_name);
        if (speed > fastest) fastest = speed;
    }
    closedir(directory);
    return fastest;
}

/* ---- the kernel */

static void ask_kernel(machine_t *machine)
{
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    DIR *directory = opendir("/sys/devices/system/node");
    if (!directory) return;
    int nodes = 0, bound = 0, node = -1;
    for (const struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
        char path[PATH_CAPACITY], list[4096];
        int number;
        if (sscanf(entry->d_name, "node%d", &number) != 1) continue;
        nodes++;
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d/cpulist", number);
        if (!read_line(path, list, sizeof list) || !cpu_list_meets(list, &allowed)) continue;
        bound++;
        node = number;
    }
    closedir(directory);
    if (nodes > 0) machine->numa_nodes = nodes;
    machine->numa_node = bound == 1 ? node : -1;
}

/* ---- hwloc */

#ifdef QUOIT_HAVE_HWLOC_H

/** X(name): the calls that are used. Those that hwloc defines inline need others, so only real symbols are here. */
#define HWLOC_CALLS(X) \
    X(hwloc_get_api_version) \
    X(hwloc_topology_init) \
    X(hwloc_topology_load) \
    X(hwloc_topology_destroy) \
    X(hwloc_get_type_depth) \
    X(hwloc_get_nbobjs_by_depth) \
    X(hwloc_get_obj_by_depth) \
    X(hwloc_get_cpubind) \
    X(hwloc_bitmap_alloc) \
    X(hwloc_bitmap_free) \
    X(hwloc_bitmap_intersects)

typedef struct hwloc_calls {
#define HWLOC_MEMBER(name) __typeof__(&name) name;
    HWLOC_CALLS(HWLOC_MEMBER)
#undef HWLOC_MEMBER
} hwloc_calls_t;

static void *open_hwloc(hwloc_calls_t *calls)
{
    void *library = dlopen("libhwloc.so.15", RTLD_NOW | RTLD_LOCAL);
    if (!library) return NULL;
    bool found = true;
    void *symbol;
#define HWLOC_FIND(name) \
    symbol = dlsym(library, #name); \
    memcpy(&calls->name, &symbol, sizeof symbol); \
    found = found && symbol;
    HWLOC_CALLS(HWLOC_FIND)
#undef HWLOC_FIND
    if (found) return library;
    dlclose(library);
    return NULL;
}

static void read_nodes(const hwloc_calls_t *calls, hwloc_topology_t tree, machine_t *machine)
{
    int nodes = (int)calls->hwloc_get_nbobjs_by_depth(tree, HWLOC_TYPE_DEPTH_NUMANODE);
    if (nodes < 1) return;
    machine->numa_nodes = nodes;
    hwloc_bitmap_t bound = calls->hwloc_bitmap_alloc();
    if (!bound || calls->hwloc_get_cpubind(tree, bound, HWLOC_CPUBIND_PROCESS) != 0) goto out;
    int met = 0;
    for (int i = 0; i < nodes; i++) {
        hwloc_obj_t node = calls->hwloc_get_obj_by_depth(tree, HWLOC_TYPE_DEPTH_NUMANODE, (unsigned)i);
        if (!node || !node->cpuset || !calls->hwloc_bitmap_intersects(node->cpuset, bound)) continue;
        met++;
        machine->numa_node = (int)node->os_index;
    }
    if (met != 1) machine->numa_node = -1;
out:
    calls->hwloc_bitmap_free(bound);
}

static void read_cache(const hwloc_calls_t *calls, hwloc_topology_t tree, machine_t *machine)
{
    static const hwloc_obj_type_t types[] = {HWLOC_OBJ_L3CACHE, HWLOC_OBJ_L2CACHE};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        int depth = calls->hwloc_get_type_depth(tree, types[i]);
        hwloc_obj_t cache = depth >= 0 ? calls->hwloc_get_obj_by_depth(tree, depth, 0) : NULL;
        if (!cache || !cache->attr || cache->attr->cache.size == 0) continue;
        machine->cache = cache->attr->cache.size;
        return;
    }
}

static bool ask_hwloc(machine_t *machine, char *source, size_t capacity)
{
    hwloc_calls_t calls;
    hwloc_topology_t tree;
    void *library = open_hwloc(&calls);
    if (!library) return false;
    bool loaded = false;
    if (calls.hwloc_topology_init(&tree) != 0) goto close_library;
    loaded = calls.hwloc_topology_load(tree) == 0;
    if (loaded) {
        read_nodes(&calls, tree, machine);
        read_cache(&calls, tree, machine);
        unsigned version = calls.hwloc_get_api_version();
        snprintf(source, capacity, "hwloc %u.%u.%u", version >> 16, version >> 8 & 0xff, version & 0xff);
    }
    calls.hwloc_topology_destroy(tree);
close_library:
    dlclose(library);
    return loaded;
}

#else

static bool ask_hwloc(machine_t *machine, char *source, size_t capacity)
{
    (void)machine, (void)source, (void)capacity;
    return false;
}

#endif

void machine_discover(machine_t *machine, char *source, size_t capacity)
{
    *machine = (machine_t){
        .cores = cpu_count(), .numa_nodes = 1, .numa_node = -1, .cache = cpu_cache_size(), .nic_mbps = fastest_interface()};
    machine_discover_nics(machine);
    ask_kernel(machine);
    const char *wanted = setting_string(SETTING_HWLOC);
    /* Having hwloc look costs a third of the processor time that joining takes: on one node there is nothing to know that is worth it. */
    bool ask = strcmp(wanted, "yes") == 0 || (strcmp(wanted, "auto") == 0 && machine->numa_nodes > 1);
    if (!ask || !ask_hwloc(machine, source, capacity)) snprintf(source, capacity, "kernel");
}
