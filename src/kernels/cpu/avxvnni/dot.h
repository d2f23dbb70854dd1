/* dot.h - integer dot products with AVX-VNNI: vpdpbusd multiplies unsigned codes of any width with signed
 * activations and adds quads in 32 bits, so nothing can overflow. */
#ifndef NIB_KERNELS_AVXVNNI_DOT_H
#define NIB_KERNELS_AVXVNNI_DOT_H

#include "kernels/cpu/avx2/tile.h"

/* Never: codes of all widths stay unsigned. */
LANES_INLINE bool dot_signed(const kind f) {
    (void)f;
    return false;
}
/* Never: blocks have one line a quad. */
LANES_INLINE bool dot_two_lines(const kind f) {
    (void)f;
    return false;
}
/* Never: codes are not cut into halves. */
LANES_INLINE bool dot_halved(const kind f) {
    (void)f;
    return false;
}
/* log2 of the number that tile_correct subtracts from each code; 32: none. */
LANES_INLINE int dot_zero_shift(const kind f, bool asym) {
    return asym ? 32 : f.table != PACK_TABLE_NONE ? 7 : f.bits - 1;
}
LANES_INLINE __m256i dot_table(const kind f) {
    if (f.table == PACK_TABLE_NONE)
        return _mm256_setzero_si256();
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)tile_table(f.table)));
}
/* Half a line of codes, ready to be multiplied. */
LANES_INLINE __m256i dot_codes(const kind f, const uint8_t *tile, __m256i table, int q, int half) {
    const __m256i w = tile_half(tile, f.bits, q, half);
    return f.table != PACK_TABLE_NONE ? _mm256_shuffle_epi8(table, w) : w;
}

enum { DOT_ROWS = 4 };

/* acc[t][h] += the dot products of `quads` quads from quad q0 on with nt rows (x_bytes apart). ready: the
 * lines are unpacked; otherwise they are a packed tile. */
LANES_INLINE void dot_quads(const kind f, bool ready, const uint8_t *tile, __m256i table, int q0, int quads,
                            int nt, const char *x, int64_t x_bytes, __m256i (*acc)[2]) {
    LANES_UNROLL
    for (int q = q0; q < q0 + quads; q++) {
        __m256i w[2];
        LANES_UNROLL
        for (int h = 0; h < 2; h++)
            w[h] = ready ? _mm256_load_si256((const void *)(tile + q * TILE_LINE + 32 * h))
                         : dot_codes(f, tile, table, q, h);
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m256i xs = broadcast_int(x + t * x_bytes + 4 * q);
            LANES_UNROLL
            for (int h = 0; h < 2; h++)
                acc[t][h] = _mm256_dpbusd_avx_epi32(acc[t][h], w[h], xs);
        }
    }
}
/* acc[t] += the dot products of an unpacked group of `quads` quads. */
LANES_INLINE void dot_group(const kind f, const uint8_t *lines, int quads, int nt, const char *x,
                            int64_t x_bytes, __m256i acc[DOT_ROWS][2]) {
    dot_quads(f, true, lines, _mm256_setzero_si256(), 0, quads, nt, x, x_bytes, acc);
}
/* acc[t] = the dot products of a packed group, `quads` quads from quad q0 on, with nt rows. */
LANES_INLINE void dot_packed(const kind f, const uint8_t *tile, __m256i table, int q0, int quads, int nt,
                             const char *x, int64_t x_bytes, __m256i acc[DOT_ROWS][2]) {
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        acc[t][0] = acc[t][1] = _mm256_setzero_si256();
    dot_quads(f, false, tile, table, q0, quads, nt, x, x_bytes, acc);
}
/* Multiplies the groups that begin at quads q0 and q0 + 8 of a packed tile with one row. Their codes are in
 * the same lines, which are loaded once. Prefetches these quads' share of the n_next lines from `next` on.
 * acc[group][half]. */
LANES_INLINE void dot_pair(const kind f, const uint8_t *tile, __m256i table, int q0, int quads,
                           const uint8_t *next, int n_next, const char *x, __m256i acc[2][2]) {
    LANES_UNROLL
    for (int i = 0; i < 4; i++)
        acc[i / 2][i % 2] = _mm256_setzero_si256();
    LANES_UNROLL
    for (int q = q0; q < q0 + quads; q++) {
        tile_ahead(next, n_next, q);
        LANES_UNROLL
        for (int h = 0; h < 2; h++) {
            LANES_UNROLL
            for (int g = 0; g < 2; g++)
                acc[g][h] = _mm256_dpbusd_avx_epi32(acc[g][h], dot_codes(f, tile, table, q + 8 * g, h),
                                                    broadcast_int(x + 4 * (q + 8 * g)));
        }
    }
}
/* ---- unpacked lines, many rows: the same for all widths ---- */

/* The number of rows that dot_tile takes at once, and the formats that kernels are compiled for: name,
 * bits. */
enum { DOT_BLOCK_ROWS = 6 };
#define DOT_EACH_ROWS(X, ...)                                                                                \
    X(1, __VA_ARGS__)                                                                                        \
    X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__)
#define DOT_LONG_KINDS(X) X(b8, 8)
/* Formats with groups of 16 and 32: name, bits, table, asym, group. */
#define DOT_SHORT_KINDS(X)                                                                                   \
    X(s8g16, 8, NONE, 0, 16) X(a8g16, 8, NONE, 1, 16) X(s8g32, 8, NONE, 0, 32) X(a8g32, 8, NONE, 1, 32)
/* XORed with an 8-bit number, gives the byte that is multiplied. */
#define DOT_FLIP 0x80

LANES_INLINE int dot_short_rows(const kind f) {
    (void)f;
    return 3;
}

/* acc[t] += the dot products of a tile's 16 quads with nt rows (x_bytes apart). ready: the tile is
 * unpacked. */
LANES_INLINE void dot_tile(const kind f, bool ready, int nt, const uint8_t *tile, const char *x,
                           int64_t x_bytes, __m256i (*acc)[2]) {
    __m256i near[DOT_BLOCK_ROWS][2];
    LANES_UNROLL
    for (int i = 0; i < 2 * nt; i++)
        near[i / 2][i % 2] = acc[i / 2][i % 2];
    dot_quads(f, ready, tile, _mm256_setzero_si256(), 0, TILE_K / 4, nt, x, x_bytes, near);
    LANES_UNROLL
    for (int i = 0; i < 2 * nt; i++)
        acc[i / 2][i % 2] = near[i / 2][i % 2];
}
/* acc += the dot products of a packed tile with one row, in two chains of sums for each half. A field that is
 * not shifted counts 16 times, so with 4 bits nothing is shifted. Prefetches as many lines from `next` on. */
LANES_INLINE void dot_one(const kind f, const uint8_t *tile, const uint8_t *next, const char *x,
                          __m256i acc[2]) {
    const __m256i table = _mm256_setzero_si256();
    __m256i sum[2][2];
    LANES_UNROLL
    for (int i = 0; i < 4; i++)
        sum[i / 2][i % 2] = _mm256_setzero_si256();
    LANES_UNROLL
    for (int q = 0; q < 16; q++) {
        tile_ahead(next, f.bits, q);
        LANES_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256i xs = broadcast_int(x + 4 * q);
            __m256i w;
            if (f.bits == 4) /* masks of 15 or 240: the upper field is not shifted */
                w = _mm256_and_si256(_mm256_loadu_si256((const void *)(tile + q % 8 * TILE_LINE + 32 * h)),
                                     _mm256_set1_epi8((char)(q < 8 ? 15 : 0xf0)));
            else
                w = dot_codes(f, tile, table, q, h);
            sum[q / 8][h] = _mm256_dpbusd_avx_epi32(sum[q / 8][h], w, xs);
        }
    }
    LANES_UNROLL
    for (int h = 0; h < 2; h++) {
        const __m256i high = f.bits == 4 ? _mm256_srai_epi32(sum[1][h], 4) : sum[1][h];
        acc[h] = _mm256_add_epi32(acc[h], _mm256_add_epi32(sum[0][h], high));
    }
}

#endif
