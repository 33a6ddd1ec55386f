// SPDX-License-Identifier: Apache-2.0
// Everything at once: one random schedule for all ranks, of collectives and messages on random groups, issued by several threads, hundreds
// in flight, waited for in another order than issued, with delays of a rank's own. Every result is compared with a model.
//
// Terms: a *lane* is one thread of each rank; every group belongs to one lane, which issues all of its operations, so that they have the
// same order on all ranks. A *step* is one operation of a group. Why it cannot hang: of the ranks that wait in a lane, the one that has
// come least far waits for a step that all others have issued. That is not true of a send to a recv from any source, whose place a later
// message of another rank may have taken: those are waited for at the end.
//
// Messages: a tag has one length, and is received either always from a named source or always from any. So all that is sent is received,
// and the n-th message of a source and tag is known by its content, whichever recv it met.
#include "operations.h"
#include "ranks.h"

#include <gtest/gtest.h>

#include <ctime>
#include <map>
#include <numeric>
#include <thread>
#include <unistd.h>

using namespace comm_test;

namespace {

constexpr int LANES = 3;
constexpr uint32_t TAGS = 6; // the upper half is received from any source

struct Group {
    std::vector<int> ranks; // of the world, in the group's order
    int lane = 0;
};

struct Step {
    int group = 0;
    bool message = false;
    Case what;                  // collectives
    int from = 0, to = 0;       // messages: ranks of the group; tag of any source: all others send to `to`
    uint32_t tag = 0;
    bool blocking = false;
};

struct Schedule {
    std::vector<Group> groups;
    std::vector<std::vector<Step>> lanes;
    int depth = 0; // operations of a lane in flight
};

bool from_any(uint32_t tag) { return tag >= TAGS / 2; }
size_t length_of(uint32_t tag) { return tag % 3 == 0 ? 24 : tag % 3 == 1 ? 4000 : 20000; }

size_t any_bytes(std::mt19937_64 &random)
{
    uint64_t size = random() % 100;
    return size < 80 ? 1 + random() % 1024 : size < 98 ? 1 + random() % 16384 : 1 + random() % (512 << 10);
}

Case any_collective(std::mt19937_64 &random, int size)
{
    static const quoit_dtype_t dtypes[] = {QUOIT_F32, QUOIT_I32, QUOIT_F64, QUOIT_U8, QUOIT_BF16, QUOIT_I64, QUOIT_F16};
    static const quoit_op_t ops[] = {QUOIT_SUM, QUOIT_MIN, QUOIT_MAX, QUOIT_PROD};
    Case one;
    one.collective = static_cast<Collective>(random() % static_cast<size_t>(Collective::Count));
    one.dtype = dtypes[random() % std::size(dtypes)];
    one.op = ops[random() % std::size(ops)];
    one.count = any_bytes(random) / quoit_dtype_size(one.dtype);
    if (has_parts(one.collective)) one.counts = uneven_counts(random, one.collective, size, one.count / static_cast<size_t>(size) + 1);
    one.root = static_cast<int>(random() % static_cast<size_t>(size));
    one.values = random() % 1000;
    return one;
}

Schedule make_schedule(std::mt19937_64 &random, int ranks, int steps)
{
    Schedule schedule;
    int groups = LANES + static_cast<int>(random() % 6);
    for (int i = 0; i < groups; i++) {
        Group group;
        group.ranks.resize(static_cast<size_t>(ranks));
        std::iota(group.ranks.begin(), group.ranks.end(), 0);
        std::shuffle(group.ranks.begin(), group.ranks.end(), random);
        if (i >= LANES) group.ranks.resize(1 + random() % static_cast<size_t>(ranks));
        group.lane = i % LANES;
        schedule.groups.push_back(group);
    }
    schedule.lanes.resize(LANES);
    schedule.depth = random() % 2 ? 300 : 1 + static_cast<int>(random() % 60);
    for (int i = 0; i < steps; i++) {
        Step step;
        step.group = static_cast<int>(random() % static_cast<size_t>(groups));
        const Group &group = schedule.groups[static_cast<size_t>(step.group)];
        size_t size = group.ranks.size();
        step.message = random() % 3 == 0;
        step.tag = static_cast<uint32_t>(random() % TAGS);
        step.from = static_cast<int>(random() % size);
        step.to = static_cast<int>(random() % size);
        step.blocking = !step.message && random() % 10 == 0;
        if (!step.message) step.what = any_collective(random, static_cast<int>(size));
        schedule.lanes[static_cast<size_t>(group.lane)].push_back(step);
    }
    return schedule;
}

// ------------------------------------------------------------------ one lane of one rank

std::vector<uint8_t> message_bytes(int group, int source, int to, uint32_t tag, uint64_t number)
{
    std::vector<uint8_t> bytes(length_of(tag));
    std::mt19937 random(static_cast<uint32_t>(number * 1000003 + tag * 1009 + static_cast<uint32_t>(group * 97 + source * 11 + to)));
    for (uint8_t &each : bytes) each = static_cast<uint8_t>(random());
    return bytes;
}

class Lane {
  public:
    Lane(const Schedule &schedule, int lane, int world_rank, std::vector<quoit_comm_t *> comms, uint64_t own_seed)
        : schedule_(schedule), steps_(schedule.lanes[static_cast<size_t>(lane)]), lane_(lane), world_rank_(world_rank), comms_(std::move(comms)), own_(own_seed)
    {
    }

    void run()
    {
        for (at_ = 0; at_ < steps_.size() && wrong.empty(); at_++) {
            const Step &step = steps_[at_];
            if (!comms_[static_cast<size_t>(step.group)]) continue;
            if (own_() % 16 == 0) usleep(static_cast<useconds_t>(own_() % 400));
            step.message ? issue_messages(step) : issue_collective(step);
            while (static_cast<int>(flying_.size()) >= schedule_.depth && wrong.empty()) end_one();
        }
        for (Flying &each : patient_) flying_.push_back(std::move(each));
        while (!flying_.empty()) end_one();
        if (wrong.empty()) check_messages();
    }

    std::string wrong; // empty, or what and where

  private:
    struct Flying {
        size_t step;
        quoit_request_t *request = nullptr;
        std::unique_ptr<Operation> operation; // collective
        std::shared_ptr<std::vector<uint8_t>> bytes; // message
        int received = -1;                    // its place in received_
    };
    struct Received {
        int group, to, source; // source: as it was told
        uint32_t tag;
        std::shared_ptr<std::vector<uint8_t>> bytes;
    };

    void fail(size_t step, const std::string &text)
    {
        const Step &one = steps_[step];
        if (!wrong.empty()) return;
        wrong = "rank " + std::to_string(world_rank_) + ", lane " + std::to_string(lane_) + ", step " + std::to_string(step) + ", group " + std::to_string(one.group) + ": " +
                (one.message ? "message, tag " + std::to_string(one.tag) : one.what.describe()) + ": " + text;
    }

    void issue_collective(const Step &step)
    {
        quoit_comm_t *comm = comms_[static_cast<size_t>(step.group)];
        Flying one;
        one.step = at_;
        one.operation = std::make_unique<Operation>(step.what, comm);
        quoit_status_t status = one.operation->issue(step.blocking ? nullptr : &one.request);
        if (status != QUOIT_OK) return fail(at_, quoit_last_error());
        if (step.blocking)
            finish(one);
        else
            flying_.push_back(std::move(one));
    }

    void post(const Step &step, int peer, bool receives)
    {
        quoit_comm_t *comm = comms_[static_cast<size_t>(step.group)];
        int me = quoit_comm_rank(comm);
        Flying one;
        one.step = at_;
        size_t length = length_of(step.tag);
        quoit_status_t status;
        if (receives) {
            one.bytes = std::make_shared<std::vector<uint8_t>>(length);
            one.received = static_cast<int>(received_.size());
            received_.push_back({step.group, me, -1, step.tag, one.bytes});
            status = quoit_recv(comm, one.bytes->data(), length, QUOIT_U8, peer, step.tag, nullptr, &one.request);
        } else {
            uint64_t number = sent_[{step.group, peer, step.tag}]++;
            one.bytes = std::make_shared<std::vector<uint8_t>>(message_bytes(step.group, me, peer, step.tag, number));
            status = quoit_send(comm, one.bytes->data(), length, QUOIT_U8, peer, step.tag, nullptr, &one.request);
        }
        if (status != QUOIT_OK) return fail(at_, quoit_last_error());
        (from_any(step.tag) && !receives ? patient_ : flying_).push_back(std::move(one));
    }

    void issue_messages(const Step &step)
    {
        int me = quoit_comm_rank(comms_[static_cast<size_t>(step.group)]), size = quoit_comm_size(comms_[static_cast<size_t>(step.group)]);
        if (from_any(step.tag)) {
            for (int source = 0; source < size && me == step.to; source++)
                if (source != me) post(step, QUOIT_ANY_SOURCE, true);
            if (me != step.to) post(step, step.to, false);
        } else {
            if (me == step.to) post(step, step.from, true);
            if (me == step.from) post(step, step.to, false);
        }
    }

    void end_one()
    {
        size_t which = own_() % 3 ? own_() % flying_.size() : 0;
        Flying one = std::move(flying_[which]);
        flying_.erase(flying_.begin() + static_cast<long>(which));
        quoit_status_t status = QUOIT_IN_PROGRESS;
        if (own_() % 4 == 0) status = quoit_request_test(one.request);
        while (status == QUOIT_IN_PROGRESS) status = quoit_request_wait(one.request, own_() % 4 ? -1 : static_cast<int>(own_() % 3));
        if (status != QUOIT_OK) fail(one.step, quoit_request_error(one.request));
        if (status == QUOIT_OK) finish(one);
        quoit_request_free(one.request);
    }

    void finish(Flying &one)
    {
        if (one.operation) {
            std::string text = one.operation->check();
            if (!text.empty()) fail(one.step, text);
        } else if (one.received >= 0) {
            Received &got = received_[static_cast<size_t>(one.received)];
            size_t count = 0;
            if (quoit_request_source(one.request, &got.source, &count) != QUOIT_OK || count != one.bytes->size()) fail(one.step, "no source is told, or another length");
        }
    }

    // In the order in which the recvs were posted, those that met one source met its messages in order.
    void check_messages()
    {
        std::map<std::tuple<int, int, uint32_t>, uint64_t> next;
        for (const Received &got : received_) {
            uint64_t number = next[{got.group, got.source, got.tag}]++;
            if (*got.bytes == message_bytes(got.group, got.source, got.to, got.tag, number)) continue;
            wrong = "rank " + std::to_string(world_rank_) + ", lane " + std::to_string(lane_) + ", group " + std::to_string(got.group) + ": message #" + std::to_string(number) +
                    " of source " + std::to_string(got.source) + ", tag " + std::to_string(got.tag) + " has other bytes";
            return;
        }
    }

    const Schedule &schedule_;
    const std::vector<Step> &steps_;
    int lane_, world_rank_;
    std::vector<quoit_comm_t *> comms_; // NULL: not a member
    std::mt19937_64 own_;
    size_t at_ = 0;
    std::vector<Flying> flying_, patient_;
    std::vector<Received> received_;
    std::map<std::tuple<int, int, uint32_t>, uint64_t> sent_; // messages by group, destination, tag
};

// ------------------------------------------------------------------ one round

void play(Rank &self, const Schedule &schedule, const std::string &name, uint64_t round_seed)
{
    std::vector<quoit_comm_t *> comms(schedule.groups.size());
    std::mt19937_64 own(round_seed * 31 + static_cast<uint64_t>(self.rank));
    std::vector<size_t> order(comms.size());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), own); // groups need no order
    for (size_t i : order) {
        const auto &ranks = schedule.groups[i].ranks;
        if (std::find(ranks.begin(), ranks.end(), self.rank) == ranks.end()) continue;
        std::string group = name + "." + std::to_string(i);
        ASSERT_EQ(quoit_comm_create_group(self.comm, ranks.data(), static_cast<int>(ranks.size()), group.c_str(), nullptr, &comms[i]), QUOIT_OK) << quoit_last_error();
    }
    std::vector<std::unique_ptr<Lane>> lanes;
    std::vector<std::thread> threads;
    for (int lane = 0; lane < LANES; lane++) {
        std::vector<quoit_comm_t *> own_comms(comms.size());
        for (size_t i = 0; i < comms.size(); i++)
            if (schedule.groups[i].lane == lane) own_comms[i] = comms[i];
        lanes.push_back(std::make_unique<Lane>(schedule, lane, self.rank, own_comms, own()));
    }
    for (auto &lane : lanes) threads.emplace_back([&lane] { lane->run(); });
    for (auto &thread : threads) thread.join();
    for (const auto &lane : lanes) EXPECT_EQ(lane->wrong, "") << name << ", QUOIT_TEST_SEED=" << seed() << ", " << name_of(self.world->host_of) << " ranks, depth " << schedule.depth;
    std::shuffle(order.begin(), order.end(), own);
    for (size_t i : order) quoit_comm_destroy(comms[i]);
}

class Stress : public testing::TestWithParam<std::vector<int>> {};
std::string print_hosts(const testing::TestParamInfo<std::vector<int>> &info)
{
    std::string text = "ranks_" + name_of(info.param);
    std::replace(text.begin(), text.end(), '+', '_');
    return text;
}
INSTANTIATE_TEST_SUITE_P(All, Stress, testing::Values(std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 1}, std::vector<int>{0, 0, 1, 2}), print_hosts);

// Long: ten minutes of CPU for all topologies together.
TEST_P(Stress, RandomSchedules)
{
    const clock_t most = long_run() ? static_cast<clock_t>(200) * CLOCKS_PER_SEC : 0;
    const int rounds = has_thread_sanitizer() ? 1 : 2, steps = has_sanitizer() ? 150 : 400;
    const clock_t begun = clock();
    World world;
    world.host_of = GetParam();
    world.timeout_ms = static_cast<int>(20000 * slow());
    world.limit_s = long_run() ? 3600 : 120;
    std::atomic<bool> more = true;
    std::atomic<long> operations = 0;
    run_ranks(world, [&](Rank &self) {
        for (int round = 0; more; round++) {
            uint64_t round_seed = self.random();
            std::mt19937_64 random(round_seed);
            Schedule schedule = make_schedule(random, self.size, steps);
            play(self, schedule, "round " + std::to_string(round) + " of seed " + std::to_string(round_seed), round_seed);
            self.meet();
            if (self.rank == 0) {
                for (const auto &lane : schedule.lanes) operations += static_cast<long>(lane.size());
                more = (most ? clock() - begun < most : round + 1 < rounds) && !testing::Test::HasFailure();
            }
            self.meet();
        }
    });
    printf("%ld operations on %s ranks, seed %llu\n", operations.load(), name_of(GetParam()).c_str(), static_cast<unsigned long long>(seed()));
}

} // namespace
