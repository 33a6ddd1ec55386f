/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that listens. Whoever connects is a stranger: one of at most TCP_MAX_STRANGERS, with a deadline, its bytes read by the
 * handshake's parser alone. One that is refused costs a line in the log (a second and source). When strangers are too many, the one
 * that has said nothing for longest makes room: a peer whose connection is dropped so calls again.
 *
 * A stranger that proves itself becomes one of its endpoint's `incoming` sockets; when all sockets of one attempt have arrived, the
 * endpoint stands. Nobody need have asked for it.
 */
#include "base/log.h"
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    BACKLOG = 1024,            /* the kernel cuts it to net.core.somaxconn */
    ACCEPTS_AT_ONCE = 16,      /* then others have their turn */
    REFUSED_MS = 1000,         /* that one who was refused is listened to, and ... */
    REFUSED_BYTES = 64 * 1024, /* ... how much of it is dropped, before the socket is closed */
    EXHAUSTED_MS = 100         /* without descriptors or memory: until the next try */
};

/* ---------------------------------------------------------------- jobs */

quoit_status_t tcp_trust(quoit_transport_t *base, uint64_t id, const void *secret, size_t length)
{
    tcp_transport_t *transport = (tcp_transport_t *)base;
    quoit_status_t status = secrets_put(transport->jobs, "tcp", id, secret, length);
    if (status != QUOIT_OK) return status;
    for (list_t *node = transport->strangers.next, *next; node != &transport->strangers; node = next) {
        tcp_socket_t *stranger = container_of(node, tcp_socket_t, link);
        next = node->next; /* a step removes no stranger but this one */
        if (stranger->handshake != NULL && stranger->handshake->state == HANDSHAKE_WANTS_SECRET) tcp_stranger_ready(stranger, EPOLLIN);
    }
    return QUOIT_OK;
}

void tcp_distrust(quoit_transport_t *base, uint64_t job) { secrets_remove(((tcp_transport_t *)base)->jobs, job); }

/* ---------------------------------------------------------------- strangers */

static void forget_stranger(tcp_socket_t *stranger)
{
    if (stranger->endpoint == NULL && stranger->kind == TCP_STRANGER) stranger->transport->stranger_count--;
}

static void drop_stranger(tcp_socket_t *stranger, log_level_t level, const char *cause)
{
    char source[IP_NAME_CAPACITY], name[IP_NAME_CAPACITY];
    ip_name_t host = stranger->remote;
    ip_name_set_port(&host, 0);
    if (log_enabled(level))
        log_write_limited(ip_name_text(&host, source), level, "tcp", "connection from %s dropped: %s",
                          ip_name_text(&stranger->remote, name), cause);
    forget_stranger(stranger);
    tcp_socket_destroy(stranger);
}

/* It has been told, and is listened to until it has closed: an immediate close() could destroy the reason on its way. */
static void turn_away(tcp_socket_t *stranger, log_level_t level, const char *cause)
{
    char source[IP_NAME_CAPACITY], name[IP_NAME_CAPACITY];
    ip_name_t host = stranger->remote;
    ip_name_set_port(&host, 0);
    if (log_enabled(level))
        log_write_limited(ip_name_text(&host, source), level, "tcp", "connection from %s refused: %s",
                          ip_name_text(&stranger->remote, name), cause);
    shutdown(stranger->fd, SHUT_WR);
    uint64_t deadline = clock_deadline(REFUSED_MS); /* it still counts as a stranger, and may have to make room */
    if (deadline < stranger->deadline) stranger->deadline = deadline;
    stranger->kind = TCP_REFUSED;
    tcp_transport_wake_at(stranger->transport, stranger->deadline);
    tcp_socket_arm(stranger, EPOLLIN);
}

static void refuse_stranger(tcp_socket_t *stranger, log_level_t level)
{
    const char *cause = handshake_reason_text(stranger->handshake->reason);
    const void *output;
    size_t length, done = 0;
    output = handshake_output(stranger->handshake, &length);
    if (length > 0 && tcp_socket_send(stranger, output, length, &done) == 0 && done == length && tcp_socket_flush(stranger) == 0)
        turn_away(stranger, level, cause);
    else
        drop_stranger(stranger, level, cause);
}

/* OpenSSL has told it by an alert; one that speaks plain text is told in its own words. */
static void refuse_by_tls(tcp_socket_t *stranger)
{
    if (tls_session_is_plain(stranger->tls)) {
        tls_session_destroy(stranger->tls);
        stranger->tls = NULL;
        handshake_refuse(stranger->handshake, HANDSHAKE_REASON_TLS);
        refuse_stranger(stranger, LOG_WARN);
    } else {
        turn_away(stranger, LOG_WARN, tls_session_cause(stranger->tls));
    }
}

static void drop_refused(tcp_socket_t *refused)
{
    refused->transport->stranger_count--;
    tcp_socket_destroy(refused);
}

void tcp_refused_ready(tcp_socket_t *refused)
{
    refused->drained += 8192;
    if (tcp_socket_drain(refused, 8192) || refused->drained >= REFUSED_BYTES) drop_refused(refused);
}

static bool said_hello(const tcp_socket_t *stranger) { return stranger->handshake->pipes != 0; }

static bool waits_for_secret(const tcp_socket_t *stranger)
{
    return stranger->handshake != NULL && stranger->handshake->state == HANDSHAKE_WANTS_SECRET;
}

/* The oldest that was refused or has not even said HELLO; else the oldest. */
static void make_room(tcp_transport_t *transport)
{
    tcp_socket_t *victim = container_of(transport->strangers.next, tcp_socket_t, link);
    for (list_t *node = transport->strangers.next; node != &transport->strangers; node = node->next) {
        tcp_socket_t *stranger = container_of(node, tcp_socket_t, link);
        if (stranger->kind == TCP_STRANGER && said_hello(stranger)) continue;
        victim = stranger;
        break;
    }
    if (victim->kind == TCP_REFUSED)
        drop_refused(victim);
    else
        drop_stranger(victim, LOG_WARN, "too many connections that have proved nothing");
}

uint64_t tcp_strangers_wake(tcp_transport_t *transport, uint64_t now)
{
    uint64_t wake = CLOCK_NEVER;
    for (list_t *node = transport->strangers.next, *next; node != &transport->strangers; node = next) {
        tcp_socket_t *stranger = container_of(node, tcp_socket_t, link);
        next = node->next;
        if (stranger->deadline > now) {
            if (stranger->deadline < wake) wake = stranger->deadline;
        } else if (stranger->kind == TCP_REFUSED) {
            drop_refused(stranger);
        } else {
            drop_stranger(stranger, LOG_WARN,
                          waits_for_secret(stranger) ? "no communicator of its job was created here in time"
                                                     : "did not finish the handshake in time");
        }
    }
    return wake;
}

/* ---------------------------------------------------------------- a peer that has proved itself */

/* One of an endpoint's incoming sockets is gone. Those whose peer has left already were waiting for it, and will never stand. */
static void incoming_lost(tcp_endpoint_t *endpoint)
{
    for (list_t *node = endpoint->incoming.next, *next; node != &endpoint->incoming; node = next) {
        tcp_socket_t *socket = container_of(node, tcp_socket_t, link);
        next = node->next;
        if (socket->ended) tcp_socket_destroy(socket);
    }
    if (endpoint->base.life != ENDPOINT_COMING || !list_is_empty(&endpoint->incoming)) return;
    if (endpoint->calling) {
        tcp_call_step(endpoint);
    } else {
        error_set(QUOIT_ERR_CLOSED, "tcp: %s began to connect and left", endpoint->base.name);
        endpoint_end(&endpoint->base, QUOIT_ERR_CLOSED);
        endpoint_reap(&endpoint->base);
    }
}

/* May the client's connection be, and as which endpoint's? NULL: refuse. */
static tcp_endpoint_t *endpoint_for(tcp_socket_t *stranger)
{
    tcp_transport_t *transport = stranger->transport;
    quoit_process_id_t peer = stranger->handshake->peer, self = transport->base.self;
    tcp_endpoint_t *endpoint = tcp_endpoint_find(transport, peer);
    if (stranger->handshake->pipe > 0)
        return endpoint != NULL && endpoint->base.life == ENDPOINT_COMING && !list_is_empty(&endpoint->incoming) ? endpoint : NULL;
    if (endpoint != NULL && endpoint->base.life == ENDPOINT_STANDING) {
        /* Perhaps its goodbye or its end lies unread in the old connection. */
        for (int i = 0; i < endpoint->pipe_count && endpoint->base.life == ENDPOINT_STANDING; i++)
            if (endpoint->pipes[i] != NULL) tcp_pipe_ready(endpoint->pipes[i], EPOLLIN, TCP_BUDGET);
        if (endpoint->base.life == ENDPOINT_STANDING) return NULL;
        endpoint = NULL;
    }
    if (endpoint == NULL) return tcp_endpoint_create(transport, peer, NULL);
    /* The lower side's proof is out, so the peer may have taken its connection already. */
    if (endpoint->chosen != NULL && process_is_lower(self, peer)) return NULL;
    return endpoint;
}

static void verdict(tcp_socket_t *stranger)
{
    tcp_endpoint_t *endpoint = endpoint_for(stranger);
    if (endpoint == NULL) {
        handshake_refuse(stranger->handshake, HANDSHAKE_REASON_TIE);
        return;
    }
    if (stranger->handshake->pipe == 0) {
        tcp_call_drop(endpoint);
        /* An older attempt of this peer: it has given that up. */
        while (!list_is_empty(&endpoint->incoming)) tcp_socket_destroy(container_of(endpoint->incoming.next, tcp_socket_t, link));
    }
    forget_stranger(stranger);
    stranger->endpoint = endpoint;
    stranger->proved = true;
    stranger->deadline = clock_deadline(stranger->transport->times.handshake);
    list_remove(&stranger->link);
    list_append(&endpoint->incoming, &stranger->link);
    tcp_endpoint_wake_at(endpoint, stranger->deadline);
    handshake_accept(stranger->handshake);
}

static quoit_status_t agree_on_limits(tcp_endpoint_t *endpoint, const ip_preamble_t *preamble)
{
    ip_limits_t ours = endpoint->transport->limits, theirs = preamble->limits;
    if (endpoint->base.channel != NULL && (endpoint->rails != NULL) != preamble->rails)
        return error_set(QUOIT_ERR_PROTOCOL, "tcp: %s %s rails, this side %s; QUOIT_INTERFACE must name several interfaces on both hosts or on neither",
                         endpoint->base.name, preamble->rails ? "uses" : "uses no", preamble->rails ? "none" : "does");
    if (endpoint->base.channel != NULL) {
        ours = endpoint->limits;
        if (ours.eager_limit == theirs.eager_limit && ours.eager_pool == theirs.eager_pool && ours.segment_size == theirs.segment_size)
            return QUOIT_OK;
    } else if (theirs.eager_limit <= ours.eager_limit && theirs.eager_pool <= ours.eager_pool &&
               theirs.segment_size <= ours.segment_size) {
        return tcp_endpoint_set_limits(endpoint, theirs, preamble->rails);
    }
    return error_set(QUOIT_ERR_PROTOCOL, "tcp: %s uses other limits than agreed: eager %u, pool %u, segment %u; here %u, %u, %u",
                     endpoint->base.name, theirs.eager_limit, theirs.eager_pool, theirs.segment_size, ours.eager_limit,
                     ours.eager_pool, ours.segment_size);
}

static void establish_if_complete(tcp_endpoint_t *endpoint)
{
    tcp_socket_t *sockets[CHANNEL_MAX_PIPES] = {0}, *first = NULL;
    int count = 0;
    for (list_t *node = endpoint->incoming.next; node != &endpoint->incoming; node = node->next) {
        tcp_socket_t *socket = container_of(node, tcp_socket_t, link);
        if (socket->ready && socket->pipe == 0) first = socket;
    }
    if (first == NULL) return;
    for (list_t *node = endpoint->incoming.next; node != &endpoint->incoming; node = node->next) {
        tcp_socket_t *socket = container_of(node, tcp_socket_t, link);
        if (!socket->ready || socket->attempt != first->attempt || socket->handshake->pipes != first->handshake->pipes) continue;
        if (sockets[socket->pipe] == NULL) count++;
        sockets[socket->pipe] = socket;
    }
    if (count == first->handshake->pipes) tcp_endpoint_establish(endpoint, sockets, count);
}

static void preamble_arrived(tcp_socket_t *stranger)
{
    tcp_endpoint_t *endpoint = stranger->endpoint;
    ip_preamble_t preamble;
    quoit_status_t status = ip_preamble_parse(stranger->preamble, &preamble);
    if (status == QUOIT_OK && stranger->handshake->pipe == 0) {
        size_t length = strlen(endpoint->base.name);
        if (endpoint->base.count == 0 && strchr(endpoint->base.name, '(') == NULL)
            snprintf(endpoint->base.name + length, sizeof endpoint->base.name - length, " (%s, pid %u)", preamble.host, preamble.pid);
        status = agree_on_limits(endpoint, &preamble);
    }
    if (status != QUOIT_OK) {
        tcp_socket_destroy(stranger);
        log_warn("tcp", "%s", error_text());
        incoming_lost(endpoint);
        return;
    }
    stranger->attempt = preamble.attempt;
    stranger->rail = preamble.rail;
    stranger->mbps = preamble.mbps;
    stranger->pipe = stranger->handshake->pipe;
    stranger->ready = true;
    tcp_socket_arm(stranger, EPOLLRDHUP);
    establish_if_complete(endpoint);
}

/* 0: all is here; EAGAIN, or what broke. Reads nothing that follows it. */
static int read_preamble(tcp_socket_t *stranger)
{
    while (stranger->preamble_done < sizeof stranger->preamble) {
        size_t done;
        int error = tcp_socket_receive(stranger, stranger->preamble + stranger->preamble_done,
                                       sizeof stranger->preamble - stranger->preamble_done, &done);
        if (error != 0) return error;
        stranger->preamble_done += done;
    }
    return 0;
}

/*
 * A socket that waits for others of its connection has come to its end. The peer has given up; or it took the connection for standing, has
 * said its last words and left, and the others' preambles are here, and not read yet.
 */
static void ready_ended(tcp_socket_t *stranger)
{
    tcp_endpoint_t *endpoint = stranger->endpoint;
    char byte;
    ssize_t got = recv(stranger->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    stranger->ended = got > 0 || (got == 0 && stranger->tls != NULL && tls_session_has_more(stranger->tls));
    if (stranger->ended) {
        tcp_socket_arm(stranger, 0);
    } else if (got >= 0 || (errno != EAGAIN && errno != EINTR)) {
        tcp_socket_destroy(stranger);
        incoming_lost(endpoint);
    }
}

static void proved_step(tcp_socket_t *stranger)
{
    tcp_endpoint_t *endpoint = stranger->endpoint;
    size_t output = 0;
    int error = 0;
    if (stranger->ready) {
        ready_ended(stranger);
        return;
    }
    while (error == 0 && (handshake_output(stranger->handshake, &output), output > 0)) error = tcp_socket_shake(stranger);
    if (error == 0) error = tcp_socket_flush(stranger);
    if (error == 0) error = read_preamble(stranger);
    if (error == 0) {
        preamble_arrived(stranger);
    } else if (error == EAGAIN) {
        tcp_socket_arm(stranger, tcp_socket_interest(stranger, output > 0));
    } else {
        tcp_socket_destroy(stranger);
        incoming_lost(endpoint);
    }
}

/* ---------------------------------------------------------------- the handshake */

/* Give the secret if the job is known, or refuse if it was. While it is not, the client is only watched for leaving. */
static bool give_secret(tcp_socket_t *stranger)
{
    tcp_transport_t *transport = stranger->transport;
    const tcp_endpoint_t *endpoint = tcp_endpoint_find(transport, stranger->handshake->peer);
    const job_secret_t *coming = endpoint != NULL && endpoint->base.life == ENDPOINT_COMING ? &endpoint->secret : NULL;
    quoit_status_t status = secrets_answer(transport->jobs, stranger->handshake, endpoint != NULL, coming);
    if (status != QUOIT_ERR_AGAIN) return status == QUOIT_OK;
    stranger->deadline = clock_deadline(transport->connect_ms);
    tcp_transport_wake_at(transport, stranger->deadline);
    tcp_socket_arm(stranger, EPOLLRDHUP);
    return false;
}

static log_level_t refusal_level(handshake_reason_t reason)
{
    if (reason == HANDSHAKE_REASON_TIE) return LOG_DEBUG;
    return reason == HANDSHAKE_REASON_PROCESS || reason == HANDSHAKE_REASON_OVER ? LOG_INFO : LOG_WARN;
}

static void stranger_failed(tcp_socket_t *stranger, int error)
{
    char cause[TCP_CAUSE_CAPACITY], buffer[64];
    const char *text = error == ECONNRESET ? "closed before the handshake" : strerror_r(error, buffer, sizeof buffer);
    snprintf(cause, sizeof cause, "%s", text);
    /*
     * A peer calls all addresses of this process and drops all connections but one, in whatever state they are, and its process may end
     * meanwhile: normal from the first bytes of a HELLO on, and before any byte it may be. Bytes that are none of ours are not.
     */
    bool ours = said_hello(stranger) || handshake_is_begun(stranger->handshake), silent = stranger->handshake->in_length == 0;
    if (stranger->tls != NULL) {
        ours = ours || tls_session_is_begun(stranger->tls);
        silent = !tls_session_has_heard(stranger->tls);
    }
    log_level_t level = ours ? LOG_DEBUG : silent ? LOG_INFO : LOG_WARN;
    drop_stranger(stranger, level, cause);
}

void tcp_stranger_ready(tcp_socket_t *stranger, uint32_t events)
{
    handshake_t *handshake = stranger->handshake;
    int error = tcp_socket_secure(stranger);
    if (stranger->proved) {
        proved_step(stranger);
        return;
    }
    if (handshake->state == HANDSHAKE_WANTS_SECRET && (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))) error = ECONNRESET;
    while (error == 0) {
        if (handshake->state == HANDSHAKE_FAILED) {
            refuse_stranger(stranger, refusal_level(handshake->reason));
            return;
        }
        if (handshake->state == HANDSHAKE_WANTS_SECRET && handshake->pipes > CHANNEL_MAX_PIPES) {
            drop_stranger(stranger, LOG_WARN, "asked for more sockets than can be");
            return;
        }
        if (handshake->state == HANDSHAKE_WANTS_SECRET && !give_secret(stranger)) return;
        if (handshake->state == HANDSHAKE_WANTS_VERDICT) verdict(stranger);
        if (stranger->proved) {
            proved_step(stranger);
            return;
        }
        if (handshake->state != HANDSHAKE_FAILED) error = tcp_socket_shake(stranger);
    }
    size_t output;
    handshake_output(handshake, &output);
    if (error == EAGAIN)
        tcp_socket_arm(stranger, tcp_socket_interest(stranger, output > 0));
    else if (stranger->tls != NULL && error == EPROTO)
        refuse_by_tls(stranger);
    else
        stranger_failed(stranger, error);
}

/* ---------------------------------------------------------------- listening */

static void greet(tcp_transport_t *transport, int fd, const ip_name_t *remote)
{
    if (transport->stranger_count >= TCP_MAX_STRANGERS) make_room(transport);
    tcp_socket_t *stranger = tcp_socket_create(transport, TCP_STRANGER, fd, EPOLLIN);
    if (stranger == NULL) {
        log_warn("tcp", "%s", error_text());
        return;
    }
    stranger->remote = *remote;
    stranger->handshake = malloc(sizeof *stranger->handshake);
    if (stranger->handshake == NULL || !tcp_socket_begin_tls(stranger, true)) {
        log_write_limited("greet", LOG_WARN, "tcp", "no memory for a connection that was accepted");
        tcp_socket_destroy(stranger);
        return;
    }
    handshake_listen(stranger->handshake, transport->base.self);
    tcp_socket_set_coming(stranger);
    stranger->deadline = clock_deadline(transport->times.handshake);
    transport->stranger_count++;
    list_append(&transport->strangers, &stranger->link);
    tcp_transport_wake_at(transport, stranger->deadline);
}

void tcp_accept_ready(tcp_socket_t *listener)
{
    tcp_transport_t *transport = listener->transport;
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        ip_name_t remote;
        socklen_t size = sizeof remote;
        int fd = accept4(listener->fd, &remote.any, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            greet(transport, fd, &remote);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            char buffer[64];
            log_write_limited("accept", LOG_WARN, "tcp", "cannot accept connections: %s; the next try is in %d ms",
                              strerror_r(errno, buffer, sizeof buffer), EXHAUSTED_MS);
            for (int k = 0; k < transport->listener_count; k++) tcp_socket_arm(transport->listeners[k], 0);
            transport->accept_at = clock_deadline(EXHAUSTED_MS);
            tcp_transport_wake_at(transport, transport->accept_at);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

/* One listening socket on this address and a port of the kernel's choice, which is written into `name`. */
static quoit_status_t listen_on(tcp_transport_t *transport, ip_interface_t *interface, ip_name_t *name)
{
    char text[IP_NAME_CAPACITY];
    const char *doing = "open a socket for";
    socklen_t size = sizeof *name;
    int one = 1;
    *name = interface->address;
    int fd = socket(name->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) goto failed;
    if (name->any.sa_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
    doing = "bind";
    if (bind(fd, &name->any, ip_name_size(name)) != 0) goto failed;
    doing = "listen on";
    if (listen(fd, BACKLOG) != 0 || getsockname(fd, &name->any, &size) != 0) goto failed;
    tcp_socket_t *listener = tcp_socket_create(transport, TCP_LISTENER, fd, EPOLLIN);
    if (listener == NULL) return QUOIT_ERR_SYSTEM;
    transport->listeners[transport->listener_count++] = listener;
    return QUOIT_OK;

failed:
    error_set_errno(QUOIT_ERR_NETWORK, errno, "tcp: cannot %s %s of interface %s", doing, ip_name_text(&interface->address, text),
                    interface->name);
    if (fd >= 0) close(fd);
    return QUOIT_ERR_NETWORK;
}

static void close_listeners(tcp_transport_t *transport)
{
    while (transport->listener_count > 0) tcp_socket_destroy(transport->listeners[--transport->listener_count]);
}

/*
 * Listening sockets are made once; asked again, their addresses are told again. An address that the user named must be usable; only
 * IPv6 addresses may be tentative for the first seconds of an interface, and others may do without them.
 */
static quoit_status_t ensure_listeners(tcp_transport_t *transport)
{
    quoit_status_t status = QUOIT_OK;
    for (int i = 0; i < transport->choice.count; i++) {
        ip_name_t name;
        status = listen_on(transport, &transport->choice.chosen[i], &name);
        if (status == QUOIT_OK) {
            tcp_socket_t *listener = transport->listeners[transport->listener_count - 1];
            listener->remote = name;
            listener->rail = transport->choice.rail[i];
            listener->mbps = transport->choice.mbps[i];
        } else if (transport->choice.named && name.any.sa_family != AF_INET6) {
            close_listeners(transport);
            return status;
        } else {
            log_warn("tcp", "%s", error_text());
        }
    }
    return transport->listener_count > 0 ? QUOIT_OK : status;
}

quoit_status_t tcp_listen(quoit_transport_t *base, void *bytes, size_t *length)
{
    tcp_transport_t *transport = (tcp_transport_t *)base;
    ip_address_t address = {.limits = transport->limits};
    quoit_status_t status = transport->listener_count > 0 ? QUOIT_OK : ensure_listeners(transport);
    if (status != QUOIT_OK) return status;
    for (int i = 0; i < transport->listener_count; i++) {
        address.rail[i] = (uint8_t)transport->listeners[i]->rail;
        address.mbps[i] = transport->listeners[i]->mbps;
        address.names[address.count++] = transport->listeners[i]->remote;
    }
    return ip_address_write(&address, bytes, length);
}
