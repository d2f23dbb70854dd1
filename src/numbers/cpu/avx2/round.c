/* round.c - rounding floats with AVX2: four candidates at once. */
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
ROUND_INLINE vec min_v(vec a, vec b) {
    return _mm256_min_ps(a, b);
}
ROUND_INLINE vec max_v(vec a, vec b) {
    return _mm256_max_ps(a, b);
}
ROUND_INLINE __m256 v_half(vec v, int i) {
    (void)i;
    return v;
}

#include "numbers/pack_round_lanes.h"

const pack_rounder avx2_rounder = ROUNDER;
