/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Client of a TCP store; in rank 0 it owns the server as well and reaches it through loopback like everybody else.
 *
 * Each call takes an idle connection, or makes one when all are busy, so a thread that waits for a key does not keep others from
 * setting it. A connection on which a call failed half way is closed, never used again.
 */
#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/store_internal.h"
#include "base/store_server.h"
#include "base/store_wire.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    IDLE_MOST = 4,          /* connections kept; more exist only while more calls are under way */
    ATTEMPT_MS = 5000,      /* for one address, when the deadline allows */
    GRACE_MS = 5000,        /* for the answer, beyond the time that the server waits for a key */
    SET_TIMEOUT_MS = 60000, /* least time limit of a set */
    FIRST_PAUSE_MS = 10,
    LONGEST_PAUSE_MS = 250,
    REASON_CAPACITY = 96
};

typedef struct tcp_store {
    quoit_store_t base;
    store_server_t *server; /* rank 0; else NULL */
    char host[STORE_HOST_CAPACITY];
    int port, rank, timeout_ms;
    pthread_mutex_t mutex; /* of the idle connections */
    int idle[IDLE_MOST], idle_count;
} tcp_store_t;

/* One address and why the newest try that had time enough failed there. */
typedef struct attempt {
    store_address_t address;
    char reason[REASON_CAPACITY];
} attempt_t;

static void close_connection(int fd)
{
    shutdown(fd, SHUT_RDWR); /* ends it for the server even when a forked child holds the descriptor */
    close(fd);
}

/* Wait until fd is ready; false at the deadline. */
static bool wait_for(int fd, short events, uint64_t deadline)
{
    while (true) {
        struct pollfd one = {.fd = fd, .events = events};
        int left = clock_left_ms(deadline), count = poll(&one, 1, left);
        if (count > 0) return true;
        if (count == 0 && left == 0) return false;
        if (count < 0 && errno != EINTR) return false;
    }
}

static quoit_status_t broken(const tcp_store_t *self, int number)
{
    if (number == 0 || number == ECONNRESET || number == EPIPE)
        return error_set(QUOIT_ERR_PEER, "store %s: the server closed the connection; rank 0 has closed its store, or its process or "
                         "host is gone", self->base.description);
    return error_set_errno(QUOIT_ERR_NETWORK, number, "store %s: connection lost", self->base.description);
}

static quoit_status_t no_answer(const tcp_store_t *self)
{
    return error_set(QUOIT_ERR_TIMEOUT, "store %s: the server does not answer; rank 0 may be stopped, or the network between is cut",
                     self->base.description);
}

static quoit_status_t send_all(const tcp_store_t *self, int fd, struct iovec *parts, size_t count, uint64_t deadline)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    while (message.msg_iovlen > 0) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK) return broken(self, errno);
        if (sent < 0 && !wait_for(fd, POLLOUT, deadline)) return no_answer(self);
        for (size_t left = sent > 0 ? (size_t)sent : 0; message.msg_iovlen > 0; message.msg_iov++, message.msg_iovlen--) {
            size_t step = message.msg_iov->iov_len < left ? message.msg_iov->iov_len : left;
            message.msg_iov->iov_base = (char *)message.msg_iov->iov_base + step;
            message.msg_iov->iov_len -= step;
            left -= step;
            if (message.msg_iov->iov_len > 0) break;
        }
    }
    return QUOIT_OK;
}

static quoit_status_t receive_all(const tcp_store_t *self, int fd, void *data, size_t length, uint64_t deadline)
{
    for (size_t done = 0; done < length;) {
        ssize_t got = recv(fd, (uint8_t *)data + done, length - done, MSG_DONTWAIT);
        if (got > 0) done += (size_t)got;
        else if (got == 0) return broken(self, 0);
        else if (errno == EINTR) continue;
        else if (errno != EAGAIN && errno != EWOULDBLOCK) return broken(self, errno);
        else if (!wait_for(fd, POLLIN, deadline)) return no_answer(self);
    }
    return QUOIT_OK;
}

/* One request and its reply. *answer: what the server says; the value, when there is one, is from malloc. */
static quoit_status_t exchange(const tcp_store_t *self, int fd, const store_frame_t *request, const char *key, const void *value,
                               uint64_t deadline, quoit_status_t *answer, void **result, size_t *result_length)
{
    uint8_t header[STORE_FRAME_SIZE];
    store_frame_t frame;
    store_frame_write(request, header);
    struct iovec parts[] = {{header, sizeof header}, {(void *)key, request->key_length}, {(void *)value, request->value_length}};
    quoit_status_t status = send_all(self, fd, parts, 3, deadline);
    if (status == QUOIT_OK) status = receive_all(self, fd, header, sizeof header, deadline);
    if (status != QUOIT_OK) return status;
    status = store_frame_parse(header, sizeof header, &frame);
    if (status != QUOIT_OK) return error_prefix(status, "store %s: answer", self->base.description);
    if (frame.kind != STORE_REPLY || (frame.value_length > 0 && !result))
        return error_set(QUOIT_ERR_PROTOCOL, "store %s: what answers is no store server", self->base.description);
    if (result) {
        void *data = malloc(frame.value_length ? frame.value_length : 1);
        if (!data) return error_set(QUOIT_ERR_NO_MEMORY, "store %s: no memory for %zu bytes", self->base.description, frame.value_length);
        status = receive_all(self, fd, data, frame.value_length, deadline);
        if (status != QUOIT_OK) {
            free(data);
            return status;
        }
        *result = data;
        *result_length = frame.value_length;
    }
    *answer = (quoit_status_t)frame.argument;
    return QUOIT_OK;
}

/* A port of the ephemeral range can connect to itself while nobody listens there. */
static bool is_self(int fd)
{
    store_address_t here = {.length = sizeof here.address}, there = {.length = sizeof there.address};
    char a[STORE_ADDRESS_CAPACITY], b[STORE_ADDRESS_CAPACITY];
    if (getsockname(fd, (struct sockaddr *)&here.address, &here.length) != 0) return false;
    if (getpeername(fd, (struct sockaddr *)&there.address, &there.length) != 0) return false;
    return !strcmp(store_address_text(&here, a), store_address_text(&there, b));
}

static void explain(attempt_t *attempt, const char *reason) { snprintf(attempt->reason, sizeof attempt->reason, "%s", reason); }

/* Running out of time says less than what went wrong before, when the time was but the rest before the deadline. */
static void explain_timeout(attempt_t *attempt, const char *reason, bool was_short)
{
    if (!was_short || !attempt->reason[0]) explain(attempt, reason);
}

static void explain_errno(attempt_t *attempt, int number)
{
    char text[REASON_CAPACITY];
    explain(attempt, strerror_r(number, text, sizeof text));
}

/* TCP connection to one address, or -1 with the reason in the attempt. */
static int connect_address(attempt_t *attempt, uint64_t deadline, bool is_short)
{
    int on = 1, number = 0;
    socklen_t length = sizeof number;
    const store_address_t *address = &attempt->address;
    int fd = limits_above_standard(socket(address->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd < 0) {
        explain_errno(attempt, errno);
        return -1;
    }
    if (connect(fd, (const struct sockaddr *)&address->address, address->length) != 0) number = errno;
    if (number == EINPROGRESS || number == EINTR) {
        number = ETIMEDOUT;
        if (wait_for(fd, POLLOUT, deadline)) (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &number, &length);
    }
    if (number == 0 && is_self(fd)) number = ECONNREFUSED;
    if (number != 0) {
        if (number == ETIMEDOUT) explain_timeout(attempt, "no answer", is_short);
        else explain_errno(attempt, number);
        close(fd);
        return -1;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    return fd;
}

/* Connection that a store server has answered on, or -1 with the reason in the attempt. */
static int connect_greeted(const tcp_store_t *self, attempt_t *attempt, uint64_t deadline)
{
    store_frame_t hello = {.kind = STORE_HELLO, .argument = self->rank};
    quoit_status_t answer = QUOIT_OK;
    uint64_t attempt_end = clock_deadline(ATTEMPT_MS);
    bool is_short = deadline < attempt_end;
    if (is_short) attempt_end = deadline;
    int fd = connect_address(attempt, attempt_end, is_short);
    if (fd < 0) return -1;
    quoit_status_t status = exchange(self, fd, &hello, "", "", attempt_end, &answer, NULL, NULL);
    if (status == QUOIT_OK && answer == QUOIT_OK) return fd;
    if (status == QUOIT_ERR_TIMEOUT) explain_timeout(attempt, "connected, but no answer", is_short);
    else if (status == QUOIT_ERR_PROTOCOL) explain(attempt, "answered, but not as a Quoit store");
    else explain(attempt, "connected, but closed at once");
    close_connection(fd);
    return -1;
}

/* Keeps the reason of the same address's earlier try. */
static void put_address(attempt_t *attempt, const struct sockaddr *address, socklen_t length)
{
    if (attempt->address.length == length && !memcmp(&attempt->address.address, address, length)) return;
    *attempt = (attempt_t){.address.length = length};
    memcpy(&attempt->address.address, address, length);
}

/* Addresses of the server; 0 when its name cannot be resolved, with the reason in the first attempt. */
static int find_addresses(const tcp_store_t *self, attempt_t attempts[STORE_ADDRESS_MOST])
{
    if (self->server) {
        store_address_t own = store_server_address(self->server);
        put_address(&attempts[0], (const struct sockaddr *)&own.address, own.length);
        return 1;
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
    char service[8];
    snprintf(service, sizeof service, "%d", self->port);
    int code = getaddrinfo(self->host, service, &hints, &found), count = 0;
    if (code != 0) {
        explain(&attempts[0], gai_strerror(code));
        return 0;
    }
    for (const struct addrinfo *info = found; info && count < STORE_ADDRESS_MOST; info = info->ai_next) {
        if (info->ai_addrlen > sizeof attempts[count].address.address) continue;
        put_address(&attempts[count++], info->ai_addr, info->ai_addrlen);
    }
    freeaddrinfo(found);
    if (count == 0) explain(&attempts[0], "has no address");
    return count;
}

static quoit_status_t unreachable(const tcp_store_t *self, const attempt_t *attempts, int count, bool once, int64_t waited_ms)
{
    char list[ERROR_TEXT_CAPACITY / 2] = "", address[STORE_ADDRESS_CAPACITY];
    if (count == 0) snprintf(list, sizeof list, "%s (%s)", self->host, attempts[0].reason);
    for (int i = 0; i < count; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s (%s)", i ? ", " : "", store_address_text(&attempts[i].address, address),
                 attempts[i].reason[0] ? attempts[i].reason : "not tried, time was over");
    }
    if (once)
        return error_set(QUOIT_ERR_PEER, "store %s: the server is gone; tried %s; rank 0 has closed its store, or its process or host "
                         "is gone", self->base.description, list);
    return error_set(QUOIT_ERR_TIMEOUT, "store %s: rank %d on %s did not reach the server within %lld ms; tried %s; is rank 0 running, "
                     "and does no firewall stand between?", self->base.description, self->rank, log_host(), (long long)waited_ms, list);
}

/* Try all addresses in turn, again and again until the deadline; `once`: one round only, for a server that has been there. */
static quoit_status_t connect_server(const tcp_store_t *self, bool once, uint64_t deadline, int *result)
{
    uint64_t start = clock_now();
    char before[ERROR_TEXT_CAPACITY];
    attempt_t attempts[STORE_ADDRESS_MOST] = {0};
    strcpy(before, error_text());
    for (int pause = FIRST_PAUSE_MS;; pause = pause * 2 > LONGEST_PAUSE_MS ? LONGEST_PAUSE_MS : pause * 2) {
        int count = find_addresses(self, attempts);
        for (int i = 0; i < count && (i == 0 || clock_left_ms(deadline) > 0); i++) {
            int fd = connect_greeted(self, &attempts[i], deadline);
            if (fd < 0) continue;
            error_set(QUOIT_OK, "%s", before); /* tries that failed on the way are no failure of the caller's */
            *result = fd;
            return QUOIT_OK;
        }
        int left = clock_left_ms(deadline);
        if (once || left == 0) return unreachable(self, attempts, count, once, (int64_t)((clock_now() - start) / 1000000));
        usleep((useconds_t)(left > 0 && left < pause ? left : pause) * 1000);
    }
}

static quoit_status_t take_connection(tcp_store_t *self, uint64_t deadline, int *result)
{
    int fd = -1;
    pthread_mutex_lock(&self->mutex);
    if (self->idle_count > 0) fd = self->idle[--self->idle_count];
    pthread_mutex_unlock(&self->mutex);
    if (fd < 0) return connect_server(self, true, deadline, result);
    *result = fd;
    return QUOIT_OK;
}

static void give_connection(tcp_store_t *self, int fd)
{
    pthread_mutex_lock(&self->mutex);
    if (self->idle_count < IDLE_MOST) {
        self->idle[self->idle_count++] = fd;
        fd = -1;
    }
    pthread_mutex_unlock(&self->mutex);
    if (fd >= 0) close_connection(fd);
}

/* A whole call on some connection. */
static quoit_status_t call_server(tcp_store_t *self, const store_frame_t *request, const char *key, const void *value, uint64_t deadline,
                                  quoit_status_t *answer, void **result, size_t *result_length)
{
    int fd;
    quoit_status_t status = take_connection(self, deadline, &fd);
    if (status != QUOIT_OK) return status;
    status = exchange(self, fd, request, key, value, deadline, answer, result, result_length);
    if (status == QUOIT_OK) give_connection(self, fd);
    else close_connection(fd);
    return status;
}

static quoit_status_t tcp_set(quoit_store_t *store, const char *key, const void *value, size_t length)
{
    tcp_store_t *self = (tcp_store_t *)store;
    quoit_status_t answer;
    if (length > STORE_VALUE_MAX)
        return error_set(QUOIT_ERR_INVALID, "store %s: a value has at most %d bytes, this one %zu", store->description, STORE_VALUE_MAX, length);
    store_frame_t request = {.kind = STORE_SET, .key_length = strlen(key), .value_length = length};
    uint64_t deadline = clock_deadline(self->timeout_ms > SET_TIMEOUT_MS ? self->timeout_ms : SET_TIMEOUT_MS);
    quoit_status_t status = call_server(self, &request, key, value, deadline, &answer, NULL, NULL);
    if (status != QUOIT_OK || answer == QUOIT_OK) return status;
    return error_set(answer, "store %s: the server refused key \"%s\" of %zu bytes: %s", store->description, key, length,
                     quoit_status_text(answer));
}

static quoit_status_t tcp_get(quoit_store_t *store, const char *key, int timeout_ms, void **value, size_t *length)
{
    quoit_status_t answer;
    void *data = NULL;
    size_t data_length = 0;
    store_frame_t request = {.kind = STORE_GET, .key_length = strlen(key), .argument = timeout_ms};
    uint64_t deadline = clock_deadline((int64_t)timeout_ms + GRACE_MS);
    quoit_status_t status = call_server((tcp_store_t *)store, &request, key, "", deadline, &answer, &data, &data_length);
    if (status != QUOIT_OK) return status;
    if (answer == QUOIT_OK) {
        *value = data;
        *length = data_length;
        return QUOIT_OK;
    }
    free(data);
    if (answer == QUOIT_ERR_TIMEOUT)
        return error_set(answer, "store %s: key \"%s\" did not appear within %d ms", store->description, key, timeout_ms);
    return error_set(answer, "store %s: get of key \"%s\": %s", store->description, key, quoit_status_text(answer));
}

static void tcp_close(quoit_store_t *store)
{
    tcp_store_t *self = (tcp_store_t *)store;
    while (self->idle_count > 0) close_connection(self->idle[--self->idle_count]);
    store_server_stop(self->server);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

static const store_calls_t tcp_calls = {.set = tcp_set, .get = tcp_get, .close = tcp_close};

quoit_status_t store_tcp_open(const char *host, int port, int rank, int size, int timeout_ms, quoit_store_t **store)
{
    if (strlen(host) >= STORE_HOST_CAPACITY || port < 1 || port > 65535 || rank < 0 || rank >= size)
        return error_set(QUOIT_ERR_INVALID, "store tcp://%.100s:%d for rank %d of %d: bad host, port or rank", host, port, rank, size);
    uint64_t deadline = clock_deadline(timeout_ms);
    tcp_store_t *self = calloc(1, sizeof *self);
    char *description = malloc(STORE_HOST_CAPACITY + 32);
    if (!self || !description) {
        free(self);
        free(description);
        return error_set(QUOIT_ERR_NO_MEMORY, "no memory for a store");
    }
    snprintf(description, STORE_HOST_CAPACITY + 32, strchr(host, ':') ? "tcp://[%s]:%d" : "tcp://%s:%d", host, port);
    self->base = (quoit_store_t){.calls = &tcp_calls, .description = description, .owner = getpid()};
    strcpy(self->host, host);
    self->port = port;
    self->rank = rank;
    self->timeout_ms = timeout_ms;
    pthread_mutex_init(&self->mutex, NULL);
    int fd;
    quoit_status_t status = QUOIT_OK;
    if (rank == 0) status = store_server_start(host, port, &self->server);
    if (status == QUOIT_OK) status = connect_server(self, false, deadline, &fd);
    if (status != QUOIT_OK) {
        tcp_close(&self->base);
        free(description);
        return status;
    }
    give_connection(self, fd);
    *store = &self->base;
    return QUOIT_OK;
}
