/* SPDX-License-Identifier: Apache-2.0 */
/** Plans as a person reads them, and the names of what they are made of. */
#include "base/text.h"
#include "scheduler/plan_internal.h"

#include <stddef.h>

const char *plan_collective_name(plan_collective_t collective)
{
    switch (collective) {
#define COLLECTIVE_CASE(NAME, name) \
    case COLLECTIVE_##NAME: return name;
        PLAN_COLLECTIVE_LIST(COLLECTIVE_CASE)
#undef COLLECTIVE_CASE
    default: return "?";
    }
}

const char *plan_algorithm_name(plan_algorithm_t algorithm)
{
    switch (algorithm) {
#define ALGORITHM_CASE(NAME, name, text) \
    case ALGORITHM_##NAME: return name;
        PLAN_ALGORITHM_LIST(ALGORITHM_CASE)
#undef ALGORITHM_CASE
    default: return "?";
    }
}

static const char *algorithm_text(plan_algorithm_t algorithm)
{
    switch (algorithm) {
#define ALGORITHM_CASE(NAME, name, text) \
    case ALGORITHM_##NAME: return text;
        PLAN_ALGORITHM_LIST(ALGORITHM_CASE)
#undef ALGORITHM_CASE
    default: return "?";
    }
}

const char *plan_verb_name(plan_verb_t verb)
{
    static const char *const names[VERB_COUNT] = {
        [VERB_RECLAIM] = "reclaim", [VERB_SIGNAL] = "signal", [VERB_AWAIT] = "await",
        [VERB_CONSUMED] = "consumed", [VERB_COPY] = "copy", [VERB_REDUCE] = "reduce",
        [VERB_REDUCE_WINDOW] = "reduce_window", [VERB_SEND] = "send", [VERB_RECV] = "recv", [VERB_WAIT] = "wait",
        [VERB_ENCODE] = "encode", [VERB_DECODE] = "decode", [VERB_SUM_WINDOW] = "sum_window"};
    return (unsigned)verb < VERB_COUNT ? names[verb] : "?";
}

const char *plan_space_name(plan_space_t space)
{
    static const char *const names[] = {
        [SPACE_NONE] = "none", [SPACE_SEND] = "SEND", [SPACE_RECV] = "RECV", [SPACE_SLOT] = "SLOT", [SPACE_TEMP] = "TEMP"};
    return (unsigned)space < sizeof names / sizeof *names ? names[space] : "?";
}

static void print_operand(const plan_operand_t *operand, text_t *text)
{
    bool numbered = operand->space == SPACE_SLOT || operand->space == SPACE_TEMP;
    text_append(text, "%s", plan_space_name((plan_space_t)operand->space));
    if (numbered) text_append(text, "(%d)", operand->member);
    if (operand->form != FORM_WHOLE) text_append(text, operand->form == FORM_SUM ? " sums" : " wire");
    if (operand->block != PLAN_NO_BLOCK) text_append(text, " block %d", operand->block);
    if (operand->block != PLAN_NO_BLOCK && numbered) text_append(text, " at %d", operand->place);
    if (operand->parts == 1) return;
    if (operand->count == 1) text_append(text, " part %d/%d", operand->first, operand->parts);
    else text_append(text, " parts %d..%d/%d", operand->first, operand->first + operand->count - 1, operand->parts);
}

static void print_step(const plan_step_t *step, text_t *text)
{
    text_append(text, "%s", plan_verb_name((plan_verb_t)step->verb));
    switch (step->verb) {
    case VERB_SIGNAL: text_append(text, " %d", step->stage); break;
    case VERB_AWAIT:
        text_append(text, " %d of ", step->stage);
        if (step->peer == PLAN_ALL) text_append(text, "all");
        else text_append(text, "member %d", step->peer);
        break;
    case VERB_SEND:
        text_append(text, " to rank %d: ", step->peer);
        print_operand(&step->source, text);
        break;
    case VERB_RECV:
        text_append(text, " from rank %d: ", step->peer);
        print_operand(&step->destination, text);
        break;
    case VERB_COPY:
    case VERB_REDUCE:
    case VERB_REDUCE_WINDOW:
    case VERB_ENCODE:
    case VERB_DECODE:
    case VERB_SUM_WINDOW:
        text_append(text, " ");
        print_operand(&step->destination, text);
        if (step->second.space != SPACE_NONE) text_append(text, " and ");
        if (step->second.space != SPACE_NONE) print_operand(&step->second, text);
        text_append(text, step->verb == VERB_REDUCE_WINDOW || step->verb == VERB_SUM_WINDOW ? " = all slots, mine " : " = ");
        print_operand(&step->source, text);
        if (step->source2.space != SPACE_NONE) text_append(text, " + ");
        if (step->source2.space != SPACE_NONE) print_operand(&step->source2, text);
        break;
    default: break;
    }
    if (step->flags & STEP_SCALE) text_append(text, ", scaled");
    if (step->flags & STEP_SHARE) text_append(text, ", its share");
    if (step->flags & STEP_FINISH) text_append(text, ", finished");
    if (step->flags & STEP_STREAM) text_append(text, ", streamed");
    if (step->flags & STEP_INPUT) text_append(text, ", inputs in shared memory where they lie");
    text_append(text, "\n");
}

void plan_print(const plan_t *plan, text_t *text)
{
    text_append(text, "%s, rank %d, root %d: %s (%s)\n", plan_collective_name(plan->collective), plan->rank, plan->root,
                plan_algorithm_name(plan->algorithm), algorithm_text(plan->algorithm));
    text_append(text, "%d steps a chunk, %d chunks in flight, %d transfers, slot of %d place%s, %d scratch buffer%s%s%s\n", plan->steps,
                plan->depth, plan->transfers, plan->places, plan->places == 1 ? "" : "s", plan->temps, plan->temps == 1 ? "" : "s",
                plan->window ? ", window" : "", plan->small ? ", small" : "");
    if (plan_is_wired(plan)) text_append(text, "between hosts as %s\n", quoit_wire_name(plan->wire));
    if (plan->share) text_append(text, "avg divides by %lld before, by the rest after\n", (long long)plan->share);
    for (int i = 0; i < plan->steps; i++) {
        text_append(text, "%4d  ", i);
        print_step(&plan->step[i], text);
    }
}
