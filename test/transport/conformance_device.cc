/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance: buffers in memory of a device, for transports with the flag DEVICE that say they reach the lagging device, whose memory kills
 * a processor that touches it. What the others answer is nothing: these calls are not looked at.
 */
#include "conformance.h"

#include <csignal>
#include <unistd.h>

extern "C" {
#include "test/device/lagging_device.h"
}

namespace conformance {

/* Both sides stand, and this one's transport reaches the device; false: there is nothing to test. */
static bool reaches(Peer &peer)
{
    if (!(peer.ops->flags & QUOIT_TRANSPORT_DEVICE)) return false;
    lagging_device_set_lag(0, 0);
    peer.stand();
    quoit_status_t status = peer.ops->device_reach(peer.transport, "lagging");
    require(status == QUOIT_OK || status == QUOIT_ERR_UNSUPPORTED, "device_reach: " + peer.last_error());
    require(status == QUOIT_OK || !peer.last_error().empty(), "no text");
    require(peer.swap(std::to_string(status)) == std::to_string(status), "only one of two peers reaches the device");
    return status == QUOIT_OK;
}

/* A buffer of the device with a margin at each end, its region, and the transfer. */
struct DeviceMessage {
    DeviceMessage(Peer &peer, const std::string &content) : peer(peer), length(content.size()), host(content)
    {
        std::string whole(length + 2 * margin, '\x5a');
        memcpy(&whole[margin], content.data(), length);
        require_ok(lagging_device.alloc(whole.size(), &memory), "device memory");
        require_ok(lagging_device_upload(memory, whole.data(), whole.size()), "upload");
        quoit_device_memory_t described;
        if (length == 0) return;
        require_ok(device_describe(&lagging_device, place(), length, &described), "device_describe");
        require_ok(peer.ops->device_take(peer.transport, &described, &region), "device_take");
    }
    ~DeviceMessage()
    {
        if (region && peer.transport) peer.ops->device_give(peer.transport, region);
        lagging_device.free(memory);
    }
    DeviceMessage(const DeviceMessage &) = delete;
    char *place() { return static_cast<char *>(memory) + margin; }
    void send(quoit_key_t key) { require_ok(peer.ops->device_send(peer.endpoint, key, region, place(), length, &transfer), "device_send"); }
    void recv(quoit_key_t key)
    {
        receives = true;
        require_ok(peer.ops->device_recv(peer.endpoint, key, region, place(), length, &transfer), "device_recv");
    }
    /* What stops goes on through host memory. */
    bool over()
    {
        if (transfer.status == QUOIT_ERR_AGAIN) {
            if (!receives) require_ok(lagging_device_download(&host[0], place(), length), "download");
            require_ok(peer.ops->device_host(peer.endpoint, &transfer, &host[0]), "device_host");
            if (receives) require(transfer.status == QUOIT_OK, "a recv that was given host memory goes on");
            if (receives) require_ok(lagging_device_upload(place(), host.data(), length), "upload");
        }
        return transfer.status != QUOIT_IN_PROGRESS;
    }
    void check(const std::string &wanted, const std::string &what)
    {
        std::string whole(length + 2 * margin, '-');
        require(transfer.status == QUOIT_OK, what + " ended in " + quoit_status_text(transfer.status) + ": " + error_text());
        require(!receives || transfer.length == wanted.size(), what + " has another length");
        require_ok(lagging_device_download(&whole[0], memory, whole.size()), "download");
        require(whole.substr(margin, length) == wanted, what + " has other bytes");
        require(whole.substr(0, margin) + whole.substr(margin + length) == std::string(2 * margin, '\x5a'), what + " was written beyond its buffer");
    }

    static constexpr size_t margin = 67;
    Peer &peer;
    size_t length;
    std::string host;
    void *memory = nullptr;
    quoit_region_t *region = nullptr;
    bool receives = false;
    quoit_transfer_t transfer{};
};

using DevicePtr = std::unique_ptr<DeviceMessage>;

static std::vector<size_t> device_sizes()
{
    size_t eager = eager_limit();
    return {0, 1, 4096, eager, eager + 1, 3 * eager + 5, (size_t)1 << 20};
}

/* Each size both ways, from device to device. */
static void exchange_devices(Peer &peer, bool recv_first)
{
    auto all = device_sizes();
    std::vector<DevicePtr> sends, recvs;
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < all.size(); i++) {
            if ((turn == 0) == recv_first) {
                recvs.push_back(std::make_unique<DeviceMessage>(peer, std::string(all[i], '-')));
                recvs.back()->recv({1, i});
            } else {
                sends.push_back(std::make_unique<DeviceMessage>(peer, pattern(all[i], i * 2 + (size_t)peer.index)));
                sends.back()->send({1, i});
            }
        }
        peer.sync();
    }
    for (size_t i = 0; i < all.size(); i++) {
        peer.wait("a message of " + std::to_string(all[i]) + " bytes", [&] {
            for (auto &one : sends) one->over(); /* those that stop are waited for on the other side */
            return sends[i]->over() && recvs[i]->over();
        });
        recvs[i]->check(pattern(all[i], i * 2 + (size_t)peer.other()), "message of " + std::to_string(all[i]) + " bytes");
        require(sends[i]->transfer.status == QUOIT_OK, "a send failed");
    }
    peer.sync();
    sends.clear();
    recvs.clear();
}

/* The device begins anew for each case: processes must not share what this one has of it. */
static void run(const Subject &subject, const Case &body, int killed = -1)
{
    run_case(subject, body, killed);
    lagging_device_shutdown();
}

TEST_P(Pairs, DeviceBuffersWithRecvFirst)
{
    run(GetParam(), [](Peer &peer) {
        if (reaches(peer)) exchange_devices(peer, true);
    });
}

TEST_P(Pairs, DeviceBuffersWithSendFirst)
{
    run(GetParam(), [](Peer &peer) {
        if (reaches(peer)) exchange_devices(peer, false);
    });
}

/* One side's buffer is the host's: neither can tell. */
TEST_P(Pairs, DeviceBuffersMeetThoseOfTheHost)
{
    run(GetParam(), [](Peer &peer) {
        if (!reaches(peer)) return;
        auto all = device_sizes();
        for (size_t i = 0; i < all.size(); i++) {
            std::string mine = pattern(all[i], i * 2 + (size_t)peer.index), theirs = pattern(all[i], i * 2 + (size_t)peer.other());
            const std::string what = "message of " + std::to_string(all[i]) + " bytes";
            DeviceMessage device(peer, (int)(i % 2) == peer.index ? mine : std::string(all[i], '-'));
            bool sends_device = (int)(i % 2) == peer.index; /* its recv is then the host's */
            auto host = sends_device ? peer.recv({2, i}, all[i]) : peer.send({2, i}, mine);
            if (sends_device) device.send({2, i});
            else device.recv({2, i});
            peer.wait(what, [&] { return device.over() && host->done(); });
            require(host->transfer.status == QUOIT_OK, what + " of the host failed");
            if (sends_device) require(host->content() == theirs, what + " came to the host with other bytes");
            else device.check(theirs, what);
            peer.sync();
        }
    });
}

TEST_P(Pairs, DeviceTransfersAreCancelled)
{
    run(GetParam(), [](Peer &peer) {
        if (!reaches(peer)) return;
        const size_t size = 1 << 20;
        DeviceMessage send(peer, pattern(size, 1)), recv(peer, std::string(size, '-')), small(peer, std::string(100, '-'));
        send.send({3, 1});
        recv.recv({3, 2});
        small.recv({3, 3});
        auto unasked = peer.send({3, 3}, pattern(100, 5)); /* both stop for lack of host memory */
        peer.wait("what stops", [&] { return small.transfer.status == QUOIT_ERR_AGAIN; });
        peer.sync();
        peer.ops->cancel(peer.transport, 3);
        for (auto *one : {&send, &recv, &small})
            require(one->transfer.status == QUOIT_ERR_ABORTED, std::string("a transfer ended in ") + quoit_status_text(one->transfer.status));
        require_ok(lagging_device_upload(recv.place(), std::string(size, 'w').data(), size), "upload");
        auto other = peer.recv({4, 1}, size);
        DeviceMessage kept(peer, pattern(size, 10 + (uint64_t)peer.index));
        kept.send({4, 1});
        peer.wait("the other communicator", [&] { return kept.over() && other->done(); });
        require(other->content() == pattern(size, 10 + (uint64_t)peer.other()), "the other communicator's bytes");
        peer.sync();
        recv.transfer.status = QUOIT_OK;
        recv.transfer.length = size;
        recv.check(std::string(size, 'w'), "a cancelled buffer");
    });
}

TEST_P(Processes, DeviceTransfersEndWithThePeer)
{
    run(
        GetParam(),
        [](Peer &peer) {
            if (!reaches(peer)) {
                if (peer.index == 1) raise(SIGKILL);
                return;
            }
            const size_t size = 1 << 20;
            DeviceMessage send(peer, pattern(size, 1)), recv(peer, std::string(size, '-'));
            send.send({1, (uint64_t)peer.index});
            recv.recv({1, 2 + (uint64_t)peer.index}); /* nobody sends it */
            if (peer.index == 1) {
                peer.run_for(5);
                raise(SIGKILL);
            }
            peer.wait("the end", [&] { return send.transfer.status != QUOIT_IN_PROGRESS && recv.transfer.status != QUOIT_IN_PROGRESS; });
            require(recv.transfer.status < 0, "a recv from a dead peer ended well");
        },
        1);
}

} // namespace conformance
