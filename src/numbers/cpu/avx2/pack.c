/* pack.c - packing with AVX2: half a panel at a time. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#ifndef PACK_INLINE /* a build with sanitizers inlines nothing */
#define PACK_INLINE static inline __attribute__((always_inline))
#endif
enum { VEC_ROWS = 8 };
typedef uint32_t vec __attribute__((vector_size(32), may_alias));

/* Row r in the lower half of register r % 4, row 4 + r in the upper one: lanes come out in order. */
PACK_INLINE void quads(const uint8_t *const *rows, size_t at, vec out[4]) {
    __m256i z[4];
    for (int j = 0; j < 4; j++) {
        const __m128i low = _mm_loadu_si128((const void *)(rows[j] + at));
        z[j] = _mm256_inserti128_si256(_mm256_castsi128_si256(low),
                                       _mm_loadu_si128((const void *)(rows[4 + j] + at)), 1);
    }
    const __m256i a = _mm256_unpacklo_epi32(z[0], z[1]), b = _mm256_unpacklo_epi32(z[2], z[3]),
                  c = _mm256_unpackhi_epi32(z[0], z[1]), d = _mm256_unpackhi_epi32(z[2], z[3]);
    out[0] = (vec)_mm256_unpacklo_epi64(a, b);
    out[1] = (vec)_mm256_unpackhi_epi64(a, b);
    out[2] = (vec)_mm256_unpacklo_epi64(c, d);
    out[3] = (vec)_mm256_unpackhi_epi64(c, d);
}

PACK_INLINE void put_halves(uint8_t *at, vec v) {
    const __m256i low = _mm256_set1_epi64x(0x0d0c090805040100),
                  of_lane = _mm256_shuffle_epi8((__m256i)v, low);
    _mm_storeu_si128((void *)at, _mm256_castsi256_si128(_mm256_permute4x64_epi64(of_lane, 0x08)));
}

PACK_INLINE void put_bytes(uint8_t *at, vec v) {
    const __m256i of_lane = _mm256_shuffle_epi8((__m256i)v, _mm256_set1_epi32(0x0c080400));
    const __m256i order = _mm256_setr_epi32(0, 4, 0, 0, 0, 0, 0, 0);
    _mm_storel_epi64((void *)at, _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(of_lane, order)));
}

#include "numbers/pack_lines.h"

extern const pack_rounder avx2_rounder;   /* round.c */
extern const encode_kernels avx2_encoder; /* encode.c */

const pack_isa packers_avx2 = {.name = "avx2",
                               .rank = 10,
                               .needs = {"avx2"},
                               .beyond = {"ref"},
                               .round = &avx2_rounder,
                               .encode = &avx2_encoder,
                               PACKERS};
