/* slice.h - floats as sums of bf16 numbers, in the order in which the tile unit multiplies them.
 *
 * x = x1 + x2 + x3. Each slice is the residual of the earlier ones, rounded to the 8 significand bits of a
 * bf16 (ties away from zero, which is one addition to the bits). The last slice is the remainder. A slice is
 * at most 2^-8 of the one before, and 8 + 8 + 8 bits are the 24 bits of a float. So the sum is exact if the
 * third slice is a normal number, which holds if |x| is at least 2^-102. Weights are sliced in the same way:
 * a bf16 is its own slice, an f16 (11 bits) has two slices, a float three. A float of 2^127 or more could
 * round to infinity. Rows of activations with such a value are found here (slice_wild) and computed by the
 * AVX-512 kernel.
 *
 * The unit's operands are tiles of 16 rows of 32 numbers. The weights' rows are rows of the matrix. The
 * activations' rows are pairs of neighbours in K, a column for each of 16 rows of activations. */
#ifndef NIB_KERNELS_AMX_SLICE_H
#define NIB_KERNELS_AMX_SLICE_H

#include "kernels/cpu/avx512/lanes.h"

enum {
    MAX_SLICES = 3,
    TILE_ROWS = 16,
    STEP_K = 32, /* elements of K in one tile instruction */
    TILE_BYTES = TILE_ROWS * STEP_K * 2
};

/* Cuts 16 pairs into `n` slices; slice s of all pairs goes to to + s * step. n is constant. */
LANES_INLINE void slice_pairs(__m512 even, __m512 odd, int n, char *to, int64_t step) {
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000), half = _mm512_set1_epi32(0x8000);
    LANES_UNROLL
    for (int s = 0; s < n; s++) {
        __m512i e = _mm512_castps_si512(even), o = _mm512_castps_si512(odd);
        if (s < n - 1) {
            e = _mm512_and_si512(_mm512_add_epi32(e, half), upper);
            o = _mm512_and_si512(_mm512_add_epi32(o, half), upper);
            even = _mm512_sub_ps(even, _mm512_castsi512_ps(e));
            odd = _mm512_sub_ps(odd, _mm512_castsi512_ps(o));
        }
        _mm512_store_si512(to + s * step,
                           _mm512_or_si512(_mm512_srli_epi32(e, 16), _mm512_and_si512(o, upper)));
    }
}
/* Cuts 32 numbers in their order into `n` slices. */
LANES_INLINE void slice_row(__m512 x0, __m512 x1, int n, char *to, int64_t step) {
    const __m512i evens = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    slice_pairs(_mm512_permutex2var_ps(x0, evens, x1), _mm512_permutex2var_ps(x0, odds, x1), n, to, step);
}

/* ---- weights ---- */

static inline int weight_slices(int type) {
    return type == TYPE_BF16 ? 1 : type == TYPE_F16 ? 2 : 3;
}
static inline int weight_bytes(int type) {
    return type == TYPE_F32 ? 4 : 2;
}

/* Cuts elements [0, k) of up to 16 rows of weights, `row_bytes` apart, into slices in whole tiles: slice s of
 * step t goes to to + s * step + t * TILE_BYTES. k is a multiple of 16; missing rows and elements are zeros.
 * type is constant. */
LANES_INLINE void slice_weights_as(int type, const char *w, int64_t row_bytes, int n_row, int64_t k, char *to,
                                   int64_t step) {
    for (int r = 0; r < TILE_ROWS; r++)
        for (int64_t at = 0; at < k; at += STEP_K) {
            const char *x = w + r * row_bytes + at * weight_bytes(type);
            char *line = to + at / STEP_K * TILE_BYTES + r * STEP_K * 2;
            const int n = r < n_row ? (int)(k - at) : 0;
            if (type == TYPE_BF16) {
                const __mmask32 m = n >= STEP_K ? 0xffffffff : (__mmask32)((1ull << n) - 1);
                _mm512_store_si512(line, _mm512_maskz_loadu_epi16(m, x));
                continue;
            }
            __m512 x0 = _mm512_setzero_ps(), x1 = _mm512_setzero_ps();
            if (n > 0)
                x0 = type == TYPE_F16 ? v_load_f16((const void *)x) : v_load((const void *)x);
            if (n > LANES)
                x1 = type == TYPE_F16 ? v_load_f16((const uint16_t *)(const void *)x + LANES)
                                      : v_load((const float *)(const void *)x + LANES);
            slice_row(x0, x1, weight_slices(type), line, step);
        }
}
static inline void slice_weights(int type, const char *w, int64_t row_bytes, int n_row, int64_t k, char *to,
                                 int64_t step) {
    if (type == TYPE_BF16)
        slice_weights_as(TYPE_BF16, w, row_bytes, n_row, k, to, step);
    else if (type == TYPE_F16)
        slice_weights_as(TYPE_F16, w, row_bytes, n_row, k, to, step);
    else
        slice_weights_as(TYPE_F32, w, row_bytes, n_row, k, to, step);
}

/* ---- activations ---- */

/* The larger of `max` and |x|, compared as bits: their order is that of the numbers, with infinities and NaNs
 * above all. */
LANES_INLINE __m512i max_slice(__m512i max, __m512 x) {
    return _mm512_max_epu32(max, _mm512_castps_si512(v_abs(x)));
}
/* Mask of the lanes whose `max` is 2^127 or more, an infinity or a NaN. */
LANES_INLINE __mmask16 slice_wild(__m512i max) {
    return _mm512_cmpge_epu32_mask(max, _mm512_set1_epi32(0x7f000000));
}

/* r[i] lane j becomes r[j] lane i. */
LANES_INLINE void transpose(__m512 r[16]) {
    __m512 t[16];
    LANES_UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    LANES_UNROLL
    for (int i = 0; i < 16; i += 4) /* part q of r[i + j] is column 4 q + j of rows i to i + 3 */
        LANES_UNROLL
    for (int j = 0; j < 2; j++) {
        const __m512d a = _mm512_castps_pd(t[i + j]), b = _mm512_castps_pd(t[i + j + 2]);
        r[i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
        r[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
    LANES_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512 a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x88);
        const __m512 b = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x88);
        const __m512 c = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xdd);
        const __m512 d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xdd);
        t[j] = _mm512_shuffle_f32x4(a, b, 0x88);
        t[8 + j] = _mm512_shuffle_f32x4(a, b, 0xdd);
        t[4 + j] = _mm512_shuffle_f32x4(c, d, 0x88);
        t[12 + j] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
    LANES_UNROLL
    for (int i = 0; i < 16; i++)
        r[i] = t[i];
}

/* Cuts elements [0, k) of up to 16 rows of activations, ldx apart, into slices in whole tiles, like
 * slice_weights_as. Returns the mask of wild rows (slice_wild). */
static inline __mmask16 slice_rows(const float *x, int64_t ldx, int n_row, int64_t k, char *to,
                                   int64_t step) {
    __m512i max = _mm512_setzero_si512();
    for (int64_t at = 0; at < num_round_up(k, STEP_K); at += LANES) {
        __m512 r[TILE_ROWS];
        const int64_t n = NUM_MAX(k - at, 0);
        if (n >= LANES && n_row == TILE_ROWS) {
            LANES_UNROLL
            for (int i = 0; i < TILE_ROWS; i++)
                r[i] = v_load(x + i * ldx + at);
        } else {
            LANES_UNROLL
            for (int i = 0; i < TILE_ROWS; i++)
                r[i] = i < n_row && n > 0
                           ? _mm512_maskz_loadu_ps(v_between(0, (int)NUM_MIN(n, LANES)), x + i * ldx + at)
                           : v_zero();
        }
        transpose(r);
        char *lines = to + at / STEP_K * TILE_BYTES + at % STEP_K / 2 * (TILE_ROWS * 4);
        LANES_UNROLL
        for (int p = 0; p < LANES / 2; p++) {
            max = max_slice(max_slice(max, r[2 * p]), r[2 * p + 1]);
            slice_pairs(r[2 * p], r[2 * p + 1], MAX_SLICES, lines + p * (TILE_ROWS * 4), step);
        }
    }
    return slice_wild(max);
}
#endif
