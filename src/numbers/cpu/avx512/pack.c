/* pack.c - packing with AVX-512: a register holds a line of a tile. */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#ifndef PACK_INLINE /* a build with sanitizers inlines nothing */
#define PACK_INLINE static inline __attribute__((always_inline))
#endif
enum { VEC_ROWS = 16 };
typedef uint32_t vec __attribute__((vector_size(64), may_alias));

/* Rows r, 4 + r, 8 + r and 12 + r in the quarters of register r: lanes come out in order. */
PACK_INLINE void quads(const uint8_t *const *rows, size_t at, vec out[4]) {
    __m512i z[4];
    for (int j = 0; j < 4; j++) {
        z[j] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(rows[j] + at)));
        z[j] = _mm512_inserti32x4(z[j], _mm_loadu_si128((const void *)(rows[4 + j] + at)), 1);
        z[j] = _mm512_inserti32x4(z[j], _mm_loadu_si128((const void *)(rows[8 + j] + at)), 2);
        z[j] = _mm512_inserti32x4(z[j], _mm_loadu_si128((const void *)(rows[12 + j] + at)), 3);
    }
    const __m512i a = _mm512_unpacklo_epi32(z[0], z[1]), b = _mm512_unpacklo_epi32(z[2], z[3]),
                  c = _mm512_unpackhi_epi32(z[0], z[1]), d = _mm512_unpackhi_epi32(z[2], z[3]);
    out[0] = (vec)_mm512_unpacklo_epi64(a, b);
    out[1] = (vec)_mm512_unpackhi_epi64(a, b);
    out[2] = (vec)_mm512_unpacklo_epi64(c, d);
    out[3] = (vec)_mm512_unpackhi_epi64(c, d);
}

PACK_INLINE void put_halves(uint8_t *at, vec v) {
    _mm256_storeu_si256((void *)at, _mm512_cvtepi32_epi16((__m512i)v));
}

PACK_INLINE void put_bytes(uint8_t *at, vec v) {
    _mm_storeu_si128((void *)at, _mm512_cvtepi32_epi8((__m512i)v));
}

#include "numbers/pack_lines.h"

extern const pack_rounder avx512_rounder; /* round.c */

const pack_isa packers_avx512 = {.name = "avx512",
                                 .rank = 20,
                                 .needs = {"avx2", "avx512", "avx512_vnni"},
                                 .beyond = {"ref", "avx2", "avxvnni"},
                                 .round = &avx512_rounder,
                                 PACKERS};
