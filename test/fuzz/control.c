/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notices that reach a communicator: any bytes, or sound notices of every type with any fields, from its own process or another, for it
 * or for a communicator that does not exist, before and after sends and recvs of its own. The communicator has one rank, so all of it
 * happens in one thread. Whatever comes, operations end, an error has its text, and nothing is left behind.
 */
#include "fuzz.h"

#include "scheduler/comm.h"
#include "scheduler/control.h"
#include "scheduler/inquire.h"
#include "scheduler/notice.h"

#include <stdlib.h>

enum { STEPS = 40, REQUESTS = 8, BYTES = 64 };

typedef struct world {
    engine_t *engine;
    quoit_comm_t *comm;
    quoit_request_t *request[REQUESTS];
    uint8_t buffer[REQUESTS][BYTES];
    int requests;
} world_t;

static void receive(world_t *world, fuzz_input_t *input, const void *bytes, size_t length)
{
    uint8_t who = fuzz_byte(input);
    void *exact = fuzz_copy(bytes, length);
    quoit_event_t event = {.type = QUOIT_EVENT_NOTICE, .peer = world->engine->self, .data = exact, .length = length};
    if (who >= 240) event.peer.low ^= who;
    engine_enter(world->engine);
    control_receive(world->engine, &event);
    engine_leave(world->engine);
    free(exact);
}

static uint64_t draw_comm(world_t *world, fuzz_input_t *input) { return fuzz_byte(input) < 230 ? world->comm->id : 4711; }
static int draw_source(fuzz_input_t *input) { return fuzz_byte(input) < 240 ? 0 : (int)(int32_t)fuzz_number(input, 4); }

static void send_message(world_t *world, fuzz_input_t *input)
{
    unsigned char bytes[NOTICE_MESSAGE_SIZE + 256];
    size_t length;
    notice_message_t message = {.tag = fuzz_byte(input) % 3, .inside = fuzz_byte(input) & 1, .number = fuzz_byte(input)};
    const uint8_t *payload = fuzz_take(input, fuzz_byte(input) % 3 * 8u, &length);
    message.bytes = message.inside ? length : fuzz_byte(input) < 200 ? length : fuzz_number(input, 8);
    if (!message.inside) length = 0;
    uint64_t comm = draw_comm(world, input);
    notice_message_encode(comm, draw_source(input), &message, bytes);
    if (length > 0) memcpy(bytes + NOTICE_MESSAGE_SIZE, payload, length);
    receive(world, input, bytes, NOTICE_MESSAGE_SIZE + length);
}

static void send_abort(world_t *world, fuzz_input_t *input)
{
    unsigned char bytes[NOTICE_ABORT_CAPACITY];
    char text[64] = "";
    size_t length;
    const uint8_t *from = fuzz_take(input, fuzz_byte(input) % 60, &length);
    memcpy(text, from, length);
    int status = -(int)(fuzz_byte(input) % 40), finder = (int)(int8_t)fuzz_byte(input);
    uint64_t comm = draw_comm(world, input);
    length = notice_abort_encode(comm, draw_source(input), (quoit_status_t)status, finder, text, bytes);
    receive(world, input, bytes, length);
}

static void send_shrink(world_t *world, fuzz_input_t *input)
{
    unsigned char bytes[NOTICE_SHRINK_SIZE + 8];
    notice_shrink_t message = {.kind = (shrink_kind_t)(fuzz_byte(input) % 6), .term = (int32_t)(int8_t)fuzz_byte(input), .size = fuzz_byte(input) % 6};
    uint64_t comm = draw_comm(world, input);
    size_t length = notice_shrink_encode(comm, draw_source(input), &message, bytes);
    for (int rank = 0; rank < message.size; rank++) notice_shrink_set_mark(bytes, rank, (shrink_mark_t)(fuzz_byte(input) % 4));
    receive(world, input, bytes, length);
}

static void send_call(world_t *world, fuzz_input_t *input)
{
    unsigned char bytes[NOTICE_CALL_CAPACITY];
    uint8_t flags = fuzz_byte(input);
    notice_call_t call = {.ask = flags & 1, .running = flags & 2, .target = (int32_t)(int8_t)fuzz_byte(input), .calls = flags >> 2 & 7, .doing = "it waits", .members = "0, 1"};
    call.family = flags & 128 ? world->comm->family : fuzz_byte(input);
    for (int i = 0; i < call.calls; i++)
        call.call[i] = (call_t){.hash = fuzz_byte(input),
                                .description = {.sequence = fuzz_byte(input), .collective = fuzz_byte(input), .dtype = fuzz_byte(input), .op = fuzz_byte(input),
                                                .root = (int8_t)fuzz_byte(input), .count = fuzz_byte(input)}};
    uint64_t comm = draw_comm(world, input);
    receive(world, input, bytes, notice_call_encode(comm, draw_source(input), &call, bytes));
}

static void issue(world_t *world, fuzz_input_t *input, bool receives)
{
    if (world->requests == REQUESTS) return;
    uint8_t *buffer = world->buffer[world->requests];
    size_t count = fuzz_byte(input) % 3 * 8u;
    uint32_t tag = fuzz_byte(input) % 3;
    quoit_request_t **request = &world->request[world->requests];
    int peer = fuzz_byte(input) & 1 ? QUOIT_ANY_SOURCE : 0;
    quoit_status_t status = receives ? quoit_recv(world->comm, buffer, count, QUOIT_U8, peer, tag, NULL, request)
                                     : quoit_send(world->comm, buffer, count, QUOIT_U8, 0, tag, NULL, request);
    if (fuzz_check_status(status)) world->requests++;
}

static void collective(world_t *world)
{
    float value = 1;
    quoit_status_t status = quoit_allreduce(world->comm, &value, &value, 1, QUOIT_F32, QUOIT_SUM, NULL, NULL);
    if (fuzz_check_status(status)) fuzz_check(value == 1);
}

static void step(world_t *world, fuzz_input_t *input)
{
    uint8_t what = fuzz_byte(input);
    size_t length;
    switch (what % 10) {
    case 0: {
        const uint8_t *bytes = fuzz_take(input, fuzz_byte(input), &length);
        receive(world, input, bytes, length);
        break;
    }
    case 1:
    case 2: send_message(world, input); break;
    case 3: send_abort(world, input); break;
    case 4: send_shrink(world, input); break;
    case 5: send_call(world, input); break;
    case 6:
    case 7: issue(world, input, true); break;
    case 8: issue(world, input, false); break;
    default: collective(world); break;
    }
    engine_enter(world->engine);
    for (int i = 0; i < 4; i++) engine_poll(world->engine);
    engine_leave(world->engine);
}

static void check_and_end(world_t *world)
{
    char error[ERROR_TEXT_CAPACITY];
    quoit_status_t status = quoit_comm_error(world->comm, error, sizeof error);
    if (status != QUOIT_OK) {
        fuzz_check(status < 0 && status >= QUOIT_ERR_INTERNAL && error[0]);
        fuzz_check_text(error, sizeof error);
    }
    fuzz_check(world->engine->orphan_bytes <= 16 << 20);
    quoit_comm_abort(world->comm, "the end of an input");
    for (int i = 0; i < world->requests; i++) {
        (void)quoit_request_wait(world->request[i], 1000);
        fuzz_check(quoit_request_test(world->request[i]) != QUOIT_IN_PROGRESS);
        quoit_request_free(world->request[i]);
    }
    quoit_comm_destroy(world->comm);
}

static engine_t *engine;
static quoit_comm_t *parent;

static void end_of_program(void)
{
    quoit_comm_destroy(parent);
    engine_release(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static world_t world;
    fuzz_input_t input = fuzz_input(data, size);
    if (!engine) {
        setenv("QUOIT_LOG", "error", 1);
        setenv("QUOIT_TRANSPORT", "self", 1);
        fuzz_check(engine_create(&engine) == QUOIT_OK);
        fuzz_check(fuzz_check_status(comm_create_on(engine, NULL, 0, 1, NULL, &parent)));
        atexit(end_of_program);
    }
    world = (world_t){.engine = engine};
    fuzz_check(fuzz_check_status(quoit_comm_create_group(parent, (const int[]){0}, 1, "fuzzed", NULL, &world.comm)));
    for (int i = 0; i < STEPS && fuzz_left(&input) > 0; i++) step(&world, &input);
    check_and_end(&world);
    engine_enter(engine);
    control_forget(engine);
    engine_leave(engine);
    return 0;
}

void fuzz_seeds(void)
{
    fuzz_seed("send_and_recv", "\10\1\1\0\6\1\1\0", 8);
    fuzz_seed("envelope_then_recv", "\1\1\1\0\1abcdefgh\0\0\0\6\1\1\0", 19);
    fuzz_seed("recv_then_envelope", "\6\1\1\1\1\1\1\0\1abcdefgh\0\0\0", 19);
    fuzz_seed("keyed_payload", "\6\1\1\1\1\1\0\0\1abcdefgh\0\0\0\0", 20);
    fuzz_seed("other_length", "\6\2\1\0\1\1\1\0\1abcdefgh\0\0\0", 19);
    fuzz_seed("abort", "\6\1\1\1\3\4text\5\0\0\0\0", 14);
    fuzz_seed("shrink", "\3\1x\5\0\0\0\0\4\1\0\1\0\0\3\0", 16);
    fuzz_seed("call", "\11\5\7\0\1\1\1\1\1\1\0\1\0\0\0", 15);
    fuzz_seed("stranger", "\1\1\1\0\1abcdefgh\377\0\0\5\7\0\0\1\1\1\1\1\0\1\377\0\0", 29);
}
