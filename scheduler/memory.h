/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Memory that callers get from Quoit (quoit_memory_alloc): in the memory that the engine's process shares with its host mates, so
 * that collectives may read it where it lies (window.h). A block outlives its communicator, and even the engine's work: the engine
 * keeps its transports mapped until the last block is given back.
 */
#ifndef QUOIT_SCHEDULER_MEMORY_H
#define QUOIT_SCHEDULER_MEMORY_H

#include "scheduler/engine.h"

/** Does a caller's buffer begin in memory of this engine that its host mates can read? False wherever nobody has asked for any. */
static inline bool memory_is_shared(const engine_t *engine, const void *buffer)
{
    return (uintptr_t)buffer - engine->memory_low < engine->memory_span;
}

/**
 * Memory of the engine's own that messages are sent from and received into, and that is used again and again: transports with DMA register
 * it once, until it is withdrawn. Only for the owner. That a transport cannot is no failure: it then registers what it uses, or copies.
 */
void memory_declare(engine_t *engine, const void *pointer, size_t bytes);
void memory_withdraw(engine_t *engine, const void *pointer); /* before it is freed; NULL is accepted */
/** The same with memory that host mates can read: share_alloc and share_free of the transport that shares it. */
quoit_status_t memory_share(engine_t *engine, size_t bytes, void **pointer);
void memory_unshare(engine_t *engine, void *pointer);

/** Bytes that callers hold now. Only for the owner. */
void memory_count(const engine_t *engine, uint64_t *shared);
/** The engine's work has ended, and its memory goes: free what was kept for the next caller. */
void memory_forget(engine_t *engine);

#endif
