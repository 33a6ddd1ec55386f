// SPDX-License-Identifier: Apache-2.0
// What is found out about this machine, with hwloc and without, must be possible and alike.
#include <gtest/gtest.h>

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

TEST(Machine, ShortSourceIsCut)
{
    machine_t machine;
    char source[4];
    machine_discover(&machine, source, sizeof source);
    EXPECT_EQ(source[3], '\0');
}

} // namespace
