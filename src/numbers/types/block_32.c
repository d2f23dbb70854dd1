/* block_32.c - Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 with a half for the scale, and one for the
 * minimum. */
#include "numbers/types/type.h"

static uint32_t block_u32(const uint8_t p[4]) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void dequantize_q4_0(const void *blocks, float *out, int64_t n) {
    const block_q4_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_half(b->d);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)((b->qs[j] & 15) - 8);
            out[j + 16] = d * (float)((b->qs[j] >> 4) - 8);
        }
    }
}

static void dequantize_q4_1(const void *blocks, float *out, int64_t n) {
    const block_q4_1 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_half(b->d), m = block_half(b->m);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)(b->qs[j] & 15) + m;
            out[j + 16] = d * (float)(b->qs[j] >> 4) + m;
        }
    }
}

static void dequantize_q5_0(const void *blocks, float *out, int64_t n) {
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

static void dequantize_q5_1(const void *blocks, float *out, int64_t n) {
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

static void dequantize_q8_0(const void *blocks, float *out, int64_t n) {
    const block_q8_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_half(b->d);
        for (int j = 0; j < 32; j++)
            out[j] = (float)b->qs[j] * d;
    }
}

static void read_q4_0(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q4_0 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->wide[i * s->step] = block_u16(b[i].d);
        nibbles_32(b[i].qs, codes + 32 * i);
    }
}

static void read_q4_1(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q4_1 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->wide[i * s->step] = block_u16(b[i].d);
        s->wide[i * s->step + PACK_PANEL] = block_u16(b[i].m);
        nibbles_32(b[i].qs, codes + 32 * i);
    }
}

static void read_q5_0(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q5_0 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->wide[i * s->step] = block_u16(b[i].d);
        nibbles_32(b[i].qs, codes + 32 * i);
        fifth_bits(b[i].qh, codes + 32 * i, 4);
    }
}

static void read_q5_1(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q5_1 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->wide[i * s->step] = block_u16(b[i].d);
        s->wide[i * s->step + PACK_PANEL] = block_u16(b[i].m);
        nibbles_32(b[i].qs, codes + 32 * i);
        fifth_bits(b[i].qh, codes + 32 * i, 4);
    }
}

static void read_q8_0(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q8_0 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->wide[i * s->step] = block_u16(b[i].d);
        for (int j = 0; j < 32; j++)
            codes[32 * i + j] = (uint8_t)b[i].qs[j] ^ 0x80;
    }
}

static void put_q4_0(const encode_block *b, const uint8_t *q, void *block) {
    block_q4_0 *to = block;
    put_u16(to->d, b->d);
    put_nibbles(to->qs, q, 16);
}

static void put_q4_1(const encode_block *b, const uint8_t *q, void *block) {
    block_q4_1 *to = block;
    put_u16(to->d, b->d);
    put_u16(to->m, b->dmin);
    put_nibbles(to->qs, q, 16);
}

static void put_fifth_bits(uint8_t qh[4], const uint8_t *q) {
    memset(qh, 0, 4);
    for (int i = 0; i < 32; i++)
        qh[i / 8] |= (uint8_t)((q[i] >> 4 & 1) << i % 8);
}

static void put_q5_0(const encode_block *b, const uint8_t *q, void *block) {
    block_q5_0 *to = block;
    put_u16(to->d, b->d);
    put_fifth_bits(to->qh, q);
    put_nibbles(to->qs, q, 16);
}

static void put_q5_1(const encode_block *b, const uint8_t *q, void *block) {
    block_q5_1 *to = block;
    put_u16(to->d, b->d);
    put_u16(to->m, b->dmin);
    put_fifth_bits(to->qh, q);
    put_nibbles(to->qs, q, 16);
}

static void put_q8_0(const encode_block *b, const uint8_t *q, void *block) {
    block_q8_0 *to = block;
    (void)q;
    put_u16(to->d, b->d);
    memcpy(to->qs, b->level, sizeof to->qs);
}

const type_info type_Q4_0 = {BLOCKS("q4_0", 32, sizeof(block_q4_0), 2), .dequantize = dequantize_q4_0,
                             .pack = READER(read_q4_0, .bits = 4, .group = 32),
                             .shape = SHAPE(Q4_0, put_q4_0, 32, 32, -8, 7)};
const type_info type_Q4_1 = {BLOCKS("q4_1", 32, sizeof(block_q4_1), 3), .dequantize = dequantize_q4_1,
                             .pack = READER(read_q4_1, .bits = 4, .group = 32, .asym = true),
                             .shape = SHAPE(Q4_1, put_q4_1, 32, 32, 0, 15, .asym = true)};
const type_info type_Q5_0 = {BLOCKS("q5_0", 32, sizeof(block_q5_0), 6), .dequantize = dequantize_q5_0,
                             .pack = READER(read_q5_0, .bits = 5, .group = 32),
                             .shape = SHAPE(Q5_0, put_q5_0, 32, 32, -16, 15)};
const type_info type_Q5_1 = {BLOCKS("q5_1", 32, sizeof(block_q5_1), 7), .dequantize = dequantize_q5_1,
                             .pack = READER(read_q5_1, .bits = 5, .group = 32, .asym = true),
                             .shape = SHAPE(Q5_1, put_q5_1, 32, 32, 0, 31, .asym = true)};
const type_info type_Q8_0 = {BLOCKS("q8_0", 32, sizeof(block_q8_0), 8), .dequantize = dequantize_q8_0,
                             .pack = READER(read_q8_0, .bits = 8, .group = 32),
                             .shape = SHAPE(Q8_0, put_q8_0, 32, 32, -127, 127)};
