/* float.c - floats, which files hold little-endian and possibly unaligned, and plain
 * numbers. */
#include "numbers/types/type.h"

static void dequantize_f32(const void *blocks, float *out, int64_t n) {
    memcpy(out, blocks, (size_t)n * sizeof *out);
}

static void dequantize_f16(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        out[i] = block_half(p + 2 * i);
}

static void dequantize_bf16(const void *blocks, float *out, int64_t n) {
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

static void dequantize_f8_e4m3(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        out[i] = e4m3_to_float(p[i]);
}

/* The upper byte of a half. */
static void dequantize_f8_e5m2(const void *blocks, float *out, int64_t n) {
    const uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        out[i] = half_to_float((uint16_t)(p[i] << 8));
}

/* Numbers that C has, in any alignment. */
#define PLAIN(name, number)                                                                                  \
    static void dequantize_##name(const void *blocks, float *out, int64_t n) {                               \
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

static void quantize_f32(const float *in, void *blocks, int64_t n) {
    memcpy(blocks, in, (size_t)n * sizeof *in);
}

static void quantize_f16(const float *in, void *blocks, int64_t n) {
    uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        put_u16(p + 2 * i, half_from_float(in[i]));
}

static void quantize_bf16(const float *in, void *blocks, int64_t n) {
    uint8_t *p = blocks;
    for (int64_t i = 0; i < n; i++)
        put_u16(p + 2 * i, bf16_from_float(in[i]));
}

#define NUMBER(id, name_, bytes, gguf_, st_, ...)                                                            \
    const type_info type_##id = {BLOCKS(name_, 1, bytes, gguf_), .st = st_, __VA_ARGS__}
NUMBER(F32, "f32", 4, 0, "F32", .dequantize = dequantize_f32, .quantize = quantize_f32);
NUMBER(F16, "f16", 2, 1, "F16", .dequantize = dequantize_f16, .quantize = quantize_f16);
NUMBER(BF16, "bf16", 2, 30, "BF16", .dequantize = dequantize_bf16, .quantize = quantize_bf16);
NUMBER(F64, "f64", 8, 28, "F64", .dequantize = dequantize_f64);
NUMBER(F8_E4M3, "f8_e4m3", 1, -1, "F8_E4M3", .dequantize = dequantize_f8_e4m3);
NUMBER(F8_E5M2, "f8_e5m2", 1, -1, "F8_E5M2", .dequantize = dequantize_f8_e5m2);
/* Tables of small numbers, as vectors only. */
NUMBER(I32, "i32", 4, 26, "I32", .dequantize = dequantize_i32);
NUMBER(I64, "i64", 8, 27, "I64", .dequantize = dequantize_i64);

/* Listed and inspected only. */
NUMBER(I8, "i8", 1, 24, "I8");
NUMBER(I16, "i16", 2, 25, "I16");
NUMBER(U8, "u8", 1, -1, "U8");
NUMBER(F8_E8M0, "f8_e8m0", 1, -1, "F8_E8M0"); /* scales of packed matrices: 2^(byte - 127) */
NUMBER(BOOL, "bool", 1, -1, "BOOL");

/* Formats of KV caches (kernels/kv_layout.h); no file has them. */
const type_info type_KV8 = {BLOCKS("kv8", 32, 36, -1)}, type_KV8H = {BLOCKS("kv8h", 32, 36, -1)},
                type_KV4 = {BLOCKS("kv4", 32, 20, -1)}, type_KV4H = {BLOCKS("kv4h", 32, 20, -1)},
                type_KV4S = {BLOCKS("kv4s", 32, 20, -1)};
