/* SPDX-License-Identifier: Apache-2.0 */
/** See forked.h. A bit a descriptor: a handler of fork() may take no lock. Those above the table's end are left open in children. */
#include "base/forked.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

enum { CAPACITY = 1 << 16, BITS = 64 };

static _Atomic uint64_t marked[CAPACITY / BITS];
static _Atomic int used; /* words of `marked` that were ever set */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void close_in_child(void)
{
    for (int word = 0; word < atomic_load(&used); word++) {
        uint64_t bits = atomic_exchange(&marked[word], 0);
        for (; bits; bits &= bits - 1) close(word * BITS + __builtin_ctzll(bits));
    }
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, close_in_child); }

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
