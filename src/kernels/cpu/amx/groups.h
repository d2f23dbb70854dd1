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

LANES_INLINE void load_floats(bool is_first, int nt, const tile_floats *from, __m512 *y) {
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        y[t] = is_first ? _mm512_setzero_ps() : _mm512_load_ps((*from)[t]);
}
LANES_INLINE void store_floats(int nt, tile_floats *to, const __m512 *y) {
    LANES_UNROLL
    for (int t = 0; t < nt; t++)
        _mm512_store_ps((*to)[t], y[t]);
}

/* Tile i of the part's rows, of which nt are computed; panel p of the two. each: codes of a row in one tile
 * instruction, 16, 32, or 64 for all longer groups. asym, each and nt are constants. */
LANES_INLINE void multiply_groups(block_job *j, int asym, int each, int nt, int64_t i, int p) {
    scratch *s = j->s;
    const int n_whole = each < TILE_K ? 1 : (int)j->job->group_tiles, group = n_whole * each;
    const copied x = copied_at(j, i, group);
    const int n_all = j->n_tile * (TILE_K / each), n_group = num_div_up(n_all, n_whole);
    const int n_pair = (n_group + 1) / 2;
    __m512 y[TILE_ROWS];
    load_floats(j->is_first, nt, &s->sums[i][p], y);
    for (int pair = 0; pair < n_pair + PAIRS_BEHIND; pair++) {
        if (pair < n_pair) {
            const int at = 2 * pair * n_whole, left = n_all - at;
            const int n[2] = {NUM_MIN(left, n_whole), NUM_MAX(NUM_MIN(left - n_whole, n_whole), 0)};
            dot_pair(asym, pair, each, n_whole, n, x.codes + (int64_t)at * TILE_ROWS * each,
                     s->w.lines[p][0] + (int64_t)at * (each / 4) * TILE_LINE);
        }
        if (pair > 0 && pair <= n_pair)
            store_pair(pair - 1, s->ring);
        fetch_next(j);
        LANES_UNROLL
        for (int half = 0; half < 2; half++) {
            const int g = 2 * (pair - PAIRS_BEHIND) + half, of_act = each == 16 ? g / 2 : g;
            if (g >= 0 && g < n_group)
                scale_group(asym, nt, (const int32_t(*)[PACK_PANEL])s->ring[g % RING], s->w.scale[p][g],
                            s->w.min[p][g], x.scale + of_act * TILE_ROWS, x.lift + g * TILE_ROWS, y);
        }
    }
    store_floats(nt, &s->sums[i][p], y);
}

typedef void (*groups_fn)(block_job *j, int64_t i, int p);
#define DEFINE(asym, each, nt)                                                                               \
    static void groups_##asym##_##each##_##nt(block_job *j, int64_t i, int p) {                              \
        multiply_groups(j, asym, each, nt, i, p);                                                            \
    }
#define NAME(asym, each, nt)     groups_##asym##_##each##_##nt,
#define EACH_ROWS(X, asym, each) X(asym, each, 4) X(asym, each, 8) X(asym, each, 12) X(asym, each, 16)
EACH_ROWS(DEFINE, 0, 16)
EACH_ROWS(DEFINE, 0, 32)
EACH_ROWS(DEFINE, 0, 64)
EACH_ROWS(DEFINE, 1, 16)
EACH_ROWS(DEFINE, 1, 32)
EACH_ROWS(DEFINE, 1, 64)
/* [asym][groups of 16, 32, longer][a quarter of the rows - 1] */
static const groups_fn by_groups[2][3][TILE_ROWS / 4] = {
    {{EACH_ROWS(NAME, 0, 16)}, {EACH_ROWS(NAME, 0, 32)}, {EACH_ROWS(NAME, 0, 64)}},
    {{EACH_ROWS(NAME, 1, 16)}, {EACH_ROWS(NAME, 1, 32)}, {EACH_ROWS(NAME, 1, 64)}},
};

/* Steps of the inner loops over a block, at which what comes next is fetched. */
static int groups_steps(const block_job *j) {
    const pack_format *f = &j->job->a->w->format;
    const int n_group = num_div_up(j->n_tile * TILE_K, f->group);
    return j->np * ((n_group + 1) / 2 + PAIRS_BEHIND);
}

/* The block, tile i of the part's rows. */
static void block_groups(block_job *j, int64_t i) {
    const pack_format *f = &j->job->a->w->format;
    const int64_t rows = NUM_MIN(j->at->m1 - j->at->m0 - i * TILE_ROWS, TILE_ROWS);
    for (int p = 0; p < j->np; p++)
        by_groups[f->asym ? 1 : 0][f->group == 16 ? 0 : f->group == 32 ? 1 : 2][(rows + 3) / 4 - 1](j, i, p);
}

#endif
