/* SPDX-License-Identifier: Apache-2.0 */
/* Two hosts, joined by two cables: which interface carries the bytes, addresses without a route, a cable that is cut. */
#include "tcp_namespaces.h"

using namespace tcp_test;

namespace {

tcp_times_t short_silence()
{
    tcp_times_t times = TCP_TIMES_DEFAULT;
    times.silence = 2000;
    return times;
}

} // namespace

TEST_F(TcpNamespace, TheInterfaceThatWasChosenCarriesTheBytes)
{
    struct { const char *pattern, *address, *device, *other; } cases[] = {
        {"q1", "10.78.0.2", "q1", "q0"}, {"q0", "10.77.0.2", "q0", "q1"}, {"10.78.0.0/16", "10.78.0.2", "q1", "q0"},
        {"^q0,lo", "10.78.0.2", "q1", "q0"}, {"fd77::/64", "[fd77::2]", "q0", "q1"}, {"", "10.77.0.2", "q0", "q1"}};
    for (auto &one : cases) {
        Node a(1, {{"INTERFACE", one.pattern}}, TCP_TIMES_DEFAULT, at_left), b(2, {{"INTERFACE", one.pattern}}, TCP_TIMES_DEFAULT, at_right);
        ASSERT_EQ(QUOIT_OK, a.open_status) << a.open_text;
        ASSERT_EQ(QUOIT_OK, b.open_status) << b.open_text;
        a.trust(), b.trust();
        uint64_t before = sent_by(one.device), elsewhere = sent_by(one.other);
        quoit_endpoint_t *ab = a.connect(b), *ba = b.connect(a);
        ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS && status_of(ba) != QUOIT_IN_PROGRESS; }));
        ASSERT_EQ(QUOIT_OK, status_of(ab)) << error_text();
        std::string description = transport_tcp.describe(ab);
        EXPECT_EQ(0u, description.find("tcp " + std::string(one.address) + ":")) << one.pattern << ": " << description;
        EXPECT_NE(description.find(std::string(" via ") + one.device + ", 2 sockets"), std::string::npos) << description;
        Pair pair{a, b, ab, ba};
        ASSERT_TRUE(pair.exchange(4000000));
        EXPECT_GE(sent_by(one.device) - before, 4000000u) << one.pattern;
        EXPECT_LT(sent_by(one.other) - elsewhere, 100000u) << one.pattern;
        transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
        run({&a, &b}, [&] { return list_is_empty(&a.inner()->base.all) && list_is_empty(&b.inner()->base.all); }, 2000);
    }
}

TEST_F(TcpNamespace, AnAddressWithoutRouteIsPassedOverAndNamed)
{
    Node a(1, {{"INTERFACE", "q0"}}, TCP_TIMES_DEFAULT, at_left), b(2, {{"INTERFACE", "q0"}, {"IP_FAMILY", "4"}}, TCP_TIMES_DEFAULT, at_right);
    a.trust(), b.trust();
    ip_name_t nowhere = {};
    nowhere.v4.sin_family = AF_INET;
    inet_pton(AF_INET, "10.99.0.1", &nowhere.v4.sin_addr);
    ip_name_set_port(&nowhere, 4123);
    quoit_endpoint_t *ab = a.connect_to(b.id, address_of({nowhere, b.listens_on()})), *lost = a.connect_to({9, 9}, address_of({nowhere}), 300);
    ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS && status_of(lost) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(QUOIT_OK, status_of(ab)) << error_text();
    EXPECT_EQ(QUOIT_ERR_TIMEOUT, status_of(lost));
    EXPECT_NE(std::string(error_text()).find("10.99.0.1:4123 (Network is unreachable)"), std::string::npos) << error_text();
    transport_tcp.disconnect(ab), transport_tcp.disconnect(lost);
}

TEST_F(TcpNamespace, LinkLocalAddressesWorkWhereTheInterfaceIsNamed)
{
    ASSERT_TRUE(shell("ip -n " + left + " addr flush dev q0 scope global") && shell("ip -n " + right + " addr flush dev q0 scope global"));
    for (auto &host : {left, right}) shell("ip netns exec " + host + " sysctl -q net.ipv6.conf.q0.accept_dad=0");
    for (auto &host : {left, right}) {
        auto begin = Clock::now();
        while (!shell("test -z \"$(ip -n " + host + " -6 addr show dev q0 tentative)\"") && elapsed_ms(begin) < 5000) usleep(20000);
    }
    Node a(1, {{"INTERFACE", "q0"}, {"IP_FAMILY", "6"}}, TCP_TIMES_DEFAULT, at_left),
        b(2, {{"INTERFACE", "q0"}, {"IP_FAMILY", "6"}}, TCP_TIMES_DEFAULT, at_right);
    if (a.open_status != QUOIT_OK || b.open_status != QUOIT_OK) GTEST_SKIP() << "no IPv6 here: " << a.open_text << b.open_text;
    a.trust(), b.trust();
    quoit_endpoint_t *ab = a.connect(b);
    ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(QUOIT_OK, status_of(ab)) << error_text();
    transport_tcp.disconnect(ab);
}

TEST_F(TcpNamespace, ACutCableIsNoticedInTime)
{
    for (bool sending : {true, false}) {
        Node a(1, {{"INTERFACE", "q1"}}, short_silence(), at_left), b(2, {{"INTERFACE", "q1"}}, short_silence(), at_right);
        a.trust(), b.trust();
        quoit_endpoint_t *ab = a.connect(b), *ba = b.connect(a);
        ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS && status_of(ba) != QUOIT_IN_PROGRESS; }));
        ASSERT_EQ(QUOIT_OK, status_of(ab)) << error_text();
        std::string data(8 << 20, 'd'), room(8 << 20, 'r');
        quoit_transfer_t transfer = {}, waiting = {};
        ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, {1, 1}, room.data(), room.size(), &waiting));
        run_for({&a, &b}, 50);
        ASSERT_TRUE(shell("ip -n " + right + " link set q1 down"));
        auto begin = Clock::now();
        if (sending) {
            ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 1}, data.data(), data.size(), &transfer));
        }
        ASSERT_TRUE(run({&a, &b}, [&] { return a.closed() != nullptr; }, 10000)) << (sending ? "sending" : "waiting");
        EXPECT_GE(elapsed_ms(begin), 1500);
        EXPECT_LT(a.closed()->status, 0);
        EXPECT_NE(a.closed()->text.find("rank 2 (testhost, pid 1)"), std::string::npos) << a.closed()->text;
        EXPECT_NE(a.closed()->text.find("10.78.0.2:"), std::string::npos) << a.closed()->text;
        EXPECT_NE(a.closed()->text.find("cut"), std::string::npos) << a.closed()->text;
        EXPECT_EQ(sending, transfer.status < 0);
        ASSERT_TRUE(run({&a, &b}, [&] { return b.closed() != nullptr; }, 10000)) << "the other side";
        EXPECT_LT(waiting.status, 0);
        transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
        ASSERT_TRUE(shell("ip -n " + right + " link set q1 up"));
    }
}
