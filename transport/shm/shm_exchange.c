/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Exchange: once both sides have proved themselves, each sends one info message with its descriptors (arena, doorbell, pidfd), and
 * maps the other's arena after checking that it is what it claims to be: sealed, so that it cannot shrink under us; of the size
 * that was told; on tmpfs, so that its pages come without surprise; with the header of the process that was proved.
 */
#include "transport/shm/shm.h"
#include "transport/shm/shm_memory.h"

#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { FD_ARENA, FD_DOORBELL, FD_PIDFD };

typedef union control {
    struct cmsghdr align;
    char bytes[CMSG_SPACE(SHM_DESCRIPTORS * sizeof(int))];
} control_t;

/* ---------------------------------------------------------------- ours to the peer */

static void put_descriptors(shm_transport_t *transport, struct msghdr *message, control_t *control, int count)
{
    const int fds[SHM_DESCRIPTORS] = {
        [FD_ARENA] = shm_arena_descriptor(transport->arena), [FD_DOORBELL] = transport->environment.doorbell, [FD_PIDFD] = transport->pidfd};
    memset(control, 0, sizeof *control);
    message->msg_control = control->bytes;
    message->msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, (size_t)count * sizeof(int));
}

static quoit_status_t send_info(shm_link_t *link)
{
    shm_transport_t *transport = link->transport;
    shm_endpoint_t *endpoint = link->endpoint;
    uint8_t bytes[SHM_INFO_SIZE];
    control_t control;
    quoit_status_t status = shm_endpoint_make_mailbox(endpoint);
    if (status) return status;
    shm_info_t info = {.process = transport->environment.self,
                       .limits = transport->limits,
                       .arena_size = shm_arena_size(transport->arena),
                       .mailbox_offset = (uint64_t)((unsigned char *)endpoint->mailbox - shm_arena_base(transport->arena)),
                       .mailbox_capacity = transport->mailbox_capacity,
                       .slot = (uint32_t)endpoint->slot,
                       .pid = (uint32_t)getpid(),
                       .descriptors = transport->pidfd >= 0 ? SHM_DESCRIPTORS : SHM_DESCRIPTORS - 1};
    shm_info_write(&info, bytes);
    struct iovec piece = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
    put_descriptors(transport, &message, &control, (int)info.descriptors);
    ssize_t sent = sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR || errno == ETOOMANYREFS)) {
        link->retry = true;
        return QUOIT_OK;
    }
    if (sent != (ssize_t)sizeof bytes) {
        return error_set_errno(QUOIT_ERR_PEER, sent < 0 ? errno : EPROTO, "shm: %s was lost while connecting", endpoint->name);
    }
    link->info_sent = true;
    endpoint->exposed = true;
    return QUOIT_OK;
}

/* ---------------------------------------------------------------- the peer's to us */

static quoit_status_t take_descriptors(shm_link_t *link, struct msghdr *message)
{
    quoit_status_t status = QUOIT_OK;
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(header) + i * sizeof fd, sizeof fd);
            if (link->fd_count < SHM_DESCRIPTORS) {
                link->fds[link->fd_count++] = fd;
            } else {
                close(fd);
                status = error_set(QUOIT_ERR_PROTOCOL, "shm: %s sent more than %d descriptors", link->endpoint->name, SHM_DESCRIPTORS);
            }
        }
    }
    if (!status && (message->msg_flags & MSG_CTRUNC)) {
        status = error_set(QUOIT_ERR_SYSTEM, "shm: the descriptors of %s did not fit into this process; raise 'ulimit -n'", link->endpoint->name);
    }
    return status;
}

/* ERR_AGAIN: not whole yet. */
static quoit_status_t receive_info(shm_link_t *link)
{
    control_t control;
    while (link->in_length < SHM_INFO_SIZE) {
        struct iovec piece = {.iov_base = link->in + link->in_length, .iov_len = SHM_INFO_SIZE - link->in_length};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
        ssize_t got = recvmsg(link->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) return QUOIT_ERR_AGAIN;
        if (got <= 0) {
            return error_set_errno(QUOIT_ERR_PEER, got < 0 ? errno : ECONNRESET, "shm: %s was lost while connecting", link->endpoint->name);
        }
        link->in_length += (size_t)got;
        quoit_status_t status = take_descriptors(link, &message);
        if (status) return status;
    }
    return QUOIT_OK;
}

static quoit_status_t check_arena(const shm_endpoint_t *endpoint, int fd, uint64_t size)
{
    const int wanted = F_SEAL_SHRINK | F_SEAL_GROW;
    struct stat file;
    struct statfs system;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & wanted) != wanted) {
        return error_set(QUOIT_ERR_PROTOCOL, "shm: the memory of %s is not sealed against shrinking and growing", endpoint->name);
    }
    if (fstat(fd, &file) != 0 || fstatfs(fd, &system) != 0) {
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "shm: cannot look at the memory of %s", endpoint->name);
    }
    if (system.f_type != TMPFS_MAGIC || (uint64_t)file.st_size != size) {
        return error_set(QUOIT_ERR_PROTOCOL, "shm: the memory of %s has %llu bytes (file system %lx), it told of %llu", endpoint->name,
                         (unsigned long long)file.st_size, (unsigned long)system.f_type, (unsigned long long)size);
    }
    return QUOIT_OK;
}

static quoit_status_t map_arena(shm_endpoint_t *endpoint, int fd, uint64_t size)
{
    quoit_status_t status = check_arena(endpoint, fd, size);
    if (status) return status;
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (mapped == MAP_FAILED) {
        return error_set_errno(QUOIT_ERR_NO_MEMORY, errno, "shm: cannot map the %llu bytes of %s; lower QUOIT_ARENA_SIZE or raise 'ulimit -v'",
                               (unsigned long long)size, endpoint->name);
    }
    shm_memory_keep_from_cores(mapped, size);
    endpoint->peer = mapped;
    endpoint->peer_size = size;
    const shm_header_t *header = endpoint->peer;
    if (header->magic != SHM_HEADER_MAGIC || header->version != SHM_HEADER_VERSION || header->size != size ||
        !process_same(header->process, endpoint->base.peer)) {
        return error_set(QUOIT_ERR_PROTOCOL, "shm: the memory of %s has no header of that process, or of another version", endpoint->name);
    }
    return QUOIT_OK;
}

/* An eventfd is no file, pipe or socket: a write to it cannot block us, once it is non-blocking, nor raise SIGPIPE. */
static quoit_status_t check_doorbell(const shm_endpoint_t *endpoint, int fd)
{
    struct stat file;
    int flags = fcntl(fd, F_GETFL);
    if (fstat(fd, &file) != 0 || (file.st_mode & S_IFMT) != 0 || flags < 0) {
        return error_set(QUOIT_ERR_PROTOCOL, "shm: the doorbell of %s is no eventfd", endpoint->name);
    }
    if (!(flags & O_NONBLOCK) && fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "shm: cannot use the doorbell of %s", endpoint->name);
    }
    return QUOIT_OK;
}

static int take_fd(shm_link_t *link, int which)
{
    int fd = link->fds[which];
    link->fds[which] = -1;
    return fd;
}

static void keep_process(shm_link_t *link)
{
    shm_endpoint_t *endpoint = link->endpoint;
    endpoint->same_process = link->pid == getpid();
    if (link->fd_count <= FD_PIDFD || endpoint->same_process) return;
    endpoint->pidfd = take_fd(link, FD_PIDFD);
    if (shm_watch(link->transport, endpoint->pidfd, EPOLLIN, &endpoint->source)) {
        log_info("shm", "%s: its pidfd cannot be watched, the end of its socket will count instead", endpoint->name);
        close(endpoint->pidfd);
        endpoint->pidfd = -1;
    }
}

static void make_pipe(shm_endpoint_t *endpoint, const shm_info_t *info)
{
    shm_transport_t *transport = (shm_transport_t *)endpoint->base.transport;
    endpoint->pipe = (ring_pipe_t){.out = (ring_memory_t *)((unsigned char *)endpoint->peer + info->mailbox_offset),
                                   .in = endpoint->mailbox,
                                   .out_capacity = info->mailbox_capacity,
                                   .in_capacity = transport->mailbox_capacity,
                                   .in_narrow = transport->narrow_room < transport->mailbox_capacity};
    endpoint->peer_mail = &endpoint->peer->mail[info->slot];
    endpoint->fence = !transport->registered || (endpoint->peer->flags & SHM_FLAG_FENCE) != 0;
}

static quoit_status_t use_info(shm_link_t *link)
{
    shm_endpoint_t *endpoint = link->endpoint;
    shm_info_t info;
    quoit_status_t status = shm_info_parse(link->in, &info);
    if (status) return status;
    if (!process_same(info.process, endpoint->base.peer) || (int)info.descriptors != link->fd_count) {
        return error_set(QUOIT_ERR_PROTOCOL, "shm: the info of %s is of another process, or came with %d descriptors instead of %u", endpoint->name,
                         link->fd_count, info.descriptors);
    }
    status = shm_endpoint_make_channel(endpoint, info.limits);
    if (!status) status = check_doorbell(endpoint, link->fds[FD_DOORBELL]);
    if (!status) status = map_arena(endpoint, link->fds[FD_ARENA], info.arena_size);
    if (status) return status;
    keep_process(link);
    endpoint->doorbell = take_fd(link, FD_DOORBELL);
    close(take_fd(link, FD_ARENA)); /* the mapping keeps it */
    make_pipe(endpoint, &info);
    return QUOIT_OK;
}

void shm_exchange_step(shm_link_t *link)
{
    quoit_status_t status = QUOIT_OK;
    link->retry = false;
    if (!link->info_sent) status = send_info(link);
    if (!status && !link->info_sent) return;
    if (!status) status = receive_info(link);
    if (status == QUOIT_ERR_AGAIN) return;
    if (!status) status = use_info(link);
    if (status) {
        shm_link_fail(link, status);
        return;
    }
    link->phase = SHM_PHASE_UP;
    shm_endpoint_open(link->endpoint);
}
