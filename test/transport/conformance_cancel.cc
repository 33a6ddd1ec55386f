/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance: cancelling a communicator, in every phase of a message; other communicators live on. */
#include "conformance.h"

namespace conformance {

/* A message of another communicator, both ways, is whole. */
static void others_live(Peer &peer, uint64_t id)
{
    const size_t size = (1 << 20) + 3;
    auto recv = peer.recv({4, id}, size);
    auto send = peer.send({4, id}, pattern(size, id + (uint64_t)peer.index));
    peer.wait("the other communicator", [&] { return recv->done() && send->done(); });
    require(recv->transfer.status == QUOIT_OK && send->transfer.status == QUOIT_OK, "the other communicator failed");
    require(recv->content() == pattern(size, id + (uint64_t)peer.other()), "the other communicator's bytes");
}

static void require_aborted(const Message &message, const std::string &what)
{
    require(message.transfer.status == QUOIT_ERR_ABORTED, what + " ended in " + quoit_status_text(message.transfer.status));
}

TEST_P(Conformance, CancelBeforeAnythingMoved)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        auto send = peer.send({3, 1}, pattern(1 << 20, 1));
        auto recv = peer.recv({3, 2}, 1 << 20), small = peer.recv({3, 3}, 10);
        peer.sync();
        require(!send->done() && !recv->done() && !small->done(), "something ended without its other side");
        peer.ops->cancel(peer.transport, 3);
        require_aborted(*send, "send");
        require_aborted(*recv, "recv");
        require_aborted(*small, "small recv");
        send->refill(0x77);
        recv->refill(0x77);
        others_live(peer, 1);
        peer.sync();
        require(recv->filled_with(0x77) && recv->canaries(), "a buffer was touched after cancel");
    });
}

TEST_P(Conformance, CancelDropsWhatWasNotAskedFor)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        std::vector<MessagePtr> sends;
        /* Unasked messages that nobody takes use up the credit: cancel gives it back. */
        for (uint64_t i = 0; i < 4000; i++) sends.push_back(peer.send({3, i}, pattern(1000, i)));
        peer.run_for(50);
        peer.sync();
        require(!sends.back()->done(), "4000 messages of 1000 bytes went through the pool");
        peer.ops->cancel(peer.transport, 3);
        for (const auto &send : sends) require(send->done(), "a send survived the cancel");
        peer.sync();
        others_live(peer, 2);
        std::string big = pattern(1000, 1);
        peer.wait("credit", [&] { return peer.ops->notify(peer.endpoint, big.data(), big.size()) == QUOIT_OK; });
        peer.sync();
    });
}

/* Large messages in full flow, cancelled by one side first; `phase` bytes have moved by then. */
static void cancel_in_flow(Peer &peer, uint64_t phase, bool receiver_first)
{
    peer.stand();
    const size_t size = large(16);
    MessagePtr send, recv;
    if (peer.index == 1 || peer.alone()) recv = peer.recv({3, 1}, size);
    if (peer.index == 0 || peer.alone()) send = peer.send({3, 1}, pattern(size, 1));
    bool first = (peer.index == 1) == receiver_first || peer.alone();
    auto cancel = [&] {
        peer.ops->cancel(peer.transport, 3);
        if (send && send->transfer.status != QUOIT_OK) require_aborted(*send, "send");
        if (recv && recv->transfer.status != QUOIT_OK) require_aborted(*recv, "recv");
        if (send) send->refill(0x77);
        if (recv) recv->refill(0x77);
    };
    if (first) {
        uint64_t sent = 0, received = 0;
        peer.wait("some bytes", [&] {
            peer.ops->count(peer.endpoint, &sent, &received);
            return sent + received >= phase;
        });
        cancel();
    }
    others_live(peer, 3);
    if (!first) {
        bool done = receiver_first ? send->done() : recv->done();
        if (!receiver_first) require(!done || recv->transfer.status == QUOIT_OK, "the recv ended although it was not cancelled");
        if (recv && recv->transfer.status == QUOIT_OK) require(recv->content() == pattern(size, 1), "a cancelled send completed the recv");
        cancel();
    }
    peer.sync();
    others_live(peer, 4);
    peer.run_for(20);
    if (recv) require(recv->filled_with(0x77) && recv->canaries(), "the buffer was touched after cancel");
    auto after = peer.recv({3, 9}, 8);
    require_aborted(*after, "a recv on a cancelled communicator");
    peer.sync();
}

TEST_P(Conformance, ReceiverCancelsInFullFlow)
{
    for (size_t phase : {(size_t)1, (size_t)300000, large(3)})
        run_case(GetParam(), [phase](Peer &peer) { cancel_in_flow(peer, phase, true); });
}

TEST_P(Conformance, SenderCancelsInFullFlow)
{
    for (size_t phase : {(size_t)1, (size_t)300000, large(3)})
        run_case(GetParam(), [phase](Peer &peer) { cancel_in_flow(peer, phase, false); });
}

TEST_P(Conformance, CancelAfterTheEndChangesNothing)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        auto recv = peer.recv({3, 1}, 100000);
        auto send = peer.send({3, 1}, pattern(100000, 1 + (uint64_t)peer.index));
        peer.wait("the message", [&] { return recv->done() && send->done(); });
        peer.ops->cancel(peer.transport, 3);
        peer.ops->cancel(peer.transport, 3);
        peer.ops->cancel(peer.transport, 12345);
        require(recv->transfer.status == QUOIT_OK && send->transfer.status == QUOIT_OK, "cancel changed an end");
        require(recv->content() == pattern(100000, 1 + (uint64_t)peer.other()), "bytes");
        others_live(peer, 5);
        peer.sync();
    });
}

TEST_P(Conformance, ManyCommunicatorsComeAndGo)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        for (uint64_t comm = 1000; comm < 1400; comm++) {
            auto recv = peer.recv({comm, 1}, 3000), never = peer.recv({comm, 2}, 70000);
            auto send = peer.send({comm, 1}, pattern(3000, comm));
            peer.wait("a message", [&] { return recv->done() && send->done(); });
            require(recv->content() == pattern(3000, comm), "bytes");
            peer.ops->cancel(peer.transport, comm);
            require_aborted(*never, "recv");
        }
        others_live(peer, 6);
        peer.sync();
    });
}

} // namespace conformance
