/* SPDX-License-Identifier: Apache-2.0 */
/** Peers that die, stop or leave without a word, and how soon and how precisely that is told. */
#include "seccomp.h"
#include "shm_harness.h"

#include <sys/syscall.h>
#include <thread>

using namespace shm_test;

namespace {

/** What a peer process does once it is connected. */
using Body = std::function<int(Engine &, quoit_endpoint_t *)>;

/** A peer process that has connected to `parent`. */
struct Peer {
    quoit_process_id_t id = random_process();
    Channel up;
    Engine &parent;
    quoit_endpoint_t *endpoint = nullptr;
    Child child;
    Peer(Engine &parent, const Body &body, const std::function<bool()> &prepare = [] { return true; })
        : parent(parent), child([&] {
              if (!prepare()) return 70;
              Engine self(id);
              quoit_endpoint_t *endpoint;
              self.trust();
              if (self.connect(parent.id, parent.address, &endpoint)) return 71;
              up.put(self.address);
              if (!self.until([&] { return self.ops.endpoint_status(endpoint) != QUOIT_IN_PROGRESS; })) return 72;
              if (self.ops.endpoint_status(endpoint)) return 73;
              return body(self, endpoint);
          })
    {
    }
    void join()
    {
        std::string address = up.get(SHM_ADDRESS_SIZE);
        ASSERT_EQ(address.size(), size_t{SHM_ADDRESS_SIZE}) << "the peer did not come up";
        ASSERT_EQ(parent.connect(id, address, &endpoint, "rank 3 (node7, pid 1234)"), QUOIT_OK) << error_text();
        ASSERT_TRUE(parent.until([&] { return parent.ops.endpoint_status(endpoint) != QUOIT_IN_PROGRESS; }));
        ASSERT_EQ(parent.ops.endpoint_status(endpoint), QUOIT_OK) << error_text();
    }
};

int serve(Engine &self, quoit_endpoint_t *)
{
    self.until([] { return false; });
    return 0;
}

void expect_death(Engine &parent, quoit_endpoint_t *endpoint)
{
    ASSERT_TRUE(parent.until([&] { return parent.find(QUOIT_EVENT_CLOSED); }, 1000)) << "not noticed within a second";
    ASSERT_NE(parent.find(QUOIT_EVENT_DIED), nullptr) << parent.find(QUOIT_EVENT_CLOSED)->text;
    EXPECT_LT(parent.find(QUOIT_EVENT_DIED), parent.find(QUOIT_EVENT_CLOSED)) << "DIED comes first";
    EXPECT_EQ(parent.find(QUOIT_EVENT_DIED)->endpoint, endpoint);
    EXPECT_NE(parent.find(QUOIT_EVENT_DIED)->text.find("rank 3 (node7, pid 1234) died"), std::string::npos) << parent.find(QUOIT_EVENT_DIED)->text;
    EXPECT_EQ(parent.find(QUOIT_EVENT_CLOSED)->status, QUOIT_ERR_PEER);
    EXPECT_EQ(parent.ops.endpoint_status(endpoint), QUOIT_ERR_PEER);
}

TEST(ShmDeath, Killed)
{
    Engine parent;
    parent.trust();
    Peer peer(parent, serve);
    ASSERT_NO_FATAL_FAILURE(peer.join());
    quoit_transfer_t waiting = {}, sending = {};
    std::string large(1 << 20, 'x');
    ASSERT_EQ(parent.ops.recv(peer.endpoint, {1, 1}, large.data(), large.size(), &waiting), QUOIT_OK);
    ASSERT_EQ(parent.ops.send(peer.endpoint, {1, 2}, large.data(), large.size(), &sending), QUOIT_OK);
    peer.child.kill_now();
    ASSERT_NO_FATAL_FAILURE(expect_death(parent, peer.endpoint));
    EXPECT_EQ(waiting.status, QUOIT_ERR_PEER);
    EXPECT_EQ(sending.status, QUOIT_ERR_PEER);
    parent.ops.disconnect(peer.endpoint);
}

/* It had borrowed all that it may, and a message that it never took: with its end all is back, and the next peer has as much as the first. */
TEST(ShmDeath, WhatTheDeadHadBorrowedComesBack)
{
    settings()["MESSAGE_POOL"] = "128K";
    Engine parent;
    settings().erase("MESSAGE_POOL");
    parent.trust();
    for (int turn = 0; turn < 3; turn++) {
        Peer peer(parent, [](Engine &self, quoit_endpoint_t *endpoint) {
            std::string place(1 << 20, 0);
            quoit_transfer_t recv = {};
            self.ops.recv(endpoint, {1, 1}, place.data(), place.size(), &recv); /* granted, and then nothing is read any more */
            self.ops.notify(endpoint, "", 0);
            for (self.pump(); true;) usleep(1000);
            return 0;
        });
        ASSERT_NO_FATAL_FAILURE(peer.join());
        ASSERT_TRUE(parent.until([&] { return parent.find(QUOIT_EVENT_NOTICE); }));
        quoit_transfer_t unasked = {}, large = {};
        std::string bytes(1 << 20, 'x');
        ASSERT_EQ(parent.ops.send(peer.endpoint, {1, 2}, bytes.data(), 32768, &unasked), QUOIT_OK);
        ASSERT_EQ(parent.ops.send(peer.endpoint, {1, 1}, bytes.data(), bytes.size(), &large), QUOIT_OK);
        for (int i = 0; i < 100; i++) parent.pump();
        EXPECT_EQ(unasked.status, QUOIT_OK);
        EXPECT_EQ(large.status, QUOIT_IN_PROGRESS);
        EXPECT_NE(std::string(parent.ops.describe(peer.endpoint)).find(" 4 pieces lent"), std::string::npos)
            << "turn " << turn << ": " << parent.ops.describe(peer.endpoint);
        peer.child.kill_now();
        ASSERT_NO_FATAL_FAILURE(expect_death(parent, peer.endpoint));
        EXPECT_EQ(large.status, QUOIT_ERR_PEER);
        parent.ops.disconnect(peer.endpoint);
        parent.events.clear();
    }
}

/* Attached memory of a dead peer stays readable until the endpoint is given back. */
TEST(ShmDeath, MemoryOutlivesTheOwner)
{
    Engine parent;
    parent.trust();
    Peer peer(parent, [](Engine &self, quoit_endpoint_t *endpoint) {
        void *root;
        self.ops.share_root(self.transport, &root);
        strcpy(static_cast<char *>(root), "last words");
        self.ops.notify(endpoint, "", 0);
        return serve(self, endpoint);
    });
    ASSERT_NO_FATAL_FAILURE(peer.join());
    void *root;
    size_t length;
    ASSERT_EQ(parent.ops.attach(peer.endpoint, nullptr, &root, &length), QUOIT_OK);
    ASSERT_TRUE(parent.until([&] { return parent.find(QUOIT_EVENT_NOTICE); }));
    peer.child.kill_now();
    ASSERT_NO_FATAL_FAILURE(expect_death(parent, peer.endpoint));
    EXPECT_STREQ(static_cast<char *>(root), "last words");
    parent.ops.ring(peer.endpoint);
    parent.ops.disconnect(peer.endpoint);
}

/* A forked child of the dead process keeps its sockets open; only the pidfd tells the truth. */
TEST(ShmDeath, KilledWhileItsForkedChildLives)
{
    Engine parent;
    parent.trust();
    Channel pids;
    Peer peer(parent, [&](Engine &self, quoit_endpoint_t *endpoint) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            sleep(20);
            _exit(0);
        }
        pids.put(std::string(reinterpret_cast<char *>(&grandchild), sizeof grandchild));
        return serve(self, endpoint);
    });
    ASSERT_NO_FATAL_FAILURE(peer.join());
    std::string bytes = pids.get(sizeof(pid_t));
    ASSERT_EQ(bytes.size(), sizeof(pid_t));
    pid_t grandchild;
    memcpy(&grandchild, bytes.data(), sizeof grandchild);
    peer.child.kill_now();
    expect_death(parent, peer.endpoint);
    EXPECT_EQ(kill(grandchild, SIGKILL), 0) << "the grandchild was to live on";
}

TEST(ShmDeath, KilledWhileWeSleep)
{
    Engine parent;
    parent.trust();
    Peer peer(parent, serve);
    ASSERT_NO_FATAL_FAILURE(peer.join());
    std::thread killer([&] {
        EXPECT_TRUE(wait_until([&] { return is_asleep(parent.ops, parent.transport); }));
        peer.child.kill_now();
    });
    uint64_t deadline = clock_deadline(5000);
    while (!parent.find(QUOIT_EVENT_DIED) && clock_left_ms(deadline) > 0) {
        uint64_t count;
        parent.pump();
        while (read(parent.doorbell, &count, sizeof count) > 0) continue;
        if (parent.ops.arm(parent.transport)) continue;
        pollfd ready[2] = {{parent.doorbell, POLLIN, 0}, {parent.ops.descriptor(parent.transport), POLLIN, 0}};
        poll(ready, 2, clock_left_ms(deadline));
        parent.ops.disarm(parent.transport);
    }
    killer.join();
    ASSERT_NO_FATAL_FAILURE(expect_death(parent, peer.endpoint));
    EXPECT_GT(clock_left_ms(deadline), 3000) << "it slept through";
}

/* What a process sent before it died arrives before the news of its death. */
TEST(ShmDeath, LastMessagesCome)
{
    for (int round = 0; round < 10; round++) {
        Engine parent;
        parent.trust();
        Peer peer(parent, [](Engine &self, quoit_endpoint_t *endpoint) {
            for (int i = 0; i < 100; i++) self.ops.notify(endpoint, &i, sizeof i);
            raise(SIGKILL);
            return 0;
        });
        ASSERT_NO_FATAL_FAILURE(peer.join());
        ASSERT_NO_FATAL_FAILURE(expect_death(parent, peer.endpoint));
        ASSERT_EQ(parent.events.size(), 102u);
        for (size_t i = 0; i < 100; i++) ASSERT_EQ(parent.events[i].type, QUOIT_EVENT_NOTICE) << i;
    }
}

TEST(ShmDeath, ExitWithoutGoodbyeIsDeath)
{
    Engine parent;
    parent.trust();
    Peer peer(parent, [](Engine &self, quoit_endpoint_t *) {
        self.until([] { return false; }, 100);
        _exit(0);
        return 0;
    });
    ASSERT_NO_FATAL_FAILURE(peer.join());
    expect_death(parent, peer.endpoint);
}

TEST(ShmDeath, GoodbyeThenExitIsNone)
{
    Engine parent;
    parent.trust();
    Peer peer(parent, [](Engine &self, quoit_endpoint_t *endpoint) {
        self.ops.disconnect(endpoint);
        return self.until([&] { return self.ops.idle(self.transport); }) ? 0 : 1;
    });
    std::string address = peer.up.get(SHM_ADDRESS_SIZE);
    ASSERT_EQ(parent.connect(peer.id, address, &peer.endpoint), QUOIT_OK) << error_text();
    ASSERT_TRUE(parent.until([&] { return parent.find(QUOIT_EVENT_CLOSED); }));
    EXPECT_EQ(parent.find(QUOIT_EVENT_CLOSED)->status, QUOIT_OK) << parent.find(QUOIT_EVENT_CLOSED)->text;
    EXPECT_EQ(peer.child.wait(), 0);
    EXPECT_FALSE(parent.until([&] { return parent.find(QUOIT_EVENT_DIED); }, 50));
}

/* A transport that is closed without goodbye, in a process that lives on: an error, but no death. */
TEST(ShmDeath, ClosedButAlive)
{
    Engine parent;
    parent.trust();
    Peer peer(parent, [](Engine &self, quoit_endpoint_t *) {
        self.close();
        sleep(20);
        return 0;
    });
    ASSERT_NO_FATAL_FAILURE(peer.join());
    ASSERT_TRUE(parent.until([&] { return parent.find(QUOIT_EVENT_CLOSED); }));
    EXPECT_EQ(parent.find(QUOIT_EVENT_DIED), nullptr);
    EXPECT_EQ(parent.find(QUOIT_EVENT_CLOSED)->status, QUOIT_ERR_PEER);
    EXPECT_NE(parent.find(QUOIT_EVENT_CLOSED)->text.find("without a goodbye"), std::string::npos) << parent.find(QUOIT_EVENT_CLOSED)->text;
}

/* Engines of one process: a pidfd says nothing about a thread, the end of the socket does. */
TEST(ShmDeath, EngineOfTheSameProcess)
{
    Pair pair;
    ASSERT_NO_FATAL_FAILURE(pair.join());
    pair.b.close();
    ASSERT_TRUE(pair.a.until([&] { return pair.a.find(QUOIT_EVENT_CLOSED); }, 1000));
    EXPECT_NE(pair.a.find(QUOIT_EVENT_DIED), nullptr);
}

TEST(ShmDeath, StoppedIsNotDead)
{
    Engine parent;
    parent.trust();
    Peer peer(parent, serve);
    ASSERT_NO_FATAL_FAILURE(peer.join());
    ASSERT_EQ(kill(peer.child.pid, SIGSTOP), 0);
    EXPECT_FALSE(parent.until([&] { return !parent.events.empty(); }, 200));
    ASSERT_EQ(kill(peer.child.pid, SIGCONT), 0);
    EXPECT_FALSE(parent.until([&] { return !parent.events.empty(); }, 50));
}

TEST(ShmDeath, WithoutPidfdTheSocketCounts)
{
    Engine parent;
    parent.trust();
    Peer peer(parent, serve, [] { return !deny_system_call(SYS_pidfd_open, EPERM); });
    ASSERT_NO_FATAL_FAILURE(peer.join());
    peer.child.kill_now();
    expect_death(parent, peer.endpoint);
}

/* Mailboxes of the dead go back to the arena. */
TEST(ShmDeath, MemoryComesBack)
{
    settings()["ARENA_SIZE"] = "2M";
    settings()["MAILBOX_SIZE"] = "512K";
    Engine parent;
    settings()["ARENA_SIZE"] = "32M";
    settings().erase("MAILBOX_SIZE");
    parent.trust();
    int before = count_descriptors();
    for (int round = 0; round < 12; round++) {
        Peer peer(parent, serve);
        ASSERT_NO_FATAL_FAILURE(peer.join()) << "round " << round;
        peer.child.kill_now();
        ASSERT_NO_FATAL_FAILURE(expect_death(parent, peer.endpoint));
        parent.ops.disconnect(peer.endpoint);
        parent.events.clear();
    }
    EXPECT_EQ(count_descriptors(), before);
}

} // namespace
