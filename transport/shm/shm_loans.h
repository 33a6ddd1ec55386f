/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Loans: memory of this process's arena through which its larger messages go to processes of its host (channel.h, lend_ops_t).
 *
 *   pool, in the lender's arena, taken when first used
 *   | state | SHM_LOAN_SIZE bytes | state | SHM_LOAN_SIZE bytes | ...        a loan is one of these; its place is the offset of its bytes
 *
 * The lender writes the bytes, then 1 into `state`, then tells the borrower; the borrower reads the bytes and writes 0. Who a loan is for, and
 * whether it is out at all, lies in private memory: `state` only says that it may come back. Loans are taken in turn, so that
 * memory has left the borrower's cache when it is written again (see docs/design.md, "What a store costs").
 */
#ifndef QUOIT_SHM_LOANS_H
#define QUOIT_SHM_LOANS_H

#include "base/publish.h"
#include "transport/framing/channel.h"
#include "transport/shm/shm_arena.h"

enum { SHM_LOAN_SIZE = 32768, SHM_LOANS_OF_PEER = 8 /* at most so many are out to a peer by grants, and as many unasked */ };

typedef struct shm_loan shm_loan_t;

typedef struct shm_loans {
    size_t wanted;  /* bytes of the pool; 0: there is none, and none will be made */
    shm_loan_t *loan; /* [count] owned; NULL: the pool has not been made */
    unsigned count, next;
    unsigned unasked;      /* out without a grant */
    publish_t publish;     /* how they are written */
    unsigned char *memory; /* in the arena */
    uint64_t offset;       /* of it there */
} shm_loans_t;

/** What a borrower has of a pool: two numbers in its endpoint. */
typedef struct shm_debt {
    unsigned granted, unasked;
} shm_debt_t;

/** `peers`: how many the pool is for at the moment. `data` NULL: only say whether one could be made. */
loan_t shm_loans_lend(shm_loans_t *loans, shm_arena_t *arena, shm_debt_t *debt, unsigned peers, const void *data, size_t length, bool unasked,
                      uint64_t *place);
/** The borrower reads no more: what is out to it comes back. */
void shm_loans_forget(shm_loans_t *loans, const shm_debt_t *debt);
/** The pool's memory goes with the arena, not before: borrowers may still read what was lent. */
void shm_loans_close(shm_loans_t *loans);

/** Borrower: bytes of the peer's memory; NULL (with text) if they do not lie there. */
const void *shm_loans_borrow(void *peer, size_t peer_size, uint64_t place, size_t length);
void shm_loans_give_back(void *peer, uint64_t place);

#endif
