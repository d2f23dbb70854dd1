/* act8.c - quantizes activations. Groups of 32 are done four at a time: one vector has a value of each group,
 * so their divisions and sums overlap. Longer groups take two passes. Rounding and order are those of
 * cpu/ref. */
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

static inline __m256i codes_8(__m256 v, __m256 inverse, float top) {
    return _mm256_min_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(v, inverse)), _mm256_set1_epi32((int)top));
}
/* The largest and the smallest of eight values. */
static inline float max_8(__m256 v) {
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}
static inline float min_8(__m256 v) {
    return -max_8(_mm256_xor_ps(v, _mm256_set1_ps(-0.0f)));
}

/* Quantizes one group of any numbers, finite or not. top: the largest code. */
static void quantize_group(const float *x, float top, char *row, const act8_layout *l, int64_t group) {
    const __m256 sign = _mm256_set1_ps(-0.0f), limit = _mm256_set1_ps(FLT_MAX);
    __m256 v[4], max = _mm256_setzero_ps(), min = max, bad = max;
    __m256i code[4];
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        const __m256 size = _mm256_andnot_ps(sign, v[i]);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(size, limit, _CMP_NLE_UQ)); /* NaN and infinity */
        max = _mm256_max_ps(size, max);
        min = _mm256_min_ps(v[i], min);
    }
    const float largest = max_8(max), steps = act_steps(top, -min_8(min) == largest);
    const bool finite = _mm256_testz_ps(bad, bad), used = finite && largest >= ACT8_TINY;
    const __m256 inverse = _mm256_set1_ps(used ? steps / largest : 0.0f);
    for (int i = 0; i < 4; i++)
        code[i] = finite ? codes_8(v[i], inverse, top) : _mm256_setzero_si256();
    /* the two packs work within 128-bit halves; the permutation restores the order of the quads */
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(code[0], code[1]), _mm256_packs_epi32(code[2], code[3]));
    _mm256_storeu_si256((void *)(row + group * ACT8_GROUP),
                        _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
    act8_put(row, l, group, finite ? (used ? largest / steps : 0.0f) : NAN,
             sum_8(_mm256_add_epi32(code[0], code[1])), sum_8(_mm256_add_epi32(code[2], code[3])));
}

enum { GROUPS = 4 };

/* The bits of a magnitude and, below them, the sign: the larger of two has the larger magnitude, and of equal
 * ones is the negative. */
static inline __m256i sign_last(const __m256i *from) {
    const __m256i v = _mm256_loadu_si256(from);
    return _mm256_or_si256(_mm256_slli_epi32(v, 1), _mm256_srli_epi32(v, 31));
}
/* sign_last of the largest magnitude in each of four groups. The bits of NaN are larger than those of
 * infinity, which are larger than those of all numbers. */
static inline __m128i largest_of(const float *x) {
    __m128i max[GROUPS];
    for (int g = 0; g < GROUPS; g++) {
        const __m256i *from = (const void *)(x + g * ACT8_GROUP);
        __m256i m = sign_last(from);
        for (int i = 1; i < 4; i++)
            m = _mm256_max_epu32(m, sign_last(from + i));
        max[g] = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    }
    const __m128i a = _mm_max_epu32(_mm_unpacklo_epi32(max[0], max[1]), _mm_unpackhi_epi32(max[0], max[1]));
    const __m128i b = _mm_max_epu32(_mm_unpacklo_epi32(max[2], max[3]), _mm_unpackhi_epi32(max[2], max[3]));
    return _mm_max_epu32(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b));
}
/* act_steps of four groups. */
static inline __m128 steps_of(__m128i largest, float top) {
    const __m128i positive = _mm_slli_epi32(_mm_xor_si128(largest, _mm_set1_epi32(1)), 31);
    return top > 7 ? _mm_set1_ps(top) : _mm_xor_ps(_mm_set1_ps(8), _mm_castsi128_ps(positive));
}

/* Stores the codes of a group and returns the sums of each 4 neighbours. */
static inline __m256i put_codes(const float *x, __m256 inverse, float top, char *codes) {
    __m256i code[4];
    for (int i = 0; i < 4; i++)
        code[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
    const __m256i packed =
        _mm256_packs_epi16(_mm256_packs_epi32(code[0], code[1]), _mm256_packs_epi32(code[2], code[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes =
        _mm256_min_epi8(_mm256_permutevar8x32_epi32(packed, order), _mm256_set1_epi8((char)top));
    _mm256_storeu_si256((void *)codes, bytes);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes), _mm256_set1_epi16(1));
}

/* Stores what act8_put stores, for four groups, from their scales and the sums of their halves. */
static inline void put_sums(char *row, const act8_layout *l, int64_t group, __m128 scale, __m128i sum0,
                            __m128i sum1) {
    const __m128i all = _mm_add_epi32(sum0, sum1), none = _mm_setzero_si128();
    const __m128i first = _mm_unpacklo_epi32(sum0, sum1), last = _mm_unpackhi_epi32(sum0, sum1);
    float *lift16 = (float *)(void *)(row + l->lift16) + 2 * group;
    char *minus16 = row + l->minus16 + 8 * group;
    _mm_storeu_ps((float *)(void *)(row + l->scale) + group, scale);
    _mm_storeu_ps((float *)(void *)(row + l->lift) + group, _mm_mul_ps(scale, _mm_cvtepi32_ps(all)));
    _mm_storeu_si128((void *)(row + l->minus + 4 * group), _mm_sub_epi32(none, all));
    _mm_storeu_ps(lift16, _mm_mul_ps(_mm_unpacklo_ps(scale, scale), _mm_cvtepi32_ps(first)));
    _mm_storeu_ps(lift16 + 4, _mm_mul_ps(_mm_unpackhi_ps(scale, scale), _mm_cvtepi32_ps(last)));
    _mm_storeu_si128((void *)minus16, _mm_sub_epi32(none, first));
    _mm_storeu_si128((void *)(minus16 + 16), _mm_sub_epi32(none, last));
}

/* Quantizes four groups. false: some number is not finite, and nothing was written. */
static bool quantize_groups(const float *x, float top, char *row, const act8_layout *l, int64_t group) {
    const __m128i key = largest_of(x), bits = _mm_srli_epi32(key, 1);
    const __m128i wild = _mm_cmpgt_epi32(bits, _mm_castps_si128(_mm_set1_ps(FLT_MAX)));
    if (!_mm_testz_si128(wild, wild))
        return false;
    const __m128 largest = _mm_castsi128_ps(bits), steps = steps_of(key, top);
    const __m128 used = _mm_cmp_ps(largest, _mm_set1_ps(ACT8_TINY), _CMP_GE_OQ);
    float inverse[GROUPS];
    __m256i sums[GROUPS];
    _mm_storeu_ps(inverse, _mm_and_ps(used, _mm_div_ps(steps, largest)));
    for (int g = 0; g < GROUPS; g++)
        sums[g] = put_codes(x + g * ACT8_GROUP, _mm256_broadcast_ss(inverse + g), top,
                            row + (group + g) * ACT8_GROUP);
    const __m256i halves =
        _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    put_sums(row, l, group, _mm_and_ps(used, _mm_div_ps(largest, steps)), _mm256_castsi256_si128(halves),
             _mm256_extracti128_si256(halves, 1));
    return true;
}

static __m256 load_part(const float *x, int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(x, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)NUM_MIN(n, 8)), lane));
}

/* Quantizes a group of `size` elements (a multiple of 8), of which the row has n. */
static void quantize_long(const float *x, int64_t n, int64_t size, float top, char *row, const act8_layout *l,
                          int64_t at, int64_t group) {
    const __m256 sign = _mm256_set1_ps(-0.0f), limit = _mm256_set1_ps(FLT_MAX);
    __m256 max = _mm256_setzero_ps(), min = max, bad = max;
    __m256i sum = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i += 8) {
        const __m256 v = load_part(x + i, n - i), magnitude = _mm256_andnot_ps(sign, v);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(magnitude, limit, _CMP_NLE_UQ));
        max = _mm256_max_ps(magnitude, max);
        min = _mm256_min_ps(v, min);
    }
    const float largest = max_8(max), steps = act_steps(top, -min_8(min) == largest);
    const bool finite = _mm256_testz_ps(bad, bad), used = finite && largest >= ACT8_TINY;
    const __m256 inverse = _mm256_set1_ps(used ? steps / largest : 0.0f);
    for (int64_t i = 0; i < size; i += 8) {
        __m256i code = _mm256_setzero_si256();
        if (finite && i < n)
            code = codes_8(load_part(x + i, n - i), inverse, top);
        sum = _mm256_add_epi32(sum, code);
        const __m128i words =
            _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
        _mm_storel_epi64((void *)(row + at + i), _mm_packs_epi16(words, words));
    }
    act_put(row, l, group, finite ? (used ? largest / steps : 0.0f) : NAN, sum_8(sum));
}

/* Quantizes groups [first, n) of a row. Whole groups are taken four at a time. If their number is no multiple
 * of four, the last four overlap those before. */
static void quantize_32(const float *x, int64_t k, float top, const act8_layout *l, void *out, int64_t first,
                        int64_t n) {
    const int64_t n_whole = NUM_MIN(k / ACT8_GROUP, n);
    int64_t g = first;
    while (n_whole - first >= GROUPS && g < n_whole) {
        const int64_t at = NUM_MIN(g, n_whole - GROUPS);
        if (!quantize_groups(x + at * ACT8_GROUP, top, out, l, at))
            for (; g < at + GROUPS; g++)
                quantize_group(x + g * ACT8_GROUP, top, out, l, g);
        g = at + GROUPS;
    }
    for (; g < n; g++) {
        const int64_t left = k - g * ACT8_GROUP;
        float rest[ACT8_GROUP] = {0};
        if (left > 0)
            memcpy(rest, x + g * ACT8_GROUP, (size_t)NUM_MIN(left, ACT8_GROUP) * sizeof *x);
        quantize_group(rest, top, out, l, g);
    }
}

void avx2_act_quantize(act_format f, const float *x, int64_t k, void *out) {
    const act8_layout l = act_layout_of(f, k);
    const int64_t n = l.scale / ACT8_GROUP, n8 = NUM_MIN(f.n8 * ACT_BLOCK / ACT8_GROUP, n);
    if (f.group != ACT8_GROUP) {
        act_each_group(f, x, k, out, quantize_long);
        return;
    }
    quantize_32(x, k, max_act_at(f, 0), &l, out, 0, n8);
    quantize_32(x, k, max_act_at(f, n8 * ACT8_GROUP), &l, out, n8, n);
}
