/* tile_kernels.h - shared by the direct and the blocked kernels: a job, and the store of finished outputs. */
#ifndef NIB_KERNELS_AVX512_TILE_KERNELS_H
#define NIB_KERNELS_AVX512_TILE_KERNELS_H

#include "base/cpu.h"
#include "kernels/act8.h"
#include "kernels/cpu/avx512/avx512.h"
#include "kernels/lanes/lanes.h"

#include <immintrin.h>

/* A product's offsets and sizes in bytes. minus, lift: those for the weights' groups. Weights in groups of 16
 * have two for each group of the activations. */
typedef struct tile_job {
    const linear_args *a;
    act8_layout layout;
    int64_t scale, minus, lift;             /* byte offsets in a row of activations */
    int64_t panel_bytes, chunk_bytes, tail; /* tail: offset of the data of whole rows in a panel */
    int64_t group_tiles;                    /* tiles of a group of 64 or more */
    int64_t
        ahead[2]; /* distance of prefetches in one stream and in two (measured, docs/optimisation-log.md) */
    __m128i zero_shift; /* log2 of the zero point; 32: there is none */
} tile_job;

LANES_INLINE __m512 tile_float(const char *p) {
    return _mm512_set1_ps(*(const float *)(const void *)p);
}
LANES_INLINE __m512i tile_int(const char *p) {
    return _mm512_set1_epi32(*(const int32_t *)(const void *)p);
}
/* The initial sum of a group of a row: - zero * (sum of its codes). */
LANES_INLINE __m512i tile_start(const tile_job *job, const char *minus) {
    return _mm512_sll_epi32(tile_int(minus), job->zero_shift);
}

LANES_INLINE __mmask16 tile_mask(const tile_job *job, int64_t panel) {
    const int64_t left = job->a->w->n - panel * PACK_PANEL;
    return left >= PACK_PANEL ? 0xffff : (__mmask16)((1u << left) - 1);
}
/* Adds the bias to 16 finished outputs and stores them. Outputs beyond n are not written. */
LANES_INLINE void tile_store(const tile_job *job, int64_t panel, int64_t m, __m512 y) {
    const linear_args *a = job->a;
    const __mmask16 mask = tile_mask(job, panel);
    if (a->bias)
        y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, a->bias + panel * PACK_PANEL));
    _mm512_mask_storeu_ps(a->y + m * a->ldy + panel * PACK_PANEL, mask, y);
}

static inline tile_job tile_job_of(const linear_args *a) {
    const pack_format *f = &a->w->format;
    const act8_layout l = act_layout_of(a->q.format, a->w->k);
    const bool halves = f->group == ACT8_SUM;
    const int64_t one = a->ahead ? a->ahead : cpu_is_intel() ? 3072 : 7168;
    const int64_t two = a->ahead ? a->ahead : cpu_is_intel() ? 3072 : 4096;
    int zero_shift = 32;
    for (int z = tile_zero(f); z > 0; z /= 2)
        zero_shift = zero_shift == 32 ? 0 : zero_shift + 1;
    return (tile_job){.a = a,
                      .layout = l,
                      .scale = l.scale,
                      .minus = halves ? l.minus16 : l.minus,
                      .lift = halves ? l.lift16 : l.lift,
                      .panel_bytes = tile_panel_bytes(f, a->w->k),
                      .chunk_bytes = tile_chunk_bytes(f, TILE_CHUNK),
                      .tail = tile_tail_at(f, a->w->k),
                      .ahead = {one, two},
                      .group_tiles = tile_group(f, a->w->k) / TILE_K,
                      .zero_shift = _mm_cvtsi32_si128(zero_shift)};
}

#endif
