// SPDX-License-Identifier: Apache-2.0
// Sums through float32 between formats: every instruction set against the scalar one, bit by bit, for all lengths up to a few vectors
// and some around the pieces and blocks, at all offsets; and the scalar one against float64. What is beside a result stays as it was.
#include "test/reduce/reference.h"

extern "C" {
#include "scheduler/reduce/wire.h"
}

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

namespace {

using reference::Bytes;

constexpr uint64_t seed = 20260102;
const char *const type_names[] = {"f32", "f16", "bf16", "e4m3", "e5m2", "i8"};
const quoit_dtype_t dtypes[] = {QUOIT_F32, QUOIT_F16, QUOIT_BF16, QUOIT_F8_E4M3, QUOIT_F8_E5M2};

std::vector<const char *> fast_isas()
{
    std::vector<const char *> usable;
    wire_call_t nothing = {};
    const void *source = nullptr;
    nothing.source = &source;
    for (const char *isa : {"avx2", "avx512", "neon"})
        if (wire_run_with(isa, &nothing) == QUOIT_OK) usable.push_back(isa);
    return usable;
}

wire_call_t call_of(wire_type_t first, wire_type_t others, wire_type_t result, std::vector<const void *> &sources, size_t count, void *destination)
{
    wire_call_t call = {};
    call.first = first;
    call.others = others;
    call.result = result;
    call.sources = static_cast<int>(sources.size());
    call.source = sources.data();
    call.count = count;
    call.destination = destination;
    call.factor = call.share = call.divisor = 1;
    return call;
}

// Any bits, special values, modest numbers, all tiny, all zero: in any format.
Bytes data(wire_type_t type, size_t count, std::mt19937_64 &random)
{
    Bytes floats = reference::data(QUOIT_F32, count, random);
    if (type != WIRE_I8) return reference::data(dtypes[type], count, random);
    if (random() % 8 == 0) { // codes as no encoder of ours writes them
        Bytes any(wire_bytes(type, count));
        for (unsigned char &each : any) each = static_cast<unsigned char>(random());
        for (size_t at = 0; at < any.size(); at += WIRE_BLOCK + 4) any[at + 3] = static_cast<unsigned char>(random() % 64); // no NaN for a scale
        return any;
    }
    Bytes bytes(wire_bytes(type, count));
    std::vector<const void *> source = {floats.data()};
    wire_call_t call = call_of(WIRE_F32, WIRE_F32, WIRE_I8, source, count, bytes.data());
    EXPECT_EQ(wire_run_with("scalar", &call), QUOIT_OK);
    return bytes;
}

struct Outcome {
    Bytes result;
    std::vector<float> error;
};

Outcome run(const char *isa, wire_call_t call, size_t offset)
{
    size_t bytes = wire_bytes(call.result, call.count);
    Bytes memory(bytes + 2 * 192, 0xa5);
    std::vector<float> error(call.count + 2, 0.25f);
    call.destination = memory.data() + 128 + offset;
    call.error = error.data() + 1;
    EXPECT_EQ(wire_run_with(isa, &call), QUOIT_OK);
    for (size_t i = 0; i < memory.size(); i++) {
        bool inside = i >= 128 + offset && i < 128 + offset + bytes;
        EXPECT_TRUE(inside || memory[i] == 0xa5) << "byte " << i << " beside the result";
    }
    EXPECT_EQ(error.front(), 0.25f);
    EXPECT_EQ(error.back(), 0.25f);
    return {Bytes(memory.begin() + 128 + static_cast<ptrdiff_t>(offset), memory.begin() + 128 + static_cast<ptrdiff_t>(offset + bytes)), error};
}

TEST(Wire, EveryInstructionSetGivesTheScalarBits)
{
    std::mt19937_64 random(seed);
    std::vector<size_t> counts;
    for (size_t count = 0; count <= 4 * 16 + 1; count++) counts.push_back(count);
    for (size_t count : {127, 128, 129, 255, 257, 1023, 1024, 1025, 2500}) counts.push_back(count);
    std::vector<const char *> isas = fast_isas();
    for (size_t count : counts)
        for (int first = 0; first < WIRE_TYPES; first++)
            for (int result = 0; result < WIRE_TYPES; result++) {
                auto others = static_cast<wire_type_t>(random() % WIRE_TYPES);
                int sources = 1 + static_cast<int>(random() % 3);
                size_t offset = random() % 64;
                std::vector<Bytes> memory;
                std::vector<const void *> source;
                for (int k = 0; k < sources; k++) {
                    Bytes bytes = data(k == 0 ? static_cast<wire_type_t>(first) : others, count, random);
                    bytes.insert(bytes.begin(), offset, 0);
                    bytes.resize(bytes.size() + 1);
                    memory.push_back(bytes);
                }
                for (const Bytes &bytes : memory) source.push_back(bytes.data() + offset);
                wire_call_t call = call_of(static_cast<wire_type_t>(first), others, static_cast<wire_type_t>(result), source, count, nullptr);
                if (random() % 2) call.factor = -1.75f;
                if (random() % 2) call.share = 8;
                if (random() % 2) call.divisor = 0.75f;
                Outcome right = run("scalar", call, 0);
                for (const char *isa : isas) {
                    Outcome one = run(isa, call, random() % 64);
                    ASSERT_EQ(one.result, right.result) << isa << ": " << sources << " sources " << type_names[first] << ", " << type_names[others] << " to "
                                                        << type_names[result] << ", count " << count << ", seed " << seed;
                    ASSERT_EQ(std::memcmp(one.error.data(), right.error.data(), one.error.size() * 4), 0) << isa << ", count " << count;
                }
            }
}

TEST(Wire, InPlaceOverEitherSource)
{
    std::mt19937_64 random(seed + 1);
    for (int type = 0; type < WIRE_TYPES; type++)
        for (size_t count : {1, 130, 1025, 3000}) {
            auto same = static_cast<wire_type_t>(type);
            Bytes a = data(same, count, random), b = data(same, count, random);
            std::vector<const void *> source = {a.data(), b.data()};
            Bytes right = run("scalar", call_of(same, same, same, source, count, nullptr), 0).result;
            for (Bytes *over : {&a, &b}) {
                Bytes kept = *over;
                wire_call_t call = call_of(same, same, same, source, count, over->data());
                wire_run(&call);
                ASSERT_EQ(*over, right) << type_names[type] << ", count " << count;
                *over = kept;
            }
        }
}

// Of the small floats the definitions are tested elsewhere (convert_test): here that each number takes that way, once.
TEST(Wire, SmallFloatsAreTheNearestOfTheSum)
{
    std::mt19937_64 random(seed + 2);
    std::uniform_real_distribution<float> any(-3, 3);
    for (int type = WIRE_F16; type <= WIRE_E5M2; type++) {
        std::vector<float> a(700), b(700);
        for (float &each : a) each = any(random);
        for (float &each : b) each = any(random);
        std::vector<const void *> source = {a.data(), b.data()};
        wire_call_t call = call_of(WIRE_F32, WIRE_F32, static_cast<wire_type_t>(type), source, a.size(), nullptr);
        call.share = 4;
        Outcome one = run("scalar", call, 0);
        size_t width = quoit_dtype_size(dtypes[type]);
        for (size_t i = 0; i < a.size(); i++) {
            float sum = a[i] / 4 + b[i];
            uint32_t code = 0;
            std::memcpy(&code, one.result.data() + i * width, width);
            ASSERT_EQ(code, reference::encode(dtypes[type], static_cast<double>(sum))) << type_names[type] << " element " << i;
            float kept = static_cast<float>(reference::decode(dtypes[type], code));
            ASSERT_EQ(one.error[i + 1], 0.25f + (sum - kept));
        }
    }
}

std::vector<float> through_i8(const std::vector<float> &values)
{
    std::vector<float> back(values.size());
    Bytes wire(wire_bytes(WIRE_I8, values.size()));
    std::vector<const void *> source = {values.data()}, again = {wire.data()};
    wire_call_t call = call_of(WIRE_F32, WIRE_F32, WIRE_I8, source, values.size(), wire.data());
    wire_run(&call);
    call = call_of(WIRE_I8, WIRE_I8, WIRE_F32, again, values.size(), back.data());
    wire_run(&call);
    return back;
}

TEST(Wire, Int8IsWithinA250thOfTheBlocksLargest)
{
    std::mt19937_64 random(seed + 3);
    std::normal_distribution<float> normal(0, 1);
    for (float scale : {1.0f, 1e-20f, 1e30f, 3e-5f})
        for (size_t count : {1, 2, 127, 128, 129, 1000, 5000}) {
            std::vector<float> values(count);
            for (float &each : values) each = normal(random) * scale;
            std::vector<float> back = through_i8(values);
            for (size_t begin = 0; begin < count; begin += WIRE_BLOCK) {
                size_t end = std::min(count, begin + WIRE_BLOCK);
                double largest = 0;
                for (size_t i = begin; i < end; i++) largest = std::max(largest, std::fabs(static_cast<double>(values[i])));
                for (size_t i = begin; i < end; i++)
                    ASSERT_LE(std::fabs(static_cast<double>(values[i]) - static_cast<double>(back[i])), largest / 250) << "element " << i << " of " << count;
            }
            ASSERT_EQ(through_i8(back), back) << "a number that is one of the codes stays";
        }
}

TEST(Wire, Int8KeepsInfinitiesNansAndExtremes)
{
    const float infinity = std::numeric_limits<float>::infinity(), nan = std::nanf("");
    std::vector<float> values(300, 1.0f);
    values[3] = infinity;
    values[4] = -infinity;
    values[5] = nan;
    values[6] = -nan;
    values[200] = FLT_MAX;
    values[201] = -FLT_MAX;
    values[299] = 0x1p-110f;
    values[257] = -0.0f;
    std::vector<float> back = through_i8(values);
    EXPECT_EQ(back[3], infinity);
    EXPECT_EQ(back[4], -infinity);
    EXPECT_TRUE(std::isnan(back[5]) && std::isnan(back[6]));
    EXPECT_NEAR(back[0], 1.0f, 1.0f / 250); // the block's scale is that of its finite numbers
    EXPECT_LE(back[200], FLT_MAX);
    EXPECT_GE(back[200], FLT_MAX * (1 - 1e-4f));
    EXPECT_LE(back[201], -FLT_MAX * (1 - 1e-4f));
    EXPECT_EQ(back[150], 0.0f) << "beside the largest number, 1 is nothing";
    std::vector<float> tiny(5, 0x1p-110f), none(5, 0.0f);
    EXPECT_EQ(through_i8(tiny), none);
    EXPECT_EQ(wire_bytes(WIRE_I8, 0), 0u);
    EXPECT_EQ(wire_bytes(WIRE_I8, 1), 5u);
    EXPECT_EQ(wire_bytes(WIRE_I8, 129), 137u);
}

} // namespace
