/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport where the conformance suite does not reach: failures of the device and of each call of libibverbs, late
 * completions, registrations, the choice of device, port and GID, and the parsers of what peers send. Over the fake libibverbs.
 */
#include "test/support/built.h"
#include "test/support/bytes.h"

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
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
#include "fake_verbs.h"
#include "transport/registry.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_hello.h"
#include "transport/verbs/verbs_memory.h"
}

namespace {

const std::string fake_path = built_path("libibverbs.so.1");

/* The fake, as the transport opens it. */
struct Fake {
    void *handle = dlopen(fake_path.c_str(), RTLD_NOW);
    template <typename Function> Function find(const char *name) const { return reinterpret_cast<Function>(dlsym(handle, name)); }
    decltype(&fake_verbs_calm) calm = find<decltype(&fake_verbs_calm)>("fake_verbs_calm");
    decltype(&fake_verbs_fail_call) fail_call = find<decltype(&fake_verbs_fail_call)>("fake_verbs_fail_call");
    decltype(&fake_verbs_fail_work) fail_work = find<decltype(&fake_verbs_fail_work)>("fake_verbs_fail_work");
    decltype(&fake_verbs_delay) delay = find<decltype(&fake_verbs_delay)>("fake_verbs_delay");
    decltype(&fake_verbs_cut) cut = find<decltype(&fake_verbs_cut)>("fake_verbs_cut");
    decltype(&fake_verbs_break_device) break_device = find<decltype(&fake_verbs_break_device)>("fake_verbs_break_device");
    decltype(&fake_verbs_count) count = find<decltype(&fake_verbs_count)>("fake_verbs_count");
};

Fake &fake()
{
    static Fake one;
    return one;
}

std::string alive()
{
    std::string text;
    for (const char *name : {"context", "pd", "mr", "cq", "qp", "channel", "misuse", "overflow", "rnr"})
        if (fake().count(name) != 0) text += std::string(name) + " " + std::to_string(fake().count(name)) + " ";
    return text;
}

using test_bytes::pattern;

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

    explicit Pair(int timeout_ms = 20000)
    {
        for (auto &one : side) {
            quoit_transport_environment_t environment;
            EXPECT_EQ(random_bytes(&one.id, sizeof one.id), QUOIT_OK);
            transport_environment_init(&environment, one.id, one.doorbell, "testhost");
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
std::string exchange(Pair &pair, uint64_t comm, bool *all_well)
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

class Verbs : public testing::Test {
protected:
    void SetUp() override
    {
        ASSERT_NE(fake().handle, nullptr) << dlerror();
        fake().calm();
    }
    void TearDown() override { EXPECT_EQ(alive(), "") << "left behind, or done wrong"; }
};

TEST_F(Verbs, MessagesAndNothingLeftBehind)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    bool well = false;
    EXPECT_EQ(exchange(pair, 1, &well), "");
    EXPECT_TRUE(well);
    EXPECT_GE(fake().count("writes"), 4u) << "nothing was written directly";
    std::string text = pair.ops->describe(pair.side[0].endpoint);
    EXPECT_NE(text.find("fake0 port 1, RoCE v2 10."), std::string::npos) << text;
}

/* Each call fails once, the first time, the second, ...: what happens is the right result or an error with a text, and nothing leaks. */
TEST_F(Verbs, EveryCallMayFailOnce)
{
    const char *calls[] = {"get_device_list", "open_device", "query_device", "query_port", "query_gid", "alloc_pd", "create_comp_channel",
                           "create_cq", "create_qp", "modify_qp", "reg_mr", "dereg_mr", "post_recv", "post_send", "poll_cq", "destroy_qp",
                           "destroy_cq", "dealloc_pd", "close_device", "destroy_comp_channel", "fork_init"};
    const std::map<std::string, std::vector<unsigned>> often = {{"modify_qp", {1, 2, 3, 4, 7, 8, 12}}, {"post_recv", {1, 33, 70, 129, 140}},
                                                                {"post_send", {1, 2, 5, 9}}, {"poll_cq", {1, 20}}, {"reg_mr", {1, 2, 3, 4}}};
    int failed = 0;
    for (const char *call : calls) {
        auto times = often.count(call) ? often.at(call) : std::vector<unsigned>{1, 2};
        for (unsigned n : times) {
            for (int error : {EIO, ENOMEM}) {
                fake().calm();
                fake().fail_call(call, n, error);
                bool well = true;
                {
                    Pair pair(3000);
                    std::string wrong = pair.failure.empty() ? exchange(pair, 1, &well) : "";
                    EXPECT_EQ(wrong, "") << "call " << n << " of " << call << " failed with " << strerror(error);
                    EXPECT_NE(pair.failure, "set-up hangs") << "call " << n << " of " << call;
                    failed += !well || !pair.failure.empty();
                }
                ASSERT_EQ(alive(), "") << "after call " << n << " of " << call << " failed with " << strerror(error);
            }
        }
    }
    EXPECT_GT(failed, 10) << "hardly any failure was noticed";
}

TEST_F(Verbs, AFailedWriteIsRepeated)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    for (int status : {IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_ACCESS_ERR}) {
        fake().fail_work("write", 2, status);
        bool well = false;
        EXPECT_EQ(exchange(pair, (uint64_t)status, &well), "");
        EXPECT_TRUE(well) << "a single failed write ended the connection";
    }
}

TEST_F(Verbs, AFailedSendEndsTheConnectionWithItsMeaning)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().fail_work("send", 3, IBV_WC_RETRY_EXC_ERR);
    bool well = true;
    EXPECT_EQ(exchange(pair, 1, &well), "");
    EXPECT_FALSE(well);
    std::string both = pair.side[0].closed + pair.side[1].closed;
    EXPECT_NE(both.find("does not answer"), std::string::npos) << both;
    EXPECT_TRUE(both.find("rank 0 (here)") != std::string::npos || both.find("rank 1 (there)") != std::string::npos) << both;
}

TEST_F(Verbs, ACutNetworkEndsTheConnectionInTime)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().cut(1);
    bool well = true;
    EXPECT_EQ(exchange(pair, 1, &well), "");
    EXPECT_FALSE(well);
    EXPECT_NE((pair.side[0].closed + pair.side[1].closed).find("does not answer"), std::string::npos) << pair.side[0].closed;
    fake().cut(0);
}

TEST_F(Verbs, ABrokenDeviceEndsAllItsConnections)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().break_device();
    ASSERT_TRUE(pair.wait([&] { return !pair.side[0].closed.empty() && !pair.side[1].closed.empty(); })) << "nobody noticed";
    for (auto &one : pair.side) EXPECT_NE(one.closed.find("fake0"), std::string::npos) << one.closed;
}

/* Late packets, and communicators that are cancelled in the middle: others lose nothing, no buffer is touched after cancel. */
TEST_F(Verbs, CancelsInTheMiddleOfLateWrites)
{
    const unsigned seed = 11;
    std::mt19937 random(seed);
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().delay(300);
    const size_t size = 3u << 20;
    const char *long_run = getenv("QUOIT_TEST_LONG");
    const uint64_t rounds = long_run && *long_run ? 100 : 8;
    for (uint64_t round = 0; round < rounds; round++) {
        Message doomed[2][2], kept[2][2]; /* [from][send, recv] */
        for (int from = 0; from < 2; from++) {
            for (auto *one : {&doomed[from][0], &kept[from][0]}) one->bytes = pattern(size, (unsigned)(round * 4 + (uint64_t)from * 2 + (one == &kept[from][0])));
            for (auto *one : {&doomed[from][1], &kept[from][1]}) one->bytes.assign(size, '\0');
            bool declared = true;
            /* In every other round the buffers stay registered, and only the queue pair's reset keeps the peer out. */
            for (auto *one : {&doomed[from][0], &kept[from][0]})
                if (round % 2) declared = (pair.ops->reg(pair.side[from].transport, one->bytes.data(), size) == QUOIT_OK) && declared;
            for (auto *one : {&doomed[from][1], &kept[from][1]})
                if (round % 2) declared = (pair.ops->reg(pair.side[1 - from].transport, one->bytes.data(), size) == QUOIT_OK) && declared;
            ASSERT_TRUE(declared);
            for (uint64_t comm : {100 + round, (uint64_t)1}) {
                auto *pairs = comm == 1 ? kept[from] : doomed[from];
                quoit_key_t key = {comm, round * 2 + (uint64_t)from};
                ASSERT_EQ(pair.ops->recv(pair.side[1 - from].endpoint, key, &pairs[1].bytes[0], size, &pairs[1].transfer), QUOIT_OK);
                ASSERT_EQ(pair.ops->send(pair.side[from].endpoint, key, pairs[0].bytes.data(), size, &pairs[0].transfer), QUOIT_OK);
            }
        }
        for (unsigned i = random() % 60; i > 0; i--) {
            pair.progress();
            usleep(random() % 200);
        }
        int first = (int)(random() % 2);
        pair.ops->cancel(pair.side[first].transport, 100 + round);
        for (int from = 0; from < 2; from++) {
            Message &touched = from == first ? doomed[from][0] : doomed[from][1]; /* both of the side that cancelled */
            ASSERT_TRUE(touched.done());
            std::fill(touched.bytes.begin(), touched.bytes.end(), '\x77');
        }
        bool ended = pair.wait([&] { return kept[0][0].done() && kept[0][1].done() && kept[1][0].done() && kept[1][1].done(); });
        ASSERT_TRUE(ended) << "the other communicator hangs; round " << round << ", seed " << seed;
        for (int from = 0; from < 2; from++) {
            ASSERT_EQ(kept[from][1].transfer.status, QUOIT_OK) << pair.side[0].closed << pair.side[1].closed;
            ASSERT_TRUE(kept[from][1].bytes == kept[from][0].bytes) << "other bytes; round " << round << ", seed " << seed;
            Message &touched = from == first ? doomed[from][0] : doomed[from][1];
            ASSERT_EQ(touched.bytes.find_first_not_of('\x77'), std::string::npos) << "written to after cancel; round " << round << ", seed " << seed;
            Message &recv = doomed[from][1];
            if (recv.done() && recv.transfer.status == QUOIT_OK && 1 - from != first) {
                ASSERT_TRUE(recv.bytes == pattern(size, (unsigned)(round * 4 + (uint64_t)from * 2))) << "a cancelled send ended a recv with other bytes";
            }
        }
        pair.ops->cancel(pair.side[1 - first].transport, 100 + round);
        for (int from = 0; from < 2; from++) {
            for (auto *one : {&doomed[from][0], &kept[from][0]}) pair.ops->dereg(pair.side[from].transport, one->bytes.data());
            for (auto *one : {&doomed[from][1], &kept[from][1]}) pair.ops->dereg(pair.side[1 - from].transport, one->bytes.data());
        }
    }
}

/* ---------------------------------------------------------------- registrations */

const verbs_library_t *library()
{
    const verbs_library_t *result = nullptr;
    EXPECT_EQ(verbs_library_open(fake_path.c_str(), &result), QUOIT_OK) << error_text();
    return result;
}

struct Registry : Verbs {
    struct ibv_context *context = nullptr;
    struct ibv_pd *pd = nullptr;
    verbs_memory_t memory{};
    void SetUp() override
    {
        Verbs::SetUp();
        context = verbs_device_open(library(), "fake0");
        ASSERT_NE(context, nullptr);
        pd = library()->alloc_pd(context);
        verbs_memory_init(&memory, library(), pd, 1 << 20);
    }
    void TearDown() override
    {
        verbs_memory_destroy(&memory);
        library()->dealloc_pd(pd);
        library()->close_device(context);
        Verbs::TearDown();
    }
};

TEST_F(Registry, MemoryThatWasUnmappedIsRegisteredAnew)
{
    const size_t size = 1 << 16;
    verbs_region_t *region = nullptr, *again = nullptr;
    void *place = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_EQ(verbs_memory_take(&memory, place, size, true, &region), QUOIT_OK);
    ASSERT_EQ(verbs_memory_take(&memory, static_cast<char *>(place) + 100, 1000, false, &again), QUOIT_OK);
    EXPECT_EQ(region, again) << "transfers of one moment share it";
    verbs_memory_give(&memory, again);
    verbs_memory_give(&memory, region);
    EXPECT_EQ(fake().count("mr"), 0u) << "an old registration could serve what is mapped there next";
    ASSERT_EQ(mmap(place, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), place);
    ASSERT_EQ(verbs_memory_take(&memory, place, size, true, &region), QUOIT_OK);
    EXPECT_EQ(memory.made, 2u);
    verbs_memory_give(&memory, region);
    munmap(place, size);
}

TEST_F(Registry, DeclaredMemoryIsKeptWithinTheLimitAndTheOldestGoesFirst)
{
    const size_t size = 400 << 10;
    std::vector<char> bytes[4];
    verbs_region_t *region = nullptr;
    for (auto &one : bytes) {
        one.resize(size);
        ASSERT_EQ(verbs_memory_declare(&memory, one.data(), size), QUOIT_OK);
    }
    EXPECT_EQ(memory.made, 0u) << "registered before it was used";
    for (int use : {0, 1, 0, 2, 0}) { /* 1 is the one used longest ago when 2 comes */
        ASSERT_EQ(verbs_memory_take(&memory, bytes[use].data() + 5, 100, true, &region), QUOIT_OK);
        verbs_memory_give(&memory, region);
    }
    EXPECT_EQ(memory.made, 3u);
    EXPECT_EQ(memory.dropped, 1u);
    EXPECT_LE(memory.kept, memory.limit);
    ASSERT_EQ(verbs_memory_take(&memory, bytes[0].data(), size, true, &region), QUOIT_OK);
    verbs_memory_forget(&memory, bytes[0].data());
    EXPECT_EQ(memory.dropped, 1u) << "a transfer was under way";
    verbs_memory_give(&memory, region);
    EXPECT_EQ(memory.dropped, 2u);
    verbs_memory_forget(&memory, bytes[2].data());
    EXPECT_EQ(memory.dropped, 3u);
    EXPECT_EQ(memory.kept, 0u);
}

/* A model: after every step the registrations are those that someone uses, and declared ones within the limit. */
TEST_F(Registry, AgreesWithAModel)
{
    const unsigned seed = 5;
    std::mt19937 random(seed);
    std::vector<char> arena(4 << 20);
    std::vector<verbs_region_t *> taken;
    std::vector<char *> declared;
    for (int step = 0; step < 4000; step++) {
        char *base = arena.data() + random() % (3 << 20);
        size_t length = 1 + random() % (200 << 10);
        verbs_region_t *region = nullptr;
        switch (random() % 4) {
        case 0:
            if (declared.size() < 20 && verbs_memory_declare(&memory, base, length) == QUOIT_OK) declared.push_back(base);
            break;
        case 1:
            if (declared.empty()) break;
            std::swap(declared[random() % declared.size()], declared.back());
            verbs_memory_forget(&memory, declared.back());
            declared.pop_back();
            break;
        case 2:
            ASSERT_EQ(verbs_memory_take(&memory, base, length, true, &region), QUOIT_OK) << error_text();
            ASSERT_TRUE(region->mr != nullptr && region->base <= (uintptr_t)base && (uintptr_t)base + length <= region->base + region->length);
            taken.push_back(region);
            break;
        default:
            if (taken.empty()) break;
            std::swap(taken[random() % taken.size()], taken.back());
            verbs_memory_give(&memory, taken.back());
            taken.pop_back();
        }
        ASSERT_LE(memory.kept, memory.limit) << "step " << step << ", seed " << seed;
        ASSERT_EQ(memory.made - memory.dropped, fake().count("mr")) << "step " << step << ", seed " << seed;
    }
    for (auto *region : taken) verbs_memory_give(&memory, region);
    for (auto *base : declared) verbs_memory_forget(&memory, base);
    EXPECT_EQ(fake().count("mr"), 0u);
}

/* ---------------------------------------------------------------- the choice of device, port and GID */

verbs_candidate_t candidate(const char *device, int port, int index, verbs_gid_type_t type, const char *address, unsigned rate, bool active = true)
{
    verbs_candidate_t one{};
    snprintf(one.device, sizeof one.device, "%s", device);
    one.port = port;
    one.gid_index = index;
    one.type = type;
    one.ethernet = type != VERBS_GID_IB;
    one.active = active;
    one.rate = rate;
    if (strcmp(address, "link") == 0) one.gid.raw[0] = 0xfe, one.gid.raw[1] = 0x80;
    else if (strcmp(address, "ipv4") == 0) one.gid.raw[10] = one.gid.raw[11] = 0xff;
    else one.gid.raw[0] = 0xfd;
    one.gid.raw[15] = 7;
    return one;
}

const std::vector<verbs_candidate_t> machine = {
    candidate("mlx5_0", 1, 0, VERBS_GID_ROCE_V1, "link", 100), candidate("mlx5_0", 1, 1, VERBS_GID_ROCE_V2, "link", 100),
    candidate("mlx5_0", 1, 2, VERBS_GID_ROCE_V1, "ipv4", 100), candidate("mlx5_0", 1, 3, VERBS_GID_ROCE_V2, "global", 100),
    candidate("mlx5_0", 1, 4, VERBS_GID_ROCE_V2, "ipv4", 100), candidate("mlx5_1", 1, 0, VERBS_GID_IB, "link", 400, false),
    candidate("mlx5_2", 1, 0, VERBS_GID_IB, "link", 200),      candidate("mlx5_2", 2, 0, VERBS_GID_IB, "link", 200)};

std::string choice(const verbs_wish_t &wish)
{
    verbs_candidate_t chosen;
    if (verbs_device_choose(machine.data(), (int)machine.size(), &wish, &chosen) != QUOIT_OK) return std::string("error: ") + error_text();
    return std::string(chosen.device) + ":" + std::to_string(chosen.port) + " " + std::to_string(chosen.gid_index);
}

TEST(VerbsDevice, TheFastestActivePortAndItsBestGid)
{
    EXPECT_EQ(choice({"", 0, -1}), "mlx5_2:1 0");
    EXPECT_EQ(choice({nullptr, 0, -1}), "mlx5_2:1 0");
    EXPECT_EQ(choice({"mlx5_0", 0, -1}), "mlx5_0:1 4");
    EXPECT_EQ(choice({"mlx5_0:1", 0, 1}), "mlx5_0:1 1");
    EXPECT_EQ(choice({"", 2, -1}), "mlx5_2:2 0");
    EXPECT_EQ(choice({"mlx5_2:2", 0, -1}), "mlx5_2:2 0");
}

TEST(VerbsDevice, WhatDoesNotFitIsToldWithWhatThereIs)
{
    for (verbs_wish_t wish : {verbs_wish_t{"mlx5_1", 0, -1}, verbs_wish_t{"mlx5", 0, -1}, verbs_wish_t{"mlx5_0", 0, 9}, verbs_wish_t{"mlx5_0", 2, -1}}) {
        std::string text = choice(wish);
        EXPECT_EQ(text.rfind("error: ", 0), 0u) << text;
        EXPECT_NE(text.find("QUOIT_VERBS_DEVICE=" + std::string(wish.device)), std::string::npos) << text;
        EXPECT_NE(text.find("mlx5_1:1 gid 0 InfiniBand fe80::7 (down)"), std::string::npos) << text;
    }
}

/* ---------------------------------------------------------------- bytes of peers */

TEST(VerbsHello, ReadsWhatWasWrittenAndRefusesWhatIsImpossible)
{
    verbs_hello_t hello{}, read;
    verbs_notice_t type;
    uint8_t bytes[VERBS_HELLO_SIZE];
    hello.gid[3] = 9;
    hello.gid_type = 2;
    hello.mtu = 3;
    hello.ethernet = 1;
    hello.stream_qpn = 0x123456;
    hello.direct_psn = 0xfffff;
    hello.depth = 32;
    hello.buffer_size = 8192;
    hello.direct_recvs = 32;
    hello.limits = {8192, 1 << 20, 1 << 18};
    hello.pid = 77;
    strcpy(hello.host, "no\x01" "de");
    verbs_hello_write(&hello, bytes);
    ASSERT_EQ(verbs_notice_parse(bytes, sizeof bytes, &type, &read), QUOIT_OK) << error_text();
    EXPECT_EQ(type, VERBS_NOTICE_HELLO);
    EXPECT_EQ(read.stream_qpn, hello.stream_qpn);
    EXPECT_EQ(read.limits.segment_size, hello.limits.segment_size);
    EXPECT_STREQ(read.host, "no?de");
    for (size_t length = 0; length < sizeof bytes; length++) EXPECT_EQ(verbs_notice_parse(bytes, length, &type, &read), QUOIT_ERR_PROTOCOL);
    const unsigned seed = 3;
    std::mt19937 random(seed);
    for (int i = 0; i < 50000; i++) {
        uint8_t other[VERBS_HELLO_SIZE];
        memcpy(other, bytes, sizeof other);
        for (unsigned k = 1 + random() % 8; k > 0; k--) other[random() % sizeof other] = (uint8_t)random();
        if (verbs_notice_parse(other, sizeof other, &type, &read) != QUOIT_OK) continue;
        ASSERT_EQ(type, VERBS_NOTICE_HELLO) << "seed " << seed;
        ASSERT_TRUE(read.stream_qpn >> 24 == 0 && read.depth >= 4 && read.depth <= 4096 && read.buffer_size <= 1 << 20 && read.mtu <= 5) << "seed " << seed;
        ASSERT_LT(strlen(read.host), sizeof read.host);
    }
}

/* In a process of its own: the library is opened once. */
TEST(VerbsLibraryDeathTest, AMissingLibraryIsNamedAndOneThatLacksFunctionsToo)
{
    EXPECT_EXIT({
        const verbs_library_t *result = nullptr;
        bool missing = verbs_library_open("/nowhere/libibverbs.so.1", &result) == QUOIT_ERR_NOT_FOUND &&
                       strstr(error_text(), "/nowhere/libibverbs.so.1 was not found") != nullptr;
        bool lacking = verbs_library_open("libm.so.6", &result) == QUOIT_ERR_NOT_FOUND && strstr(error_text(), "has no function ibv_") != nullptr;
        _exit(missing && lacking && verbs_library_open(fake_path.c_str(), &result) == QUOIT_OK ? 0 : 1);
    }, testing::ExitedWithCode(0), "");
}

const bool prepared = [] {
    setenv("QUOIT_INTERFACE", "lo", 1);
    setenv("QUOIT_VERBS_LIBRARY", fake_path.c_str(), 1);
    return true;
}();

} // namespace
