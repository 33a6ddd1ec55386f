/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Destroying queue pairs, on a thread of its own: a device whose port or firmware has stopped can hold up ibv_destroy_qp for minutes, and the
 * engine's thread has other peers to serve. Whoever gives something has taken the queue pairs' access to memory from them before (state
 * RESET). The thread is made with the first thing that is given, and sleeps while there is nothing.
 */
#ifndef QUOIT_TRANSPORT_VERBS_REAPER_H
#define QUOIT_TRANSPORT_VERBS_REAPER_H

#include "base/list.h"
#include "transport/verbs/verbs_library.h"

#include <stdbool.h>

/** What is left of a link. */
typedef struct verbs_grave {
    list_t link;
    struct ibv_qp *queue[2]; /* either may be NULL */
    struct ibv_mr *mr;       /* of the stream's buffers; NULL: none */
    void *memory;            /* owned: those buffers */
    void *owner;             /* whoever takes it back knows */
} verbs_grave_t;

typedef struct verbs_reaper verbs_reaper_t;

quoit_status_t verbs_reaper_create(const verbs_library_t *library, verbs_reaper_t **reaper);
/** Takes the grave. Without a thread (none can be made) it is done here. */
void verbs_reaper_give(verbs_reaper_t *reaper, verbs_grave_t *grave);
/** One that is done, whose struct is the caller's again; NULL: none. Costs one load where there is none. */
verbs_grave_t *verbs_reaper_take(verbs_reaper_t *reaper);
/** Wait until all is done. False: after `limit_ms` it was not. */
bool verbs_reaper_wait(verbs_reaper_t *reaper, int limit_ms);
/** Ends the thread; one that is stuck ends by itself later, and what it holds is lost. NULL is accepted. */
void verbs_reaper_destroy(verbs_reaper_t *reaper);

#endif
