/* SPDX-License-Identifier: Apache-2.0 */
/** Where the store's server listens: see store_server_start. */
#include "base/store_listen.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { BACKLOG = 4096, TAKEN_PATIENCE_MS = 500 };

const char *store_address_text(const store_address_t *address, char text[STORE_ADDRESS_CAPACITY])
{
    char host[64], port[8];
    if (getnameinfo((const struct sockaddr *)&address->address, address->length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(text, STORE_ADDRESS_CAPACITY, "?");
    else
        snprintf(text, STORE_ADDRESS_CAPACITY, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return text;
}

static store_address_t any_address(int family, int port)
{
    store_address_t any = {0};
    if (family == AF_INET6) {
        struct sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = in6addr_any};
        memcpy(&any.address, &address, any.length = sizeof address);
    } else {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_ANY)};
        memcpy(&any.address, &address, any.length = sizeof address);
    }
    return any;
}

static store_address_t loopback_instead_of_any(store_address_t address)
{
    struct sockaddr_in six_less;
    struct sockaddr_in6 six;
    if (address.address.ss_family == AF_INET6) {
        memcpy(&six, &address.address, sizeof six);
        if (IN6_IS_ADDR_UNSPECIFIED(&six.sin6_addr)) six.sin6_addr = in6addr_loopback;
        memcpy(&address.address, &six, sizeof six);
    } else {
        memcpy(&six_less, &address.address, sizeof six_less);
        if (six_less.sin_addr.s_addr == htonl(INADDR_ANY)) six_less.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        memcpy(&address.address, &six_less, sizeof six_less);
    }
    return address;
}

/* The socket, or -1 with errno. `only_six`: an IPv6 socket leaves IPv4 alone. */
static int listen_once(const store_address_t *address, bool only_six)
{
    int family = address->address.ss_family, on = 1, six = only_six;
    int fd = limits_above_standard(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (fd < 0) return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (family == AF_INET6) (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &six, sizeof six);
    if (bind(fd, (const struct sockaddr *)&address->address, address->length) == 0 && listen(fd, BACKLOG) == 0) return fd;
    int number = errno;
    close(fd);
    errno = number;
    return -1;
}

/* A port may be taken for a moment, by a store that is just closing or as the source of somebody's connection. */
static int listen_patiently(const store_address_t *address, bool only_six)
{
    uint64_t deadline = clock_deadline(TAKEN_PATIENCE_MS);
    while (true) {
        int fd = listen_once(address, only_six);
        if (fd >= 0 || errno != EADDRINUSE || clock_left_ms(deadline) == 0) return fd;
        usleep(20000);
    }
}

static quoit_status_t listen_failed(const store_address_t *address, int number)
{
    char text[STORE_ADDRESS_CAPACITY];
    store_address_text(address, text);
    if (number == EADDRINUSE)
        return error_set(QUOIT_ERR_SYSTEM, "store: rank 0 cannot serve at %s: another program listens there already; name another port",
                         text);
    return error_set_errno(QUOIT_ERR_SYSTEM, number, "store: rank 0 cannot serve at %s", text);
}

static bool is_absent(int number) { return number == EADDRNOTAVAIL || number == EAFNOSUPPORT || number == EPROTONOSUPPORT; }

static quoit_status_t listen_anywhere(int port, int *fd, store_address_t *own)
{
    store_address_t any = any_address(AF_INET6, port);
    int listener = listen_patiently(&any, false);
    if (listener < 0 && is_absent(errno)) {
        any = any_address(AF_INET, port);
        listener = listen_patiently(&any, false);
    }
    if (listener < 0) return listen_failed(&any, errno);
    *fd = listener;
    /* An IPv6 socket takes IPv4 as well, and can be made where IPv6 is switched off, as in most containers: there is no ::1 then. */
    *own = loopback_instead_of_any(any_address(AF_INET, port));
    return QUOIT_OK;
}

static bool means_itself(const char *host)
{
    struct in6_addr six;
    struct in_addr four;
    char plain[64];
    snprintf(plain, sizeof plain, "%.*s", (int)strcspn(host, "%"), host); /* without an IPv6 zone */
    return inet_pton(AF_INET6, plain, &six) == 1 || inet_pton(AF_INET, plain, &four) == 1 || !strcasecmp(host, "localhost");
}

static quoit_status_t listen_at_each(const struct addrinfo *found, int fds[STORE_ADDRESS_MOST], int *count, store_address_t *own)
{
    int made = 0;
    for (const struct addrinfo *info = found; info && made < STORE_ADDRESS_MOST; info = info->ai_next) {
        store_address_t address = {.length = info->ai_addrlen};
        if (info->ai_addrlen > sizeof address.address) continue;
        memcpy(&address.address, info->ai_addr, info->ai_addrlen);
        int fd = listen_patiently(&address, true);
        if (fd < 0 && is_absent(errno)) continue;
        if (fd < 0) {
            quoit_status_t status = listen_failed(&address, errno);
            while (made > 0) close(fds[--made]);
            return status;
        }
        if (made == 0) *own = loopback_instead_of_any(address);
        fds[made++] = fd;
    }
    *count = made;
    return QUOIT_OK;
}

quoit_status_t store_listen(const char *host, int port, int fds[STORE_ADDRESS_MOST], int *count, store_address_t *own)
{
    if (means_itself(host)) {
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *found;
        char service[8];
        snprintf(service, sizeof service, "%d", port);
        int code = getaddrinfo(host, service, &hints, &found);
        if (code != 0) return error_set(QUOIT_ERR_INVALID, "store: host %s: %s", host, gai_strerror(code));
        quoit_status_t status = listen_at_each(found, fds, count, own);
        freeaddrinfo(found);
        if (status != QUOIT_OK || *count > 0) return status;
        log_info("store", "%s is no address of this machine; the store listens at all addresses, port %d", host, port);
    }
    quoit_status_t status = listen_anywhere(port, &fds[0], own);
    if (status == QUOIT_OK) *count = 1;
    return status;
}
