// SPDX-License-Identifier: Apache-2.0
// Strangers at the ports of a running job over tcp: whatever connects and is no member of it costs a closed socket and, a second and
// source, one line in the log. The communicator goes on meanwhile, with right results.
#include "ranks.h"
#include "test/support/entries.h"

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <atomic>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <functional>
#include <poll.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>

extern "C" {
#include "transport/framing/handshake.h"
#include "transport/ip/ip_address.h"
}

using namespace comm_test;

namespace {

// Read by the library when it is first called.
const std::string log_path = [] {
    std::string path = testing::TempDir() + "quoit-strangers-" + std::to_string(getpid()) + ".log";
    setenv("QUOIT_LOG_FILE", path.c_str(), 1);
    setenv("QUOIT_LOG", "warn", 1);
    setenv("QUOIT_INTERFACE", "lo", 1);
    setenv("QUOIT_IP_FAMILY", "4", 1);
    return path;
}();

// Where rank 0 listens, and what a member of the job knows.
struct Target {
    ip_name_t name;
    quoit_process_id_t self, other; // rank 0's process, rank 1's
    uint64_t job;
    std::string secret;

    explicit Target(quoit_comm_t *comm)
    {
        unsigned long long process[2];
        unsigned char bytes[112], key[64];
        unsigned long length = 0;
        ip_address_t address = {};
        EXPECT_TRUE(test_comm_address(comm, 1, "tcp", process, bytes, &length));
        other = {process[0], process[1]};
        EXPECT_TRUE(test_comm_address(comm, 0, "tcp", process, bytes, &length));
        self = {process[0], process[1]};
        EXPECT_EQ(ip_address_parse(bytes, length, &address), QUOIT_OK) << quoit_last_error();
        name = address.names[0];
        job = test_comm_job(comm);
        secret.assign(reinterpret_cast<char *>(key), test_comm_secret(comm, key));
    }
};

class Visitor {
  public:
    explicit Visitor(const Target &target) : fd(socket(target.name.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0))
    {
        EXPECT_EQ(connect(fd, &target.name.any, ip_name_size(&target.name)), 0) << strerror(errno);
        fcntl(fd, F_SETFL, O_NONBLOCK);
    }
    ~Visitor() { close(fd); }
    Visitor(const Visitor &) = delete;

    void say(const std::string &bytes) { (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
    // The other side has closed it: within the limit.
    bool is_sent_away(int limit_ms)
    {
        char bytes[256];
        double until = seconds() + limit_ms / 1000.0 * slow();
        while (seconds() < until) {
            pollfd ready = {fd, POLLIN, 0};
            if (poll(&ready, 1, 20) <= 0) continue;
            ssize_t got = recv(fd, bytes, sizeof bytes, 0);
            if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
        }
        return false;
    }
    // A whole handshake as the client; what it said is appended to `said`.
    handshake_state_t shake(handshake_t *handshake, std::string *said = nullptr)
    {
        double until = seconds() + 5 * slow();
        while (seconds() < until) {
            size_t length;
            const void *output = handshake_output(handshake, &length);
            if (length > 0) {
                if (said) said->append(static_cast<const char *>(output), length);
                say(std::string(static_cast<const char *>(output), length));
                handshake_sent(handshake, length);
            }
            if (handshake->state != HANDSHAKE_RUNNING) break;
            char bytes[HANDSHAKE_CAPACITY];
            pollfd ready = {fd, POLLIN, 0};
            poll(&ready, 1, 20);
            ssize_t got = recv(fd, bytes, handshake_wants(handshake), 0);
            if (got > 0) handshake_received(handshake, bytes, static_cast<size_t>(got));
            if (got == 0) break;
        }
        return handshake->state;
    }
    int fd;
};

std::string hello(const Target &target, uint64_t job, quoit_process_id_t as)
{
    handshake_t handshake;
    size_t length;
    EXPECT_EQ(handshake_connect(&handshake, job, as, target.self, 1, 0, target.secret.data(), target.secret.size()), QUOIT_OK);
    const void *bytes = handshake_output(&handshake, &length);
    return {static_cast<const char *>(bytes), length};
}

using Visitors = std::vector<std::unique_ptr<Visitor>>;

// Those who say something that is no handshake are sent away at once.
void visit_with_words(const Target &target, std::mt19937_64 &random)
{
    std::string whole = hello(target, target.job, target.other), oversized = whole, version = whole, noise(1 + random() % 4096, '\0');
    oversized[6] = oversized[7] = '\xff';
    version[4] = 9;
    for (char &each : noise) each = static_cast<char>(random());
    const std::pair<const char *, std::string> words[] = {{"HTTP", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"},
                                                          {"TLS", std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + noise},
                                                          {"SSH", "SSH-2.0-OpenSSH_9.2\r\n"},
                                                          {"noise", "no" + noise + "12345678"},
                                                          {"a header that announces too much", oversized},
                                                          {"a header of another version", version},
                                                          {"a header of a message that cannot come", std::string("QtHs\1\3\50\0", 8)}};
    for (const auto &[name, bytes] : words) {
        Visitor visitor(target);
        visitor.say(bytes);
        EXPECT_TRUE(visitor.is_sent_away(5000)) << name;
    }
    Visitor half(target); // a truncated HELLO
    half.say(whole.substr(0, random() % whole.size()));
    shutdown(half.fd, SHUT_WR);
    EXPECT_TRUE(half.is_sent_away(5000)) << "a truncated HELLO";
}

void visit_with_handshakes(const Target &target)
{
    handshake_t handshake;
    // The wrong secret, in the name of a member that is connected.
    {
        Visitor visitor(target);
        ASSERT_EQ(handshake_connect(&handshake, target.job, target.other, target.self, 1, 0, "another secret", 14), QUOIT_OK);
        EXPECT_EQ(visitor.shake(&handshake), HANDSHAKE_FAILED);
        EXPECT_EQ(handshake.reason, HANDSHAKE_REASON_SECRET);
        EXPECT_TRUE(visitor.is_sent_away(5000));
    }
    // The right one, for another process than the one that listens.
    {
        Visitor visitor(target);
        ASSERT_EQ(handshake_connect(&handshake, target.job, {1, 1}, {2, 2}, 1, 0, target.secret.data(), target.secret.size()), QUOIT_OK);
        EXPECT_EQ(visitor.shake(&handshake), HANDSHAKE_FAILED);
        EXPECT_EQ(handshake.reason, HANDSHAKE_REASON_PROCESS);
    }
    // A recording of a handshake that was good once.
    std::string recording;
    {
        Visitor visitor(target);
        ASSERT_EQ(handshake_connect(&handshake, target.job, {7, 7}, target.self, 1, 0, target.secret.data(), target.secret.size()), QUOIT_OK);
        EXPECT_EQ(visitor.shake(&handshake, &recording), HANDSHAKE_DONE);
        EXPECT_GT(recording.size(), hello(target, target.job, target.other).size()) << "the proof is missing";
    }
    for (int i = 0; i < 3; i++) {
        Visitor visitor(target);
        visitor.say(recording);
        EXPECT_TRUE(visitor.is_sent_away(5000)) << "a replay";
    }
}

// Those who stay and hold a place: silent, slow, or of a job that is not known here.
void come_to_stay(const Target &target, Visitors *stay)
{
    for (int i = 0; i < 20; i++) stay->push_back(std::make_unique<Visitor>(target));
    for (int i = 0; i < 20; i++) {
        stay->push_back(std::make_unique<Visitor>(target));
        stay->back()->say(hello(target, target.job + 1, {9, static_cast<uint64_t>(i)}));
    }
    for (int i = 0; i < 20; i++) { // a HELLO that was announced and does not follow
        stay->push_back(std::make_unique<Visitor>(target));
        stay->back()->say(hello(target, target.job, {8, static_cast<uint64_t>(i)}).substr(0, 20));
    }
}

void visit(const Target &target, const std::atomic<long> &steps, double duration)
{
    std::mt19937_64 random(seed());
    Visitors stay;
    double until = seconds() + duration;
    come_to_stay(target, &stay);
    for (int round = 0; seconds() < until || round < 2; round++) {
        long before = steps;
        for (int i = 0; i < 10; i++) Visitor scanner(target);
        visit_with_words(target, random);
        visit_with_handshakes(target);
        for (auto &each : stay) each->say("Q"); // drop by drop
        double limit = seconds() + 10 * slow();
        while (steps < before + 3 && seconds() < limit) usleep(1000);
        ASSERT_GE(steps, before + 3) << "the communicator stands still";
    }
}

TEST(Strangers, VisitARunningJob)
{
    World world;
    world.host_of = {0, 1};
    world.timeout_ms = static_cast<int>(15000 * slow());
    std::atomic<long> steps = 0;
    std::atomic<bool> over = false;
    int before = count_descriptors();
    double begun = seconds();
    ASSERT_TRUE(run_ranks(world, [&](Rank &self) {
        std::thread visitors;
        if (self.rank == 0)
            visitors = std::thread([&, target = Target(self.comm)] {
                visit(target, steps, 1.2);
                over = true;
            });
        for (bool more = true; more;) {
            std::vector<float> data(3000, 1);
            data[0] = self.rank == 0 && over ? 1 : 0;
            quoit_status_t status = quoit_allreduce(self.comm, data.data(), data.data(), data.size(), QUOIT_F32, QUOIT_SUM, nullptr, nullptr);
            EXPECT_EQ(status, QUOIT_OK) << quoit_last_error();
            more = status == QUOIT_OK && data[0] == 0;
            for (size_t i = 1; i < data.size() && status == QUOIT_OK; i++) status = data[i] == 2 ? QUOIT_OK : QUOIT_ERR_INTERNAL;
            EXPECT_EQ(status, QUOIT_OK) << "the sum is wrong";
            if (self.rank == 0) steps++;
        }
        if (visitors.joinable()) visitors.join();
        ASSERT_EQ(quoit_barrier(self.comm, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
    }));
    double took = seconds() - begun;
    EXPECT_EQ(count_descriptors(), before + 1) << "beside the log's there should be none"; // it stays open
    // All of them came from one address: a line a second.
    std::ifstream log(log_path);
    std::string line, all;
    int lines = 0, left_out = 0;
    while (std::getline(log, line)) {
        all += line + "\n";
        lines += line.find("connection from 127.0.0.1") != std::string::npos;
        left_out += line.find("like it were left out)") != std::string::npos;
    }
    unlink(log_path.c_str());
    EXPECT_GE(lines, 1) << all;
    EXPECT_LE(lines, took + 2) << all;
    EXPECT_GE(left_out, 1) << all;
    printf("%ld allreduces during the visits, %d lines in the log in %.1f s\n", steps.load(), lines, took);
}

} // namespace
