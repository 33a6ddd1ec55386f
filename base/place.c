/* SPDX-License-Identifier: Apache-2.0 */
/* Where a device is attached: see place.h. */
#include "base/place.h"

#include "base/cpu.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_CAPACITY = 4096, PATH_CAPACITY = 512 };

/* First line of directory/device/file; false when there is none. */
static bool read_device(const char *directory, const char *file, char line[LINE_CAPACITY])
{
    char path[PATH_CAPACITY];
    snprintf(path, sizeof path, "%s/device/%s", directory, file);
    FILE *stream = fopen(path, "re");
    if (!stream) return false;
    bool read = fgets(line, LINE_CAPACITY, stream) != NULL;
    fclose(stream);
    if (read) line[strcspn(line, "\n")] = '\0';
    return read && line[0] != '\0';
}

void place_read(const char *directory, place_t *place)
{
    char line[LINE_CAPACITY], path[PATH_MAX], device[PATH_CAPACITY];
    cpu_set_t allowed;
    CPU_ZERO(&allowed);
    *place = (place_t){.numa_node = -1};
    if (read_device(directory, "numa_node", line)) place->numa_node = (int)strtol(line, NULL, 10);
    if (place->numa_node < -1) place->numa_node = -1;
    place->near = !read_device(directory, "local_cpulist", line) || sched_getaffinity(0, sizeof allowed, &allowed) != 0 || cpu_list_meets(line, &allowed);
    snprintf(device, sizeof device, "%s/device", directory);
    place->software = !realpath(device, path) && realpath(directory, path) && strstr(path, "/virtual/") != NULL;
    snprintf(device, sizeof device, "%s/parent", directory); /* Soft-RoCE's own: kernels before 5.12 attach it to its interface's device */
    place->software = place->software || access(device, F_OK) == 0;
}
