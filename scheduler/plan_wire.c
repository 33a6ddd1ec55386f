/* SPDX-License-Identifier: Apache-2.0 */
/** Which wire format and which share an operation has, and what the steps of plans that have one are to do. docs/wire.md says why. */
#include "scheduler/plan_internal.h"

static bool is_small_float(quoit_dtype_t dtype)
{
    return dtype == QUOIT_F16 || dtype == QUOIT_BF16 || dtype == QUOIT_F8_E4M3 || dtype == QUOIT_F8_E5M2;
}

static bool crosses_edges(plan_algorithm_t algorithm)
{
    return algorithm != ALGORITHM_LOCAL && !plan_is_of_one_host(algorithm);
}

quoit_wire_t plan_wire(const topology_t *topology, plan_collective_t collective, plan_algorithm_t algorithm, quoit_dtype_t dtype, quoit_op_t op,
                       quoit_wire_t wanted)
{
    bool sums = op == QUOIT_SUM || op == QUOIT_AVG || op == QUOIT_PREMUL_SUM;
    if (!plan_reduces(collective) || !sums || !crosses_edges(algorithm)) return QUOIT_WIRE_NONE;
    bool fits = false;
    switch (wanted) {
    case QUOIT_WIRE_F32: fits = is_small_float(dtype); break;
    case QUOIT_WIRE_BF16:
    case QUOIT_WIRE_F16: fits = dtype == QUOIT_F32 && topology->hosts > 1; break;
    case QUOIT_WIRE_I8: fits = (dtype == QUOIT_F32 || dtype == QUOIT_F16 || dtype == QUOIT_BF16) && topology->hosts > 1; break;
    default: break;
    }
    return fits ? wanted : QUOIT_WIRE_NONE;
}

static wire_type_t type_of_dtype(quoit_dtype_t dtype)
{
    switch (dtype) {
    case QUOIT_F16: return WIRE_F16;
    case QUOIT_BF16: return WIRE_BF16;
    case QUOIT_F8_E4M3: return WIRE_E4M3;
    case QUOIT_F8_E5M2: return WIRE_E5M2;
    default: return WIRE_F32;
    }
}

wire_type_t plan_wire_type(quoit_wire_t wire)
{
    static const wire_type_t type[QUOIT_WIRE_COUNT] = {
        [QUOIT_WIRE_F32] = WIRE_F32, [QUOIT_WIRE_BF16] = WIRE_BF16, [QUOIT_WIRE_F16] = WIRE_F16, [QUOIT_WIRE_I8] = WIRE_I8};
    return type[wire];
}

int64_t plan_share(const topology_t *topology, plan_algorithm_t algorithm, quoit_dtype_t dtype, quoit_op_t op, quoit_wire_t wire)
{
    int64_t share = 1;
    if (op != QUOIT_AVG || !crosses_edges(algorithm) || (wire <= QUOIT_WIRE_NONE && !is_small_float(dtype))) return 0;
    while (share < topology->ranks) share *= 2;
    return share;
}

static wire_type_t type_of_operand(const plan_t *plan, const plan_operand_t *operand, quoit_dtype_t dtype)
{
    return operand->form == FORM_SUM ? WIRE_F32 : operand->form == FORM_WIRE ? plan_wire_type(plan->wire) : type_of_dtype(dtype);
}

wire_call_t plan_wire_call(const plan_t *plan, const plan_step_t *step, quoit_dtype_t dtype, int ranks, double factor)
{
    bool window = step->verb == VERB_SUM_WINDOW, pair = step->source2.space != SPACE_NONE;
    wire_call_t call = {.first = type_of_operand(plan, &step->source, dtype),
                        .result = type_of_operand(plan, &step->destination, dtype),
                        .sources = pair ? 2 : 1,
                        .factor = step->flags & STEP_SCALE ? (float)factor : 1,
                        .share = 1,
                        .divisor = 1};
    call.others = pair ? type_of_operand(plan, &step->source2, dtype) : call.first;
    if (plan->share == 0) return call;
    if (step->flags & STEP_SHARE && !window) call.share = (float)plan->share;
    if (step->flags & STEP_SHARE && window) call.divisor = (float)plan->share;
    if (step->flags & STEP_FINISH) call.divisor = (float)((double)ranks / (double)plan->share);
    return call;
}
