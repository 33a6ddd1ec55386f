/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance: connections; who begins them, who is trusted, how they end. */
#include "conformance.h"

#include <csignal>
#include <unistd.h>

namespace conformance {

static void prepare(Peer &peer, const std::string &secret)
{
    peer.open();
    peer.listen();
    if (!secret.empty()) peer.trust(77, secret);
    peer.exchange_addresses();
}

static void wait_standing(Peer &peer, quoit_endpoint_t *endpoint)
{
    peer.wait("the connection", [&] {
        quoit_status_t status = peer.ops->endpoint_status(endpoint);
        if (status != QUOIT_IN_PROGRESS) require_ok(status, "endpoint_status");
        return status == QUOIT_OK;
    });
}

static void exchange(Peer &peer, quoit_endpoint_t *endpoint, uint64_t id)
{
    auto recv = peer.recv({1, id}, 100000, 0, endpoint), small = peer.recv({1, id + 1}, 10, 0, endpoint);
    auto send = peer.send({1, id}, pattern(100000, id), 0, endpoint), tiny = peer.send({1, id + 1}, pattern(10, id), 0, endpoint);
    peer.wait("messages", [&] { return recv->done() && send->done() && small->done() && tiny->done(); });
    require(recv->transfer.status == QUOIT_OK && small->transfer.status == QUOIT_OK, "recv failed: " + peer.last_error());
    require(recv->content() == pattern(100000, id) && small->content() == pattern(10, id), "bytes");
}

TEST_P(Pairs, OneSideConnects)
{
    run_case(GetParam(), [](Peer &peer) {
        prepare(peer, "the secret");
        if (peer.index == 0) {
            peer.endpoint = peer.connect();
            wait_standing(peer, peer.endpoint);
            require_ok(peer.ops->notify(peer.endpoint, "hello", 5), "notify");
            peer.sync();
        } else {
            peer.wait("a notice from a peer that was not connected to", [&] { return peer.find_event(QUOIT_EVENT_NOTICE); });
            const Event *event = peer.find_event(QUOIT_EVENT_NOTICE);
            require(event->data == "hello", "the notice");
            peer.sync();
            peer.endpoint = peer.connect();
            require(peer.endpoint == event->endpoint, "connect made another endpoint than the one that stands");
            require(peer.ops->endpoint_status(peer.endpoint) == QUOIT_OK, "it does not stand");
        }
        exchange(peer, peer.endpoint, 1);
        peer.sync();
    });
}

TEST_P(Pairs, BothConnectAtOnce)
{
    for (int round = 0; round < 8; round++)
        run_case(GetParam(), [](Peer &peer) {
            prepare(peer, "the secret");
            peer.sync(false);
            peer.endpoint = peer.connect();
            exchange(peer, peer.endpoint, 1);
            wait_standing(peer, peer.endpoint);
            peer.run_for(20);
            exchange(peer, peer.endpoint, 3);
            require(!peer.find_event(QUOIT_EVENT_CLOSED), "the losing connection's end was told");
            peer.sync();
        });
}

TEST_P(Pairs, SendsQueueWhileTheConnectionIsOnItsWay)
{
    run_case(GetParam(), [](Peer &peer) {
        prepare(peer, "the secret");
        if (peer.index == 0) {
            peer.endpoint = peer.connect();
            auto small = peer.send({1, 1}, pattern(100, 1)), large = peer.send({1, 2}, pattern(300000, 2));
            auto back = peer.recv({1, 3}, 200000);
            require_ok(peer.ops->notify(peer.endpoint, "early", 5), "notify");
            peer.wait("queued messages", [&] { return small->done() && large->done() && back->done(); });
            require(large->transfer.status == QUOIT_OK && back->transfer.status == QUOIT_OK, "a queued transfer failed");
            require(back->content() == pattern(200000, 3), "bytes");
        } else {
            peer.run_for(100);
            peer.endpoint = peer.connect();
            auto large = peer.recv({1, 2}, 300000), small = peer.recv({1, 1}, 100);
            auto back = peer.send({1, 3}, pattern(200000, 3));
            peer.wait("queued messages", [&] { return small->done() && large->done() && back->done(); });
            require(small->content() == pattern(100, 1) && large->content() == pattern(300000, 2), "bytes");
            peer.wait("the early notice", [&] { return peer.find_event(QUOIT_EVENT_NOTICE); });
        }
        peer.sync();
    });
}

TEST_P(Pairs, AConnectionWaitsForTrust)
{
    run_case(GetParam(), [](Peer &peer) {
        prepare(peer, peer.index == 0 ? "the secret" : "");
        if (peer.index == 0) {
            peer.endpoint = peer.connect();
            peer.run_for(200);
            require(peer.ops->endpoint_status(peer.endpoint) == QUOIT_IN_PROGRESS, "it stands, or failed, before it is trusted");
            peer.sync();
        } else {
            peer.run_for(200);
            peer.sync();
            peer.trust(77, "the secret");
            peer.endpoint = peer.connect();
        }
        exchange(peer, peer.endpoint, 1);
        peer.sync();
    });
}

/* The other side has ended the job, and has nothing more to say: who comes late is not kept waiting as for a job that is still to come. */
TEST_P(Pairs, AJobThatIsOverIsRefusedAtOnce)
{
    run_case(GetParam(), [](Peer &peer) {
        prepare(peer, "the secret");
        if (peer.index == 1) peer.ops->distrust(peer.transport, 77);
        peer.sync(false);
        if (peer.index == 0) {
            uint64_t begin = clock_now();
            quoit_endpoint_t *late = peer.connect(77, 30000);
            auto recv = peer.recv({1, 1}, 100, 0, late);
            peer.wait("the refusal", [&] { return peer.ops->endpoint_status(late) != QUOIT_IN_PROGRESS && recv->done(); });
            require(clock_now() - begin < 10000000000u, "it waited for the job");
            require(peer.ops->endpoint_status(late) < 0 && recv->transfer.status < 0, "it was let in");
            require(peer.last_error().find("destroyed") != std::string::npos, "the text does not say why: " + peer.last_error());
            peer.ops->disconnect(late);
            peer.progress();
        }
        peer.sync();
        peer.events.clear();
        peer.trust(78, "the secret");
        peer.endpoint = peer.connect(78);
        exchange(peer, peer.endpoint, 1);
        peer.sync();
    });
}

TEST_P(Pairs, AWrongSecretIsRefusedWithATextAndTheRightOneStillWorks)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.open();
        peer.listen();
        peer.trust(77, peer.index == 0 ? "one secret" : "another secret");
        peer.trust(78, "the secret");
        peer.exchange_addresses();
        if (peer.index == 0) {
            quoit_endpoint_t *wrong = peer.connect(77);
            auto send = peer.send({1, 1}, pattern(100000, 1), 0, wrong);
            quoit_status_t status = QUOIT_OK;
            peer.wait("the refusal", [&] {
                status = peer.ops->endpoint_status(wrong);
                return status != QUOIT_IN_PROGRESS && send->done();
            });
            std::string text = peer.last_error();
            require(status != QUOIT_OK && send->transfer.status != QUOIT_OK, "a wrong secret was accepted");
            require(text.find("secret") != std::string::npos, "the text does not speak of the secret: " + text);
            peer.ops->disconnect(wrong);
            peer.progress();
        }
        peer.sync();
        peer.events.clear();
        peer.endpoint = peer.connect(78);
        exchange(peer, peer.endpoint, 1);
        peer.sync();
    });
}

TEST_P(Pairs, NobodyAnswers)
{
    run_case(GetParam(), [](Peer &peer) {
        prepare(peer, "the secret");
        if (peer.index == 1) peer.close();
        peer.sync(false);
        if (peer.index == 0) {
            uint64_t begin = clock_now();
            quoit_endpoint_t *nobody = peer.connect(77, 500);
            auto send = peer.send({1, 1}, pattern(10, 1), 0, nobody);
            auto recv = peer.recv({1, 1}, 10, 0, nobody);
            peer.wait("the failure", [&] { return peer.ops->endpoint_status(nobody) != QUOIT_IN_PROGRESS && recv->done(); }, 5000);
            require(peer.ops->endpoint_status(nobody) < 0 && recv->transfer.status < 0, "connected to nobody");
            require(!peer.last_error().empty(), "no text");
            require(clock_now() - begin < 5000000000u * (uint64_t)slow(), "the time limit was not kept");
            peer.ops->disconnect(nobody);
        }
        peer.sync(false);
    });
}

TEST_P(Conformance, ConnectIsCounted)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        require(peer.connect() == peer.endpoint, "a second connect gives another endpoint");
        peer.ops->disconnect(peer.endpoint);
        exchange(peer, peer.endpoint, 5);
        peer.sync();
    });
}

/* The side that leaves closes its transport as soon as it is idle; the slower side must still get all of it. */
TEST_P(Pairs, WhatWasSentBeforeDisconnectArrives)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        const size_t size = 4u << 20;
        if (peer.index == 0) {
            peer.sync();
            auto large = peer.send({1, 1}, pattern(size, 1)), small = peer.send({1, 2}, pattern(500, 2));
            require_ok(peer.ops->notify(peer.endpoint, "bye", 3), "notify");
            peer.wait("sends", [&] { return large->done() && small->done(); });
            require(large->transfer.status == QUOIT_OK, "the send failed");
            peer.ops->disconnect(peer.endpoint);
            peer.wait("idle", [&] { return peer.ops->idle(peer.transport); }, 30000);
            peer.close();
            peer.sync(false);
        } else {
            auto large = peer.recv({1, 1}, size);
            peer.sync();
            for (int i = 0; i < 40; i++) {
                usleep(5000);
                peer.progress();
            }
            peer.wait("the large message", [&] { return large->done(); });
            require(large->transfer.status == QUOIT_OK, "lost: " + peer.last_error());
            require(large->content() == pattern(size, 1), "bytes");
            auto small = peer.recv({1, 2}, 500);
            peer.wait("the small message", [&] { return small->done(); });
            require(small->transfer.status == QUOIT_OK && small->content() == pattern(500, 2), "lost: " + peer.last_error());
            peer.wait("the goodbye", [&] { return peer.find_event(QUOIT_EVENT_CLOSED); });
            require(peer.find_event(QUOIT_EVENT_NOTICE) && peer.find_event(QUOIT_EVENT_NOTICE)->data == "bye", "the notice");
            require(peer.find_event(QUOIT_EVENT_NOTICE) < peer.find_event(QUOIT_EVENT_CLOSED), "the notice came after the goodbye");
            require(peer.find_event(QUOIT_EVENT_CLOSED)->status == QUOIT_OK,
                    "a goodbye was taken for a failure: " + peer.find_event(QUOIT_EVENT_CLOSED)->text);
            auto late = peer.recv({1, 3}, 10);
            peer.wait("a recv after the goodbye", [&] { return late->done(); });
            require(late->transfer.status < 0, "a recv after the goodbye succeeded");
            peer.ops->disconnect(peer.endpoint);
            peer.run_for(20);
            peer.sync(false);
        }
    });
}

static void leave_with_a_last_word(Peer &peer)
{
    quoit_endpoint_t *endpoint = peer.connect();
    require_ok(peer.ops->notify(endpoint, "aborted", 7), "notify");
    peer.ops->disconnect(endpoint);
    peer.ops->distrust(peer.transport, 77);
    peer.wait("idle", [&] { return peer.ops->idle(peer.transport); });
}

static void take_the_last_word(Peer &peer)
{
    peer.wait("the last word", [&] { return peer.find_event(QUOIT_EVENT_NOTICE); });
    require(peer.find_event(QUOIT_EVENT_NOTICE)->data == "aborted", "the notice");
}

/* A communicator's last word, sent while the connection was on its way, when nobody here needs the job any more. */
TEST_P(Pairs, LastWordsArriveThoughTheJobIsNotTrustedAnyMore)
{
    run_case(GetParam(), [](Peer &peer) {
        prepare(peer, "the secret");
        peer.sync(false);
        if (peer.index == 0) leave_with_a_last_word(peer);
        else take_the_last_word(peer);
        peer.sync();
    });
}

/* The same while the other side calls, too, so that one of the two calls has to give way: whoever it is that leaves. */
TEST_P(Pairs, LastWordsArriveThoughBothCall)
{
    for (int leaver = 0; leaver < 2; leaver++) {
        run_case(GetParam(), [leaver](Peer &peer) {
            prepare(peer, "the secret");
            peer.sync(false);
            if (peer.index == leaver) {
                leave_with_a_last_word(peer);
            } else {
                quoit_endpoint_t *endpoint = peer.connect();
                take_the_last_word(peer);
                peer.ops->disconnect(endpoint);
            }
            peer.sync();
        });
    }
}

TEST_P(Pairs, BothDisconnectAndConnectAnew)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        for (uint64_t round = 0; round < 5; round++) {
            exchange(peer, peer.endpoint, 10 * round);
            peer.sync();
            peer.ops->disconnect(peer.endpoint);
            peer.wait("idle", [&] { return peer.ops->idle(peer.transport); });
            peer.sync();
            peer.endpoint = peer.connect();
        }
        exchange(peer, peer.endpoint, 1000);
        peer.sync();
    });
}

TEST_P(Processes, AKilledPeerIsNoticedWithinTwoSeconds)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        const size_t size = 64u << 20; /* in every build: it must still be under way when the peer dies */
        auto recv = peer.recv({1, 1}, 100), flow = peer.recv({1, 3}, size);
        auto send = peer.send({1, 2}, pattern(1 << 20, 1));
        MessagePtr flowing = peer.send({1, 3}, pattern(size, 2));
        uint64_t sent = 0, received = 0;
        peer.wait("some bytes", [&] {
            peer.ops->count(peer.endpoint, &sent, &received);
            /* Bytes written from afar count on the side that writes: the other one may be dead before this one knows of any. */
            return sent + received > 1 << 20 || (peer.index == 0 && peer.find_event(QUOIT_EVENT_CLOSED));
        });
        if (peer.index == 1) kill(getpid(), SIGKILL);
        uint64_t begin = clock_now();
        peer.wait("the news", [&] {
            return peer.find_event(QUOIT_EVENT_CLOSED) && recv->done() && send->done() && flow->done() && flowing->done();
        }, 10000);
        require(clock_now() - begin < 2500000000u * (uint64_t)slow(), "it took longer than two seconds");
        require(recv->transfer.status < 0 && send->transfer.status < 0 && flow->transfer.status < 0, "a transfer ended well");
        const Event *closed = peer.find_event(QUOIT_EVENT_CLOSED);
        require(closed->status < 0 && !closed->text.empty(), "the event says nothing");
        require(peer.ops->endpoint_status(peer.endpoint) < 0, "the endpoint still stands");
        auto late = peer.send({1, 9}, "x");
        require(late->transfer.status < 0, "a send to the dead succeeded");
        if (peer.ops->flags & QUOIT_TRANSPORT_MAP) peer.wait("certainty", [&] { return peer.find_event(QUOIT_EVENT_DIED); }, 2000);
    }, 1);
}

} // namespace conformance
