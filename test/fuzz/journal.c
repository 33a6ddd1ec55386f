/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The journal of another process: a sound one with any bytes changed, or any bytes. What is shown of it is text without control
 * characters, and JSON that is JSON.
 */
#include "fuzz.h"

#include "scheduler/comm.h"
#include "scheduler/journal.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { IMAGE = 1 << 16, RANKS = 2 };

static uint8_t image[IMAGE];

/* The own process's journal file; there is only one while the image is made. */
static int find_file(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int found = -1;
    fuzz_check(directory != NULL);
    for (const struct dirent *entry; (entry = readdir(directory));) {
        char target[128] = "";
        if (readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1) > 0 && strncmp(target, "/memfd:" JOURNAL_FILE, strlen("/memfd:" JOURNAL_FILE)) == 0)
            found = atoi(entry->d_name);
    }
    closedir(directory);
    return found;
}

static void make_image(void)
{
    journal_t *journal = journal_create((quoit_process_id_t){1, 2});
    fuzz_check(journal != NULL);
    journal_block_t *block = journal_block_create(journal, RANKS);
    fuzz_check(block != NULL);
    block->rank = 1;
    block->size = block->hosts = RANKS;
    snprintf(block->name, sizeof block->name, "world");
    for (int rank = 0; rank < RANKS; rank++) {
        block->member[rank] = (journal_member_t){.process_low = (uint64_t)rank, .pid = 100 + rank, .host = rank};
        snprintf(block->member[rank].host_name, JOURNAL_NAME, "node%d", rank);
    }
    for (int i = 0; i < 5; i++) {
        operation_t operation = {.kind = i % 2 ? OPERATION_RECV : OPERATION_COLLECTIVE, .width = 4, .bytes = 400, .tag = 7, .peer = 0, .timeout_ms = 1000,
                                 .deadline = clock_deadline(1000), .description = {.sequence = (uint32_t)i + 1, .collective = 1, .count = 100}};
        journal_begin(block, &operation, true);
        if (i < 3) journal_end(block, &operation, QUOIT_OK);
    }
    atomic_store(&block->taken, 6);
    journal_note(block, clock_now(), 5, "waiting for rank 0 (node0, pid 100)");
    journal_fail(block, QUOIT_ERR_PEER, "rank 0 (node0, pid 100) is lost");
    journal_publish(block, 4711);
    fuzz_check(pread(find_file(), image, sizeof image, 0) == (ssize_t)sizeof image);
    journal_block_destroy(journal, block);
    journal_destroy(journal);
}

static void show(void *context, const journal_block_t *block, const journal_view_t *shown)
{
    journal_view_t view = *shown;
    text_t text = {0}, json = {0};
    char *result = NULL;
    int *count = context;
    view.look_at_mates = false; /* pids of the input are not to be looked at */
    ++*count;
    journal_print_text(block, &view, &text);
    fuzz_check(text_finish(&text, &result) == QUOIT_OK);
    for (const char *at = result; *at; at++) fuzz_check(*at == '\n' || ((unsigned char)*at >= 0x20 && *at != 0x7f));
    free(result);
    journal_print_json(block, &view, &json);
    fuzz_check(text_finish(&json, &result) == QUOIT_OK);
    fuzz_check_json(result);
    free(result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static uint8_t changed[IMAGE];
    fuzz_input_t input = fuzz_input(data, size);
    if (fd < 0) {
        make_image();
        fd = memfd_create("fuzz-journal", MFD_CLOEXEC);
        fuzz_check(fd >= 0);
    }
    uint8_t what = fuzz_byte(&input);
    size_t length = IMAGE;
    memcpy(changed, image, IMAGE);
    if (what == 255) {
        const uint8_t *bytes = fuzz_take(&input, IMAGE, &length);
        memcpy(changed, bytes, length);
    } else {
        fuzz_patch(&input, changed, IMAGE, 64);
        if (what & 1) length = (size_t)fuzz_number(&input, 2);
    }
    int count = 0;
    fuzz_check(ftruncate(fd, (off_t)length) == 0 && pwrite(fd, changed, length, 0) == (ssize_t)length);
    quoit_status_t status = journal_read_file(fd, 1234, show, &count);
    (void)fuzz_check_status(status);
    if (size == 1 && what == 0) fuzz_check(status == QUOIT_OK && count == 1);
    return 0;
}

/* A patch at `offset` of the first block. */
static size_t put_patch(uint8_t *seed, size_t length, size_t offset, const char *text)
{
    size_t at = (sizeof(journal_header_t) + JOURNAL_PAGE - 1) / JOURNAL_PAGE * JOURNAL_PAGE + offset, count = strlen(text);
    seed[length] = (uint8_t)at;
    seed[length + 1] = (uint8_t)(at >> 8);
    seed[length + 2] = (uint8_t)count;
    memcpy(seed + length + 3, text, count);
    return length + 3 + count;
}

void fuzz_seeds(void)
{
    uint8_t seed[256] = {0};
    fuzz_seed("unchanged", "\0", 1);
    fuzz_seed("short", "\1\0\0\0\0\120", 6);
    fuzz_seed("names", seed, put_patch(seed, put_patch(seed, 1, offsetof(journal_block_t, name), "a\"\\\33[31m\n"), offsetof(journal_block_t, error), "\1\2\177\303"));
    fuzz_seed("size", seed, put_patch(seed, 1, offsetof(journal_block_t, size), "\200"));
    fuzz_seed("entry", seed, put_patch(seed, 1, offsetof(journal_block_t, collective.entry[1].count), "\377\377\377\377\377\377\377\377\5"));
    fuzz_seed("member", seed, put_patch(seed, 1, offsetof(journal_block_t, member[1].pid), "\1\1\1\1\1"));
    fuzz_seed("no_journal", "\377quoit", 6);
}
