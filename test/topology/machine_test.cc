// SPDX-License-Identifier: Apache-2.0
// What is found out about this machine must be possible.
#include <gtest/gtest.h>

#include <net/if.h>

#include <cstdlib>
#include <string>

extern "C" {
#include "base/cpu.h"
#include "base/settings.h"
#include "scheduler/topology.h"
}

namespace {

TEST(Machine, IsThatOfThisProcess)
{
    machine_t machine;
    machine_discover(&machine);
    EXPECT_EQ(machine.cores, cpu_count());
    EXPECT_GE(machine.numa_nodes, 1);
    EXPECT_GE(machine.numa_node, -1);
    EXPECT_LT(machine.numa_node, 1 << 16);
    EXPECT_GE(machine.cache, 1u << 16);
}

TEST(Machine, InterfacesAreThoseOfThisNetworkFastestFirst)
{
    machine_t machine;
    machine_discover(&machine);
    ASSERT_GE(machine.nics, 0);
    ASSERT_LE(machine.nics, MACHINE_NICS);
    for (int i = 0; i < machine.nics; i++) {
        EXPECT_NE(if_nametoindex(machine.nic[i].name), 0u) << machine.nic[i].name;
        EXPECT_STRNE(machine.nic[i].name, "lo");
        EXPECT_GE(machine.nic[i].numa_node, -1);
        if (i > 0) {
            EXPECT_LE(machine.nic[i].mbps, machine.nic[i - 1].mbps);
        }
    }
    if (machine.nics == 0) return; /* a machine without a network */
    std::string name = machine.nic[machine.nics - 1].name;
    setenv("QUOIT_INTERFACE_RATES", (name + "=9999999,none=5").c_str(), 1);
    settings_reset();
    machine_discover(&machine);
    unsetenv("QUOIT_INTERFACE_RATES");
    settings_reset();
    EXPECT_EQ(machine.nic[0].name, name);
    EXPECT_EQ(machine.nic[0].mbps, 9999999u);
}

} // namespace
