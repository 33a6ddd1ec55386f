/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Pools of the shared memory that every window needs, one a kind: sections, which are small and polled, and small slots. Pieces of a kind lie
 * side by side, in blocks. So the sections of hundreds of groups fill a few pages, and looking at one maps pages that the next ones need as
 * well: among n ranks of a host each process sees the pages of all n. Only for the engine's owner.
 */
#ifndef QUOIT_SCHEDULER_WINDOW_POOL_H
#define QUOIT_SCHEDULER_WINDOW_POOL_H

#include "scheduler/engine.h"

/** A piece, zero if the pool is one of sections. ERR_NO_MEMORY with a text. */
quoit_status_t window_pool_take(engine_t *engine, engine_pool_t *pool, void **piece);
/** NULL is accepted. A block of which nothing is used any more goes back to the transport. */
void window_pool_give(engine_t *engine, engine_pool_t *pool, void *piece);
/** Forget the blocks; the memory is the transport's, and goes with it. */
void window_pool_forget(engine_pool_t *pool);

#endif
