/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance: messages of all sizes and orders, credit, notices, mismatch. */
#include "conformance.h"

#include <algorithm>

namespace conformance {

static std::vector<size_t> sizes()
{
    size_t eager = eager_limit(), segment = segment_size();
    return {0, 1, 7, 64, 127, 4096, eager - 1, eager, eager + 1, eager + 7, segment - 1, segment, segment + 1, 3 * segment + 5, 1 << 20};
}

static void check(const Message &recv, const std::string &wanted, const std::string &what)
{
    require(recv.transfer.status == QUOIT_OK, what + " ended in " + quoit_status_text(recv.transfer.status) + ": " + error_text());
    require(recv.transfer.length == wanted.size(), what + " has another length");
    require(recv.canaries(), what + " was written beyond its buffer");
    require(recv.content() == wanted, what + " has other bytes");
}

/* Both send every size to each other; `recv_first` says who comes first, certainly. */
static void exchange_sizes(Peer &peer, bool recv_first)
{
    peer.stand();
    std::vector<MessagePtr> sends, recvs;
    auto all = sizes();
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < all.size(); i++) {
            if ((turn == 0) == recv_first) recvs.push_back(peer.recv({1, i}, all[i], 5));
            else sends.push_back(peer.send({1, i}, pattern(all[i], i * 2 + (size_t)peer.index), 5));
        }
        peer.sync();
        peer.run_for(20);
    }
    peer.wait_all("sends", sends);
    peer.wait_all("recvs", recvs);
    for (size_t i = 0; i < all.size(); i++) {
        check(*recvs[i], pattern(all[i], i * 2 + (size_t)peer.other()), "message of " + std::to_string(all[i]) + " bytes");
        require(sends[i]->transfer.status == QUOIT_OK, "a send failed");
    }
    peer.sync();
}

TEST_P(Conformance, EverySizeWithRecvFirst)
{
    run_case(GetParam(), [](Peer &peer) { exchange_sizes(peer, true); });
}

TEST_P(Conformance, EverySizeWithSendFirst)
{
    run_case(GetParam(), [](Peer &peer) { exchange_sizes(peer, false); });
}

TEST_P(Conformance, EverySizeAroundTheEagerLimit)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        std::vector<MessagePtr> sends, recvs;
        size_t first = eager_limit() - 70, count = 140;
        for (size_t i = 0; i < count; i++) {
            sends.push_back(peer.send({1, 3}, pattern(first + i, i + (size_t)peer.index)));
            recvs.push_back(peer.recv({1, 3}, first + i));
        }
        peer.wait_all("recvs", recvs);
        peer.wait_all("sends", sends);
        for (size_t i = 0; i < count; i++)
            check(*recvs[i], pattern(first + i, i + (size_t)peer.other()), "message of " + std::to_string(first + i) + " bytes");
        peer.sync();
    });
}

TEST_P(Conformance, TenThousandSmallOnesWithALateReceiver)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        const size_t count = 10000, size = 200;
        std::vector<MessagePtr> sends, recvs;
        for (size_t i = 0; i < count; i++) sends.push_back(peer.send({2, 5}, pattern(size, i * 2 + (size_t)peer.index)));
        peer.run_for(100);
        require(!sends.back()->done(), "10000 unasked messages went through a pool of 1 MiB");
        uint64_t sent, received;
        peer.ops->count(peer.endpoint, &sent, &received);
        require(received < 3 * (1u << 20), "unasked bytes are not bounded by the pool: " + std::to_string(received));
        peer.sync();
        for (size_t i = 0; i < count; i++) recvs.push_back(peer.recv({2, 5}, size));
        peer.wait_all("recvs", recvs);
        peer.wait_all("sends", sends);
        for (size_t i = 0; i < count; i++)
            check(*recvs[i], pattern(size, i * 2 + (size_t)peer.other()), "message " + std::to_string(i));
        peer.sync();
    });
}

TEST_P(Conformance, ManyKeysOutOfOrder)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        const size_t count = 300;
        auto length = [](size_t i) { return i * 97 % 30000; };
        std::vector<MessagePtr> sends, recvs(count);
        for (size_t i = 0; i < count; i++) sends.push_back(peer.send({i % 7, i}, pattern(length(i), i * 2 + (size_t)peer.index)));
        for (size_t k = 0; k < count; k++) {
            size_t i = k * 131 % count;
            recvs[i] = peer.recv({i % 7, i}, length(i));
            if (k % 16 == 0) peer.progress();
        }
        peer.wait_all("recvs", recvs);
        peer.wait_all("sends", sends);
        for (size_t i = 0; i < count; i++)
            check(*recvs[i], pattern(length(i), i * 2 + (size_t)peer.other()), "key " + std::to_string(i));
        peer.sync();
    });
}

TEST_P(Conformance, BothDirectionsAtOnce)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        const size_t size = large(8);
        std::vector<MessagePtr> sends, recvs;
        for (size_t i = 0; i < 3; i++) {
            recvs.push_back(peer.recv({1, 1}, size));
            sends.push_back(peer.send({1, 1}, pattern(size, i * 2 + (size_t)peer.index)));
        }
        peer.wait_all("sends", sends);
        peer.wait_all("recvs", recvs);
        for (size_t i = 0; i < 3; i++) check(*recvs[i], pattern(size, i * 2 + (size_t)peer.other()), "a large one");
        uint64_t sent, received;
        peer.ops->count(peer.endpoint, &sent, &received);
        require(sent >= 3 * size && sent < 3 * size + (size >> 2), "count says " + std::to_string(sent) + " bytes sent");
        require(received >= 3 * size && received < 3 * size + (size >> 2), "count says " + std::to_string(received) + " bytes received");
        peer.sync();
    });
}

/* ---------------------------------------------------------------- notices */

TEST_P(Conformance, NoticesKeepTheirOrder)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        const size_t count = 400;
        auto text = [](size_t i, int from) { return pattern(i * 37 % 1500, i * 2 + (size_t)from); };
        for (size_t i = 0; i < count; i++) {
            std::string data = text(i, peer.index);
            peer.wait("credit for a notice", [&] {
                quoit_status_t status = peer.ops->notify(peer.endpoint, data.data(), data.size());
                if (status != QUOIT_ERR_AGAIN) require_ok(status, "notify");
                return status == QUOIT_OK;
            });
        }
        peer.wait("notices", [&] { return peer.events.size() >= count; });
        for (size_t i = 0; i < count; i++) {
            require(peer.events[i].type == QUOIT_EVENT_NOTICE && peer.events[i].endpoint == peer.endpoint, "not a notice");
            require(peer.events[i].data == text(i, peer.other()), "notice " + std::to_string(i) + " has other bytes");
        }
        peer.sync();
    });
}

TEST_P(Conformance, NoticesWithoutCreditAreRefusedUntilItComesBack)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        std::string big = pattern(1000, 1), small = pattern(QUOIT_NOTICE_SMALL, 2);
        quoit_status_t status = peer.ops->notify(peer.endpoint, pattern(eager_limit() + 1, 1).data(), eager_limit() + 1);
        require(status == QUOIT_ERR_INVALID, "a notice beyond the eager limit was taken");
        size_t big_count = 0, small_count = 500;
        do {
            status = peer.ops->notify(peer.endpoint, big.data(), big.size());
            if (status == QUOIT_OK) big_count++;
        } while (status == QUOIT_OK && big_count < 100000);
        require(status == QUOIT_ERR_AGAIN && big_count > 10, "large notices: " + std::string(quoit_status_text(status)));
        for (size_t i = 0; i < small_count; i++)
            require_ok(peer.ops->notify(peer.endpoint, small.data(), small.size()), "a small notice");
        std::string theirs = peer.swap(std::to_string(big_count), false);
        size_t expected = std::stoul(theirs) + small_count;
        peer.wait("notices", [&] { return peer.events.size() >= expected; });
        for (size_t i = 0; i < expected; i++)
            require(peer.events[i].data == (i < expected - small_count ? big : small), "notice " + std::to_string(i));
        peer.wait("credit", [&] { return peer.ops->notify(peer.endpoint, big.data(), big.size()) == QUOIT_OK; });
        peer.wait("the last notice", [&] { return peer.events.size() > expected; });
        peer.sync();
    });
}

/* ---------------------------------------------------------------- mismatch */

static void mismatch_case(Peer &peer, size_t send_length, size_t recv_length, uint32_t send_what, uint32_t recv_what, bool recv_first,
                          uint64_t comm)
{
    std::string what = std::to_string(send_length) + " bytes to " + std::to_string(recv_length) + (recv_first ? ", recv first" : "");
    MessagePtr send, recv;
    for (int turn = 0; turn < 2; turn++) {
        if ((turn == 0) == recv_first) recv = peer.recv({comm, 1}, recv_length, recv_what);
        else send = peer.send({comm, 1}, pattern(send_length, 1), send_what);
        peer.sync();
    }
    std::string text;
    peer.wait("the mismatch of " + what, [&] {
        if (text.empty() && recv->done()) text = error_text();
        return recv->done() && send->done();
    });
    require(recv->transfer.status == QUOIT_ERR_MISMATCH, "recv of " + what + " ended in " + quoit_status_text(recv->transfer.status));
    require(recv->filled_with(0x33) && recv->canaries(), "recv of " + what + " was written to");
    require(text.find(std::to_string(send_length)) != std::string::npos && text.find(std::to_string(recv_length)) != std::string::npos,
            "the text does not name both lengths: " + text);
    if (send_length > eager_limit())
        require(send->transfer.status == QUOIT_ERR_MISMATCH, "send of " + what + " ended in " + quoit_status_text(send->transfer.status));
    peer.sync();
}

TEST_P(Conformance, MismatchIsToldOnBothSides)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        uint64_t comm = 100;
        size_t large = 3 * segment_size();
        const size_t lengths[] = {0, 100, large, large + 64};
        for (size_t send_length : lengths)
            for (size_t recv_length : lengths)
                for (bool recv_first : {false, true}) {
                    if (send_length != recv_length) mismatch_case(peer, send_length, recv_length, 7, 7, recv_first, comm++);
                    else mismatch_case(peer, send_length, recv_length, 7, 8, recv_first, comm++);
                }
        /* The connection lives on, and what == 0 fits all. */
        auto recv = peer.recv({1, 1}, large, 0);
        auto send = peer.send({1, 1}, pattern(large, 9), 7);
        peer.wait("a message after the mismatches", [&] { return recv->done() && send->done(); });
        check(*recv, pattern(large, 9), "the message after the mismatches");
        require(peer.ops->endpoint_status(peer.endpoint) == QUOIT_OK, "the endpoint did not survive");
        peer.sync();
    });
}

TEST_P(Conformance, DescribeNamesTheTransport)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        std::string text = peer.ops->describe(peer.endpoint);
        require(text.find(peer.ops->name) != std::string::npos, "describe says: " + text);
        require(peer.ops->reg(peer.transport, &text, sizeof text) == QUOIT_OK, "reg");
        peer.ops->dereg(peer.transport, &text);
        peer.sync();
    });
}

TEST_P(Conformance, BadArgumentsAreErrors)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        quoit_transfer_t transfer{};
        require(peer.ops->send(peer.endpoint, {1, 1}, nullptr, 10, &transfer) == QUOIT_ERR_INVALID, "send from nowhere");
        require(peer.ops->recv(peer.endpoint, {1, 1}, nullptr, 10, &transfer) == QUOIT_ERR_INVALID, "recv to nowhere");
        require(error_text()[0] != 0, "no text");
        char address[QUOIT_ADDRESS_CAPACITY];
        size_t tiny = 1;
        require(peer.ops->listen(peer.transport, address, &tiny) != QUOIT_OK, "an address of one byte");
        peer.sync();
    });
}

} // namespace conformance
