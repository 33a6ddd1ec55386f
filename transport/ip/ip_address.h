/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a process tells its peers to be reached over TCP: some socket addresses and the limits of its channels, packed into at most
 * QUOIT_ADDRESS_CAPACITY bytes; and socket addresses as text. Also the preamble that follows the handshake on every socket.
 * Pure functions. The two parsers read bytes of peers and trust nothing.
 */
#ifndef QUOIT_TRANSPORT_IP_ADDRESS_H
#define QUOIT_TRANSPORT_IP_ADDRESS_H

#include "base/status.h"
#include "quoit/quoit_transport.h"

#include <netinet/in.h>
#include <stdbool.h>

enum {
    IP_MAX_ADDRESSES = 4, /* 4 of IPv6 still fit QUOIT_ADDRESS_CAPACITY */
    IP_NAME_CAPACITY = 80, /* "[ffff:...:ffff%4294967295]:65535" and its NUL */
    IP_PREAMBLE_SIZE = 104,
    IP_HOST_CAPACITY = 64
};

/** A socket address of one of the two families. */
typedef union ip_name {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} ip_name_t;

/** Limits of a connection; two sides use the smaller of each. */
typedef struct ip_limits {
    uint32_t eager_limit, eager_pool, segment_size; /* bytes */
    uint32_t sockets;
} ip_limits_t;

typedef struct ip_address {
    ip_limits_t limits;
    int count;
    ip_name_t names[IP_MAX_ADDRESSES]; /* the one to try first first */
    uint8_t rail[IP_MAX_ADDRESSES];     /* number of the rail (network interface) it belongs to; all 0 when there is one */
    uint32_t mbps[IP_MAX_ADDRESSES];    /* of that interface; 0: unknown. Told with 11 bits of precision */
} ip_address_t;

/** First bytes of a client on each of its sockets, once the handshake is done. */
typedef struct ip_preamble {
    uint64_t attempt; /* random; the same on all sockets of one attempt to connect */
    ip_limits_t limits; /* those in force on this connection */
    uint32_t pid;
    bool rails;    /* the channel's pipes may be lost one by one (channel_config_t) */
    uint8_t rail;  /* the server's, that this socket is on */
    uint32_t mbps; /* of the slower of its two interfaces; 0: unknown */
    char host[IP_HOST_CAPACITY]; /* printable */
} ip_preamble_t;

socklen_t ip_name_size(const ip_name_t *name);
uint16_t ip_name_port(const ip_name_t *name);
void ip_name_set_port(ip_name_t *name, uint16_t port);
/** "10.0.0.7:4123", "[fd00::7]:4123"; without a port when it is 0. Returns `text`. */
const char *ip_name_text(const ip_name_t *name, char text[IP_NAME_CAPACITY]);
bool ip_name_is_link_local(const ip_name_t *name); /* IPv6 only: those need a scope */

ip_limits_t ip_limits_least(ip_limits_t a, ip_limits_t b);

/** Rails of a process: the highest number in its address, and one. */
int ip_address_rails(const ip_address_t *address);
/** *length is the capacity on entry. */
quoit_status_t ip_address_write(const ip_address_t *address, void *bytes, size_t *length);
/** ERR_PROTOCOL with a text for anything that is no address of this version. */
quoit_status_t ip_address_parse(const void *bytes, size_t length, ip_address_t *address);

void ip_preamble_write(const ip_preamble_t *preamble, uint8_t bytes[IP_PREAMBLE_SIZE]);
quoit_status_t ip_preamble_parse(const uint8_t bytes[IP_PREAMBLE_SIZE], ip_preamble_t *preamble);

#endif
