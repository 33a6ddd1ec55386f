/* SPDX-License-Identifier: Apache-2.0 */
/** SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for the handshake of connections; random bytes of the kernel. */
#ifndef QUOIT_BASE_HMAC_H
#define QUOIT_BASE_HMAC_H

#include "base/status.h"

#include <stdbool.h>

enum { SHA256_SIZE = 32 };

void sha256(const void *data, size_t length, uint8_t digest[SHA256_SIZE]);
void hmac_sha256(const void *key, size_t key_length, const void *data, size_t length, uint8_t mac[SHA256_SIZE]);
/** Compares without a branch on the content. */
bool bytes_equal_secret(const void *a, const void *b, size_t length);
/** getrandom(), whole. ERR_SYSTEM when the kernel has none. */
quoit_status_t random_bytes(void *data, size_t length);

#endif
