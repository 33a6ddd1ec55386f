// SPDX-License-Identifier: Apache-2.0
// Every collective on device buffers, with the lagging device, against naive results: each size class, plain and v-forms, in place and not, ranks
// whose buffers are on the device beside such whose are not. Inputs are on their way when the call is made, and results are fetched by
// the user's stream behind the call, before anybody waits. Guards beside each buffer are on the device, too.
#include "device_support.h"
#include "operations.h"

#include <atomic>
#include <cstring>

using namespace comm_test;

namespace {

using Hosts = std::vector<int>;
const size_t eager = 8192, chunk = 512 << 10; // the defaults of QUOIT_EAGER_LIMIT and QUOIT_NET_CHUNK_SIZE

bool works_in_place(Collective collective)
{
    return collective <= Collective::ReduceScatterv && collective != Collective::Broadcast;
}

// The buffers of an operation on the device, for one rank and one stream; used again by the next operation.
class OnDevice : public Elsewhere {
  public:
    explicit OnDevice(quoit_device_t device) : device_(device) {}
    ~OnDevice() override { clear(); }
    quoit_call_t call() override { return stream_.call(device_); }
    void *put(const void *image, size_t bytes) override
    {
        if (fetched_) clear();
        auto one = std::make_unique<Buffer>(bytes);
        memcpy(one->in.bytes(), image, bytes);
        EXPECT_EQ(lagging_device.copy(one->memory.pointer, one->in.pointer, bytes, HOST_TO_DEVICE, stream_.pointer), QUOIT_OK) << quoit_last_error();
        buffers_.push_back(std::move(one));
        return buffers_.back()->memory.pointer;
    }
    void fetch() override
    {
        for (auto &each : buffers_)
            EXPECT_EQ(lagging_device.copy(each->out.pointer, each->memory.pointer, each->bytes, DEVICE_TO_HOST, stream_.pointer), QUOIT_OK);
        fetched_ = true;
    }
    std::string take(size_t number, void *image, size_t bytes) override
    {
        if (number == 0 && !drain()) return quoit_last_error();
        memcpy(image, buffers_[number]->out.bytes(), bytes);
        return "";
    }
    bool drain()
    {
        device_event_t *event = nullptr;
        if (lagging_device.event_create(&event) != QUOIT_OK) return false;
        bool done = lagging_device.event_record(event, stream_.pointer) == QUOIT_OK && lagging_device_wait(event) == QUOIT_OK;
        lagging_device.event_destroy(event);
        return done;
    }
    void *stream() { return stream_.pointer; }

  private:
    struct Buffer {
        explicit Buffer(size_t size) : memory(size), in(size), out(size), bytes(size) {}
        Memory memory;
        Pinned in, out;
        size_t bytes;
    };
    void clear()
    {
        if (!buffers_.empty()) drain(); // the stream may still copy from and to them
        buffers_.clear();
        fetched_ = false;
    }
    quoit_device_t device_;
    Stream stream_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
    bool fetched_ = false;
};

class DeviceCollectives : public DeviceTest, public testing::WithParamInterface<Hosts> {
  protected:
    void SetUp() override
    {
        DeviceTest::SetUp();
        lagging_device_set_lag(0, 100);
    }
    void TearDown() override
    {
        EXPECT_EQ(lagging_device_counters().unpinned, 0u) << "copied through memory that is not pinned";
        DeviceTest::TearDown();
    }
};

std::string print_hosts(const testing::TestParamInfo<Hosts> &info)
{
    std::string text = "ranks_" + name_of(info.param);
    for (char &each : text)
        if (each == '+') each = '_';
    return text + "_" + std::to_string(info.index);
}

// A case of a collective with blocks of about `bytes`; the same on all ranks.
Case make_case(std::mt19937_64 &random, Collective collective, int size, size_t bytes)
{
    static const quoit_dtype_t dtypes[] = {QUOIT_F32, QUOIT_I64, QUOIT_U8, QUOIT_BF16};
    static const quoit_op_t ops[] = {QUOIT_SUM, QUOIT_MAX, QUOIT_AVG, QUOIT_PREMUL_SUM};
    Case one;
    one.collective = collective;
    do {
        one.dtype = dtypes[random() % (bytes > 100000 ? 2 : 4)]; // the reference of narrow floats is slow
        one.op = ops[random() % 4];
    } while (reduces(collective) && quoit_op_check(one.dtype, one.op) != QUOIT_OK);
    one.count = (bytes + quoit_dtype_size(one.dtype) - 1) / quoit_dtype_size(one.dtype);
    if (has_parts(collective)) one.counts = uneven_counts(random, collective, size, one.count);
    one.root = static_cast<int>(random() % static_cast<size_t>(size));
    one.in_place = random() % 2 && works_in_place(collective);
    one.values = random() % 1000;
    return one;
}

// A mask of the ranks whose buffers are on the device: all of them, then each mixture.
void every_collective(const Hosts &host_of, quoit_device_t device, const std::vector<size_t> &sizes, bool mixed)
{
    ASSERT_TRUE(run_ranks({.host_of = host_of}, [&](Rank &self) {
        OnDevice here(device);
        for (size_t bytes : sizes)
            for (int each = 0; each < static_cast<int>(Collective::Count); each++) {
                Case one = make_case(self.random, static_cast<Collective>(each), self.size, bytes);
                uint64_t mask = self.random() | (mixed ? 0 : ~uint64_t(0));
                if (!mixed) one.shared = 0;
                else one.shared = self.random(); // those of the host may be read where they lie
                bool on_device = mask >> self.rank & 1;
                if (on_device) one.shared &= ~(uint64_t(1) << self.rank);
                std::string wrong = perform(one, self.comm, self.random() % 2, on_device ? &here : nullptr);
                EXPECT_EQ(wrong, "") << name_of(host_of) << ", on the device: " << (mask & ((1u << self.size) - 1));
                if (!wrong.empty()) return;
            }
    }));
}

TEST_P(DeviceCollectives, AllRanks)
{
    every_collective(GetParam(), device, {0, 1, 1001, eager, eager + 8, 16388, 300004, chunk + 104, 2 * chunk + 1000}, false);
}

TEST_P(DeviceCollectives, SomeRanks) { every_collective(GetParam(), device, {1, 3000, 20000, 262152, chunk + 104}, true); }

TEST_P(DeviceCollectives, EveryRoot)
{
    ASSERT_TRUE(run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        OnDevice here(device);
        for (int root = 0; root < self.size; root++)
            for (int each = 0; each < static_cast<int>(Collective::Count); each++) {
                if (!is_rooted(static_cast<Collective>(each))) continue;
                for (size_t bytes : {size_t(40), size_t(30000)}) {
                    Case one = make_case(self.random, static_cast<Collective>(each), self.size, bytes);
                    one.root = root;
                    std::string wrong = perform(one, self.comm, true, &here);
                    EXPECT_EQ(wrong, "");
                    if (!wrong.empty()) return;
                }
            }
    }));
}

// Each byte of an input is copied to the host once, and each of an output back; the blocks of one buffer in one copy, where a chunk holds them.
TEST_P(DeviceCollectives, CopiesWhatThereIs)
{
    const Hosts &host_of = GetParam();
    const size_t n = host_of.size(), count = 1000, block = count * sizeof(float);
    std::atomic<uint64_t> copies{0}, bytes{0};
    auto step = [&](Rank &self, Collective collective, size_t in, size_t out, bool takes) {
        Case one;
        one.collective = collective;
        one.count = count;
        OnDevice here(device);
        Operation operation(one, self.comm, &here);
        ASSERT_TRUE(here.drain());
        self.meet();
        if (self.rank == 0) {
            lagging_device_reset();
            copies = bytes = 0;
        }
        self.meet();
        ASSERT_EQ(operation.issue(nullptr), QUOIT_OK) << quoit_last_error();
        copies += (in > 0 ? 1 : 0) + (out > 0 && takes ? 1 : 0);
        bytes += in + (takes ? out : 0);
        self.meet();
        if (self.rank == 0) {
            EXPECT_EQ(lagging_device_counters().copies, copies) << name_of(collective);
            EXPECT_EQ(lagging_device_counters().bytes, bytes) << name_of(collective);
        }
        self.meet();
        here.fetch();
        EXPECT_EQ(operation.check(), "");
    };
    ASSERT_TRUE(run_ranks({.host_of = host_of}, [&](Rank &self) {
        const bool root = self.rank == 0;
        step(self, Collective::Allreduce, block, block, true);
        step(self, Collective::Reduce, block, block, root);
        step(self, Collective::Allgather, block, block * n, true);
        step(self, Collective::ReduceScatter, block * n, block, true);
        step(self, Collective::Alltoall, block * n, block * n, true);
        step(self, Collective::Gather, block, block * n, root);
        step(self, Collective::Scatter, root ? block * n : 0, block, true);
        step(self, Collective::Barrier, 0, 0, true);
    }));
}

const std::vector<Hosts> topologies = worlds({{0}, {0, 0}, {0, 0, 0}, {0, 1}, {0, 1, 2}, {0, 0, 1}, {0, 0, 1, 1}, {0, 1, 0, 2, 2}});
INSTANTIATE_TEST_SUITE_P(All, DeviceCollectives, testing::ValuesIn(topologies), print_hosts);

// ------------------------------------------------------------------ streams

class DeviceStreams : public DeviceTest {};

// Nobody's barrier is done, and nobody's stream passes it, before all streams have come to it.
TEST_F(DeviceStreams, ABarrierIsOfTheStreams)
{
    for (const Hosts &host_of : {Hosts{0, 0, 0}, Hosts{0, 1, 1}, Hosts{0}}) {
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            Pinned gate(sizeof(uint64_t));
            Stream stream;
            auto *word = static_cast<uint64_t *>(gate.pointer);
            *word = 0;
            const bool last = self.rank == self.size - 1;
            if (last) {
                ASSERT_EQ(lagging_device.stream_wait_host(stream.pointer, word, 1), QUOIT_OK);
            }
            quoit_call_t call = stream.call(device);
            quoit_request_t *request = nullptr;
            device_event_t *behind = nullptr;
            ASSERT_EQ(lagging_device.event_create(&behind), QUOIT_OK);
            ASSERT_EQ(quoit_barrier(self.comm, &call, &request), QUOIT_OK) << quoit_last_error();
            ASSERT_EQ(lagging_device.event_record(behind, stream.pointer), QUOIT_OK);
            EXPECT_EQ(quoit_request_wait(request, 20), QUOIT_IN_PROGRESS) << "rank " << self.rank;
            EXPECT_EQ(lagging_device.event_query(behind), QUOIT_IN_PROGRESS) << "rank " << self.rank;
            self.meet();
            if (last) __atomic_store_n(word, 1, __ATOMIC_RELEASE);
            EXPECT_EQ(wait_limited(request), QUOIT_OK) << quoit_request_error(request);
            EXPECT_EQ(lagging_device_wait(behind), QUOIT_OK) << quoit_last_error();
            quoit_request_free(request);
            lagging_device.event_destroy(behind);
            self.meet();
        });
    }
}

Case blocks_of(Collective collective, size_t count, int size)
{
    Case one;
    one.collective = collective;
    one.count = count;
    if (has_parts(collective)) one.counts.assign(static_cast<size_t>(collective == Collective::Alltoallv ? size * size : size), count);
    return one;
}

const Collective of_blocks[] = {Collective::Allgather, Collective::Allgatherv, Collective::ReduceScatter, Collective::ReduceScatterv, Collective::Alltoall,
                                Collective::Alltoallv, Collective::Gather, Collective::Gatherv, Collective::Scatter, Collective::Scatterv};

// A copy that fails ends the operation on both ranks, with an error that names it; what was copied of other pieces is over by then.
TEST_F(DeviceStreams, AFailingCopyIsAnError)
{
    for (Collective collective : of_blocks)
        for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
            std::atomic<int> systems{0};
            lagging_device_reset();
            run_ranks({.host_of = host_of}, [&](Rank &self) {
                OnDevice here(device);
                Operation operation(blocks_of(collective, 40000, self.size), self.comm, &here);
                ASSERT_TRUE(here.drain());
                self.meet();
                if (self.rank == 0) lagging_device_fail_next_copy(); // whoever is first
                self.meet();
                quoit_status_t status = operation.issue(nullptr);
                systems += status == QUOIT_ERR_SYSTEM;
                std::string text = quoit_last_error();
                if (status == QUOIT_OK) { // it only gave, and had nothing more to do when the other failed: its next call tells
                    float value = 0;
                    status = quoit_allreduce(self.comm, &value, &value, 1, QUOIT_F32, QUOIT_SUM, nullptr, nullptr);
                    text = quoit_last_error();
                    systems += status == QUOIT_ERR_SYSTEM;
                }
                EXPECT_NE(text.find("as the test asked"), std::string::npos) << text;
                self.meet();
            });
            lagging_device_reset();
            EXPECT_EQ(systems, 2) << name_of(collective) << ", " << name_of(host_of);
        }
}

// One rank's stream never comes to the operation: all end at their deadlines, with nothing queued behind that stream.
TEST_F(DeviceStreams, OneThatStandsStill)
{
    for (Collective collective : {Collective::Allgather, Collective::ReduceScatter, Collective::Alltoallv}) {
        run_ranks({.host_of = {0, 0, 1}}, [&](Rank &self) {
            Pinned gate(sizeof(uint64_t));
            auto *word = static_cast<uint64_t *>(gate.pointer);
            *word = 0;
            OnDevice here(device);
            if (self.rank == 1) {
                ASSERT_EQ(lagging_device.stream_wait_host(here.stream(), word, 1), QUOIT_OK);
            }
            Operation operation(blocks_of(collective, 3000, self.size), self.comm, &here);
            quoit_request_t *request = nullptr;
            double begun = seconds();
            ASSERT_EQ(operation.issue(&request, 400), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(wait_limited(request, 10 * slow()), QUOIT_ERR_TIMEOUT) << quoit_request_error(request);
            EXPECT_LT(seconds() - begun, 5 * slow());
            __atomic_store_n(word, 1, __ATOMIC_RELEASE);
            quoit_request_free(request);
            self.meet();
        });
    }
}

// With QUOIT_NET_CHUNK_SIZE=4M a chunk has 16 MiB of the root's blocks, and four chunks may be in flight: the root holds one of them. What is in
// pinned memory beside that is the test's own images, counted before.
TEST_F(DeviceStreams, ARootOfManyBlocksHoldsOneChunk)
{
    const size_t block = 9 << 20, limit = 16 << 20;
    std::atomic<uint64_t> before{0};
    lagging_device_set_lag(0, 10);
    ASSERT_TRUE(run_ranks({.host_of = {0, 1, 2, 3}}, [&](Rank &self) {
        for (Collective collective : {Collective::Scatter, Collective::Gather}) {
            OnDevice here(device);
            Operation operation(blocks_of(collective, block / 4, self.size), self.comm, &here);
            ASSERT_TRUE(here.drain());
            self.meet();
            if (self.rank == 0) {
                lagging_device_reset();
                before = lagging_device_counters().pinned;
            }
            self.meet();
            ASSERT_EQ(operation.issue(nullptr), QUOIT_OK) << quoit_last_error();
            here.fetch();
            EXPECT_EQ(operation.check(), "");
            self.meet();
            if (self.rank == 0) {
                EXPECT_GE(lagging_device_counters().pinned_most - before, limit / 2) << "nothing was staged";
                EXPECT_LE(lagging_device_counters().pinned_most - before, limit + (4 << 20) + 3 * (12 << 20) + (1 << 20)) << name_of(collective);
            }
            self.meet();
        }
    }));
}

} // namespace
