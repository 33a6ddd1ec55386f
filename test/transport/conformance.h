/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One conformance suite for every transport. A case is a function that both peers run, each with a transport of its own; it is run
 * with the peers as threads of this process, and as forked processes. `self` has one peer, which is its own other side: cases of the
 * fixture Conformance are written so that this makes sense; those of Pairs need two.
 * Failures are exceptions inside a case, so that they travel out of threads and processes.
 */
#ifndef QUOIT_TEST_CONFORMANCE_H
#define QUOIT_TEST_CONFORMANCE_H

#include "test/support/bytes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

extern "C" {
#include "base/clock.h"
#include "base/status.h"
#include "quoit/quoit_transport.h"
}

namespace conformance {

enum class Form { threads, processes };

struct Subject {
    const char *transport;
    Form form;
};

inline std::string subject_name(const testing::TestParamInfo<Subject> &info)
{
    return std::string(info.param.transport) + (info.param.form == Form::threads ? "_threads" : "_processes");
}

[[noreturn]] void fail(const std::string &text);
inline void require(bool condition, const std::string &text)
{
    if (!condition) fail(text);
}
/* With the thread's error text. */
void require_ok(quoit_status_t status, const std::string &text);

using test_bytes::pattern;
/* A size that is to be more than can be on the way: a quarter of it with a sanitizer, whose own memory grows with it and whose peers are slower. */
size_t large(size_t megabytes);
/* How much longer than usual everything may take (TEST_SLOW). */
int slow();
size_t eager_limit();
size_t segment_size();

/* A transfer and its buffer, with a canary at each end. A peer keeps its messages until its transport is closed. */
struct Message {
    explicit Message(size_t size, char byte = 0x33);
    explicit Message(const std::string &content);
    char *place() { return bytes.data() + margin; }
    std::string content() const { return bytes.substr(margin, length); }
    bool done() const { return transfer.status != QUOIT_IN_PROGRESS; }
    bool canaries() const;
    void refill(char byte) { memset(place(), byte, length); }
    bool filled_with(char byte) const;

    static constexpr size_t margin = 64;
    size_t length;
    std::string bytes;
    quoit_transfer_t transfer{};
};

using MessagePtr = std::shared_ptr<Message>;

struct Event {
    quoit_event_type_t type;
    quoit_endpoint_t *endpoint;
    quoit_status_t status;
    std::string text, data;
};

class Peer {
public:
    Peer(const quoit_transport_ops_t *ops, int index, int other_socket);
    ~Peer();
    Peer(const Peer &) = delete;

    bool alone() const { return socket_ < 0; }
    int other() const { return alone() ? index : 1 - index; }

    /* -- set-up */
    void open();
    void listen();
    void trust(uint64_t job, const std::string &secret);
    void exchange_addresses();
    quoit_endpoint_t *connect(uint64_t job = 77, int timeout_ms = 0); /* 0: long enough on a busy machine, too */
    void stand(); /* all of it: `endpoint` stands afterwards on both sides */
    void close();

    /* -- driving; every wait has a limit */
    int progress();
    void wait(const std::string &what, const std::function<bool()> &done, int limit_ms = 20000);
    void wait_all(const std::string &what, const std::vector<MessagePtr> &messages, int limit_ms = 60000);
    void sleep_until(const std::string &what, const std::function<bool()> &done, int limit_ms = 5000);
    void run_for(int ms);
    /* -- the other side, past the transport. Without `driving` the transport is left alone meanwhile. */
    std::string swap(const std::string &blob, bool driving = true);
    void sync(bool driving = true) { swap("", driving); }

    /* -- messages */
    MessagePtr send(quoit_key_t key, const std::string &content, uint32_t what = 0, quoit_endpoint_t *to = nullptr);
    MessagePtr recv(quoit_key_t key, size_t length, uint32_t what = 0, quoit_endpoint_t *from = nullptr);
    const Event *find_event(quoit_event_type_t type) const;
    std::string last_error() const { return error_text(); }

    const quoit_transport_ops_t *ops;
    int index;
    quoit_transport_t *transport = nullptr;
    quoit_endpoint_t *endpoint = nullptr;
    std::vector<Event> events;
    quoit_process_id_t id{}, other_id{};
    std::string address, other_address;
    int doorbell = -1;

private:
    int socket_;
    std::vector<MessagePtr> kept_;
};

using Case = std::function<void(Peer &)>;

/* Run a case on both peers; every failure becomes a failure of the test. `killed`: this side may end by SIGKILL. */
void run_case(const Subject &subject, const Case &body, int killed = -1);

class Conformance : public testing::TestWithParam<Subject> {};
class Pairs : public testing::TestWithParam<Subject> {};
class Processes : public testing::TestWithParam<Subject> {};
class Mapped : public testing::TestWithParam<Subject> {};

} // namespace conformance
#endif
