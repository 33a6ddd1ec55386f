/* SPDX-License-Identifier: Apache-2.0 */
/** Small floats: every code, every boundary between two codes, and many float32 besides; then the same through the kernels. */
#include "test/reduce/reference.h"

extern "C" {
#include "scheduler/reduce/convert.h"
}

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace {

using reference::Bytes;

struct Format {
    quoit_dtype_t dtype;
    uint32_t codes, nan;
    float (*decode)(uint32_t);
    uint32_t (*encode)(float);
};

const Format formats[] = {
    {QUOIT_F16, 65536, 0x7e00, [](uint32_t c) { return f16_decode((uint16_t)c); }, [](float f) { return (uint32_t)f16_encode(f); }},
    {QUOIT_BF16, 65536, 0x7fc0, [](uint32_t c) { return bf16_decode((uint16_t)c); }, [](float f) { return (uint32_t)bf16_encode(f); }},
    {QUOIT_F8_E4M3, 256, 0x7f, [](uint32_t c) { return e4m3_decode((uint8_t)c); }, [](float f) { return (uint32_t)e4m3_encode(f); }},
    {QUOIT_F8_E5M2, 256, 0x7f, [](uint32_t c) { return e5m2_decode((uint8_t)c); }, [](float f) { return (uint32_t)e5m2_encode(f); }},
};

bool same_float(float a, float b) { return (std::isnan(a) && std::isnan(b)) || f32_bits(a) == f32_bits(b); }

TEST(Convert, EveryCodeToFloatAndBack)
{
    for (const Format &format : formats) {
        for (uint32_t code = 0; code < format.codes; code++) {
            float value = format.decode(code);
            ASSERT_TRUE(same_float(value, (float)reference::decode(format.dtype, code))) << quoit_dtype_name(format.dtype) << " code " << code;
            uint32_t back = format.encode(value);
            ASSERT_EQ(back, std::isnan(value) ? format.nan : code) << quoit_dtype_name(format.dtype);
        }
    }
}

TEST(Convert, BoundariesRoundToEven)
{
    for (const Format &format : formats) {
        for (uint32_t code = 0; code + 1 < format.codes; code++) {
            double a = reference::decode(format.dtype, code), b = reference::decode(format.dtype, code + 1);
            if (std::isnan(a)) continue;
            /* Beyond the largest number the boundary is half a step further. */
            if (!std::isfinite(b)) b = a + (a - reference::decode(format.dtype, code - 1));
            if (!std::isfinite(a)) continue;
            auto middle = (float)((a + b) / 2);
            for (float value : {middle, std::nextafterf(middle, (float)INFINITY), std::nextafterf(middle, (float)-INFINITY)})
                ASSERT_EQ(format.encode(value), reference::encode(format.dtype, value))
                    << quoit_dtype_name(format.dtype) << " " << std::hexfloat << value;
        }
    }
}

TEST(Convert, AnyFloat)
{
    constexpr uint64_t seed = 77;
    std::mt19937_64 random(seed);
    for (int i = 0; i < 1 << 20; i++) {
        float value = f32_from_bits((uint32_t)random());
        for (const Format &format : formats) {
            /* Half of them near the format's range: the other half mostly overflow or vanish. */
            float near = i % 2 ? value : (float)std::ldexp(1.0 + (double)(random() % (1 << 24)) / (1 << 24), (int)(random() % 44) - 28);
            ASSERT_EQ(format.encode(near), reference::encode(format.dtype, near))
                << quoit_dtype_name(format.dtype) << " " << std::hexfloat << near << " seed " << seed;
        }
    }
}

TEST(Convert, OverflowGoesToInfinityOrStopsAtTheLargest)
{
    EXPECT_EQ(f16_encode(65520.0f), 0x7c00);
    EXPECT_EQ(f16_encode(65519.0f), 0x7bff);
    EXPECT_EQ(bf16_encode(-3.4028235e38f), 0xff80);
    EXPECT_EQ(e5m2_encode(61440.0f), 0x7c);
    EXPECT_EQ(e4m3_encode(464.0f), 0x7e);
    EXPECT_EQ(e4m3_encode(465.0f), 0x7e);
    EXPECT_EQ(e4m3_encode(-INFINITY), 0xfe);
    EXPECT_EQ(e4m3_encode(NAN), 0x7f);
}

/** Codes as the elements of a buffer. */
Bytes all_codes(const Format &format, uint32_t first)
{
    const size_t size = quoit_dtype_size(format.dtype);
    Bytes bytes(format.codes * size);
    for (uint32_t i = 0; i < format.codes; i++) {
        uint32_t code = (i + first) % format.codes;
        std::memcpy(bytes.data() + i * size, &code, size); /* little-endian */
    }
    return bytes;
}

/** Neighbours' averages are the ties; thirds are what lies between. */
TEST(Convert, KernelsRoundAlike)
{
    for (const char *isa : {"scalar", "avx2", "avx512", "neon"}) {
        for (const Format &format : formats) {
            for (uint32_t distance : {1u, 2u, format.codes / 8 + 1}) {
                for (int64_t divisor : {1, 2, 3, 1000}) {
                    Bytes a = all_codes(format, 0), b = all_codes(format, distance), result(a.size());
                    const void *sources[] = {a.data(), b.data()};
                    reduce_call_t call = {};
                    call.dtype = format.dtype;
                    call.op = QUOIT_AVG;
                    call.sources = 2;
                    call.source = sources;
                    call.count = format.codes;
                    call.destination = result.data();
                    call.finish.divisor = divisor;
                    if (reduce_run_with(isa, &call) == QUOIT_ERR_UNSUPPORTED) continue;
                    ASSERT_EQ(result, reference::reduce(format.dtype, QUOIT_AVG, {a.data(), b.data()}, format.codes, divisor))
                        << isa << " " << quoit_dtype_name(format.dtype) << " distance " << distance << " divisor " << divisor;
                }
            }
        }
    }
}

} // namespace
