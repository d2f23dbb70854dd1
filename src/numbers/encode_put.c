/* encode_put.c - writes the bytes of each block type, the inverse of dequant_32.c and dequant_256.c. */
#include "numbers/blocks.h"
#include "numbers/encode.h"

#include <string.h>

static void put_u16(uint8_t *p, uint16_t v) {
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

/* Levels to unsigned codes: level - from. */
static void to_codes(const encode_block *b, int n, int from, uint8_t *codes) {
    for (int i = 0; i < n; i++)
        codes[i] = (uint8_t)(b->level[i] - from);
}

static void put_nibbles(uint8_t *qs, const uint8_t *q, int half) {
    for (int i = 0; i < half; i++)
        qs[i] = (uint8_t)((q[i] & 15) | (q[i + half] & 15) << 4);
}

static void put_fifth_bits(uint8_t qh[4], const uint8_t *q) {
    memset(qh, 0, 4);
    for (int i = 0; i < 32; i++)
        qh[i / 8] |= (uint8_t)((q[i] >> 4 & 1) << i % 8);
}

static void put_32(const encode_shape *s, const encode_block *b, void *block) {
    uint8_t q[32];
    to_codes(b, 32, s->low, q);
    put_u16(block, b->d);
    switch (s->type) {
    case TYPE_Q4_1: put_u16(((block_q4_1 *)block)->m, b->dmin); break;
    case TYPE_Q5_1: put_u16(((block_q5_1 *)block)->m, b->dmin); break;
    default: break;
    }
    if (s->type == TYPE_Q5_0)
        put_fifth_bits(((block_q5_0 *)block)->qh, q);
    if (s->type == TYPE_Q5_1)
        put_fifth_bits(((block_q5_1 *)block)->qh, q);
    if (s->type == TYPE_Q8_0)
        memcpy(((block_q8_0 *)block)->qs, b->level, 32);
    else
        put_nibbles((uint8_t *)block + type_get(s->type)->block_bytes - 16, q, 16);
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

static void put_q2_k(const encode_block *b, const uint8_t *q, block_q2_k *out) {
    for (int g = 0; g < 16; g++)
        out->scales[g] = (uint8_t)(b->sub[g] | b->sub_min[g] << 4);
    put_u16(out->d, b->d);
    put_u16(out->dmin, b->dmin);
    put_pairs(out->qs, q);
}

static void put_q3_k(const encode_block *b, const uint8_t *q, block_q3_k *out) {
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

static void put_q4_k(const encode_block *b, const uint8_t *q, block_q4_k *out) {
    put_u16(out->d, b->d);
    put_u16(out->dmin, b->dmin);
    put_k_scales(b, out->scales);
    for (int c = 0; c < 4; c++)
        put_nibbles(out->qs + 32 * c, q + 64 * c, 32);
}

static void put_q5_k(const encode_block *b, const uint8_t *q, block_q5_k *out) {
    put_u16(out->d, b->d);
    put_u16(out->dmin, b->dmin);
    put_k_scales(b, out->scales);
    memset(out->qh, 0, sizeof out->qh);
    for (int i = 0; i < 256; i++)
        out->qh[i % 32] |= (uint8_t)((q[i] >> 4 & 1) << i / 32);
    for (int c = 0; c < 4; c++)
        put_nibbles(out->qs + 32 * c, q + 64 * c, 32);
}

static void put_q6_k(const encode_block *b, const uint8_t *q, block_q6_k *out) {
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

static void put_iq4_xs(const encode_block *b, const uint8_t *q, block_iq4_xs *out) {
    unsigned high = 0;
    put_u16(out->d, b->d);
    memset(out->scales_l, 0, sizeof out->scales_l);
    for (int g = 0; g < 8; g++) {
        const unsigned code = (unsigned)(b->sub[g] + 32);
        out->scales_l[g / 2] |= (uint8_t)((code & 15) << (g & 1) * 4);
        high |= code >> 4 << 2 * g;
        put_nibbles(out->qs + 16 * g, q + 32 * g, 16);
    }
    put_u16(out->scales_h, (uint16_t)high);
}

/* nibble's own blocks of 64. */
static void put_64(const encode_shape *s, const encode_block *b, block_n3g64 *out) {
    put_u16(out->d, b->d);
    put_u16(out->m, b->dmin);
    for (int l = 0; l < 16; l++)
        out->qs[l] = (uint8_t)((b->level[l] & 3) | (b->level[l + 16] & 3) << 2 | (b->level[l + 32] & 3) << 4 |
                               (b->level[l + 48] & 3) << 6);
    if (s->type != TYPE_N3G64)
        return;
    memset(out->qh, 0, sizeof out->qh);
    for (int i = 0; i < 64; i++)
        out->qh[i / 8] |= (uint8_t)((b->level[i] >> 2 & 1) << i % 8);
}

static void put_n4(const encode_shape *s, const encode_block *b, block_n4 *out) {
    uint8_t q[128] = {0};
    to_codes(b, s->elems, s->low, q);
    put_u16(out->d, b->d);
    out->zero = (uint8_t)b->dmin;
    for (int i = 0; i < s->elems; i += 32)
        put_nibbles(out->qs + i / 2, q + i, 16);
}

void encode_put(const encode_shape *s, const encode_block *b, void *block) {
    uint8_t q[ENCODE_MAX];
    if (s->zero) {
        put_n4(s, b, block);
        return;
    }
    if (s->elems == 32) {
        put_32(s, b, block);
        return;
    }
    if (s->elems == 64) {
        put_64(s, b, block);
        return;
    }
    to_codes(b, 256, s->low, q);
    switch (s->type) {
    case TYPE_Q2_K: put_q2_k(b, q, block); break;
    case TYPE_Q3_K: put_q3_k(b, q, block); break;
    case TYPE_Q4_K: put_q4_k(b, q, block); break;
    case TYPE_Q5_K: put_q5_k(b, q, block); break;
    case TYPE_Q6_K: put_q6_k(b, q, block); break;
    default: put_iq4_xs(b, q, block); break;
    }
}
