/* dequant_float.c - converts the float types to f32. Files hold them little-endian and possibly unaligned. */
#include "numbers/blocks.h"
#include "numbers/dequant.h"

#include <string.h>

void dequantize_f32(const void *blocks, float *out, int64_t n) {
    memcpy(out, blocks, (size_t)n * sizeof *out);
}

void dequantize_f16(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        out[i] = block_half(p + 2 * i);
}

void dequantize_bf16(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_to_float(block_u16(p + 2 * i));
}

/* The "fn" variant that safetensors means by F8_E4M3: bias 7, no infinities, 0x7f and 0xff are NaN. */
static inline float e4m3_to_float(uint8_t v) {
    const uint32_t sign = (uint32_t)(v & 0x80) << 24, magnitude = v & 0x7f;
    const float small = (float)magnitude * 0x1p-9f; /* a subnormal value */
    uint32_t bits;
    float f;
    memcpy(&bits, &small, sizeof bits);
    bits = magnitude < 8 ? bits : (magnitude << 20) + (120u << 23); /* the exponent's bias: from 7 to 127 */
    bits = magnitude == 0x7f ? 0x7fc00000u : bits;
    bits |= sign;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void dequantize_f8_e4m3(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        out[i] = e4m3_to_float(p[i]);
}

/* The upper byte of a half. */
void dequantize_f8_e5m2(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        out[i] = half_to_float((uint16_t)(p[i] << 8));
}

/* Numbers that C has, in any alignment. */
#define PLAIN(name, number)                                                                                  \
    void dequantize_##name(const void *blocks, float *out, int64_t n) {                                      \
        const uint8_t *p = blocks;                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                                    \
            number x;                                                                                        \
            memcpy(&x, p + (int64_t)sizeof x * i, sizeof x);                                                 \
            out[i] = (float)x;                                                                               \
        }                                                                                                    \
    }
PLAIN(f64, double)
PLAIN(i32, int32_t)
PLAIN(i64, int64_t)
