/* tile.h - loads packed codes and scales into registers. Everything is inlined with constant formats. */
#ifndef NIB_KERNELS_AVX512_TILE_H
#define NIB_KERNELS_AVX512_TILE_H

#include "kernels/lanes/lanes.h"
#include "kernels/prefetch.h"
#include "numbers/tile.h"

#include <immintrin.h>

/* Adds the bits of one part: field q / (2w) of line q % (2w), moved to bit `low` and up. */
LANES_INLINE __m512i tile_part(__m512i sum, const uint8_t *part, int w, int low, int q) {
    const int shift = low - q / (2 * w) * w;
    __m512i x = _mm512_loadu_si512(part + q % (2 * w) * TILE_LINE);
    if (shift > 0)
        x = _mm512_slli_epi32(x, (unsigned)shift);
    else if (shift < 0)
        x = _mm512_srli_epi32(x, (unsigned)-shift);
    const __m512i mask = _mm512_set1_epi8((char)(((1 << w) - 1) << low));
    return _mm512_ternarylogic_epi32(x, mask, sum, 0xEA); /* (x & mask) | sum */
}

/* Quad q of a tile, ready to be multiplied: 16 rows x 4 codes, or the table's entries for them. */
LANES_INLINE __m512i tile_line(const uint8_t *tile, int bits, __m512i table, bool has_table, int q) {
    if (bits == 8)
        return _mm512_loadu_si512(tile + q * TILE_LINE);
    __m512i sum = _mm512_setzero_si512();
    if (bits & 4) {
        sum = tile_part(sum, tile, 4, bits & 3, q);
        tile += 8 * TILE_LINE;
    }
    if (bits & 2) {
        sum = tile_part(sum, tile, 2, bits & 1, q);
        tile += 4 * TILE_LINE;
    }
    if (bits & 1)
        sum = tile_part(sum, tile, 1, 0, q);
    return has_table ? _mm512_shuffle_epi8(table, sum) : sum;
}

/* Prefetches the share of quad q of the tile at `next`. */
LANES_INLINE void tile_ahead(const uint8_t *next, int bits, int q) {
    LANES_UNROLL
    for (int line = q * bits / 8; line < (q + 1) * bits / 8; line++)
        prefetch_line(next + line * TILE_LINE);
}

/* 16 halves, or (tile_bytes) 16 signed bytes, as floats. */
LANES_INLINE __m512 tile_halves(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
LANES_INLINE __m512 tile_bytes(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
}

/* The 16 halves of a chunk with PACK_SCALE_SUPER, in the table's unit. */
LANES_INLINE __m512 tile_supers(const uint8_t *p, int table) {
    const float unit = tile_table_unit(table);
    const __m512 d = tile_halves(p);
    return unit == 1 ? d : _mm512_mul_ps(d, _mm512_set1_ps(unit));
}

/* 2^(e - 128) for 16 bytes e; results below the smallest normal number are made by shifting the bits. */
LANES_INLINE __m512 tile_e8m0(const uint8_t *p) {
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, small, _mm512_set1_epi32(0x200000), e));
}

/* The scale of a chunk's group g; d: the chunk's own scale, by tile_supers (SUPER only). */
LANES_INLINE __m512 tile_scale(const uint8_t *at, int scale, __m512 d) {
    if (scale == PACK_SCALE_F16 || scale == PACK_SCALE_ZERO)
        return tile_halves(at);
    if (scale == PACK_SCALE_E8M0)
        return tile_e8m0(at);
    return _mm512_mul_ps(d, tile_bytes(at));
}
LANES_INLINE __m512 tile_min(const uint8_t *at, int scale, __m512 d_min) {
    if (scale == PACK_SCALE_F16)
        return tile_halves(at + 2 * PACK_PANEL);
    if (scale == PACK_SCALE_ZERO)
        return _mm512_sub_ps(_mm512_setzero_ps(),
                             _mm512_mul_ps(tile_halves(at), tile_bytes(at + 2 * PACK_PANEL)));
    return _mm512_mul_ps(d_min, tile_bytes(at + PACK_PANEL));
}

#endif
