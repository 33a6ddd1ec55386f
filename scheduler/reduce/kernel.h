/* SPDX-License-Identifier: Apache-2.0 */
/** What dispatch.c and the kernels of each instruction set share: the table of functions, one table an instruction set. */
#ifndef QUOIT_SCHEDULER_REDUCE_KERNEL_H
#define QUOIT_SCHEDULER_REDUCE_KERNEL_H

#include "scheduler/reduce/reduce.h"
#include "scheduler/reduce/wire.h"

/** Beside the public operations: one source times `factor`. */
enum { KERNEL_SCALE = QUOIT_OP_COUNT, KERNEL_OPS };

/**
 * `bytes` is that of one source. dtype and op are in the choice of the function; a kernel never reads call->dtype, op or count.
 * `factor` is for KERNEL_SCALE only.
 */
typedef void kernel_fn(const reduce_call_t *call, size_t bytes, const double factor[2]);

/** For wire.h. `sum` is aligned to 64 bytes and has room for KERNEL_WIRE_PIECE elements; count is at most that. */
enum { KERNEL_WIRE_PIECE = 1024 }; /* elements: whole blocks of int8; 4 KiB as float32 */
typedef void kernel_wire_take_fn(float *sum, const void *from, size_t count);
typedef void kernel_wire_give_fn(void *to, const float *sum, size_t count);
/** sum * factor / divisor. */
typedef void kernel_wire_scale_fn(float *sum, size_t count, float factor, float divisor);

typedef struct kernel_table {
    const char *isa;
    kernel_fn *run[QUOIT_DTYPE_COUNT][KERNEL_OPS]; /* NULL: quoit_op_check refuses it */
    kernel_wire_take_fn *wire_load[WIRE_TYPES], *wire_add[WIRE_TYPES];
    kernel_wire_give_fn *wire_store[WIRE_TYPES];
    kernel_wire_scale_fn *wire_scale;
} kernel_table_t;

void kernel_wire_run(const kernel_table_t *table, const wire_call_t *call);

extern const kernel_table_t kernel_scalar, kernel_avx2, kernel_avx512, kernel_neon; /* the last three where they can be built */

/* Fill a table from functions called <op>_<type>, where types of the same bits share functions. */
#define KERNEL_ROW_FLOAT(DTYPE, type)                                                                           \
    [QUOIT_##DTYPE] = {[QUOIT_SUM] = sum_##type, [QUOIT_PREMUL_SUM] = sum_##type, [QUOIT_PROD] = prod_##type,   \
                       [QUOIT_MIN] = min_##type, [QUOIT_MAX] = max_##type,        [QUOIT_AVG] = avg_##type,     \
                       [KERNEL_SCALE] = scale_##type}
#define KERNEL_ROW_INTEGER(DTYPE, type, bits)                                                                   \
    [QUOIT_##DTYPE] = {[QUOIT_SUM] = sum_##bits, [QUOIT_PROD] = prod_##bits, [QUOIT_MIN] = min_##type,          \
                       [QUOIT_MAX] = max_##type, [QUOIT_AVG] = avg_##type,   [QUOIT_BAND] = band_##bits,        \
                       [QUOIT_BOR] = bor_##bits, [QUOIT_BXOR] = bxor_##bits}
#define KERNEL_ROW_COMPLEX(DTYPE, type)                                                                         \
    [QUOIT_##DTYPE] = {[QUOIT_SUM] = sum_##type, [QUOIT_PREMUL_SUM] = sum_##type, [QUOIT_PROD] = prod_##type,   \
                       [QUOIT_AVG] = avg_##type, [KERNEL_SCALE] = scale_##type}
#define KERNEL_ROW_BOOL                                                                                         \
    [QUOIT_BOOL] = {[QUOIT_SUM] = bor_bool,   [QUOIT_MAX] = bor_bool,  [QUOIT_BOR] = bor_bool,                  \
                    [QUOIT_PROD] = band_bool, [QUOIT_MIN] = band_bool, [QUOIT_BAND] = band_bool,                \
                    [QUOIT_BXOR] = bxor_bool}
#define KERNEL_ROWS                                                                                             \
    KERNEL_ROW_FLOAT(F64, f64), KERNEL_ROW_FLOAT(F32, f32), KERNEL_ROW_FLOAT(F16, f16), KERNEL_ROW_FLOAT(BF16, bf16), \
        KERNEL_ROW_FLOAT(F8_E4M3, e4m3), KERNEL_ROW_FLOAT(F8_E5M2, e5m2), KERNEL_ROW_INTEGER(I8, i8, u8),       \
        KERNEL_ROW_INTEGER(U8, u8, u8), KERNEL_ROW_INTEGER(I16, i16, u16), KERNEL_ROW_INTEGER(U16, u16, u16),   \
        KERNEL_ROW_INTEGER(I32, i32, u32), KERNEL_ROW_INTEGER(U32, u32, u32), KERNEL_ROW_INTEGER(I64, i64, u64), \
        KERNEL_ROW_INTEGER(U64, u64, u64), KERNEL_ROW_BOOL, KERNEL_ROW_COMPLEX(C64, c64),                       \
        KERNEL_ROW_COMPLEX(C128, c128)

#define KERNEL_WIRE_ROW(what) {what##_f32, what##_f16, what##_bf16, what##_e4m3, what##_e5m2, what##_i8} /* in the order of wire_type_t */
#define KERNEL_WIRE_ROWS KERNEL_WIRE_ROW(wire_load), KERNEL_WIRE_ROW(wire_add), KERNEL_WIRE_ROW(wire_store), wire_scale

#endif
