/* SPDX-License-Identifier: Apache-2.0 */
/* How connections come about, or not: addresses in turn, both sides at once, deadlines, secrets. */
#include "tcp_harness.h"

#include <random>

using namespace tcp_test;

namespace {

const Settings IPV4 = {{"INTERFACE", "lo"}, {"IP_FAMILY", "4"}};

std::string text_of(const ip_name_t &name)
{
    char text[IP_NAME_CAPACITY];
    return ip_name_text(&name, text);
}

/* A listening socket whose queue is full: who connects gets no answer at all. */
struct BlackHole {
    StrayServer server{false};
    std::vector<int> fillers;
    BlackHole()
    {
        listen(server.fd, 0);
        for (int i = 0; i < 4; i++) {
            int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
            (void)!connect(fd, &server.name.any, sizeof server.name.v4);
            fillers.push_back(fd);
        }
        usleep(50000);
    }
    ~BlackHole()
    {
        for (int fd : fillers) ::close(fd);
    }
};

/* A connection waits for the secret of its job. */
bool wants_secret(const Node &node)
{
    const list_t &strangers = node.inner()->strangers;
    for (const list_t *each = strangers.next; each != &strangers; each = each->next) {
        const tcp_socket_t *socket = container_of(each, tcp_socket_t, link);
        if (socket->handshake && socket->handshake->state == HANDSHAKE_WANTS_SECRET) return true;
    }
    return false;
}

bool stands(quoit_endpoint_t *endpoint) { return status_of(endpoint) == QUOIT_OK; }

} // namespace

// Whoever gave these addresses has ended: that is told after some tries, long before the deadline.
TEST(TcpConnect, NobodyListensAnyMoreAndTheTextListsTheAddresses)
{
    StrayServer one(false), two(false);
    Node a(1);
    a.trust();
    auto begin = Clock::now();
    quoit_endpoint_t *endpoint = a.connect_to({9, 9}, address_of({one.name, two.name}), 20000);
    quoit_transfer_t sending = {}, receiving = {};
    std::string data(100000, 'x'), room(100000, 'y');
    ASSERT_EQ(QUOIT_OK, transport_tcp.send(endpoint, {1, 1}, data.data(), data.size(), &sending));
    ASSERT_EQ(QUOIT_OK, transport_tcp.recv(endpoint, {1, 1}, room.data(), room.size(), &receiving));
    ASSERT_TRUE(run({&a}, [&] { return status_of(endpoint) != QUOIT_IN_PROGRESS; }));
    EXPECT_GE(elapsed_ms(begin), 290);
    EXPECT_LT(elapsed_ms(begin), 5000);
    EXPECT_EQ(QUOIT_ERR_PEER, status_of(endpoint));
    std::string text = error_text();
    EXPECT_EQ(0u, text.find("tcp: cannot reach rank 9 (testhost, pid 1): tried " + text_of(one.name) + " (Connection refused), " +
                            text_of(two.name) + " (Connection refused) during "))
        << text;
    EXPECT_LT(sending.status, 0);
    EXPECT_LT(receiving.status, 0);
    a.progress();
    ASSERT_NE(nullptr, a.closed());
    EXPECT_EQ(text, a.closed()->text);
    EXPECT_EQ(QUOIT_ERR_PEER, a.closed()->status);
    transport_tcp.disconnect(endpoint);
}

TEST(TcpConnect, APeerThatListensLaterIsReached)
{
    StrayServer reserve(false); /* a port, refused for now; a peer that refuses for longer is taken for dead */
    Node a(1), b(2);
    a.trust(), b.trust();
    quoit_endpoint_t *ab = a.connect_to(b.id, address_of({reserve.name}), 10000);
    run_for({&a, &b}, 100);
    ASSERT_EQ(QUOIT_IN_PROGRESS, status_of(ab));
    /* The peer's port opens: b listens there through a forwarder's stead, its own listening socket moved to that port. */
    tcp_socket_t *listener = b.inner()->listeners[0];
    int one = 1;
    ::close(reserve.fd);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    ASSERT_EQ(0, bind(fd, &reserve.name.any, sizeof reserve.name.v4));
    ASSERT_EQ(0, listen(fd, 16));
    reserve.fd = dup(fd); /* what its destructor closes */
    tcp_socket_t *moved = tcp_socket_create(b.inner(), TCP_LISTENER, fd, listener->armed);
    ASSERT_NE(nullptr, moved);
    tcp_socket_destroy(listener);
    b.inner()->listeners[0] = moved;
    ASSERT_TRUE(run({&a, &b}, [&] { return stands(ab); }));
    transport_tcp.disconnect(ab);
}

TEST(TcpConnect, TheNextAddressIsTriedBesideOneThatDoesNotAnswer)
{
    BlackHole hole;
    Node a(1), b(2);
    a.trust(), b.trust();
    auto begin = Clock::now();
    quoit_endpoint_t *ab = a.connect_to(b.id, address_of({hole.server.name, b.listens_on()}));
    ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(QUOIT_OK, status_of(ab)) << error_text();
    EXPECT_GE(elapsed_ms(begin), 200) << "the first has its time";
    transport_tcp.disconnect(ab);
    /* And nothing but silence ends at the deadline, and says so. */
    ab = a.connect_to({8, 8}, address_of({hole.server.name}), 400);
    ASSERT_TRUE(run({&a}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(QUOIT_ERR_TIMEOUT, status_of(ab));
    EXPECT_NE(std::string(error_text()).find(text_of(hole.server.name) + " (no answer)"), std::string::npos) << error_text();
    transport_tcp.disconnect(ab);
}

TEST(TcpConnect, AServerThatNeverAnswersTheHandshakeDoesNotHoldUpTheNextAddress)
{
    StrayServer mute;
    Node a(1), b(2);
    a.trust(), b.trust();
    quoit_endpoint_t *ab = a.connect_to(b.id, address_of({mute.name, b.listens_on()}));
    ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(QUOIT_OK, status_of(ab)) << error_text();
    EXPECT_EQ(text_of(b.listens_on()), text_of(reinterpret_cast<tcp_endpoint_t *>(ab)->pipes[0]->remote));
    transport_tcp.disconnect(ab);
    ab = a.connect_to({8, 8}, address_of({mute.name}), 400);
    ASSERT_TRUE(run({&a}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS; }));
    EXPECT_NE(std::string(error_text()).find("no answer to the handshake"), std::string::npos) << error_text();
    transport_tcp.disconnect(ab);
}

TEST(TcpConnect, GarbageServers)
{
    for (std::string answer : {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string("\0", 1), std::string(), std::string(5000, 'z')}) {
        StrayServer server;
        Node a(1);
        a.trust();
        quoit_endpoint_t *endpoint = a.connect_to({9, 9}, address_of({server.name}), 500);
        int calls = 0;
        ASSERT_TRUE(run({&a}, [&] {
            int fd = accept4(server.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (fd >= 0) {
                calls++;
                (void)!send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
                ::close(fd);
            }
            return status_of(endpoint) != QUOIT_IN_PROGRESS;
        }));
        EXPECT_GE(calls, 2) << "it is tried again";
        EXPECT_LT(calls, 60) << "with pauses";
        EXPECT_EQ(QUOIT_ERR_TIMEOUT, status_of(endpoint));
        EXPECT_NE(std::string(error_text()).find(text_of(server.name)), std::string::npos) << error_text();
        transport_tcp.disconnect(endpoint);
    }
}

TEST(TcpConnect, AStaleAddressIsToldByItsNewOwner)
{
    Node a(1), b(2), c(3);
    a.trust(), b.trust(), c.trust();
    /* Alone it fails at the deadline; with another address it is passed over. */
    quoit_endpoint_t *alone = a.connect_to({9, 9}, c.address, 500), *ab = a.connect_to(b.id, address_of({c.listens_on(), b.listens_on()}));
    ASSERT_TRUE(run({&a, &b, &c}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS && status_of(alone) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(QUOIT_OK, status_of(ab)) << error_text();
    EXPECT_EQ(QUOIT_ERR_TIMEOUT, status_of(alone));
    EXPECT_NE(std::string(error_text()).find("belongs to another process"), std::string::npos) << error_text();
    transport_tcp.disconnect(ab), transport_tcp.disconnect(alone);
}

TEST(TcpConnect, AWrongSecretFailsAtOnceWithItsText)
{
    Node a(1), b(2);
    a.trust("one secret"), b.trust("another secret");
    auto begin = Clock::now();
    quoit_endpoint_t *ab = a.connect(b, 10000);
    ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(QUOIT_ERR_NETWORK, status_of(ab));
    EXPECT_NE(std::string(error_text()).find("secrets of the two sides differ"), std::string::npos) << error_text();
    EXPECT_LT(elapsed_ms(begin), 5000);
    EXPECT_TRUE(list_is_empty(&b.inner()->base.all));
    transport_tcp.disconnect(ab);
}

TEST(TcpConnect, AJobThatIsTrustedLate)
{
    Node a(1), b(2);
    a.trust();
    quoit_endpoint_t *ab = a.connect(b, 10000);
    ASSERT_TRUE(run({&a, &b}, [&] { return wants_secret(b); })) << "nobody asks b for the secret";
    ASSERT_EQ(QUOIT_IN_PROGRESS, status_of(ab));
    b.trust();
    ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(QUOIT_OK, status_of(ab)) << error_text();
    transport_tcp.disconnect(ab);
    /* Distrusted, it is over: nobody is kept waiting for it. */
    transport_tcp.distrust(b.transport, JOB);
    ASSERT_TRUE(run({&a, &b}, [&] { return b.closed() != nullptr || list_is_empty(&b.inner()->base.all); }));
    ab = a.connect(b, 10000);
    ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS; }, 5000));
    EXPECT_EQ(QUOIT_ERR_NETWORK, status_of(ab)) << error_text();
    transport_tcp.disconnect(ab);
}

TEST(TcpConnect, AJobThatNobodyTrustsIsDroppedAtItsDeadline)
{
    Settings settings = IPV4;
    settings["CONNECT_TIMEOUT"] = "300ms";
    Node a(1), b(2, settings);
    a.trust();
    quoit_endpoint_t *ab = a.connect(b, 800);
    ASSERT_TRUE(run({&a, &b}, [&] { return b.inner()->stranger_count > 0; }));
    ASSERT_TRUE(run({&b}, [&] { return b.inner()->stranger_count == 0; }, 5000));
    ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS; }));
    transport_tcp.disconnect(ab);
}

TEST(TcpConnect, BadArguments)
{
    Node a(1), b(2);
    quoit_endpoint_t *endpoint = nullptr;
    quoit_peer_t peer = {b.id, JOB, b.address.data(), b.address.size(), "rank 2", 1000};
    EXPECT_EQ(QUOIT_ERR_INVALID, transport_tcp.connect(a.transport, &peer, &endpoint)) << "no secret";
    a.trust();
    peer.address_length = 3;
    EXPECT_EQ(QUOIT_ERR_PROTOCOL, transport_tcp.connect(a.transport, &peer, &endpoint));
    EXPECT_NE(std::string(error_text()).find("rank 2"), std::string::npos) << error_text();
    peer = {a.id, JOB, a.address.data(), a.address.size(), "rank 1", 1000};
    EXPECT_EQ(QUOIT_ERR_INVALID, transport_tcp.connect(a.transport, &peer, &endpoint)) << "itself";
    EXPECT_EQ(nullptr, endpoint);
    EXPECT_TRUE(list_is_empty(&a.inner()->base.all));
    std::string secret(HANDSHAKE_SECRET_CAPACITY + 1, 's');
    EXPECT_EQ(QUOIT_ERR_INVALID, transport_tcp.trust(a.transport, 5, secret.data(), secret.size()));
}

TEST(TcpConnect, BothSidesAtOnceTwoHundredRounds)
{
    const uint64_t seed = 1234567;
    std::mt19937_64 random(seed);
    for (int round = 0; round < 200; round++) {
        Settings settings = IPV4;
        settings["TCP_SOCKETS"] = std::to_string(1 + random() % 4);
        Node a(1, settings), b(2, settings);
        a.trust(), b.trust();
        Node *order[2] = {&a, &b};
        if (random() % 2) std::swap(order[0], order[1]);
        quoit_endpoint_t *first = order[0]->connect(*order[1]);
        for (uint64_t i = random() % 12; i > 0; i--) order[random() % 2]->progress();
        quoit_endpoint_t *second = order[1]->connect(*order[0]);
        for (uint64_t i = random() % 40; i > 0; i--) order[random() % 2]->progress();
        ASSERT_TRUE(run({&a, &b}, [&] { return status_of(first) != QUOIT_IN_PROGRESS && status_of(second) != QUOIT_IN_PROGRESS; }))
            << "seed " << seed << " round " << round;
        ASSERT_TRUE(stands(first)) << error_text() << " seed " << seed << " round " << round;
        ASSERT_TRUE(stands(second)) << error_text() << " seed " << seed << " round " << round;
        Pair pair{*order[0], *order[1], first, second};
        ASSERT_TRUE(pair.exchange(40000)) << "seed " << seed << " round " << round;
        EXPECT_EQ(reinterpret_cast<tcp_endpoint_t *>(first)->pipe_count, reinterpret_cast<tcp_endpoint_t *>(second)->pipe_count);
        transport_tcp.disconnect(first), transport_tcp.disconnect(second);
        ASSERT_TRUE(run({&a, &b}, [&] {
            return list_is_empty(&a.inner()->base.all) && list_is_empty(&b.inner()->base.all) && a.inner()->stranger_count == 0 &&
                   b.inner()->stranger_count == 0;
        })) << "something is left over, seed " << seed << " round " << round;
        ASSERT_EQ(nullptr, a.closed() && a.closed()->status != QUOIT_OK ? a.closed() : nullptr) << a.closed()->text;
    }
}

TEST(TcpConnect, OneSideCannotReachTheOtherWhichCan)
{
    for (int low_is_blind = 0; low_is_blind < 2; low_is_blind++) {
        StrayServer nobody(false);
        Node a(1), b(2);
        a.trust(), b.trust();
        std::string dead = address_of({nobody.name});
        quoit_endpoint_t *ab = a.connect_to(b.id, low_is_blind ? dead : b.address), *ba = b.connect_to(a.id, low_is_blind ? a.address : dead);
        ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS && status_of(ba) != QUOIT_IN_PROGRESS; }));
        EXPECT_EQ(QUOIT_OK, status_of(ab)) << error_text();
        EXPECT_EQ(QUOIT_OK, status_of(ba)) << error_text();
        transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
    }
}

TEST(TcpConnect, JobsThatTheOtherSideDoesNotKnowYetDoNotBlockEachOther)
{
    for (int swapped = 0; swapped < 2; swapped++) {
        Node a(swapped ? 2 : 1), b(swapped ? 1 : 2);
        a.trust("first", 1), a.trust("second", 2), b.trust("second", 2);
        quoit_endpoint_t *ab = a.connect_to(b.id, b.address, 4000, 1), *ba = b.connect_to(a.id, a.address, 4000, 2);
        ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ab) != QUOIT_IN_PROGRESS && status_of(ba) != QUOIT_IN_PROGRESS; }));
        EXPECT_EQ(QUOIT_OK, status_of(ab)) << error_text();
        EXPECT_EQ(QUOIT_OK, status_of(ba)) << error_text();
        transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
    }
}

TEST(TcpConnect, SixteenProcessesAllWithAll)
{
    std::vector<std::unique_ptr<Node>> nodes;
    std::vector<Node *> all;
    std::vector<quoit_endpoint_t *> endpoints;
    for (uint64_t i = 0; i < 16; i++) {
        nodes.push_back(std::make_unique<Node>(i + 1));
        nodes.back()->trust();
        all.push_back(nodes.back().get());
    }
    for (auto *one : all)
        for (auto *other : all)
            if (one != other) endpoints.push_back(one->connect(*other, 20000));
    ASSERT_TRUE(run(all, [&] {
        for (auto *endpoint : endpoints)
            if (status_of(endpoint) == QUOIT_IN_PROGRESS) return false;
        return true;
    }));
    for (auto *endpoint : endpoints) EXPECT_EQ(QUOIT_OK, status_of(endpoint)) << error_text();
    for (auto *endpoint : endpoints) transport_tcp.disconnect(endpoint);
}

TEST(TcpConnect, WhatWasSentBeforeTheConnectionStoodArrivesThoughTheSenderLeft)
{
    for (int steps = 0; steps < 12; steps++) {
        Node a(1), b(2);
        a.trust(), b.trust();
        quoit_endpoint_t *ab = a.connect(b), *ba = b.connect(a);
        std::string word = "the last word", got(word.size(), 'x');
        quoit_transfer_t sent = {}, received = {};
        ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 1}, word.data(), word.size(), &sent));
        ASSERT_EQ(QUOIT_OK, sent.status);
        ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, {1, 1}, got.data(), got.size(), &received));
        for (int i = 0; i < steps; i++) i % 2 ? b.progress() : a.progress();
        transport_tcp.disconnect(ab);
        ASSERT_TRUE(run({&a, &b}, [&] { return transport_tcp.idle(a.transport) && received.status != QUOIT_IN_PROGRESS; })) << steps;
        EXPECT_EQ(QUOIT_OK, received.status) << steps << ": " << error_text();
        EXPECT_EQ(word, got);
        transport_tcp.disconnect(ba);
    }
    /* To nobody: it ends at its deadline, and is gone. */
    StrayServer nobody(false);
    Node a(1);
    a.trust();
    quoit_endpoint_t *lost = a.connect_to({9, 9}, address_of({nobody.name}), 200);
    ASSERT_EQ(QUOIT_OK, transport_tcp.notify(lost, "x", 1));
    transport_tcp.disconnect(lost);
    EXPECT_FALSE(transport_tcp.idle(a.transport));
    ASSERT_TRUE(run({&a}, [&] { return list_is_empty(&a.inner()->base.all); }, 5000));
    EXPECT_TRUE(a.events.empty());
    EXPECT_TRUE(transport_tcp.idle(a.transport));
}

TEST(TcpConnect, DisconnectWhileOnItsWay)
{
    for (int steps = 0; steps < 30; steps++) {
        Node a(1), b(2);
        a.trust(), b.trust();
        quoit_endpoint_t *ab = a.connect(b);
        for (int i = 0; i < steps; i++) i % 2 ? b.progress() : a.progress();
        transport_tcp.disconnect(ab);
        /* Nothing is left, and the next connection works. */
        ASSERT_TRUE(run({&a, &b}, [&] { return list_is_empty(&a.inner()->base.all) && list_is_empty(&b.inner()->base.all); }))
            << steps << " steps";
        quoit_endpoint_t *ba;
        ASSERT_TRUE(join(a, b, &ab, &ba)) << steps << " steps";
        transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
    }
}

/* A communicator's last word, sent while the connection was on its way, when nobody here needs the job any more. */
TEST(TcpConnect, WhatWasSentArrivesThoughTheJobIsNotTrustedAnyMore)
{
    Node a(1), b(2);
    a.trust(), b.trust();
    quoit_endpoint_t *ab = a.connect(b);
    ASSERT_EQ(QUOIT_OK, transport_tcp.notify(ab, "aborted", 7)) << error_text();
    transport_tcp.disconnect(ab);
    transport_tcp.distrust(a.transport, JOB);
    EXPECT_FALSE(transport_tcp.idle(a.transport));
    ASSERT_TRUE(run({&a, &b}, [&] { return b.notices().size() == 1 && b.closed(); }, 5000));
    EXPECT_EQ("aborted", b.notices()[0]);
    EXPECT_EQ(QUOIT_OK, b.closed()->status) << b.closed()->text;
}

/* The same while the peer calls, too, so that one of the two calls gives way: whichever that is. */
TEST(TcpConnect, WhatWasSentArrivesThoughTheJobIsNotTrustedAnyMoreAndBothCall)
{
    for (uint64_t leaver : {1, 2}) {
        Node a(3 - leaver), b(leaver);
        a.trust(), b.trust();
        quoit_endpoint_t *ab = a.connect(b), *ba = b.connect(a);
        ASSERT_EQ(QUOIT_OK, transport_tcp.notify(ba, "aborted", 7)) << error_text();
        transport_tcp.disconnect(ba);
        transport_tcp.distrust(b.transport, JOB);
        EXPECT_TRUE(run({&a, &b}, [&] { return a.notices().size() == 1; }, 3000)) << "process " << leaver << " leaves: " << transport_tcp.describe(ab);
        transport_tcp.disconnect(ab);
    }
}
