/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the transport `chaos`: chaos.c has the calls, chaos_relay.c the relays. */
#ifndef QUOIT_TEST_CHAOS_INTERNAL_H
#define QUOIT_TEST_CHAOS_INTERNAL_H

#include "base/list.h"
#include "chaos.h"
#include "quoit/quoit_transport.h"
#include "transport/ip/ip_address.h"

#include <stdatomic.h>

typedef struct chaos_relays chaos_relays_t;

typedef struct chaos_transport {
    quoit_transport_t base; /* first */
    quoit_transport_environment_t environment;
    quoit_transport_t *inner;
    const quoit_transport_ops_t *ops; /* the inner one's */
    chaos_relays_t *relays; /* NULL: none */
    int epoll;
    uint64_t random;
    list_t endpoints, late; /* chaos_endpoint_t, all until close; chaos_message_t, in order of issue */
} chaos_transport_t;

/** Of the process. */
extern chaos_script_t chaos_script;
extern struct chaos_tally {
    _Atomic uint64_t calls[CHAOS_CALL_COUNT], bytes, late, refused, idle, portions;
    _Atomic bool cut, failed;
} chaos_tally;

static inline uint64_t chaos_draw(uint64_t *state, uint64_t below) /* splitmix64 */
{
    uint64_t value = *state += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    return (value ^ (value >> 31)) % below;
}

/** Listen in front of `address`, which becomes the relay's. */
quoit_status_t chaos_relays_open(int epoll, uint64_t seed, ip_address_t *address, chaos_relays_t **relays);
void chaos_relays_close(chaos_relays_t *relays); /* NULL is accepted */
/** Forward what can be; number of portions. */
int chaos_relays_step(chaos_relays_t *relays);
/** Some bytes have not been forwarded. */
bool chaos_relays_busy(const chaos_relays_t *relays);

#endif
