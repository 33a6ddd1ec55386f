// SPDX-License-Identifier: Apache-2.0
// Operations that nobody waits for at once, from several threads, on several communicators; and messages between ranks.
#include "operations.h"
#include "ranks.h"
#include "test/support/bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <numeric>
#include <thread>

using namespace comm_test;

namespace {

using Hosts = std::vector<int>;
const std::vector<Hosts> topologies = worlds({{0, 0}, {0, 0, 0, 0}, {0, 1}, {0, 0, 1, 1}, {0, 0, 0, 1, 2, 2}});
std::string print_hosts(const testing::TestParamInfo<Hosts> &info)
{
    std::string text = "ranks_" + name_of(info.param);
    for (char &each : text)
        if (each == '+') each = '_';
    return text + "_" + std::to_string(info.index);
}

class Requests : public testing::TestWithParam<Hosts> {};
class Messages : public testing::TestWithParam<Hosts> {};
INSTANTIATE_TEST_SUITE_P(All, Requests, testing::ValuesIn(topologies), print_hosts);
INSTANTIATE_TEST_SUITE_P(All, Messages, testing::ValuesIn(topologies), print_hosts);

Case any_case(std::mt19937_64 &random, int size, size_t bytes)
{
    Case one;
    one.collective = static_cast<Collective>(random() % static_cast<size_t>(Collective::Count));
    static const quoit_dtype_t dtypes[] = {QUOIT_F32, QUOIT_I32, QUOIT_F64, QUOIT_U8, QUOIT_BF16};
    one.dtype = dtypes[random() % 5];
    one.count = random() % (bytes / quoit_dtype_size(one.dtype) + 1);
    if (has_parts(one.collective)) one.counts = uneven_counts(random, one.collective, size, one.count);
    one.root = static_cast<int>(random() % static_cast<size_t>(size));
    one.values = random() % 1000;
    return one;
}

size_t any_size(std::mt19937_64 &random)
{
    static const size_t limits[] = {64, 2000, 40000, 300000};
    return limits[random() % 4];
}

quoit_status_t wait_limited(quoit_request_t *request, double limit_s = 60)
{
    double until = seconds() + limit_s;
    for (;;) {
        quoit_status_t status = quoit_request_wait(request, 50);
        if (status != QUOIT_IN_PROGRESS || seconds() > until) return status;
    }
}

// Under ThreadSanitizer a few will do.
int rounds(int many) { return has_thread_sanitizer() ? many / 4 : many; }

TEST_P(Requests, ManyInFlightEndedInAnyOrder)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        std::mt19937_64 own(seed() + static_cast<uint64_t>(self.rank));
        for (int round = 0; round < 3; round++) {
            std::vector<std::unique_ptr<Operation>> operations;
            std::vector<quoit_request_t *> requests(has_thread_sanitizer() ? 25 : 60);
            for (auto &request : requests) {
                operations.push_back(std::make_unique<Operation>(any_case(self.random, self.size, any_size(self.random)), self.comm));
                ASSERT_EQ(operations.back()->issue(&request), QUOIT_OK) << quoit_last_error();
            }
            std::vector<size_t> order(requests.size());
            std::iota(order.begin(), order.end(), 0);
            if (round > 0) std::shuffle(order.begin(), order.end(), own);
            if (round == 2) std::reverse(order.begin(), order.end());
            for (size_t each : order) {
                quoit_status_t status = QUOIT_IN_PROGRESS;
                if (own() % 2) {
                    double until = seconds() + 60;
                    while ((status = quoit_request_test(requests[each])) == QUOIT_IN_PROGRESS && seconds() < until) std::this_thread::yield();
                } else {
                    status = wait_limited(requests[each]);
                }
                EXPECT_EQ(status, QUOIT_OK) << operations[each]->what().describe() << ": " << quoit_request_error(requests[each]);
                EXPECT_EQ(operations[each]->check(), "");
                quoit_request_free(requests[each]);
            }
        }
    });
}

// Freed at once: the operations end unattended, and the next blocking one comes after them.
TEST_P(Requests, FreedWithoutWaiting)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        for (int round = 0; round < rounds(20); round++) {
            std::vector<std::unique_ptr<Operation>> operations;
            for (int i = 0; i < 10; i++) {
                operations.push_back(std::make_unique<Operation>(any_case(self.random, self.size, any_size(self.random)), self.comm));
                quoit_request_t *request = nullptr;
                ASSERT_EQ(operations.back()->issue(&request), QUOIT_OK) << quoit_last_error();
                quoit_request_free(request);
            }
            ASSERT_EQ(quoit_barrier(self.comm, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            for (auto &each : operations) EXPECT_EQ(each->check(), "");
        }
    });
}

// Rank 0 issues and stays away from the library; the others' blocking calls end, driven by rank 0's progress thread.
TEST_P(Requests, ProgressWithoutCalls)
{
    std::atomic<int> done = 0;
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        for (size_t bytes : {size_t(64), size_t(50000), size_t(1000000)}) {
            if (self.rank == 0) done = 0;
            ASSERT_EQ(quoit_barrier(self.comm, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            Case one;
            one.count = bytes / 4;
            Operation operation(one, self.comm);
            quoit_request_t *request = nullptr;
            ASSERT_EQ(operation.issue(self.rank == 0 ? &request : nullptr), QUOIT_OK) << quoit_last_error();
            if (self.rank == 0) {
                double until = seconds() + 30;
                while (done < self.size - 1 && seconds() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                EXPECT_EQ(done, self.size - 1) << "nobody drove the operation of " << bytes << " bytes while rank 0 slept";
                EXPECT_EQ(wait_limited(request), QUOIT_OK) << quoit_last_error();
                quoit_request_free(request);
            } else {
                done++;
            }
            EXPECT_EQ(operation.check(), "");
        }
    });
}

// Several threads of each rank, each on a communicator of its own, blocking and not.
TEST_P(Requests, ThreadsOnSeveralCommunicators)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        std::vector<int> all(static_cast<size_t>(self.size));
        std::iota(all.begin(), all.end(), 0);
        constexpr int threads = 4;
        quoit_comm_t *comms[threads] = {};
        for (int i = 0; i < threads; i++) {
            int which = self.rank % 2 ? threads - 1 - i : i; /* in another order on odd ranks */
            std::string name = "thread " + std::to_string(which);
            ASSERT_EQ(quoit_comm_create_group(self.comm, all.data(), self.size, name.c_str(), nullptr, &comms[which]), QUOIT_OK)
                << quoit_last_error();
        }
        std::vector<std::thread> workers;
        for (int i = 0; i < threads; i++)
            workers.emplace_back([&, i] {
                std::mt19937_64 random(seed() + static_cast<uint64_t>(i)), own(random() + static_cast<uint64_t>(self.rank));
                std::deque<std::pair<std::unique_ptr<Operation>, quoit_request_t *>> flying;
                auto land = [&] {
                    auto [operation, request] = std::move(flying.front());
                    flying.pop_front();
                    EXPECT_EQ(wait_limited(request), QUOIT_OK) << operation->what().describe() << ": " << quoit_request_error(request);
                    EXPECT_EQ(operation->check(), "") << "thread " << i;
                    quoit_request_free(request);
                };
                for (int k = 0; k < rounds(60); k++) {
                    auto operation = std::make_unique<Operation>(any_case(random, self.size, any_size(random)), comms[i]);
                    if (own() % 2) {
                        EXPECT_EQ(operation->issue(nullptr), QUOIT_OK) << operation->what().describe() << ": " << quoit_last_error();
                        EXPECT_EQ(operation->check(), "") << "thread " << i;
                        continue;
                    }
                    quoit_request_t *request = nullptr;
                    EXPECT_EQ(operation->issue(&request), QUOIT_OK) << quoit_last_error();
                    flying.emplace_back(std::move(operation), request);
                    if (own() % 4 == 0) land();
                }
                while (!flying.empty()) land();
            });
        for (auto &worker : workers) worker.join();
        for (auto *comm : comms) quoit_comm_destroy(comm);
    });
}

// A thread of each rank waits for a message that its other thread brings about only after its own collectives.
TEST_P(Requests, WaiterIsNotHeldUpByAnotherThreadsWait)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        int next = (self.rank + 1) % self.size, before = (self.rank + self.size - 1) % self.size;
        std::vector<int> all(static_cast<size_t>(self.size));
        std::iota(all.begin(), all.end(), 0);
        for (int round = 0; round < 20; round++) {
            int received = 0;
            std::thread receiver([&] {
                EXPECT_EQ(quoit_recv(self.comm, &received, 1, QUOIT_I32, before, 5, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            });
            std::thread grouper([&] { /* claims the engine again and again */
                for (int i = 0; i < 10; i++) {
                    quoit_comm_t *group = nullptr;
                    EXPECT_EQ(quoit_comm_create_group(self.comm, all.data(), self.size, "claims", nullptr, &group), QUOIT_OK) << quoit_last_error();
                    quoit_comm_destroy(group);
                }
            });
            for (int i = 0; i < 10; i++) {
                Case one;
                one.count = 100;
                EXPECT_EQ(perform(one, self.comm, i % 2), "");
            }
            int sent = 1000 * round + self.rank;
            EXPECT_EQ(quoit_send(self.comm, &sent, 1, QUOIT_I32, next, 5, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            receiver.join();
            grouper.join();
            EXPECT_EQ(received, 1000 * round + before);
        }
    });
}

// One thread waits for a short operation, another is done; what stays behind unattended must still be driven.
TEST_P(Requests, NothingIsLeftBehindByWaiters)
{
    std::atomic<int> done = 0;
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        std::vector<int> all(static_cast<size_t>(self.size));
        std::iota(all.begin(), all.end(), 0);
        quoit_comm_t *other = nullptr, *third = nullptr;
        ASSERT_EQ(quoit_comm_create_group(self.comm, all.data(), self.size, "other", nullptr, &other), QUOIT_OK) << quoit_last_error();
        ASSERT_EQ(quoit_comm_create_group(self.comm, all.data(), self.size, "third", nullptr, &third), QUOIT_OK) << quoit_last_error();
        for (int round = 0; round < (long_run() ? 300 : rounds(40)); round++) {
            if (self.rank == 0) done = 0;
            ASSERT_EQ(quoit_barrier(self.comm, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            Case one, late;
            one.count = 20;
            late.count = 30000;
            Operation operation(late, third);
            quoit_request_t *request = nullptr;
            if (self.rank == 0) {
                ASSERT_EQ(operation.issue(&request), QUOIT_OK) << quoit_last_error();
            }
            std::thread waiter([&] { EXPECT_EQ(perform(one, other, true), ""); });
            EXPECT_EQ(perform(one, self.comm, true), "");
            waiter.join();
            /* Rank 0 makes no call now; the others' calls need its part. */
            if (self.rank == 0) {
                double until = seconds() + 30;
                while (done < self.size - 1 && seconds() < until) std::this_thread::sleep_for(std::chrono::microseconds(200));
                EXPECT_EQ(done, self.size - 1) << "round " << round << ": nobody drove what rank 0 had issued";
                EXPECT_EQ(wait_limited(request), QUOIT_OK);
                quoit_request_free(request);
            } else {
                EXPECT_EQ(operation.issue(nullptr, 35000), QUOIT_OK) << quoit_last_error();
                done++;
            }
            EXPECT_EQ(operation.check(), "");
        }
        quoit_comm_destroy(third);
        quoit_comm_destroy(other);
    });
}

// The look that finds a deadline over comes just before a sleep, as it does always when nobody polls, and on a busy machine now and then.
TEST(Request, ADeadlineIsNotSleptThrough)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
        SCOPED_TRACE(name_of(host_of));
        EXPECT_TRUE(run_ranks({.host_of = host_of}, [&](Rank &self) {
            quoit_call_t call = QUOIT_CALL_INIT;
            call.timeout_ms = 100;
            test_engine_never_polls(self.engine);
            double begun = seconds();
            EXPECT_TRUE(self.rank != 0 || quoit_barrier(self.comm, &call, nullptr) == QUOIT_ERR_TIMEOUT) << quoit_last_error();
            EXPECT_LT(seconds() - begun, 0.1 + 0.8 * slow());
            self.meet();
        }));
    }
}

// A root runs ahead of its readers until it has no slot left. Rank 2 has read the first broadcast only, rank 1 all of them, but it tells so every
// now and then: the root waits for rank 2 alone.
TEST(Request, ATimeoutBlamesOnlyWhoHoldsUpTheSlots)
{
    const size_t bytes = 40 << 10; /* five chunks: a number that does not divide the slots, so that the wait begins inside a broadcast */
    EXPECT_TRUE(run_ranks({.host_of = {0, 0, 0}}, [&](Rank &self) {
        std::vector<char> buffer(bytes, static_cast<char>(self.rank));
        quoit_call_t call = QUOIT_CALL_INIT;
        quoit_status_t status = QUOIT_OK;
        int done = 0;
        for (; status == QUOIT_OK && done < (self.rank == 2 ? 1 : 1000); done++) {
            call.timeout_ms = self.rank == 0 ? 200 : 60000;
            status = quoit_broadcast(self.comm, buffer.data(), bytes, QUOIT_U8, 0, &call, nullptr);
        }
        std::string text = quoit_last_error();
        self.meet();
        if (self.rank == 2) return;
        EXPECT_EQ(status, QUOIT_ERR_TIMEOUT) << text;
        EXPECT_NE(text.find("waiting for rank 2"), std::string::npos) << "rank " << self.rank << " after " << done << " broadcasts: " << text;
        EXPECT_EQ(text.find("rank 1 (", text.find("waiting for")), std::string::npos) << "rank " << self.rank << " after " << done << " broadcasts: " << text;
    }));
}

TEST(Request, WrongArguments)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        EXPECT_EQ(quoit_request_test(nullptr), QUOIT_ERR_INVALID);
        EXPECT_EQ(quoit_request_wait(nullptr, 1), QUOIT_ERR_INVALID);
        EXPECT_STREQ(quoit_request_error(nullptr), "");
        quoit_request_free(nullptr);
        quoit_request_t *request = nullptr;
        float value = 1, result = 0;
        ASSERT_EQ(quoit_allreduce(self.comm, &value, &result, 1, QUOIT_F32, QUOIT_SUM, nullptr, &request), QUOIT_OK);
        EXPECT_EQ(wait_limited(request), QUOIT_OK);
        EXPECT_EQ(quoit_request_wait(request, 0), QUOIT_OK); /* again */
        EXPECT_EQ(quoit_request_test(request), QUOIT_OK);
        EXPECT_STREQ(quoit_request_error(request), "");
        int source = -5;
        size_t count = 77;
        EXPECT_EQ(quoit_request_source(request, &source, &count), QUOIT_ERR_INVALID);
        EXPECT_EQ(source, -5);
        EXPECT_EQ(result, 2);
        quoit_request_free(request);
        ASSERT_EQ(quoit_recv(self.comm, &result, 1, QUOIT_F32, 1 - self.rank, 3, nullptr, &request), QUOIT_OK);
        EXPECT_EQ(quoit_request_source(request, &source, &count), QUOIT_ERR_INVALID);
        double before = seconds();
        EXPECT_EQ(quoit_request_wait(request, 30), QUOIT_IN_PROGRESS);
        EXPECT_GE(seconds() - before, 0.029);
        ASSERT_EQ(quoit_barrier(self.comm, nullptr, nullptr), QUOIT_OK);
        ASSERT_EQ(quoit_send(self.comm, &value, 1, QUOIT_F32, 1 - self.rank, 3, nullptr, nullptr), QUOIT_OK);
        EXPECT_EQ(wait_limited(request), QUOIT_OK);
        EXPECT_EQ(quoit_request_source(request, &source, &count), QUOIT_OK);
        EXPECT_EQ(source, 1 - self.rank);
        EXPECT_EQ(count, 1u);
        quoit_request_free(request);
    });
}

// ------------------------------------------------------------------ messages

std::vector<unsigned char> payload(int from, int to, uint32_t tag, int number, size_t bytes)
{
    std::vector<unsigned char> data(bytes + 1);
    uint64_t state = ((static_cast<uint64_t>(from) * 131 + static_cast<uint64_t>(to)) * 131 + tag) * 131 + static_cast<uint64_t>(number);
    test_bytes::fill(data.data(), bytes, state);
    data[bytes] = 0x5a;
    return data;
}

const size_t message_sizes[] = {0, 1, 100, 4000, 8151, 8152, 8153, 8192, 9000, 100000, 1200000};

// Everyone to everyone (itself too), several tags, all sizes; receives posted before, after, and in another order than the sends. Sends of a byte or none are
// blocking calls here and there: they leave at once, and yet behind what was handed in before.
TEST_P(Messages, OrderPerPairAndTag)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        struct Message {
            std::vector<unsigned char> data, expected;
            quoit_request_t *request = nullptr;
        };
        constexpr int tags = 3, each = 4;
        std::deque<Message> sends, receives;
        auto size_of = [](int from, int to, int tag, int number) {
            size_t index = static_cast<size_t>(from * 7 + to * 3 + tag * 5 + number * 2);
            return message_sizes[index % (sizeof message_sizes / sizeof message_sizes[0] - (has_thread_sanitizer() ? 2 : 0))];
        };
        auto post_receives = [&] {
            std::vector<int> order(static_cast<size_t>(self.size * tags));
            std::iota(order.begin(), order.end(), 0);
            std::mt19937 own(static_cast<unsigned>(self.rank));
            std::shuffle(order.begin(), order.end(), own);
            for (int which : order)
                for (int number = 0; number < each; number++) {
                    int from = which / tags, tag = which % tags;
                    Message &one = receives.emplace_back();
                    size_t bytes = size_of(from, self.rank, tag, number);
                    one.expected = payload(from, self.rank, static_cast<uint32_t>(tag), number, bytes);
                    one.data.assign(bytes + 1, 0x5a);
                    ASSERT_EQ(quoit_recv(self.comm, one.data.data(), bytes, QUOIT_U8, from, static_cast<uint32_t>(tag), nullptr, &one.request), QUOIT_OK)
                        << quoit_last_error();
                }
        };
        auto post_sends = [&] {
            for (int number = 0; number < each; number++)
                for (int tag = tags - 1; tag >= 0; tag--)
                    for (int to = 0; to < self.size; to++) {
                        Message &one = sends.emplace_back();
                        size_t bytes = size_of(self.rank, to, tag, number);
                        one.data = payload(self.rank, to, static_cast<uint32_t>(tag), number, bytes);
                        quoit_request_t **request = bytes <= 1 && number % 2 == 1 ? nullptr : &one.request;
                        ASSERT_EQ(quoit_send(self.comm, one.data.data(), bytes, QUOIT_U8, to, static_cast<uint32_t>(tag), nullptr, request), QUOIT_OK)
                            << quoit_last_error();
                    }
        };
        for (int round = 0; round < 3; round++) {
            if (round == 0) post_receives();
            ASSERT_EQ(quoit_barrier(self.comm, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            post_sends();
            if (round == 1) {
                ASSERT_EQ(quoit_barrier(self.comm, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
                std::this_thread::sleep_for(std::chrono::milliseconds(20)); /* let them come unexpected */
            }
            if (round > 0) post_receives();
            for (auto *side : {&sends, &receives})
                for (Message &one : *side) {
                    if (!one.request) continue;
                    EXPECT_EQ(wait_limited(one.request), QUOIT_OK) << quoit_request_error(one.request);
                    if (side == &receives) {
                        EXPECT_TRUE(one.data == one.expected) << "rank " << self.rank << ", " << one.expected.size() - 1 << " bytes, round " << round;
                    }
                    quoit_request_free(one.request);
                }
            sends.clear();
            receives.clear();
        }
    });
}

TEST_P(Messages, AnySource)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        for (int receiver = 0; receiver < self.size; receiver++) {
            if (self.rank != receiver) {
                std::deque<std::vector<unsigned char>> sent;
                std::vector<quoit_request_t *> requests(20);
                for (int number = 0; number < 20; number++) {
                    size_t bytes = number % 3 == 0 ? 20000 : 40;
                    sent.push_back(payload(self.rank, receiver, 9, number, bytes));
                    ASSERT_EQ(quoit_send(self.comm, sent.back().data(), bytes, QUOIT_U8, receiver, bytes == 20000 ? 10u : 9u, nullptr,
                                         &requests[static_cast<size_t>(number)]),
                              QUOIT_OK);
                }
                for (auto *request : requests) {
                    EXPECT_EQ(wait_limited(request), QUOIT_OK) << quoit_request_error(request);
                    quoit_request_free(request);
                }
                continue;
            }
            for (int tag : {9, 10}) {
                int all = (self.size - 1) * (tag == 10 ? 7 : 13);
                std::vector<int> numbers;
                for (int number = 0; number < 20; number++)
                    if ((number % 3 == 0) == (tag == 10)) numbers.push_back(number);
                std::vector<size_t> count(static_cast<size_t>(self.size));
                for (int i = 0; i < all; i++) {
                    size_t bytes = tag == 10 ? 20000 : 40, got = 0;
                    std::vector<unsigned char> data(bytes + 1, 0x5a);
                    quoit_request_t *request = nullptr;
                    int source = -1;
                    ASSERT_EQ(quoit_recv(self.comm, data.data(), bytes, QUOIT_U8, QUOIT_ANY_SOURCE, static_cast<uint32_t>(tag), nullptr, &request), QUOIT_OK);
                    ASSERT_EQ(wait_limited(request), QUOIT_OK) << quoit_request_error(request);
                    ASSERT_EQ(quoit_request_source(request, &source, &got), QUOIT_OK) << quoit_last_error();
                    EXPECT_EQ(got, bytes);
                    ASSERT_TRUE(source >= 0 && source < self.size && source != self.rank) << source;
                    size_t at = count[static_cast<size_t>(source)]++;
                    ASSERT_LT(at, numbers.size());
                    EXPECT_TRUE(data == payload(source, receiver, 9, numbers[at], bytes)) << "from " << source << ", its " << at << "th";
                    quoit_request_free(request);
                }
            }
        }
        ASSERT_EQ(quoit_barrier(self.comm, nullptr, nullptr), QUOIT_OK);
    });
}

// irecv, allreduce, send: a collective must not wait for the recv posted before it.
TEST_P(Messages, NotOrderedAgainstCollectives)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        int next = (self.rank + 1) % self.size, before = (self.rank + self.size - 1) % self.size;
        for (size_t bytes : {size_t(8), size_t(60000), size_t(900000)}) {
            std::vector<unsigned char> received(bytes + 1, 0x5a), sent = payload(self.rank, next, 1, 0, bytes);
            quoit_request_t *request = nullptr;
            ASSERT_EQ(quoit_recv(self.comm, received.data(), bytes, QUOIT_U8, before, 1, nullptr, &request), QUOIT_OK);
            Case one;
            one.count = 5000;
            EXPECT_EQ(perform(one, self.comm, true), "");
            ASSERT_EQ(quoit_send(self.comm, sent.data(), bytes, QUOIT_U8, next, 1, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(wait_limited(request), QUOIT_OK) << quoit_request_error(request);
            EXPECT_TRUE(received == payload(before, self.rank, 1, 0, bytes));
            quoit_request_free(request);
            /* isend that nobody has asked for, collective, recv */
            ASSERT_EQ(quoit_send(self.comm, sent.data(), bytes, QUOIT_U8, next, 2, nullptr, &request), QUOIT_OK);
            EXPECT_EQ(perform(one, self.comm, true), "");
            received.assign(bytes + 1, 0x5a);
            ASSERT_EQ(quoit_recv(self.comm, received.data(), bytes, QUOIT_U8, before, 2, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            EXPECT_TRUE(received == payload(before, self.rank, 1, 0, bytes));
            EXPECT_EQ(wait_limited(request), QUOIT_OK) << quoit_request_error(request);
            quoit_request_free(request);
        }
    });
}

TEST_P(Messages, HundredsInFlight)
{
    run_ranks({.host_of = GetParam()}, [&](Rank &self) {
        const int count = long_run() ? 2000 : 400;
        int next = (self.rank + 1) % self.size, before = (self.rank + self.size - 1) % self.size;
        std::vector<std::vector<int>> in(static_cast<size_t>(count)), out(static_cast<size_t>(count));
        std::vector<quoit_request_t *> requests(static_cast<size_t>(count) * 2);
        for (int i = 0; i < count; i++) { /* sends first: thousands of bytes come unexpected */
            size_t at = static_cast<size_t>(i), elements = i % 50 == 0 ? 30000 : static_cast<size_t>(i % 2000);
            out[at].assign(elements, i + self.rank);
            in[at].assign(elements, -1);
            ASSERT_EQ(quoit_send(self.comm, out[at].data(), elements, QUOIT_I32, next, 4, nullptr, &requests[at * 2]), QUOIT_OK);
        }
        for (int i = 0; i < count; i++) {
            size_t at = static_cast<size_t>(i);
            ASSERT_EQ(quoit_recv(self.comm, in[at].data(), in[at].size(), QUOIT_I32, before, 4, nullptr, &requests[at * 2 + 1]), QUOIT_OK);
        }
        for (auto *request : requests) {
            EXPECT_EQ(wait_limited(request), QUOIT_OK) << quoit_request_error(request);
            quoit_request_free(request);
        }
        for (int i = 0; i < count; i++)
            EXPECT_TRUE(in[static_cast<size_t>(i)] == std::vector<int>(in[static_cast<size_t>(i)].size(), i + before)) << "message " << i;
    });
}

TEST_P(Messages, UnequalCountsAreToldToBoth)
{
    for (size_t elements : {size_t(3), size_t(30000)}) {
        run_ranks({.host_of = GetParam(), .timeout_ms = 20000}, [&](Rank &self) {
            self.meet(); /* others have left the first barrier, too */
            if (self.rank > 1) return;
            std::vector<float> data(elements + 1);
            quoit_status_t status = self.rank == 0 ? quoit_send(self.comm, data.data(), elements, QUOIT_F32, 1, 8, nullptr, nullptr)
                                                   : quoit_recv(self.comm, data.data(), elements + 1, QUOIT_F32, 0, 8, nullptr, nullptr);
            if (self.rank == 1 || elements > 10000) {
                EXPECT_EQ(status, QUOIT_ERR_MISMATCH) << quoit_last_error();
                std::string text = quoit_last_error();
                for (const char *part : {"rank 0 (", "rank 1 (", "tag 8"}) EXPECT_NE(text.find(part), std::string::npos) << text;
            }
        });
    }
}

} // namespace
