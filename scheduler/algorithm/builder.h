/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What every algorithm's file is written with: a plan that grows step by step, the operands that steps take, and the circle of
 * ranks that talk over edges. Running out of memory is remembered and told once, when the plan is done.
 */
#ifndef QUOIT_SCHEDULER_ALGORITHM_BUILDER_H
#define QUOIT_SCHEDULER_ALGORITHM_BUILDER_H

#include "scheduler/plan.h"

typedef struct builder {
    const topology_t *topology;
    const plan_request_t *request;
    plan_t *plan; /* owned by plan_create, which made it */
    int capacity; /* steps there is room for */
    bool failed;  /* out of memory */
    int rank, root;
    int host, hosts;
    int me, members; /* this rank among the members of its host, and their number */
    unsigned input;  /* STEP_INPUT once builder_share_inputs was called and allows it, else 0 */
} builder_t;

typedef void builder_write_t(builder_t *builder);

/* ---- operands */

/** The whole piece of a uniform collective. */
static inline plan_operand_t operand_whole(plan_space_t space, int member)
{
    return (plan_operand_t){.space = (uint8_t)space, .member = member, .block = PLAN_NO_BLOCK, .parts = 1, .count = 1};
}
static inline plan_operand_t operand_none(void) { return operand_whole(SPACE_NONE, 0); }
static inline plan_operand_t operand_send(void) { return operand_whole(SPACE_SEND, 0); }
static inline plan_operand_t operand_recv(void) { return operand_whole(SPACE_RECV, 0); }
static inline plan_operand_t operand_slot(int member) { return operand_whole(SPACE_SLOT, member); }
static inline plan_operand_t operand_temp(int number) { return operand_whole(SPACE_TEMP, number); }

/** The same in another form. */
static inline plan_operand_t operand_as(plan_operand_t operand, plan_form_t form)
{
    operand.form = (uint8_t)form;
    return operand;
}
/** The same, restricted to parts [first, first + count) of `parts`. */
static inline plan_operand_t operand_cut(plan_operand_t operand, int first, int count, int parts)
{
    operand.first = first;
    operand.count = count;
    operand.parts = parts;
    return operand;
}
/** The piece of one rank's block; `place` matters in SLOT and TEMP, and in the source of a REDUCE_WINDOW. */
static inline plan_operand_t operand_block(plan_space_t space, int member, int block, int place)
{
    plan_operand_t operand = operand_whole(space, member);
    operand.block = block;
    operand.place = place;
    return operand;
}

/* ---- steps */

void builder_reclaim(builder_t *builder);
void builder_signal(builder_t *builder, int stage);
void builder_await(builder_t *builder, int stage, int member); /* member: PLAN_ALL for all others */
void builder_consumed(builder_t *builder);
void builder_copy(builder_t *builder, plan_operand_t destination, plan_operand_t source, unsigned flags);
void builder_reduce(builder_t *builder, plan_operand_t destination, plan_operand_t source, plan_operand_t source2, unsigned flags);
void builder_reduce_window(builder_t *builder, plan_operand_t destination, plan_operand_t second, plan_operand_t source,
                           unsigned flags);
void builder_send(builder_t *builder, plan_operand_t source, int rank);
void builder_recv(builder_t *builder, plan_operand_t destination, int rank);
void builder_wait(builder_t *builder);

/* ---- phases that several algorithms share */

/** STEP_SCALE when the operation has a premul factor. */
static inline unsigned builder_scale(const builder_t *builder) { return builder->request->premul ? STEP_SCALE : 0; }
/** For the copy of one's own values with which a host of one rank begins: what a premul factor, or avg's share, does to them. */
static inline unsigned builder_prepare(const builder_t *builder)
{
    return builder->request->premul ? STEP_SCALE : builder->request->share ? STEP_SHARE : 0;
}
/** For the sum of a host that has several. */
static inline unsigned builder_share(const builder_t *builder) { return builder->request->share ? STEP_SHARE : 0; }
/** The last sum of all: avg divides. */
void builder_reduce_last(builder_t *builder, plan_operand_t destination, plan_operand_t source, plan_operand_t source2);
/** Another wire format than none: sums of a host are SUMs in its speaker's slot, and what edges carry is in wire form. */
static inline bool builder_wired(const builder_t *builder) { return builder->request->wire > QUOIT_WIRE_NONE; }
/** ENCODE or DECODE, as the destination's form wants it. source2 may be operand_none(). */
void builder_convert(builder_t *builder, plan_operand_t destination, plan_operand_t source, plan_operand_t source2, unsigned flags);
/** The window's sum into a speaker's slot, as what crosses hosts wants it: whole, or as SUMs; with avg's share. */
void builder_sum_host(builder_t *builder, plan_operand_t slot, plan_operand_t source);
/** For a result that only the caller reads: STEP_STREAM, but not where it is small enough to stay in a cache anyway. */
static inline unsigned builder_stream(const builder_t *builder) { return builder->request->small ? 0 : STEP_STREAM; }
/**
 * From here on steps that get `builder->input` move inputs that members may share: not when they are scaled on the way, nor small.
 * readers: plan->awaits_readers.
 */
void builder_share_inputs(builder_t *builder, bool readers);
/** Copy to one's own slot what the other members reduce: all parts but mine, or with a premul factor everything, scaled. */
void builder_publish_parts(builder_t *builder, plan_operand_t slot, plan_operand_t send);
/** Where REDUCE_WINDOW finds this rank's own values after they were published: in place, or scaled in the slot. */
plan_operand_t builder_own_source(const builder_t *builder, plan_operand_t slot, plan_operand_t send);

/* ---- circles */

/**
 * The ranks that talk over edges, in the order in which a ring or chain passes them: either one speaker a host (the root for its
 * own host, else the leader), hosts ascending from the root's; or all ranks, host by host, so that the ring enters and leaves each
 * network interface once (topology->order).
 */
typedef struct circle {
    const topology_t *topology;
    bool speakers;
    int root, size;
    int index; /* of this rank; meaningless for a rank that does not speak for its host */
} circle_t;

/** The leader of the first host: where circles begin that have no root. */
static inline int builder_first(const builder_t *builder) { return topology_leader(builder->topology, 0); }
circle_t circle_of_speakers(const builder_t *builder, int root);
circle_t circle_of_all(const builder_t *builder);
/** Rank at `index`; any integer, counted round the circle. */
int circle_rank(const circle_t *circle, int index);
static inline int circle_wrap(const circle_t *circle, int index)
{
    int wrapped = index % circle->size;
    return wrapped < 0 ? wrapped + circle->size : wrapped;
}
static inline int circle_next(const circle_t *circle) { return circle_rank(circle, circle->index + 1); }
static inline int circle_previous(const circle_t *circle) { return circle_rank(circle, circle->index - 1); }
/** Ranks whose blocks the speaker at `index` stands for: its host's. */
int circle_group_size(const circle_t *circle, int index);
int circle_group_rank(const circle_t *circle, int index, int item);

#endif
