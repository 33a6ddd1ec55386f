// SPDX-License-Identifier: Apache-2.0
// Element types and operations: all 19 x 9 pairs, written out by hand.
#include <gtest/gtest.h>

#include <string>

extern "C" {
#include "base/status.h"
}

namespace {

struct Row {
    quoit_dtype_t dtype;
    const char *name;
    size_t size;
    const char *support; // sum prod min max avg premul_sum band bor bxor: y or -
};

const Row rows[] = {
    {QUOIT_F64, "float64", 8, "yyyyyy---"},
    {QUOIT_F32, "float32", 4, "yyyyyy---"},
    {QUOIT_F16, "float16", 2, "yyyyyy---"},
    {QUOIT_BF16, "bfloat16", 2, "yyyyyy---"},
    {QUOIT_F8_E4M3, "float8_e4m3fn", 1, "yyyyyy---"},
    {QUOIT_F8_E5M2, "float8_e5m2", 1, "yyyyyy---"},
    {QUOIT_F8_E4M3FNUZ, "float8_e4m3fnuz", 1, "---------"},
    {QUOIT_F8_E5M2FNUZ, "float8_e5m2fnuz", 1, "---------"},
    {QUOIT_I8, "int8", 1, "yyyyy-yyy"},
    {QUOIT_U8, "uint8", 1, "yyyyy-yyy"},
    {QUOIT_I16, "int16", 2, "yyyyy-yyy"},
    {QUOIT_U16, "uint16", 2, "yyyyy-yyy"},
    {QUOIT_I32, "int32", 4, "yyyyy-yyy"},
    {QUOIT_U32, "uint32", 4, "yyyyy-yyy"},
    {QUOIT_I64, "int64", 8, "yyyyy-yyy"},
    {QUOIT_U64, "uint64", 8, "yyyyy-yyy"},
    {QUOIT_BOOL, "bool", 1, "yyyy--yyy"},
    {QUOIT_C64, "complex64", 8, "yy--yy---"},
    {QUOIT_C128, "complex128", 16, "yy--yy---"},
};

const char *const op_names[] = {"sum", "prod", "min", "max", "avg", "premul_sum", "band", "bor", "bxor"};

TEST(Types, NamesSizesAndSupport)
{
    ASSERT_EQ(std::size(rows), (size_t)QUOIT_DTYPE_COUNT);
    ASSERT_EQ(std::size(op_names), (size_t)QUOIT_OP_COUNT);
    for (const Row &row : rows) {
        EXPECT_STREQ(quoit_dtype_name(row.dtype), row.name);
        EXPECT_EQ(quoit_dtype_size(row.dtype), row.size) << row.name;
        for (int op = 0; op < QUOIT_OP_COUNT; op++) {
            EXPECT_STREQ(quoit_op_name((quoit_op_t)op), op_names[op]);
            error_clear();
            quoit_status_t status = quoit_op_check(row.dtype, (quoit_op_t)op);
            if (row.support[op] == 'y') {
                EXPECT_EQ(status, QUOIT_OK) << op_names[op] << " on " << row.name;
            } else {
                EXPECT_EQ(status, QUOIT_ERR_UNSUPPORTED) << op_names[op] << " on " << row.name;
                EXPECT_EQ(std::string(quoit_last_error()), std::string("not supported: op ") + op_names[op] + " on " + row.name);
            }
        }
    }
}

TEST(Types, ValuesThatAreNone)
{
    for (int value : {-1, (int)QUOIT_DTYPE_COUNT, 1000}) {
        EXPECT_STREQ(quoit_dtype_name((quoit_dtype_t)value), "?");
        EXPECT_EQ(quoit_dtype_size((quoit_dtype_t)value), 0u);
        EXPECT_EQ(quoit_op_check((quoit_dtype_t)value, QUOIT_SUM), QUOIT_ERR_UNSUPPORTED);
        EXPECT_STREQ(quoit_last_error(), "not supported: op sum on ?");
    }
    for (int value : {-1, (int)QUOIT_OP_COUNT, 1000}) {
        EXPECT_STREQ(quoit_op_name((quoit_op_t)value), "?");
        EXPECT_EQ(quoit_op_check(QUOIT_F32, (quoit_op_t)value), QUOIT_ERR_UNSUPPORTED);
    }
}

} // namespace
