/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hosts: network namespaces joined by two veth pairs. Needs root and `ip`; says so and skips otherwise.
 *
 *   left   q0 10.77.0.1, fd77::1   q1 10.78.0.1
 *   right  q0 10.77.0.2, fd77::2   q1 10.78.0.2
 */
#ifndef QUOIT_TEST_TCP_NAMESPACES_H
#define QUOIT_TEST_TCP_NAMESPACES_H

#include "tcp_harness.h"

#include <cstdlib>
#include <fstream>

namespace tcp_test {

inline bool shell(const std::string &command) { return system((command + " 2>/dev/null").c_str()) == 0; }

class TcpNamespace : public testing::Test {
protected:
    void SetUp() override
    {
        if (geteuid() != 0) GTEST_SKIP() << "needs root to make network namespaces";
        home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        std::string stem = "quoit" + std::to_string(getpid());
        left = stem + "l", right = stem + "r";
        if (!shell("ip netns add " + left) || !shell("ip netns add " + right)) GTEST_SKIP() << "cannot make network namespaces with ip";
        made = true;
        for (int i = 0; i < 2; i++) {
            std::string device = "q" + std::to_string(i), net = std::to_string(77 + i);
            if (!shell("ip -n " + left + " link add " + device + " type veth peer name " + device + " netns " + right))
                GTEST_SKIP() << "this kernel has no veth";
            for (int side = 1; side <= 2; side++) {
                std::string in = "ip -n " + (side == 1 ? left : right) + " ", host = std::to_string(side);
                ASSERT_TRUE(shell(in + "addr add 10." + net + ".0." + host + "/24 dev " + device));
                if (i == 0) shell(in + "addr add fd77::" + host + "/64 dev " + device + " nodad");
                ASSERT_TRUE(shell(in + "link set " + device + " up"));
                ASSERT_TRUE(shell(in + "link set lo up"));
            }
        }
        at_left = open(("/var/run/netns/" + left).c_str(), O_RDONLY | O_CLOEXEC);
        at_right = open(("/var/run/netns/" + right).c_str(), O_RDONLY | O_CLOEXEC);
        ASSERT_GE(at_left, 0);
        ASSERT_GE(at_right, 0);
    }
    void TearDown() override
    {
        if (home >= 0 && setns(home, CLONE_NEWNET) != 0) abort();
        for (int fd : {home, at_left, at_right})
            if (fd >= 0) ::close(fd);
        if (made) shell("ip netns del " + left), shell("ip netns del " + right);
    }
    /* Bytes this device of the left host has sent; its counters lie in /proc/net/dev, which shows the reader's namespace. */
    uint64_t sent_by(const std::string &device)
    {
        EXPECT_EQ(0, setns(at_left, CLONE_NEWNET));
        std::ifstream file("/proc/thread-self/net/dev");
        for (std::string line; std::getline(file, line);) {
            size_t colon = line.find(':');
            if (colon == std::string::npos || line.substr(0, colon).find(device) == std::string::npos) continue;
            std::istringstream numbers(line.substr(colon + 1));
            uint64_t value = 0;
            for (int i = 0; i < 9; i++) numbers >> value;
            return value;
        }
        ADD_FAILURE() << "no device " << device;
        return 0;
    }

    std::string left, right;
    int home = -1, at_left = -1, at_right = -1;
    bool made = false;
};

} // namespace tcp_test

#endif
