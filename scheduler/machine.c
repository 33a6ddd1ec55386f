/* SPDX-License-Identifier: Apache-2.0 */
/** What this host looks like to this process: read from the kernel's files, of which any may be missing. */
#include "base/cpu.h"
#include "scheduler/topology.h"

#include <dirent.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- NUMA nodes */

static void find_nodes(machine_t *machine)
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

void machine_discover(machine_t *machine)
{
    *machine = (machine_t){
        .cores = cpu_count(), .numa_nodes = 1, .numa_node = -1, .cache = cpu_cache_size(), .nic_mbps = fastest_interface()};
    machine_discover_nics(machine);
    find_nodes(machine);
}
