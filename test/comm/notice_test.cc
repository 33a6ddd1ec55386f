// SPDX-License-Identifier: Apache-2.0
// Notices: what was encoded is decoded, and nothing else is: cut short at every byte, too long, or any bytes at all.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

extern "C" {
#include "scheduler/notice.h"
}

namespace {

using Bytes = std::vector<unsigned char>;

// On the heap, at its exact size: AddressSanitizer sees a read past it.
Bytes exact(const unsigned char *data, size_t length) { return Bytes(data, data + length); }

notice_call_t some_call()
{
    notice_call_t call = {};
    call.ask = true;
    call.target = 3;
    call.family = 0x1234567890abcdef;
    call.calls = NOTICE_CALLS;
    for (int i = 0; i < NOTICE_CALLS; i++) {
        call.call[i].hash = 100u + static_cast<uint32_t>(i);
        call.call[i].description = {static_cast<uint32_t>(50 - i), 2, 7, 1, 4, -1, UINT64_MAX - static_cast<uint64_t>(i)};
    }
    snprintf(call.doing, sizeof call.doing, "it waits for rank 4");
    snprintf(call.members, sizeof call.members, "%0*d", NOTICE_CALL_TEXT - 1, 0); // as long as can be
    return call;
}

TEST(Notice, CallsComeBack)
{
    notice_call_t sent = some_call(), got;
    unsigned char notice[NOTICE_CALL_CAPACITY];
    size_t length = notice_call_encode(77, 5, &sent, notice);
    ASSERT_LE(length, sizeof notice);
    notice_header_t header;
    ASSERT_EQ(notice_header_decode(notice, length, &header), QUOIT_OK);
    EXPECT_EQ(header.type, NOTICE_CALL);
    EXPECT_EQ(header.source, 5);
    EXPECT_EQ(header.comm, 77u);
    ASSERT_EQ(notice_call_decode(notice, length, &got), QUOIT_OK);
    EXPECT_TRUE(got.ask);
    EXPECT_FALSE(got.running);
    EXPECT_EQ(got.target, 3);
    EXPECT_EQ(got.family, sent.family);
    ASSERT_EQ(got.calls, sent.calls);
    for (int i = 0; i < got.calls; i++) {
        EXPECT_EQ(got.call[i].hash, sent.call[i].hash);
        EXPECT_EQ(got.call[i].description.sequence, sent.call[i].description.sequence);
        EXPECT_EQ(got.call[i].description.root, -1);
        EXPECT_EQ(got.call[i].description.count, sent.call[i].description.count);
    }
    EXPECT_STREQ(got.doing, sent.doing);
    EXPECT_STREQ(got.members, sent.members);
}

TEST(Notice, MarksComeBack)
{
    for (int size : {1, 3, 4, 5, 1000}) {
        notice_shrink_t sent = {SHRINK_GO, size - 1, size}, got;
        std::vector<unsigned char> notice(notice_shrink_length(size));
        ASSERT_EQ(notice_shrink_encode(9, 0, &sent, notice.data()), notice.size());
        for (int rank = 0; rank < size; rank++) notice_shrink_set_mark(notice.data(), rank, static_cast<shrink_mark_t>(rank * 7 % 4));
        ASSERT_EQ(notice_shrink_decode(notice.data(), notice.size(), &got), QUOIT_OK);
        EXPECT_EQ(got.kind, SHRINK_GO);
        EXPECT_EQ(got.term, size - 1);
        for (int rank = 0; rank < size; rank++) EXPECT_EQ(notice_shrink_mark(notice.data(), rank), rank * 7 % 4);
    }
}

TEST(Notice, PiecesAndNoiseAreRefused)
{
    notice_call_t sent = some_call(), call;
    notice_shrink_t marks = {SHRINK_JOIN, 1, 30}, shrink;
    unsigned char notice[NOTICE_CALL_CAPACITY];
    size_t length = notice_call_encode(77, 5, &sent, notice);
    for (size_t part = 0; part < length; part++) {
        Bytes piece = exact(notice, part);
        EXPECT_NE(notice_call_decode(piece.data(), piece.size(), &call), QUOIT_OK) << part << " of " << length << " bytes";
    }
    Bytes longer = exact(notice, length);
    longer.push_back(0);
    EXPECT_NE(notice_call_decode(longer.data(), longer.size(), &call), QUOIT_OK);
    length = notice_shrink_encode(9, 0, &marks, notice);
    for (size_t part = 0; part < length; part++) {
        Bytes piece = exact(notice, part);
        EXPECT_NE(notice_shrink_decode(piece.data(), piece.size(), &shrink), QUOIT_OK) << part << " of " << length << " bytes";
    }
    const char *given = getenv("QUOIT_TEST_SEED");
    uint64_t seed = given ? strtoull(given, nullptr, 0) : 20240611;
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    for (int round = 0; round < 20000; round++) {
        Bytes noise(random() % 400);
        for (auto &byte : noise) byte = static_cast<unsigned char>(random() % (round % 2 ? 256 : 9));
        quoit_status_t status;
        int finder;
        char text[NOTICE_ABORT_TEXT + 1];
        if (notice_call_decode(noise.data(), noise.size(), &call) == QUOIT_OK) {
            EXPECT_LE(call.calls, NOTICE_CALLS);
            EXPECT_LT(strlen(call.doing) + strlen(call.members), noise.size());
        }
        if (notice_shrink_decode(noise.data(), noise.size(), &shrink) == QUOIT_OK) {
            for (int rank = 0; rank < shrink.size; rank++) (void)notice_shrink_mark(noise.data(), rank);
        }
        (void)notice_abort_decode(noise.data(), noise.size(), &status, &finder, text);
    }
}

} // namespace
