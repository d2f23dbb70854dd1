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

void dequantize_f64(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++) {
        double d;
        memcpy(&d, p + 8 * i, sizeof d);
        out[i] = (float)d;
    }
}

void dequantize_i32(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++) {
        int32_t v;
        memcpy(&v, p + 4 * i, sizeof v);
        out[i] = (float)v;
    }
}

void dequantize_i64(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++) {
        int64_t v;
        memcpy(&v, p + 8 * i, sizeof v);
        out[i] = (float)v;
    }
}
