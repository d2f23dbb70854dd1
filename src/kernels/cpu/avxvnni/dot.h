/* dot.h - integer dot products with AVX-VNNI: vpdpbusd multiplies unsigned codes of any width with signed
 * activations and adds quads in 32 bits, so nothing can overflow. */
#ifndef NIB_KERNELS_AVXVNNI_DOT_H
#define NIB_KERNELS_AVXVNNI_DOT_H

#include "kernels/cpu/avx2/tile.h"

/* Codes stay unsigned, however wide. */
LANES_INLINE bool dot_signed(const kind f) {
    (void)f;
    return false;
}
/* log2 of what is still to be taken from each code when there is no minimum. */
LANES_INLINE int dot_zero_shift(const kind f) {
    return f.table != PACK_TABLE_NONE ? 7 : f.bits - 1;
}
static inline bool dot_can(const pack_format *f) {
    return f->layout == PACK_TILE && f->flavour == PACK_PARTS && f->scale != PACK_SCALE_TWO;
}
LANES_INLINE __m256i dot_look(const kind f) {
    if (f.table == PACK_TABLE_NONE)
        return _mm256_setzero_si256();
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)tile_table(f.table)));
}
/* Half a line as it is multiplied. */
LANES_INLINE __m256i dot_codes(const kind f, const uint8_t *tile, __m256i look, int q, int half) {
    const __m256i w = tile_half(tile, f.bits, q, half);
    return f.table != PACK_TABLE_NONE ? _mm256_shuffle_epi8(look, w) : w;
}

enum { DOT_ROWS = 4 };

/* acc[t][h] += `quads` quads from quad q0 on of nt rows (x_bytes apart) with both halves of a line. ready:
 * the lines are as dot_codes gives them, one after the other; else a packed tile. */
LANES_INLINE void dot_group(const kind f, bool ready, const uint8_t *tile, __m256i look, int q0, int quads,
                            int nt, const char *x, int64_t x_bytes, __m256i acc[DOT_ROWS][2]) {
    LANES_UNROLL
    for (int q = q0; q < q0 + quads; q++) {
        __m256i w[2];
        LANES_UNROLL
        for (int h = 0; h < 2; h++)
            w[h] = ready ? _mm256_load_si256((const void *)(tile + q * TILE_LINE + 32 * h))
                         : dot_codes(f, tile, look, q, h);
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m256i xs = broadcast_int(x + t * x_bytes + 4 * q);
            LANES_UNROLL
            for (int h = 0; h < 2; h++)
                acc[t][h] = _mm256_dpbusd_avx_epi32(acc[t][h], w[h], xs);
        }
    }
}
/* The groups that begin at quads q0 and q0 + 8 of a packed tile, with one row: their codes stand in the same
 * lines, which are loaded once. acc[group][half]. */
LANES_INLINE void dot_pair(const kind f, const uint8_t *tile, __m256i look, int q0, int quads, const char *x,
                           __m256i acc[2][2]) {
    LANES_UNROLL
    for (int i = 0; i < 4; i++)
        acc[i / 2][i % 2] = _mm256_setzero_si256();
    LANES_UNROLL
    for (int q = q0; q < q0 + quads; q++) {
        LANES_UNROLL
        for (int h = 0; h < 2; h++) {
            LANES_UNROLL
            for (int g = 0; g < 2; g++)
                acc[g][h] = _mm256_dpbusd_avx_epi32(acc[g][h], dot_codes(f, tile, look, q + 8 * g, h),
                                                    broadcast_int(x + 4 * (q + 8 * g)));
        }
    }
}
/* How many rows a block's kernel takes at once so that all its sums stay in registers. */
LANES_INLINE int dot_block_rows(const kind f) {
    (void)f;
    return 3;
}

#endif
