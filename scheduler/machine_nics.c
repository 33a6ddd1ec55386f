/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network interfaces of this host, and how far they are from this process. Where a device is attached is read in sysfs, from where hwloc
 * has it too: its NUMA node, and the processors that are local to its PCI bus.
 */
#include "base/settings.h"
#include "scheduler/topology.h"
#include "transport/ip/ip_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int faster_first(const void *a, const void *b)
{
    const machine_nic_t *one = a, *other = b;
    if (one->mbps != other->mbps) return one->mbps < other->mbps ? 1 : -1;
    return strcmp(one->name, other->name);
}

void machine_discover_nics(machine_t *machine)
{
    ip_interface_t *all = NULL;
    int count = 0, found = 0;
    if (ip_interface_recent(&all, &count) != QUOIT_OK) return;
    machine_nic_t *nics = calloc((size_t)count + 1, sizeof *nics);
    for (int i = 0; nics && i < count; i++) {
        bool known = !(all[i].flags & IFF_UP) || all[i].flags & IFF_LOOPBACK;
        for (int k = 0; k < found; k++) known = known || strcmp(nics[k].name, all[i].name) == 0;
        if (known) continue;
        machine_nic_t *nic = &nics[found++];
        snprintf(nic->name, sizeof nic->name, "%s", all[i].name);
        nic->numa_node = all[i].numa_node;
        nic->near = all[i].distance == 0;
        if (ip_settings_rate(setting_string(SETTING_INTERFACE_RATES), nic->name, all[i].mbps, &nic->mbps) != QUOIT_OK) nic->mbps = 0; /* the transport tells */
    }
    if (nics) qsort(nics, (size_t)found, sizeof *nics, faster_first);
    machine->nics = found < MACHINE_NICS ? found : MACHINE_NICS;
    for (int i = 0; nics && i < machine->nics; i++) machine->nic[i] = nics[i];
    free(nics);
    free(all);
}

uint64_t machine_reach(const machine_t *machine)
{
    uint64_t reach = 0;
    for (int i = 0; i < machine->nics; i++)
        if (machine->nic[i].near) reach += machine->nic[i].mbps > 0 ? machine->nic[i].mbps : 1;
    return reach;
}
