// SPDX-License-Identifier: Apache-2.0
// How many processors: the parsers, and cgroup trees laid out in a temporary directory.
#include "test/support/temporary.h"

#include <gtest/gtest.h>

#include <sched.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

extern "C" {
#include "base/cpu.h"
#include "base/cpu_internal.h"
}

namespace {

TEST(Cpu, ParseMax)
{
    const struct {
        const char *text;
        int processors;
    } cases[] = {{"max 100000\n", 0}, {"max", 0}, {"150000 100000\n", 2}, {"100000 100000", 1}, {"100001 100000", 2},
                 {"1000 100000", 1}, {"400000 50000\n", 8}, {"200000", 2}, {"0 100000", 0}, {"100000 0", 0}, {"-1 100000", 0},
                 {"", 0}, {"x", 0}, {"100000 x", 0}, {"100000x", 0}, {"100000 -5", 0}, {"99999999999999999999 100000", 0},
                 {"9223372036854775807 1", 1 << 20}, {"9223372036854775807 9223372036854775807", 1}, {"100000 100000 7", 0}};
    for (const auto &one : cases) EXPECT_EQ(cpu_parse_max(one.text), one.processors) << "\"" << one.text << "\"";
    EXPECT_EQ(cpu_parse_max(nullptr), 0);
}

TEST(Cpu, FromQuota)
{
    EXPECT_EQ(cpu_from_quota(-1, 100000), 0);
    EXPECT_EQ(cpu_from_quota(250000, 100000), 3);
    EXPECT_EQ(cpu_from_quota(200000, 100000), 2);
    EXPECT_EQ(cpu_from_quota(1, 100000), 1);
}

class Tree : public ::testing::Test {
  protected:
    void SetUp() override
    {
        root = temporary_pattern("cpu");
        ASSERT_NE(mkdtemp(root.data()), nullptr);
    }
    void TearDown() override { std::filesystem::remove_all(root); }
    void write(const std::string &path, const std::string &text)
    {
        std::filesystem::path file = std::filesystem::path(root) / path;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file) << text;
    }
    int limit() { return cpu_cgroup_limit((root + "/membership").c_str(), (root + "/fs").c_str()); }
    std::string root;
};

TEST_F(Tree, Version2TakesTheLeastOnTheWayUp)
{
    write("membership", "0::/a/b/c\n");
    EXPECT_EQ(limit(), 0);
    write("fs/a/b/c/cpu.max", "max 100000\n");
    EXPECT_EQ(limit(), 0);
    write("fs/a/b/cpu.max", "600000 100000\n");
    EXPECT_EQ(limit(), 6);
    write("fs/a/cpu.max", "350000 100000\n");
    EXPECT_EQ(limit(), 4);
    write("fs/cpu.max", "200000 100000\n");
    EXPECT_EQ(limit(), 2);
    write("fs/a/b/c/cpu.max", "100000 100000\n");
    EXPECT_EQ(limit(), 1);
    write("cpu.max", "50000 100000\n"); // above the mount: not ours
    write("fs/a/b/c/cpu.max", "800000 100000\n");
    EXPECT_EQ(limit(), 2);
}

TEST_F(Tree, Version2InItsOwnNamespace)
{
    write("membership", "0::/\n");
    write("fs/cpu.max", "150000 100000\n");
    EXPECT_EQ(limit(), 2);
}

TEST_F(Tree, Version1)
{
    write("membership", "9:memory:/docker/x\n4:cpu,cpuacct:/docker/x\n3:cpuset:/docker/x\n");
    write("fs/cpuset/docker/x/cpu.cfs_quota_us", "100000\n"); // another controller: not read
    write("fs/cpuset/docker/x/cpu.cfs_period_us", "100000\n");
    write("fs/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    write("fs/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(limit(), 0);
    write("fs/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "250000\n");
    write("fs/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(limit(), 3);
    write("fs/cpu/cpu.cfs_quota_us", "200000\n"); // the other usual name of the mount
    write("fs/cpu/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(limit(), 2);
}

TEST_F(Tree, OddMemberships)
{
    EXPECT_EQ(limit(), 0);
    for (const char *text : {"", "\n", "nonsense", "0:\n", "0::relative\n", "::\n", ":::::\n"}) {
        write("membership", text);
        EXPECT_EQ(limit(), 0) << text;
    }
}

TEST(Cpu, CountFollowsAffinity)
{
    cpu_set_t before;
    ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
    int count = cpu_count(), capacity = cpu_capacity();
    EXPECT_GE(count, 1);
    EXPECT_LE(count, CPU_COUNT(&before));
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before)) CPU_SET(i, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(cpu_count(), 1);
    EXPECT_EQ(cpu_capacity(), capacity) << "being pinned changes nothing for the host";
    ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
    EXPECT_EQ(cpu_count(), count);
}

TEST(Cpu, CacheSizeIsPlausible)
{
    EXPECT_GE(cpu_cache_size(), (size_t)64 << 10);
    EXPECT_LE(cpu_cache_size(), (size_t)4 << 30);
}

} // namespace
