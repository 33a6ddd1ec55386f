/* SPDX-License-Identifier: Apache-2.0 */
/* Several TCP transports in one process, driven by one thread; every wait has a limit. */
#ifndef QUOIT_TEST_TCP_HARNESS_H
#define QUOIT_TEST_TCP_HARNESS_H

#include "test/support/bytes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

extern "C" {
#include "base/status.h"
#include "transport/registry.h"
#include "transport/tcp/tcp.h"
}

namespace tcp_test {

using Settings = std::map<std::string, std::string>;
using Clock = std::chrono::steady_clock;

inline constexpr uint64_t JOB = 0x1234;
inline constexpr int LIMIT_MS = 20000;
inline const char SECRET[] = "a secret of this test";

inline int elapsed_ms(Clock::time_point since)
{
    return (int)std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - since).count();
}

/* The table's `setting` has no context; settings are read when a transport is opened. */
inline Settings &settings_now()
{
    static Settings settings;
    return settings;
}

inline const char *setting(const char *name)
{
    auto found = settings_now().find(name);
    return found == settings_now().end() ? nullptr : found->second.c_str();
}

struct Event {
    quoit_event_type_t type;
    quoit_process_id_t peer;
    quoit_endpoint_t *endpoint;
    quoit_status_t status;
    std::string text, data;
};

class Node {
public:
    explicit Node(uint64_t number, Settings settings = {{"INTERFACE", "lo"}, {"IP_FAMILY", "4"}}, tcp_times_t times = TCP_TIMES_DEFAULT,
                  int network_namespace = -1)
        : id{0x5eed, number}, network(network_namespace)
    {
        enter();
        quoit_transport_environment_t environment = {};
        environment.struct_size = sizeof environment;
        environment.self = id;
        environment.doorbell = -1;
        environment.host = "testhost";
        environment.log = [](int, const char *, const char *) {};
        environment.setting = setting;
        environment.error = [](const char *) {};
        settings_now() = std::move(settings);
        open_status = tcp_open(&environment, &times, &transport);
        if (open_status != QUOIT_OK) {
            open_text = error_text();
            return;
        }
        size_t length = QUOIT_ADDRESS_CAPACITY;
        address.resize(length);
        open_status = transport_tcp.listen(transport, address.data(), &length);
        if (open_status != QUOIT_OK) open_text = error_text();
        address.resize(length);
    }
    ~Node() { close(); }
    Node(const Node &) = delete;

    void close()
    {
        transport_tcp.close(transport);
        transport = nullptr;
    }
    void trust(const std::string &secret = SECRET, uint64_t job = JOB)
    {
        ASSERT_EQ(QUOIT_OK, transport_tcp.trust(transport, job, secret.data(), secret.size())) << error_text();
    }
    quoit_endpoint_t *connect(const Node &peer, int timeout_ms = 5000) { return connect_to(peer.id, peer.address, timeout_ms); }
    quoit_endpoint_t *connect_to(quoit_process_id_t process, const std::string &where, int timeout_ms = 5000, uint64_t job = JOB)
    {
        enter();
        std::string name = "rank " + std::to_string(process.low) + " (testhost, pid 1)";
        quoit_peer_t wanted = {process, job, where.data(), where.size(), name.c_str(), timeout_ms};
        quoit_endpoint_t *endpoint = nullptr;
        quoit_status_t status = transport_tcp.connect(transport, &wanted, &endpoint);
        EXPECT_EQ(QUOIT_OK, status) << error_text();
        return endpoint;
    }
    int progress()
    {
        enter();
        int done = transport_tcp.progress(transport);
        quoit_event_t event;
        while (transport_tcp.next_event(transport, &event))
            events.push_back({event.type, event.peer, event.endpoint, event.status, event.text ? event.text : "",
                              std::string(static_cast<const char *>(event.data), event.data ? event.length : 0)});
        return done;
    }
    /* The thread goes where this node lives. */
    void enter() const
    {
        if (network >= 0 && setns(network, CLONE_NEWNET) != 0) abort();
    }
    tcp_transport_t *inner() const { return reinterpret_cast<tcp_transport_t *>(transport); }
    /* Where it listens: the n-th address. */
    ip_name_t listens_on(int n = 0) const { return inner()->listeners[n]->remote; }
    const Event *closed() const
    {
        for (auto &event : events)
            if (event.type == QUOIT_EVENT_CLOSED) return &event;
        return nullptr;
    }
    std::vector<std::string> notices() const
    {
        std::vector<std::string> data;
        for (auto &event : events)
            if (event.type == QUOIT_EVENT_NOTICE) data.push_back(event.data);
        return data;
    }

    quoit_process_id_t id;
    int network; /* descriptor of a network namespace; -1: that of the process */
    quoit_transport_t *transport = nullptr;
    std::string address, open_text;
    quoit_status_t open_status;
    std::vector<Event> events;
};

/* Drive all nodes until `done`; false when the limit passed before. Sleeps on the descriptors when nothing moves. */
inline bool run(std::vector<Node *> nodes, const std::function<bool()> &done, int limit_ms = LIMIT_MS)
{
    auto begin = Clock::now();
    while (!done()) {
        if (elapsed_ms(begin) > limit_ms) return false;
        int moved = 0;
        bool armed = true;
        std::vector<pollfd> descriptors;
        for (auto *node : nodes) {
            moved += node->progress();
            armed = armed && transport_tcp.arm(node->transport) == QUOIT_OK;
            descriptors.push_back({transport_tcp.descriptor(node->transport), POLLIN, 0});
        }
        if (moved == 0 && armed && !done()) poll(descriptors.data(), descriptors.size(), 20);
    }
    return true;
}

/* For a while, whatever happens. */
inline void run_for(std::vector<Node *> nodes, int ms)
{
    run(std::move(nodes), [] { return false; }, ms);
}

inline quoit_status_t status_of(quoit_endpoint_t *endpoint) { return transport_tcp.endpoint_status(endpoint); }

using test_bytes::pattern;

/* A plain blocking socket connected to a node, as anyone on the network could make one. */
inline int stray_socket(const ip_name_t &name)
{
    int fd = socket(name.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, &name.any, ip_name_size(&name)) != 0) {
        ::close(fd);
        return -1;
    }
    return fd;
}

/* Someone else's server on loopback. */
struct StrayServer {
    int fd;
    ip_name_t name = {};
    explicit StrayServer(bool listening = true)
    {
        socklen_t size = sizeof name;
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        name.v4.sin_family = AF_INET;
        name.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (bind(fd, &name.any, sizeof name.v4) != 0 || (listening && listen(fd, 16) != 0)) abort();
        getsockname(fd, &name.any, &size);
    }
    ~StrayServer() { ::close(fd); }
};

inline std::string address_of(const std::vector<ip_name_t> &names)
{
    ip_address_t address = {};
    address.limits = {8192, 1 << 20, 256 << 10, 2};
    for (auto &name : names) address.names[address.count++] = name;
    std::string bytes(QUOIT_ADDRESS_CAPACITY, '\0');
    size_t length = bytes.size();
    EXPECT_EQ(QUOIT_OK, ip_address_write(&address, bytes.data(), &length));
    bytes.resize(length);
    return bytes;
}

/* Messages both ways, checked. */
struct Pair {
    Node &a, &b;
    quoit_endpoint_t *ab, *ba;
    uint64_t next = 1;

    bool exchange(size_t length, int limit_ms = LIMIT_MS)
    {
        quoit_key_t key = {7, next++};
        std::string to_b = pattern(length, key.id), to_a = pattern(length, key.id + 1000000), at_a(length, 'x'), at_b(length, 'x');
        quoit_transfer_t transfers[4] = {};
        EXPECT_EQ(QUOIT_OK, transport_tcp.recv(ab, key, at_a.data(), length, &transfers[0])) << error_text();
        EXPECT_EQ(QUOIT_OK, transport_tcp.send(ab, key, to_b.data(), length, &transfers[1])) << error_text();
        EXPECT_EQ(QUOIT_OK, transport_tcp.recv(ba, key, at_b.data(), length, &transfers[2])) << error_text();
        EXPECT_EQ(QUOIT_OK, transport_tcp.send(ba, key, to_a.data(), length, &transfers[3])) << error_text();
        bool ended = run({&a, &b}, [&] {
            for (auto &transfer : transfers)
                if (transfer.status == QUOIT_IN_PROGRESS) return false;
            return true;
        }, limit_ms);
        EXPECT_TRUE(ended) << "length " << length;
        if (!ended) { /* nothing may write into the strings above any more */
            transport_tcp.cancel(a.transport, key.comm);
            transport_tcp.cancel(b.transport, key.comm);
            return false;
        }
        for (int i = 0; i < 4; i++) EXPECT_EQ(QUOIT_OK, transfers[i].status) << "transfer " << i << " length " << length;
        EXPECT_TRUE(at_a == to_a && at_b == to_b) << "length " << length;
        return at_a == to_a && at_b == to_b;
    }
};

inline bool join(Node &a, Node &b, quoit_endpoint_t **ab, quoit_endpoint_t **ba)
{
    *ab = a.connect(b);
    *ba = b.connect(a);
    bool joined = run({&a, &b}, [&] { return status_of(*ab) != QUOIT_IN_PROGRESS && status_of(*ba) != QUOIT_IN_PROGRESS; });
    EXPECT_TRUE(joined);
    EXPECT_EQ(QUOIT_OK, status_of(*ab)) << error_text();
    EXPECT_EQ(QUOIT_OK, status_of(*ba)) << error_text();
    return joined && status_of(*ab) == QUOIT_OK && status_of(*ba) == QUOIT_OK;
}

} // namespace tcp_test

#endif
