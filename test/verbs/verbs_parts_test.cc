/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parts of the verbs transport by themselves: registrations, over the fake libibverbs; the choice of device, port and GID; the parsers of
 * what peers send; the opening of the library.
 */
#include "verbs_harness.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include "base/status.h"
#include "transport/verbs/verbs_device.h"
#include "transport/verbs/verbs_hello.h"
#include "transport/verbs/verbs_memory.h"
}

using namespace verbs_test;

namespace {

/* ---------------------------------------------------------------- registrations */

const verbs_library_t *library()
{
    const verbs_library_t *result = nullptr;
    EXPECT_EQ(verbs_library_open(built_path(FAKE_VERBS).c_str(), &result), QUOIT_OK) << error_text();
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
        const verbs_memory_config_t config = {1 << 20, 1000, false, false};
        verbs_memory_init(&memory, library(), &pd, 1, &config);
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
    verbs_memory_give(again);
    verbs_memory_give(region);
    EXPECT_EQ(fake().count("mr"), 0u) << "an old registration could serve what is mapped there next";
    ASSERT_EQ(mmap(place, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0), place);
    ASSERT_EQ(verbs_memory_take(&memory, place, size, true, &region), QUOIT_OK);
    EXPECT_EQ(memory.made, 2u);
    verbs_memory_give(region);
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
        verbs_memory_give(region);
    }
    EXPECT_EQ(memory.made, 3u);
    EXPECT_EQ(memory.dropped, 1u);
    EXPECT_LE(memory.kept, memory.config.bytes);
    ASSERT_EQ(verbs_memory_take(&memory, bytes[0].data(), size, true, &region), QUOIT_OK);
    verbs_memory_forget(&memory, bytes[0].data());
    EXPECT_EQ(memory.dropped, 1u) << "a transfer was under way";
    verbs_memory_give(region);
    EXPECT_EQ(memory.dropped, 2u);
    verbs_memory_forget(&memory, bytes[2].data());
    EXPECT_EQ(memory.dropped, 3u);
    EXPECT_EQ(memory.kept, 0u);
}

/* Registrations of a buffer that is used again and again: one, as long as the memory is the same. */
struct Watched : Registry {
    static constexpr size_t size = 1 << 16;
    bool watches = false; /* the kernel allows it */
    verbs_region_t *region = nullptr;
    void SetUp() override
    {
        Registry::SetUp();
        verbs_memory_destroy(&memory);
        const verbs_memory_config_t config = {1 << 20, 3, true, false};
        verbs_memory_init(&memory, library(), &pd, 1, &config);
        char *probe = map();
        use(probe);
        watches = memory.kept > 0;
        munmap(probe, size);
        use(probe = map());
        munmap(probe, size);
        verbs_memory_destroy(&memory);
        verbs_memory_init(&memory, library(), &pd, 1, &config);
        if (!watches) printf("this kernel does not allow userfaultfd: registrations are not kept\n");
    }
    /* Far below all other mappings, where the kernel puts nothing by itself: what is unmapped for a moment becomes no other thread's memory. */
    static char *next_place()
    {
        static char *place = static_cast<char *>(mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) - (uintptr_t{1} << 36);
        return place -= 2 * size;
    }
    char *map(void *where = nullptr) const
    {
        int fixed = where ? MAP_FIXED : MAP_FIXED_NOREPLACE;
        return static_cast<char *>(mmap(where ? where : next_place(), size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0));
    }
    void use(char *place, bool writable = false)
    {
        ASSERT_EQ(verbs_memory_take(&memory, place + 100, size - 200, writable, &region), QUOIT_OK) << error_text();
        verbs_memory_give(region);
    }
    std::string counts() const
    {
        return std::to_string(memory.hits) + " hits, " + std::to_string(memory.misses) + " misses, " + std::to_string(memory.evicted) + " evicted, " +
               std::to_string(memory.invalidated) + " invalidated";
    }
};

TEST_F(Watched, MemoryIsRegisteredOnceUntilItGoesAway)
{
    char *place = map();
    use(place);
    use(place, true);
    use(place);
    if (!watches) {
        EXPECT_EQ(fake().count("mr"), 0u) << "kept, and nobody would tell";
        munmap(place, size);
        return;
    }
    EXPECT_EQ(counts(), "2 hits, 1 misses, 0 evicted, 0 invalidated");
    munmap(place, size);
    ASSERT_EQ(map(place), place);
    use(place);
    EXPECT_EQ(counts(), "2 hits, 2 misses, 0 evicted, 1 invalidated") << "unmapped, and mapped anew in the same place";
    ASSERT_EQ(map(place), place); /* mapped over, without an munmap */
    use(place);
    EXPECT_EQ(counts(), "2 hits, 3 misses, 0 evicted, 2 invalidated") << "mapped over";
    ASSERT_EQ(madvise(place, 4096, MADV_DONTNEED), 0);
    use(place);
    EXPECT_EQ(counts(), "2 hits, 4 misses, 0 evicted, 3 invalidated") << "a page of it was thrown away";
    char *elsewhere = map();
    ASSERT_EQ(mremap(place, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, elsewhere), elsewhere);
    ASSERT_EQ(map(place), place);
    use(place);
    EXPECT_EQ(counts(), "2 hits, 5 misses, 0 evicted, 4 invalidated") << "moved away";
    EXPECT_EQ(fake().count("mr"), 1u);
    munmap(elsewhere, size);
    munmap(place, size);
}

TEST_F(Watched, WhatWasUsedLongestAgoGoesFirst)
{
    if (!watches) return;
    char *place[4];
    for (auto &one : place) one = map();
    for (int i : {0, 1, 2, 0, 3}) use(place[i]); /* three entries: 3 drives 1 out */
    EXPECT_EQ(counts(), "1 hits, 4 misses, 1 evicted, 0 invalidated");
    use(place[0]);
    use(place[2]);
    EXPECT_EQ(counts(), "3 hits, 4 misses, 1 evicted, 0 invalidated");
    use(place[1]);
    EXPECT_EQ(counts(), "3 hits, 5 misses, 2 evicted, 0 invalidated");
    for (auto *one : place) munmap(one, size);
    use(place[0] = map());
    EXPECT_EQ(memory.invalidated, 3u);
    munmap(place[0], size);
}

/* Regions that share pages, dropped in any order: what is left is watched still, and in the end nothing is. */
TEST_F(Watched, RegionsThatOverlapAreWatchedEach)
{
    if (!watches) return;
    char *place = map();
    verbs_region_t *first, *second;
    ASSERT_EQ(verbs_memory_take(&memory, place, 20000, false, &first), QUOIT_OK);
    ASSERT_EQ(verbs_memory_take(&memory, place + 15000, 20000, false, &second), QUOIT_OK);
    verbs_memory_give(second);
    verbs_memory_give(first);
    use(map()), use(map()); /* three entries: the second is gone, then kept are the first and the two */
    EXPECT_EQ(memory.evicted, 1u);
    ASSERT_EQ(madvise(place + 16384, 4096, MADV_DONTNEED), 0); /* the page that both had */
    ASSERT_EQ(verbs_memory_take(&memory, place, 20000, false, &first), QUOIT_OK);
    EXPECT_EQ(memory.invalidated, 1u) << "its last page was not watched any more";
    verbs_memory_give(first);
    munmap(place, size);
}

/* What a thread gives back while nobody looks does not stop it. */
TEST_F(Watched, NobodyWaitsForLong)
{
    if (!watches) return;
    for (int i = 0; i < 200; i++) { /* more than are remembered */
        char *place = map();
        use(place);
        munmap(place, size);
    }
    std::vector<char *> places;
    for (int i = 0; i < 3; i++) use(places.emplace_back(map()));
    for (int i = 0; i < 100; i++)
        for (char *one : places) ASSERT_EQ(madvise(one, 4096, MADV_DONTNEED), 0);
    use(places[0]);
    EXPECT_EQ(memory.kept_entries, 1u) << "too many to remember: none is used any more";
    for (char *one : places) munmap(one, size);
}

/* A child of fork has the same addresses, but gives back memory of its own; and that it lives on holds up nobody when all is over. */
TEST_F(Watched, AChildIsAnotherProcess)
{
    int go[2], done[2];
    char *place = map(), byte = 0;
    ASSERT_TRUE(pipe(go) == 0 && pipe(done) == 0);
    use(place);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        munmap(place, size / 2);
        bool told = write(done[1], &byte, 1) == 1 && read(go[0], &byte, 1) == 1;
        _exit(told ? 0 : 1);
    }
    alarm(60); /* what waits in munmap can only be killed */
    ASSERT_EQ(read(done[0], &byte, 1), 1) << "the child hangs in munmap";
    use(place);
    EXPECT_EQ(memory.invalidated, 0u) << "it was the child's memory that went";
    verbs_memory_destroy(&memory);
    munmap(place, size);
    alarm(0);
    ASSERT_EQ(write(go[1], &byte, 1), 1);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    for (int fd : {go[0], go[1], done[0], done[1]}) close(fd);
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
            ASSERT_TRUE(region->mr[0] != nullptr && region->base <= (uintptr_t)base && (uintptr_t)base + length <= region->base + region->length);
            taken.push_back(region);
            break;
        default:
            if (taken.empty()) break;
            std::swap(taken[random() % taken.size()], taken.back());
            verbs_memory_give(taken.back());
            taken.pop_back();
        }
        ASSERT_LE(memory.kept, memory.config.bytes) << "step " << step << ", seed " << seed;
        ASSERT_EQ(memory.made - memory.dropped, fake().count("mr")) << "step " << step << ", seed " << seed;
    }
    for (auto *region : taken) verbs_memory_give(region);
    for (auto *base : declared) verbs_memory_forget(&memory, base);
    EXPECT_EQ(fake().count("mr"), 0u);
}

/* ---------------------------------------------------------------- the choice of device, port and GID */

struct Port {
    const char *device;
    int port, index;
    verbs_gid_type_t type;
    const char *address;
    unsigned gbps;
    bool active = true;
    int distance = 0;
    bool software = false;
};

verbs_candidate_t candidate(const Port &port)
{
    verbs_candidate_t one{};
    snprintf(one.device, sizeof one.device, "%s", port.device);
    one.port = port.port;
    one.gid_index = port.index;
    one.type = port.type;
    one.ethernet = port.type != VERBS_GID_IB;
    one.active = port.active;
    one.mbps = 1000 * port.gbps;
    one.distance = port.distance;
    one.software = port.software;
    if (strcmp(port.address, "link") == 0) one.gid.raw[0] = 0xfe, one.gid.raw[1] = 0x80;
    else if (strcmp(port.address, "ipv4") == 0) one.gid.raw[10] = one.gid.raw[11] = 0xff;
    else one.gid.raw[0] = 0xfd;
    one.gid.raw[15] = 7;
    return one;
}

const std::vector<Port> machine = {
    {"mlx5_0", 1, 0, VERBS_GID_ROCE_V1, "link", 100}, {"mlx5_0", 1, 1, VERBS_GID_ROCE_V2, "link", 100},
    {"mlx5_0", 1, 2, VERBS_GID_ROCE_V1, "ipv4", 100}, {"mlx5_0", 1, 3, VERBS_GID_ROCE_V2, "global", 100},
    {"mlx5_0", 1, 4, VERBS_GID_ROCE_V2, "ipv4", 100}, {"mlx5_1", 1, 0, VERBS_GID_IB, "link", 400, false},
    {"mlx5_2", 1, 0, VERBS_GID_IB, "link", 200},      {"mlx5_2", 2, 0, VERBS_GID_IB, "link", 200}};

std::string choice(const verbs_wish_t &wish, const std::vector<Port> &ports = machine)
{
    verbs_candidate_t chosen[VERBS_MOST_RAILS];
    std::vector<verbs_candidate_t> all;
    int count = 0;
    for (auto &port : ports) all.push_back(candidate(port));
    if (verbs_device_choose(all.data(), (int)all.size(), &wish, chosen, &count) != QUOIT_OK) return std::string("error: ") + error_text();
    std::string text;
    for (int i = 0; i < count; i++)
        text += (i > 0 ? ", " : "") + std::string(chosen[i].device) + ":" + std::to_string(chosen[i].port) + " " + std::to_string(chosen[i].gid_index);
    return text;
}

TEST(VerbsDevice, TheFastestActivePortsAndTheirBestGids)
{
    EXPECT_EQ(choice({"", false, 0, -1}), "mlx5_2:1 0, mlx5_2:2 0");
    EXPECT_EQ(choice({nullptr, false, 0, -1}), "mlx5_2:1 0, mlx5_2:2 0");
    EXPECT_EQ(choice({"mlx5_0", false, 0, -1}), "mlx5_0:1 4");
    EXPECT_EQ(choice({"mlx5_0:1", false, 0, 1}), "mlx5_0:1 1");
    EXPECT_EQ(choice({"", false, 2, -1}), "mlx5_2:2 0");
    EXPECT_EQ(choice({"mlx5_2:2", false, 0, -1}), "mlx5_2:2 0");
}

TEST(VerbsDevice, SeveralAreNamedOrLeftOut)
{
    EXPECT_EQ(choice({"mlx5_2:2,mlx5_0", false, 0, -1}), "mlx5_0:1 4, mlx5_2:2 0") << "in the order of their names, so that both sides pair alike";
    EXPECT_EQ(choice({"mlx5_*", false, 0, -1}), "mlx5_0:1 4, mlx5_2:1 0, mlx5_2:2 0");
    EXPECT_EQ(choice({"mlx5_0,mlx5_1", false, 0, -1}), "mlx5_0:1 4") << "one of them is down";
    EXPECT_EQ(choice({"^mlx5_2", false, 0, -1}), "mlx5_0:1 4");
    EXPECT_EQ(choice({"^mlx5_2:1", false, 0, -1}), "mlx5_2:2 0");
    const std::vector<Port> many = {{"mlx5_10", 1, 0, VERBS_GID_IB, "link", 400}, {"mlx5_9", 1, 0, VERBS_GID_IB, "link", 400}, {"mlx5_3", 1, 0, VERBS_GID_IB, "link", 200},
                                    {"mlx5_4", 1, 0, VERBS_GID_IB, "link", 400},  {"mlx5_5", 1, 0, VERBS_GID_IB, "link", 400}};
    EXPECT_EQ(choice({"", false, 0, -1}, many), "mlx5_4:1 0, mlx5_5:1 0, mlx5_9:1 0, mlx5_10:1 0") << "four at most, the fastest";
}

/* Two sockets with a device each, and a slow one. */
TEST(VerbsDevice, TheNearestOfThoseThatAreFastEnough)
{
    const auto ports = [](int first, int second, int slow) {
        return std::vector<Port>{{"mlx5_0", 1, 0, VERBS_GID_IB, "link", 200, true, first}, {"mlx5_1", 1, 0, VERBS_GID_IB, "link", 200, true, second},
                                 {"mlx4_0", 1, 0, VERBS_GID_IB, "link", 40, true, slow}};
    };
    EXPECT_EQ(choice({"", false, 0, -1}, ports(0, 1, 1)), "mlx5_0:1 0");
    EXPECT_EQ(choice({"", false, 0, -1}, ports(1, 0, 1)), "mlx5_1:1 0");
    EXPECT_EQ(choice({"", false, 0, -1}, ports(0, 0, 1)), "mlx5_0:1 0, mlx5_1:1 0") << "this process may run near both";
    EXPECT_EQ(choice({"", false, 0, -1}, ports(1, 1, 0)), "mlx4_0:1 0, mlx5_0:1 0, mlx5_1:1 0") << "a slow one is near, which is no reason to do without the fast ones";
    EXPECT_EQ(choice({"mlx5_1", false, 0, -1}, ports(0, 1, 1)), "mlx5_1:1 0") << "named";
}

TEST(VerbsDevice, SoftwareIsUsedWhereItIsAskedFor)
{
    const std::vector<Port> both = {{"rxe0", 1, 1, VERBS_GID_ROCE_V2, "ipv4", 400, true, 0, true}, {"mlx5_0", 1, 1, VERBS_GID_ROCE_V2, "ipv4", 25}};
    const std::vector<Port> only = {both[0]};
    EXPECT_EQ(choice({"", false, 0, -1}, both), "mlx5_0:1 1") << "hardware first, whatever rate the software claims";
    EXPECT_EQ(choice({"", false, 0, -1}, only), "rxe0:1 1") << "QUOIT_TRANSPORT=verbs";
    EXPECT_EQ(choice({"rxe0", true, 0, -1}, both), "rxe0:1 1") << "auto, and the device is named";
    std::string text = choice({"", true, 0, -1}, only);
    EXPECT_NE(text.find("rxe0:1 gid 1 RoCE v2 0.0.0.7 (software)"), std::string::npos) << text;
    EXPECT_NE(text.find("only when QUOIT_TRANSPORT names verbs"), std::string::npos) << text;
}

TEST(VerbsDevice, WhatDoesNotFitIsToldWithWhatThereIs)
{
    for (verbs_wish_t wish : {verbs_wish_t{"mlx5_1", false, 0, -1}, verbs_wish_t{"mlx5", false, 0, -1}, verbs_wish_t{"mlx5_0", false, 0, 9},
                              verbs_wish_t{"mlx5_0", false, 2, -1}}) {
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
    hello.direct_qpn = 0x123457;
    hello.link = 1;
    hello.mbps = 100000;
    hello.direct_psn = 0xfffff;
    hello.depth = 32;
    hello.buffer_size = 8192;
    hello.direct_recvs = 32;
    hello.limits = {8192, 1 << 20, 1 << 18, 3};
    hello.pid = 77;
    strcpy(hello.host, "no\x01" "de");
    verbs_hello_write(&hello, bytes);
    ASSERT_EQ(verbs_notice_parse(bytes, sizeof bytes, &type, &read), QUOIT_OK) << error_text();
    EXPECT_EQ(type, VERBS_NOTICE_HELLO);
    EXPECT_EQ(read.stream_qpn, hello.stream_qpn);
    EXPECT_EQ(read.limits.segment_size, hello.limits.segment_size);
    EXPECT_TRUE(read.link == 1 && read.mbps == 100000 && read.limits.rails == 3);
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
        _exit(missing && lacking && verbs_library_open(built_path(FAKE_VERBS).c_str(), &result) == QUOIT_OK ? 0 : 1);
    }, testing::ExitedWithCode(0), "");
}

} // namespace
