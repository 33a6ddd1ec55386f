/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Patterns for checking results. All values of one period are computed once, for this rank's input and, naively over all ranks, for
 * the result; buffers are then filled and compared period by period. Three families of types: bits (integers and bool, modulo their
 * width), floats, complex. The decoders here are deliberately not the library's own.
 */
#include "pattern.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { PERIOD = 2039, MAX_WIDTH = 16, CONTRIBUTORS = 4 };

typedef enum family { FAMILY_UNSIGNED, FAMILY_SIGNED, FAMILY_BOOL, FAMILY_FLOAT, FAMILY_COMPLEX } family_t;

typedef struct number {
    uint64_t bits; /* integers: sign- or zero-extended */
    double re, im;
} number_t;

typedef struct type {
    family_t family;
    int mantissa;  /* bits stored; floats and complex */
    int exponent;  /* bits */
    bool finite;   /* no infinities: only the all-ones pattern is NaN */
} type_t;

struct pattern {
    quoit_dtype_t dtype;
    quoit_op_t op;
    int rank, ranks;
    size_t width;
    type_t type;
    number_t expected[PERIOD];
    double tolerance[PERIOD];
    unsigned char input[PERIOD * MAX_WIDTH]; /* encoded */
    unsigned char accepted[PERIOD * MAX_WIDTH]; /* result bits that were found right, so that the same bits need no second look */
    bool known[PERIOD];                         /* whether there are such bits yet */
};

static type_t type_of(quoit_dtype_t dtype)
{
    switch (dtype) {
    case QUOIT_F64: return (type_t){FAMILY_FLOAT, 52, 11, false};
    case QUOIT_F32: return (type_t){FAMILY_FLOAT, 23, 8, false};
    case QUOIT_F16: return (type_t){FAMILY_FLOAT, 10, 5, false};
    case QUOIT_BF16: return (type_t){FAMILY_FLOAT, 7, 8, false};
    case QUOIT_F8_E4M3: return (type_t){FAMILY_FLOAT, 3, 4, true};
    case QUOIT_F8_E5M2: return (type_t){FAMILY_FLOAT, 2, 5, false};
    case QUOIT_C64: return (type_t){FAMILY_COMPLEX, 23, 8, false};
    case QUOIT_C128: return (type_t){FAMILY_COMPLEX, 52, 11, false};
    case QUOIT_I8:
    case QUOIT_I16:
    case QUOIT_I32:
    case QUOIT_I64: return (type_t){FAMILY_SIGNED, 0, 0, false};
    case QUOIT_BOOL: return (type_t){FAMILY_BOOL, 0, 0, false};
    default: return (type_t){FAMILY_UNSIGNED, 0, 0, false};
    }
}

/* ---------------------------------------------------------------- bytes <-> numbers */

static uint64_t extend(family_t family, size_t width, uint64_t bits)
{
    int spare = 64 - 8 * (int)width;
    bits <<= spare;
    return family == FAMILY_SIGNED ? (uint64_t)((int64_t)bits >> spare) : bits >> spare;
}

/* Only for values that the format holds exactly and that are not subnormal in it. */
static uint64_t encode_small_float(const type_t *type, double value)
{
    int exponent, bias = (1 << (type->exponent - 1)) - 1;
    if (value == 0)
        return 0;
    double fraction = frexp(fabs(value), &exponent);
    uint64_t mantissa = (uint64_t)ldexp(2 * fraction - 1, type->mantissa);
    uint64_t sign = (uint64_t)(value < 0) << (type->exponent + type->mantissa);
    return sign | (uint64_t)(exponent - 1 + bias) << type->mantissa | mantissa;
}

static double decode_small_float(const type_t *type, uint64_t bits)
{
    uint64_t mantissa = bits & ((1u << type->mantissa) - 1);
    int top = (1 << type->exponent) - 1, exponent = (int)(bits >> type->mantissa) & top, bias = (1 << (type->exponent - 1)) - 1;
    double sign = bits >> (type->exponent + type->mantissa) & 1 ? -1 : 1;
    if (exponent == top && type->finite && mantissa == (1u << type->mantissa) - 1)
        return NAN;
    if (exponent == top && !type->finite)
        return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp((double)mantissa, 1 - bias - type->mantissa);
    return sign * ldexp((double)(mantissa + (1u << type->mantissa)), exponent - bias - type->mantissa);
}

static void encode_real(const type_t *type, double value, unsigned char *bytes)
{
    float single = (float)value;
    if (type->mantissa == 52) {
        memcpy(bytes, &value, sizeof value);
    } else if (type->mantissa == 23) {
        memcpy(bytes, &single, sizeof single);
    } else {
        uint64_t bits = encode_small_float(type, value);
        uint16_t two = (uint16_t)bits;
        uint8_t one = (uint8_t)bits;
        if (1 + type->exponent + type->mantissa == 16)
            memcpy(bytes, &two, sizeof two);
        else
            memcpy(bytes, &one, sizeof one);
    }
}

static double decode_real(const type_t *type, const unsigned char *bytes)
{
    double value;
    float single;
    uint16_t two;
    if (type->mantissa == 52)
        return memcpy(&value, bytes, sizeof value), value;
    if (type->mantissa == 23)
        return memcpy(&single, bytes, sizeof single), (double)single;
    if (1 + type->exponent + type->mantissa == 16)
        return memcpy(&two, bytes, sizeof two), decode_small_float(type, two);
    return decode_small_float(type, *bytes);
}

static uint64_t load_bits(size_t width, const unsigned char *bytes)
{
    uint8_t one;
    uint16_t two;
    uint32_t four;
    uint64_t eight;
    switch (width) {
    case 1: return memcpy(&one, bytes, 1), one;
    case 2: return memcpy(&two, bytes, 2), two;
    case 4: return memcpy(&four, bytes, 4), four;
    default: return memcpy(&eight, bytes, 8), eight;
    }
}

static void store_bits(size_t width, uint64_t bits, unsigned char *bytes)
{
    uint8_t one = (uint8_t)bits;
    uint16_t two = (uint16_t)bits;
    uint32_t four = (uint32_t)bits;
    memcpy(bytes, width == 1 ? (const void *)&one : width == 2 ? (const void *)&two : width == 4 ? (const void *)&four : &bits, width);
}

static void encode(const pattern_t *pattern, const number_t *number, unsigned char *bytes)
{
    if (pattern->type.family == FAMILY_COMPLEX) {
        encode_real(&pattern->type, number->re, bytes);
        encode_real(&pattern->type, number->im, bytes + pattern->width / 2);
    } else if (pattern->type.family == FAMILY_FLOAT) {
        encode_real(&pattern->type, number->re, bytes);
    } else {
        store_bits(pattern->width, number->bits, bytes);
    }
}

/* ---------------------------------------------------------------- inputs */

static uint64_t mix(uint64_t value)
{
    value += 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

/* True for `wanted` of the ranks at each place, others each time. */
static bool contributes(const pattern_t *pattern, int rank, int place, int wanted)
{
    return pattern->ranks <= wanted || (rank + place) % pattern->ranks < wanted;
}

static uint64_t integer_input(const pattern_t *pattern, int rank, int place, uint64_t random)
{
    if (pattern->type.family == FAMILY_BOOL) {
        bool rare = random % (2 * (uint64_t)pattern->ranks) == 0, common = random >> 32 & 1;
        if (pattern->op == QUOIT_BAND || pattern->op == QUOIT_PROD || pattern->op == QUOIT_MIN)
            return !rare;
        return pattern->op == QUOIT_BXOR ? common : rare;
    }
    if (pattern->op == QUOIT_AVG) { /* no overflow in 8 bits */
        int64_t limit = pattern->ranks < 100 ? 100 / pattern->ranks : 1;
        int64_t value = contributes(pattern, rank, place, 100) ? (int64_t)(random % (uint64_t)(limit + 1)) : 0;
        return pattern->type.family == FAMILY_SIGNED && random >> 63 ? (uint64_t)-value : (uint64_t)value;
    }
    return extend(pattern->type.family, pattern->width, random);
}

/* A real part. The 16- and 8-bit floats get small integers from few ranks: all partial sums are then exact, in any order. */
static double real_input(const pattern_t *pattern, int rank, int place, uint64_t random)
{
    static const double factors[] = {2, -1, 0.5, -2};
    bool narrow = pattern->type.mantissa < 23;
    if (pattern->op == QUOIT_PROD)
        return contributes(pattern, rank, place, 2) ? factors[random % 4] : 1;
    if (narrow && (pattern->op == QUOIT_MIN || pattern->op == QUOIT_MAX))
        return ((double)(random % 17) - 8) / 4;
    if (narrow) {
        int limit = pattern->op == QUOIT_PREMUL_SUM ? 1 : 2;
        return contributes(pattern, rank, place, CONTRIBUTORS) ? (double)(random % (uint64_t)(2 * limit + 1)) - limit : 0;
    }
    double value = ldexp((double)(random >> 11), -51) - 2; /* -2 .. 2 */
    return pattern->type.mantissa == 23 ? (double)(float)value : value;
}

static void make_input(const pattern_t *pattern, int rank, int place, number_t *number)
{
    uint64_t random = mix((uint64_t)rank * PERIOD + (uint64_t)place);
    memset(number, 0, sizeof *number);
    if (pattern->type.family < FAMILY_FLOAT) {
        number->bits = integer_input(pattern, rank, place, random);
        return;
    }
    number->re = real_input(pattern, rank, place, random);
    if (pattern->type.family != FAMILY_COMPLEX)
        return;
    if (pattern->op == QUOIT_PROD) { /* the same magnitude, on one of the axes */
        number->im = random >> 60 & 1 ? number->re : 0;
        number->re = random >> 60 & 1 ? 0 : number->re;
    } else {
        number->im = real_input(pattern, rank, place, mix(random));
    }
}

static void factor_of(const pattern_t *pattern, int rank, double factor[2])
{
    static const double factors[] = {1, 2, -1, -2};
    factor[0] = factors[rank % 4];
    factor[1] = pattern->type.family == FAMILY_COMPLEX && rank % 2 == 1 ? 0.5 : 0;
}

/* ---------------------------------------------------------------- results */

static void join_bits(const pattern_t *pattern, number_t *total, uint64_t bits)
{
    bool is_bool = pattern->type.family == FAMILY_BOOL, is_signed = pattern->type.family == FAMILY_SIGNED;
    bool less = is_signed ? (int64_t)bits < (int64_t)total->bits : bits < total->bits;
    switch (pattern->op) {
    case QUOIT_SUM:
    case QUOIT_AVG: total->bits = is_bool ? total->bits | bits : total->bits + bits; break;
    case QUOIT_PROD: total->bits = is_bool ? total->bits & bits : total->bits * bits; break;
    case QUOIT_MIN: total->bits = less ? bits : total->bits; break;
    case QUOIT_MAX: total->bits = less ? total->bits : bits; break;
    case QUOIT_BAND: total->bits &= bits; break;
    case QUOIT_BOR: total->bits |= bits; break;
    case QUOIT_BXOR: total->bits ^= bits; break;
    default: break;
    }
}

static void join_reals(const pattern_t *pattern, number_t *total, const number_t *next)
{
    double re = total->re;
    switch (pattern->op) {
    case QUOIT_PROD:
        total->re = re * next->re - total->im * next->im;
        total->im = re * next->im + total->im * next->re;
        break;
    case QUOIT_MIN: total->re = fmin(re, next->re); break;
    case QUOIT_MAX: total->re = fmax(re, next->re); break;
    default:
        total->re += next->re;
        total->im += next->im;
    }
}

static void make_expected(pattern_t *pattern, int place)
{
    number_t total = {0}, next;
    double magnitude = 0, epsilon = ldexp(1, -pattern->type.mantissa);
    bool floating = pattern->type.family >= FAMILY_FLOAT, sums = pattern->op == QUOIT_SUM || pattern->op == QUOIT_AVG || pattern->op == QUOIT_PREMUL_SUM;
    for (int rank = 0; rank < pattern->ranks; rank++) {
        make_input(pattern, rank, place, &next);
        if (pattern->op == QUOIT_PREMUL_SUM) {
            double factor[2], re = next.re;
            factor_of(pattern, rank, factor);
            next.re = re * factor[0] - next.im * factor[1];
            next.im = re * factor[1] + next.im * factor[0];
        }
        magnitude += fabs(next.re) + fabs(next.im);
        if (rank == 0)
            total = next;
        else if (floating)
            join_reals(pattern, &total, &next);
        else
            join_bits(pattern, &total, next.bits);
    }
    if (!floating) {
        total.bits = extend(pattern->type.family, pattern->width, total.bits);
        if (pattern->op == QUOIT_AVG)
            total.bits = pattern->type.family == FAMILY_SIGNED ? (uint64_t)((int64_t)total.bits / pattern->ranks)
                                                               : total.bits / (uint64_t)pattern->ranks;
    }
    pattern->tolerance[place] = 0;
    if (floating && sums && pattern->type.mantissa >= 23)
        pattern->tolerance[place] = pattern->ranks * epsilon * magnitude;
    if (floating && pattern->op == QUOIT_AVG) { /* one rounding of the quotient; the narrow types' smallest step is 2^-16 or 2^-9 */
        total.re /= pattern->ranks;
        total.im /= pattern->ranks;
        pattern->tolerance[place] /= pattern->ranks;
        pattern->tolerance[place] += epsilon * (fabs(total.re) + fabs(total.im)) + (pattern->width == 1 ? ldexp(1, -9) : 0);
    }
    pattern->expected[place] = total;
}

pattern_t *pattern_create(quoit_dtype_t dtype, quoit_op_t op, int rank, int ranks)
{
    pattern_t *pattern = calloc(1, sizeof *pattern);
    if (pattern == NULL)
        return NULL;
    pattern->dtype = dtype;
    pattern->op = op;
    pattern->rank = rank;
    pattern->ranks = ranks;
    pattern->width = quoit_dtype_size(dtype);
    pattern->type = type_of(dtype);
    for (int place = 0; place < PERIOD; place++) {
        number_t number;
        make_input(pattern, rank, place, &number);
        encode(pattern, &number, pattern->input + (size_t)place * pattern->width);
        make_expected(pattern, place);
    }
    return pattern;
}

void pattern_destroy(pattern_t *pattern)
{
    free(pattern);
}

void pattern_factor(const pattern_t *pattern, double factor[2])
{
    factor_of(pattern, pattern->rank, factor);
}

static bool is_right(const pattern_t *pattern, int place, const unsigned char *bytes)
{
    const number_t *expected = &pattern->expected[place];
    double tolerance = pattern->tolerance[place];
    if (pattern->type.family < FAMILY_FLOAT)
        return extend(pattern->type.family, pattern->width, load_bits(pattern->width, bytes)) == expected->bits;
    if (!(fabs(decode_real(&pattern->type, bytes) - expected->re) <= tolerance))
        return false;
    return pattern->type.family != FAMILY_COMPLEX ||
           fabs(decode_real(&pattern->type, bytes + pattern->width / 2) - expected->im) <= tolerance;
}

static int first_place(unsigned round)
{
    return (int)(round * 97u % PERIOD);
}

/* Elements until the period ends, at most what is left. */
static size_t run_length(int place, size_t left)
{
    size_t run = (size_t)(PERIOD - place);
    return run < left ? run : left;
}

void pattern_fill(const pattern_t *pattern, unsigned round, void *buffer, size_t count)
{
    int place = first_place(round);
    for (size_t done = 0; done < count;) {
        size_t run = run_length(place, count - done);
        memcpy((char *)buffer + done * pattern->width, pattern->input + (size_t)place * pattern->width, run * pattern->width);
        done += run;
        place = 0;
    }
}

size_t pattern_count_changed(const pattern_t *pattern, unsigned round, const void *buffer, size_t count)
{
    size_t changed = 0, width = pattern->width;
    int place = first_place(round);
    for (size_t done = 0; done < count;) {
        size_t run = run_length(place, count - done);
        const unsigned char *block = (const unsigned char *)buffer + done * width, *input = pattern->input + (size_t)place * width;
        if (memcmp(block, input, run * width) != 0) {
            for (size_t i = 0; i < run; i++)
                changed += memcmp(block + i * width, input + i * width, width) != 0;
        }
        done += run;
        place = 0;
    }
    return changed;
}

size_t pattern_count_wrong(pattern_t *pattern, unsigned round, const void *buffer, size_t count)
{
    size_t wrong = 0, width = pattern->width;
    int place = first_place(round);
    for (size_t done = 0; done < count;) {
        size_t run = run_length(place, count - done), bad = 0;
        const unsigned char *block = (const unsigned char *)buffer + done * width;
        unsigned char *accepted = pattern->accepted + (size_t)place * width;
        if (memchr(pattern->known + place, false, run) != NULL || memcmp(block, accepted, run * width) != 0) {
            for (size_t i = 0; i < run; i++)
                bad += !is_right(pattern, place + (int)i, block + i * width);
            if (bad == 0) {
                memcpy(accepted, block, run * width);
                memset(pattern->known + place, true, run);
            }
        }
        wrong += bad;
        done += run;
        place = 0;
    }
    return wrong;
}
