// SPDX-License-Identifier: Apache-2.0
// Log lines, read back from QUOIT_LOG_FILE.
#include "test/support/temporary.h"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

extern "C" {
#include "base/log.h"
#include "base/settings.h"
}

namespace {

class Log : public ::testing::Test {
  protected:
    void SetUp() override
    {
        directory = temporary_pattern("log");
        ASSERT_NE(mkdtemp(directory.data()), nullptr);
    }
    void TearDown() override
    {
        unsetenv("QUOIT_LOG");
        unsetenv("QUOIT_LOG_FILE");
        log_set_rank(-1);
        settings_reset();
        std::filesystem::remove_all(directory);
    }
    void use(const std::string &level, const std::string &file)
    {
        setenv("QUOIT_LOG", level.c_str(), 1);
        setenv("QUOIT_LOG_FILE", (directory + "/" + file).c_str(), 1);
        settings_reset();
        ASSERT_EQ(settings_load(), QUOIT_OK);
    }
    std::vector<std::string> lines(const std::string &file)
    {
        std::ifstream stream(directory + "/" + file);
        std::vector<std::string> all;
        for (std::string line; std::getline(stream, line);) all.push_back(line);
        return all;
    }
    std::string directory;
};

std::string by_rank(int rank) { return "quoit [rank " + std::to_string(rank) + " @ " + log_host() + "] "; }

TEST_F(Log, LineAndLevels)
{
    use("info", "file");
    log_write(LOG_WARN, "tcp", "before a rank is known");
    log_set_rank(3);
    log_error("tcp", "one %d", 1);
    log_warn("tcp", "two");
    log_info("shm", "three");
    int evaluated = 0;
    log_debug("shm", "four %d", ++evaluated);
    EXPECT_EQ(evaluated, 0);
    EXPECT_TRUE(log_enabled(LOG_INFO));
    EXPECT_FALSE(log_enabled(LOG_DEBUG));
    std::vector<std::string> expected = {"quoit [pid " + std::to_string(getpid()) + " @ " + log_host() + "] warn tcp: before a rank is known",
                                         by_rank(3) + "error tcp: one 1", by_rank(3) + "warn tcp: two", by_rank(3) + "info shm: three"};
    EXPECT_EQ(lines("file"), expected);
    struct stat info;
    ASSERT_EQ(stat((directory + "/file").c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(Log, PathExpansions)
{
    std::string pid = std::to_string(getpid());
    use("warn", "a-%r-%h-%p-%%-%x");
    std::string middle = std::string("-") + log_host() + "-" + pid + "-%-%x";
    log_warn("t", "early");
    for (int round = 0; round < 2; round++)
        for (int rank = 0; rank < 3; rank++) {
            log_set_rank(rank);
            log_warn("t", "round %d", round);
        }
    EXPECT_EQ(lines("a-none" + middle).size(), 1u);
    for (int rank = 0; rank < 3; rank++) {
        std::vector<std::string> expected = {by_rank(rank) + "warn t: round 0", by_rank(rank) + "warn t: round 1"};
        EXPECT_EQ(lines("a-" + std::to_string(rank) + middle), expected);
    }
}

TEST_F(Log, ForkedChildHasItsOwnPid)
{
    use("warn", "%p");
    log_warn("t", "parent");
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        log_warn("t", "child");
        _exit(0);
    }
    int outcome;
    ASSERT_EQ(waitpid(child, &outcome, 0), child);
    EXPECT_EQ(outcome, 0);
    EXPECT_EQ(lines(std::to_string(getpid())).size(), 1u);
    EXPECT_EQ(lines(std::to_string(child)).size(), 1u);
}

TEST_F(Log, OneMessageIsOneLine)
{
    use("warn", "file");
    log_set_rank(0);
    log_warn("t", "a\nquoit [rank 9 @ x] error t: forged\r\x1b[31m");
    log_warn("t", "%s", std::string(10000, 'y').c_str());
    std::vector<std::string> all = lines("file");
    ASSERT_EQ(all.size(), 2u);
    EXPECT_EQ(all[0], by_rank(0) + "warn t: a quoit [rank 9 @ x] error t: forged  [31m");
    EXPECT_EQ(all[1].size(), 2046u);
}

TEST_F(Log, ThreadsDoNotMix)
{
    use("warn", "file");
    log_set_rank(1);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++)
        threads.emplace_back([t] {
            for (int i = 0; i < 200; i++) log_warn("t", "%s", std::string(100 + t, (char)('a' + t)).c_str());
        });
    for (std::thread &thread : threads) thread.join();
    std::vector<std::string> all = lines("file");
    ASSERT_EQ(all.size(), 800u);
    size_t start = by_rank(1).size() + strlen("warn t: ");
    for (const std::string &line : all) {
        char letter = line.back();
        EXPECT_EQ(line.substr(start), std::string(100 + letter - 'a', letter));
    }
}

TEST_F(Log, LimitedPerKey)
{
    use("warn", "file");
    log_set_rank(0);
    for (int i = 0; i < 5; i++) log_write_limited("peer a", LOG_WARN, "t", "a %d", i);
    log_write_limited("peer b", LOG_WARN, "t", "b");
    log_write_limited("peer c", LOG_INFO, "t", "not at this level");
    std::vector<std::string> expected = {by_rank(0) + "warn t: a 0", by_rank(0) + "warn t: b"};
    EXPECT_EQ(lines("file"), expected);
    usleep(1100000);
    log_write_limited("peer a", LOG_WARN, "t", "again");
    expected.push_back(by_rank(0) + "warn t: again (4 like it were left out)");
    EXPECT_EQ(lines("file"), expected);
}

TEST_F(Log, LimitedAmongManyKeys)
{
    use("warn", "file");
    for (int i = 0; i < 1000; i++) log_write_limited(("stray " + std::to_string(i)).c_str(), LOG_WARN, "t", "%d", i);
    EXPECT_GE(lines("file").size(), 32u);
    EXPECT_LE(lines("file").size(), 70u * 3); // a slow machine may see three seconds
}

TEST_F(Log, UnwritableFileFallsBackToStandardError)
{
    use("warn", "no/such/folder");
    ::testing::internal::CaptureStderr();
    log_warn("t", "first");
    log_warn("t", "second");
    std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(text.find("QUOIT_LOG_FILE=" + directory + "/no/such/folder: No such file or directory"), std::string::npos) << text;
    EXPECT_EQ(text.find("QUOIT_LOG_FILE", text.find("QUOIT_LOG_FILE") + 1), std::string::npos) << text;
    EXPECT_NE(text.find("warn t: first\n"), std::string::npos) << text;
    EXPECT_NE(text.find("warn t: second\n"), std::string::npos) << text;
}

TEST_F(Log, DefaultsBeforeTheSettings)
{
    settings_reset();
    setenv("QUOIT_LOG", "debug", 1);
    EXPECT_TRUE(log_enabled(LOG_WARN));
    EXPECT_FALSE(log_enabled(LOG_INFO)); // the log does not load the settings by itself
    ASSERT_EQ(settings_load(), QUOIT_OK);
    EXPECT_TRUE(log_enabled(LOG_DEBUG));
}

} // namespace
