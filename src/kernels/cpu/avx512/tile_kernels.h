/* tile_kernels.h - what the two ways of multiplying share: a job, and how a finished vector is stored. */
#ifndef NIB_KERNELS_AVX512_TILE_KERNELS_H
#define NIB_KERNELS_AVX512_TILE_KERNELS_H

#include "kernels/act8.h"
#include "kernels/cpu/avx512/avx512.h"
#include "kernels/lanes/lanes.h"

#include <immintrin.h>

typedef struct tile_job {
    const linear_args *a;
    act8_layout layout;
    int64_t panel_bytes;
} tile_job;

LANES_INLINE __mmask16 tile_mask(const tile_job *job, int64_t panel) {
    const int64_t left = job->a->w->n - panel * PACK_PANEL;
    return left >= PACK_PANEL ? 0xffff : (__mmask16)((1u << left) - 1);
}
/* One finished vector of 16 outputs: bias, then stored; rows beyond n are not written. */
LANES_INLINE void tile_store(const tile_job *job, int64_t panel, int64_t m, __m512 y) {
    const linear_args *a = job->a;
    const __mmask16 mask = tile_mask(job, panel);
    if (a->bias)
        y = _mm512_add_ps(y, _mm512_maskz_loadu_ps(mask, a->bias + panel * PACK_PANEL));
    _mm512_mask_storeu_ps(a->y + m * a->ldy + panel * PACK_PANEL, mask, y);
}

static inline tile_job tile_job_of(const linear_args *a) {
    return (tile_job){
        .a = a, .layout = act8_layout_of(a->w->k), .panel_bytes = tile_panel_bytes(&a->w->format, a->w->k)};
}

#endif
