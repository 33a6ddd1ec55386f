/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rails: QUOIT_INTERFACE names several interfaces on both hosts. The side that calls spreads its sockets over them, one at least on each: a
 * socket is bound to the own interface that is attached to its target's network, else to the one in the same place of the list. The channel
 * (framing/channel_rails.c) shares bytes out by the slower rate of the two interfaces, and goes on when a rail is lost.
 *
 * A rail that cannot be connected is passed over: the connection is begun once more without it. One that falls silent, while others are
 * there, is given up after `times.rail`, with all its sockets. Nothing comes back: a later connection tries all rails anew.
 */
#include "base/log.h"
#include "transport/tcp/tcp.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* ---------------------------------------------------------------- calling */

static bool is_bad(const tcp_endpoint_t *endpoint, int rail) { return endpoint->bad_rails >> rail & 1; }

/* The own address that faces a target, as its number among those chosen; -1: the kernel may decide. */
static int facing(const tcp_transport_t *transport, const tcp_target_t *target)
{
    int same = -1, near = -1;
    for (int i = 0; i < transport->choice.count; i++) {
        const ip_interface_t *own = &transport->choice.chosen[i];
        if (own->address.any.sa_family != target->name.any.sa_family) continue;
        bool placed = transport->choice.rail[i] == target->rail;
        if (placed && same < 0) same = i;
        if (ip_interface_reaches(own, &target->name) && (near < 0 || placed)) near = i;
    }
    return near >= 0 ? near : same;
}

static uint32_t slower(uint32_t a, uint32_t b) { return a == 0 ? b : b == 0 || a < b ? a : b; }

/* One socket on each rail that is left, and as many as the settings want. */
static void count_sockets(tcp_endpoint_t *endpoint)
{
    unsigned usable = 0;
    for (int rail = 0; rail < endpoint->rail_count; rail++) usable += !is_bad(endpoint, rail);
    endpoint->limits.sockets = endpoint->sockets > usable ? endpoint->sockets : usable;
}

void tcp_rails_begin(tcp_endpoint_t *endpoint, const ip_address_t *address)
{
    tcp_transport_t *transport = endpoint->transport;
    int theirs = ip_address_rails(address), count = 0;
    endpoint->rail_count = theirs < transport->choice.rails ? theirs : transport->choice.rails;
    for (int i = 0; i < address->count; i++) {
        if (address->rail[i] >= endpoint->rail_count) continue;
        tcp_target_t *target = &endpoint->targets[count++];
        *target = (tcp_target_t){.name = address->names[i], .rail = address->rail[i]};
        int own = facing(transport, target);
        target->mbps = slower(address->mbps[i], own >= 0 ? transport->choice.mbps[own] : 0);
    }
    endpoint->target_count = count;
    endpoint->bad_rails = 0;
    count_sockets(endpoint);
}

int tcp_rails_address(const tcp_endpoint_t *endpoint, int pipe)
{
    const tcp_target_t *first = &endpoint->targets[endpoint->chosen->address];
    int rail = first->rail, found = -1;
    for (int step = 0; step < pipe; step++) {
        do rail = (rail + 1) % endpoint->rail_count;
        while (is_bad(endpoint, rail));
    }
    for (int i = 0; i < endpoint->target_count; i++) {
        if (endpoint->targets[i].rail != rail) continue;
        if (found < 0 || endpoint->targets[i].name.any.sa_family == first->name.any.sa_family) found = i;
    }
    return found >= 0 ? found : endpoint->chosen->address;
}

int tcp_rails_bind(tcp_socket_t *caller)
{
    const tcp_target_t *target = &caller->endpoint->targets[caller->address];
    const ip_choice_t *choice = &caller->transport->choice;
    int own = facing(caller->transport, target);
    caller->rail = target->rail;
    caller->mbps = target->mbps;
    if (own < 0) return 0;
    const ip_interface_t *interface = &choice->chosen[own];
    /* A wish: with it two interfaces in one network work too; old kernels want privileges for it. Bytes to an own address go over the loopback device. */
    if (!ip_interface_owns(interface, &target->name))
        (void)setsockopt(caller->fd, SOL_SOCKET, SO_BINDTODEVICE, interface->name, (socklen_t)strlen(interface->name) + 1);
    return bind(caller->fd, &interface->address.any, ip_name_size(&interface->address)) == 0 ? 0 : errno;
}

bool tcp_rails_pass_over(tcp_socket_t *caller, const char *cause)
{
    tcp_endpoint_t *endpoint = caller->endpoint;
    const tcp_target_t *target = &endpoint->targets[caller->address], *first = &endpoint->targets[endpoint->chosen->address];
    char name[IP_NAME_CAPACITY];
    if (endpoint->rails == NULL || caller->pipe == 0 || target->rail == first->rail) return false;
    int own = facing(endpoint->transport, target);
    log_warn("tcp", "rail %s to %s of %s is not used: %s; the others carry its part",
             own >= 0 ? endpoint->transport->choice.chosen[own].name : "?", ip_name_text(&target->name, name), endpoint->base.name, cause);
    endpoint->bad_rails |= 1u << target->rail;
    count_sockets(endpoint);
    tcp_call_drop(endpoint);
    endpoint->attempt++; /* sockets of this try belong to none that comes */
    endpoint->newest_try = 0;
    return true;
}

/* ---------------------------------------------------------------- standing */

/* Which of the own interfaces: a bit of transport->rails_left. */
static int own_rail(const tcp_transport_t *transport, const char *interface)
{
    for (int i = 0; i < transport->choice.count; i++)
        if (strcmp(transport->choice.chosen[i].name, interface) == 0) return transport->choice.rail[i];
    return IP_MAX_ADDRESSES;
}

static void name_rail(tcp_endpoint_t *endpoint, const tcp_socket_t *pipe)
{
    char interface[IF_NAMESIZE], from[IP_NAME_CAPACITY] = "?", to[IP_NAME_CAPACITY];
    tcp_rail_t *rail = &endpoint->rails[pipe->rail];
    ip_name_t local;
    socklen_t size = sizeof local;
    if (rail->text[0] != 0) return;
    tcp_socket_interface(pipe, interface);
    if (getsockname(pipe->fd, &local.any, &size) == 0) {
        ip_name_set_port(&local, 0);
        ip_name_text(&local, from);
    }
    snprintf(rail->text, sizeof rail->text, "%s (%s -> %s)", interface, from, ip_name_text(&pipe->remote, to));
    rail->own = own_rail(endpoint->transport, interface);
}

void tcp_rails_establish(tcp_endpoint_t *endpoint)
{
    int sockets[IP_MAX_ADDRESSES] = {0};
    bool known = true;
    for (int i = 0; i < endpoint->pipe_count; i++) {
        const tcp_socket_t *pipe = endpoint->pipes[i];
        sockets[pipe->rail]++;
        known = known && pipe->mbps > 0;
        name_rail(endpoint, pipe);
    }
    size_t used = 0, capacity = sizeof endpoint->base.description;
    used = (size_t)snprintf(endpoint->base.description, capacity, "tcp, %d sockets", endpoint->pipe_count);
    for (int i = 0; i < endpoint->pipe_count; i++) {
        const tcp_socket_t *pipe = endpoint->pipes[i];
        uint32_t weight = known ? pipe->mbps * 16 / (uint32_t)sockets[pipe->rail] : 1;
        channel_weigh(endpoint->base.channel, i, weight);
        bool first = true;
        for (int k = 0; k < i; k++) first = first && endpoint->pipes[k]->rail != pipe->rail;
        if (first && used < capacity)
            used += (size_t)snprintf(endpoint->base.description + used, capacity - used, "%s rail %s %u Mb/s", i > 0 ? "," : "",
                                     endpoint->rails[pipe->rail].text, pipe->mbps);
    }
    const tls_session_t *tls = endpoint->pipes[0]->tls;
    if (tls != NULL && used < capacity) snprintf(endpoint->base.description + used, capacity - used, ", %s", tls_session_description(tls));
}

/* Is there another rail than this pipe's? */
static bool has_other(const tcp_endpoint_t *endpoint, int rail)
{
    for (int i = 0; i < endpoint->pipe_count; i++)
        if (endpoint->pipes[i] != NULL && endpoint->pipes[i]->rail != rail) return true;
    return false;
}

int tcp_rails_silence(const tcp_endpoint_t *endpoint, const tcp_socket_t *pipe)
{
    const tcp_times_t *times = &endpoint->transport->times;
    return has_other(endpoint, pipe->rail) ? times->rail : times->silence;
}

/* Once for an endpoint; as a warning once for an interface, for a cable takes many connections with it. */
static void tell(tcp_endpoint_t *endpoint, int number, const char *cause)
{
    tcp_transport_t *transport = endpoint->transport;
    tcp_rail_t *rail = &endpoint->rails[number];
    unsigned bit = 1u << rail->own;
    if (rail->told) return;
    rail->told = true;
    log_write(transport->rails_left & bit ? LOG_INFO : LOG_WARN, "tcp", "rail %s of %s is left: %s; the others carry its part", rail->text, endpoint->base.name,
              cause);
    transport->rails_left |= bit;
}

void tcp_rails_look(tcp_endpoint_t *endpoint)
{
    for (int i = 0; i < endpoint->pipe_count; i++) {
        const char *cause = "";
        channel_pipe_state_t state = channel_pipe_state(endpoint->base.channel, i, &cause);
        if (state == CHANNEL_PIPE_GOOD) continue;
        if (endpoint->pipes[i] != NULL) {
            endpoint->lost_rail[i] = (int8_t)endpoint->pipes[i]->rail;
            tcp_socket_destroy(endpoint->pipes[i]);
            endpoint->pipes[i] = NULL;
            tcp_endpoint_touch(endpoint); /* word of it */
        }
        /* When the peer's process has died all rails end, one after the other: only its answer tells that it was the rail. */
        if (state == CHANNEL_PIPE_LOST && channel_status(endpoint->base.channel) == QUOIT_OK) tell(endpoint, endpoint->lost_rail[i], cause);
    }
}

bool tcp_rails_lose(tcp_endpoint_t *endpoint, const tcp_socket_t *pipe)
{
    int rail = pipe->rail;
    if (!has_other(endpoint, rail)) return false;
    error_set(QUOIT_ERR_NETWORK, "nothing was acknowledged for %.3g s; the link is cut, or an interface or the host is down", endpoint->transport->times.rail / 1e3);
    for (int i = 0; i < endpoint->pipe_count; i++)
        if (endpoint->pipes[i] != NULL && endpoint->pipes[i]->rail == rail) channel_lose(endpoint->base.channel, i, QUOIT_ERR_NETWORK);
    tcp_rails_look(endpoint);
    tcp_endpoint_touch(endpoint);
    return true;
}
