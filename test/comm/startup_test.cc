// SPDX-License-Identifier: Apache-2.0
// What beginning costs, counted: calls of the store, memory behind what is shared, and what groups add. Never times.
#include "ranks.h"
#include "test/support/entries.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <sys/stat.h>
#include <unistd.h>

using namespace comm_test;

namespace {

using Hosts = std::vector<int>;

// Counts on the way to another store: what was set, and what was waited for and came. Looks at what may be there (1 ms) depend on how long others take.
class CountingStore {
  public:
    explicit CountingStore(quoit_store_t *inner) : inner_(inner) {}
    ~CountingStore() { quoit_store_close(inner_); }
    quoit_store_t *open()
    {
        quoit_store_callbacks_t callbacks = {};
        callbacks.struct_size = sizeof callbacks;
        callbacks.context = this;
        callbacks.set = set;
        callbacks.get = get;
        quoit_store_t *store = nullptr;
        EXPECT_EQ(quoit_store_from_callbacks(&callbacks, &store), QUOIT_OK) << quoit_last_error();
        return store;
    }
    int sets = 0, gets = 0;
    std::string keys;

  private:
    static quoit_status_t set(void *context, const char *key, const void *value, size_t length)
    {
        CountingStore *self = static_cast<CountingStore *>(context);
        self->sets++;
        self->keys += std::string(" set ") + key;
        return quoit_store_set(self->inner_, key, value, length);
    }
    static quoit_status_t get(void *context, const char *key, int timeout_ms, void **value, size_t *length)
    {
        CountingStore *self = static_cast<CountingStore *>(context);
        quoit_status_t status = quoit_store_get(self->inner_, key, timeout_ms, value, length);
        if (status != QUOIT_OK || timeout_ms <= 1) return status;
        self->gets++;
        self->keys += std::string(" get ") + key;
        return status;
    }
    quoit_store_t *inner_;
};

struct Counted {
    int sets, gets;
};

// Creates the communicator and some groups; checks what that took of the store.
void expect_calls(const Hosts &host_of, const std::function<Counted(int rank, int size)> &expected, const std::function<void(Rank &)> &body = {})
{
    run_engines({.host_of = host_of}, [&](Rank &self, MemoryStore &memory) {
        CountingStore counting(memory.open());
        quoit_store_t *store = counting.open();
        quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
        config.timeout_ms = 30000;
        quoit_status_t status = comm_create_on(self.engine, store, self.rank, self.size, &config, &self.comm);
        EXPECT_EQ(status, QUOIT_OK) << quoit_last_error();
        if (status != QUOIT_OK) return;
        EXPECT_EQ(quoit_comm_hosts(self.comm), hosts_of(host_of));
        std::vector<int> all;
        for (int rank = 0; rank < self.size; rank++) all.push_back(rank);
        for (int i = 0; i < 3; i++) {
            quoit_comm_t *group = nullptr;
            EXPECT_EQ(quoit_comm_create_group(self.comm, all.data(), self.size, "group", nullptr, &group), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(quoit_barrier(group, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            quoit_comm_destroy(group);
        }
        Counted wanted = expected(self.rank, self.size);
        EXPECT_EQ(counting.sets, wanted.sets) << "rank " << self.rank << " of " << name_of(host_of) << ":" << counting.keys;
        EXPECT_EQ(counting.gets, wanted.gets) << "rank " << self.rank << " of " << name_of(host_of) << ":" << counting.keys;
        if (body) body(self);
        self.meet();
        quoit_comm_destroy(self.comm);
        quoit_store_close(store);
    });
}

// Inside a host two calls a rank, and one for each other rank at rank 0; hosts are found in the memory. Groups need none.
TEST(Startup, StoreOfOneHost)
{
    for (const Hosts &host_of : worlds({{0, 0}, {0, 0, 0, 0}, Hosts(12, 0)}))
        expect_calls(host_of, [](int rank, int size) { return rank == 0 ? Counted{1, size - 1} : Counted{1, 1}; });
}

TEST(Startup, StoreOfSeveralHosts)
{
    for (const Hosts &host_of : worlds({{0, 1}, {0, 0, 1}, {0, 0, 0, 1, 1, 1}}))
        expect_calls(host_of, [](int rank, int size) { return rank == 0 ? Counted{3, 2 * size - 1} : Counted{2, 2}; });
}

// KiB of memory behind each arena that this process has open.
std::vector<long> arenas()
{
    std::vector<long> found;
    std::error_code error;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
        struct stat file;
        std::string target = std::filesystem::read_symlink(entry.path(), error).string();
        if (target.find("quoit-arena") == std::string::npos || stat(entry.path().c_str(), &file) != 0) continue;
        found.push_back(static_cast<long>(file.st_blocks) / 2);
    }
    return found;
}

// Ranks of a host hardly send each other messages: the mailboxes of all the pairs need not be there for that.
TEST(Startup, LittleMemoryUntilItIsNeeded)
{
    const Hosts host_of(8, 0);
    std::vector<long> found;
    expect_calls(
        host_of, [](int rank, int size) { return rank == 0 ? Counted{1, size - 1} : Counted{1, 1}; },
        [&](Rank &self) {
            self.meet();
            if (self.rank == 0) found = arenas();
            self.meet();
            /* and it comes when it is needed */
            std::vector<char> out(300000, static_cast<char>(self.rank)), in(out.size());
            quoit_request_t *sent = nullptr;
            int next = (self.rank + 1) % self.size, before = (self.rank + self.size - 1) % self.size;
            EXPECT_EQ(quoit_send(self.comm, out.data(), out.size(), QUOIT_I8, next, 1, nullptr, &sent), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(quoit_recv(self.comm, in.data(), in.size(), QUOIT_I8, before, 1, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(quoit_request_wait(sent, 20000), QUOIT_OK) << quoit_last_error();
            quoit_request_free(sent);
            EXPECT_EQ(in.back(), static_cast<char>(before));
        });
    EXPECT_EQ(found.size(), host_of.size());
    for (long kib : found) EXPECT_LT(kib, 512) << "KiB behind an arena of " << host_of.size() << " ranks";
}

// With its communicators everything of an engine goes. (What the C library keeps of the first engine is there after that.)
TEST(Startup, NothingIsLeft)
{
    int descriptors = 0, threads = 0;
    for (int turn = 0; turn < 3; turn++) {
        expect_calls({0, 0, 1}, [](int rank, int size) { return rank == 0 ? Counted{3, 2 * size - 1} : Counted{2, 2}; });
        if (turn == 0) {
            descriptors = entries_of("/proc/self/fd");
            threads = entries_of("/proc/self/task");
        }
    }
    EXPECT_EQ(entries_of("/proc/self/fd"), descriptors);
    for (double end = seconds() + 5 * slow(); entries_of("/proc/self/task") > threads && seconds() < end;) usleep(1000); /* the kernel's are gone a little after a join */
    EXPECT_EQ(entries_of("/proc/self/task"), threads);
}

} // namespace
