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
 * point. With groups of 64 and 128 a step is as many tile instructions as the group has tiles, scaled once;
 * when the row is one group, 2 tiles of rows x 2 panels are summed as integers over all of K and each operand
 * that is loaded is used twice. Activations: up to 256 rows over a span of K are copied so that a tile is
 * contiguous; all panels pass over the copy while it is in the second-level cache. Between blocks of K the
 * sums stand in y, those of a group as long as the row as integers. */
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
    ASYM_FROM = 65,
    CODE_BYTES = 256 * 1024, /* of the copied activations: with the weights and y it fits 1 MiB */
#ifndef AMX_BEHIND
    AMX_BEHIND = 1, /* pairs of groups between a tile's sums being stored and being read */
#endif
    RING = NUM_MAX(4, 2 * (AMX_BEHIND + 1)) /* 4 when the row is one group */
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
    const uint8_t *next[2]; /* of each panel: what is multiplied after this, to be fetched meanwhile */
    int n_next;             /* lines of it for each step of the inner loop */
} block_job;

/* ---- activations ---- */

/* Codes of a row that one tile instruction multiplies. */
static int tile_codes(const pack_format *f) {
    return NUM_MIN(f->group, TILE_K);
}
/* Where the groups of `group` elements stand among those of a span: that of element `at`, and behind the last
 * of `at` elements. */
static int64_t group_at(int group, int64_t at) {
    return group == PACK_GROUP_ROW ? 0 : at / group;
}
static int64_t group_end(int group, int64_t at) {
    return group == PACK_GROUP_ROW ? 1 : num_div_up(at, group);
}
static int act_group_of(const pack_format *f) {
    return NUM_MAX(f->group, ACT8_GROUP);
}

/* 16 rows from m0 on (those from m1 on are zeros), tiles [t0, t1) of K. */
static void copy_rows(const tile_job *job, const pack_format *f, int64_t m0, int64_t m1, int64_t t0,
                      int64_t t1, int8_t *codes, float *scale, float *lift) {
    const int each = tile_codes(f), of_act = act_group_of(f);
    const int64_t k = (t1 - t0) * TILE_K, n = k / each, n_scale = group_end(of_act, k);
    const int64_t n_lift = f->asym ? group_end(f->group, k) : 0;
    for (int r = 0; r < TILE_ROWS; r++) {
        if (m0 + r >= m1) {
            for (int64_t g = 0; g < n; g++)
                memset(codes + (g * TILE_ROWS + r) * each, 0, (size_t)each);
            for (int64_t g = 0; g < n_scale; g++)
                scale[g * TILE_ROWS + r] = 0;
            for (int64_t g = 0; g < n_lift; g++)
                lift[g * TILE_ROWS + r] = 0;
            continue;
        }
        const char *x = (const char *)job->a->q.data + (m0 + r) * job->layout.bytes;
        const float *from_scale =
            (const float *)(const void *)(x + job->scale) + group_at(of_act, t0 * TILE_K);
        const float *from_lift =
            (const float *)(const void *)(x + job->lift) + group_at(f->group, t0 * TILE_K);
        x += t0 * TILE_K;
        if (each == 64)
            for (int64_t g = 0; g < n; g++)
                memcpy(codes + (g * TILE_ROWS + r) * 64, x + g * 64, 64);
        else if (each == 32)
            for (int64_t g = 0; g < n; g++)
                memcpy(codes + (g * TILE_ROWS + r) * 32, x + g * 32, 32);
        else
            for (int64_t g = 0; g < n; g++)
                memcpy(codes + (g * TILE_ROWS + r) * 16, x + g * 16, 16);
        for (int64_t g = 0; g < n_scale; g++)
            scale[g * TILE_ROWS + r] = from_scale[g];
        for (int64_t g = 0; g < n_lift; g++)
            lift[g * TILE_ROWS + r] = from_lift[g];
    }
}

/* Tile i of the part's rows, as it was copied, from the block's first element on. */
typedef struct copied {
    const int8_t *codes;
    const float *scale, *lift;
} copied;
static inline copied copied_at(const block_job *j, int64_t i, int group) {
    const int64_t span = (j->at->c1 - j->at->c0) * TILE_CHUNK_K; /* of the copy, a multiple of 256 */
    const int64_t in_span = j->tile0 * TILE_K - j->at->c0 * TILE_CHUNK_K;
    const int of_act = NUM_MAX(group, ACT8_GROUP);
    return (copied){j->s->codes + (i * span + in_span) * TILE_ROWS,
                    j->s->scale + (i * span / ACT8_GROUP + group_at(of_act, in_span)) * TILE_ROWS,
                    j->s->lift + (i * span / ACT8_SUM + group_at(group, in_span)) * TILE_ROWS};
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

LANES_INLINE void fetch_next(const block_job *j, const uint8_t **next) {
    for (int n = 0; n < j->n_next; n++, *next += TILE_LINE)
        _mm_prefetch((const char *)*next, _MM_HINT_T1);
}

/* What stands in y between blocks of K: nothing before the first, finished outputs after the last. */
LANES_INLINE void load_sums(const block_job *j, int nt, int64_t m0, int p, __m512 *y) {
    const linear_args *a = j->job->a;
    const __mmask16 mask = tile_mask(j->job, j->panel + p);
    const float *out = a->y + m0 * a->ldy + (j->panel + p) * PACK_PANEL;
    const int64_t n_row = j->at->m1 - m0;
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        y[t] =
            j->is_first || t >= n_row ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(mask, out + t * a->ldy);
}
LANES_INLINE void store_sums(const block_job *j, int nt, int64_t m0, int p, const __m512 *y) {
    const linear_args *a = j->job->a;
    const __mmask16 mask = tile_mask(j->job, j->panel + p);
    float *out = a->y + m0 * a->ldy + (j->panel + p) * PACK_PANEL;
    const int64_t n_row = j->at->m1 - m0;
    if (!j->is_last) {
        LANES_UNROLL
        for (int t = 0; t < nt; t++)
            _mm512_mask_storeu_ps(out + t * a->ldy, t < n_row ? mask : 0, y[t]);
        return;
    }
    const __m512 bias =
        a->bias ? _mm512_maskz_loadu_ps(mask, a->bias + (j->panel + p) * PACK_PANEL) : _mm512_setzero_ps();
    LANES_UNROLL
    for (int t = 0; t < nt; t++) {
        const __m512 sum = a->bias ? _mm512_add_ps(y[t], bias) : y[t];
        _mm512_mask_storeu_ps(out + t * a->ldy, t < n_row ? mask : 0, sum);
    }
}

/* Tile i of the part's rows, of which nt are computed; panel p of the two. asym, group and nt are constants.
 */
LANES_INLINE void multiply(const block_job *j, int asym, int group, int nt, int64_t i, int p) {
    scratch *s = j->s;
    const int64_t m0 = j->at->m0 + i * TILE_ROWS;
    const copied x = copied_at(j, i, group);
    const uint8_t *lines = s->w.lines[p][0], *next = j->next[p];
    __m512 y[TILE_ROWS];
    load_sums(j, nt, m0, p, y);
    const int n_pair = j->n_tile * (TILE_K / group / 2);
    for (int pair = 0; pair < n_pair + AMX_BEHIND; pair++) {
        if (pair < n_pair)
            dot_pair(asym, group, x.codes + (int64_t)pair * 2 * TILE_ROWS * group,
                     lines + pair * 2 * (group / 4) * TILE_LINE, s->ring[2 * pair % RING]);
        fetch_next(j, &next);
        if (pair < AMX_BEHIND)
            continue;
        LANES_UNROLL
        for (int half = 0; half < 2; half++) {
            const int g = 2 * (pair - AMX_BEHIND) + half, g32 = group == 16 ? g / 2 : g;
            scale_group(asym, nt, (const int32_t(*)[PACK_PANEL])s->ring[g % RING], s->w.scale[p][g],
                        s->w.min[p][g], x.scale + g32 * TILE_ROWS, x.lift + g * TILE_ROWS, y);
        }
    }
    store_sums(j, nt, m0, p, y);
}

/* ---- groups of 64 and 128 ---- */

/* One group of n tiles: its sums to a place of the ring. */
#define GROUP(DOT, SUM, A, B)                                                                                \
    do {                                                                                                     \
        TILES_ZERO(SUM);                                                                                     \
        for (int k = 0; k < n; k++) {                                                                        \
            TILES_LOAD(A, a + k * TILE_ROWS * TILE_K, TILE_K);                                               \
            TILES_LOAD(B, b + k * TILE_K / 4 * TILE_LINE, TILE_LINE);                                        \
            DOT(SUM, A, B);                                                                                  \
        }                                                                                                    \
        TILES_STORE(SUM, sums, sizeof sums[0]);                                                              \
    } while (0)

LANES_INLINE void dot_group(int asym, bool odd, int n, const int8_t *a, const uint8_t *b,
                            int32_t (*sums)[PACK_PANEL]) {
    if (asym && odd)
        GROUP(TILES_DOT_UNSIGNED, 1, 3, 5);
    else if (asym)
        GROUP(TILES_DOT_UNSIGNED, 0, 2, 4);
    else if (odd)
        GROUP(TILES_DOT_SIGNED, 1, 3, 5);
    else
        GROUP(TILES_DOT_SIGNED, 0, 2, 4);
}

/* As multiply; asym and nt are constants. */
LANES_INLINE void multiply_long(const block_job *j, int asym, int nt, int64_t i, int p) {
    scratch *s = j->s;
    const int per_group = (int)j->job->group_tiles, n_group = num_div_up(j->n_tile, per_group);
    const int64_t m0 = j->at->m0 + i * TILE_ROWS;
    const copied x = copied_at(j, i, per_group * TILE_K);
    const uint8_t *lines = s->w.lines[p][0], *next = j->next[p];
    __m512 y[TILE_ROWS];
    load_sums(j, nt, m0, p, y);
    for (int g = 0; g < n_group + 1; g++) {
        const int tile = g * per_group;
        if (g < n_group)
            dot_group(asym, g % 2, NUM_MIN(per_group, j->n_tile - tile), x.codes + tile * TILE_ROWS * TILE_K,
                      lines + tile * (TILE_K / 4) * TILE_LINE, s->ring[g % RING]);
        fetch_next(j, &next);
        if (g > 0)
            scale_group(asym, nt, (const int32_t(*)[PACK_PANEL])s->ring[(g - 1) % RING], s->w.scale[p][g - 1],
                        s->w.min[p][g - 1], x.scale + (g - 1) * TILE_ROWS, x.lift + (g - 1) * TILE_ROWS, y);
    }
    store_sums(j, nt, m0, p, y);
}

typedef void (*multiply_fn)(const block_job *j, int64_t i, int p);
#define DEFINE(asym, group, nt)                                                                              \
    static void multiply_##asym##_##group##_##nt(const block_job *j, int64_t i, int p) {                     \
        multiply(j, asym, group, nt, i, p);                                                                  \
    }
#define NAME(asym, group, nt) multiply_##asym##_##group##_##nt,
#define DEFINE_LONG(asym, group, nt)                                                                         \
    static void multiply_##asym##_##group##_##nt(const block_job *j, int64_t i, int p) {                     \
        multiply_long(j, asym, nt, i, p);                                                                    \
    }
#define EACH_ROWS(X, asym, group) X(asym, group, 4) X(asym, group, 8) X(asym, group, 12) X(asym, group, 16)
EACH_ROWS(DEFINE, 0, 16)
EACH_ROWS(DEFINE, 0, 32)
EACH_ROWS(DEFINE_LONG, 0, 64)
EACH_ROWS(DEFINE, 1, 16)
EACH_ROWS(DEFINE, 1, 32)
EACH_ROWS(DEFINE_LONG, 1, 64)
/* [asym][groups of 16, 32, longer][a quarter of the rows - 1] */
static const multiply_fn multiplies[2][3][TILE_ROWS / 4] = {
    {{EACH_ROWS(NAME, 0, 16)}, {EACH_ROWS(NAME, 0, 32)}, {EACH_ROWS(NAME, 0, 64)}},
    {{EACH_ROWS(NAME, 1, 16)}, {EACH_ROWS(NAME, 1, 32)}, {EACH_ROWS(NAME, 1, 64)}},
};

/* ---- the row is one group ---- */

#define WHOLE(DOT)                                                                                           \
    for (int t = 0; t < j->n_tile; t++, a0 += step, a1 += step, b0 += step, b1 += step) {                    \
        TILES_LOAD(4, a0, TILE_K);                                                                           \
        TILES_LOAD(6, b0, TILE_LINE);                                                                        \
        DOT(0, 4, 6);                                                                                        \
        TILES_LOAD(7, b1, TILE_LINE);                                                                        \
        DOT(1, 4, 7);                                                                                        \
        TILES_LOAD(5, a1, TILE_K);                                                                           \
        DOT(2, 5, 6);                                                                                        \
        DOT(3, 5, 7);                                                                                        \
        fetch_next(j, &next0);                                                                               \
        fetch_next(j, &next1);                                                                               \
    }

/* Rows from m0 on: their sums to floats when K has ended. */
static void scale_whole(const block_job *j, int64_t m0, int64_t n_row, int p, const copied *x,
                        const int32_t (*sums)[PACK_PANEL]) {
    const weights_block *w = &j->s->w;
    __m512 y[TILE_ROWS];
    for (int t = 0; t < n_row; t++) {
        y[t] = _mm512_castsi512_ps(_mm512_load_si512(sums[t]));
        if (!j->is_last)
            continue;
        y[t] = _mm512_setzero_ps();
        scale_group(j->job->a->w->format.asym, 1, sums + t, w->scale[p][0], w->min[p][0], x->scale + t,
                    x->lift + t, y + t);
    }
    store_sums(j, (int)n_row, m0, p, y);
}

/* Tiles i and i + 1 of the part's rows x two panels. One that is not there is the other again, and not kept.
 */
static void multiply_whole(const block_job *j, int64_t i, int ni, int np) {
    enum { step = TILE_ROWS * TILE_K };
    scratch *s = j->s;
    const copied x[2] = {copied_at(j, i, PACK_GROUP_ROW), copied_at(j, i + ni - 1, PACK_GROUP_ROW)};
    const int8_t *a0 = x[0].codes, *a1 = x[1].codes;
    const uint8_t *b0 = s->w.lines[0][0], *b1 = s->w.lines[np - 1][0];
    const uint8_t *next0 = j->next[0], *next1 = j->next[np - 1];
    for (int q = 0; q < 4; q++) {
        __m512 y[TILE_ROWS];
        load_sums(j, TILE_ROWS, j->at->m0 + (i + q / 2 * (ni - 1)) * TILE_ROWS, q % 2 * (np - 1), y);
        for (int t = 0; t < TILE_ROWS; t++)
            _mm512_store_si512(s->ring[q][t], _mm512_castps_si512(y[t]));
    }
    TILES_LOAD(0, s->ring[0], TILE_LINE);
    TILES_LOAD(1, s->ring[1], TILE_LINE);
    TILES_LOAD(2, s->ring[2], TILE_LINE);
    TILES_LOAD(3, s->ring[3], TILE_LINE);
    if (j->job->a->w->format.asym)
        WHOLE(TILES_DOT_UNSIGNED)
    else
        WHOLE(TILES_DOT_SIGNED)
    TILES_STORE(0, s->ring[0], TILE_LINE);
    TILES_STORE(1, s->ring[1], TILE_LINE);
    TILES_STORE(2, s->ring[2], TILE_LINE);
    TILES_STORE(3, s->ring[3], TILE_LINE);
    for (int r = 0; r < ni; r++)
        for (int p = 0; p < np; p++) {
            const int64_t m0 = j->at->m0 + (i + r) * TILE_ROWS;
            scale_whole(j, m0, NUM_MIN(j->at->m1 - m0, TILE_ROWS), p, &x[r],
                        (const int32_t(*)[PACK_PANEL])s->ring[2 * r + p]);
        }
}

/* ---- blocks ---- */

static void unpack_block(scratch *s, int p, const pack_format *f, const void *panel, int64_t k, int64_t c0,
                         int64_t c1) {
    const unpacked to = {s->w.lines[p][0], s->w.scale[p][0], s->w.min[p][0], TILE_LINE, PACK_PANEL};
    if (f->asym)
        unpack_panel(&to, f, panel, k, c0, c1, 0);
    else
        unpack_panel(&to, f, panel, k, c0, c1, 1);
}

/* Steps of the inner loop over a block of n_tile tiles. */
static int block_steps(const pack_format *f, int n_tile) {
    return f->group == PACK_GROUP_ROW ? n_tile
           : f->group >= TILE_K       ? num_div_up(n_tile, f->group / TILE_K) + 1
                                      : n_tile * (TILE_K / f->group / 2) + AMX_BEHIND;
}

/* Two panels (np 1: one) x all rows of the part. */
static void panels_times_rows(const tile_job *job, int64_t panel, int np, const part *at) {
    const view *w = job->a->w;
    const pack_format *f = &w->format;
    const bool whole = f->group == PACK_GROUP_ROW;
    const multiply_fn *fn = multiplies[f->asym ? 1 : 0][f->group == 16 ? 0 : f->group == 32 ? 1 : 2];
    const int64_t n_tile = tile_count(w->k), n_chunk = num_div_up(n_tile, TILE_CHUNK);
    block_job j = {.job = job, .at = at, .s = job->a->scratch, .panel = panel};
    for (int64_t c = at->c0; c < at->c1; c += BLOCK_CHUNKS) {
        const int64_t end = NUM_MIN(at->c1, c + BLOCK_CHUNKS);
        const uint8_t *weights = (const uint8_t *)w->data + panel * job->panel_bytes;
        const uint8_t *next = end < at->c1 ? weights + end * job->chunk_bytes
                                           : weights + np * job->panel_bytes + at->c0 * job->chunk_bytes;
        for (int p = 0; p < np; p++) {
            unpack_block(j.s, p, f, weights + p * job->panel_bytes, w->k, c, end);
            j.next[p] = next + p * job->panel_bytes;
        }
        j.tile0 = c * TILE_CHUNK;
        j.n_tile = (int)NUM_MIN(n_tile - j.tile0, BLOCK_CHUNKS * TILE_CHUNK);
        j.is_first = c == 0;
        j.is_last = end >= n_chunk;
        const int n_step = block_steps(f, j.n_tile), n_tile_row = (int)num_div_up(at->m1 - at->m0, TILE_ROWS);
        for (int i = 0; i < n_tile_row; i += whole ? 2 : 1) {
            const int64_t rows = NUM_MIN(at->m1 - at->m0 - i * TILE_ROWS, TILE_ROWS);
            j.n_next = i == 0 ? (int)num_div_up(BLOCK_CHUNKS * job->chunk_bytes, n_step * TILE_LINE) : 0;
            if (whole)
                multiply_whole(&j, i, NUM_MIN(n_tile_row - i, 2), np);
            else
                for (int p = 0; p < np; p++)
                    fn[(rows + 3) / 4 - 1](&j, i, p);
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
                  s->scale + i * span / ACT8_GROUP * TILE_ROWS, s->lift + i * span / ACT8_SUM * TILE_ROWS);
    for (int64_t p = p0; p < p1; p += 2)
        panels_times_rows(job, p, (int)NUM_MIN(p1 - p, 2), at);
}

/* Sums, activations, weights: two of each, or when the row is one group 4, 2, 2. */
static tiles_config config_for(const pack_format *f) {
    const int each = tile_codes(f), n_sum = f->group == PACK_GROUP_ROW ? 4 : 2;
    tiles_config c = {.palette = 1};
    for (int i = 0; i < n_sum + 4; i++) {
        c.rows[i] = (uint8_t)(i >= n_sum + 2 ? each / 4 : TILE_ROWS);
        c.bytes[i] = (uint16_t)(i >= n_sum && i < n_sum + 2 ? each : TILE_LINE);
    }
    return c;
}

static bool can(const pack_format *f, int64_t n_row) {
    (void)n_row;
    return f->scale != PACK_SCALE_TWO;
}

/* With groups of 16 and with minima for groups of 32 the vector units have so much to do for each tile
 * instruction that the tiles gain little or nothing (docs/kernels.md). */
static bool suits(const pack_format *f, int64_t n_row) {
    return f->group > 32 || (f->group == 32 && (!f->asym || n_row >= ASYM_FROM));
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
                              .rule_from = 17,
                              .rule_rows = STRATEGY_ANY_ROWS,
                              .suits = suits,
                              .scratch = sizeof(scratch)};
