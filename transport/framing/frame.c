/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames on the wire. All fields little-endian:
 *   0 magic  1 version  2 type  3 direct  4 what  8 key.comm  16 key.id  24 grant  32 total  40 offset  48 length  56 remote key  60 zero
 * A GRANT with a second remote key has it at 60. One with three or four has the others at 48, for its length is its total.
 * A NOTE has its length at 3 and its bytes from 4 on, then zeros.
 * frame_parse is the one parser: whatever it lets through has lengths within the limits and sums that do not overflow.
 */
#include "transport/framing/frame.h"

#include "base/bytes.h"

enum { NOTE_PLACE = FRAME_HEADER_SIZE - FRAME_NOTE_MOST };

static const uint8_t key_place[FRAME_KEYS] = {56, 60, 48, 52};

static void write_keys(const frame_t *frame, uint8_t *header)
{
    for (int i = 0; i < frame->direct && i < FRAME_KEYS; i++) bytes_put32(header + key_place[i], frame->remote_key[i]);
    if (frame->direct == 3) bytes_put32(header + key_place[3], 0);
}

void frame_write(const frame_t *frame, uint8_t header[FRAME_HEADER_SIZE])
{
    header[0] = FRAME_MAGIC;
    header[1] = FRAME_VERSION;
    header[2] = (uint8_t)frame->type;
    if (frame->type == FRAME_NOTE) {
        header[3] = (uint8_t)frame->length;
        memset(header + NOTE_PLACE, 0, FRAME_NOTE_MOST);
        memcpy(header + NOTE_PLACE, frame->inside, (size_t)frame->length);
        return;
    }
    header[3] = frame->direct;
    bytes_put32(header + 4, frame->what);
    bytes_put64(header + 8, frame->key.comm);
    bytes_put64(header + 16, frame->key.id);
    bytes_put64(header + 24, frame->grant);
    bytes_put64(header + 32, frame->total);
    bytes_put64(header + 40, frame->offset);
    bytes_put64(header + 48, frame->length);
    bytes_put64(header + 56, 0);
    if (frame->direct > 0) write_keys(frame, header);
}

const char *frame_type_name(frame_type_t type)
{
    static const char *const names[FRAME_TYPE_END] = {
        [FRAME_EAGER] = "EAGER",   [FRAME_ASK] = "ASK",       [FRAME_GRANT] = "GRANT",   [FRAME_DATA] = "DATA",
        [FRAME_REFUSE] = "REFUSE", [FRAME_CREDIT] = "CREDIT", [FRAME_NOTICE] = "NOTICE", [FRAME_BYE] = "BYE",
        [FRAME_REVOKE] = "REVOKE", [FRAME_PATH] = "PATH",     [FRAME_RECEIPT] = "RECEIPT", [FRAME_LOST] = "LOST",
        [FRAME_LENT] = "LENT",     [FRAME_NOTE] = "NOTE",
    };
    return type > 0 && type < FRAME_TYPE_END ? names[type] : "?";
}

/* Which of the lengths of its type a frame must have; `limit` is the largest payload. */
static bool lengths_fit(const frame_t *frame, uint64_t eager_limit, uint64_t segment_limit)
{
    switch (frame->type) {
    case FRAME_EAGER: return frame->length <= eager_limit && frame->total == frame->length && frame->offset == 0;
    case FRAME_NOTICE:
        return (frame->length <= eager_limit || frame->length <= QUOIT_NOTICE_SMALL) && frame->total == frame->length &&
               frame->offset == 0;
    case FRAME_DATA:
        return frame->length <= segment_limit && frame->length <= frame->total &&
               frame->offset <= frame->total - frame->length && (frame->length > 0 || frame->total == 0);
    case FRAME_GRANT: return frame->length == frame->total && (frame->direct || frame->offset == 0);
    case FRAME_ASK: return frame->direct ? frame->length > 0 && frame->length <= frame->total : frame->length == 0 && frame->offset == 0;
    case FRAME_LENT: return frame->length > 0 && frame->length <= frame->total && frame->offset <= frame->total - frame->length;
    case FRAME_REFUSE: return frame->length == 0;
    case FRAME_CREDIT: return frame->length > 0 && frame->total == 0 && frame->offset == 0;
    case FRAME_BYE:
    case FRAME_REVOKE: return frame->length == 0 && frame->total == 0 && frame->offset == 0;
    case FRAME_PATH: return frame->length == 0;
    case FRAME_RECEIPT: return frame->length == 0 && frame->offset == 0;
    case FRAME_LOST: return frame->length == 0 && frame->offset < 256;
    default: return false;
    }
}

/* Where a direct grant could have keys and has none. */
static bool ends_in_zeros(const uint8_t *header, uint8_t direct)
{
    return direct == 1 ? bytes_get32(header + 60) == 0 : direct != 3 || bytes_get32(header + 52) == 0;
}

static void read_keys(const uint8_t *header, frame_t *frame)
{
    for (int i = 0; i < frame->direct; i++) frame->remote_key[i] = bytes_get32(header + key_place[i]);
    if (frame->direct > 2) frame->length = frame->total;
}

static bool is_zero_from(const uint8_t *header, size_t place)
{
    for (; place % 8 != 0; place++)
        if (header[place] != 0) return false;
    for (; place < FRAME_HEADER_SIZE; place += 8)
        if (bytes_get64(header + place) != 0) return false;
    return true;
}

static quoit_status_t parse_note(const uint8_t *header, frame_t *frame)
{
    if (header[3] > FRAME_NOTE_MOST || !is_zero_from(header, (size_t)NOTE_PLACE + header[3]))
        return error_set(QUOIT_ERR_PROTOCOL, "frame NOTE with impossible lengths: %u bytes, at most %d, and zeros behind them", header[3], FRAME_NOTE_MOST);
    *frame = (frame_t){.type = FRAME_NOTE, .total = header[3], .length = header[3], .inside = header + NOTE_PLACE};
    return QUOIT_OK;
}

quoit_status_t frame_parse(const uint8_t header[FRAME_HEADER_SIZE], uint64_t eager_limit, uint64_t segment_limit, frame_t *frame)
{
    if (header[0] != FRAME_MAGIC)
        return error_set(QUOIT_ERR_PROTOCOL, "no frame: it begins with 0x%02x instead of 0x%02x", header[0], FRAME_MAGIC);
    if (header[1] != FRAME_VERSION)
        return error_set(QUOIT_ERR_PROTOCOL, "frame of version %u, this library speaks %u: the peers run different releases",
                         header[1], FRAME_VERSION);
    if (header[2] == FRAME_NOTE) return parse_note(header, frame);
    bool loan = header[2] == FRAME_ASK && header[3] == 1; /* told of by `offset` and `length` alone */
    uint8_t keys = header[2] == FRAME_GRANT && header[3] <= FRAME_KEYS ? header[3] : 0, direct = loan ? 1 : keys;
    bool zero = keys > 0 ? ends_in_zeros(header, keys) : bytes_get64(header + 56) == 0;
    if (header[2] == 0 || header[2] >= FRAME_TYPE_END || header[3] != direct || !zero)
        return error_set(QUOIT_ERR_PROTOCOL, "frame of unknown type %u", header[2]);
    frame_t parsed = {
        .type = (frame_type_t)header[2],
        .what = bytes_get32(header + 4),
        .key = {.comm = bytes_get64(header + 8), .id = bytes_get64(header + 16)},
        .grant = bytes_get64(header + 24),
        .total = bytes_get64(header + 32),
        .offset = bytes_get64(header + 40),
        .length = bytes_get64(header + 48),
        .direct = direct,
    };
    if (keys > 0) read_keys(header, &parsed);
    if (parsed.total > FRAME_LENGTH_LIMIT || parsed.offset > FRAME_LENGTH_LIMIT || parsed.length > FRAME_LENGTH_LIMIT ||
        !lengths_fit(&parsed, eager_limit, segment_limit))
        return error_set(QUOIT_ERR_PROTOCOL, "frame %s with impossible lengths: %llu bytes at %llu of %llu (limits: eager %llu, segment %llu)",
                         frame_type_name(parsed.type), (unsigned long long)parsed.length, (unsigned long long)parsed.offset,
                         (unsigned long long)parsed.total, (unsigned long long)eager_limit, (unsigned long long)segment_limit);
    *frame = parsed;
    return QUOIT_OK;
}
