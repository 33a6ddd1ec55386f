/* SPDX-License-Identifier: Apache-2.0 */
/* Those who connect and are no peers, or peers that break the rules: they cost a closed socket and disturb nobody. */
#include "tcp_harness.h"
#include "test/support/entries.h"

#include <random>

using namespace tcp_test;

namespace {

tcp_times_t short_handshakes(int ms)
{
    tcp_times_t times = TCP_TIMES_DEFAULT;
    times.handshake = ms;
    return times;
}

const Settings IPV4 = {{"INTERFACE", "lo"}, {"IP_FAMILY", "4"}};

bool is_closed_by_peer(int fd)
{
    char bytes[64]; /* a refusal may come first */
    ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got > 0) got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
}

/* A client of our own making: it knows the secret, and does the handshake with plain calls. */
struct Impostor {
    int fd;
    handshake_t handshake;

    Impostor(Node &server, quoit_process_id_t self, uint16_t pipes, uint16_t pipe) : fd(stray_socket(server.listens_on()))
    {
        EXPECT_GE(fd, 0);
        EXPECT_EQ(QUOIT_OK, handshake_connect(&handshake, JOB, self, server.id, pipes, pipe, SECRET, strlen(SECRET)));
    }
    ~Impostor() { ::close(fd); }
    Impostor(const Impostor &) = delete;

    bool shake(Node &server)
    {
        return run({&server}, [&] {
            size_t length;
            const void *output = handshake_output(&handshake, &length);
            if (length > 0) handshake_sent(&handshake, (size_t)send(fd, output, length, MSG_NOSIGNAL));
            char bytes[HANDSHAKE_CAPACITY];
            ssize_t got = recv(fd, bytes, handshake_wants(&handshake), MSG_DONTWAIT);
            if (got > 0) handshake_received(&handshake, bytes, (size_t)got);
            return handshake.state == HANDSHAKE_DONE || handshake.state == HANDSHAKE_FAILED;
        }, 3000);
    }
    void say(const void *bytes, size_t length) { ASSERT_EQ((ssize_t)length, send(fd, bytes, length, MSG_NOSIGNAL)); }
    void say_preamble(uint64_t attempt, uint32_t eager = 8192)
    {
        ip_preamble_t preamble = {};
        preamble.attempt = attempt;
        preamble.limits = {eager, 1 << 20, 256 << 10, 1};
        uint8_t bytes[IP_PREAMBLE_SIZE];
        ip_preamble_write(&preamble, bytes);
        say(bytes, sizeof bytes);
    }
};

} // namespace

TEST(TcpStranger, AllKindsWhileAPairTransfersData)
{
    const uint64_t seed = 31337;
    std::mt19937_64 random(seed);
    int before = count_descriptors();
    {
        Node a(1, IPV4, short_handshakes(400)), b(2, IPV4, short_handshakes(400));
        a.trust(), b.trust();
        quoit_endpoint_t *ab, *ba;
        ASSERT_TRUE(join(a, b, &ab, &ba));
        Pair pair{a, b, ab, ba};
        const std::string openings[] = {"", "G", "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11), "QtHs", std::string(5000, 'A'),
                                        std::string(100000, '\0'), "SSH-2.0-x\r\n"};
        std::vector<int> slow;
        for (int i = 0; i < 200; i++) {
            int fd = stray_socket(a.listens_on());
            ASSERT_GE(fd, 0);
            const std::string &opening = openings[random() % (sizeof openings / sizeof *openings)];
            fcntl(fd, F_SETFL, O_NONBLOCK);
            if (!opening.empty()) (void)!send(fd, opening.data(), opening.size(), MSG_NOSIGNAL);
            if (random() % 2)
                ::close(fd); /* the scanner */
            else
                slow.push_back(fd);
            if (i % 10 == 0) {
                ASSERT_TRUE(pair.exchange(300000)) << "seed " << seed << " step " << i;
            }
            a.progress();
            ASSERT_LE(a.inner()->stranger_count, TCP_MAX_STRANGERS);
        }
        /* A drop every now and then keeps nobody alive: the deadline counts from the connection. */
        auto begin = Clock::now();
        while (elapsed_ms(begin) < 600) {
            for (int fd : slow) (void)!send(fd, "Q", 1, MSG_NOSIGNAL);
            ASSERT_TRUE(pair.exchange(10000));
            run_for({&a, &b}, 20);
        }
        ASSERT_TRUE(run({&a, &b}, [&] { return a.inner()->stranger_count == 0; }, 5000));
        for (int fd : slow) {
            EXPECT_TRUE(is_closed_by_peer(fd));
            ::close(fd);
        }
        ASSERT_TRUE(pair.exchange(1000000));
        EXPECT_EQ(nullptr, a.closed());
        EXPECT_EQ(nullptr, b.closed());
        transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
    }
    EXPECT_EQ(before, count_descriptors()) << "descriptors leaked";
}

TEST(TcpStranger, APeerGetsInThoughStrangersHoldEveryPlace)
{
    Node a(1), b(2);
    a.trust(), b.trust();
    std::vector<int> slow;
    for (int i = 0; i < 200; i++) {
        slow.push_back(stray_socket(a.listens_on()));
        ASSERT_GE(slow.back(), 0);
        a.progress();
    }
    ASSERT_TRUE(run({&a}, [&] { return a.inner()->stranger_count == TCP_MAX_STRANGERS; }));
    quoit_endpoint_t *ba = b.connect(a);
    ASSERT_TRUE(run({&a, &b}, [&] { return status_of(ba) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(QUOIT_OK, status_of(ba)) << error_text();
    for (int fd : slow) ::close(fd);
    transport_tcp.disconnect(ba);
}

TEST(TcpStranger, ManyPeersOfAJobThatIsNotKnownYet)
{
    /* More than there are places for strangers: those that are turned away come again. */
    Node server(1000);
    std::vector<std::unique_ptr<Node>> clients;
    std::vector<Node *> all = {&server};
    std::vector<quoit_endpoint_t *> endpoints;
    for (uint64_t i = 0; i < 100; i++) {
        clients.push_back(std::make_unique<Node>(i + 1));
        clients.back()->trust();
        all.push_back(clients.back().get());
        endpoints.push_back(clients.back()->connect(server, 20000));
    }
    ASSERT_TRUE(run(all, [&] { return server.inner()->stranger_count >= TCP_MAX_STRANGERS; })) << "not all places are taken";
    EXPECT_EQ(server.inner()->stranger_count, TCP_MAX_STRANGERS);
    server.trust();
    ASSERT_TRUE(run(all, [&] {
        for (auto *endpoint : endpoints)
            if (status_of(endpoint) == QUOIT_IN_PROGRESS) return false;
        return true;
    }));
    for (auto *endpoint : endpoints) EXPECT_EQ(QUOIT_OK, status_of(endpoint)) << error_text();
    for (auto *endpoint : endpoints) transport_tcp.disconnect(endpoint);
}

TEST(TcpStranger, AProvedPeerThatStopsHalfWayIsForgotten)
{
    Node a(1, IPV4, short_handshakes(300));
    a.trust();
    {
        Impostor first(a, {7, 7}, 2, 0);
        ASSERT_TRUE(first.shake(a));
        ASSERT_EQ(HANDSHAKE_DONE, first.handshake.state);
        first.say_preamble(1);
        EXPECT_FALSE(list_is_empty(&a.inner()->base.all));
        ASSERT_TRUE(run({&a}, [&] { return list_is_empty(&a.inner()->base.all); }, 5000)) << "its second socket never came";
    }
    EXPECT_TRUE(a.events.empty());
}

TEST(TcpStranger, SocketsOfDifferentAttemptsAreNotMixed)
{
    Node a(1, IPV4, short_handshakes(500));
    a.trust();
    Impostor first(a, {7, 7}, 2, 0);
    ASSERT_TRUE(first.shake(a));
    first.say_preamble(1);
    Impostor stale(a, {7, 7}, 2, 1);
    ASSERT_TRUE(stale.shake(a));
    stale.say_preamble(2);
    run_for({&a}, 100);
    auto *endpoint = tcp_endpoint_find(a.inner(), {7, 7});
    ASSERT_NE(nullptr, endpoint);
    EXPECT_EQ(ENDPOINT_COMING, endpoint->base.life) << "a socket of another attempt was taken";
    Impostor second(a, {7, 7}, 2, 1);
    ASSERT_TRUE(second.shake(a));
    second.say_preamble(1);
    ASSERT_TRUE(run({&a}, [&] { return endpoint->base.life == ENDPOINT_STANDING; }, 3000));
    EXPECT_TRUE(run({&a}, [&] { return is_closed_by_peer(stale.fd); }, 3000));
}

TEST(TcpStranger, AFurtherSocketWithoutAFirstIsRefused)
{
    Node a(1);
    a.trust();
    Impostor second(a, {7, 7}, 2, 1);
    ASSERT_TRUE(second.shake(a));
    EXPECT_EQ(HANDSHAKE_FAILED, second.handshake.state);
    EXPECT_EQ(HANDSHAKE_REASON_TIE, second.handshake.reason);
}

TEST(TcpStranger, TooManySocketsAskedFor)
{
    Node a(1);
    a.trust();
    Impostor greedy(a, {7, 7}, 17, 0);
    run({&a}, [&] {
        size_t length;
        const void *output = handshake_output(&greedy.handshake, &length);
        if (length > 0) handshake_sent(&greedy.handshake, (size_t)send(greedy.fd, output, length, MSG_NOSIGNAL));
        return is_closed_by_peer(greedy.fd);
    }, 3000);
    EXPECT_TRUE(is_closed_by_peer(greedy.fd));
}

TEST(TcpStranger, BadPreamblesAreDropped)
{
    Node a(1);
    a.trust();
    for (int kind = 0; kind < 3; kind++) {
        Impostor one(a, {7, 7}, 1, 0);
        ASSERT_TRUE(one.shake(a)) << kind;
        ASSERT_EQ(HANDSHAKE_DONE, one.handshake.state) << kind;
        if (kind == 0) one.say(std::string(IP_PREAMBLE_SIZE, 'p').data(), IP_PREAMBLE_SIZE);
        if (kind == 1) one.say_preamble(1, 65536); /* more than this side allows */
        if (kind == 2) one.say("Qt", 2), shutdown(one.fd, SHUT_WR);
        ASSERT_TRUE(run({&a}, [&] { return list_is_empty(&a.inner()->base.all); }, 3000)) << kind;
    }
}

TEST(TcpStranger, AProvedPeerThatSendsGarbageEndsItsEndpointOnly)
{
    Node a(1), b(2);
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    Impostor bad(a, {7, 7}, 1, 0);
    ASSERT_TRUE(bad.shake(a));
    bad.say_preamble(1);
    bad.say(std::string(1000, 'g').data(), 1000);
    ASSERT_TRUE(run({&a, &b}, [&] { return a.closed() != nullptr; }, 3000));
    EXPECT_EQ(7u, a.closed()->peer.low);
    EXPECT_EQ(QUOIT_ERR_PROTOCOL, a.closed()->status) << a.closed()->text;
    Pair pair{a, b, ab, ba};
    EXPECT_TRUE(pair.exchange(100000));
    transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
}

/* A peer may send its last words and leave before its other sockets are through here: on networks they are not equally fast. */
TEST(TcpStranger, LastWordsWaitForTheOtherSocketsOfTheirConnection)
{
    for (bool comes : {true, false}) {
        Node a(1);
        a.trust();
        Impostor first(a, {7, 7}, 2, 0), second(a, {7, 7}, 2, 1);
        frame_t frame = {}, bye = {};
        frame.type = FRAME_NOTICE;
        frame.total = frame.length = 5;
        bye.type = FRAME_BYE;
        uint8_t header[FRAME_HEADER_SIZE];
        ASSERT_TRUE(first.shake(a) && second.shake(a));
        first.say_preamble(1);
        frame_write(&frame, header);
        first.say(header, sizeof header), first.say("hello", 5);
        frame_write(&bye, header);
        first.say(header, sizeof header);
        shutdown(first.fd, SHUT_WR);
        run_for({&a}, 50);
        if (comes) second.say_preamble(1), second.say(header, sizeof header);
        shutdown(second.fd, SHUT_WR);
        ASSERT_TRUE(run({&a}, [&] { return list_is_empty(&a.inner()->base.all); }, 3000)) << "the second socket " << (comes ? "came" : "never came");
        EXPECT_EQ(a.notices(), comes ? std::vector<std::string>{"hello"} : std::vector<std::string>{});
    }
}

TEST(TcpStranger, BytesRightBehindThePreambleBelongToTheChannel)
{
    Node a(1);
    a.trust();
    Impostor peer(a, {7, 7}, 1, 0);
    ASSERT_TRUE(peer.shake(a));
    frame_t frame = {};
    frame.type = FRAME_NOTICE;
    frame.total = frame.length = 5;
    ip_preamble_t preamble = {};
    preamble.attempt = 1;
    preamble.limits = {8192, 1 << 20, 256 << 10, 1};
    std::string bytes((size_t)IP_PREAMBLE_SIZE + (size_t)FRAME_HEADER_SIZE, '\0');
    ip_preamble_write(&preamble, reinterpret_cast<uint8_t *>(bytes.data()));
    frame_write(&frame, reinterpret_cast<uint8_t *>(bytes.data()) + IP_PREAMBLE_SIZE);
    bytes += "hello";
    peer.say(bytes.data(), bytes.size());
    ASSERT_TRUE(run({&a}, [&] { return a.notices().size() == 1; }, 3000));
    EXPECT_EQ("hello", a.notices()[0]);
}
