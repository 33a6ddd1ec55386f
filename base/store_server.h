/* SPDX-License-Identifier: Apache-2.0 */
/** The server of a TCP store: one thread, which serves whoever speaks the protocol. */
#ifndef QUOIT_BASE_STORE_SERVER_H
#define QUOIT_BASE_STORE_SERVER_H

#include "base/status.h"

#include <sys/socket.h>

enum { STORE_ADDRESS_CAPACITY = 80, STORE_ADDRESS_MOST = 8 };

typedef struct store_address {
    struct sockaddr_storage address;
    socklen_t length;
} store_address_t;

typedef struct store_server store_server_t;

/**
 * Listen and start the thread.
 *
 * A numeric host or "localhost" is listened at as given; any other name, and an address that this machine does not have (NAT, a
 * service's address), means all addresses: a machine's own name often stands for a loopback address on itself.
 */
quoit_status_t store_server_start(const char *host, int port, store_server_t **server);
/** Where a client in this process reaches the server. */
store_address_t store_server_address(const store_server_t *server);
/** Serve on until every client that said HELLO has disconnected, but at most 2 s; then stop and free. NULL is accepted. */
void store_server_stop(store_server_t *server);

/** "10.0.0.1:29500", "[::1]:29500". */
const char *store_address_text(const store_address_t *address, char text[STORE_ADDRESS_CAPACITY]);

#endif
