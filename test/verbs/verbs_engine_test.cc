/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators over verbs (the fake libibverbs): the memory that collectives use between hosts is registered once, not for each chunk of
 * each operation, whether it is Quoit's own (slots, scratch, quoit_memory_alloc) or the caller's.
 */
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <string>
#include <vector>

#include "fake_verbs.h"
#include "test/comm/ranks.h"
#include "test/support/built.h"

extern "C" {
#include "base/status.h"
#include "transport/verbs/verbs_watch.h"
}

using namespace comm_test;

namespace {

unsigned long counted(const char *what)
{
    static auto count = reinterpret_cast<decltype(&fake_verbs_count)>(dlsym(dlopen(built_path(FAKE_VERBS).c_str(), RTLD_NOW), "fake_verbs_count"));
    return count(what);
}

unsigned long registrations() { return counted("reg_mr"); }

enum class Memory { Quoits, Callers };

/* Registrations that `rounds` allreduces of 3 MiB make after some have gone before. */
unsigned long made_later(const std::vector<int> &host_of, Memory memory)
{
    const size_t count = 3u << 18;
    unsigned long before = 0, after = 0;
    World world;
    world.host_of = host_of;
    EXPECT_TRUE(run_ranks(world, [&](Rank &self) {
        void *own = nullptr;
        std::vector<float> callers;
        if (memory == Memory::Quoits) {
            ASSERT_EQ(quoit_memory_alloc(self.comm, count * sizeof(float), &own), QUOIT_OK) << error_text();
        } else {
            callers.resize(count);
        }
        float *values = memory == Memory::Quoits ? static_cast<float *>(own) : callers.data();
        for (int round = 0; round < 6; round++) {
            for (size_t i = 0; i < count; i++) values[i] = static_cast<float>(self.rank + 1);
            if (round == 2) {
                self.meet();
                if (self.rank == 0) before = registrations();
                self.meet();
            }
            ASSERT_EQ(quoit_allreduce(self.comm, values, values, count, QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK) << error_text();
            const float expected = static_cast<float>(self.size * (self.size + 1) / 2);
            for (size_t i = 0; i < count; i += 1001) ASSERT_EQ(values[i], expected) << "element " << i << " of round " << round;
        }
        self.meet();
        if (self.rank == 0) after = registrations();
        self.meet();
        quoit_memory_free(own);
    })) << error_text();
    EXPECT_GT(before, 0u) << "nothing was registered: was verbs used?";
    return after - before;
}

TEST(VerbsEngine, QuoitsMemoryIsRegisteredOnce)
{
    EXPECT_EQ(made_later({0, 1}, Memory::Quoits), 0u) << "one rank a host";
    EXPECT_EQ(made_later({0, 0, 1, 1}, Memory::Quoits), 0u) << "two ranks a host";
}

TEST(VerbsEngine, CallersMemoryIsRegisteredOnce)
{
    verbs_watch_t *watch = nullptr;
    bool possible = verbs_watch_create(&watch) == QUOIT_OK;
    verbs_watch_destroy(watch);
    EXPECT_EQ(made_later({0, 0, 1, 1}, Memory::Callers), 0u) << "two ranks a host: slots only";
    unsigned long later = made_later({0, 1}, Memory::Callers);
    if (possible) {
        EXPECT_EQ(later, 0u) << "one rank a host: the caller's own buffer";
    } else {
        EXPECT_GT(later, 0u) << "kept, though this kernel does not tell when memory goes away";
    }
}

/* A pair is connected when it first has to do with each other: for allreduces by trees and rings few are, for an alltoall all. */
TEST(VerbsEngine, PairsAreConnectedWhenTheyNeedIt)
{
    const unsigned long hosts = 6, pairs = hosts * (hosts - 1) / 2, queues = 4; /* of a pair: a stream and a direct path, two ends each */
    World world;
    for (int host = 0; host < (int)hosts; host++) world.host_of.push_back(host);
    EXPECT_TRUE(run_ranks(world, [&](Rank &self) {
        const size_t count = 100000;
        std::vector<float> send(count * hosts, 1), recv(count * hosts);
        for (size_t each : {size_t(1), count}) ASSERT_EQ(quoit_allreduce(self.comm, send.data(), recv.data(), each, QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK) << error_text();
        self.meet();
        if (self.rank == 0) {
            EXPECT_GE(counted("qp"), queues * (hosts - 1));
            EXPECT_LT(counted("qp"), queues * pairs) << "all are connected already";
        }
        self.meet();
        ASSERT_EQ(quoit_alltoall(self.comm, send.data(), recv.data(), count, QUOIT_F32, nullptr, nullptr), QUOIT_OK) << error_text();
        self.meet();
        if (self.rank == 0) {
            EXPECT_EQ(counted("qp"), queues * pairs);
        }
        self.meet();
    })) << error_text();
}

} // namespace
