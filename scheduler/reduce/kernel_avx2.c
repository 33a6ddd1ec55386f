/* SPDX-License-Identifier: Apache-2.0 */
/** Reduction kernels of 32-byte vectors: AVX2 and F16C. See kernel.inc. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define VBYTES 32
#define ISA_TABLE kernel_avx2
#define ISA_NAME "avx2"

typedef uint8_t vec __attribute__((vector_size(32)));

static inline void store_whole(unsigned char *to, vec value, bool stream)
{
    if (stream) _mm256_stream_si256((__m256i *)to, (__m256i)value);
    else _mm256_storeu_si256((__m256i *)to, (__m256i)value);
}

static inline void store_half(unsigned char *to, __m128i value, bool stream)
{
    if (stream) _mm_stream_si128((__m128i *)to, value);
    else _mm_storeu_si128((__m128i *)to, value);
}

static inline void store_fence(void) { _mm_sfence(); }
static inline vec load_16(const unsigned char *from) { return (vec)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)); }
static inline vec load_8(const unsigned char *from) { return (vec)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)); }
static inline vec load_f16(const unsigned char *from) { return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from)); }

static inline void store_f16(unsigned char *to, vec value, bool stream)
{
    store_half(to, _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), stream);
}

static inline __m128i pack_16(vec codes)
{
    return _mm_packus_epi32(_mm256_castsi256_si128((__m256i)codes), _mm256_extracti128_si256((__m256i)codes, 1));
}

static inline void store_16(unsigned char *to, vec codes, bool stream) { store_half(to, pack_16(codes), stream); }

static inline void store_8(unsigned char *to, vec codes, bool stream)
{
    __m128i half = pack_16(codes);
    long long quarter = _mm_cvtsi128_si64(_mm_packus_epi16(half, half));
    if (stream) _mm_stream_si64((long long *)to, quarter);
    else __builtin_memcpy(to, &quarter, sizeof quarter);
}

#include "scheduler/reduce/kernel.inc"
