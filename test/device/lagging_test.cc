/* SPDX-License-Identifier: Apache-2.0 */
/** The lagging device keeps what it promises: its memory cannot be touched, its queues are queues, and they are late. */
extern "C" {
#include "base/clock.h"
#include "test/device/lagging_device.h"
}

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace {

const device_row_t &row = lagging_device;

class Lagging : public ::testing::Test {
  protected:
    void SetUp() override
    {
        lagging_device_reset();
        lagging_device_set_seed(5);
        lagging_device_set_lag(0, 300);
    }
    void TearDown() override { lagging_device_shutdown(); }

    static void *memory(size_t bytes)
    {
        void *pointer = nullptr;
        EXPECT_EQ(row.alloc(bytes, &pointer), QUOIT_OK) << quoit_last_error();
        return pointer;
    }
    static void *stream()
    {
        void *created = nullptr;
        EXPECT_EQ(row.stream_create(&created), QUOIT_OK) << quoit_last_error();
        return created;
    }
    static device_event_t *event()
    {
        device_event_t *created = nullptr;
        EXPECT_EQ(row.event_create(&created), QUOIT_OK) << quoit_last_error();
        return created;
    }
    static quoit_status_t finish(void *on)
    {
        device_event_t *end = event();
        EXPECT_EQ(row.event_record(end, on), QUOIT_OK);
        quoit_status_t status = lagging_device_wait(end);
        row.event_destroy(end);
        return status;
    }
};

using LaggingDeathTest = Lagging;

TEST_F(LaggingDeathTest, TouchingMemoryCrashes)
{
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    auto *pointer = (volatile unsigned char *)memory(100);
    EXPECT_DEATH(pointer[0] = 1, "");
    EXPECT_DEATH((void)pointer[99], "");
}

TEST_F(LaggingDeathTest, FreeingTwiceCrashes)
{
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    void *pointer = memory(100);
    row.free(pointer);
    EXPECT_DEATH(row.free(pointer), "freed already");
}

TEST_F(Lagging, RegistersUnderItsName)
{
    quoit_device_t first = -1, second = -1, found = -1;
    ASSERT_EQ(lagging_device_register(&first), QUOIT_OK) << quoit_last_error();
    ASSERT_EQ(lagging_device_register(&second), QUOIT_OK);
    EXPECT_EQ(first, second);
    EXPECT_EQ(quoit_device_find("lagging", &found), QUOIT_OK);
    EXPECT_EQ(found, first);
    EXPECT_EQ(device_find(found), &lagging_device);
    EXPECT_FALSE(device_find(found)->host_readable);
}

TEST_F(Lagging, UploadAndDownloadGiveTheBytesBack)
{
    std::vector<unsigned char> in(100001), out(100001);
    for (size_t i = 0; i < in.size(); i++) in[i] = (unsigned char)(i * 31);
    void *pointer = memory(in.size());
    ASSERT_EQ(lagging_device_download(out.data(), pointer, out.size()), QUOIT_OK);
    EXPECT_EQ(out, std::vector<unsigned char>(out.size(), LAGGING_GARBAGE));
    ASSERT_EQ(lagging_device_upload(pointer, in.data(), in.size()), QUOIT_OK);
    ASSERT_EQ(lagging_device_download(out.data(), pointer, out.size()), QUOIT_OK);
    EXPECT_EQ(in, out);
    EXPECT_EQ(lagging_device_counters().copies, 0u) << "the helpers do not count";
}

TEST_F(Lagging, ChecksPointers)
{
    auto *pointer = (unsigned char *)memory(100);
    unsigned char host[200] = {};
    EXPECT_EQ(row.check(pointer, 100), QUOIT_OK);
    EXPECT_EQ(row.check(pointer + 40, 60), QUOIT_OK);
    EXPECT_EQ(row.check(pointer + 40, 61), QUOIT_ERR_INVALID);
    EXPECT_EQ(row.check(host, 1), QUOIT_ERR_INVALID);
    EXPECT_EQ(row.copy(pointer, host, 101, HOST_TO_DEVICE, nullptr), QUOIT_ERR_INVALID);
    EXPECT_EQ(row.copy(host, host + 100, 1, DEVICE_TO_HOST, nullptr), QUOIT_ERR_INVALID);
    row.free(pointer);
    EXPECT_EQ(row.check(pointer, 1), QUOIT_ERR_INVALID);
}

TEST_F(Lagging, NothingIsDoneAtReturn)
{
    lagging_device_set_lag(20000, 20000);
    void *pointer = memory(8), *on = stream();
    device_event_t *end = event();
    uint64_t value = 1, result = 0;
    uint64_t begin = clock_now();
    ASSERT_EQ(row.copy(pointer, &value, 8, HOST_TO_DEVICE, on), QUOIT_OK);
    ASSERT_EQ(row.copy(&result, pointer, 8, DEVICE_TO_HOST, on), QUOIT_OK);
    ASSERT_EQ(row.event_record(end, on), QUOIT_OK);
    quoit_status_t first = row.event_query(end);
    if (clock_now() - begin < 15000000) { EXPECT_EQ(first, QUOIT_IN_PROGRESS); }
    ASSERT_EQ(lagging_device_wait(end), QUOIT_OK);
    EXPECT_GE(clock_now() - begin, 60000000u) << "three commands of 20 ms";
    EXPECT_EQ(result, 1u);
    row.event_destroy(end);
    row.stream_destroy(on);
}

TEST_F(Lagging, HostMemoryIsReadWhenTheStreamGetsThere)
{
    void *pointer = memory(8), *on = stream(), *word = nullptr;
    ASSERT_EQ(row.host_alloc(8, &word), QUOIT_OK);
    __atomic_store_n((uint64_t *)word, 0, __ATOMIC_RELEASE);
    uint64_t value = 1, result = 0;
    ASSERT_EQ(row.stream_wait_host(on, (uint64_t *)word, 1), QUOIT_OK);
    ASSERT_EQ(row.copy(pointer, &value, 8, HOST_TO_DEVICE, on), QUOIT_OK);
    value = 2; /* too early for a caller, and here on purpose */
    __atomic_store_n((uint64_t *)word, 1, __ATOMIC_RELEASE);
    ASSERT_EQ(finish(on), QUOIT_OK);
    ASSERT_EQ(lagging_device_download(&result, pointer, 8), QUOIT_OK);
    EXPECT_EQ(result, 2u);
    row.stream_destroy(on);
    row.host_free(word);
}

TEST_F(Lagging, StreamIsAQueue)
{
    void *on = stream();
    struct Log {
        std::vector<int> seen;
        int next = 0;
    } log;
    struct Entry {
        Log *log;
        int number;
    };
    std::vector<Entry> entries;
    for (int i = 0; i < 50; i++) entries.push_back({&log, i});
    for (Entry &entry : entries)
        ASSERT_EQ(row.stream_notify(on, [](void *argument) { ((Entry *)argument)->log->seen.push_back(((Entry *)argument)->number); }, &entry), QUOIT_OK);
    ASSERT_EQ(finish(on), QUOIT_OK);
    ASSERT_EQ(log.seen.size(), entries.size());
    for (int i = 0; i < 50; i++) EXPECT_EQ(log.seen[(size_t)i], i);
    row.stream_destroy(on);
}

TEST_F(Lagging, StreamsWaitForEachOther)
{
    void *first = stream(), *second = stream(), *pointer = memory(8), *word = nullptr;
    ASSERT_EQ(row.host_alloc(8, &word), QUOIT_OK);
    *(uint64_t *)word = 0;
    uint64_t value = 42, result = 0;
    device_event_t *written = event(), *end = event();
    ASSERT_EQ(row.stream_wait_host(first, (uint64_t *)word, 7), QUOIT_OK);
    ASSERT_EQ(row.copy(pointer, &value, 8, HOST_TO_DEVICE, first), QUOIT_OK);
    ASSERT_EQ(row.event_record(written, first), QUOIT_OK);
    ASSERT_EQ(row.stream_wait_event(second, written), QUOIT_OK);
    ASSERT_EQ(row.copy(&result, pointer, 8, DEVICE_TO_HOST, second), QUOIT_OK);
    ASSERT_EQ(row.event_record(end, second), QUOIT_OK);
    usleep(20000);
    EXPECT_EQ(row.event_query(end), QUOIT_IN_PROGRESS) << "the first stream still waits for the host";
    __atomic_store_n((uint64_t *)word, 6, __ATOMIC_RELEASE);
    usleep(5000);
    EXPECT_EQ(row.event_query(end), QUOIT_IN_PROGRESS);
    __atomic_store_n((uint64_t *)word, 8, __ATOMIC_RELEASE);
    ASSERT_EQ(lagging_device_wait(end), QUOIT_OK) << quoit_last_error();
    EXPECT_EQ(result, 42u);
    row.event_destroy(written);
    row.event_destroy(end);
    row.stream_destroy(first);
    row.stream_destroy(second);
    row.host_free(word);
}

TEST_F(Lagging, EventsAreAsInAnyQueue)
{
    void *on = stream();
    device_event_t *never = event(), *twice = event();
    EXPECT_EQ(row.event_query(never), QUOIT_OK) << "nothing recorded, nothing to wait for";
    EXPECT_EQ(row.stream_wait_event(on, never), QUOIT_OK);
    ASSERT_EQ(row.event_record(twice, on), QUOIT_OK);
    ASSERT_EQ(row.event_record(twice, on), QUOIT_OK);
    ASSERT_EQ(lagging_device_wait(twice), QUOIT_OK);
    ASSERT_EQ(row.event_record(never, on), QUOIT_OK);
    row.event_destroy(never); /* while it is queued */
    row.event_destroy(twice);
    row.event_destroy(nullptr);
    row.stream_destroy(on);
    row.stream_destroy(nullptr);
}

TEST_F(Lagging, WordMustBeFromHostAlloc)
{
    uint64_t word = 0;
    EXPECT_EQ(row.stream_wait_host(nullptr, &word, 1), QUOIT_ERR_INVALID);
}

TEST_F(Lagging, CopiesCount)
{
    void *on = stream(), *a = memory(100), *b = memory(100), *host = nullptr;
    unsigned char plain[100] = {};
    ASSERT_EQ(row.host_alloc(100, &host), QUOIT_OK);
    std::memset(host, 9, 100);
    ASSERT_EQ(row.copy(a, host, 100, HOST_TO_DEVICE, on), QUOIT_OK);
    ASSERT_EQ(row.copy(b, a, 60, DEVICE_TO_DEVICE, on), QUOIT_OK);
    ASSERT_EQ(row.copy(plain, b, 60, DEVICE_TO_HOST, on), QUOIT_OK);
    ASSERT_EQ(finish(on), QUOIT_OK);
    EXPECT_EQ(plain[59], 9);
    EXPECT_EQ(plain[60], 0);
    lagging_counters_t counters = lagging_device_counters();
    EXPECT_EQ(counters.copies, 3u);
    EXPECT_EQ(counters.bytes, 220u);
    EXPECT_EQ(counters.unpinned, 1u);
    row.stream_destroy(on);
    row.host_free(host);
}

TEST_F(Lagging, FailureComesOutOfEvents)
{
    void *first = stream(), *second = stream(), *pointer = memory(8);
    uint64_t value = 1, result = 0;
    device_event_t *before = event(), *after = event(), *across = event();
    ASSERT_EQ(row.event_record(before, first), QUOIT_OK);
    lagging_device_fail_next_copy();
    ASSERT_EQ(row.copy(pointer, &value, 8, HOST_TO_DEVICE, first), QUOIT_OK) << "it fails later";
    ASSERT_EQ(row.event_record(after, first), QUOIT_OK);
    ASSERT_EQ(row.stream_wait_event(second, after), QUOIT_OK);
    ASSERT_EQ(row.event_record(across, second), QUOIT_OK);
    EXPECT_EQ(lagging_device_wait(before), QUOIT_OK);
    EXPECT_EQ(lagging_device_wait(after), QUOIT_ERR_SYSTEM);
    EXPECT_NE(std::string(quoit_last_error()).find("copy of 8 bytes"), std::string::npos) << quoit_last_error();
    EXPECT_EQ(lagging_device_wait(across), QUOIT_ERR_SYSTEM);
    ASSERT_EQ(lagging_device_download(&result, pointer, 8), QUOIT_OK) << "other streams live on";
    EXPECT_EQ(((unsigned char *)&result)[0], LAGGING_GARBAGE);
    EXPECT_EQ(finish(first), QUOIT_ERR_SYSTEM) << "the mark stays";
    lagging_device_reset();
    ASSERT_EQ(row.copy(pointer, &value, 8, HOST_TO_DEVICE, first), QUOIT_OK);
    EXPECT_EQ(finish(first), QUOIT_OK);
    for (device_event_t *each : {before, after, across}) row.event_destroy(each);
    row.stream_destroy(first);
    row.stream_destroy(second);
}

TEST_F(Lagging, FreedWhileQueuedIsAFailure)
{
    lagging_device_set_lag(5000, 5000);
    void *on = stream(), *pointer = memory(8);
    uint64_t value = 1;
    ASSERT_EQ(row.copy(pointer, &value, 8, HOST_TO_DEVICE, on), QUOIT_OK);
    row.free(pointer);
    EXPECT_EQ(finish(on), QUOIT_ERR_SYSTEM);
    EXPECT_NE(std::string(quoit_last_error()).find("freed"), std::string::npos) << quoit_last_error();
    row.stream_destroy(on);
}

TEST_F(Lagging, ManyThreads)
{
    constexpr int threads = 6, rounds = 20;
    std::atomic<int> failures = 0;
    std::vector<std::thread> running;
    for (int t = 0; t < threads; t++) {
        running.emplace_back([&, t] {
            void *on = stream(), *a = memory(4096), *b = memory(4096);
            std::vector<uint32_t> in(1024), out(1024);
            for (int r = 0; r < rounds; r++) {
                for (size_t i = 0; i < in.size(); i++) in[i] = (uint32_t)(i * 7 + (size_t)(t * 1000 + r));
                bool ok = row.copy(a, in.data(), 4096, HOST_TO_DEVICE, on) == QUOIT_OK;
                ok = ok && row.copy(b, a, 4096, DEVICE_TO_DEVICE, on) == QUOIT_OK;
                ok = ok && row.copy(out.data(), b, 4096, DEVICE_TO_HOST, on) == QUOIT_OK && finish(on) == QUOIT_OK;
                for (size_t i = 0; i < in.size(); i++) ok = ok && out[i] == in[i];
                if (!ok) failures++;
            }
            row.free(a);
            row.free(b);
            row.stream_destroy(on);
        });
    }
    for (std::thread &thread : running) thread.join();
    EXPECT_EQ(failures, 0);
    EXPECT_EQ(lagging_device_counters().copies, 3u * threads * rounds);
}

TEST_F(Lagging, ShutdownLeavesAFreshDevice)
{
    void *pointer = memory(8);
    ASSERT_EQ(finish(nullptr), QUOIT_OK);
    lagging_device_shutdown();
    EXPECT_EQ(row.check(pointer, 8), QUOIT_ERR_INVALID);
    uint64_t value = 3, result = 0;
    void *again = memory(8);
    ASSERT_EQ(lagging_device_upload(again, &value, 8), QUOIT_OK);
    ASSERT_EQ(lagging_device_download(&result, again, 8), QUOIT_OK);
    EXPECT_EQ(result, 3u);
}

} // namespace
