/* SPDX-License-Identifier: Apache-2.0 */
/** Bootstrap stores inside the library: what the public calls do, and the makers of each kind. */
#ifndef QUOIT_BASE_STORE_H
#define QUOIT_BASE_STORE_H

#include "base/status.h"

const char *store_description(const quoit_store_t *store);

quoit_status_t store_tcp_open(const char *host, int port, int rank, int size, int timeout_ms, quoit_store_t **store);
quoit_status_t store_file_open(const char *path, int timeout_ms, quoit_store_t **store);

#endif
