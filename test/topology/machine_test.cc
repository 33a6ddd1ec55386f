// SPDX-License-Identifier: Apache-2.0
// What is found out about this machine, with hwloc and without, must be possible and alike.
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

std::string discover(const char *hwloc, machine_t *machine)
{
    setenv("QUOIT_HWLOC", hwloc, 1);
    settings_reset();
    char source[64] = "";
    machine_discover(machine, source, sizeof source);
    unsetenv("QUOIT_HWLOC");
    settings_reset();
    return source;
}

void check(const machine_t &machine)
{
    EXPECT_EQ(machine.cores, cpu_count());
    EXPECT_GE(machine.numa_nodes, 1);
    EXPECT_GE(machine.numa_node, -1);
    EXPECT_GE(machine.cache, 1u << 16);
}

TEST(Machine, Kernel)
{
    machine_t machine;
    EXPECT_EQ(discover("no", &machine), "kernel");
    check(machine);
}

TEST(Machine, HwlocAgreesWithTheKernel)
{
    machine_t machine, kernel;
    std::string source = discover("yes", &machine);
    discover("no", &kernel);
    check(machine);
    if (source == "kernel") GTEST_SKIP() << "hwloc is not here, or was not when this was built";
    EXPECT_EQ(source.rfind("hwloc ", 0), 0u) << source;
    EXPECT_EQ(machine.numa_nodes, kernel.numa_nodes);
    EXPECT_EQ(machine.numa_node, kernel.numa_node);
    EXPECT_EQ(machine.nic_mbps, kernel.nic_mbps);
}

TEST(Machine, InterfacesAreThoseOfThisNetworkFastestFirst)
{
    machine_t machine;
    discover("no", &machine);
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
    discover("no", &machine);
    unsetenv("QUOIT_INTERFACE_RATES");
    EXPECT_EQ(machine.nic[0].name, name);
    EXPECT_EQ(machine.nic[0].mbps, 9999999u);
}

TEST(Machine, ShortSourceIsCut)
{
    machine_t machine;
    char source[4];
    machine_discover(&machine, source, sizeof source);
    EXPECT_EQ(source[3], '\0');
}

} // namespace
