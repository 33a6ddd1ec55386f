/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying: see copy.h. A streamed copy has a head up to the destination's first whole line, lines, and a tail; only the lines are streamed, with the
 * widest stores that the processor has. aarch64 has no non-temporal stores worth using.
 */
#include "base/copy.h"

#include "base/cpu.h"
#include "base/settings.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LINE = 64, CACHE_SHARE = 8 /* copy_pays_past: this part of the last cache */ };

/* `to` begins at a line; their stores may be seen late. */
typedef void lines_fn(unsigned char *to, const unsigned char *from, size_t lines);

typedef struct way {
    const char *isa;
    lines_fn *lines; /* NULL: memcpy does all */
} way_t;

#if defined(__x86_64__)
/* Several lines are loaded before they are stored: their misses overlap. */
__attribute__((target("avx512f"))) static void lines_avx512(unsigned char *to, const unsigned char *from, size_t lines)
{
    for (; lines >= 4; lines -= 4, to += 4 * LINE, from += 4 * LINE) {
        __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + LINE), c = _mm512_loadu_si512(from + 2 * LINE), d = _mm512_loadu_si512(from + 3 * LINE);
        _mm512_stream_si512((__m512i *)(void *)to, a);
        _mm512_stream_si512((__m512i *)(void *)(to + LINE), b);
        _mm512_stream_si512((__m512i *)(void *)(to + 2 * LINE), c);
        _mm512_stream_si512((__m512i *)(void *)(to + 3 * LINE), d);
    }
    for (; lines > 0; lines--, to += LINE, from += LINE) _mm512_stream_si512((__m512i *)(void *)to, _mm512_loadu_si512(from));
}

__attribute__((target("avx2"))) static void lines_avx2(unsigned char *to, const unsigned char *from, size_t lines)
{
    __m256i *out = (__m256i *)(void *)to;
    const __m256i *in = (const __m256i *)(const void *)from;
    for (; lines >= 2; lines -= 2, out += 4, in += 4) {
        __m256i a = _mm256_loadu_si256(in), b = _mm256_loadu_si256(in + 1), c = _mm256_loadu_si256(in + 2), d = _mm256_loadu_si256(in + 3);
        _mm256_stream_si256(out, a);
        _mm256_stream_si256(out + 1, b);
        _mm256_stream_si256(out + 2, c);
        _mm256_stream_si256(out + 3, d);
    }
    for (; lines > 0; lines--, out += 2, in += 2) {
        _mm256_stream_si256(out, _mm256_loadu_si256(in));
        _mm256_stream_si256(out + 1, _mm256_loadu_si256(in + 1));
    }
}

static void lines_sse2(unsigned char *to, const unsigned char *from, size_t lines)
{
    __m128i *out = (__m128i *)(void *)to;
    const __m128i *in = (const __m128i *)(const void *)from;
    for (; lines > 0; lines--, out += 4, in += 4) {
        __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
        _mm_stream_si128(out, a);
        _mm_stream_si128(out + 1, b);
        _mm_stream_si128(out + 2, c);
        _mm_stream_si128(out + 3, d);
    }
}

static inline void fence(void) { _mm_sfence(); }
#else
static inline void fence(void) {}
#endif

/* Best first; "plain" is last and always there. */
static const way_t ways[] = {
#if defined(__x86_64__)
    {"avx512", lines_avx512}, {"avx2", lines_avx2}, {"sse2", lines_sse2},
#endif
    {"plain", NULL},
};
enum { WAYS = sizeof ways / sizeof *ways };

static const way_t *chosen = &ways[WAYS - 1];
static size_t pays_past;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool is_usable(const way_t *way)
{
#if defined(__x86_64__)
    if (strcmp(way->isa, "avx512") == 0) return __builtin_cpu_supports("avx512f");
    if (strcmp(way->isa, "avx2") == 0) return __builtin_cpu_supports("avx2");
#endif
    (void)way;
    return true;
}

/* The setting is one of the kernels' (scheduler/reduce), which warn of what cannot be: "scalar" streams nothing, and what is not here gives the best. */
static void choose(void)
{
    const char *wanted = setting_string(SETTING_ISA);
    pays_past = cpu_cache_size() / CACHE_SHARE;
    if (strcmp(wanted, "scalar") == 0) return;
    int first = 0;
    for (int i = 0; i < WAYS; i++)
        if (strcmp(ways[i].isa, wanted) == 0 && is_usable(&ways[i])) first = i;
    while (!is_usable(&ways[first])) first++;
    chosen = &ways[first];
}

static const way_t *choice(void)
{
    pthread_once(&once, choose);
    return chosen;
}

static void copy_streamed(const way_t *way, unsigned char *to, const unsigned char *from, size_t bytes)
{
    if (bytes == 0) return; /* there may be no addresses */
    size_t head = (size_t)(-(uintptr_t)to & (LINE - 1));
    if (!way->lines || bytes < head + LINE) {
        memcpy(to, from, bytes);
        return;
    }
    size_t lines = (bytes - head) / LINE, done = head + lines * LINE;
    memcpy(to, from, head);
    way->lines(to + head, from + head, lines);
    memcpy(to + done, from + done, bytes - done);
    fence();
}

void copy_bytes(void *destination, const void *source, size_t bytes, bool stream)
{
    if (stream) copy_streamed(choice(), destination, source, bytes);
    else if (bytes > 0) memcpy(destination, source, bytes);
}

size_t copy_pays_past(void)
{
    (void)choice();
    return pays_past;
}

const char *copy_isa(void) { return choice()->isa; }

bool copy_bytes_with(const char *isa, void *destination, const void *source, size_t bytes)
{
    for (int i = 0; i < WAYS; i++) {
        if (strcmp(ways[i].isa, isa) != 0 || !is_usable(&ways[i])) continue;
        copy_streamed(&ways[i], destination, source, bytes);
        return true;
    }
    return false;
}
