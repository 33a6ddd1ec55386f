// SPDX-License-Identifier: Apache-2.0
// The public store calls: arguments, a framework's callbacks, fork.
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

extern "C" {
#include "base/store.h"
}

namespace {

struct Framework {
    std::map<std::string, std::string> values;
    quoit_status_t failure = QUOIT_OK;
    bool explains = false, gives_nothing = false;
    int closed = 0, timeout = -1;
};

quoit_status_t framework_fail(Framework *framework)
{
    return framework->explains ? error_set(framework->failure, "the disk is on fire") : framework->failure;
}

quoit_status_t framework_set(void *context, const char *key, const void *value, size_t length)
{
    auto *framework = (Framework *)context;
    if (framework->failure != QUOIT_OK) return framework_fail(framework);
    framework->values[key] = std::string((const char *)value, length);
    return QUOIT_OK;
}

quoit_status_t framework_get(void *context, const char *key, int timeout_ms, void **value, size_t *length)
{
    auto *framework = (Framework *)context;
    framework->timeout = timeout_ms;
    if (framework->failure != QUOIT_OK) return framework_fail(framework);
    if (framework->gives_nothing) {
        *value = nullptr;
        *length = 5;
        return QUOIT_OK;
    }
    auto found = framework->values.find(key);
    if (found == framework->values.end()) return QUOIT_ERR_TIMEOUT;
    *length = found->second.size();
    *value = malloc(*length + 1);
    memcpy(*value, found->second.data(), *length);
    return QUOIT_OK;
}

void framework_close(void *context) { ((Framework *)context)->closed++; }

std::string error() { return quoit_last_error(); }

class CallbackStore : public ::testing::Test {
  protected:
    void SetUp() override
    {
        std::string description = "TCPStore 10.0.0.1:29500";
        quoit_store_callbacks_t callbacks = {sizeof callbacks, &framework, framework_set, framework_get, framework_close, description.c_str()};
        ASSERT_EQ(quoit_store_from_callbacks(&callbacks, &store), QUOIT_OK);
        error_clear();
    }
    void TearDown() override
    {
        quoit_store_close(store);
        EXPECT_EQ(framework.closed, 1);
    }
    Framework framework;
    quoit_store_t *store = nullptr;
};

TEST_F(CallbackStore, PassesOn)
{
    void *value = nullptr;
    size_t length = 0;
    EXPECT_STREQ(store_description(store), "TCPStore 10.0.0.1:29500");
    ASSERT_EQ(quoit_store_set(store, "k", "abc", 3), QUOIT_OK);
    ASSERT_EQ(quoit_store_get(store, "k", 77, &value, &length), QUOIT_OK);
    EXPECT_EQ(std::string((char *)value, length), "abc");
    EXPECT_EQ(framework.timeout, 77);
    free(value);
    EXPECT_EQ(quoit_store_get(store, "k", -1, &value, &length), QUOIT_OK);
    EXPECT_EQ(framework.timeout, 30 * 60 * 1000);
    free(value);
    EXPECT_EQ(quoit_store_get(store, "absent", 5, &value, &length), QUOIT_ERR_TIMEOUT);
    EXPECT_EQ(error(), "TCPStore 10.0.0.1:29500: key \"absent\" did not appear within 5 ms");
}

TEST_F(CallbackStore, FailuresHaveATextAnyway)
{
    void *value = (void *)&framework;
    size_t length = 99;
    framework.failure = QUOIT_ERR_NETWORK;
    EXPECT_EQ(quoit_store_set(store, "k", "abc", 3), QUOIT_ERR_NETWORK);
    EXPECT_EQ(error(), "TCPStore 10.0.0.1:29500: set of key \"k\": network failure");
    framework.explains = true;
    EXPECT_EQ(quoit_store_get(store, "k", 5, &value, &length), QUOIT_ERR_NETWORK);
    EXPECT_EQ(error(), "TCPStore 10.0.0.1:29500: get of key \"k\": the disk is on fire");
    framework.failure = QUOIT_OK;
    framework.gives_nothing = true;
    EXPECT_EQ(quoit_store_get(store, "k", 5, &value, &length), QUOIT_ERR_INTERNAL);
    EXPECT_EQ(value, (void *)&framework); // outputs only on success
    EXPECT_EQ(length, 99u);
}

TEST_F(CallbackStore, Arguments)
{
    void *value;
    size_t length;
    EXPECT_EQ(quoit_store_set(nullptr, "k", "v", 1), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_store_set(store, nullptr, "v", 1), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_store_set(store, "", "v", 1), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_store_set(store, "a\nb", "v", 1), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_store_set(store, std::string(256, 'k').c_str(), "v", 1), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_store_set(store, std::string(255, 'k').c_str(), "v", 1), QUOIT_OK);
    EXPECT_EQ(quoit_store_set(store, "k", nullptr, 1), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_store_set(store, "k", nullptr, 0), QUOIT_OK);
    EXPECT_EQ(quoit_store_get(store, "k", 0, nullptr, &length), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_store_get(store, "k", 0, &value, nullptr), QUOIT_ERR_INVALID);
    quoit_store_close(nullptr);
}

TEST_F(CallbackStore, ForkedChild)
{
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        void *value;
        size_t length;
        bool good = quoit_store_set(store, "k", "v", 1) == QUOIT_ERR_FORKED &&
                    quoit_store_get(store, "k", 0, &value, &length) == QUOIT_ERR_FORKED &&
                    error().find("parent process") != std::string::npos;
        quoit_store_close(store);
        _exit(good && framework.closed == 0 ? 0 : 1);
    }
    int outcome = -1;
    ASSERT_EQ(waitpid(child, &outcome, 0), child);
    EXPECT_EQ(outcome, 0);
}

TEST(StoreFromCallbacks, RefusesHalfTables)
{
    quoit_store_t *store = nullptr;
    quoit_store_callbacks_t callbacks = {sizeof callbacks, nullptr, framework_set, framework_get, nullptr, nullptr};
    EXPECT_EQ(quoit_store_from_callbacks(nullptr, &store), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_store_from_callbacks(&callbacks, nullptr), QUOIT_ERR_INVALID);
    callbacks.struct_size = 8;
    EXPECT_EQ(quoit_store_from_callbacks(&callbacks, &store), QUOIT_ERR_INVALID);
    callbacks.struct_size = sizeof callbacks;
    callbacks.get = nullptr;
    EXPECT_EQ(quoit_store_from_callbacks(&callbacks, &store), QUOIT_ERR_INVALID);
    callbacks.get = framework_get;
    ASSERT_EQ(quoit_store_from_callbacks(&callbacks, &store), QUOIT_OK);
    quoit_store_close(store);
}

TEST(StoreOpen, BadArguments)
{
    quoit_store_t *store = nullptr;
    for (auto [rank, size] : {std::pair{-1, 2}, {2, 2}, {0, 0}, {0, -1}})
        EXPECT_EQ(quoit_store_open("file:///tmp/never-made", rank, size, 100, &store), QUOIT_ERR_INVALID) << rank << " of " << size;
    EXPECT_EQ(quoit_store_open("file:///tmp/never-made", 0, 1, 100, nullptr), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_store_open("redis://x", 0, 1, 100, &store), QUOIT_ERR_INVALID);
    EXPECT_EQ(store, nullptr);
}

} // namespace
