// SPDX-License-Identifier: Apache-2.0
// Status texts and the error text of a thread.
#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>
#include <thread>

extern "C" {
#include "base/status.h"
}

namespace {

TEST(Status, EachHasItsText)
{
    EXPECT_STREQ(quoit_status_text(QUOIT_OK), "success");
    EXPECT_STREQ(quoit_status_text(QUOIT_ERR_TIMEOUT), "timed out");
    EXPECT_STREQ(quoit_status_text((quoit_status_t)-99), "unknown status");
    EXPECT_STREQ(quoit_status_text((quoit_status_t)2), "unknown status");
    std::set<std::string> texts;
    for (int value = -15; value <= 1; value++) texts.insert(quoit_status_text((quoit_status_t)value));
    EXPECT_EQ(texts.size(), 17u);
    EXPECT_EQ(texts.count("unknown status"), 0u);
}

TEST(Status, Version)
{
    EXPECT_EQ(std::string(quoit_version()), std::to_string(QUOIT_VERSION_MAJOR) + "." + std::to_string(QUOIT_VERSION_MINOR) + "." +
                                                std::to_string(QUOIT_VERSION_PATCH));
}

TEST(ErrorText, SetPrefixErrnoClear)
{
    error_clear();
    EXPECT_STREQ(quoit_last_error(), "");
    EXPECT_EQ(error_set(QUOIT_ERR_PEER, "rank %d", 5), QUOIT_ERR_PEER);
    EXPECT_STREQ(quoit_last_error(), "rank 5");
    EXPECT_EQ(error_prefix(QUOIT_ERR_NETWORK, "tcp %s", "x"), QUOIT_ERR_NETWORK);
    EXPECT_STREQ(error_text(), "tcp x: rank 5");
    EXPECT_EQ(error_set_errno(QUOIT_ERR_SYSTEM, ENOENT, "open %s", "/a"), QUOIT_ERR_SYSTEM);
    EXPECT_STREQ(error_text(), "open /a: No such file or directory");
    error_clear();
    EXPECT_STREQ(error_text(), "");
}

TEST(ErrorText, ArgumentsMayBeTheTextItself)
{
    error_set(QUOIT_ERR_INVALID, "inner");
    error_set(QUOIT_ERR_INVALID, "%s and %s", error_text(), error_text() + 2);
    EXPECT_STREQ(error_text(), "inner and ner");
    error_prefix(QUOIT_ERR_INVALID, "<%s>", error_text());
    EXPECT_STREQ(error_text(), "<inner and ner>: inner and ner");
    error_set_errno(QUOIT_ERR_INVALID, EPERM, "%s", error_text());
    EXPECT_STREQ(error_text(), "<inner and ner>: inner and ner: Operation not permitted");
}

TEST(ErrorText, IsCutAtTheCapacity)
{
    std::string longer(3000, 'x');
    error_set(QUOIT_ERR_INVALID, "%s", longer.c_str());
    EXPECT_EQ(std::string(error_text()), std::string(ERROR_TEXT_CAPACITY - 1, 'x'));
    error_prefix(QUOIT_ERR_INVALID, "front");
    EXPECT_EQ(std::string(error_text()), "front: " + std::string(ERROR_TEXT_CAPACITY - 8, 'x'));
    error_set_errno(QUOIT_ERR_INVALID, EPERM, "%s", longer.c_str());
    EXPECT_EQ(std::string(error_text()).size(), ERROR_TEXT_CAPACITY - 1u);
}

TEST(ErrorText, IsNotCutInsideACharacter)
{
    const std::string characters[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    for (const std::string &character : characters)
        for (size_t shift = 0; shift < 4; shift++) {
            std::string text(shift, 'x');
            while (text.size() < 2000) text += character;
            error_set(QUOIT_ERR_INVALID, "%s", text.c_str());
            std::string cut = error_text();
            EXPECT_GE(cut.size(), ERROR_TEXT_CAPACITY - 4u);
            EXPECT_EQ((cut.size() - shift) % character.size(), 0u) << "shift " << shift << " size " << cut.size();
            EXPECT_EQ(cut, text.substr(0, cut.size()));
        }
}

TEST(ErrorText, EachThreadHasItsOwn)
{
    error_set(QUOIT_ERR_INVALID, "mine");
    std::thread([] {
        EXPECT_STREQ(quoit_last_error(), "");
        error_set(QUOIT_ERR_INVALID, "other");
        EXPECT_STREQ(quoit_last_error(), "other");
    }).join();
    EXPECT_STREQ(quoit_last_error(), "mine");
}

} // namespace
