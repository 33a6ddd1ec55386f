/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What two processes tell each other over the control connection before their queue pairs work, and the limits that go in front of
 * the control connection's address. Pure functions; the parsers read bytes of peers and trust nothing.
 */
#ifndef QUOIT_TRANSPORT_VERBS_HELLO_H
#define QUOIT_TRANSPORT_VERBS_HELLO_H

#include "base/status.h"
#include "quoit/quoit_transport.h"

enum { VERBS_HELLO_SIZE = 128, VERBS_READY_SIZE = 8, VERBS_HOST_CAPACITY = 40, VERBS_LIMITS_SIZE = 12 };

/** Limits of a channel; two sides use the smaller of each. */
typedef struct verbs_limits {
    uint32_t eager_limit, eager_pool, segment_size; /* bytes */
    uint32_t rails; /* at least 1 */
} verbs_limits_t;

/** Of one link; there is one of each, in order. */
typedef struct verbs_hello {
    uint8_t gid[16], gid_type;
    uint16_t lid;
    uint8_t mtu, ethernet, link;
    uint32_t stream_qpn, stream_psn, direct_qpn, direct_psn; /* both numbers 0: this link cannot be had */
    uint32_t depth, buffer_size; /* the stream's receives, posted already */
    uint32_t direct_recvs;
    verbs_limits_t limits;
    uint32_t pid, mbps; /* the latter: of the rail */
    char host[VERBS_HOST_CAPACITY]; /* printable */
} verbs_hello_t;

typedef enum verbs_notice { VERBS_NOTICE_HELLO = 1, VERBS_NOTICE_READY } verbs_notice_t;

void verbs_hello_write(const verbs_hello_t *hello, uint8_t bytes[VERBS_HELLO_SIZE]);
void verbs_ready_write(uint8_t bytes[VERBS_READY_SIZE]);
/** ERR_PROTOCOL with a text for anything that is neither. */
quoit_status_t verbs_notice_parse(const void *bytes, size_t length, verbs_notice_t *type, verbs_hello_t *hello);

void verbs_limits_write(const verbs_limits_t *limits, uint8_t bytes[VERBS_LIMITS_SIZE]);
quoit_status_t verbs_limits_parse(const uint8_t *bytes, size_t length, verbs_limits_t *limits);
verbs_limits_t verbs_limits_least(verbs_limits_t a, verbs_limits_t b);

#endif
