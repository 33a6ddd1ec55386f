/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Copying: memcpy, or the same past the caches.
 *
 * A streamed copy writes whole cache lines by non-temporal stores. It fetches nothing of the destination, so that where memory is the limit a third
 * less crosses the bus, and it leaves the caches to others; who reads the destination next gets it from memory. Its loads are plain.
 * It pays for results that no cache holds until they are read (copy_pays_past), and for memory that lies in the cache of a core that
 * shares none with this one (publish.h measures that).
 */
#ifndef QUOIT_BASE_COPY_H
#define QUOIT_BASE_COPY_H

#include <stdbool.h>
#include <stddef.h>

/** Regions do not overlap. After a streamed copy all its stores are before whatever is stored next. Of any length and alignment. */
void copy_bytes(void *destination, const void *source, size_t bytes, bool stream);

/** Results of at least so many bytes are better stored past the cache: the last cache holds inputs, outputs and slots of all ranks of a host. */
size_t copy_pays_past(void);

/** What streams here: "avx512", "avx2", "sse2"; "plain": nothing, a streamed copy is memcpy. Setting ISA may lower it. */
const char *copy_isa(void);

/** For tests: a streamed copy with one of these; false when this processor or build lacks it. */
bool copy_bytes_with(const char *isa, void *destination, const void *source, size_t bytes);

#endif
