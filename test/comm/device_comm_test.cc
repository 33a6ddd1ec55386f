// SPDX-License-Identifier: Apache-2.0
// Device buffers and streams in allreduce, reduce and broadcast, with the lagging device, whose memory kills a CPU that touches it and on which
// nothing is done when a call returns. Every collective, and its results: device_collectives_test.cc.
#include "device_support.h"
#include "outcome.h"

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

using namespace comm_test;

namespace {

const Hosts topologies[] = {{0}, {0, 0}, {0, 0, 0}, {0, 1}, {0, 0, 1}};

class Device : public DeviceTest {};

int32_t value(int rank, size_t i, int round) { return static_cast<int32_t>(i % 1000) * (rank + 1) + round; }

quoit_status_t call_on(quoit_comm_t *comm, int which, void *send, void *recv, size_t count, int root, const quoit_call_t *call, quoit_request_t **request)
{
    if (which == 0) return quoit_allreduce(comm, send, recv, count, QUOIT_I32, QUOIT_SUM, call, request);
    if (which == 1) return quoit_reduce(comm, send, recv, count, QUOIT_I32, QUOIT_SUM, root, call, request);
    return quoit_broadcast(comm, recv, count, QUOIT_I32, root, call, request);
}

int32_t expected(int which, int size, int root, size_t i, int round)
{
    if (which == 2) return value(root, i, round);
    int32_t sum = 0;
    for (int rank = 0; rank < size; rank++) sum += value(rank, i, round);
    return sum;
}

// The input is still on its way when the call is made, and the result is copied by the user's stream right behind the call, with nobody
// waiting for the request in between.
TEST_F(Device, OrderedOnTheUsersStream)
{
    for (const Hosts &host_of : topologies) {
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            SCOPED_TRACE(name_of(host_of));
            Stream stream;
            quoit_call_t call = QUOIT_CALL_INIT;
            call.device = device;
            call.stream = stream.pointer;
            int round = 0;
            for (size_t count : {size_t(0), size_t(1), size_t(1000), size_t(5000), size_t(300001)})
                for (int which = 0; which < 3; which++)
                    for (bool in_place : {false, true}) {
                        round++;
                        size_t bytes = count * sizeof(int32_t);
                        int root = round % self.size;
                        Memory send(bytes), recv(bytes), behind(bytes);
                        Pinned input(bytes), output(bytes);
                        for (size_t i = 0; i < count; i++) input.data()[i] = value(self.rank, i, round);
                        void *from = which == 2 || in_place ? recv.pointer : send.pointer;
                        ASSERT_EQ(lagging_device.copy(from, input.pointer, bytes, HOST_TO_DEVICE, stream.pointer), QUOIT_OK) << quoit_last_error();
                        quoit_request_t *request = nullptr;
                        ASSERT_EQ(call_on(self.comm, which, from, recv.pointer, count, root, &call, &request), QUOIT_OK) << quoit_last_error();
                        ASSERT_EQ(lagging_device.copy(behind.pointer, recv.pointer, bytes, DEVICE_TO_DEVICE, stream.pointer), QUOIT_OK);
                        ASSERT_EQ(lagging_device.copy(output.pointer, behind.pointer, bytes, DEVICE_TO_HOST, stream.pointer), QUOIT_OK);
                        device_event_t *event = nullptr;
                        ASSERT_EQ(lagging_device.event_create(&event), QUOIT_OK);
                        ASSERT_EQ(lagging_device.event_record(event, stream.pointer), QUOIT_OK);
                        EXPECT_EQ(lagging_device_wait(event), QUOIT_OK) << quoit_last_error();
                        lagging_device.event_destroy(event);
                        EXPECT_EQ(wait_limited(request), QUOIT_OK) << quoit_request_error(request);
                        quoit_request_free(request);
                        if (which == 1 && self.rank != root) continue;
                        for (size_t i = 0; i < count; i++) {
                            int32_t right = expected(which, self.size, root, i, round);
                            if (output.data()[i] == right) continue;
                            ADD_FAILURE() << "rank " << self.rank << ", operation " << which << ", count " << count << ", element " << i << " is "
                                          << output.data()[i] << ", expected " << right;
                            break;
                        }
                    }
        });
    }
}

TEST_F(Device, BlockingAndMixedWithHostOperations)
{
    for (const Hosts &host_of : topologies) {
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            Stream stream; /* not the default one: ranks as threads would share that, and wait for each other on it */
            quoit_call_t call = QUOIT_CALL_INIT;
            call.device = device;
            call.stream = stream.pointer;
            for (int round = 0; round < 6; round++) {
                size_t count = round % 2 ? 200 : 150000, bytes = count * sizeof(int32_t);
                Memory buffer(bytes);
                std::vector<int32_t> input(count), output(count), host(count), host_out(count);
                for (size_t i = 0; i < count; i++) input[i] = host[i] = value(self.rank, i, round);
                ASSERT_EQ(lagging_device_upload(buffer.pointer, input.data(), bytes), QUOIT_OK);
                quoit_request_t *request = nullptr;
                ASSERT_EQ(quoit_allreduce(self.comm, host.data(), host_out.data(), count, QUOIT_I32, QUOIT_SUM, nullptr, &request), QUOIT_OK);
                ASSERT_EQ(quoit_allreduce(self.comm, buffer.pointer, buffer.pointer, count, QUOIT_I32, QUOIT_SUM, &call, nullptr), QUOIT_OK)
                    << quoit_last_error();
                EXPECT_EQ(wait_limited(request), QUOIT_OK) << quoit_request_error(request);
                quoit_request_free(request);
                ASSERT_EQ(lagging_device_download(output.data(), buffer.pointer, bytes), QUOIT_OK);
                EXPECT_TRUE(output == host_out) << "round " << round;
                for (size_t i = 0; i < count; i += 97) EXPECT_EQ(output[i], expected(0, self.size, 0, i, round));
            }
        });
    }
}

// In one operation some ranks have their buffers on the device, and others in host memory.
TEST_F(Device, MixedWithHostBuffers)
{
    for (const Hosts &host_of : topologies) {
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            Stream stream;
            int round = 0;
            for (size_t count : {size_t(200), size_t(150000)})
                for (int which = 0; which < 3; which++) {
                    int root = ++round % self.size;
                    bool on_device = (self.rank + round) % 2 == 0;
                    quoit_call_t call = QUOIT_CALL_INIT;
                    std::vector<int32_t> host(count), output(count);
                    Memory buffer(count * sizeof(int32_t));
                    for (size_t i = 0; i < count; i++) host[i] = value(self.rank, i, round);
                    ASSERT_EQ(lagging_device_upload(buffer.pointer, host.data(), count * sizeof(int32_t)), QUOIT_OK);
                    if (on_device) {
                        call.device = device;
                        call.stream = stream.pointer;
                    }
                    void *data = on_device ? buffer.pointer : host.data();
                    ASSERT_EQ(call_on(self.comm, which, data, data, count, root, &call, nullptr), QUOIT_OK) << quoit_last_error();
                    ASSERT_EQ(lagging_device_download(output.data(), buffer.pointer, count * sizeof(int32_t)), QUOIT_OK);
                    if (which == 1 && self.rank != root) continue;
                    const std::vector<int32_t> &result = on_device ? output : host;
                    for (size_t i = 0; i < count; i += 97) ASSERT_EQ(result[i], expected(which, self.size, root, i, round)) << name_of(host_of) << ", round " << round;
                }
        });
    }
}

TEST_F(Device, SubmittedIsNotComplete)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        Pinned gate(sizeof(uint64_t)); /* what was called before is not done until it is opened */
        Stream stream;
        auto *word = static_cast<uint64_t *>(gate.pointer);
        *word = 0;
        Memory buffer(4000);
        std::vector<int32_t> input(1000, 1);
        ASSERT_EQ(lagging_device_upload(buffer.pointer, input.data(), 4000), QUOIT_OK);
        ASSERT_EQ(lagging_device.stream_wait_host(stream.pointer, word, 1), QUOIT_OK);
        quoit_call_t call = QUOIT_CALL_INIT;
        call.device = device;
        call.stream = stream.pointer;
        quoit_request_t *request = nullptr;
        ASSERT_EQ(quoit_allreduce(self.comm, buffer.pointer, buffer.pointer, 1000, QUOIT_I32, QUOIT_SUM, &call, &request), QUOIT_OK);
        EXPECT_EQ(quoit_request_test(request), QUOIT_IN_PROGRESS);
        EXPECT_EQ(quoit_request_wait(request, 20), QUOIT_IN_PROGRESS) << "it did not wait for what was called before";
        self.meet(); /* issuing waited for the device nowhere */
        __atomic_store_n(word, 1, __ATOMIC_RELEASE);
        EXPECT_EQ(wait_limited(request), QUOIT_OK) << quoit_request_error(request);
        quoit_request_free(request);
        self.meet();
    });
}

// Several operations on one stream, their requests freed at once: the stream, blocked by the later ones, must not hold up the end of
// the earlier ones.
TEST_F(Device, FreedUnwaitedOnOneStream)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            Stream stream;
            quoit_call_t call = QUOIT_CALL_INIT;
            call.device = device;
            call.stream = stream.pointer;
            const size_t count = 3000;
            Memory buffer(count * 4);
            std::vector<int32_t> input(count, 1), output(count);
            ASSERT_EQ(lagging_device_upload(buffer.pointer, input.data(), count * 4), QUOIT_OK);
            int32_t right = 1;
            for (int i = 0; i < 6; i++) {
                quoit_request_t *request = nullptr;
                ASSERT_EQ(quoit_allreduce(self.comm, buffer.pointer, buffer.pointer, count, QUOIT_I32, QUOIT_SUM, &call, &request), QUOIT_OK);
                quoit_request_free(request);
                right *= self.size;
            }
            device_event_t *event = nullptr;
            ASSERT_EQ(lagging_device.event_create(&event), QUOIT_OK);
            ASSERT_EQ(lagging_device.event_record(event, stream.pointer), QUOIT_OK);
            EXPECT_EQ(lagging_device_wait(event), QUOIT_OK) << quoit_last_error();
            lagging_device.event_destroy(event);
            ASSERT_EQ(lagging_device_download(output.data(), buffer.pointer, count * 4), QUOIT_OK);
            EXPECT_TRUE(output == std::vector<int32_t>(count, right)) << output[0] << " instead of " << right;
            EXPECT_EQ(quoit_barrier(self.comm, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
        });
    }
}

// A stream that stands still holds up its own communicator only, and an operation that times out on it ends.
TEST_F(Device, StreamThatStandsStill)
{
    run_ranks({.host_of = {0, 0}}, [&](Rank &self) {
        int all[] = {0, 1};
        quoit_comm_t *group = nullptr;
        ASSERT_EQ(quoit_comm_create_group(self.comm, all, 2, "device", nullptr, &group), QUOIT_OK);
        {
            Pinned gate(sizeof(uint64_t));
            Stream stream;
            auto *word = static_cast<uint64_t *>(gate.pointer);
            *word = 0;
            ASSERT_EQ(lagging_device.stream_wait_host(stream.pointer, word, 1), QUOIT_OK);
            quoit_call_t call = QUOIT_CALL_INIT;
            call.device = device;
            call.stream = stream.pointer;
            call.timeout_ms = 300;
            Memory buffer(4000);
            quoit_request_t *request = nullptr;
            ASSERT_EQ(quoit_allreduce(group, buffer.pointer, buffer.pointer, 1000, QUOIT_I32, QUOIT_SUM, &call, &request), QUOIT_OK);
            double begun = seconds();
            float one = 1, two = 0;
            for (int i = 0; i < 50; i++)
                ASSERT_EQ(quoit_allreduce(self.comm, &one, &two, 1, QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            EXPECT_EQ(wait_limited(request, 4), QUOIT_ERR_TIMEOUT) << quoit_request_error(request);
            EXPECT_LT(seconds() - begun, 3) << "the end of the operation waited for the user's stream";
            EXPECT_EQ(quoit_allreduce(self.comm, &one, &two, 1, QUOIT_F32, QUOIT_SUM, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            EXPECT_LT(seconds() - begun, 3.5);
            __atomic_store_n(word, 1, __ATOMIC_RELEASE);
            quoit_request_free(request);
        }
        quoit_comm_destroy(group);
    });
}

TEST_F(Device, FailingCopyIsAnError)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
        std::atomic<int> failures = 0, systems = 0;
        lagging_device_reset();
        run_ranks({.host_of = host_of}, [&](Rank &self) {
            Stream stream;
            quoit_call_t call = QUOIT_CALL_INIT;
            call.device = device;
            call.stream = stream.pointer;
            const size_t count = 200000;
            Memory buffer(count * 4);
            std::vector<int32_t> input(count, 1);
            ASSERT_EQ(lagging_device_upload(buffer.pointer, input.data(), count * 4), QUOIT_OK);
            self.meet();
            if (self.rank == 0) lagging_device_fail_next_copy();
            self.meet();
            quoit_status_t status = quoit_allreduce(self.comm, buffer.pointer, buffer.pointer, count, QUOIT_I32, QUOIT_SUM, &call, nullptr);
            failures += status != QUOIT_OK;
            systems += status == QUOIT_ERR_SYSTEM;
            EXPECT_NE(std::string(quoit_last_error()).find("allreduce #"), std::string::npos) << quoit_last_error();
        });
        lagging_device_reset();
        EXPECT_EQ(failures, 2);
        EXPECT_EQ(systems, 2);
    }
}

// A device that hangs in a copy of Quoit's own: the operation ends at its deadline, destroy returns, and when the device comes to it after all
// it finds what it uses.
int role_hang(ProcessRank &self)
{
    const std::string how = self.argument(0);
    const size_t count = 300000;
    quoit_device_t device = 0;
    if (lagging_device_register(&device) != QUOIT_OK || self.create(60000) != QUOIT_OK || allreduce(self.comm) != QUOIT_OK) return 1;
    {
        Stream stream;
        Memory buffer(count * sizeof(int32_t));
        quoit_call_t call = stream.call(device);
        call.timeout_ms = 300;
        auto work = [&] {
            if (how == "allreduce") return quoit_allreduce(self.comm, buffer.pointer, buffer.pointer, count, QUOIT_I32, QUOIT_SUM, &call, nullptr);
            return self.rank == 0 ? quoit_send(self.comm, buffer.pointer, count, QUOIT_I32, 1, 1, &call, nullptr)
                                  : quoit_recv(self.comm, buffer.pointer, count, QUOIT_I32, 0, 1, &call, nullptr);
        };
        if (work() != QUOIT_OK) return 2; /* once well */
        self.say("ready");
        self.listen("go");
        lagging_device_hold_copies(true);
        double begun = seconds();
        quoit_status_t status = work();
        self.say("ended %.6f %d %s", seconds() - begun, status, quoit_last_error());
        begun = seconds();
        quoit_comm_destroy(self.comm);
        self.comm = nullptr;
        self.say("destroyed %.6f 0", seconds() - begun);
        lagging_device_hold_copies(false);
    }
    lagging_device_shutdown(); /* all that was queued is carried out */
    return 0;
}

TEST(DeviceThatHangs, EndsItsOperationsAllTheSame)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}})
        for (std::string how : {"allreduce", "messages"}) {
            SCOPED_TRACE(name_of(host_of) + ", " + how);
            Processes ranks("hang", host_of, {how}, "", {"QUOIT_LINGER=400ms"});
            for (int rank = 0; rank < 2; rank++) ranks.wait_line(rank, "ready", 60);
            for (int rank = 0; rank < 2; rank++) ranks.tell(rank, "go");
            for (int rank = 0; rank < 2; rank++) {
                Outcome one = outcome(ranks, rank, "ended"), end = outcome(ranks, rank, "destroyed");
                EXPECT_EQ(one.status, QUOIT_ERR_TIMEOUT) << one.text;
                EXPECT_LT(one.at, 0.3 + 0.4 + 0.6 * slow()) << one.text;
                EXPECT_LT(end.at, 0.5 + 0.6 * slow()); /* of a communicator that has failed */
                EXPECT_EQ(ranks.wait_exit(rank, 20), 0) << ranks.output(rank);
            }
        }
}

const std::map<std::string, int (*)(ProcessRank &)> roles = {{"hang", role_hang}};

} // namespace

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role(roles);
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
