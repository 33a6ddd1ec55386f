/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Reduction kernels in plain C, one element at a time: what runs where there is nothing better, and the oracle that every other
 * kernel must match bit by bit. Written to be read, not to be fast.
 */
#include "scheduler/reduce/convert.h"
#include "scheduler/reduce/kernel.h"

#include <math.h>

typedef struct c64 {
    float re, im;
} c64_t;
typedef struct c128 {
    double re, im;
} c128_t;

/* Memory to number and back. Arithmetic types are kept as they are; memcpy because nothing need be aligned. */
#define ACCESS(type, stored_t, number_t, decode, encode)                                    \
    static inline number_t get_##type(const void *from, size_t i)                           \
    {                                                                                       \
        stored_t stored;                                                                    \
        memcpy(&stored, (const char *)from + i * sizeof stored, sizeof stored);             \
        return decode(stored);                                                              \
    }                                                                                       \
    static inline void put_##type(const reduce_call_t *call, size_t i, number_t value)      \
    {                                                                                       \
        stored_t stored = encode(value);                                                    \
        memcpy((char *)call->destination + i * sizeof stored, &stored, sizeof stored);      \
        if (call->copy) memcpy((char *)call->copy + i * sizeof stored, &stored, sizeof stored); \
    }

static inline float quiet_f32(float value) { return isnan(value) ? f32_from_bits(CONVERT_NAN_F32) : value; }

static inline double quiet_f64(double value)
{
    uint64_t bits = CONVERT_NAN_F64;
    double nan_value;
    memcpy(&nan_value, &bits, sizeof bits);
    return isnan(value) ? nan_value : value;
}

static inline c64_t quiet_c64(c64_t value) { return (c64_t){quiet_f32(value.re), quiet_f32(value.im)}; }
static inline c128_t quiet_c128(c128_t value) { return (c128_t){quiet_f64(value.re), quiet_f64(value.im)}; }
static inline uint8_t truth(uint8_t value) { return value != 0; }

#define SAME(value) (value)
ACCESS(f64, double, double, SAME, quiet_f64)
ACCESS(f32, float, float, SAME, quiet_f32)
ACCESS(f16, uint16_t, float, f16_decode, f16_encode)
ACCESS(bf16, uint16_t, float, bf16_decode, bf16_encode)
ACCESS(e4m3, uint8_t, float, e4m3_decode, e4m3_encode)
ACCESS(e5m2, uint8_t, float, e5m2_decode, e5m2_encode)
ACCESS(i8, int8_t, int8_t, SAME, SAME)
ACCESS(u8, uint8_t, uint8_t, SAME, SAME)
ACCESS(i16, int16_t, int16_t, SAME, SAME)
ACCESS(u16, uint16_t, uint16_t, SAME, SAME)
ACCESS(i32, int32_t, int32_t, SAME, SAME)
ACCESS(u32, uint32_t, uint32_t, SAME, SAME)
ACCESS(i64, int64_t, int64_t, SAME, SAME)
ACCESS(u64, uint64_t, uint64_t, SAME, SAME)
ACCESS(bool, uint8_t, uint8_t, truth, SAME)
ACCESS(c64, c64_t, c64_t, SAME, quiet_c64)
ACCESS(c128, c128_t, c128_t, SAME, quiet_c128)

/** One kernel: `combine` of a and b again and again, then `result` of a. */
#define KERNEL(op, type, number_t, combine, result)                                         \
    static void op##_##type(const reduce_call_t *call, size_t bytes, const double *factor)  \
    {                                                                                       \
        const int64_t divisor = call->finish.divisor > 1 ? call->finish.divisor : 1;        \
        (void)divisor, (void)factor;                                                        \
        for (size_t i = 0; i < bytes / SIZE_##type; i++) {                                  \
            number_t a = get_##type(call->source[0], i);                                    \
            for (int k = 1; k < call->sources; k++) {                                       \
                number_t b = get_##type(call->source[k], i);                                \
                a = combine;                                                                \
            }                                                                               \
            put_##type(call, i, result);                                                    \
        }                                                                                   \
    }

enum { SIZE_f64 = 8, SIZE_f32 = 4, SIZE_f16 = 2, SIZE_bf16 = 2, SIZE_e4m3 = 1, SIZE_e5m2 = 1, SIZE_c64 = 8, SIZE_c128 = 16 };
enum { SIZE_i8 = 1, SIZE_u8 = 1, SIZE_i16 = 2, SIZE_u16 = 2, SIZE_i32 = 4, SIZE_u32 = 4, SIZE_i64 = 8, SIZE_u64 = 8, SIZE_bool = 1 };

/* NaN wins; of equal numbers the one with the sign wanted. */
#define LEAST_FLOAT (isnan(a) ? a : isnan(b) ? b : a < b ? a : b < a ? b : signbit(a) ? a : b)
#define MOST_FLOAT (isnan(a) ? a : isnan(b) ? b : a > b ? a : b > a ? b : signbit(a) ? b : a)

#define KERNELS_FLOAT(type, number_t)                             \
    KERNEL(sum, type, number_t, a + b, a)                         \
    KERNEL(prod, type, number_t, a * b, a)                        \
    KERNEL(min, type, number_t, LEAST_FLOAT, a)                   \
    KERNEL(max, type, number_t, MOST_FLOAT, a)                    \
    KERNEL(avg, type, number_t, a + b, a / (number_t)divisor)     \
    KERNEL(scale, type, number_t, b, a * (number_t)factor[0])
KERNELS_FLOAT(f64, double)
KERNELS_FLOAT(f32, float)
KERNELS_FLOAT(f16, float)
KERNELS_FLOAT(bf16, float)
KERNELS_FLOAT(e4m3, float)
KERNELS_FLOAT(e5m2, float)

/* Sums wrap in unsigned arithmetic; an average then takes the bits as signed again. */
#define KERNELS_INTEGER(type, number_t, bits, unsigned_t, wide_t)                                             \
    KERNEL(sum, bits, unsigned_t, (unsigned_t)((wide_t)a + b), a)                                             \
    KERNEL(prod, bits, unsigned_t, (unsigned_t)((wide_t)a * b), a)                                            \
    KERNEL(band, bits, unsigned_t, a &b, a)                                                                   \
    KERNEL(bor, bits, unsigned_t, a | b, a)                                                                   \
    KERNEL(bxor, bits, unsigned_t, a ^ b, a)                                                                  \
    KERNEL(min, bits, unsigned_t, a < b ? a : b, a)                                                           \
    KERNEL(max, bits, unsigned_t, a > b ? a : b, a)                                                           \
    KERNEL(avg, bits, unsigned_t, (unsigned_t)((wide_t)a + b), (unsigned_t)(a / (uint64_t)divisor))           \
    KERNEL(min, type, number_t, a < b ? a : b, a)                                                             \
    KERNEL(max, type, number_t, a > b ? a : b, a)                                                             \
    KERNEL(avg, type, number_t, (number_t)((wide_t)a + (wide_t)b), (number_t)(a / divisor))
KERNELS_INTEGER(i8, int8_t, u8, uint8_t, uint32_t)
KERNELS_INTEGER(i16, int16_t, u16, uint16_t, uint32_t)
KERNELS_INTEGER(i32, int32_t, u32, uint32_t, uint32_t)
KERNELS_INTEGER(i64, int64_t, u64, uint64_t, uint64_t)

KERNEL(bor, bool, uint8_t, a | b, a)
KERNEL(band, bool, uint8_t, a &b, a)
KERNEL(bxor, bool, uint8_t, a ^ b, a)

#define KERNELS_COMPLEX(type, number_t, part_t)                                                               \
    static inline number_t multiply_##type(number_t a, number_t b)                                            \
    {                                                                                                         \
        return (number_t){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};                              \
    }                                                                                                         \
    KERNEL(sum, type, number_t, ((number_t){a.re + b.re, a.im + b.im}), ((number_t){a.re + 0, a.im + 0}))     \
    KERNEL(avg, type, number_t, ((number_t){a.re + b.re, a.im + b.im}),                                       \
           ((number_t){(a.re + 0) / (part_t)divisor, (a.im + 0) / (part_t)divisor}))                          \
    KERNEL(prod, type, number_t, multiply_##type(a, b), a)                                                    \
    KERNEL(scale, type, number_t, b, multiply_##type(a, ((number_t){(part_t)factor[0], (part_t)factor[1]})))
KERNELS_COMPLEX(c64, c64_t, float)
KERNELS_COMPLEX(c128, c128_t, double)

/* ---- sums through float32, see wire.h */

#define WIRE_FLOAT(type, stored_t, encode)                                                      \
    static void wire_load_##type(float *sum, const void *from, size_t count)                    \
    {                                                                                           \
        for (size_t i = 0; i < count; i++) sum[i] = get_##type(from, i);                        \
    }                                                                                           \
    static void wire_add_##type(float *sum, const void *from, size_t count)                     \
    {                                                                                           \
        for (size_t i = 0; i < count; i++) sum[i] = sum[i] + get_##type(from, i);               \
    }                                                                                           \
    static void wire_store_##type(void *to, const float *sum, size_t count)                     \
    {                                                                                           \
        for (size_t i = 0; i < count; i++) {                                                    \
            stored_t stored = encode(sum[i]);                                                   \
            memcpy((char *)to + i * sizeof stored, &stored, sizeof stored);                     \
        }                                                                                       \
    }
WIRE_FLOAT(f32, float, quiet_f32)
WIRE_FLOAT(f16, uint16_t, f16_encode)
WIRE_FLOAT(bf16, uint16_t, bf16_encode)
WIRE_FLOAT(e4m3, uint8_t, e4m3_encode)
WIRE_FLOAT(e5m2, uint8_t, e5m2_encode)

static float wire_get_i8(const void *from, size_t i)
{
    const char *block = (const char *)from + i / WIRE_BLOCK * (WIRE_BLOCK + sizeof(float));
    float scale;
    memcpy(&scale, block, sizeof scale);
    return i8_decode((int8_t)block[sizeof scale + i % WIRE_BLOCK], scale);
}

static void wire_load_i8(float *sum, const void *from, size_t count)
{
    for (size_t i = 0; i < count; i++) sum[i] = wire_get_i8(from, i);
}

static void wire_add_i8(float *sum, const void *from, size_t count)
{
    for (size_t i = 0; i < count; i++) sum[i] = sum[i] + wire_get_i8(from, i);
}

static void wire_store_i8(void *to, const float *sum, size_t count)
{
    char *block = to;
    for (size_t begin = 0; begin < count; begin += WIRE_BLOCK, block += WIRE_BLOCK + sizeof(float)) {
        size_t length = count - begin < WIRE_BLOCK ? count - begin : WIRE_BLOCK;
        uint32_t largest = 0;
        for (size_t i = 0; i < length; i++) {
            uint32_t magnitude = f32_bits(sum[begin + i]) & 0x7fffffffu;
            if (magnitude < CONVERT_INFINITY_F32 && magnitude > largest) largest = magnitude;
        }
        float inverse, scale = i8_scale(largest, &inverse);
        memcpy(block, &scale, sizeof scale);
        for (size_t i = 0; i < length; i++) block[sizeof scale + i] = (char)i8_encode(sum[begin + i], inverse);
    }
}

static void wire_scale(float *sum, size_t count, float factor, float divisor)
{
    for (size_t i = 0; i < count; i++) sum[i] = sum[i] * factor / divisor;
}

const kernel_table_t kernel_scalar = {"scalar", {KERNEL_ROWS}, KERNEL_WIRE_ROWS};
