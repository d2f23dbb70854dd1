/* rows_job.h - products with float weights on the tile unit: the scratch of one thread, and the product of
 * one group of tiles over a block of K.
 *
 * Weights are the first operand, so rows of bf16 weights are tiles without a copy. Sums are [weight
 * row][activation row] and are transposed when they are added to y. A group is 2 x 2 tiles of sums, or up to
 * 4 x 1 with at most 16 rows of activations. It passes over its block of 512 of K once for each pair of
 * slices (slice.h), the smallest products first, so that their rounding errors are small. Pairs that could
 * change only the rounding of a float's last bit are omitted. A block's sums start from zero, and blocks are
 * added up in y. That is the definition of the product, for any grouping of rows:
 *
 *     y[m][n] = sum over blocks of K, in order, of c + bias[n];    c = 0, then for each pair of slices (i, j)
 *     and each 32 of K: c += e + o, e and o being chains of fused multiply-adds over the even and the odd k,
 *     from zero; all in floats rounded to nearest even. The unit reads and writes zero for values below
 *     2^-126. */
#ifndef NIB_KERNELS_AMX_ROWS_JOB_H
#define NIB_KERNELS_AMX_ROWS_JOB_H

#include "base/num.h"
#include "kernels/cpu/amx/slice.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/kernels.h"
#include "numbers/tile.h"

#include <assert.h>

enum {
    BLOCK_STEPS = 16,
    BLOCK_K = BLOCK_STEPS * STEP_K,
    MAX_ROWS = 256, /* rows of activations in a part */
    MAX_TILES = 4,  /* tiles of sums in a group */
    MAX_PASSES = 6,
    X_BYTES = MAX_ROWS / TILE_ROWS * MAX_SLICES * BLOCK_STEPS * TILE_BYTES,
    W_TILE = BLOCK_STEPS * TILE_BYTES, /* 16 rows of weights over a block, one slice */
};

typedef struct rows_scratch {
    char x[X_BYTES];                             /* [tile][slice][step] of a span of K */
    char w[MAX_SLICES * MAX_TILES * W_TILE];     /* [slice][tile][step] of a block */
    float sums[2][MAX_TILES][TILE_ROWS * LANES]; /* of this group and of the previous one */
} rows_scratch;

/* The address of tiles, and the distances in bytes from one row of a tile, one step of K, one tile, and one
 * slice to the next. */
typedef struct operand {
    const char *at;
    int64_t row, step, tile, slice;
} operand;

/* Lines of weights to prefetch, some at each step. */
typedef struct prefetch_rows {
    const char *at;
    int64_t row_bytes;
    int n_line, line, n_row; /* lines of a row; the next line; rows that are left */
    int each;                /* lines at each step */
} prefetch_rows;

/* A group, whose sums are in `sums`: nn tiles of weights from row n on, nm tiles of activations from row m
 * on. */
typedef struct group {
    const float (*sums)[TILE_ROWS * LANES];
    int nn, nm; /* nn 0: there is none */
    int64_t n, m;
    bool is_first, is_last; /* block of K */
} group;

typedef struct rows_job {
    const linear_args *a;
    rows_scratch *s;
    int type;
    int64_t n_step; /* of K */
    int64_t m_end;  /* of the part */
    int parity;
    group before; /* the previous group; added to y while the next one is multiplied */
    prefetch_rows next;
} rows_job;

static inline void prefetch_step(prefetch_rows *f) {
    for (int i = 0; i < f->each && f->n_row > 0; i++) {
        _mm_prefetch(f->at + f->line * 64, _MM_HINT_T1);
        if (++f->line == f->n_line) {
            f->line = 0;
            f->n_row--;
            f->at += f->row_bytes;
        }
    }
}

/* ---- finished sums ---- */

/* Adds 16 sums to the outputs of row m. */
LANES_INLINE void add_to_y(const linear_args *a, const group *g, int64_t n, int64_t m, vf sum) {
    float *y = a->y + m * a->ldy + n;
    const __mmask16 mask = v_between(0, (int)NUM_MIN(a->w->n - n, LANES));
    if (!g->is_first)
        sum = v_add(_mm512_maskz_loadu_ps(mask, y), sum);
    if (g->is_last && a->bias)
        sum = v_add(sum, _mm512_maskz_loadu_ps(mask, a->bias + n));
    _mm512_mask_storeu_ps(y, mask, sum);
}

static void finish(rows_job *j) {
    const group *g = &j->before;
    for (int i = 0; i < g->nn; i++)
        for (int k = 0; k < g->nm; k++) {
            const float *sums = g->sums[i * g->nm + k];
            const int64_t n = g->n + i * TILE_ROWS, m = g->m + k * TILE_ROWS;
            __m512 y[LANES];
            LANES_UNROLL
            for (int t = 0; t < LANES; t++)
                y[t] = v_load(sums + t * LANES);
            transpose(y);
            LANES_UNROLL
            for (int t = 0; t < LANES; t++)
                if (m + t < j->m_end)
                    add_to_y(j->a, g, n, m + t, y[t]);
        }
    j->before.nn = 0;
}

/* ---- a group ---- */

/* A pass multiplies slice x of the activations with slice w of the weights. The smallest products come
 * first. */
typedef struct pass {
    uint8_t x, w;
} pass;
static const struct {
    int n;
    pass list[MAX_PASSES];
} passes[MAX_SLICES] = {{3, {{2, 0}, {1, 0}, {0, 0}}},
                        {5, {{1, 1}, {2, 0}, {0, 1}, {1, 0}, {0, 0}}},
                        {6, {{0, 2}, {1, 1}, {2, 0}, {0, 1}, {1, 0}, {0, 0}}}};

#define DOT_ONE(A, from, SUM)                                                                                \
    do {                                                                                                     \
        TILES_LOAD(A, from, w->row);                                                                         \
        TILES_DOT_BF16(SUM, A, 6);                                                                           \
    } while (0)
#define DOT_TWO(A, from, SUM0, SUM1)                                                                         \
    do {                                                                                                     \
        DOT_ONE(A, from, SUM0);                                                                              \
        TILES_DOT_BF16(SUM1, A, 7);                                                                          \
    } while (0)

/* Multiplies nn x nm tiles over 32 of K. The sums of tile i of the weights are in registers i * nm and up. nn
 * and nm are constants. */
LANES_INLINE void dot_step(int nn, int nm, const operand *w, const char *at_w, const operand *x,
                           const char *at_x) {
    TILES_LOAD(6, at_x, x->row);
    if (nm == 2) {
        TILES_LOAD(7, at_x + x->tile, x->row);
        DOT_TWO(4, at_w, 0, 1);
        if (nn > 1)
            DOT_TWO(5, at_w + w->tile, 2, 3);
        return;
    }
    DOT_ONE(4, at_w, 0);
    if (nn > 1)
        DOT_ONE(5, at_w + w->tile, 1);
    if (nn > 2)
        DOT_ONE(4, at_w + 2 * w->tile, 2);
    if (nn > 3)
        DOT_ONE(5, at_w + 3 * w->tile, 3);
}

LANES_INLINE void zero_sums(int n) {
    TILES_ZERO(0);
    if (n > 1)
        TILES_ZERO(1);
    if (n > 2)
        TILES_ZERO(2);
    if (n > 3)
        TILES_ZERO(3);
}
LANES_INLINE void store_sums(int n, float (*to)[TILE_ROWS * LANES]) {
    TILES_STORE(0, to[0], LANES * 4);
    if (n > 1)
        TILES_STORE(1, to[1], LANES * 4);
    if (n > 2)
        TILES_STORE(2, to[2], LANES * 4);
    if (n > 3)
        TILES_STORE(3, to[3], LANES * 4);
}

/* Multiplies a group over n_step steps of a block. */
LANES_INLINE void multiply(int nn, int nm, rows_job *j, const operand *w, const operand *x, int n_step) {
    const int slices = weight_slices(j->type);
    zero_sums(nn * nm);
    for (int p = 0; p < passes[slices - 1].n; p++) {
        const pass at = passes[slices - 1].list[p];
        const char *at_w = w->at + at.w * w->slice, *at_x = x->at + at.x * x->slice;
        for (int t = 0; t < n_step; t++, at_w += w->step, at_x += x->step) {
            dot_step(nn, nm, w, at_w, x, at_x);
            prefetch_step(&j->next);
        }
        if (p == 0) /* adds the previous group to y while the tile unit works on this pass */
            finish(j);
    }
    store_sums(nn * nm, j->s->sums[j->parity]);
}

typedef void (*multiply_fn)(rows_job *j, const operand *w, const operand *x, int n_step);
#define EACH_GROUP(X) X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(1, 2) X(2, 2)
#define DEFINE_GROUP(nn, nm)                                                                                 \
    static void multiply_##nn##_##nm(rows_job *j, const operand *w, const operand *x, int n_step) {          \
        multiply(nn, nm, j, w, x, n_step);                                                                   \
    }
EACH_GROUP(DEFINE_GROUP)
#define NAME_GROUP(nn, nm) multiply_##nn##_##nm,
static const multiply_fn groups[] = {EACH_GROUP(NAME_GROUP)};

static void multiply_group(rows_job *j, group g, const operand *w, const operand *x, int n_step) {
    for (int64_t m = g.m; m < NUM_MIN(g.m + g.nm * TILE_ROWS, j->m_end) && !g.is_first; m++)
        for (int i = 0; i < g.nn; i++)
            _mm_prefetch((const char *)(j->a->y + m * j->a->ldy + g.n + i * TILE_ROWS), _MM_HINT_T0);
    const size_t which = (size_t)(g.nn - 1 + (g.nm - 1) * MAX_TILES);
    assert(which < NUM_COUNT(groups));
    groups[which](j, w, x, n_step);
    g.sums = (const float(*)[TILE_ROWS * LANES]) j->s->sums[j->parity];
    j->parity = 1 - j->parity;
    j->before = g;
}

#endif
