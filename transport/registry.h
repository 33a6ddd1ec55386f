/* SPDX-License-Identifier: Apache-2.0 */
/** Registry: the transports there are, built in or loaded from QUOIT_TRANSPORT_PLUGIN, in the order of QUOIT_TRANSPORT. */
#ifndef QUOIT_TRANSPORT_REGISTRY_H
#define QUOIT_TRANSPORT_REGISTRY_H

#include "base/status.h"
#include "quoit/quoit_transport.h"

extern const quoit_transport_ops_t transport_self;
extern const quoit_transport_ops_t transport_shm;
extern const quoit_transport_ops_t transport_tcp;
extern const quoit_transport_ops_t transport_ucx; /* only by name: never in "auto" */
extern const quoit_transport_ops_t transport_verbs;

enum { REGISTRY_CAPACITY = 16 };

/**
 * Transports to use, most wanted first; "auto" means plug-ins, shm, verbs (unless TLS is asked for), tcp (self always belongs to it, at the end). Loads plug-ins on the first call.
 * optional[i] (where not NULL is given): this process may go on without list[i]. So it is with all of "auto", and with a name that ends in "?".
 * ERR_INVALID for a name there is none of (listing those there are), for a shared object that cannot be loaded or whose ABI differs.
 */
quoit_status_t transport_registry_list(const quoit_transport_ops_t *list[REGISTRY_CAPACITY], bool *optional, int *count);
/** NULL when there is none of that name. */
const quoit_transport_ops_t *transport_registry_find(const char *name);
/** The environment for a transport: settings, log, error text. `host` is borrowed. */
void transport_environment_init(quoit_transport_environment_t *environment, quoit_process_id_t self, int doorbell, const char *host);
/** For tests: forget loaded plug-ins, so that the settings are looked at anew. */
void transport_registry_reset(void);

#endif
