/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes through TLS: back-pressure, last bytes, changes of keys, what is read ahead, and somebody between the two sides. */
#include "relay.h"
#include "tls_files.h"

extern "C" {
#include "transport/tls/tls_internal.h"
}

#include <random>

using namespace tcp_test;
using tls_test::Folder;
using tls_test::has;
using tls_test::psk;
using tls_test::Relay;

namespace {

struct Key {
    Folder folder;
    std::string file = folder.write("key", tls_test::new_key());
};

Settings with(Settings settings, const std::string &name, const std::string &value)
{
    settings[name] = value;
    return settings;
}

bool done(const quoit_transfer_t &transfer) { return transfer.status != QUOIT_IN_PROGRESS; }

/* Connected through the relay: only `a` calls. */
quoit_endpoint_t *join_through(Relay &relay, Node &a, Node &b, quoit_endpoint_t **ba)
{
    quoit_endpoint_t *ab = a.connect_to(b.id, relay.address());
    EXPECT_TRUE(run({&a, &b}, [&] {
        relay.step();
        return status_of(ab) != QUOIT_IN_PROGRESS && tcp_endpoint_find(b.inner(), a.id) && tcp_endpoint_find(b.inner(), a.id)->base.life == ENDPOINT_STANDING;
    }));
    EXPECT_EQ(QUOIT_OK, status_of(ab)) << error_text();
    *ba = b.connect(a);
    return ab;
}

/* A message of many records from a to b, over a relay that will spoil it. */
struct Spoilt {
    Spoilt(Node &from, Node &to) : a(from), b(to), relay(to.listens_on()), ab(join_through(relay, a, b, &ba))
    {
        EXPECT_EQ(QUOIT_OK, transport_tcp.recv(ba, {1, 1}, room.data(), room.size(), &receiving));
    }
    ~Spoilt()
    {
        transport_tcp.cancel(a.transport, 1), transport_tcp.cancel(b.transport, 1); /* the strings go before the nodes */
        transport_tcp.disconnect(ab), transport_tcp.disconnect(ba);
    }
    void send() { EXPECT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 1}, data.data(), data.size(), &sending)); }

    Node &a, &b;
    Relay relay;
    quoit_endpoint_t *ba = nullptr, *ab;
    quoit_transfer_t sending = {}, receiving = {};
    std::string data = std::string(300000, 'd'), room = std::string(300000, 'x');
};

} // namespace

TEST(TlsStream, ASenderThatIsNotReadWaitsAsleepAndThenGoesOn)
{
    Key key;
    Node a(1, psk(key.file)), b(2, psk(key.file));
    a.trust(), b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    const size_t length = 24 << 20;
    std::string data = pattern(length, 5), room(length, 'x');
    quoit_transfer_t sending = {}, receiving = {};
    ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, {1, 1}, room.data(), length, &receiving));
    ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 1}, data.data(), length, &sending));
    run_for({&b}, 20); /* the grant */
    run_for({&a}, 200);
    ASSERT_FALSE(done(sending)) << "the kernel took it all: the test shows nothing";
    EXPECT_FALSE(transport_tcp.idle(a.transport));
    bool staged = false;
    tcp_endpoint_t *endpoint = reinterpret_cast<tcp_endpoint_t *>(ab);
    for (int i = 0; i < endpoint->pipe_count; i++) staged = staged || tls_session_is_staged(endpoint->pipes[i]->tls);
    EXPECT_TRUE(staged);
    /* It asks for room to write, and for nothing else: epoll does not wake it. */
    ASSERT_EQ(QUOIT_OK, transport_tcp.arm(a.transport));
    pollfd descriptor = {transport_tcp.descriptor(a.transport), POLLIN, 0};
    EXPECT_EQ(0, poll(&descriptor, 1, 0)) << "it would spin";
    EXPECT_EQ(0, a.progress());
    ASSERT_TRUE(run({&a, &b}, [&] { return done(sending) && done(receiving); }));
    EXPECT_EQ(QUOIT_OK, receiving.status);
    EXPECT_TRUE(room == data);
    ASSERT_TRUE(run({&a, &b}, [&] { return transport_tcp.idle(a.transport); }));
}

TEST(TlsStream, LastBytesAndTheGoodbyeArriveThoughTheReaderIsSlow)
{
    Key key;
    for (const char *sockets : {"1", "3"}) {
        Node a(1, with(psk(key.file), "TCP_SOCKETS", sockets)), b(2, with(psk(key.file), "TCP_SOCKETS", sockets));
        a.trust(), b.trust();
        quoit_endpoint_t *ab, *ba;
        ASSERT_TRUE(join(a, b, &ab, &ba));
        const size_t length = 12 << 20;
        std::string data = pattern(length, 6), room(length, 'x'), last = pattern(5000, 7), last_room(5000, 'y');
        quoit_transfer_t sending[2] = {}, receiving[2] = {};
        ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, {1, 1}, room.data(), length, &receiving[0]));
        ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 1}, data.data(), length, &sending[0]));
        run({&a, &b}, [&] { return done(sending[0]); });
        ASSERT_EQ(QUOIT_OK, sending[0].status);
        ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 2}, last.data(), last.size(), &sending[1]));
        ASSERT_TRUE(done(sending[1]));
        transport_tcp.disconnect(ab);
        run_for({&a}, 50);
        ASSERT_TRUE(run({&a, &b}, [&] { return b.closed() != nullptr || done(receiving[0]); }));
        ASSERT_EQ(QUOIT_OK, receiving[0].status);
        EXPECT_TRUE(room == data);
        ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, {1, 2}, last_room.data(), last_room.size(), &receiving[1]));
        ASSERT_TRUE(run({&a, &b}, [&] { return done(receiving[1]) && b.closed() != nullptr; }));
        EXPECT_EQ(QUOIT_OK, receiving[1].status);
        EXPECT_TRUE(last_room == last);
        EXPECT_EQ(QUOIT_OK, b.closed()->status) << b.closed()->text;
        transport_tcp.disconnect(ba);
        EXPECT_TRUE(run({&a, &b}, [&] { return list_is_empty(&a.inner()->base.all) && list_is_empty(&b.inner()->base.all); }));
    }
}

namespace {

/* In front of a node's BIO: while the gate is shut the socket seems to have no room. */
bool gate_is_shut;
int (*write_through)(BIO *, const char *, size_t, size_t *);

int write_if_open(BIO *bio, const char *bytes, size_t length, size_t *written)
{
    if (!gate_is_shut) return write_through(bio, bytes, length, written);
    BIO_clear_retry_flags(bio);
    BIO_set_retry_write(bio);
    return 0;
}

} // namespace

TEST(TlsStream, WhatTlsStillHoldsIsWaitedForBeforeTheEnd)
{
    Key key;
    for (bool closing : {false, true}) {
        Node a(1, psk(key.file)), b(2, psk(key.file));
        a.trust(), b.trust();
        quoit_endpoint_t *ab, *ba;
        ASSERT_TRUE(join(a, b, &ab, &ba));
        run_for({&a, &b}, 20);
        tcp_endpoint_t *endpoint = reinterpret_cast<tcp_endpoint_t *>(ab);
        write_through = BIO_meth_get_write_ex(a.inner()->tls->method);
        BIO_meth_set_write_ex(a.inner()->tls->method, write_if_open);
        std::string data = pattern(700, 3), room(700, 'x');
        quoit_transfer_t sending = {}, receiving = {};
        ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, {1, 1}, room.data(), room.size(), &receiving));
        gate_is_shut = true;
        ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 1}, data.data(), data.size(), &sending));
        run_for({&a, &b}, 20);
        EXPECT_TRUE(channel_idle(endpoint->base.channel) && tcp_socket_is_staged(endpoint->pipes[0])) << "the test shows nothing";
        EXPECT_FALSE(transport_tcp.idle(a.transport));
        EXPECT_FALSE(done(receiving));
        gate_is_shut = closing;
        if (!closing) {
            ASSERT_TRUE(run({&a, &b}, [&] { return done(receiving) && transport_tcp.idle(a.transport); }));
            gate_is_shut = true;
            transport_tcp.disconnect(ab);
            run_for({&a, &b}, 20);
            ASSERT_FALSE(list_is_empty(&a.inner()->base.all)) << "it has left, and the goodbye was never said";
            EXPECT_TRUE(channel_idle(endpoint->base.channel) && tcp_socket_is_staged(endpoint->pipes[0])) << "the goodbye is not there";
            EXPECT_EQ(nullptr, b.closed());
            gate_is_shut = false;
            ASSERT_TRUE(run({&a, &b}, [&] { return b.closed() != nullptr; }));
            EXPECT_EQ(QUOIT_OK, b.closed()->status) << b.closed()->text;
        } else { /* the process ends without waiting: that is no goodbye, and says so */
            a.close();
            ASSERT_TRUE(run({&b}, [&] { return b.closed() != nullptr; }));
            EXPECT_EQ(QUOIT_ERR_PEER, b.closed()->status) << b.closed()->text;
            EXPECT_LT(receiving.status, 0);
        }
        gate_is_shut = false;
        if (!closing) {
            EXPECT_EQ(QUOIT_OK, receiving.status);
            EXPECT_TRUE(room == data);
        }
        transport_tcp.disconnect(ba);
    }
}

/* Records come in pieces, and handshakes too. */
TEST(TlsStream, AWireThatPassesAFewBytesAtATimeIsNoOtherWire)
{
    Key key;
    std::mt19937_64 random(13);
    Node a(1, psk(key.file)), b(2, psk(key.file));
    a.trust(), b.trust();
    Relay relay(b.listens_on());
    relay.trickle(3);
    quoit_endpoint_t *ba, *ab = join_through(relay, a, b, &ba);
    for (size_t length : {1, 500, 9000, 40000}) {
        quoit_transfer_t transfers[4] = {};
        quoit_key_t name = {1, length};
        std::string to_b = pattern(length, 1), to_a = pattern(length, 2), at_a(length, 'x'), at_b(length, 'x');
        ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ab, name, at_a.data(), length, &transfers[0]));
        ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, name, to_b.data(), length, &transfers[1]));
        ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, name, at_b.data(), length, &transfers[2]));
        ASSERT_EQ(QUOIT_OK, transport_tcp.send(ba, name, to_a.data(), length, &transfers[3]));
        ASSERT_TRUE(run({&a, &b}, [&] {
            relay.trickle(1 + random() % (length / 8 + 3));
            relay.step();
            return done(transfers[0]) && done(transfers[1]) && done(transfers[2]) && done(transfers[3]);
        })) << "length " << length;
        EXPECT_TRUE(at_a == to_a && at_b == to_b) << "length " << length;
    }
}

TEST(TlsStream, KeysAreChangedOnTheWay)
{
    Key key;
    Node a(1, psk(key.file)), b(2, psk(key.file));
    a.trust(), b.trust();
    EXPECT_EQ(64ull << 30, a.inner()->tls->renew_after);
    a.inner()->tls->renew_after = b.inner()->tls->renew_after = 100000;
    quoit_endpoint_t *ab, *ba;
    ASSERT_TRUE(join(a, b, &ab, &ba));
    Pair pair{a, b, ab, ba};
    std::mt19937_64 random(11);
    for (int i = 0; i < 20; i++) ASSERT_TRUE(pair.exchange(random() % 700000)) << "step " << i;
    tcp_endpoint_t *endpoint = reinterpret_cast<tcp_endpoint_t *>(ab);
    for (int i = 0; i < endpoint->pipe_count; i++) EXPECT_LT(endpoint->pipes[i]->tls->sent, 100000u) << "the key was not changed";
}

TEST(TlsStream, NothingReadableGoesThroughTheMiddle)
{
    Key key;
    const std::string known = "this is known plain text, long enough to be found";
    for (bool tls : {false, true}) {
        Settings settings = tls ? psk(key.file) : tls_test::plain();
        Node a(1, settings), b(2, settings);
        a.trust(), b.trust();
        Relay relay(b.listens_on());
        quoit_endpoint_t *ba, *ab = join_through(relay, a, b, &ba);
        quoit_transfer_t sending = {}, receiving = {};
        std::string data, room(200000, 'x');
        while (data.size() < room.size()) data += known;
        data.resize(room.size());
        ASSERT_EQ(QUOIT_OK, transport_tcp.recv(ba, {1, 1}, room.data(), room.size(), &receiving));
        ASSERT_EQ(QUOIT_OK, transport_tcp.send(ab, {1, 1}, data.data(), data.size(), &sending));
        ASSERT_TRUE(run({&a, &b}, [&] { relay.step(); return done(sending) && done(receiving); }));
        EXPECT_EQ(QUOIT_OK, receiving.status);
        EXPECT_TRUE(room == data);
        EXPECT_GT(relay.seen().size(), data.size());
        EXPECT_EQ(!tls, has(relay.seen(), known));
        EXPECT_EQ(!tls, has(relay.seen(), "testhost")) << "the preamble";
        EXPECT_EQ(!tls, has(relay.seen(), "QtHs")) << "the handshake";
    }
}

TEST(TlsStream, AnAlteredByteIsFound)
{
    Key key;
    for (size_t after : {0, 1, 3, 5, 100, 20000}) {
        Node a(1, psk(key.file)), b(2, psk(key.file));
        a.trust(), b.trust();
        Spoilt spoilt(a, b);
        spoilt.relay.alter_after(after);
        spoilt.send();
        ASSERT_TRUE(run({&a, &b}, [&] { spoilt.relay.step(); return b.closed() != nullptr && a.closed() != nullptr; })) << "byte " << after;
        EXPECT_LT(b.closed()->status, 0) << "byte " << after << ": " << b.closed()->text;
        EXPECT_TRUE(has(b.closed()->text, "(testhost, pid")) << b.closed()->text;
        EXPECT_TRUE(has(b.closed()->text, "TLS: bytes were altered on their way")) << "byte " << after << ": " << b.closed()->text;
        EXPECT_LT(spoilt.receiving.status, 0);
    }
}

/* Whoever is in the middle can end a stream, but not make it look like the peer's own end. */
TEST(TlsStream, AnEndThatThePeerDidNotWriteIsAFailure)
{
    Key key;
    for (size_t after : {0, 1, 1000, 150000}) {
        Node a(1, with(psk(key.file), "TCP_SOCKETS", "1")), b(2, with(psk(key.file), "TCP_SOCKETS", "1"));
        a.trust(), b.trust();
        Spoilt spoilt(a, b);
        spoilt.relay.end_after(after);
        spoilt.send();
        ASSERT_TRUE(run({&a, &b}, [&] { spoilt.relay.step(); return b.closed() != nullptr; })) << "byte " << after;
        EXPECT_EQ(QUOIT_ERR_PEER, b.closed()->status) << b.closed()->text;
        EXPECT_TRUE(has(b.closed()->text, "closed the connection without goodbye")) << b.closed()->text;
        EXPECT_LT(spoilt.receiving.status, 0);
    }
}
