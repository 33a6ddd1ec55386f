/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The partial file of a timeline, as a killed process leaves it, or as anything else may have changed it: a sound one with any bytes
 * changed, or any bytes. What is made of it is JSON, whatever names and numbers it holds; what is refused has a text and leaves no file.
 */
#include "fuzz.h"

#include "scheduler/comm.h"
#include "scheduler/trace_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { EVENTS = 12, OUTPUT = 4 << 20 };

typedef struct image {
    trace_header_t header;
    trace_event_t event[EVENTS];
} image_t;

static image_t image;
static char in_path[32], out_path[64];
static int in;

static void make_image(void)
{
    const char *folder = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    image.header = (trace_header_t){.magic = TRACE_MAGIC, .version = TRACE_VERSION, .event_size = sizeof(trace_event_t), .capacity = EVENTS, .rank = 1, .pid = 17,
                                    .host = "node1", .boot = "a-boot-id", .to_real = 5, .began = 1000, .ended = 90000, .written = EVENTS, .comms = 2};
    for (int i = 0; i < 2; i++) image.header.comm[i] = (trace_comm_t){.name = "world", .rank = 1, .size = 2, .id = 77};
    for (uint32_t i = 0; i < EVENTS; i++)
        image.event[i] = (trace_event_t){.begin = 1000 + i, .end = 2000 + i, .issued = 900 + i, .count = 10, .sequence = 1 + i / 3, .chunk = i % 3, .other = -1,
                                         .comm = (uint16_t)(i / 6), .type = (uint8_t)(i % 3 == 0 ? TRACE_BEGUN : i % 3 == 1 ? TRACE_STEP : TRACE_ENDED),
                                         .kind = (uint8_t)(i < 9 ? OPERATION_COLLECTIVE : OPERATION_RECV), .verb = (uint8_t)(i % VERB_COUNT), .lane = (uint8_t)(i % 2)};
    in = memfd_create("fuzz-trace", MFD_CLOEXEC);
    fuzz_check(in >= 0);
    snprintf(in_path, sizeof in_path, "/proc/self/fd/%d", in);
    snprintf(out_path, sizeof out_path, "%s/fuzz-trace-%d.json", folder, (int)getpid());
}

static void check_output(void)
{
    static char text[OUTPUT];
    int file = open(out_path, O_RDONLY | O_CLOEXEC);
    ssize_t got = file >= 0 ? read(file, text, sizeof text - 1) : -1;
    fuzz_check(file >= 0 && got >= 0 && got < (ssize_t)sizeof text - 1);
    close(file);
    text[got] = '\0';
    fuzz_check(strlen(text) == (size_t)got);
    fuzz_check_json(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static image_t changed;
    fuzz_input_t input = fuzz_input(data, size);
    size_t length = sizeof changed;
    if (in_path[0] == '\0') make_image();
    uint8_t what = fuzz_byte(&input);
    changed = image;
    if (what == 255) {
        const uint8_t *bytes = fuzz_take(&input, sizeof changed, &length);
        memcpy(&changed, bytes, length);
    } else {
        if (what & 1) fuzz_patch(&input, (uint8_t *)&changed.header, offsetof(trace_header_t, comm[3]), fuzz_byte(&input) % 16);
        if (what & 2) fuzz_patch(&input, (uint8_t *)changed.event, sizeof changed.event, 32);
        if (what & 4) length = (size_t)fuzz_number(&input, 3) % (sizeof changed + 1);
    }
    fuzz_check(ftruncate(in, (off_t)length) == 0 && pwrite(in, &changed, length, 0) == (ssize_t)length);
    if (fuzz_check_status(trace_convert(in_path, out_path)))
        check_output();
    else
        fuzz_check(access(out_path, F_OK) != 0);
    unlink(out_path);
    return 0;
}

static size_t put_patch(uint8_t *seed, size_t length, size_t offset, const void *bytes, uint8_t count)
{
    seed[length] = (uint8_t)offset;
    seed[length + 1] = (uint8_t)(offset >> 8);
    seed[length + 2] = count;
    memcpy(seed + length + 3, bytes, count);
    return length + 3 + count;
}

void fuzz_seeds(void)
{
    uint8_t seed[128] = {1, 4};
    const uint64_t many = UINT64_MAX, zero = 0;
    fuzz_seed("unchanged", "\0", 1);
    fuzz_seed("short", "\4\0\1\0", 4);
    fuzz_seed("no_trace", "\377quoit", 6);
    fuzz_seed("written", seed, put_patch(seed, 2, offsetof(trace_header_t, written), &many, 8));
    fuzz_seed("killed", seed, put_patch(seed, 2, offsetof(trace_header_t, ended), &zero, 8));
    fuzz_seed("capacity", seed, put_patch(seed, 2, offsetof(trace_header_t, capacity), &many, 8));
    fuzz_seed("names", seed, put_patch(seed, put_patch(seed, 2, offsetof(trace_header_t, host), "a\"\\\33[m\n\303", 9), offsetof(trace_header_t, comm[1].name), "\1\2\177\377", 4));
    seed[0] = 2;
    fuzz_seed("event", seed, put_patch(seed, 1, sizeof(trace_event_t) + offsetof(trace_event_t, comm), "\377\377\4\377\377\377\377\377\377\377", 10));
    fuzz_seed("times", seed, put_patch(seed, 1, 2 * sizeof(trace_event_t), &many, 8));
}
