/* SPDX-License-Identifier: Apache-2.0 */
/** What the settings say about addresses and limits, for the transports that are reached at IP addresses. */
#ifndef QUOIT_TRANSPORT_IP_SETTINGS_H
#define QUOIT_TRANSPORT_IP_SETTINGS_H

#include "transport/ip/ip_interface.h"

typedef struct ip_choice {
    int count;
    ip_interface_t chosen[IP_MAX_ADDRESSES]; /* best first */
    bool named; /* the user named them: not being able to use one is an error */
    int rails;  /* interfaces that carry together: several where QUOIT_INTERFACE names several; else 1 */
    int rail[IP_MAX_ADDRESSES];      /* the one that an address belongs to */
    uint32_t mbps[IP_MAX_ADDRESSES]; /* its rate: of setting INTERFACE_RATES, else of the driver; 0: unknown */
} ip_choice_t;

/** A peer's link-local address gets the scope of an interface in use here, for a scope is a host's own business. Others are left alone. */
void ip_choice_set_scope(const ip_choice_t *choice, ip_name_t *name);

/** INTERFACE, IP_FAMILY, else what other libraries were told, else by route. `room` is the transport's name in log lines. */
quoit_status_t ip_settings_interfaces(const quoit_transport_environment_t *environment, const char *room, ip_choice_t *choice);
/** Rate of a device: what `rates` (setting INTERFACE_RATES) says, else the driver's. ERR_INVALID: the setting cannot be read. */
quoit_status_t ip_settings_rate(const char *rates, const char *device, uint32_t driver, uint32_t *mbps);
/** TCP_SOCKETS, EAGER_LIMIT, EAGER_POOL, SEGMENT_SIZE, and CONNECT_TIMEOUT in milliseconds. */
quoit_status_t ip_settings_limits(const quoit_transport_environment_t *environment, ip_limits_t *limits, int *connect_ms);

#endif
