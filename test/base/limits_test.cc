// SPDX-License-Identifier: Apache-2.0
// What is left of descriptors is told exactly, and nothing stays open; sizes of files.
#include <gtest/gtest.h>

#include <cerrno>
#include <string>
#include <sys/resource.h>
#include <unistd.h>

extern "C" {
#include "base/limits.h"
}

namespace {

int lowest_free()
{
    int fd = dup(0);
    close(fd);
    return fd;
}

TEST(Limits, FileSize)
{
    rlimit before, limits;
    ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
    limits = before;
    limits.rlim_cur = 1 << 20;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limits), 0);
    EXPECT_TRUE(limits_file_size(1 << 20));
    errno = 0;
    EXPECT_FALSE(limits_file_size((1 << 20) + 1));
    EXPECT_EQ(errno, EFBIG);
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

TEST(Limits, DescriptorsAreCountedAndLeftAsTheyWere)
{
    rlimit before, limits;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
    int first = lowest_free(), left = 0;
    limits = before;
    limits.rlim_cur = static_cast<rlim_t>(first + 10);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limits), 0);
    int opened[10];
    while (left < 10 && (opened[left] = dup(0)) >= 0) left++; /* some above `first` may be open */
    for (int i = 0; i < left; i++) close(opened[i]);
    for (int count : {0, 1, left - 1, left}) EXPECT_EQ(limits_descriptors(count, "the test"), QUOIT_OK) << count << ": " << quoit_last_error();
    EXPECT_EQ(limits_descriptors(left + 1, "the test"), QUOIT_ERR_SYSTEM);
    std::string text = quoit_last_error();
    EXPECT_NE(text.find("the test: up to " + std::to_string(left + 1) + " more descriptors are needed, and " + std::to_string(left) + " are left"), std::string::npos) << text;
    EXPECT_NE(text.find("ulimit -n"), std::string::npos) << text;
    EXPECT_EQ(lowest_free(), first);
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

} // namespace
