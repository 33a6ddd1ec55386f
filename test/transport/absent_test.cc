// SPDX-License-Identifier: Apache-2.0
// What a library says that was built without the headers of libibverbs and UCX. Only the files that are compiled in their place are linked.
#include <gtest/gtest.h>

extern "C" {
#include "transport/registry.h"
}

#include <cstring>

TEST(TransportsAbsent, ProbeAndOpenSayWhatWasMissing)
{
    const struct {
        const quoit_transport_ops_t *ops;
        const char *name, *package;
    } all[] = {{&transport_verbs, "verbs", "libibverbs-dev"}, {&transport_ucx, "ucx", "libucx-dev"}};
    for (const auto &one : all) {
        quoit_transport_environment_t environment = {};
        quoit_transport_t *transport = nullptr;
        char why[256] = "";
        EXPECT_STREQ(one.ops->name, one.name);
        EXPECT_EQ(one.ops->abi, QUOIT_TRANSPORT_ABI);
        EXPECT_EQ(one.ops->struct_size, sizeof *one.ops);
        EXPECT_EQ(one.ops->probe(&environment, why, sizeof why), QUOIT_ERR_NOT_FOUND);
        EXPECT_EQ(strncmp(why, "not built: ", 11), 0) << why;
        EXPECT_NE(strstr(why, one.package), nullptr) << why;
        EXPECT_EQ(one.ops->probe(&environment, why, 0), QUOIT_ERR_NOT_FOUND);
        EXPECT_EQ(one.ops->open(&environment, &transport), QUOIT_ERR_NOT_FOUND);
        EXPECT_EQ(transport, nullptr);
        EXPECT_EQ(quoit_last_error(), std::string(one.name) + ": " + why);
    }
}
