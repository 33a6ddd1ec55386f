/* SPDX-License-Identifier: Apache-2.0 */
/* UCX transports in one process, driven by one thread, and a way to run a body in a child of its own; every wait has a limit. */
#ifndef QUOIT_TEST_UCX_HARNESS_H
#define QUOIT_TEST_UCX_HARNESS_H

#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include "base/clock.h"
#include "base/status.h"
#include "transport/registry.h"
#include "transport/ucx/ucx.h"
}

namespace ucx_test {

inline constexpr uint64_t JOB = 0x1234;
inline constexpr int LIMIT_MS = 20000;
inline const std::string SECRET = "a secret of this test";

/* The table's `setting` has no context. */
inline std::map<std::string, std::string> &settings_now()
{
    static std::map<std::string, std::string> settings = [] {
        std::map<std::string, std::string> made = {{"INTERFACE", "lo"}, {"IP_FAMILY", "4"}};
        const char *library = getenv("QUOIT_UCX_LIBRARY"); /* another UCX than the system's */
        if (library) made["UCX_LIBRARY"] = library;
        return made;
    }();
    return settings;
}

inline quoit_transport_environment_t environment_for(quoit_process_id_t self)
{
    quoit_transport_environment_t environment = {};
    environment.struct_size = sizeof environment;
    environment.self = self;
    environment.doorbell = -1;
    environment.host = "testhost";
    environment.log = [](int, const char *, const char *) {};
    environment.setting = [](const char *name) -> const char * {
        auto found = settings_now().find(name);
        return found == settings_now().end() ? nullptr : found->second.c_str();
    };
    environment.error = [](const char *) {};
    return environment;
}

class Node {
public:
    explicit Node(uint64_t number) : id{0x5eed, number}
    {
        quoit_transport_environment_t environment = environment_for(id);
        size_t length = QUOIT_ADDRESS_CAPACITY;
        address.resize(length);
        status = transport_ucx.open(&environment, &transport);
        if (status == QUOIT_OK) status = transport_ucx.listen(transport, address.data(), &length);
        if (status == QUOIT_OK) status = transport_ucx.trust(transport, JOB, SECRET.data(), SECRET.size());
        if (status != QUOIT_OK) text = error_text();
        address.resize(length);
    }
    ~Node() { close(); }
    Node(const Node &) = delete;

    void close()
    {
        transport_ucx.close(transport);
        transport = nullptr;
    }
    quoit_endpoint_t *connect(quoit_process_id_t process, const std::string &where)
    {
        quoit_peer_t peer = {process, JOB, where.data(), where.size(), "rank 1 (testhost, pid 1)", 10000};
        quoit_endpoint_t *endpoint = nullptr;
        EXPECT_EQ(QUOIT_OK, transport_ucx.connect(transport, &peer, &endpoint)) << error_text();
        return endpoint;
    }
    int progress()
    {
        int done = transport_ucx.progress(transport);
        quoit_event_t event;
        while (transport_ucx.next_event(transport, &event))
            if (event.type == QUOIT_EVENT_CLOSED) closed++;
        return done;
    }
    ucx_transport_t *inner() const { return reinterpret_cast<ucx_transport_t *>(transport); }
    ip_name_t listens_on() const { return inner()->listeners[0].name; }

    quoit_process_id_t id;
    quoit_transport_t *transport = nullptr;
    std::string address, text;
    quoit_status_t status;
    int closed = 0;
};

inline bool run(const std::vector<Node *> &nodes, const std::function<bool()> &done, int limit_ms = LIMIT_MS)
{
    uint64_t deadline = clock_deadline(limit_ms);
    while (!done()) {
        if (clock_now() > deadline) return false;
        int moved = 0;
        for (auto *node : nodes) moved += node->progress();
        if (moved == 0) sched_yield();
    }
    return true;
}

/* One message from one node to another arrives whole. */
inline void expect_message(Node &from, quoit_endpoint_t *to, Node &at, quoit_endpoint_t *source, uint64_t number, size_t length = 300000)
{
    std::string sent(length, (char)('a' + number % 26)), got(length, '-');
    quoit_transfer_t send = {}, recv = {};
    ASSERT_EQ(QUOIT_OK, transport_ucx.recv(source, {1, number}, got.data(), length, &recv));
    ASSERT_EQ(QUOIT_OK, transport_ucx.send(to, {1, number}, sent.data(), length, &send));
    ASSERT_TRUE(run({&from, &at}, [&] { return send.status != QUOIT_IN_PROGRESS && recv.status != QUOIT_IN_PROGRESS; }));
    ASSERT_EQ(QUOIT_OK, recv.status) << error_text();
    ASSERT_TRUE(sent == got) << "message " << number;
}

/* In a child, since UCX can be loaded once a process only. Its answer is empty when all is well. */
inline std::string in_child(const std::function<std::string()> &body)
{
    int report[2];
    if (pipe(report) != 0) return "no pipe";
    fflush(stdout); /* what this process has not written yet is not the child's to write */
    pid_t pid = fork();
    if (pid == 0) {
        alarm(60);
        std::string answer = body();
        ssize_t written = write(report[1], answer.data(), answer.size());
        _exit(written == (ssize_t)answer.size() ? 0 : 1);
    }
    ::close(report[1]);
    std::string answer;
    char bytes[1024];
    for (ssize_t got; (got = read(report[0], bytes, sizeof bytes)) > 0;) answer.append(bytes, (size_t)got);
    ::close(report[0]);
    int status = 0;
    waitpid(pid, &status, 0);
    return status == 0 ? answer : "the child ended with status " + std::to_string(status) + " " + answer;
}

} // namespace ucx_test
#endif
