// SPDX-License-Identifier: Apache-2.0
// The file store: threads and processes as ranks, stale and torn files.
#include "test/support/temporary.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "base/status.h"
}

namespace {

class FileStore : public ::testing::Test {
  protected:
    void SetUp() override
    {
        directory = temporary_pattern("store");
        ASSERT_NE(mkdtemp(directory.data()), nullptr);
        path = directory + "/store";
        url = "file://" + path;
    }
    void TearDown() override { std::filesystem::remove_all(directory); }
    quoit_store_t *open()
    {
        quoit_store_t *store = nullptr;
        EXPECT_EQ(quoit_store_open(url.c_str(), 0, 4, 5000, &store), QUOIT_OK) << quoit_last_error();
        return store;
    }
    std::string directory, path, url;
};

void set(quoit_store_t *store, const std::string &key, const std::string &value)
{
    ASSERT_EQ(quoit_store_set(store, key.c_str(), value.data(), value.size()), QUOIT_OK) << quoit_last_error();
}

std::string get(quoit_store_t *store, const std::string &key, int timeout_ms = 20000)
{
    void *value = nullptr;
    size_t length = 0;
    if (quoit_store_get(store, key.c_str(), timeout_ms, &value, &length) != QUOIT_OK) return "error: " + std::string(quoit_last_error());
    std::string result((char *)value, length);
    free(value);
    return result;
}

TEST_F(FileStore, SetAndGet)
{
    quoit_store_t *a = open(), *b = open();
    set(a, "x", std::string("1\0", 2));
    set(a, "empty", "");
    set(a, "x", "2");
    EXPECT_EQ(get(b, "x"), "2");
    EXPECT_EQ(get(a, "empty"), "");
    std::string large(4 << 20, 'L');
    large[12345] = 'l';
    set(b, "large", large);
    EXPECT_TRUE(get(a, "large") == large);
    EXPECT_EQ(get(a, "none", 0), "error: store " + url + ": key \"none\" did not appear within 0 ms");
    EXPECT_EQ(get(a, "none", 30), "error: store " + url + ": key \"none\" did not appear within 30 ms");
    std::string huge((1 << 24) + 1, 'h');
    EXPECT_EQ(quoit_store_set(a, "h", huge.data(), huge.size()), QUOIT_ERR_INVALID);
    quoit_store_close(a);
    quoit_store_close(b);
}

TEST_F(FileStore, StaleFileLastValueWins)
{
    quoit_store_t *store = open();
    set(store, "k", "old");
    quoit_store_close(store);
    store = open();
    EXPECT_EQ(get(store, "k"), "old");
    quoit_store_t *other = open();
    set(other, "k", "new");
    EXPECT_EQ(get(store, "k"), "new");
    quoit_store_close(other);
    std::filesystem::remove(path); // made anew under the same name
    EXPECT_EQ(get(store, "k", 0).rfind("error", 0), 0u);
    other = open();
    set(other, "k", "newest");
    EXPECT_EQ(get(store, "k"), "newest");
    quoit_store_close(other);
    quoit_store_close(store);
}

TEST_F(FileStore, TornWritesAreCutOff)
{
    quoit_store_t *store = open();
    set(store, "a", "first");
    uintmax_t good = std::filesystem::file_size(path);
    set(store, "b", "second");
    uintmax_t whole = std::filesystem::file_size(path);
    quoit_store_close(store);
    std::string content(whole, '\0');
    std::ifstream(path).read(content.data(), (std::streamsize)whole);
    for (uintmax_t size = 0; size < whole; size++) {
        SCOPED_TRACE("cut to " + std::to_string(size));
        std::ofstream(path, std::ios::trunc).write(content.data(), (std::streamsize)size);
        store = open();
        EXPECT_EQ(get(store, "b", 0).rfind("error", 0), 0u);
        set(store, "c", "third");
        EXPECT_EQ(get(store, "c"), "third");
        if (size >= good) {
            EXPECT_EQ(get(store, "a"), "first");
        }
        quoit_store_close(store);
        store = open();
        EXPECT_EQ(get(store, "c"), "third");
        quoit_store_close(store);
    }
    content[whole - 1] ^= 1; // the checksum of the last record is wrong now
    std::ofstream(path, std::ios::trunc).write(content.data(), (std::streamsize)whole);
    store = open();
    EXPECT_EQ(get(store, "b", 0).rfind("error", 0), 0u);
    EXPECT_EQ(get(store, "a", 0), "first");
    quoit_store_close(store);
}

TEST_F(FileStore, OtherFilesAreLeftAlone)
{
    quoit_store_t *store = nullptr;
    for (const char *content : {"my precious thesis", "short"}) {
        std::ofstream(path, std::ios::trunc) << content;
        quoit_status_t status = quoit_store_open(url.c_str(), 0, 1, 1000, &store);
        if (status == QUOIT_OK) {
            EXPECT_EQ(quoit_store_set(store, "k", "v", 1), QUOIT_ERR_INVALID) << content;
            quoit_store_close(store);
        }
        EXPECT_NE(std::string(quoit_last_error()).find("is no Quoit store"), std::string::npos) << quoit_last_error();
        std::string left;
        std::getline(std::ifstream(path), left);
        EXPECT_EQ(left, content);
    }
    EXPECT_EQ(quoit_store_open(("file://" + directory).c_str(), 0, 1, 1000, &store), QUOIT_ERR_SYSTEM);
    EXPECT_EQ(quoit_store_open("file:///no/such/folder/x", 0, 1, 1000, &store), QUOIT_ERR_SYSTEM);
    EXPECT_NE(std::string(quoit_last_error()).find("No such file"), std::string::npos);
    EXPECT_EQ(quoit_store_open("file:///dev/null", 0, 1, 1000, &store), QUOIT_ERR_INVALID);
}

TEST_F(FileStore, ThreadsAsRanks)
{
    const int size = 8, rounds = 20;
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; rank++)
        ranks.emplace_back([&, rank] {
            quoit_store_t *store = open();
            for (int round = 0; round < rounds; round++) {
                std::string name = std::to_string(round) + "/";
                set(store, name + std::to_string(rank), "value " + name + std::to_string(rank));
                for (int peer = 0; peer < size; peer++)
                    EXPECT_EQ(get(store, name + std::to_string(peer)), "value " + name + std::to_string(peer));
            }
            quoit_store_close(store);
        });
    for (std::thread &rank : ranks) rank.join();
}

TEST_F(FileStore, ProcessesAsRanks)
{
    const int size = 4;
    std::vector<pid_t> children;
    for (int rank = 0; rank < size; rank++) {
        pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            alarm(60);
            quoit_store_t *store = nullptr;
            if (quoit_store_open(url.c_str(), rank, size, 5000, &store) != QUOIT_OK) _exit(2);
            std::string mine(1000 + rank, (char)('a' + rank));
            if (quoit_store_set(store, std::to_string(rank).c_str(), mine.data(), mine.size()) != QUOIT_OK) _exit(3);
            for (int peer = 0; peer < size; peer++)
                if (get(store, std::to_string(peer)) != std::string(1000 + peer, (char)('a' + peer))) _exit(4);
            quoit_store_close(store);
            _exit(0);
        }
        children.push_back(child);
    }
    for (pid_t child : children) {
        int outcome = -1;
        ASSERT_EQ(waitpid(child, &outcome, 0), child);
        EXPECT_EQ(outcome, 0);
    }
}

} // namespace
