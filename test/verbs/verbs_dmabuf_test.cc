/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages out of and into memory of a device, over verbs: registered by dma-buf with the fake libibverbs, whose "network adapter" maps it
 * elsewhere. The device is the lagging one: a processor that touches its memory ends the test.
 */
#include "verbs_pair.h"

extern "C" {
#include "test/device/lagging_device.h"
#include "transport/verbs/verbs.h"
}

#include <sys/mman.h>

using namespace verbs_test;

namespace {

struct DeviceMemory : Verbs {
    void SetUp() override
    {
        Verbs::SetUp();
        setenv("QUOIT_INTERFACE", "lo", 1);
        setenv("QUOIT_VERBS_LIBRARY", built_path(FAKE_VERBS).c_str(), 1);
        overrides().clear();
        lagging_device_set_lag(0, 0);
        lagging_device_reset();
    }
    void TearDown() override
    {
        overrides().clear();
        EXPECT_EQ(fake().count("dmabuf"), 0u) << "a dma-buf is still mapped";
        lagging_device_shutdown();
        Verbs::TearDown();
    }
};

struct Buffer {
    explicit Buffer(size_t bytes) { EXPECT_EQ(lagging_device.alloc(bytes, &pointer), QUOIT_OK) << error_text(); }
    ~Buffer() { lagging_device.free(pointer); }
    Buffer(const Buffer &) = delete;
    char *at(size_t offset) { return static_cast<char *>(pointer) + offset; }
    void *pointer = nullptr;
};

void reach(Pair &pair)
{
    for (auto &one : pair.side) ASSERT_EQ(pair.ops->device_reach(one.transport, "lagging"), QUOIT_OK) << error_text();
}

quoit_region_t *take(Pair &pair, int side, const void *pointer, size_t size)
{
    quoit_device_memory_t memory;
    quoit_region_t *region = nullptr;
    EXPECT_EQ(device_describe(&lagging_device, pointer, size, &memory), QUOIT_OK) << error_text();
    return pair.ops->device_take(pair.side[side].transport, &memory, &region) == QUOIT_OK ? region : nullptr;
}

/* One side of a message: device memory, or where `device` is NULL the host's. */
struct Half {
    Half(Pair &pair, int side, char *device, std::string content) : pair(pair), side(side), device(device), host(std::move(content))
    {
        if (device) region = take(pair, side, device, host.size());
        refused = device && !region;
    }
    ~Half()
    {
        if (region) pair.ops->device_give(pair.side[side].transport, region);
    }
    void post(bool receives, quoit_key_t key)
    {
        quoit_endpoint_t *endpoint = pair.side[side].endpoint;
        is_recv = receives;
        if (device && !receives) {
            EXPECT_EQ(lagging_device_upload(device, host.data(), host.size()), QUOIT_OK) << error_text();
        }
        if (device && !receives && region) std::fill(host.begin(), host.end(), '?');
        quoit_status_t status = region     ? receives ? pair.ops->device_recv(endpoint, key, region, device, host.size(), &transfer)
                                                      : pair.ops->device_send(endpoint, key, region, device, host.size(), &transfer)
                                : receives ? pair.ops->recv(endpoint, key, &host[0], host.size(), &transfer)
                                           : pair.ops->send(endpoint, key, host.data(), host.size(), &transfer);
        EXPECT_EQ(status, QUOIT_OK) << error_text();
    }
    /* As the scheduler does: what stops goes on through the host. */
    bool over()
    {
        if (transfer.status == QUOIT_ERR_AGAIN) {
            stops++;
            if (!is_recv) {
                EXPECT_EQ(lagging_device_download(&host[0], device, host.size()), QUOIT_OK) << error_text();
            }
            EXPECT_EQ(pair.ops->device_host(pair.side[side].endpoint, &transfer, &host[0]), QUOIT_OK) << error_text();
        }
        return transfer.status != QUOIT_IN_PROGRESS;
    }
    std::string received()
    {
        std::string bytes = host;
        if (device && region && !stops) {
            EXPECT_EQ(lagging_device_download(&bytes[0], device, bytes.size()), QUOIT_OK) << error_text();
        }
        return bytes;
    }
    Pair &pair;
    int side;
    char *device;
    std::string host;
    quoit_region_t *region = nullptr;
    bool refused = false, is_recv = false;
    int stops = 0;
    quoit_transfer_t transfer{};
};

struct Outcome {
    bool ended = false, well = false, same = false;
    int send_stops = 0, recv_stops = 0;
};

/* A message from side `from`, with its buffers on the device or on the host. */
Outcome move(Pair &pair, int from, char *send, char *recv, size_t size, uint64_t id)
{
    std::string content = pattern(size, (unsigned)id);
    Half sender(pair, from, send, content), receiver(pair, 1 - from, recv, std::string(size, '-'));
    if (id % 2) receiver.post(true, {1, id});
    sender.post(false, {1, id});
    if (id % 2 == 0) receiver.post(true, {1, id});
    Outcome outcome;
    outcome.ended = pair.wait([&] {
        bool sent = sender.over(), got = receiver.over();
        return sent && got;
    });
    outcome.well = sender.transfer.status == QUOIT_OK && receiver.transfer.status == QUOIT_OK;
    outcome.same = outcome.well && receiver.received() == content;
    outcome.send_stops = sender.stops;
    outcome.recv_stops = receiver.stops;
    if (!outcome.ended) pair.ops->cancel(pair.side[0].transport, 1), pair.ops->cancel(pair.side[1].transport, 1);
    return outcome;
}

unsigned long registrations() { return fake().count("reg_dmabuf_mr"); }

TEST_F(DeviceMemory, GoesDirectlyAndIsRegisteredOnce)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    reach(pair);
    Buffer send(3 << 20), recv(3 << 20);
    unsigned long probes = registrations(), once = 0;
    EXPECT_EQ(probes, 2u) << "a look whether the device can, on each side";
    uint64_t id = 0;
    for (int round = 0; round < 3; round++) {
        for (size_t size : {(size_t)70001, (size_t)2200000})
            for (size_t offset : {(size_t)0, (size_t)1, (size_t)4095, (size_t)70000}) {
                Outcome outcome = move(pair, 0, send.at(offset), recv.at(2 * offset), size, ++id);
                ASSERT_TRUE(outcome.same) << size << " bytes at " << offset << ", round " << round;
                ASSERT_EQ(outcome.send_stops + outcome.recv_stops, 0) << size << " bytes at " << offset << " were copied";
            }
        if (round == 0) once = registrations();
    }
    EXPECT_GT(once, probes);
    EXPECT_EQ(registrations(), once) << "memory that had been used was registered again";
    EXPECT_EQ(fake().count("dmabuf"), once - probes);
    EXPECT_EQ(lagging_device_counters().exports, once - probes) << "each registration has one descriptor";
    EXPECT_GE(fake().count("writes"), 24u);
    EXPECT_EQ(fake().count("reg_mr"), fake().count("mr") - fake().count("dmabuf")) << "host memory was registered for them";
}

/* Each side decides by itself; the bytes are the same whatever the other does. */
TEST_F(DeviceMemory, EachSideMayStage)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    reach(pair);
    Buffer one(1 << 20), other(1 << 20);
    uint64_t id = 0;
    for (size_t size : {(size_t)1, (size_t)100, (size_t)8192, (size_t)8193, (size_t)500000})
        for (int which = 0; which < 4; which++)
            for (int from = 0; from < 2; from++) {
                bool direct_send = which & 1, direct_recv = which & 2, large = size > 8192;
                Outcome outcome = move(pair, from, direct_send ? one.at(3) : nullptr, direct_recv ? other.at(5) : nullptr, size, ++id);
                ASSERT_TRUE(outcome.same) << size << " bytes, ways " << which << ", from " << from;
                EXPECT_EQ(outcome.send_stops, direct_send && !large) << size << " bytes, ways " << which;
                EXPECT_EQ(outcome.recv_stops, direct_recv && !large) << size << " bytes, ways " << which;
            }
    EXPECT_TRUE(move(pair, 0, nullptr, nullptr, 0, ++id).same);
}

/* The host's side cannot be registered: its bytes come and go over the stream, and the device's side has to be copied. */
TEST_F(DeviceMemory, TheOtherSideCannotBeRegistered)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    reach(pair);
    fake().lock_limit(1);
    Buffer one(1 << 20);
    testing::internal::CaptureStderr();
    Outcome to_host = move(pair, 0, one.at(0), nullptr, 600000, 1), from_host = move(pair, 0, nullptr, one.at(0), 600000, 2);
    testing::internal::GetCapturedStderr();
    EXPECT_TRUE(to_host.same && from_host.same);
    EXPECT_EQ(to_host.send_stops, 1);
    EXPECT_EQ(from_host.recv_stops, 1);
    EXPECT_EQ(fake().count("writes"), 0u);
}

/* One export or registration fails: that side is staged, and the bytes are right. */
TEST_F(DeviceMemory, EachRegistrationMayFail)
{
    int refused = 0;
    for (const char *call : {"reg_dmabuf_mr", "dereg_mr", "export"})
        for (unsigned n : {1u, 2u, 5u})
            for (int error : {EIO, ENOMEM}) {
                fake().calm();
                Pair pair(3000);
                ASSERT_EQ(pair.failure, "");
                reach(pair);
                if (strcmp(call, "export") != 0) fake().fail_call(call, n, error);
                for (uint64_t id = 1; id <= 5; id++) {
                    Buffer send(300000), recv(300000);
                    if (strcmp(call, "export") == 0 && n == id) lagging_device_fail_exports(1);
                    Half sender(pair, 0, send.at(0), pattern(290000, (unsigned)id)), receiver(pair, 1, recv.at(0), std::string(290000, '-'));
                    refused += sender.refused + receiver.refused;
                    receiver.post(true, {1, id});
                    sender.post(false, {1, id});
                    ASSERT_TRUE(pair.wait([&] { return sender.over() && receiver.over(); })) << "call " << n << " of " << call << " failed";
                    ASSERT_TRUE(receiver.received() == pattern(290000, (unsigned)id)) << "call " << n << " of " << call << " failed";
                }
            }
    EXPECT_GE(refused, 3 * 2) << "nothing failed";
}

TEST_F(DeviceMemory, AFailureHasAText)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    reach(pair);
    Buffer one(100000);
    fake().fail_call("reg_dmabuf_mr", 1, ENOMEM);
    EXPECT_EQ(take(pair, 0, one.pointer, 100000), nullptr);
    std::string text = error_text();
    EXPECT_NE(text.find("100000 bytes"), std::string::npos) << text;
    EXPECT_NE(text.find("device lagging"), std::string::npos) << text;
    EXPECT_NE(text.find("dma-buf"), std::string::npos) << text;
    lagging_device_fail_exports(1);
    EXPECT_EQ(take(pair, 0, one.pointer, 100000), nullptr);
    EXPECT_EQ(std::string(error_text()), "lagging: this memory is not exported");
    quoit_transfer_t none{};
    EXPECT_EQ(pair.ops->device_host(pair.side[0].endpoint, &none, &none), QUOIT_ERR_INVALID);
}

TEST_F(DeviceMemory, WithoutDmabufNothingIsReached)
{
    fake().no_dmabuf(1);
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    EXPECT_EQ(pair.ops->device_reach(pair.side[0].transport, "lagging"), QUOIT_ERR_UNSUPPORTED);
    EXPECT_NE(std::string(error_text()).find("fake0"), std::string::npos) << error_text();
    const verbs_library_t *library = nullptr;
    ASSERT_EQ(verbs_library_open(built_path(FAKE_VERBS).c_str(), &library), QUOIT_OK);
    verbs_library_t older = *library;
    older.reg_dmabuf_mr = nullptr;
    verbs_memory_t memory;
    const verbs_memory_config_t config = {1 << 20, 10, true, false};
    verbs_memory_init(&memory, &older, nullptr, 0, &config);
    EXPECT_EQ(verbs_dmabuf_check(&memory), QUOIT_ERR_UNSUPPORTED);
    EXPECT_NE(std::string(error_text()).find("ibv_reg_dmabuf_mr"), std::string::npos) << error_text();
    verbs_memory_destroy(&memory);
}

/* What was freed is unregistered when that is told, or when its addresses come with another id. */
TEST_F(DeviceMemory, FreedMemoryIsForgotten)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    reach(pair);
    quoit_transport_t *transport = pair.side[0].transport;
    Buffer kept(100000);
    quoit_device_memory_t memory;
    quoit_region_t *first = nullptr, *second = nullptr;
    {
        Buffer freed(100000);
        pair.ops->device_give(transport, take(pair, 0, freed.at(10), 5000));
        pair.ops->device_give(transport, take(pair, 0, kept.at(10), 5000));
        EXPECT_EQ(fake().count("dmabuf"), 2u);
        pair.ops->device_forget(transport, "lagging", freed.pointer, 100000);
        EXPECT_EQ(fake().count("dmabuf"), 1u);
    }
    ASSERT_EQ(device_describe(&lagging_device, kept.at(0), 100000, &memory), QUOIT_OK);
    unsigned long before = registrations();
    ASSERT_EQ(pair.ops->device_take(transport, &memory, &first), QUOIT_OK) << "larger than what was kept";
    EXPECT_EQ(registrations(), before + 1);
    memory.block_id += 1000; /* as if it had been freed and allocated again */
    memory.pointer = kept.at(20);
    memory.length = 100;
    ASSERT_EQ(pair.ops->device_take(transport, &memory, &second), QUOIT_OK);
    EXPECT_NE(first, second);
    EXPECT_EQ(registrations(), before + 2);
    EXPECT_EQ(fake().count("dmabuf"), 2u) << "the old one that has a user stays for it; the one that had none goes";
    pair.ops->device_give(transport, first);
    EXPECT_EQ(fake().count("dmabuf"), 1u);
    pair.ops->device_give(transport, second);
    EXPECT_EQ(fake().count("dmabuf"), 1u) << "kept";
    memory.pointer = static_cast<const char *>(memory.block) - 1;
    EXPECT_EQ(pair.ops->device_take(transport, &memory, &second), QUOIT_ERR_INVALID) << "a buffer outside of its allocation";
    pair.ops->device_forget(transport, "another", nullptr, SIZE_MAX);
    EXPECT_EQ(fake().count("dmabuf"), 1u);
}

TEST_F(DeviceMemory, WhatIsKeptIsBounded)
{
    for (bool cache : {true, false}) {
        overrides() = {{"VERBS_REGISTRATION_LIMIT", "100K"}, {"VERBS_REGISTRATION_CACHE", cache ? "yes" : "no"}};
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        reach(pair);
        Buffer many(1 << 20);
        for (size_t i = 0; i < 8; i++) {
            pair.ops->device_give(pair.side[0].transport, take(pair, 0, many.at(i * 65536), 40000));
            EXPECT_LE(fake().count("dmabuf"), cache ? 2u : 0u);
        }
        pair.ops->device_give(pair.side[0].transport, take(pair, 0, many.at(0), 500000));
        EXPECT_LE(fake().count("dmabuf"), cache ? 2u : 0u) << "larger than all that may be kept";
    }
}

/* Host and device may have equal addresses, and so may two kinds: they never serve each other. */
TEST_F(DeviceMemory, KindsNeverMix)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    reach(pair);
    ASSERT_EQ(pair.ops->device_reach(pair.side[0].transport, "another"), QUOIT_OK);
    Buffer one(100000);
    quoit_device_memory_t memory;
    quoit_region_t *first = nullptr, *second = nullptr;
    ASSERT_EQ(device_describe(&lagging_device, one.pointer, 100000, &memory), QUOIT_OK);
    ASSERT_EQ(pair.ops->device_take(pair.side[0].transport, &memory, &first), QUOIT_OK);
    memory.kind = "another";
    ASSERT_EQ(pair.ops->device_take(pair.side[0].transport, &memory, &second), QUOIT_OK);
    EXPECT_EQ(fake().count("dmabuf"), 2u);
    EXPECT_NE(first, second);
    pair.ops->device_give(pair.side[0].transport, first);
    pair.ops->device_give(pair.side[0].transport, second);
    memory.kind = "never asked for";
    EXPECT_EQ(pair.ops->device_take(pair.side[0].transport, &memory, &second), QUOIT_ERR_INVALID);
}

/* A device whose dma-buf begins elsewhere in a page than its addresses do. */
struct Odd {
    int file = memfd_create("odd", MFD_CLOEXEC);
    static constexpr uint64_t place = 3 * 4096 + 777;
    static char *address(size_t offset) { return reinterpret_cast<char *>(UINT64_C(0x123450000042) + offset); }
    static quoit_status_t export_dmabuf(const quoit_device_memory_t *memory, const void *pointer, size_t, int *descriptor, uint64_t *offset)
    {
        *descriptor = dup(static_cast<const Odd *>(memory->context)->file);
        *offset = place + (uint64_t)(static_cast<const char *>(pointer) - address(0));
        return QUOIT_OK;
    }
    quoit_device_memory_t memory(size_t offset, size_t length) const
    {
        return {sizeof(quoit_device_memory_t), "odd", address(offset), length, address(0), 1 << 20, 1, export_dmabuf, this};
    }
};

TEST_F(DeviceMemory, AnotherPlaceInThePage)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    Odd side[2];
    quoit_region_t *region[2];
    for (int i = 0; i < 2; i++) {
        ASSERT_EQ(ftruncate(side[i].file, 2 << 20), 0);
        ASSERT_EQ(pair.ops->device_reach(pair.side[i].transport, "odd"), QUOIT_OK) << error_text();
        quoit_device_memory_t memory = side[i].memory(5000, 300000);
        ASSERT_EQ(pair.ops->device_take(pair.side[i].transport, &memory, &region[i]), QUOIT_OK) << error_text();
    }
    std::string content = pattern(300000, 5), got(300000, '-');
    ASSERT_EQ(pwrite(side[0].file, content.data(), content.size(), (off_t)(Odd::place + 5000)), (ssize_t)content.size());
    quoit_transfer_t send{}, recv{};
    ASSERT_EQ(pair.ops->device_recv(pair.side[1].endpoint, {1, 1}, region[1], Odd::address(5000), content.size(), &recv), QUOIT_OK);
    ASSERT_EQ(pair.ops->device_send(pair.side[0].endpoint, {1, 1}, region[0], Odd::address(5000), content.size(), &send), QUOIT_OK);
    ASSERT_TRUE(pair.wait([&] { return send.status != QUOIT_IN_PROGRESS && recv.status != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(send.status, QUOIT_OK);
    EXPECT_EQ(recv.status, QUOIT_OK);
    ASSERT_EQ(pread(side[1].file, &got[0], got.size(), (off_t)(Odd::place + 5000)), (ssize_t)got.size());
    EXPECT_TRUE(got == content);
    for (int i = 0; i < 2; i++) {
        pair.ops->device_give(pair.side[i].transport, region[i]);
        close(side[i].file);
    }
}

/* In pieces over two devices, one of which is lost in the middle. */
TEST_F(DeviceMemory, OverRails)
{
    for (unsigned after : {0u, 40u}) {
        fake().calm();
        fake().devices(2);
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        reach(pair);
        Buffer send(5 << 20), recv(5 << 20);
        if (after > 0) fake().harm(1, "cut", after);
        testing::internal::CaptureStderr();
        Outcome outcome = move(pair, 0, send.at(1), recv.at(7), 5000000, 1);
        testing::internal::GetCapturedStderr();
        ASSERT_TRUE(outcome.same) << "after " << after;
        EXPECT_EQ(outcome.send_stops + outcome.recv_stops, 0);
        EXPECT_EQ(fake().count("dmabuf"), 4u) << "each buffer with each device";
        if (after == 0) {
            EXPECT_TRUE(fake().bytes(0) > 500000 && fake().bytes(1) > 500000) << fake().bytes(0) << " " << fake().bytes(1);
        }
    }
}

/* Cancelled in the middle of late writes: not touched afterwards, and other messages go on. */
TEST_F(DeviceMemory, CancelsInTheMiddle)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    reach(pair);
    fake().delay(300);
    std::mt19937 random(5);
    const size_t size = 2 << 20;
    const std::string mark(size, '\x77');
    for (uint64_t round = 0; round < 4; round++) {
        Buffer send(size), recv(size), others_send(size), others_recv(size);
        Half sender(pair, 0, send.at(0), pattern(size, 1)), receiver(pair, 1, recv.at(0), std::string(size, '-'));
        receiver.post(true, {100 + round, 1});
        sender.post(false, {100 + round, 1});
        Half kept_sender(pair, 0, others_send.at(0), pattern(size, 2)), kept(pair, 1, others_recv.at(0), std::string(size, '-'));
        kept.post(true, {1, round});
        kept_sender.post(false, {1, round});
        for (unsigned i = random() % 60; i > 0; i--) {
            pair.progress();
            usleep(random() % 200);
        }
        int first = (int)(round % 2);
        pair.ops->cancel(pair.side[first].transport, 100 + round);
        Half &touched = first == 0 ? sender : receiver;
        ASSERT_TRUE(touched.over());
        ASSERT_EQ(lagging_device_upload(touched.device, mark.data(), size), QUOIT_OK);
        ASSERT_TRUE(pair.wait([&] { return kept.over() && kept_sender.over(); })) << "round " << round;
        EXPECT_TRUE(kept.received() == pattern(size, 2)) << "round " << round;
        std::string now(size, '-');
        ASSERT_EQ(lagging_device_download(&now[0], touched.device, size), QUOIT_OK);
        EXPECT_TRUE(now == mark) << "touched after cancel; round " << round;
        pair.ops->cancel(pair.side[1 - first].transport, 100 + round);
        EXPECT_TRUE(sender.over() && receiver.over());
    }
}

/* Transfers that have stopped are ended by cancel, and by the connection's end. */
TEST_F(DeviceMemory, WhatHasStoppedEnds)
{
    for (bool cancels : {true, false}) {
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        reach(pair);
        Buffer one(1000), other(1000);
        Half sender(pair, 0, one.at(0), pattern(1000, 1)), receiver(pair, 1, other.at(0), std::string(1000, '-'));
        quoit_transfer_t in{}, out{};
        std::string host = pattern(1000, 2);
        ASSERT_EQ(pair.ops->device_recv(pair.side[1].endpoint, {1, 1}, receiver.region, other.at(0), 1000, &in), QUOIT_OK);
        ASSERT_EQ(pair.ops->send(pair.side[0].endpoint, {1, 1}, host.data(), 1000, &out), QUOIT_OK);
        sender.post(false, {1, 2});
        quoit_transfer_t second{};
        std::string got(1000, '-');
        ASSERT_EQ(pair.ops->recv(pair.side[1].endpoint, {1, 2}, &got[0], 1000, &second), QUOIT_OK);
        ASSERT_TRUE(pair.wait([&] { return in.status == QUOIT_ERR_AGAIN && sender.transfer.status == QUOIT_ERR_AGAIN; }));
        if (cancels) {
            for (auto &side : pair.side) pair.ops->cancel(side.transport, 1);
            EXPECT_EQ(in.status, QUOIT_ERR_ABORTED);
            EXPECT_EQ(sender.transfer.status, QUOIT_ERR_ABORTED);
        } else {
            fake().break_device();
            ASSERT_TRUE(pair.wait([&] { return !pair.side[0].closed.empty() && !pair.side[1].closed.empty(); }));
            EXPECT_TRUE(in.status < 0 && in.status != QUOIT_ERR_AGAIN) << in.status;
            EXPECT_TRUE(sender.transfer.status < 0 && sender.transfer.status != QUOIT_ERR_AGAIN) << sender.transfer.status;
        }
        EXPECT_NE(second.status, QUOIT_IN_PROGRESS);
    }
}

} // namespace
