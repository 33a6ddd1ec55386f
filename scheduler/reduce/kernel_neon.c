/* SPDX-License-Identifier: Apache-2.0 */
/** Reduction kernels of 16-byte vectors: Advanced SIMD of aarch64, which has no non-temporal stores worth using. See kernel.inc. */
#include <arm_neon.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define VBYTES 16
#define ISA_TABLE kernel_neon
#define ISA_NAME "neon"

typedef uint8_t vec __attribute__((vector_size(16)));

static inline void store_whole(unsigned char *to, vec value, bool stream)
{
    (void)stream;
    memcpy(to, &value, sizeof value);
}

static inline void store_half(unsigned char *to, uint16x4_t value, bool stream)
{
    (void)stream;
    memcpy(to, &value, sizeof value);
}

static inline uint16x4_t load_half(const unsigned char *from)
{
    uint16x4_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static inline void store_fence(void) {}
static inline vec load_16(const unsigned char *from) { return (vec)vmovl_u16(load_half(from)); }
static inline vec load_f16(const unsigned char *from) { return (vec)vcvt_f32_f16(vreinterpret_f16_u16(load_half(from))); }

static inline vec load_8(const unsigned char *from)
{
    uint32_t codes;
    memcpy(&codes, from, sizeof codes);
    return (vec)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(codes))));
}

static inline void store_f16(unsigned char *to, vec value, bool stream)
{
    store_half(to, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)value)), stream);
}

static inline void store_16(unsigned char *to, vec codes, bool stream) { store_half(to, vmovn_u32((uint32x4_t)codes), stream); }

static inline void store_8(unsigned char *to, vec codes, bool stream)
{
    uint16x4_t half = vmovn_u32((uint32x4_t)codes);
    uint32_t quarter = vget_lane_u32(vreinterpret_u32_u8(vmovn_u16(vcombine_u16(half, half))), 0);
    (void)stream;
    memcpy(to, &quarter, sizeof quarter);
}

#include "scheduler/reduce/kernel.inc"
