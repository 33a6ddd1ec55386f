// SPDX-License-Identifier: Apache-2.0
// Growing text and JSON strings.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

extern "C" {
#include "base/text.h"
}

namespace {

std::string finish(text_t *text)
{
    char *data = nullptr;
    EXPECT_EQ(text_finish(text, &data), QUOIT_OK);
    std::string result = data ? data : "(NULL)";
    free(data);
    return result;
}

std::string json(const char *string)
{
    text_t text = {};
    text_append_json(&text, string);
    return finish(&text);
}

TEST(Text, EmptyIsAString)
{
    text_t text = {};
    EXPECT_EQ(finish(&text), "");
    EXPECT_EQ(text.data, nullptr);
}

TEST(Text, GrowsAcrossEveryLength)
{
    text_t text = {};
    std::string expected;
    for (int i = 0; i < 1500; i++) {
        text_append(&text, "%d,", i);
        expected += std::to_string(i) + ",";
        ASSERT_EQ(text.length, expected.size());
    }
    text_append(&text, "%s", std::string(100000, 'z').c_str());
    EXPECT_EQ(finish(&text), expected + std::string(100000, 'z'));
    for (size_t length = 250; length < 262; length++) {
        text_t one = {};
        text_append(&one, "%s", std::string(length, 'q').c_str());
        EXPECT_EQ(finish(&one), std::string(length, 'q'));
    }
}

TEST(Text, FailureIsTold)
{
    text_t text = {};
    text_append(&text, "something");
    text.failed = true; // as after running out of memory
    text_append(&text, "more");
    char *data = (char *)"untouched";
    EXPECT_EQ(text_finish(&text, &data), QUOIT_ERR_NO_MEMORY);
    EXPECT_STREQ(data, "untouched");
}

TEST(Text, Json)
{
    EXPECT_EQ(json(""), "\"\"");
    EXPECT_EQ(json("plain 1"), "\"plain 1\"");
    EXPECT_EQ(json("a\"b\\c/d"), "\"a\\\"b\\\\c/d\"");
    EXPECT_EQ(json("\n\t\r\x01\x1f\x7f"), "\"\\n\\t\\u000d\\u0001\\u001f\\u007f\"");
    EXPECT_EQ(json("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"");
    EXPECT_EQ(json("x\x80y\xff"), "\"x\\ufffdy\\ufffd\"");
    EXPECT_EQ(json("\xc0\xaf"), "\"\\ufffd\\ufffd\"");             // overlong
    EXPECT_EQ(json("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");  // surrogate
    EXPECT_EQ(json("\xe2\x82"), "\"\\ufffd\\ufffd\"");             // ends too early
    EXPECT_EQ(json("\xf4\x90\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
}

} // namespace
