/* SPDX-License-Identifier: Apache-2.0 */
/** Engines around the shared memory transport for tests: in threads, or in forked processes. Every wait has a limit. */
#pragma once

#include "test/support/entries.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include "base/clock.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/status.h"
#include "transport/registry.h"
#include "transport/shm/shm_header.h"
#include "transport/shm/shm_header.h"
#include "transport/shm/shm_info.h"
}

namespace shm_test {

enum { LIMIT_MS = 20000 };
inline constexpr uint64_t JOB = 77;
inline const std::string SECRET = "a secret of this test";

struct Event {
    quoit_event_type_t type;
    quoit_endpoint_t *endpoint;
    quoit_status_t status;
    std::string text, data;
};

inline quoit_process_id_t random_process()
{
    std::random_device source;
    auto word = [&] { return (uint64_t{source()} << 32) | source(); };
    return {word(), word()};
}

/** Settings of the engines of this process; the environment has no context pointer. */
inline std::map<std::string, std::string> &settings()
{
    static std::map<std::string, std::string> values = {{"ARENA_SIZE", "32M"}};
    return values;
}

inline quoit_transport_environment_t environment(quoit_process_id_t self, int doorbell)
{
    quoit_transport_environment_t made = {};
    made.struct_size = sizeof made;
    made.self = self;
    made.doorbell = doorbell;
    made.host = "here";
    made.log = [](int, const char *, const char *) {};
    made.setting = [](const char *name) -> const char * {
        auto found = settings().find(name);
        return found == settings().end() ? nullptr : found->second.c_str();
    };
    made.error = [](const char *text) { error_set(QUOIT_ERR_INTERNAL, "%s", text); };
    return made;
}

class Engine {
  public:
    explicit Engine(quoit_process_id_t id = random_process()) : id(id), doorbell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))
    {
        quoit_transport_environment_t env = environment(id, doorbell);
        status = ops.open(&env, &transport);
        if (status) return;
        address.resize(QUOIT_ADDRESS_CAPACITY);
        size_t length = address.size();
        EXPECT_EQ(ops.listen(transport, address.data(), &length), QUOIT_OK) << error_text();
        address.resize(length);
    }
    ~Engine()
    {
        close();
        if (doorbell >= 0) ::close(doorbell);
    }
    Engine(const Engine &) = delete;
    void close()
    {
        ops.close(transport);
        transport = nullptr;
    }
    void trust(const std::string &secret = SECRET, uint64_t job = JOB)
    {
        EXPECT_EQ(ops.trust(transport, job, secret.data(), secret.size()), QUOIT_OK) << error_text();
    }
    quoit_status_t connect(quoit_process_id_t peer, const std::string &at, quoit_endpoint_t **endpoint, const char *name = "rank 1 (here)",
                           int timeout_ms = 5000, uint64_t job = JOB)
    {
        quoit_peer_t wanted = {peer, job, at.data(), at.size(), name, timeout_ms};
        return ops.connect(transport, &wanted, endpoint);
    }
    void pump()
    {
        quoit_event_t event;
        ops.progress(transport);
        while (ops.next_event(transport, &event)) {
            events.push_back({event.type, event.endpoint, event.status, event.text ? event.text : "",
                              event.data ? std::string(static_cast<const char *>(event.data), event.length) : ""});
        }
    }
    /** Progress until it holds; false when the limit is over. Yields, so that ranks may be threads of few cores. */
    bool until(const std::function<bool()> &done, int limit_ms = LIMIT_MS)
    {
        uint64_t deadline = clock_deadline(limit_ms);
        while (!done()) {
            if (clock_left_ms(deadline) == 0) return false;
            pump();
            sched_yield();
        }
        return true;
    }
    const Event *find(quoit_event_type_t type) const
    {
        for (const Event &event : events)
            if (event.type == type) return &event;
        return nullptr;
    }
    const quoit_transport_ops_t &ops = transport_shm;
    quoit_process_id_t id;
    int doorbell;
    quoit_status_t status = QUOIT_OK;
    quoit_transport_t *transport = nullptr;
    std::string address;
    std::vector<Event> events;
};

/** Progress both in one thread. */
inline bool both_until(Engine &a, Engine &b, const std::function<bool()> &done, int limit_ms = LIMIT_MS)
{
    return a.until([&] { b.pump(); return done(); }, limit_ms);
}

/** Two engines of this process, connected in both directions' sense. */
struct Pair {
    Engine a, b;
    quoit_endpoint_t *ab = nullptr, *ba = nullptr;
    void join()
    {
        a.trust();
        b.trust();
        ASSERT_EQ(a.connect(b.id, b.address, &ab, "rank 1 (here, b)"), QUOIT_OK) << error_text();
        ASSERT_EQ(b.connect(a.id, a.address, &ba, "rank 0 (here, a)"), QUOIT_OK) << error_text();
        ASSERT_TRUE(both_until(a, b, [&] { return a.ops.endpoint_status(ab) != QUOIT_IN_PROGRESS && b.ops.endpoint_status(ba) != QUOIT_IN_PROGRESS; }));
        ASSERT_EQ(a.ops.endpoint_status(ab), QUOIT_OK) << error_text();
        ASSERT_EQ(b.ops.endpoint_status(ba), QUOIT_OK) << error_text();
    }
};

/** A forked process that runs `body` and exits with its result. Killed by the destructor if it still runs. */
class Child {
  public:
    explicit Child(const std::function<int()> &body) : pid(fork())
    {
        if (pid == 0) _exit(body());
    }
    ~Child()
    {
        if (pid > 0) {
            ::kill(pid, SIGKILL);
            waitpid(pid, nullptr, 0);
        }
    }
    Child(const Child &) = delete;
    void kill_now()
    {
        ::kill(pid, SIGKILL);
    }
    /** Exit code; -signal when killed; -1000 when the limit is over. */
    int wait(int limit_ms = LIMIT_MS)
    {
        uint64_t deadline = clock_deadline(limit_ms);
        int result;
        while (waitpid(pid, &result, WNOHANG) == 0) {
            if (clock_left_ms(deadline) == 0) return -1000;
            usleep(1000);
        }
        pid = -1;
        return WIFEXITED(result) ? WEXITSTATUS(result) : -WTERMSIG(result);
    }
    pid_t pid;
};

/** Until `done`, looked at every millisecond; false at the limit. For what another thread or process brings about. */
inline bool wait_until(const std::function<bool()> &done, int limit_ms = LIMIT_MS)
{
    for (uint64_t deadline = clock_deadline(limit_ms); !done(); usleep(1000))
        if (clock_left_ms(deadline) == 0) return false;
    return true;
}

/** What its peers see of an engine; NULL: it has no root. */
inline shm_header_t *header_of(const quoit_transport_ops_t &ops, quoit_transport_t *transport)
{
    void *root = nullptr;
    if (ops.share_root(transport, &root) != QUOIT_OK) return nullptr;
    return reinterpret_cast<shm_header_t *>(static_cast<unsigned char *>(root) - SHM_HEADER_SIZE);
}

/** Does the engine say that it sleeps (between arm and disarm)? Any thread. */
inline bool is_asleep(const quoit_transport_ops_t &ops, quoit_transport_t *transport)
{
    shm_header_t *header = header_of(ops, transport);
    return header && __atomic_load_n(&header->asleep, __ATOMIC_ACQUIRE) != 0;
}

/** One-way exchange of bytes between parent and child. */
struct Channel {
    int fds[2];
    Channel() { EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0); }
    ~Channel()
    {
        close(fds[0]);
        close(fds[1]);
    }
    void put(const std::string &bytes) { EXPECT_EQ(write(fds[1], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size())); }
    std::string get(size_t length, int limit_ms = LIMIT_MS)
    {
        std::string bytes(length, '\0');
        size_t have = 0;
        uint64_t deadline = clock_deadline(limit_ms);
        while (have < length) {
            pollfd ready = {fds[0], POLLIN, 0};
            if (poll(&ready, 1, clock_left_ms(deadline)) <= 0) return "";
            ssize_t got = read(fds[0], bytes.data() + have, length - have);
            if (got <= 0) return "";
            have += static_cast<size_t>(got);
        }
        return bytes;
    }
};

} // namespace shm_test
