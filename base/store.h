/* SPDX-License-Identifier: Apache-2.0 */
/** Bootstrap stores inside the library: what the public calls do, and the makers of each kind. */
#ifndef QUOIT_BASE_STORE_H
#define QUOIT_BASE_STORE_H

#include "base/status.h"

/** For messages: "tcp://10.0.0.1:29500". Lives as long as the store. */
const char *store_description(const quoit_store_t *store);

/* The kinds behind quoit_store_open, with its errors; timeout_ms is above 0. Calls on one store may come from several threads. */
quoit_status_t store_tcp_open(const char *host, int port, int rank, int size, int timeout_ms, quoit_store_t **store);
quoit_status_t store_file_open(const char *path, int timeout_ms, quoit_store_t **store);

#endif
