/* tile_blocked.c - products on AMX tiles.
 *
 * One step is 16 rows of activations x one panel (16 outputs) x one group of K: a tile instruction takes 16
 * cycles for it whatever is in the tile, and then every one of its 256 sums has to become a float and be
 * scaled, three vector operations for 16 of them. So with groups of 32 the vector units are what is short,
 * not the tiles, and the order is made for them: the floats of 16 x 16 outputs stay in registers over a whole
 * block of K, and the sums go through a small ring in the first-level cache, where they lie for a while
 * before they are taken, so that the tile unit works on the next group meanwhile.
 *
 * Weights: 2 panels x 512 of K are unpacked to bytes; a line of a Q-tile is one row of the second operand.
 * Codes of formats without a minimum are made signed, which is exact and needs no correction for the zero
 * point. Activations: up to 256 rows over a span of K are copied so that a tile is contiguous; all panels
 * pass over the copy while it is in the second-level cache. Between blocks of K the sums stand in y. */
#include "kernels/cpu/amx/amx.h"
#include "kernels/cpu/amx/tiles.h"
#include "kernels/cpu/avx512/tile_kernels.h"
#include "kernels/cpu/avx512/unpack.h"

#include "base/num.h"

#include <string.h>

enum {
    BLOCK_CHUNKS = 2,
    BLOCK_K = BLOCK_CHUNKS * TILE_CHUNK_K,
    BLOCK_GROUPS = BLOCK_K / 16, /* at most */
    TILE_ROWS = 16,
    MOST_ROWS = 256,
    CODE_BYTES = 256 * 1024, /* of the copied activations: with the weights and y it fits 1 MiB */
#ifndef AMX_BEHIND
    AMX_BEHIND = 1, /* pairs of groups between a tile's sums being stored and being read */
#endif
    RING = 2 * (AMX_BEHIND + 1)
};

typedef struct weights_block {
    uint8_t lines[2][BLOCK_K / 4][TILE_LINE];
    float scale[2][BLOCK_GROUPS][PACK_PANEL], min[2][BLOCK_GROUPS][PACK_PANEL];
} weights_block;

typedef struct scratch {
    weights_block w;
    int32_t ring[RING][TILE_ROWS][PACK_PANEL];
    int8_t codes[CODE_BYTES];             /* [tile of rows][group][16][group] */
    float scale[CODE_BYTES / ACT8_GROUP]; /* [tile of rows][32 of K][16] */
    float lift[CODE_BYTES / ACT8_SUM];    /* [tile of rows][group][16] */
} scratch;

/* A part of the work: rows [m0, m1), chunks [c0, c1) of K. */
typedef struct part {
    int64_t m0, m1, c0, c1;
} part;

typedef struct block_job {
    const tile_job *job;
    const part *at;
    scratch *s;
    int64_t panel, tile0; /* the first of the two panels; the block's first tile of K */
    int n_tile;
    bool is_first, is_last; /* block of K */
    const uint8_t *next;    /* of one panel: what is multiplied after this, to be fetched meanwhile */
    int n_next;             /* lines of it for each pair of groups */
} block_job;

/* ---- activations ---- */

/* 16 rows from m0 on (those from m1 on are zeros), tiles [t0, t1) of K. */
static void copy_rows(const tile_job *job, const pack_format *f, int64_t m0, int64_t m1, int64_t t0,
                      int64_t t1, int8_t *codes, float *scale, float *lift) {
    const act8_layout *l = &job->layout;
    const int group = f->group;
    const int64_t n = (t1 - t0) * TILE_K / group, n32 = (t1 - t0) * TILE_K / ACT8_GROUP;
    for (int r = 0; r < TILE_ROWS; r++) {
        if (m0 + r >= m1) {
            for (int64_t g = 0; g < n; g++)
                memset(codes + (g * TILE_ROWS + r) * group, 0, (size_t)group);
            for (int64_t g = 0; g < n32; g++)
                scale[g * TILE_ROWS + r] = 0;
            for (int64_t g = 0; g < n && f->asym; g++)
                lift[g * TILE_ROWS + r] = 0;
            continue;
        }
        const char *x = (const char *)job->a->q.data + (m0 + r) * l->bytes;
        const float *from_scale = (const float *)(const void *)(x + l->scale) + t0 * TILE_K / ACT8_GROUP;
        const float *from_lift =
            (const float *)(const void *)(x + (group == ACT8_SUM ? l->lift16 : l->lift)) +
            t0 * TILE_K / group;
        x += t0 * TILE_K;
        if (group == 32)
            for (int64_t g = 0; g < n; g++)
                memcpy(codes + (g * TILE_ROWS + r) * 32, x + g * 32, 32);
        else
            for (int64_t g = 0; g < n; g++)
                memcpy(codes + (g * TILE_ROWS + r) * 16, x + g * 16, 16);
        for (int64_t g = 0; g < n32; g++)
            scale[g * TILE_ROWS + r] = from_scale[g];
        for (int64_t g = 0; g < n && f->asym; g++)
            lift[g * TILE_ROWS + r] = from_lift[g];
    }
}

/* ---- one tile of rows x one panel over a block of K ---- */

/* Two groups: their sums to two places of the ring. a: 2 x 16 rows of codes; b: the groups' lines. */
#define PAIR(DOT)                                                                                            \
    do {                                                                                                     \
        TILES_ZERO(0);                                                                                       \
        TILES_LOAD(2, a, group);                                                                             \
        TILES_LOAD(4, b, TILE_LINE);                                                                         \
        DOT(0, 2, 4);                                                                                        \
        TILES_STORE(0, sums, sizeof sums[0]);                                                                \
        TILES_ZERO(1);                                                                                       \
        TILES_LOAD(3, a + TILE_ROWS * group, group);                                                         \
        TILES_LOAD(5, b + group / 4 * TILE_LINE, TILE_LINE);                                                 \
        DOT(1, 3, 5);                                                                                        \
        TILES_STORE(1, sums + TILE_ROWS, sizeof sums[0]);                                                    \
    } while (0)

LANES_INLINE void dot_pair(int asym, int group, const int8_t *a, const uint8_t *b,
                           int32_t (*sums)[PACK_PANEL]) {
    if (asym)
        PAIR(TILES_DOT_UNSIGNED);
    else
        PAIR(TILES_DOT_SIGNED);
}

/* One group of nt rows: y = fma(sum, scale of the weight * scale of the activation, y), as the reference. */
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

/* Tile i of the part's rows, of which nt are computed; panel p of the two. asym, group and nt are constants.
 */
LANES_INLINE void multiply(const block_job *j, int asym, int group, int nt, int64_t i, int p) {
    const linear_args *a = j->job->a;
    scratch *s = j->s;
    const int64_t m0 = j->at->m0 + i * TILE_ROWS, n_row = NUM_MIN(j->at->m1 - m0, TILE_ROWS);
    const int64_t span = (j->at->c1 - j->at->c0) * TILE_CHUNK_K; /* of the copy, a multiple of 256 */
    const int64_t in_span = j->tile0 * TILE_K - j->at->c0 * TILE_CHUNK_K;
    const int8_t *codes = s->codes + (i * span + in_span) * TILE_ROWS;
    const float *x_scale = s->scale + (i * span + in_span) / ACT8_GROUP * TILE_ROWS;
    const float *x_lift = s->lift + (i * span + in_span) / group * TILE_ROWS;
    const uint8_t *lines = s->w.lines[p][0], *next = j->next;
    const __mmask16 mask = tile_mask(j->job, j->panel + p);
    float *out = a->y + m0 * a->ldy + (j->panel + p) * PACK_PANEL;
    __m512 y[TILE_ROWS];
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        y[t] =
            j->is_first || t >= n_row ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, out + t * a->ldy);
    const int n_pair = j->n_tile * (TILE_K / group / 2);
    for (int pair = 0; pair < n_pair + AMX_BEHIND; pair++) {
        if (pair < n_pair)
            dot_pair(asym, group, codes + (int64_t)pair * 2 * TILE_ROWS * group,
                     lines + pair * 2 * (group / 4) * TILE_LINE, s->ring[2 * pair % RING]);
        for (int n = 0; n < j->n_next; n++, next += TILE_LINE)
            _mm_prefetch((const char *)next, _MM_HINT_T1);
        if (pair < AMX_BEHIND)
            continue;
        LANES_UNROLL
        for (int half = 0; half < 2; half++) {
            const int g = 2 * (pair - AMX_BEHIND) + half, g32 = group == 16 ? g / 2 : g;
            scale_group(asym, nt, (const int32_t(*)[PACK_PANEL])s->ring[g % RING], s->w.scale[p][g],
                        s->w.min[p][g], x_scale + g32 * TILE_ROWS, x_lift + g * TILE_ROWS, y);
        }
    }
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        if (t >= n_row)
            continue;
        if (j->is_last)
            tile_store(j->job, j->panel + p, m0 + t, y[t]);
        else
            _mm512_mask_storeu_ps(out + t * a->ldy, mask, y[t]);
    }
}

typedef void (*multiply_fn)(const block_job *j, int64_t i, int p);
#define DEFINE(asym, group, nt)                                                                              \
    static void multiply_##asym##_##group##_##nt(const block_job *j, int64_t i, int p) {                     \
        multiply(j, asym, group, nt, i, p);                                                                  \
    }
#define NAME(asym, group, nt)     multiply_##asym##_##group##_##nt,
#define EACH_ROWS(X, asym, group) X(asym, group, 4) X(asym, group, 8) X(asym, group, 12) X(asym, group, 16)
EACH_ROWS(DEFINE, 0, 16)
EACH_ROWS(DEFINE, 0, 32)
EACH_ROWS(DEFINE, 1, 16)
EACH_ROWS(DEFINE, 1, 32)
/* [asym][group is 32][a quarter of the rows - 1] */
static const multiply_fn multiplies[2][2][TILE_ROWS / 4] = {
    {{EACH_ROWS(NAME, 0, 16)}, {EACH_ROWS(NAME, 0, 32)}},
    {{EACH_ROWS(NAME, 1, 16)}, {EACH_ROWS(NAME, 1, 32)}},
};

/* ---- blocks ---- */

static void unpack_block(scratch *s, int p, const pack_format *f, const void *panel, int64_t k, int64_t c0,
                         int64_t c1) {
    const unpacked to = {s->w.lines[p][0], s->w.scale[p][0], s->w.min[p][0], TILE_LINE, PACK_PANEL};
    if (f->asym)
        unpack_panel(&to, f, panel, k, c0, c1, 0);
    else
        unpack_panel(&to, f, panel, k, c0, c1, 1);
}

/* Two panels (np 1: one) x all rows of the part. */
static void panels_times_rows(const tile_job *job, int64_t panel, int np, const part *at) {
    const view *w = job->a->w;
    const pack_format *f = &w->format;
    const multiply_fn *fn = multiplies[f->asym ? 1 : 0][f->group == 32];
    const int64_t n_tile = tile_count(w->k), n_chunk = num_div_up(n_tile, TILE_CHUNK);
    const int64_t chunk_bytes = tile_chunk_bytes(f, TILE_CHUNK);
    block_job j = {.job = job, .at = at, .s = job->a->scratch, .panel = panel};
    for (int64_t c = at->c0; c < at->c1; c += BLOCK_CHUNKS) {
        const int64_t end = NUM_MIN(at->c1, c + BLOCK_CHUNKS);
        const uint8_t *weights = (const uint8_t *)w->data + panel * job->panel_bytes;
        for (int p = 0; p < np; p++)
            unpack_block(j.s, p, f, weights + p * job->panel_bytes, w->k, c, end);
        j.tile0 = c * TILE_CHUNK;
        j.n_tile = (int)NUM_MIN(n_tile - j.tile0, BLOCK_CHUNKS * TILE_CHUNK);
        j.is_first = c == 0;
        j.is_last = end >= n_chunk;
        const int n_pair = j.n_tile * (TILE_K / f->group / 2) + AMX_BEHIND;
        const uint8_t *next = end < at->c1 ? weights + end * chunk_bytes
                                           : weights + np * job->panel_bytes + at->c0 * chunk_bytes;
        for (int64_t m = at->m0; m < at->m1; m += TILE_ROWS) {
            const int64_t rows = NUM_MIN(at->m1 - m, TILE_ROWS);
            j.n_next = m == at->m0 ? (int)num_div_up(BLOCK_CHUNKS * chunk_bytes, n_pair * TILE_LINE) : 0;
            for (int p = 0; p < np; p++) {
                j.next = next + p * job->panel_bytes;
                fn[(rows + 3) / 4 - 1](&j, (m - at->m0) / TILE_ROWS, p);
            }
        }
    }
}

static void part_times_panels(const tile_job *job, int64_t p0, int64_t p1, const part *at) {
    const pack_format *f = &job->a->w->format;
    scratch *s = job->a->scratch;
    const int64_t span = (at->c1 - at->c0) * TILE_CHUNK_K, t0 = at->c0 * TILE_CHUNK;
    const int64_t t1 = NUM_MIN(at->c1 * TILE_CHUNK, tile_count(job->a->w->k));
    for (int64_t m = at->m0, i = 0; m < at->m1; m += TILE_ROWS, i++)
        copy_rows(job, f, m, at->m1, t0, t1, s->codes + i * span * TILE_ROWS,
                  s->scale + i * span / ACT8_GROUP * TILE_ROWS, s->lift + i * span / f->group * TILE_ROWS);
    for (int64_t p = p0; p < p1; p += 2)
        panels_times_rows(job, p, (int)NUM_MIN(p1 - p, 2), at);
}

static tiles_config config_for(const pack_format *f) {
    tiles_config c = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        c.rows[i] = i / 2 == 2 ? f->group / 4 : TILE_ROWS; /* sums, activations, weights: two of each */
        c.bytes[i] = i / 2 == 1 ? f->group : TILE_LINE;
    }
    return c;
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    return tile_short_groups(f);
}

static void run(const linear_args *a, int64_t n0, int64_t n1) {
    const tile_job job = tile_job_of(a);
    const tiles_config config = config_for(&a->w->format);
    const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL);
    const int64_t n_chunk = num_div_up(tile_count(a->w->k), TILE_CHUNK);
    const int64_t rows = num_div_up(a->n_row, num_div_up(a->n_row, MOST_ROWS));
    const int64_t even = num_round_up(rows, TILE_ROWS);
    const int64_t chunks = CODE_BYTES / (even * BLOCK_K) * BLOCK_CHUNKS;
    part at;
    tiles_configure(&config);
    for (at.m0 = 0; at.m0 < a->n_row; at.m0 = at.m1) {
        at.m1 = NUM_MIN(a->n_row, at.m0 + even);
        for (at.c0 = 0; at.c0 < n_chunk; at.c0 = at.c1) {
            at.c1 = NUM_MIN(n_chunk, at.c0 + chunks);
            part_times_panels(&job, p0, p1, &at);
        }
    }
    tiles_release();
}

const strategy amx_blocked = {.name = "padding.tiles",
                              .can = can,
                              .run = run,
                              .rule_from = 5,
                              .rule_rows = STRATEGY_ANY_ROWS,
                              .scratch = sizeof(scratch)};
