/* round.c - rounding floats with AVX-512: eight candidates beside each other, two in a register. */
#include <immintrin.h>

#define ROUND_INLINE static inline __attribute__((always_inline))
enum { WIDE = 1 };
typedef __m512 vec;

ROUND_INLINE vec v_set(float x) {
    return _mm512_set1_ps(x);
}
ROUND_INLINE vec v_load8(const float *p) {
    return _mm512_broadcast_f32x8(_mm256_load_ps(p));
}
ROUND_INLINE vec v_each(const float *c, int i) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_set1_ps(c[i])), _mm256_set1_ps(c[i + 4]), 1);
}
ROUND_INLINE vec v_least(vec a, vec b) {
    return _mm512_min_ps(a, b);
}
ROUND_INLINE vec v_most(vec a, vec b) {
    return _mm512_max_ps(a, b);
}
ROUND_INLINE void totals_of(__m256 a, __m256 b, __m256 c, __m256 d, float *out) {
    const __m256 quads = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
}
ROUND_INLINE void v_totals(const vec v[4], float *out) {
    totals_of(_mm512_castps512_ps256(v[0]), _mm512_castps512_ps256(v[1]), _mm512_castps512_ps256(v[2]),
              _mm512_castps512_ps256(v[3]), out);
    totals_of(_mm512_extractf32x8_ps(v[0], 1), _mm512_extractf32x8_ps(v[1], 1),
              _mm512_extractf32x8_ps(v[2], 1), _mm512_extractf32x8_ps(v[3], 1), out + 4);
}

#include "quant/pack_round_lanes.h"

const pack_rounder avx512_rounder = ROUNDER;
