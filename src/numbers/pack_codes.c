/* pack_codes.c - one reader for each block type of GGUF. The loops have fixed lengths and no branches, so
 * that compilers vectorize them. */
#include "numbers/pack_codes.h"

#include "base/num.h"
#include "numbers/blocks.h"
#include "numbers/iq.h"

#include <stddef.h>
#include <string.h>

static void nibbles_32(const uint8_t *restrict qs, uint8_t *restrict codes) {
    for (int j = 0; j < 16; j++) {
        codes[j] = qs[j] & 15;
        codes[j + 16] = qs[j] >> 4;
    }
}

/* Adds bit i of `bits` to code i as its fifth bit. Eight codes at once: the byte is copied to eight lanes,
 * lane i keeps bit i, and adding 0x7f carries a set bit into the lane's top bit. */
static void fifth_bits(const uint8_t *bits, uint8_t *codes, int n_byte) {
    for (int i = 0; i < n_byte; i++) {
        uint64_t lanes = bits[i] * 0x0101010101010101u & 0x8040201008040201u, eight;
        lanes = ((lanes + 0x7f7f7f7f7f7f7f7fu) & 0x8080808080808080u) >> 3;
        memcpy(&eight, codes + 8 * i, 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
        lanes = __builtin_bswap64(lanes);
#endif
        eight |= lanes;
        memcpy(codes + 8 * i, &eight, 8);
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

static void two_bits_64(const uint8_t *restrict qs, uint8_t *restrict codes) {
    for (int f = 0; f < 4; f++)
        for (int l = 0; l < 16; l++)
            codes[16 * f + l] = qs[l] >> 2 * f & 3;
}

static void read_n2g64(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_n2g64 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->wide[i * s->step] = block_u16(b[i].d);
        s->wide[i * s->step + PACK_PANEL] = block_u16(b[i].m);
        two_bits_64(b[i].qs, codes + 64 * i);
    }
}

static void read_n3g64(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_n3g64 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->wide[i * s->step] = block_u16(b[i].d);
        s->wide[i * s->step + PACK_PANEL] = block_u16(b[i].m);
        two_bits_64(b[i].qs, codes + 64 * i);
        for (int j = 0; j < 64; j++)
            codes[64 * i + j] |= (uint8_t)((b[i].qh[j / 8] >> j % 8 & 1) << 2);
    }
}

/* Writes the scales in the form of PACK_SCALE_ZERO. */
static void read_n4(const void *blocks, int n, uint8_t *codes, const pack_sink *s, int group) {
    const uint8_t *at = blocks;
    for (int i = 0; i < n; i++, at += offsetof(block_n4, qs) + (size_t)group / 2) {
        const block_n4 *b = (const void *)at;
        s->wide[i * 3 * PACK_PANEL / 2] = block_u16(b->d);
        s->narrow[i * 3 * PACK_PANEL + 2 * PACK_PANEL] = block_n4_zero(b);
        for (int j = 0; j < group; j += 32)
            nibbles_32(b->qs + j / 2, codes + i * group + j);
    }
}

/* Codes minus their zero points, plus 16. */
static void read_n4_wide(const void *blocks, int n, uint8_t *codes, const pack_sink *s, int group) {
    const uint8_t *at = blocks;
    for (int i = 0; i < n; i++, at += offsetof(block_n4, qs) + (size_t)group / 2) {
        const block_n4 *b = (const void *)at;
        s->wide[i * s->step] = block_u16(b->d);
        for (int j = 0; j < group; j += 32)
            nibbles_32(b->qs + j / 2, codes + i * group + j);
        for (int j = 0; j < group; j++)
            codes[i * group + j] = (uint8_t)(codes[i * group + j] + 16 - block_n4_zero(b));
    }
}

#define READ_N4(group)                                                                                       \
    static void read_n4g##group(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {             \
        read_n4(blocks, n, codes, s, group);                                                                 \
    }                                                                                                        \
    static void read_n4g##group##_wide(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {      \
        read_n4_wide(blocks, n, codes, s, group);                                                            \
    }
READ_N4(32)
READ_N4(64)
READ_N4(128)

/* Replaces codes by the entries of the row's codebook, as 8-bit codes: for kernels without table look-up. */
static void look_up(uint8_t *codes, int n, const uint8_t *entries) {
    for (int i = 0; i < n; i++)
        codes[i] = entries[codes[i]] ^ 0x80;
}

static void read_c3(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_c3 *b = blocks;
    (void)s;
    for (int i = 0; i < n; i++) {
        two_bits_64(b[i].qs, codes + 64 * i);
        for (int j = 0; j < 64; j++)
            codes[64 * i + j] |= (uint8_t)((b[i].qh[j / 8] >> j % 8 & 1) << 2);
    }
}

static void read_c3_wide(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    read_c3(blocks, n, codes, s);
    look_up(codes, 64 * n, s->head + 2);
}

static void read_c4(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_c4 *b = blocks;
    (void)s;
    for (int i = 0; i < n; i++)
        nibbles_32(b[i].qs, codes + 32 * i);
}

static void read_c4_wide(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    read_c4(blocks, n, codes, s);
    look_up(codes, 32 * n, s->head + 2);
}

static void read_mxfp4(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_mxfp4 *b = blocks;
    for (int i = 0; i < n; i++) {
        s->narrow[i * s->step] = b[i].e;
        nibbles_32(b[i].qs, codes + 32 * i);
    }
}

static void read_nvfp4(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_nvfp4 *b = blocks;
    for (int i = 0; i < n; i++)
        for (int g = 0; g < 4; g++, codes += 16) {
            s->wide[(4 * i + g) * s->step] = block_nvfp4_scale(b[i].scale[g]);
            for (int j = 0; j < 8; j++) {
                codes[j] = b[i].qs[g][j] & 15;
                codes[j + 8] = b[i].qs[g][j] >> 4;
            }
        }
}

/* The file's minimum is subtracted, the packed one is added, so its factor changes sign. */
static void super_scales(const pack_sink *s, const uint8_t d[2], const uint8_t dmin[2]) {
    s->wide[0] = block_u16(d);
    if (dmin)
        s->wide[PACK_PANEL] = block_u16(dmin) ^ 0x8000;
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
    block_k_scales(packed, scale, min);
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

static void read_grid(iq_read *read, int n_group, const void *block, uint8_t *codes, const pack_sink *s) {
    iq_block b;
    read(block, &b);
    s->wide[0] = b.d;
    for (int g = 0; g < n_group; g++)
        s->narrow[g * s->step] = b.scale[g];
    memcpy(codes, b.code, sizeof b.code);
}

#define READ_GRID(name, n_group)                                                                             \
    static void read_##name(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {                 \
        (void)n;                                                                                             \
        read_grid(iq_read_##name, n_group, blocks, codes, s);                                                \
    }
READ_GRID(iq1_s, 8)
READ_GRID(iq1_m, 16)
READ_GRID(iq2_xxs, 8)
READ_GRID(iq2_xs, 16)
READ_GRID(iq2_s, 16)
READ_GRID(iq3_xxs, 8)
READ_GRID(iq3_s, 8)

/* A block's scale stands for both of its packed groups. */
static void ternary_scales(const pack_sink *s, const uint8_t d[2]) {
    s->wide[0] = s->wide[s->step] = block_u16(d);
}

static void read_tq1_0(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {
    const block_tq1_0 *b = blocks;
    (void)n;
    ternary_scales(s, b->d);
    block_tq1_0_codes(b, codes);
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

#define FORMAT(type_, bits_, asym_, group_, scale_, table_)                                                  \
    {                                                                                                        \
        .layout = PACK_TILE, .type = type_, .bits = bits_, .asym = asym_, .group = group_,                   \
        .scale = PACK_SCALE_##scale_, .table = PACK_TABLE_##table_                                           \
    }
#define ROW(id, elems, bits, asym, group, scale, table, fn)                                                  \
    { TYPE_##id, FORMAT(TYPE_##id, bits, asym, group, scale, table), elems, fn }

/* Rows with codebooks: kept with the codebook, or looked up. */
#define BOOK(id, bits_, table_, of)                                                                          \
    {                                                                                                        \
        .layout = PACK_TILE, .type = TYPE_##id, .bits = bits_, .group = PACK_GROUP_ROW, .table = table_,     \
        .sparse = of                                                                                         \
    }
#define BOOKS(id, elems, bits, of, fn)                                                                       \
    {TYPE_##id, BOOK(id, bits, PACK_TABLE_BOOK, of), elems, fn}, {                                           \
        TYPE_##id, BOOK(id, 8, PACK_TABLE_NONE, of), elems, fn##_wide                                        \
    }

static const pack_reader readers[] = {
    ROW(Q4_0, 32, 4, 0, 32, F16, NONE, read_q4_0),
    ROW(Q4_1, 32, 4, 1, 32, F16, NONE, read_q4_1),
    ROW(Q5_0, 32, 5, 0, 32, F16, NONE, read_q5_0),
    ROW(Q5_1, 32, 5, 1, 32, F16, NONE, read_q5_1),
    ROW(Q8_0, 32, 8, 0, 32, F16, NONE, read_q8_0),
    ROW(Q2_K, 256, 2, 1, 16, SUPER, NONE, read_q2_k),
    ROW(Q3_K, 256, 3, 0, 16, SUPER, NONE, read_q3_k),
    ROW(Q4_K, 256, 4, 1, 32, SUPER, NONE, read_q4_k),
    ROW(Q5_K, 256, 5, 1, 32, SUPER, NONE, read_q5_k),
    ROW(Q6_K, 256, 6, 0, 16, SUPER, NONE, read_q6_k),
    ROW(IQ4_NL, 32, 4, 0, 32, F16, IQ4NL, read_q4_0),
    ROW(IQ4_XS, 256, 4, 0, 32, SUPER, IQ4NL, read_iq4_xs),
    ROW(IQ1_S, 256, 3, 0, 32, SUPER, IQ1, read_iq1_s),
    ROW(IQ1_M, 256, 3, 0, 16, SUPER, IQ1, read_iq1_m),
    ROW(IQ2_XXS, 256, 3, 0, 32, SUPER, IQ2, read_iq2_xxs),
    ROW(IQ2_XS, 256, 3, 0, 16, SUPER, IQ2, read_iq2_xs),
    ROW(IQ2_S, 256, 3, 0, 16, SUPER, IQ2, read_iq2_s),
    ROW(IQ3_XXS, 256, 4, 0, 32, SUPER, IQ3, read_iq3_xxs),
    ROW(IQ3_S, 256, 4, 0, 32, SUPER, ODD, read_iq3_s),
    ROW(TQ1_0, 256, 2, 0, 128, F16, NONE, read_tq1_0),
    ROW(TQ2_0, 256, 3, 0, 128, F16, NONE, read_tq2_0),
    ROW(N2G64, 64, 2, 1, 64, F16, NONE, read_n2g64),
    ROW(N3G64, 64, 3, 1, 64, F16, NONE, read_n3g64),
    ROW(N4G32, 32, 4, 1, 32, ZERO, NONE, read_n4g32),
    ROW(N4G64, 64, 4, 1, 64, ZERO, NONE, read_n4g64),
    ROW(N4G128, 128, 4, 1, 128, ZERO, NONE, read_n4g128),
    ROW(N4G32, 32, 5, 0, 32, F16, NONE, read_n4g32_wide),
    ROW(N4G64, 64, 5, 0, 64, F16, NONE, read_n4g64_wide),
    ROW(N4G128, 128, 5, 0, 128, F16, NONE, read_n4g128_wide),
    ROW(MXFP4, 32, 4, 0, 32, E8M0, MXFP4, read_mxfp4),
    ROW(NVFP4, 64, 4, 0, 16, F16, MXFP4, read_nvfp4),
    BOOKS(C3, 64, 3, 0, read_c3),
    BOOKS(C4, 32, 4, 0, read_c4),
    BOOKS(C3O45, 64, 3, 45, read_c3),
    BOOKS(C4O45, 32, 4, 45, read_c4),
    BOOKS(C3O100, 64, 3, 100, read_c3),
    BOOKS(C4O100, 32, 4, 100, read_c4),
};

const pack_reader *pack_reader_for(type_id file_type) {
    for (size_t i = 0; i < NUM_COUNT(readers); i++)
        if (readers[i].type == file_type)
            return &readers[i];
    return NULL;
}

const pack_reader *pack_reader_of(const pack_format *f) {
    for (size_t i = 0; i < NUM_COUNT(readers); i++)
        if (readers[i].type == f->type && readers[i].format.bits == f->bits)
            return &readers[i];
    return NULL;
}
