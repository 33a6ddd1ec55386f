/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Control sockets: the listener, connecting, and the handshake. Names of abstract Unix sockets have no permissions and can be read
 * by anybody in /proc/net/unix, so a connection must come from the same user, and prove the job's secret, before it gets anything.
 *
 * Ties. Mostly both sides want the connection at the same time. The higher process id waits a moment (SHM_PATIENCE_MS) for the other's,
 * and only then begins one itself; the lower one waits so when the other's has come. When both have begun, the one that the lower id began stays: the lower one refuses the other's
 * (HANDSHAKE_REASON_TIE), the higher one drops its own as soon as the lower one's has proved itself.
 */
#include "transport/shm/shm.h"

#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { BACKLOG = 4096, ACCEPTS_AT_ONCE = 64, LISTENER_PAUSE_MS = 100 };

static socklen_t socket_name(quoit_process_id_t process, struct sockaddr_un *name)
{
    *name = (struct sockaddr_un){.sun_family = AF_UNIX};
    shm_address_name(process, name->sun_path + 1);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name->sun_path + 1));
}

/* ---------------------------------------------------------------- listener */

quoit_status_t shm_listener_open(shm_transport_t *transport, void *address, size_t *length)
{
    struct sockaddr_un name;
    socklen_t name_length = socket_name(transport->environment.self, &name);
    quoit_status_t status = QUOIT_OK;
    if (*length < SHM_ADDRESS_SIZE) {
        return error_set(QUOIT_ERR_INVALID, "shm: room of %zu bytes for an address of %d", *length, SHM_ADDRESS_SIZE);
    }
    if (transport->listener < 0) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "shm: cannot make a Unix socket");
        if (bind(fd, (struct sockaddr *)&name, name_length) != 0 || listen(fd, BACKLOG) != 0) {
            status = error_set_errno(QUOIT_ERR_SYSTEM, errno, "shm: cannot listen on the abstract Unix socket '%s'", name.sun_path + 1);
        } else {
            status = shm_watch(transport, fd, EPOLLIN, &transport->listener_source);
        }
        if (status) {
            close(fd);
            return status;
        }
        transport->listener = fd;
    }
    shm_address_t own = {.process = transport->environment.self, .limits = transport->limits};
    shm_address_write(&own, address);
    *length = SHM_ADDRESS_SIZE;
    return QUOIT_OK;
}

static quoit_status_t check_user(int fd, pid_t *pid)
{
    struct ucred user;
    socklen_t length = sizeof user;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &user, &length) != 0) {
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "shm: cannot tell who is at the other end of a Unix socket");
    }
    if (user.uid != geteuid()) {
        return error_set(QUOIT_ERR_PROTOCOL, "shm: pid %d runs as user %u, this process as %u; ranks of one host must run as one user",
                         (int)user.pid, (unsigned)user.uid, (unsigned)geteuid());
    }
    *pid = user.pid;
    return QUOIT_OK;
}

static shm_link_t *link_make(shm_transport_t *transport, int fd, bool incoming)
{
    shm_link_t *link = calloc(1, sizeof *link);
    if (!link) return NULL;
    link->source = SHM_SOURCE_LINK;
    link->transport = transport;
    link->fd = fd;
    link->incoming = incoming;
    link->deadline = CLOCK_NEVER;
    list_append(&transport->links, &link->node);
    transport->pending = transport->due = true;
    return link;
}

static void accept_one(shm_transport_t *transport, int fd)
{
    pid_t pid;
    if (check_user(fd, &pid)) {
        log_write_limited("shm-user", LOG_WARN, "shm", "refused a connection: %s", error_text());
        close(fd);
        return;
    }
    shm_link_t *link = transport->strangers < SHM_MAX_STRANGERS ? link_make(transport, fd, true) : NULL;
    if (!link) {
        log_write_limited("shm-strangers", LOG_WARN, "shm", "refused a connection of pid %d: too many are waiting for proof", (int)pid);
        close(fd);
        return;
    }
    transport->strangers++;
    link->pid = pid;
    link->phase = SHM_PHASE_HANDSHAKE;
    link->deadline = clock_deadline(transport->connect_timeout_ms);
    quoit_status_t status = handshake_listen(&link->handshake, transport->environment.self);
    if (!status) status = shm_watch(transport, fd, EPOLLIN | EPOLLRDHUP, &link->source);
    if (status) {
        shm_link_fail(link, status);
    } else {
        shm_link_step(link);
    }
}

void shm_listener_accept(shm_transport_t *transport)
{
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        int fd = accept4(transport->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            accept_one(transport, fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            log_write_limited("shm-accept", LOG_WARN, "shm", "cannot accept a connection: %s; raise 'ulimit -n'", strerror(errno));
            shm_unwatch(transport, transport->listener);
            transport->listener_pause = clock_deadline(LISTENER_PAUSE_MS);
            transport->pending = true;
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

/* ---------------------------------------------------------------- ending */

void shm_link_drop(shm_link_t *link)
{
    if (!link || link->phase == SHM_PHASE_DROPPED) return;
    shm_transport_t *transport = link->transport;
    if (link->incoming && !link->endpoint) transport->strangers--;
    if (link->fd >= 0) {
        shm_unwatch(transport, link->fd);
        close(link->fd);
    }
    while (link->fd_count > 0) {
        int fd = link->fds[--link->fd_count];
        if (fd >= 0) close(fd);
    }
    explicit_bzero(&link->handshake, sizeof link->handshake);
    link->fd = -1;
    link->phase = SHM_PHASE_DROPPED;
    link->endpoint = NULL;
    list_remove(&link->node);
    list_append(&transport->dropped, &link->node);
    transport->due = true;
}

void shm_link_fail(shm_link_t *link, quoit_status_t status)
{
    shm_endpoint_t *endpoint = link->endpoint;
    if (endpoint) {
        shm_endpoint_end(endpoint, status);
    } else {
        log_write_limited("shm-refused", LOG_WARN, "shm", "refused a connection of pid %d: %s", (int)link->pid, error_text());
        shm_link_drop(link);
    }
}

/* ---------------------------------------------------------------- connecting */

void shm_link_dial(shm_endpoint_t *endpoint)
{
    shm_transport_t *transport = (shm_transport_t *)endpoint->base.transport;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        shm_endpoint_end(endpoint, error_set_errno(QUOIT_ERR_SYSTEM, errno, "shm: cannot make a Unix socket for %s", endpoint->name));
        return;
    }
    shm_link_t *link = link_make(transport, fd, false);
    if (!link) {
        close(fd);
        shm_endpoint_end(endpoint, error_set(QUOIT_ERR_NO_MEMORY, "shm: out of memory connecting to %s", endpoint->name));
        return;
    }
    link->endpoint = endpoint;
    endpoint->link = link;
    quoit_status_t status = handshake_connect(&link->handshake, endpoint->secret.job, transport->environment.self, endpoint->base.peer, 1, 0,
                                              endpoint->secret.bytes, endpoint->secret.length);
    if (status) shm_endpoint_end(endpoint, status);
}

static void dial(shm_link_t *link)
{
    shm_endpoint_t *endpoint = link->endpoint;
    struct sockaddr_un name;
    socklen_t length = socket_name(endpoint->base.peer, &name);
    link->retry = false;
    if (connect(link->fd, (struct sockaddr *)&name, length) != 0) {
        if (errno == EAGAIN || errno == EINTR || errno == EINPROGRESS) {
            link->retry = true;
            return;
        }
        quoit_status_t status = errno == ECONNREFUSED ? QUOIT_ERR_NOT_FOUND : QUOIT_ERR_SYSTEM;
        shm_link_fail(link, error_set_errno(status, errno, "shm: %s is not on this host (no Unix socket '%s' in this network namespace)",
                                            endpoint->name, name.sun_path + 1));
        return;
    }
    quoit_status_t status = check_user(link->fd, &link->pid);
    if (!status) status = shm_watch(link->transport, link->fd, EPOLLIN | EPOLLRDHUP, &link->source);
    if (status) {
        shm_link_fail(link, status);
        return;
    }
    link->phase = SHM_PHASE_HANDSHAKE;
}

/* ---------------------------------------------------------------- handshake */

static void connection_lost(shm_link_t *link, int error)
{
    const char *why = error ? strerror(error) : "it closed it";
    if (link->endpoint) {
        shm_link_fail(link, error_set(QUOIT_ERR_PEER, "shm: %s was lost while connecting: %s", link->endpoint->name, why));
    } else if (table_get(link->transport->by_process, process_key(link->handshake.peer))) {
        shm_link_drop(link); /* a tie: the peer has chosen our connection */
    } else {
        shm_link_fail(link, error_set(QUOIT_ERR_PEER, "shm: connection ended before its proof was complete: %s", why));
    }
}

/* False when nothing moved: the socket would block, or the link is gone. */
static bool pump_out(shm_link_t *link)
{
    size_t length;
    const void *bytes = handshake_output(&link->handshake, &length);
    if (length == 0) return false;
    ssize_t sent = send(link->fd, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        if (errno == EAGAIN || errno == EINTR) {
            link->retry = true;
        } else if (link->handshake.state != HANDSHAKE_FAILED) {
            connection_lost(link, errno);
        }
        return false;
    }
    handshake_sent(&link->handshake, (size_t)sent);
    return true;
}

static bool pump_in(shm_link_t *link)
{
    uint8_t bytes[HANDSHAKE_CAPACITY];
    size_t wants = handshake_wants(&link->handshake);
    ssize_t got = recv(link->fd, bytes, wants ? wants : 1, MSG_DONTWAIT | (wants ? 0 : MSG_PEEK));
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) {
        connection_lost(link, got < 0 ? errno : 0);
        return false;
    }
    if (wants == 0) { /* it is the other side's turn to wait */
        shm_link_fail(link, error_set(QUOIT_ERR_PROTOCOL, "shm: pid %d sent more than the handshake asks for", (int)link->pid));
        return false;
    }
    handshake_received(&link->handshake, bytes, (size_t)got);
    return true;
}

static void handshake_failed(shm_link_t *link)
{
    shm_endpoint_t *endpoint = link->endpoint;
    handshake_reason_t reason = link->handshake.reason;
    while (pump_out(link)) continue;
    if (!endpoint && reason == HANDSHAKE_REASON_TIE) {
        shm_link_drop(link); /* refused by us, in favour of our own connection */
    } else if (!endpoint && reason == HANDSHAKE_REASON_OVER) {
        log_debug("shm", "refused a connection of pid %d: %s", (int)link->pid, handshake_reason_text(reason));
        shm_link_drop(link);
    } else if (!endpoint) {
        shm_link_fail(link, error_set(QUOIT_ERR_PROTOCOL, "shm: handshake failed: %s", handshake_reason_text(reason)));
    } else if (reason == HANDSHAKE_REASON_TIE) {
        endpoint->link = NULL; /* the peer's own connection is on its way */
        shm_link_drop(link);
    } else {
        quoit_status_t status = reason == HANDSHAKE_REASON_PROCESS ? QUOIT_ERR_NOT_FOUND : reason == HANDSHAKE_REASON_OVER ? QUOIT_ERR_CLOSED : QUOIT_ERR_PROTOCOL;
        shm_link_fail(link, error_set(status, "shm: handshake with %s failed: %s", endpoint->name, handshake_reason_text(reason)));
    }
}

static void offer_secret(shm_link_t *link)
{
    shm_transport_t *transport = link->transport;
    const shm_endpoint_t *endpoint = table_get(transport->by_process, process_key(link->handshake.peer));
    const job_secret_t *coming = endpoint && endpoint->state == SHM_CONNECTING ? &endpoint->secret : NULL;
    quoit_status_t status = secrets_answer(transport->jobs, &link->handshake, endpoint != NULL, coming);
    if (status != QUOIT_OK && status != QUOIT_ERR_AGAIN) shm_link_fail(link, status); /* AGAIN: until trust() brings it, or the deadline ends it */
}

static void link_adopt(shm_link_t *link, shm_endpoint_t *endpoint)
{
    shm_link_drop(endpoint->link);
    link->transport->strangers--;
    link->endpoint = endpoint;
    link->retry = false;
    endpoint->link = link;
    handshake_accept(&link->handshake);
}

/* The peer has proved who it is; which connection stays? */
static void decide(shm_link_t *link)
{
    shm_transport_t *transport = link->transport;
    quoit_process_id_t peer = link->handshake.peer;
    shm_endpoint_t *endpoint = table_get(transport->by_process, process_key(peer));
    char name[SHM_PEER_NAME_CAPACITY];
    if (process_same(peer, transport->environment.self)) {
        handshake_refuse(&link->handshake, HANDSHAKE_REASON_PROCESS);
    } else if (!endpoint || endpoint->farewell) {
        snprintf(name, sizeof name, "process %016llx%016llx (pid %d)", (unsigned long long)peer.high, (unsigned long long)peer.low, (int)link->pid);
        quoit_status_t status = shm_endpoint_create(transport, peer, name, &endpoint);
        if (status) {
            shm_link_fail(link, status);
            return;
        }
        endpoint->deadline = link->deadline;
        link_adopt(link, endpoint);
    } else if (endpoint->state == SHM_OPEN || (endpoint->link && endpoint->link->incoming)) {
        link->retry = true; /* the peer has given up an earlier connection; its end is about to be seen here */
    } else if (endpoint->link && process_is_lower(transport->environment.self, peer)) {
        handshake_refuse(&link->handshake, HANDSHAKE_REASON_TIE);
    } else {
        link_adopt(link, endpoint);
    }
}

static void handshake_step(shm_link_t *link)
{
    bool moved = true, sent = false; /* the answer to what is sent here cannot be there yet; the descriptor tells when it is */
    link->retry = false;
    while (moved && link->phase == SHM_PHASE_HANDSHAKE) {
        handshake_state_t before = link->handshake.state;
        moved = pump_out(link);
        sent = sent || moved;
        if (link->phase == SHM_PHASE_HANDSHAKE && !sent && link->handshake.state <= HANDSHAKE_WANTS_VERDICT && pump_in(link)) moved = true;
        if (link->phase != SHM_PHASE_HANDSHAKE) return;
        if (link->handshake.state == HANDSHAKE_WANTS_SECRET) offer_secret(link);
        if (link->phase == SHM_PHASE_HANDSHAKE && link->handshake.state == HANDSHAKE_WANTS_VERDICT) decide(link);
        if (link->phase != SHM_PHASE_HANDSHAKE) return;
        if (link->handshake.state == HANDSHAKE_FAILED) {
            handshake_failed(link);
            return;
        }
        moved = moved || link->handshake.state != before;
    }
    size_t left;
    handshake_output(&link->handshake, &left);
    if (link->phase == SHM_PHASE_HANDSHAKE && link->handshake.state == HANDSHAKE_DONE && left == 0) {
        link->phase = SHM_PHASE_INFO;
    }
}

/* Nothing is said on a socket whose endpoint stands, except why it fails, in one piece, and its end. */
static void watch_end(shm_link_t *link)
{
    uint8_t bytes[SHM_WORDS_CAPACITY];
    ssize_t got = recv(link->fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
        shm_endpoint_socket_ended(link->endpoint);
    } else {
        shm_endpoint_socket_spoke(link->endpoint, bytes, (size_t)got);
    }
}

void shm_link_step(shm_link_t *link)
{
    if (link->phase == SHM_PHASE_DIALLING) dial(link);
    if (link->phase == SHM_PHASE_HANDSHAKE) handshake_step(link);
    if (link->phase == SHM_PHASE_INFO) {
        shm_exchange_step(link);
    } else if (link->phase == SHM_PHASE_UP) {
        watch_end(link);
    }
}
