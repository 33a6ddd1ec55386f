/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Every dtype and operation on every instruction set of this CPU: against a computation of the test's own, and with the bytes
 * around each destination watched. Each length from 0 to 4 vectors and one element, and each of 64 offsets has its turn; the rest is drawn from a seed.
 */
#include "test/reduce/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>

namespace {

using reference::Bytes;

constexpr uint64_t seed = 20260101;
constexpr size_t guard = 160; /* bytes before and after each buffer */

std::vector<std::string> usable_isas()
{
    std::vector<std::string> usable;
    const void *source = nullptr;
    for (const char *isa : {"scalar", "avx2", "avx512", "neon"}) {
        reduce_call_t call = {};
        call.dtype = QUOIT_F32;
        call.sources = 1;
        call.source = &source;
        if (reduce_run_with(isa, &call) == QUOIT_OK) usable.push_back(isa);
    }
    return usable;
}

/** A buffer that begins `offset` bytes behind a multiple of 64, between guards. */
struct Buffer {
    Bytes memory;
    size_t begin = 0, size = 0;

    Buffer(size_t bytes, size_t offset) : memory(bytes + 2 * guard + 128), size(bytes)
    {
        for (size_t i = 0; i < memory.size(); i++) memory[i] = canary(i);
        begin = guard + 63;
        begin -= ((uintptr_t)memory.data() + begin) % 64;
        begin += offset;
    }
    static unsigned char canary(size_t i) { return (unsigned char)(i * 37 + 11); }
    unsigned char *data() { return memory.data() + begin; }
    bool guards_hold() const
    {
        for (size_t i = 0; i < memory.size(); i++)
            if ((i < begin || i >= begin + size) && memory[i] != canary(i)) return false;
        return true;
    }
};

struct Shape {
    size_t count = 0;
    int sources = 1, in_place = -1; /* in place of source number, -1: of none */
    int offset = -1;                /* of the destination behind a multiple of 64, and each source has another one; -1: drawn */
    bool copy = false, stream = false, stream_copy = false, aligned = false;
    int64_t divisor = 1;
};

std::ostream &operator<<(std::ostream &out, const Shape &shape)
{
    return out << "count " << shape.count << " sources " << shape.sources << " in place " << shape.in_place << " offset " << shape.offset << " copy " << shape.copy
               << " stream " << shape.stream << shape.stream_copy << " aligned " << shape.aligned << " divisor " << shape.divisor << " seed " << seed;
}

/** Of source number `number`, the copy (-2) or the destination (-1). */
size_t offset_of(const Shape &shape, int number, size_t size, std::mt19937_64 &random)
{
    if (shape.offset >= 0) return (size_t)(shape.offset + (number == shape.in_place ? 0 : 11 * (number + 1))) % 64;
    return shape.aligned ? random() % 64 / size * size : random() % 64;
}

/** One call; the expected bytes are computed from copies made before. */
::testing::AssertionResult run_one(const std::string &isa, quoit_dtype_t dtype, quoit_op_t op, const Shape &shape, std::mt19937_64 &random)
{
    const size_t size = quoit_dtype_size(dtype), bytes = shape.count * size;
    std::vector<Bytes> inputs;
    std::vector<Buffer> sources;
    for (int k = 0; k < shape.sources; k++) {
        inputs.push_back(reference::data(dtype, shape.count, random));
        sources.emplace_back(bytes, offset_of(shape, k, size, random));
        if (bytes) std::memcpy(sources.back().data(), inputs.back().data(), bytes);
    }
    Buffer outside(bytes, offset_of(shape, -1, size, random)), copy(bytes, offset_of(shape, -2, size, random));
    Buffer &destination = shape.in_place < 0 ? outside : sources[(size_t)shape.in_place];

    std::vector<const void *> pointers;
    std::vector<const unsigned char *> originals;
    for (int k = 0; k < shape.sources; k++) {
        pointers.push_back(sources[(size_t)k].data());
        originals.push_back(inputs[(size_t)k].data());
    }
    reduce_call_t call = {};
    call.dtype = dtype;
    call.op = op;
    call.sources = shape.sources;
    call.source = pointers.data();
    call.count = shape.count;
    call.destination = destination.data();
    call.copy = shape.copy ? copy.data() : nullptr;
    call.stream = shape.stream;
    call.stream_copy = shape.stream_copy;
    call.finish.divisor = shape.divisor;
    if (reduce_run_with(isa.c_str(), &call) != QUOIT_OK) return ::testing::AssertionFailure() << quoit_last_error();

    Bytes expected = reference::reduce(dtype, op, originals, shape.count, shape.divisor);
    for (size_t i = 0; i < bytes; i++) {
        if (destination.data()[i] != expected[i] || (shape.copy && copy.data()[i] != expected[i])) {
            size_t element = i / size;
            auto failure = ::testing::AssertionFailure() << isa << " " << quoit_dtype_name(dtype) << " " << quoit_op_name(op) << " "
                                                         << shape << ": element " << element << " byte " << i % size << " is "
                                                         << (int)destination.data()[i] << ", expected " << (int)expected[i];
            for (int k = 0; k < shape.sources && k < 3; k++) {
                failure << "; source " << k << ":";
                for (size_t j = 0; j < size; j++) failure << " " << std::hex << (int)originals[(size_t)k][element * size + j];
            }
            return failure;
        }
    }
    for (int k = 0; k < shape.sources; k++) {
        if (!sources[(size_t)k].guards_hold()) return ::testing::AssertionFailure() << isa << " " << shape << ": wrote around source " << k;
        if (k != shape.in_place && bytes && std::memcmp(sources[(size_t)k].data(), inputs[(size_t)k].data(), bytes) != 0)
            return ::testing::AssertionFailure() << isa << " " << shape << ": changed source " << k;
    }
    if (!outside.guards_hold() || !copy.guards_hold()) return ::testing::AssertionFailure() << isa << " " << shape << ": wrote outside";
    return ::testing::AssertionSuccess();
}

const int64_t divisors[] = {1, 2, 3, 4, 7, 8, 10, 64, 100, 128, 129, 256, 1000, 32768, 65536, 2147483648, 4611686018427387904};

Shape draw_shape(size_t count, quoit_op_t op, std::mt19937_64 &random)
{
    Shape shape;
    shape.count = count;
    shape.sources = (int)(1 + random() % 9);
    if (random() % 64 == 0) shape.sources = random() % 2 ? 65 : 130;
    if (random() % 2) shape.in_place = (int)(random() % (unsigned)shape.sources);
    shape.copy = random() % 2;
    shape.stream = random() % 2;
    shape.stream_copy = random() % 2;
    shape.aligned = random() % 2;
    shape.divisor = op == QUOIT_AVG ? divisors[random() % std::size(divisors)] : 1;
    return shape;
}

class Kernel : public ::testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(Kernel, EveryOperationLengthAndOffset)
{
    const auto &[isa, dtype_value] = GetParam();
    const auto dtype = (quoit_dtype_t)dtype_value;
    const size_t size = quoit_dtype_size(dtype);
    std::mt19937_64 random(seed + (uint64_t)dtype_value);
    for (int op_value = 0; op_value < QUOIT_OP_COUNT; op_value++) {
        const auto op = (quoit_op_t)op_value;
        if (quoit_op_check(dtype, op) != QUOIT_OK) continue;
        for (size_t count = 0; count <= 4 * 64 / size + 1; count++)
            ASSERT_TRUE(run_one(isa, dtype, op, draw_shape(count, op, random), random));
        for (int offset = 0; offset < 64; offset++) {
            Shape shape = draw_shape(1 + random() % (4 * 64 / size + 1), op, random);
            shape.offset = offset;
            ASSERT_TRUE(run_one(isa, dtype, op, shape, random));
        }
        /* Longer ones, where whole groups run and non-temporal stores begin. */
        for (int i = 0; i < 12; i++)
            ASSERT_TRUE(run_one(isa, dtype, op, draw_shape((2048 + random() % 4096) / size, op, random), random));
    }
}

TEST_P(Kernel, InPlaceOfEverySource)
{
    const auto &[isa, dtype_value] = GetParam();
    const auto dtype = (quoit_dtype_t)dtype_value;
    std::mt19937_64 random(seed * 3 + (uint64_t)dtype_value);
    for (int sources = 1; sources <= 9; sources++) {
        for (int position = 0; position < sources; position++) {
            Shape shape = draw_shape(2500 / quoit_dtype_size(dtype), QUOIT_SUM, random);
            shape.sources = sources;
            shape.in_place = position;
            ASSERT_TRUE(run_one(isa, dtype, QUOIT_SUM, shape, random));
        }
    }
}

TEST_P(Kernel, ManySources)
{
    const auto &[isa, dtype_value] = GetParam();
    const auto dtype = (quoit_dtype_t)dtype_value;
    std::mt19937_64 random(seed * 5 + (uint64_t)dtype_value);
    for (int sources : {64, 65, 130}) {
        Shape shape = draw_shape(700 / quoit_dtype_size(dtype), QUOIT_SUM, random);
        shape.sources = sources;
        shape.in_place = sources - 1;
        ASSERT_TRUE(run_one(isa, dtype, QUOIT_SUM, shape, random));
    }
}

std::vector<int> reducible()
{
    std::vector<int> dtypes;
    for (int dtype = 0; dtype < QUOIT_DTYPE_COUNT; dtype++)
        if (dtype != QUOIT_F8_E4M3FNUZ && dtype != QUOIT_F8_E5M2FNUZ) dtypes.push_back(dtype);
    return dtypes;
}

INSTANTIATE_TEST_SUITE_P(All, Kernel, ::testing::Combine(::testing::ValuesIn(usable_isas()), ::testing::ValuesIn(reducible())),
                         [](const auto &info) {
                             return std::get<0>(info.param) + "_" + quoit_dtype_name((quoit_dtype_t)std::get<1>(info.param));
                         });

TEST(Reduce, FnuzFormsAreRefused)
{
    for (int op = 0; op < QUOIT_OP_COUNT; op++) {
        EXPECT_EQ(quoit_op_check(QUOIT_F8_E4M3FNUZ, (quoit_op_t)op), QUOIT_ERR_UNSUPPORTED);
        EXPECT_EQ(quoit_op_check(QUOIT_F8_E5M2FNUZ, (quoit_op_t)op), QUOIT_ERR_UNSUPPORTED);
    }
}

TEST(Reduce, UnknownIsaIsRefused)
{
    const void *source = nullptr;
    reduce_call_t call = {};
    call.sources = 1;
    call.source = &source;
    EXPECT_EQ(reduce_run_with("abacus", &call), QUOIT_ERR_UNSUPPORTED);
    EXPECT_NE(std::string(quoit_last_error()).find("abacus"), std::string::npos) << quoit_last_error();
}

TEST(Reduce, IsaIsOneThatRuns)
{
    std::vector<std::string> usable = usable_isas();
    EXPECT_NE(std::find(usable.begin(), usable.end(), reduce_isa()), usable.end()) << reduce_isa();
}

TEST(Reduce, ScaleMatchesReference)
{
    std::mt19937_64 random(seed + 1000);
    const double factors[][2] = {{1, 0}, {-3.25, 0}, {0.5, -2}, {1.0 / 3, 0.1}, {-0.0, 1e30}, {1e-30, 7}};
    for (quoit_dtype_t dtype : {QUOIT_F64, QUOIT_F32, QUOIT_F16, QUOIT_BF16, QUOIT_F8_E4M3, QUOIT_F8_E5M2, QUOIT_C64, QUOIT_C128}) {
        for (const auto &factor : factors) {
            for (size_t count : {0, 1, 3, 17, 64, 65, 1000}) {
                const size_t bytes = count * quoit_dtype_size(dtype);
                Bytes input = reference::data(dtype, count, random), expected = reference::scale(dtype, input.data(), count, factor);
                Buffer outside(bytes, random() % 64), inside(bytes, random() % 64);
                if (bytes) std::memcpy(inside.data(), input.data(), bytes);
                reduce_scale(dtype, outside.data(), inside.data(), count, factor);
                reduce_scale(dtype, inside.data(), inside.data(), count, factor);
                for (Buffer *buffer : {&outside, &inside}) {
                    EXPECT_TRUE(bytes == 0 || std::memcmp(buffer->data(), expected.data(), bytes) == 0)
                        << quoit_dtype_name(dtype) << " count " << count << " factor " << factor[0] << "," << factor[1] << " seed " << seed;
                    EXPECT_TRUE(buffer->guards_hold()) << quoit_dtype_name(dtype) << " count " << count;
                }
            }
        }
    }
}

TEST(Reduce, RealFactorOfComplexLeavesInfinitiesAlone)
{
    const double infinity = std::numeric_limits<double>::infinity(), factor[2] = {-2, 0};
    const double source[4] = {infinity, 3, -0.0, -infinity};
    double result[4];
    reduce_scale(QUOIT_C128, result, source, 2, factor);
    EXPECT_EQ(result[0], -infinity);
    EXPECT_EQ(result[1], -6);
    EXPECT_FALSE(std::signbit(result[2]));
    EXPECT_EQ(result[3], infinity);
}

TEST(Reduce, ZerosOfComplexSumsHaveNoMinus)
{
    const float minus[4] = {-0.0f, -0.0f, 1.0f, -0.0f};
    const void *sources[2] = {minus, minus};
    for (const std::string &isa : usable_isas()) {
        for (quoit_op_t op : {QUOIT_SUM, QUOIT_AVG, QUOIT_PREMUL_SUM}) {
            float result[4];
            reduce_call_t call = {};
            call.dtype = QUOIT_C64;
            call.op = op;
            call.sources = 2;
            call.source = sources;
            call.count = 2;
            call.destination = result;
            call.finish.divisor = op == QUOIT_AVG ? 2 : 1;
            ASSERT_EQ(reduce_run_with(isa.c_str(), &call), QUOIT_OK);
            for (float part : result) EXPECT_FALSE(std::signbit(part)) << isa << " " << quoit_op_name(op);
            call.dtype = QUOIT_F32; /* real numbers keep theirs, as in PyTorch's addition */
            call.count = 4;
            ASSERT_EQ(reduce_run_with(isa.c_str(), &call), QUOIT_OK);
            EXPECT_TRUE(std::signbit(result[0]) && std::signbit(result[3])) << isa << " " << quoit_op_name(op);
        }
    }
}

} // namespace
