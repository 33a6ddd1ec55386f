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

/** Bytes that callers hold now. Only for the owner. */
void memory_count(const engine_t *engine, uint64_t *shared);
/** The engine's work has ended, and its memory goes: free what was kept for the next caller. */
void memory_forget(engine_t *engine);

#endif
