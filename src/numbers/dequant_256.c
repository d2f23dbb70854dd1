/* dequant_256.c - dequantizes the types with blocks of 256: groups of 16 or 32 whose scales are quantized
 * too. Products and sums have the order of the PyPI package gguf (see dequant_32.c). */
#include "numbers/blocks.h"
#include "numbers/dequant.h"

void block_k_scales(const uint8_t packed[12], uint8_t scale[8], uint8_t min[8]) {
    for (int i = 0; i < 4; i++) {
        const uint8_t d = packed[i], m = packed[4 + i], md = packed[8 + i];
        scale[i] = d & 63;
        scale[4 + i] = (uint8_t)((md & 15) | (d >> 2 & 0x30));
        min[i] = m & 63;
        min[4 + i] = (uint8_t)(md >> 4 | (m >> 2 & 0x30));
    }
}

void block_q3_k_scales(const uint8_t packed[12], int8_t scale[16]) {
    for (int i = 0; i < 16; i++) {
        const int low = packed[i & 7] >> (i < 8 ? 0 : 4) & 15;
        const int high = packed[8 + (i & 3)] >> (i / 4 * 2) & 3;
        scale[i] = (int8_t)((low | high << 4) - 32);
    }
}

void block_iq4_xs_scales(const block_iq4_xs *b, int8_t scale[8]) {
    const int high = block_u16(b->scales_h);
    for (int i = 0; i < 8; i++)
        scale[i] = (int8_t)(((b->scales_l[i / 2] >> (i & 1) * 4 & 15) | (high >> 2 * i & 3) << 4) - 32);
}

/* Q2_K and Q3_K: byte 32 * c + l holds 2 bits each of elements 128 * c + 32 * s + l for s = 0..3. */

void dequantize_q2_k(const void *blocks, float *out, int64_t n) {
    const block_q2_k *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256) {
        const float d = block_half(b->d), dmin = block_half(b->dmin);
        for (int g = 0; g < 16; g++) {
            const float dl = d * (float)(b->scales[g] & 15), ml = dmin * (float)(b->scales[g] >> 4);
            const uint8_t *q = b->qs + g / 8 * 32 + g % 2 * 16;
            const int shift = g % 8 / 2 * 2;
            for (int l = 0; l < 16; l++)
                out[16 * g + l] = dl * (float)(q[l] >> shift & 3) - ml;
        }
    }
}

void dequantize_q3_k(const void *blocks, float *out, int64_t n) {
    const block_q3_k *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256) {
        const float d = block_half(b->d);
        int8_t scale[16];
        block_q3_k_scales(b->scales, scale);
        for (int g = 0; g < 16; g++) {
            const float dl = d * (float)scale[g];
            const uint8_t *q = b->qs + g / 8 * 32 + g % 2 * 16, *h = b->hmask + g % 2 * 16;
            const int shift = g % 8 / 2 * 2, bit = g / 2;
            for (int l = 0; l < 16; l++) /* 4 is subtracted unless the bit is set */
                out[16 * g + l] = dl * (float)((q[l] >> shift & 3) - ((h[l] >> bit & 1) ? 0 : 4));
        }
    }
}

void dequantize_q4_k(const void *blocks, float *out, int64_t n) {
    const block_q4_k *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256) {
        const float d = block_half(b->d), dmin = block_half(b->dmin);
        uint8_t scale[8], min[8];
        block_k_scales(b->scales, scale, min);
        for (int g = 0; g < 8; g++) {
            const float dl = d * (float)scale[g], ml = dmin * (float)min[g];
            const uint8_t *q = b->qs + g / 2 * 32;
            const int shift = g % 2 * 4;
            for (int l = 0; l < 32; l++)
                out[32 * g + l] = dl * (float)(q[l] >> shift & 15) - ml;
        }
    }
}

void dequantize_q5_k(const void *blocks, float *out, int64_t n) {
    const block_q5_k *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256) {
        const float d = block_half(b->d), dmin = block_half(b->dmin);
        uint8_t scale[8], min[8];
        block_k_scales(b->scales, scale, min);
        for (int g = 0; g < 8; g++) {
            const float dl = d * (float)scale[g], ml = dmin * (float)min[g];
            const uint8_t *q = b->qs + g / 2 * 32;
            const int shift = g % 2 * 4;
            for (int l = 0; l < 32; l++)
                out[32 * g + l] = dl * (float)((q[l] >> shift & 15) | (b->qh[l] >> g & 1) << 4) - ml;
        }
    }
}

/* Byte 64 * c + l of ql: elements 128 * c + l (low) and 128 * c + 64 + l (high); byte 32 * c + l of qh:
 * elements 128 * c + 32 * s + l for s = 0..3. */
void dequantize_q6_k(const void *blocks, float *out, int64_t n) {
    const block_q6_k *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256) {
        const float d = block_half(b->d);
        for (int g = 0; g < 16; g++) {
            const float dl = d * (float)b->scales[g];
            const int c = g / 8, in_half = g % 8;
            const uint8_t *low = b->ql + c * 64 + in_half % 4 * 16, *high = b->qh + c * 32 + in_half % 2 * 16;
            const int low_shift = in_half / 4 * 4, high_shift = in_half / 2 * 2;
            for (int l = 0; l < 16; l++)
                out[16 * g + l] =
                    dl * (float)(((low[l] >> low_shift & 15) | (high[l] >> high_shift & 3) << 4) - 32);
        }
    }
}

void dequantize_iq4_xs(const void *blocks, float *out, int64_t n) {
    const block_iq4_xs *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256) {
        const float d = block_half(b->d);
        int8_t scale[8];
        block_iq4_xs_scales(b, scale);
        for (int g = 0; g < 8; g++) {
            const float dl = d * (float)scale[g];
            const uint8_t *q = b->qs + 16 * g;
            for (int l = 0; l < 16; l++) {
                out[32 * g + l] = dl * (float)iq4_values[q[l] & 15];
                out[32 * g + 16 + l] = dl * (float)iq4_values[q[l] >> 4];
            }
        }
    }
}

/* Writes digit `at` of each of n bytes: a byte is the fraction 0.d0d1d2... in base 3, times 256 and rounded
 * up. */
static void digits(const uint8_t *bytes, int n, int at, uint8_t *codes) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (int i = 0; i < n; i++)
        codes[i] = (uint8_t)((uint8_t)(bytes[i] * power[at]) * 3 >> 8);
}

void block_tq1_0_codes(const block_tq1_0 *b, uint8_t *codes) {
    for (int i = 0; i < 5; i++) {
        digits(b->qs, 32, i, codes + 32 * i);
        digits(b->qs + 32, 16, i, codes + 160 + 16 * i);
    }
    for (int i = 0; i < 4; i++)
        digits(b->qh, 4, i, codes + 240 + 4 * i);
}

void dequantize_tq1_0(const void *blocks, float *out, int64_t n) {
    const block_tq1_0 *b = blocks;
    uint8_t codes[256];
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256) {
        const float d = block_half(b->d);
        block_tq1_0_codes(b, codes);
        for (int j = 0; j < 256; j++)
            out[j] = d * (float)(codes[j] - 1);
    }
}

void dequantize_tq2_0(const void *blocks, float *out, int64_t n) {
    const block_tq2_0 *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256) {
        const float d = block_half(b->d);
        for (int j = 0; j < 256; j++)
            out[j] = d * (float)((b->qs[j / 128 * 32 + j % 32] >> j % 128 / 32 * 2 & 3) - 1);
    }
}
