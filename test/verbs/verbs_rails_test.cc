/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several devices: bytes go over them in proportion to their rates, one that is lost is left with one warning, whenever that happens, and only
 * the last one takes the connection with it. Over the fake libibverbs, with fake0 (2.5 Gb/s) and fake1 (10 Gb/s).
 */
#include "test/support/sysfs.h"
#include "verbs_pair.h"

using namespace verbs_test;

namespace {

struct Rails : Verbs {
    void SetUp() override
    {
        Verbs::SetUp();
        fake().devices(2);
        overrides() = {{"VERBS_RETRY_COUNT", "1"}};
    }
    void TearDown() override
    {
        overrides().clear();
        Verbs::TearDown();
    }
};

size_t occurrences(const std::string &text, const std::string &part)
{
    size_t count = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) count++;
    return count;
}

/* One message of `size` bytes each way. "" or what is wrong. */
std::string both_ways(Pair &pair, uint64_t comm, size_t size)
{
    Message sends[2], recvs[2];
    for (int from = 0; from < 2; from++) {
        quoit_key_t key = {comm, (uint64_t)from};
        sends[from].bytes = pattern(size, (unsigned)(comm * 2 + (uint64_t)from));
        recvs[from].bytes.assign(size, '\0');
        EXPECT_EQ(pair.ops->recv(pair.side[1 - from].endpoint, key, &recvs[from].bytes[0], size, &recvs[from].transfer), QUOIT_OK);
        EXPECT_EQ(pair.ops->send(pair.side[from].endpoint, key, sends[from].bytes.data(), size, &sends[from].transfer), QUOIT_OK);
    }
    bool ended = pair.wait([&] { return sends[0].done() && sends[1].done() && recvs[0].done() && recvs[1].done(); });
    if (!ended) {
        for (auto &one : pair.side) pair.ops->cancel(one.transport, comm);
        return "it hangs";
    }
    for (int from = 0; from < 2; from++) {
        if (sends[from].transfer.status != QUOIT_OK || recvs[from].transfer.status != QUOIT_OK) return "it failed: " + pair.side[0].closed + pair.side[1].closed;
        if (recvs[from].bytes != sends[from].bytes) return "other bytes";
    }
    return "";
}

double share_of_first(Pair &pair)
{
    unsigned long before[2] = {fake().bytes(0), fake().bytes(1)};
    for (uint64_t i = 0; i < 4; i++) EXPECT_EQ(both_ways(pair, 100 + i, 4 << 20), "");
    double one = (double)(fake().bytes(0) - before[0]), other = (double)(fake().bytes(1) - before[1]);
    EXPECT_GE(one + other, 8.0 * (4 << 20));
    EXPECT_LE(one + other, 8.2 * (4 << 20)) << "more than was to be sent";
    return one / (one + other);
}

TEST_F(Rails, BytesGoInProportionToTheRates)
{
    {
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        std::string text = pair.ops->describe(pair.side[0].endpoint);
        EXPECT_EQ(text.rfind("verbs, 2 rails: fake0 port 1, RoCE v2 10.", 0), 0u) << text;
        EXPECT_NE(text.find(" 2500 Mb/s; fake1 port 1, RoCE v2 11."), std::string::npos) << text;
        EXPECT_NE(text.find(" 10000 Mb/s"), std::string::npos) << text;
        double share = share_of_first(pair);
        EXPECT_TRUE(share > 0.17 && share < 0.23) << "a fifth was to go over the first device: " << share;
    }
    overrides()["INTERFACE_RATES"] = "fake0=30000";
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    double share = share_of_first(pair);
    EXPECT_TRUE(share > 0.72 && share < 0.78) << "three quarters were to go over the first device: " << share;
}

TEST_F(Rails, OneDeviceByName)
{
    overrides()["VERBS_DEVICE"] = "fake1";
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    EXPECT_EQ(both_ways(pair, 1, 1 << 20), "");
    EXPECT_EQ(fake().bytes(0), 0u);
    EXPECT_NE(std::string(pair.ops->describe(pair.side[0].endpoint)).find("verbs fake1 port 1, RoCE v2 11."), std::string::npos);
}

/* Two devices, each near one socket: the near one, unless the other has more than twice its rate. */
TEST_F(Rails, TheDeviceThatIsNear)
{
    for (int near : {0, 1}) {
        Sysfs sysfs;
        sysfs.add("infiniband", "fake0", "pci0000:00/0000:00:01.0", 0, near == 0 ? local_cpus : other_cpus);
        sysfs.add("infiniband", "fake1", "pci0000:80/0000:80:01.0", 1, near == 1 ? local_cpus : other_cpus);
        fake().sysfs(sysfs.root.c_str());
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        std::string text = pair.ops->describe(pair.side[0].endpoint);
        EXPECT_EQ(text.rfind(near == 1 ? "verbs fake1 port 1 at NUMA node 1, RoCE v2 " : "verbs, 2 rails: fake0 port 1 at NUMA node 0, RoCE v2 ", 0), 0u) << "fake" << near << " is near: " << text;
    }
}

/* auto does without devices in software, unless they are named; by name the transport takes them. */
TEST_F(Rails, AutoDoesWithoutSoftware)
{
    Sysfs sysfs;
    sysfs.add_software("infiniband", "fake0");
    sysfs.add_software("infiniband", "fake1");
    fake().sysfs(sysfs.root.c_str());
    int doorbell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    quoit_transport_environment_t environment;
    transport_environment_init(&environment, {1, 2}, doorbell, "testhost");
    environment.setting = setting;
    char why[1024] = "";
    for (const char *transports : {"auto", ""}) {
        overrides()["TRANSPORT"] = transports;
        overrides()["VERBS_DEVICE"] = "";
        EXPECT_EQ(transport_verbs.probe(&environment, why, sizeof why), QUOIT_ERR_NOT_FOUND);
        EXPECT_NE(std::string(why).find("(software)"), std::string::npos) << why;
        EXPECT_NE(std::string(why).find("only when QUOIT_TRANSPORT names verbs"), std::string::npos) << why;
        overrides()["VERBS_DEVICE"] = "fake1";
        EXPECT_EQ(transport_verbs.probe(&environment, why, sizeof why), QUOIT_OK) << why;
    }
    overrides()["TRANSPORT"] = "shm,verbs";
    overrides()["VERBS_DEVICE"] = "";
    EXPECT_EQ(transport_verbs.probe(&environment, why, sizeof why), QUOIT_OK) << why;
    sysfs.add("infiniband", "fake2", "pci0000:00/0000:00:01.0", 0, local_cpus);
    overrides()["TRANSPORT"] = "auto";
    fake().devices(3);
    EXPECT_EQ(transport_verbs.probe(&environment, why, sizeof why), QUOIT_OK) << why;
    close(doorbell);
}

/* A side with one device and a side with two. */
TEST_F(Rails, TheSmallerNumberCounts)
{
    quoit_transport_environment_t environment;
    Pair::Side side[2];
    const quoit_transport_ops_t *ops = &transport_verbs;
    for (int i = 0; i < 2; i++) {
        overrides()["VERBS_DEVICE"] = i == 0 ? "fake0" : "";
        ASSERT_EQ(random_bytes(&side[i].id, sizeof side[i].id), QUOIT_OK);
        transport_environment_init(&environment, side[i].id, side[i].doorbell, "testhost");
        environment.setting = setting;
        ASSERT_EQ(ops->open(&environment, &side[i].transport), QUOIT_OK) << error_text();
        ASSERT_EQ(ops->listen(side[i].transport, side[i].address, &side[i].length), QUOIT_OK);
        ASSERT_EQ(ops->trust(side[i].transport, 7, "secret", 6), QUOIT_OK);
    }
    for (int caller = 0; caller < 2; caller++) {
        quoit_peer_t peer = {side[1 - caller].id, 7, side[1 - caller].address, side[1 - caller].length, "the other", 20000};
        ASSERT_EQ(ops->connect(side[caller].transport, &peer, &side[caller].endpoint), QUOIT_OK) << error_text();
    }
    Message sent, got;
    sent.bytes = pattern(1 << 20, 1);
    got.bytes.assign(1 << 20, '\0');
    ASSERT_EQ(ops->recv(side[0].endpoint, {1, 1}, &got.bytes[0], got.bytes.size(), &got.transfer), QUOIT_OK);
    ASSERT_EQ(ops->send(side[1].endpoint, {1, 1}, sent.bytes.data(), sent.bytes.size(), &sent.transfer), QUOIT_OK);
    for (uint64_t deadline = clock_deadline(40000); !(sent.done() && got.done()) && clock_now() < deadline; sched_yield())
        for (auto &one : side) ops->progress(one.transport);
    EXPECT_TRUE(got.transfer.status == QUOIT_OK && got.bytes == sent.bytes);
    EXPECT_EQ(fake().bytes(1), 0u);
    EXPECT_EQ(std::string(ops->describe(side[1].endpoint)).rfind("verbs fake0 port 1, ", 0), 0u) << ops->describe(side[1].endpoint);
    for (auto &one : side) {
        ops->close(one.transport);
        close(one.doorbell);
    }
}

/* Whatever befalls whichever device at whatever moment: all messages arrive, the other device carries what comes later, one warning a side. */
void one_is_lost(int device, const std::string &what, unsigned after)
{
    SCOPED_TRACE("fake" + std::to_string(device) + ": " + what + " after " + std::to_string(after) + " packets");
    fake().calm();
    fake().devices(2);
    testing::internal::CaptureStderr();
    std::string wrong, description;
    bool well = false;
    unsigned long later = 0;
    {
        Pair pair;
        wrong = pair.failure;
        fake().harm(device, what.c_str(), after);
        if (wrong.empty()) wrong = exchange(pair, 1, &well);
        if (wrong.empty() && !well) wrong = "a transfer failed: " + pair.side[0].closed + pair.side[1].closed;
        auto both_left = [&] { return fake().count("qp") == 4; }; /* of eight */
        for (uint64_t comm = 10; comm < 100 && wrong.empty() && !both_left(); comm++) wrong = both_ways(pair, comm, 300000); /* it did not come to it yet */
        if (wrong.empty() && !pair.wait(both_left)) wrong = "it is not left";
        unsigned long before = fake().bytes(device);
        for (uint64_t comm = 2; comm < 4 && wrong.empty(); comm++) wrong = both_ways(pair, comm, 300000);
        later = fake().bytes(device) - before;
    }
    std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(wrong, "") << log;
    EXPECT_EQ(occurrences(log, " is left: "), 2u) << log;
    EXPECT_EQ(occurrences(log, "warn verbs: rail fake" + std::to_string(device) + " port 1, RoCE v2 1" + std::to_string(device) + "."), 2u) << log;
    EXPECT_EQ(later, 0u) << "bytes over a device that is left";
    EXPECT_EQ(alive(), "");
}

TEST_F(Rails, OneIsLostAtAnyPointOfAMessage)
{
    const bool all = built_long_run();
    const unsigned seed = 17;
    std::mt19937 random(seed);
    for (int device = 0; device < 2; device++) {
        const unsigned most = device == 0 ? 120 : 300; /* packets of the messages that go over it, answers too, about */
        for (const char *what : {"port", "fatal", "removed"})
            for (unsigned i = 0; i < (all ? most : 6); i++) one_is_lost(device, what, all ? i : i == 0 ? 0 : random() % most);
        for (unsigned i = 0; i < (all ? 20 : 2); i++) one_is_lost(device, "cut", i == 0 ? 5 : random() % 60);
    }
}

/* A write that fails for other reasons than silence begins anew on the same device. */
TEST_F(Rails, AFailedWriteIsRepeated)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().fail_work("write", 3, IBV_WC_REM_ACCESS_ERR);
    bool well = false;
    EXPECT_EQ(exchange(pair, 1, &well), "");
    EXPECT_TRUE(well);
    EXPECT_EQ(fake().count("qp"), 8u) << "a device was left";
}

/*
 * A path is stopped, by a write that failed or by a communicator that is cancelled, and cannot begin anew: whichever call fails on whichever side (the
 * n-th from then on), its rail is left, and the other carries all.
 */
void a_path_cannot_begin_anew(const char *call, bool cancels)
{
    const unsigned step = built_sanitized() && !built_long_run() ? 5 : 1;
    for (unsigned n = 1, made = 1; n <= made; n += step) {
        SCOPED_TRACE(std::string(call) + " " + std::to_string(n) + (cancels ? " after a cancel" : " after a failed write"));
        fake().calm();
        fake().devices(2);
        testing::internal::CaptureStderr();
        std::string wrong;
        bool well = false;
        {
            Pair pair;
            wrong = pair.failure;
            if (wrong.empty()) wrong = exchange(pair, 1, &well);
            unsigned long before = fake().count(call);
            fake().fail_call(call, n, ENETUNREACH);
            if (wrong.empty() && cancels) {
                Message sent, got;
                sent.bytes = pattern(3 << 20, 1);
                got.bytes.assign(sent.bytes.size(), '\0');
                unsigned long writes = fake().count("writes");
                EXPECT_EQ(pair.ops->recv(pair.side[1].endpoint, {100, 1}, &got.bytes[0], got.bytes.size(), &got.transfer), QUOIT_OK);
                EXPECT_EQ(pair.ops->send(pair.side[0].endpoint, {100, 1}, sent.bytes.data(), sent.bytes.size(), &sent.transfer), QUOIT_OK);
                EXPECT_TRUE(pair.wait([&] { return fake().count("writes") > writes; })) << "nothing moved";
                pair.ops->cancel(pair.side[0].transport, 100);
                pair.ops->cancel(pair.side[1].transport, 100);
            } else {
                fake().fail_work("write", 1, IBV_WC_REM_ACCESS_ERR);
            }
            for (uint64_t comm = 2; comm < 4 && wrong.empty(); comm++) {
                wrong = exchange(pair, comm, &well);
                if (wrong.empty() && !well) wrong = "a transfer failed: " + pair.side[0].closed + pair.side[1].closed;
            }
            made = std::min(64u, (unsigned)(fake().count(call) - before));
        }
        std::string log = testing::internal::GetCapturedStderr();
        ASSERT_EQ(wrong, "") << log;
        EXPECT_GE(made, 4u);
        ASSERT_EQ(alive(), "");
    }
}

TEST_F(Rails, APathThatCannotBeginAnewIsLeft)
{
    for (bool cancels : {false, true}) a_path_cannot_begin_anew("modify_qp", cancels);
    a_path_cannot_begin_anew("post_recv", false);
}

TEST_F(Rails, TheLastOneTakesTheConnectionWithIt)
{
    for (const char *what : {"fatal", "cut"}) {
        fake().calm();
        fake().devices(2);
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        fake().harm(0, what, 0);
        fake().harm(1, what, 30);
        bool well = true;
        for (uint64_t comm = 1; comm < 50 && well; comm++) ASSERT_EQ(exchange(pair, comm, &well), ""); /* what goes over which is not the same each time */
        EXPECT_FALSE(well);
        for (auto &one : pair.side) {
            EXPECT_TRUE(one.closed.find("rank 0 (here)") != std::string::npos || one.closed.find("rank 1 (there)") != std::string::npos) << one.closed;
        }
        /* Whoever notices first tells the cause; to the other its control connection may tell that it has gone before its own device does. */
        bool device = (pair.side[0].closed + pair.side[1].closed).find(strcmp(what, "cut") == 0 ? "does not answer" : "the device failed") != std::string::npos;
        EXPECT_TRUE(device) << pair.side[0].closed << pair.side[1].closed;
    }
}

/* A device on which no queue pair can be made, and one whose queue pairs cannot be connected: the other carries all. */
TEST_F(Rails, OneThatCannotBeSetUpIsLeft)
{
    for (auto [call, n] : std::vector<std::pair<const char *, unsigned>>{{"create_qp", 1}, {"create_qp", 4}, {"modify_qp", 5}, {"modify_qp", 7}}) {
        SCOPED_TRACE(std::string(call) + " " + std::to_string(n));
        fake().calm();
        fake().devices(2);
        fake().fail_call(call, n, EINVAL);
        testing::internal::CaptureStderr();
        std::string failure, wrong;
        {
            Pair pair;
            failure = pair.failure;
            if (failure.empty()) wrong = both_ways(pair, 1, 1 << 20);
        }
        std::string log = testing::internal::GetCapturedStderr();
        EXPECT_EQ(failure + wrong, "") << log;
        if (strcmp(call, "create_qp") != 0 || n != 1) { /* the first is tried once more, without inline sends */
            EXPECT_EQ(occurrences(log, " is left: "), 2u) << log;
        }
        EXPECT_EQ(alive(), "");
    }
}

/* Memory that cannot be registered: its bytes go over the streams, of both devices, and a lost one is no loss there either. */
TEST_F(Rails, WhatCannotBeRegisteredGoesOverTheStreams)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().lock_limit(1);
    EXPECT_EQ(both_ways(pair, 1, 2 << 20), "");
    EXPECT_EQ(fake().count("writes"), 0u);
    EXPECT_GT(fake().bytes(0) + fake().bytes(1), 4ul << 20);
    fake().harm(1, "port", 40);
    EXPECT_EQ(both_ways(pair, 2, 2 << 20), "");
}

/* ---------------------------------------------------------------- destroying */

/* A queue pair that takes long to destroy holds up nobody else's messages, and neither does its peer's connection. */
TEST_F(Verbs, DestroyingAQueuePairHoldsUpNobody)
{
    Pair other;
    ASSERT_EQ(other.failure, "");
    quoit_transport_environment_t environment;
    Pair::Side third;
    ASSERT_EQ(random_bytes(&third.id, sizeof third.id), QUOIT_OK);
    transport_environment_init(&environment, third.id, third.doorbell, "testhost");
    ASSERT_EQ(other.ops->open(&environment, &third.transport), QUOIT_OK) << error_text();
    ASSERT_EQ(other.ops->listen(third.transport, third.address, &third.length), QUOIT_OK);
    ASSERT_EQ(other.ops->trust(third.transport, 7, "secret", 6), QUOIT_OK);
    quoit_peer_t peer = {third.id, 7, third.address, third.length, "the third", 20000};
    quoit_endpoint_t *endpoint = nullptr;
    ASSERT_EQ(other.ops->connect(other.side[0].transport, &peer, &endpoint), QUOIT_OK);
    ASSERT_TRUE(other.wait([&] {
        other.ops->progress(third.transport);
        return other.ops->endpoint_status(endpoint) == QUOIT_OK;
    }));
    fake().hold_destroy(1);
    other.ops->disconnect(endpoint);
    unsigned long before = fake().count("destroy_qp");
    ASSERT_TRUE(other.wait([&] {
        other.ops->progress(third.transport);
        return fake().count("destroy_qp") > before;
    })) << "it is not destroyed";
    EXPECT_EQ(both_ways(other, 1, 1 << 20), "");
    EXPECT_GT(fake().count("qp"), 4u) << "the others have waited for it to be destroyed";
    fake().hold_destroy(0);
    other.ops->close(third.transport);
    close(third.doorbell);
}

} // namespace
