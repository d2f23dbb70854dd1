/* short.h - tiles in groups of 16 and 32: 16 rows x one panel at a time over a block of K.
 *
 * A tile instruction takes 16 cycles for a group whatever its length, and then every one of its 256 sums has
 * to become a float and be scaled, three vector operations for 16 of them. So the vector units are what is
 * short, not the tiles, and the order is made for them: the floats stay in registers over the whole block,
 * and the sums go through the ring, where they lie for a while before they are taken, so that the tile unit
 * works on the next groups meanwhile. */
#ifndef NIB_KERNELS_AMX_SHORT_H
#define NIB_KERNELS_AMX_SHORT_H

#include "kernels/cpu/amx/job.h"

enum { PAIRS_BEHIND = 1 }; /* between a tile's sums being stored and being read; 0 and 2 were no better */

/* Two groups: their sums to two places of the ring. a: 2 x 16 rows of codes; b: the groups' lines. */
#define PAIR(DOT)                                                                                            \
    do {                                                                                                     \
        TILES_ZERO(0);                                                                                       \
        TILES_LOAD(2, a, group);                                                                             \
        TILES_LOAD(4, b, TILE_LINE);                                                                         \
        DOT(0, 2, 4);                                                                                        \
        TILES_STORE(0, sums[0], TILE_LINE);                                                                  \
        TILES_ZERO(1);                                                                                       \
        TILES_LOAD(3, a + TILE_ROWS * group, group);                                                         \
        TILES_LOAD(5, b + group / 4 * TILE_LINE, TILE_LINE);                                                 \
        DOT(1, 3, 5);                                                                                        \
        TILES_STORE(1, sums[1], TILE_LINE);                                                                  \
    } while (0)

LANES_INLINE void dot_pair(int asym, int group, const int8_t *a, const uint8_t *b, tile_sums *sums) {
    if (asym)
        PAIR(TILES_DOT_UNSIGNED);
    else
        PAIR(TILES_DOT_SIGNED);
}

/* Tile i of the part's rows, of which nt are computed; panel p of the two. asym, group and nt are constants.
 */
LANES_INLINE void multiply_short(const block_job *j, int asym, int group, int nt, int64_t i, int p) {
    enum { SHORT_RING = 2 * (PAIRS_BEHIND + 1) };
    scratch *s = j->s;
    const copied x = copied_at(j, i, group);
    const uint8_t *lines = s->w.lines[p][0], *next = j->next[p];
    __m512 y[TILE_ROWS];
    load_floats(j->is_first, nt, &s->sums[i][p], y);
    const int n_pair = j->n_tile * (TILE_K / group / 2);
    for (int pair = 0; pair < n_pair + PAIRS_BEHIND; pair++) {
        if (pair < n_pair)
            dot_pair(asym, group, x.codes + (int64_t)pair * 2 * TILE_ROWS * group,
                     lines + pair * 2 * (group / 4) * TILE_LINE, s->ring + 2 * pair % SHORT_RING);
        fetch_next(j, &next);
        if (pair < PAIRS_BEHIND)
            continue;
        LANES_UNROLL
        for (int half = 0; half < 2; half++) {
            const int g = 2 * (pair - PAIRS_BEHIND) + half, g32 = group == 16 ? g / 2 : g;
            scale_group(asym, nt, (const int32_t(*)[PACK_PANEL])s->ring[g % SHORT_RING], s->w.scale[p][g],
                        s->w.min[p][g], x.scale + g32 * TILE_ROWS, x.lift + g * TILE_ROWS, y);
        }
    }
    store_floats(nt, &s->sums[i][p], y);
}

typedef void (*short_fn)(const block_job *j, int64_t i, int p);
#define DEFINE(asym, group, nt)                                                                              \
    static void short_##asym##_##group##_##nt(const block_job *j, int64_t i, int p) {                        \
        multiply_short(j, asym, group, nt, i, p);                                                            \
    }
#define NAME(asym, group, nt)     short_##asym##_##group##_##nt,
#define EACH_ROWS(X, asym, group) X(asym, group, 4) X(asym, group, 8) X(asym, group, 12) X(asym, group, 16)
EACH_ROWS(DEFINE, 0, 16)
EACH_ROWS(DEFINE, 0, 32)
EACH_ROWS(DEFINE, 1, 16)
EACH_ROWS(DEFINE, 1, 32)
/* [asym][groups of 16, 32][a quarter of the rows - 1] */
static const short_fn shorts[2][2][TILE_ROWS / 4] = {
    {{EACH_ROWS(NAME, 0, 16)}, {EACH_ROWS(NAME, 0, 32)}},
    {{EACH_ROWS(NAME, 1, 16)}, {EACH_ROWS(NAME, 1, 32)}},
};

/* Steps of the inner loop, at which what comes next is fetched. */
static int short_steps(const pack_format *f, int n_tile) {
    return n_tile * (TILE_K / f->group / 2) + PAIRS_BEHIND;
}

/* The block, tile i of the part's rows. */
static void block_short(const block_job *j, int64_t i) {
    const pack_format *f = &j->job->a->w->format;
    const int64_t rows = NUM_MIN(j->at->m1 - j->at->m0 - i * TILE_ROWS, TILE_ROWS);
    for (int p = 0; p < j->np; p++)
        shorts[f->asym ? 1 : 0][f->group == 16 ? 0 : 1][(rows + 3) / 4 - 1](j, i, p);
}

#endif
