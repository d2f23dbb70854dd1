/* act8.c - activations to integers, a group of 32 in four registers, longer ones in two passes. Rounding and
 * order as in cpu/ref. */
#include "kernels/cpu/avx2/avx2.h"

#include "base/num.h"
#include "kernels/act8.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

static inline int32_t sum_8(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/* top: the largest code. */
static void quantize_group(const float *x, float top, char *row, const act8_layout *l, int64_t group) {
    const __m256 sign = _mm256_set1_ps(-0.0f), limit = _mm256_set1_ps(FLT_MAX);
    __m256 v[4], most = _mm256_setzero_ps(), bad = _mm256_setzero_ps();
    __m256i code[4];
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        const __m256 size = _mm256_andnot_ps(sign, v[i]);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(size, limit, _CMP_NLE_UQ)); /* NaN and infinity */
        most = _mm256_max_ps(size, most);
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    const float largest = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    const bool finite = _mm256_testz_ps(bad, bad), used = finite && largest >= ACT8_TINY;
    const __m256 inverse = _mm256_set1_ps(used ? top / largest : 0.0f);
    for (int i = 0; i < 4; i++)
        code[i] = finite ? _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse)) : _mm256_setzero_si256();
    /* two packs work inside 128-bit halves; the permutation puts the quads back in order */
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(code[0], code[1]), _mm256_packs_epi32(code[2], code[3]));
    _mm256_storeu_si256((void *)(row + group * ACT8_GROUP),
                        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    act8_put(row, l, group, finite ? (used ? largest / top : 0.0f) : NAN,
             sum_8(_mm256_add_epi32(code[0], code[1])), sum_8(_mm256_add_epi32(code[2], code[3])));
}

static __m256 load_part(const float *x, int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)NUM_MIN(n, 8)), lane));
}

/* A group of `size` elements (a multiple of 8), n of which exist. */
static void quantize_long(const float *x, int64_t n, int64_t size, float top, char *row, const act8_layout *l,
                          int64_t at, int64_t group) {
    const __m256 sign = _mm256_set1_ps(-0.0f), limit = _mm256_set1_ps(FLT_MAX);
    __m256 most = _mm256_setzero_ps(), bad = _mm256_setzero_ps();
    __m256i sum = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 v = _mm256_andnot_ps(sign, load_part(x + i, n - i));
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(v, limit, _CMP_NLE_UQ));
        most = _mm256_max_ps(v, most);
    }
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(most), _mm256_extractf128_ps(most, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    const float largest = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    const bool finite = _mm256_testz_ps(bad, bad), used = finite && largest >= ACT8_TINY;
    const __m256 inverse = _mm256_set1_ps(used ? top / largest : 0.0f);
    for (int64_t i = 0; i < size; i += 8) {
        __m256i code = _mm256_setzero_si256();
        if (finite && i < n)
            code = _mm256_cvtps_epi32(_mm256_mul_ps(load_part(x + i, n - i), inverse));
        sum = _mm256_add_epi32(sum, code);
        const __m128i words =
            _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
        _mm_storel_epi64((void *)(row + at + i), _mm_packs_epi16(words, words));
    }
    act_put(row, l, group, finite ? (used ? largest / top : 0.0f) : NAN, sum_8(sum));
}

static void quantize_32(const float *x, int64_t k, float top, const act8_layout *l, void *out) {
    for (int64_t g = 0; g < l->scale / ACT8_GROUP; g++) {
        const int64_t left = k - g * ACT8_GROUP;
        float rest[ACT8_GROUP] = {0};
        const float *from = x + g * ACT8_GROUP;
        if (left < ACT8_GROUP) {
            if (left > 0)
                memcpy(rest, from, (size_t)left * sizeof *x);
            from = rest;
        }
        quantize_group(from, top, out, l, g);
    }
}

void avx2_act_quantize(act_format f, const float *x, int64_t k, void *out) {
    const act8_layout l = act_layout_of(f, k);
    if (f.group == ACT8_GROUP)
        quantize_32(x, k, (float)act_most(f), &l, out);
    else
        act_each_group(f, x, k, out, quantize_long);
}
