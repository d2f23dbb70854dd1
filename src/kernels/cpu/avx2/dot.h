/* dot.h - integer dot products without VNNI: vpmaddubsw multiplies unsigned codes with signed activations and
 * adds pairs, in 16 bits.
 *
 * Pairs are summed in 16 bits for as many quads as cannot overflow: with codes up to c, 2 * c * 127 times the
 * number of quads stays below 2^15 (8 quads at 4 bits, 4 at 5, 2 at 6). Codes of 8 bits do not fit even once:
 * they are made signed (the zero point is gone then) and their sign moves to the activation. */
#ifndef NIB_KERNELS_AVX2_DOT_H
#define NIB_KERNELS_AVX2_DOT_H

#include "kernels/cpu/avx2/tile.h"

/* Whether codes are multiplied as signed numbers. */
LANES_INLINE bool dot_signed(const kind f) {
    return f.bits == 8 || f.table == PACK_TABLE_IQ4NL;
}
/* Quads that 16 bits can sum. MXFP4's table goes from 4 to 28 (dot_look). */
LANES_INLINE int dot_run(const kind f) {
    return dot_signed(f)                 ? 1
           : f.table == PACK_TABLE_MXFP4 ? 4
           : f.bits <= 4                 ? 8
           : f.bits == 5                 ? 4
           : f.bits == 6                 ? 2
                                         : 1;
}
/* log2 of what is still to be taken from each code when there is no minimum; 32: nothing. */
LANES_INLINE int dot_zero_shift(const kind f) {
    return dot_signed(f) ? 32 : f.table == PACK_TABLE_MXFP4 ? 4 : f.bits - 1;
}
/* Codes that were made signed have no zero point left, so no minimum can stand in its place. */
static inline bool dot_can(const pack_format *f) {
    return f->layout == PACK_TILE && f->scale != PACK_SCALE_TWO && !(f->bits == 8 && f->asym);
}
/* Table entries as they are multiplied: signed, or + 16 where that fits in few bits. */
LANES_INLINE __m256i dot_look(const kind f) {
    if (f.table == PACK_TABLE_NONE)
        return _mm256_setzero_si256();
    const __m256i entries = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)tile_table(f.table)));
    return _mm256_sub_epi8(entries, _mm256_set1_epi8((char)(dot_signed(f) ? 128 : 128 - 16)));
}
/* Half a line as it is multiplied. */
LANES_INLINE __m256i dot_codes(const kind f, const uint8_t *tile, __m256i look, int q, int half) {
    const __m256i w = tile_half(tile, f.bits, q, half);
    if (f.table != PACK_TABLE_NONE)
        return _mm256_shuffle_epi8(look, w);
    return dot_signed(f) ? _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80)) : w;
}

enum { DOT_ROWS = 4 };

/* A sum that compilers leave as it is: gcc makes trees of chains of additions, which need more registers than
 * there are. */
LANES_INLINE __m256i dot_kept(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

/* acc[t][h] += `quads` quads from quad q0 on of nt rows (x_bytes apart) with halves [h0, h1) of a line.
 * ready: the lines are as dot_codes gives them, one after the other; else a packed tile. */
LANES_INLINE void dot_halves(const kind f, bool ready, const uint8_t *tile, __m256i look, int q0, int quads,
                             int nt, const char *x, int64_t x_bytes, int h0, int h1,
                             __m256i acc[DOT_ROWS][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int run = NUM_MIN(dot_run(f), quads);
    LANES_UNROLL
    for (int r = 0; r < quads; r += run) {
        __m256i sum[DOT_ROWS][2];
        LANES_UNROLL
        for (int i = 0; i < run; i++) {
            const int q = q0 + r + i;
            __m256i w[2];
            LANES_UNROLL
            for (int h = h0; h < h1; h++)
                w[h] = ready ? _mm256_load_si256((const void *)(tile + q * TILE_LINE + 32 * h))
                             : dot_codes(f, tile, look, q, h);
            LANES_UNROLL
            for (int t = 0; t < nt; t++) {
                const __m256i xs = broadcast_int(x + t * x_bytes + 4 * q);
                LANES_UNROLL
                for (int h = h0; h < h1; h++) {
                    const __m256i p = dot_signed(f) ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[h]),
                                                                           _mm256_sign_epi8(xs, w[h]))
                                                    : _mm256_maddubs_epi16(w[h], xs);
                    sum[t][h] = dot_kept(i ? _mm256_add_epi16(sum[t][h], p) : p);
                }
            }
        }
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            LANES_UNROLL
            for (int h = h0; h < h1; h++)
                acc[t][h] = dot_kept(_mm256_add_epi32(acc[t][h], _mm256_madd_epi16(sum[t][h], ones)));
        }
    }
}

/* Both halves beside each other, if there are registers for that. */
LANES_INLINE void dot_group(const kind f, bool ready, const uint8_t *tile, __m256i look, int q0, int quads,
                            int nt, const char *x, int64_t x_bytes, __m256i acc[DOT_ROWS][2]) {
    if (nt <= 2 || dot_run(f) >= quads) {
        dot_halves(f, ready, tile, look, q0, quads, nt, x, x_bytes, 0, 2, acc);
    } else {
        dot_halves(f, ready, tile, look, q0, quads, nt, x, x_bytes, 0, 1, acc);
        dot_halves(f, ready, tile, look, q0, quads, nt, x, x_bytes, 1, 2, acc);
    }
}
/* The groups that begin at quads q0 and q0 + 8 of a packed tile, with one row: their codes stand in the same
 * lines, which are loaded once. acc[group][half]. */
LANES_INLINE void dot_pair(const kind f, const uint8_t *tile, __m256i look, int q0, int quads, const char *x,
                           __m256i acc[2][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int run = NUM_MIN(dot_run(f), quads);
    LANES_UNROLL
    for (int r = 0; r < quads; r += run) {
        __m256i sum[2][2];
        LANES_UNROLL
        for (int i = 0; i < run; i++) {
            LANES_UNROLL
            for (int h = 0; h < 2; h++) {
                LANES_UNROLL
                for (int g = 0; g < 2; g++) {
                    const int q = q0 + r + i + 8 * g;
                    const __m256i w = dot_codes(f, tile, look, q, h), xs = broadcast_int(x + 4 * q);
                    const __m256i p = dot_signed(f)
                                          ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(xs, w))
                                          : _mm256_maddubs_epi16(w, xs);
                    sum[g][h] = dot_kept(i ? _mm256_add_epi16(sum[g][h], p) : p);
                }
            }
        }
        LANES_UNROLL
        for (int i = 0; i < 4; i++) {
            const __m256i s = _mm256_madd_epi16(sum[i / 2][i % 2], ones);
            acc[i / 2][i % 2] = r ? dot_kept(_mm256_add_epi32(acc[i / 2][i % 2], s)) : s;
        }
    }
}
/* How many rows a block's kernel takes at once so that all its sums stay in registers. */
LANES_INLINE int dot_block_rows(const kind f) {
    return dot_run(f) * 4 >= f.group ? 3 : 2;
}

#endif
