/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Plans: what one rank does in a collective, as data. A plan is a list of steps for one chunk; the engine runs the list once a
 * chunk, several chunks in flight, and the simulator runs it for all ranks without any transport.
 *
 * Terms
 *   piece    the elements that chunk c covers. Uniform collectives (allreduce, reduce, broadcast, barrier): elements
 *            [c*C, c*C + C) of `count`. Block collectives (allgather, reduce_scatter, alltoall, gather, scatter): the same of each rank's block.
 *   part     a piece is cut into equal parts (plan_part_begin) when ranks share the work on it.
 *   window   the slots of a host's ranks, readable and writable by all of them. `depth` slots a rank, chunk c uses slot (ticket of c) mod depth.
 *   stage    a counter a rank publishes: at most PLAN_STAGES. SIGNAL s sets it to the chunk's ticket; AWAIT s waits for that of others.
 *   form     of elements in a SLOT or TEMP: whole (of the caller's dtype), sums (float32), or wire (as they cross the network). Only plans with a
 *            wire format have others than whole; a TEMP has one form in a plan; sums lie behind what is whole in a slot, or, where the
 *            dtype is float32, in its place.
 *   share    avg's part in what crosses hosts: see plan_share.
 *   edge     a message from one rank to another (any transport). Messages of one edge and chunk match in the order of their steps.
 *
 * Order of execution, which both the engine and the simulator keep: steps of a chunk run in order; step s of chunk c+1 may run as
 * soon as chunk c is past step s. A step that cannot run yet ("not yet") holds up its own chunk, and later chunks at the same step, only.
 * So the signals of each stage rise, and at most `depth` chunks are in flight.
 *
 * Rules for those who write plans
 *   - every chunk of every member of a window ends with CONSUMED, whether it read others' slots or not, unless the plan uses no window at all;
 *   - before the first write into one's own slot: RECLAIM (waits until the slot's previous chunk was consumed by all members);
 *     a write into another member's slot must come after an AWAIT that proves that member has reclaimed it for this chunk;
 *   - AWAIT before reading another's slot; reads end before one's CONSUMED;
 *   - SEND and RECV only start a transfer; WAIT ends all that the chunk has started. What a pending SEND reads must not change before.
 *   - SEND is only read, RECV only after it was written in the same chunk: on a device they are copies that are made before and after the steps;
 *   - the order in which values are summed is a function of plan and roster, the same for an element wherever it is computed.
 */
#ifndef QUOIT_SCHEDULER_PLAN_H
#define QUOIT_SCHEDULER_PLAN_H

#include "base/status.h"
#include "quoit/quoit.h"
#include "scheduler/reduce/wire.h"
#include "scheduler/topology.h"

#include <stdbool.h>

enum { PLAN_STAGES = 4, PLAN_ALL = -1, PLAN_NO_BLOCK = -1 };

/** X(NAME, name) */
#define PLAN_COLLECTIVE_LIST(X) \
    X(ALLREDUCE, "allreduce") \
    X(REDUCE, "reduce") \
    X(BROADCAST, "broadcast") \
    X(ALLGATHER, "allgather") \
    X(REDUCE_SCATTER, "reduce_scatter") \
    X(ALLTOALL, "alltoall") \
    X(GATHER, "gather") \
    X(SCATTER, "scatter") \
    X(BARRIER, "barrier")

typedef enum plan_collective {
#define PLAN_COLLECTIVE_ENUM(NAME, name) COLLECTIVE_##NAME,
    PLAN_COLLECTIVE_LIST(PLAN_COLLECTIVE_ENUM)
#undef PLAN_COLLECTIVE_ENUM
    COLLECTIVE_COUNT
} plan_collective_t;

/** Is what a rank sends one block for each rank, of which the count is that of one? */
static inline bool plan_sends_blocks(plan_collective_t collective) { return collective == COLLECTIVE_REDUCE_SCATTER || collective == COLLECTIVE_ALLTOALL; }

/** X(NAME, name, text) */
#define PLAN_ALGORITHM_LIST(X) \
    X(LOCAL, "local", "one rank: copies only") \
    X(FLAT, "flat", "one host, small: everyone publishes all and reduces all") \
    X(WINDOW, "window", "one host, large: everyone reduces or copies its share out of the window") \
    X(TWO_LEVEL, "two_level", "several hosts, large: window inside each host, ring or chain among the hosts' leaders") \
    X(DOUBLING, "doubling", "several hosts, small: window inside each host, recursive doubling or a binomial tree among the leaders") \
    X(RING, "ring", "host-grouped ring of all ranks over edges only") \
    X(DIRECT, "direct", "a message between each two ranks concerned")

typedef enum plan_algorithm {
#define PLAN_ALGORITHM_ENUM(NAME, name, text) ALGORITHM_##NAME,
    PLAN_ALGORITHM_LIST(PLAN_ALGORITHM_ENUM)
#undef PLAN_ALGORITHM_ENUM
    ALGORITHM_COUNT
} plan_algorithm_t;

typedef enum plan_space {
    SPACE_NONE,
    SPACE_SEND, /* the caller's input */
    SPACE_RECV, /* the caller's output */
    SPACE_SLOT, /* this chunk's slot of window member `member` */
    SPACE_TEMP  /* private scratch number `member` of this chunk, one slot large */
} plan_space_t;

typedef enum plan_form { FORM_WHOLE, FORM_SUM, FORM_WIRE } plan_form_t;

/**
 * Some elements of one space. In SEND and RECV they lie where the caller has them; in SLOT and TEMP a uniform piece begins at 0,
 * and a block's piece begins at place * C elements (C: chunk length).
 */
typedef struct plan_operand {
    uint8_t space, form;         /* SEND and RECV are whole */
    int32_t member;              /* SLOT: index among the host's ranks; TEMP: number of the scratch */
    int32_t block;               /* rank whose block, or PLAN_NO_BLOCK for a uniform piece */
    int32_t place;               /* blocks in SLOT and TEMP only */
    int32_t first, parts, count; /* parts [first, first + count) of `parts`; the whole piece: 0, 1, 1 */
} plan_operand_t;

typedef enum plan_verb {
    VERB_RECLAIM,  /* wait until this chunk's slot of mine is free: consumed by all members */
    VERB_SIGNAL,   /* publish `stage` for this chunk (release) */
    VERB_AWAIT,    /* wait until member `peer` (PLAN_ALL: all others) has signalled `stage` for this chunk (acquire) */
    VERB_CONSUMED, /* my reads of this chunk are done */
    VERB_COPY,     /* destination = source (STEP_SCALE: times this rank's premul factor). Equal addresses: nothing to do */
    VERB_REDUCE,   /* destination, and second if any = source + source2: source first */
    VERB_REDUCE_WINDOW, /* the same over all members of the window, in member order; each member's input is its SLOT at the place of `source`,
                           but mine is `source` itself. second: the result once more (SPACE_NONE: not) */
    VERB_SEND,     /* start: source goes to rank `peer` */
    VERB_RECV,     /* start: destination comes from rank `peer` */
    VERB_WAIT,     /* until all transfers this chunk has started are done */
    VERB_ENCODE,   /* destination (wire) = source, + source2 if any, added in float32 and rounded once; the forms may differ.
                      STEP_SCALE, STEP_SHARE: of source alone */
    VERB_DECODE,   /* the same to another form */
    VERB_SUM_WINDOW, /* as REDUCE_WINDOW, to a destination of sums. STEP_SHARE: of the result */
    VERB_COUNT
} plan_verb_t;

enum {
    STEP_FINISH = 1u << 0, /* the last one for these elements: apply avg's division, or what is left of it in a plan with a share */
    STEP_SCALE = 1u << 1,  /* COPY, ENCODE, DECODE: apply the premul factor */
    STEP_STREAM = 1u << 2, /* what is written is not read by this host again: non-temporal stores may pay */
    STEP_SHARE = 1u << 3,  /* divide by the plan's share */
    STEP_NOTE = 1u << 4,   /* ENCODE: what its rounding takes away is lost to the result here and nowhere else: see quoit_call_t.residual */
    STEP_INPUT = 1u << 5   /* the slots of this COPY or REDUCE_WINDOW hold the members' inputs, unchanged: see shares_inputs */
};

typedef struct plan_step {
    uint8_t verb, stage, flags;
    int32_t peer;
    plan_operand_t destination, second, source, source2;
} plan_step_t;

typedef struct plan {
    plan_collective_t collective;
    plan_algorithm_t algorithm;
    int rank, root;
    bool uniform;            /* else blocks */
    bool premul;
    int64_t share;           /* see plan_share; 0: none */
    quoit_wire_t wire;       /* NONE, or in what its elements cross the network */
    uint8_t block_side;      /* SPACE_SEND or SPACE_RECV: whose counts the blocks in SLOT and TEMP have */
    int depth;               /* chunks in flight, at least 1 */
    int places;              /* pieces of C elements that a slot (or scratch) holds: 1 for uniform ones */
    int temps;               /* scratch buffers a chunk */
    bool window;             /* any SLOT, SIGNAL, ... in it */
    bool small;              /* fits the small slots that every communicator owns: no lease */
    bool shares_inputs;      /* it has steps with STEP_INPUT: a member whose input lies in shared memory leaves out copying it to its slot, and
                                the others read it where it lies */
    bool awaits_readers;     /* such a member's last AWAIT does not prove that all have read its input: it waits for their CONSUMED */
    int transfers;           /* SENDs and RECVs in one chunk */
    int steps;
    plan_step_t *step;       /* owned */
} plan_t;

/** Numbers that every rank must hold alike: frozen into the roster when the world is created. */
typedef struct tuning {
    uint64_t slot_size, net_chunk_size, small_limit, eager_limit; /* bytes */
    int32_t net_depth;
    int32_t allreduce; /* plan_algorithm_t that is asked for, -1: choose */
    int32_t wire;      /* quoit_wire_t, of communicators that do not say another */
} tuning_t;

enum { PLAN_SMALL_SLOT = 16384 }; /* bytes of each of the small slots; tuning.small_limit is at most this */

/** What a plan is made for. */
typedef struct plan_request {
    plan_collective_t collective;
    plan_algorithm_t algorithm;
    int rank, root; /* root: 0 where there is none */
    bool premul;
    int64_t share;     /* see plan_share */
    quoit_wire_t wire; /* see plan_wire; NONE or DEFAULT: none */
    bool small;
} plan_request_t;

/**
 * The wire format that an operation uses when its communicator wants `wanted`: NONE where it is not made for it. float32 is for the
 * sums of small floats (rounded once, at the end); the others for sums of wider floats, when there are several hosts.
 */
quoit_wire_t plan_wire(const topology_t *topology, plan_collective_t collective, plan_algorithm_t algorithm, quoit_dtype_t dtype, quoit_op_t op,
                       quoit_wire_t wanted);
/**
 * Averages of small floats, or in a wire format, would overflow between hosts if the sum crossed them. So what a host gives is divided
 * by this power of two, not below the number of ranks, which costs no bits, and the last sum by the rest, ranks/share, rounded once.
 * 0: nothing is divided before.
 *
 * Why no sum overflows: the largest number is L = (2^p - 1) * 2^e, p significant bits. k * L rounds to itself or downwards, since the
 * next number above it is k * 2^p * 2^e, which is further away than the one below; rounding is monotone; so a rounded sum of k numbers up to L is at most k * L, by
 * induction over the hops, and after the divisions at most L. (float8_e4m3 has another L, but is kept at it by its rounding.)
 */
int64_t plan_share(const topology_t *topology, plan_algorithm_t algorithm, quoit_dtype_t dtype, quoit_op_t op, quoit_wire_t wire);

/**
 * Choose an algorithm. bytes: of the whole vector (uniform), of the largest block (blocks; 0 for gather, scatter and the v-form of alltoall,
 * where not all ranks know it). *small: the plan is for the small slots. ERR_INVALID when the tuning asks for one that does not fit.
 */
quoit_status_t plan_select(const topology_t *topology, const tuning_t *tuning, plan_collective_t collective, uint64_t bytes,
                           plan_algorithm_t *algorithm, bool *small);

/** Write the plan of one rank. The result is the caller's (plan_destroy). */
quoit_status_t plan_create(const topology_t *topology, const tuning_t *tuning, const plan_request_t *request, plan_t **plan);
void plan_destroy(plan_t *plan); /* NULL is accepted */

/** Where the caller's elements lie: block i is parts[i], or without parts `count` elements at base + i * stride elements. */
typedef struct plan_side {
    char *base;
    const quoit_part_t *parts; /* [ranks] or NULL */
    size_t count, stride;      /* elements; uniform buffers and single blocks: stride 0 */
} plan_side_t;

/** A plan joined with one call's buffers. */
typedef struct plan_binding {
    const plan_t *plan;
    plan_side_t send, recv;
    size_t width;        /* bytes of an element */
    int ranks;
    size_t chunk;        /* C, elements */
    size_t chunks;       /* number of chunks, at least 1 */
} plan_binding_t;

/** Fill chunk and chunks from the plan, the tuning and the buffers (all other members set before). Every rank gets the same C. */
void plan_bind(plan_binding_t *binding, const tuning_t *tuning);
static inline bool plan_is_wired(const plan_t *plan) { return plan->wire > QUOIT_WIRE_NONE; }
/** Bytes of one slot and of one scratch buffer, in plans with a wire format. */
size_t plan_wired_slot_bytes(const plan_binding_t *binding);
/** Bytes of one slot and of one scratch buffer. */
static inline size_t plan_slot_bytes(const plan_binding_t *binding)
{
    if (plan_is_wired(binding->plan)) return plan_wired_slot_bytes(binding);
    return (size_t)binding->plan->places * binding->chunk * binding->width;
}

/** Where an operand is for one chunk. */
typedef struct plan_piece {
    char *data;    /* SEND, RECV: the address (NULL when bytes is 0); SLOT, TEMP: NULL */
    size_t offset; /* SLOT, TEMP: bytes from the start of slot or scratch */
    size_t count;  /* elements */
} plan_piece_t;

/** The elements of an operand in one chunk, numbered from 0; a chunk past the last has none. */
void plan_locate(const plan_binding_t *binding, size_t chunk, const plan_operand_t *operand, plan_piece_t *piece);
/** Bytes of `count` elements in a form. */
size_t plan_form_bytes(const plan_binding_t *binding, plan_form_t form, size_t count);
/** What an ENCODE, DECODE or SUM_WINDOW of a plan is to do: all of the call but memory and count. factor: of premul_sum. */
wire_call_t plan_wire_call(const plan_t *plan, const plan_step_t *step, quoit_dtype_t dtype, int ranks, double factor);
/** For a SLOT with a member's input (STEP_INPUT): where the same elements lie in that member's SEND, in bytes from its beginning. */
size_t plan_input_offset(const plan_binding_t *binding, size_t chunk, const plan_operand_t *operand);
/** Where part `index` of `parts` begins in a piece of `count` elements: multiples of 64 bytes apart. Part `parts` begins at count. */
size_t plan_part_begin(size_t count, size_t width, int parts, int index);
/** A block transfer without elements is no message at all (both sides know); a uniform one without elements is an empty message. */
static inline bool plan_skips(const plan_operand_t *operand, const plan_piece_t *piece)
{
    return operand->block != PLAN_NO_BLOCK && piece->count == 0;
}

/** Check the rules above as far as one rank's plan shows them. ERR_INTERNAL with the step's number and what is wrong. */
quoit_status_t plan_validate(const plan_t *plan, const topology_t *topology);

typedef struct text text_t;
/** As a person would read it, a line a step. */
void plan_print(const plan_t *plan, text_t *text);

const char *plan_collective_name(plan_collective_t collective);
const char *plan_algorithm_name(plan_algorithm_t algorithm);
const char *plan_verb_name(plan_verb_t verb);

#endif
