/* SPDX-License-Identifier: Apache-2.0 */
/** Peers that lie: garbage, wrong secrets, and a peer that proves itself and then sends what it should not. */
#include "shm_harness.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

extern "C" {
#include "transport/framing/handshake.h"
}

using namespace shm_test;

namespace {

sockaddr_un socket_name(quoit_process_id_t process, socklen_t *length)
{
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    shm_address_name(process, name.sun_path + 1);
    *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + strlen(name.sun_path + 1));
    return name;
}

int connect_raw(quoit_process_id_t process)
{
    socklen_t length;
    sockaddr_un name = socket_name(process, &length);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr *>(&name), length), 0) << strerror(errno);
    return fd;
}

/* Has the other side ended the connection? */
bool is_ended(int fd)
{
    char byte;
    ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
}

/* The engine must still be able to make good connections. */
void expect_sound(Engine &engine)
{
    Engine friendly;
    quoit_endpoint_t *endpoint;
    friendly.trust();
    engine.trust();
    ASSERT_EQ(friendly.connect(engine.id, engine.address, &endpoint), QUOIT_OK);
    ASSERT_TRUE(both_until(friendly, engine, [&] { return friendly.ops.endpoint_status(endpoint) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(friendly.ops.endpoint_status(endpoint), QUOIT_OK) << error_text();
    friendly.ops.disconnect(endpoint);
    ASSERT_TRUE(both_until(friendly, engine, [&] { return engine.find(QUOIT_EVENT_CLOSED); }));
    engine.events.clear();
}

TEST(ShmHostile, WrongSecret)
{
    Engine a, b;
    a.trust("one secret");
    b.trust("another secret");
    quoit_endpoint_t *ab;
    ASSERT_EQ(a.connect(b.id, b.address, &ab), QUOIT_OK);
    ASSERT_TRUE(both_until(a, b, [&] { return a.find(QUOIT_EVENT_CLOSED); }));
    EXPECT_EQ(a.ops.endpoint_status(ab), QUOIT_ERR_PROTOCOL);
    EXPECT_NE(std::string(error_text()).find("secret"), std::string::npos) << error_text();
    EXPECT_TRUE(b.events.empty());
    expect_sound(b);
}

TEST(ShmHostile, Garbage)
{
    Engine engine;
    engine.trust();
    std::mt19937 random(3);
    int before = count_descriptors();
    for (int round = 0; round < 200; round++) {
        int fd = connect_raw(engine.id);
        std::string bytes(1 + random() % 400, '\0');
        for (char &byte : bytes) byte = static_cast<char>(random());
        EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
        bool whole = bytes.size() >= 8; /* of a shorter one the engine waits for the rest */
        EXPECT_TRUE(!whole || engine.until([&] { return is_ended(fd); }, 2000)) << "round " << round << " length " << bytes.size();
        close(fd);
        engine.pump();
    }
    for (int i = 0; i < 100; i++) engine.pump();
    engine.until([&] { return count_descriptors() == before; }, 1000);
    EXPECT_EQ(count_descriptors(), before);
    EXPECT_TRUE(engine.events.empty());
    expect_sound(engine);
}

TEST(ShmHostile, SilentConnectionsRunOut)
{
    settings()["CONNECT_TIMEOUT"] = "100ms";
    Engine engine;
    settings().erase("CONNECT_TIMEOUT");
    std::vector<int> fds;
    for (int i = 0; i < 50; i++) fds.push_back(connect_raw(engine.id));
    for (int fd : fds) {
        EXPECT_TRUE(engine.until([&] { return is_ended(fd); }, 5000));
        close(fd);
    }
    expect_sound(engine);
}

/** What the liar sends after its proof. */
struct Lie {
    shm_info_t info;
    std::vector<int> fds; /* owned */
    size_t bytes = SHM_INFO_SIZE;
    bool close_first = false;
};

/** A peer that listens, proves itself as it should, and then lies. Driven in turns with the engine that connects to it. */
class Liar {
  public:
    Liar() : id(random_process())
    {
        socklen_t length;
        sockaddr_un name = socket_name(id, &length);
        listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        EXPECT_EQ(bind(listener, reinterpret_cast<sockaddr *>(&name), length), 0);
        EXPECT_EQ(listen(listener, 10), 0);
        shm_address_t own = {id, {8192, 1 << 20, 256 << 10}};
        address.resize(SHM_ADDRESS_SIZE);
        shm_address_write(&own, reinterpret_cast<uint8_t *>(address.data()));
    }
    ~Liar()
    {
        ::close(listener);
        if (fd >= 0) ::close(fd);
    }
    Liar(const Liar &) = delete;
    void step(const Lie &lie)
    {
        if (fd < 0) {
            fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
            if (fd >= 0) handshake_listen(&handshake, id);
        } else if (handshake.state != HANDSHAKE_DONE) {
            step_handshake();
        } else if (!told) {
            told = true;
            if (lie.close_first) {
                shutdown(fd, SHUT_RDWR);
            } else {
                tell(lie);
            }
        }
    }
    quoit_process_id_t id;
    std::string address;
    int fd = -1;

  private:
    void step_handshake()
    {
        uint8_t bytes[HANDSHAKE_CAPACITY];
        size_t wants = handshake_wants(&handshake), length;
        ssize_t got = wants ? recv(fd, bytes, wants, MSG_DONTWAIT) : 0;
        if (got > 0) handshake_received(&handshake, bytes, static_cast<size_t>(got));
        if (handshake.state == HANDSHAKE_WANTS_SECRET) handshake_secret(&handshake, SECRET.data(), SECRET.size());
        if (handshake.state == HANDSHAKE_WANTS_VERDICT) handshake_accept(&handshake);
        const void *out = handshake_output(&handshake, &length);
        if (length > 0) handshake_sent(&handshake, static_cast<size_t>(send(fd, out, length, MSG_NOSIGNAL)));
    }
    void tell(const Lie &lie)
    {
        uint8_t bytes[SHM_INFO_SIZE];
        alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))] = {};
        shm_info_write(&lie.info, bytes);
        iovec piece = {bytes, lie.bytes};
        msghdr message = {};
        message.msg_iov = &piece;
        message.msg_iovlen = 1;
        if (!lie.fds.empty()) {
            message.msg_control = control;
            message.msg_controllen = CMSG_SPACE(lie.fds.size() * sizeof(int));
            cmsghdr *header = CMSG_FIRSTHDR(&message);
            header->cmsg_level = SOL_SOCKET;
            header->cmsg_type = SCM_RIGHTS;
            header->cmsg_len = CMSG_LEN(lie.fds.size() * sizeof(int));
            memcpy(CMSG_DATA(header), lie.fds.data(), lie.fds.size() * sizeof(int));
        }
        EXPECT_EQ(sendmsg(fd, &message, MSG_NOSIGNAL), static_cast<ssize_t>(lie.bytes)) << strerror(errno);
    }
    int listener;
    bool told = false;
    handshake_t handshake = {};
};

constexpr size_t ARENA = 4 << 20;

int make_memory(quoit_process_id_t process, size_t size, int seals, unsigned flags = 0)
{
    int fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(size)), 0);
    shm_header_t header = {};
    header.magic = SHM_HEADER_MAGIC;
    header.version = SHM_HEADER_VERSION;
    header.size = size;
    header.process = process;
    EXPECT_EQ(pwrite(fd, &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/** What a sound peer would send; each test spoils one thing. */
Lie truth(const Liar &liar)
{
    Lie lie;
    lie.info = {liar.id, {8192, 1 << 20, 256 << 10}, ARENA, 1 << 20, 65536, 0, 1, 2};
    lie.fds = {make_memory(liar.id, ARENA, F_SEAL_SHRINK | F_SEAL_GROW), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    return lie;
}

struct Outcome {
    quoit_status_t status;
    std::string text;
};

/** The engine connects to a liar whose story `spoil` has changed. */
Outcome meet(const std::function<void(Lie &, Liar &)> &spoil)
{
    Engine engine;
    engine.trust();
    int before = count_descriptors();
    Outcome outcome = {QUOIT_IN_PROGRESS, ""};
    {
        Liar liar;
        Lie lie = truth(liar);
        quoit_endpoint_t *endpoint;
        spoil(lie, liar);
        EXPECT_EQ(engine.connect(liar.id, liar.address, &endpoint, "rank 6 (here)", 300), QUOIT_OK) << error_text();
        engine.until([&] { liar.step(lie); return engine.ops.endpoint_status(endpoint) != QUOIT_IN_PROGRESS; });
        outcome.status = engine.ops.endpoint_status(endpoint);
        if (outcome.status) outcome.text = error_text();
        if (outcome.status) {
            EXPECT_TRUE(engine.until([&] { return engine.find(QUOIT_EVENT_CLOSED); }));
            EXPECT_EQ(engine.find(QUOIT_EVENT_DIED), nullptr);
        }
        engine.ops.disconnect(endpoint);
        engine.events.clear();
        for (int fd : lie.fds) close(fd);
    }
    EXPECT_TRUE(engine.until([&] { return count_descriptors() <= before; }, 2000)) << "descriptors are left over";
    expect_sound(engine);
    return outcome;
}

void expect_refused(const std::function<void(Lie &, Liar &)> &spoil, const std::string &why, quoit_status_t status = QUOIT_ERR_PROTOCOL)
{
    Outcome outcome = meet(spoil);
    EXPECT_EQ(outcome.status, status) << outcome.text;
    EXPECT_NE(outcome.text.find(why), std::string::npos) << outcome.text;
}

void replace(Lie &lie, size_t which, int fd)
{
    close(lie.fds[which]);
    lie.fds[which] = fd;
}

TEST(ShmHostile, TheTruthIsAccepted)
{
    Outcome outcome = meet([](Lie &, Liar &) {});
    EXPECT_EQ(outcome.status, QUOIT_OK) << outcome.text << ": then the tests below would prove nothing";
}

TEST(ShmHostile, MemoryWithoutSeals)
{
    expect_refused([](Lie &lie, Liar &liar) { replace(lie, 0, make_memory(liar.id, ARENA, 0)); }, "not sealed");
    expect_refused([](Lie &lie, Liar &liar) { replace(lie, 0, make_memory(liar.id, ARENA, F_SEAL_SHRINK)); }, "not sealed");
    expect_refused([](Lie &lie, Liar &liar) { replace(lie, 0, make_memory(liar.id, ARENA, F_SEAL_GROW)); }, "not sealed");
}

TEST(ShmHostile, MemoryOfAnotherSize)
{
    expect_refused([](Lie &lie, Liar &liar) { replace(lie, 0, make_memory(liar.id, ARENA / 2, F_SEAL_SHRINK | F_SEAL_GROW)); }, "has 2097152 bytes");
    expect_refused([](Lie &lie, Liar &) { lie.info.arena_size *= 2; }, "it told of 8388608");
}

TEST(ShmHostile, MemoryThatIsNone)
{
    expect_refused([](Lie &lie, Liar &) { replace(lie, 0, open("/dev/zero", O_RDWR | O_CLOEXEC)); }, "not sealed");
    expect_refused([](Lie &lie, Liar &) { replace(lie, 0, eventfd(0, EFD_CLOEXEC)); }, "not sealed");
}

TEST(ShmHostile, MemoryThatCannotBeWritten)
{
    expect_refused([](Lie &lie, Liar &liar) { replace(lie, 0, make_memory(liar.id, ARENA, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)); },
                   "cannot map", QUOIT_ERR_NO_MEMORY);
}

TEST(ShmHostile, MemoryOfAnotherProcess)
{
    expect_refused([](Lie &lie, Liar &) { replace(lie, 0, make_memory(random_process(), ARENA, F_SEAL_SHRINK | F_SEAL_GROW)); }, "no header of that process");
    expect_refused([](Lie &lie, Liar &) { lie.info.process.low ^= 1; }, "of another process");
}

TEST(ShmHostile, DoorbellThatIsNone)
{
    expect_refused([](Lie &lie, Liar &) {
        int pipe[2];
        ASSERT_EQ(pipe2(pipe, O_CLOEXEC), 0);
        close(pipe[0]);
        replace(lie, 1, pipe[1]);
    }, "no eventfd");
    expect_refused([](Lie &lie, Liar &) { replace(lie, 1, open("/dev/null", O_RDWR | O_CLOEXEC)); }, "no eventfd");
}

TEST(ShmHostile, WrongNumberOfDescriptors)
{
    expect_refused([](Lie &lie, Liar &) { close(lie.fds.back()); lie.fds.pop_back(); }, "1 descriptors instead of 2");
    expect_refused([](Lie &lie, Liar &) { for (int fd : lie.fds) close(fd); lie.fds.clear(); }, "0 descriptors instead of 2");
    expect_refused([](Lie &lie, Liar &) { lie.fds.push_back(eventfd(0, EFD_CLOEXEC)); }, "3 descriptors instead of 2");
    expect_refused([](Lie &lie, Liar &) { while (lie.fds.size() < 8) lie.fds.push_back(eventfd(0, EFD_CLOEXEC)); }, "more than 3 descriptors");
}

TEST(ShmHostile, WrongInfo)
{
    expect_refused([](Lie &lie, Liar &) { lie.info.mailbox_offset = ARENA - 64; }, "mailbox offset");
    expect_refused([](Lie &lie, Liar &) { lie.info.slot = 5000; }, "slot");
    expect_refused([](Lie &lie, Liar &) { lie.info.limits.eager = 512; }, "eager limit");
}

TEST(ShmHostile, HalfAnInfoMessage)
{
    expect_refused([](Lie &lie, Liar &) { lie.bytes = SHM_INFO_SIZE / 2; }, "did not stand in time", QUOIT_ERR_TIMEOUT);
    expect_refused([](Lie &lie, Liar &) { lie.close_first = true; }, "was lost while connecting", QUOIT_ERR_PEER);
}

/* A connected peer that writes nonsense into our ring's positions, or talks on the control socket. */
TEST(ShmHostile, NonsenseAfterTheConnectionStands)
{
    for (int what = 0; what < 2; what++) {
        Engine engine;
        engine.trust();
        Liar liar;
        Lie lie = truth(liar);
        quoit_endpoint_t *endpoint;
        ASSERT_EQ(engine.connect(liar.id, liar.address, &endpoint, "rank 6 (here)"), QUOIT_OK);
        ASSERT_TRUE(engine.until([&] { liar.step(lie); return engine.ops.endpoint_status(endpoint) != QUOIT_IN_PROGRESS; }));
        ASSERT_EQ(engine.ops.endpoint_status(endpoint), QUOIT_OK) << error_text();
        if (what == 0) {
            uint64_t impossible = UINT64_C(1) << 40; /* our reader's position in the liar's mailbox, as the liar would report it */
            ASSERT_EQ(pwrite(lie.fds[0], &impossible, sizeof impossible, static_cast<off_t>(lie.info.mailbox_offset) + 64), 8);
            engine.ops.notify(endpoint, "x", 1);
        } else {
            ASSERT_EQ(write(liar.fd, "hello", 5), 5);
        }
        ASSERT_TRUE(engine.until([&] { return engine.find(QUOIT_EVENT_CLOSED); }));
        EXPECT_EQ(engine.find(QUOIT_EVENT_CLOSED)->status, QUOIT_ERR_PROTOCOL) << engine.find(QUOIT_EVENT_CLOSED)->text;
        engine.ops.disconnect(endpoint);
        for (int fd : lie.fds) close(fd);
    }
}

} // namespace
