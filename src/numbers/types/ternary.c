/* ternary.c - TQ1_0 and TQ2_0: values -1, 0 and 1. */
#include "numbers/types/type.h"

/* 256 values -1, 0 or 1 and one scale. tq1: five of them are the digits of a byte in base 3, the last 16 four
 * to a byte; tq2: two bits of element 128 c + 32 s + l at bits 2 s of qs[32 c + l]. */
typedef struct block_tq1_0 {
    uint8_t qs[48], qh[4], d[2];
} block_tq1_0;
typedef struct block_tq2_0 {
    uint8_t qs[64], d[2];
} block_tq2_0;

/* Writes digit `at` of each of n bytes: a byte is the fraction 0.d0d1d2... in base 3, times 256 and rounded
 * up. */
static void digits(const uint8_t *bytes, int n, int at, uint8_t *codes) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    for (int i = 0; i < n; i++)
        codes[i] = (uint8_t)((uint8_t)(bytes[i] * power[at]) * 3 >> 8);
}

/* The values of a block plus one: 0...2. */
static void tq1_0_codes(const block_tq1_0 *b, uint8_t *codes) {
    for (int i = 0; i < 5; i++) {
        digits(b->qs, 32, i, codes + 32 * i);
        digits(b->qs + 32, 16, i, codes + 160 + 16 * i);
    }
    for (int i = 0; i < 4; i++)
        digits(b->qh, 4, i, codes + 240 + 4 * i);
}

static void dequantize_tq1_0(const void *blocks, float *out, int64_t n) {
    const block_tq1_0 *b = blocks;
    uint8_t codes[256];
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256) {
        const float d = block_half(b->d);
        tq1_0_codes(b, codes);
        for (int j = 0; j < 256; j++)
            out[j] = d * (float)(codes[j] - 1);
    }
}

static void dequantize_tq2_0(const void *blocks, float *out, int64_t n) {
    const block_tq2_0 *b = blocks;
    for (int64_t i = 0; i < n / 256; i++, b++, out += 256) {
        const float d = block_half(b->d);
        for (int j = 0; j < 256; j++)
            out[j] = d * (float)((b->qs[j / 128 * 32 + j % 32] >> j % 128 / 32 * 2 & 3) - 1);
    }
}

/* A block's scale stands for both of its packed groups. */
static void ternary_scales(const pack_sink *s, const uint8_t d[2]) {
    s->wide[0] = s->wide[s->step] = block_u16(d);
}

static void read_tq1_0(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_tq1_0 *b = blocks;
    (void)n;
    ternary_scales(s, b->d);
    tq1_0_codes(b, codes);
    for (int i = 0; i < 256; i++)
        codes[i]++;
}

/* Two bits may also say 2, which the packed codes need a third bit for. */
static void read_tq2_0(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_tq2_0 *b = blocks;
    (void)n;
    ternary_scales(s, b->d);
    for (int c = 0; c < 2; c++)
        for (int f = 0; f < 4; f++)
            for (int l = 0; l < 32; l++)
                codes[128 * c + 32 * f + l] = (uint8_t)((b->qs[32 * c + l] >> 2 * f & 3) + 3);
}

const type_info type_TQ1_0 = {BLOCKS("tq1_0", 256, sizeof(block_tq1_0), 34), .dequantize = dequantize_tq1_0,
                              .pack = READER(read_tq1_0, .bits = 2, .group = 128)};
const type_info type_TQ2_0 = {BLOCKS("tq2_0", 256, sizeof(block_tq2_0), 35), .dequantize = dequantize_tq2_0,
                              .pack = READER(read_tq2_0, .bits = 3, .group = 128)};
