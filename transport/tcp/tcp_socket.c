/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One socket: its options, its place in epoll, bytes in and out.
 *
 * Lost hosts. An idle connection is watched by the kernel's keepalive. While bytes are unacknowledged keepalive rests, and
 * TCP_USER_TIMEOUT is no help: since Linux 5.11 it also ends a connection whose peer merely does not read for so long, though its host
 * answers every probe of the closed window; a rank that computes for a minute would be cut off. So it is set only while a
 * connection is being made; afterwards tcp_socket_is_silent looks, now and then while bytes are under way, at when the last
 * acknowledgement came.
 */
#include "transport/tcp/tcp.h"

#include "base/forked.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef TCP_RTO_MAX_MS
#define TCP_RTO_MAX_MS 44 /* Linux 6.15 */
#endif

tcp_socket_t *tcp_socket_create(tcp_transport_t *transport, tcp_kind_t kind, int fd, uint32_t events)
{
    tcp_socket_t *socket = calloc(1, sizeof *socket);
    if (socket == NULL) {
        error_set(QUOIT_ERR_NO_MEMORY, "tcp: no memory for a socket");
        goto close_fd;
    }
    list_init(&socket->link);
    socket->kind = kind;
    socket->fd = fd;
    socket->armed = events;
    socket->transport = transport;
    socket->deadline = CLOCK_NEVER;
    struct epoll_event event = {.events = events, .data.ptr = socket};
    if (epoll_ctl(transport->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        error_set_errno(QUOIT_ERR_SYSTEM, errno, "tcp: cannot watch a socket");
        goto free_socket;
    }
    forked_close(fd);
    return socket;

free_socket:
    free(socket);
close_fd:
    close(fd);
    return NULL;
}

static void free_handshake(tcp_socket_t *socket)
{
    if (socket->handshake == NULL) return;
    explicit_bzero(socket->handshake, sizeof *socket->handshake);
    free(socket->handshake);
    socket->handshake = NULL;
}

void tcp_socket_destroy(tcp_socket_t *socket)
{
    if (socket == NULL || socket->kind == TCP_DEAD) return;
    /* A child that was forked a moment ago may hold the same open file, which would stay in the epoll set after close(). */
    if (forked_keep(socket->fd)) {
        epoll_ctl(socket->transport->epoll, EPOLL_CTL_DEL, socket->fd, NULL);
        close(socket->fd);
    }
    tls_session_destroy(socket->tls);
    socket->tls = NULL;
    socket->fd = -1;
    socket->kind = TCP_DEAD;
    socket->endpoint = NULL;
    free_handshake(socket);
    list_remove(&socket->link);
    list_append(&socket->transport->graveyard, &socket->link);
}

void tcp_socket_bury(tcp_transport_t *transport)
{
    for (list_t *node; (node = list_pop(&transport->graveyard)) != NULL;) free(container_of(node, tcp_socket_t, link));
}

void tcp_socket_arm(tcp_socket_t *socket, uint32_t events)
{
    if (socket->armed == events || socket->muted) return;
    struct epoll_event event = {.events = events, .data.ptr = socket};
    if (epoll_ctl(socket->transport->epoll, EPOLL_CTL_MOD, socket->fd, &event) == 0) socket->armed = events;
}

void tcp_socket_mute(tcp_socket_t *socket)
{
    socket->muted = true; /* out of the set: a reset would be reported whatever is armed */
    epoll_ctl(socket->transport->epoll, EPOLL_CTL_DEL, socket->fd, NULL);
}

/* The options below are wishes: a kernel that lacks one still carries bytes. */
static void set_option(int fd, int level, int option, int value) { setsockopt(fd, level, option, &value, sizeof value); }

void tcp_socket_set_coming(tcp_socket_t *socket)
{
    set_option(socket->fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, socket->transport->times.silence);
}

void tcp_socket_set_standing(tcp_socket_t *socket)
{
    int quarter = socket->transport->times.silence / 4;
    int seconds = (socket->transport->times.silence + 3999) / 4000; /* an idle quarter, then three unanswered probes */
    set_option(socket->fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 0);
    /* Otherwise the pauses between retransmissions and between probes grow to two minutes. */
    set_option(socket->fd, IPPROTO_TCP, TCP_RTO_MAX_MS, quarter < 1000 ? 1000 : quarter);
    set_option(socket->fd, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
    set_option(socket->fd, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
    set_option(socket->fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
    set_option(socket->fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    free_handshake(socket);
}

int tcp_socket_send(tcp_socket_t *socket, const void *bytes, size_t length, size_t *done)
{
    ssize_t sent;
    if (socket->tls != NULL) return tcp_secure_send(socket, bytes, length, done);
    do {
        sent = send(socket->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0) return errno == EWOULDBLOCK ? EAGAIN : errno;
    *done = (size_t)sent;
    return 0;
}

static int receive_raw(tcp_socket_t *socket, void *bytes, size_t length, size_t *done)
{
    ssize_t got;
    do {
        got = recv(socket->fd, bytes, length, MSG_DONTWAIT);
    } while (got < 0 && errno == EINTR);
    if (got < 0) return errno == EWOULDBLOCK ? EAGAIN : errno;
    if (got == 0) return ECONNRESET;
    *done = (size_t)got;
    return 0;
}

int tcp_socket_receive(tcp_socket_t *socket, void *bytes, size_t length, size_t *done)
{
    return socket->tls != NULL ? tcp_secure_receive(socket, bytes, length, done) : receive_raw(socket, bytes, length, done);
}

int tcp_socket_shake(tcp_socket_t *socket)
{
    handshake_t *handshake = socket->handshake;
    uint8_t bytes[HANDSHAKE_CAPACITY];
    size_t length, done = 0;
    int error = tcp_socket_flush(socket);
    if (error != 0) return error;
    const void *output = handshake_output(handshake, &length);
    if (length > 0) {
        error = tcp_socket_send(socket, output, length, &done);
        if (error != 0) return error;
        handshake_sent(handshake, done);
        return done < length ? EAGAIN : 0;
    }
    length = handshake_wants(handshake);
    if (length == 0) return EAGAIN;
    error = tcp_socket_receive(socket, bytes, length, &done);
    if (error == 0) handshake_received(handshake, bytes, done);
    return error;
}

bool tcp_socket_drain(tcp_socket_t *socket, size_t most)
{
    char bytes[8192];
    size_t done = 0;
    for (size_t total = 0; total < most; total += done) {
        int error = receive_raw(socket, bytes, sizeof bytes, &done); /* with TLS, too: nobody wants to know them */
        if (error != 0) return error != EAGAIN;
    }
    return false;
}

size_t tcp_socket_unacknowledged(const tcp_socket_t *socket)
{
    int bytes = 0;
    return ioctl(socket->fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 ? (size_t)bytes : 0;
}

const char *tcp_socket_interface(const tcp_socket_t *socket, char name[IF_NAMESIZE])
{
    ip_name_t local;
    socklen_t size = sizeof local;
    ip_interface_t *all = NULL;
    int count = 0;
    snprintf(name, IF_NAMESIZE, "?");
    if (getsockname(socket->fd, &local.any, &size) != 0 || ip_interface_recent(&all, &count) != QUOIT_OK) return name;
    for (int i = 0; i < count; i++)
        if (ip_interface_owns(&all[i], &local)) memcpy(name, all[i].name, IF_NAMESIZE);
    free(all);
    return name;
}

bool tcp_socket_is_silent(tcp_socket_t *socket, uint64_t now, int limit_ms)
{
    struct tcp_info info;
    socklen_t size = sizeof info;
    if (tcp_socket_unacknowledged(socket) == 0) {
        socket->pending_since = 0;
        socket->suspect = false;
        return false;
    }
    if (socket->pending_since == 0) socket->pending_since = now;
    memset(&info, 0, sizeof info);
    if (getsockopt(socket->fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return false;
    /* Unanswered at two looks in a row: what was sent a moment ago proves nothing. One probe of a closed window proves nothing
     * either: the other kernel answers at most one in half a second. */
    bool unanswered = info.tcpi_retransmits > 0 || info.tcpi_probes > 1;
    bool still = unanswered && socket->suspect;
    uint64_t quiet = (now - socket->pending_since) / 1000000u;
    if (quiet > info.tcpi_last_ack_recv) quiet = info.tcpi_last_ack_recv;
    socket->suspect = unanswered;
    return still && quiet >= (uint64_t)limit_ms;
}

/* ---------------------------------------------------------------- the channel's pipe */

static quoit_status_t pipe_write(void *pipe, const struct iovec *iov, int count, size_t *written)
{
    tcp_socket_t *socket = pipe;
    struct msghdr message = {.msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)count};
    size_t wanted = 0;
    ssize_t sent;
    if (socket->blocked) return QUOIT_ERR_AGAIN;
    for (int i = 0; i < count; i++) wanted += iov[i].iov_len;
    do {
        sent = sendmsg(socket->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (sent < 0 && errno == EINTR);
    if (sent >= 0) {
        socket->blocked = (size_t)sent < wanted;
        *written = (size_t)sent;
        return QUOIT_OK;
    }
    socket->blocked = true;
    /* A peer that left may have sent its last bytes and its goodbye before: reading finds them, and then the end. */
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) socket->write_error = errno;
    return QUOIT_ERR_AGAIN;
}

quoit_status_t tcp_socket_tell_end(const tcp_socket_t *socket, int error)
{
    char remote[IP_NAME_CAPACITY];
    for (int i = 0; i < socket->endpoint->pipe_count; i++) /* the channel reads the others once more, though epoll has not told of them yet */
        if (socket->endpoint->pipes[i] != NULL) socket->endpoint->pipes[i]->dry = false;
    ip_name_text(&socket->remote, remote);
    if (error == 0)
        return error_set(QUOIT_ERR_PEER, "%s closed the connection without goodbye; its process exited or its host dropped the link",
                         remote);
    if (error == ECONNRESET || error == EPIPE)
        return error_set(QUOIT_ERR_PEER, "%s reset the connection without goodbye; its process died or was restarted", remote);
    if (error == ETIMEDOUT)
        return error_set(QUOIT_ERR_NETWORK, "%s does not answer any more; its host is down or the link to it is cut", remote);
    return error_set_errno(QUOIT_ERR_NETWORK, error, "the connection to %s broke", remote);
}

static quoit_status_t pipe_read(void *pipe, const struct iovec *iov, int count, size_t *got)
{
    tcp_socket_t *socket = pipe;
    size_t wanted = 0;
    ssize_t length;
    if (socket->dry) return QUOIT_ERR_AGAIN;
    for (int i = 0; i < count; i++) wanted += iov[i].iov_len;
    do {
        length = readv(socket->fd, iov, count);
    } while (length < 0 && errno == EINTR);
    if (length > 0) {
        socket->dry = (size_t)length < wanted; /* saves the call that would only say so; epoll tells when there is more */
        *got = (size_t)length;
        return QUOIT_OK;
    }
    if (length < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return QUOIT_ERR_AGAIN;
    return tcp_socket_tell_end(socket, length < 0 ? errno : socket->write_error);
}

const pipe_ops_t tcp_pipe_ops = {.write = pipe_write, .read = pipe_read};
