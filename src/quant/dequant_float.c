/* dequant_float.c - the float types to f32. Files hold them little-endian and perhaps unaligned. */
#include "quant/blocks.h"
#include "quant/dequant.h"

#include <math.h>
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
static float e4m3_to_float(uint8_t v) {
    const int exponent = v >> 3 & 15, mantissa = v & 7;
    float f;
    if ((v & 0x7f) == 0x7f)
        f = NAN;
    else if (exponent == 0)
        f = (float)mantissa * 0x1p-9f;
    else
        f = ldexpf((float)(8 + mantissa), exponent - 10);
    return v & 0x80 ? -f : f;
}

void dequantize_f8_e4m3(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        out[i] = e4m3_to_float(p[i]);
}

void dequantize_f64(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++) {
        double d;
        memcpy(&d, p + 8 * i, sizeof d);
        out[i] = (float)d;
    }
}
