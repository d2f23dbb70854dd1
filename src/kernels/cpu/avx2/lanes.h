/* lanes.h - 16 lanes in two registers. */
#ifndef NIB_KERNELS_AVX2_LANES_H
#define NIB_KERNELS_AVX2_LANES_H

#include "kernels/lanes/lanes.h"
#include "numbers/blocks.h"

#include <immintrin.h>
#include <string.h>

enum { ROWS_N = 2, ROWS_M = 3, ROWS_N1 = 4, ATTEND_TILE = 6, ATTEND_VEC = 1 };

typedef struct vf {
    __m256 a, b;
} vf;
typedef vf vm; /* a lane has all bits set, or none */

#define BOTH(call_a, call_b)                                                                                 \
    (vf) {                                                                                                   \
        call_a, call_b                                                                                       \
    }

LANES_SHORT static inline vf v_zero(void) {
    return BOTH(_mm256_setzero_ps(), _mm256_setzero_ps());
}
LANES_SHORT static inline vf v_set(float x) {
    return BOTH(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
LANES_SHORT static inline vf v_load(const float *p) {
    return BOTH(_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
LANES_SHORT static inline void v_store(float *p, vf x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
/* Mask of the lanes i with lo <= first + i < hi. */
LANES_SHORT static inline __m256 mask_between(int first, int lo, int hi) {
    const __m256i i = _mm256_add_epi32(_mm256_set1_epi32(first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i from = _mm256_cmpgt_epi32(_mm256_set1_epi32(lo), i),
                  below = _mm256_cmpgt_epi32(_mm256_set1_epi32(hi), i);
    return _mm256_castsi256_ps(_mm256_andnot_si256(from, below));
}
LANES_SHORT static inline vm v_between(int lo, int hi) {
    return BOTH(mask_between(0, lo, hi), mask_between(8, lo, hi));
}
LANES_SHORT static inline vf v_load_part(const float *p, int n) {
    const vm m = v_between(0, n);
    return BOTH(_mm256_maskload_ps(p, _mm256_castps_si256(m.a)),
                _mm256_maskload_ps(p + 8, _mm256_castps_si256(m.b)));
}
LANES_SHORT static inline void v_store_part(float *p, vf x, int n) {
    const vm m = v_between(0, n);
    _mm256_maskstore_ps(p, _mm256_castps_si256(m.a), x.a);
    _mm256_maskstore_ps(p + 8, _mm256_castps_si256(m.b), x.b);
}
LANES_SHORT static inline vf v_add(vf x, vf y) {
    return BOTH(_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b));
}
LANES_SHORT static inline vf v_sub(vf x, vf y) {
    return BOTH(_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b));
}
LANES_SHORT static inline vf v_mul(vf x, vf y) {
    return BOTH(_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b));
}
LANES_SHORT static inline vf v_div(vf x, vf y) {
    return BOTH(_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b));
}
LANES_SHORT static inline vf v_fma(vf x, vf y, vf z) {
    return BOTH(_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b));
}
LANES_SHORT static inline vf v_fnma(vf x, vf y, vf z) {
    return BOTH(_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b));
}
LANES_SHORT static inline vf v_min(vf x, vf y) {
    return BOTH(_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b));
}
LANES_SHORT static inline vf v_max(vf x, vf y) {
    return BOTH(_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b));
}
#define TO_NEAREST (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
LANES_SHORT static inline vf v_round(vf x) {
    return BOTH(_mm256_round_ps(x.a, TO_NEAREST), _mm256_round_ps(x.b, TO_NEAREST));
}
LANES_SHORT static inline vf v_abs(vf x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return BOTH(_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b));
}
LANES_SHORT static inline vf v_copysign(vf x, vf y) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return BOTH(_mm256_or_ps(_mm256_andnot_ps(sign, x.a), _mm256_and_ps(sign, y.a)),
                _mm256_or_ps(_mm256_andnot_ps(sign, x.b), _mm256_and_ps(sign, y.b)));
}
/* Half of n is added to the exponent bits of p, because the result is a normal number. Then 2 to the other
 * half is multiplied, which rounds. For NaN both halves are multiples of 512, so their bits add nothing. */
LANES_SHORT static inline __m256 times_pow2_8(__m256 p, __m256 n) {
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    const __m256i rest = _mm256_add_epi32(_mm256_sub_epi32(whole, half), _mm256_set1_epi32(127));
    const __m256i first = _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(half, 23));
    return _mm256_mul_ps(_mm256_castsi256_ps(first), _mm256_castsi256_ps(_mm256_slli_epi32(rest, 23)));
}
LANES_SHORT static inline vf v_times_pow2(vf p, vf n) {
    return BOTH(times_pow2_8(p.a, n.a), times_pow2_8(p.b, n.b));
}
LANES_SHORT static inline vm v_less(vf x, vf y) {
    return BOTH(_mm256_cmp_ps(x.a, y.a, _CMP_LT_OQ), _mm256_cmp_ps(x.b, y.b, _CMP_LT_OQ));
}
LANES_SHORT static inline vf v_select(vm m, vf x, vf y) {
    return BOTH(_mm256_blendv_ps(y.a, x.a, m.a), _mm256_blendv_ps(y.b, x.b, m.b));
}
LANES_SHORT static inline vf v_load_f16(const uint16_t *p) {
    return BOTH(_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8))));
}
LANES_SHORT static inline vf v_load_f16_part(const uint16_t *p, int n) {
    uint16_t whole[LANES] = {0};
    memcpy(whole, p, (size_t)n * sizeof *p);
    return v_load_f16(whole);
}
LANES_SHORT static inline __m256 bf16_8(const uint16_t *p) {
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
LANES_SHORT static inline vf v_load_bf16(const uint16_t *p) {
    return BOTH(bf16_8(p), bf16_8(p + 8));
}
LANES_SHORT static inline void v_store_f16(uint16_t *p, vf x) {
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph(x.a, TO_NEAREST));
    _mm_storeu_si128((void *)(p + 8), _mm256_cvtps_ph(x.b, TO_NEAREST));
}
LANES_SHORT static inline __m256 codes_8(__m128i bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
LANES_SHORT static inline vf v_load_u8(const uint8_t *p) {
    return BOTH(codes_8(_mm_loadl_epi64((const void *)p)), codes_8(_mm_loadl_epi64((const void *)(p + 8))));
}
LANES_SHORT static inline vf v_load_u4(const uint8_t *p, bool high) {
    const __m128i both = _mm_loadu_si128((const void *)p);
    const __m128i x = _mm_and_si128(high ? _mm_srli_epi16(both, 4) : both, _mm_set1_epi8(15));
    return BOTH(codes_8(x), codes_8(_mm_srli_si128(x, 8)));
}
LANES_SHORT static inline __m256 permute_8(vf x, __m256i from) {
    const __m256 a = _mm256_permutevar8x32_ps(x.a, from), b = _mm256_permutevar8x32_ps(x.b, from);
    return _mm256_blendv_ps(a, b,
                            _mm256_castsi256_ps(_mm256_slli_epi32(from, 28))); /* the sign: 8 and more */
}
/* Lane i is x's lane from[i]. */
LANES_SHORT static inline vf v_permute(vf x, const int32_t *from) {
    return BOTH(permute_8(x, _mm256_loadu_si256((const void *)from)),
                permute_8(x, _mm256_loadu_si256((const void *)(from + 8))));
}
LANES_SHORT static inline __m256 e4m3_8(__m128i bytes) {
    const __m256i x = _mm256_cvtepu8_epi32(bytes), sign = _mm256_slli_epi32(x, 24);
    const __m256i magnitude = _mm256_slli_epi32(_mm256_and_si256(x, _mm256_set1_epi32(0x7f)), 20);
    const __m256 f = _mm256_mul_ps(_mm256_castsi256_ps(magnitude), _mm256_set1_ps(0x1p120f));
    return _mm256_or_ps(f, _mm256_and_ps(_mm256_castsi256_ps(sign), _mm256_set1_ps(-0.0f)));
}
LANES_SHORT static inline vf v_load_e4m3(const uint8_t *p) {
    return BOTH(e4m3_8(_mm_loadl_epi64((const void *)p)), e4m3_8(_mm_loadl_epi64((const void *)(p + 8))));
}
LANES_SHORT static inline vf v_load_e2m1(const uint8_t *p, bool high) {
    const __m128i both = _mm_loadu_si128((const void *)p),
                  values = _mm_loadu_si128((const void *)e2m1_values);
    const __m128i codes = _mm_and_si128(high ? _mm_srli_epi16(both, 4) : both, _mm_set1_epi8(15));
    const __m128i x = _mm_shuffle_epi8(values, codes);
    return BOTH(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))));
}
LANES_SHORT static inline float v_sum(vf x) {
    const __m256 y = _mm256_add_ps(x.a, x.b);
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
LANES_SHORT static inline float v_largest(vf x) {
    const __m256 y = _mm256_max_ps(x.a, x.b);
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}
LANES_SHORT static inline const float *v_before(vf *a, const float *p) {
    __asm__("" : "+r"(p), "+x"(a->a), "+x"(a->b));
    return p;
}

#endif
