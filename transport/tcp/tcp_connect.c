/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side that connects.
 *
 * First one socket: the peer's addresses are tried in turn, the next one as soon as all before it have failed, or after `stagger`
 * beside those that do not answer; failed ones again and again, with growing pauses, until the deadline. Every socket that stands
 * says HELLO at once, but only one goes on: the first whose server proves itself is chosen, the others are dropped before they have
 * proved anything, so the server never has to guess which of them is meant. When the chosen one is welcome, the further sockets
 * of the connection are opened to the same address; when all are, the endpoint stands.
 *
 * Both sides may call each other. A chosen caller of the lower process id stays; see verdict() in tcp_accept.c. The higher one is told
 * TIE and waits for the other connection; it calls again later in case that one fails.
 */
#include "base/hmac.h"
#include "base/log.h"
#include "base/text.h"
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    TIE_PAUSE_MS = 500, /* for the other connection to come to stand */
    REFUSALS = 5        /* whoever gave an address listens there until it ends; some more, for what lies between and may be starting up */
};

void tcp_call_drop(tcp_endpoint_t *endpoint)
{
    while (!list_is_empty(&endpoint->callers)) tcp_socket_destroy(container_of(endpoint->callers.next, tcp_socket_t, link));
    for (int i = 0; i < endpoint->target_count; i++) endpoint->targets[i].socket = NULL;
    endpoint->chosen = NULL;
}

/* ---------------------------------------------------------------- failing */

static const char *unanswered(const tcp_socket_t *caller)
{
    if (caller->handshake == NULL) return "no answer";
    return caller->tls != NULL && !caller->secured ? "connected, but no answer to the TLS handshake" : "connected, but no answer to the handshake";
}

/* "10.0.0.7:4123 (Connection refused), [fd00::7]:4123 (no answer)" */
static void list_targets(const tcp_endpoint_t *endpoint, text_t *text)
{
    char name[IP_NAME_CAPACITY];
    for (int i = 0; i < endpoint->target_count; i++) {
        const tcp_target_t *target = &endpoint->targets[i];
        const char *cause = target->cause[0] != 0 ? target->cause : "not tried yet";
        if (target->socket != NULL && target->cause[0] == 0) cause = unanswered(target->socket);
        text_append(text, "%s%s (%s)", i == 0 ? "" : ", ", ip_name_text(&target->name, name), cause);
    }
}

const char *tcp_call_text(tcp_endpoint_t *endpoint)
{
    text_t text = {0};
    char *tried = NULL;
    list_targets(endpoint, &text);
    if (text_finish(&text, &tried) == QUOIT_OK && endpoint->target_count > 0)
        snprintf(endpoint->base.description, sizeof endpoint->base.description, "tcp, not connected yet: tried %s", tried);
    free(tried);
    return endpoint->base.description;
}

static bool refused_by_tls(const tcp_endpoint_t *endpoint)
{
    for (int i = 0; i < endpoint->target_count; i++)
        if (endpoint->targets[i].refused_by_tls) return true;
    return false;
}

static void give_up(tcp_endpoint_t *endpoint, quoit_status_t status, uint64_t now)
{
    text_t text = {0};
    char *tried = NULL;
    list_targets(endpoint, &text);
    quoit_status_t listed = text_finish(&text, &tried);
    error_set(status, "tcp: cannot reach %s: tried %s during %.3g s; %s", endpoint->base.name, listed == QUOIT_OK ? tried : "its addresses",
              (double)(now - endpoint->started) / 1e9,
              refused_by_tls(endpoint) ? "the settings QUOIT_TLS... must fit on both sides (docs/tls.md)"
                                       : "is that process still alive, and do firewalls let the hosts connect? QUOIT_INTERFACE chooses other "
                                         "addresses");
    free(tried);
    endpoint_end(&endpoint->base, status);
}

/* The try of this caller's address is over. A caller that was chosen, or opened after that one, takes the whole attempt with it. */
static void caller_failed(tcp_socket_t *caller, int pause_ms, const char *cause)
{
    tcp_endpoint_t *endpoint = caller->endpoint;
    tcp_target_t *target = &endpoint->targets[caller->address];
    bool whole = endpoint->chosen != NULL;
    if (whole && tcp_rails_pass_over(caller, cause)) return;
    char name[IP_NAME_CAPACITY];
    snprintf(target->cause, sizeof target->cause, "%s", cause);
    log_debug("tcp", "%s at %s: %s", endpoint->base.name, ip_name_text(&target->name, name), cause);
    if (target->retry_ms == 0) target->retry_ms = endpoint->transport->times.retry_least;
    target->retry_at = clock_after(clock_now(), pause_ms > 0 ? pause_ms : target->retry_ms);
    target->retry_ms *= 2;
    if (target->retry_ms > endpoint->transport->times.retry_most) target->retry_ms = endpoint->transport->times.retry_most;
    if (whole) {
        tcp_call_drop(endpoint);
    } else {
        target->socket = NULL;
        tcp_socket_destroy(caller);
    }
    endpoint->newest_try = 0;
}

static void caller_failed_errno(tcp_socket_t *caller, int error)
{
    char buffer[64], cause[TCP_CAUSE_CAPACITY];
    const char *text = strerror_r(error, buffer, sizeof buffer);
    bool shaking = caller->handshake != NULL, securing = caller->tls != NULL && !caller->secured;
    if (shaking && (error == ECONNRESET || error == EPIPE))
        text = securing ? "closed the connection during the TLS handshake; is another program listening there?"
                        : "closed the connection during the handshake; is another program listening there?";
    if (caller->tls != NULL && error == EPROTO) {
        tcp_target_t *target = &caller->endpoint->targets[caller->address];
        text = tls_session_cause(caller->tls);
        target->hopeless = target->refused_by_tls = true; /* nothing that changes by trying again */
    }
    snprintf(cause, sizeof cause, "%s", text);
    if (error == ECONNREFUSED && !shaking) caller->endpoint->targets[caller->address].refusals++;
    caller_failed(caller, 0, cause);
}

/* ---------------------------------------------------------------- calling */

/* 0, or why this cannot even be begun. */
static int start_caller(tcp_endpoint_t *endpoint, int address, int pipe)
{
    tcp_transport_t *transport = endpoint->transport;
    ip_name_t name = endpoint->targets[address].name;
    ip_choice_set_scope(&transport->choice, &name);
    int fd = socket(name.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return errno;
    tcp_socket_t *caller = tcp_socket_create(transport, TCP_CALLER, fd, 0);
    if (caller == NULL) return ENOMEM;
    caller->endpoint = endpoint;
    caller->remote = name;
    caller->address = address;
    caller->pipe = pipe;
    list_append(&endpoint->callers, &caller->link);
    if (pipe == 0) endpoint->targets[address].socket = caller;
    if (pipe > 0) caller->deadline = clock_deadline(endpoint->rails != NULL ? 2 * transport->times.rail : transport->times.handshake);
    tcp_socket_set_coming(caller);
    int error = endpoint->rails != NULL ? tcp_rails_bind(caller) : 0;
    if (error == 0 && connect(fd, &name.any, ip_name_size(&name)) != 0 && errno != EINPROGRESS) error = errno;
    if (error != 0) {
        if (pipe == 0) endpoint->targets[address].socket = NULL;
        tcp_socket_destroy(caller);
        return error;
    }
    tcp_socket_arm(caller, EPOLLOUT);
    return 0;
}

static void try_target(tcp_endpoint_t *endpoint, int address, uint64_t now)
{
    tcp_target_t *target = &endpoint->targets[address];
    int error = start_caller(endpoint, address, 0);
    if (error == 0) {
        endpoint->newest_try = now;
        return;
    }
    char buffer[64];
    if (error == ECONNREFUSED) target->refusals++;
    snprintf(target->cause, sizeof target->cause, "%s", strerror_r(error, buffer, sizeof buffer));
    if (target->retry_ms == 0) target->retry_ms = endpoint->transport->times.retry_least;
    target->retry_at = clock_after(now, target->retry_ms);
    if (target->retry_ms < endpoint->transport->times.retry_most) target->retry_ms *= 2;
}

/* Start what is due; when to look again. */
static uint64_t try_targets(tcp_endpoint_t *endpoint, uint64_t now)
{
    uint64_t wake = endpoint->deadline;
    for (int i = 0; i < endpoint->target_count; i++) {
        tcp_target_t *target = &endpoint->targets[i];
        if (target->socket != NULL || target->hopeless || endpoint->bad_rails >> target->rail & 1) continue;
        uint64_t due = target->retry_at;
        uint64_t turn = endpoint->newest_try == 0 ? 0 : clock_after(endpoint->newest_try, endpoint->transport->times.stagger);
        if (turn > due) due = turn;
        if (due <= now) {
            try_target(endpoint, i, now);
            due = target->retry_at > now ? target->retry_at : endpoint->deadline;
        }
        if (due < wake) wake = due;
    }
    return wake;
}

static bool all_hopeless(const tcp_endpoint_t *endpoint)
{
    for (int i = 0; i < endpoint->target_count; i++)
        if (!endpoint->targets[i].hopeless) return false;
    return true;
}

/* Nobody listens any more, at any of its addresses. */
static bool all_refuse(const tcp_endpoint_t *endpoint)
{
    for (int i = 0; i < endpoint->target_count; i++)
        if (endpoint->targets[i].refusals < REFUSALS) return false;
    return endpoint->target_count > 0 && endpoint->chosen == NULL && list_is_empty(&endpoint->incoming);
}

void tcp_call_step(tcp_endpoint_t *endpoint)
{
    uint64_t now = clock_now(), wake = endpoint->deadline;
    bool gone = all_refuse(endpoint);
    if (gone || now >= endpoint->deadline || all_hopeless(endpoint)) {
        give_up(endpoint, gone ? QUOIT_ERR_PEER : now >= endpoint->deadline ? QUOIT_ERR_TIMEOUT : QUOIT_ERR_NETWORK, now);
        endpoint_reap(&endpoint->base);
        return;
    }
    for (list_t *node = endpoint->callers.next; node != &endpoint->callers; node = node->next) {
        tcp_socket_t *caller = container_of(node, tcp_socket_t, link);
        if (caller->deadline <= now) {
            caller_failed(caller, 0, "began the handshake and did not finish it");
            break; /* at least this node is gone; the others' turn comes with the next look */
        }
        if (caller->deadline < wake) wake = caller->deadline;
    }
    if (endpoint->chosen == NULL && list_is_empty(&endpoint->incoming)) {
        uint64_t next = try_targets(endpoint, now);
        if (next < wake) wake = next;
    }
    tcp_endpoint_wake_at(endpoint, wake);
}

/* ---------------------------------------------------------------- a caller that stands */

static bool begin_handshake(tcp_socket_t *caller)
{
    tcp_endpoint_t *endpoint = caller->endpoint;
    handshake_t *handshake = malloc(sizeof *handshake);
    if (handshake == NULL || !tcp_socket_begin_tls(caller, false) ||
        handshake_connect(handshake, endpoint->secret.job, endpoint->transport->base.self, endpoint->base.handle.peer, (uint16_t)endpoint->limits.sockets,
                          (uint16_t)caller->pipe, endpoint->secret.bytes, endpoint->secret.length) != QUOIT_OK) {
        free(handshake);
        caller_failed(caller, 0, "memory is short");
        return false;
    }
    caller->handshake = handshake;
    if (endpoint->rails != NULL && caller->pipe > 0) caller->deadline = clock_deadline(endpoint->transport->times.handshake); /* the rail is there */
    return true;
}

/* This caller's server has proved itself, and our proof goes out next. */
static void choose(tcp_socket_t *caller)
{
    tcp_endpoint_t *endpoint = caller->endpoint;
    for (list_t *node = endpoint->callers.next, *next; node != &endpoint->callers; node = next) {
        tcp_socket_t *other = container_of(node, tcp_socket_t, link);
        next = node->next;
        if (other == caller) continue;
        endpoint->targets[other->address].socket = NULL;
        tcp_socket_destroy(other);
    }
    endpoint->chosen = caller;
    caller->deadline = clock_deadline(endpoint->transport->times.handshake);
    tcp_endpoint_wake_at(endpoint, caller->deadline);
}

static void handshake_failed(tcp_socket_t *caller)
{
    handshake_reason_t reason = caller->handshake->reason;
    tcp_target_t *target = &caller->endpoint->targets[caller->address];
    const void *output;
    size_t length, done;
    output = handshake_output(caller->handshake, &length);
    if (length > 0) tcp_socket_send(caller, output, length, &done); /* the reason, so that the server can tell it too */
    target->refused_by_tls = reason == HANDSHAKE_REASON_TLS;
    if (reason == HANDSHAKE_REASON_SECRET || reason == HANDSHAKE_REASON_VERSION || reason == HANDSHAKE_REASON_OVER || target->refused_by_tls)
        target->hopeless = true;
    caller_failed(caller, reason == HANDSHAKE_REASON_TIE ? TIE_PAUSE_MS : 0, handshake_reason_text(reason));
}

static void make_preamble(tcp_socket_t *caller)
{
    tcp_endpoint_t *endpoint = caller->endpoint;
    ip_preamble_t preamble = {.attempt = endpoint->attempt, .limits = endpoint->limits, .pid = (uint32_t)getpid(),
                               .rails = endpoint->rails != NULL, .rail = (uint8_t)caller->rail, .mbps = caller->mbps};
    memcpy(preamble.host, endpoint->transport->host, sizeof preamble.host);
    ip_preamble_write(&preamble, caller->preamble);
    caller->proved = true;
}

static void establish_if_complete(tcp_endpoint_t *endpoint)
{
    tcp_socket_t *sockets[CHANNEL_MAX_PIPES] = {0};
    int count = 0;
    for (list_t *node = endpoint->callers.next; node != &endpoint->callers; node = node->next) {
        tcp_socket_t *caller = container_of(node, tcp_socket_t, link);
        if (!caller->ready) continue;
        sockets[caller->pipe] = caller;
        count++;
    }
    if (count == (int)endpoint->limits.sockets) tcp_endpoint_establish(endpoint, sockets, count);
}

/* All is said on this socket. After the first one the others are opened. */
static void caller_done(tcp_socket_t *caller)
{
    tcp_endpoint_t *endpoint = caller->endpoint;
    caller->ready = true;
    caller->deadline = CLOCK_NEVER; /* the further ones have their own */
    tcp_socket_arm(caller, EPOLLRDHUP);
    if (caller->pipe == 0) {
        for (int pipe = 1; pipe < (int)endpoint->limits.sockets; pipe++) {
            int address = endpoint->rails != NULL ? tcp_rails_address(endpoint, pipe) : caller->address;
            int error = start_caller(endpoint, address, pipe);
            if (error == 0) continue;
            caller_failed_errno(caller, error);
            return;
        }
    }
    establish_if_complete(endpoint);
}

/* 0 when the preamble is out, EAGAIN, or what broke. */
static int send_preamble(tcp_socket_t *caller)
{
    while (caller->preamble_done < sizeof caller->preamble) {
        size_t done;
        int error = tcp_socket_send(caller, caller->preamble + caller->preamble_done,
                                    sizeof caller->preamble - caller->preamble_done, &done);
        if (error != 0) return error;
        caller->preamble_done += done;
    }
    return tcp_socket_flush(caller);
}

/* As far as it goes without waiting; what epoll is to tell next. The caller may be gone afterwards. */
static void caller_step(tcp_socket_t *caller)
{
    tcp_endpoint_t *endpoint = caller->endpoint;
    handshake_t *handshake = caller->handshake;
    int error = tcp_socket_secure(caller);
    size_t output = 0;
    while (error == 0 && !caller->proved) {
        error = tcp_socket_shake(caller);
        handshake_output(handshake, &output);
        if (handshake->state == HANDSHAKE_FAILED) {
            handshake_failed(caller);
            return;
        }
        if (handshake->state == HANDSHAKE_DONE) make_preamble(caller);
        /* After HELLO is out, the only thing there can be to send is the proof. */
        if (endpoint->chosen == NULL && handshake->step != 0) choose(caller);
    }
    if (caller->proved && (error == 0 || error == EAGAIN)) error = send_preamble(caller);
    if (error == 0)
        caller_done(caller);
    else if (error == EAGAIN)
        tcp_socket_arm(caller, tcp_socket_interest(caller, output > 0 || caller->proved));
    else
        caller_failed_errno(caller, error);
}

void tcp_call_ready(tcp_socket_t *caller, uint32_t events)
{
    tcp_endpoint_t *endpoint = caller->endpoint;
    if (caller->ready) {
        caller_failed_errno(caller, ECONNRESET); /* the peer closed it while others were on their way */
    } else if (caller->handshake == NULL) {
        int error = 0;
        socklen_t size = sizeof error;
        if (!(events & (EPOLLOUT | EPOLLERR | EPOLLHUP))) return;
        if (getsockopt(caller->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
        if (error != 0)
            caller_failed_errno(caller, error);
        else if (begin_handshake(caller))
            caller_step(caller);
    } else {
        caller_step(caller);
    }
    if (endpoint->base.life == ENDPOINT_COMING && endpoint->calling) tcp_call_step(endpoint);
}

/* ---------------------------------------------------------------- the table's call */

static quoit_status_t begin_calling(tcp_endpoint_t *endpoint, const quoit_peer_t *peer, const ip_address_t *address)
{
    tcp_transport_t *transport = endpoint->transport;
    quoit_status_t status = random_bytes(&endpoint->attempt, sizeof endpoint->attempt);
    bool rails = transport->choice.rails > 1 && ip_address_rails(address) > 1;
    if (status == QUOIT_OK && endpoint->base.channel == NULL)
        status = tcp_endpoint_set_limits(endpoint, ip_limits_least(transport->limits, address->limits), rails);
    if (status != QUOIT_OK) return status;
    endpoint->target_count = address->count;
    for (int i = 0; i < address->count; i++) endpoint->targets[i] = (tcp_target_t){.name = address->names[i]};
    if (endpoint->rails != NULL) tcp_rails_begin(endpoint, address);
    endpoint->started = clock_now();
    endpoint->deadline = clock_deadline(peer->timeout_ms > 0 ? peer->timeout_ms : transport->connect_ms);
    endpoint->calling = true;
    endpoint->base.count = 1;
    return QUOIT_OK;
}

quoit_status_t tcp_connect(quoit_transport_t *base, const quoit_peer_t *peer, quoit_endpoint_t **result)
{
    tcp_transport_t *transport = (tcp_transport_t *)base;
    tcp_endpoint_t *endpoint = tcp_endpoint_find(transport, peer->process);
    ip_address_t address;
    if (endpoint != NULL && (endpoint->base.life == ENDPOINT_STANDING || endpoint->calling)) {
        if (endpoint->base.left_early) (void)secrets_copy(transport->jobs, peer->job, &endpoint->secret);
        endpoint_join(&endpoint->base, peer, result);
        return QUOIT_OK;
    }
    quoit_status_t status = endpoint_check_peer(&transport->base, transport->jobs, peer);
    if (status != QUOIT_OK) return status;
    status = ip_address_parse(peer->address, peer->address_length, &address);
    if (status != QUOIT_OK) return error_prefix(status, "address of %s", peer->name != NULL ? peer->name : "a peer");
    bool fresh = endpoint == NULL;
    if (fresh) endpoint = tcp_endpoint_create(transport, peer->process, peer->name);
    if (endpoint == NULL) return QUOIT_ERR_NO_MEMORY;
    if (!fresh && peer->name != NULL) snprintf(endpoint->base.name, sizeof endpoint->base.name, "%s", peer->name);
    status = begin_calling(endpoint, peer, &address);
    if (status != QUOIT_OK) {
        if (fresh) endpoint_destroy(&endpoint->base);
        return status;
    }
    (void)secrets_copy(transport->jobs, peer->job, &endpoint->secret); /* it is there: see above */
    tcp_call_step(endpoint);
    *result = &endpoint->base.handle;
    return QUOIT_OK;
}
