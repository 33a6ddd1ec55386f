/* SPDX-License-Identifier: Apache-2.0 */
/** Reduction kernels of 64-byte vectors: AVX-512 F, BW, VL and DQ. See kernel.inc. */
#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define VBYTES 64
#define ISA_TABLE kernel_avx512
#define ISA_NAME "avx512"

typedef uint8_t vec __attribute__((vector_size(64)));

static inline void store_whole(unsigned char *to, vec value, bool stream)
{
    if (stream) _mm512_stream_si512((__m512i *)to, (__m512i)value);
    else _mm512_storeu_si512(to, (__m512i)value);
}

static inline void store_half(unsigned char *to, __m256i value, bool stream)
{
    if (stream) _mm256_stream_si256((__m256i *)to, value);
    else _mm256_storeu_si256((__m256i *)to, value);
}

static inline void store_fence(void) { _mm_sfence(); }
static inline vec load_16(const unsigned char *from) { return (vec)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from)); }
static inline vec load_8(const unsigned char *from) { return (vec)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from)); }
static inline vec load_f16(const unsigned char *from) { return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from)); }

static inline void store_f16(unsigned char *to, vec value, bool stream)
{
    store_half(to, _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), stream);
}

static inline void store_16(unsigned char *to, vec codes, bool stream) { store_half(to, _mm512_cvtepi32_epi16((__m512i)codes), stream); }

static inline void store_8(unsigned char *to, vec codes, bool stream)
{
    __m128i quarter = _mm512_cvtepi32_epi8((__m512i)codes);
    if (stream) _mm_stream_si128((__m128i *)to, quarter);
    else _mm_storeu_si128((__m128i *)to, quarter);
}

#include "scheduler/reduce/kernel.inc"
