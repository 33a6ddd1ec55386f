/* SPDX-License-Identifier: Apache-2.0 */
/* Two transports of verbs in one process, driven by one thread, and messages between them. */
#pragma once

#include "test/support/bytes.h"
#include "verbs_harness.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include "base/clock.h"
#include "base/hmac.h"
#include "base/settings.h"
#include "transport/registry.h"
#include "transport/verbs/verbs_library.h"
}

namespace verbs_test {

using test_bytes::pattern;

/* Settings of the transports to be opened, instead of the program's. */
inline std::map<std::string, std::string> &overrides()
{
    static std::map<std::string, std::string> all;
    return all;
}

inline const char *setting(const char *name)
{
    const char *value = nullptr;
    if (overrides().count(name)) return overrides()[name].c_str();
    return quoit_setting_get(name, &value) == QUOIT_OK ? value : nullptr;
}

/* Two transports of this process, driven by this thread. */
struct Pair {
    struct Side {
        quoit_process_id_t id{};
        int doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        quoit_transport_t *transport = nullptr;
        quoit_endpoint_t *endpoint = nullptr;
        char address[QUOIT_ADDRESS_CAPACITY];
        size_t length = sizeof address;
        std::string closed; /* text of the event */
        quoit_status_t closed_status = QUOIT_IN_PROGRESS;
    };
    Side side[2];
    const quoit_transport_ops_t *ops = &transport_verbs;
    std::string failure; /* what set-up ended in; "": it did not fail */
    unsigned turn = 0;

    explicit Pair(int timeout_ms = 20000)
    {
        for (auto &one : side) {
            quoit_transport_environment_t environment;
            EXPECT_EQ(random_bytes(&one.id, sizeof one.id), QUOIT_OK);
            transport_environment_init(&environment, one.id, one.doorbell, "testhost");
            environment.setting = setting;
            if (!good(ops->open(&environment, &one.transport)) || !good(ops->listen(one.transport, one.address, &one.length)) ||
                !good(ops->trust(one.transport, 7, "secret", 6)))
                return;
        }
        for (int i = 0; i < 2; i++) {
            quoit_peer_t peer = {side[1 - i].id, 7, side[1 - i].address, side[1 - i].length, i ? "rank 0 (here)" : "rank 1 (there)", timeout_ms};
            if (!good(ops->connect(side[i].transport, &peer, &side[i].endpoint))) return;
        }
        bool over = wait([&] {
            for (auto &one : side)
                if (ops->endpoint_status(one.endpoint) != QUOIT_IN_PROGRESS && ops->endpoint_status(one.endpoint) != QUOIT_OK) return true;
            return ops->endpoint_status(side[0].endpoint) == QUOIT_OK && ops->endpoint_status(side[1].endpoint) == QUOIT_OK;
        }, 30000);
        if (!over) failure = "set-up hangs";
        for (auto &one : side)
            if (failure.empty()) good(ops->endpoint_status(one.endpoint));
    }
    ~Pair()
    {
        for (auto &one : side) {
            ops->close(one.transport);
            close(one.doorbell);
        }
    }
    Pair(const Pair &) = delete;

    bool good(quoit_status_t status)
    {
        if (status == QUOIT_OK) return true;
        failure = error_text();
        if (failure.empty()) failure = "an error without a text";
        return false;
    }
    void progress()
    {
        quoit_event_t event;
        for (auto &one : side) {
            ops->progress(one.transport);
            if (++turn % 16 < 2 && ops->arm(one.transport) == QUOIT_OK) ops->disarm(one.transport);
            while (ops->next_event(one.transport, &event)) {
                if (event.type != QUOIT_EVENT_CLOSED) continue;
                one.closed = event.text;
                one.closed_status = event.status;
            }
        }
    }
    template <typename Done> bool wait(Done done, int limit_ms = 20000)
    {
        const char *slow = getenv("TEST_SLOW");
        uint64_t deadline = clock_deadline(limit_ms * (slow ? atoi(slow) : 1));
        while (!done()) {
            progress();
            if (clock_now() > deadline) return false;
            sched_yield();
        }
        return true;
    }
};

struct Message {
    std::string bytes, wanted;
    quoit_transfer_t transfer{};
    bool done() const { return transfer.status != QUOIT_IN_PROGRESS; }
};

/* Messages of several sizes both ways. The text of what is wrong: other bytes, no end, an error without a text. */
inline std::string exchange(Pair &pair, uint64_t comm, bool *all_well)
{
    const size_t sizes[] = {10, 8000, 70000, 2200000};
    std::vector<Message> sends(8), recvs(8);
    for (int i = 0; i < 8; i++) {
        int from = i & 1;
        size_t size = sizes[i / 2];
        quoit_key_t key = {comm, (uint64_t)i};
        sends[i].bytes = recvs[i].wanted = pattern(size, (unsigned)(comm * 100 + (uint64_t)i));
        recvs[i].bytes.assign(size, '\0');
        EXPECT_EQ(pair.ops->recv(pair.side[1 - from].endpoint, key, &recvs[i].bytes[0], size, &recvs[i].transfer), QUOIT_OK);
        EXPECT_EQ(pair.ops->send(pair.side[from].endpoint, key, sends[i].bytes.data(), size, &sends[i].transfer), QUOIT_OK);
    }
    auto over = [&] {
        for (int i = 0; i < 8; i++)
            if (!sends[i].done() || !recvs[i].done()) return false;
        return true;
    };
    bool ended = pair.wait(over, 30000);
    std::string wrong = ended ? "" : "a transfer hangs";
    *all_well = ended;
    for (int i = 0; i < 8 && ended; i++) {
        *all_well = *all_well && recvs[i].transfer.status == QUOIT_OK && sends[i].transfer.status == QUOIT_OK;
        if (recvs[i].transfer.status == QUOIT_OK && recvs[i].bytes != recvs[i].wanted) wrong = "message " + std::to_string(i) + " has other bytes";
    }
    if (!ended) pair.ops->cancel(pair.side[0].transport, comm), pair.ops->cancel(pair.side[1].transport, comm);
    if (ended && !*all_well) {
        pair.wait([&] { return pair.side[0].closed_status != QUOIT_IN_PROGRESS && pair.side[1].closed_status != QUOIT_IN_PROGRESS; }, 10000);
        for (auto &one : pair.side) {
            if (one.closed_status == QUOIT_IN_PROGRESS) wrong = "a transfer failed, and no event says why";
            else if (one.closed.empty()) wrong = "an event without a text";
        }
    }
    return wrong;
}

} // namespace verbs_test
