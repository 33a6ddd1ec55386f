/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the network itself takes for 4 bytes: a bare TCP connection, one message back and forth at a time. bench/network compares with it.
 *
 *     pingpong serve PORT                        one client, then the end
 *     pingpong ADDRESS PORT SECONDS poll|sleep   prints the median of one way (half of there and back) in microseconds
 *
 * "poll" asks for the answer without sleeping, yielding the processor in between; "sleep" lets the kernel wake the process. Both sides do
 * the same: the client's first byte tells.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { BYTES = 4, MOST = 1 << 18, WARM = 200, LIMIT_S = 30 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec * 1e-3;
}

static void fail(const char *what)
{
    fprintf(stderr, "pingpong: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* False at the end of the connection. */
static bool take(int fd, char *bytes, bool poll)
{
    double deadline = now() + LIMIT_S * 1e6;
    for (size_t have = 0; have < BYTES;) {
        ssize_t got = recv(fd, bytes + have, BYTES - have, poll ? MSG_DONTWAIT : 0);
        if (got > 0) have += (size_t)got;
        else if (got == 0) return false;
        else if (errno != EAGAIN && errno != EINTR) fail("recv");
        else if (poll) sched_yield();
        if (now() > deadline) {
            errno = ETIMEDOUT;
            fail("recv");
        }
    }
    return true;
}

static void give(int fd, const char *bytes)
{
    if (send(fd, bytes, BYTES, MSG_NOSIGNAL) != BYTES) fail("send");
}

static void prepare(int fd)
{
    int one = 1;
    struct timeval limit = {.tv_sec = LIMIT_S};
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) != 0) fail("TCP_NODELAY");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0) fail("SO_RCVTIMEO");
}

static int serve(int port)
{
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0) fail("socket");
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 1) != 0) fail("listen");
    puts("listening");
    fflush(stdout);
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) fail("accept");
    prepare(fd);
    char bytes[BYTES];
    bool poll = false;
    while (take(fd, bytes, poll)) {
        poll = bytes[0] == 'p';
        give(fd, bytes);
    }
    close(fd);
    close(listener);
    return 0;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int ask(const char *where, int port, double seconds, bool poll)
{
    static double times[MOST];
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), count = 0;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
    if (fd < 0 || inet_pton(AF_INET, where, &address.sin_addr) != 1) fail(where);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) fail("connect");
    prepare(fd);
    char bytes[BYTES] = {poll ? 'p' : 's'};
    double end = 0;
    for (int i = 0; i < WARM + MOST && (i <= WARM || now() < end); i++) {
        double start = now();
        give(fd, bytes);
        if (!take(fd, bytes, poll)) fail("the other side left");
        if (i == WARM) end = now() + seconds * 1e6;
        if (i >= WARM) times[count++] = now() - start;
    }
    qsort(times, (size_t)count, sizeof *times, compare);
    printf("%.3f\n", times[count / 2] / 2);
    close(fd);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "serve") == 0) return serve(atoi(argv[2]));
    if (argc == 5 && (strcmp(argv[4], "poll") == 0 || strcmp(argv[4], "sleep") == 0))
        return ask(argv[1], atoi(argv[2]), atof(argv[3]), strcmp(argv[4], "poll") == 0);
    fputs("usage: pingpong serve PORT | pingpong ADDRESS PORT SECONDS poll|sleep\n", stderr);
    return 2;
}
