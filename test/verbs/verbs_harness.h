/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of verbs share: the fake libibverbs' orders and counts, and a fixture that looks for what was left behind. */
#pragma once

#include "test/support/built.h"

#include <gtest/gtest.h>

#include <dlfcn.h>

#include <string>

extern "C" {
#include "fake_verbs.h"
}

namespace verbs_test {

/* The fake, as the transport opens it. */
struct Fake {
    void *handle = dlopen(built_path(FAKE_VERBS).c_str(), RTLD_NOW);
    template <typename Function> Function find(const char *name) const { return reinterpret_cast<Function>(dlsym(handle, name)); }
    decltype(&fake_verbs_calm) calm = find<decltype(&fake_verbs_calm)>("fake_verbs_calm");
    decltype(&fake_verbs_fail_call) fail_call = find<decltype(&fake_verbs_fail_call)>("fake_verbs_fail_call");
    decltype(&fake_verbs_fail_work) fail_work = find<decltype(&fake_verbs_fail_work)>("fake_verbs_fail_work");
    decltype(&fake_verbs_delay) delay = find<decltype(&fake_verbs_delay)>("fake_verbs_delay");
    decltype(&fake_verbs_cut) cut = find<decltype(&fake_verbs_cut)>("fake_verbs_cut");
    decltype(&fake_verbs_break_device) break_device = find<decltype(&fake_verbs_break_device)>("fake_verbs_break_device");
    decltype(&fake_verbs_fill) fill = find<decltype(&fake_verbs_fill)>("fake_verbs_fill");
    decltype(&fake_verbs_remove_device) remove_device = find<decltype(&fake_verbs_remove_device)>("fake_verbs_remove_device");
    decltype(&fake_verbs_lock_limit) lock_limit = find<decltype(&fake_verbs_lock_limit)>("fake_verbs_lock_limit");
    decltype(&fake_verbs_no_dmabuf) no_dmabuf = find<decltype(&fake_verbs_no_dmabuf)>("fake_verbs_no_dmabuf");
    decltype(&fake_verbs_count) count = find<decltype(&fake_verbs_count)>("fake_verbs_count");
    decltype(&fake_verbs_devices) devices = find<decltype(&fake_verbs_devices)>("fake_verbs_devices");
    decltype(&fake_verbs_sysfs) sysfs = find<decltype(&fake_verbs_sysfs)>("fake_verbs_sysfs");
    decltype(&fake_verbs_harm) harm = find<decltype(&fake_verbs_harm)>("fake_verbs_harm");
    decltype(&fake_verbs_bytes) bytes = find<decltype(&fake_verbs_bytes)>("fake_verbs_bytes");
    decltype(&fake_verbs_hold_destroy) hold_destroy = find<decltype(&fake_verbs_hold_destroy)>("fake_verbs_hold_destroy");
};

inline Fake &fake()
{
    static Fake one;
    return one;
}

inline std::string alive()
{
    std::string text;
    for (const char *name : {"context", "pd", "mr", "cq", "qp", "channel", "misuse", "overflow", "rnr"})
        if (fake().count(name) != 0) text += std::string(name) + " " + std::to_string(fake().count(name)) + " ";
    return text;
}

class Verbs : public testing::Test {
protected:
    void SetUp() override
    {
        ASSERT_NE(fake().handle, nullptr) << dlerror();
        fake().calm();
    }
    void TearDown() override { EXPECT_EQ(alive(), "") << "left behind, or done wrong"; }
};

} // namespace verbs_test
