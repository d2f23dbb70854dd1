/* lanes.h - 16 lanes in one register. */
#ifndef NIB_KERNELS_AVX512_LANES_H
#define NIB_KERNELS_AVX512_LANES_H

#include "kernels/lanes/lanes.h"
#include "numbers/blocks.h"

#include <immintrin.h>
#include <string.h>

enum { ROWS_N = 4, ROWS_M = 4, ROWS_N1 = 8, ATTEND_TILE = 8, ATTEND_VEC = 2 };

typedef __m512 vf;
typedef __mmask16 vm;

LANES_SHORT static inline __mmask16 mask_first(int n) {
    return (__mmask16)((1u << n) - 1);
}
LANES_SHORT static inline vf v_zero(void) {
    return _mm512_setzero_ps();
}
LANES_SHORT static inline vf v_set(float x) {
    return _mm512_set1_ps(x);
}
LANES_SHORT static inline vf v_load(const float *p) {
    return _mm512_loadu_ps(p);
}
LANES_SHORT static inline vf v_load_part(const float *p, int n) {
    return _mm512_maskz_loadu_ps(mask_first(n), p);
}
LANES_SHORT static inline void v_store(float *p, vf a) {
    _mm512_storeu_ps(p, a);
}
LANES_SHORT static inline void v_store_part(float *p, vf a, int n) {
    _mm512_mask_storeu_ps(p, mask_first(n), a);
}
LANES_SHORT static inline vf v_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
LANES_SHORT static inline vf v_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
LANES_SHORT static inline vf v_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
LANES_SHORT static inline vf v_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
LANES_SHORT static inline vf v_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
LANES_SHORT static inline vf v_fnma(vf a, vf b, vf c) {
    return _mm512_fnmadd_ps(a, b, c);
}
LANES_SHORT static inline vf v_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
LANES_SHORT static inline vf v_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
LANES_SHORT static inline vf v_round(vf a) {
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
LANES_SHORT static inline vf v_abs(vf a) {
    return _mm512_abs_ps(a);
}
LANES_SHORT static inline vf v_copysign(vf a, vf sign) {
    const __m512 bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, a), _mm512_and_ps(bit, sign));
}
LANES_SHORT static inline vf v_times_pow2(vf p, vf n) {
    return _mm512_scalef_ps(p, n);
}
LANES_SHORT static inline vm v_less(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
LANES_SHORT static inline vm v_between(int lo, int hi) {
    const uint32_t below = hi >= LANES ? 0xffff : hi <= 0 ? 0 : (1u << hi) - 1;
    const uint32_t before = lo >= LANES ? 0xffff : lo <= 0 ? 0 : (1u << lo) - 1;
    return (__mmask16)(below & ~before);
}
LANES_SHORT static inline vf v_select(vm m, vf a, vf b) {
    return _mm512_mask_blend_ps(m, b, a);
}
LANES_SHORT static inline vf v_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}
LANES_SHORT static inline vf v_load_f16_part(const uint16_t *p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask_first(n), p));
}
LANES_SHORT static inline vf v_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}
LANES_SHORT static inline void v_store_f16(uint16_t *p, vf a) {
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LANES_SHORT static inline vf v_load_u8(const uint8_t *p) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
}
/* The instruction that looks up reads the lower 4 bits of a lane. */
LANES_SHORT static inline vf v_load_u4(const uint8_t *p, bool high) {
    const __m512 values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(both, 4) : both, values);
}
/* Lane i is x's lane from[i]. */
LANES_SHORT static inline vf v_permute(vf x, const int32_t *from) {
    return _mm512_permutexvar_ps(_mm512_loadu_si512(from), x);
}
LANES_SHORT static inline vf v_load_e4m3(const uint8_t *p) {
    const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    const __m512i magnitude = _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(0x7f)), 20);
    const __m512i sign = _mm512_slli_epi32(_mm512_srli_epi32(x, 7), 31);
    const vf f = _mm512_mul_ps(_mm512_castsi512_ps(magnitude), _mm512_set1_ps(0x1p120f));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(f), sign));
}
LANES_SHORT static inline vf v_load_e2m1(const uint8_t *p, bool high) {
    const __m128i both = _mm_loadu_si128((const void *)p),
                  values = _mm_loadu_si128((const void *)e2m1_values);
    const __m128i codes = _mm_and_si128(high ? _mm_srli_epi16(both, 4) : both, _mm_set1_epi8(15));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_shuffle_epi8(values, codes)));
}
LANES_SHORT static inline float v_sum(vf a) {
    const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}
LANES_SHORT static inline float v_largest(vf a) {
    const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}
LANES_SHORT static inline const float *v_before(const vf *a, const float *p) {
    (void)a; /* there are registers enough */
    return p;
}

#endif
