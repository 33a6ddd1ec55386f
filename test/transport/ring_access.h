/* SPDX-License-Identifier: Apache-2.0 */
/* The ring for tests in C++, which does not read C11 atomics: ring_access.c stands between. */
#ifndef QUOIT_TEST_RING_ACCESS_H
#define QUOIT_TEST_RING_ACCESS_H

#include <stdbool.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "base/status.h"

typedef struct ring_access ring_access_t;

size_t ring_access_bytes(size_t capacity);
ring_access_t *ring_access_create(void *out, void *in, size_t capacity);
void ring_access_destroy(ring_access_t *ring);
quoit_status_t ring_access_write(ring_access_t *ring, const struct iovec *iov, int count, size_t *written);
quoit_status_t ring_access_read(ring_access_t *ring, const struct iovec *iov, int count, size_t *got);
bool ring_access_readable(const ring_access_t *ring);
bool ring_access_writable(const ring_access_t *ring);
/* What a hostile peer would store: its read position in our ring, its written position in its ring. */
void ring_access_lie(ring_access_t *ring, uint64_t read, uint64_t written);

#ifdef __cplusplus
}
#endif
#endif
