/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_fuzz: the targets without libFuzzer.
 *
 *   test_fuzz TARGET FOLDER        every file of FOLDER, then MUTATED inputs made out of them by a fixed seed (QUOIT_TEST_SEED, QUOIT_TEST_LONG)
 *   test_fuzz TARGET FILE...       these inputs
 *   test_fuzz --seeds FOLDER       writes the seeds of all targets to FOLDER/<target>/
 *   test_fuzz --list               the targets, and the parser's files of each
 *
 * When an input ends the program, it is left in fuzz-<target>.input, and named with its number and the seed.
 */
#include "fuzz.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MUTATED = 2000, MUTATED_LONG = 200000, INPUT_CAPACITY = 1 << 16, FILES_CAPACITY = 4096, PATH_CAPACITY = 4096 };

#define TARGET(name, files) \
    int fuzz_one_##name(const uint8_t *data, size_t size); \
    void fuzz_seeds_##name(void);
#include "targets.def"
#undef TARGET

typedef struct target {
    const char *name, *files;
    int (*one)(const uint8_t *data, size_t size);
    void (*seeds)(void);
} target_t;

static const target_t targets[] = {
#define TARGET(name, files) {#name, files, fuzz_one_##name, fuzz_seeds_##name},
#include "targets.def"
#undef TARGET
};
enum { TARGET_COUNT = sizeof targets / sizeof *targets };

typedef struct sample {
    uint8_t *bytes;
    size_t length;
} sample_t;

static sample_t samples[FILES_CAPACITY];
static int sample_count;

/* What is being tried, for whoever must tell of its end. */
static struct {
    const char *target, *file;
    uint64_t seed;
    long number; /* of the mutated input; -1: the file itself */
    uint8_t bytes[INPUT_CAPACITY];
    size_t length;
} current;

/* Only what a signal handler may do, but for dprintf, which does not matter any more. */
static void tell_current(void)
{
    char path[128] = "fuzz-input";
    snprintf(path, sizeof path, "fuzz-%s.input", current.target ? current.target : "?");
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    bool kept = file >= 0 && write(file, current.bytes, current.length) == (ssize_t)current.length;
    if (file >= 0) close(file);
    if (current.number < 0)
        dprintf(STDERR_FILENO, "\nfuzz target %s: input %s", current.target, current.file);
    else
        dprintf(STDERR_FILENO, "\nfuzz target %s: mutated input %ld of QUOIT_TEST_SEED=%llu", current.target, current.number,
                (unsigned long long)current.seed);
    dprintf(STDERR_FILENO, ", %zu bytes%s%s\n", current.length, kept ? ", left in " : "", kept ? path : "");
}

static void died(int number)
{
    tell_current();
    signal(number, SIG_DFL);
    raise(number);
}

/* Sanitizers end the program in their own way. */
void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));

static void watch_deaths(void)
{
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        if (!__sanitizer_set_death_callback || signals[i] == SIGABRT || signals[i] == SIGALRM) signal(signals[i], died);
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(tell_current);
}

static void try_current(const target_t *target)
{
    uint8_t *exact = fuzz_copy(current.bytes, current.length);
    alarm(120); /* an input that takes so long hangs */
    target->one(exact, current.length);
    alarm(0);
    free(exact);
}

/* ------------------------------------------------------------------ corpus */

static bool read_sample(const char *path)
{
    FILE *file = fopen(path, "re");
    if (!file || sample_count == FILES_CAPACITY) {
        fprintf(stderr, "%s: cannot be read, or is one too many\n", path);
        if (file) fclose(file);
        return false;
    }
    current.length = fread(current.bytes, 1, INPUT_CAPACITY, file);
    fclose(file);
    samples[sample_count++] = (sample_t){fuzz_copy(current.bytes, current.length), current.length};
    return true;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

/* Plays each file as it is. False when one cannot be read. */
static bool play(const target_t *target, const char *path)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        struct dirent **entries;
        int count = scandir(path, &entries, NULL, by_name);
        bool good = count >= 0;
        for (int i = 0; i < count; i++) {
            char file[PATH_CAPACITY];
            snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
            if (entries[i]->d_name[0] != '.') good = play(target, file) && good;
            free(entries[i]);
        }
        if (count >= 0) free(entries);
        return good;
    }
    current.file = path;
    current.number = -1;
    if (!read_sample(path)) return false;
    try_current(target);
    return true;
}

/* ------------------------------------------------------------------ mutation */

static uint64_t state;

static uint64_t draw(uint64_t below) /* splitmix64 */
{
    uint64_t value = state += 0x9e3779b97f4a7c15u;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
    value ^= value >> 31;
    return below ? value % below : value;
}

static void put_number(void)
{
    static const uint64_t interesting[] = {0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 4095, 4096, 65535, 65536, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX,
                                           UINT64_C(1) << 31, UINT64_C(1) << 32, UINT64_C(1) << 56, UINT64_C(1) << 63};
    size_t width = (size_t)1 << draw(4), at = draw(current.length);
    uint64_t value = interesting[draw(sizeof interesting / sizeof *interesting)] + (draw(3) == 0 ? draw(3) - 1 : 0);
    if (draw(4) == 0) value = draw(0);
    for (size_t i = 0; i < width && at + i < current.length; i++) current.bytes[at + i] = (uint8_t)(value >> (8 * i));
}

static void cut(void)
{
    size_t at = draw(current.length), count = 1 + draw(draw(2) ? 8 : current.length - at);
    if (count > current.length - at) count = current.length - at;
    memmove(current.bytes + at, current.bytes + at + count, current.length - at - count);
    current.length -= count;
}

/* A piece of any sample, put into the input or over its bytes. */
static void mix_in(bool over)
{
    const sample_t *other = &samples[draw((uint64_t)sample_count)];
    size_t at = draw(current.length + 1), from = draw(other->length + 1), count = draw(other->length - from + 1);
    if (draw(2)) count = count % 64;
    if (over) {
        if (count > current.length - at) count = current.length - at;
    } else {
        if (count > INPUT_CAPACITY - current.length) count = INPUT_CAPACITY - current.length;
        memmove(current.bytes + at + count, current.bytes + at, current.length - at);
        current.length += count;
    }
    memcpy(current.bytes + at, other->bytes + from, count);
}

static void mutate(void)
{
    const sample_t *base = &samples[draw((uint64_t)sample_count)];
    memcpy(current.bytes, base->bytes, base->length);
    current.length = base->length;
    for (uint64_t steps = 1 + draw(6); steps > 0; steps--) {
        uint64_t kind = current.length ? draw(7) : 6;
        switch (kind) {
        case 0: current.bytes[draw(current.length)] ^= (uint8_t)(1u << draw(8)); break;
        case 1: current.bytes[draw(current.length)] = (uint8_t)draw(256); break;
        case 2:
        case 3: put_number(); break;
        case 4: cut(); break;
        default: mix_in(kind == 5); break;
        }
    }
}

static int run(const target_t *target, int count, char **paths)
{
    const char *text = getenv("QUOIT_TEST_SEED"), *longer = getenv("QUOIT_TEST_LONG");
    long mutated = longer && *longer && strcmp(longer, "0") != 0 ? MUTATED_LONG : MUTATED;
    struct stat info;
    bool folder = count == 1 && stat(paths[0], &info) == 0 && S_ISDIR(info.st_mode), good = true;
    current.target = target->name;
    current.seed = text ? strtoull(text, NULL, 0) : 20240611;
    watch_deaths();
    for (int i = 0; i < count; i++) good = play(target, paths[i]) && good;
    if (sample_count == 0) {
        fprintf(stderr, "%s has no input\n", count ? paths[0] : target->name);
        return 1;
    }
    state = current.seed;
    for (current.number = 0; folder && current.number < mutated; current.number++) {
        mutate();
        try_current(target);
    }
    printf("fuzz target %s: %d inputs, %ld mutated ones, seed %llu\n", target->name, sample_count, folder ? mutated : 0,
           (unsigned long long)current.seed);
    while (sample_count > 0) free(samples[--sample_count].bytes);
    return good ? 0 : 1;
}

/* ------------------------------------------------------------------ seeds */

static char seed_folder[PATH_CAPACITY / 2];

void fuzz_seed(const char *name, const void *bytes, size_t length)
{
    char path[PATH_CAPACITY];
    snprintf(path, sizeof path, "%s/%s", seed_folder, name);
    FILE *file = fopen(path, "we");
    fuzz_check(file && fwrite(bytes, 1, length, file) == length);
    fclose(file);
}

static int write_seeds(const char *folder)
{
    for (int i = 0; i < TARGET_COUNT; i++) {
        snprintf(seed_folder, sizeof seed_folder, "%s/%s", folder, targets[i].name);
        mkdir(seed_folder, 0777);
        targets[i].seeds();
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (int i = 0; i < TARGET_COUNT; i++) printf("%s %s\n", targets[i].name, targets[i].files);
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "--seeds") == 0) return write_seeds(argv[2]);
    for (int i = 0; argc >= 3 && i < TARGET_COUNT; i++)
        if (strcmp(argv[1], targets[i].name) == 0) return run(&targets[i], argc - 2, argv + 2);
    fprintf(stderr, "usage: test_fuzz TARGET FOLDER|FILE... | --seeds FOLDER | --list\n");
    return 2;
}
