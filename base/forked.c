/* SPDX-License-Identifier: Apache-2.0 */
/* See forked.h. A bit a descriptor: a handler of fork() may take no lock. Those above the table's end are left open in children. */
#include "base/forked.h"

#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

enum { CAPACITY = 1 << 16, BITS = 64 };

static _Atomic uint64_t marked[CAPACITY / BITS];
static _Atomic int used; /* words of `marked` that were ever set */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static forked_lock_t *listed; /* the locks that were ever taken */

static void free_locks(void)
{
    pthread_mutex_init(&list_mutex, NULL);
    for (forked_lock_t *lock = listed; lock; lock = lock->next) {
        pthread_mutex_init(&lock->mutex, NULL);
        if (lock->forget) lock->forget();
    }
}

static void close_descriptors(void)
{
    for (int word = 0; word < atomic_load(&used); word++) {
        uint64_t bits = atomic_exchange(&marked[word], 0);
        for (; bits; bits &= bits - 1) close(word * BITS + __builtin_ctzll(bits));
    }
}

static void begin_child(void)
{
    free_locks();
    close_descriptors();
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, begin_child); }

void forked_close(int fd)
{
    if (fd < 0 || fd >= CAPACITY) return;
    pthread_once(&once, watch_forks);
    int words = fd / BITS + 1, before = atomic_load(&used);
    while (before < words && !atomic_compare_exchange_weak(&used, &before, words)) continue;
    atomic_fetch_or(&marked[fd / BITS], UINT64_C(1) << fd % BITS);
}

bool forked_keep(int fd)
{
    if (fd < 0 || fd >= CAPACITY) return true;
    uint64_t bit = UINT64_C(1) << fd % BITS;
    return atomic_fetch_and(&marked[fd / BITS], ~bit) & bit;
}

void forked_lock(forked_lock_t *lock)
{
    if (!__atomic_load_n(&lock->is_listed, __ATOMIC_ACQUIRE)) {
        pthread_once(&once, watch_forks);
        pthread_mutex_lock(&list_mutex);
        if (!lock->is_listed) {
            lock->next = listed;
            listed = lock;
            __atomic_store_n(&lock->is_listed, true, __ATOMIC_RELEASE);
        }
        pthread_mutex_unlock(&list_mutex);
    }
    pthread_mutex_lock(&lock->mutex);
}

void forked_unlock(forked_lock_t *lock) { pthread_mutex_unlock(&lock->mutex); }
