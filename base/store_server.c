/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The server of a TCP store. Its thread sleeps in epoll and never blocks on a client: each connection is a small state machine,
 *
 *   HEADER -> BODY -> (WAITING, for a key) -> REPLY -> HEADER ...
 *
 * that reads nothing more until its reply is out, so a client holds at most one request and one reply in memory. Memory for a body
 * grows with what has really come. A connection that sends anything else than the protocol, or no HELLO in time, is closed; one that
 * is slow holds up nobody. Values are counted references, since many replies may send one at once.
 */
#include "base/store_server_internal.h"

#include "base/clock.h"
#include "base/list.h"
#include "base/log.h"
#include "base/store_internal.h"
#include "base/store_listen.h"
#include "base/store_map.h"
#include "base/store_wire.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    EVENT_COUNT = 64,
    HELLO_TIMEOUT_MS = 10000,
    LINGER_MS = 2000,
    STRANGERS_MOST = 1024, /* connections without HELLO; beyond that the oldest goes */
    ACCEPT_PAUSE_MS = 100, /* after running out of descriptors */
    FIRST_BODY_CAPACITY = 65536
};
#define MEMORY_MOST ((size_t)1 << 30) /* bytes of all values */

typedef struct blob {
    unsigned references;
    size_t length;
    uint8_t bytes[];
} blob_t;

typedef struct entry {
    store_key_t key; /* first */
    blob_t *value;   /* NULL: not set yet, there are waiters */
    list_t waiters;
} entry_t;

typedef enum state { STATE_HEADER, STATE_BODY, STATE_WAITING, STATE_REPLY } state_t;

typedef struct connection {
    list_t node;    /* in known, strangers, or closed */
    list_t waiting; /* in entry->waiters */
    entry_t *entry; /* while WAITING */
    int fd;         /* -1 once closed */
    state_t state;
    bool known; /* said HELLO */
    uint32_t interest;
    uint64_t deadline; /* of HELLO or of GET */
    uint8_t header[STORE_FRAME_SIZE];
    size_t done; /* bytes of header, body or reply */
    store_frame_t request;
    uint8_t *body; /* owned; key, then value */
    size_t body_capacity;
    blob_t *reply_value; /* a reference, or NULL */
    char peer[STORE_ADDRESS_CAPACITY];
} connection_t;

struct store_server {
    pthread_t thread;
    int epoll, bell; /* bell: rung to stop */
    int listeners[STORE_ADDRESS_MOST], listener_count;
    store_address_t own;
    /* Of the thread alone: */
    store_map_t map;
    size_t memory;
    list_t known, strangers, closed;
    size_t stranger_count;
    uint64_t next_deadline; /* not later than the earliest of all connections */
    uint64_t accept_again;  /* 0: accepting */
    uint64_t stop_by;       /* CLOCK_NEVER: not asked to stop */
};

static void blob_release(blob_t *blob)
{
    if (blob && --blob->references == 0) free(blob);
}

static void watch(store_server_t *server, connection_t *connection, uint32_t interest)
{
    struct epoll_event event = {.events = interest, .data.ptr = connection};
    if (interest == connection->interest) return;
    connection->interest = interest;
    (void)epoll_ctl(server->epoll, EPOLL_CTL_MOD, connection->fd, &event);
}

/* Leave a key that nobody has set: without other waiters its entry goes too. */
static void stop_waiting(store_server_t *server, connection_t *connection)
{
    entry_t *entry = connection->entry;
    if (!entry) return;
    connection->entry = NULL;
    list_remove(&connection->waiting);
    if (entry->value || !list_is_empty(&entry->waiters)) return;
    store_map_remove(&server->map, &entry->key);
    free(entry);
}

/* Events of this connection may still lie in the batch at hand, so the memory goes later, in free_closed. */
static void connection_close(store_server_t *server, connection_t *connection)
{
    if (connection->fd < 0) return;
    stop_waiting(server, connection);
    (void)epoll_ctl(server->epoll, EPOLL_CTL_DEL, connection->fd, NULL); /* a forked child may share the descriptor: */
    shutdown(connection->fd, SHUT_RDWR);                                 /* closing alone would end neither */
    close(connection->fd);
    connection->fd = -1;
    if (!connection->known) server->stranger_count--;
    list_remove(&connection->node);
    list_append(&server->closed, &connection->node);
}

static void free_closed(store_server_t *server)
{
    for (list_t *node; (node = list_pop(&server->closed));) {
        connection_t *connection = container_of(node, connection_t, node);
        blob_release(connection->reply_value);
        free(connection->body);
        free(connection);
    }
}

static void set_deadline(store_server_t *server, connection_t *connection, uint64_t deadline)
{
    connection->deadline = deadline;
    if (deadline < server->next_deadline) server->next_deadline = deadline;
}

/* Send what the socket takes; the connection goes on reading when all is out. */
static void reply_send(store_server_t *server, connection_t *connection)
{
    size_t value_length = connection->reply_value ? connection->reply_value->length : 0, total = STORE_FRAME_SIZE + value_length;
    while (connection->done < total) {
        struct iovec parts[2];
        struct msghdr message = {.msg_iov = parts};
        if (connection->done < STORE_FRAME_SIZE)
            parts[message.msg_iovlen++] = (struct iovec){connection->header + connection->done, STORE_FRAME_SIZE - connection->done};
        size_t from = connection->done > STORE_FRAME_SIZE ? connection->done - STORE_FRAME_SIZE : 0;
        if (from < value_length)
            parts[message.msg_iovlen++] = (struct iovec){connection->reply_value->bytes + from, value_length - from};
        ssize_t sent = sendmsg(connection->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            watch(server, connection, EPOLLOUT | EPOLLRDHUP);
            return;
        }
        if (sent < 0) {
            connection_close(server, connection);
            return;
        }
        connection->done += (size_t)sent;
    }
    blob_release(connection->reply_value);
    connection->reply_value = NULL;
    connection->state = STATE_HEADER;
    connection->done = 0;
    watch(server, connection, EPOLLIN | EPOLLRDHUP);
}

static void reply(store_server_t *server, connection_t *connection, quoit_status_t status, blob_t *value)
{
    store_frame_t frame = {.kind = STORE_REPLY, .value_length = value ? value->length : 0, .argument = status};
    store_frame_write(&frame, connection->header);
    if (value) value->references++;
    connection->reply_value = value;
    connection->state = STATE_REPLY;
    connection->done = 0;
    connection->deadline = CLOCK_NEVER;
    reply_send(server, connection);
}

/* The entry of a key, made when absent; NULL when out of memory. */
static entry_t *entry_need(store_server_t *server, const char *key)
{
    entry_t *entry = (entry_t *)store_map_find(&server->map, key);
    if (entry) return entry;
    entry = calloc(1, sizeof *entry);
    if (!entry) return NULL;
    list_init(&entry->waiters);
    if (store_map_insert(&server->map, key, &entry->key) == QUOIT_OK) return entry;
    free(entry);
    return NULL;
}

static void serve_set(store_server_t *server, connection_t *connection, const char *key)
{
    size_t length = connection->request.value_length;
    entry_t *entry = NULL;
    blob_t *blob = NULL;
    if (length <= MEMORY_MOST - server->memory) blob = malloc(sizeof *blob + length);
    if (blob) entry = entry_need(server, key);
    if (!entry) {
        free(blob);
        reply(server, connection, QUOIT_ERR_NO_MEMORY, NULL);
        return;
    }
    blob->references = 1;
    blob->length = length;
    if (length > 0) memcpy(blob->bytes, connection->body + connection->request.key_length, length);
    server->memory += length - (entry->value ? entry->value->length : 0);
    blob_release(entry->value);
    entry->value = blob;
    for (list_t *node; (node = list_pop(&entry->waiters));) {
        connection_t *waiter = container_of(node, connection_t, waiting);
        waiter->entry = NULL;
        reply(server, waiter, QUOIT_OK, blob);
    }
    reply(server, connection, QUOIT_OK, NULL);
}

static void serve_get(store_server_t *server, connection_t *connection, const char *key)
{
    entry_t *entry = (entry_t *)store_map_find(&server->map, key);
    if (entry && entry->value) {
        reply(server, connection, QUOIT_OK, entry->value);
        return;
    }
    if (connection->request.argument == 0) {
        reply(server, connection, QUOIT_ERR_TIMEOUT, NULL);
        return;
    }
    entry = entry_need(server, key);
    if (!entry) {
        reply(server, connection, QUOIT_ERR_NO_MEMORY, NULL);
        return;
    }
    connection->entry = entry;
    connection->state = STATE_WAITING;
    list_append(&entry->waiters, &connection->waiting);
    set_deadline(server, connection, clock_deadline(connection->request.argument));
    watch(server, connection, EPOLLRDHUP);
}

static void serve_hello(store_server_t *server, connection_t *connection)
{
    if (!connection->known) {
        connection->known = true;
        server->stranger_count--;
        list_remove(&connection->node);
        list_append(&server->known, &connection->node);
    }
    reply(server, connection, QUOIT_OK, NULL);
}

static void refuse(store_server_t *server, connection_t *connection, const char *why)
{
    log_write_limited(connection->peer, LOG_WARN, "store", "closed a connection from %s, which is no rank of this job: %s",
                      connection->peer, why);
    connection_close(server, connection);
}

/* The whole request is there. */
static void serve(store_server_t *server, connection_t *connection)
{
    char key[STORE_KEY_MAX + 1];
    size_t length = connection->request.key_length;
    if (connection->request.kind == STORE_HELLO) {
        serve_hello(server, connection);
        return;
    }
    if (!store_key_is_valid((const char *)connection->body, length)) {
        refuse(server, connection, "a key that is not printable");
        return;
    }
    memcpy(key, connection->body, length);
    key[length] = '\0';
    if (connection->request.kind == STORE_SET) serve_set(server, connection, key);
    else serve_get(server, connection, key);
    if (connection->body_capacity > FIRST_BODY_CAPACITY) { /* large values are rare: keep no room for the next */
        free(connection->body);
        connection->body = NULL;
        connection->body_capacity = 0;
    }
}

/* recv; 0 when nothing is to be had now or the connection was closed because it ended. */
static size_t receive(store_server_t *server, connection_t *connection, void *data, size_t length)
{
    while (true) {
        ssize_t got = recv(connection->fd, data, length, MSG_DONTWAIT);
        if (got > 0) return (size_t)got;
        if (got < 0 && errno == EINTR) continue;
        if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) connection_close(server, connection);
        return 0;
    }
}

static bool body_reserve(connection_t *connection, size_t total)
{
    if (connection->done < connection->body_capacity) return true;
    size_t capacity = connection->body_capacity ? connection->body_capacity * 2 : FIRST_BODY_CAPACITY;
    if (capacity > total && total > FIRST_BODY_CAPACITY) capacity = total;
    uint8_t *body = realloc(connection->body, capacity);
    if (!body) return false;
    connection->body = body;
    connection->body_capacity = capacity;
    return true;
}

static void read_body(store_server_t *server, connection_t *connection)
{
    size_t total = connection->request.key_length + connection->request.value_length;
    while (connection->done < total) {
        if (!body_reserve(connection, total)) {
            refuse(server, connection, "no memory for its value");
            return;
        }
        size_t room = connection->body_capacity < total ? connection->body_capacity : total;
        size_t got = receive(server, connection, connection->body + connection->done, room - connection->done);
        if (got == 0) return;
        connection->done += got;
    }
    serve(server, connection);
}

static void connection_read(store_server_t *server, connection_t *connection)
{
    if (connection->state == STATE_HEADER) {
        size_t got = receive(server, connection, connection->header + connection->done, STORE_FRAME_SIZE - connection->done);
        if (got == 0) return;
        connection->done += got;
        quoit_status_t status = store_frame_parse(connection->header, connection->done, &connection->request);
        if (status == QUOIT_ERR_AGAIN) return;
        store_kind_t kind = connection->request.kind;
        if (status != QUOIT_OK) refuse(server, connection, error_text());
        else if (kind == STORE_REPLY || (kind == STORE_HELLO) == connection->known) refuse(server, connection, "a frame out of turn");
        if (connection->fd < 0) return;
        connection->state = STATE_BODY;
        connection->done = 0;
    }
    if (connection->state == STATE_BODY) read_body(server, connection);
}

static void connection_event(store_server_t *server, connection_t *connection, uint32_t events)
{
    if (connection->fd < 0) return; /* closed earlier in this batch */
    bool reading = connection->state == STATE_HEADER || connection->state == STATE_BODY;
    if (reading) connection_read(server, connection); /* finds the end of the stream by itself */
    else if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) connection_close(server, connection);
    else if (connection->state == STATE_REPLY) reply_send(server, connection);
}

static void watch_listeners(store_server_t *server, bool on)
{
    for (int i = 0; i < server->listener_count; i++) {
        struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.ptr = &server->listeners[i]};
        (void)epoll_ctl(server->epoll, EPOLL_CTL_MOD, server->listeners[i], &event);
    }
}

void store_server_adopt(store_server_t *server, int fd, const store_address_t *from)
{
    int on = 1;
    connection_t *connection = calloc(1, sizeof *connection);
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = connection};
    if (!connection || epoll_ctl(server->epoll, EPOLL_CTL_ADD, fd, &event) != 0) {
        free(connection);
        close(fd);
        return;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connection->fd = fd;
    connection->interest = event.events;
    list_init(&connection->waiting);
    list_append(&server->strangers, &connection->node);
    server->stranger_count++;
    store_address_text(from, connection->peer);
    set_deadline(server, connection, clock_deadline(HELLO_TIMEOUT_MS));
    if (server->stranger_count > STRANGERS_MOST)
        refuse(server, container_of(server->strangers.next, connection_t, node), "too many connections that do not say who they are");
}

static void accept_some(store_server_t *server, int listener)
{
    char reason[96];
    for (int i = 0; i < EVENT_COUNT; i++) {
        store_address_t from = {.length = sizeof from.address};
        int fd = accept4(listener, (struct sockaddr *)&from.address, &from.length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            store_server_adopt(server, fd, &from);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            log_write_limited("store accept", LOG_WARN, "store", "cannot accept connections: %s; raise the limit of open files (ulimit -n)",
                              strerror_r(errno, reason, sizeof reason));
            watch_listeners(server, false);
            server->accept_again = clock_deadline(ACCEPT_PAUSE_MS);
            return;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        }
    }
}

static void expire_list(store_server_t *server, list_t *list, uint64_t now)
{
    for (list_t *node = list->next, *next; node != list; node = next) {
        connection_t *connection = container_of(node, connection_t, node);
        next = node->next;
        if (connection->deadline > now) {
            if (connection->deadline < server->next_deadline) server->next_deadline = connection->deadline;
        } else if (connection->known) {
            stop_waiting(server, connection);
            reply(server, connection, QUOIT_ERR_TIMEOUT, NULL);
        } else {
            refuse(server, connection, "it has not said who it is");
        }
    }
}

static void expire(store_server_t *server)
{
    uint64_t now = clock_now();
    if (server->accept_again && now >= server->accept_again) {
        server->accept_again = 0;
        watch_listeners(server, true);
    }
    if (now < server->next_deadline) return;
    server->next_deadline = CLOCK_NEVER;
    expire_list(server, &server->strangers, now);
    expire_list(server, &server->known, now);
}

static int sleep_ms(const store_server_t *server)
{
    uint64_t until = server->next_deadline < server->stop_by ? server->next_deadline : server->stop_by;
    if (server->accept_again && server->accept_again < until) until = server->accept_again;
    if (server->stop_by != CLOCK_NEVER && list_is_empty(&server->known)) return 0; /* only what has come already */
    return clock_left_ms(until);
}

static void handle(store_server_t *server, const struct epoll_event *event)
{
    void *subject = event->data.ptr;
    uint64_t rings;
    if (subject == &server->bell) {
        if (read(server->bell, &rings, sizeof rings) == sizeof rings) server->stop_by = clock_deadline(LINGER_MS);
        return;
    }
    for (int i = 0; i < server->listener_count; i++)
        if (subject == &server->listeners[i]) {
            accept_some(server, server->listeners[i]);
            return;
        }
    connection_event(server, subject, event->events);
}

bool store_server_step(store_server_t *server, int limit_ms)
{
    struct epoll_event events[EVENT_COUNT];
    int count = epoll_wait(server->epoll, events, EVENT_COUNT, limit_ms);
    bool quiet = count <= 0 && server->stop_by != CLOCK_NEVER && list_is_empty(&server->known);
    if (quiet || (count < 0 && errno != EINTR)) return false;
    for (int i = 0; i < count; i++) handle(server, &events[i]);
    expire(server);
    free_closed(server);
    return true;
}

static void *server_run(void *argument)
{
    store_server_t *server = argument;
    while (clock_now() < server->stop_by && store_server_step(server, sleep_ms(server))) {}
    return NULL;
}

/* All but the thread; what was not made yet is -1, 0 or an empty list. */
void store_server_free(store_server_t *server)
{
    list_t *lists[] = {&server->known, &server->strangers};
    for (int i = 0; i < 2; i++)
        while (!list_is_empty(lists[i])) connection_close(server, container_of(lists[i]->next, connection_t, node));
    free_closed(server);
    size_t cursor = 0;
    for (store_key_t *key; (key = store_map_pop(&server->map, &cursor));) {
        blob_release(((entry_t *)key)->value);
        free(key);
    }
    store_map_release(&server->map);
    for (int i = 0; i < server->listener_count; i++) {
        shutdown(server->listeners[i], SHUT_RDWR); /* frees the port even when a forked child holds the descriptor */
        close(server->listeners[i]);
    }
    if (server->epoll >= 0) close(server->epoll);
    if (server->bell >= 0) close(server->bell);
    free(server);
}

static quoit_status_t server_watch(store_server_t *server)
{
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    server->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->epoll < 0 || server->bell < 0) return error_set_errno(QUOIT_ERR_SYSTEM, errno, "store: epoll or eventfd");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &server->bell};
    if (epoll_ctl(server->epoll, EPOLL_CTL_ADD, server->bell, &event) != 0)
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "store: epoll_ctl");
    for (int i = 0; i < server->listener_count; i++) {
        event.data.ptr = &server->listeners[i];
        if (epoll_ctl(server->epoll, EPOLL_CTL_ADD, server->listeners[i], &event) != 0)
            return error_set_errno(QUOIT_ERR_SYSTEM, errno, "store: epoll_ctl");
    }
    return QUOIT_OK;
}

/* The application's signal handlers are not for this thread. */
static quoit_status_t start_thread(store_server_t *server)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int code = pthread_create(&server->thread, NULL, server_run, server);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (code != 0) return error_set_errno(QUOIT_ERR_SYSTEM, code, "store: cannot start a thread");
    (void)pthread_setname_np(server->thread, "quoit-store");
    return QUOIT_OK;
}

/* Without listeners and thread. */
static store_server_t *server_alloc(void)
{
    store_server_t *server = calloc(1, sizeof *server);
    if (!server) return NULL;
    server->epoll = server->bell = -1;
    server->next_deadline = server->stop_by = CLOCK_NEVER;
    list_init(&server->known);
    list_init(&server->strangers);
    list_init(&server->closed);
    return server;
}

quoit_status_t store_server_create(store_server_t **result)
{
    store_server_t *server = server_alloc();
    if (!server) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for the store's server");
    quoit_status_t status = store_map_init(&server->map);
    if (status == QUOIT_OK) status = server_watch(server);
    if (status != QUOIT_OK) {
        store_server_free(server);
        return status;
    }
    *result = server;
    return QUOIT_OK;
}

quoit_status_t store_server_start(const char *host, int port, store_server_t **result)
{
    store_server_t *server = server_alloc();
    if (!server) return error_set(QUOIT_ERR_NO_MEMORY, "no memory for the store's server");
    quoit_status_t status = store_listen(host, port, server->listeners, &server->listener_count, &server->own);
    if (status == QUOIT_OK) status = store_map_init(&server->map);
    if (status == QUOIT_OK) status = server_watch(server);
    if (status == QUOIT_OK) status = start_thread(server);
    if (status != QUOIT_OK) {
        store_server_free(server);
        return status;
    }
    *result = server;
    return QUOIT_OK;
}

store_address_t store_server_address(const store_server_t *server) { return server->own; }

void store_server_stop(store_server_t *server)
{
    uint64_t ring = 1;
    if (!server) return;
    while (write(server->bell, &ring, sizeof ring) < 0 && errno == EINTR) {}
    pthread_join(server->thread, NULL);
    store_server_free(server);
}
