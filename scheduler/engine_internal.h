/* SPDX-License-Identifier: Apache-2.0 */
/** Between engine.c (driving) and engine_setup.c (making, peers, events). */
#ifndef QUOIT_SCHEDULER_ENGINE_INTERNAL_H
#define QUOIT_SCHEDULER_ENGINE_INTERNAL_H

#include "scheduler/engine.h"

/** Handle an event of a transport; only for the owner. */
void engine_event(engine_t *engine, const quoit_event_t *event);
/** Has no transport anything to write or to end that peers wait for? Only for the owner. */
bool engine_transports_idle(const engine_t *engine);
/** Start the progress thread if it does not run yet; false when settings forbid it or it cannot be started (logged once). */
bool engine_start_progress(engine_t *engine);
void *engine_progress_main(void *argument);

#endif
