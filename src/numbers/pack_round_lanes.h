/* pack_round_lanes.h - vector versions of pack_scale.c and of the loops of pack_round.c, with the same
 * results: 8 lanes of a group as there, and several candidates at once. Included by a folder's round.c, which
 * defines
 *
 *   vec, WIDE          a vector of 8 lanes, or (WIDE) of twice 8 for two candidates
 *   v_load8(p)         8 floats, in both halves
 *   v_each(c, i)       c[i] in all lanes; WIDE: c[i] in the lower, c[i + 4] in the upper half
 *   v_set(f)           f in all lanes
 *   min_v(a, b), max_v(a, b)   b when one is NaN
 *   v_half(v, i)       8 lanes: all of v, or (WIDE) its lower (i = 0) or upper half
 *
 * This file defines ROUNDER, an initialiser of pack_rounder. */
#ifndef NIB_NUMBERS_PACK_ROUND_LANES_H
#define NIB_NUMBERS_PACK_ROUND_LANES_H

#include "numbers/pack_isa.h"
#include "numbers/pack_scale.h"
#include "numbers/types.h"

#include <math.h>
#include <string.h>

#ifdef __clang__
#define UNROLL4 _Pragma("clang loop unroll(full)")
#else
#define UNROLL4 _Pragma("GCC unroll 4")
#endif

enum { LANES = 8, N_STEP = 8, AT_ONCE = WIDE ? 8 : 4 };

/* ---- a group ---- */

/* As in pack_scale.c. */
typedef struct group {
    _Alignas(32) float x[MAX_PACK_SCALE], weight[MAX_PACK_SCALE];
    int n;
    float low, high;
} group;

ROUND_INLINE vec v_code(vec x, vec low, vec high) {
    const vec big = v_set(12582912.0f);
    return max_v(low, min_v(high, (x + big) - big));
}

/* Sums of lanes, in this order: pairs, pairs of pairs, halves. */
ROUND_INLINE __m128 totals8(__m256 a, __m256 b, __m256 c, __m256 d) {
    const __m256 quads = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1));
}
/* Sums of the lanes of 4 vectors, lower halves first. */
ROUND_INLINE void v_totals(const vec v[4], float *out) {
    for (int h = 0; h <= WIDE; h++)
        _mm_storeu_ps(out + 4 * h,
                      totals8(v_half(v[0], h), v_half(v[1], h), v_half(v[2], h), v_half(v[3], h)));
}

ROUND_INLINE __m256 half_floats(__m128i h) {
    return _mm256_cvtph_ps(h);
}
ROUND_INLINE __m128i to_halves(__m256 x) {
    return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ROUND_INLINE __m256 absolute(__m256 x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}
/* Whether the magnitude is above zero and finite. */
ROUND_INLINE __m256 is_step(__m256 x) {
    const __m256 size = absolute(x);
    return _mm256_and_ps(_mm256_cmp_ps(size, _mm256_setzero_ps(), _CMP_GT_OQ),
                         _mm256_cmp_ps(size, _mm256_set1_ps(INFINITY), _CMP_LT_OQ));
}
static float total(__m256 lanes) {
    return _mm_cvtss_f32(totals8(lanes, lanes, lanes, lanes));
}

static void fill(group *g, const pack_values *v, int zero, int max) {
    const int n = v->n;
    __m256 squares = _mm256_setzero_ps();
    g->n = (n + LANES - 1) / LANES * LANES;
    g->low = (float)-zero;
    g->high = (float)(max - zero);
    memcpy(g->x, v->x, (size_t)n * sizeof *g->x);
    memset(g->x + n, 0, (size_t)(g->n - n) * sizeof *g->x);
    for (int i = 0; i < g->n; i += LANES) {
        const __m256 x = _mm256_load_ps(g->x + i);
        squares = _mm256_add_ps(squares, _mm256_mul_ps(x, x));
    }
    const __m256 rms = _mm256_set1_ps(sqrtf(total(squares) / (float)n));
    for (int i = 0; i < g->n; i += LANES)
        _mm256_store_ps(g->weight + i, _mm256_add_ps(rms, absolute(_mm256_load_ps(g->x + i))));
    for (int i = 0; i < n && v->column; i++)
        g->weight[i] *= v->column[i];
    memset(g->weight + n, 0, (size_t)(g->n - n) * sizeof *g->weight);
}

/* ---- candidates ---- */

/* Sums for each of N_STEP candidates. */
typedef struct sums {
    float wq[N_STEP], wqq[N_STEP], wqx[N_STEP];
} sums;

/* Rounds the values minus `from`, times each `inverse` step, to codes. Sums weight * code, weight * code^2,
 * and weight * code * value. */
static void sum_codes(const group *g, const float inverse[N_STEP], float from, sums *out) {
    const vec origin = v_set(from), low = v_set(g->low), high = v_set(g->high);
    for (int c = 0; c < N_STEP; c += AT_ONCE) {
        vec inv[4], wq[4], wqq[4], wqx[4];
        UNROLL4 for (int i = 0; i < 4; i++) {
            inv[i] = v_each(inverse + c, i);
            wq[i] = wqq[i] = wqx[i] = v_set(0);
        }
        for (int at = 0; at < g->n; at += LANES) {
            const vec x = v_load8(g->x + at) - origin, weight = v_load8(g->weight + at);
            UNROLL4 for (int i = 0; i < 4; i++) {
                const vec q = v_code(x * inv[i], low, high), w = weight * q;
                wq[i] += w;
                wqq[i] += w * q;
                wqx[i] += w * x;
            }
        }
        v_totals(wq, out->wq + c);
        v_totals(wqq, out->wqq + c);
        v_totals(wqx, out->wqx + c);
    }
}

/* The errors of N_STEP pairs of step and minimum. */
static __m256 errors_of(const group *g, __m256 steps, __m256 mins) {
    const vec low = v_set(g->low), high = v_set(g->high);
    float step[N_STEP], min[N_STEP], inverse[N_STEP], out[N_STEP];
    _mm256_storeu_ps(step, steps);
    _mm256_storeu_ps(min, mins);
    _mm256_storeu_ps(inverse, _mm256_div_ps(_mm256_set1_ps(1), steps));
    for (int c = 0; c < N_STEP; c += AT_ONCE) {
        vec s[4], m[4], inv[4], sum[4];
        UNROLL4 for (int i = 0; i < 4; i++) {
            s[i] = v_each(step + c, i);
            m[i] = v_each(min + c, i);
            inv[i] = v_each(inverse + c, i);
            sum[i] = v_set(0);
        }
        for (int at = 0; at < g->n; at += LANES) {
            const vec values = v_load8(g->x + at), weight = v_load8(g->weight + at);
            UNROLL4 for (int i = 0; i < 4; i++) {
                const vec x = values - m[i], d = x - s[i] * v_code(x * inv[i], low, high);
                sum[i] += weight * d * d;
            }
        }
        v_totals(sum, out + c);
    }
    return _mm256_loadu_ps(out);
}

/* The error of one pair. */
static float error_of(const group *g, uint16_t step, uint16_t min) {
    const __m256 s = half_floats(_mm_set1_epi16((short)step)), m = half_floats(_mm_set1_epi16((short)min));
    const __m256 inverse = _mm256_set1_ps(1) / s, big = _mm256_set1_ps(12582912.0f);
    __m256 sum = _mm256_setzero_ps();
    for (int i = 0; i < g->n; i += LANES) {
        const __m256 x = _mm256_load_ps(g->x + i) - m, q = (x * inverse + big) - big;
        const __m256 code = _mm256_max_ps(_mm256_set1_ps(g->low), _mm256_min_ps(_mm256_set1_ps(g->high), q));
        const __m256 d = x - s * code;
        sum += _mm256_load_ps(g->weight + i) * d * d;
    }
    return total(sum);
}

/* The first candidate with the smallest error below *min_error; -1: none. */
static int min_of(__m256 errors, __m256 is_there, float *min_error) {
    float e[N_STEP];
    const int there = _mm256_movemask_ps(is_there);
    int best = -1;
    _mm256_storeu_ps(e, errors);
    for (int i = 0; i < N_STEP; i++)
        if (there >> i & 1 && e[i] < *min_error) {
            *min_error = e[i];
            best = i;
        }
    return best;
}

static bool is_size(float size) { /* within these bounds cubes and steps are finite */
    return size > 1e-9f && size < 6e4f;
}

/* i / 7 in float division. */
ROUND_INLINE __m256 sevenths(void) {
    return _mm256_div_ps(_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_ps(N_STEP - 1));
}
static __m256 reaches(float first, float span) {
    return _mm256_add_ps(_mm256_set1_ps(first), _mm256_mul_ps(sevenths(), _mm256_set1_ps(span)));
}

static uint16_t search(const pack_values *v, int zero, float peak, uint16_t plain) {
    group g;
    if (!is_size(fabsf(peak)) || (plain & 0x7fff) == 0)
        return plain;
    fill(&g, v, zero, 2 * zero - 1);
    float inverse[N_STEP], min_error = error_of(&g, plain, 0);
    const __m256 reach = reaches((float)zero - 1, 3 + (float)zero / 8);
    _mm256_storeu_ps(inverse,
                     _mm256_div_ps(_mm256_xor_ps(reach, _mm256_set1_ps(-0.0f)), _mm256_set1_ps(peak)));
    sums s;
    sum_codes(&g, inverse, 0, &s);
    const __m256 all = _mm256_loadu_ps(s.wqq), none = _mm256_setzero_ps();
    const __m256 steps =
        _mm256_and_ps(_mm256_div_ps(_mm256_loadu_ps(s.wqx), all), _mm256_cmp_ps(all, none, _CMP_GT_OQ));
    const __m128i halves = to_halves(steps);
    const __m256 rounded = half_floats(halves);
    const int best = min_of(errors_of(&g, rounded, none), is_step(rounded), &min_error);
    uint16_t h[N_STEP];
    _mm_storeu_si128((void *)h, halves);
    return best < 0 ? plain : h[best];
}

/* Sums of the weights and of weight * value: the same for all candidates. */
static void sum_values(const group *g, float from, float *weights, float *products) {
    __m256 w = _mm256_setzero_ps(), wx = w;
    for (int i = 0; i < g->n; i += LANES) {
        const __m256 weight = _mm256_load_ps(g->weight + i);
        w = _mm256_add_ps(w, weight);
        wx = _mm256_add_ps(
            wx, _mm256_mul_ps(weight, _mm256_sub_ps(_mm256_load_ps(g->x + i), _mm256_set1_ps(from))));
    }
    *weights = total(w);
    *products = total(wx);
}

static void search_line(const pack_values *v, int max, float low, float high, uint16_t *scale,
                        uint16_t *min) {
    group g;
    if (!is_size(high - low) || !is_size(fmaxf(fabsf(low), fabsf(high))) || (int16_t)*scale <= 0 ||
        *scale > 0x7c00)
        return;
    fill(&g, v, 0, max);
    float inverse[N_STEP], weights, products, min_error = error_of(&g, *scale, *min);
    _mm256_storeu_ps(inverse,
                     _mm256_div_ps(reaches((float)max - 1, 2 + (float)max / 8), _mm256_set1_ps(high - low)));
    sums s;
    sum_values(&g, low, &weights, &products);
    sum_codes(&g, inverse, low, &s);
    const __m256 sw = _mm256_set1_ps(weights), sx = _mm256_set1_ps(products), sq = _mm256_loadu_ps(s.wq),
                 sqq = _mm256_loadu_ps(s.wqq), sqx = _mm256_loadu_ps(s.wqx);
    const __m256 det = sw * sqq - sq * sq;
    const __m128i steps = to_halves((sw * sqx - sq * sx) / det),
                  mins = to_halves(_mm256_set1_ps(low) + (sqq * sx - sq * sqx) / det);
    const __m256 step = half_floats(steps), from = half_floats(mins);
    const __m256 there =
        _mm256_and_ps(_mm256_and_ps(is_step(step), _mm256_cmp_ps(det, _mm256_setzero_ps(), _CMP_GT_OQ)),
                      _mm256_cmp_ps(absolute(from), _mm256_set1_ps(INFINITY), _CMP_LT_OQ));
    const int best = min_of(errors_of(&g, step, from), there, &min_error);
    uint16_t h[N_STEP], m[N_STEP];
    _mm_storeu_si128((void *)h, steps);
    _mm_storeu_si128((void *)m, mins);
    if (best >= 0) {
        *scale = h[best];
        *min = m[best];
    }
}

/* ---- loops over values ---- */

static void ends(const float *x, int n, pack_range *r) {
    __m256 low = _mm256_set1_ps(INFINITY), high = _mm256_set1_ps(-INFINITY),
           finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        const __m256 v = _mm256_loadu_ps(x + i);
        low = _mm256_min_ps(v, low);
        high = _mm256_max_ps(v, high);
        finite = _mm256_and_ps(finite, _mm256_cmp_ps(absolute(v), _mm256_set1_ps(INFINITY), _CMP_LT_OQ));
    }
    float lows[LANES], highs[LANES];
    _mm256_storeu_ps(lows, low);
    _mm256_storeu_ps(highs, high);
    pack_range found = {INFINITY, -INFINITY, _mm256_movemask_ps(finite) != 0xff};
    for (int j = 0; j < LANES; j++) {
        found.low = lows[j] < found.low ? lows[j] : found.low;
        found.high = highs[j] > found.high ? highs[j] : found.high;
    }
    pack_rounder_plain.ends(x + i, n - i, &found);
    if (found.low == 0 ||
        found.high == 0) { /* the sign of a zero depends on the order, so take the plain loop's */
        found = (pack_range){INFINITY, -INFINITY, false};
        pack_rounder_plain.ends(x, n, &found);
    }
    *r = found;
}

static void to_codes(const float *x, int n, float min, float step, int zero, int max, uint8_t *codes) {
    int i = 0;
    for (; i + LANES <= n && step != 0 && !isnan(step); i += LANES) {
        __m256 q =
            _mm256_div_ps(_mm256_sub_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(min)), _mm256_set1_ps(step));
        q = _mm256_round_ps(q, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        q = _mm256_min_ps(_mm256_max_ps(q, _mm256_set1_ps((float)-zero)),
                          _mm256_set1_ps((float)(max - zero)));
        const __m256i c = _mm256_add_epi32(_mm256_cvtps_epi32(q), _mm256_set1_epi32(zero));
        const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
        _mm_storel_epi64((void *)(codes + i), _mm_packus_epi16(words, words));
    }
    pack_rounder_plain.codes(x + i, n - i, min, step, zero, max, codes + i);
}

static void f16_values(const void *raw, float *out, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_ps(out + i, half_floats(_mm_loadu_si128((const void *)((const uint8_t *)raw + 2 * i))));
    type_get(TYPE_F16)->dequantize((const uint8_t *)raw + 2 * i, out + i, n - i);
}

static void f16_write(const float *x, void *raw, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        _mm_storeu_si128((void *)((uint8_t *)raw + 2 * i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    type_get(TYPE_F16)->quantize(x + i, (uint8_t *)raw + 2 * i, n - i);
}

#define ROUNDER                                                                                              \
    { f16_values, f16_write, ends, search, search_line, to_codes }

#endif
