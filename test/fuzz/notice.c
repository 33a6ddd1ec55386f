/* SPDX-License-Identifier: Apache-2.0 */
/* Datagrams between engines: header, envelope, abort, shrinking, calls. What is taken is written again as it was read. */
#include "fuzz.h"

#include "scheduler/notice.h"

#include <stdlib.h>

static void message(const notice_header_t *header, const uint8_t *data, size_t size)
{
    notice_message_t message, second;
    const void *payload = NULL;
    unsigned char again[NOTICE_MESSAGE_SIZE];
    if (!fuzz_check_status(notice_message_decode(data, size, &message, &payload))) return;
    fuzz_check(payload == data + NOTICE_MESSAGE_SIZE && (!message.inside || message.bytes == size - NOTICE_MESSAGE_SIZE));
    message.inside = false;
    notice_message_encode(header->comm, header->source, &message, again);
    fuzz_check(notice_message_decode(again, sizeof again, &second, &payload) == QUOIT_OK);
    fuzz_check(second.tag == message.tag && second.bytes == message.bytes && second.number == message.number);
}

static void abortion(const notice_header_t *header, const uint8_t *data, size_t size)
{
    quoit_status_t status = QUOIT_OK, other;
    int finder, second;
    char text[NOTICE_ABORT_TEXT + 1], copy[NOTICE_ABORT_TEXT + 1];
    unsigned char again[NOTICE_ABORT_CAPACITY];
    if (!fuzz_check_status(notice_abort_decode(data, size, &status, &finder, text))) return;
    fuzz_check(status < 0 && status >= QUOIT_ERR_INTERNAL);
    fuzz_check_text(text, sizeof text);
    size_t length = notice_abort_encode(header->comm, header->source, status, finder, text, again);
    fuzz_check(length <= sizeof again && notice_abort_decode(again, length, &other, &second, copy) == QUOIT_OK);
    fuzz_check(other == status && second == finder && strcmp(text, copy) == 0);
}

static void shrinking(const notice_header_t *header, const uint8_t *data, size_t size)
{
    notice_shrink_t message, second;
    if (!fuzz_check_status(notice_shrink_decode(data, size, &message))) return;
    fuzz_check(message.size >= 0 && notice_shrink_length(message.size) == size);
    unsigned char *again = malloc(size);
    fuzz_check(again && notice_shrink_encode(header->comm, header->source, &message, again) == size);
    for (int rank = 0; rank < message.size; rank++) notice_shrink_set_mark(again, rank, notice_shrink_mark(data, rank));
    fuzz_check(notice_shrink_decode(again, size, &second) == QUOIT_OK && second.kind == message.kind && second.term == message.term);
    for (int rank = 0; rank < message.size; rank++) fuzz_check(notice_shrink_mark(again, rank) == notice_shrink_mark(data, rank));
    free(again);
}

static void calls(const notice_header_t *header, const uint8_t *data, size_t size)
{
    notice_call_t *message = calloc(2, sizeof *message), *second = message + 1;
    unsigned char again[NOTICE_CALL_CAPACITY];
    fuzz_check(message != NULL);
    if (fuzz_check_status(notice_call_decode(data, size, message))) {
        fuzz_check(size <= NOTICE_CALL_CAPACITY && message->calls >= 0 && message->calls <= NOTICE_CALLS);
        fuzz_check_text(message->doing, sizeof message->doing);
        fuzz_check_text(message->members, sizeof message->members);
        size_t length = notice_call_encode(header->comm, header->source, message, again);
        fuzz_check(length <= sizeof again && notice_call_decode(again, length, second) == QUOIT_OK);
        fuzz_check(memcmp(message, second, sizeof *message) == 0);
    }
    free(message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    notice_header_t header;
    if (!fuzz_check_status(notice_header_decode(data, size, &header))) return 0;
    switch (header.type) {
    case NOTICE_MESSAGE: message(&header, data, size); break;
    case NOTICE_ABORT: abortion(&header, data, size); break;
    case NOTICE_SHRINK: shrinking(&header, data, size); break;
    case NOTICE_CALL: calls(&header, data, size); break;
    }
    return 0;
}

void fuzz_seeds(void)
{
    unsigned char bytes[NOTICE_ABORT_CAPACITY] = {0};
    notice_message_t message = {.tag = 7, .inside = true, .bytes = 5, .number = 1};
    notice_message_encode(9, 1, &message, bytes);
    memcpy(bytes + NOTICE_MESSAGE_SIZE, "bytes", 5);
    fuzz_seed("message_inside", bytes, NOTICE_MESSAGE_SIZE + 5);
    message.inside = false;
    notice_message_encode(9, 1, &message, bytes);
    fuzz_seed("message", bytes, NOTICE_MESSAGE_SIZE);
    fuzz_seed("abort", bytes, notice_abort_encode(9, 1, QUOIT_ERR_PEER, 2, "rank 2 (node7, pid 9) is lost", bytes));
    notice_shrink_t shrink = {.kind = SHRINK_JOIN, .term = 1, .size = 9};
    size_t length = notice_shrink_encode(9, 1, &shrink, bytes);
    for (int rank = 0; rank < 9; rank++) notice_shrink_set_mark(bytes, rank, (shrink_mark_t)(rank % 4));
    fuzz_seed("shrink", bytes, length);
    shrink.kind = SHRINK_TAKE;
    fuzz_seed("shrink_take", bytes, notice_shrink_encode(9, 1, &shrink, bytes));
    notice_call_t call = {.ask = true, .running = true, .target = 0, .family = 4, .calls = 3, .doing = "it waits for rank 3", .members = "0, 1"};
    for (int i = 0; i < call.calls; i++) call.call[i] = (call_t){.hash = 5, .description = {.sequence = (uint32_t)(3 - i), .collective = 1, .dtype = 2, .root = -1, .count = 100}};
    fuzz_seed("call", bytes, notice_call_encode(9, 1, &call, bytes));
}
