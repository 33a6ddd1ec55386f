/* SPDX-License-Identifier: Apache-2.0 */
/** Appends steps to a plan, and knows the circles of ranks that rings, chains and trees run over. */
#include "scheduler/algorithm/builder.h"

#include <limits.h>
#include <stdlib.h>

static void append(builder_t *builder, const plan_step_t *step)
{
    enum { FIRST_CAPACITY = 16 };
    plan_t *plan = builder->plan;
    if (builder->failed) return;
    if (plan->steps == builder->capacity) {
        int capacity = builder->capacity ? builder->capacity * 2 : FIRST_CAPACITY;
        plan_step_t *grown = capacity > 0 ? realloc(plan->step, (size_t)capacity * sizeof *grown) : NULL;
        if (!grown) {
            builder->failed = true;
            return;
        }
        plan->step = grown;
        builder->capacity = capacity;
    }
    plan->step[plan->steps++] = *step;
}

static plan_step_t step_of(plan_verb_t verb)
{
    plan_operand_t none = operand_none();
    return (plan_step_t){.verb = (uint8_t)verb, .peer = PLAN_ALL, .destination = none, .second = none, .source = none, .source2 = none};
}

static void append_window_step(builder_t *builder, plan_verb_t verb, int stage, int peer)
{
    plan_step_t step = step_of(verb);
    step.stage = (uint8_t)stage;
    step.peer = peer;
    builder->plan->window = true;
    append(builder, &step);
}

void builder_reclaim(builder_t *builder) { append_window_step(builder, VERB_RECLAIM, 0, PLAN_ALL); }

void builder_signal(builder_t *builder, int stage) { append_window_step(builder, VERB_SIGNAL, stage, PLAN_ALL); }

void builder_await(builder_t *builder, int stage, int member) { append_window_step(builder, VERB_AWAIT, stage, member); }

void builder_consumed(builder_t *builder) { append_window_step(builder, VERB_CONSUMED, 0, PLAN_ALL); }

void builder_copy(builder_t *builder, plan_operand_t destination, plan_operand_t source, unsigned flags)
{
    if (destination.count == 0) return;
    plan_step_t step = step_of(VERB_COPY);
    step.flags = (uint8_t)flags;
    step.destination = destination;
    step.source = source;
    append(builder, &step);
}

void builder_reduce(builder_t *builder, plan_operand_t destination, plan_operand_t source, plan_operand_t source2, unsigned flags)
{
    plan_step_t step = step_of(VERB_REDUCE);
    step.flags = (uint8_t)flags;
    step.destination = destination;
    step.source = source;
    step.source2 = source2;
    append(builder, &step);
}

void builder_reduce_window(builder_t *builder, plan_operand_t destination, plan_operand_t second, plan_operand_t source,
                           unsigned flags)
{
    plan_step_t step = step_of(VERB_REDUCE_WINDOW);
    step.flags = (uint8_t)flags;
    step.destination = destination;
    step.second = second;
    step.source = source;
    builder->plan->window = true;
    append(builder, &step);
}

void builder_convert(builder_t *builder, plan_operand_t destination, plan_operand_t source, plan_operand_t source2, unsigned flags)
{
    plan_step_t step = step_of(destination.form == FORM_WIRE ? VERB_ENCODE : VERB_DECODE);
    step.flags = (uint8_t)flags;
    step.destination = destination;
    step.source = source;
    step.source2 = source2;
    append(builder, &step);
}

void builder_reduce_last(builder_t *builder, plan_operand_t destination, plan_operand_t source, plan_operand_t source2)
{
    if (builder->request->share) builder_convert(builder, destination, source, source2, STEP_FINISH);
    else builder_reduce(builder, destination, source, source2, STEP_FINISH);
}

void builder_sum_host(builder_t *builder, plan_operand_t slot, plan_operand_t source)
{
    if (!builder_wired(builder)) {
        builder_reduce_window(builder, slot, operand_none(), source, builder_share(builder));
        return;
    }
    plan_step_t step = step_of(VERB_SUM_WINDOW);
    step.flags = (uint8_t)builder_share(builder);
    step.destination = operand_as(slot, FORM_SUM);
    step.source = source;
    builder->plan->window = true;
    append(builder, &step);
}

void builder_send(builder_t *builder, plan_operand_t source, int rank)
{
    plan_step_t step = step_of(VERB_SEND);
    step.peer = rank;
    step.source = source;
    builder->plan->transfers++;
    append(builder, &step);
}

void builder_recv(builder_t *builder, plan_operand_t destination, int rank)
{
    plan_step_t step = step_of(VERB_RECV);
    step.peer = rank;
    step.destination = destination;
    builder->plan->transfers++;
    append(builder, &step);
}

void builder_wait(builder_t *builder)
{
    plan_step_t step = step_of(VERB_WAIT);
    append(builder, &step);
}

void builder_share_inputs(builder_t *builder, bool readers)
{
    if (builder->request->premul || builder->request->share || builder->request->small) return;
    builder->input = STEP_INPUT;
    builder->plan->shares_inputs = true;
    builder->plan->awaits_readers = readers;
}

void builder_publish_parts(builder_t *builder, plan_operand_t slot, plan_operand_t send)
{
    int me = builder->me, members = builder->members;
    if (builder->request->premul) {
        builder_copy(builder, slot, send, STEP_SCALE);
        return;
    }
    builder_copy(builder, operand_cut(slot, 0, me, members), operand_cut(send, 0, me, members), builder->input);
    int after = members - me - 1;
    builder_copy(builder, operand_cut(slot, me + 1, after, members), operand_cut(send, me + 1, after, members), builder->input);
}

plan_operand_t builder_own_source(const builder_t *builder, plan_operand_t slot, plan_operand_t send)
{
    return builder->request->premul ? slot : send;
}

circle_t circle_of_speakers(const builder_t *builder, int root)
{
    const topology_t *topology = builder->topology;
    int index = builder->host - topology->host[root];
    return (circle_t){.topology = topology,
                      .speakers = true,
                      .root = root,
                      .size = topology->hosts,
                      .index = index < 0 ? index + topology->hosts : index};
}

circle_t circle_of_all(const builder_t *builder)
{
    const topology_t *topology = builder->topology;
    return (circle_t){.topology = topology, .speakers = false, .size = topology->ranks, .index = topology->position[builder->rank]};
}

int circle_rank(const circle_t *circle, int index)
{
    const topology_t *topology = circle->topology;
    int at = circle_wrap(circle, index);
    if (!circle->speakers) return topology->order[at];
    return at == 0 ? circle->root : topology_leader(topology, (topology->host[circle->root] + at) % topology->hosts);
}

int circle_group_size(const circle_t *circle, int index)
{
    return circle->topology->host_size[circle->topology->host[circle_rank(circle, index)]];
}

int circle_group_rank(const circle_t *circle, int index, int item)
{
    return topology_rank(circle->topology, circle->topology->host[circle_rank(circle, index)], item);
}
