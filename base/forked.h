/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a child of fork() inherits and can do nothing with.
 *
 * Descriptors: a child that lives on would keep the parent's sockets open after the parent's death, and peers on other hosts would see their
 * end only with the child's. So a fork handler closes them in the child.
 *
 * Locks: the child has only the thread that forked. What another thread held at that moment would stay locked for ever, and a child that
 * makes a communicator of its own would hang in it. So the locks that all of a process shares are free in the child.
 */
#ifndef QUOIT_BASE_FORKED_H
#define QUOIT_BASE_FORKED_H

#include <pthread.h>
#include <stdbool.h>

/** Children close `fd` from now on. Any thread. */
void forked_close(int fd);
/** No longer. False when this process is a child that has closed it already: the number may be another file's by now. */
bool forked_keep(int fd);

/** A lock of the whole process: static, and begun with {.mutex = PTHREAD_MUTEX_INITIALIZER}. */
typedef struct forked_lock {
    pthread_mutex_t mutex;
    void (*forget)(void); /* NULL, or called in a child at once: what the lock guards may be half changed, or the parent's alone. Takes no lock. */
    struct forked_lock *next;
    bool is_listed; /* atomic */
} forked_lock_t;

void forked_lock(forked_lock_t *lock);
void forked_unlock(forked_lock_t *lock);

#endif
