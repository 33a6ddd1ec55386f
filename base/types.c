/* SPDX-License-Identifier: Apache-2.0 */
/** Names and sizes of element types and operations, and which operation goes with which type. */
#include "base/status.h"

#include <stdbool.h>

typedef enum family { FAMILY_FLOAT, FAMILY_MOVED_ONLY, FAMILY_INTEGER, FAMILY_BOOL, FAMILY_COMPLEX } family_t;

size_t quoit_dtype_size(quoit_dtype_t dtype)
{
    switch (dtype) {
#define DTYPE_CASE(NAME, name, bytes) \
    case QUOIT_##NAME: return bytes;
        QUOIT_DTYPE_LIST(DTYPE_CASE)
#undef DTYPE_CASE
    case QUOIT_DTYPE_COUNT: break;
    }
    return 0;
}

const char *quoit_dtype_name(quoit_dtype_t dtype)
{
    switch (dtype) {
#define DTYPE_CASE(NAME, name, bytes) \
    case QUOIT_##NAME: return name;
        QUOIT_DTYPE_LIST(DTYPE_CASE)
#undef DTYPE_CASE
    case QUOIT_DTYPE_COUNT: break;
    }
    return "?";
}

const char *quoit_op_name(quoit_op_t op)
{
    switch (op) {
#define OP_CASE(NAME, name) \
    case QUOIT_##NAME: return name;
        QUOIT_OP_LIST(OP_CASE)
#undef OP_CASE
    case QUOIT_OP_COUNT: break;
    }
    return "?";
}

static family_t family_of(quoit_dtype_t dtype)
{
    switch (dtype) {
    case QUOIT_F64:
    case QUOIT_F32:
    case QUOIT_F16:
    case QUOIT_BF16:
    case QUOIT_F8_E4M3:
    case QUOIT_F8_E5M2: return FAMILY_FLOAT;
    case QUOIT_I8:
    case QUOIT_U8:
    case QUOIT_I16:
    case QUOIT_U16:
    case QUOIT_I32:
    case QUOIT_U32:
    case QUOIT_I64:
    case QUOIT_U64: return FAMILY_INTEGER;
    case QUOIT_BOOL: return FAMILY_BOOL;
    case QUOIT_C64:
    case QUOIT_C128: return FAMILY_COMPLEX;
    case QUOIT_F8_E4M3FNUZ:
    case QUOIT_F8_E5M2FNUZ:
    case QUOIT_DTYPE_COUNT: break;
    }
    return FAMILY_MOVED_ONLY;
}

const char *quoit_wire_name(quoit_wire_t wire)
{
    static const char *const names[QUOIT_WIRE_COUNT] = {
        [QUOIT_WIRE_DEFAULT] = "default", [QUOIT_WIRE_NONE] = "none", [QUOIT_WIRE_F32] = "float32",
        [QUOIT_WIRE_BF16] = "bf16",       [QUOIT_WIRE_F16] = "fp16",  [QUOIT_WIRE_I8] = "int8"};
    return (unsigned)wire < QUOIT_WIRE_COUNT ? names[wire] : "?";
}

static bool op_supports(quoit_op_t op, family_t family)
{
    if (family == FAMILY_MOVED_ONLY) return false;
    switch (op) {
    case QUOIT_SUM:
    case QUOIT_PROD: return true;
    case QUOIT_AVG: return family != FAMILY_BOOL;
    case QUOIT_MIN:
    case QUOIT_MAX: return family != FAMILY_COMPLEX;
    case QUOIT_PREMUL_SUM: return family == FAMILY_FLOAT || family == FAMILY_COMPLEX;
    case QUOIT_BAND:
    case QUOIT_BOR:
    case QUOIT_BXOR: return family == FAMILY_INTEGER || family == FAMILY_BOOL;
    case QUOIT_OP_COUNT: break;
    }
    return false;
}

quoit_status_t quoit_op_check(quoit_dtype_t dtype, quoit_op_t op)
{
    if (op_supports(op, family_of(dtype))) return QUOIT_OK;
    return error_set(QUOIT_ERR_UNSUPPORTED, "not supported: op %s on %s", quoit_op_name(op), quoit_dtype_name(dtype));
}
