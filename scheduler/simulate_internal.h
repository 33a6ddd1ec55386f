/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Inside the simulator: the ranks and their chunks in flight (simulate.c), what a step does to memory (simulate_data.c), the
 * messages (simulate_edges.c), and the windows with their bookkeeping of who may touch what (simulate_window.c).
 */
#ifndef QUOIT_SCHEDULER_SIMULATE_INTERNAL_H
#define QUOIT_SCHEDULER_SIMULATE_INTERNAL_H

#include "scheduler/simulate.h"

typedef struct sim sim_t;
typedef struct sim_rank sim_rank_t;

/** One use of a range of a slot. Uses of one slot and place in one chunk are kept in a log. */
typedef struct sim_use {
    size_t begin, end; /* bytes of the slot */
    int member;        /* who */
    int step;          /* of whose plan; INT_MAX while a transfer is pending */
    bool write;
} sim_use_t;

typedef struct sim_log {
    sim_use_t *use; /* owned */
    int uses, capacity;
} sim_log_t;

/** What a SIGNAL told: when, and which steps of each member lie before it. */
typedef struct sim_signal {
    double time;
    int clock[]; /* [members] steps done, as far as the signaller knows */
} sim_signal_t;

typedef struct sim_window {
    int members, depth, places;
    size_t chunks, slot_bytes;
    unsigned char *slot;   /* [members][depth][slot_bytes] */
    sim_log_t *log;        /* [members][depth][places] */
    size_t *owner_chunk;   /* [members][depth] chunk + 1 for which the slot was reclaimed, 0: none */
    int *owner_step;       /* [members][depth] step that reclaimed it */
    size_t *signalled;     /* [members][PLAN_STAGES] chunks signalled */
    sim_signal_t **signal; /* [members][PLAN_STAGES][chunks] */
    size_t *consumed;      /* [members] chunks consumed */
    double *consumed_time; /* [members][chunks] */
} sim_window_t;

/** A chunk in flight. */
typedef struct sim_run {
    size_t chunk;
    int step;
    double time;
    int *clock; /* [members] with a window: steps of each member's same chunk that are known to be done */
} sim_run_t;

typedef struct sim_transfer {
    struct sim_transfer *next; /* in the rank's list of pending ones */
    struct sim_transfer *partner;
    bool send, done;
    int rank, peer, step;
    size_t chunk, bytes;
    unsigned char *data;
    double time;      /* started, later: done */
    sim_log_t *log;   /* the use it holds open, NULL: none */
    int use;
} sim_transfer_t;

struct sim_rank {
    const plan_binding_t *binding;
    const plan_t *plan;
    int rank, host, me;
    sim_window_t *window;      /* NULL without */
    size_t started, finished;  /* chunks */
    sim_run_t *run;            /* [depth] chunk c at c mod depth */
    double *passed;            /* [steps] when the newest chunk passed the step */
    double *ended;             /* [depth] when the chunk ended */
    unsigned char *temp;       /* [depth][temps][slot bytes] */
    sim_transfer_t *pending;   /* started, not waited for */
};

struct sim {
    simulation_t *simulation;
    uint64_t random;
    sim_rank_t *rank;          /* [ranks] */
    sim_window_t *window;      /* [hosts] */
    double *send_free, *receive_free; /* [hosts] when the interface is free again */
    const void **source;       /* [largest host] */
    char text[256];            /* what is wrong, "" while nothing is */
};

typedef enum sim_outcome { SIM_RAN, SIM_NOT_YET, SIM_BROKEN, SIM_NO_MEMORY } sim_outcome_t;

/** Remember what is wrong; returns SIM_BROKEN. */
sim_outcome_t sim_broken(sim_t *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t sim_random(sim_t *sim);

/** A place in memory that a step uses. */
typedef struct sim_place {
    unsigned char *data;
    size_t bytes, count;
    int owner;          /* member whose slot it is, -1: none */
    size_t offset;      /* in the slot */
    int place;
} sim_place_t;

sim_place_t sim_find(const sim_rank_t *rank, const sim_run_t *run, const plan_operand_t *operand);
/** May the run use the place now? Notes the use; with `transfer` it stays open until that is waited for. */
sim_outcome_t sim_use_place(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const sim_place_t *place, bool write, sim_transfer_t *transfer);
/** COPY, REDUCE, REDUCE_WINDOW, ENCODE, DECODE, SUM_WINDOW. */
sim_outcome_t sim_run_data(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const plan_step_t *step);

/** SEND, RECV, WAIT. */
sim_outcome_t sim_start_transfer(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const plan_step_t *step);
sim_outcome_t sim_wait(sim_t *sim, sim_rank_t *rank, sim_run_t *run);
void sim_free_transfers(sim_rank_t *rank);

/** One host's window; members whose plans do not agree on its layout are refused. */
sim_outcome_t sim_window_open(sim_t *sim, sim_window_t *window, int host);
void sim_window_close(sim_window_t *window);
/** RECLAIM, SIGNAL, AWAIT, CONSUMED. */
sim_outcome_t sim_run_sync(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const plan_step_t *step);
/** The rules for slots alone. */
sim_outcome_t sim_window_use(sim_t *sim, sim_rank_t *rank, sim_run_t *run, const sim_place_t *place, bool write,
                             sim_transfer_t *transfer);

#endif
