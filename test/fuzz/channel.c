/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A channel whose peer is the input: frames with any fields, raw bytes, over one or two pipes, between calls of this side (recv, send,
 * cancel, notify, close) and events of the direct path, or with loans. Nothing is written outside of a recv's buffer (each ends where its memory does),
 * a message that is done well has its length, every transfer ends when the channel fails, and a broken channel says why.
 */
#include "fuzz.h"

#include "transport/framing/channel.h"

#include <stdlib.h>

enum { PIPES = 2, TRANSFERS = 24, STEPS = 200, EAGER = 256, SEGMENT = 1024, PIPE_CAPACITY = 1 << 16, WRITES = 16, LOANS = 4, PIECE = 512, LENT = 4096, LEND_LEAST = 200 };

typedef struct memory_pipe {
    uint8_t *bytes; /* what the peer has written */
    size_t length, taken;
    size_t room; /* what this side may write before it is told to wait */
    bool ended;
} memory_pipe_t;

typedef struct message {
    quoit_transfer_t transfer;
    void *buffer; /* NULL: free */
    size_t length;
    bool receives;
} message_t;

typedef struct world {
    channel_t *channel;
    memory_pipe_t pipe[PIPES];
    message_t message[TRANSFERS];
    void *writing[WRITES]; /* sends that the direct path writes */
    int exposed;
    bool rails, direct;
    uint8_t *peer_memory; /* LENT bytes that the peer may lend, and nothing behind them */
    uint8_t loan[LOANS][PIECE];
    int lent, given_back;
} world_t;

static quoit_status_t pipe_write(void *pointer, const struct iovec *iov, int count, size_t *written)
{
    memory_pipe_t *pipe = pointer;
    size_t total = 0;
    for (int i = 0; i < count && total < pipe->room; i++) total += iov[i].iov_len;
    if (total > pipe->room) total = pipe->room;
    if (total == 0) return QUOIT_ERR_AGAIN;
    uint8_t sum = 0;
    size_t seen = 0;
    for (int i = 0; i < count; i++) /* read it all, as a socket would */
        for (size_t at = 0; at < iov[i].iov_len && seen < total; at++, seen++) sum = (uint8_t)(sum + ((const uint8_t *)iov[i].iov_base)[at]);
    pipe->room -= total;
    pipe->ended = pipe->ended && sum < 255; /* so that nobody leaves the sum out */
    *written = total;
    return QUOIT_OK;
}

static quoit_status_t pipe_read(void *pointer, const struct iovec *iov, int count, size_t *got)
{
    memory_pipe_t *pipe = pointer;
    size_t total = 0;
    for (int i = 0; i < count; i++) {
        size_t part = pipe->length - pipe->taken < iov[i].iov_len ? pipe->length - pipe->taken : iov[i].iov_len;
        if (part > 0) memcpy(iov[i].iov_base, pipe->bytes + pipe->taken, part);
        pipe->taken += part;
        total += part;
    }
    if (total == 0) return pipe->ended ? QUOIT_ERR_CLOSED : QUOIT_ERR_AGAIN;
    *got = total;
    return QUOIT_OK;
}

static const pipe_ops_t memory_pipe_ops = {.write = pipe_write, .read = pipe_read};

/* ------------------------------------------------------------------ direct path */

static unsigned direct_expose(void *context, void *buffer, size_t length, void *memory, uint64_t *address, uint32_t keys[FRAME_KEYS], void **window)
{
    world_t *world = context;
    (void)length, (void)memory;
    if (++world->exposed % 4 == 0) return 0;
    *address = 4096;
    keys[0] = keys[1] = 7;
    *window = buffer;
    return world->rails ? 2 : 1;
}

static void direct_conceal(void *context, void *window, bool revoke) { (void)context, (void)window, (void)revoke; }

static void *direct_begin(void *context, const void *buffer, size_t length, void *memory, uint64_t address, const uint32_t *keys, unsigned count,
                          uint32_t token, void *send)
{
    world_t *world = context;
    (void)buffer, (void)length, (void)memory, (void)address, (void)keys, (void)count, (void)token;
    for (int i = 0; i < WRITES; i++)
        if (!world->writing[i]) {
            world->writing[i] = send;
            return &world->writing[i];
        }
    return NULL;
}

static void direct_end(void *context, void *writing)
{
    (void)context;
    *(void **)writing = NULL;
}

static quoit_status_t direct_path(void *context, uint32_t kind, uint64_t epoch, uint64_t number, uint64_t count)
{
    (void)context, (void)epoch, (void)number, (void)count;
    return kind > 100 ? error_set(QUOIT_ERR_PROTOCOL, "a path of kind %u", kind) : QUOIT_OK;
}

/* With rails in pieces. */
static uint64_t direct_piece(void *context, uint64_t length) { return ((const world_t *)context)->rails ? length / 3 + 1 : length; }

static const direct_ops_t direct_ops = {direct_expose, direct_conceal, direct_begin, direct_end, direct_path, direct_piece};

/* ------------------------------------------------------------------ loans */

static loan_t loans_lend(void *context, const void *data, size_t length, bool unasked, uint64_t *place)
{
    world_t *world = context;
    fuzz_check(length > 0 && length <= PIECE);
    if (world->lent % 3 == 2) return world->lent++, unasked ? LOAN_NONE : LOAN_LATER;
    if (world->lent % 5 == 4) return world->lent++, LOAN_NONE;
    *place = (uint64_t)(world->lent++ % LOANS);
    memcpy(world->loan[*place], data, length);
    return LOAN_MADE;
}

static const void *loans_borrow(void *context, uint64_t place, size_t length)
{
    world_t *world = context;
    if (place <= LENT && length <= LENT - place) return world->peer_memory + place;
    error_set(QUOIT_ERR_PROTOCOL, "a loan of %zu bytes at %llu", length, (unsigned long long)place);
    return NULL;
}

static void loans_take(void *to, const void *from, size_t length, uint64_t whole)
{
    fuzz_check(length <= whole);
    memcpy(to, from, length);
}

static void loans_give_back(void *context, uint64_t place)
{
    world_t *world = context;
    fuzz_check(place <= LENT);
    world->given_back++;
}

static const lend_ops_t lend_ops = {PIECE, loans_lend, loans_borrow, loans_take, loans_give_back, LEND_LEAST};

/* ------------------------------------------------------------------ steps */

static void peer_writes(memory_pipe_t *pipe, const void *bytes, size_t length)
{
    if (pipe->taken == pipe->length) pipe->taken = pipe->length = 0;
    if (length > PIPE_CAPACITY - pipe->length) length = PIPE_CAPACITY - pipe->length;
    if (length > 0) memcpy(pipe->bytes + pipe->length, bytes, length);
    pipe->length += length;
}

/* Lengths that meet each other, and the limits. */
static uint64_t draw_length(fuzz_input_t *input)
{
    static const uint64_t lengths[] = {0, 1, 64, 128, 129, EAGER, EAGER + 1, 1000, SEGMENT, SEGMENT + 1, 3000, 5000};
    uint8_t which = fuzz_byte(input);
    return which < 240 ? lengths[which % 12] : fuzz_number(input, 8);
}

static uint64_t draw_grant(fuzz_input_t *input)
{
    uint8_t which = fuzz_byte(input);
    return which < 250 ? (which & 7u) | (uint64_t)(1 + (which >> 3 & 3)) << 32 : fuzz_number(input, 8);
}

static quoit_key_t draw_key(fuzz_input_t *input)
{
    uint8_t which = fuzz_byte(input);
    return (quoit_key_t){which & 3, which >> 2 & 3};
}

/* A frame that may well be right. */
static void peer_frame(world_t *world, fuzz_input_t *input)
{
    static const uint8_t payload[8192];
    uint8_t kind = fuzz_byte(input), header[FRAME_HEADER_SIZE], trailer = 1;
    frame_t frame = {.type = (frame_type_t)(kind % (world->rails ? FRAME_LENT : FRAME_PATH + 1)), .key = draw_key(input)};
    if (world->peer_memory && kind & 32) frame.type = kind & 1 ? FRAME_LENT : FRAME_ASK;
    memory_pipe_t *pipe = &world->pipe[kind >> 7];
    frame.total = draw_length(input);
    switch (frame.type) {
    case FRAME_EAGER: frame.length = frame.total; break;
    case FRAME_NOTICE:
        frame.length = frame.total;
        if (frame.length <= FRAME_NOTE_MOST) frame.type = FRAME_NOTE;
        frame.inside = payload;
        break;
    case FRAME_GRANT:
        frame.length = frame.total;
        frame.grant = draw_grant(input);
        frame.direct = kind & 64 ? (uint8_t)(1 + frame.grant % FRAME_KEYS) : 0;
        frame.offset = frame.direct ? 4096 : 0;
        for (int i = 0; i < frame.direct; i++) frame.remote_key[i] = 9;
        break;
    case FRAME_DATA:
        frame.grant = draw_grant(input);
        frame.length = draw_length(input);
        frame.offset = draw_length(input);
        trailer = (kind & 64) ? fuzz_byte(input) : 1;
        break;
    case FRAME_CREDIT:
        frame.length = frame.total;
        frame.total = 0;
        break;
    case FRAME_ASK:
        frame.direct = world->peer_memory && kind & 32;
        frame.length = frame.direct ? (kind & 2 ? frame.total : draw_length(input)) : 0;
        frame.offset = frame.direct ? fuzz_byte(input) * UINT64_C(16) : 0;
        break;
    case FRAME_LENT:
        frame.grant = draw_grant(input);
        frame.length = draw_length(input);
        frame.offset = draw_length(input);
        frame.key.id = fuzz_byte(input) * UINT64_C(16);
        break;
    case FRAME_BYE: frame.total = 0; break;
    case FRAME_REVOKE:
        frame.grant = draw_grant(input);
        frame.total = 0;
        break;
    case FRAME_PATH: frame.what = fuzz_byte(input); break;
    case FRAME_RECEIPT:
    case FRAME_LOST:
        frame.total = fuzz_byte(input) % 16;
        frame.offset = frame.type == FRAME_LOST ? fuzz_byte(input) % 3 : 0;
        break;
    default: break;
    }
    frame_write(&frame, header);
    peer_writes(pipe, header, sizeof header);
    uint64_t follows = frame_payload(&frame);
    peer_writes(pipe, payload, follows < sizeof payload ? (size_t)follows : sizeof payload);
    if (frame.type == FRAME_DATA) peer_writes(pipe, &trailer, 1);
}

static bool is_under_way(const message_t *message)
{
    return message->transfer.status == QUOIT_IN_PROGRESS || message->transfer.status == QUOIT_ERR_AGAIN;
}

/* The buffer is no memory at all: whoever reads or writes it is found out. */
static void post_device(world_t *world, quoit_key_t key, message_t *message)
{
    void *nowhere = (void *)(uintptr_t)4096;
    quoit_status_t status = message->receives ? channel_device_recv(world->channel, key, world, nowhere, message->length, &message->transfer)
                                              : channel_device_send(world->channel, key, world, nowhere, message->length, &message->transfer);
    fuzz_check(status == QUOIT_OK);
}

/* The first that has stopped gets memory of the host. */
static void device_host(world_t *world)
{
    for (int i = 0; i < TRANSFERS; i++) {
        message_t *message = &world->message[i];
        if (!message->buffer || message->transfer.status != QUOIT_ERR_AGAIN) continue;
        fuzz_check(channel_device_host(world->channel, &message->transfer, message->buffer) == QUOIT_OK);
        fuzz_check(!message->receives || message->transfer.status == QUOIT_OK);
        return;
    }
}

static void post(world_t *world, fuzz_input_t *input, bool receives)
{
    message_t *message = NULL;
    quoit_key_t key = draw_key(input);
    size_t length = (size_t)(draw_length(input) % 8192);
    uint8_t drawn = fuzz_byte(input), what = drawn % 4;
    for (int i = 0; i < TRANSFERS && !message; i++)
        if (!world->message[i].buffer || !is_under_way(&world->message[i])) message = &world->message[i];
    if (!message) return;
    free(message->buffer);
    *message = (message_t){.buffer = malloc(length ? length : 1), .length = length, .receives = receives, .transfer = {.what = what == 3 ? 5 : what}};
    fuzz_check(message->buffer != NULL);
    memset(message->buffer, 1, length);
    if (world->direct && drawn & 128) {
        post_device(world, key, message);
        return;
    }
    quoit_status_t status = receives ? channel_recv(world->channel, key, message->buffer, length, &message->transfer)
                                     : channel_send(world->channel, key, message->buffer, length, &message->transfer);
    fuzz_check(status == QUOIT_OK);
}

static void direct_written(world_t *world, fuzz_input_t *input)
{
    void **writing = &world->writing[fuzz_byte(input) % WRITES];
    void *send = *writing;
    if (!send) return;
    *writing = NULL;
    channel_written(world->channel, send);
}

static void step(world_t *world, fuzz_input_t *input)
{
    uint8_t what = fuzz_byte(input);
    memory_pipe_t *pipe = &world->pipe[what >> 7];
    const void *data;
    size_t length;
    switch (what % 16) {
    case 0: {
        const uint8_t *bytes = fuzz_take(input, fuzz_byte(input), &length);
        peer_writes(pipe, bytes, length);
        break;
    }
    case 1:
    case 2:
    case 3: peer_frame(world, input); break;
    case 4:
    case 5: post(world, input, true); break;
    case 6: post(world, input, false); break;
    case 7: channel_cancel(world->channel, fuzz_byte(input) & 3); break;
    case 8: {
        const uint8_t *bytes = fuzz_take(input, fuzz_byte(input) * 2u, &length);
        (void)fuzz_check_status(channel_notify(world->channel, bytes, length));
        break;
    }
    case 9: {
        uint8_t sum = 0;
        if (channel_next_notice(world->channel, &data, &length))
            for (size_t i = 0; i < length; i++) sum = (uint8_t)(sum + ((const uint8_t *)data)[i]);
        pipe->ended = pipe->ended || (sum == 255 && length == 1);
        break;
    }
    case 10:
        pipe->room += (size_t)fuzz_byte(input) * 32;
        channel_write(world->channel, what >> 7, 1 << 16);
        break;
    case 11: channel_close(world->channel); break;
    case 12: (void)channel_arrived(world->channel, (uint32_t)(draw_grant(input) & 7) | (uint32_t)(1 + fuzz_byte(input) % 3) << 20); break;
    case 13: direct_written(world, input); break;
    case 14: pipe->ended = true; break;
    case 15:
        if (world->direct && what & 16) device_host(world);
        if (!world->rails || what & 16) break;
        error_set(QUOIT_ERR_NETWORK, "the pipe is given up");
        channel_lose(world->channel, what >> 7, QUOIT_ERR_NETWORK);
        break;
    default: break;
    }
    channel_read(world->channel, what >> 7, what & 64 ? 1 + fuzz_byte(input) : 1 << 16);
    if (what & 32) channel_read(world->channel, 0, 1 << 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = fuzz_input(data, size);
    world_t *world = calloc(1, sizeof *world);
    fuzz_check(world != NULL);
    uint8_t options = fuzz_byte(&input);
    channel_config_t config = {.ops = &memory_pipe_ops, .eager_limit = EAGER, .eager_pool = 4096, .segment_size = SEGMENT,
                               .direct = options & 1 ? &direct_ops : NULL, .direct_context = world, .rails = (options & 4) != 0};
    world->rails = config.rails;
    world->direct = config.direct != NULL;
    if ((options & 15) == 8) {
        config.lend = &lend_ops; /* not with direct */
        config.lend_context = world;
        world->peer_memory = calloc(1, LENT);
        fuzz_check(world->peer_memory != NULL);
    }
    void *pipes[PIPES];
    for (int i = 0; i < PIPES; i++) {
        pipes[i] = &world->pipe[i];
        world->pipe[i].bytes = malloc(PIPE_CAPACITY);
        fuzz_check(world->pipe[i].bytes != NULL);
    }
    fuzz_check(channel_create(&config, "the peer", &world->channel) == QUOIT_OK);
    channel_open(world->channel, NULL, pipes, options & 2 || config.rails ? PIPES : 1);
    for (int i = 0; i < STEPS && fuzz_left(&input) > 0; i++) step(world, &input);

    (void)fuzz_check_status(channel_status(world->channel));
    (void)channel_idle(world->channel);
    error_set(QUOIT_ERR_CLOSED, "the end");
    channel_fail(world->channel, QUOIT_ERR_CLOSED);
    if (channel_status(world->channel) == QUOIT_ERR_CLOSED) { /* said goodbye before: what is here already may wait for its recv */
        for (int comm = 0; comm < 4; comm++) channel_cancel(world->channel, (uint64_t)comm);
    }
    for (int i = 0; i < TRANSFERS; i++) {
        message_t *message = &world->message[i];
        if (!message->buffer) continue;
        fuzz_check(!is_under_way(message));
        if (message->receives && message->transfer.status == QUOIT_OK) fuzz_check(message->transfer.length == message->length);
        free(message->buffer);
    }
    channel_destroy(world->channel);
    free(world->peer_memory);
    for (int i = 0; i < WRITES; i++) fuzz_check(world->writing[i] == NULL);
    for (int i = 0; i < PIPES; i++) free(world->pipe[i].bytes);
    free(world);
    return 0;
}

void fuzz_seeds(void)
{
    /* options; then steps: 1 frame (type, key, length, ...), 4 recv (key, length, what), 6 send, 10 write, 9 notice */
    fuzz_seed("eager_then_recv", "\2\1\1\5\2\4\5\2\0", 9);
    fuzz_seed("recv_then_eager", "\2\4\5\2\0\1\1\5\2", 9);
    fuzz_seed("large_recv", "\2\4\5\7\0\12\377\1\2\5\7\1\4\5\7\10\7\0", 18);
    fuzz_seed("two_segments", "\2\4\5\13\0\1\2\5\13\1\4\5\13\10\12\0\1\4\5\13\10\12\5", 22);
    fuzz_seed("send_asked", "\2\6\5\7\0\12\377\1\3\5\7\10\12\377", 14);
    fuzz_seed("mismatch", "\2\4\5\7\0\1\2\5\2\1\3\5\2\10", 14);
    fuzz_seed("refused", "\2\6\5\7\0\12\377\1\5\5\2", 11);
    fuzz_seed("notices", "\2\1\7\0\3\1\7\0\5\11\11\11", 12);
    fuzz_seed("cancelled", "\2\4\5\7\0\7\1\1\2\5\7\4\5\7\0", 15);
    fuzz_seed("goodbye", "\2\1\10\0\0\201\210\0\0\4\5\2\0", 13);
    fuzz_seed("rails", "\4\6\5\7\0\12\377\1\3\5\7\10\12\377\212\377\1\13\5\0\1\17\201\14\5\0\1\0\4\5\2\0\1\1\5\2", 36);
    fuzz_seed("lent", "\10\4\5\7\0\12\377\1\40\5\1\4\4\5\1\0\6\5\13\0\12\377\1\3\5\13\10\12\377\12\377\1\43\5\13\10\7\0\2", 43);
    fuzz_seed("device", "\3\4\5\7\200\1\2\5\7\1\4\5\13\10\37\6\5\7\200\1\3\5\7\10\37\12\377", 26);
    fuzz_seed("direct", "\3\4\5\7\0\1\2\5\7\14\10\0\6\5\7\0\1\103\5\7\10\15\0\1\11\5\0\10", 28);
}
