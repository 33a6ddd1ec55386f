/* SPDX-License-Identifier: Apache-2.0 */
/* Relays: each accepted connection is joined with one to the wrapped transport's own address, and bytes go both ways by small portions. */
#include "chaos_internal.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BUFFER = 65536 };

/* One direction. */
typedef struct stream {
    int from, to;
    uint8_t bytes[BUFFER];
    size_t start, end;
    bool ended, told; /* no more will be read; the other side knows */
    uint64_t due;     /* not before */
} stream_t;

typedef struct relay {
    list_t link;
    int fd[2]; /* the caller's, ours to the transport */
    stream_t stream[2];
} relay_t;

struct chaos_relays {
    list_t relays;
    int epoll, listener;
    uint64_t random;
    ip_name_t behind;
};

static void watch(int epoll, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.fd = fd};
    (void)epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static int open_listener(ip_name_t *name)
{
    socklen_t length = sizeof *name;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *name = (ip_name_t){.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    if (fd < 0) return -1;
    if (bind(fd, &name->any, sizeof name->v4) == 0 && listen(fd, 64) == 0 && getsockname(fd, &name->any, &length) == 0) return fd;
    close(fd);
    return -1;
}

quoit_status_t chaos_relays_open(int epoll, uint64_t seed, ip_address_t *address, chaos_relays_t **result)
{
    chaos_relays_t *relays = calloc(1, sizeof *relays);
    ip_name_t front;
    if (!relays) return error_set(QUOIT_ERR_NO_MEMORY, "chaos: no memory for relays");
    *relays = (chaos_relays_t){.epoll = epoll, .listener = open_listener(&front), .random = seed, .behind = address->names[0]};
    if (relays->listener < 0) {
        free(relays);
        return error_set_errno(QUOIT_ERR_SYSTEM, errno, "chaos: a listening socket");
    }
    list_init(&relays->relays);
    watch(epoll, relays->listener);
    address->count = 1;
    address->names[0] = front;
    *result = relays;
    return QUOIT_OK;
}

static void relay_free(relay_t *relay, bool reset)
{
    struct linger hard = {.l_onoff = 1};
    for (int i = 0; i < 2; i++) {
        if (relay->fd[i] < 0) continue;
        if (reset) (void)setsockopt(relay->fd[i], SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
        close(relay->fd[i]);
    }
    list_remove(&relay->link);
    free(relay);
}

void chaos_relays_close(chaos_relays_t *relays)
{
    if (!relays) return;
    while (!list_is_empty(&relays->relays)) relay_free(container_of(relays->relays.next, relay_t, link), false);
    close(relays->listener);
    free(relays);
}

static void accept_one(chaos_relays_t *relays, int fd)
{
    relay_t *relay = calloc(1, sizeof *relay);
    if (!relay) {
        close(fd);
        return;
    }
    relay->fd[0] = fd;
    relay->fd[1] = socket(relays->behind.any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    list_append(&relays->relays, &relay->link);
    if (relay->fd[1] < 0 || (connect(relay->fd[1], &relays->behind.any, ip_name_size(&relays->behind)) != 0 && errno != EINPROGRESS)) {
        relay_free(relay, false);
        return;
    }
    for (int i = 0; i < 2; i++) {
        relay->stream[i].from = relay->fd[i];
        relay->stream[i].to = relay->fd[1 - i];
        watch(relays->epoll, relay->fd[i]);
    }
}

/* How many of `length` bytes may pass before the cut. */
static size_t allowance(size_t length)
{
    if (chaos_script.cut < 0 || atomic_load(&chaos_tally.cut)) return length;
    uint64_t passed = atomic_load(&chaos_tally.bytes), most = (uint64_t)chaos_script.cut;
    return passed >= most ? 0 : length < most - passed ? length : (size_t)(most - passed);
}

/* False: this is where the connection is cut. */
static bool forward(chaos_relays_t *relays, stream_t *stream, int *portions)
{
    size_t length = stream->end - stream->start;
    if (length == 0 || clock_now() < stream->due) return true;
    if (chaos_script.split > 0) {
        size_t most = 1 + chaos_draw(&relays->random, (uint64_t)chaos_script.split);
        if (length > most) length = most;
    }
    size_t allowed = allowance(length);
    if (allowed == 0) return atomic_exchange(&chaos_tally.cut, true); /* another one was cut at this moment: go on */
    ssize_t sent = send(stream->to, stream->bytes + stream->start, allowed, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        if (errno != EAGAIN && errno != ENOTCONN) stream->start = stream->end;
        return true;
    }
    stream->start += (size_t)sent;
    atomic_fetch_add(&chaos_tally.bytes, (uint64_t)sent);
    atomic_fetch_add(&chaos_tally.portions, 1);
    ++*portions;
    if (chaos_script.hold_us > 0) stream->due = clock_now() + chaos_draw(&relays->random, (uint64_t)chaos_script.hold_us) * 1000;
    return true;
}

static void fill(stream_t *stream)
{
    if (stream->start == stream->end) stream->start = stream->end = 0;
    if (stream->ended || stream->end == BUFFER) return;
    ssize_t got = recv(stream->from, stream->bytes + stream->end, BUFFER - stream->end, MSG_DONTWAIT);
    if (got > 0) stream->end += (size_t)got;
    stream->ended = got == 0 || (got < 0 && errno != EAGAIN && errno != ENOTCONN);
}

/* False: it is over. */
static bool relay_step(chaos_relays_t *relays, relay_t *relay, int *portions)
{
    for (int i = 0; i < 2; i++) {
        stream_t *stream = &relay->stream[i];
        fill(stream);
        if (!forward(relays, stream, portions)) {
            relay_free(relay, chaos_script.reset);
            return false;
        }
        if (stream->ended && !stream->told && stream->start == stream->end) {
            stream->told = true;
            shutdown(stream->to, SHUT_WR);
        }
    }
    if (!relay->stream[0].told || !relay->stream[1].told) return true;
    relay_free(relay, false);
    return false;
}

int chaos_relays_step(chaos_relays_t *relays)
{
    int portions = 0;
    for (int fd; (fd = accept4(relays->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) accept_one(relays, fd);
    for (list_t *node = relays->relays.next, *next; node != &relays->relays; node = next) {
        next = node->next;
        (void)relay_step(relays, container_of(node, relay_t, link), &portions);
    }
    return portions;
}

bool chaos_relays_busy(const chaos_relays_t *relays)
{
    for (const list_t *node = relays->relays.next; node != &relays->relays; node = node->next) {
        const relay_t *relay = container_of(node, const relay_t, link);
        for (int i = 0; i < 2; i++)
            if (relay->stream[i].start != relay->stream[i].end || (relay->stream[i].ended && !relay->stream[i].told)) return true;
    }
    return false;
}
