/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport where the conformance suite does not reach: failures of the device and of each call of libibverbs, late
 * completions, memory that cannot be registered. Over the fake libibverbs.
 */
#include "verbs_pair.h"

extern "C" {
#include "transport/verbs/verbs.h"
}

#include <poll.h>

#include <set>

using namespace verbs_test;

namespace {

TEST_F(Verbs, MessagesAndNothingLeftBehind)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    bool well = false;
    EXPECT_EQ(exchange(pair, 1, &well), "");
    EXPECT_TRUE(well);
    EXPECT_GE(fake().count("writes"), 4u) << "nothing was written directly";
    std::string text = pair.ops->describe(pair.side[0].endpoint);
    EXPECT_NE(text.find("fake0 port 1, RoCE v2 10."), std::string::npos) << text;
}

/*
 * All that the library calls and that can fail: the list of verbs_library.h, and what goes through the context's own table. Those that have tests of
 * their own below are left out, and those that cannot fail.
 */
std::vector<std::string> calls_that_may_fail()
{
    const std::set<std::string> others = {"free_device_list", "get_device_name", "ack_cq_events", "ack_async_event", /* cannot */
                                          "fork_init", "get_async_event"};
    std::vector<std::string> all = {"post_send", "post_recv", "poll_cq", "req_notify_cq"};
#define VERBS_CALL(result, name, arguments) all.push_back(#name);
    VERBS_CALL_LIST
#undef VERBS_CALL
    all.erase(std::remove_if(all.begin(), all.end(), [&](const std::string &name) { return others.count(name); }), all.end());
    return all;
}

/* One side sleeps on its descriptor, and a message wakes it. "" or what is wrong; a connection that ended is none. */
std::string sleep_and_wake(Pair &pair)
{
    Message sent, got;
    auto &sleeper = pair.side[1], &other = pair.side[0];
    sent.bytes = pattern(100, 9);
    got.bytes.assign(100, '\0');
    EXPECT_EQ(pair.ops->recv(sleeper.endpoint, {900, 1}, &got.bytes[0], 100, &got.transfer), QUOIT_OK);
    auto ended = [&] { return !sleeper.closed.empty() || !other.closed.empty(); };
    bool armed = false;
    pair.wait([&] { return ended() || (armed = pair.ops->arm(sleeper.transport) == QUOIT_OK); });
    EXPECT_EQ(pair.ops->send(other.endpoint, {900, 1}, sent.bytes.data(), 100, &sent.transfer), QUOIT_OK);
    struct pollfd bell = {pair.ops->descriptor(sleeper.transport), POLLIN, 0};
    for (uint64_t deadline = clock_deadline(20000); armed && poll(&bell, 1, 0) == 0 && clock_now() < deadline; sched_yield()) pair.ops->progress(other.transport);
    if (armed) pair.ops->disarm(sleeper.transport);
    bool over = pair.wait([&] { return (sent.done() && got.done()) || ended(); });
    bool good = got.transfer.status == QUOIT_OK && got.bytes == sent.bytes;
    pair.ops->cancel(sleeper.transport, 900);
    pair.ops->cancel(other.transport, 900);
    return !over ? "a sleeper was not woken" : good || ended() ? "" : "a sleeper got other bytes";
}

/* How often each is called where nothing fails, from before the first transport until the last is closed. */
std::map<std::string, unsigned> calls_of_a_good_run(int devices, const std::vector<std::string> &calls)
{
    fake().calm();
    fake().devices(devices);
    {
        Pair pair;
        bool well = false;
        EXPECT_EQ(pair.failure.empty() ? exchange(pair, 1, &well) : pair.failure, "");
        EXPECT_TRUE(well);
        EXPECT_EQ(sleep_and_wake(pair), "");
    }
    std::map<std::string, unsigned> counts;
    for (const std::string &call : calls) counts[call] = (unsigned)fake().count(call.c_str());
    return counts;
}

/* The first, the second, some in the middle and the last (slowed down by a sanitizer the first and the last); all of them in a long run (of the polls the first: their number is chance). */
std::vector<unsigned> which_of(unsigned count, unsigned middle, std::mt19937 &random)
{
    const unsigned most = 400, few = built_sanitized() ? 1 : 2;
    if (built_sanitized() && !built_long_run()) middle = std::min(middle, 1u);
    std::set<unsigned> which;
    for (unsigned n = 1; n <= std::min(count, built_long_run() ? most : few); n++) which.insert(n);
    for (unsigned i = 0; i < middle && count > 2; i++) which.insert(1 + (unsigned)random() % count);
    if (count > 0) which.insert(count);
    return {which.begin(), which.end()};
}

/* Each call fails once, the first time, the second, ...: what happens is the right result or an error with a text, and nothing leaks. */
void every_call_may_fail_once(int devices, unsigned late_us, unsigned middle, int noticed)
{
    const unsigned seed = 5;
    std::mt19937 random(seed);
    int failed = 0;
    const auto calls = calls_that_may_fail();
    for (const auto &[call, count] : calls_of_a_good_run(devices, calls)) {
        EXPECT_GT(count, 0u) << call << " is not called: it belongs to those with tests of their own";
        for (unsigned n : which_of(count, middle, random)) {
            for (int error : {EIO, ENOMEM}) {
                if (!built_long_run() && (random() & 1) == 0 && n > 2) continue;
                fake().calm();
                fake().devices(devices);
                fake().delay(late_us);
                fake().fail_call(call.c_str(), n, error);
                bool well = true;
                {
                    Pair pair(3000);
                    std::string wrong = pair.failure.empty() ? exchange(pair, 1, &well) : "";
                    if (wrong.empty() && well && pair.failure.empty()) wrong = sleep_and_wake(pair);
                    EXPECT_EQ(wrong, "") << "call " << n << " of " << count << " of " << call << " failed with " << strerror(error);
                    EXPECT_NE(pair.failure, "set-up hangs") << "call " << n << " of " << call;
                    failed += !well || !pair.failure.empty();
                }
                ASSERT_EQ(alive(), "") << "after call " << n << " of " << count << " of " << call << " failed with " << strerror(error);
            }
        }
    }
    EXPECT_GT(failed, noticed) << "hardly any failure was noticed";
}

TEST_F(Verbs, EveryCallMayFailOnce) { every_call_may_fail_once(1, 0, 4, 10); }

TEST_F(Verbs, EveryCallMayFailOnceWhileCompletionsAreLate) { every_call_may_fail_once(1, 200, 0, 10); }

/* Of two devices the other carries on with most of them. */
TEST_F(Verbs, EveryCallMayFailOnceOverRails) { every_call_may_fail_once(2, 0, 1, 1); }

/* The event of a broken device is not lost where it cannot be read at once. */
TEST_F(Verbs, AnEventThatCannotBeReadIsReadLater)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().fail_call("get_async_event", 1, EIO);
    fake().break_device();
    ASSERT_TRUE(pair.wait([&] { return !pair.side[0].closed.empty() && !pair.side[1].closed.empty(); })) << "nobody noticed";
    EXPECT_GE(fake().count("get_async_event"), 3u);
}

TEST_F(Verbs, AFailedWriteIsRepeated)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    for (int status : {IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_ACCESS_ERR}) {
        fake().fail_work("write", 2, status);
        bool well = false;
        EXPECT_EQ(exchange(pair, (uint64_t)status, &well), "");
        EXPECT_TRUE(well) << "a single failed write ended the connection";
    }
}

TEST_F(Verbs, AFailedSendEndsTheConnectionWithItsMeaning)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().fail_work("send", 3, IBV_WC_RETRY_EXC_ERR);
    bool well = true;
    EXPECT_EQ(exchange(pair, 1, &well), "");
    EXPECT_FALSE(well);
    std::string both = pair.side[0].closed + pair.side[1].closed;
    EXPECT_NE(both.find("does not answer"), std::string::npos) << both;
    EXPECT_TRUE(both.find("rank 0 (here)") != std::string::npos || both.find("rank 1 (there)") != std::string::npos) << both;
}

/* Each error that a completion can tell ends the connection with its number, what it means, and the peer's name. */
TEST_F(Verbs, ErrorsOfCompletionsAreToldInWords)
{
    const std::map<int, const char *> meanings = {{IBV_WC_LOC_QP_OP_ERR, "the local queue pair refused"}, {IBV_WC_LOC_PROT_ERR, "is not registered"},
                                                  {IBV_WC_REM_INV_REQ_ERR, "rejected the request"}, {IBV_WC_REM_OP_ERR, "failed to do it"},
                                                  {IBV_WC_RNR_RETRY_EXC_ERR, "no buffer ready"}, {IBV_WC_REM_ACCESS_ERR, "not open to it"},
                                                  {IBV_WC_FATAL_ERR, "the device failed"}, {IBV_WC_RESP_TIMEOUT_ERR, "did not answer in time"}};
    for (const auto &[status, meaning] : meanings) {
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        fake().fail_work("send", 2, status);
        bool well = true;
        EXPECT_EQ(exchange(pair, 1, &well), "");
        EXPECT_FALSE(well) << "status " << status;
        std::string both = pair.side[0].closed + pair.side[1].closed;
        EXPECT_NE(both.find(meaning), std::string::npos) << both;
        EXPECT_NE(both.find("completion status " + std::to_string(status)), std::string::npos) << both;
        EXPECT_TRUE(both.find("rank 0 (here)") != std::string::npos || both.find("rank 1 (there)") != std::string::npos) << both;
    }
}

/* There is none of which nothing is said; and a write that ended in it is written anew. */
TEST_F(Verbs, EachStatusOfACompletionHasAText)
{
    for (int status = IBV_WC_LOC_LEN_ERR; status <= IBV_WC_TM_RNDV_INCOMPLETE; status++) {
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        fake().fail_work("write", 1, status);
        bool well = false;
        EXPECT_EQ(exchange(pair, 1, &well), "");
        EXPECT_TRUE(well) << "a single write that ended in status " << status << " ended the connection: " << pair.side[0].closed << pair.side[1].closed;
        fake().fail_work("send", 2, status);
        EXPECT_EQ(exchange(pair, 2, &well), "");
        EXPECT_FALSE(well) << "status " << status;
        std::string both = pair.side[0].closed + pair.side[1].closed, number = " (completion status " + std::to_string(status) + ",";
        size_t at = both.find(number), told = at == std::string::npos ? at : both.rfind(" failed: ", at);
        EXPECT_TRUE(told != std::string::npos && at - told > strlen(" failed: ") + 10) << both;
    }
}

TEST_F(Verbs, AFullQueueIsTriedAgain)
{
    for (int devices : {1, 2}) {
        fake().devices(devices);
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        for (unsigned n : {1, 7, 200}) {
            fake().fill(n);
            bool well = false;
            EXPECT_EQ(exchange(pair, n, &well), "");
            EXPECT_TRUE(well) << n << " refusals, " << devices << " devices";
        }
    }
}

TEST_F(Verbs, ACutNetworkEndsTheConnectionInTime)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().cut(1);
    bool well = true;
    EXPECT_EQ(exchange(pair, 1, &well), "");
    EXPECT_FALSE(well);
    EXPECT_NE((pair.side[0].closed + pair.side[1].closed).find("does not answer"), std::string::npos) << pair.side[0].closed;
    fake().cut(0);
}

TEST_F(Verbs, ABrokenDeviceEndsAllItsConnections)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().break_device();
    ASSERT_TRUE(pair.wait([&] { return !pair.side[0].closed.empty() && !pair.side[1].closed.empty(); })) << "nobody noticed";
    for (auto &one : pair.side) EXPECT_NE(one.closed.find("fake0"), std::string::npos) << one.closed;
}

/* The same at any packet of the messages: all of them end, well or with a text, and nothing is left behind. */
TEST_F(Verbs, ADeviceMayBreakAtAnyPacket)
{
    const unsigned most = 400, seed = 23; /* packets of the messages, about */
    std::mt19937 random(seed);
    for (const char *what : {"fatal", "removed"})
        for (unsigned i = 0; i < (built_long_run() ? most : 8); i++) {
            unsigned after = built_long_run() ? i : i == 0 ? 0 : random() % most;
            fake().calm();
            {
                Pair pair;
                ASSERT_EQ(pair.failure, "");
                fake().harm(0, what, after);
                bool well = true;
                for (uint64_t comm = 1; comm < 20 && well; comm++) ASSERT_EQ(exchange(pair, comm, &well), "") << what << " after " << after << " packets";
                EXPECT_FALSE(well) << what << " after " << after << " packets";
                EXPECT_NE((pair.side[0].closed + pair.side[1].closed).find("fake0"), std::string::npos) << pair.side[0].closed << pair.side[1].closed;
            }
            ASSERT_EQ(alive(), "") << what << " after " << after << " packets";
        }
}

/* Taken out while messages move: all ends with a text, what was made can be freed, and the next one is told that there is no device. */
TEST_F(Verbs, ARemovedDeviceEndsAllItsConnections)
{
    char why[512] = "";
    quoit_transport_environment_t environment;
    {
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        Message sent, got;
        sent.bytes = pattern(8 << 20, 1);
        got.bytes.assign(sent.bytes.size(), '\0');
        ASSERT_EQ(pair.ops->recv(pair.side[1].endpoint, {1, 1}, &got.bytes[0], got.bytes.size(), &got.transfer), QUOIT_OK);
        ASSERT_EQ(pair.ops->send(pair.side[0].endpoint, {1, 1}, sent.bytes.data(), sent.bytes.size(), &sent.transfer), QUOIT_OK);
        ASSERT_TRUE(pair.wait([&] { return fake().count("writes") > 0; })) << "nothing moved";
        fake().remove_device();
        ASSERT_TRUE(pair.wait([&] { return !pair.side[0].closed.empty() && !pair.side[1].closed.empty(); })) << "nobody noticed";
        for (auto &one : pair.side) EXPECT_NE(one.closed.find("fake0"), std::string::npos) << one.closed;
        EXPECT_TRUE(got.done() && sent.done());
        transport_environment_init(&environment, pair.side[0].id, pair.side[0].doorbell, "testhost");
        EXPECT_EQ(pair.ops->probe(&environment, why, sizeof why), QUOIT_ERR_NOT_FOUND);
        EXPECT_NE(std::string(why).find("no RDMA device"), std::string::npos) << why;
    }
    EXPECT_EQ(alive(), "");
}

/* No memory can be locked any more: large messages go over the stream, with one warning of each side. */
TEST_F(Verbs, MessagesWhoseMemoryCannotBeRegisteredAreCopied)
{
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().lock_limit(1);
    bool well = false;
    testing::internal::CaptureStderr();
    std::string wrong = exchange(pair, 1, &well) + exchange(pair, 2, &well);
    std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(wrong, "");
    EXPECT_TRUE(well);
    EXPECT_EQ(fake().count("writes"), 0u);
    size_t warnings = 0;
    for (size_t at = log.find("go over the stream"); at != std::string::npos; at = log.find("go over the stream", at + 1)) warnings++;
    EXPECT_EQ(warnings, 2u) << log;
    EXPECT_NE(log.find("ulimit -l"), std::string::npos) << log;
    fake().lock_limit(0);
    EXPECT_EQ(exchange(pair, 3, &well), "");
    EXPECT_GE(fake().count("writes"), 4u) << "it does not come back when memory can be registered again";
}

/* What a fabric may reorder is sent so that it can: the same bytes arrive, each large message with one write more. */
TEST_F(Verbs, EndsOfMessagesAreSentApartForAdaptiveRouting)
{
    unsigned long writes[2], relaxed[2];
    for (int i = 0; i < 2; i++) {
        overrides() = {{"VERBS_ADAPTIVE_ROUTING", i ? "yes" : "no"}, {"VERBS_RELAXED_ORDERING", i ? "no" : "yes"}};
        fake().calm();
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        bool well = false;
        EXPECT_EQ(exchange(pair, 1, &well), "");
        EXPECT_TRUE(well);
        writes[i] = fake().count("writes");
        relaxed[i] = fake().count("relaxed");
    }
    overrides().clear();
    EXPECT_EQ(writes[1], writes[0] + 4) << "two messages of 70000 bytes, two of 2200000";
    EXPECT_GT(relaxed[0], 0u);
    EXPECT_EQ(relaxed[1], 0u);
}

TEST_F(Verbs, QueuePairsAreAsTheSettingsSay)
{
    const std::map<std::string, std::pair<const char *, unsigned>> settings = {{"VERBS_PKEY_INDEX", {"pkey_index", 3}}, {"VERBS_SERVICE_LEVEL", {"service_level", 5}},
                                                                               {"VERBS_TRAFFIC_CLASS", {"traffic_class", 106}}, {"VERBS_TIMEOUT", {"timeout", 20}},
                                                                               {"VERBS_RETRY_COUNT", {"retry_count", 4}}};
    for (const auto &[name, value] : settings) overrides()[name] = std::to_string(value.second);
    {
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        for (const auto &[name, value] : settings) EXPECT_EQ(fake().count(value.first), value.second) << name;
        bool well = false;
        EXPECT_EQ(exchange(pair, 1, &well), "");
        EXPECT_TRUE(well);
    }
    overrides().clear();
}

/* Small messages need no registered memory, and few work requests a completion. */
TEST_F(Verbs, SmallMessagesAreInlineAndFewSendsAskForACompletion)
{
    const uint64_t messages = 400;
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    unsigned long posted = fake().count("post_send"), inlined = fake().count("inlined"), signalled = fake().count("signalled"), registered = fake().count("reg_mr");
    for (uint64_t i = 0; i < messages; i++) {
        char sent[8] = "message", got[8] = "";
        quoit_transfer_t send{}, recv{};
        ASSERT_EQ(pair.ops->recv(pair.side[1].endpoint, {1, i}, got, sizeof got, &recv), QUOIT_OK);
        ASSERT_EQ(pair.ops->send(pair.side[0].endpoint, {1, i}, sent, sizeof sent, &send), QUOIT_OK);
        ASSERT_TRUE(pair.wait([&] { return send.status == QUOIT_OK && recv.status == QUOIT_OK; }));
        ASSERT_STREQ(got, sent);
    }
    posted = fake().count("post_send") - posted;
    EXPECT_GE(posted, messages);
    EXPECT_GE(fake().count("inlined") - inlined, messages);
    EXPECT_LE((fake().count("signalled") - signalled) * 4, posted);
    EXPECT_GE(fake().count("signalled") - signalled, posted / 32) << "the queue would fill up";
    EXPECT_EQ(fake().count("reg_mr"), registered);
}

/* An older kernel keeps what is registered from children of fork: so nothing of the caller's stays registered there. */
TEST_F(Verbs, OlderKernelsKeepNoRegistrations)
{
    for (bool old : {false, true}) {
        if (old) setenv("FAKE_VERBS_FORK", "old", 1);
        fake().calm();
        if (old) fake().fail_call("fork_init", 1, ENOMEM); /* which is no reason to do without */
        {
            Pair pair;
            unsetenv("FAKE_VERBS_FORK");
            ASSERT_EQ(pair.failure, "");
            unsigned long before = fake().count("mr");
            bool well = false;
            EXPECT_EQ(exchange(pair, 1, &well), "");
            EXPECT_TRUE(well);
            EXPECT_EQ(fake().count("fork_init"), old ? 2u : 0u);
            if (old) {
                EXPECT_EQ(fake().count("mr"), before);
            }
        }
        EXPECT_EQ(alive(), "");
    }
}

/* However many peers a process has, they share a completion queue. */
TEST_F(Verbs, PeersShareACompletionQueue)
{
    const int peers = 5;
    std::vector<Pair::Side> side(peers + 1);
    const quoit_transport_ops_t *ops = &transport_verbs;
    for (auto &one : side) {
        quoit_transport_environment_t environment;
        ASSERT_EQ(random_bytes(&one.id, sizeof one.id), QUOIT_OK);
        transport_environment_init(&environment, one.id, one.doorbell, "testhost");
        ASSERT_EQ(ops->open(&environment, &one.transport), QUOIT_OK) << error_text();
        ASSERT_EQ(ops->listen(one.transport, one.address, &one.length), QUOIT_OK);
        ASSERT_EQ(ops->trust(one.transport, 7, "secret", 6), QUOIT_OK);
    }
    std::vector<quoit_endpoint_t *> endpoint(peers);
    for (int i = 0; i < peers; i++) {
        quoit_peer_t peer = {side[i + 1].id, 7, side[i + 1].address, side[i + 1].length, "a peer", 20000};
        ASSERT_EQ(ops->connect(side[0].transport, &peer, &endpoint[i]), QUOIT_OK) << error_text();
        quoit_peer_t back = {side[0].id, 7, side[0].address, side[0].length, "the one", 20000};
        ASSERT_EQ(ops->connect(side[i + 1].transport, &back, &side[i + 1].endpoint), QUOIT_OK) << error_text();
    }
    std::vector<Message> sends(peers), recvs(peers);
    for (int i = 0; i < peers; i++) {
        sends[i].bytes = pattern(100000, (unsigned)i);
        recvs[i].bytes.assign(100000, '\0');
        ASSERT_EQ(ops->send(side[i + 1].endpoint, {1, 1}, sends[i].bytes.data(), 100000, &sends[i].transfer), QUOIT_OK);
        ASSERT_EQ(ops->recv(endpoint[i], {1, 1}, &recvs[i].bytes[0], 100000, &recvs[i].transfer), QUOIT_OK);
    }
    const char *slow = getenv("TEST_SLOW");
    uint64_t deadline = clock_deadline(20000 * (slow ? atoi(slow) : 1));
    for (bool done = false; !done && clock_now() < deadline; sched_yield()) {
        quoit_event_t event;
        for (auto &one : side) {
            ops->progress(one.transport);
            while (ops->next_event(one.transport, &event)) EXPECT_NE(event.type, QUOIT_EVENT_CLOSED) << event.text;
        }
        done = true;
        for (int i = 0; i < peers; i++) done = done && sends[i].done() && recvs[i].done();
    }
    for (int i = 0; i < peers; i++) EXPECT_TRUE(recvs[i].transfer.status == QUOIT_OK && recvs[i].bytes == sends[i].bytes) << "of peer " << i;
    EXPECT_EQ(fake().count("cq"), (unsigned long)peers + 1) << "one for each process";
    EXPECT_EQ(fake().count("qp"), 4ul * peers);
    for (auto &one : side) {
        ops->close(one.transport);
        close(one.doorbell);
    }
}

/* Registered memory is what a peer costs: docs/transports-verbs.md has sums of it. */
TEST_F(Verbs, APeerCostsHalfAMebibyteForEachDevice)
{
    for (int devices : {1, 2}) {
        fake().devices(devices);
        Pair pair;
        ASSERT_EQ(pair.failure, "");
        EXPECT_EQ(fake().count("registered"), 2ul * (unsigned long)devices * (512 << 10)) << "two processes, one peer each, " << devices << " devices";
    }
    EXPECT_EQ(verbs_stream_depth(32, 0), 32u);
    EXPECT_EQ(verbs_stream_depth(32, 63), 32u);
    EXPECT_EQ(verbs_stream_depth(32, 64), 8u) << "128 KiB a peer from then on";
    EXPECT_EQ(verbs_stream_depth(1024, 64), 256u);
    EXPECT_EQ(verbs_stream_depth(8, 64), 8u);
    size_t bytes = 0;
    for (unsigned others = 0; others < 1023; others++) bytes += (size_t)2 * verbs_stream_depth(32, others) * (8 << 10);
    EXPECT_EQ(bytes, (size_t)(32 << 20) + 959 * (size_t)(128 << 10)) << "1,023 peers: 152 MiB";
}

/* Late packets, and communicators that are cancelled in the middle: others lose nothing, no buffer is touched after cancel. */
void cancels_in_the_middle(int devices, uint64_t sample)
{
    const unsigned seed = 11;
    std::mt19937 random(seed);
    fake().devices(devices);
    Pair pair;
    ASSERT_EQ(pair.failure, "");
    fake().delay(300);
    const size_t size = 3u << 20;
    const uint64_t rounds = built_long_run() ? 100 : sample;
    for (uint64_t round = 0; round < rounds; round++) {
        Message doomed[2][2], kept[2][2]; /* [from][send, recv] */
        for (int from = 0; from < 2; from++) {
            for (auto *one : {&doomed[from][0], &kept[from][0]}) one->bytes = pattern(size, (unsigned)(round * 4 + (uint64_t)from * 2 + (one == &kept[from][0])));
            for (auto *one : {&doomed[from][1], &kept[from][1]}) one->bytes.assign(size, '\0');
            bool declared = true;
            /* In every other round the buffers stay registered, and only the queue pair's reset keeps the peer out. */
            for (auto *one : {&doomed[from][0], &kept[from][0]})
                if (round % 2) declared = (pair.ops->reg(pair.side[from].transport, one->bytes.data(), size) == QUOIT_OK) && declared;
            for (auto *one : {&doomed[from][1], &kept[from][1]})
                if (round % 2) declared = (pair.ops->reg(pair.side[1 - from].transport, one->bytes.data(), size) == QUOIT_OK) && declared;
            ASSERT_TRUE(declared);
            for (uint64_t comm : {100 + round, (uint64_t)1}) {
                auto *pairs = comm == 1 ? kept[from] : doomed[from];
                quoit_key_t key = {comm, round * 2 + (uint64_t)from};
                ASSERT_EQ(pair.ops->recv(pair.side[1 - from].endpoint, key, &pairs[1].bytes[0], size, &pairs[1].transfer), QUOIT_OK);
                ASSERT_EQ(pair.ops->send(pair.side[from].endpoint, key, pairs[0].bytes.data(), size, &pairs[0].transfer), QUOIT_OK);
            }
        }
        for (unsigned i = random() % 60; i > 0; i--) {
            pair.progress();
            usleep(random() % 200);
        }
        int first = (int)(random() % 2);
        pair.ops->cancel(pair.side[first].transport, 100 + round);
        for (int from = 0; from < 2; from++) {
            Message &touched = from == first ? doomed[from][0] : doomed[from][1]; /* both of the side that cancelled */
            ASSERT_TRUE(touched.done());
            std::fill(touched.bytes.begin(), touched.bytes.end(), '\x77');
        }
        bool ended = pair.wait([&] { return kept[0][0].done() && kept[0][1].done() && kept[1][0].done() && kept[1][1].done(); });
        ASSERT_TRUE(ended) << "the other communicator hangs; round " << round << ", seed " << seed;
        for (int from = 0; from < 2; from++) {
            ASSERT_EQ(kept[from][1].transfer.status, QUOIT_OK) << pair.side[0].closed << pair.side[1].closed;
            ASSERT_TRUE(kept[from][1].bytes == kept[from][0].bytes) << "other bytes; round " << round << ", seed " << seed;
            Message &touched = from == first ? doomed[from][0] : doomed[from][1];
            ASSERT_TRUE(test_bytes::all_are(touched.bytes.data(), size, '\x77')) << "written to after cancel; round " << round << ", seed " << seed;
            Message &recv = doomed[from][1];
            if (recv.done() && recv.transfer.status == QUOIT_OK && 1 - from != first) {
                ASSERT_TRUE(recv.bytes == pattern(size, (unsigned)(round * 4 + (uint64_t)from * 2))) << "a cancelled send ended a recv with other bytes";
            }
        }
        pair.ops->cancel(pair.side[1 - first].transport, 100 + round);
        for (int from = 0; from < 2; from++) {
            for (auto *one : {&doomed[from][0], &kept[from][0]}) pair.ops->dereg(pair.side[from].transport, one->bytes.data());
            for (auto *one : {&doomed[from][1], &kept[from][1]}) pair.ops->dereg(pair.side[1 - from].transport, one->bytes.data());
        }
    }
}

TEST_F(Verbs, CancelsInTheMiddleOfLateWrites) { cancels_in_the_middle(1, 8); }

TEST_F(Verbs, CancelsInTheMiddleOfLateWritesOverRails) { cancels_in_the_middle(2, 5); }

const bool prepared = [] {
    setenv("QUOIT_INTERFACE", "lo", 1);
    setenv("QUOIT_VERBS_LIBRARY", built_path(FAKE_VERBS).c_str(), 1);
    return true;
}();

} // namespace
