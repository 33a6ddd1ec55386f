// SPDX-License-Identifier: Apache-2.0
// Ranks for tests of communicators, in two forms: threads of one process, each with an engine of its own (for sanitizers), and
// processes (for deaths). Ranks with different host numbers count as different hosts, so tcp is really used between them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include <pthread.h>

extern "C" {
#include "engine_access.h"
#include "quoit/quoit.h"
}

namespace comm_test {

bool long_run();          // QUOIT_TEST_LONG=1
uint64_t seed();          // QUOIT_TEST_SEED, else a fixed one; printed once
double seconds();         // monotonic, comparable between processes
bool has_sanitizer();     // limits are wider then
double slow();            // TEST_SLOW, and more with a sanitizer: stretches limits
bool has_thread_sanitizer();
void be_late(int rank);   // TEST_LATE=2 (TEST_LATE=2:0.1): rank 2 of every job sleeps here for a second (0.1 s), when it comes and when it goes

// The host of each rank, in the cases of a suite. With a sanitizer, which makes many ranks on few processors very slow, the worlds of
// more than four ranks are kept for long runs.
std::vector<std::vector<int>> worlds(std::vector<std::vector<int>> all);

// ------------------------------------------------------------------ a store in memory

class MemoryStore {
  public:
    quoit_store_t *open(); // one for each rank; to be closed by it
    std::function<void(const std::string &key, std::string &value)> rewrite; // what is set, on its way in

  private:
    static quoit_status_t set(void *context, const char *key, const void *value, size_t length);
    static quoit_status_t get(void *context, const char *key, int timeout_ms, void **value, size_t *length);
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<std::string, std::string> values_;
};

// ------------------------------------------------------------------ ranks as threads

// Threads wait here for each other.
class Meeting {
  public:
    explicit Meeting(unsigned threads) { pthread_barrier_init(&barrier_, nullptr, threads); }
    ~Meeting() { pthread_barrier_destroy(&barrier_); }
    Meeting(const Meeting &) = delete;
    Meeting &operator=(const Meeting &) = delete;
    void wait() { pthread_barrier_wait(&barrier_); }

  private:
    pthread_barrier_t barrier_;
};

struct World {
    std::vector<int> host_of; // host number of each rank
    int timeout_ms = 0;       // of the communicator; 0: 30 s, more on a busy machine (TEST_SLOW)
    int limit_s = 120;        // then the program says what hangs and aborts
    MemoryStore *store = nullptr; // NULL: one of its own
};

struct Rank {
    int rank = 0, size = 0;
    engine_t *engine = nullptr;
    quoit_comm_t *comm = nullptr;
    std::mt19937_64 random; // the same numbers on all ranks
    const World *world = nullptr;
    std::function<void()> meet; // all ranks meet, outside the library; every rank must call it equally often
};

// Body on all ranks; the communicator is made before and destroyed after it. False when one could not be made.
bool run_ranks(const World &world, const std::function<void(Rank &)> &body);
// The same without communicators: bodies make their own with `store`.
void run_engines(const World &world, const std::function<void(Rank &, MemoryStore &)> &body);

int hosts_of(const std::vector<int> &host_of);
std::string name_of(const std::vector<int> &host_of); // "4+3"
// "" when describe says that shared memory joins the ranks of a host and tcp those of different ones (where they are joined).
std::string check_edges(quoit_comm_t *comm, const std::vector<int> &host_of);

// Aborts the program with `what` after the limit, unless it is destroyed before.
class Watchdog {
  public:
    Watchdog(std::string what, int limit_s);
    ~Watchdog();

  private:
    struct State;
    State *state_;
};

} // namespace comm_test
