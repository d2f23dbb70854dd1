/* groups.h - tile products with weights in groups of 16 to 128: 16 rows x one panel at a time over a block of
 * K.
 *
 * Every group's sums leave the tile unit through memory and are scaled to floats, by three vector operations
 * for 16 sums. The loop is pipelined. The sums of a group are stored while the third group after it is
 * multiplied. They are scaled one group later, half of them after the first tile instruction and half after
 * the last. So the product, the store and the scaling of three different groups overlap. The floats stay in
 * registers over the whole block. docs/optimisation-log.md has the costs and the alternatives that were
 * tried. */
#ifndef NIB_KERNELS_AMX_GROUPS_H
#define NIB_KERNELS_AMX_GROUPS_H

#include "kernels/cpu/amx/job.h"

/* How many groups later the sums of a group are stored, and scaled to floats. There are 4 tile registers of
 * sums. */
enum { STORED_BEHIND = 3, FLOATS_BEHIND = 4 };
_Static_assert((int)RING >= (int)FLOATS_BEHIND, "a group's sums are read before they are overwritten");

/* FIRST and MORE: the first and any later tile instruction of a group (number k), with sums in register S and
 * operands in A and B. FIRST sets the sums to zero before. */
#define MORE(DOT, S, A, B)                                                                                   \
    do {                                                                                                     \
        TILES_LOAD(A, d->a + k * a_step, each);                                                              \
        TILES_LOAD(B, d->b + k * b_step, TILE_LINE);                                                         \
        DOT(S, A, B);                                                                                        \
    } while (0)
#define FIRST(DOT, S, A, B)                                                                                  \
    do {                                                                                                     \
        TILES_ZERO(S);                                                                                       \
        MORE(DOT, S, A, B);                                                                                  \
    } while (0)
#define BY_REGISTER(EACH, DOT)                                                                               \
    switch (e % 4) {                                                                                         \
    case 0: EACH(DOT, 0, 4, 6); break;                                                                       \
    case 1: EACH(DOT, 1, 5, 7); break;                                                                       \
    case 2: EACH(DOT, 2, 4, 6); break;                                                                       \
    default: EACH(DOT, 3, 5, 7);                                                                             \
    }

/* A position in the block: tile i of the rows, panel p, group g. */
typedef struct group_place {
    int64_t i;
    int p, g;
} group_place;
/* Moves to the next group. true: it begins a tile of outputs. */
LANES_INLINE bool group_next(group_place *at, int np, int n_group) {
    if (++at->g < n_group)
        return false;
    at->g = 0;
    at->p = at->p + 1 == np ? 0 : at->p + 1;
    at->i += at->p == 0;
    return true;
}

/* The position of the tile instructions. */
typedef struct dots_at {
    group_place at;
    const int8_t *a;  /* codes of the activations */
    const uint8_t *b; /* lines of weights */
} dots_at;

LANES_INLINE void first_dot(int asym, int each, int64_t e, const dots_at *d) {
    const int64_t k = 0, a_step = 0, b_step = 0;
    if (asym)
        BY_REGISTER(FIRST, TILES_DOT_UNSIGNED)
    else
        BY_REGISTER(FIRST, TILES_DOT_SIGNED)
}
/* The tile instructions after the first, of a group of n. */
LANES_INLINE void more_dots(int asym, int each, int64_t e, const dots_at *d, int n) {
    const int64_t a_step = TILE_ROWS * each, b_step = each / 4 * TILE_LINE;
    for (int k = 1; k < n; k++) {
        if (asym)
            BY_REGISTER(MORE, TILES_DOT_UNSIGNED)
        else
            BY_REGISTER(MORE, TILES_DOT_SIGNED)
    }
}
LANES_INLINE void store_group(int64_t e, tile_sums *to) {
    switch (e % 4) {
    case 0: TILES_STORE(0, *to, TILE_LINE); break;
    case 1: TILES_STORE(1, *to, TILE_LINE); break;
    case 2: TILES_STORE(2, *to, TILE_LINE); break;
    default: TILES_STORE(3, *to, TILE_LINE);
    }
}

LANES_INLINE void load_floats(bool is_first, const tile_floats *from, __m512 *y) {
    LANES_UNROLL
    for (int t = 0; t < TILE_ROWS; t++)
        y[t] = is_first ? _mm512_setzero_ps() : _mm512_load_ps((*from)[t]);
}
LANES_INLINE void store_floats(tile_floats *to, const __m512 *y) {
    LANES_UNROLL
    for (int t = 0; t < TILE_ROWS; t++)
        _mm512_store_ps((*to)[t], y[t]);
}

/* The position of the scaling; the pointers are those of the group. */
typedef struct floats_at {
    group_place at;
    const float *w_scale, *w_min, *x_scale, *x_lift;
} floats_at;

/* Scales half of the rows of a group. half is a constant. */
LANES_INLINE void scale_half(int asym, int half, const tile_sums *sums, const floats_at *f, __m512 *y) {
    const int t = half * (TILE_ROWS / 2);
    scale_group(asym, TILE_ROWS / 2, *sums + t, f->w_scale, f->w_min, f->x_scale + t, f->x_lift + t, y + t);
}

LANES_INLINE void begin_dots(const block_job *j, int group, dots_at *d) {
    d->a = copied_at(j, d->at.i, group).codes;
    d->b = j->s->w.lines[d->at.p][0];
}
LANES_INLINE void begin_floats(const block_job *j, int group, floats_at *f, __m512 *y) {
    const copied x = copied_at(j, f->at.i, group);
    f->x_scale = x.scale;
    f->x_lift = x.lift;
    f->w_scale = j->s->w.scale[f->at.p][0];
    f->w_min = j->s->w.min[f->at.p][0];
    load_floats(j->is_first, &j->s->sums[f->at.i][f->at.p], y);
}

/* Multiplies the block with all rows of the part, as one stream of groups, so that the pipeline does not
 * drain at the end of a tile of outputs. each: number of codes of a row in one tile instruction: 16, 32, or
 * 64 for all longer groups. asym and each are constants. */
LANES_INLINE void multiply_groups(block_job *j, int asym, int each) {
    scratch *s = j->s;
    const int n_whole = each < TILE_K ? 1 : (int)j->job->group_tiles, group = n_whole * each;
    const int n_all = j->n_tile * (TILE_K / each), n_group = num_div_up(n_all, n_whole);
    const int n_last = n_all - (n_group - 1) * n_whole;
    const int64_t n = num_div_up(j->at->m1 - j->at->m0, TILE_ROWS) * j->np * n_group;
    dots_at d = {0};
    floats_at f = {0};
    __m512 y[TILE_ROWS];
    for (int64_t e = 0; e < n + FLOATS_BEHIND; e++) {
        const tile_sums *sums = &s->ring[e % RING]; /* the sums of FLOATS_BEHIND groups ago */
        if (e < n) {
            if (d.at.g == 0)
                begin_dots(j, group, &d);
            first_dot(asym, each, e, &d);
        }
        if (e >= FLOATS_BEHIND) {
            if (f.at.g == 0)
                begin_floats(j, group, &f, y);
            scale_half(asym, 0, sums, &f, y);
        }
        if (e < n) {
            more_dots(asym, each, e, &d, d.at.g == n_group - 1 ? n_last : n_whole);
            d.a += (int64_t)group * TILE_ROWS;
            d.b += group / 4 * TILE_LINE;
            group_next(&d.at, j->np, n_group);
        }
        if (e >= STORED_BEHIND && e < n + STORED_BEHIND)
            store_group(e - STORED_BEHIND, &s->ring[(e - STORED_BEHIND) % RING]);
        prefetch_next(j);
        if (e < FLOATS_BEHIND)
            continue;
        scale_half(asym, 1, sums, &f, y);
        f.w_scale += PACK_PANEL;
        f.w_min += PACK_PANEL;
        f.x_scale += each > 16 || f.at.g % 2 ? TILE_ROWS : 0;
        f.x_lift += TILE_ROWS;
        tile_floats *tile = &s->sums[f.at.i][f.at.p];
        if (group_next(&f.at, j->np, n_group))
            store_floats(tile, y);
    }
}

typedef void (*groups_fn)(block_job *j);
#define DEFINE(asym, each)                                                                                   \
    static void groups_##asym##_##each(block_job *j) {                                                       \
        multiply_groups(j, asym, each);                                                                      \
    }
#define NAME(asym, each)    groups_##asym##_##each,
#define EACH_GROUP(X, asym) X(asym, 16) X(asym, 32) X(asym, 64)
EACH_GROUP(DEFINE, 0)
EACH_GROUP(DEFINE, 1)
/* [asym][groups of 16, 32, longer] */
static const groups_fn by_groups[2][3] = {{EACH_GROUP(NAME, 0)}, {EACH_GROUP(NAME, 1)}};

/* Number of steps of the loop over a block, each of which prefetches some lines. */
static int64_t groups_steps(const block_job *j) {
    const int n_group = num_div_up(j->n_tile * TILE_K, (int)j->job->a->w->format.group);
    return num_div_up(j->at->m1 - j->at->m0, TILE_ROWS) * j->np * n_group + FLOATS_BEHIND;
}

static void block_groups(block_job *j) {
    const pack_format *f = &j->job->a->w->format;
    by_groups[f->asym ? 1 : 0][f->group == 16 ? 0 : f->group == 32 ? 1 : 2](j);
}

#endif
