/* iq.c - the IQ types with grids: 256 weights, chosen 4 or 8 at a time from a list of vectors (grids.h), with
 * signs and scales beside them. They are read into codes and scales, which dequantizer and packer share:
 *     w = d * scale of the group * entry of the code * unit
 * The entries of a code are a shared table of the packed order (pack_table), its unit is tile_table_unit
 * (tile.h). A block has its members at the offsets below; bits that index a grid are cut to its size, so
 * every block is valid. */
#include "numbers/types/type.h"

#include "numbers/grids.h"
#include "numbers/tile.h"

typedef struct iq_block {
    uint16_t d;        /* a half */
    uint8_t scale[16]; /* of each group, odd */
    uint8_t code[256];
} iq_block;

typedef void iq_read(const uint8_t *block, iq_block *out);

/* ---- eight weights ---- */

/* Magnitudes of 2 bits, and in the third bit the sign. */
static void put_2(uint8_t *code, uint16_t grid, uint8_t signs) {
    for (int i = 0; i < 8; i++)
        code[i] = (uint8_t)((grid >> 2 * i & 3) | (signs >> i & 1) << 2);
}

/* Magnitudes of 3 bits from two entries, and in the fourth bit the sign. */
static void put_3(uint8_t *code, const uint16_t grid[2], uint8_t signs) {
    for (int i = 0; i < 8; i++)
        code[i] = (uint8_t)((grid[i / 4] >> i % 4 * 4 & 7) | (signs >> i & 1) << 3);
}

/* Seven signs; the number of set bits of all eight is even. */
static uint8_t eight_signs(uint32_t seven) {
    const uint32_t s = seven & 127;
    return (uint8_t)(s | (uint32_t)__builtin_parity(s) << 7);
}

static uint32_t u32_at(const uint8_t *p) {
    return block_u16(p) | (uint32_t)block_u16(p + 2) << 16;
}

/* Groups of 32 have scales of 4 bits in a word, above four times seven signs. */
static uint8_t odd(uint32_t scale) {
    return (uint8_t)(2 * scale + 1);
}

/* Scales of 4 bits, the lower ones first. */
static void nibble_scales(const uint8_t *scales, int n, uint8_t *out) {
    for (int g = 0; g < n; g++)
        out[g] = odd(scales[g / 2] >> g % 2 * 4 & 15);
}

static void split_iq2_xxs(const uint8_t *b, iq_block *out) {
    out->d = block_u16(b);
    for (int g = 0; g < 8; g++) {
        const uint8_t *index = b + 2 + 8 * g;
        const uint32_t word = u32_at(index + 4);
        out->scale[g] = odd(word >> 28);
        for (int i = 0; i < 4; i++)
            put_2(out->code + 32 * g + 8 * i, grid_iq2_xxs[index[i]], eight_signs(word >> 7 * i));
    }
}

static void split_iq2_xs(const uint8_t *b, iq_block *out) {
    out->d = block_u16(b);
    nibble_scales(b + 66, 16, out->scale);
    for (int i = 0; i < 32; i++) {
        const uint16_t u = block_u16(b + 2 + 2 * i);
        put_2(out->code + 8 * i, grid_iq2_xs[u & 511], eight_signs(u >> 9));
    }
}

static void split_iq2_s(const uint8_t *b, iq_block *out) {
    const uint8_t *low = b + 2, *signs = b + 34, *high = b + 66;
    out->d = block_u16(b);
    nibble_scales(b + 74, 16, out->scale);
    for (int i = 0; i < 32; i++)
        put_2(out->code + 8 * i, grid_iq2_s[low[i] | (high[i / 4] >> i % 4 * 2 & 3) << 8], signs[i]);
}

static void split_iq3_xxs(const uint8_t *b, iq_block *out) {
    out->d = block_u16(b);
    for (int g = 0; g < 8; g++) {
        const uint8_t *index = b + 2 + 8 * g;
        const uint32_t word = u32_at(b + 66 + 4 * g);
        out->scale[g] = odd(word >> 28);
        for (int i = 0; i < 4; i++) {
            const uint16_t grid[2] = {grid_iq3_xxs[index[2 * i]], grid_iq3_xxs[index[2 * i + 1]]};
            put_3(out->code + 32 * g + 8 * i, grid, eight_signs(word >> 7 * i));
        }
    }
}

static void split_iq3_s(const uint8_t *b, iq_block *out) {
    const uint8_t *low = b + 2, *high = b + 66, *signs = b + 74;
    out->d = block_u16(b);
    nibble_scales(b + 106, 8, out->scale);
    for (int i = 0; i < 32; i++) {
        uint16_t grid[2];
        for (int j = 0; j < 2; j++)
            grid[j] = grid_iq3_s[low[2 * i + j] | (high[i / 4] >> (i % 4 * 2 + j) & 1) << 8];
        put_3(out->code + 8 * i, grid, signs[i]);
    }
}

static void split_iq1_s(const uint8_t *b, iq_block *out) {
    const uint8_t *low = b + 2, *high = b + 34;
    out->d = block_u16(b);
    for (int g = 0; g < 8; g++) {
        const uint16_t u = block_u16(high + 2 * g);
        out->scale[g] = odd(u >> 12 & 7);
        for (int i = 0; i < 4; i++)
            put_2(out->code + 32 * g + 8 * i, grid_iq1[low[4 * g + i] | (u >> 3 * i & 7) << 8],
                  u & 0x8000 ? 255 : 0);
    }
}

/* The half d has four bits in the top of each of four words of scales. */
static void split_iq1_m(const uint8_t *b, iq_block *out) {
    const uint8_t *low = b, *high = b + 32, *scales = b + 48;
    out->d = 0;
    for (int i = 0; i < 4; i++)
        out->d |= (uint16_t)(block_u16(scales + 2 * i) >> 12 << 4 * i);
    for (int g = 0; g < 16; g++)
        out->scale[g] = odd(block_u16(scales + g / 4 * 2) >> g % 4 * 3 & 7);
    for (int i = 0; i < 32; i++) {
        const int u = high[i / 2] >> i % 2 * 4;
        put_2(out->code + 8 * i, grid_iq1[low[i] | (u & 7) << 8], u & 8 ? 255 : 0);
    }
}

static void dequantize(iq_read *read, int block_bytes, int n_group, int table, const void *blocks, float *out,
                       int64_t n) {
    const uint8_t *b = blocks, *entry = tile_table(table);
    const float unit = tile_table_unit(table);
    iq_block of;
    for (int64_t at = 0; at < n; at += 256, b += block_bytes) {
        read(b, &of);
        for (int i = 0; i < 256; i++) {
            const int group = i * n_group / 256;
            const float scale = half_to_float(of.d) * (float)of.scale[group] * unit;
            out[at + i] = scale * (float)(entry[of.code[i]] - 128);
        }
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

#define GRID(id, name, bytes, number, bits_, n_group, table_)                                                \
    static void dequantize_##name(const void *blocks, float *out, int64_t n) {                               \
        dequantize(split_##name, bytes, n_group, PACK_TABLE_##table_, blocks, out, n);                       \
    }                                                                                                        \
    static void read_##name(const void *blocks, int n, uint8_t *codes, const pack_sink *s) {                 \
        (void)n;                                                                                             \
        read_grid(split_##name, n_group, blocks, codes, s);                                                  \
    }                                                                                                        \
    const type_info type_##id = {BLOCKS(#name, 256, bytes, number), .dequantize = dequantize_##name,         \
                                 .pack = READER(read_##name, .bits = bits_, .group = 256 / (n_group),        \
                                                .scale = PACK_SCALE_SUPER, .table = PACK_TABLE_##table_)}
GRID(IQ1_S, iq1_s, 50, 19, 3, 8, IQ1);
GRID(IQ1_M, iq1_m, 56, 29, 3, 16, IQ1);
GRID(IQ2_XXS, iq2_xxs, 66, 16, 3, 8, IQ2);
GRID(IQ2_XS, iq2_xs, 74, 17, 3, 16, IQ2);
GRID(IQ2_S, iq2_s, 82, 22, 3, 16, IQ2);
GRID(IQ3_XXS, iq3_xxs, 98, 18, 4, 8, IQ3);
GRID(IQ3_S, iq3_s, 110, 21, 4, 8, ODD);
