/* unpack.h - unpacks a block of a panel to one byte a code and float scales, for kernels that use it many
 * times. */
#ifndef NIB_KERNELS_AVX512_UNPACK_H
#define NIB_KERNELS_AVX512_UNPACK_H

#include "kernels/cpu/avx512/tile.h"

#include <string.h>

/* The destination. Line q of the block is at lines + q * line_step. The 16 scales and minima of the g-th
 * group that begins in the block are at g * scale_step floats; a row's one group has g = 0. */
typedef struct unpacked {
    uint8_t *lines;
    float *scale, *min;
    int64_t line_step, scale_step;
} unpacked;

/* centred: the format's zero point is subtracted, so that codes are signed. */
LANES_INLINE void unpack_codes(const unpacked *to, int first, const uint8_t *codes, int n_tile, int bits,
                               int table, int centred) {
    const __m512i look = table ? _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)tile_table(table)))
                               : _mm512_setzero_si512();
    const __m512i zero = _mm512_set1_epi8((char)(table ? 128 : 1 << (bits - 1)));
    uint8_t *out = to->lines + (int64_t)first * (TILE_K / 4) * to->line_step;
    for (int t = 0; t < n_tile; t++, codes += 128 * bits) {
        LANES_UNROLL
        for (int q = 0; q < TILE_K / 4; q++, out += to->line_step) {
            __m512i line = tile_line(codes, bits, look, table != 0, q);
            if (centred)
                line = _mm512_sub_epi8(line, zero);
            _mm512_store_si512(out, line);
        }
    }
}

static inline void unpack_scales(const unpacked *to, int first, const tile_chunk *c, const pack_format *f) {
    const int n = f->group == PACK_GROUP_ROW ? 1 : (int)tile_chunk_groups(f, c->n_tile);
    const int64_t step = tile_scale_step(f);
    const uint8_t *at = c->scales + tile_scale_start(f);
    const __m512 zero = _mm512_setzero_ps();
    const bool super = f->scale == PACK_SCALE_SUPER;
    const __m512 d = super ? tile_supers(c->scales, f->table) : zero;
    const __m512 d_min = super && f->asym ? tile_halves(c->scales + 2 * PACK_PANEL) : zero;
    for (int g = 0; g < n; g++, at += step) {
        _mm512_store_ps(to->scale + (first + g) * to->scale_step, tile_scale(at, f->scale, d));
        if (f->asym)
            _mm512_store_ps(to->min + (first + g) * to->scale_step, tile_min(at, f->scale, d_min));
    }
}

/* Replaces the unpacked codes of a chunk by the entries of their rows' books. Each quarter of a register has
 * 4 rows. A look-up has the 16 entries of one row (or the 8 entries of two rows); the codes of the other rows
 * have bit 7 set, so they give 0. */
static inline void unpack_book(const unpacked *to, int first, const tile_chunk *c, const pack_format *f,
                               int centred) {
    const int per = 16 >> f->bits, n = 4 / per; /* rows in one look-up; number of look-ups */
    const uint8_t *book = tile_book(f, c);
    const __m512i flip = _mm512_set1_epi8((char)(centred ? 0x80 : 0));
    __m512i look[4], at[4];
    for (int i = 0; i < n; i++) {
        uint8_t entries[TILE_LINE];
        uint32_t of[PACK_PANEL];
        for (int r = 0; r < PACK_PANEL; r++)
            of[r] = r % 4 / per == i ? (uint32_t)(r % per << f->bits) * 0x01010101u : 0x80808080u;
        for (int quarter = 0; quarter < 4; quarter++)
            memcpy(entries + 16 * quarter, book + ((4 * quarter + per * i) << f->bits), 16);
        look[i] = _mm512_loadu_si512(entries);
        at[i] = _mm512_loadu_si512(of);
    }
    uint8_t *line = to->lines + (int64_t)first * (TILE_K / 4) * to->line_step;
    for (int q = 0; q < c->n_tile * TILE_K / 4; q++, line += to->line_step) {
        const __m512i codes = _mm512_load_si512(line);
        __m512i w = flip;
        for (int i = 0; i < n; i++)
            w = _mm512_xor_si512(w, _mm512_shuffle_epi8(look[i], _mm512_or_si512(codes, at[i])));
        _mm512_store_si512(line, w);
    }
}

/* Unpacks chunks [c0, c1) of one panel. */
LANES_INLINE void unpack_panel(const unpacked *to, const pack_format *f, const void *panel, int64_t k,
                               int64_t c0, int64_t c1, int centred) {
    for (int64_t i = c0; i < c1; i++) {
        uint8_t parts[TILE_CHUNK_K * PACK_PANEL];
        const tile_chunk c = tile_chunk_parts(f, tile_chunk_at(f, panel, k, i), parts);
        const int first = (int)(i - c0) * TILE_CHUNK;
        const bool book = f->table == PACK_TABLE_BOOK;
        switch (f->bits) {
        case 2: unpack_codes(to, first, c.codes, c.n_tile, 2, 0, centred); break;
        case 3:
            if (f->table && !book)
                unpack_codes(to, first, c.codes, c.n_tile, 3, f->table, centred);
            else
                unpack_codes(to, first, c.codes, c.n_tile, 3, 0, centred && !book);
            break;
        case 4:
            if (book)
                unpack_codes(to, first, c.codes, c.n_tile, 4, 0, 0);
            else if (f->table)
                unpack_codes(to, first, c.codes, c.n_tile, 4, f->table, centred);
            else
                unpack_codes(to, first, c.codes, c.n_tile, 4, 0, centred);
            break;
        case 5: unpack_codes(to, first, c.codes, c.n_tile, 5, 0, centred); break;
        case 6: unpack_codes(to, first, c.codes, c.n_tile, 6, 0, centred); break;
        case 7: unpack_codes(to, first, c.codes, c.n_tile, 7, 0, centred); break;
        default: unpack_codes(to, first, c.codes, c.n_tile, 8, 0, centred); break;
        }
        if (book)
            unpack_book(to, first, &c, f, centred);
        unpack_scales(to, f->group == PACK_GROUP_ROW ? 0 : first * TILE_K / f->group, &c, f);
    }
}

/* Replaces the unpacked codes of chunks [c0, c1), which have two-level scales, by 128 + (code - zero) * u,
 * which is a byte. Only the low byte of each product matters, so 16-bit multiplications compute the even and
 * the odd bytes. The row's scale becomes that of group 0. */
static inline void unpack_two(const unpacked *to, const pack_format *f, const void *panel, int64_t k,
                              int64_t c0, int64_t c1) {
    const __m512i zero = _mm512_set1_epi8((char)tile_zero(f)), even = _mm512_set1_epi16(0xff),
                  half = _mm512_set1_epi8((char)0x80);
    const int quads = f->group / 4;
    uint8_t *line = to->lines;
    for (int64_t i = c0; i < c1; i++) {
        const tile_chunk c = tile_chunk_at(f, panel, k, i);
        for (int q = 0; q < c.n_tile * TILE_K / 4; q++, line += to->line_step) {
            const __m128i u = _mm_loadu_si128((const void *)(c.scales + q / quads * PACK_PANEL));
            const __m512i wide = _mm512_cvtepu8_epi32(u),
                          twice = _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16));
            const __m512i w = _mm512_sub_epi8(_mm512_load_si512(line), zero);
            const __m512i low = _mm512_and_si512(_mm512_mullo_epi16(w, twice), even);
            const __m512i high = _mm512_mullo_epi16(_mm512_andnot_si512(even, w), twice);
            _mm512_store_si512(line, _mm512_xor_si512(_mm512_or_si512(low, high), half));
        }
    }
    _mm512_store_ps(to->scale, tile_halves((const uint8_t *)panel + tile_tail_at(f, k)));
}

#endif
