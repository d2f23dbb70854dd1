/* whole.h - tile products for rows that are one group: 2 tiles of rows x 2 panels at a time, so that each
 * loaded operand is used twice. Sums stay integers until the end of K; a block loads and stores them once, as
 * tiles. */
#ifndef NIB_KERNELS_AMX_WHOLE_H
#define NIB_KERNELS_AMX_WHOLE_H

#include "kernels/cpu/amx/job.h"

/* Multiplies up to 2 x 2 tiles over 64 of K. ni and np are constants. */
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
LANES_INLINE void load_sums(int ni, int np, tile_floats (*from)[2]) {
    TILES_LOAD(0, from[0][0], TILE_LINE);
    if (np == 2)
        TILES_LOAD(1, from[0][1], TILE_LINE);
    if (ni == 2)
        TILES_LOAD(2, from[1][0], TILE_LINE);
    if (ni == 2 && np == 2)
        TILES_LOAD(3, from[1][1], TILE_LINE);
}
LANES_INLINE void store_sums(int ni, int np, tile_floats (*to)[2]) {
    TILES_STORE(0, to[0][0], TILE_LINE);
    if (np == 2)
        TILES_STORE(1, to[0][1], TILE_LINE);
    if (ni == 2)
        TILES_STORE(2, to[1][0], TILE_LINE);
    if (ni == 2 && np == 2)
        TILES_STORE(3, to[1][1], TILE_LINE);
}

/* Multiplies the block with tile i of the part's rows, and with tile i + 1 if ni is 2. asym, ni and np are
 * constants. */
LANES_INLINE void multiply_whole(block_job *j, int asym, int ni, int np, int64_t i) {
    const int8_t *a0 = copied_at(j, i, PACK_GROUP_ROW).codes,
                 *a1 = copied_at(j, i + ni - 1, PACK_GROUP_ROW).codes;
    const uint8_t *b0 = j->s->w.lines[0][0], *b1 = j->s->w.lines[np - 1][0];
    if (j->is_first)
        zero_sums(ni, np);
    else
        load_sums(ni, np, j->s->sums + i);
    for (int64_t t = 0; t < j->n_tile; t++) {
        const int64_t codes = t * TILE_ROWS * TILE_K, lines = t * (TILE_K / 4) * TILE_LINE;
        step(asym, ni, np, a0 + codes, a1 + codes, b0 + lines, b1 + lines);
        prefetch_next(j);
    }
    store_sums(ni, np, j->s->sums + i);
}

typedef void (*whole_fn)(block_job *j, int64_t i);
#define DEFINE_WHOLE(asym, ni, np)                                                                           \
    static void whole_##asym##_##ni##_##np(block_job *j, int64_t i) {                                        \
        multiply_whole(j, asym, ni, np, i);                                                                  \
    }
#define NAME_WHOLE(asym, ni, np) whole_##asym##_##ni##_##np,
#define EACH_SHAPE(X, asym)      X(asym, 1, 1) X(asym, 1, 2) X(asym, 2, 1) X(asym, 2, 2)
EACH_SHAPE(DEFINE_WHOLE, 0)
EACH_SHAPE(DEFINE_WHOLE, 1)
/* [asym][2 * (tiles of rows - 1) + panels - 1] */
static const whole_fn wholes[2][4] = {{EACH_SHAPE(NAME_WHOLE, 0)}, {EACH_SHAPE(NAME_WHOLE, 1)}};

/* Multiplies the block with tile i of the part's rows, and with the next one if there is one. Returns how
 * many. */
static int block_whole(block_job *j, int64_t i) {
    const int ni = (int)NUM_MIN(num_div_up(j->at->m1 - j->at->m0, TILE_ROWS) - i, 2);
    wholes[j->job->a->w->format.asym ? 1 : 0][2 * (ni - 1) + j->np - 1](j, i);
    return ni;
}

#endif
