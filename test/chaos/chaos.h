/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Transport `chaos`: a plug-in that wraps another transport and does to it what networks and machines do, under a script. The wrapped
 * one is named by QUOIT_TEST_CHAOS: a transport that the program hands out (chaos_wrapped, chaos_host.c), or the path of a plug-in.
 *
 *   calls        the n-th call of a kind, counted over all engines of the process, fails with any error; messages are handed to the
 *                wrapped transport late and, where their keys differ, in another order; progress does nothing for a while; notices
 *                that credit may refuse are refused
 *   connections  (of tcp) pass through a relay that forwards small portions, holds them back, and cuts after k bytes
 *
 * The script and the counts are of the process: the test sets one before its ranks start and reads the other when they have ended.
 */
#ifndef QUOIT_TEST_CHAOS_H
#define QUOIT_TEST_CHAOS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Kinds of calls that can fail. */
#define CHAOS_CALLS(X) X(open) X(listen) X(trust) X(connect) X(send) X(recv) X(notify) X(arm) X(reg) X(share_alloc) X(share_root) X(export_memory) X(attach)

typedef enum chaos_call {
#define CHAOS_CALL(name) CHAOS_CALL_##name,
    CHAOS_CALLS(CHAOS_CALL)
#undef CHAOS_CALL
    CHAOS_CALL_COUNT
} chaos_call_t;

typedef struct chaos_script {
    uint64_t seed;
    int64_t cut;        /* bytes that pass through relays until one connection, the one that carries the next, is cut; -1: never */
    bool reset;         /* the cut is a reset, else an end */
    bool relays;        /* connections pass through relays: implied by cut, split and hold */
    int split;          /* bytes a relay forwards at once, at most; 0: any */
    int hold_us;        /* a relay forwards a portion so late, at most */
    int late;           /* of 100 messages, how many are handed on late, in another order */
    int idle;           /* of 100 calls of progress, how many do nothing */
    int refuse;         /* of 100 notices that credit may refuse, how many are */
    int fail_call;      /* chaos_call_t; -1: none */
    uint64_t fail_at;   /* the n-th, from 0 */
    int fail_status;    /* with this */
    bool fail_transfer; /* send, recv: told by the transfer instead of returned */
} chaos_script_t;

typedef struct chaos_counts {
    uint64_t calls[CHAOS_CALL_COUNT];
    uint64_t bytes;    /* through relays */
    uint64_t late, refused, idle, portions;
    bool cut, failed;  /* it came to that */
} chaos_counts_t;

/* What the plug-in offers the test, by dlsym. */
typedef void chaos_begin_t(const chaos_script_t *script); /* counts start anew */
typedef void chaos_look_t(chaos_counts_t *counts);
typedef const char *chaos_call_name_t(int call);

#ifdef __cplusplus
}
#endif
#endif
