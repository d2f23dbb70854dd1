/* tile_kernels.h - what the two ways of multiplying share: a job, and how a finished vector is stored. */
#ifndef NIB_KERNELS_AVX512_TILE_KERNELS_H
#define NIB_KERNELS_AVX512_TILE_KERNELS_H

#include "kernels/act8.h"
#include "kernels/kernels.h"
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

enum { TILE_DIRECT_ROWS = 4 };
typedef void (*tile_direct_fn)(const tile_job *job, int64_t p0, int64_t p1);
/* The kernel for n_row <= TILE_DIRECT_ROWS rows of this format, NULL when there is none. */
tile_direct_fn tile_direct_for(const pack_format *f, int64_t n_row);

/* Any number of rows: blocks of weights are unpacked to the scratch and met by all rows. */
void tile_blocked(const tile_job *job, int64_t p0, int64_t p1);

#endif
