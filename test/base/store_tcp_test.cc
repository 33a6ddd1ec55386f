// SPDX-License-Identifier: Apache-2.0
// The TCP store with threads as ranks, on both loopbacks: late and absent servers, many clients, strangers, closing, fork.
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "base/store_internal.h"
#include "base/store_wire.h"
}

namespace {

using Clock = std::chrono::steady_clock;

int64_t milliseconds_since(Clock::time_point start)
{
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

std::string error() { return quoit_last_error(); }

// A TCP port that was free a moment ago on the loopback, below those that the kernel gives to whoever asks for any; `holder` keeps it when given.
int free_port(int *holder = nullptr)
{
    static std::random_device random;
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), bound = -1;
    for (int i = 0; i < 100 && bound != 0; i++) {
        address.sin_port = htons(static_cast<uint16_t>(10000 + random() % 20000));
        bound = bind(fd, (sockaddr *)&address, sizeof address);
    }
    EXPECT_EQ(bound, 0);
    if (holder) {
        EXPECT_EQ(listen(fd, 8), 0);
        *holder = fd;
    } else {
        close(fd);
    }
    return ntohs(address.sin_port);
}

int dial(int port)
{
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons((uint16_t)port);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, (sockaddr *)&address, sizeof address), 0) << strerror(errno);
    return fd;
}

// Whether the other side ends the connection within the limit. Bytes that come before are ignored.
bool ends(int fd, int limit_ms)
{
    char buffer[256];
    for (auto start = Clock::now(); milliseconds_since(start) < limit_ms;) {
        pollfd one = {fd, POLLIN, 0};
        if (poll(&one, 1, 100) > 0 && recv(fd, buffer, sizeof buffer, 0) <= 0) return true;
    }
    return false;
}

std::string tcp_url(const std::string &host, int port) { return "tcp://" + host + ":" + std::to_string(port); }

quoit_store_t *open_store(const std::string &url, int rank, int size, int timeout_ms = 20000)
{
    quoit_store_t *store = nullptr;
    EXPECT_EQ(quoit_store_open(url.c_str(), rank, size, timeout_ms, &store), QUOIT_OK) << "rank " << rank << ": " << error();
    return store;
}

void set(quoit_store_t *store, const std::string &key, const std::string &value)
{
    EXPECT_EQ(quoit_store_set(store, key.c_str(), value.data(), value.size()), QUOIT_OK) << error();
}

std::string get(quoit_store_t *store, const std::string &key, int timeout_ms = 20000)
{
    void *value = nullptr;
    size_t length = 0;
    if (quoit_store_get(store, key.c_str(), timeout_ms, &value, &length) != QUOIT_OK) return "error: " + error();
    std::string result((char *)value, length);
    free(value);
    return result;
}

// Every rank sets a value of its own and reads all others'.
void exchange_all(quoit_store_t *store, int rank, int size, const std::string &round)
{
    set(store, round + std::to_string(rank), "from " + std::to_string(rank));
    for (int peer = 0; peer < size; peer++) EXPECT_EQ(get(store, round + std::to_string(peer)), "from " + std::to_string(peer));
}

void run_ranks(const std::string &url, int size)
{
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; rank++)
        ranks.emplace_back([=] {
            quoit_store_t *store = open_store(url, rank, size);
            if (!store) return;
            for (int round = 0; round < 3; round++) exchange_all(store, rank, size, std::to_string(round) + "/");
            quoit_store_close(store);
        });
    for (std::thread &rank : ranks) rank.join();
}

TEST(TcpStore, Ipv4Loopback) { run_ranks(tcp_url("127.0.0.1", free_port()), 5); }

TEST(TcpStore, Ipv6Loopback)
{
    int fd = socket(AF_INET6, SOCK_STREAM, 0);
    sockaddr_in6 address = {};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_loopback;
    bool has_six = fd >= 0 && bind(fd, (sockaddr *)&address, sizeof address) == 0;
    close(fd);
    if (!has_six) GTEST_SKIP() << "this machine has no ::1";
    run_ranks(tcp_url("[::1]", free_port()), 5);
}

TEST(TcpStore, Localhost) { run_ranks(tcp_url("localhost", free_port()), 3); }

TEST(TcpStore, NameMeansAllAddresses)
{
    char name[256];
    ASSERT_EQ(gethostname(name, sizeof name), 0);
    int port = free_port();
    quoit_store_t *server = nullptr;
    ASSERT_EQ(quoit_store_open(tcp_url(name, port).c_str(), 0, 2, 5000, &server), QUOIT_OK) << error();
    quoit_store_t *client = open_store(tcp_url("127.0.0.1", port), 1, 2); // not an address that the name need have
    set(server, "k", "v");
    EXPECT_EQ(get(client, "k"), "v");
    quoit_store_close(client);
    quoit_store_close(server);
}

// This process goes to a network without IPv6: its sockets can be made, and have no address.
bool enter_network_without_six()
{
    ifreq request = {};
    strcpy(request.ifr_name, "lo");
    request.ifr_flags = IFF_UP;
    if (unshare(CLONE_NEWNET) != 0) return false;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), off = open("/proc/sys/net/ipv6/conf/all/disable_ipv6", O_WRONLY | O_CLOEXEC);
    bool done = ioctl(fd, SIOCSIFFLAGS, &request) == 0 && (off < 0 || write(off, "1", 1) == 1); /* no such file: none at all */
    close(fd);
    if (off >= 0) close(off);
    return done;
}

TEST(TcpStore, WithoutIpv6)
{
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        alarm(60);
        if (!enter_network_without_six()) _exit(70);
        char name[256];
        if (gethostname(name, sizeof name) != 0) _exit(71);
        for (const char *host : {static_cast<const char *>(name), "localhost", "192.0.2.1"}) {
            int port = free_port();
            quoit_store_t *server = nullptr;
            EXPECT_EQ(quoit_store_open(tcp_url(host, port).c_str(), 0, 1, 5000, &server), QUOIT_OK) << host << ": " << error();
            quoit_store_close(server);
        }
        _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int outcome = -1;
    ASSERT_EQ(waitpid(child, &outcome, 0), child);
    if (WIFEXITED(outcome) && WEXITSTATUS(outcome) == 70) GTEST_SKIP() << "no right to make a network namespace";
    EXPECT_EQ(outcome, 0);
}

TEST(TcpStore, AddressThatIsNotOurs) // 192.0.2.0/24 is for documentation: as behind NAT, rank 0 listens everywhere
{
    int port = free_port();
    quoit_store_t *server = open_store(tcp_url("192.0.2.1", port), 0, 2), *client = open_store(tcp_url("127.0.0.1", port), 1, 2);
    set(client, "k", "v");
    EXPECT_EQ(get(server, "k"), "v");
    quoit_store_close(client);
    quoit_store_close(server);
}

TEST(TcpStore, SixtyFourClients) { run_ranks(tcp_url("127.0.0.1", free_port()), 64); }

TEST(TcpStore, ValuesOfAllSizes)
{
    std::string url = tcp_url("127.0.0.1", free_port());
    quoit_store_t *server = open_store(url, 0, 2), *client = open_store(url, 1, 2);
    std::mt19937 random(5);
    for (size_t size : {(size_t)0, (size_t)1, (size_t)65535, (size_t)65536, (size_t)65537, (size_t)4 << 20, (size_t)1 << 24}) {
        std::string value(size, '\0');
        for (char &c : value) c = (char)random();
        set(client, "value", value);
        EXPECT_TRUE(get(server, "value") == value) << size << " bytes, seed 5";
        EXPECT_TRUE(get(client, "value") == value) << size << " bytes, seed 5";
    }
    std::string huge((1 << 24) + 1, 'h');
    EXPECT_EQ(quoit_store_set(client, "huge", huge.data(), huge.size()), QUOIT_ERR_INVALID);
    EXPECT_EQ(get(client, "value").size(), (size_t)1 << 24);
    quoit_store_close(client);
    quoit_store_close(server);
}

TEST(TcpStore, LargeValueToManyWaiters)
{
    std::string url = tcp_url("127.0.0.1", free_port()), large(4 << 20, 'x');
    quoit_store_t *server = open_store(url, 0, 9);
    std::vector<std::thread> waiters;
    for (int rank = 1; rank < 9; rank++)
        waiters.emplace_back([&, rank] {
            quoit_store_t *store = open_store(url, rank, 9);
            EXPECT_TRUE(get(store, "late") == large) << rank;
            quoit_store_close(store);
        });
    usleep(50000);
    set(server, "late", large);
    for (std::thread &waiter : waiters) waiter.join();
    quoit_store_close(server);
}

TEST(TcpStore, GetWaitsAndTimesOut)
{
    std::string url = tcp_url("127.0.0.1", free_port());
    quoit_store_t *server = open_store(url, 0, 2), *client = open_store(url, 1, 2);
    auto start = Clock::now();
    EXPECT_EQ(get(client, "never", 200), "error: store " + url + ": key \"never\" did not appear within 200 ms");
    EXPECT_GE(milliseconds_since(start), 199);
    EXPECT_EQ(get(client, "never", 0), "error: store " + url + ": key \"never\" did not appear within 0 ms");
    std::thread waiter([&] { EXPECT_EQ(get(client, "late"), "now"); }); // one thread waits, another sets: the same store
    usleep(50000);
    set(client, "late", "now");
    waiter.join();
    EXPECT_EQ(get(client, "never", 1).rfind("error", 0), 0u); // an expired wait has left nothing behind
    quoit_store_close(client);
    quoit_store_close(server);
}

TEST(TcpStore, LateServer)
{
    std::string url = tcp_url("127.0.0.1", free_port());
    error_clear();
    std::thread client([&] {
        quoit_store_t *store = open_store(url, 1, 2);
        EXPECT_EQ(error(), "") << "tries that failed on the way are no failure";
        EXPECT_EQ(get(store, "k"), "v");
        quoit_store_close(store);
    });
    usleep(300000);
    quoit_store_t *server = open_store(url, 0, 2);
    set(server, "k", "v");
    client.join();
    quoit_store_close(server);
}

TEST(TcpStore, NoServerNamesTheAddresses)
{
    int port = free_port();
    quoit_store_t *store = nullptr;
    auto start = Clock::now();
    EXPECT_EQ(quoit_store_open(tcp_url("127.0.0.1", port).c_str(), 1, 2, 300, &store), QUOIT_ERR_TIMEOUT);
    EXPECT_GE(milliseconds_since(start), 299);
    EXPECT_NE(error().find("tried 127.0.0.1:" + std::to_string(port) + " (Connection refused)"), std::string::npos) << error();
    EXPECT_EQ(quoit_store_open("tcp://no-such-host.invalid:1", 1, 2, 100, &store), QUOIT_ERR_TIMEOUT);
    EXPECT_NE(error().find("tried no-such-host.invalid ("), std::string::npos) << error();
    EXPECT_EQ(store, nullptr);
}

TEST(TcpStore, PortTaken)
{
    int holder, port = free_port(&holder);
    quoit_store_t *store = nullptr;
    EXPECT_EQ(quoit_store_open(tcp_url("127.0.0.1", port).c_str(), 0, 1, 2000, &store), QUOIT_ERR_SYSTEM);
    EXPECT_NE(error().find("127.0.0.1:" + std::to_string(port) + ": another program listens there"), std::string::npos) << error();
    EXPECT_EQ(store, nullptr);
    close(holder);
}

TEST(TcpStore, SomethingElseAnswers)
{
    int holder, port = free_port(&holder);
    std::atomic<bool> stop{false};
    std::thread other([&] {
        while (!stop) {
            pollfd one = {holder, POLLIN, 0};
            if (poll(&one, 1, 20) <= 0) continue;
            int fd = accept(holder, nullptr, nullptr);
            (void)!write(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
            usleep(5000);
            close(fd);
        }
    });
    quoit_store_t *store = nullptr;
    EXPECT_EQ(quoit_store_open(tcp_url("127.0.0.1", port).c_str(), 1, 2, 400, &store), QUOIT_ERR_TIMEOUT);
    EXPECT_NE(error().find("answered, but not as a Quoit store"), std::string::npos) << error();
    stop = true;
    other.join();
    close(holder);
}

TEST(TcpStore, StrangersDisturbNobody)
{
    int port = free_port();
    std::string url = tcp_url("127.0.0.1", port);
    quoit_store_t *server = open_store(url, 0, 4);
    std::atomic<bool> stop{false};
    std::vector<int> silent;
    for (int i = 0; i < 20; i++) silent.push_back(dial(port)); // say nothing, or the beginning of something, and stay
    for (int i = 0; i < 10; i++) EXPECT_EQ(write(silent[i], "QTST\x01", 5), 5);
    std::thread noise([&] {
        std::mt19937 random(11);
        for (int round = 0; !stop; round++) {
            int fd = dial(port);
            char bytes[64];
            for (char &c : bytes) c = (char)random();
            if (round % 2) memcpy(bytes, "QTST\x01", 5); // good so far, then anything
            (void)!send(fd, bytes, 1 + random() % sizeof bytes, MSG_NOSIGNAL);
            if (round % 3 == 0) usleep(1000);
            close(fd);
        }
    });
    std::vector<std::thread> ranks;
    for (int rank = 1; rank < 4; rank++)
        ranks.emplace_back([=] {
            quoit_store_t *store = open_store(url, rank, 4);
            for (int round = 0; round < 30; round++) exchange_all(store, rank, 4, std::to_string(round) + "/");
            quoit_store_close(store);
        });
    for (int round = 0; round < 30; round++) exchange_all(server, 0, 4, std::to_string(round) + "/");
    for (std::thread &rank : ranks) rank.join();
    stop = true;
    noise.join();
    for (int fd : silent) close(fd);
    quoit_store_close(server);
}

TEST(TcpStore, WrongFramesEndTheConnection)
{
    int port = free_port();
    quoit_store_t *server = open_store(tcp_url("127.0.0.1", port), 0, 1);
    const store_frame_t hello = {STORE_HELLO, 0, 0, 1}, get_first = {STORE_GET, 1, 0, 0}, set_bad = {STORE_SET, 1, 0, 0},
                        reply = {STORE_REPLY, 0, 0, 0};
    auto header = [](const store_frame_t &frame) {
        std::string bytes(STORE_FRAME_SIZE, '\0');
        store_frame_write(&frame, (uint8_t *)bytes.data());
        return bytes;
    };
    std::string too_large = header({STORE_SET, 1, 0, 0});
    too_large[11] = 0x7f;
    for (const std::string &bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("Q?"), header(get_first) + "k", header(reply),
                                     header(hello) + header(hello), header(hello) + header(set_bad) + "\n", header(hello) + too_large,
                                     header(hello) + "garbage garbage garbage"}) {
        int fd = dial(port);
        EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), (ssize_t)bytes.size());
        EXPECT_TRUE(ends(fd, 5000)) << bytes;
        close(fd);
    }
    int fd = dial(port);
    std::string dribble = header(hello) + header({STORE_SET, 3, 2, 0}) + "keyva"; // one byte at a time is slow, not wrong
    for (char c : dribble) {
        ASSERT_EQ(send(fd, &c, 1, MSG_NOSIGNAL), 1);
        usleep(500);
    }
    EXPECT_EQ(get(server, "key"), "va");
    close(fd);
    quoit_store_close(server);
}

TEST(TcpStore, CloseServesWhatIsOutstanding)
{
    std::string url = tcp_url("127.0.0.1", free_port());
    quoit_store_t *server = open_store(url, 0, 2), *client = open_store(url, 1, 2);
    std::thread closer([&] { quoit_store_close(server); });
    usleep(100000); // the server lingers: the client is there still
    set(client, "k", "v");
    EXPECT_EQ(get(client, "k"), "v");
    auto start = Clock::now();
    quoit_store_close(client);
    closer.join();
    EXPECT_LT(milliseconds_since(start), 1500) << "gone with the last client, not at the end of the two seconds";
}

TEST(TcpStore, CloseWaitsTwoSecondsAtMost)
{
    std::string url = tcp_url("127.0.0.1", free_port());
    quoit_store_t *server = open_store(url, 0, 2), *client = open_store(url, 1, 2);
    std::thread waiter([&] {
        void *value;
        size_t length;
        EXPECT_EQ(quoit_store_get(client, "never", 20000, &value, &length), QUOIT_ERR_PEER);
        EXPECT_NE(error().find("closed the connection"), std::string::npos) << error();
    });
    usleep(50000);
    auto start = Clock::now();
    quoit_store_close(server);
    EXPECT_GE(milliseconds_since(start), 1900);
    EXPECT_LT(milliseconds_since(start), 10000);
    waiter.join();
    start = Clock::now();
    EXPECT_EQ(quoit_store_set(client, "k", "v", 1), QUOIT_ERR_PEER);
    EXPECT_NE(error().find("the server is gone"), std::string::npos) << error();
    EXPECT_LT(milliseconds_since(start), 10000);
    quoit_store_close(client);
}

TEST(TcpStore, SamePortAgainAtOnce)
{
    std::string url = tcp_url("127.0.0.1", free_port());
    for (int round = 0; round < 20; round++) run_ranks(url, 2);
}

TEST(TcpStore, ForkedChildLeavesItAlone)
{
    std::string url = tcp_url("127.0.0.1", free_port());
    quoit_store_t *server = open_store(url, 0, 2), *client = open_store(url, 1, 2);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) { // keeps all descriptors until it is killed
        alarm(60);
        bool good = quoit_store_set(server, "k", "child", 5) == QUOIT_ERR_FORKED;
        quoit_store_close(server);
        quoit_store_close(client);
        if (!good) _exit(1);
        pause();
        _exit(0);
    }
    set(client, "k", "v");
    EXPECT_EQ(get(server, "k"), "v");
    auto start = Clock::now();
    quoit_store_close(client);
    quoit_store_close(server);
    EXPECT_LT(milliseconds_since(start), 1500) << "the child's copy of the connection counts as a client";
    run_ranks(url, 2); // nor does it hold the port
    int outcome = -1;
    kill(child, SIGTERM);
    ASSERT_EQ(waitpid(child, &outcome, 0), child);
    EXPECT_TRUE(WIFSIGNALED(outcome) && WTERMSIG(outcome) == SIGTERM) << outcome;
}

TEST(TcpStore, BadArguments)
{
    quoit_store_t *store = nullptr;
    EXPECT_EQ(store_tcp_open("h", 0, 0, 1, 100, &store), QUOIT_ERR_INVALID);
    EXPECT_EQ(store_tcp_open("h", 65536, 0, 1, 100, &store), QUOIT_ERR_INVALID);
    EXPECT_EQ(store_tcp_open(std::string(300, 'h').c_str(), 1, 0, 1, 100, &store), QUOIT_ERR_INVALID);
    EXPECT_EQ(store, nullptr);
}

} // namespace
