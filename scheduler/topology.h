/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Topology: which ranks share a host, and what each host looks like. Made once a communicator from the ranks' records; everything
 * that plans need is a pure function of it, so that any topology can be tested from a few numbers.
 */
#ifndef QUOIT_SCHEDULER_TOPOLOGY_H
#define QUOIT_SCHEDULER_TOPOLOGY_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MACHINE_NICS = 4, MACHINE_NIC_NAME = 16 };

/** A network interface that is up and has an address. */
typedef struct machine_nic {
    char name[MACHINE_NIC_NAME];
    uint32_t mbps;     /* setting INTERFACE_RATES, else the driver's word; 0: unknown */
    int32_t numa_node; /* where its device is attached; -1: nowhere in particular, or unknown */
    bool near;         /* this process may run on a processor that is close to it, or all are alike */
} machine_nic_t;

/** What a process says of the place it runs on (from hwloc, else from the kernel). */
typedef struct machine {
    int cores;         /* that this process may use (cpu_count) */
    int numa_nodes;    /* of the host, at least 1 */
    int numa_node;     /* the one this process is bound to, -1 when it may run on several */
    uint64_t cache;    /* bytes of the last-level cache */
    uint32_t nic_mbps; /* of the fastest interface that is up, 0 unknown */
    int nics;
    machine_nic_t nic[MACHINE_NICS]; /* fastest first, at most so many */
} machine_t;

/** Fills nics and nic: from the interfaces of this network namespace, ethtool, and where their devices are (sysfs). Never fails. */
void machine_discover_nics(machine_t *machine);
/** How near a process is to the network: the rates of the interfaces that are near it (Mb/s in all; an unknown one counts 1). */
uint64_t machine_reach(const machine_t *machine);
/** Ask the kernel, then hwloc, whose word counts (setting HWLOC: as a rule where there are several NUMA nodes; opened at run time). Never fails; `source` tells: "hwloc 2.9.0", "kernel". */
void machine_discover(machine_t *machine, char *source, size_t capacity);

typedef struct topology {
    int ranks, hosts;
    int *host;        /* [ranks] host of a rank; hosts are numbered by their lowest rank */
    int *member;      /* [ranks] index of a rank among its host's ranks: the leader's is 0, the others' ascend */
    int *host_size;   /* [hosts] */
    int *host_first;  /* [hosts] where the host's ranks begin in `order` */
    int *order;       /* [ranks] ranks host by host, in each as their members: the host-grouped ring */
    int *position;    /* [ranks] place of a rank in `order` */
} topology_t;

/**
 * host_of[r]: any label of rank r's host (equal labels, same host); copied. reach[r] (machine_reach): of a host's ranks the one with the most leads, of equal ones the
 * lowest; NULL: all are equal.
 */
quoit_status_t topology_create(int ranks, const int *host_of, const uint64_t *reach, topology_t **topology);
void topology_destroy(topology_t *topology); /* NULL is accepted */

static inline int topology_rank(const topology_t *topology, int host, int member)
{
    return topology->order[topology->host_first[host] + member];
}
/** The rank that speaks for a host on the network: the one that is nearest to the host's interfaces, else its lowest. */
static inline int topology_leader(const topology_t *topology, int host) { return topology_rank(topology, host, 0); }

/** "2 hosts: 4 + 3 ranks" */
void topology_summary(const topology_t *topology, char *text, size_t capacity);

#endif
