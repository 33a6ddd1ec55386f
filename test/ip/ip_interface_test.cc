/* SPDX-License-Identifier: Apache-2.0 */
/* Which addresses are chosen on invented machines, and that this machine can be asked. */
#include "test/tcp/tcp_harness.h"

#include <cstdlib>

#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

using namespace tcp_test;

namespace {

ip_interface_t interface(const char *name, const char *ip, unsigned flags = IFF_UP | IFF_RUNNING)
{
    ip_interface_t one = {};
    strcpy(one.name, name);
    one.flags = flags;
    if (inet_pton(AF_INET, ip, &one.address.v4.sin_addr) == 1)
        one.address.any.sa_family = AF_INET;
    else if (inet_pton(AF_INET6, ip, &one.address.v6.sin6_addr) == 1)
        one.address.any.sa_family = AF_INET6;
    return one;
}

const unsigned LOOPBACK = IFF_UP | IFF_RUNNING | IFF_LOOPBACK;

std::vector<ip_interface_t> machine()
{
    return {interface("lo", "127.0.0.1", LOOPBACK),
            interface("docker0", "172.17.0.1"),
            interface("eth0", "10.1.2.3"),
            interface("eth1", "10.2.2.3"),
            interface("eth10", "10.3.2.3"),
            interface("ib0", "192.168.7.3"),
            interface("eth9", "10.9.2.3", 0),
            interface("br-12ab", "172.18.0.1"),
            interface("veth77", "172.19.0.1"),
            interface("eno1", "10.4.2.3", IFF_UP), /* no carrier */
            interface("lo", "::1", LOOPBACK),
            interface("eth0", "fd00::3"),
            interface("eth0", "fe80::1"),
            interface("ib0", "fd07::3")};
}

struct Choice {
    quoit_status_t status;
    std::string names, text; /* "eth0 10.1.2.3, lo 127.0.0.1" */
};

Choice choose(const std::string &pattern, int family = AF_UNSPEC, const char *route = nullptr, int capacity = 32,
              std::vector<ip_interface_t> all = machine())
{
    ip_interface_t chosen[32];
    int count = 0;
    ip_interface_wish_t wish = {"QUOIT_INTERFACE", pattern.c_str(), family, nullptr};
    ip_interface_t via;
    if (route) {
        via = interface("route", route);
        wish.route = &via.address;
    }
    Choice choice = {ip_interface_choose(all.data(), (int)all.size(), &wish, chosen, capacity, &count), "", ""};
    if (choice.status != QUOIT_OK) {
        choice.text = error_text();
        return choice;
    }
    for (int i = 0; i < count; i++) {
        char text[IP_NAME_CAPACITY];
        choice.names += std::string(i ? ", " : "") + chosen[i].name + " " + ip_name_text(&chosen[i].address, text);
    }
    return choice;
}

} // namespace

TEST(IpInterface, UnsetRealOnesFirstThenVirtualThenLoopback)
{
    EXPECT_EQ("eth0 10.1.2.3, eth1 10.2.2.3, eth10 10.3.2.3, ib0 192.168.7.3, eth0 fd00::3, ib0 fd07::3, docker0 172.17.0.1, "
              "br-12ab 172.18.0.1, veth77 172.19.0.1, eno1 10.4.2.3, lo 127.0.0.1, lo ::1",
              choose("").names);
    EXPECT_EQ("eth0 10.1.2.3, eth1 10.2.2.3", choose("", AF_INET, nullptr, 2).names);
    EXPECT_EQ("lo 127.0.0.1", choose("", AF_UNSPEC, nullptr, 4, {interface("lo", "127.0.0.1", LOOPBACK)}).names);
}

TEST(IpInterface, TheRouteToTheRendezvousGoesFirst)
{
    EXPECT_EQ("ib0 192.168.7.3, eth0 10.1.2.3", choose("", AF_INET, "192.168.7.3", 2).names);
    EXPECT_EQ("docker0 172.17.0.1, eth0 10.1.2.3", choose("", AF_INET, "172.17.0.1", 2).names);
    EXPECT_EQ("eth0 10.1.2.3, eth1 10.2.2.3", choose("", AF_INET, "127.0.0.1", 2).names) << "loopback says nothing";
    EXPECT_EQ("eth0 10.1.2.3, eth1 10.2.2.3", choose("", AF_INET, "203.0.113.9", 2).names);
}

/* Two sockets: eth0 (the route's) and eth1 at the other one, eth2 and eth3 near; all but eth3 in one network. */
TEST(IpInterface, NearerDevicesGoFirstWhereTheyReachAsMuch)
{
    auto place = [](const char *name, const char *ip, int distance, uint32_t mbps) {
        ip_interface_t one = interface(name, ip);
        one.bits = 24;
        one.distance = distance;
        one.mbps = mbps;
        return one;
    };
    const std::vector<ip_interface_t> all = {place("eth0", "10.1.2.3", 1, 25000), place("eth1", "10.1.2.4", 1, 25000), place("eth2", "10.1.2.5", 0, 25000),
                                              place("eth3", "10.7.2.3", 0, 25000)};
    EXPECT_EQ("eth2 10.1.2.5, eth0 10.1.2.3, eth3 10.7.2.3, eth1 10.1.2.4", choose("", AF_INET, "10.1.2.3", 32, all).names);
    EXPECT_EQ("eth2 10.1.2.5, eth3 10.7.2.3, eth0 10.1.2.3, eth1 10.1.2.4", choose("", AF_INET, nullptr, 32, all).names) << "no route is known";
    EXPECT_EQ("eth0 10.1.2.3, eth1 10.1.2.4, eth2 10.1.2.5", choose("10.1.0.0/16", AF_INET, nullptr, 32, all).names) << "rails come in the same order on all ranks";
    std::vector<ip_interface_t> slow = all;
    slow[2].mbps = 10000;
    EXPECT_EQ("eth0 10.1.2.3", choose("", AF_INET, "10.1.2.3", 1, slow).names) << "near, but of less than half the rate";
}

TEST(IpInterface, Names)
{
    EXPECT_EQ("eth1 10.2.2.3", choose("eth1").names) << "not eth10";
    EXPECT_EQ("ib0 192.168.7.3, ib0 fd07::3", choose("ib0").names);
    EXPECT_EQ("lo 127.0.0.1, lo ::1", choose("lo").names);
    EXPECT_EQ("eno1 10.4.2.3", choose("eno1").names);
    EXPECT_EQ("eth1 10.2.2.3", choose("=eth1").names);
}

TEST(IpInterface, Prefixes)
{
    EXPECT_EQ("eth1 10.2.2.3, eth10 10.3.2.3", choose("eth1*").names);
    EXPECT_EQ("eth0 10.1.2.3, eth1 10.2.2.3, eth10 10.3.2.3", choose("eth*", AF_INET).names);
    EXPECT_EQ("eth0 10.1.2.3, eth1 10.2.2.3, eth10 10.3.2.3", choose("eth", AF_INET).names) << "a name without exact fit is a prefix";
    EXPECT_EQ(QUOIT_ERR_INVALID, choose("=eth").status);
}

TEST(IpInterface, Networks)
{
    EXPECT_EQ("eth0 10.1.2.3", choose("10.1.0.0/16").names);
    EXPECT_EQ("eth0 10.1.2.3, eth1 10.2.2.3, eth10 10.3.2.3, eno1 10.4.2.3", choose("10.0.0.0/8").names);
    EXPECT_EQ("eth1 10.2.2.3, eth10 10.3.2.3", choose("10.2.0.0/15").names);
    EXPECT_EQ("ib0 192.168.7.3", choose("192.168.7.3").names);
    EXPECT_EQ("ib0 192.168.7.3", choose("192.168.7.3/32").names);
    EXPECT_EQ("eth0 fd00::3, ib0 fd07::3", choose("fd00::/8").names);
    EXPECT_EQ("ib0 fd07::3", choose("fd04::/14").names);
    EXPECT_EQ("eth0 10.1.2.3, eth1 10.2.2.3, eth10 10.3.2.3, ib0 192.168.7.3, docker0 172.17.0.1, br-12ab 172.18.0.1, "
              "veth77 172.19.0.1, eno1 10.4.2.3, lo 127.0.0.1",
              choose("0.0.0.0/0").names);
}

TEST(IpInterface, ListsAreInTheirUsersOrder)
{
    EXPECT_EQ("ib0 192.168.7.3, eth0 10.1.2.3, lo 127.0.0.1", choose("ib0,eth0, lo", AF_INET).names);
    EXPECT_EQ("eth1 10.2.2.3, eth0 10.1.2.3, eth10 10.3.2.3", choose("10.2.0.0/16,eth*", AF_INET).names);
    EXPECT_EQ("eth0 10.1.2.3", choose("nosuch0,eth0", AF_INET).names) << "one that is there suffices";
}

TEST(IpInterface, Exclusion)
{
    EXPECT_EQ("eth0 10.1.2.3, eth1 10.2.2.3, eth10 10.3.2.3, ib0 192.168.7.3, eno1 10.4.2.3",
              choose("^docker0,br-*,veth,lo", AF_INET).names);
    EXPECT_EQ("ib0 192.168.7.3, docker0 172.17.0.1, br-12ab 172.18.0.1, veth77 172.19.0.1, lo 127.0.0.1", choose("^10.0.0.0/8", AF_INET).names);
    EXPECT_EQ("eth1 10.2.2.3, eth10 10.3.2.3, ib0 192.168.7.3", choose("^=eth0", AF_INET, nullptr, 3).names);
    Choice none = choose("^0.0.0.0/0,::/0");
    EXPECT_EQ(QUOIT_ERR_NOT_FOUND, none.status);
    EXPECT_NE(none.text.find("leaves no interface"), std::string::npos) << none.text;
}

TEST(IpInterface, Families)
{
    EXPECT_EQ("eth0 fd00::3, ib0 fd07::3, lo ::1", choose("", AF_INET6).names);
    Choice none = choose("eth1", AF_INET6);
    EXPECT_EQ(QUOIT_ERR_NOT_FOUND, none.status);
    EXPECT_NE(none.text.find("IPv6"), std::string::npos) << none.text;
}

TEST(IpInterface, LinkLocalAddressesOnlyWhereTheInterfaceIsNamed)
{
    EXPECT_EQ("eth0 10.1.2.3, eth0 fd00::3, eth0 fe80::1", choose("eth0").names);
    EXPECT_EQ("eth0 fd00::3, eth0 fe80::1", choose("eth0", AF_INET6).names);
    EXPECT_EQ(std::string::npos, choose("").names.find("fe80"));
    EXPECT_EQ(std::string::npos, choose("^lo").names.find("fe80"));
    EXPECT_EQ(QUOIT_ERR_NOT_FOUND, choose("fe80::/10").status);
}

TEST(IpInterface, UnknownOnesAreAnErrorThatListsWhatThereIs)
{
    Choice choice = choose("nosuch0", AF_UNSPEC, nullptr, 4,
                           {interface("lo", "127.0.0.1", LOOPBACK), interface("eth0", "10.1.2.3"), interface("eth9", "10.9.2.3", 0)});
    EXPECT_EQ(QUOIT_ERR_INVALID, choice.status);
    EXPECT_EQ("QUOIT_INTERFACE=nosuch0: no such interface; there are eth0 (10.1.2.3), eth9 (down, 10.9.2.3), lo (127.0.0.1)", choice.text);
    EXPECT_EQ("QUOIT_INTERFACE=x: no such interface; there are none", choose("x", AF_UNSPEC, nullptr, 4, {}).text);
    Choice down = choose("eth9");
    EXPECT_EQ(QUOIT_ERR_NOT_FOUND, down.status);
    EXPECT_NE(down.text.find("eth9 (down, 10.9.2.3)"), std::string::npos) << down.text;
}

TEST(IpInterface, PatternsThatCannotBeRead)
{
    for (const char *pattern : {"10.0.0.0/33", "10.0.0.0/", "10.0.0.0/x", "10.0.0/8", "fd00::/129", "eth0/8", "^", ",", "=", "^ ,",
                                "a-name-that-is-much-longer-than-any-interface-can-have-on-this-or-any-other-system"}) {
        Choice choice = choose(pattern);
        EXPECT_EQ(QUOIT_ERR_INVALID, choice.status) << pattern;
        EXPECT_NE(choice.text.find(pattern), std::string::npos) << choice.text;
    }
}

TEST(IpInterface, ThisMachine)
{
    ip_interface_t *all = nullptr;
    int count = 0;
    ASSERT_EQ(QUOIT_OK, ip_interface_scan(&all, &count)) << error_text();
    free(all);
    ip_name_t local = {};
    ASSERT_TRUE(ip_interface_route("127.0.0.1", &local));
    char text[IP_NAME_CAPACITY];
    ip_name_set_port(&local, 0);
    EXPECT_STREQ("127.0.0.1", ip_name_text(&local, text));
    EXPECT_FALSE(ip_interface_route("localhost", &local)) << "names are not looked up";
    EXPECT_FALSE(ip_interface_route(nullptr, &local));
}

TEST(IpInterface, OfTheTransport)
{
    Node unknown(1, {{"INTERFACE", "nosuch0"}});
    EXPECT_EQ(QUOIT_ERR_INVALID, unknown.open_status);
    EXPECT_EQ(0u, unknown.open_text.find("QUOIT_INTERFACE=nosuch0: no such interface; there are ")) << unknown.open_text;
    Node family(1, {{"IP_FAMILY", "5"}});
    EXPECT_EQ(QUOIT_ERR_INVALID, family.open_status);
    Node sockets(1, {{"TCP_SOCKETS", "17"}});
    EXPECT_EQ(QUOIT_ERR_INVALID, sockets.open_status);

    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    Node nccl(1, {{"IP_FAMILY", "4"}});
    ASSERT_EQ(QUOIT_OK, nccl.open_status) << nccl.open_text;
    EXPECT_EQ(1, nccl.inner()->listener_count);
    char text[IP_NAME_CAPACITY];
    ip_name_t name = nccl.listens_on();
    ip_name_set_port(&name, 0);
    EXPECT_STREQ("127.0.0.1", ip_name_text(&name, text));
    setenv("GLOO_SOCKET_IFNAME", "nosuch0", 1); /* comes first, fits nothing: as if unset */
    Node gloo(1, {{"IP_FAMILY", "4"}});
    EXPECT_EQ(QUOIT_OK, gloo.open_status) << gloo.open_text;
    Node ours(1, {{"INTERFACE", "127.0.0.0/8"}});
    ASSERT_EQ(QUOIT_OK, ours.open_status) << ours.open_text;
    EXPECT_EQ(1, ours.inner()->listener_count);
    unsetenv("GLOO_SOCKET_IFNAME");
    unsetenv("NCCL_SOCKET_IFNAME");
}

/* In a child. 0: all is well; 70: it is not allowed. */
int meet_namesakes()
{
    struct stat first, now;
    ifreq request = {};
    strcpy(request.ifr_name, "lo");
    request.ifr_flags = IFF_UP;
    auto looked_at = [] {
        ip_interface_t *all = nullptr;
        int count = -1;
        if (ip_interface_recent(&all, &count) != QUOIT_OK) return -1;
        free(all);
        return count;
    };
    for (int round = 0; round < 5; round++) {
        if (unshare(CLONE_NEWNET) != 0 || stat("/proc/thread-self/ns/net", &first) != 0) return 70;
        int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        bool up = ioctl(fd, SIOCSIFFLAGS, &request) == 0;
        close(fd);
        if (!up || looked_at() < 1) return 71;
        auto begin = Clock::now();
        do { /* until one has the number of the first, or what was seen there would be looked at again anyway */
            if (unshare(CLONE_NEWNET) != 0 || stat("/proc/thread-self/ns/net", &now) != 0) return 70;
        } while (now.st_ino != first.st_ino && elapsed_ms(begin) < 900);
        if (now.st_ino == first.st_ino && looked_at() != 0) return 72; /* nothing is up in a new one */
    }
    return 0;
}

/* A namespace may have the number of another one that is gone, whose interfaces were looked at a moment ago. */
TEST(IpInterface, ANamespaceIsNotTakenForOneThatIsGone)
{
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        alarm(60);
        _exit(meet_namesakes());
    }
    int outcome = -1;
    ASSERT_EQ(waitpid(child, &outcome, 0), child);
    if (WIFEXITED(outcome) && WEXITSTATUS(outcome) == 70) GTEST_SKIP() << "no right to make a network namespace";
    EXPECT_EQ(outcome, 0) << "72: taken for it";
}
