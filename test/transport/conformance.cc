/* SPDX-License-Identifier: Apache-2.0 */
/* The suite's machinery: peers, their other side, threads and forked processes. */
#include "conformance.h"
#include "test/support/built.h"
#include "test/support/temporary.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <csignal>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include "base/hmac.h"
#include "base/settings.h"
#include "transport/registry.h"
}

namespace conformance {

void fail(const std::string &text) { throw std::runtime_error(text); }

void require_ok(quoit_status_t status, const std::string &text)
{
    if (status != QUOIT_OK) fail(text + ": " + quoit_status_text(status) + ": " + error_text());
}

size_t large(size_t megabytes) { return (megabytes << 20) / (built_sanitized() ? 4 : 1); }
size_t eager_limit() { return (size_t)setting_int(SETTING_EAGER_LIMIT); }
size_t segment_size() { return (size_t)setting_int(SETTING_SEGMENT_SIZE); }

int slow()
{
    static const int factor = [] {
        const char *text = getenv("TEST_SLOW");
        return text ? std::max(1, atoi(text)) : 1;
    }();
    return factor;
}

/* ---------------------------------------------------------------- messages */

Message::Message(size_t size, char byte) : length(size), bytes(size + 2 * margin, 0x5a) { refill(byte); }

Message::Message(const std::string &content) : length(content.size()), bytes(content.size() + 2 * margin, 0x5a)
{
    memcpy(place(), content.data(), length);
}

bool Message::canaries() const
{
    return test_bytes::all_are(bytes.data(), margin, 0x5a) && test_bytes::all_are(bytes.data() + margin + length, margin, 0x5a);
}

bool Message::filled_with(char byte) const
{
    return test_bytes::all_are(bytes.data() + margin, length, byte);
}

/* ---------------------------------------------------------------- peers */

Peer::Peer(const quoit_transport_ops_t *ops, int index, int other_socket) : ops(ops), index(index), socket_(other_socket)
{
    require_ok(random_bytes(&id, sizeof id), "random bytes");
    doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    require(doorbell >= 0, "eventfd");
}

Peer::~Peer()
{
    close();
    ::close(doorbell);
    if (socket_ >= 0) ::close(socket_);
}

void Peer::close()
{
    ops->close(transport);
    transport = nullptr;
    endpoint = nullptr;
}

/* Each peer may be given an RDMA device of its own: QUOIT_TEST_VERBS_DEVICES=first,second. */
template <int index> static const char *setting_of_peer(const char *name)
{
    static const std::string device = [] {
        const char *both = getenv("QUOIT_TEST_VERBS_DEVICES");
        std::string text = both ? both : "";
        size_t comma = text.find(',');
        return index == 0 ? text.substr(0, comma) : comma == std::string::npos ? "" : text.substr(comma + 1);
    }();
    const char *value;
    if (strcmp(name, "VERBS_DEVICE") == 0 && !device.empty()) return device.c_str();
    return quoit_setting_get(name, &value) == QUOIT_OK ? value : nullptr;
}

void Peer::open()
{
    quoit_transport_environment_t environment;
    transport_environment_init(&environment, id, doorbell, "testhost");
    environment.setting = index == 0 ? setting_of_peer<0> : setting_of_peer<1>;
    char why[256];
    require_ok(ops->probe(&environment, why, sizeof why), "probe");
    require_ok(ops->open(&environment, &transport), "open");
    require(transport->ops == ops, "a transport begins with its ops");
}

void Peer::listen()
{
    char bytes[QUOIT_ADDRESS_CAPACITY];
    size_t length = sizeof bytes;
    require_ok(ops->listen(transport, bytes, &length), "listen");
    require(length <= sizeof bytes, "an address larger than there is room");
    address.assign(bytes, length);
}

void Peer::trust(uint64_t job, const std::string &secret)
{
    require_ok(ops->trust(transport, job, secret.data(), secret.size()), "trust");
}

void Peer::exchange_addresses()
{
    std::string mine(reinterpret_cast<const char *>(&id), sizeof id), theirs = swap(mine + address);
    memcpy(&other_id, theirs.data(), sizeof other_id);
    other_address = theirs.substr(sizeof other_id);
}

quoit_endpoint_t *Peer::connect(uint64_t job, int timeout_ms)
{
    quoit_peer_t peer = {other_id, job, other_address.data(), other_address.size(), "the other side", timeout_ms > 0 ? timeout_ms : 10000 * slow()};
    quoit_endpoint_t *result = nullptr;
    require_ok(ops->connect(transport, &peer, &result), "connect");
    require(result && result->transport == transport, "an endpoint begins with its transport");
    require(result->peer.high == other_id.high && result->peer.low == other_id.low, "an endpoint knows its peer");
    return result;
}

void Peer::stand()
{
    open();
    listen();
    trust(77, "the secret");
    exchange_addresses();
    endpoint = connect();
    wait("the connection", [&] {
        quoit_status_t status = ops->endpoint_status(endpoint);
        if (status != QUOIT_IN_PROGRESS) require_ok(status, "endpoint_status");
        return status == QUOIT_OK;
    });
    if (getenv("QUOIT_TEST_TLS"))
        require(strstr(ops->describe(endpoint), ", TLSv1.3 TLS_") != nullptr, std::string("no TLS: ") + ops->describe(endpoint));
    sync();
}

int Peer::progress()
{
    int done = ops->progress(transport);
    quoit_event_t event;
    while (ops->next_event(transport, &event)) {
        Event copy = {event.type, event.endpoint, event.status, event.text ? event.text : "", ""};
        if (event.type == QUOIT_EVENT_NOTICE) copy.data.assign(static_cast<const char *>(event.data), event.length);
        events.push_back(copy);
        done++;
    }
    return done;
}

void Peer::wait(const std::string &what, const std::function<bool()> &done, int limit_ms)
{
    uint64_t deadline = clock_deadline(limit_ms * slow());
    while (!done()) {
        if (progress() == 0) sched_yield();
        if (clock_now() > deadline) fail("peer " + std::to_string(index) + " waits for " + what + " in vain");
    }
}

void Peer::wait_all(const std::string &what, const std::vector<MessagePtr> &messages, int limit_ms)
{
    size_t next = 0;
    wait(what, [&] {
        while (next < messages.size() && messages[next]->done()) next++;
        return next == messages.size();
    }, limit_ms);
}

/* As the engine sleeps: drain the doorbell, arm, poll. */
void Peer::sleep_until(const std::string &what, const std::function<bool()> &done, int limit_ms)
{
    uint64_t deadline = clock_deadline(limit_ms * slow());
    while (!done()) {
        if (progress() > 0) continue;
        uint64_t rings;
        if (read(doorbell, &rings, sizeof rings) == (ssize_t)sizeof rings) continue;
        if (ops->arm(transport) != QUOIT_OK) continue;
        struct pollfd fds[2] = {{doorbell, POLLIN, 0}, {ops->descriptor(transport), POLLIN, 0}};
        if (done()) {
            ops->disarm(transport);
            return;
        }
        int ready = poll(fds, fds[1].fd >= 0 ? 2 : 1, clock_left_ms(deadline));
        ops->disarm(transport);
        if (ready == 0) fail("peer " + std::to_string(index) + " was not woken for " + what);
    }
}

void Peer::run_for(int ms)
{
    uint64_t deadline = clock_deadline(ms);
    while (clock_now() < deadline)
        if (progress() == 0) sched_yield();
}

std::string Peer::swap(const std::string &blob, bool driving)
{
    if (alone()) {
        for (int i = 0; driving && transport && i < 64; i++) progress();
        return blob;
    }
    uint32_t length = (uint32_t)blob.size();
    std::string out(reinterpret_cast<char *>(&length), sizeof length);
    out += blob;
    require(::send(socket_, out.data(), out.size(), MSG_NOSIGNAL) == (ssize_t)out.size(), "the other side has failed");
    std::string in;
    uint64_t deadline = clock_deadline(60000 * slow());
    auto whole = [&] {
        if (in.size() < sizeof length) return false;
        memcpy(&length, in.data(), sizeof length);
        return in.size() == sizeof length + length;
    };
    while (!whole()) {
        if (driving && transport) progress();
        struct pollfd fd = {socket_, POLLIN, 0};
        if (poll(&fd, 1, driving ? 0 : 10) == 0) {
            sched_yield();
            require(clock_now() < deadline, "the other side does not come to the meeting point");
            continue;
        }
        char bytes[4096];
        /* Two swaps may follow each other closely: take no byte of the next one. */
        size_t wanted = in.size() < sizeof length ? sizeof length - in.size() : sizeof length + length - in.size();
        ssize_t got = ::recv(socket_, bytes, std::min(wanted, sizeof bytes), 0);
        require(got > 0, "the other side has failed");
        in.append(bytes, (size_t)got);
    }
    return in.substr(sizeof length);
}

MessagePtr Peer::send(quoit_key_t key, const std::string &content, uint32_t what, quoit_endpoint_t *to)
{
    auto message = std::make_shared<Message>(content);
    kept_.push_back(message);
    message->transfer.what = what;
    require_ok(ops->send(to ? to : endpoint, key, content.empty() ? nullptr : message->place(), content.size(), &message->transfer),
               "send");
    return message;
}

MessagePtr Peer::recv(quoit_key_t key, size_t length, uint32_t what, quoit_endpoint_t *from)
{
    auto message = std::make_shared<Message>(length);
    kept_.push_back(message);
    message->transfer.what = what;
    require_ok(ops->recv(from ? from : endpoint, key, length ? message->place() : nullptr, length, &message->transfer), "recv");
    return message;
}

const Event *Peer::find_event(quoit_event_type_t type) const
{
    for (const auto &event : events)
        if (event.type == type) return &event;
    return nullptr;
}

/* ---------------------------------------------------------------- forms */

namespace {

/* The text of the failure, empty when there was none. */
std::string run_peer(const quoit_transport_ops_t *ops, int index, int socket, const Case &body)
{
    std::string failure;
    Peer *peer = nullptr;
    try {
        peer = new Peer(ops, index, socket);
        body(*peer);
    } catch (const std::exception &error) {
        failure = "peer " + std::to_string(index) + ": " + error.what();
        shutdown(socket, SHUT_RDWR);
    }
    delete peer;
    return failure;
}

void run_threads(const quoit_transport_ops_t *ops, const int sockets[2], const Case &body)
{
    std::string failures[2];
    std::thread threads[2];
    for (int i = 0; i < 2; i++)
        threads[i] = std::thread([&, i] { failures[i] = run_peer(ops, i, sockets[i], body); });
    for (auto &thread : threads) thread.join();
    for (const auto &failure : failures) EXPECT_EQ(failure, "");
}

struct Child {
    pid_t pid;
    int report; /* its failure text comes here */
};

Child fork_peer(const quoit_transport_ops_t *ops, int index, const int sockets[2], const Case &body)
{
    int report[2];
    if (pipe(report) != 0) abort();
    pid_t pid = fork();
    if (pid == 0) {
        alarm(120 * (unsigned)slow());
        ::close(sockets[1 - index]);
        std::string failure = run_peer(ops, index, sockets[index], body);
        ssize_t written = write(report[1], failure.data(), failure.size());
        _exit(failure.empty() && written == 0 ? 0 : 1);
    }
    ::close(report[1]);
    return {pid, report[0]};
}

void run_processes(const quoit_transport_ops_t *ops, const int sockets[2], const Case &body, int killed)
{
    Child children[2];
    for (int i = 0; i < 2; i++) children[i] = fork_peer(ops, i, sockets, body);
    for (int i = 0; i < 2; i++) ::close(sockets[i]);
    for (int i = 0; i < 2; i++) {
        std::string failure;
        char bytes[4096];
        for (ssize_t got; (got = read(children[i].report, bytes, sizeof bytes)) > 0;) failure.append(bytes, (size_t)got);
        ::close(children[i].report);
        int status = 0;
        waitpid(children[i].pid, &status, 0);
        EXPECT_EQ(failure, "");
        if (i == killed) EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "status " << status;
        else EXPECT_EQ(status, 0) << "peer " << i << " ended so";
    }
}

} // namespace

void run_case(const Subject &subject, const Case &body, int killed)
{
    const quoit_transport_ops_t *ops = transport_registry_find(subject.transport);
    ASSERT_NE(ops, nullptr) << "no transport " << subject.transport << ": " << error_text();
    if (strcmp(subject.transport, "self") == 0) {
        EXPECT_EQ(run_peer(ops, 0, -1, body), "");
        return;
    }
    quoit_transport_environment_t environment;
    char why[256] = "";
    transport_environment_init(&environment, {1, 1}, -1, "testhost");
    /* Its library is somebody else's; all others must be there. */
    if (strcmp(subject.transport, "ucx") == 0 && ops->probe(&environment, why, sizeof why) != QUOIT_OK) GTEST_SKIP() << why;
    int sockets[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    if (subject.form == Form::threads) run_threads(ops, sockets, body);
    else run_processes(ops, sockets, body, killed);
}

namespace {

/* The suite over tcp with TLS: a key of this run's own. */
std::string key_file;

void tls_prepare()
{
    uint8_t bytes[32];
    key_file = temporary_pattern("conformance");
    int fd = mkstemp(key_file.data()); /* 0600 */
    if (fd < 0 || random_bytes(bytes, sizeof bytes) != QUOIT_OK) abort();
    for (uint8_t byte : bytes) dprintf(fd, "%02x", byte);
    ::close(fd);
    atexit([] { unlink(key_file.c_str()); });
    setenv("QUOIT_TLS", "psk", 1);
    setenv("QUOIT_TLS_KEY_FILE", key_file.c_str(), 1);
}

/* Before any test: the plug-in is found through its setting, TCP stays on loopback. */
const bool prepared = [] {
    setenv("QUOIT_TRANSPORT_PLUGIN", built_path("plugin_pipe.so").c_str(), 1);
    setenv("QUOIT_INTERFACE", "lo", 0);
    setenv("QUOIT_ARENA_SIZE", "64M", 0); /* small enough to be used up many times over */
    if (getenv("QUOIT_TEST_TLS")) tls_prepare();
#ifdef FAKE_VERBS
    setenv("QUOIT_VERBS_LIBRARY", built_path(FAKE_VERBS).c_str(), 0); /* the user may name the real one */
#endif
    return true;
}();

#ifdef FAKE_VERBS
#define VERBS_SUBJECT(form) , {"verbs", Form::form}
#else /* built without the headers of libibverbs */
#define VERBS_SUBJECT(form)
#endif

const Subject all[] = {{"self", Form::threads},   {"shm", Form::threads},   {"shm", Form::processes},  {"tcp", Form::threads},
                       {"tcp", Form::processes},  {"pipes", Form::threads}, {"pipes", Form::processes}, {"ucx", Form::threads},
                       {"ucx", Form::processes} VERBS_SUBJECT(threads) VERBS_SUBJECT(processes)};
const Subject pairs[] = {{"shm", Form::threads},   {"shm", Form::processes}, {"tcp", Form::threads},
                         {"tcp", Form::processes}, {"pipes", Form::threads}, {"pipes", Form::processes},
                         {"ucx", Form::threads},   {"ucx", Form::processes} VERBS_SUBJECT(threads) VERBS_SUBJECT(processes)};
const Subject processes[] = {{"shm", Form::processes}, {"tcp", Form::processes}, {"pipes", Form::processes},
                             {"ucx", Form::processes} VERBS_SUBJECT(processes)};
const Subject mapped[] = {{"shm", Form::threads}, {"shm", Form::processes}};

} // namespace

INSTANTIATE_TEST_SUITE_P(Transports, Conformance, testing::ValuesIn(all), subject_name);
INSTANTIATE_TEST_SUITE_P(Transports, Pairs, testing::ValuesIn(pairs), subject_name);
INSTANTIATE_TEST_SUITE_P(Transports, Processes, testing::ValuesIn(processes), subject_name);
INSTANTIATE_TEST_SUITE_P(Transports, Mapped, testing::ValuesIn(mapped), subject_name);

} // namespace conformance
