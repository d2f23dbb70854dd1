/* iq4.c - IQ4_NL and IQ4_XS: codes of 4 bits that stand for the same 16 values. */
#include "numbers/types/type.h"

const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static void dequantize_iq4_nl(const void *blocks, float *out, int64_t n) {
    const block_q4_0 *b = blocks;
    for (int64_t i = 0; i < n / 32; i++, b++, out += 32) {
        const float d = block_half(b->d);
        for (int j = 0; j < 16; j++) {
            out[j] = d * (float)iq4_values[b->qs[j] & 15];
            out[j + 16] = d * (float)iq4_values[b->qs[j] >> 4];
        }
    }
}

static void read_iq4_nl(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_q4_0 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->wide[i * s->step] = block_u16(b[i].d);
        nibbles_32(b[i].qs, codes + 32 * i);
    }
}

static void put_iq4_nl(const encode_block *b, const uint8_t *q, void *block) {
    block_q4_0 *to = block;
    put_u16(to->d, b->d);
    put_nibbles(to->qs, q, 16);
}

void block_iq4_xs_scales(const block_iq4_xs *b, int8_t scale[8]) {
    const int high = block_u16(b->scales_h);
    for (int i = 0; i < 8; i++)
        scale[i] = (int8_t)(((b->scales_l[i / 2] >> (i & 1) * 4 & 15) | (high >> 2 * i & 3) << 4) - 32);
}

static void dequantize_iq4_xs(const void *blocks, float *out, int64_t n) {
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

static void read_iq4_xs(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_iq4_xs *b = blocks;
    int8_t scale[8];
    (void)n;
    super_scales(s, b->d, NULL);
    block_iq4_xs_scales(b, scale);
    for (int g = 0; g < 8; g++) {
        s->narrow[g * s->step] = (uint8_t)scale[g];
        nibbles_32(b->qs + 16 * g, codes + 32 * g);
    }
}

static void put_iq4_xs(const encode_block *b, const uint8_t *q, void *block) {
    block_iq4_xs *out = block;
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

const type_info type_IQ4_NL = {BLOCKS("iq4_nl", 32, sizeof(block_q4_0), 20), .dequantize = dequantize_iq4_nl,
                               .pack = READER(read_iq4_nl, .bits = 4, .group = 32, .table = PACK_TABLE_IQ4NL),
                               .shape = SHAPE(IQ4_NL, put_iq4_nl, 32, 32, 0, 15, .table = iq4_values)};
const type_info type_IQ4_XS = {
    BLOCKS("iq4_xs", 256, sizeof(block_iq4_xs), 23), .dequantize = dequantize_iq4_xs,
    .pack = READER(read_iq4_xs, .bits = 4, .group = 32, .scale = PACK_SCALE_SUPER, .table = PACK_TABLE_IQ4NL),
    .shape = SHAPE(IQ4_XS, put_iq4_xs, 256, 32, 0, 15, .sub_low = -32, .sub_max = 31, .table = iq4_values)};
