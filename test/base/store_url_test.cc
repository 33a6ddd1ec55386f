// SPDX-License-Identifier: Apache-2.0
// Store URLs, env://, and the header parser of the TCP store.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

extern "C" {
#include "base/settings.h"
#include "base/store_internal.h"
#include "base/store_wire.h"
}

namespace {

std::string error() { return quoit_last_error(); }

TEST(StoreUrl, Good)
{
    store_url_t url;
    ASSERT_EQ(store_url_parse("tcp://node-0.example:29500", &url), QUOIT_OK);
    EXPECT_EQ(url.scheme, STORE_SCHEME_TCP);
    EXPECT_STREQ(url.host, "node-0.example");
    EXPECT_EQ(url.port, 29500);
    ASSERT_EQ(store_url_parse("tcp://[fe80::1%eth0]:1", &url), QUOIT_OK);
    EXPECT_STREQ(url.host, "fe80::1%eth0");
    EXPECT_EQ(url.port, 1);
    ASSERT_EQ(store_url_parse("file:///tmp/a b", &url), QUOIT_OK);
    EXPECT_EQ(url.scheme, STORE_SCHEME_FILE);
    EXPECT_STREQ(url.path, "/tmp/a b");
    ASSERT_EQ(store_url_parse("env://", &url), QUOIT_OK);
    EXPECT_EQ(url.scheme, STORE_SCHEME_ENV);
}

TEST(StoreUrl, BadOnesSayWhy)
{
    const std::pair<std::string, const char *> cases[] = {
        {"", "unknown scheme"}, {"http://a:1", "unknown scheme"}, {"TCP://a:1", "unknown scheme"}, {"env://x", "unknown scheme"},
        {"tcp://", "port is missing"}, {"tcp://host", "port is missing"}, {"tcp://host:", "port is missing"},
        {"tcp://:5", "host is missing"}, {"tcp://[]:5", "host is missing"}, {"tcp://[::1:5", "] after the IPv6"},
        {"tcp://[::1]5", "port is missing"}, {"tcp://[::1]", "port is missing"}, {"tcp://::1:29500", "needs brackets"},
        {"tcp://h:0", "bad port \"0\""}, {"tcp://h:65536", "bad port"}, {"tcp://h:-1", "bad port"}, {"tcp://h:+1", "bad port"},
        {"tcp://h:1x", "bad port \"1x\""}, {"tcp://h:1/", "bad port \"1/\""}, {"tcp://h:99999999999999999999", "bad port"},
        {"tcp://a/b:1", "is no host"}, {"tcp://u@h:1", "is no host"}, {"tcp://" + std::string(300, 'h') + ":1", "longer than"},
        {"file://", "absolute path"}, {"file:///", "absolute path"}, {"file://host/path", "absolute path"}, {"file:/x", "unknown scheme"}};
    for (const auto &[url, expected] : cases) {
        store_url_t parsed;
        EXPECT_EQ(store_url_parse(url.c_str(), &parsed), QUOIT_ERR_INVALID) << url;
        EXPECT_NE(error().find(expected), std::string::npos) << url << " gave: " << error();
    }
    store_url_t parsed;
    EXPECT_EQ(store_url_parse(nullptr, &parsed), QUOIT_ERR_INVALID);
}

class StoreEnv : public ::testing::Test {
  protected:
    void SetUp() override { clear(); }
    void TearDown() override { clear(); }
    void clear()
    {
        for (const char *name : {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "QUOIT_STORE"}) unsetenv(name);
        settings_reset();
    }
    store_url_t url = {};
};

TEST_F(StoreEnv, MissingVariablesAreNamed)
{
    EXPECT_EQ(store_env_resolve(&url), QUOIT_ERR_INVALID);
    EXPECT_NE(error().find("missing in the environment: MASTER_ADDR and MASTER_PORT;"), std::string::npos) << error();
    setenv("MASTER_ADDR", "h", 1);
    EXPECT_EQ(store_env_resolve(&url), QUOIT_ERR_INVALID);
    EXPECT_NE(error().find("missing in the environment: MASTER_PORT;"), std::string::npos) << error();
    setenv("MASTER_ADDR", "", 1);
    setenv("MASTER_PORT", "1", 1);
    EXPECT_EQ(store_env_resolve(&url), QUOIT_ERR_INVALID);
    EXPECT_NE(error().find("missing in the environment: MASTER_ADDR;"), std::string::npos) << error();
}

TEST_F(StoreEnv, MasterAndTheAgentsStore)
{
    setenv("MASTER_ADDR", "::1", 1);
    setenv("MASTER_PORT", "29500", 1);
    ASSERT_EQ(store_env_resolve(&url), QUOIT_OK);
    EXPECT_STREQ(url.host, "::1");
    EXPECT_EQ(url.port, 29500);
    setenv("MASTER_ADDR", "[::1]", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
    ASSERT_EQ(store_env_resolve(&url), QUOIT_OK);
    EXPECT_STREQ(url.host, "::1");
    EXPECT_EQ(url.port, 29500);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    ASSERT_EQ(store_env_resolve(&url), QUOIT_OK);
    EXPECT_EQ(url.port, 29501);
    setenv("MASTER_PORT", "65535", 1);
    EXPECT_EQ(store_env_resolve(&url), QUOIT_ERR_INVALID);
    EXPECT_NE(error().find("MASTER_PORT=65535"), std::string::npos) << error();
    setenv("MASTER_PORT", "http", 1);
    EXPECT_EQ(store_env_resolve(&url), QUOIT_ERR_INVALID);
    EXPECT_NE(error().find("MASTER_PORT=http"), std::string::npos) << error();
}

TEST_F(StoreEnv, SettingGoesFirst)
{
    setenv("MASTER_ADDR", "h", 1);
    setenv("MASTER_PORT", "1", 1);
    setenv("QUOIT_STORE", "file:///tmp/x", 1);
    ASSERT_EQ(store_env_resolve(&url), QUOIT_OK);
    EXPECT_EQ(url.scheme, STORE_SCHEME_FILE);
    EXPECT_STREQ(url.path, "/tmp/x");
    for (const char *bad : {"env://", "tcp://x", "nothing"}) {
        setenv("QUOIT_STORE", bad, 1);
        settings_reset();
        EXPECT_EQ(store_env_resolve(&url), QUOIT_ERR_INVALID) << bad;
        EXPECT_NE(error().find("QUOIT_STORE"), std::string::npos) << error();
    }
}

TEST(StoreFrame, RoundTrip)
{
    const store_frame_t frames[] = {{STORE_HELLO, 0, 0, 7}, {STORE_SET, 255, 1 << 24, 0}, {STORE_SET, 1, 0, 0}, {STORE_GET, 3, 0, 1800000},
                                    {STORE_REPLY, 0, 1 << 24, 0}, {STORE_REPLY, 0, 0, QUOIT_ERR_TIMEOUT}};
    for (const store_frame_t &frame : frames) {
        uint8_t bytes[STORE_FRAME_SIZE];
        store_frame_t parsed = {};
        store_frame_write(&frame, bytes);
        ASSERT_EQ(store_frame_parse(bytes, sizeof bytes, &parsed), QUOIT_OK) << error();
        EXPECT_EQ(parsed.kind, frame.kind);
        EXPECT_EQ(parsed.key_length, frame.key_length);
        EXPECT_EQ(parsed.value_length, frame.value_length);
        EXPECT_EQ(parsed.argument, frame.argument);
        for (size_t length = 0; length < sizeof bytes; length++) EXPECT_EQ(store_frame_parse(bytes, length, &parsed), QUOIT_ERR_AGAIN);
    }
}

TEST(StoreFrame, BadOnes)
{
    const store_frame_t frames[] = {{STORE_HELLO, 1, 0, 0}, {STORE_HELLO, 0, 1, 0}, {STORE_HELLO, 0, 0, -1}, {STORE_SET, 0, 5, 0},
                                    {STORE_SET, 256, 5, 0}, {STORE_SET, 1, (1 << 24) + 1, 0}, {STORE_SET, 1, 1, 1}, {STORE_GET, 0, 0, 0},
                                    {STORE_GET, 1, 1, 0}, {STORE_GET, 1, 0, -1}, {STORE_REPLY, 1, 0, 0}, {STORE_REPLY, 0, 1, -5},
                                    {STORE_REPLY, 0, 0, 1}, {(store_kind_t)0, 1, 0, 0}, {(store_kind_t)5, 1, 0, 0}};
    uint8_t bytes[STORE_FRAME_SIZE];
    store_frame_t parsed = {};
    for (const store_frame_t &frame : frames) {
        store_frame_write(&frame, bytes);
        EXPECT_EQ(store_frame_parse(bytes, sizeof bytes, &parsed), QUOIT_ERR_PROTOCOL) << frame.kind << " " << frame.key_length;
    }
    store_frame_write(&frames[0], bytes);
    bytes[4] = 2;
    EXPECT_EQ(store_frame_parse(bytes, 5, &parsed), QUOIT_ERR_PROTOCOL);
    EXPECT_NE(error().find("version 2"), std::string::npos);
    EXPECT_EQ(store_frame_parse("GET / HTTP/1.1\r\n", 16, &parsed), QUOIT_ERR_PROTOCOL);
    EXPECT_EQ(store_frame_parse("Q!", 2, &parsed), QUOIT_ERR_PROTOCOL);
}

TEST(StoreFrame, RandomBytesStayWithinLimits)
{
    std::mt19937 random(7);
    int good = 0;
    for (int i = 0; i < 200000; i++) {
        uint8_t bytes[STORE_FRAME_SIZE] = {'Q', 'T', 'S', 'T', 1};
        for (int at = 5; at < STORE_FRAME_SIZE; at++) bytes[at] = random() % 3 ? (uint8_t)(random() % 4) : (uint8_t)random();
        store_frame_t parsed = {};
        quoit_status_t status = store_frame_parse(bytes, sizeof bytes, &parsed);
        ASSERT_TRUE(status == QUOIT_OK || status == QUOIT_ERR_PROTOCOL) << "round " << i;
        if (status != QUOIT_OK) continue;
        good++;
        ASSERT_LE(parsed.key_length, 255u);
        ASSERT_LE(parsed.value_length, 1u << 24);
    }
    EXPECT_GT(good, 0);
}

} // namespace
