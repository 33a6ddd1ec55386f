// SPDX-License-Identifier: Apache-2.0
// The life of an endpoint (transport/framing/endpoint.h) on a transport of nothing: what is told, what is called, when it is freed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

extern "C" {
#include "base/status.h"
#include "transport/framing/endpoint.h"
}

namespace {

struct Calls {
    int touch, leaving, parted, released, forgotten, freed;
} calls;

const endpoint_ops_t ops = {
    "fake",
    [](endpoint_t *) { calls.touch++; },
    [](endpoint_t *) { calls.leaving++; },
    [](endpoint_t *) { calls.parted++; },
    [](endpoint_t *) { calls.released++; },
    [](endpoint_t *) { calls.forgotten++; },
    [](endpoint_t *) { calls.freed++; },
};

const pipe_ops_t pipe_ops = {
    [](void *, const struct iovec *, int, size_t *) { return QUOIT_ERR_AGAIN; },
    [](void *, const struct iovec *, int, size_t *) { return QUOIT_ERR_AGAIN; },
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

const quoit_process_id_t PEER = {1, 2};

class EndpointLife : public testing::Test {
protected:
    void SetUp() override
    {
        calls = {};
        ASSERT_EQ(QUOIT_OK, endpoints_open(&home, nullptr, &ops, {3, 4}));
        endpoint = static_cast<endpoint_t *>(calloc(1, sizeof *endpoint));
        ASSERT_EQ(QUOIT_OK, endpoint_create(endpoint, &home, PEER, "rank 7"));
        channel_config_t config = {};
        config.ops = &pipe_ops, config.eager_limit = 1024, config.eager_pool = 65536, config.segment_size = 4096;
        ASSERT_EQ(QUOIT_OK, channel_create(&config, endpoint->name, &endpoint->channel));
    }
    void TearDown() override
    {
        endpoints_close(&home);
        EXPECT_EQ(1, calls.freed);
        EXPECT_EQ(1, calls.forgotten);
        EXPECT_EQ(0u, home.coming);
    }
    void join()
    {
        quoit_peer_t peer = {};
        quoit_endpoint_t *handle = nullptr;
        endpoint_join(endpoint, &peer, &handle);
        ASSERT_EQ(&endpoint->handle, handle);
    }
    void stand()
    {
        void *pipe = this;
        channel_open(endpoint->channel, endpoint->name, &pipe, 1);
        endpoint_stand(endpoint);
    }
    void disconnect() { endpoint_disconnect(&endpoint->handle); }
    quoit_status_t status() { return endpoint_status(&endpoint->handle); }
    /* "": no event */
    std::string next_event()
    {
        quoit_event_t event;
        if (!endpoints_next_event(&home.handle, &event)) return "";
        EXPECT_EQ(QUOIT_EVENT_CLOSED, event.type);
        EXPECT_EQ(&endpoint->handle, event.endpoint);
        return event.text;
    }

    endpoints_t home = {};
    endpoint_t *endpoint = nullptr;
};

} // namespace

TEST_F(EndpointLife, ComingAndGivenUpWithNothingUnsentIsFreedAtOnce)
{
    join(), join();
    EXPECT_EQ(QUOIT_IN_PROGRESS, status());
    EXPECT_EQ(1u, home.coming);
    disconnect();
    EXPECT_EQ(endpoint, endpoint_find(&home, PEER));
    disconnect();
    EXPECT_EQ(1, calls.freed);
    EXPECT_EQ(nullptr, endpoint_find(&home, PEER));
}

TEST_F(EndpointLife, GivenUpWithSomethingUnsentItLeavesOnceItStands)
{
    quoit_transfer_t transfer = {};
    join();
    ASSERT_EQ(QUOIT_OK, channel_send(endpoint->channel, {1, 1}, "hello", 5, &transfer));
    disconnect();
    EXPECT_EQ(0, calls.freed);
    stand();
    EXPECT_EQ(ENDPOINT_LEAVING, endpoint->life);
    EXPECT_EQ(1, calls.leaving);
    EXPECT_EQ(QUOIT_ERR_CLOSED, status());
    EXPECT_EQ(nullptr, endpoint_find(&home, PEER)) << "a new connection would meet one that leaves";
    EXPECT_EQ("", next_event());
    endpoint_left(endpoint);
    EXPECT_EQ(1, calls.freed);
}

TEST_F(EndpointLife, ItsEndIsToldOnceAndItStaysWhileSomebodyHasIt)
{
    join();
    stand();
    EXPECT_EQ(QUOIT_OK, status());
    endpoint_end(endpoint, error_set(QUOIT_ERR_NETWORK, "the link was cut"));
    endpoint_end(endpoint, error_set(QUOIT_ERR_PEER, "and more"));
    EXPECT_EQ(1, calls.released);
    EXPECT_EQ("fake: the link was cut", next_event());
    EXPECT_EQ(QUOIT_ERR_NETWORK, status());
    disconnect();
    EXPECT_EQ(0, calls.freed) << "its text was just handed out";
    EXPECT_EQ("", next_event());
    EXPECT_EQ(1, calls.freed);
}

TEST_F(EndpointLife, ATextThatNamesTheTransportIsLeftAsItIs)
{
    join();
    endpoint_end(endpoint, error_set(QUOIT_ERR_TIMEOUT, "fake: nobody is there"));
    EXPECT_EQ("fake: nobody is there", next_event());
    EXPECT_EQ("", next_event());
    EXPECT_EQ(QUOIT_ERR_TIMEOUT, status());
}

TEST_F(EndpointLife, WhatNobodyAskedForEndsInSilence)
{
    endpoint_end(endpoint, error_set(QUOIT_ERR_TIMEOUT, "it did not finish"));
    EXPECT_EQ("", next_event());
    endpoint_reap(endpoint);
    EXPECT_EQ(1, calls.freed);
}

/* The peer's goodbye has not come through the pipe in full, as long as this test says nothing of it. */
TEST_F(EndpointLife, PartedItAnswersAsStandingUntilItsLastMessageIsTaken)
{
    join();
    stand();
    endpoint_part(endpoint);
    EXPECT_EQ(1, calls.parted);
    EXPECT_EQ(QUOIT_OK, status());
    EXPECT_EQ(nullptr, endpoint_find(&home, PEER));
    EXPECT_EQ("", next_event());
    disconnect();
    EXPECT_EQ(1, calls.freed);
}

TEST_F(EndpointLife, ClosingFreesItWhereverItIs)
{
    const std::string message(5000, 'x');
    quoit_transfer_t transfer = {};
    join();
    stand();
    ASSERT_EQ(QUOIT_OK, channel_send(endpoint->channel, {1, 1}, message.data(), message.size(), &transfer));
    endpoints_close(&home);
    EXPECT_EQ(QUOIT_ERR_CLOSED, transfer.status);
    home.peers = nullptr; /* TearDown closes once more */
}
