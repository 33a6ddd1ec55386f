/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance: sleeping on descriptor and doorbell; a sleeper is always woken. */
#include "conformance.h"

#include <random>

#include <unistd.h>

namespace conformance {

TEST_P(Pairs, ASleepingReceiverIsAlwaysWoken)
{
    run_case(GetParam(), [](Peer &peer) {
        const uint64_t seed = 20 + (uint64_t)peer.index;
        std::mt19937_64 random(seed);
        peer.stand();
        for (uint64_t round = 0; round < 1000; round++) {
            size_t size = round % 10 == 9 ? eager_limit() * 20 : round % 100;
            auto ping = [&] {
                /* From nothing to a fifth of a millisecond: hits every moment of the other side's going to sleep. */
                if (random() % 3) usleep((useconds_t)(random() % 200));
                auto send = peer.send({1, round}, pattern(size, round));
                peer.sleep_until("the end of send " + std::to_string(round) + ", seed " + std::to_string(seed),
                                 [&] { return send->done(); });
                /* Whoever stops driving has to leave nothing unsent. */
                peer.sleep_until("idle", [&] { return peer.ops->idle(peer.transport); });
            };
            auto pong = [&] {
                auto recv = peer.recv({1, round}, size);
                peer.sleep_until("message " + std::to_string(round) + ", seed " + std::to_string(seed), [&] { return recv->done(); });
                require(recv->transfer.status == QUOIT_OK && recv->content() == pattern(size, round), "bytes");
            };
            if ((round & 1) == (uint64_t)peer.index) ping();
            else pong();
        }
        peer.sync();
    });
}

TEST_P(Pairs, AnIdleSleeperIsNotWoken)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        peer.run_for(50);
        peer.sync();
        int wakes = 0;
        uint64_t begin = clock_now();
        try {
            peer.sleep_until("nothing", [&] { return ++wakes > 20; }, 300);
        } catch (const std::exception &) {
            /* That is how it should end. */
        }
        require(wakes <= 20 && clock_now() - begin >= 250000000u, "woken " + std::to_string(wakes) + " times for nothing");
        peer.sync();
    });
}

TEST_P(Pairs, SleepersStreamBothWays)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        const size_t size = 3u << 20;
        std::vector<MessagePtr> sends, recvs;
        for (uint64_t i = 0; i < 4; i++) {
            sends.push_back(peer.send({1, i}, pattern(size, i)));
            recvs.push_back(peer.recv({1, i}, size));
        }
        for (uint64_t i = 0; i < 4; i++) {
            peer.sleep_until("message " + std::to_string(i), [&] { return recvs[i]->done() && sends[i]->done(); }, 20000);
            require(recvs[i]->content() == pattern(size, i), "bytes");
        }
        peer.sync();
    });
}

} // namespace conformance
