/* SPDX-License-Identifier: Apache-2.0 */
/** The caller's rounding mode and flushing of subnormals change no bit, and are there again afterwards. */
#include "test/reduce/reference.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <cstring>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace {

using reference::Bytes;

#if defined(__x86_64__)
constexpr unsigned flush_all = 0x8040, round_up = 0x4000, flags = 0x3f;

/** Sets the control word for as long as it lives. */
class Control {
  public:
    explicit Control(unsigned bits) : before_(_mm_getcsr()) { _mm_setcsr((before_ & ~flags) | bits); }
    ~Control() { _mm_setcsr(before_); }
    Control(const Control &) = delete;
    Control &operator=(const Control &) = delete;

  private:
    unsigned before_;
};

Bytes tiny(quoit_dtype_t dtype, size_t count, std::mt19937_64 &random)
{
    const size_t size = quoit_dtype_size(dtype), part = dtype == QUOIT_C64 ? 4 : dtype == QUOIT_C128 ? 8 : size;
    const int keep[] = {0, 2, 7, 0, 23, 0, 0, 0, 52};                        /* bits of mantissa by bytes of a part */
    const int mantissa = dtype == QUOIT_F16 ? 10 : keep[part];
    Bytes bytes(count * size);
    for (size_t i = 0; i < bytes.size() / part; i++) {
        uint64_t code = random() & ((1ull << mantissa) - 1);                  /* a subnormal */
        code |= (random() & 1) << (8 * part - 1);
        std::memcpy(bytes.data() + i * part, &code, part);
    }
    return bytes;
}

TEST(FloatControl, ChangesNoBitAndIsRestored)
{
    constexpr uint64_t seed = 4242;
    std::mt19937_64 random(seed);
    for (const char *isa : {"scalar", "avx2", "avx512"}) {
        for (quoit_dtype_t dtype : {QUOIT_F64, QUOIT_F32, QUOIT_F16, QUOIT_BF16, QUOIT_F8_E4M3, QUOIT_F8_E5M2, QUOIT_C64, QUOIT_C128}) {
            for (quoit_op_t op : {QUOIT_SUM, QUOIT_AVG, QUOIT_MIN, QUOIT_MAX, QUOIT_PROD}) {
                if (quoit_op_check(dtype, op) != QUOIT_OK) continue;
                for (unsigned bits : {flush_all | 0x1f80u, round_up | 0x1f80u, flush_all | round_up | 0x1f80u}) {
                    const size_t count = 333;
                    Bytes a = tiny(dtype, count, random), b = random() % 2 ? tiny(dtype, count, random) : reference::data(dtype, count, random);
                    Bytes expected = reference::reduce(dtype, op, {a.data(), b.data()}, count, 3), result(a.size());
                    const void *sources[] = {a.data(), b.data()};
                    reduce_call_t call = {};
                    call.dtype = dtype;
                    call.op = op;
                    call.sources = 2;
                    call.source = sources;
                    call.count = count;
                    call.destination = result.data();
                    call.finish.divisor = 3;
                    quoit_status_t status;
                    unsigned after;
                    {
                        Control control(bits);
                        status = reduce_run_with(isa, &call);
                        after = _mm_getcsr();
                    }
                    if (status == QUOIT_ERR_UNSUPPORTED) continue;
                    if (op != QUOIT_AVG) expected = reference::reduce(dtype, op, {a.data(), b.data()}, count, 1);
                    EXPECT_EQ(after & ~flags, bits) << isa;
                    EXPECT_EQ(result, expected) << isa << " " << quoit_dtype_name(dtype) << " " << quoit_op_name(op) << " control "
                                                << std::hex << bits << std::dec << " seed " << seed;
                }
            }
        }
    }
}

TEST(FloatControl, ScaleKeepsSubnormals)
{
    const uint32_t subnormal = 0x00400000;
    uint32_t result = 0;
    const double factor[2] = {0.5, 0};
    {
        Control control(flush_all | 0x1f80u);
        reduce_scale(QUOIT_F32, &result, &subnormal, 1, factor);
    }
    EXPECT_EQ(result, 0x00200000u);
}
#endif

/* A float16 average whose sum is beyond float16: the sum is kept in float32. */
TEST(Average, OfLargeHalvesDoesNotOverflow)
{
    const std::vector<uint16_t> large(40, 0x7bff); /* 65504 */
    const void *sources[] = {large.data(), large.data(), large.data()};
    for (const char *isa : {"scalar", "avx2", "avx512", "neon"}) {
        std::vector<uint16_t> result(large.size());
        reduce_call_t call = {};
        call.dtype = QUOIT_F16;
        call.op = QUOIT_AVG;
        call.sources = 3;
        call.source = sources;
        call.count = large.size();
        call.destination = result.data();
        call.finish.divisor = 3;
        if (reduce_run_with(isa, &call) == QUOIT_ERR_UNSUPPORTED) continue;
        EXPECT_EQ(result, large) << isa;
    }
}

TEST(Average, OfIntegersTruncatesTowardsZeroAfterWrapping)
{
    const int32_t a[] = {-7, 7, INT32_MIN, INT32_MAX}, b[] = {0, 0, 0, 1};
    const void *sources[] = {a, b};
    for (const char *isa : {"scalar", "avx2", "avx512", "neon"}) {
        int32_t result[4] = {};
        reduce_call_t call = {};
        call.dtype = QUOIT_I32;
        call.op = QUOIT_AVG;
        call.sources = 2;
        call.source = sources;
        call.count = 4;
        call.destination = result;
        call.finish.divisor = 2;
        if (reduce_run_with(isa, &call) == QUOIT_ERR_UNSUPPORTED) continue;
        EXPECT_EQ(result[0], -3) << isa;
        EXPECT_EQ(result[1], 3) << isa;
        EXPECT_EQ(result[2], INT32_MIN / 2) << isa;
        EXPECT_EQ(result[3], INT32_MIN / 2) << isa;
    }
}

} // namespace
