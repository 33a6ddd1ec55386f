// SPDX-License-Identifier: Apache-2.0
// A forked child closes what was marked, and nothing else, and finds locks free; the parent keeps all.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "test/support/built.h"

extern "C" {
#include "base/forked.h"
}

namespace {

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

TEST(Forked, ChildrenCloseWhatIsMarked)
{
    int marked = dup(0), plain = dup(0), high = fcntl(0, F_DUPFD, 500), unmarked = dup(0);
    for (int fd : {marked, high, unmarked}) forked_close(fd);
    EXPECT_TRUE(forked_keep(unmarked));
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        int bad = is_open(marked) | is_open(high) << 1 | !is_open(plain) << 2 | !is_open(unmarked) << 3;
        int again = dup(0); /* takes the number of one that was closed */
        bad |= (again != marked) << 4 | forked_keep(marked) << 5 | forked_keep(high) << 6;
        _exit(bad);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << "bits say what was wrong";
    for (int fd : {marked, high, plain, unmarked}) EXPECT_TRUE(is_open(fd)) << fd;
    EXPECT_TRUE(forked_keep(marked));
    EXPECT_TRUE(forked_keep(high));
    for (int fd : {marked, high, plain, unmarked}) close(fd);
}

int forgotten = 0;
void forget() { forgotten++; }
forked_lock_t with_forget = {PTHREAD_MUTEX_INITIALIZER, forget, nullptr, false}, plain = {PTHREAD_MUTEX_INITIALIZER, nullptr, nullptr, false};

// Held by another thread, and by this one, while it forks.
TEST(Forked, LocksAreFreeInTheChild)
{
    if (built_sanitized()) return; /* ThreadSanitizer holds that the child locks them twice */
    std::thread([] { forked_lock(&with_forget); }).join();
    forked_lock(&plain);
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        alarm(10);
        for (forked_lock_t *lock : {&with_forget, &plain}) {
            forked_lock(lock);
            forked_unlock(lock);
        }
        _exit(forgotten == 1 ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "of wait(): 14 says that the child waited until its alarm";
    EXPECT_EQ(forgotten, 0) << "of the child's own";
    EXPECT_NE(pthread_mutex_trylock(&plain.mutex), 0) << "the parent still holds it";
    forked_unlock(&plain);
}

} // namespace
