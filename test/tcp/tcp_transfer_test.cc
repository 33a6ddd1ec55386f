/* SPDX-License-Identifier: Apache-2.0 */
/* Two TCP transports over loopback: messages of all sizes, several sockets, goodbyes, and ends without one. */
#include "tcp_harness.h"

#include <sys/epoll.h>

using namespace tcp_test;

namespace {

const Settings IPV4 = {{"INTERFACE", "lo"}, {"IP_FAMILY", "4"}};

tcp_times_t short_times(int silence)
{
    tcp_times_t times = TCP_TIMES_DEFAULT;
    times.silence = silence;
    return times;
}

uint64_t socket_bytes(tcp_socket_t *socket)
{
    struct tcp_info_prefix { /* the fields up to tcpi_bytes_acked, as <linux/tcp.h> lays them out */
        uint8_t bytes[8];
        uint32_t words[24];
        uint64_t pacing, max_pacing, bytes_acked, bytes_received;
    } info = {};
    socklen_t size = sizeof info;
    if (getsockopt(socket->fd, IPPROTO_TCP, 11 /* TCP_INFO */, &info, &size) != 0) return 0;
    return info.bytes_acked + info.bytes_received;
}

} // namespace

TEST(TcpTransfer, SizesFromNothingToEightMebibytesBothWays)
{
    Node a(1), b(2);
    ASSERT_EQ(QUOIT_OK, a.open_status) << a.open_text;
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    Pair pair{a, b, ab, ba};
    for (size_t length : {0u, 1u, 2u, 63u, 64u, 65u, 1000u, 8191u, 8192u, 8193u, 65536u, 262143u, 262144u, 262145u, 1000003u, 8u << 20})
        ASSERT_TRUE(pair.exchange(length));
    uint64_t sent, received;
    transport_tcp.count(ab, &sent, &received);
    EXPECT_GE(sent, 10000000u);
    EXPECT_GE(received, 10000000u);
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}

TEST(TcpTransfer, EverySocketOfTheConnectionCarriesBytes)
{
    for (int sockets : {1, 2, 5, 16}) {
        Settings settings = IPV4;
        settings["TCP_SOCKETS"] = std::to_string(sockets);
        Node a(1, settings), b(2, settings);
        a.trust(), b.trust();
        quoit_endpoint_t *ab, *ba;
        ASSERT_TRUE(join(a, b, &ab, &ba));
        Pair pair{a, b, ab, ba};
        for (int i = 0; i < 4; i++) ASSERT_TRUE(pair.exchange(4u << 20));
        auto *endpoint = reinterpret_cast<tcp_endpoint_t *>(ab);
        ASSERT_EQ(sockets, endpoint->pipe_count);
        for (int i = 0; i < sockets; i++) EXPECT_GE(socket_bytes(endpoint->pipes[i]), 1u << 20) << "socket " << i << " of " << sockets;
        std::string expected = ", " + std::to_string(sockets) + (sockets == 1 ? " socket" : " sockets");
        EXPECT_NE(std::string(transport_tcp.describe(ab)).find("via lo" + expected), std::string::npos) << transport_tcp.describe(ab);
        transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
    }
}

TEST(TcpTransfer, TheSmallerLimitsOfBothSidesHold)
{
    Settings large = IPV4, small = IPV4;
    large["TCP_SOCKETS"] = "4", large["EAGER_LIMIT"] = "64K", large["EAGER_POOL"] = "4M", large["SEGMENT_SIZE"] = "1M";
    small["TCP_SOCKETS"] = "3", small["EAGER_LIMIT"] = "1K", small["EAGER_POOL"] = "64K", small["SEGMENT_SIZE"] = "4K";
    for (int swapped = 0; swapped < 2; swapped++) {
        Node a(1, swapped ? small : large), b(2, swapped ? large : small);
        a.trust(), b.trust();
        quoit_endpoint_t *ab, *ba;
        ASSERT_TRUE(join(a, b, &ab, &ba));
        for (auto *endpoint : {reinterpret_cast<tcp_endpoint_t *>(ab), reinterpret_cast<tcp_endpoint_t *>(ba)}) {
            EXPECT_EQ(3, endpoint->pipe_count);
            EXPECT_EQ(1024u, endpoint->limits.eager_limit);
            EXPECT_EQ(65536u, endpoint->limits.eager_pool);
            EXPECT_EQ(4096u, endpoint->limits.segment_size);
        }
        Pair pair{a, b, ab, ba};
        for (size_t length : {100u, 1024u, 1025u, 100000u, 3000000u}) ASSERT_TRUE(pair.exchange(length));
        transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
    }
}

/* All that its sender may send arrives in one call of progress, before a notice of it is taken; nothing else moves the receiver. */
TEST(TcpTransfer, WhoOnlyTakesNoticesGivesTheirCreditBack)
{
    Settings little = IPV4;
    little["EAGER_LIMIT"] = "1K", little["EAGER_POOL"] = "64K";
    Node a(1, little), b(2, little);
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    const std::string text(1000, 'n');
    size_t sent = 0;
    for (int round = 0; round < 4; round++) {
        size_t before = sent;
        EXPECT_TRUE(run({&a, &b}, [&] {
            while (transport_tcp.notify(ab, text.data(), text.size()) == QUOIT_OK) sent++;
            return sent > before;
        }, 3000)) << "no credit after " << sent << " notices";
        ASSERT_TRUE(run({&a}, [&] { return transport_tcp.idle(a.transport); }));
    }
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}

TEST(TcpTransfer, TransfersMayBeginBeforeTheConnectionStands)
{
    Node a(1), b(2);
    a.trust(), b.trust();
    quoit_endpoint_t *ab = a.connect(b), *ba = b.connect(a);
    Pair pair{a, b, ab, ba};
    ASSERT_EQ(QUOIT_IN_PROGRESS, status_of(ab));
    EXPECT_TRUE(pair.exchange(3000000));
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}

TEST(TcpTransfer, OverIpv6Loopback)
{
    Node a(1, {{"INTERFACE", "lo"}, {"IP_FAMILY", "6"}});
    if (a.open_status != QUOIT_OK) GTEST_SKIP() << "no IPv6 on this machine: " << a.open_text;
    Node b(2, {{"INTERFACE", "lo"}, {"IP_FAMILY", "6"}});
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    EXPECT_NE(std::string(transport_tcp.describe(ab)).find("[::1]:"), std::string::npos) << transport_tcp.describe(ab);
    Pair pair{a, b, ab, ba};
    for (size_t length : {0u, 5u, 8193u, 5000000u}) ASSERT_TRUE(pair.exchange(length));
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}

TEST(TcpTransfer, NoticesOfAPeerThatNobodyAskedFor)
{
    Node a(1), b(2);
    a.trust(), b.trust();
    quoit_endpoint_t *ab = a.connect(b);
    for (int i = 0; i < 50; i++) {
        std::string text = "notice " + std::to_string(i);
        ASSERT_EQ(QUOIT_OK, transport_tcp.notify(ab, text.data(), text.size())) << error_text();
    }
    ASSERT_TRUE(run({&a, &b}, [&] { return b.notices().size() == 50; }));
    for (int i = 0; i < 50; i++) EXPECT_EQ("notice " + std::to_string(i), b.notices()[(size_t)i]);
    EXPECT_EQ(a.id.low, b.events[0].peer.low);
    /* Asked for later, it is the same endpoint, and counted. */
    quoit_endpoint_t *ba = b.connect(a), *again = b.connect(a);
    EXPECT_EQ(b.events[0].endpoint, ba);
    EXPECT_EQ(ba, again);
    EXPECT_EQ(QUOIT_OK, status_of(ba));
    Pair pair{a, b, ab, ba};
    EXPECT_TRUE(pair.exchange(100000));
    transport_tcp.disconnect(again);
    EXPECT_TRUE(pair.exchange(100000)) << "one connect is left";
    transport_tcp.disconnect(ba);
    ASSERT_TRUE(run({&a, &b}, [&] { return a.closed() != nullptr; }));
    EXPECT_EQ(QUOIT_OK, a.closed()->status) << a.closed()->text;
    transport_tcp.disconnect(ab);
}

TEST(TcpTransfer, GoodbyeComesAfterTheLastByteAndIsNoFailure)
{
    for (int round = 0; round < 20; round++) {
        Node a(1), b(2);
        a.trust(), b.trust();
        quoit_endpoint_t *ab, *ba;
        ASSERT_TRUE(join(a, b, &ab, &ba));
        std::string data = pattern(8000, 3), got(8000, 'x');
        quoit_transfer_t sent = {}, received = {};
        ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 1}, data.data(), data.size(), &sent));
        ASSERT_TRUE(run({&a}, [&] { return sent.status != QUOIT_IN_PROGRESS; }));
        transport_tcp.disconnect(ab);
        ASSERT_TRUE(run({&a}, [&] { return transport_tcp.idle(a.transport); })) << "round " << round;
        a.close(); /* the peer has not even looked yet */
        run_for({&b}, 2);
        ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, {1, 1}, got.data(), got.size(), &received));
        ASSERT_TRUE(run({&b}, [&] { return received.status != QUOIT_IN_PROGRESS; }));
        EXPECT_EQ(QUOIT_OK, received.status) << "round " << round << ": " << error_text();
        EXPECT_EQ(data, got);
        ASSERT_TRUE(run({&b}, [&] { return b.closed() != nullptr; }));
        EXPECT_EQ(QUOIT_OK, b.closed()->status) << b.closed()->text;
        EXPECT_NE(QUOIT_OK, status_of(ba));
        transport_tcp.disconnect(ba);
    }
}

TEST(TcpTransfer, ALeavingPeerIsNotDisturbedByBytesThatItDoesNotRead)
{
    Node a(1), b(2);
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    /* b floods a with notices which a does not read; a's last message fills its own send buffers, and it leaves at once. */
    std::string last = pattern(1 << 20, 9), got(1 << 20, 'x'), small(100, 'n');
    quoit_transfer_t sent = {}, received = {};
    ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, {1, 1}, got.data(), got.size(), &received));
    run_for({&a, &b}, 30); /* the grant */
    for (int i = 0; i < 2000; i++) ASSERT_EQ(QUOIT_OK, transport_tcp.notify(ba, small.data(), small.size()));
    while (tcp_endpoint_flush(reinterpret_cast<tcp_endpoint_t *>(ba)) > 0) {}
    ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 1}, last.data(), last.size(), &sent));
    while (tcp_endpoint_flush(reinterpret_cast<tcp_endpoint_t *>(ab)) > 0) {}
    ASSERT_EQ(QUOIT_OK, sent.status) << "the kernel's send buffers are smaller than this test needs";
    a.close();
    ASSERT_TRUE(run({&b}, [&] { return received.status != QUOIT_IN_PROGRESS && b.closed() != nullptr; }));
    EXPECT_EQ(QUOIT_OK, received.status);
    EXPECT_TRUE(last == got);
    EXPECT_EQ(QUOIT_OK, b.closed()->status) << b.closed()->text;
    transport_tcp.disconnect(ba);
}

TEST(TcpTransfer, AnEndWithoutGoodbyeNamesThePeerAndEndsItsTransfers)
{
    Node a(1), b(2);
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    std::string buffer(1 << 20, 'x'), data(1 << 20, 'y');
    quoit_transfer_t receiving = {}, sending = {};
    ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ab, {1, 1}, buffer.data(), buffer.size(), &receiving));
    ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 2}, data.data(), data.size(), &sending));
    run_for({&a, &b}, 5);
    char name[IP_NAME_CAPACITY];
    std::string where = ip_name_text(&reinterpret_cast<tcp_endpoint_t *>(ab)->pipes[0]->remote, name);
    auto *dying = reinterpret_cast<tcp_endpoint_t *>(ba);
    for (int i = 0; i < dying->pipe_count; i++) shutdown(dying->pipes[i]->fd, SHUT_RDWR); /* as a killed process does */
    ASSERT_TRUE(run({&a}, [&] { return a.closed() != nullptr; }));
    EXPECT_NE(QUOIT_IN_PROGRESS, receiving.status);
    EXPECT_NE(QUOIT_IN_PROGRESS, sending.status);
    EXPECT_LT(receiving.status, 0);
    EXPECT_LT(sending.status, 0);
    std::string text = a.closed()->text;
    EXPECT_LT(a.closed()->status, 0);
    EXPECT_EQ(0u, text.find("tcp: rank 2 (testhost, pid 1)")) << text;
    EXPECT_NE(text.find(where), std::string::npos) << text;
    EXPECT_NE(text.find("without goodbye"), std::string::npos) << text;
    EXPECT_NE(QUOIT_OK, status_of(ab));
    EXPECT_NE(std::string(error_text()).find("without goodbye"), std::string::npos);
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}

TEST(TcpTransfer, ConnectAgainAfterGoodbye)
{
    Node a(1), b(2);
    a.trust(), b.trust();
    for (int round = 0; round < 30; round++) {
        quoit_endpoint_t *ab, *ba;
        ASSERT_TRUE(join(a, b, &ab, &ba)) << "round " << round;
        Pair pair{a, b, ab, ba};
        ASSERT_TRUE(pair.exchange(20000)) << "round " << round;
        transport_tcp.disconnect(round % 2 ? ab : ba);
        /* Sometimes the other side has not noticed the goodbye yet. */
        auto &other = round % 2 ? b : a;
        ASSERT_TRUE(run({&a, &b}, [&] { return other.closed() != nullptr; })) << "round " << round;
        transport_tcp.disconnect(round % 2 ? ba : ab);
        a.events.clear(), b.events.clear();
    }
    ASSERT_TRUE(run({&a, &b}, [&] { return list_is_empty(&a.inner()->base.all) && list_is_empty(&b.inner()->base.all); }))
        << "endpoints are freed";
}

TEST(TcpTransfer, BothDisconnectAtOnce)
{
    Node a(1), b(2);
    a.trust(), b.trust();
    for (int round = 0; round < 50; round++) {
        quoit_endpoint_t *ab, *ba;
        ASSERT_TRUE(join(a, b, &ab, &ba)) << "round " << round;
        transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
        ASSERT_TRUE(run({&a, &b}, [&] { return list_is_empty(&a.inner()->base.all) && list_is_empty(&b.inner()->base.all); }))
            << "round " << round;
    }
}

TEST(TcpTransfer, CancelledTransfersDoNotDisturbOthers)
{
    Node a(1), b(2);
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    Pair pair{a, b, ab, ba};
    for (uint64_t round = 0; round < 20; round++) {
        std::string from(4 << 20, 'f'), to(4 << 20, 't');
        quoit_transfer_t sending = {}, receiving = {};
        ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {100 + round, 1}, from.data(), from.size(), &sending));
        ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, {100 + round, 1}, to.data(), to.size(), &receiving));
        for (uint64_t i = 0; i < round; i++) a.progress(), b.progress();
        transport_tcp.cancel(round % 2 ? a.transport : b.transport, 100 + round);
        transport_tcp.cancel(round % 2 ? b.transport : a.transport, 100 + round);
        EXPECT_NE(QUOIT_IN_PROGRESS, sending.status);
        EXPECT_NE(QUOIT_IN_PROGRESS, receiving.status);
        std::fill(from.begin(), from.end(), '!'), std::fill(to.begin(), to.end(), '!');
        ASSERT_TRUE(pair.exchange(50000)) << "round " << round;
        EXPECT_EQ(to, std::string(4 << 20, '!')) << "written to after cancel, round " << round;
    }
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}

TEST(TcpTransfer, AnIdleTransportIsSilent)
{
    Node a(1, IPV4, short_times(400)), b(2, IPV4, short_times(400));
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    Pair pair{a, b, ab, ba};
    ASSERT_TRUE(pair.exchange(1000000));
    run_for({&a, &b}, 300); /* the last look at what is acknowledged */
    EXPECT_EQ(QUOIT_OK, transport_tcp.arm(a.transport));
    EXPECT_EQ(CLOCK_NEVER, a.inner()->timer_at) << "a timer runs though nothing is pending";
    pollfd descriptor = {transport_tcp.descriptor(a.transport), POLLIN, 0};
    EXPECT_EQ(0, poll(&descriptor, 1, 500)) << "the descriptor woke an idle transport";
    EXPECT_EQ(0, transport_tcp.progress(a.transport));
    transport_tcp.disarm(a.transport);
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}

TEST(TcpTransfer, APeerThatDoesNotReadIsNotTakenForLost)
{
    Node a(1, IPV4, short_times(1500)), b(2, IPV4, short_times(1500));
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    std::string from = pattern(64u << 20, 5), to(64u << 20, 't');
    quoit_transfer_t sending = {}, receiving = {};
    ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, {1, 1}, to.data(), to.size(), &receiving));
    ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 1}, from.data(), from.size(), &sending));
    run_for({&b}, 5);
    run_for({&a}, 6000); /* the window is closed for many times the limit */
    EXPECT_EQ(QUOIT_IN_PROGRESS, sending.status);
    EXPECT_EQ(nullptr, a.closed()) << a.closed()->text;
    ASSERT_TRUE(run({&a, &b}, [&] { return sending.status != QUOIT_IN_PROGRESS && receiving.status != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(QUOIT_OK, receiving.status);
    EXPECT_TRUE(from == to);
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}
