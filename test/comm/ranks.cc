// SPDX-License-Identifier: Apache-2.0
#include "ranks.h"
#include "test/support/built.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <set>
#include <thread>
#include <unistd.h>

namespace comm_test {

bool long_run() { return built_long_run(); }

uint64_t seed()
{
    static const uint64_t value = [] {
        const char *text = getenv("QUOIT_TEST_SEED");
        uint64_t number = text ? strtoull(text, nullptr, 0) : 20240611;
        printf("seed %llu (QUOIT_TEST_SEED)\n", static_cast<unsigned long long>(number));
        return number;
    }();
    return value;
}

double seconds()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

bool has_thread_sanitizer() { return __tsan_init; }

void be_late(int rank)
{
    const char *text = getenv("TEST_LATE");
    if (!text || atoi(text) != rank) return;
    const char *colon = strchr(text, ':');
    usleep(static_cast<useconds_t>(1e6 * (colon ? atof(colon + 1) : 1)));
}

bool has_sanitizer() { return built_sanitized(); }

// TEST_SLOW.
static double busy()
{
    const char *value = getenv("TEST_SLOW");
    double factor = value ? atof(value) : 1;
    return factor > 1 ? factor : 1;
}

double slow() { return busy() * (has_sanitizer() ? 10 : 1); }

std::vector<std::vector<int>> worlds(std::vector<std::vector<int>> all)
{
    if (has_sanitizer() && !long_run()) all.erase(std::remove_if(all.begin(), all.end(), [](const auto &host_of) { return host_of.size() > 4; }), all.end());
    return all;
}

// ------------------------------------------------------------------ store

quoit_status_t MemoryStore::set(void *context, const char *key, const void *value, size_t length)
{
    auto *store = static_cast<MemoryStore *>(context);
    std::lock_guard lock(store->mutex_);
    std::string bytes(static_cast<const char *>(value), length);
    if (store->rewrite) store->rewrite(key, bytes);
    store->values_[key] = bytes;
    store->changed_.notify_all();
    return QUOIT_OK;
}

quoit_status_t MemoryStore::get(void *context, const char *key, int timeout_ms, void **value, size_t *length)
{
    auto *store = static_cast<MemoryStore *>(context);
    std::unique_lock lock(store->mutex_);
    auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms < 0 ? 60000 : timeout_ms);
    while (!store->values_.count(key))
        if (store->changed_.wait_until(lock, until) == std::cv_status::timeout) return QUOIT_ERR_TIMEOUT;
    const std::string &found = store->values_[key];
    *value = malloc(found.size() + 1);
    memcpy(*value, found.data(), found.size());
    *length = found.size();
    return QUOIT_OK;
}

quoit_store_t *MemoryStore::open()
{
    quoit_store_callbacks_t callbacks = {};
    callbacks.struct_size = sizeof callbacks;
    callbacks.context = this;
    callbacks.set = set;
    callbacks.get = get;
    callbacks.description = "a store in memory";
    quoit_store_t *store = nullptr;
    EXPECT_EQ(quoit_store_from_callbacks(&callbacks, &store), QUOIT_OK) << quoit_last_error();
    return store;
}

// ------------------------------------------------------------------ watchdog

struct Watchdog::State {
    std::mutex mutex;
    std::condition_variable over;
    bool done = false;
    std::thread thread;
};

Watchdog::Watchdog(std::string what, int limit_s) : state_(new State)
{
    if (has_sanitizer()) limit_s *= 4;
    state_->thread = std::thread([state = state_, what, limit_s] {
        std::unique_lock lock(state->mutex);
        auto until = std::chrono::steady_clock::now() + std::chrono::seconds(limit_s);
        if (state->over.wait_until(lock, until, [&] { return state->done; })) return;
        fprintf(stderr, "HANGS after %d s: %s\n", limit_s, what.c_str());
        abort();
    });
}

Watchdog::~Watchdog()
{
    {
        std::lock_guard lock(state_->mutex);
        state_->done = true;
        state_->over.notify_all();
    }
    state_->thread.join();
    delete state_;
}

// ------------------------------------------------------------------ threads

int hosts_of(const std::vector<int> &host_of) { return static_cast<int>(std::set<int>(host_of.begin(), host_of.end()).size()); }

std::string name_of(const std::vector<int> &host_of)
{
    std::string text;
    std::vector<int> order, count;
    for (int host : host_of) {
        size_t at = 0;
        while (at < order.size() && order[at] != host) at++;
        if (at == order.size()) {
            order.push_back(host);
            count.push_back(0);
        }
        count[at]++;
    }
    for (int ranks : count) text += (text.empty() ? "" : "+") + std::to_string(ranks);
    return text;
}

void run_engines(const World &world, const std::function<void(Rank &, MemoryStore &)> &body)
{
    MemoryStore own;
    MemoryStore &store = world.store ? *world.store : own;
    Watchdog watchdog("ranks " + name_of(world.host_of) + " in " +
                          (testing::UnitTest::GetInstance()->current_test_info() ? testing::UnitTest::GetInstance()->current_test_info()->name() : "?"),
                      world.limit_s);
    std::vector<std::thread> threads;
    int size = static_cast<int>(world.host_of.size());
    Meeting meeting(static_cast<unsigned>(size));
    for (int rank = 0; rank < size; rank++) {
        threads.emplace_back([&, rank] {
            Rank self;
            self.rank = rank;
            self.size = size;
            self.world = &world;
            self.random.seed(seed());
            self.meet = [&meeting] { meeting.wait(); };
            be_late(rank);
            ASSERT_EQ(engine_create(&self.engine), QUOIT_OK) << quoit_last_error();
            test_engine_set_host(self.engine, static_cast<unsigned long>(world.host_of[static_cast<size_t>(rank)]) + 1);
            body(self, store);
            be_late(rank);
            engine_release(self.engine);
        });
    }
    for (auto &thread : threads) thread.join();
}

bool run_ranks(const World &world, const std::function<void(Rank &)> &body)
{
    std::atomic<bool> good = true;
    run_engines(world, [&](Rank &self, MemoryStore &memory) {
        quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
        config.timeout_ms = world.timeout_ms > 0 ? world.timeout_ms : static_cast<int>(30000 * busy());
        quoit_store_t *store = memory.open();
        quoit_status_t status = comm_create_on(self.engine, store, self.rank, self.size, &config, &self.comm);
        EXPECT_EQ(status, QUOIT_OK) << "rank " << self.rank << " of " << name_of(world.host_of) << ": " << quoit_last_error();
        quoit_store_close(store);
        if (status != QUOIT_OK) {
            good = false;
            return;
        }
        EXPECT_EQ(quoit_comm_rank(self.comm), self.rank);
        EXPECT_EQ(quoit_comm_size(self.comm), self.size);
        EXPECT_EQ(quoit_comm_hosts(self.comm), hosts_of(world.host_of));
        be_late(self.rank);
        body(self);
        be_late(self.rank);
        quoit_comm_destroy(self.comm);
    });
    return good;
}

// ------------------------------------------------------------------ edges

// The text after "edge": of rank `rank`, in the JSON of describe, which lists ranks in order.
static std::string edge_of(const std::string &json, int rank)
{
    size_t at = json.find("{\"rank\": " + std::to_string(rank) + ",");
    if (at == std::string::npos) return "rank is missing";
    at = json.find("\"edge\": \"", at);
    if (at == std::string::npos) return "edge is missing";
    at += 9;
    return json.substr(at, json.find('"', at) - at);
}

// What joins hosts: tcp, or the last name in QUOIT_TRANSPORT.
static std::string network()
{
    const char *names = getenv("QUOIT_TRANSPORT");
    if (!names || !*names || strcmp(names, "auto") == 0) return "tcp";
    const char *comma = strrchr(names, ',');
    return comma ? comma + 1 : names;
}

std::string check_edges(quoit_comm_t *comm, const std::vector<int> &host_of)
{
    char *text = nullptr;
    if (quoit_comm_describe(comm, QUOIT_FORMAT_JSON, &text) != QUOIT_OK) return quoit_last_error();
    std::string json = text;
    free(text);
    int me = quoit_comm_rank(comm), joined = 0;
    for (int rank = 0; rank < static_cast<int>(host_of.size()); rank++) {
        std::string edge = edge_of(json, rank);
        bool mate = host_of[static_cast<size_t>(rank)] == host_of[static_cast<size_t>(me)];
        bool good = rank == me ? true : mate ? edge.rfind("shm", 0) == 0 : edge.rfind(network(), 0) == 0 || edge == "not connected";
        if (!good) return "rank " + std::to_string(me) + " to " + std::to_string(rank) + " goes over '" + edge + "'\n" + json;
        if (!mate && edge.rfind(network(), 0) == 0) joined++;
    }
    bool leader = true;
    for (int rank = 0; rank < me; rank++) leader = leader && host_of[static_cast<size_t>(rank)] != host_of[static_cast<size_t>(me)];
    if (leader && hosts_of(host_of) > 1 && joined == 0) return "leader " + std::to_string(me) + " has no edge of " + network() + "\n" + json;
    return "";
}

} // namespace comm_test
