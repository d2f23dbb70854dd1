/* round.c - rounding floats with AVX2: four candidates beside each other. */
#include <immintrin.h>

#define ROUND_INLINE static inline __attribute__((always_inline))
enum { WIDE = 0 };
typedef __m256 vec;

ROUND_INLINE vec v_set(float x) {
    return _mm256_set1_ps(x);
}
ROUND_INLINE vec v_load8(const float *p) {
    return _mm256_load_ps(p);
}
ROUND_INLINE vec v_each(const float *c, int i) {
    return _mm256_set1_ps(c[i]);
}
ROUND_INLINE vec v_least(vec a, vec b) {
    return _mm256_min_ps(a, b);
}
ROUND_INLINE vec v_most(vec a, vec b) {
    return _mm256_max_ps(a, b);
}
ROUND_INLINE void v_totals(const vec v[4], float *out) {
    const vec quads = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(quads), _mm256_extractf128_ps(quads, 1)));
}

#include "quant/pack_round_lanes.h"

const pack_rounder avx2_rounder = ROUNDER;
