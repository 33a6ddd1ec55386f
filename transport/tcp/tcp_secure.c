/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A socket with TLS. The session (transport/tls) is made when the socket is connected, shakes hands before Quoit's own handshake, and
 * stays until the socket is closed. It may have read more than was asked for, which epoll does not see: a pipe that was not read until it
 * was dry stands in the transport's list `buffered`, and is read again at the next progress.
 */
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <sys/epoll.h>

/* ---------------------------------------------------------------- before the connection stands */

bool tcp_socket_begin_tls(tcp_socket_t *socket, bool server)
{
    tls_context_t *context = socket->transport->tls;
    if (context != NULL) socket->tls = tls_session_create(context, socket->fd, server);
    return context == NULL || socket->tls != NULL;
}

int tcp_socket_secure(tcp_socket_t *socket)
{
    if (socket->tls == NULL || socket->secured) return 0;
    int error = tls_session_handshake(socket->tls);
    socket->secured = error == 0;
    return error == ENODATA ? ECONNRESET : error;
}

uint32_t tcp_socket_interest(const tcp_socket_t *socket, bool output)
{
    if (socket->tls != NULL && !socket->secured) return tls_session_wants_write(socket->tls) ? EPOLLOUT : EPOLLIN;
    return output || tcp_socket_is_staged(socket) ? EPOLLIN | EPOLLOUT : EPOLLIN;
}

int tcp_secure_send(tcp_socket_t *socket, const void *bytes, size_t length, size_t *done)
{
    struct iovec iov = {.iov_base = (void *)bytes, .iov_len = length};
    return tls_session_send(socket->tls, &iov, 1, done);
}

int tcp_secure_receive(tcp_socket_t *socket, void *bytes, size_t length, size_t *done)
{
    struct iovec iov = {.iov_base = bytes, .iov_len = length};
    bool dry;
    int error = tls_session_receive(socket->tls, &iov, 1, done, &dry);
    return error == ENODATA ? ECONNRESET : error;
}

/* Reading tells it: the peer's goodbye may be there. A socket that failed is told by epoll; that TLS did, by nobody. */
static void write_failed(tcp_socket_t *pipe, int error)
{
    pipe->write_error = error;
    if (error != EPROTO) return;
    pipe->dry = false;
    tcp_pipe_keep_reading(pipe);
}

int tcp_socket_flush(tcp_socket_t *socket)
{
    if (socket->tls == NULL || !tls_session_is_staged(socket->tls)) return 0;
    int error = tls_session_flush(socket->tls);
    socket->blocked = error != 0;
    if (socket->kind == TCP_PIPE && error != 0 && error != EAGAIN) write_failed(socket, error);
    return error;
}

/* ---------------------------------------------------------------- the channel's pipe */

static quoit_status_t secure_write(void *pipe, const struct iovec *iov, int count, size_t *written)
{
    tcp_socket_t *socket = pipe;
    if (socket->blocked) return QUOIT_ERR_AGAIN;
    int error = tls_session_send(socket->tls, iov, count, written);
    socket->blocked = error != 0 || tls_session_is_staged(socket->tls);
    if (error == 0) return QUOIT_OK;
    if (error != EAGAIN) write_failed(socket, error);
    return QUOIT_ERR_AGAIN;
}

static quoit_status_t secure_read(void *pipe, const struct iovec *iov, int count, size_t *got)
{
    tcp_socket_t *socket = pipe;
    char remote[IP_NAME_CAPACITY];
    if (socket->dry) return QUOIT_ERR_AGAIN;
    int error = tls_session_receive(socket->tls, iov, count, got, &socket->dry);
    if (error == 0) return QUOIT_OK;
    if (error == EAGAIN) return QUOIT_ERR_AGAIN;
    if (error == EPROTO)
        return error_set(QUOIT_ERR_PROTOCOL, "%s: %s", ip_name_text(&socket->remote, remote), tls_session_cause(socket->tls));
    return tcp_socket_tell_end(socket, error == ENODATA ? socket->write_error : error);
}

const pipe_ops_t tcp_secure_pipe_ops = {.write = secure_write, .read = secure_read};

/* ---------------------------------------------------------------- what TLS has read ahead */

void tcp_pipe_keep_reading(tcp_socket_t *pipe)
{
    if (pipe->kind != TCP_PIPE || pipe->tls == NULL || pipe->dry || pipe->muted) return;
    list_remove(&pipe->link);
    list_append(&pipe->transport->buffered, &pipe->link);
}

int tcp_read_buffered(tcp_transport_t *transport)
{
    int done = 0, count = 0;
    for (list_t *node = transport->buffered.next; node != &transport->buffered; node = node->next) count++;
    size_t budget = (size_t)TCP_BUDGET / (size_t)(count > 8 ? 8 : count);
    for (list_t *node; count > 0 && (node = list_pop(&transport->buffered)) != NULL; count--) /* one may take others along */
        done += tcp_pipe_ready(container_of(node, tcp_socket_t, link), EPOLLIN, budget);
    return done;
}
