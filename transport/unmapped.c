/* SPDX-License-Identifier: Apache-2.0 */
/* See unmapped.h. */
#include "transport/unmapped.h"

#include "base/status.h"

static quoit_status_t unsupported(const quoit_transport_t *transport)
{
    return error_set(QUOIT_ERR_UNSUPPORTED, "%s: processes share no memory over this transport", transport->ops->name);
}

quoit_status_t unmapped_share_alloc(quoit_transport_t *transport, size_t length, void **pointer)
{
    (void)length, (void)pointer;
    return unsupported(transport);
}

void unmapped_share_free(quoit_transport_t *transport, void *pointer) { (void)transport, (void)pointer; }

quoit_status_t unmapped_share_root(quoit_transport_t *transport, void **pointer)
{
    (void)pointer;
    return unsupported(transport);
}

quoit_status_t unmapped_export(quoit_transport_t *transport, const void *pointer, size_t length, void *handle)
{
    (void)pointer, (void)length, (void)handle;
    return unsupported(transport);
}

quoit_status_t unmapped_attach(quoit_endpoint_t *endpoint, const void *handle, void **pointer, size_t *length)
{
    (void)handle, (void)pointer, (void)length;
    return unsupported(endpoint->transport);
}

void unmapped_ring(quoit_endpoint_t *endpoint) { (void)endpoint; }

quoit_status_t unregistered_reg(quoit_transport_t *transport, const void *pointer, size_t length)
{
    (void)transport, (void)pointer, (void)length;
    return QUOIT_OK;
}

void unregistered_dereg(quoit_transport_t *transport, const void *pointer) { (void)transport, (void)pointer; }
