/* SPDX-License-Identifier: Apache-2.0 */
/** Connections that go well: both ways of asking, ties, messages, attached memory, goodbye, nothing left behind. */
#include "shm_harness.h"
#include "test/support/bytes.h"

#include <atomic>
#include <thread>

using namespace shm_test;

namespace {

using test_bytes::pattern;

TEST(ShmConnect, OnlyOneSideAsks)
{
    Engine a, b;
    a.trust();
    b.trust();
    quoit_endpoint_t *ab;
    ASSERT_EQ(a.connect(b.id, b.address, &ab), QUOIT_OK) << error_text();
    ASSERT_TRUE(both_until(a, b, [&] { return a.ops.endpoint_status(ab) == QUOIT_OK; })) << error_text();
    ASSERT_EQ(a.ops.notify(ab, "hello", 5), QUOIT_OK) << error_text();
    ASSERT_TRUE(both_until(a, b, [&] { return b.find(QUOIT_EVENT_NOTICE); }));
    EXPECT_EQ(b.find(QUOIT_EVENT_NOTICE)->data, "hello");
    EXPECT_EQ(std::string(a.ops.describe(ab)).rfind("shm pid " + std::to_string(getpid()), 0), 0u) << a.ops.describe(ab);
    a.ops.disconnect(ab);
    ASSERT_TRUE(both_until(a, b, [&] { return b.find(QUOIT_EVENT_CLOSED); }));
    EXPECT_EQ(b.find(QUOIT_EVENT_CLOSED)->status, QUOIT_OK) << b.find(QUOIT_EVENT_CLOSED)->text;
    EXPECT_EQ(b.find(QUOIT_EVENT_DIED), nullptr);
}

TEST(ShmConnect, TieLeavesOneConnection)
{
    for (int round = 0; round < 50; round++) {
        Pair pair;
        ASSERT_NO_FATAL_FAILURE(pair.join());
        for (int i = 0; i < round % 3; i++) pair.b.pump();
        pair.a.ops.notify(pair.ab, "1", 1);
        pair.b.ops.notify(pair.ba, "2", 1);
        ASSERT_TRUE(both_until(pair.a, pair.b, [&] { return pair.a.find(QUOIT_EVENT_NOTICE) && pair.b.find(QUOIT_EVENT_NOTICE); }));
        EXPECT_EQ(pair.a.find(QUOIT_EVENT_NOTICE)->endpoint, pair.ab);
        EXPECT_EQ(pair.b.find(QUOIT_EVENT_NOTICE)->endpoint, pair.ba);
        EXPECT_EQ(pair.a.events.size() + pair.b.events.size(), 2u);
    }
}

// Two that trust the job, in the order of their ids.
struct Ordered {
    Engine a, b;
    Engine &lower = process_is_lower(a.id, b.id) ? a : b, &higher = &lower == &a ? b : a;
    Ordered()
    {
        a.trust();
        b.trust();
    }
};

// Both want the connection: the lower one begins it at once, the higher one waits for that.
TEST(ShmConnect, OneSideBegins)
{
    for (bool lower_first : {true, false}) {
        Ordered two;
        Engine &first = lower_first ? two.lower : two.higher, &second = lower_first ? two.higher : two.lower;
        quoit_endpoint_t *one, *other;
        int before = count_descriptors();
        ASSERT_EQ(first.connect(second.id, second.address, &one), QUOIT_OK) << error_text();
        EXPECT_EQ(count_descriptors() - before, lower_first ? 1 : 0);
        ASSERT_EQ(second.connect(first.id, first.address, &other), QUOIT_OK) << error_text();
        EXPECT_EQ(count_descriptors() - before, 1);
        ASSERT_TRUE(both_until(first, second, [&] { return first.ops.endpoint_status(one) == QUOIT_OK && second.ops.endpoint_status(other) == QUOIT_OK; }));
        first.ops.disconnect(one);
        second.ops.disconnect(other);
    }
}

// Patience was over before the other side came: both have begun.
TEST(ShmConnect, TieAfterPatience)
{
    for (int round = 0; round < 8; round++) {
        Ordered two;
        Engine &lower = two.lower, &higher = two.higher;
        quoit_endpoint_t *up, *down;
        int before = count_descriptors();
        ASSERT_EQ(higher.connect(lower.id, lower.address, &down), QUOIT_OK) << error_text();
        ASSERT_TRUE(higher.until([&] { return count_descriptors() > before; }));
        if (round % 2 == 1) lower.pump(); /* it has seen that the other one has begun, and waits in its turn */
        ASSERT_EQ(lower.connect(higher.id, higher.address, &up), QUOIT_OK) << error_text();
        ASSERT_TRUE(both_until(lower, higher, [&] { return lower.ops.endpoint_status(up) == QUOIT_OK && higher.ops.endpoint_status(down) == QUOIT_OK; })) << error_text();
        lower.ops.notify(up, "1", 1);
        higher.ops.notify(down, "2", 1);
        ASSERT_TRUE(both_until(lower, higher, [&] { return lower.find(QUOIT_EVENT_NOTICE) && higher.find(QUOIT_EVENT_NOTICE); }));
        EXPECT_EQ(lower.events.size() + higher.events.size(), 2u);
        lower.ops.disconnect(up);
        higher.ops.disconnect(down);
    }
}

TEST(ShmConnect, TieOfThreads)
{
    for (int round = 0; round < 100; round++) {
        Engine a, b;
        a.trust();
        b.trust();
        auto run = [](Engine &self, const Engine &other, int delay_us) {
            quoit_endpoint_t *endpoint;
            usleep(static_cast<useconds_t>(delay_us));
            ASSERT_EQ(self.connect(other.id, other.address, &endpoint), QUOIT_OK) << error_text();
            ASSERT_TRUE(self.until([&] { return self.ops.endpoint_status(endpoint) != QUOIT_IN_PROGRESS; }));
            ASSERT_EQ(self.ops.endpoint_status(endpoint), QUOIT_OK) << error_text();
            self.ops.notify(endpoint, "x", 1);
            ASSERT_TRUE(self.until([&] { return self.find(QUOIT_EVENT_NOTICE) && self.ops.idle(self.transport); }));
        };
        std::thread first([&] { run(a, b, round % 7 * 20); }), second([&] { run(b, a, round % 5 * 20); });
        first.join();
        second.join();
        if (HasFailure()) FAIL() << "round " << round;
    }
}

// A mailbox is narrow at first. Its reader makes it wide, also when the writer fills it while the reader is about to look how full it is.
TEST(ShmConnect, AFullNarrowMailboxIsWidened)
{
    enum { MESSAGES = 400 };
    for (int round = 0; round < 60; round++) {
        Pair pair;
        ASSERT_NO_FATAL_FAILURE(pair.join());
        std::atomic<bool> came{false};
        std::thread writer([&] {
            const std::string text(96, 'x');
            for (int i = 0; i < MESSAGES; i++) {
                ASSERT_EQ(pair.a.ops.notify(pair.ab, text.data(), text.size()), QUOIT_OK) << error_text();
                pair.a.pump();
            }
            ASSERT_TRUE(pair.a.until([&] { return came.load(); }));
        });
        EXPECT_TRUE(pair.b.until([&] { return pair.b.events.size() == MESSAGES; }, 5000)) << "round " << round << ": " << pair.b.events.size() << " notices came";
        came = true;
        writer.join();
        if (HasFailure()) return;
    }
}

TEST(ShmConnect, SecretComesLate)
{
    Engine a, b;
    a.trust();
    quoit_endpoint_t *ab;
    ASSERT_EQ(a.connect(b.id, b.address, &ab), QUOIT_OK);
    EXPECT_FALSE(both_until(a, b, [&] { return a.ops.endpoint_status(ab) != QUOIT_IN_PROGRESS; }, 50));
    b.trust();
    ASSERT_TRUE(both_until(a, b, [&] { return a.ops.endpoint_status(ab) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(a.ops.endpoint_status(ab), QUOIT_OK) << error_text();
}

TEST(ShmConnect, SecretNeverComes)
{
    Engine a, b;
    a.trust();
    quoit_endpoint_t *ab;
    ASSERT_EQ(a.connect(b.id, b.address, &ab, "rank 5 (here)", 100), QUOIT_OK);
    ASSERT_TRUE(both_until(a, b, [&] { return a.find(QUOIT_EVENT_CLOSED); }));
    EXPECT_EQ(a.ops.endpoint_status(ab), QUOIT_ERR_TIMEOUT);
    EXPECT_NE(a.find(QUOIT_EVENT_CLOSED)->text.find("rank 5 (here)"), std::string::npos) << a.find(QUOIT_EVENT_CLOSED)->text;
    a.ops.disconnect(ab);
}

TEST(ShmConnect, MessagesOfAllSizes)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    unsigned seed = 1;
    for (size_t length : {size_t{0}, size_t{1}, size_t{63}, size_t{4096}, size_t{8192}, size_t{8193}, size_t{131072}, size_t{1000003}, size_t{8 << 20}}) {
        for (bool sender_first : {true, false}) {
            std::string sent = pattern(length, ++seed), got(length, '\0');
            quoit_transfer_t out = {}, in = {};
            quoit_key_t key = {9, seed};
            for (bool send : {sender_first, !sender_first}) {
                quoit_status_t status = send ? pair.a.ops.send(pair.ab, key, sent.data(), length, &out)
                                             : pair.b.ops.recv(pair.ba, key, got.data(), length, &in);
                ASSERT_EQ(status, QUOIT_OK) << error_text();
            }
            ASSERT_TRUE(both_until(pair.a, pair.b, [&] { return out.status != QUOIT_IN_PROGRESS && in.status != QUOIT_IN_PROGRESS; })) << "length " << length;
            EXPECT_EQ(out.status, QUOIT_OK);
            EXPECT_EQ(in.status, QUOIT_OK);
            EXPECT_TRUE(got == sent) << "length " << length << " seed " << seed;
        }
    }
    uint64_t sent, received;
    pair.a.ops.count(pair.ab, &sent, &received);
    EXPECT_GT(sent, 16u << 20);
}

TEST(ShmConnect, AttachRootAndHandles)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    void *root, *seen, *block;
    size_t length;
    char handle[QUOIT_HANDLE_CAPACITY];
    ASSERT_EQ(pair.a.ops.share_root(pair.a.transport, &root), QUOIT_OK);
    for (size_t i = 0; i < QUOIT_ROOT_SIZE; i++) ASSERT_EQ(static_cast<char *>(root)[i], 0) << i;
    strcpy(static_cast<char *>(root), "root of a");
    ASSERT_EQ(pair.b.ops.attach(pair.ba, nullptr, &seen, &length), QUOIT_OK) << error_text();
    EXPECT_EQ(length, size_t{QUOIT_ROOT_SIZE});
    EXPECT_STREQ(static_cast<char *>(seen), "root of a");

    ASSERT_EQ(pair.a.ops.share_alloc(pair.a.transport, 100000, &block), QUOIT_OK) << error_text();
    ASSERT_EQ(pair.a.ops.export_memory(pair.a.transport, block, 100000, handle), QUOIT_OK) << error_text();
    strcpy(static_cast<char *>(block) + 99000, "block of a");
    ASSERT_EQ(pair.b.ops.attach(pair.ba, handle, &seen, &length), QUOIT_OK) << error_text();
    EXPECT_EQ(length, 100000u);
    EXPECT_STREQ(static_cast<char *>(seen) + 99000, "block of a");

    int outside = 0;
    EXPECT_EQ(pair.a.ops.export_memory(pair.a.transport, &outside, 4, handle), QUOIT_ERR_INVALID);
    EXPECT_EQ(pair.a.ops.export_memory(pair.a.transport, static_cast<char *>(root) - 64, 64, handle), QUOIT_ERR_INVALID) << "the header is nobody's";
    EXPECT_EQ(pair.a.ops.export_memory(pair.a.transport, block, 64 << 20, handle), QUOIT_ERR_INVALID);
    EXPECT_EQ(pair.a.ops.attach(pair.ab, handle, &seen, &length), QUOIT_ERR_INVALID) << "a handle of another process";
    pair.a.ops.share_free(pair.a.transport, block);
}

TEST(ShmConnect, GoodbyeAfterTheLastByteThenAgain)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    for (int round = 0; round < 20; round++) {
        std::string last(5000, static_cast<char>('a' + round)), got(5000, '\0');
        quoit_transfer_t out = {}, in = {};
        ASSERT_EQ(pair.a.ops.send(pair.ab, {1, 1}, last.data(), last.size(), &out), QUOIT_OK);
        ASSERT_TRUE(both_until(pair.a, pair.b, [&] { return out.status != QUOIT_IN_PROGRESS; }));
        pair.a.ops.disconnect(pair.ab);
        ASSERT_EQ(pair.b.ops.recv(pair.ba, {1, 1}, got.data(), got.size(), &in), QUOIT_OK) << error_text();
        ASSERT_TRUE(both_until(pair.a, pair.b, [&] { return in.status != QUOIT_IN_PROGRESS && pair.b.find(QUOIT_EVENT_CLOSED); })) << "round " << round;
        EXPECT_EQ(in.status, QUOIT_OK) << "round " << round;
        EXPECT_TRUE(got == last);
        EXPECT_EQ(pair.b.find(QUOIT_EVENT_CLOSED)->status, QUOIT_OK) << pair.b.find(QUOIT_EVENT_CLOSED)->text;
        EXPECT_EQ(pair.b.ops.endpoint_status(pair.ba), QUOIT_ERR_CLOSED);
        pair.b.ops.disconnect(pair.ba);
        pair.b.events.clear();
        ASSERT_NO_FATAL_FAILURE(pair.join()) << "round " << round;
    }
}

TEST(ShmConnect, ReconnectsBeforeTheOtherSideHasSeenTheGoodbye)
{
    for (int round = 0; round < 20; round++) {
        Pair pair;
        ASSERT_NO_FATAL_FAILURE(pair.join());
        pair.a.ops.disconnect(pair.ab);
        quoit_endpoint_t *again;
        ASSERT_EQ(pair.a.connect(pair.b.id, pair.b.address, &again), QUOIT_OK) << error_text();
        ASSERT_TRUE(both_until(pair.a, pair.b, [&] { return pair.a.ops.endpoint_status(again) != QUOIT_IN_PROGRESS; }));
        EXPECT_EQ(pair.a.ops.endpoint_status(again), QUOIT_OK) << error_text();
        pair.a.ops.notify(again, "again", 5);
        ASSERT_TRUE(both_until(pair.a, pair.b, [&] { return pair.b.find(QUOIT_EVENT_NOTICE); }));
        EXPECT_NE(pair.b.find(QUOIT_EVENT_NOTICE)->endpoint, pair.ba);
    }
}

TEST(ShmConnect, CountedConnections)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    quoit_endpoint_t *second;
    ASSERT_EQ(pair.a.connect(pair.b.id, pair.b.address, &second), QUOIT_OK);
    EXPECT_EQ(second, pair.ab);
    pair.a.ops.disconnect(pair.ab);
    EXPECT_FALSE(both_until(pair.a, pair.b, [&] { return pair.b.find(QUOIT_EVENT_CLOSED); }, 30));
    pair.a.ops.disconnect(second);
    EXPECT_TRUE(both_until(pair.a, pair.b, [&] { return pair.b.find(QUOIT_EVENT_CLOSED); }));
}

TEST(ShmConnect, DifferentLimitsTakeTheSmaller)
{
    settings()["EAGER_LIMIT"] = "1K";
    settings()["MAILBOX_SIZE"] = "16K";
    Engine a;
    settings()["EAGER_LIMIT"] = "64K";
    settings()["MAILBOX_SIZE"] = "50000";
    Engine b;
    settings().erase("EAGER_LIMIT");
    settings().erase("MAILBOX_SIZE");
    a.trust();
    b.trust();
    quoit_endpoint_t *ab, *ba;
    ASSERT_EQ(a.connect(b.id, b.address, &ab), QUOIT_OK);
    ASSERT_EQ(b.connect(a.id, a.address, &ba), QUOIT_OK);
    ASSERT_TRUE(both_until(a, b, [&] { return a.ops.endpoint_status(ab) == QUOIT_OK && b.ops.endpoint_status(ba) == QUOIT_OK; })) << error_text();
    std::string sent = pattern(300000, 5), got(300000, '\0');
    for (int i = 0; i < 2; i++) {
        quoit_transfer_t out = {}, in = {};
        (i ? b : a).ops.send(i ? ba : ab, {1, 1}, sent.data(), sent.size(), &out);
        (i ? a : b).ops.recv(i ? ab : ba, {1, 1}, got.data(), got.size(), &in);
        ASSERT_TRUE(both_until(a, b, [&] { return out.status == QUOIT_OK && in.status == QUOIT_OK; })) << out.status << " " << in.status;
        EXPECT_TRUE(sent == got);
    }
}

TEST(ShmConnect, ManyEnginesAllToAll)
{
    const size_t count = 12;
    std::vector<std::unique_ptr<Engine>> engines;
    std::vector<std::vector<quoit_endpoint_t *>> endpoints(count, std::vector<quoit_endpoint_t *>(count));
    int descriptors = count_descriptors();
    for (size_t i = 0; i < count; i++) {
        engines.push_back(std::make_unique<Engine>());
        engines[i]->trust();
    }
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++) {
            if (i == j) continue;
            ASSERT_EQ(engines[i]->connect(engines[j]->id, engines[j]->address, &endpoints[i][j]), QUOIT_OK) << error_text();
        }
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < count; j++) {
            if (i == j) continue;
            ASSERT_TRUE(engines[i]->until([&] {
                for (auto &engine : engines) engine->pump();
                return engines[i]->ops.endpoint_status(endpoints[i][j]) != QUOIT_IN_PROGRESS;
            }));
            ASSERT_EQ(engines[i]->ops.endpoint_status(endpoints[i][j]), QUOIT_OK) << i << "," << j << error_text();
            engines[i]->ops.notify(endpoints[i][j], "n", 1);
        }
    for (auto &engine : engines) {
        ASSERT_TRUE(engine->until([&] {
            for (auto &other : engines) other->pump();
            return engine->events.size() == count - 1;
        }));
    }
    engines.clear();
    EXPECT_EQ(count_descriptors(), descriptors);
}

TEST(ShmConnect, NothingLeftAfterClose)
{
    int before = count_descriptors();
    for (int round = 0; round < 5; round++) {
        Pair pair;
        ASSERT_NO_FATAL_FAILURE(pair.join());
        void *block;
        ASSERT_EQ(pair.a.ops.share_alloc(pair.a.transport, 1 << 20, &block), QUOIT_OK);
    }
    EXPECT_EQ(count_descriptors(), before);
    DIR *directory = opendir("/dev/shm");
    while (dirent *entry = directory ? readdir(directory) : nullptr) EXPECT_EQ(strstr(entry->d_name, "quoit"), nullptr) << entry->d_name;
    if (directory) closedir(directory);
}

/* A forked child that closes what it inherited must not disturb its parent. */
TEST(ShmConnect, ForkedChildCloses)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    for (int round = 0; round < 3; round++) {
        Child child([&] {
            pair.a.close();
            pair.b.close();
            return 0;
        });
        ASSERT_EQ(child.wait(), 0);
        std::string sent = pattern(300000, 7), got(300000, '\0');
        quoit_transfer_t out = {}, in = {};
        ASSERT_EQ(pair.a.ops.send(pair.ab, {1, 1}, sent.data(), sent.size(), &out), QUOIT_OK);
        ASSERT_EQ(pair.b.ops.recv(pair.ba, {1, 1}, got.data(), got.size(), &in), QUOIT_OK);
        ASSERT_TRUE(both_until(pair.a, pair.b, [&] { return in.status != QUOIT_IN_PROGRESS; })) << "round " << round;
        EXPECT_EQ(in.status, QUOIT_OK) << "round " << round;
        EXPECT_TRUE(sent == got);
        EXPECT_TRUE(pair.a.events.empty() && pair.b.events.empty());
    }
    pair.b.ops.disconnect(pair.ba);
    EXPECT_TRUE(both_until(pair.a, pair.b, [&] { return pair.a.find(QUOIT_EVENT_CLOSED); })) << "the ends of sockets must still be watched";
}

TEST(ShmConnect, Processes)
{
    Channel up, down;
    quoit_process_id_t child_id = random_process();
    Engine parent;
    parent.trust();
    Child child([&] {
        Engine self(child_id);
        quoit_endpoint_t *endpoint;
        void *block;
        char handle[QUOIT_HANDLE_CAPACITY];
        self.trust();
        if (self.connect(parent.id, parent.address, &endpoint)) return 1;
        up.put(self.address);
        if (!self.until([&] { return self.ops.endpoint_status(endpoint) == QUOIT_OK; })) return 2;
        if (self.ops.share_alloc(self.transport, 200000, &block)) return 3;
        memset(block, 'm', 200000);
        if (self.ops.export_memory(self.transport, block, 200000, handle)) return 4;
        if (self.ops.notify(endpoint, handle, sizeof handle)) return 5;
        if (!self.until([&] { return self.find(QUOIT_EVENT_NOTICE); })) return 6;
        if (*static_cast<volatile char *>(block) != 'p') return 7;
        self.ops.disconnect(endpoint);
        return self.until([&] { return self.ops.idle(self.transport); }) ? 0 : 8;
    });
    std::string address = up.get(SHM_ADDRESS_SIZE);
    ASSERT_EQ(address.size(), size_t{SHM_ADDRESS_SIZE});
    quoit_endpoint_t *endpoint;
    void *seen;
    size_t length;
    ASSERT_EQ(parent.connect(child_id, address, &endpoint), QUOIT_OK) << error_text();
    ASSERT_TRUE(parent.until([&] { return parent.find(QUOIT_EVENT_NOTICE); }));
    ASSERT_EQ(parent.ops.attach(endpoint, parent.find(QUOIT_EVENT_NOTICE)->data.data(), &seen, &length), QUOIT_OK) << error_text();
    ASSERT_EQ(length, 200000u);
    EXPECT_EQ(std::string(static_cast<char *>(seen), 200000), std::string(200000, 'm'));
    *static_cast<char *>(seen) = 'p';
    ASSERT_EQ(parent.ops.notify(endpoint, "done", 4), QUOIT_OK);
    ASSERT_TRUE(parent.until([&] { return parent.find(QUOIT_EVENT_CLOSED); }));
    EXPECT_EQ(parent.find(QUOIT_EVENT_CLOSED)->status, QUOIT_OK) << parent.find(QUOIT_EVENT_CLOSED)->text;
    EXPECT_EQ(parent.find(QUOIT_EVENT_DIED), nullptr);
    EXPECT_EQ(child.wait(), 0);
}

} // namespace
