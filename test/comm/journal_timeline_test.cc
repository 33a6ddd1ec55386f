// SPDX-License-Identifier: Apache-2.0
// The timeline: whole after a normal end, readable after a kill, begun and ended by calls. Part of test_comm_journal.
#include "journal_support.h"

#include <gtest/gtest.h>

#include <csignal>

using namespace comm_test;

int comm_test::role_trace(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK) return 1;
    for (size_t count : {size_t(10), size_t(300000), size_t(0)})
        if (allreduce(self.comm, count) != QUOIT_OK) return 2;
    if (self.argument(0)[0] == 'k' && self.rank == 0) {
        std::vector<float> buffer(10);
        quoit_request_t *request = nullptr;
        if (quoit_allreduce(self.comm, buffer.data(), buffer.data(), 10, QUOIT_F32, QUOIT_SUM, nullptr, &request) != QUOIT_OK) return 3;
        quoit_request_test(request);
        self.say("ready");
        self.listen("never");
    }
    self.say("ready");
    self.listen("go");
    return 0;
}

static void check_timeline(const std::string &json, int rank, bool complete)
{
    EXPECT_EQ(json.compare(0, 17, "{\"traceEvents\": ["), 0) << json.substr(0, 200);
    EXPECT_TRUE(has(json, complete ? "\"complete\": true" : "\"complete\": false")) << json.substr(json.size() - 300);
    EXPECT_TRUE(has(json, "\"name\": \"rank " + std::to_string(rank) + " (")) << json;
    EXPECT_EQ(count_of(json, "\"name\": \"allreduce\", \"cat\": \"collective\""), complete ? 3u : rank == 0 ? 4u : 3u) << json;
    EXPECT_EQ(count_of(json, "\"status\": \"unfinished\""), complete || rank != 0 ? 0u : 2u) << json; // it, and its time in the queue
    EXPECT_GE(count_of(json, "\"name\": \"start-up wait\""), 3u) << json;
    EXPECT_TRUE(has(json, "\"cat\": \"work\"")) << json;
    EXPECT_EQ(count_of(json, "{"), count_of(json, "}"));
}

TEST(Timeline, IsWholeAfterANormalEnd)
{
    for (const Hosts &host_of : {Hosts{0, 0}, Hosts{0, 1}}) {
        Directory directory;
        Processes ranks("trace", host_of, {"end"}, "", {"QUOIT_TRACE=" + directory.path + "/"});
        for (int rank = 0; rank < 2; rank++) ranks.wait_line(rank, "ready", 60);
        for (int rank = 0; rank < 2; rank++) ranks.tell(rank, "go");
        for (int rank = 0; rank < 2; rank++) EXPECT_EQ(ranks.wait_exit(rank, 60), 0) << ranks.output(rank);
        EXPECT_EQ(directory.files().size(), 2u);
        for (int rank = 0; rank < 2; rank++) {
            std::string json = directory.read("quoit-trace." + std::to_string(rank) + ".json");
            check_timeline(json, rank, true);
            EXPECT_EQ(has(json, "\"cat\": \"network"), host_of[1] == 1) << json;
        }
    }
}

TEST(Timeline, IsReadableAfterAKill)
{
    Directory directory;
    Processes ranks("trace", {0, 0}, {"kill"}, "", {"QUOIT_TRACE=" + directory.path + "/%r.json"});
    for (int rank = 0; rank < 2; rank++) ranks.wait_line(rank, "ready", 60);
    ranks.kill(0, SIGKILL);
    ranks.wait_exit(0, 30);
    std::string partial = directory.path + "/0.json.partial", path = directory.path + "/0.json";
    ASSERT_EQ(quoit_trace_convert(partial.c_str(), path.c_str()), QUOIT_OK) << quoit_last_error();
    check_timeline(read_file(path), 0, false);
    EXPECT_EQ(quoit_trace_convert(path.c_str(), (path + "2").c_str()), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_trace_convert((path + "3").c_str(), path.c_str()), QUOIT_ERR_SYSTEM);
    ranks.tell(1, "go");
    ranks.wait_exit(1, 30);
}

// Started and stopped by calls: before there is a communicator, and while one lives.
int comm_test::role_later(ProcessRank &self)
{
    auto start = [&](const std::string &name) { return quoit_trace_start((std::string(self.argument(0)) + "/" + name).c_str()); };
    quoit_status_t outcomes[9] = {quoit_trace_stop(), start("early.json"), start("second.json")};
    if (self.create(60000) != QUOIT_OK) return 1;
    if (allreduce(self.comm, 3) != QUOIT_OK) return 2;
    outcomes[3] = quoit_trace_stop();
    outcomes[4] = start("there/is/none.json");
    outcomes[5] = start("late.json");
    outcomes[6] = start("third.json");
    for (int i = 0; i < 7000; i++)
        if (allreduce(self.comm, 3) != QUOIT_OK) return 3;
    outcomes[7] = quoit_trace_stop();
    outcomes[8] = quoit_trace_stop();
    if (allreduce(self.comm, 3) != QUOIT_OK) return 4;
    std::string text;
    for (quoit_status_t each : outcomes) text += std::to_string(each) + " ";
    self.say("outcomes %s", text.c_str());
    self.listen("go");
    return 0;
}

TEST(Timeline, ByCallsAndBounded)
{
    Directory directory;
    Processes ranks("later", {0}, {directory.path}, "", {"QUOIT_TRACE_SIZE=1M"});
    std::string expected;
    for (quoit_status_t each : {QUOIT_OK, QUOIT_OK, QUOIT_ERR_INVALID, QUOIT_OK, QUOIT_ERR_SYSTEM, QUOIT_OK, QUOIT_ERR_INVALID, QUOIT_OK, QUOIT_OK})
        expected += std::to_string(each) + " ";
    EXPECT_EQ(ranks.wait_line(0, "outcomes", 60), expected) << ranks.output(0);
    std::string early = directory.read("early.0.json"), late = directory.read("late.0.json");
    EXPECT_EQ(count_of(early, "\"cat\": \"collective\""), 2u) << early; // the barrier of creation is #1
    EXPECT_TRUE(has(late, "\"sequence\": 7002,")) << late.size();
    EXPECT_FALSE(has(late, "\"sequence\": 7003,") || has(late, "\"sequence\": 100,")) << late.size();
    EXPECT_TRUE(has(late, "\"overwritten\": ") && !has(late, "\"overwritten\": 0,")) << late.size();
    EXPECT_EQ(directory.files().size(), 2u);
    ranks.tell(0, "go");
    EXPECT_EQ(ranks.wait_exit(0, 30), 0) << ranks.output(0);
}

// A second process that is told the same path, and a smaller size, takes nothing from under the first one, which has its file mapped.
int comm_test::role_beside(ProcessRank &self)
{
    if (self.create(60000) != QUOIT_OK || allreduce(self.comm, 3) != QUOIT_OK) return 1;
    self.say("begun");
    self.listen("go");
    for (int i = 0; i < 1000; i++)
        if (allreduce(self.comm, 3) != QUOIT_OK) return 2;
    self.say("stopped %d %s", quoit_trace_stop(), quoit_last_error());
    self.listen("end");
    return 0;
}

TEST(Timeline, OfTwoProcessesInOnePlace)
{
    Directory directory;
    std::string place = "QUOIT_TRACE=" + directory.path + "/one.json";
    Processes first("beside", {0}, {}, "", {place, "QUOIT_TRACE_SIZE=4M"});
    first.wait_line(0, "begun", 60);
    Processes second("beside", {0}, {}, "", {place, "QUOIT_TRACE_SIZE=1M"});
    second.wait_line(0, "begun", 60);
    first.tell(0, "go");
    EXPECT_EQ(first.wait_line(0, "stopped", 60).substr(0, 1), "0") << first.output(0);
    EXPECT_TRUE(has(directory.read("one.0.json"), "\"sequence\": 1002,"));
    EXPECT_TRUE(has(directory.read("one.0.json"), "\"pid\": " + std::to_string(first.pid(0)) + ","));
    EXPECT_EQ(directory.files().size(), 2u) << "the other one's partial file is still there";
    second.tell(0, "go");
    EXPECT_EQ(second.wait_line(0, "stopped", 60).substr(0, 1), "0") << second.output(0);
    EXPECT_TRUE(has(directory.read("one.0.json"), "\"pid\": " + std::to_string(second.pid(0)) + ","));
    EXPECT_EQ(directory.files().size(), 1u);
    for (Processes *each : {&first, &second}) {
        each->tell(0, "end");
        EXPECT_EQ(each->wait_exit(0, 30), 0) << each->output(0);
    }
}
