/* SPDX-License-Identifier: Apache-2.0 */
/* In place of the UCX transport where its headers were missing when the library was built: a table whose probe says so. */
#include "base/status.h"
#include "transport/registry.h"

#include <stdio.h>

static const char reason[] = "not built: the headers of UCX (ucp/api/ucp.h; Debian: libucx-dev) were not there when this library was compiled";

static quoit_status_t absent_probe(const quoit_transport_environment_t *environment, char *why, size_t capacity)
{
    (void)environment;
    if (capacity > 0) snprintf(why, capacity, "%s", reason);
    return QUOIT_ERR_NOT_FOUND;
}

static quoit_status_t absent_open(const quoit_transport_environment_t *environment, quoit_transport_t **transport)
{
    (void)environment, (void)transport;
    return error_set(QUOIT_ERR_NOT_FOUND, "ucx: %s", reason);
}

static void absent_close(quoit_transport_t *transport) { (void)transport; }

/* The rest is never called: there is no opened transport. */
const quoit_transport_ops_t transport_ucx = {
    .abi = QUOIT_TRANSPORT_ABI,
    .struct_size = sizeof(quoit_transport_ops_t),
    .name = "ucx",
    .flags = QUOIT_TRANSPORT_MESSAGE,
    .probe = absent_probe,
    .open = absent_open,
    .close = absent_close,
};
