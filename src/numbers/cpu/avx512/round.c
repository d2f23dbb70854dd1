/* round.c - rounding floats with AVX-512: eight candidates at once, two in a register. */
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
ROUND_INLINE vec min_v(vec a, vec b) {
    return _mm512_min_ps(a, b);
}
ROUND_INLINE vec max_v(vec a, vec b) {
    return _mm512_max_ps(a, b);
}
ROUND_INLINE __m256 v_half(vec v, int i) {
    return i ? _mm512_extractf32x8_ps(v, 1) : _mm512_castps512_ps256(v);
}

#include "numbers/pack_round_lanes.h"

const pack_rounder avx512_rounder = ROUNDER;
