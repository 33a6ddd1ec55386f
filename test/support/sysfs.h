/* SPDX-License-Identifier: Apache-2.0 */
/* An invented sysfs in a folder of its own: devices on the PCI buses of two sockets, and some without hardware. */
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <unistd.h>

struct Sysfs {
    std::string root = testing::TempDir() + "quoit-sysfs-" + std::to_string(getpid());
    Sysfs() { std::filesystem::remove_all(root); }
    ~Sysfs() { std::filesystem::remove_all(root); }
    Sysfs(const Sysfs &) = delete;

    /* A device of a class ("net", "infiniband") at "pci0000:00/0000:00:01.0/0000:01:00.0". `cpus` "": the kernel does not say which are local. */
    void add(const std::string &kind, const std::string &name, const std::string &pci, int numa_node, const std::string &cpus) const
    {
        std::string device = root + "/devices/" + pci, own = device + "/" + kind + "/" + name;
        std::filesystem::create_directories(own);
        std::ofstream(device + "/numa_node") << numa_node << "\n";
        if (!cpus.empty()) std::ofstream(device + "/local_cpulist") << cpus << "\n";
        if (!std::filesystem::exists(own + "/device")) std::filesystem::create_directory_symlink(device, own + "/device");
        link(kind, name, own);
    }
    /* One without hardware. */
    void add_software(const std::string &kind, const std::string &name) const
    {
        std::string own = root + "/devices/virtual/" + kind + "/" + name;
        std::filesystem::create_directories(own);
        link(kind, name, own);
    }
    std::string path(const std::string &kind, const std::string &name) const { return root + "/class/" + kind + "/" + name; }

private:
    void link(const std::string &kind, const std::string &name, const std::string &own) const
    {
        std::filesystem::create_directories(root + "/class/" + kind);
        std::filesystem::create_directory_symlink(own, path(kind, name));
    }
};

/* Lists of processors of which this process may run on some, and on none. */
inline const char *const local_cpus = "0-1022", *const other_cpus = "1023";
