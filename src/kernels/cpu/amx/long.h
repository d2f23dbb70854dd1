/* long.h - tiles in groups of 64, of 128 and of the row: 2 tiles of rows x 2 panels at a time, so that each
 * operand that is loaded is used twice.
 *
 * A unit is two groups. Its sums are stored to one half of the ring; while the tile unit does the next unit,
 * those in the other half become floats, tile of outputs by tile of outputs between the tile instructions:
 * what was stored has long arrived in the cache, and the vector units work beside the tiles although the
 * processor looks only a few hundred instructions ahead. The floats go through memory (first-level cache)
 * once a unit. What is under way continues over units, rows and blocks, and ends with the panels
 * (`take_all`).
 *
 * When the row is one group its sums stay integers, loaded and stored as tiles once a block. */
#ifndef NIB_KERNELS_AMX_LONG_H
#define NIB_KERNELS_AMX_LONG_H

#include "kernels/cpu/amx/job.h"

enum { UNIT_GROUPS = 2, UNIT_SUMS = 4 * UNIT_GROUPS };
_Static_assert(RING >= 2 * UNIT_SUMS, "two units");

/* A unit whose sums wait in the ring: [row tile, panel][group]. */
typedef struct waiting {
    const tile_sums *sums;
    const float *w_scale[2], *w_min[2], *x_scale[2], *x_lift[2];
    tile_floats (*y)[2]; /* of its first tile of rows */
    int n_group, ni, np; /* n_group 0: nothing waits */
    bool is_first;
    int half; /* of the ring, where they lie */
} waiting;

/* Its tile q = 2 * row tile + panel. */
LANES_INLINE void take(int asym, const waiting *u, int q) {
    const int r = q / 2, p = q % 2;
    if (r >= u->ni || p >= u->np)
        return;
    __m512 y[TILE_ROWS];
    load_floats(u->is_first, TILE_ROWS, &u->y[r][p], y);
    for (int g = 0; g < u->n_group; g++)
        scale_group(asym, TILE_ROWS, (const int32_t(*)[PACK_PANEL])u->sums[q * UNIT_GROUPS + g],
                    u->w_scale[p] + g * PACK_PANEL, u->w_min[p] + g * PACK_PANEL,
                    u->x_scale[r] + g * TILE_ROWS, u->x_lift[r] + g * TILE_ROWS, y);
    store_floats(TILE_ROWS, &u->y[r][p], y);
}
static void take_all(int asym, waiting *u) {
    for (int q = 0; u->n_group && q < 4; q++)
        if (asym)
            take(1, u, q);
        else
            take(0, u, q);
    u->n_group = 0;
}

/* 2 x 2 tiles, or fewer, x 64 of K. ni and np are constants. */
#define STEP(DOT, ni, np, a0, a1, b0, b1)                                                                    \
    do {                                                                                                     \
        TILES_LOAD(4, a0, TILE_K);                                                                           \
        TILES_LOAD(6, b0, TILE_LINE);                                                                        \
        DOT(0, 4, 6);                                                                                        \
        if (np == 2) {                                                                                       \
            TILES_LOAD(7, b1, TILE_LINE);                                                                    \
            DOT(1, 4, 7);                                                                                    \
        }                                                                                                    \
        if (ni == 2) {                                                                                       \
            TILES_LOAD(5, a1, TILE_K);                                                                       \
            DOT(2, 5, 6);                                                                                    \
        }                                                                                                    \
        if (ni == 2 && np == 2)                                                                              \
            DOT(3, 5, 7);                                                                                    \
    } while (0)

LANES_INLINE void step(int asym, int ni, int np, const int8_t *a0, const int8_t *a1, const uint8_t *b0,
                       const uint8_t *b1) {
    if (asym)
        STEP(TILES_DOT_UNSIGNED, ni, np, a0, a1, b0, b1);
    else
        STEP(TILES_DOT_SIGNED, ni, np, a0, a1, b0, b1);
}
LANES_INLINE void zero_sums(int ni, int np) {
    TILES_ZERO(0);
    if (np == 2)
        TILES_ZERO(1);
    if (ni == 2)
        TILES_ZERO(2);
    if (ni == 2 && np == 2)
        TILES_ZERO(3);
}
/* Every `apart` tiles. */
LANES_INLINE void load_sums(int ni, int np, const void *from, int64_t apart) {
    const char *at = from;
    TILES_LOAD(0, at, TILE_LINE);
    if (np == 2)
        TILES_LOAD(1, at + apart * (int64_t)sizeof(tile_sums), TILE_LINE);
    if (ni == 2)
        TILES_LOAD(2, at + 2 * apart * (int64_t)sizeof(tile_sums), TILE_LINE);
    if (ni == 2 && np == 2)
        TILES_LOAD(3, at + 3 * apart * (int64_t)sizeof(tile_sums), TILE_LINE);
}
LANES_INLINE void store_sums(int ni, int np, void *to, int64_t apart) {
    char *at = to;
    TILES_STORE(0, at, TILE_LINE);
    if (np == 2)
        TILES_STORE(1, at + apart * (int64_t)sizeof(tile_sums), TILE_LINE);
    if (ni == 2)
        TILES_STORE(2, at + 2 * apart * (int64_t)sizeof(tile_sums), TILE_LINE);
    if (ni == 2 && np == 2)
        TILES_STORE(3, at + 3 * apart * (int64_t)sizeof(tile_sums), TILE_LINE);
}

/* Operands of a block: tiles of rows i and, when it is there, i + 1. */
typedef struct operands {
    copied x[2];
    const uint8_t *b[2];
} operands;
static operands operands_at(const block_job *j, int64_t i, int ni, int group) {
    return (operands){{copied_at(j, i, group), copied_at(j, i + ni - 1, group)},
                      {j->s->w.lines[0][0], j->s->w.lines[j->np - 1][0]}};
}

/* Tiles [t0, t0 + n) of K, whole groups but for the last of a row; u: what waits, then this. */
LANES_INLINE void multiply_unit(const block_job *j, int asym, int ni, int np, const operands *o, int64_t i,
                                int t0, int n, const uint8_t **next, waiting *u) {
    scratch *s = j->s;
    const int per_group = (int)j->job->group_tiles, g0 = t0 / per_group, half = 1 - u->half;
    tile_sums *to = s->ring + half * UNIT_SUMS;
    const int n_take = u->n_group ? 4 : 0;
    for (int t = 0, q = 0; t < n; t++) {
        const int64_t codes = (int64_t)(t0 + t) * TILE_ROWS * TILE_K,
                      lines = (int64_t)(t0 + t) * (TILE_K / 4) * TILE_LINE;
        if (t % per_group == 0)
            zero_sums(ni, np);
        step(asym, ni, np, o->x[0].codes + codes, o->x[1].codes + codes, o->b[0] + lines, o->b[1] + lines);
        if (t % per_group == per_group - 1 || t == n - 1)
            store_sums(ni, np, to + t / per_group, UNIT_GROUPS);
        fetch_next(j, &next[0]);
        fetch_next(j, &next[1]);
        for (; q < NUM_MIN(n_take, (t + 1) * 4 / n); q++)
            take(asym, u, q);
    }
    *u = (waiting){.sums = (const tile_sums *)to,
                   .y = s->sums + i,
                   .n_group = num_div_up(n, per_group),
                   .ni = ni,
                   .np = np,
                   .is_first = j->is_first && t0 == 0,
                   .half = half};
    for (int k = 0; k < 2; k++) {
        u->w_scale[k] = s->w.scale[k][j->scale_at + g0];
        u->w_min[k] = s->w.min[k][j->scale_at + g0];
        u->x_scale[k] = o->x[k].scale + g0 * TILE_ROWS;
        u->x_lift[k] = o->x[k].lift + g0 * TILE_ROWS;
    }
}

/* The block, tiles i and, when ni is 2, i + 1 of the part's rows. */
LANES_INLINE void multiply_long(const block_job *j, int asym, int ni, int np, int64_t i, waiting *u) {
    const int unit = (int)j->job->group_tiles * UNIT_GROUPS;
    const operands o = operands_at(j, i, ni, (int)j->job->group_tiles * TILE_K);
    const uint8_t *next[2] = {j->next[0], j->next[np - 1]};
    for (int t = 0; t < j->n_tile; t += unit)
        multiply_unit(j, asym, ni, np, &o, i, t, NUM_MIN(unit, j->n_tile - t), next, u);
}

LANES_INLINE void multiply_whole(const block_job *j, int asym, int ni, int np, int64_t i, waiting *u) {
    const operands o = operands_at(j, i, ni, PACK_GROUP_ROW);
    const uint8_t *next[2] = {j->next[0], j->next[np - 1]};
    (void)u;
    if (j->is_first)
        zero_sums(ni, np);
    else
        load_sums(ni, np, j->s->sums[i], 1);
    for (int64_t t = 0; t < j->n_tile; t++) {
        const int64_t codes = t * TILE_ROWS * TILE_K, lines = t * (TILE_K / 4) * TILE_LINE;
        step(asym, ni, np, o.x[0].codes + codes, o.x[1].codes + codes, o.b[0] + lines, o.b[1] + lines);
        fetch_next(j, &next[0]);
        fetch_next(j, &next[1]);
    }
    store_sums(ni, np, j->s->sums[i], 1);
}

typedef void (*long_fn)(const block_job *j, int64_t i, waiting *u);
#define DEFINE_LONG(kind, asym, ni, np)                                                                      \
    static void kind##_##asym##_##ni##_##np(const block_job *j, int64_t i, waiting *u) {                     \
        multiply_##kind(j, asym, ni, np, i, u);                                                              \
    }
#define NAME_LONG(kind, asym, ni, np) kind##_##asym##_##ni##_##np,
#define EACH_SHAPE(X, kind, asym)                                                                            \
    X(kind, asym, 1, 1) X(kind, asym, 1, 2) X(kind, asym, 2, 1) X(kind, asym, 2, 2)
EACH_SHAPE(DEFINE_LONG, long, 0)
EACH_SHAPE(DEFINE_LONG, long, 1)
EACH_SHAPE(DEFINE_LONG, whole, 0)
EACH_SHAPE(DEFINE_LONG, whole, 1)
/* [the row is one group][asym][2 * (tiles of rows - 1) + panels - 1] */
static const long_fn longs[2][2][4] = {
    {{EACH_SHAPE(NAME_LONG, long, 0)}, {EACH_SHAPE(NAME_LONG, long, 1)}},
    {{EACH_SHAPE(NAME_LONG, whole, 0)}, {EACH_SHAPE(NAME_LONG, whole, 1)}}};

/* The block, tile i of the part's rows and the next where there is one; how many it did. */
static int block_long(const block_job *j, int64_t i, waiting *u) {
    const pack_format *f = &j->job->a->w->format;
    const int ni = (int)NUM_MIN(num_div_up(j->at->m1 - j->at->m0, TILE_ROWS) - i, 2);
    longs[f->group == PACK_GROUP_ROW][f->asym ? 1 : 0][2 * (ni - 1) + j->np - 1](j, i, u);
    return ni;
}

#endif
