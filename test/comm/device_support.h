/* SPDX-License-Identifier: Apache-2.0 */
/* The lagging device for tests of communicators: what a test holds of it, and the fixture that begins and ends it. */
#ifndef QUOIT_TEST_COMM_DEVICE_SUPPORT_H
#define QUOIT_TEST_COMM_DEVICE_SUPPORT_H

#include "ranks.h"

#include <gtest/gtest.h>

extern "C" {
#include "../device/lagging_device.h"
}

namespace comm_test {

class DeviceTest : public testing::Test {
  protected:
    void SetUp() override
    {
        ASSERT_EQ(lagging_device_register(&device), QUOIT_OK) << quoit_last_error();
        lagging_device_set_seed(seed());
        lagging_device_set_lag(0, 500);
        lagging_device_reset();
    }
    void TearDown() override { lagging_device_shutdown(); }
    quoit_device_t device = 0;
};

struct Memory {
    explicit Memory(size_t bytes) { EXPECT_EQ(lagging_device.alloc(bytes ? bytes : 1, &pointer), QUOIT_OK) << quoit_last_error(); }
    ~Memory() { lagging_device.free(pointer); }
    Memory(const Memory &) = delete;
    char *at(size_t offset) { return static_cast<char *>(pointer) + offset; }
    void *pointer = nullptr;
};

struct Stream {
    Stream() { EXPECT_EQ(lagging_device.stream_create(&pointer), QUOIT_OK) << quoit_last_error(); }
    ~Stream() { lagging_device.stream_destroy(pointer); }
    Stream(const Stream &) = delete;
    quoit_call_t call(quoit_device_t device) const
    {
        quoit_call_t made = QUOIT_CALL_INIT;
        made.device = device;
        made.stream = pointer;
        return made;
    }
    void *pointer = nullptr;
};

struct Pinned {
    explicit Pinned(size_t bytes) { EXPECT_EQ(lagging_device.host_alloc(bytes ? bytes : 1, &pointer), QUOIT_OK) << quoit_last_error(); }
    ~Pinned() { lagging_device.host_free(pointer); }
    Pinned(const Pinned &) = delete;
    char *bytes() { return static_cast<char *>(pointer); }
    int32_t *data() { return static_cast<int32_t *>(pointer); }
    void *pointer = nullptr;
};

inline quoit_status_t wait_limited(quoit_request_t *request, double limit_s = 30)
{
    double until = seconds() + limit_s;
    for (;;) {
        quoit_status_t status = quoit_request_wait(request, 50);
        if (status != QUOIT_IN_PROGRESS || seconds() > until) return status;
    }
}

} // namespace comm_test

#endif
