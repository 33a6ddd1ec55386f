/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Notice when memory of this process goes away (munmap, madvise, mremap, a shrinking heap), so that a registration of it is not used for
 * what is mapped at the same address next. By the kernel's userfaultfd: nothing is hooked or patched, and pages are not touched.
 *
 * The thread that gives memory back waits in the kernel until the event is read. So a thread of the watch's own, asleep while nothing
 * goes away, reads them; it reads while it holds the lock that verbs_watch_next takes. So whoever calls verbs_watch_next after a munmap
 * has returned sees it. The lock is held for a read, never across a call out, and the thread uses no memory of the heap: it is what a
 * free() may be waiting for.
 */
#ifndef QUOIT_TRANSPORT_VERBS_WATCH_H
#define QUOIT_TRANSPORT_VERBS_WATCH_H

#include "base/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct verbs_watch verbs_watch_t;

/** ERR_UNSUPPORTED with a text where the kernel, or its settings, do not allow it. */
quoit_status_t verbs_watch_create(verbs_watch_t **watch);
/** All ranges must have been let go. NULL is accepted. */
void verbs_watch_destroy(verbs_watch_t *watch);
/** Watch the pages of these bytes. False: memory of a kind that cannot be watched (a file's, a device's). */
bool verbs_watch_begin(verbs_watch_t *watch, uintptr_t base, size_t length);
/** No longer: [from, to) are whole pages. */
void verbs_watch_end(verbs_watch_t *watch, uintptr_t from, uintptr_t to);
/** A range that went away since the last call; [0, UINTPTR_MAX) when there were too many to remember. False: none. */
bool verbs_watch_next(verbs_watch_t *watch, uintptr_t *from, uintptr_t *to);

/** The whole pages that hold these bytes. */
uintptr_t verbs_page_below(uintptr_t address);
uintptr_t verbs_page_above(uintptr_t address);

#endif
