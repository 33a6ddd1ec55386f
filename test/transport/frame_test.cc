/* SPDX-License-Identifier: Apache-2.0 */
/* Frames: what is written is read back; what is no frame, or too large, is refused with a text. */
#include <gtest/gtest.h>

#include <cstring>
#include <random>

extern "C" {
#include "base/status.h"
#include "transport/framing/frame.h"
}

namespace {

const uint64_t eager = 8192, segment = 262144;

quoit_status_t parse(const frame_t &frame, frame_t *result)
{
    uint8_t header[FRAME_HEADER_SIZE];
    frame_write(&frame, header);
    return frame_parse(header, eager, segment, result);
}

frame_t make(frame_type_t type, uint64_t total, uint64_t offset, uint64_t length)
{
    return {type, 0x12345678, {0x1122334455667788, 0x99aabbccddeeff00}, 0xfedcba9876543210, total, offset, length};
}

TEST(Frame, ReadsWhatWasWritten)
{
    const frame_t frames[] = {make(FRAME_EAGER, 8192, 0, 8192), make(FRAME_EAGER, 0, 0, 0), make(FRAME_ASK, 1ull << 50, 0, 0),
                              make(FRAME_GRANT, 1ull << 50, 0, 1ull << 50), make(FRAME_DATA, 1ull << 50, (1ull << 50) - 5, 5),
                              make(FRAME_DATA, 0, 0, 0), make(FRAME_REFUSE, 10, 20, 0), make(FRAME_CREDIT, 0, 0, 4096),
                              make(FRAME_NOTICE, 100, 0, 100), make(FRAME_BYE, 0, 0, 0), make(FRAME_LENT, 1ull << 50, (1ull << 50) - 5, 5)};
    for (const frame_t &frame : frames) {
        frame_t result{};
        ASSERT_EQ(parse(frame, &result), QUOIT_OK) << frame_type_name(frame.type) << ": " << error_text();
        EXPECT_EQ(result.type, frame.type);
        EXPECT_EQ(result.what, frame.what);
        EXPECT_EQ(result.key.comm, frame.key.comm);
        EXPECT_EQ(result.key.id, frame.key.id);
        EXPECT_EQ(result.grant, frame.grant);
        EXPECT_EQ(result.total, frame.total);
        EXPECT_EQ(result.offset, frame.offset);
        EXPECT_EQ(result.length, frame.length);
    }
}

TEST(Frame, LayoutIsLittleEndianAndFixed)
{
    frame_t frame = make(FRAME_DATA, 0x0102, 0x01, 0x0f);
    uint8_t header[FRAME_HEADER_SIZE];
    frame_write(&frame, header);
    const uint8_t expected[FRAME_HEADER_SIZE] = {
        0x51, 1,    4,    0,    0x78, 0x56, 0x34, 0x12, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xff, 0xee, 0xdd, 0xcc, 0xbb,
        0xaa, 0x99, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0x02, 0x01, 0,    0,    0,    0,    0,    0,    1,    0,    0,    0,
        0,    0,    0,    0,    0x0f, 0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0};
    EXPECT_EQ(memcmp(header, expected, sizeof header), 0);
}

TEST(Frame, ImpossibleLengthsAreRefusedAndNothingIsWritten)
{
    const uint64_t huge = UINT64_MAX;
    const frame_t frames[] = {make(FRAME_EAGER, 8193, 0, 8193), make(FRAME_EAGER, 10, 0, 9), make(FRAME_EAGER, 10, 1, 10),
                              make(FRAME_ASK, 10, 0, 10), make(FRAME_ASK, huge, 0, 0), make(FRAME_GRANT, 10, 0, 11),
                              make(FRAME_GRANT, huge, 0, huge), make(FRAME_DATA, 10, 6, 5), make(FRAME_DATA, 10, huge, 5),
                              make(FRAME_DATA, 10, huge - 3, 5), make(FRAME_DATA, 1 << 20, 0, segment + 1),
                              make(FRAME_DATA, 10, 0, 0), make(FRAME_DATA, huge, huge - 1, 1), make(FRAME_CREDIT, 0, 0, 0),
                              make(FRAME_CREDIT, 0, 0, huge), make(FRAME_CREDIT, 1, 0, 1), make(FRAME_REFUSE, 1, 1, 1),
                              make(FRAME_NOTICE, 8193, 0, 8193), make(FRAME_BYE, 0, 0, 1), make(FRAME_BYE, 1, 0, 0),
                              make(FRAME_LENT, 10, 0, 0), make(FRAME_LENT, 10, 6, 5), make(FRAME_LENT, huge, huge - 1, 1)};
    for (const frame_t &frame : frames) {
        frame_t result{};
        result.grant = 77;
        EXPECT_EQ(parse(frame, &result), QUOIT_ERR_PROTOCOL)
            << frame_type_name(frame.type) << " " << frame.length << " at " << frame.offset << " of " << frame.total;
        EXPECT_EQ(result.grant, 77u) << "an output was written";
        EXPECT_NE(std::string(error_text()).find(frame_type_name(frame.type)), std::string::npos) << error_text();
    }
    /* A small notice is allowed whatever the eager limit. */
    frame_t result;
    uint8_t header[FRAME_HEADER_SIZE];
    frame_t notice = make(FRAME_NOTICE, QUOIT_NOTICE_SMALL, 0, QUOIT_NOTICE_SMALL);
    frame_write(&notice, header);
    EXPECT_EQ(frame_parse(header, 16, 4096, &result), QUOIT_OK);
}

TEST(Frame, EveryByteOfTheFixedPartIsChecked)
{
    frame_t frame = make(FRAME_BYE, 0, 0, 0), result;
    uint8_t header[FRAME_HEADER_SIZE];
    frame_write(&frame, header);
    for (int at : {0, 1, 2, 3, 56, 57, 63}) {
        for (int value = 0; value < 256; value++) {
            uint8_t changed[FRAME_HEADER_SIZE];
            memcpy(changed, header, sizeof changed);
            changed[at] = (uint8_t)value;
            bool good = value == header[at] || (at == 2 && (value == FRAME_ASK || value == FRAME_GRANT || value == FRAME_REFUSE ||
                                                            value == FRAME_DATA || value == FRAME_EAGER || value == FRAME_NOTICE ||
                                                            value == FRAME_REVOKE || value == FRAME_PATH || value == FRAME_RECEIPT ||
                                                            value == FRAME_LOST));
            EXPECT_EQ(frame_parse(changed, eager, segment, &result) == QUOIT_OK, good) << "byte " << at << " is " << value;
        }
    }
}

TEST(Frame, ANoteLiesInTheHeader)
{
    uint8_t bytes[FRAME_NOTE_MOST], header[FRAME_HEADER_SIZE], again[FRAME_HEADER_SIZE];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i + 1);
    for (size_t length = 0; length <= sizeof bytes; length++) {
        frame_t note{}, result{};
        note.type = FRAME_NOTE;
        note.length = note.total = length;
        note.inside = bytes;
        frame_write(&note, header);
        ASSERT_EQ(frame_parse(header, 16, 16, &result), QUOIT_OK) << length << ": " << error_text();
        ASSERT_TRUE(result.type == FRAME_NOTE && result.length == length && frame_payload(&result) == 0) << length;
        ASSERT_EQ(memcmp(result.inside, bytes, length), 0) << length;
        frame_write(&result, again);
        ASSERT_EQ(memcmp(header, again, sizeof header), 0) << length;
        for (size_t at = FRAME_HEADER_SIZE - FRAME_NOTE_MOST + length; at < FRAME_HEADER_SIZE; at++) {
            header[at] = 1;
            ASSERT_EQ(frame_parse(header, 16, 16, &result), QUOIT_ERR_PROTOCOL) << "byte " << at << " behind a note of " << length;
            header[at] = 0;
        }
    }
    header[3] = FRAME_NOTE_MOST + 1;
    frame_t result{};
    EXPECT_EQ(frame_parse(header, 16, 16, &result), QUOIT_ERR_PROTOCOL);
    EXPECT_NE(std::string(error_text()).find("NOTE"), std::string::npos) << error_text();
}

TEST(Frame, OnlyADirectGrantHasAnAddress)
{
    frame_t grant = make(FRAME_GRANT, 100000, 0, 100000), result;
    uint8_t header[FRAME_HEADER_SIZE];
    grant.direct = 1;
    grant.offset = UINT64_C(0x7f0012345678);
    grant.remote_key[0] = 0xfedcba98;
    frame_write(&grant, header);
    ASSERT_EQ(frame_parse(header, eager, segment, &result), QUOIT_OK) << error_text();
    EXPECT_TRUE(result.direct == 1 && result.offset == grant.offset && result.remote_key[0] == grant.remote_key[0]);
    header[3] = 0;
    EXPECT_EQ(frame_parse(header, eager, segment, &result), QUOIT_ERR_PROTOCOL) << "an address without the mark";
    header[3] = FRAME_KEYS + 1;
    EXPECT_EQ(frame_parse(header, eager, segment, &result), QUOIT_ERR_PROTOCOL) << "another mark";
    header[3] = 1;
    for (int type = 1; type < FRAME_TYPE_END; type++) {
        header[2] = (uint8_t)type;
        EXPECT_EQ(frame_parse(header, eager, segment, &result) == QUOIT_OK, type == FRAME_GRANT) << frame_type_name((frame_type_t)type);
    }
}

TEST(Frame, ADirectGrantHasAKeyForEachRail)
{
    for (int keys = 1; keys <= FRAME_KEYS; keys++) {
        frame_t grant = make(FRAME_GRANT, 100000, 0, 100000), result;
        uint8_t header[FRAME_HEADER_SIZE];
        grant.direct = (uint8_t)keys;
        grant.offset = UINT64_C(0x7f0012345678);
        for (int i = 0; i < FRAME_KEYS; i++) grant.remote_key[i] = 0xfedcba90u + (unsigned)i; /* those beyond are not written */
        frame_write(&grant, header);
        ASSERT_EQ(frame_parse(header, eager, segment, &result), QUOIT_OK) << keys << " keys: " << error_text();
        EXPECT_TRUE(result.direct == keys && result.length == 100000 && result.total == 100000 && result.offset == grant.offset) << keys << " keys";
        for (int i = 0; i < FRAME_KEYS; i++) EXPECT_EQ(result.remote_key[i], i < keys ? grant.remote_key[i] : 0) << "key " << i << " of " << keys;
        if (keys == 2 || keys == FRAME_KEYS) continue; /* no key's place is empty */
        header[keys == 1 ? 60 : 52] = 1;
        EXPECT_EQ(frame_parse(header, eager, segment, &result), QUOIT_ERR_PROTOCOL) << "more than " << keys << " keys";
    }
}

TEST(Frame, NoRandomHeaderGetsThroughWithLengthsBeyondTheLimits)
{
    std::mt19937_64 random(3);
    for (int i = 0; i < 200000; i++) {
        uint8_t header[FRAME_HEADER_SIZE] = {FRAME_MAGIC, FRAME_VERSION, (uint8_t)(1 + random() % (FRAME_TYPE_END - 1))};
        for (int at = 4; at < 56; at++)
            if (random() % 3 == 0) header[at] = (uint8_t)random();
        frame_t frame;
        if (frame_parse(header, eager, segment, &frame) != QUOIT_OK) continue;
        ASSERT_LE(frame_payload(&frame), segment);
        if (frame.type == FRAME_DATA) {
            ASSERT_LE(frame.offset + frame.length, frame.total);
        }
        ASSERT_LE(frame.total, FRAME_LENGTH_LIMIT);
    }
}

} // namespace
