// SPDX-License-Identifier: Apache-2.0
// What is left of descriptors is told exactly, and nothing stays open; sizes of files.
#include <gtest/gtest.h>

#include <cerrno>
#include <fcntl.h>
#include <string>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

/* Whatever of stdin, stdout and stderr is closed is /dev/null afterwards, and the descriptor is none of them. */
TEST(Limits, StandardDescriptorsAreLeftAlone)
{
    struct stat null, found;
    ASSERT_EQ(stat("/dev/null", &null), 0);
    int first = lowest_free();
    EXPECT_EQ(limits_above_standard(-1), -1);
    EXPECT_EQ(limits_above_standard(first), first);
    for (int closed = 1; closed < 8; closed++) {
        int kept[3];
        for (int i = 0; i < 3; i++) kept[i] = fcntl(i, F_DUPFD_CLOEXEC, 3);
        for (int i = 0; i < 3; i++) {
            if (closed & 1 << i) close(i);
        }
        int lowest = eventfd(7, EFD_CLOEXEC), moved = limits_above_standard(lowest);
        bool all = true;
        for (int i = 0; i < 3; i++) all = all && (!(closed & 1 << i) || (fstat(i, &found) == 0 && found.st_rdev == null.st_rdev));
        bool inherited = !(fcntl(lowest, F_GETFD) & FD_CLOEXEC);
        for (int i = 0; i < 3; i++) {
            dup2(kept[i], i);
            close(kept[i]);
        }
        uint64_t count = 0;
        EXPECT_TRUE(all && !inherited) << "closed " << closed;
        ASSERT_GT(moved, 2) << "closed " << closed;
        EXPECT_EQ(read(moved, &count, sizeof count), static_cast<ssize_t>(sizeof count));
        EXPECT_EQ(count, 7u);
        close(moved);
        EXPECT_EQ(lowest_free(), first) << "closed " << closed;
    }
}

} // namespace
