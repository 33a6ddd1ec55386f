/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An endpoint of tcp: its sockets, writing and reading them, whether the peer's host still answers. Its life is told in
 * transport/framing/endpoint.h; COMING: tcp_connect.c calls the peer, or tcp_accept.c collects the sockets of a peer that called.
 *
 * LEAVING: what is queued goes out, then the goodbye, then shutdown(SHUT_WR); the peer's bytes are read and dropped until its end
 * of stream, and the endpoint is freed with its last socket. Closing earlier would make the kernel answer the peer's next bytes with a reset,
 * which can destroy ours on their way.
 */
#include "base/log.h"
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

enum { LEAVE_LOOK_MS = 10 };

tcp_endpoint_t *tcp_endpoint_create(tcp_transport_t *transport, quoit_process_id_t peer, const char *name)
{
    tcp_endpoint_t *endpoint = calloc(1, sizeof *endpoint);
    if (endpoint == NULL) {
        error_set(QUOIT_ERR_NO_MEMORY, "tcp: no memory for an endpoint");
        return NULL;
    }
    endpoint->transport = transport;
    endpoint->wake = CLOCK_NEVER;
    list_init(&endpoint->dirty);
    list_init(&endpoint->callers);
    list_init(&endpoint->incoming);
    if (endpoint_create(&endpoint->base, &transport->base, peer, name) == QUOIT_OK) return endpoint;
    free(endpoint);
    return NULL;
}

static void destroy_sockets(list_t *list)
{
    while (!list_is_empty(list)) tcp_socket_destroy(container_of(list->next, tcp_socket_t, link));
}

static void close_pipes(tcp_endpoint_t *endpoint)
{
    for (int i = 0; i < endpoint->pipe_count; i++) {
        tcp_socket_destroy(endpoint->pipes[i]);
        endpoint->pipes[i] = NULL;
    }
    endpoint->pipe_count = 0;
}

/* No socket is left of it. */
static void release(endpoint_t *base)
{
    tcp_endpoint_t *endpoint = (tcp_endpoint_t *)base;
    endpoint->wake = CLOCK_NEVER;
    list_remove(&endpoint->dirty);
    tcp_call_drop(endpoint);
    destroy_sockets(&endpoint->incoming);
    close_pipes(endpoint);
}

static void touch_if_standing(endpoint_t *base)
{
    tcp_endpoint_t *endpoint = (tcp_endpoint_t *)base;
    if (endpoint->pipe_count > 0) tcp_endpoint_touch(endpoint);
}

static void freed(endpoint_t *base)
{
    tcp_endpoint_t *endpoint = (tcp_endpoint_t *)base;
    job_secret_wipe(&endpoint->secret);
    free(endpoint->rails);
}

const endpoint_ops_t tcp_endpoint_ops = {
    .name = "tcp",
    .touch = touch_if_standing,
    .leaving = endpoint_nothing,
    .parted = release,
    .released = release,
    .forgotten = endpoint_nothing,
    .freed = freed,
};

static void end_if_left(tcp_endpoint_t *endpoint)
{
    if (endpoint->pipe_count == 0) endpoint_left(&endpoint->base);
}

quoit_status_t tcp_endpoint_set_limits(tcp_endpoint_t *endpoint, ip_limits_t limits, bool rails)
{
    channel_config_t config = {.ops = endpoint->transport->tls != NULL ? &tcp_secure_pipe_ops : &tcp_pipe_ops,
                               .eager_limit = limits.eager_limit,
                               .eager_pool = limits.eager_pool,
                               .segment_size = limits.segment_size,
                               .rails = rails};
    if (rails) endpoint->rails = calloc(IP_MAX_ADDRESSES, sizeof *endpoint->rails);
    if (rails && endpoint->rails == NULL) return error_set(QUOIT_ERR_NO_MEMORY, "tcp: no memory for the rails of a connection");
    endpoint->sockets = limits.sockets;
    quoit_status_t status = channel_create(&config, endpoint->base.name, &endpoint->base.channel);
    if (status == QUOIT_OK) endpoint->limits = limits;
    return status;
}

/* ---------------------------------------------------------------- standing */

void tcp_endpoint_touch(tcp_endpoint_t *endpoint)
{
    if (list_is_empty(&endpoint->dirty)) list_append(&endpoint->transport->dirty, &endpoint->dirty);
}

void tcp_endpoint_establish(tcp_endpoint_t *endpoint, tcp_socket_t *const *sockets, int count)
{
    char remote[IP_NAME_CAPACITY], interface[IF_NAMESIZE];
    void *pipes[CHANNEL_MAX_PIPES];
    job_secret_wipe(&endpoint->secret);
    for (int i = 0; i < count; i++) {
        tcp_socket_t *socket = sockets[i];
        list_remove(&socket->link);
        socket->kind = TCP_PIPE;
        socket->endpoint = endpoint;
        socket->pipe = i;
        socket->deadline = CLOCK_NEVER;
        tcp_socket_set_standing(socket);
        tcp_socket_arm(socket, EPOLLIN);
        endpoint->pipes[i] = socket;
        pipes[i] = socket;
    }
    endpoint->pipe_count = count;
    for (int i = 0; i < count; i++) tcp_pipe_keep_reading(sockets[i]); /* TLS may have read more than was asked for */
    tcp_call_drop(endpoint);
    destroy_sockets(&endpoint->incoming);
    endpoint->wake = CLOCK_NEVER;
    const tls_session_t *tls = endpoint->pipes[0]->tls;
    snprintf(endpoint->base.description, sizeof endpoint->base.description, "tcp %s via %s, %d socket%s%s%s",
             ip_name_text(&endpoint->pipes[0]->remote, remote), tcp_socket_interface(endpoint->pipes[0], interface), count, count == 1 ? "" : "s",
             tls != NULL ? ", " : "", tls != NULL ? tls_session_description(tls) : "");
    channel_open(endpoint->base.channel, endpoint->base.name, pipes, count);
    if (endpoint->rails != NULL) tcp_rails_establish(endpoint);
    endpoint_stand(&endpoint->base);
}

static void watch(tcp_endpoint_t *endpoint)
{
    if (endpoint->watched) return;
    endpoint->watched = true;
    const tcp_times_t *times = &endpoint->transport->times;
    tcp_endpoint_wake_at(endpoint, clock_deadline((endpoint->rails != NULL ? times->rail : times->silence) / 4));
}

/* Only when the channel is not used any more: it knows the pipes by number. */
static void remove_pipe(tcp_endpoint_t *endpoint, tcp_socket_t *pipe)
{
    int last = --endpoint->pipe_count;
    endpoint->pipes[pipe->pipe] = endpoint->pipes[last];
    if (endpoint->pipes[last] != NULL) endpoint->pipes[pipe->pipe]->pipe = pipe->pipe;
    endpoint->pipes[last] = NULL;
    tcp_socket_destroy(pipe);
}

static void say_end(tcp_socket_t *pipe)
{
    if (pipe->tls != NULL) tls_session_close(pipe->tls);
    shutdown(pipe->fd, SHUT_WR);
}

/* Taken from the channel, and not yet with the kernel. */
static bool is_staged(const tcp_endpoint_t *endpoint)
{
    for (int i = 0; i < endpoint->pipe_count; i++)
        if (endpoint->pipes[i] != NULL && tcp_socket_is_staged(endpoint->pipes[i])) return true;
    return false;
}

/* Goodbye is out, or nothing more can be said. Only the peer's end of stream is waited for, where it was not seen yet. */
static void shut_down(tcp_endpoint_t *endpoint)
{
    endpoint->shut = true;
    for (int i = endpoint->pipe_count - 1; i >= 0; i--) {
        tcp_socket_t *pipe = endpoint->pipes[i];
        if (pipe == NULL) { /* a rail that was left */
            endpoint->pipes[i] = endpoint->pipes[--endpoint->pipe_count];
            if (endpoint->pipes[i] != NULL) endpoint->pipes[i]->pipe = i;
            continue;
        }
        say_end(pipe);
        tcp_socket_arm(pipe, EPOLLIN);
        if (pipe->muted) remove_pipe(endpoint, pipe);
    }
    tcp_endpoint_wake_at(endpoint, clock_deadline(LEAVE_LOOK_MS));
}

/* Whichever pipe is best may have changed with what the others took. */
static bool look_at_rails(tcp_endpoint_t *endpoint)
{
    bool more = false;
    tcp_rails_look(endpoint);
    for (int i = 0; i < endpoint->pipe_count; i++)
        if (endpoint->pipes[i] != NULL && channel_wants_write(endpoint->base.channel, i)) {
            tcp_socket_t *pipe = endpoint->pipes[i];
            if (!pipe->blocked) more = true;
            if (pipe->blocked && pipe->write_error == 0) tcp_socket_arm(pipe, EPOLLIN | EPOLLOUT);
        }
    return more;
}

uint64_t tcp_endpoint_flush(tcp_endpoint_t *endpoint)
{
    uint64_t before, after, received;
    bool more = false, freed = false;
    list_remove(&endpoint->dirty);
    if (endpoint->pipe_count == 0 || endpoint->shut) return 0;
    channel_count(endpoint->base.channel, &before, &received);
    for (int i = 0; i < endpoint->pipe_count; i++) {
        tcp_socket_t *pipe = endpoint->pipes[i];
        if (pipe == NULL) continue;
        if (!pipe->blocked && tcp_socket_is_staged(pipe)) freed = tcp_socket_flush(pipe) == 0 || freed;
        if (!pipe->blocked && channel_wants_write(endpoint->base.channel, i)) channel_write(endpoint->base.channel, i, TCP_BUDGET / 2);
        bool wants = channel_wants_write(endpoint->base.channel, i) || tcp_socket_is_staged(pipe);
        if (wants && !pipe->blocked) more = true;
        tcp_socket_arm(pipe, wants && pipe->blocked && pipe->write_error == 0 ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
    if (endpoint->rails != NULL) more = look_at_rails(endpoint) || more;
    channel_count(endpoint->base.channel, &after, &received);
    quoit_status_t status = channel_status(endpoint->base.channel);
    if (endpoint->base.life == ENDPOINT_STANDING && status != QUOIT_OK) {
        endpoint_end(&endpoint->base, status);
        return after - before;
    }
    if (after > before || freed) watch(endpoint);
    if (endpoint->base.life == ENDPOINT_LEAVING && (status != QUOIT_OK || (channel_idle(endpoint->base.channel) && !is_staged(endpoint)))) {
        shut_down(endpoint);
        end_if_left(endpoint);
    } else if (more) {
        tcp_endpoint_touch(endpoint);
    }
    return after - before;
}

/* Readable, but the channel wanted nothing: it has had the goodbye of this pipe, and what is there is the end of the stream. */
static void mute_at_end(tcp_socket_t *pipe)
{
    char byte;
    if (pipe->tls != NULL) { /* close_notify comes before it; nothing that TLS could say counts after the goodbye */
        bool asked = pipe->dry; /* the channel did want something, and TLS has no whole record yet */
        if (!asked && tcp_socket_drain(pipe, TCP_BUDGET)) tcp_socket_mute(pipe);
        return;
    }
    if (recv(pipe->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) tcp_socket_mute(pipe);
}

/* The peer's bytes after our goodbye mean nothing any more. */
static int leaving_ready(tcp_socket_t *pipe, size_t budget)
{
    tcp_endpoint_t *endpoint = pipe->endpoint;
    if (!endpoint->shut && channel_status(endpoint->base.channel) == QUOIT_OK) {
        const void *data;
        size_t length;
        pipe->dry = false;
        int handled = channel_read(endpoint->base.channel, pipe->pipe, budget);
        if (endpoint->rails != NULL) tcp_rails_look(endpoint);
        if (handled == 0 && pipe->kind == TCP_PIPE)
            mute_at_end(pipe);
        else if (pipe->kind == TCP_PIPE)
            tcp_pipe_keep_reading(pipe);
        while (channel_next_notice(endpoint->base.channel, &data, &length)) {}
        if (channel_status(endpoint->base.channel) != QUOIT_OK)
            close_pipes(endpoint); /* the peer left too: it needs nothing more */
        else
            tcp_endpoint_touch(endpoint);
    } else if (tcp_socket_drain(pipe, budget)) {
        remove_pipe(endpoint, pipe);
    }
    end_if_left(endpoint);
    return 1;
}

int tcp_pipe_ready(tcp_socket_t *pipe, uint32_t events, size_t budget)
{
    tcp_endpoint_t *endpoint = pipe->endpoint;
    int done = 0;
    if (events & EPOLLOUT) {
        pipe->blocked = false;
        tcp_endpoint_touch(endpoint);
        done++;
    }
    if (!(events & (EPOLLIN | EPOLLERR | EPOLLHUP | EPOLLRDHUP))) return done;
    if (endpoint->base.life == ENDPOINT_LEAVING) return done + leaving_ready(pipe, budget);
    pipe->dry = false;
    int handled = channel_read(endpoint->base.channel, pipe->pipe, budget);
    endpoint_eventful(&endpoint->base);
    quoit_status_t status = channel_status(endpoint->base.channel);
    if (endpoint->rails != NULL) tcp_rails_look(endpoint);
    if (status == QUOIT_ERR_CLOSED)
        endpoint_part(&endpoint->base);
    else if (status != QUOIT_OK)
        endpoint_end(&endpoint->base, status);
    else if (handled == 0 && pipe->kind == TCP_PIPE)
        mute_at_end(pipe);
    else
        tcp_endpoint_touch(endpoint);
    if (handled > 0 && pipe->kind == TCP_PIPE) tcp_pipe_keep_reading(pipe);
    return done + handled;
}

/* ---------------------------------------------------------------- time */

void tcp_endpoint_wake_at(tcp_endpoint_t *endpoint, uint64_t when)
{
    if (when < endpoint->wake) endpoint->wake = when;
    tcp_transport_wake_at(endpoint->transport, endpoint->wake);
}

/* Is the peer's host still there? Looks again only while bytes are unacknowledged. */
static void standing_wake(tcp_endpoint_t *endpoint, uint64_t now)
{
    bool pending = false;
    endpoint->watched = false;
    for (int i = 0; i < endpoint->pipe_count; i++) {
        tcp_socket_t *pipe = endpoint->pipes[i];
        if (pipe == NULL) continue;
        if (tcp_socket_is_silent(pipe, now, endpoint->rails != NULL ? tcp_rails_silence(endpoint, pipe) : endpoint->transport->times.silence)) {
            if (endpoint->rails != NULL && tcp_rails_lose(endpoint, pipe)) continue;
            char remote[IP_NAME_CAPACITY];
            endpoint_end(&endpoint->base, error_set(QUOIT_ERR_NETWORK,
                                                 "tcp: %s (%s) has acknowledged nothing for %.3g s while %zu bytes wait; its host is down "
                                                 "or the link to it is cut",
                                                 endpoint->base.name, ip_name_text(&pipe->remote, remote),
                                                 endpoint->transport->times.silence / 1e3, tcp_socket_unacknowledged(pipe)));
            return;
        }
        pending = pending || pipe->pending_since != 0;
    }
    if (pending) watch(endpoint);
}

static bool all_acknowledged(tcp_endpoint_t *endpoint)
{
    for (int i = 0; i < endpoint->pipe_count; i++)
        if (endpoint->pipes[i] != NULL && tcp_socket_unacknowledged(endpoint->pipes[i]) > 0) return false;
    return true;
}

static void leaving_wake(tcp_endpoint_t *endpoint, uint64_t now)
{
    endpoint->watched = false;
    if (endpoint->shut) endpoint->flushed = endpoint->flushed || all_acknowledged(endpoint);
    for (int i = 0; i < endpoint->pipe_count; i++) {
        tcp_socket_t *pipe = endpoint->pipes[i];
        if (pipe == NULL || !tcp_socket_is_silent(pipe, now, endpoint->rails != NULL ? tcp_rails_silence(endpoint, pipe) : endpoint->transport->times.silence)) continue;
        if (endpoint->rails != NULL && !endpoint->shut && tcp_rails_lose(endpoint, pipe)) continue;
        endpoint_left(&endpoint->base); /* nobody is there to hear the rest */
        return;
    }
    if (!endpoint->flushed) tcp_endpoint_wake_at(endpoint, now + (endpoint->shut ? LEAVE_LOOK_MS : 1000) * (uint64_t)1000000);
}

/* The peer called but its sockets did not all arrive. */
static void drop_late_incoming(tcp_endpoint_t *endpoint, uint64_t now)
{
    for (list_t *node = endpoint->incoming.next, *next; node != &endpoint->incoming; node = next) {
        tcp_socket_t *socket = container_of(node, tcp_socket_t, link);
        next = node->next;
        if (socket->deadline <= now) tcp_socket_destroy(socket);
    }
    for (list_t *node = endpoint->incoming.next; node != &endpoint->incoming; node = node->next)
        tcp_endpoint_wake_at(endpoint, container_of(node, tcp_socket_t, link)->deadline);
}

void tcp_endpoint_wake(tcp_endpoint_t *endpoint, uint64_t now)
{
    endpoint->wake = CLOCK_NEVER;
    switch (endpoint->base.life) {
    case ENDPOINT_COMING:
        drop_late_incoming(endpoint, now);
        if (endpoint->calling) {
            tcp_call_step(endpoint);
        } else if (list_is_empty(&endpoint->incoming)) {
            error_set(QUOIT_ERR_TIMEOUT, "tcp: %s began to connect and did not finish", endpoint->base.name);
            endpoint_end(&endpoint->base, QUOIT_ERR_TIMEOUT);
            endpoint_reap(&endpoint->base);
        }
        break;
    case ENDPOINT_STANDING: standing_wake(endpoint, now); break;
    case ENDPOINT_LEAVING: leaving_wake(endpoint, now); break;
    case ENDPOINT_PARTED:
    case ENDPOINT_ENDED: break;
    }
}

/* ---------------------------------------------------------------- leaving */

bool tcp_endpoint_is_idle(tcp_endpoint_t *endpoint)
{
    if (endpoint->base.life == ENDPOINT_STANDING || (endpoint->base.life == ENDPOINT_COMING && endpoint->calling))
        return channel_idle(endpoint->base.channel) && !is_staged(endpoint);
    if (endpoint->base.life != ENDPOINT_LEAVING || endpoint->flushed) return true;
    if (endpoint->shut) endpoint->flushed = all_acknowledged(endpoint);
    return endpoint->flushed;
}

void tcp_endpoint_farewell(tcp_endpoint_t *endpoint)
{
    if (endpoint->base.life == ENDPOINT_STANDING) endpoint_leave(&endpoint->base);
    if (endpoint->base.life != ENDPOINT_LEAVING) return;
    for (int i = 0; i < endpoint->pipe_count && !endpoint->shut; i++)
        while (endpoint->pipes[i] != NULL && !endpoint->pipes[i]->blocked && channel_status(endpoint->base.channel) == QUOIT_OK &&
               channel_wants_write(endpoint->base.channel, i))
            channel_write(endpoint->base.channel, i, TCP_BUDGET);
    for (int i = 0; i < endpoint->pipe_count; i++) {
        if (endpoint->pipes[i] == NULL) continue;
        say_end(endpoint->pipes[i]);
        tcp_socket_drain(endpoint->pipes[i], 16u << 20); /* unread bytes would turn close() into a reset */
    }
}
