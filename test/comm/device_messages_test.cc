// SPDX-License-Identifier: Apache-2.0
// Sends, recvs and broadcasts of device buffers, with the lagging device. Over tcp and shm they are staged; over verbs (QUOIT_TRANSPORT names it: the fake
// libibverbs) the larger ones between hosts go directly, which the communicator's counters tell.
#include "device_support.h"
#include "outcome.h"

#include <cstring>

extern "C" {
#include "base/status.h"
}

#ifdef HAVE_FAKE_VERBS
#include <dlfcn.h>
#include "../verbs/fake_verbs.h"
#endif

using namespace comm_test;

namespace {

const size_t eager = 8192; // the default of QUOIT_EAGER_LIMIT

bool over_verbs()
{
    const char *transports = getenv("QUOIT_TRANSPORT");
    return transports && strstr(transports, "verbs");
}

bool goes_directly()
{
    const char *setting = getenv("QUOIT_DEVICE_DIRECT");
    return over_verbs() && !(setting && strcmp(setting, "no") == 0);
}

// Of the fake libibverbs of this process; 0 where it is not used.
unsigned long fake_count(const char *name)
{
#ifdef HAVE_FAKE_VERBS
    static void *handle = over_verbs() ? dlopen(getenv("QUOIT_VERBS_LIBRARY"), RTLD_NOW) : nullptr;
    static auto count = handle ? reinterpret_cast<decltype(&fake_verbs_count)>(dlsym(handle, "fake_verbs_count")) : nullptr;
    if (count) return count(name);
#endif
    (void)name;
    return 0;
}

// No more bytes of the host can be registered; 0: any number.
void lock_limit(unsigned long bytes)
{
#ifdef HAVE_FAKE_VERBS
    void *handle = over_verbs() ? dlopen(getenv("QUOIT_VERBS_LIBRARY"), RTLD_NOW) : nullptr;
    auto limit = handle ? reinterpret_cast<decltype(&fake_verbs_lock_limit)>(dlsym(handle, "fake_verbs_lock_limit")) : nullptr;
    if (limit) limit(bytes);
#endif
    (void)bytes;
}

class Messages : public DeviceTest {
  protected:
    void TearDown() override
    {
        EXPECT_EQ(fake_count("mr"), 0u) << "memory is still registered";
        EXPECT_EQ(fake_count("misuse"), 0u);
        DeviceTest::TearDown();
    }
};

std::string pattern(size_t bytes, unsigned which)
{
    std::string made(bytes, '\0');
    for (size_t i = 0; i < bytes; i++) made[i] = static_cast<char>((i * 131 + which * 17) ^ (i >> 8));
    return made;
}

// Longer where everything is.
quoit_status_t wait_long(quoit_request_t *request) { return wait_limited(request, 30 * slow()); }

unsigned long long counted(quoit_comm_t *comm, const std::string &what)
{
    char *text = nullptr;
    EXPECT_EQ(quoit_comm_describe(comm, QUOIT_FORMAT_JSON, &text), QUOIT_OK) << quoit_last_error();
    const char *found = text ? strstr(text, ("\"" + what + "\": ").c_str()) : nullptr;
    EXPECT_NE(found, nullptr) << what << " in " << (text ? text : "nothing");
    unsigned long long value = found ? strtoull(found + what.size() + 4, nullptr, 10) : 0;
    free(text);
    return value;
}

// A send whose bytes are still on their way to the device when it is called; the buffer is used again by the stream right behind it.
void send(quoit_comm_t *comm, quoit_device_t device, const Stream &stream, char *buffer, const std::string &content, int to, uint32_t tag)
{
    Pinned input(content.size()), after(content.size());
    quoit_call_t call = stream.call(device);
    quoit_request_t *request = nullptr;
    memcpy(input.bytes(), content.data(), content.size());
    memset(after.bytes(), '!', content.size());
    ASSERT_EQ(lagging_device.copy(buffer, input.pointer, content.size(), HOST_TO_DEVICE, stream.pointer), QUOIT_OK) << quoit_last_error();
    ASSERT_EQ(quoit_send(comm, buffer, content.size(), QUOIT_U8, to, tag, &call, &request), QUOIT_OK) << quoit_last_error();
    ASSERT_EQ(lagging_device.copy(buffer, after.pointer, content.size(), HOST_TO_DEVICE, stream.pointer), QUOIT_OK) << quoit_last_error();
    ASSERT_EQ(wait_long(request), QUOIT_OK) << quoit_request_error(request);
    quoit_request_free(request);
    device_event_t *event = nullptr;
    ASSERT_EQ(lagging_device.event_create(&event), QUOIT_OK);
    ASSERT_EQ(lagging_device.event_record(event, stream.pointer), QUOIT_OK);
    EXPECT_EQ(lagging_device_wait(event), QUOIT_OK) << quoit_last_error();
    lagging_device.event_destroy(event);
}

// A recv into a buffer that the stream is still reading when it is called; what came is read by the stream right behind it, and nobody
// waits for the request in between.
std::string receive(quoit_comm_t *comm, quoit_device_t device, const Stream &stream, char *buffer, size_t bytes, int from, uint32_t tag)
{
    Memory earlier(bytes), copy(bytes);
    Pinned output(bytes), before(bytes), first(bytes);
    quoit_call_t call = stream.call(device);
    quoit_request_t *request = nullptr;
    memset(before.bytes(), 'b', bytes);
    EXPECT_EQ(lagging_device.copy(buffer, before.pointer, bytes, HOST_TO_DEVICE, stream.pointer), QUOIT_OK);
    EXPECT_EQ(lagging_device.copy(earlier.pointer, buffer, bytes, DEVICE_TO_DEVICE, stream.pointer), QUOIT_OK);
    EXPECT_EQ(quoit_recv(comm, buffer, bytes, QUOIT_U8, from, tag, &call, &request), QUOIT_OK) << quoit_last_error();
    EXPECT_EQ(lagging_device.copy(copy.pointer, buffer, bytes, DEVICE_TO_DEVICE, stream.pointer), QUOIT_OK);
    EXPECT_EQ(lagging_device.copy(output.pointer, copy.pointer, bytes, DEVICE_TO_HOST, stream.pointer), QUOIT_OK);
    EXPECT_EQ(lagging_device.copy(first.pointer, earlier.pointer, bytes, DEVICE_TO_HOST, stream.pointer), QUOIT_OK);
    device_event_t *event = nullptr;
    EXPECT_EQ(lagging_device.event_create(&event), QUOIT_OK);
    EXPECT_EQ(lagging_device.event_record(event, stream.pointer), QUOIT_OK);
    EXPECT_EQ(lagging_device_wait(event), QUOIT_OK) << quoit_last_error();
    lagging_device.event_destroy(event);
    EXPECT_EQ(wait_long(request), QUOIT_OK) << quoit_request_error(request);
    quoit_request_free(request);
    EXPECT_TRUE(std::string(first.bytes(), bytes) == std::string(bytes, 'b')) << "written before the stream had come to the recv; " << bytes << " bytes";
    return std::string(output.bytes(), bytes);
}

const Hosts topologies[] = {{0, 1}, {0, 0}, {0, 0, 1}};

// Device and host on either side, every size class, both orders. Large ones over verbs go directly, all else through the host, as counted.
TEST_F(Messages, BetweenDevicesAndHosts)
{
    for (const Hosts &host_of : topologies) {
        ASSERT_TRUE(run_ranks({.host_of = host_of}, [&](Rank &self) {
            SCOPED_TRACE(name_of(host_of));
            Stream stream;
            const int last = self.size - 1;
            const bool reached = goes_directly() && host_of[static_cast<size_t>(last)] != host_of[0];
            unsigned long long direct = 0, staged = 0;
            Memory buffer((1 << 20) + 100);
            unsigned round = 0;
            for (size_t bytes : {size_t(0), size_t(1), eager, eager + 1, size_t(500001)})
                for (int which = 0; which < 4; which++) {
                    round++;
                    const bool first_sends = round % 2;
                    const std::string content = pattern(bytes, round);
                    if (self.rank != 0 && self.rank != last) continue;
                    const bool sends = (self.rank == 0) == first_sends, on_device = which & (sends ? 1 : 2);
                    const int other = self.rank == 0 ? last : 0;
                    if (round % 3 == 0 && sends) usleep(2000);
                    if (on_device) (reached && bytes > eager ? direct : staged) += bytes;
                    std::string got(bytes, '-');
                    if (sends && on_device) {
                        send(self.comm, device, stream, buffer.at(round), content, other, 7);
                    } else if (sends) {
                        ASSERT_EQ(quoit_send(self.comm, content.data(), bytes, QUOIT_U8, other, 7, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
                    } else if (on_device) {
                        got = receive(self.comm, device, stream, buffer.at(round), bytes, round % 5 ? other : QUOIT_ANY_SOURCE, 7);
                    } else {
                        ASSERT_EQ(quoit_recv(self.comm, &got[0], bytes, QUOIT_U8, other, 7, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
                    }
                    if (!sends) {
                        ASSERT_TRUE(got == content) << bytes << " bytes, ways " << which << ", round " << round;
                    }
                }
            EXPECT_EQ(counted(self.comm, "device_direct"), direct);
            EXPECT_EQ(counted(self.comm, "device_staged"), staged);
            self.meet();
        }));
    }
    EXPECT_EQ(lagging_device_counters().unpinned, 0u) << "copied through memory that is not pinned";
}

// A send whose stream lags comes before a later one of the same tag, whatever their buffers are.
TEST_F(Messages, KeepTheirOrder)
{
    ASSERT_TRUE(run_ranks({.host_of = {0, 1}}, [&](Rank &self) {
        Stream stream;
        quoit_call_t call = stream.call(device);
        const size_t bytes = 50000;
        Memory buffer(bytes * 4);
        quoit_request_t *request[4] = {};
        Pinned input(bytes * 4);
        for (size_t i = 0; i < 4; i++) memset(input.bytes() + i * bytes, static_cast<int>('a' + i), bytes);
        if (self.rank == 0) {
            lagging_device_set_lag(5000, 5000);
            ASSERT_EQ(lagging_device.copy(buffer.pointer, input.pointer, bytes * 4, HOST_TO_DEVICE, stream.pointer), QUOIT_OK);
        }
        for (size_t i = 0; i < 4; i++) {
            const bool on_device = i % 2 == 0;
            char *place = on_device ? buffer.at(i * bytes) : input.bytes() + i * bytes;
            if (self.rank == 0) {
                ASSERT_EQ(quoit_send(self.comm, place, bytes, QUOIT_U8, 1, 3, on_device ? &call : nullptr, &request[i]), QUOIT_OK) << quoit_last_error();
            } else {
                ASSERT_EQ(quoit_recv(self.comm, buffer.at(i * bytes), bytes, QUOIT_U8, 0, 3, &call, &request[i]), QUOIT_OK) << quoit_last_error();
            }
        }
        for (auto *one : request) {
            EXPECT_EQ(wait_long(one), QUOIT_OK) << quoit_request_error(one);
            quoit_request_free(one);
        }
        if (self.rank == 1) {
            std::string got(bytes * 4, '-');
            ASSERT_EQ(lagging_device_download(&got[0], buffer.pointer, got.size()), QUOIT_OK);
            for (size_t i = 0; i < 4; i++)
                EXPECT_TRUE(got.substr(i * bytes, bytes) == std::string(bytes, static_cast<char>('a' + i))) << "message " << i << " is " << got[i * bytes];
        }
        self.meet();
        lagging_device_set_lag(0, 500);
    }));
}

// A device whose export fails: one warning, and everything is staged; the other side goes on reaching its own.
TEST_F(Messages, AnExportThatFailsMeansStaging)
{
    testing::internal::CaptureStderr();
    bool ran = run_ranks({.host_of = {0, 1}}, [&](Rank &self) {
        Stream stream;
        Memory buffer(100000);
        for (unsigned round = 0; round < 4; round++) {
            if (self.rank == 0) lagging_device_fail_exports(1000);
            self.meet();
            if (self.rank == 0) {
                send(self.comm, device, stream, buffer.at(0), pattern(90000, round), 1, 1);
            } else {
                std::string got = receive(self.comm, device, stream, buffer.at(0), 90000, 0, 1);
                EXPECT_TRUE(got == pattern(90000, round));
            }
            self.meet();
        }
        EXPECT_EQ(counted(self.comm, "device_direct"), 0u);
        EXPECT_EQ(counted(self.comm, "device_staged"), 360000u);
        self.meet();
    });
    std::string log = testing::internal::GetCapturedStderr();
    ASSERT_TRUE(ran);
    size_t warnings = 0;
    for (size_t at = log.find("is not exported"); at != std::string::npos; at = log.find("is not exported", at + 1)) warnings++;
    EXPECT_EQ(warnings, goes_directly() ? 2u : 0u) << "one of each rank\n" << log;
    lagging_device_fail_exports(0);
}

// Registered once, settled after each message that came directly, and forgotten when the memory is freed.
TEST_F(Messages, AreRegisteredOnce)
{
    ASSERT_TRUE(goes_directly()) << "for verbs only";
    unsigned long before = 0;
    ASSERT_TRUE(run_ranks({.host_of = {0, 1}}, [&](Rank &self) {
        Stream stream;
        const size_t bytes = 300000;
        {
            Memory buffer(bytes);
            for (unsigned round = 0; round < 8; round++) {
                if (round == 2) {
                    self.meet();
                    if (self.rank == 0) before = fake_count("reg_dmabuf_mr");
                    self.meet();
                }
                if (self.rank == static_cast<int>(round % 2)) {
                    send(self.comm, device, stream, buffer.at(0), pattern(bytes, round), 1 - self.rank, 1);
                } else {
                    EXPECT_TRUE(receive(self.comm, device, stream, buffer.at(0), bytes, 1 - self.rank, 1) == pattern(bytes, round));
                }
            }
            EXPECT_EQ(counted(self.comm, "device_direct"), 8 * bytes);
            self.meet();
            EXPECT_EQ(fake_count("reg_dmabuf_mr"), before) << "registered again";
            EXPECT_EQ(fake_count("dmabuf"), 2u);
            self.meet();
        }
        self.meet();
        Memory another(bytes); // its first use tells the transport what was freed
        if (self.rank == 0) send(self.comm, device, stream, another.at(0), pattern(bytes, 1), 1, 1);
        else EXPECT_TRUE(receive(self.comm, device, stream, another.at(0), bytes, 0, 1) == pattern(bytes, 1));
        self.meet();
        EXPECT_EQ(fake_count("dmabuf"), 2u) << "what was freed is still registered";
        self.meet();
    }));
    EXPECT_EQ(lagging_device_counters().settled, 9u) << "one for each message that came directly";
}

// The other side's memory cannot be registered: what has begun directly goes on through the host.
TEST_F(Messages, GoOnThroughTheHostWhereTheOtherSideCannot)
{
    testing::internal::CaptureStderr();
    bool ran = run_ranks({.host_of = {0, 1}}, [&](Rank &self) {
        self.meet();
        lock_limit(1); // after what the connection needs
        self.meet();
        Stream stream;
        quoit_call_t call = stream.call(device);
        const size_t bytes = 600000;
        Memory buffer(bytes);
        std::string host = pattern(bytes, 1), got(bytes, '-');
        if (self.rank == 0) send(self.comm, device, stream, buffer.at(0), pattern(bytes, 2), 1, 1);
        else ASSERT_EQ(quoit_recv(self.comm, &got[0], bytes, QUOIT_U8, 0, 1, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
        if (self.rank == 1) {
            EXPECT_TRUE(got == pattern(bytes, 2));
            ASSERT_EQ(quoit_send(self.comm, host.data(), bytes, QUOIT_U8, 0, 2, nullptr, nullptr), QUOIT_OK) << quoit_last_error();
        } else {
            EXPECT_TRUE(receive(self.comm, device, stream, buffer.at(0), bytes, 1, 2) == host);
        }
        for (int root = 0; root < 2; root++) { // rank 0's buffer is on the device
            std::string content = pattern(bytes, 10u + static_cast<unsigned>(root)), out = content;
            if (self.rank != root) out.assign(bytes, '-');
            ASSERT_EQ(lagging_device_upload(buffer.pointer, out.data(), bytes), QUOIT_OK);
            void *data = self.rank == 0 ? buffer.pointer : &out[0];
            ASSERT_EQ(quoit_broadcast(self.comm, data, bytes, QUOIT_U8, root, self.rank == 0 ? &call : nullptr, nullptr), QUOIT_OK) << quoit_last_error();
            if (self.rank == 0) {
                ASSERT_EQ(lagging_device_download(&out[0], buffer.pointer, bytes), QUOIT_OK);
            }
            EXPECT_TRUE(out == content) << "root " << root;
        }
        if (self.rank == 0) {
            EXPECT_EQ(counted(self.comm, "device_direct"), 0u);
            EXPECT_EQ(counted(self.comm, "device_staged"), 4 * bytes);
        }
        self.meet();
    });
    lock_limit(0);
    testing::internal::GetCapturedStderr();
    EXPECT_TRUE(ran);
}

// A broadcast is passed on directly by ranks that share no memory with others, but for a last chunk that is small.
TEST_F(Messages, BroadcastsToo)
{
    const size_t chunk = 512 << 10; // the default of QUOIT_NET_CHUNK_SIZE
    for (const Hosts &host_of : {Hosts{0, 1}, Hosts{0, 1, 2}, Hosts{0, 0, 1}})
        ASSERT_TRUE(run_ranks({.host_of = host_of}, [&](Rank &self) {
            SCOPED_TRACE(name_of(host_of));
            Stream stream;
            quoit_call_t call = stream.call(device);
            const bool alone = host_of != Hosts{0, 0, 1} || self.rank == 2;
            unsigned long long direct = 0, staged = 0;
            unsigned round = 0;
            for (size_t bytes : {size_t(5000), size_t(10000), 2 * chunk + 100})
                for (int root = 0; root < self.size; root += self.size - 1)
                    for (int hosts = 0; hosts < 2; hosts++) { // one rank's buffer is the host's
                        round++;
                        const bool on_device = !(hosts && self.rank == static_cast<int>(round) % self.size);
                        const std::string content = pattern(bytes, round);
                        std::string host = self.rank == root ? content : std::string(bytes, '-');
                        Memory buffer(bytes + 1), behind(bytes);
                        Pinned input(bytes);
                        memcpy(input.bytes(), host.data(), bytes);
                        void *data = on_device ? buffer.at(1) : &host[0];
                        if (on_device) {
                            ASSERT_EQ(lagging_device.copy(data, input.pointer, bytes, HOST_TO_DEVICE, stream.pointer), QUOIT_OK);
                        }
                        quoit_request_t *request = nullptr;
                        ASSERT_EQ(quoit_broadcast(self.comm, data, bytes, QUOIT_U8, root, on_device ? &call : nullptr, &request), QUOIT_OK) << quoit_last_error();
                        if (on_device) { // read by the stream, with nobody waiting for the request
                            ASSERT_EQ(lagging_device.copy(behind.pointer, data, bytes, DEVICE_TO_DEVICE, stream.pointer), QUOIT_OK);
                            device_event_t *event = nullptr;
                            ASSERT_EQ(lagging_device.event_create(&event), QUOIT_OK);
                            ASSERT_EQ(lagging_device.event_record(event, stream.pointer), QUOIT_OK);
                            EXPECT_EQ(lagging_device_wait(event), QUOIT_OK) << quoit_last_error();
                            lagging_device.event_destroy(event);
                        }
                        EXPECT_EQ(wait_long(request), QUOIT_OK) << quoit_request_error(request);
                        quoit_request_free(request);
                        if (on_device) {
                            ASSERT_EQ(lagging_device_download(&host[0], behind.pointer, bytes), QUOIT_OK);
                        }
                        ASSERT_TRUE(host == content) << bytes << " bytes, root " << root << ", rank " << self.rank;
                        const size_t tail = bytes > eager ? bytes % chunk > eager ? 0 : bytes % chunk : bytes;
                        if (on_device) (goes_directly() && alone ? direct : staged) += bytes - tail;
                        if (on_device) staged += tail;
                    }
            EXPECT_EQ(counted(self.comm, "device_staged"), staged);
            if (self.size == 2) { // else some of them pass it on to several, or receive it as well
                EXPECT_EQ(counted(self.comm, "device_direct"), direct);
            }
            EXPECT_GE(counted(self.comm, "device_direct"), direct);
            self.meet();
        }));
}

// A stream that stands still: its message times out, both ranks are told, nothing of it is left. The stream is free to go on later.
TEST_F(Messages, OnAStreamThatStandsStill)
{
    for (int who = 0; who < 2; who++)
        ASSERT_TRUE(run_ranks({.host_of = {0, 1}}, [&](Rank &self) {
            Pinned gate(sizeof(uint64_t));
            Stream stream;
            auto *word = static_cast<uint64_t *>(gate.pointer);
            *word = self.rank != who;
            ASSERT_EQ(lagging_device.stream_wait_host(stream.pointer, word, 1), QUOIT_OK);
            quoit_call_t call = stream.call(device);
            call.timeout_ms = static_cast<int>(300 * slow());
            Memory buffer(100000);
            quoit_status_t status = self.rank == 0 ? quoit_send(self.comm, buffer.pointer, 100000, QUOIT_U8, 1, 1, &call, nullptr)
                                                   : quoit_recv(self.comm, buffer.pointer, 100000, QUOIT_U8, 0, 1, &call, nullptr);
            if (self.rank == who || status != QUOIT_OK) { // what is sent to a stream that stands still may have gone
                EXPECT_EQ(status, QUOIT_ERR_TIMEOUT) << quoit_last_error();
            }
            EXPECT_TRUE(status != QUOIT_OK || who == 1) << "received what was not sent";
            __atomic_store_n(word, 1, __ATOMIC_RELEASE);
            self.meet();
        }));
}

TEST_F(Messages, AFailingCopyIsAnError)
{
    ASSERT_TRUE(run_ranks({.host_of = {0, 1}}, [&](Rank &self) {
        Stream stream;
        quoit_call_t call = stream.call(device);
        Memory buffer(5000); // staged everywhere
        self.meet();
        if (self.rank == 0) lagging_device_fail_next_copy();
        self.meet();
        quoit_status_t status = self.rank == 0 ? quoit_send(self.comm, buffer.pointer, 5000, QUOIT_U8, 1, 1, &call, nullptr)
                                               : quoit_recv(self.comm, buffer.pointer, 5000, QUOIT_U8, 0, 1, &call, nullptr);
        EXPECT_EQ(status, QUOIT_ERR_SYSTEM) << quoit_last_error();
        EXPECT_NE(std::string(quoit_last_error()).find("lagging: copy"), std::string::npos) << quoit_last_error();
        self.meet();
    }));
    lagging_device_reset();
}

TEST_F(Messages, OfDifferentLengthsAreAMismatch)
{
    ASSERT_TRUE(run_ranks({.host_of = {0, 1}}, [&](Rank &self) {
        Stream stream;
        quoit_call_t call = stream.call(device);
        Memory buffer(100000);
        quoit_status_t status = self.rank == 0 ? quoit_send(self.comm, buffer.pointer, 100000, QUOIT_U8, 1, 1, &call, nullptr)
                                               : quoit_recv(self.comm, buffer.pointer, 99999, QUOIT_U8, 0, 1, &call, nullptr);
        EXPECT_EQ(status, QUOIT_ERR_MISMATCH) << quoit_last_error();
        self.meet();
    }));
}

// ------------------------------------------------------------------ death in the middle

int role_traffic(ProcessRank &self)
{
    quoit_device_t device;
    if (lagging_device_register(&device) != QUOIT_OK) return 1;
    lagging_device_set_lag(0, 200);
    if (self.create(60000) != QUOIT_OK) return 1;
    const size_t most = 2 << 20;
    quoit_status_t status = QUOIT_OK;
    {
        Stream in, out;
        Memory send(most), recv(most);
        quoit_call_t to = out.call(device), from = in.call(device);
        for (int round = 0; status == QUOIT_OK && self.argument(0)[0] == 'b'; round++) {
            status = quoit_broadcast(self.comm, send.pointer, most, QUOIT_U8, round % 2, &to, nullptr);
            if (round == 2) self.say("ready");
        }
        for (int round = 0; status == QUOIT_OK; round++) {
            quoit_request_t *request = nullptr;
            status = quoit_recv(self.comm, recv.pointer, most, QUOIT_U8, 1 - self.rank, 1, &from, &request);
            if (status == QUOIT_OK) status = quoit_send(self.comm, send.pointer, most, QUOIT_U8, 1 - self.rank, 1, &to, nullptr);
            if (request && status == QUOIT_OK) status = wait_long(request);
            quoit_request_free(request);
            if (round == 2) self.say("ready");
        }
        report(self, "ended", status);
        self.say("direct %llu", counted(self.comm, "device_direct"));
        quoit_comm_destroy(self.comm);
        self.comm = nullptr;
        self.say("left %lu", fake_count("mr"));
    }
    lagging_device_shutdown();
    return 0;
}

TEST(MessagesDeath, LeavesNothingRegistered)
{
    for (int round = 0; round < 2; round++) {
        Processes ranks("traffic", {0, 1}, {round ? "broadcasts" : "messages"});
        for (int rank = 0; rank < 2; rank++) ranks.wait_line(rank, "ready", 60);
        usleep(static_cast<useconds_t>(10000 + round * 17000));
        pid_t pid = ranks.pid(1 - round);
        double killed = seconds();
        ranks.kill(1 - round, SIGKILL);
        Outcome first = outcome(ranks, round, "ended");
        EXPECT_LT(first.at - killed, promise_s()) << first.text;
        EXPECT_EQ(first.status, QUOIT_ERR_PEER) << first.text;
        EXPECT_TRUE(names(first.text, 1 - round, pid)) << first.text;
        std::string direct = ranks.wait_line(round, "direct", 20), left = ranks.wait_line(round, "left", 20);
        EXPECT_EQ(atoll(direct.c_str()) > 0, goes_directly()) << direct;
        EXPECT_EQ(left, "0");
        EXPECT_EQ(ranks.wait_exit(round, 20), 0);
    }
}

} // namespace

int main(int count, char **arguments)
{
    if (is_process_rank()) return run_role({{"traffic", role_traffic}});
    testing::InitGoogleTest(&count, arguments);
    return RUN_ALL_TESTS();
}
