// SPDX-License-Identifier: Apache-2.0
// What is found out about this machine, with hwloc and without, must be possible and alike.
#include <gtest/gtest.h>

#include <net/if.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

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

// In a child whose sysfs shows these NUMA nodes (each a list of processors); what it printed is returned.
template <typename Look> std::string with_nodes(const std::vector<std::string> &nodes, Look look)
{
    int pipes[2];
    if (pipe(pipes) != 0) return "no pipe";
    pid_t child = fork();
    if (child == 0) {
        const char *place = "/sys/devices/system/node";
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 || mount("none", place, "tmpfs", 0, nullptr) != 0) _exit(77);
        auto write_file = [&](const std::string &name, const std::string &text) { std::ofstream(std::string(place) + "/" + name) << text << "\n"; };
        write_file("online", nodes.size() == 1 ? "0" : "0-" + std::to_string(nodes.size() - 1));
        for (size_t i = 0; i < nodes.size(); i++) {
            std::string node = "node" + std::to_string(i);
            std::filesystem::create_directory(std::string(place) + "/" + node);
            write_file(node + "/cpulist", nodes[i]);
            write_file(node + "/cpumap", nodes[i].empty() ? "0" : "1"); // processor 0, which is always there
            write_file(node + "/meminfo", "Node " + std::to_string(i) + " MemTotal: 1048576 kB");
        }
        if (mount(place, "/sys/bus/node/devices", nullptr, MS_BIND, nullptr) != 0) _exit(77); // where hwloc looks first
        std::string told = look();
        _exit(write(pipes[1], told.data(), told.size()) == static_cast<ssize_t>(told.size()) ? 0 : 1);
    }
    close(pipes[1]);
    char told[256] = "";
    ssize_t length = read(pipes[0], told, sizeof told - 1);
    close(pipes[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return "not allowed";
    return std::string(told, static_cast<size_t>(std::max<ssize_t>(length, 0)));
}

std::string told_by(const char *hwloc)
{
    machine_t machine;
    std::string source = discover(hwloc, &machine);
    return source.substr(0, source.find(' '));
}

// Left to itself, Quoit asks hwloc where there are several nodes, and only there. (How many it counts is not looked at: it leaves out those that the
// real kernel does not let this process use.)
TEST(Machine, HwlocIsAskedWhereThereAreSeveralNodes)
{
    machine_t machine;
    if (discover("yes", &machine) == "kernel") GTEST_SKIP() << "hwloc is not here, or was not when this was built";
    std::string one = with_nodes({"0"}, [] { return told_by("auto"); });
    if (one == "not allowed") GTEST_SKIP() << "another sysfs takes root";
    EXPECT_EQ(one, "kernel");
    EXPECT_EQ(with_nodes({"0", ""}, [] { return told_by("auto"); }), "hwloc");
    EXPECT_EQ(with_nodes({"0", ""}, [] { return told_by("no"); }), "kernel");
    EXPECT_EQ(with_nodes({"0"}, [] { return told_by("yes"); }), "hwloc");
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
