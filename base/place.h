/* SPDX-License-Identifier: Apache-2.0 */
/** Where a device is attached, and how far that is from this process: read in sysfs, below any root, so that other machines' can be tried. */
#ifndef QUOIT_BASE_PLACE_H
#define QUOIT_BASE_PLACE_H

#include <stdbool.h>

typedef struct place {
    int numa_node; /* -1: nowhere in particular, or unknown */
    bool near;     /* this process may run on a processor that is local to it, or all are alike */
    bool software; /* no hardware is behind it: it lies under .../virtual/ */
} place_t;

/** `directory`: of a class, /sys/class/infiniband/mlx5_0 or /sys/class/net/eth0; its `device` says the rest. What cannot be read is unknown. */
void place_read(const char *directory, place_t *place);
/**
 * Less is nearer. 0: local to this process's processors, or nobody can tell; 1: to others of the machine. The kernel derives what is local to a device
 * from the root complex of its PCI bus; below that, bridges and switches are as far from one processor of it as from another.
 */
static inline int place_distance(const place_t *place) { return place->near ? 0 : 1; }

#endif
