/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Which of this host's addresses to listen on and to tell peers. ip_interface_choose is a pure function of a list of interfaces,
 * so that any machine's can be tried; ip_interface_scan asks this machine.
 *
 * A pattern is a list separated by commas. An item is a name ("eth0"), a prefix ("eth*"; also plain "eth" when no interface has
 * exactly that name), an exact name and nothing else ("=eth0"), or a network ("10.0.0.0/8", "fd00::/16"). A leading "^" turns the
 * whole list around: everything but these. An empty pattern takes all interfaces that are up.
 */
#ifndef QUOIT_TRANSPORT_IP_INTERFACE_H
#define QUOIT_TRANSPORT_IP_INTERFACE_H

#include "transport/ip/ip_address.h"

#include <net/if.h>

/** One address of an interface; one with several addresses is listed several times. */
typedef struct ip_interface {
    char name[IF_NAMESIZE];
    unsigned flags; /* IFF_UP, IFF_RUNNING, IFF_LOOPBACK */
    ip_name_t address; /* port 0 */
    unsigned bits;      /* of the address that are its network's; 0: unknown */
    int distance;       /* of its device from this process (base/place.h); 0: near, or unknown */
    int numa_node;      /* where its device is attached; -1: unknown */
    uint32_t mbps;      /* that the driver tells of, in this network namespace; 0: it does not know */
} ip_interface_t;

typedef struct ip_interface_wish {
    const char *variable; /* for messages: "QUOIT_INTERFACE" */
    const char *pattern;  /* "" takes all */
    int family;           /* AF_UNSPEC, AF_INET, AF_INET6 */
    const ip_name_t *route; /* address from which the route to the rendezvous leaves, to be put first; NULL: unknown */
} ip_interface_wish_t;

/**
 * The addresses to use, best first, at most `capacity`. A list's order is its user's preference; otherwise: the route's address (before it those
 * of its network whose device is nearer, and at least half as fast), real interfaces, the nearer ones first, virtual ones (docker0, br-*, veth*, no carrier), loopback. IPv6 link-local addresses only where their interface is named.
 * @return ERR_INVALID when the pattern cannot be read; ERR_NOT_FOUND when nothing fits. Both texts list what there is.
 */
quoit_status_t ip_interface_choose(const ip_interface_t *all, int all_count, const ip_interface_wish_t *wish,
                                    ip_interface_t *chosen, int capacity, int *count);
/** This machine's. *all is to be freed with free(). */
quoit_status_t ip_interface_scan(ip_interface_t **all, int *count);
/**
 * The same, or what another call for it found in this network namespace within the last second: those who ask one after the other while a
 * transport is opened, or its connections come to stand. A scan asks the kernel for all links and all addresses.
 */
quoit_status_t ip_interface_recent(ip_interface_t **all, int *count);
/** Is it this interface's own address? Ports do not count. */
bool ip_interface_owns(const ip_interface_t *interface, const ip_name_t *address);
/** Is the address in the network that this interface is attached to? */
bool ip_interface_reaches(const ip_interface_t *interface, const ip_name_t *address);
/** Local address of the route to `host`, when that is a numeric address; false when unknown. Sends nothing. */
bool ip_interface_route(const char *host, ip_name_t *local);

#endif
