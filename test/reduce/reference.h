/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Reductions computed anew, sharing nothing with the library: small floats by their definition (sign, exponent, mantissa) and by
 * searching the nearest code, float32 steps in double (adding, multiplying or dividing two float32 in double and rounding to
 * float32 gives the IEEE result), integers in 128 bits.
 */
#ifndef TEST_REDUCE_REFERENCE_H
#define TEST_REDUCE_REFERENCE_H

extern "C" {
#include "scheduler/reduce/reduce.h"
}

#include <cstdint>
#include <random>
#include <vector>

namespace reference {

using Bytes = std::vector<unsigned char>;

/** Value of a code of f16, bf16 or an fp8 form, by definition. */
double decode(quoit_dtype_t dtype, uint32_t code);
/** Nearest code, ties to even; NaN gives the one NaN the library writes. */
uint32_t encode(quoit_dtype_t dtype, double value);

/** What reduce_run has to leave in the destination. */
Bytes reduce(quoit_dtype_t dtype, quoit_op_t op, const std::vector<const unsigned char *> &sources, size_t count, int64_t divisor);
/** What reduce_scale has to leave. */
Bytes scale(quoit_dtype_t dtype, const unsigned char *source, size_t count, const double factor[2]);

/** `count` elements: any bits, or special values, or modest numbers, as the generator wills. */
Bytes data(quoit_dtype_t dtype, size_t count, std::mt19937_64 &random);

} // namespace reference
#endif
