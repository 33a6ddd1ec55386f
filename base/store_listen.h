/* SPDX-License-Identifier: Apache-2.0 */
/** Listening sockets of the store's server. */
#ifndef QUOIT_BASE_STORE_LISTEN_H
#define QUOIT_BASE_STORE_LISTEN_H

#include "base/store_server.h"

/** @param fds  receives *count listening, non-blocking sockets; @param own  where the first of them is reached from this machine */
quoit_status_t store_listen(const char *host, int port, int fds[STORE_ADDRESS_MOST], int *count, store_address_t *own);

#endif
