/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: two hosts with two cables each of which both know. Bytes are shared out by rate, counted where the kernel counts them; a cable that is
 * cut, at any time, costs one warning and no byte; both cut is the end.
 */
#include "tcp_namespaces.h"

#include <algorithm>

using namespace tcp_test;

namespace {

Settings rails(const std::string &rates = "q0=1000,q1=300")
{
    return {{"INTERFACE", "q0,q1"}, {"IP_FAMILY", "4"}, {"INTERFACE_RATES", rates}, {"TCP_SOCKETS", "2"}};
}

tcp_times_t short_times()
{
    tcp_times_t times = TCP_TIMES_DEFAULT;
    times.rail = 600;
    times.silence = 2500;
    return times;
}

class TcpRails : public TcpNamespace {
protected:
    void link(const std::string &device, const char *state) { ASSERT_TRUE(shell("ip -n " + right + " link set " + device + " " + state)); }
    /* Both directions of a cable as slow as its name says. */
    void shape(const std::string &device, const std::string &rate)
    {
        for (auto &host : {left, right})
            if (!shell("tc -n " + host + " qdisc replace dev " + device + " root tbf rate " + rate + " burst 64kb latency 50ms"))
                GTEST_SKIP() << "this kernel has no tbf";
    }
    static int warnings(const std::string &log, const std::string &part)
    {
        int count = 0;
        std::istringstream lines(log);
        for (std::string line; std::getline(lines, line);) count += line.find(part) != std::string::npos;
        return count;
    }
};

} // namespace

TEST_F(TcpRails, BytesGoInProportionToRates)
{
    shape("q0", "200mbit"), shape("q1", "60mbit"); /* the ratio of the setting; slow, so that the cables and not the processors are what counts */
    if (IsSkipped()) return;
    Node a(1, rails(), TCP_TIMES_DEFAULT, at_left), b(2, rails(), TCP_TIMES_DEFAULT, at_right);
    ASSERT_EQ(QUOIT_OK, a.open_status) << a.open_text;
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    for (auto *one : {ab, ba}) {
        std::string description = transport_tcp.describe(one);
        EXPECT_EQ(0u, description.find("tcp, 2 sockets")) << description;
        EXPECT_NE(description.find("rail q0 (10.77.0."), std::string::npos) << description;
        EXPECT_NE(description.find("rail q1 (10.78.0."), std::string::npos) << description;
        EXPECT_NE(description.find("1000 Mb/s"), std::string::npos) << description;
    }
    Pair pair{a, b, ab, ba};
    constexpr size_t LENGTH = 512 << 10, TIMES = 12;
    uint64_t before[2] = {sent_by("q0"), sent_by("q1")};
    for (size_t i = 0; i < TIMES; i++) ASSERT_TRUE(pair.exchange(LENGTH));
    double q0 = static_cast<double>(sent_by("q0") - before[0]), q1 = static_cast<double>(sent_by("q1") - before[1]);
    EXPECT_GE(q0 + q1, static_cast<double>(LENGTH * TIMES));
    EXPECT_LT(q0 + q1, 1.2 * static_cast<double>(LENGTH * TIMES)) << "nothing goes twice";
    EXPECT_NEAR(q0 / (q0 + q1), 1000.0 / 1300.0, 0.08) << q0 << " and " << q1;

    uint64_t small[2] = {sent_by("q0"), sent_by("q1")};
    for (int i = 0; i < 20; i++) ASSERT_TRUE(pair.exchange(20000));
    uint64_t both[2] = {sent_by("q0") - small[0], sent_by("q1") - small[1]};
    EXPECT_LT(std::min(both[0], both[1]), (both[0] + both[1]) / 4) << "a small message is not cut";
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
    EXPECT_TRUE(run({&a, &b}, [&] { return list_is_empty(&a.inner()->base.all) && list_is_empty(&b.inner()->base.all); }, 5000)) << "a goodbye";
}

TEST_F(TcpRails, ACableThatIsCutIsLeft)
{
    for (std::string cable : {"q0", "q1"}) { /* q0 carries what must keep its order */
        testing::internal::CaptureStderr();
        Node a(1, rails(), short_times(), at_left), b(2, rails(), short_times(), at_right);
        a.trust(), b.trust();
        quoit_endpoint_t *ab, *ba;
        bool joined = join(a, b, &ab, &ba), right_bytes = joined;
        Pair pair{a, b, ab, ba};
        if (joined) {
            constexpr size_t LENGTH = 24 << 20;
            quoit_key_t key = {9, 1};
            std::string data = pattern(LENGTH, 1), room(LENGTH, 'x');
            quoit_transfer_t transfers[2] = {};
            transport_tcp.recv(ba, key, room.data(), LENGTH, &transfers[0]);
            transport_tcp.send(ab, key, data.data(), LENGTH, &transfers[1]);
            for (int i = 0; i < 6; i++) a.progress(), b.progress();
            link(cable, "down");
            EXPECT_TRUE(run({&a, &b}, [&] { return transfers[0].status != QUOIT_IN_PROGRESS && transfers[1].status != QUOIT_IN_PROGRESS; }, LIMIT_MS));
            EXPECT_EQ(QUOIT_OK, transfers[0].status) << error_text();
            EXPECT_EQ(QUOIT_OK, transfers[1].status) << error_text();
            EXPECT_TRUE(room == data);
            for (size_t length : {size_t(100), size_t(20000), size_t(1 << 20)}) right_bytes = pair.exchange(length) && right_bytes;
            EXPECT_EQ(a.closed(), nullptr);
            EXPECT_EQ(b.closed(), nullptr);
            transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
            EXPECT_TRUE(run({&a, &b}, [&] { return list_is_empty(&a.inner()->base.all) && list_is_empty(&b.inner()->base.all); }, 5000));
        }
        std::string log = testing::internal::GetCapturedStderr();
        EXPECT_TRUE(right_bytes) << cable << "\n" << log;
        EXPECT_EQ(2, warnings(log, "rail " + cable + " (")) << "one on each host:\n" << log;
        EXPECT_EQ(1, warnings(log, "of rank 2 (testhost, pid 1) is left")) << log;
        EXPECT_EQ(1, warnings(log, "of rank 1 (testhost, pid 1) is left")) << log;
        link(cable, "up");
    }
}

TEST_F(TcpRails, ARailThatCannotBeConnectedIsPassedOver)
{
    for (std::string cable : {"q0", "q1"}) {
        testing::internal::CaptureStderr();
        Node a(1, rails(), short_times(), at_left), b(2, rails(), short_times(), at_right);
        a.trust(), b.trust();
        link(cable, "down");
        quoit_endpoint_t *ab, *ba;
        bool joined = join(a, b, &ab, &ba);
        Pair pair{a, b, ab, ba};
        bool right_bytes = joined && pair.exchange(1 << 20);
        if (joined) transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
        run({&a, &b}, [&] { return list_is_empty(&a.inner()->base.all) && list_is_empty(&b.inner()->base.all); }, 3000);
        std::string log = testing::internal::GetCapturedStderr();
        EXPECT_TRUE(joined) << log;
        EXPECT_TRUE(right_bytes) << log;
        EXPECT_GE(warnings(log, "rail " + cable + " to 10."), 1) << log;
        link(cable, "up");
    }
}

TEST_F(TcpRails, ProcessesOfOneHostAreJoinedToo)
{
    Node a(1, rails(), TCP_TIMES_DEFAULT, at_left), b(2, rails(), TCP_TIMES_DEFAULT, at_left);
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    Pair pair{a, b, ab, ba};
    EXPECT_TRUE(pair.exchange(1 << 20));
    EXPECT_NE(std::string(transport_tcp.describe(ab)).find("2 sockets rail q"), std::string::npos) << transport_tcp.describe(ab);
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}

/* A host with rails and one without use one interface. */
TEST_F(TcpRails, OneSideAloneHasNone)
{
    Node a(1, rails(), TCP_TIMES_DEFAULT, at_left), b(2, {{"INTERFACE", "q1"}, {"IP_FAMILY", "4"}}, TCP_TIMES_DEFAULT, at_right);
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    Pair pair{a, b, ab, ba};
    EXPECT_TRUE(pair.exchange(1 << 20));
    EXPECT_NE(std::string(transport_tcp.describe(ab)).find(", 2 sockets"), std::string::npos) << transport_tcp.describe(ab);
    EXPECT_EQ(std::string(transport_tcp.describe(ab)).find("rail"), std::string::npos) << transport_tcp.describe(ab);
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}

TEST_F(TcpRails, AllCutIsTheEnd)
{
    testing::internal::CaptureStderr();
    Node a(1, rails(), short_times(), at_left), b(2, rails(), short_times(), at_right);
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    bool joined = join(a, b, &ab, &ba);
    std::string data(8 << 20, 'd');
    quoit_transfer_t transfer = {};
    link("q0", "down"), link("q1", "down");
    if (joined) {
        transport_tcp.send(ab, {1, 1}, data.data(), data.size(), &transfer);
        EXPECT_TRUE(run({&a, &b}, [&] { return a.closed() != nullptr; }, 15000));
    }
    std::string log = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(joined) << log;
    ASSERT_NE(a.closed(), nullptr);
    EXPECT_EQ(QUOIT_ERR_NETWORK, a.closed()->status);
    EXPECT_NE(a.closed()->text.find("rank 2 (testhost, pid 1)"), std::string::npos) << a.closed()->text;
    EXPECT_NE(a.closed()->text.find("cut"), std::string::npos) << a.closed()->text;
    EXPECT_LT(transfer.status, 0);
    EXPECT_EQ(0, warnings(log, "is left")) << "nothing is left to go on with:\n" << log;
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}

/* The peer's process ends: that is no rail's fault, and known at once. */
TEST_F(TcpRails, APeerThatEndsIsNotTakenForARail)
{
    testing::internal::CaptureStderr();
    Node a(1, rails(), TCP_TIMES_DEFAULT, at_left), b(2, rails(), TCP_TIMES_DEFAULT, at_right);
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    bool joined = join(a, b, &ab, &ba);
    if (joined) {
        b.enter();
        for (tcp_socket_t *pipe : reinterpret_cast<tcp_endpoint_t *>(ba)->pipes)
            if (pipe != nullptr) shutdown(pipe->fd, SHUT_RDWR);
        EXPECT_TRUE(run({&a}, [&] { return a.closed() != nullptr; }, 3000));
    }
    std::string log = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(joined) << log;
    ASSERT_NE(a.closed(), nullptr);
    EXPECT_EQ(QUOIT_ERR_PEER, a.closed()->status) << a.closed()->text;
    EXPECT_EQ("", log);
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}
