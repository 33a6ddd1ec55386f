/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport `pipes`: sockets, endpoints, and the handshake in between. A link is one socket: it shakes hands, then it becomes the
 * pipe of its endpoint's channel.
 */
#include "plugin_pipe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---------------------------------------------------------------- sockets */

static quoit_status_t socket_write(void *pipe, const struct iovec *iov, int count, size_t *written)
{
    pipe_link_t *link = pipe;
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)count};
    ssize_t result = sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (result < 0 && (errno == EAGAIN || errno == EINTR)) return QUOIT_ERR_AGAIN;
    if (result < 0) return error_set_errno(QUOIT_ERR_PEER, errno, "pipes: cannot send");
    *written = (size_t)result;
    return QUOIT_OK;
}

static quoit_status_t socket_read(void *pipe, const struct iovec *iov, int count, size_t *got)
{
    pipe_link_t *link = pipe;
    struct msghdr message = {.msg_iov = (struct iovec *)(uintptr_t)iov, .msg_iovlen = (size_t)count};
    ssize_t result = recvmsg(link->fd, &message, MSG_DONTWAIT);
    if (result < 0 && (errno == EAGAIN || errno == EINTR)) return QUOIT_ERR_AGAIN;
    if (result < 0 && errno != ECONNRESET) return error_set_errno(QUOIT_ERR_PEER, errno, "pipes: cannot receive");
    if (result <= 0) return QUOIT_ERR_CLOSED;
    *got = (size_t)result;
    return QUOIT_OK;
}

static const pipe_ops_t socket_ops = {.write = socket_write, .read = socket_read};

void pipe_link_watch(pipe_transport_t *transport, pipe_link_t *link, uint32_t events)
{
    if (link->watched == events) return;
    struct epoll_event event = {.events = events, .data.ptr = link};
    epoll_ctl(transport->epoll, link->watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, link->fd, &event);
    link->watched = events;
}

void pipe_link_destroy(pipe_link_t *link)
{
    if (!link) return;
    list_remove(&link->link);
    if (link->fd >= 0) close(link->fd);
    free(link);
}

pipe_link_t *pipe_link_create(pipe_transport_t *transport, int fd)
{
    pipe_link_t *link = calloc(1, sizeof *link);
    if (!link) {
        error_set(QUOIT_ERR_NO_MEMORY, "pipes: no memory for a connection");
        return NULL;
    }
    link->fd = fd;
    list_append(&transport->links, &link->link);
    return link;
}

/* ---------------------------------------------------------------- endpoints */

pipe_endpoint_t *pipe_endpoint_find(pipe_transport_t *transport, quoit_process_id_t peer)
{
    for (list_t *link = transport->endpoints.next; link != &transport->endpoints; link = link->next) {
        pipe_endpoint_t *endpoint = container_of(link, pipe_endpoint_t, link);
        bool useless = endpoint->leaving || (channel_status(endpoint->channel) != QUOIT_OK &&
                                             (!channel_peer_closed(endpoint->channel) || endpoint->closed_told));
        error_clear();
        if (same(endpoint->base.peer, peer) && !useless) return endpoint;
    }
    return NULL;
}

pipe_endpoint_t *pipe_endpoint_create(pipe_transport_t *transport, quoit_process_id_t peer, const char *name)
{
    pipe_endpoint_t *endpoint = calloc(1, sizeof *endpoint);
    if (!endpoint) {
        error_set(QUOIT_ERR_NO_MEMORY, "pipes: no memory for an endpoint");
        return NULL;
    }
    endpoint->base = (quoit_endpoint_t){.transport = &transport->base, .peer = peer};
    snprintf(endpoint->name, sizeof endpoint->name, "pipes: %s", name);
    channel_config_t config = {.ops = &socket_ops,
                               .eager_limit = transport->eager_limit,
                               .eager_pool = transport->eager_pool,
                               .segment_size = transport->segment_size};
    if (channel_create(&config, endpoint->name, &endpoint->channel) != QUOIT_OK) {
        free(endpoint);
        return NULL;
    }
    list_append(&transport->endpoints, &endpoint->link);
    return endpoint;
}

/* The link is of no more use; transport->links is being walked perhaps, so it goes when its turn comes. */
static void link_abandon(pipe_link_t *link)
{
    link->handshake.state = HANDSHAKE_FAILED;
    link->endpoint = NULL;
    link->deadline = 0;
}

void pipe_endpoint_destroy(pipe_endpoint_t *endpoint)
{
    list_t *links = &of_transport(endpoint->base.transport)->links;
    for (list_t *link = links->next; link != links; link = link->next)
        if (container_of(link, pipe_link_t, link)->endpoint == endpoint) link_abandon(container_of(link, pipe_link_t, link));
    error_set(QUOIT_ERR_CLOSED, "%s: closed here", endpoint->name);
    channel_fail(endpoint->channel, QUOIT_ERR_CLOSED);
    error_clear();
    channel_destroy(endpoint->channel);
    pipe_link_destroy(endpoint->socket);
    list_remove(&endpoint->link);
    free(endpoint);
}

/* The link has shaken hands: it is the endpoint's pipe from now on. */
static void endpoint_stand(pipe_endpoint_t *endpoint, pipe_link_t *link)
{
    if (endpoint->caller && endpoint->caller != link) link_abandon(endpoint->caller);
    endpoint->caller = NULL;
    list_remove(&link->link);
    link->endpoint = endpoint;
    endpoint->socket = link;
    endpoint->standing = true;
    void *pipe = link;
    channel_open(endpoint->channel, NULL, &pipe, 1);
}

/* ---------------------------------------------------------------- handshake */

/* A job that is not trusted any more leaves its number in its place, so that who calls for it need not wait. */
static void secret_give(pipe_transport_t *transport, handshake_t *handshake)
{
    bool over = false;
    for (int i = 0; i < JOBS && handshake->job != 0; i++) {
        if (transport->jobs[i].job != handshake->job) continue;
        over = !transport->jobs[i].used;
        if (over) continue;
        handshake_secret(handshake, transport->jobs[i].secret, transport->jobs[i].length);
        return;
    }
    if (over && !pipe_endpoint_find(transport, handshake->peer)) handshake_refuse(handshake, HANDSHAKE_REASON_OVER);
}

/* One that was left before it stood: its last words wait for the peer's call, when that has won the tie. */
static pipe_endpoint_t *find_left_early(pipe_transport_t *transport, quoit_process_id_t peer)
{
    for (list_t *link = transport->endpoints.next; link != &transport->endpoints; link = link->next) {
        pipe_endpoint_t *endpoint = container_of(link, pipe_endpoint_t, link);
        if (same(endpoint->base.peer, peer) && endpoint->leaving && !endpoint->standing) return endpoint;
    }
    return NULL;
}

static void verdict_give(pipe_transport_t *transport, pipe_link_t *link)
{
    handshake_t *handshake = &link->handshake;
    pipe_endpoint_t *endpoint = find_left_early(transport, handshake->peer);
    if (!endpoint) endpoint = pipe_endpoint_find(transport, handshake->peer);
    if (endpoint && endpoint->standing) return; /* the peer left and comes again: its goodbye is still to be read */
    if (endpoint && !lower(handshake->peer, transport->environment.self)) {
        handshake_refuse(handshake, HANDSHAKE_REASON_TIE);
        return;
    }
    if (!endpoint) {
        char name[NAME_CAPACITY];
        snprintf(name, sizeof name, "process %016llx", (unsigned long long)handshake->peer.high);
        endpoint = pipe_endpoint_create(transport, handshake->peer, name);
    }
    if (!endpoint) return;
    link->endpoint = endpoint;
    handshake_accept(handshake);
}

static bool handshake_move(pipe_link_t *link)
{
    handshake_t *handshake = &link->handshake;
    size_t length, wanted = handshake_wants(handshake);
    const void *output = handshake_output(handshake, &length);
    bool moved = false;
    if (length > 0) {
        ssize_t result = send(link->fd, output, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (result > 0) handshake_sent(handshake, (size_t)result), moved = true;
    }
    if (wanted > 0) {
        uint8_t bytes[HANDSHAKE_CAPACITY];
        ssize_t result = recv(link->fd, bytes, wanted < sizeof bytes ? wanted : sizeof bytes, MSG_DONTWAIT);
        if (result > 0) handshake_received(handshake, bytes, (size_t)result), moved = true;
        else if (result == 0 || (errno != EAGAIN && errno != EINTR)) handshake->state = HANDSHAKE_FAILED;
    }
    if (handshake->state == HANDSHAKE_WANTS_SECRET || handshake->state == HANDSHAKE_WANTS_VERDICT) { /* who waits for us may have given up */
        uint8_t byte;
        if (recv(link->fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0) handshake->state = HANDSHAKE_FAILED;
    }
    return moved;
}

/* A link that came to nothing. Our own try fails its endpoint, except when the peer's try wins the tie. */
static void link_failed(pipe_link_t *link, const char *cause)
{
    pipe_endpoint_t *endpoint = link->endpoint;
    if (endpoint && endpoint->caller == link) {
        endpoint->caller = NULL;
        if (link->handshake.reason != HANDSHAKE_REASON_TIE && !endpoint->standing) {
            error_set(QUOIT_ERR_NETWORK, "%s: cannot connect: %s", endpoint->name, cause);
            channel_fail(endpoint->channel, QUOIT_ERR_NETWORK);
        }
    }
    pipe_link_destroy(link);
}

int pipe_link_progress(pipe_transport_t *transport, pipe_link_t *link)
{
    handshake_t *handshake = &link->handshake;
    int handled = 0;
    for (bool moved = true; moved;) {
        handshake_state_t before = handshake->state;
        moved = handshake_move(link);
        if (handshake->state == HANDSHAKE_WANTS_SECRET) secret_give(transport, handshake);
        if (handshake->state == HANDSHAKE_WANTS_VERDICT) verdict_give(transport, link);
        moved = moved || handshake->state != before;
        handled += moved;
    }
    size_t length;
    handshake_output(handshake, &length);
    pipe_link_watch(transport, link, (handshake_wants(handshake) ? EPOLLIN : 0) | (length ? EPOLLOUT : 0) | EPOLLRDHUP);
    if (length > 0 && clock_now() < link->deadline) return handled;
    if (handshake->state == HANDSHAKE_DONE) {
        endpoint_stand(link->endpoint, link);
        return handled + 1;
    }
    if (handshake->state == HANDSHAKE_FAILED) link_failed(link, handshake_reason_text(handshake->reason));
    else if (clock_now() >= link->deadline) link_failed(link, "no answer in time");
    else return handled;
    return handled + 1;
}

int pipe_link_accept(pipe_transport_t *transport)
{
    int handled = 0;
    while (transport->listener >= 0) {
        int fd = accept4(transport->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) break;
        pipe_link_t *link = pipe_link_create(transport, fd);
        if (!link) {
            close(fd);
            break;
        }
        handshake_listen(&link->handshake, transport->environment.self);
        link->deadline = clock_deadline(STRAY_MS);
        handled++;
    }
    return handled;
}
