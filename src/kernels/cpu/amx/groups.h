/* groups.h - tiles in groups of 16 to 128: 16 rows x one panel at a time over a block of K.
 *
 * A tile instruction takes 16 cycles whatever is in the tile, storing its 256 sums as long again, and then
 * each of them has to become a float and be scaled, three vector operations for 16 of them. What was measured
 * on a Xeon (bench_amx_parts): these times add up where one waits for the other, since the processor looks
 * ahead over two or three groups only. So everything is used a while after it was asked for: the sums of two
 * groups are stored while the next two are multiplied, and become floats while those are stored. The floats
 * stay in registers over the whole block. */
#ifndef NIB_KERNELS_AMX_GROUPS_H
#define NIB_KERNELS_AMX_GROUPS_H

#include "kernels/cpu/amx/job.h"

enum { PAIRS_BEHIND = 2 }; /* the ring has room for one that is stored and one that is read */

/* The sums of two groups to registers S0 and S1, beside each other: n[0] and n[1] tile instructions of the
 * n_whole that a group has; n[1] <= n[0]. a, b: rows of codes and lines of the first; the second's follow. */
#define PAIR(DOT, S0, S1)                                                                                    \
    do {                                                                                                     \
        TILES_ZERO(S0);                                                                                      \
        TILES_ZERO(S1);                                                                                      \
        for (int k = 0; k < n[0]; k++, a += a_step, b += b_step) {                                           \
            TILES_LOAD(4, a, each);                                                                          \
            TILES_LOAD(6, b, TILE_LINE);                                                                     \
            DOT(S0, 4, 6);                                                                                   \
            if (k < n[1]) {                                                                                  \
                TILES_LOAD(5, a + n_whole * a_step, each);                                                   \
                TILES_LOAD(7, b + n_whole * b_step, TILE_LINE);                                              \
                DOT(S1, 5, 7);                                                                               \
            }                                                                                                \
        }                                                                                                    \
    } while (0)

LANES_INLINE void dot_pair(int asym, int pair, int each, int n_whole, const int n[2], const int8_t *a,
                           const uint8_t *b) {
    const int64_t a_step = TILE_ROWS * each, b_step = each / 4 * TILE_LINE;
    if (asym && pair % 2)
        PAIR(TILES_DOT_UNSIGNED, 2, 3);
    else if (asym)
        PAIR(TILES_DOT_UNSIGNED, 0, 1);
    else if (pair % 2)
        PAIR(TILES_DOT_SIGNED, 2, 3);
    else
        PAIR(TILES_DOT_SIGNED, 0, 1);
}
LANES_INLINE void store_pair(int pair, tile_sums *ring) {
    if (pair % 2) {
        TILES_STORE(2, ring[2], TILE_LINE);
        TILES_STORE(3, ring[3], TILE_LINE);
    } else {
        TILES_STORE(0, ring[0], TILE_LINE);
        TILES_STORE(1, ring[1], TILE_LINE);
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

/* Where a pair of groups is: tile of the part's rows, panel of the two, pair of the block. */
typedef struct pair_at {
    int64_t i;
    int p, pair;
} pair_at;
LANES_INLINE void pair_next(pair_at *at, int np, int n_pair) {
    if (++at->pair < n_pair)
        return;
    at->pair = 0;
    at->p = (at->p + 1) % np;
    at->i += at->p == 0;
}

/* The block, all rows of the part: one stream of pairs, so that what is under way does not end with a tile of
 * outputs. each: codes of a row in one tile instruction, 16, 32, or 64 for all longer groups. asym and each
 * are constants. */
LANES_INLINE void multiply_groups(block_job *j, int asym, int each) {
    scratch *s = j->s;
    const int n_whole = each < TILE_K ? 1 : (int)j->job->group_tiles, group = n_whole * each;
    const int n_all = j->n_tile * (TILE_K / each), n_group = num_div_up(n_all, n_whole);
    const int n_pair = (n_group + 1) / 2;
    const int64_t n = num_div_up(j->at->m1 - j->at->m0, TILE_ROWS) * j->np * n_pair;
    pair_at dots = {0, 0, 0}, floats = {0, 0, 0};
    __m512 y[TILE_ROWS];
    for (int64_t e = 0; e < n + PAIRS_BEHIND; e++) {
        const int odd = (int)(e % 2);
        if (e < n) {
            const int at = 2 * dots.pair * n_whole, left = n_all - at;
            const int n_dot[2] = {NUM_MIN(left, n_whole), NUM_MAX(NUM_MIN(left - n_whole, n_whole), 0)};
            dot_pair(asym, odd, each, n_whole, n_dot,
                     copied_at(j, dots.i, group).codes + (int64_t)at * TILE_ROWS * each,
                     s->w.lines[dots.p][0] + (int64_t)at * (each / 4) * TILE_LINE);
            pair_next(&dots, j->np, n_pair);
        }
        if (e > 0 && e <= n)
            store_pair(1 - odd, s->ring);
        fetch_next(j);
        if (e < PAIRS_BEHIND)
            continue;
        const copied x = copied_at(j, floats.i, group);
        const int p = floats.p;
        if (floats.pair == 0)
            load_floats(j->is_first, &s->sums[floats.i][p], y);
        LANES_UNROLL
        for (int half = 0; half < 2; half++) {
            const int g = 2 * floats.pair + half, of_act = each == 16 ? g / 2 : g;
            if (g < n_group)
                scale_group(asym, TILE_ROWS, (const int32_t(*)[PACK_PANEL])s->ring[2 * odd + half],
                            s->w.scale[p][g], s->w.min[p][g], x.scale + of_act * TILE_ROWS,
                            x.lift + g * TILE_ROWS, y);
        }
        if (floats.pair == n_pair - 1)
            store_floats(&s->sums[floats.i][p], y);
        pair_next(&floats, j->np, n_pair);
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

/* Steps of the loop over a block, at which what comes next is fetched. */
static int64_t groups_steps(const block_job *j) {
    const int n_group = num_div_up(j->n_tile * TILE_K, (int)j->job->a->w->format.group);
    return num_div_up(j->at->m1 - j->at->m0, TILE_ROWS) * j->np * ((n_group + 1) / 2) + PAIRS_BEHIND;
}

static void block_groups(block_job *j) {
    const pack_format *f = &j->job->a->w->format;
    by_groups[f->asym ? 1 : 0][f->group == 16 ? 0 : f->group == 32 ? 1 : 2](j);
}

#endif
