/* dequant_32.c - dequantizes the types with blocks of 32. Every product and sum has the order of the PyPI
 * package gguf, so that results are equal bit by bit; the build's -ffp-contract=off keeps compilers from
 * fusing them. */
#include "numbers/blocks.h"
#include "numbers/dequant.h"
#include "numbers/types.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static uint32_t block_u32(const uint8_t p[4]) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

void dequantize_q4_0(const void *blocks, float *out, int64_t n) {
    const block_q4_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_half(b->d);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)((b->qs[j] & 15) - 8);
            out[j + 16] = d * (float)((b->qs[j] >> 4) - 8);
        }
    }
}

void dequantize_q4_1(const void *blocks, float *out, int64_t n) {
    const block_q4_1 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_half(b->d), m = block_half(b->m);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)(b->qs[j] & 15) + m;
            out[j + 16] = d * (float)(b->qs[j] >> 4) + m;
        }
    }
}

void dequantize_q5_0(const void *blocks, float *out, int64_t n) {
    const block_q5_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_half(b->d);
        const uint32_t high = block_u32(b->qh);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)((int)((b->qs[j] & 15) | (high >> j & 1) << 4) - 16);
            out[j + 16] = d * (float)((int)(b->qs[j] >> 4 | (high >> (j + 16) & 1) << 4) - 16);
        }
    }
}

void dequantize_q5_1(const void *blocks, float *out, int64_t n) {
    const block_q5_1 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_half(b->d), m = block_half(b->m);
        const uint32_t high = block_u32(b->qh);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)((b->qs[j] & 15) | (high >> j & 1) << 4) + m;
            out[j + 16] = d * (float)(b->qs[j] >> 4 | (high >> (j + 16) & 1) << 4) + m;
        }
    }
}

void dequantize_q8_0(const void *blocks, float *out, int64_t n) {
    const block_q8_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_half(b->d);
        for (int j = 0; j < 32; j++)
            out[j] = (float)b->qs[j] * d;
    }
}

void dequantize_iq4_nl(const void *blocks, float *out, int64_t n) {
    const block_iq4_nl *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_half(b->d);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)iq4_values[b->qs[j] & 15];
            out[j + 16] = d * (float)iq4_values[b->qs[j] >> 4];
        }
    }
}

float block_mxfp4_scale(uint8_t e) {
    const uint32_t bits = e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

void dequantize_mxfp4(const void *blocks, float *out, int64_t n) {
    const block_mxfp4 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_mxfp4_scale(b->e);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)mxfp4_values[b->qs[j] & 15];
            out[j + 16] = d * (float)mxfp4_values[b->qs[j] >> 4];
        }
    }
}

/* nibble's own blocks of 64. */

void dequantize_n2g64(const void *blocks, float *out, int64_t n) {
    const block_n2g64 *b = blocks;
    for (int64_t i = 0; i < n / 64; i++, b++, out += 64) {
        const float d = block_half(b->d), m = block_half(b->m);
        for (int j = 0; j < 64; j++)
            out[j] = d * (float)(b->qs[j % 16] >> j / 16 * 2 & 3) + m;
    }
}

void dequantize_n3g64(const void *blocks, float *out, int64_t n) {
    const block_n3g64 *b = blocks;
    for (int64_t i = 0; i < n / 64; i++, b++, out += 64) {
        const float d = block_half(b->d), m = block_half(b->m);
        for (int j = 0; j < 64; j++)
            out[j] = d * (float)((b->qs[j % 16] >> j / 16 * 2 & 3) | (b->qh[j / 8] >> j % 8 & 1) << 2) + m;
    }
}

/* A group's scale times a code, and times its zero, are exact, and their sum is exact too. */
static void dequantize_n4(const void *blocks, float *out, int64_t n, int group) {
    const uint8_t *at = blocks;
    for (int64_t i = 0; i < n; i += group, at += offsetof(block_n4, qs) + (size_t)group / 2) {
        const block_n4 *b = (const void *)at;
        const float d = block_half(b->d), m = 0 - d * (float)block_n4_zero(b);
        for (int j = 0; j < group; j++, out++)
            *out = d * (float)(b->qs[j / 32 * 16 + j % 16] >> j % 32 / 16 * 4 & 15) + m;
    }
}

void dequantize_n4g32(const void *blocks, float *out, int64_t n) {
    dequantize_n4(blocks, out, n, 32);
}
void dequantize_n4g64(const void *blocks, float *out, int64_t n) {
    dequantize_n4(blocks, out, n, 64);
}
void dequantize_n4g128(const void *blocks, float *out, int64_t n) {
    dequantize_n4(blocks, out, n, 128);
}

uint16_t block_nvfp4_scale(uint8_t scale) {
    const int e = scale >> 3 & 15, m = scale & 7;
    if (scale == 127)
        return 0;
    return half_from_float(e ? ldexpf((float)(8 + m), e - 11) : (float)m * 0x1p-10f);
}

void dequantize_nvfp4(const void *blocks, float *out, int64_t n) {
    const block_nvfp4 *b = blocks;
    for (int64_t i = 0; i < n / 64; i++, b++)
        for (int g = 0; g < 4; g++, out += 16) {
            const float d = half_to_float(block_nvfp4_scale(b->scale[g]));
            for (int j = 0; j < 8; j++) {
                out[j] = d * (float)mxfp4_values[b->qs[g][j] & 15];
                out[j + 8] = d * (float)mxfp4_values[b->qs[g][j] >> 4];
            }
        }
}

/* nibble's own rows: an f16 scale and the codebook, then blocks. */

enum { BOOK = 2 /* offset of the entries */ };

void dequantize_c3(const void *row, float *out, int64_t n) {
    const uint8_t *head = row;
    const block_c3 *b = (const void *)(head + BOOK + 8);
    const float d = block_half(head);
    for (int64_t i = 0; i < n / 64; i++, b++, out += 64)
        for (int j = 0; j < 64; j++)
            out[j] = d *
                     (float)(int8_t)
                         head[BOOK + ((b->qs[j % 16] >> j / 16 * 2 & 3) | (b->qh[j / 8] >> j % 8 & 1) << 2)];
}

void dequantize_c4(const void *row, float *out, int64_t n) {
    const uint8_t *head = row;
    const block_c4 *b = (const void *)(head + BOOK + 16);
    const float d = block_half(head);
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32)
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)(int8_t)head[BOOK + (b->qs[j] & 15)];
            out[j + 16] = d * (float)(int8_t)head[BOOK + (b->qs[j] >> 4)];
        }
}

/* The same types with outliers after the blocks. */
#define DEQUANTIZE_SPARSE(name, id)                                                                          \
    void dequantize_##name(const void *row, float *out, int64_t n) {                                         \
        type_dequantize_part(TYPE_##id, row, n, 0, out, n);                                                  \
    }
DEQUANTIZE_SPARSE(c3o45, C3O45)
DEQUANTIZE_SPARSE(c4o45, C4O45)
DEQUANTIZE_SPARSE(c3o100, C3O100)
DEQUANTIZE_SPARSE(c4o100, C4O100)
