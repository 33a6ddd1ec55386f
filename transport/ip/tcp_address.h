/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a process tells its peers to be reached over TCP: some socket addresses and the limits of its channels, packed into at most
 * QUOIT_ADDRESS_CAPACITY bytes; and socket addresses as text. Also the preamble that follows the handshake on every socket.
 * Pure functions. The two parsers read bytes of peers and trust nothing.
 */
#ifndef QUOIT_TRANSPORT_TCP_ADDRESS_H
#define QUOIT_TRANSPORT_TCP_ADDRESS_H

#include "base/status.h"
#include "quoit/quoit_transport.h"

#include <netinet/in.h>
#include <stdbool.h>

enum {
    TCP_MAX_ADDRESSES = 4, /* 4 of IPv6 still fit QUOIT_ADDRESS_CAPACITY */
    TCP_NAME_CAPACITY = 80, /* "[ffff:...:ffff%4294967295]:65535" and its NUL */
    TCP_PREAMBLE_SIZE = 104,
    TCP_HOST_CAPACITY = 64
};

/** A socket address of one of the two families. */
typedef union tcp_name {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} tcp_name_t;

/** Limits of a connection; two sides use the smaller of each. */
typedef struct tcp_limits {
    uint32_t eager_limit, eager_pool, segment_size; /* bytes */
    uint32_t sockets;
} tcp_limits_t;

typedef struct tcp_address {
    tcp_limits_t limits;
    int count;
    tcp_name_t names[TCP_MAX_ADDRESSES]; /* the one to try first first */
    uint8_t rail[TCP_MAX_ADDRESSES];     /* number of the rail (network interface) it belongs to; all 0 when there is one */
    uint32_t mbps[TCP_MAX_ADDRESSES];    /* of that interface; 0: unknown. Told with 11 bits of precision */
} tcp_address_t;

/** First bytes of a client on each of its sockets, once the handshake is done. */
typedef struct tcp_preamble {
    uint64_t attempt; /* random; the same on all sockets of one attempt to connect */
    tcp_limits_t limits; /* those in force on this connection */
    uint32_t pid;
    bool rails;    /* the channel's pipes may be lost one by one (channel_config_t) */
    uint8_t rail;  /* the server's, that this socket is on */
    uint32_t mbps; /* of the slower of its two interfaces; 0: unknown */
    char host[TCP_HOST_CAPACITY]; /* printable */
} tcp_preamble_t;

socklen_t tcp_name_size(const tcp_name_t *name);
uint16_t tcp_name_port(const tcp_name_t *name);
void tcp_name_set_port(tcp_name_t *name, uint16_t port);
/** "10.0.0.7:4123", "[fd00::7]:4123"; without a port when it is 0. Returns `text`. */
const char *tcp_name_text(const tcp_name_t *name, char text[TCP_NAME_CAPACITY]);
bool tcp_name_is_link_local(const tcp_name_t *name); /* IPv6 only: those need a scope */

tcp_limits_t tcp_limits_least(tcp_limits_t a, tcp_limits_t b);

/** Rails of a process: the highest number in its address, and one. */
int tcp_address_rails(const tcp_address_t *address);
/** *length is the capacity on entry. */
quoit_status_t tcp_address_write(const tcp_address_t *address, void *bytes, size_t *length);
/** ERR_PROTOCOL with a text for anything that is no address of this version. */
quoit_status_t tcp_address_parse(const void *bytes, size_t length, tcp_address_t *address);

void tcp_preamble_write(const tcp_preamble_t *preamble, uint8_t bytes[TCP_PREAMBLE_SIZE]);
quoit_status_t tcp_preamble_parse(const uint8_t bytes[TCP_PREAMBLE_SIZE], tcp_preamble_t *preamble);

#endif
