/* pack_lines.h - packing by lines, written once for every instruction set.
 * A `vec` holds one dword of each of VEC_ROWS rows of a panel: VEC_ROWS / 16 of a tile's line. The rows are
 * converted to that form directly from the file's blocks (quads). All later steps, from a block's bits to a
 * tile's parts, are the same arithmetic on every row. A folder defines, before it includes this:
 *
 *   VEC_ROWS, vec                          8 or 16 rows; an unsigned dword each, with C's operators
 *   quads(rows, at, out)                   16 bytes that begin `at` bytes into each row: 4 lines
 *   put_halves(at, v) put_bytes(at, v)     the lowest 16 or 8 bits of each row, one after the other
 *   PACK_INLINE                            the attributes of a function here
 *
 * This file defines PACKERS, the initialisers of pack_isa's tile and chunk. */
#ifndef NIB_NUMBERS_PACK_LINES_H
#define NIB_NUMBERS_PACK_LINES_H

#include "numbers/blocks.h"
#include "numbers/pack_isa.h"
#include "numbers/tile.h"

#include <string.h>

enum { TILE_QUADS = TILE_K / 4, PARTS_OF_PANEL = PACK_PANEL / VEC_ROWS };

typedef const uint8_t *const *row_list;

#define EACH(byte) (0x01010101u * (byte))

PACK_INLINE void put_line(uint8_t *at, vec v) {
    memcpy(at, &v, sizeof v);
}

/* 32 bytes of each row: 8 lines. */
PACK_INLINE void eight_quads(row_list rows, size_t at, vec raw[8]) {
    quads(rows, at, raw);
    quads(rows, at + 16, raw + 4);
}

/* ---- a tile's lines to parts ---- */

/* Code bits [low, low + w) of 16 lines to the 2w lines of a part. */
PACK_INLINE void pack_part(const vec q[TILE_QUADS], int w, int low, uint8_t *out) {
    const uint32_t mask = EACH((1u << w) - 1);
    for (int l = 0; l < 2 * w; l++) {
        vec v = q[l] >> low & mask;
        for (int f = 1; f < 8 / w; f++)
            v |= (low >= f * w ? q[l + 2 * w * f] >> (low - f * w) : q[l + 2 * w * f] << (f * w - low)) &
                 mask << f * w;
        put_line(out + l * TILE_LINE, v);
    }
}

PACK_INLINE void pack_parts(const vec q[TILE_QUADS], const uint8_t *parts, int bits, uint8_t *out) {
    for (int low = bits; low > 0; parts++) {
        const int w = *parts;
        low -= w;
        if (w == 8)
            for (int l = 0; l < TILE_QUADS; l++)
                put_line(out + l * TILE_LINE, q[l]);
        else if (w == 4)
            pack_part(q, 4, low, out);
        else if (w == 2)
            pack_part(q, 2, low, out);
        else
            pack_part(q, 1, low, out);
        out += 2 * w * TILE_LINE;
    }
}

static void pack_tile(const pack_format *f, const uint8_t *codes, uint8_t *tile) {
    for (int half = 0; half < PARTS_OF_PANEL; half++) {
        const uint8_t *rows[VEC_ROWS];
        vec q[TILE_QUADS];
        for (int r = 0; r < VEC_ROWS; r++)
            rows[r] = codes + (half * VEC_ROWS + r) * PACK_CHUNK;
        for (int i = 0; i < 4; i++)
            quads(rows, 16 * (size_t)i, q + 4 * i);
        pack_parts(q, tile_parts(f), f->bits, tile + half * 4 * VEC_ROWS);
    }
}

/* ---- types with blocks of 32 ---- */

/* One block of each row to 8 lines of codes. */
typedef void (*unpack_fn)(row_list rows, size_t at, vec *q);

/* 16 bytes with two codes each: the low halves are the first 16. */
PACK_INLINE void unpack_nibbles(row_list rows, size_t at, vec *q) {
    vec raw[4];
    quads(rows, at, raw);
    for (int i = 0; i < 4; i++) {
        q[i] = raw[i] & EACH(15);
        q[i + 4] = raw[i] >> 4 & EACH(15);
    }
}

PACK_INLINE void unpack_q4_0(row_list rows, size_t at, vec *q) {
    unpack_nibbles(rows, at + offsetof(block_q4_0, qs), q);
}
PACK_INLINE void unpack_q4_1(row_list rows, size_t at, vec *q) {
    unpack_nibbles(rows, at + offsetof(block_q4_1, qs), q);
}
PACK_INLINE void unpack_mxfp4(row_list rows, size_t at, vec *q) {
    unpack_nibbles(rows, at + offsetof(block_mxfp4, qs), q);
}

/* The same with fifth bits, which are 32 consecutive bits. A multiplication spreads four of them to a byte
 * each; its partial products do not overlap. */
PACK_INLINE void unpack_fives(row_list rows, size_t fifth, size_t at, vec *q) {
    vec raw[4];
    quads(rows, fifth, raw); /* only 4 of these bytes are used; codes follow them, so reading 16 is safe */
    unpack_nibbles(rows, at, q);
    for (int i = 0; i < 8; i++)
        q[i] |= ((raw[0] >> 4 * i & 15) * 0x00204081u & EACH(1)) << 4;
}

PACK_INLINE void unpack_q5_0(row_list rows, size_t at, vec *q) {
    unpack_fives(rows, at + offsetof(block_q5_0, qh), at + offsetof(block_q5_0, qs), q);
}
PACK_INLINE void unpack_q5_1(row_list rows, size_t at, vec *q) {
    unpack_fives(rows, at + offsetof(block_q5_1, qh), at + offsetof(block_q5_1, qs), q);
}

PACK_INLINE void unpack_q8_0(row_list rows, size_t at, vec *q) {
    eight_quads(rows, at + offsetof(block_q8_0, qs), q);
    for (int i = 0; i < 8; i++)
        q[i] ^= EACH(0x80);
}

PACK_INLINE void tiles_32(row_list rows, size_t at, int n_block, uint8_t *tiles, unpack_fn unpack,
                          size_t block_bytes, int bits) {
    for (int i = 0; i < n_block; i += 2, at += 2 * block_bytes, tiles += 2 * bits * TILE_LINE)
        for (int half = 0; half < PARTS_OF_PANEL; half++) {
            vec q[TILE_QUADS];
            unpack(rows + half * VEC_ROWS, at, q);
            if (i + 1 < n_block)
                unpack(rows + half * VEC_ROWS, at + block_bytes, q + 8);
            else
                memset(q + 8, 0, 8 * sizeof *q);
            pack_parts(q, TILE_PART[bits], bits, tiles + half * 4 * VEC_ROWS);
        }
}

/* n halves (the scale, then the minimum) at the beginning of each block. */
PACK_INLINE void scales_32(row_list rows, size_t at, int n_block, uint8_t *scales, size_t block_bytes,
                           int n) {
    for (int i = 0; i < n_block; i++, at += block_bytes)
        for (int j = 0; j < n; j++, scales += 2 * PACK_PANEL)
            for (int r = 0; r < PACK_PANEL; r++)
                memcpy(scales + 2 * r, rows[r] + at + 2 * j, 2);
}

#define CHUNK_32(type, bits, n_half)                                                                         \
    static void chunk_##type(row_list rows, size_t at, int n_block, uint8_t *tiles, uint8_t *scales) {       \
        tiles_32(rows, at, n_block, tiles, unpack_##type, sizeof(block_##type), bits);                       \
        scales_32(rows, at, n_block, scales, sizeof(block_##type), n_half);                                  \
    }
CHUNK_32(q4_0, 4, 1)
CHUNK_32(q4_1, 4, 2)
CHUNK_32(q5_0, 5, 1)
CHUNK_32(q5_1, 5, 2)
CHUNK_32(q8_0, 8, 1)
#undef CHUNK_32

static void chunk_mxfp4(row_list rows, size_t at, int n_block, uint8_t *tiles, uint8_t *scales) {
    tiles_32(rows, at, n_block, tiles, unpack_mxfp4, sizeof(block_mxfp4), 4);
    for (int i = 0; i < n_block; i++, at += sizeof(block_mxfp4))
        for (int r = 0; r < PACK_PANEL; r++)
            *scales++ = rows[r][at];
}

/* ---- types with blocks of 256: a chunk is one block of each row ---- */

/* Writes four groups' bytes to their places, `step` bytes from group to group. */
PACK_INLINE void put_groups(uint8_t *at, int step, vec v) {
    for (int i = 0; i < 4; i++)
        put_bytes(at + i * step, v >> 8 * i);
}

/* The halves that a chunk's groups share. The minimum is subtracted in the file and added here. */
PACK_INLINE void shared_scales(row_list rows, size_t d, uint8_t *scales) {
    for (int r = 0; r < PACK_PANEL; r++)
        memcpy(scales + 2 * r, rows[r] + d, 2);
}
PACK_INLINE void shared_minima(row_list rows, size_t dmin, uint8_t *scales) {
    for (int r = 0; r < PACK_PANEL; r++) {
        const uint16_t h = block_u16(rows[r] + dmin) ^ 0x8000;
        memcpy(scales + 2 * (PACK_PANEL + r), &h, 2);
    }
}

/* Q4_K and Q5_K begin alike: d, dmin and the packed scales are 16 bytes. */
PACK_INLINE void k_scales(row_list rows, size_t at, uint8_t *scales) {
    enum { STEP = 2 * PACK_PANEL };
    uint8_t *groups = scales + 4 * PACK_PANEL;
    for (int half = 0; half < PARTS_OF_PANEL; half++) {
        vec raw[4];
        quads(rows + half * VEC_ROWS, at, raw);
        put_halves(scales + half * 2 * VEC_ROWS, raw[0]);
        put_halves(scales + 2 * PACK_PANEL + half * 2 * VEC_ROWS, raw[0] >> 16 ^ 0x8000);
        const vec s = raw[1], m = raw[2], rest = raw[3];
        uint8_t *to = groups + half * VEC_ROWS;
        put_groups(to, STEP, s & EACH(63));
        put_groups(to + PACK_PANEL, STEP, m & EACH(63));
        put_groups(to + 4 * STEP, STEP, (rest & EACH(15)) | (s >> 2 & EACH(48)));
        put_groups(to + 4 * STEP + PACK_PANEL, STEP, (rest >> 4 & EACH(15)) | (m >> 2 & EACH(48)));
    }
}

/* The file's 32 bytes of a tile already have the order of a part of width 4: low halves are the first 32 of
 * K. */
static void chunk_q4_k(row_list rows, size_t at, int n_block, uint8_t *tiles, uint8_t *scales) {
    (void)n_block;
    k_scales(rows, at, scales);
    for (int i = 0; i < 8; i++)
        for (int half = 0; half < PARTS_OF_PANEL; half++) {
            vec raw[4];
            quads(rows + half * VEC_ROWS, at + offsetof(block_q4_k, qs) + 16 * (size_t)i, raw);
            for (int j = 0; j < 4; j++)
                put_line(tiles + (4 * i + j) * TILE_LINE + half * 4 * VEC_ROWS, raw[j]);
        }
}

static void chunk_q5_k(row_list rows, size_t at, int n_block, uint8_t *tiles, uint8_t *scales) {
    (void)n_block;
    k_scales(rows, at, scales);
    for (int half = 0; half < PARTS_OF_PANEL; half++) {
        row_list own = rows + half * VEC_ROWS;
        vec high[8], q[TILE_QUADS];
        eight_quads(own, at + offsetof(block_q5_k, qh), high);
        for (int t = 0; t < TILE_CHUNK; t++) {
            const size_t qs = at + offsetof(block_q5_k, qs) + 32 * (size_t)t;
            for (int i = 0; i < 2; i++) {
                vec raw[4];
                quads(own, qs + 16 * (size_t)i, raw);
                for (int j = 0; j < 4; j++) {
                    const vec h = high[4 * i + j] >> 2 * t;
                    q[4 * i + j] = (raw[j] & EACH(15)) | (h & EACH(1)) << 4;
                    q[8 + 4 * i + j] = (raw[j] >> 4 & EACH(15)) | (h & EACH(2)) << 3;
                }
            }
            pack_parts(q, TILE_PART[5], 5, tiles + t * 10 * TILE_LINE + half * 4 * VEC_ROWS);
        }
    }
}

/* For each 128 of K: 64 bytes with the low 4 bits, 32 bytes with the high 2 bits. */
static void chunk_q6_k(row_list rows, size_t at, int n_block, uint8_t *tiles, uint8_t *scales) {
    (void)n_block;
    shared_scales(rows, at + offsetof(block_q6_k, d), scales);
    for (int half = 0; half < PARTS_OF_PANEL; half++) {
        row_list own = rows + half * VEC_ROWS;
        uint8_t *groups = scales + 2 * PACK_PANEL + half * VEC_ROWS;
        vec raw[4], low[16], high[8];
        quads(own, at + offsetof(block_q6_k, scales), raw);
        for (int i = 0; i < 4; i++)
            put_groups(groups + 4 * i * PACK_PANEL, PACK_PANEL, raw[i]);
        for (int c = 0; c < 2; c++) {
            uint8_t *out = tiles + c * 24 * TILE_LINE + half * 4 * VEC_ROWS;
            vec q[TILE_QUADS];
            eight_quads(own, at + 64 * (size_t)c, low);
            eight_quads(own, at + 64 * (size_t)c + 32, low + 8);
            eight_quads(own, at + offsetof(block_q6_k, qh) + 32 * (size_t)c, high);
            for (int i = 0; i < TILE_QUADS; i++)
                q[i] = (low[i] & EACH(15)) | (high[i % 8] >> (i < 8 ? 0 : 2) & EACH(3)) << 4;
            pack_parts(q, TILE_PART[6], 6, out);
            for (int i = 0; i < TILE_QUADS; i++)
                q[i] = (low[i] >> 4 & EACH(15)) | (high[i % 8] >> (i < 8 ? 4 : 6) & EACH(3)) << 4;
            pack_parts(q, TILE_PART[6], 6, out + 12 * TILE_LINE);
        }
    }
}

static void chunk_q2_k(row_list rows, size_t at, int n_block, uint8_t *tiles, uint8_t *scales) {
    enum { STEP = 2 * PACK_PANEL };
    (void)n_block;
    shared_scales(rows, at + offsetof(block_q2_k, d), scales);
    shared_minima(rows, at + offsetof(block_q2_k, dmin), scales);
    for (int half = 0; half < PARTS_OF_PANEL; half++) {
        row_list own = rows + half * VEC_ROWS;
        uint8_t *groups = scales + 4 * PACK_PANEL + half * VEC_ROWS;
        vec raw[8], q[TILE_QUADS];
        quads(own, at, raw);
        for (int i = 0; i < 4; i++) {
            put_groups(groups + 4 * i * STEP, STEP, raw[i] & EACH(15));
            put_groups(groups + 4 * i * STEP + PACK_PANEL, STEP, raw[i] >> 4 & EACH(15));
        }
        for (int c = 0; c < 2; c++) {
            uint8_t *out = tiles + c * 8 * TILE_LINE + half * 4 * VEC_ROWS;
            eight_quads(own, at + offsetof(block_q2_k, qs) + 32 * (size_t)c, raw);
            for (int t = 0; t < 2; t++) {
                for (int i = 0; i < TILE_QUADS; i++)
                    q[i] = raw[i % 8] >> (4 * t + 2 * (i / 8)) & EACH(3);
                pack_parts(q, TILE_PART[2], 2, out + t * 4 * TILE_LINE);
            }
        }
    }
}

static void chunk_q3_k(row_list rows, size_t at, int n_block, uint8_t *tiles, uint8_t *scales) {
    (void)n_block;
    shared_scales(rows, at + offsetof(block_q3_k, d), scales);
    for (int r = 0; r < PACK_PANEL; r++) {
        int8_t each[16];
        block_q3_k_scales(rows[r] + at + offsetof(block_q3_k, scales), each);
        for (int g = 0; g < 16; g++)
            scales[(2 + g) * PACK_PANEL + r] = (uint8_t)each[g];
    }
    for (int half = 0; half < PARTS_OF_PANEL; half++) {
        row_list own = rows + half * VEC_ROWS;
        vec raw[8], high[8], q[TILE_QUADS];
        eight_quads(own, at + offsetof(block_q3_k, hmask), high);
        for (int c = 0; c < 2; c++) {
            uint8_t *out = tiles + c * 12 * TILE_LINE + half * 4 * VEC_ROWS;
            eight_quads(own, at + offsetof(block_q3_k, qs) + 32 * (size_t)c, raw);
            for (int t = 0; t < 2; t++) {
                for (int i = 0; i < TILE_QUADS; i++)
                    q[i] = (raw[i % 8] >> (4 * t + 2 * (i / 8)) & EACH(3)) |
                           (high[i % 8] >> (4 * c + 2 * t + i / 8) & EACH(1)) << 2;
                pack_parts(q, TILE_PART[3], 3, out + t * 6 * TILE_LINE);
            }
        }
    }
}

static void chunk_iq4_xs(row_list rows, size_t at, int n_block, uint8_t *tiles, uint8_t *scales) {
    (void)n_block;
    shared_scales(rows, at + offsetof(block_iq4_xs, d), scales);
    for (int r = 0; r < PACK_PANEL; r++) {
        int8_t each[8];
        block_iq4_xs_scales((const block_iq4_xs *)(const void *)(rows[r] + at), each);
        for (int g = 0; g < 8; g++)
            scales[(2 + g) * PACK_PANEL + r] = (uint8_t)each[g];
    }
    tiles_32(rows, at + offsetof(block_iq4_xs, qs), 8, tiles, unpack_nibbles, 16, 4);
}

#define PACKERS                                                                                              \
    .tile = pack_tile,                                                                                       \
    .chunk = {[TYPE_Q4_0] = chunk_q4_0,  [TYPE_Q4_1] = chunk_q4_1,   [TYPE_Q5_0] = chunk_q5_0,               \
              [TYPE_Q5_1] = chunk_q5_1,  [TYPE_Q8_0] = chunk_q8_0,   [TYPE_Q2_K] = chunk_q2_k,               \
              [TYPE_Q3_K] = chunk_q3_k,  [TYPE_Q4_K] = chunk_q4_k,   [TYPE_Q5_K] = chunk_q5_k,               \
              [TYPE_Q6_K] = chunk_q6_k,  [TYPE_IQ4_NL] = chunk_q4_0, [TYPE_IQ4_XS] = chunk_iq4_xs,           \
              [TYPE_MXFP4] = chunk_mxfp4}

#endif
