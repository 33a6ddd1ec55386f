/* SPDX-License-Identifier: Apache-2.0 */
/** The server of a TCP store without thread and listeners, driven by its caller over connections that it is given: for tests and fuzzers. */
#ifndef QUOIT_BASE_STORE_SERVER_INTERNAL_H
#define QUOIT_BASE_STORE_SERVER_INTERNAL_H

#include "base/store_server.h"

#include <stdbool.h>

quoit_status_t store_server_create(store_server_t **server);
/** Serve a connected, non-blocking socket, which becomes the server's; `from` is for messages. */
void store_server_adopt(store_server_t *server, int fd, const store_address_t *from);
/** One round: what has come within `limit_ms` (-1: no limit) is served. False: nothing is left to do. */
bool store_server_step(store_server_t *server, int limit_ms);
/** All but the thread. */
void store_server_free(store_server_t *server);

#endif
