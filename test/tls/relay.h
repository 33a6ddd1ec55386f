/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Somebody between two nodes: passes on what goes through its address to another one, keeps a copy, and can do harm. `step` moves what can
 * be moved; it is called between the nodes' progress.
 */
#ifndef QUOIT_TEST_TLS_RELAY_H
#define QUOIT_TEST_TLS_RELAY_H

#include "../tcp/tcp_harness.h"

#include <algorithm>
#include <memory>

namespace tls_test {

class Relay {
public:
    explicit Relay(const ip_name_t &target) : target_(target) {}
    Relay(const Relay &) = delete;
    std::string address() const { return tcp_test::address_of({server_.name}); }
    /* After so many bytes more to the target one bit is turned. */
    void alter_after(size_t bytes) { alter_after_ = bytes; }
    /* Ends the streams to the target as if their sender had, after so many bytes more. */
    void end_after(size_t bytes) { end_after_ = bytes; }
    /* At most so many bytes in a step. */
    void trickle(size_t bytes) { most_ = bytes; }
    const std::string &seen() const { return seen_; }

    void step()
    {
        int fd = accept4(server_.fd, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            int onward = tcp_test::stray_socket(target_);
            ASSERT_GE(onward, 0);
            fcntl(onward, F_SETFL, O_NONBLOCK);
            pairs_.push_back(std::make_unique<Link>(fd, onward));
        }
        for (auto &link : pairs_) {
            pass(link->here, link->there, true);
            pass(link->there, link->here, false);
        }
    }

private:
    struct Link {
        int here, there;
        Link(int a, int b) : here(a), there(b) {}
        ~Link() { ::close(here), ::close(there); }
    };
    void pass(int from, int to, bool onward)
    {
        char bytes[65536];
        ssize_t got = recv(from, bytes, std::min(sizeof bytes, most_), MSG_DONTWAIT | MSG_PEEK);
        if (got == 0) shutdown(to, SHUT_WR);
        if (got <= 0) return;
        if (onward && end_after_ == 0) {
            shutdown(to, SHUT_WR);
            return;
        }
        if (onward && end_after_ < (size_t)got) got = (ssize_t)end_after_;
        if (onward && alter_after_ < (size_t)got) bytes[alter_after_] ^= 1;
        ssize_t sent = send(to, bytes, (size_t)got, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0) return;
        seen_.append(bytes, (size_t)sent);
        if (onward && end_after_ != SIZE_MAX) end_after_ -= (size_t)sent;
        if (onward && alter_after_ != SIZE_MAX) alter_after_ = alter_after_ < (size_t)sent ? SIZE_MAX : alter_after_ - (size_t)sent;
        (void)!recv(from, bytes, (size_t)sent, MSG_DONTWAIT);
    }

    tcp_test::StrayServer server_;
    ip_name_t target_;
    std::vector<std::unique_ptr<Link>> pairs_;
    std::string seen_;
    size_t alter_after_ = SIZE_MAX, end_after_ = SIZE_MAX, most_ = SIZE_MAX;
};

} // namespace tls_test

#endif
