// SPDX-License-Identifier: Apache-2.0
// Communicators over the transport `chaos` (chaos.h). Ranks are threads, each a host of its own (over shared memory: of one host). Every
// run is a small job: create, allreduce of two chunks, a ring of sends and recvs, barrier. It ends within its deadline on all ranks, in
// the right result or in an error that has a text; nothing is left behind.
#include "test/comm/operations.h"
#include "test/comm/ranks.h"
#include "test/support/built.h"
#include "test/support/entries.h"

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <unistd.h>

extern "C" {
#include "chaos.h"
#include "quoit/quoit_transport.h"
}

using namespace comm_test;

namespace {

constexpr int TIMEOUT_MS = 3000; // of creation and of each operation
constexpr uint64_t HANDSHAKES = 1500; // bytes
constexpr int ABSENT_MS = 500;   // where a rank does not come to creation, which the others can only wait for
constexpr size_t COUNT = 8000;   // floats: two chunks of 16 KiB

struct Plugin {
    chaos_begin_t *begin = nullptr;
    chaos_look_t *look = nullptr;
    chaos_call_name_t *name = nullptr;
};

// The object that the registry loads.
const Plugin &plugin()
{
    static const Plugin found = [] {
        Plugin one;
        if (!getenv("QUOIT_TEST_CHAOS")) fprintf(stderr, "run by ctest -R chaos, which sets what the plug-in needs\n"), abort();
        void *object = dlopen(built_path("plugin_chaos.so").c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!object) fprintf(stderr, "%s\n", dlerror()), abort();
        one.begin = reinterpret_cast<chaos_begin_t *>(dlsym(object, "chaos_begin"));
        one.look = reinterpret_cast<chaos_look_t *>(dlsym(object, "chaos_look"));
        one.name = reinterpret_cast<chaos_call_name_t *>(dlsym(object, "chaos_call_name"));
        return one;
    }();
    return found;
}

bool over(const char *what) { return strstr(getenv("QUOIT_TEST_CHAOS") ? getenv("QUOIT_TEST_CHAOS") : "", what) != nullptr; }

chaos_script_t calm()
{
    chaos_script_t script = {};
    script.seed = seed();
    script.cut = -1;
    script.fail_call = -1;
    return script;
}

// What became of one rank.
struct Fate {
    quoit_status_t status = QUOIT_OK;
    std::string step = "create", text;
    double took = 0; // the longest step
    std::string wrong;
};

// When all ranks have destroyed their communicators; what others must see first may take a moment.
std::string check_left(engine_t *engine)
{
    test_engine_state_t left;
    double limit = seconds() + 2 * slow();
    do {
        test_engine_look(engine, &left);
        if (!left.comms && !left.running && !left.transfers && !left.sections) return "";
        usleep(2000);
    } while (seconds() < limit);
    return "left: " + std::to_string(left.comms) + " communicators, " + std::to_string(left.running) + " operations, " + std::to_string(left.transfers) + " transfers, " +
           std::to_string(left.sections) + " sections";
}

class Job {
  public:
    Job(Rank &self, Fate &fate, int timeout_ms) : self_(self), fate_(fate), timeout_ms_(timeout_ms) {}

    void run(MemoryStore &memory)
    {
        quoit_comm_config_t config = QUOIT_COMM_CONFIG_INIT;
        config.timeout_ms = timeout_ms_;
        quoit_store_t *store = memory.open();
        quoit_comm_t *comm = nullptr;
        step("create", [&] { return comm_create_on(self_.engine, store, self_.rank, self_.size, &config, &comm); });
        quoit_store_close(store);
        if (!comm) return;
        step("allreduce", [&] { return allreduce(comm); });
        step("ring", [&] { return ring(comm); });
        step("barrier", [&] { return quoit_barrier(comm, nullptr, nullptr); });
        if (fate_.status == QUOIT_OK) fate_.step = "end";
        quoit_comm_destroy(comm);
    }

  private:
    template <typename Call> void step(const char *name, Call call)
    {
        if (fate_.status != QUOIT_OK) return;
        double begun = seconds();
        fate_.step = name;
        fate_.status = call();
        fate_.text = fate_.status == QUOIT_OK ? "" : quoit_last_error();
        fate_.took = std::max(fate_.took, seconds() - begun);
    }

    quoit_status_t allreduce(quoit_comm_t *comm)
    {
        std::vector<float> send(COUNT), recv(COUNT);
        for (size_t i = 0; i < COUNT; i++) send[i] = static_cast<float>(i % 100 + static_cast<size_t>(self_.rank));
        quoit_status_t status = quoit_allreduce(comm, send.data(), recv.data(), COUNT, QUOIT_F32, QUOIT_SUM, nullptr, nullptr);
        for (size_t i = 0; i < COUNT && status == QUOIT_OK && fate_.wrong.empty(); i++) {
            float expected = static_cast<float>(self_.size) * static_cast<float>(i % 100) + static_cast<float>(self_.size * (self_.size - 1) / 2);
            if (recv[i] != expected) fate_.wrong = "allreduce: element " + std::to_string(i) + " is " + std::to_string(recv[i]) + ", not " + std::to_string(expected);
        }
        return status;
    }

    // A small and a large message to the next rank.
    quoit_status_t ring(quoit_comm_t *comm)
    {
        static constexpr size_t sizes[] = {16, 20000};
        int next = (self_.rank + 1) % self_.size, before = (self_.rank + self_.size - 1) % self_.size;
        quoit_request_t *request[4] = {};
        std::vector<uint8_t> out[2], in[2];
        quoit_status_t status = QUOIT_OK;
        for (uint32_t i = 0; i < 2; i++) {
            out[i].assign(sizes[i], static_cast<uint8_t>(self_.rank + 1));
            in[i].assign(sizes[i], 0);
            if (status == QUOIT_OK) status = quoit_recv(comm, in[i].data(), sizes[i], QUOIT_U8, before, i, nullptr, &request[i]);
            if (status == QUOIT_OK) status = quoit_send(comm, out[i].data(), sizes[i], QUOIT_U8, next, i, nullptr, &request[2 + i]);
        }
        for (auto *each : request) {
            if (!each) continue;
            quoit_status_t ended = quoit_request_wait(each, -1);
            if (status == QUOIT_OK) status = ended;
            quoit_request_free(each);
        }
        for (int i = 0; i < 2 && status == QUOIT_OK; i++)
            if (in[i] != std::vector<uint8_t>(sizes[i], static_cast<uint8_t>(before + 1))) fate_.wrong = "ring: other bytes came";
        return status;
    }

    Rank &self_;
    Fate &fate_;
    int timeout_ms_;
};

// A rank that fails before it has told anybody of itself.
bool is_absent(const chaos_script_t &script) { return script.fail_call == CHAOS_CALL_open || script.fail_call == CHAOS_CALL_listen; }

// The job under a script; its counts. `what` names the case when something is wrong.
chaos_counts_t run(const chaos_script_t &script, int size, const std::string &what, std::vector<Fate> *told = nullptr)
{
    SCOPED_TRACE(what);
    std::vector<Fate> fate(static_cast<size_t>(size));
    World world;
    for (int rank = 0; rank < size; rank++) world.host_of.push_back(over("shm") ? 0 : rank);
    const int timeout_ms = static_cast<int>(is_absent(script) ? ABSENT_MS * std::min(slow(), 8.0) : TIMEOUT_MS * slow());
    int before = count_descriptors();
    plugin().begin(&script);
    // An engine that cannot be made is told by engine_create, so ranks are made here and not by run_engines.
    MemoryStore memory;
    {
        Watchdog watchdog(what, 60);
        std::vector<std::thread> threads;
        Meeting meeting(static_cast<unsigned>(size));
        for (int rank = 0; rank < size; rank++)
            threads.emplace_back([&, rank] {
                Rank self;
                Fate &mine = fate[static_cast<size_t>(rank)];
                self.rank = rank;
                self.size = size;
                mine.status = engine_create(&self.engine);
                if (mine.status != QUOIT_OK) {
                    mine.step = "engine";
                    mine.text = quoit_last_error();
                    meeting.wait();
                    meeting.wait();
                    return;
                }
                test_engine_set_host(self.engine, static_cast<unsigned long>(world.host_of[static_cast<size_t>(rank)]) + 1);
                Job(self, mine, timeout_ms).run(memory);
                meeting.wait();
                mine.wrong += check_left(self.engine);
                meeting.wait();
                engine_release(self.engine);
            });
        for (auto &thread : threads) thread.join();
    }
    chaos_counts_t counts;
    plugin().look(&counts);
    bool all = true, none = true;
    for (const Fate &each : fate) {
        all = all && each.status == QUOIT_OK;
        none = none && each.status != QUOIT_OK;
    }
    for (int rank = 0; rank < size; rank++) {
        const Fate &each = fate[static_cast<size_t>(rank)];
        EXPECT_EQ(each.wrong, "") << "rank " << rank;
        EXPECT_LE(each.status, 0) << "rank " << rank << " in " << each.step;
        EXPECT_NE(each.status, QUOIT_ERR_INTERNAL) << "rank " << rank << " in " << each.step << ": " << each.text;
        EXPECT_TRUE(each.status == QUOIT_OK || !each.text.empty()) << "rank " << rank << " in " << each.step;
        EXPECT_LT(each.took, timeout_ms / 1000.0 + 1.5 * slow()) << "rank " << rank << " in " << each.step << ": " << each.text;
    }
    // Who fails, fails before the barrier is over or while it ends: then the others have all or an error.
    EXPECT_TRUE(all || none || std::all_of(fate.begin(), fate.end(), [](const Fate &each) { return each.step == "end" || each.status != QUOIT_OK; }));
    EXPECT_EQ(count_descriptors(), before);
    if (testing::Test::HasFailure())
        for (int rank = 0; rank < size; rank++)
            printf("%s: rank %d: %s: %.2f s, %d %s\n", what.c_str(), rank, fate[static_cast<size_t>(rank)].step.c_str(), fate[static_cast<size_t>(rank)].took, fate[static_cast<size_t>(rank)].status, fate[static_cast<size_t>(rank)].text.c_str());
    if (told) *told = fate;
    return counts;
}

bool is_good(const std::vector<Fate> &fate)
{
    return std::all_of(fate.begin(), fate.end(), [](const Fate &each) { return each.status == QUOIT_OK; });
}

std::string texts(const std::vector<Fate> &fate)
{
    std::string all;
    for (const Fate &each : fate) all += each.step + ": " + each.text + "\n";
    return all;
}

TEST(Chaos, NothingHappens)
{
    for (int size : {2, 3}) {
        std::vector<Fate> fate;
        chaos_counts_t counts = run(calm(), size, "calm", &fate);
        EXPECT_TRUE(is_good(fate)) << texts(fate);
        EXPECT_GT(counts.calls[CHAOS_CALL_connect], 0u);
        EXPECT_FALSE(counts.cut || counts.failed);
    }
}

// Whether the number-th case is of this process: QUOIT_TEST_SHARD=3/8 has it try one of eight shards (test/support/shards.py runs them all).
bool is_mine(uint64_t number)
{
    static const std::pair<uint64_t, uint64_t> shard = [] {
        unsigned long long index = 0, count = 1;
        const char *text = getenv("QUOIT_TEST_SHARD");
        if (text && (sscanf(text, "%llu/%llu", &index, &count) != 2 || index >= count)) fprintf(stderr, "QUOIT_TEST_SHARD=%s: I/N with I below N is wanted\n", text), abort();
        return std::pair<uint64_t, uint64_t>(index, count);
    }();
    return number % shard.second == shard.first;
}

// Late, reordered, idle, refused, in small portions that are held back: slower, and right.
TEST(Chaos, SlowAndOutOfOrder)
{
    std::mt19937_64 random(seed());
    for (int round = 0; round < (long_run() ? 200 : 8); round++) {
        chaos_script_t script = calm();
        script.seed = random();
        script.late = static_cast<int>(random() % 100);
        script.idle = static_cast<int>(random() % 60);
        script.refuse = static_cast<int>(random() % 100);
        script.hold_us = round % 4 == 3 ? static_cast<int>(1 + random() % 300) : 0;
        /* Each portion that is held is a sleep: of single bytes there would be too many for a deadline. */
        script.split = round % 2 ? (script.hold_us ? 200 : 1) + static_cast<int>(random() % 3000) : 0;
        if (!is_mine(static_cast<uint64_t>(round))) continue;
        std::vector<Fate> fate;
        std::string what = "seed " + std::to_string(script.seed) + ", late " + std::to_string(script.late) + ", idle " + std::to_string(script.idle) + ", refuse " +
                           std::to_string(script.refuse) + ", split " + std::to_string(script.split) + ", hold " + std::to_string(script.hold_us);
        chaos_counts_t counts = run(script, 2 + round % 2, what, &fate);
        EXPECT_TRUE(is_good(fate)) << what << "\n" << texts(fate);
        EXPECT_TRUE(script.split == 0 || !over("tcp") || counts.portions > 10) << what;
    }
}

// Cuts after k bytes: some, or (QUOIT_TEST_LONG=1) every one between two ranks; among three every one of what comes before payload, and every 97th
// of the rest. About byte 613 the last word of a connection's making is on its way: it stands for one side and not for the other.
// QUOIT_TEST_CUTS=600-660 tries these.
TEST(Chaos, CutAfterEveryByte)
{
    for (int size : {2, 3}) {
        chaos_script_t script = calm();
        script.relays = true;
        chaos_counts_t whole = run(script, size, "to count the bytes");
        ASSERT_GT(whole.bytes, 4 * COUNT) << "do connections go through relays?";
        std::mt19937_64 random(seed());
        std::set<uint64_t> places = {0, 1, 64, 200, 613, 628, 640};
        for (int i = 0; i < 4; i++) places.insert(random() % 700); // the handshakes
        for (int i = 0; i < 8; i++) places.insert(random() % whole.bytes);
        if (long_run())
            for (uint64_t at = 0; at < whole.bytes; at += size == 2 || at < HANDSHAKES ? 1 : 97) places.insert(at);
        unsigned long long from = 0, to = 0;
        if (const char *text = getenv("QUOIT_TEST_CUTS"); text && sscanf(text, "%llu-%llu", &from, &to) == 2) {
            places.clear();
            for (uint64_t at = from; at <= to; at++) places.insert(at);
        }
        int survived = 0, failed = 0;
        for (uint64_t at : places) {
            script.cut = static_cast<int64_t>(at);
            script.reset = random() % 2;
            script.split = random() % 2 ? 500 : 0;
            script.seed = random();
            if (!is_mine(at)) continue;
            std::vector<Fate> fate;
            std::string what = std::to_string(size) + " ranks, cut after " + std::to_string(at) + " of " + std::to_string(whole.bytes) + " bytes" + (script.reset ? ", reset" : "");
            run(script, size, what, &fate);
            (is_good(fate) ? survived : failed)++;
            if (to > 0) printf("%s:\n%s", what.c_str(), is_good(fate) ? "survived\n" : texts(fate).c_str());
            for (const Fate &each : fate) {
                EXPECT_NE(each.status, QUOIT_ERR_TIMEOUT) << what << "\n" << texts(fate);
                EXPECT_LT(each.took, 2 * slow()) << what << "\n" << texts(fate);
            }
            if (HasFatalFailure()) return;
        }
        printf("%d ranks: %d cuts, %d were survived, %d ended in an error\n", size, survived + failed, survived, failed);
        bool few = getenv("QUOIT_TEST_SHARD") && !long_run(); // too few to say
        EXPECT_TRUE(failed > 0 || to > 0 || few);
    }
}

// A host mate fails while others connect to it, and answers no more: they look into the store, and do not wait for it until the deadline.
TEST(Chaos, AMateFailsWhileOthersConnectToIt)
{
    if (!over("shm")) return;
    for (int size : {2, 3})
        for (uint64_t number : {0, 1}) {
            chaos_script_t script = calm();
            script.fail_call = CHAOS_CALL_trust;
            script.fail_at = number;
            script.fail_status = QUOIT_ERR_NETWORK;
            std::vector<Fate> fate;
            run(script, size, std::to_string(size) + " ranks, trust #" + std::to_string(number) + " fails", &fate);
            for (const Fate &each : fate) {
                EXPECT_NE(each.status, QUOIT_ERR_TIMEOUT) << texts(fate);
                EXPECT_LT(each.took, 2 * slow()) << texts(fate);
            }
        }
}

// Whatever error it is by which a rank fails that knows the roster, the others hear of it.
TEST(Chaos, AMateFailsWithAMismatch)
{
    if (!over("shm")) return;
    for (uint64_t number : {0, 1}) {
        chaos_script_t script = calm();
        script.fail_call = CHAOS_CALL_share_root;
        script.fail_at = number;
        script.fail_status = QUOIT_ERR_MISMATCH;
        std::vector<Fate> fate;
        run(script, 2, "share_root #" + std::to_string(number) + " fails", &fate);
        for (const Fate &each : fate) EXPECT_EQ(each.status, QUOIT_ERR_MISMATCH) << texts(fate);
    }
}

// The n-th call of each kind fails with each error.
TEST(Chaos, EveryCallFails)
{
    // All but AGAIN, which is no error of most calls.
    static constexpr quoit_status_t errors[] = {QUOIT_ERR_NO_MEMORY, QUOIT_ERR_PEER,     QUOIT_ERR_NETWORK, QUOIT_ERR_SYSTEM,      QUOIT_ERR_TIMEOUT, QUOIT_ERR_PROTOCOL,
                                                QUOIT_ERR_INVALID,   QUOIT_ERR_NOT_FOUND, QUOIT_ERR_CLOSED,  QUOIT_ERR_UNSUPPORTED, QUOIT_ERR_ABORTED, QUOIT_ERR_MISMATCH};
    std::mt19937_64 random(seed());
    for (int size : {2, 3}) {
        chaos_counts_t calm_counts = run(calm(), size, "to count the calls");
        int cases = 0, came = 0;
        uint64_t drawn = 0;
        for (int call = 0; call < CHAOS_CALL_COUNT; call++) {
            uint64_t count = std::min<uint64_t>(calm_counts.calls[call], call == CHAOS_CALL_arm ? 3 : 200);
            std::vector<uint64_t> numbers;
            for (uint64_t number = 0; number < count; number++) numbers.push_back(number);
            if (!long_run() && numbers.size() > 1) numbers = {random() % count};
            for (uint64_t number : numbers)
                for (quoit_status_t error : errors) {
                    if (!long_run() && error != errors[(static_cast<size_t>(call) + static_cast<size_t>(size)) % std::size(errors)]) continue;
                    chaos_script_t script = calm();
                    script.fail_call = call;
                    script.fail_at = number;
                    script.fail_status = error;
                    script.fail_transfer = random() % 2;
                    if (!is_mine(drawn++)) continue;
                    if (!long_run() && size > 2 && is_absent(script)) continue;
                    std::string what = std::to_string(size) + " ranks, " + plugin().name(call) + " #" + std::to_string(number) + " fails with " + quoit_status_text(error) +
                                       (script.fail_transfer ? ", told by the transfer" : "");
                    cases++;
                    std::vector<Fate> fate;
                    came += run(script, size, what, &fate).failed;
                    /* A mismatch at creation is what ranks find together, from records, and rank 0 tells it; no transport finds it then. */
                    bool odd = error == QUOIT_ERR_MISMATCH && (call == CHAOS_CALL_trust || call == CHAOS_CALL_connect);
                    for (const Fate &each : fate) // whoever can still tell the others, does
                        EXPECT_TRUE(is_absent(script) || odd || each.status != QUOIT_ERR_TIMEOUT || error == QUOIT_ERR_TIMEOUT) << what << "\n" << texts(fate);
                }
        }
        printf("%d ranks: %d calls failed in %d cases\n", size, came, cases);
        EXPECT_GT(came, 0);
    }
}

} // namespace
