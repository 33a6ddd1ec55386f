/* SPDX-License-Identifier: Apache-2.0 */
/** Systems that give less than is asked for: the texts that users get, and that the caller can go on without this transport. */
#include "seccomp.h"
#include "shm_harness.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

using namespace shm_test;

namespace {

struct Opened {
    quoit_status_t probe, open;
    std::string why, text;
};

/** Probe and open in a child that has been restricted; its findings come back through a pipe. */
Opened open_restricted(const std::function<bool()> &restrict)
{
    Channel up;
    Opened opened = {QUOIT_ERR_INTERNAL, QUOIT_ERR_INTERNAL, "", ""};
    Child child([&] {
        char texts[1024] = {0};
        quoit_status_t results[2];
        quoit_transport_t *transport = nullptr;
        if (!restrict()) return 70;
        quoit_transport_environment_t env = environment(random_process(), -1);
        results[0] = transport_shm.probe(&env, texts, 512);
        results[1] = transport_shm.open(&env, &transport);
        if (results[1]) snprintf(texts + 512, 512, "%s", error_text());
        transport_shm.close(transport);
        std::string answer(reinterpret_cast<char *>(results), sizeof results);
        answer.append(texts, sizeof texts);
        up.put(answer);
        return 0;
    });
    std::string bytes = up.get(2 * sizeof(quoit_status_t) + 1024);
    EXPECT_EQ(child.wait(), 0);
    if (bytes.empty()) return opened;
    memcpy(&opened.probe, bytes.data(), sizeof opened.probe);
    memcpy(&opened.open, bytes.data() + sizeof opened.probe, sizeof opened.open);
    opened.why = bytes.c_str() + 2 * sizeof(quoit_status_t);
    opened.text = bytes.c_str() + 2 * sizeof(quoit_status_t) + 512;
    return opened;
}

bool limit(int resource, rlim_t value)
{
    rlimit limits = {value, value};
    return setrlimit(static_cast<__rlimit_resource>(resource), &limits) == 0;
}

TEST(ShmLimits, Unrestricted)
{
    Opened opened = open_restricted([] { return true; });
    EXPECT_EQ(opened.probe, QUOIT_OK) << opened.why;
    EXPECT_EQ(opened.open, QUOIT_OK) << opened.text;
}

TEST(ShmLimits, NoMemfd)
{
    for (int error : {EPERM, ENOSYS}) {
        Opened opened = open_restricted([&] { return !deny_system_call(SYS_memfd_create, error); });
        EXPECT_EQ(opened.probe, QUOIT_ERR_NOT_FOUND);
        EXPECT_NE(opened.why.find("memfd_create"), std::string::npos) << opened.why;
        EXPECT_EQ(opened.open, QUOIT_ERR_NOT_FOUND);
        EXPECT_NE(opened.text.find("memfd_create"), std::string::npos) << opened.text;
    }
}

/* Not with a sanitizer, whose shadow memory is beyond any limit of this kind. */
TEST(ShmLimits, AddressSpace)
{
    for (rlim_t space : {rlim_t{20} << 20, rlim_t{33} << 20}) { /* less than the arena; the arena, but not beside the program */
        Opened opened = open_restricted([&] { return limit(RLIMIT_AS, space); });
        EXPECT_EQ(opened.probe, QUOIT_ERR_NOT_FOUND) << space;
        EXPECT_NE(opened.why.find("QUOIT_ARENA_SIZE"), std::string::npos) << opened.why;
        EXPECT_EQ(opened.open, QUOIT_ERR_NO_MEMORY) << space;
        EXPECT_NE(opened.text.find("ulimit -v"), std::string::npos) << opened.text;
    }
}

/* A file beyond this limit would end the process with SIGXFSZ. */
TEST(ShmLimits, FileSize)
{
    Opened opened = open_restricted([] { return limit(RLIMIT_FSIZE, 1 << 20); });
    EXPECT_EQ(opened.open, QUOIT_ERR_NO_MEMORY);
    EXPECT_NE(opened.text.find("ulimit -f"), std::string::npos) << opened.text;
}

TEST(ShmLimits, Descriptors)
{
    Opened opened = open_restricted([] { return limit(RLIMIT_NOFILE, static_cast<rlim_t>(count_descriptors())); });
    EXPECT_EQ(opened.open, QUOIT_ERR_SYSTEM) << opened.text;
}

TEST(ShmLimits, BadSetting)
{
    settings()["MAILBOX_SIZE"] = "lots";
    quoit_transport_environment_t env = environment(random_process(), -1);
    quoit_transport_t *transport = nullptr;
    EXPECT_EQ(transport_shm.open(&env, &transport), QUOIT_ERR_INVALID);
    EXPECT_NE(std::string(error_text()).find("QUOIT_MAILBOX_SIZE"), std::string::npos) << error_text();
    settings().erase("MAILBOX_SIZE");
}

/* Without fallocate pages come when they are touched; memory that was used before must still be handed out zeroed. */
TEST(ShmLimits, NoFallocate)
{
    Child child([] {
        if (deny_system_call(SYS_fallocate, EOPNOTSUPP)) return 70;
        Engine engine;
        void *block;
        if (engine.status) return 1;
        for (size_t length : {size_t{1000}, size_t{1 << 20}}) {
            for (int round = 0; round < 2; round++) {
                if (engine.ops.share_alloc(engine.transport, length, &block)) return 2;
                for (size_t i = 0; i < length; i++)
                    if (static_cast<char *>(block)[i]) return 3;
                memset(block, 1, length);
                engine.ops.share_free(engine.transport, block);
            }
        }
        return 0;
    });
    EXPECT_EQ(child.wait(), 0);
}

// Memory for the rest of a mailbox is taken when more comes through it. Both sides are told what one of them lacks.
TEST(ShmLimits, NoMemoryForAMailbox)
{
    Child child([] {
        Pair pair;
        pair.join();
        if (pair.a.ops.endpoint_status(pair.ab) != QUOIT_OK) return 1;
        if (deny_system_call(SYS_fallocate, ENOSPC)) return 70;
        std::string part(200, 'x');
        for (int i = 0; i < 100; i++)
            if (pair.a.ops.notify(pair.ab, part.data(), part.size())) return 2;
        if (!both_until(pair.a, pair.b, [&] { return pair.b.find(QUOIT_EVENT_CLOSED); })) return 3;
        const Event *end = pair.b.find(QUOIT_EVENT_CLOSED);
        if (end->status != QUOIT_ERR_NO_MEMORY || end->text.find("the mailbox of rank 0 (here, a)") == std::string::npos) return 4;
        if (!both_until(pair.a, pair.b, [&] { return pair.a.find(QUOIT_EVENT_CLOSED); })) return 5;
        end = pair.a.find(QUOIT_EVENT_CLOSED);
        if (end->status != QUOIT_ERR_NO_MEMORY || end->text.find("gave the connection up: here is no memory for the mailbox of rank 0 (here, a): shm: the system has no memory") == std::string::npos) return 6;
        return 0;
    });
    int result = child.wait();
    if (result == 70) GTEST_SKIP() << "no seccomp here";
    EXPECT_EQ(result, 0);
}

TEST(ShmLimits, OtherNetworkNamespaceIsAnotherHost)
{
    Engine parent;
    Child child([&] {
        if (unshare(CLONE_NEWNET)) return 70;
        Engine self;
        quoit_endpoint_t *endpoint;
        self.trust();
        if (self.connect(parent.id, parent.address, &endpoint, "rank 4 (far)")) return 1;
        self.until([&] { return self.ops.endpoint_status(endpoint) != QUOIT_IN_PROGRESS; });
        if (self.ops.endpoint_status(endpoint) != QUOIT_ERR_NOT_FOUND) return 2;
        if (!strstr(error_text(), "rank 4 (far) is not on this host")) return 3;
        quoit_transfer_t out = {};
        char byte = 0;
        quoit_status_t status = self.ops.send(endpoint, {1, 1}, &byte, 1, &out);
        if (status == QUOIT_OK && out.status != QUOIT_ERR_NOT_FOUND) return 4;
        self.pump();
        if (!self.find(QUOIT_EVENT_CLOSED) || self.find(QUOIT_EVENT_CLOSED)->status != QUOIT_ERR_NOT_FOUND) return 5;
        self.ops.disconnect(endpoint);
        return 0;
    });
    int result = child.wait();
    if (result == 70) GTEST_SKIP() << "no right to make a network namespace";
    EXPECT_EQ(result, 0);
}

TEST(ShmLimits, PeerGoneBeforeWeConnect)
{
    quoit_process_id_t id = random_process();
    std::string address = Engine(id).address;
    Engine self;
    quoit_endpoint_t *endpoint;
    self.trust();
    ASSERT_EQ(self.connect(id, address, &endpoint), QUOIT_OK) << error_text();
    ASSERT_TRUE(self.until([&] { return self.ops.endpoint_status(endpoint) != QUOIT_IN_PROGRESS; }));
    EXPECT_EQ(self.ops.endpoint_status(endpoint), QUOIT_ERR_NOT_FOUND) << error_text();
    self.ops.disconnect(endpoint);
}

TEST(ShmLimits, BadPeers)
{
    Engine self, other;
    quoit_endpoint_t *endpoint = nullptr;
    EXPECT_EQ(self.connect(other.id, other.address, &endpoint), QUOIT_ERR_INVALID) << "no secret";
    self.trust();
    EXPECT_EQ(self.connect(random_process(), other.address, &endpoint), QUOIT_ERR_INVALID) << "the address of another process";
    EXPECT_EQ(self.connect(self.id, self.address, &endpoint), QUOIT_ERR_INVALID) << "itself";
    EXPECT_EQ(self.connect(other.id, "nonsense", &endpoint), QUOIT_ERR_PROTOCOL);
    EXPECT_EQ(endpoint, nullptr);
    char small[8];
    size_t length = sizeof small;
    EXPECT_EQ(self.ops.listen(self.transport, small, &length), QUOIT_ERR_INVALID);
    EXPECT_EQ(self.ops.trust(self.transport, 5, std::string(65, 'x').data(), 65), QUOIT_ERR_INVALID);
}

} // namespace
