/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Small floats to float32 and back, one value at a time: the definition that the vector kernels must match bit by bit.
 *
 * To float32 is exact. From float32 rounds to nearest, ties to even; too large becomes infinity, in float8_e4m3fn (which has
 * none) the largest number, 448, as PyTorch's conversion has it since 2.13; NaN becomes the one positive quiet NaN of the format, so that no result depends on which operand's payload a CPU
 * keeps. Needs round-to-nearest and no flushing of subnormals, which is what reduce_run sets.
 */
#ifndef QUOIT_SCHEDULER_REDUCE_CONVERT_H
#define QUOIT_SCHEDULER_REDUCE_CONVERT_H

#include <stdint.h>
#include <string.h>

#define CONVERT_NAN_F32 0x7fc00000u
#define CONVERT_NAN_F64 0x7ff8000000000000u
#define CONVERT_INFINITY_F32 0x7f800000u

/** A format of one sign bit, exponent and mantissa. Codes are without the sign bit. */
typedef struct small_format {
    int bits, mantissa_bits, bias;
    uint32_t ceiling;   /* what too large a number becomes */
    uint32_t infinity;  /* a code that no magnitude has where there is no infinity */
    uint32_t first_nan; /* this code and all above are NaN */
    uint32_t nan;       /* the NaN that is written */
} small_format_t;

static const small_format_t small_f16 = {16, 10, 15, 0x7c00, 0x7c00, 0x7c01, 0x7e00};
static const small_format_t small_e4m3 = {8, 3, 7, 0x7e, 0x80, 0x7f, 0x7f};
static const small_format_t small_e5m2 = {8, 2, 15, 0x7c, 0x7c, 0x7d, 0x7f};

static inline uint32_t f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float small_decode(small_format_t format, uint32_t code)
{
    uint32_t sign = code >> (format.bits - 1) << 31;
    uint32_t magnitude = code & ((1u << (format.bits - 1)) - 1);
    int shift = 23 - format.mantissa_bits;
    if (magnitude >= format.first_nan) return f32_from_bits(sign | CONVERT_NAN_F32);
    if (magnitude == format.infinity) return f32_from_bits(sign | CONVERT_INFINITY_F32);
    if (magnitude >> format.mantissa_bits == 0) { /* subnormal: put a leading one before the mantissa, then take it away */
        uint32_t one = (uint32_t)(128 - format.bias) << 23;
        float value = f32_from_bits(one | magnitude << shift) - f32_from_bits(one);
        return f32_from_bits(sign | f32_bits(value));
    }
    return f32_from_bits(sign | ((magnitude << shift) + ((uint32_t)(127 - format.bias) << 23)));
}

static inline uint32_t small_encode(small_format_t format, float value)
{
    uint32_t bits = f32_bits(value), sign = bits >> 31 << (format.bits - 1), magnitude = bits & 0x7fffffffu, code;
    int shift = 23 - format.mantissa_bits;
    if (magnitude > CONVERT_INFINITY_F32) return format.nan;
    if (magnitude < (uint32_t)(128 - format.bias) << 23) {
        /* Subnormal: added to a power of two whose last place is the format's smallest step, the sum is rounded there. */
        uint32_t power = (uint32_t)(128 - format.bias - format.mantissa_bits + 23) << 23;
        code = f32_bits(f32_from_bits(magnitude) + f32_from_bits(power)) - power;
    } else {
        uint32_t odd = magnitude >> shift & 1;
        code = (magnitude - ((uint32_t)(127 - format.bias) << 23) + ((1u << (shift - 1)) - 1) + odd) >> shift;
        if (code > format.ceiling) code = format.ceiling;
    }
    return sign | code;
}

static inline float bf16_decode(uint16_t code) { return f32_from_bits((uint32_t)code << 16); }

static inline uint16_t bf16_encode(float value)
{
    uint32_t bits = f32_bits(value);
    if ((bits & 0x7fffffffu) > CONVERT_INFINITY_F32) return CONVERT_NAN_F32 >> 16;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static inline float f16_decode(uint16_t code) { return small_decode(small_f16, code); }
static inline float e4m3_decode(uint8_t code) { return small_decode(small_e4m3, code); }
static inline float e5m2_decode(uint8_t code) { return small_decode(small_e5m2, code); }
static inline uint16_t f16_encode(float value) { return (uint16_t)small_encode(small_f16, value); }
static inline uint8_t e4m3_encode(float value) { return (uint8_t)small_encode(small_e4m3, value); }
static inline uint8_t e5m2_encode(float value) { return (uint8_t)small_encode(small_e5m2, value); }

/** Added to a number of magnitude below 2^21, it leaves the nearest integer (ties to even) in the lowest bits. */
#define CONVERT_I8_ROUND 12582912.0f
#define CONVERT_I8_ROUND_BITS 0x4b400000u

/** Scale of a block of int8 codes, from the bits of its largest finite magnitude: see wire.h. *inverse: what values are multiplied by. */
static inline float i8_scale(uint32_t largest, float *inverse)
{
    const uint32_t least = (uint32_t)(127 - 100) << 23; /* 2^-100: below, scale and inverse would leave the normal numbers */
    *inverse = 0;
    if (largest < least) return 0;
    float scale = f32_from_bits(f32_bits(f32_from_bits(largest) / 126.0f) & 0xffffff80u);
    *inverse = 1.0f / scale;
    return scale;
}

static inline float i8_decode(int8_t code, float scale)
{
    if (code == -128) return f32_from_bits(CONVERT_NAN_F32);
    if (code > 126 || code < -126) return f32_from_bits((code < 0 ? 0x80000000u : 0) | CONVERT_INFINITY_F32);
    return (float)code * scale;
}

static inline int8_t i8_encode(float value, float inverse)
{
    uint32_t bits = f32_bits(value), magnitude = bits & 0x7fffffffu;
    if (magnitude > CONVERT_INFINITY_F32) return -128;
    if (magnitude == CONVERT_INFINITY_F32) return bits >> 31 ? -127 : 127;
    int32_t code = (int32_t)(f32_bits(value * inverse + CONVERT_I8_ROUND) - CONVERT_I8_ROUND_BITS);
    return (int8_t)(code > 126 ? 126 : code < -126 ? -126 : code);
}

#endif
