/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport of a library that was built without libibverbs' headers: it says so when it is asked for. Compiled instead of
 * the other files of this folder. Without a successful open no other call can be reached.
 */
#include "base/status.h"
#include "transport/registry.h"

#include <stdio.h>

static const char reason[] = "not built: the headers of libibverbs (Debian: libibverbs-dev) were not there when this library was compiled";

static quoit_status_t absent_probe(const quoit_transport_environment_t *environment, char *why, size_t capacity)
{
    (void)environment;
    if (capacity > 0) snprintf(why, capacity, "%s", reason);
    return QUOIT_ERR_NOT_FOUND;
}

static quoit_status_t absent_open(const quoit_transport_environment_t *environment, quoit_transport_t **transport)
{
    (void)environment, (void)transport;
    return error_set(QUOIT_ERR_NOT_FOUND, "verbs: %s", reason);
}

const quoit_transport_ops_t transport_verbs = {
    .abi = QUOIT_TRANSPORT_ABI,
    .struct_size = sizeof(quoit_transport_ops_t),
    .name = "verbs",
    .flags = QUOIT_TRANSPORT_MESSAGE | QUOIT_TRANSPORT_PUT,
    .probe = absent_probe,
    .open = absent_open,
};
