/* k.c - Q2_K to Q6_K: blocks of 256 in groups of 16 or 32 whose scales are quantized too. */
#include "numbers/types/type.h"

/* Eight 6-bit scales and minima, each 0...63, of 12 bytes. */
static void unpack_scales(const uint8_t *packed, uint8_t *scale, uint8_t *min) {
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

/* Q2_K and Q3_K: byte 32 * c + l holds 2 bits each of elements 128 * c + 32 * s + l for s = 0..3. */

static void dequantize_q2_k(const void *blocks, float *out, int64_t n) {
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

static void dequantize_q3_k(const void *blocks, float *out, int64_t n) {
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

/* at: d, dmin and scales of a block; high: fifth bits, NULL: there are none. */
static inline void dequantize_45(const uint8_t *at, const uint8_t *high, const uint8_t *low, float *out) {
    const float d = block_half(at), dmin = block_half(at + 2);
    uint8_t scale[8], min[8];
    unpack_scales(at + 4, scale, min);
    for (int g = 0; g < 8; g++) {
        const float dl = d * (float)scale[g], ml = dmin * (float)min[g];
        const uint8_t *q = low + g / 2 * 32;
        for (int l = 0; l < 32; l++)
            out[32 * g + l] =
                dl * (float)((q[l] >> g % 2 * 4 & 15) | (high ? high[l] >> g & 1 : 0) << 4) - ml;
    }
}

static void dequantize_q4_k(const void *blocks, float *out, int64_t n) {
    const block_q4_k *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256)
        dequantize_45(b->d, NULL, b->qs, out);
}

static void dequantize_q5_k(const void *blocks, float *out, int64_t n) {
    const block_q5_k *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256)
        dequantize_45(b->d, b->qh, b->qs, out);
}

/* Byte 64 * c + l of ql: elements 128 * c + l (low) and 128 * c + 64 + l (high); byte 32 * c + l of qh:
 * elements 128 * c + 32 * s + l for s = 0..3. */
static void dequantize_q6_k(const void *blocks, float *out, int64_t n) {
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

static void read_q2_k(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q2_k *b = blocks;
    (void)n;
    super_scales(s, b->d, b->dmin);
    for (int g = 0; g < 16; g++) {
        s->narrow[g * s->step] = b->scales[g] & 15;
        s->narrow[g * s->step + PACK_PANEL] = b->scales[g] >> 4;
    }
    for (int c = 0; c < 2; c++)
        for (int f = 0; f < 4; f++)
            for (int l = 0; l < 32; l++)
                codes[128 * c + 32 * f + l] = b->qs[32 * c + l] >> 2 * f & 3;
}

static void read_q3_k(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q3_k *b = blocks;
    int8_t scale[16];
    (void)n;
    super_scales(s, b->d, NULL);
    block_q3_k_scales(b->scales, scale);
    for (int g = 0; g < 16; g++)
        s->narrow[g * s->step] = (uint8_t)scale[g];
    for (int c = 0; c < 2; c++)
        for (int f = 0; f < 4; f++)
            for (int l = 0; l < 32; l++)
                codes[128 * c + 32 * f + l] =
                    (uint8_t)((b->qs[32 * c + l] >> 2 * f & 3) | (b->hmask[l] >> (4 * c + f) & 1) << 2);
}

static void k_scales(const uint8_t packed[12], const pack_sink *s) {
    uint8_t scale[8], min[8];
    unpack_scales(packed, scale, min);
    for (int g = 0; g < 8; g++) {
        s->narrow[g * s->step] = scale[g];
        s->narrow[g * s->step + PACK_PANEL] = min[g];
    }
}

static void read_q4_k(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q4_k *b = blocks;
    (void)n;
    super_scales(s, b->d, b->dmin);
    k_scales(b->scales, s);
    for (int c = 0; c < 4; c++)
        for (int l = 0; l < 32; l++) {
            codes[64 * c + l] = b->qs[32 * c + l] & 15;
            codes[64 * c + 32 + l] = b->qs[32 * c + l] >> 4;
        }
}

static void read_q5_k(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q5_k *b = blocks;
    (void)n;
    super_scales(s, b->d, b->dmin);
    k_scales(b->scales, s);
    for (int c = 0; c < 4; c++)
        for (int l = 0; l < 32; l++) {
            codes[64 * c + l] = (uint8_t)((b->qs[32 * c + l] & 15) | (b->qh[l] >> 2 * c & 1) << 4);
            codes[64 * c + 32 + l] = (uint8_t)(b->qs[32 * c + l] >> 4 | (b->qh[l] >> (2 * c + 1) & 1) << 4);
        }
}

static void read_q6_k(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q6_k *b = blocks;
    (void)n;
    super_scales(s, b->d, NULL);
    for (int g = 0; g < 16; g++)
        s->narrow[g * s->step] = (uint8_t)b->scales[g];
    for (int c = 0; c < 2; c++)
        for (int l = 0; l < 32; l++) {
            const uint8_t low = b->ql[64 * c + l], next = b->ql[64 * c + 32 + l], high = b->qh[32 * c + l];
            uint8_t *out = codes + 128 * c + l;
            out[0] = (uint8_t)((low & 15) | (high & 3) << 4);
            out[32] = (uint8_t)((next & 15) | (high >> 2 & 3) << 4);
            out[64] = (uint8_t)(low >> 4 | (high >> 4 & 3) << 4);
            out[96] = (uint8_t)(next >> 4 | (high >> 6) << 4);
        }
}

/* Stores 2 bits of each of 128 codes in the order of Q2_K and Q3_K: byte l holds codes l, l + 32, l + 64, l
 * + 96. */
static void put_pairs(uint8_t qs[64], const uint8_t *q) {
    for (int c = 0; c < 2; c++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *at = q + 128 * c + l;
            qs[32 * c + l] =
                (uint8_t)((at[0] & 3) | (at[32] & 3) << 2 | (at[64] & 3) << 4 | (at[96] & 3) << 6);
        }
}

static void put_q2_k(const encode_block *b, const uint8_t *q, void *block) {
    block_q2_k *out = block;
    for (int g = 0; g < 16; g++)
        out->scales[g] = (uint8_t)(b->sub[g] | b->sub_min[g] << 4);
    put_u16(out->d, b->d);
    put_u16(out->dmin, b->dmin);
    put_pairs(out->qs, q);
}

static void put_q3_k(const encode_block *b, const uint8_t *q, void *block) {
    block_q3_k *out = block;
    memset(out->hmask, 0, sizeof out->hmask);
    memset(out->scales, 0, sizeof out->scales);
    put_u16(out->d, b->d);
    put_pairs(out->qs, q);
    for (int i = 0; i < 256; i++)
        out->hmask[i % 32] |= (uint8_t)((q[i] >> 2 & 1) << i / 32);
    for (int g = 0; g < 16; g++) {
        const int code = b->sub[g] + 32;
        out->scales[g & 7] |= (uint8_t)((code & 15) << (g < 8 ? 0 : 4));
        out->scales[8 + (g & 3)] |= (uint8_t)(code >> 4 << g / 4 * 2);
    }
}

static void put_k_scales(const encode_block *b, uint8_t scales[12]) {
    for (int i = 0; i < 4; i++) {
        scales[i] = (uint8_t)((b->sub[i] & 63) | (b->sub[4 + i] >> 4 & 3) << 6);
        scales[4 + i] = (uint8_t)((b->sub_min[i] & 63) | (b->sub_min[4 + i] >> 4 & 3) << 6);
        scales[8 + i] = (uint8_t)((b->sub[4 + i] & 15) | (b->sub_min[4 + i] & 15) << 4);
    }
}

static void put_q4_k(const encode_block *b, const uint8_t *q, void *block) {
    block_q4_k *out = block;
    put_u16(out->d, b->d);
    put_u16(out->dmin, b->dmin);
    put_k_scales(b, out->scales);
    for (int c = 0; c < 4; c++)
        put_nibbles(out->qs + 32 * c, q + 64 * c, 32);
}

static void put_q5_k(const encode_block *b, const uint8_t *q, void *block) {
    block_q5_k *out = block;
    put_u16(out->d, b->d);
    put_u16(out->dmin, b->dmin);
    put_k_scales(b, out->scales);
    memset(out->qh, 0, sizeof out->qh);
    for (int i = 0; i < 256; i++)
        out->qh[i % 32] |= (uint8_t)((q[i] >> 4 & 1) << i / 32);
    for (int c = 0; c < 4; c++)
        put_nibbles(out->qs + 32 * c, q + 64 * c, 32);
}

static void put_q6_k(const encode_block *b, const uint8_t *q, void *block) {
    block_q6_k *out = block;
    put_u16(out->d, b->d);
    memcpy(out->scales, b->sub, 16);
    for (int c = 0; c < 2; c++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *at = q + 128 * c + l;
            out->ql[64 * c + l] = (uint8_t)((at[0] & 15) | (at[64] & 15) << 4);
            out->ql[64 * c + 32 + l] = (uint8_t)((at[32] & 15) | (at[96] & 15) << 4);
            out->qh[32 * c + l] =
                (uint8_t)(at[0] >> 4 | at[32] >> 4 << 2 | at[64] >> 4 << 4 | at[96] >> 4 << 6);
        }
}

const type_info type_Q2_K = {
    BLOCKS("q2_k", 256, sizeof(block_q2_k), 10), .dequantize = dequantize_q2_k,
    .pack = READER(read_q2_k, .bits = 2, .group = 16, .asym = true, .scale = PACK_SCALE_SUPER),
    .shape = SHAPE(Q2_K, put_q2_k, 256, 16, 0, 3, .asym = true, .sub_max = 15, .sub_min_max = 15)};
const type_info type_Q3_K = {BLOCKS("q3_k", 256, sizeof(block_q3_k), 11), .dequantize = dequantize_q3_k,
                             .pack = READER(read_q3_k, .bits = 3, .group = 16, .scale = PACK_SCALE_SUPER),
                             .shape = SHAPE(Q3_K, put_q3_k, 256, 16, -4, 3, .sub_low = -32, .sub_max = 31)};
const type_info type_Q4_K = {
    BLOCKS("q4_k", 256, sizeof(block_q4_k), 12), .dequantize = dequantize_q4_k,
    .pack = READER(read_q4_k, .bits = 4, .group = 32, .asym = true, .scale = PACK_SCALE_SUPER),
    .shape = SHAPE(Q4_K, put_q4_k, 256, 32, 0, 15, .asym = true, .sub_max = 63, .sub_min_max = 63)};
const type_info type_Q5_K = {
    BLOCKS("q5_k", 256, sizeof(block_q5_k), 13), .dequantize = dequantize_q5_k,
    .pack = READER(read_q5_k, .bits = 5, .group = 32, .asym = true, .scale = PACK_SCALE_SUPER),
    .shape = SHAPE(Q5_K, put_q5_k, 256, 32, 0, 31, .asym = true, .sub_max = 63, .sub_min_max = 63)};
const type_info type_Q6_K = {BLOCKS("q6_k", 256, sizeof(block_q6_k), 14), .dequantize = dequantize_q6_k,
                             .pack = READER(read_q6_k, .bits = 6, .group = 16, .scale = PACK_SCALE_SUPER),
                             .shape =
                                 SHAPE(Q6_K, put_q6_k, 256, 16, -32, 31, .sub_low = -128, .sub_max = 127)};
