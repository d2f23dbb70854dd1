/* job.h - shared by the loops over tiles: the scratch of one thread, and the block that is being multiplied.
 *
 * A part is up to 256 rows of activations over a span of K. They are copied (copy.h) so that a tile is
 * contiguous. Two panels of weights at a time are unpacked to bytes in blocks of 512 of K, and all rows of
 * the part pass over each block. A line of a Q-tile is one row of the second operand. Between blocks the
 * outputs of the two panels are in `sums`, tile by tile. They are not in y, because its rows are often a
 * power of two apart, so that a column of them would fall into a few cache sets and be evicted between
 * blocks. */
#ifndef NIB_KERNELS_AMX_JOB_H
#define NIB_KERNELS_AMX_JOB_H

#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/avx512/tile_kernels.h"
#include "kernels/cpu/avx512/unpack.h"

#include "base/num.h"

enum {
    BLOCK_CHUNKS = 2,
    BLOCK_K = BLOCK_CHUNKS * TILE_CHUNK_K,
    BLOCK_GROUPS = BLOCK_K / 16, /* at most */
    TILE_ROWS = 16,
    MAX_ROWS = 256,
    FEW_ROWS = 128, /* rows of a part if all of K would not fit with more */
    CODE_BYTES =
        512 * 1024, /* bytes of the copied activations: half of a second-level cache that two threads share */
    RING = 4        /* tiles of sums between tile unit and scaling */
};

typedef int32_t tile_sums[TILE_ROWS][PACK_PANEL];
typedef float tile_floats[TILE_ROWS][PACK_PANEL];

/* The unpacked codes, scales and minima of two panels. */
typedef struct weights_block {
    uint8_t lines[2][BLOCK_K / 4][TILE_LINE];
    float scale[2][BLOCK_GROUPS][PACK_PANEL], min[2][BLOCK_GROUPS][PACK_PANEL];
} weights_block;

typedef struct scratch {
    weights_block w;
    tile_sums ring[RING];
    tile_floats sums[MAX_ROWS / TILE_ROWS][2];
    int8_t codes[CODE_BYTES];             /* [tile of rows][group or 64][16][group or 64] */
    float scale[CODE_BYTES / ACT8_GROUP]; /* [tile of rows][group of the activations][16] */
    float lift[CODE_BYTES / ACT8_SUM];    /* [tile of rows][group of the weights][16] */
} scratch;

/* A part of the work: rows [m0, m1), chunks [c0, c1) of K. */
typedef struct part {
    int64_t m0, m1, c0, c1;
} part;

/* Lines to prefetch, some at each step of the inner loops. Prefetched all at once, they would occupy all
 * outstanding misses of the first-level cache. */
typedef struct prefetch_lines {
    const char *at;
    int64_t step; /* bytes from one line to the next */
    int left;     /* lines */
} prefetch_lines;
enum { PREFETCHES = 3 }; /* the next block of both panels; y */

typedef struct block_job {
    const tile_job *job;
    const part *at;
    scratch *s;
    int np;        /* panels: 1 or 2 */
    int64_t tile0; /* the block's first tile of K */
    int n_tile;
    bool is_first;                             /* first block of K: `sums` has no values yet */
    prefetch_lines prefetches[PREFETCHES + 1]; /* the last entry is empty */
    prefetch_lines *next;
    int per_step; /* lines */
} block_job;

/* The index of the group of `group` elements that has element `at` of a span, and (group_end) the number of
 * groups that `at` elements begin. */
static inline int64_t group_at(int group, int64_t at) {
    return group == PACK_GROUP_ROW ? 0 : at / group;
}
static inline int64_t group_end(int group, int64_t at) {
    return group == PACK_GROUP_ROW ? 1 : num_div_up(at, group);
}

/* The copy of tile i of the part's rows, from the block's first element on. */
typedef struct copied {
    const int8_t *codes;
    const float *scale, *lift;
} copied;
static inline copied copied_at(const block_job *j, int64_t i, int group) {
    const int64_t span = (j->at->c1 - j->at->c0) * TILE_CHUNK_K; /* length of the copy, a multiple of 256 */
    const int64_t in_span = j->tile0 * TILE_K - j->at->c0 * TILE_CHUNK_K;
    const int of_act = NUM_MAX(group, ACT8_GROUP);
    return (copied){j->s->codes + (i * span + in_span) * TILE_ROWS,
                    j->s->scale + (i * span / ACT8_GROUP + group_at(of_act, in_span)) * TILE_ROWS,
                    j->s->lift + (i * span / ACT8_SUM + group_at(group, in_span)) * TILE_ROWS};
}

/* One group of nt rows: y = fma(sum, scale of the weight * scale of the activation, y), like the
 * reference. */
LANES_INLINE void scale_group(int asym, int nt, const int32_t (*sums)[PACK_PANEL], const float *w_scale,
                              const float *w_min, const float *x_scale, const float *x_lift, __m512 *y) {
    const __m512 s = _mm512_load_ps(w_scale);
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        y[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums[t])),
                               _mm512_mul_ps(s, _mm512_set1_ps(x_scale[t])), y[t]);
    if (asym) {
        const __m512 m = _mm512_load_ps(w_min);
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            y[t] = _mm512_fmadd_ps(m, _mm512_set1_ps(x_lift[t]), y[t]);
    }
}

LANES_INLINE void prefetch_next(block_job *j) {
    prefetch_lines *f = j->next;
    const int n = NUM_MIN(j->per_step, f->left);
    for (int i = 0; i < n; i++, f->at += f->step)
        _mm_prefetch(f->at, _MM_HINT_T1);
    f->left -= n;
    j->next += n > 0 && f->left == 0;
}

#endif
