/* SPDX-License-Identifier: Apache-2.0 */
/* What processes of a host tell each other as bytes: address, info message, last words, handle of shared memory. */
#include "fuzz.h"

#include "transport/shm/shm_header.h"
#include "transport/shm/shm_info.h"

static void info(const uint8_t *data)
{
    shm_info_t parsed, second;
    uint8_t again[SHM_INFO_SIZE];
    if (!fuzz_check_status(shm_info_parse(data, &parsed))) return;
    fuzz_check(parsed.mailbox_offset >= SHM_HEADER_SIZE + QUOIT_ROOT_SIZE && parsed.mailbox_offset % 64 == 0);
    fuzz_check(parsed.arena_size <= SHM_ARENA_LIMIT && parsed.mailbox_offset + 128 + parsed.mailbox_capacity <= parsed.arena_size);
    fuzz_check((parsed.mailbox_capacity & (parsed.mailbox_capacity - 1)) == 0);
    fuzz_check(parsed.slot < SHM_MAX_PEERS && parsed.descriptors >= 2 && parsed.descriptors <= 3);
    shm_info_write(&parsed, again);
    fuzz_check(shm_info_parse(again, &second) == QUOIT_OK && second.mailbox_offset == parsed.mailbox_offset && second.pid == parsed.pid);
}

static void address(const uint8_t *data, size_t size)
{
    shm_address_t parsed;
    uint8_t again[SHM_ADDRESS_SIZE];
    char name[SHM_NAME_CAPACITY];
    if (!fuzz_check_status(shm_address_parse(data, size, &parsed))) return;
    shm_address_name(parsed.process, name);
    fuzz_check_text(name, sizeof name);
    shm_address_write(&parsed, again);
    fuzz_check(memcmp(again, data, 36) == 0);
}

static void handle(const uint8_t *data, uint64_t arena)
{
    uint64_t offset = UINT64_MAX, length = UINT64_MAX;
    if (!fuzz_check_status(shm_handle_parse(data, (quoit_process_id_t){1, 2}, arena, &offset, &length))) {
        fuzz_check(offset == UINT64_MAX && length == UINT64_MAX);
        return;
    }
    fuzz_check(offset >= SHM_HEADER_SIZE && offset <= arena && length <= arena - offset);
}

static void words(const uint8_t *data, size_t size)
{
    char text[SHM_WORDS_TEXT + 1] = "";
    quoit_status_t told = QUOIT_OK;
    if (!fuzz_check_status(shm_words_parse(data, size, &told, text))) {
        fuzz_check(told == QUOIT_OK && text[0] == '\0');
        return;
    }
    uint8_t again[SHM_WORDS_CAPACITY];
    char second[SHM_WORDS_TEXT + 1];
    quoit_status_t status = told;
    fuzz_check(told < 0 && told >= QUOIT_ERR_INTERNAL);
    fuzz_check_text(text, sizeof text);
    fuzz_check(shm_words_parse(again, shm_words_write(told, text, again), &status, second) == QUOIT_OK && status == told && strcmp(second, text) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    address(data, size);
    words(data, size);
    if (size >= SHM_INFO_SIZE) info(data);
    if (size >= QUOIT_HANDLE_CAPACITY) handle(data, 1 << 20);
    return 0;
}

void fuzz_seeds(void)
{
    const shm_limits_t limits = {8192, 1 << 20, 256 << 10};
    shm_address_t address = {{1, 2}, limits};
    uint8_t bytes[SHM_WORDS_CAPACITY];
    shm_address_write(&address, bytes);
    fuzz_seed("address", bytes, SHM_ADDRESS_SIZE);
    shm_info_t info = {{1, 2}, limits, 32 << 20, SHM_HEADER_SIZE + QUOIT_ROOT_SIZE, 65536, 3, 4321, 3};
    shm_info_write(&info, bytes);
    fuzz_seed("info", bytes, SHM_INFO_SIZE);
    shm_handle_write((quoit_process_id_t){1, 2}, 8192, 4096, bytes);
    fuzz_seed("handle", bytes, QUOIT_HANDLE_CAPACITY);
    fuzz_seed("words", bytes, shm_words_write(QUOIT_ERR_NO_MEMORY, "mailbox for rank 1: no memory", bytes));
}
