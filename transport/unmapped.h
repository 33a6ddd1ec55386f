/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Calls for the table of a transport whose processes cannot read each other's memory: each refuses, or has nothing to do. And
 * registration, for one that needs none.
 */
#ifndef QUOIT_TRANSPORT_UNMAPPED_H
#define QUOIT_TRANSPORT_UNMAPPED_H

#include "quoit/quoit_transport.h"

quoit_status_t unmapped_share_alloc(quoit_transport_t *transport, size_t length, void **pointer);
void unmapped_share_free(quoit_transport_t *transport, void *pointer);
quoit_status_t unmapped_share_root(quoit_transport_t *transport, void **pointer);
quoit_status_t unmapped_export(quoit_transport_t *transport, const void *pointer, size_t length, void *handle);
quoit_status_t unmapped_attach(quoit_endpoint_t *endpoint, const void *handle, void **pointer, size_t *length);
void unmapped_ring(quoit_endpoint_t *endpoint);

quoit_status_t unregistered_reg(quoit_transport_t *transport, const void *pointer, size_t length);
void unregistered_dereg(quoit_transport_t *transport, const void *pointer);

#endif
