/* SPDX-License-Identifier: Apache-2.0 */
/** See limits.h. */
#include "base/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

enum { LOOK_AT = 4096 }; /* numbers at once */

/*
 * Are the `count` highest numbers below this process's limit free, and does the system give one more? Numbers are given out from below, so
 * that is what is met nearly always, and it costs four system calls. poll() marks those that are not open, of which it cannot take more than the limit.
 */
static bool highest_are_free(int count)
{
    struct rlimit limit;
    if (count < 0 || count > LOOK_AT || getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < (rlim_t)count || limit.rlim_cur > INT_MAX) return false;
    struct pollfd *one = calloc((size_t)count + 1, sizeof *one);
    if (!one) return false;
    for (int i = 0; i < count; i++) one[i].fd = (int)limit.rlim_cur - 1 - i;
    bool all = poll(one, (nfds_t)count, 0) == count;
    for (int i = 0; i < count && all; i++) all = one[i].revents & POLLNVAL;
    free(one);
    int made = all ? epoll_create1(EPOLL_CLOEXEC) : -1;
    if (made >= 0) close(made);
    return made >= 0;
}

/* Otherwise: opens as many, and closes them. A count of /proc/self/fd against the limit would miss the limit of the whole system. */
quoit_status_t limits_descriptors(int count, const char *what)
{
    if (count < 1 || highest_are_free(count)) return QUOIT_OK;
    int *fd = malloc((size_t)count * sizeof *fd), opened = 0;
    if (!fd) return error_set(QUOIT_ERR_NO_MEMORY, "%s: a list of %d descriptors", what, count);
    quoit_status_t status = QUOIT_OK;
    while (opened < count) {
        int next = opened == 0 ? epoll_create1(EPOLL_CLOEXEC) : fcntl(fd[0], F_DUPFD_CLOEXEC, 0);
        if (next < 0) {
            status = error_set_errno(QUOIT_ERR_SYSTEM, errno, "%s: up to %d more descriptors are needed, and %d are left", what, count, opened);
            break;
        }
        fd[opened++] = next;
    }
    while (opened > 0) close(fd[--opened]);
    free(fd);
    return status;
}

int limits_above_standard(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    int null = moved < 0 ? -1 : open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0) {
        if (moved >= 0) close(moved);
        return fd;
    }
    (void)dup3(null, fd, O_CLOEXEC);
    while (null >= 0 && null <= STDERR_FILENO) null = open("/dev/null", O_RDWR | O_CLOEXEC); /* takes the next that is closed */
    if (null >= 0) close(null);
    return moved;
}

bool limits_file_size(size_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes) return true;
    errno = EFBIG;
    return false;
}
