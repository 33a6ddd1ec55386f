/* SPDX-License-Identifier: Apache-2.0 */
/** See limits.h. */
#include "base/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

/* Opens as many, and closes them: a count of /proc/self/fd against the limit would miss the limit of the whole system. */
quoit_status_t limits_descriptors(int count, const char *what)
{
    int *fd = malloc((size_t)(count > 0 ? count : 1) * sizeof *fd), opened = 0;
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

bool limits_file_size(size_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= bytes) return true;
    errno = EFBIG;
    return false;
}
