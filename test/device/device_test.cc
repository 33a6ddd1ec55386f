/* SPDX-License-Identifier: Apache-2.0 */
/** The device table and the host's row. */
extern "C" {
#include "scheduler/device/device.h"
}

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace {

TEST(DeviceTable, HostIsIdZero)
{
    EXPECT_EQ(device_find(QUOIT_DEVICE_HOST), &device_host);
    quoit_device_t device = 77;
    EXPECT_EQ(quoit_device_find("host", &device), QUOIT_OK);
    EXPECT_EQ(device, QUOIT_DEVICE_HOST);
    EXPECT_EQ(device_find(-1), nullptr);
    EXPECT_EQ(device_find(1000), nullptr);
}

TEST(DeviceTable, UnknownNameListsWhatThereIs)
{
    quoit_device_t device = 77;
    EXPECT_EQ(quoit_device_find("abacus", &device), QUOIT_ERR_NOT_FOUND);
    EXPECT_EQ(device, 77) << "outputs are written only on success";
    std::string text = quoit_last_error();
    EXPECT_NE(text.find("abacus"), std::string::npos) << text;
    EXPECT_NE(text.find("host"), std::string::npos) << text;
    EXPECT_EQ(quoit_device_find(nullptr, &device), QUOIT_ERR_INVALID);
    EXPECT_EQ(quoit_device_find("host", nullptr), QUOIT_ERR_INVALID);
}

TEST(DeviceTable, RegistersOnceAndUntilFull)
{
    static std::vector<device_row_t> rows(20, device_host);
    static std::vector<std::string> names;
    for (size_t i = 0; i < rows.size(); i++) names.push_back("spare" + std::to_string(i));
    quoit_device_t device = 0;
    EXPECT_EQ(device_register(&device_host, &device), QUOIT_ERR_INVALID);
    size_t registered = 0;
    for (size_t i = 0; i < rows.size(); i++) {
        rows[i].name = names[i].c_str();
        if (i > 0 && registered < i) break;
        if (device_register(&rows[i], &device) != QUOIT_OK) break;
        EXPECT_EQ(device_find(device), &rows[i]);
        quoit_device_t found = -1;
        EXPECT_EQ(quoit_device_find(names[i].c_str(), &found), QUOIT_OK);
        EXPECT_EQ(found, device);
        registered++;
    }
    EXPECT_GE(registered, 2u);
    EXPECT_LT(registered, rows.size()) << "the table has an end, which is an error and no overrun";
}

TEST(HostDevice, AllIsDoneAtReturn)
{
    void *a = nullptr, *b = nullptr, *stream = nullptr;
    ASSERT_EQ(device_host.alloc(64, &a), QUOIT_OK);
    ASSERT_EQ(device_host.host_alloc(64, &b), QUOIT_OK);
    ASSERT_EQ(device_host.stream_create(&stream), QUOIT_OK);
    std::memset(a, 7, 64);
    EXPECT_EQ(device_host.copy(b, a, 64, DEVICE_TO_HOST, stream), QUOIT_OK);
    EXPECT_EQ(std::memcmp(a, b, 64), 0);
    EXPECT_EQ(device_host.check(a, 64), QUOIT_OK);
    EXPECT_EQ(device_host.check(nullptr, 0), QUOIT_OK);
    EXPECT_EQ(device_host.check(nullptr, 1), QUOIT_ERR_INVALID);

    device_event_t *event = nullptr;
    ASSERT_EQ(device_host.event_create(&event), QUOIT_OK);
    EXPECT_EQ(device_host.event_record(event, stream), QUOIT_OK);
    EXPECT_EQ(device_host.event_query(event), QUOIT_OK);
    EXPECT_EQ(device_host.stream_wait_event(stream, event), QUOIT_OK);
    device_host.event_destroy(event);
    device_host.event_destroy(nullptr);

    uint64_t word = 3;
    EXPECT_EQ(device_host.stream_wait_host(stream, &word, 3), QUOIT_OK);
    EXPECT_EQ(device_host.stream_wait_host(stream, &word, 4), QUOIT_ERR_UNSUPPORTED);
    bool called = false;
    EXPECT_EQ(device_host.stream_notify(stream, [](void *flag) { *(bool *)flag = true; }, &called), QUOIT_OK);
    EXPECT_TRUE(called);
    device_host.stream_destroy(stream);
    device_host.free(a);
    device_host.host_free(b);
}

} // namespace
