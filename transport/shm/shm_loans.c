/* SPDX-License-Identifier: Apache-2.0 */
/** The pool of loans: see shm_loans.h. */
#include "transport/shm/shm_loans.h"

#include "base/log.h"
#include "transport/shm/shm_header.h"

#include <stdlib.h>
#include <string.h>

/* In shared memory. */
typedef struct loan_memory {
    SHM_ALIGNED uint32_t state; /* 1: lent; the borrower's last store makes it 0 */
    SHM_ALIGNED unsigned char bytes[SHM_LOAN_SIZE];
} loan_memory_t;

enum { BYTES_AT = offsetof(loan_memory_t, bytes) };

struct shm_loan {
    shm_debt_t *debt; /* whose; NULL: it is here */
    bool unasked;
};

static loan_memory_t *memory_of(const shm_loans_t *loans, unsigned index) { return (loan_memory_t *)(void *)loans->memory + index; }

/* The first message that could use one makes the pool. */
static bool make_pool(shm_loans_t *loans, shm_arena_t *arena)
{
    if (loans->loan) return true;
    unsigned count = (unsigned)(loans->wanted / SHM_LOAN_SIZE);
    void *memory = NULL;
    if (count < 2) return false;
    shm_loan_t *made = calloc(count, sizeof *made);
    if (!made || shm_arena_alloc(arena, count * sizeof(loan_memory_t), &memory) != QUOIT_OK) {
        log_info("shm", "messages go through the mailboxes alone, there is no memory to lend: %s", made ? error_text() : "out of memory");
        free(made);
        loans->wanted = 0;
        return false;
    }
    loans->loan = made;
    loans->count = count;
    loans->memory = memory;
    loans->offset = (uint64_t)((unsigned char *)memory - shm_arena_base(arena));
    return true;
}

static void take_back(shm_loans_t *loans, unsigned index)
{
    shm_loan_t *loan = &loans->loan[index];
    if (loan->unasked) {
        loan->debt->unasked--;
        loans->unasked--;
    } else {
        loan->debt->granted--;
    }
    loan->debt = NULL;
}

static bool is_here(shm_loans_t *loans, unsigned index)
{
    if (!loans->loan[index].debt) return true;
    if (__atomic_load_n(&memory_of(loans, index)->state, __ATOMIC_ACQUIRE) != 0) return false;
    take_back(loans, index);
    return true;
}

static void collect(shm_loans_t *loans, const shm_debt_t *debt)
{
    for (unsigned i = 0; i < loans->count; i++)
        if (loans->loan[i].debt == debt) (void)is_here(loans, i);
}

/* How many may be out to one peer, for each of the two reasons. */
static unsigned most_of(const shm_loans_t *loans, unsigned peers, bool unasked)
{
    unsigned share = loans->count / (peers > 0 ? peers : 1);
    unsigned most = share > SHM_LOANS_OF_PEER ? SHM_LOANS_OF_PEER : share < 2 ? 2 : share;
    return unasked ? (most + 1) / 2 : most;
}

/* Without a grant a loan may be out for long: these leave half of the pool to the others. */
static bool may_lend(shm_loans_t *loans, const shm_debt_t *debt, unsigned peers, bool unasked)
{
    unsigned most = most_of(loans, peers, unasked);
    const unsigned *out = unasked ? &debt->unasked : &debt->granted;
    if (*out >= most) collect(loans, debt);
    return *out < most && (!unasked || loans->unasked < loans->count / 2);
}

loan_t shm_loans_lend(shm_loans_t *loans, shm_arena_t *arena, shm_debt_t *debt, unsigned peers, const void *data, size_t length, bool unasked,
                      uint64_t *place)
{
    if (loans->wanted == 0 || !make_pool(loans, arena)) return LOAN_NONE;
    unsigned index = loans->count;
    if (may_lend(loans, debt, peers, unasked)) {
        for (unsigned i = 0; i < loans->count && index == loans->count; i++) {
            unsigned candidate = (loans->next + i) % loans->count;
            if (is_here(loans, candidate)) index = candidate;
        }
    }
    /* What was granted is read as soon as the peer looks, so there will be one; of the others nobody knows. */
    if (index == loans->count) return debt->granted > 0 ? LOAN_LATER : LOAN_NONE;
    if (!data) return LOAN_MADE;
    loan_memory_t *memory = memory_of(loans, index);
    loans->next = (index + 1) % loans->count;
    loans->loan[index] = (shm_loan_t){.debt = debt, .unasked = unasked};
    if (unasked) {
        debt->unasked++;
        loans->unasked++;
    } else {
        debt->granted++;
    }
    publish_copy(&loans->publish, memory->bytes, data, length);
    __atomic_store_n(&memory->state, 1, __ATOMIC_RELEASE);
    *place = loans->offset + index * sizeof *memory + BYTES_AT;
    return LOAN_MADE;
}

void shm_loans_forget(shm_loans_t *loans, const shm_debt_t *debt)
{
    for (unsigned i = 0; i < loans->count; i++)
        if (loans->loan[i].debt == debt) take_back(loans, i);
}

void shm_loans_close(shm_loans_t *loans)
{
    free(loans->loan);
    *loans = (shm_loans_t){.wanted = 0};
}

/* ---------------------------------------------------------------- borrower */

const void *shm_loans_borrow(void *peer, size_t peer_size, uint64_t place, size_t length)
{
    const uint64_t first = SHM_HEADER_SIZE + QUOIT_ROOT_SIZE + BYTES_AT;
    if (place >= first && place % 64 == 0 && place <= peer_size && length <= peer_size - place) return (unsigned char *)peer + place;
    error_set(QUOIT_ERR_PROTOCOL, "a loan of %zu bytes at %llu, which is not in the %zu bytes of its memory", length, (unsigned long long)place,
              peer_size);
    return NULL;
}

void shm_loans_give_back(void *peer, uint64_t place)
{
    unsigned char *bytes = (unsigned char *)peer + place;
    loan_memory_t *memory = (loan_memory_t *)(void *)(bytes - BYTES_AT);
    __atomic_store_n(&memory->state, 0, __ATOMIC_RELEASE);
}
