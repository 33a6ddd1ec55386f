/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance: memory that peers attach (transports with the flag MAP), and what the others answer. */
#include "conformance.h"

#include <atomic>
#include <random>

#include <unistd.h>

namespace conformance {

static std::string export_of(Peer &peer, const void *pointer, size_t length)
{
    std::string handle(QUOIT_HANDLE_CAPACITY, '\0');
    require_ok(peer.ops->export_memory(peer.transport, pointer, length, handle.data()), "export_memory");
    return handle;
}

static void *attach(Peer &peer, const std::string &handle, size_t expected)
{
    void *pointer = nullptr;
    size_t length = 0;
    require_ok(peer.ops->attach(peer.endpoint, handle.data(), &pointer, &length), "attach");
    require(length == expected, "attached " + std::to_string(length) + " bytes of " + std::to_string(expected));
    return pointer;
}

TEST_P(Mapped, BothSeeTheSameBytes)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        for (size_t length : {(size_t)64, (size_t)100000, (size_t)4 << 20}) {
            void *own = nullptr;
            require_ok(peer.ops->share_alloc(peer.transport, length, &own), "share_alloc");
            require(((uintptr_t)own & 63) == 0, "not aligned");
            require(std::string((char *)own, length) == std::string(length, '\0'), "not zero");
            std::string content = pattern(length, length + (uint64_t)peer.index);
            memcpy(own, content.data(), length);
            auto *theirs = static_cast<char *>(attach(peer, peer.swap(export_of(peer, own, length)), length));
            require(std::string(theirs, length) == pattern(length, length + (uint64_t)peer.other()), "other bytes");
            peer.sync();
            memset(theirs, 0x61 + peer.index, length);
            peer.sync();
            require(std::string((char *)own, length) == std::string(length, (char)(0x61 + peer.other())), "the peer's writing is not seen");
            peer.sync();
            peer.ops->share_free(peer.transport, own);
        }
    });
}

TEST_P(Mapped, RootIsFoundWithoutAHandle)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        void *own = nullptr, *again = nullptr, *theirs = nullptr;
        size_t length = 0;
        require_ok(peer.ops->share_root(peer.transport, &own), "share_root");
        require_ok(peer.ops->share_root(peer.transport, &again), "share_root");
        require(own == again, "another root");
        require(std::string((char *)own, QUOIT_ROOT_SIZE) == std::string(QUOIT_ROOT_SIZE, '\0'), "not zero");
        std::string content = pattern(QUOIT_ROOT_SIZE, (uint64_t)peer.index);
        memcpy(own, content.data(), content.size());
        peer.sync();
        require_ok(peer.ops->attach(peer.endpoint, nullptr, &theirs, &length), "attach root");
        require(length == QUOIT_ROOT_SIZE, "the root has " + std::to_string(length) + " bytes");
        require(std::string((char *)theirs, QUOIT_ROOT_SIZE) == pattern(QUOIT_ROOT_SIZE, (uint64_t)peer.other()), "other bytes");
        peer.sync();
    });
}

TEST_P(Mapped, BadHandlesAreRefused)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        void *own = nullptr, *result = nullptr;
        require_ok(peer.ops->share_alloc(peer.transport, 4096, &own), "share_alloc");
        std::string good = peer.swap(export_of(peer, own, 4096));
        size_t length = 0;
        attach(peer, good, 4096);
        std::mt19937_64 random(7);
        int refused = 0;
        for (int i = 0; i < 2000; i++) {
            std::string bad = good;
            for (int k = 0; k < 1 + i % 4; k++) bad[random() % bad.size()] ^= (char)(1 + random() % 255);
            if (peer.ops->attach(peer.endpoint, bad.data(), &result, &length) != QUOIT_OK) refused++;
            else if (length > 0) (void)(((volatile char *)result)[0] + ((volatile char *)result)[length - 1]); /* what is accepted can be read */
        }
        require(refused > 0, "every garbled handle was accepted");
        require(peer.ops->attach(peer.endpoint, std::string(QUOIT_HANDLE_CAPACITY, '\xff').data(), &result, &length) != QUOIT_OK, "ff");
        char outside[64];
        char handle[QUOIT_HANDLE_CAPACITY];
        require(peer.ops->export_memory(peer.transport, outside, sizeof outside, handle) != QUOIT_OK, "memory of the stack was exported");
        require(!peer.last_error().empty(), "no text");
        peer.sync();
    });
}

TEST_P(Mapped, FreedMemoryIsUsedAgainAndIsZero)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        for (int i = 0; i < 40; i++) { /* far more than there is address space for */
            void *own = nullptr;
            require_ok(peer.ops->share_alloc(peer.transport, 4u << 20, &own), "share_alloc " + std::to_string(i));
            auto *bytes = static_cast<unsigned char *>(own);
            require(bytes[0] == 0 && bytes[(4u << 20) - 1] == 0, "used memory was given out");
            bytes[0] = bytes[(4u << 20) - 1] = 1;
            peer.ops->share_free(peer.transport, own);
        }
        void *huge = nullptr;
        require(peer.ops->share_alloc(peer.transport, (size_t)1 << 46, &huge) == QUOIT_ERR_NO_MEMORY, "64 TiB");
        require(peer.last_error().find("QUOIT_ARENA_SIZE") != std::string::npos, "the text: " + peer.last_error());
        peer.sync();
    });
}

TEST_P(Mapped, RingWakesASleeper)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        std::mt19937_64 random(30 + (uint64_t)peer.index);
        void *own = nullptr;
        require_ok(peer.ops->share_alloc(peer.transport, 64, &own), "share_alloc");
        auto *theirs = static_cast<std::atomic<uint64_t> *>(attach(peer, peer.swap(export_of(peer, own, 64)), 64));
        auto *mine = static_cast<std::atomic<uint64_t> *>(own);
        for (uint64_t round = 1; round <= 1000; round++) {
            if ((round & 1) == (uint64_t)peer.index) {
                if (random() % 3) usleep((useconds_t)(random() % 200));
                theirs->store(round, std::memory_order_release);
                peer.ops->ring(peer.endpoint);
            } else {
                peer.sleep_until("ring " + std::to_string(round), [&] { return mine->load(std::memory_order_acquire) == round; });
            }
        }
        peer.sync();
    });
}

TEST_P(Conformance, WithoutTheFlagMemoryIsUnsupported)
{
    run_case(GetParam(), [](Peer &peer) {
        peer.stand();
        if (!(peer.ops->flags & QUOIT_TRANSPORT_MAP)) {
            void *pointer = nullptr;
            size_t length = 0;
            char handle[QUOIT_HANDLE_CAPACITY] = {};
            require(peer.ops->share_alloc(peer.transport, 64, &pointer) == QUOIT_ERR_UNSUPPORTED, "share_alloc");
            require(peer.ops->share_root(peer.transport, &pointer) == QUOIT_ERR_UNSUPPORTED, "share_root");
            require(peer.ops->export_memory(peer.transport, handle, 8, handle) == QUOIT_ERR_UNSUPPORTED, "export_memory");
            require(peer.ops->attach(peer.endpoint, handle, &pointer, &length) == QUOIT_ERR_UNSUPPORTED, "attach");
            require(!peer.last_error().empty(), "no text");
            peer.ops->share_free(peer.transport, nullptr);
            peer.ops->ring(peer.endpoint);
        }
        peer.sync();
    });
}

} // namespace conformance
