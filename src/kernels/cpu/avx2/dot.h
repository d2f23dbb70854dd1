/* dot.h - integer dot products without VNNI: vpmaddubsw multiplies unsigned codes with signed activations and
 * adds pairs, in 16 bits.
 *
 * Pairs are summed in 16 bits for as many quads as cannot overflow: with codes up to c, 2 * c * 127 times the
 * number of quads stays below 2^15 (8 quads at 4 bits, 4 at 5, 2 at 6). With 8 bits even one pair overflows.
 * Those codes are made signed, which removes the zero point, and their sign is moved to the activation.
 *
 * A file that defines DOT_SIGNS as 1 before the include gets the kernels of blocked.h for 8-bit codes only,
 * with moved signs instead of codes cut into halves. */
#ifndef NIB_KERNELS_AVX2_DOT_H
#define NIB_KERNELS_AVX2_DOT_H

#ifndef DOT_SIGNS
#define DOT_SIGNS 0
#endif

#include "kernels/cpu/avx2/tile.h"

/* Bits of the numbers that are multiplied. */
LANES_INLINE int dot_bits(const kind f) {
    return f.table == PACK_TABLE_NONE ? f.bits : tile_table_bits(f.table);
}
/* Whether codes are multiplied as signed numbers. */
LANES_INLINE bool dot_signed(const kind f) {
    return dot_bits(f) == 8;
}
/* Number of quads whose sum fits 16 bits. */
LANES_INLINE int dot_run(const kind f) {
    const int bits = dot_bits(f);
    return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
}
/* log2 of the number that tile_correct subtracts from each code; 32: none. */
LANES_INLINE int dot_zero_shift(const kind f, bool asym) {
    if (dot_signed(f))
        return asym ? 7 : 32;
    return asym ? 32 : dot_bits(f) - 1;
}
/* Whether a block stores 8-bit codes as two lines (blocked.h). In longer groups codes stay as they are. */
LANES_INLINE bool dot_two_lines(const kind f) {
    return dot_signed(f) && f.group < TILE_K;
}
/* Whether the two lines are the lower and the upper 4 bits. Sums of 8 quads of each fit 16 bits, so no sign
 * is moved and few sums are widened. Otherwise the lines are the codes' magnitudes and the signed codes. */
LANES_INLINE bool dot_halved(const kind f) {
    return dot_two_lines(f) && !DOT_SIGNS;
}
/* The table entries that are multiplied: signed, or unsigned where that fits fewer bits. */
LANES_INLINE __m256i dot_table(const kind f) {
    if (f.table == PACK_TABLE_NONE)
        return _mm256_setzero_si256();
    const __m256i entries = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)tile_table(f.table)));
    return _mm256_sub_epi8(entries,
                           _mm256_set1_epi8((char)(dot_signed(f) ? 128 : 128 - (1 << (dot_bits(f) - 1)))));
}
/* Half a line of codes, ready to be multiplied. */
LANES_INLINE __m256i dot_codes(const kind f, const uint8_t *tile, __m256i table, int q, int half) {
    const __m256i w = tile_half(tile, f.bits, q, half);
    if (f.table != PACK_TABLE_NONE)
        return _mm256_shuffle_epi8(table, w);
    return dot_signed(f) ? _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80)) : w;
}

enum { DOT_ROWS = 4 };

/* Hides a sum from the compiler. Otherwise gcc turns chains of additions into trees, which need more
 * registers than there are. */
LANES_INLINE __m256i dot_opaque(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

/* acc[t][h] += by * the dot products of an unpacked group with nt rows (x_bytes apart), for halves [h0, h1).
 * The group has `quads` quads, one every `step` lines. */
LANES_INLINE void dot_halves(const kind f, const uint8_t *lines, int step, int by, int quads, int nt,
                             const char *x, int64_t x_bytes, int h0, int h1, __m256i acc[DOT_ROWS][2]) {
    const __m256i each = _mm256_set1_epi16((int16_t)by);
    const int run = NUM_MIN(dot_run(f), quads);
    LANES_UNROLL
    for (int r = 0; r < quads; r += run) {
        __m256i sum[DOT_ROWS][2];
        LANES_UNROLL
        for (int i = 0; i < run; i++) {
            const int q = r + i;
            __m256i w[2];
            LANES_UNROLL
            for (int h = h0; h < h1; h++)
                w[h] = _mm256_load_si256((const void *)(lines + q * step * TILE_LINE + 32 * h));
            LANES_UNROLL
            for (int t = 0; t < nt; t++) {
                const __m256i xs = broadcast_int(x + t * x_bytes + 4 * q);
                LANES_UNROLL
                for (int h = h0; h < h1; h++) {
                    const __m256i p = _mm256_maddubs_epi16(w[h], xs);
                    sum[t][h] = dot_opaque(i ? _mm256_add_epi16(sum[t][h], p) : p);
                }
            }
        }
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            LANES_UNROLL
            for (int h = h0; h < h1; h++)
                acc[t][h] = dot_opaque(_mm256_add_epi32(acc[t][h], _mm256_madd_epi16(sum[t][h], each)));
        }
    }
}

/* acc += the dot products of a group of 8-bit codes, unpacked to magnitudes and signed codes. */
LANES_INLINE void dot_signs(const uint8_t *lines, int quads, int nt, const char *x, int64_t x_bytes,
                            __m256i acc[DOT_ROWS][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    LANES_UNROLL
    for (int q = 0; q < quads; q++) {
        const __m256i *at = (const void *)(lines + 2 * q * TILE_LINE);
        const __m256i size[2] = {_mm256_load_si256(at), _mm256_load_si256(at + 1)};
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m256i xs = broadcast_int(x + t * x_bytes + 4 * q);
            LANES_UNROLL
            for (int h = 0; h < 2; h++) {
                const __m256i moved = _mm256_sign_epi8(xs, _mm256_load_si256(at + 2 + h));
                const __m256i sum = _mm256_madd_epi16(_mm256_maddubs_epi16(size[h], moved), ones);
                acc[t][h] = dot_opaque(_mm256_add_epi32(acc[t][h], sum));
            }
        }
    }
}

/* acc += the dot products of an unpacked group. Both halves are computed together if there are registers for
 * that. */
LANES_INLINE void dot_group(const kind f, const uint8_t *lines, int quads, int nt, const char *x,
                            int64_t x_bytes, __m256i acc[DOT_ROWS][2]) {
    if (dot_halved(f)) {
        const kind half = {4, PACK_TABLE_NONE, f.group};
        dot_halves(half, lines + TILE_LINE, 2, 16, quads, nt, x, x_bytes, 0, 2, acc);
        __asm__("" : : : "memory"); /* keeps activations out of registers that the lower halves need */
        dot_halves(half, lines, 2, 1, quads, nt, x, x_bytes, 0, 2, acc);
    } else if (dot_two_lines(f)) {
        dot_signs(lines, quads, nt, x, x_bytes, acc);
    } else if (nt <= 2 || dot_run(f) >= quads) {
        dot_halves(f, lines, 1, 1, quads, nt, x, x_bytes, 0, 2, acc);
    } else {
        dot_halves(f, lines, 1, 1, quads, nt, x, x_bytes, 0, 1, acc);
        dot_halves(f, lines, 1, 1, quads, nt, x, x_bytes, 1, 2, acc);
    }
}
/* Multiplies the groups that begin at quads q0 and q0 + 8 of a packed tile with one row. Their codes are in
 * the same lines, which are loaded once. Prefetches these quads' share of the n_next lines from `next` on.
 * acc[group][half]. */
LANES_INLINE void dot_pair(const kind f, const uint8_t *tile, __m256i table, int q0, int quads,
                           const uint8_t *next, int n_next, const char *x, __m256i acc[2][2]) {
    const __m256i ones = _mm256_set1_epi16(1);
    const int run = NUM_MIN(dot_run(f), quads);
    LANES_UNROLL
    for (int r = 0; r < quads; r += run) {
        __m256i sum[2][2];
        LANES_UNROLL
        for (int i = 0; i < run; i++) {
            tile_ahead(next, n_next, q0 + r + i);
            LANES_UNROLL
            for (int h = 0; h < 2; h++) {
                LANES_UNROLL
                for (int g = 0; g < 2; g++) {
                    const int q = q0 + r + i + 8 * g;
                    const __m256i w = dot_codes(f, tile, table, q, h), xs = broadcast_int(x + 4 * q);
                    const __m256i p = dot_signed(f)
                                          ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(xs, w))
                                          : _mm256_maddubs_epi16(w, xs);
                    sum[g][h] = dot_opaque(i ? _mm256_add_epi16(sum[g][h], p) : p);
                }
            }
        }
        LANES_UNROLL
        for (int i = 0; i < 4; i++) {
            const __m256i s = _mm256_madd_epi16(sum[i / 2][i % 2], ones);
            acc[i / 2][i % 2] = r ? dot_opaque(_mm256_add_epi32(acc[i / 2][i % 2], s)) : s;
        }
    }
}
/* ---- packed tiles of groups of 64 and more ---- */

LANES_INLINE __m256i dot_load(const uint8_t *tile, int line, int half) {
    return _mm256_loadu_si256((const void *)(tile + line * TILE_LINE + 32 * half));
}
LANES_INLINE __m256i dot_mask(__m256i a, int mask) {
    return _mm256_and_si256(a, _mm256_set1_epi8((char)mask));
}
LANES_INLINE __m256i dot_widen(__m256i acc, __m256i sum) {
    return dot_opaque(_mm256_add_epi32(acc, _mm256_madd_epi16(sum, _mm256_set1_epi16(1))));
}

/* Both halves of a line. */
typedef struct dot_line {
    __m256i h[2];
} dot_line;

LANES_INLINE dot_line dot_zero(void) {
    return (dot_line){{_mm256_setzero_si256(), _mm256_setzero_si256()}};
}
LANES_INLINE dot_line dot_line_at(const uint8_t *tile, int line) {
    return (dot_line){{dot_load(tile, line, 0), dot_load(tile, line, 1)}};
}
/* Shifts the bits up by `by`, or down if it is negative. */
LANES_INLINE dot_line dot_shift(dot_line v, int by) {
    if (by == 0)
        return v;
    LANES_UNROLL
    for (int h = 0; h < 2; h++)
        v.h[h] = by > 0 ? _mm256_slli_epi16(v.h[h], by) : _mm256_srli_epi16(v.h[h], -by);
    return v;
}
/* sum += (v & mask | bits & low) * quad q of the row, in 16 bits. low 0: `bits` is not used. */
LANES_INLINE void dot_quad(dot_line *sum, dot_line v, int mask, dot_line bits, int low, const char *x,
                           int q) {
    const __m256i xs = broadcast_int(x + 4 * q);
    LANES_UNROLL
    for (int h = 0; h < 2; h++) {
        const __m256i upper = dot_mask(v.h[h], mask);
        const __m256i codes = low ? _mm256_or_si256(upper, dot_mask(bits.h[h], low)) : upper;
        sum->h[h] = dot_opaque(_mm256_add_epi16(sum->h[h], _mm256_maddubs_epi16(codes, xs)));
    }
}
/* sum += up / 2^by. */
LANES_INLINE void dot_add_down(dot_line *sum, dot_line up, int by) {
    LANES_UNROLL
    for (int h = 0; h < 2; h++)
        sum->h[h] = _mm256_add_epi16(sum->h[h], _mm256_srai_epi16(up.h[h], by));
}
LANES_INLINE dot_line dot_join(dot_line a, int mask, dot_line b, int low) {
    LANES_UNROLL
    for (int h = 0; h < 2; h++)
        a.h[h] = _mm256_or_si256(dot_mask(a.h[h], mask), dot_mask(b.h[h], low));
    return a;
}
LANES_INLINE void dot_flush(__m256i acc[2], dot_line *sum) {
    acc[0] = dot_widen(acc[0], sum->h[0]);
    acc[1] = dot_widen(acc[1], sum->h[1]);
    *sum = dot_zero();
}

/* One row, as one stream, with the prefetches of as many lines from `next` on among the products. Every line
 * is loaded once for all its fields. One shift serves two fields: the lower one becomes a number, the upper
 * one stays 2 or 4 times too large. Sums of such fields are kept apart and shifted at the end. */
LANES_INLINE void dot_one_2(const uint8_t *tile, const uint8_t *next, const char *x, __m256i acc[2]) {
    dot_line sum = dot_zero(), four = sum, no = sum;
    LANES_UNROLL
    for (int l = 0; l < 4; l++) {
        const dot_line v = dot_line_at(tile, l), down = dot_shift(v, -4);
        dot_quad(&sum, v, 3, no, 0, x, l);
        dot_quad(&four, v, 12, no, 0, x, l + 4);
        dot_quad(&sum, down, 3, no, 0, x, l + 8);
        dot_quad(&four, down, 12, no, 0, x, l + 12);
        tile_ahead(next, 8, l);
    }
    dot_add_down(&sum, four, 2);
    dot_flush(acc, &sum);
}
/* The lowest bit is in another line than the upper two. Two fields that are 4 bits apart are joined at
 * once. */
LANES_INLINE void dot_one_3(const uint8_t *tile, const uint8_t *next, const char *x, __m256i acc[2]) {
    dot_line sum = dot_zero(), two = sum, no = sum;
    LANES_UNROLL
    for (int l = 0; l < 4; l++) {
        const dot_line v = dot_line_at(tile, l), low = dot_line_at(tile, 4 + l % 2);
        const dot_line even = dot_join(dot_shift(v, 1), 0x66, dot_shift(low, -(l / 2)), 0x11);
        dot_quad(&sum, even, 7, no, 0, x, l);
        dot_quad(&sum, dot_shift(even, -4), 7, no, 0, x, l + 8);
        const dot_line odd = dot_join(v, 0xcc, dot_shift(low, -1 - l / 2), 0x22);
        dot_quad(&two, odd, 14, no, 0, x, l + 4);
        dot_quad(&two, dot_shift(odd, -4), 14, no, 0, x, l + 12);
        tile_ahead(next, 12, l);
    }
    dot_add_down(&sum, two, 1);
    dot_flush(acc, &sum);
}
/* The codes' upper 4 bits, and their lowest `rest` bits, which are in the lines after those. Sums of `run`
 * quads fit 16 bits. */
LANES_INLINE void dot_one_4(const uint8_t *tile, const uint8_t *next, int rest, int run, const char *x,
                            __m256i acc[2]) {
    const int per_line = rest ? 8 / rest : 1, n_line = 16 / per_line, low = (1 << rest) - 1;
    dot_line sum = dot_zero(), high = sum;
    LANES_UNROLL
    for (int l = 0; l < 8; l++) {
        const dot_line v = dot_line_at(tile, l);
        const dot_line bits = rest ? dot_line_at(tile, 8 + l % n_line) : v;
        dot_quad(&sum, dot_shift(v, rest), 15 << rest, dot_shift(bits, -(l / n_line * rest)), low, x, l);
        dot_quad(&high, dot_shift(v, rest - 4), 15 << rest, dot_shift(bits, -((l + 8) / n_line * rest)), low,
                 x, l + 8);
        tile_ahead(next, 8 + 2 * rest, l);
        if (l % run == run - 1) {
            dot_flush(acc, &sum);
            dot_flush(acc, &high);
        }
    }
}

LANES_INLINE void dot_step(const kind f, bool ready, int nt, int q0, int step, int half, const uint8_t *tile,
                           __m256i table, const char *x, int64_t x_bytes, __m256i (*acc)[2]);

/* acc += the dot products of a packed tile with one row. Prefetches as many lines from `next` on. */
LANES_INLINE void dot_one(const kind f, const uint8_t *tile, const uint8_t *next, const char *x,
                          __m256i acc[2]) {
    if (f.bits == 2) {
        dot_one_2(tile, next, x, acc);
    } else if (f.bits == 3) {
        dot_one_3(tile, next, x, acc);
    } else if (f.bits <= 6) {
        dot_one_4(tile, next, f.bits - 4, dot_run(f), x, acc);
    } else {
        const __m256i no = _mm256_setzero_si256();
        LANES_UNROLL
        for (int q = 0; q < 16; q++) {
            dot_step(f, false, 1, q, 1, 0, tile, no, x, 0, (__m256i(*)[2])acc);
            dot_step(f, false, 1, q, 1, 1, tile, no, x, 0, (__m256i(*)[2])acc);
            tile_ahead(next, f.bits, q);
        }
    }
}

/* ---- several rows; acc is in memory and is updated once for many quads ---- */

/* The number of rows that dot_tile takes at once, and the formats that kernels are compiled for: name,
 * bits. */
enum { DOT_BLOCK_ROWS = 4 };
#define DOT_EACH_ROWS(X, ...) X(1, __VA_ARGS__) X(2, __VA_ARGS__) X(3, __VA_ARGS__) X(4, __VA_ARGS__)
#if DOT_SIGNS
#define DOT_LONG_KINDS(X)
#define DOT_SHORT_KINDS(X)                                                                                   \
    X(s8g16, 8, NONE, 0, 16)                                                                                 \
    X(a8g16, 8, NONE, 1, 16)                                                                                 \
    X(s8g32, 8, NONE, 0, 32)                                                                                 \
    X(a8g32, 8, NONE, 1, 32)
#else
#define DOT_LONG_KINDS(X) X(b4, 4) X(b5, 5) X(b6, 6) X(b7, 7) X(b8, 8)
/* Formats with groups of 16 and 32: name, bits, table, asym, group. */
#define DOT_SHORT_KINDS(X)                                                                                   \
    X(s4g16, 4, NONE, 0, 16)                                                                                 \
    X(s6g16, 6, NONE, 0, 16)                                                                                 \
    X(s7g16, 7, NONE, 0, 16)                                                                                 \
    X(s8g16, 8, NONE, 0, 16)                                                                                 \
    X(a4g16, 4, NONE, 1, 16)                                                                                 \
    X(a7g16, 7, NONE, 1, 16)                                                                                 \
    X(a8g16, 8, NONE, 1, 16)                                                                                 \
    X(s4g32, 4, NONE, 0, 32)                                                                                 \
    X(s5g32, 5, NONE, 0, 32)                                                                                 \
    X(s7g32, 7, NONE, 0, 32)                                                                                 \
    X(s8g32, 8, NONE, 0, 32)                                                                                 \
    X(a4g32, 4, NONE, 1, 32)                                                                                 \
    X(a5g32, 5, NONE, 1, 32)                                                                                 \
    X(a7g32, 7, NONE, 1, 32)                                                                                 \
    X(a8g32, 8, NONE, 1, 32)
#endif
/* XORed with an 8-bit number, gives the byte that is multiplied. */
#define DOT_FLIP 0

/* How many rows a blocked kernel for groups of 16 and 32 takes at once, so that all its sums stay in
 * registers. With moved signs the floats are in memory and are updated once a group. */
LANES_INLINE int dot_short_rows(const kind f) {
    return DOT_SIGNS ? DOT_ROWS : dot_halved(f) || dot_run(f) * 4 >= f.group ? 3 : 2;
}

/* Multiplies one half of `step` quads from quad q0 on with nt rows. Sums have 16 bits and are then added in
 * 32. */
LANES_INLINE void dot_step(const kind f, bool ready, int nt, int q0, int step, int half, const uint8_t *tile,
                           __m256i table, const char *x, int64_t x_bytes, __m256i (*acc)[2]) {
    __m256i w[2], size[2];
    LANES_UNROLL
    for (int i = 0; i < step; i++) {
        w[i] = ready ? dot_load(tile, q0 + i, half) : dot_codes(f, tile, table, q0 + i, half);
        size[i] = dot_signed(f) ? _mm256_abs_epi8(w[i]) : w[i];
    }
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        __m256i sum = _mm256_setzero_si256(); /* avoids a warning: there is always at least one step */
        LANES_UNROLL
        for (int i = 0; i < step; i++) {
            const __m256i xs = broadcast_int(x + t * x_bytes + 4 * (q0 + i));
            const __m256i p = _mm256_maddubs_epi16(size[i], dot_signed(f) ? _mm256_sign_epi8(xs, w[i]) : xs);
            sum = dot_opaque(i ? _mm256_add_epi16(sum, p) : p);
        }
        acc[t][half] = dot_widen(acc[t][half], sum);
    }
}

/* acc[t] += the dot products of `quads` quads from quad q0 on, whose sum fits 16 bits. 8 such sums use all
 * registers. */
LANES_INLINE void dot_sum_quads(const kind f, bool ready, int nt, int q0, int quads, const uint8_t *tile,
                                __m256i table, const char *x, int64_t x_bytes, __m256i (*acc)[2]) {
    __m256i sum[DOT_ROWS][2];
    LANES_UNROLL
    for (int q = q0; q < q0 + quads; q++) {
        const __m256i w0 = ready ? dot_load(tile, q, 0) : dot_codes(f, tile, table, q, 0);
        const __m256i w1 = ready ? dot_load(tile, q, 1) : dot_codes(f, tile, table, q, 1);
        LANES_UNROLL
        for (int t = 0; t < nt; t++) {
            const __m256i xs = broadcast_int(x + t * x_bytes + 4 * q);
            const __m256i p0 = _mm256_maddubs_epi16(w0, xs), p1 = _mm256_maddubs_epi16(w1, xs);
            sum[t][0] = dot_opaque(q > q0 ? _mm256_add_epi16(sum[t][0], p0) : p0);
            sum[t][1] = dot_opaque(q > q0 ? _mm256_add_epi16(sum[t][1], p1) : p1);
        }
    }
    LANES_UNROLL
    for (int i = 0; i < 2 * nt; i++)
        acc[i / 2][i % 2] = dot_widen(acc[i / 2][i % 2], sum[i / 2][i % 2]);
}

/* acc[t] += the dot products of a tile's 16 quads with nt rows (x_bytes apart). ready: the tile is
 * unpacked. */
LANES_INLINE void dot_tile(const kind f, bool ready, int nt, const uint8_t *tile, const char *x,
                           int64_t x_bytes, __m256i (*acc)[2]) {
    const __m256i no = _mm256_setzero_si256();
    const int run = dot_run(f);
    if (run > 2 && ready) {
        for (int q = 0; q < 16; q += run, tile += run * TILE_LINE, x += 4 * run)
            dot_sum_quads(f, true, nt, 0, run, tile, no, x, x_bytes, acc);
        return;
    }
    if (run > 2) {
        LANES_UNROLL
        for (int q = 0; q < 16; q += run) {
            dot_sum_quads(f, false, nt, q, run, tile, no, x, x_bytes, acc);
            __asm__("" : : : "memory"); /* keeps sums out of registers that the next quads need */
        }
        return;
    }
    __m256i near[DOT_ROWS][2];
    LANES_UNROLL
    for (int i = 0; i < 2 * nt; i++)
        near[i / 2][i % 2] = acc[i / 2][i % 2];
    if (ready) {
        for (int q = 0; q < 16; q += run, tile += run * TILE_LINE, x += 4 * run) {
            dot_step(f, true, nt, 0, run, 0, tile, no, x, x_bytes, near);
            dot_step(f, true, nt, 0, run, 1, tile, no, x, x_bytes, near);
        }
    } else {
        LANES_UNROLL
        for (int q = 0; q < 16; q += run) {
            dot_step(f, false, nt, q, run, 0, tile, no, x, x_bytes, near);
            dot_step(f, false, nt, q, run, 1, tile, no, x, x_bytes, near);
        }
    }
    LANES_UNROLL
    for (int i = 0; i < 2 * nt; i++)
        acc[i / 2][i % 2] = near[i / 2][i % 2];
}

/* acc[t] = the dot products of a packed group, `quads` quads from quad q0 on, with nt rows. */
LANES_INLINE void dot_packed(const kind f, const uint8_t *tile, __m256i table, int q0, int quads, int nt,
                             const char *x, int64_t x_bytes, __m256i acc[DOT_ROWS][2]) {
    const int run = NUM_MIN(dot_run(f), quads);
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        acc[t][0] = acc[t][1] = _mm256_setzero_si256();
    LANES_UNROLL
    for (int q = q0; q < q0 + quads; q += run) {
        if (run > 2) {
            dot_sum_quads(f, false, nt, q, run, tile, table, x, x_bytes, acc);
        } else {
            dot_step(f, false, nt, q, run, 0, tile, table, x, x_bytes, acc);
            dot_step(f, false, nt, q, run, 1, tile, table, x, x_bytes, acc);
        }
    }
}

#endif
