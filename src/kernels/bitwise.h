/* bitwise.h - shared by the Bitwise strategies: products of bit planes with AND and population count (DPR
 * with all slices of width 1, dpr.h).
 *
 * A plane of activations is 64 bits for each tile (64 of K), in the order of a plane of weights
 * (numbers/tile.h): two dwords, each ANDed with the dword of a weight row. Weights in groups of 32 are
 * rearranged in registers so that a dword is one group; activations are laid out for that. The top plane of
 * the activations is their sign, so its counts are subtracted. */
#ifndef NIB_KERNELS_BITWISE_H
#define NIB_KERNELS_BITWISE_H

#include "base/num.h"
#include "kernels/act8.h"
#include "kernels/strategy.h"

enum { BITWISE_ROWS = 4, BITWISE_SCRATCH = STRATEGY_SCRATCH };
_Static_assert((int)BITWISE_SCRATCH >= (int)MAX_PACK_ROW,
               "the longest row that is one group must fit as 8 planes");

typedef struct bit_job {
    const linear_args *a;
    act8_layout l;
    const uint64_t *planes; /* [row - m0][tile - tile0][a_bits] */
    int a_bits;
    bool by_32; /* groups of 32: a dword of a plane is one group */
    int64_t m0, m1, tile0, tile1;
} bit_job;

/* The position of element k of a tile among the 64 bits of a plane. */
static inline int bitwise_place(bool by_32, int k) {
    const int quad = k / 4, c = k % 4;
    if (by_32)
        return quad / 8 * 32 + 8 * c + quad % 8 / 2 + 4 * (quad % 2);
    return quad % 2 * 32 + 8 * c + quad / 2;
}

static inline bool bitwise_can(const pack_format *f) {
    return f->packing == PACK_PLANES && f->group >= 32 && f->table == PACK_TABLE_NONE &&
           f->scale != PACK_SCALE_TWO && f->scale != PACK_SCALE_ZERO;
}

static inline const uint64_t *bitwise_planes(const bit_job *j, int64_t m, int64_t tile) {
    return j->planes + ((m - j->m0) * (j->tile1 - j->tile0) + tile - j->tile0) * j->a_bits;
}

/* Whether a group ends with dword u of this tile. */
static inline bool bitwise_ends(const bit_job *j, int64_t tile, int u) {
    const view *w = j->a->w;
    if (j->by_32)
        return true;
    return u == 1 &&
           ((tile + 1) * TILE_K % tile_group(&w->format, w->k) == 0 || tile + 1 == tile_count(w->k));
}

/* The scales of the group that has element `at` of K (in tile at / 64 of the panel), within its chunk. */
static inline const uint8_t *bitwise_scales(const bit_job *j, const uint8_t *panel, int64_t at) {
    const view *w = j->a->w;
    const pack_format *f = &w->format;
    const tile_chunk c = tile_chunk_at(f, panel, w->k, at / TILE_CHUNK_K);
    const int64_t g = f->group == PACK_GROUP_ROW ? 0 : at % TILE_CHUNK_K / f->group;
    return c.scales + tile_scale_start(f) + g * tile_scale_step(f);
}

/* Computes rows [n0, n1) of the weights. It cuts the activation rows and K so that the planes of a part fit
 * the scratch, and calls `panels` for each part. build: makes a_bits words of 64 codes. panels: multiplies
 * one or two panels with all rows and tiles of the job; sums are in y between two spans of K. */
static inline void bitwise_run(const linear_args *a, int64_t n0, int64_t n1,
                               void (*build)(const int8_t *codes, bool by_32, int a_bits, uint64_t *out),
                               void (*panels)(const bit_job *j, const int64_t *panel, int np)) {
    const view *w = a->w;
    uint64_t *planes = a->scratch;
    bit_job j = {.a = a,
                 .l = act_layout_of(a->q.format, w->k),
                 .planes = planes,
                 .a_bits = a->q.format.bits,
                 .by_32 = w->format.group == 32};
    const int64_t n_tile = tile_count(w->k), fit = BITWISE_SCRATCH / 8 / j.a_bits;
    const int64_t rows = NUM_MAX(1, NUM_MIN(BITWISE_ROWS, fit / n_tile));
    const int64_t span = n_tile <= fit / rows ? n_tile : fit / TILE_CHUNK * TILE_CHUNK;
    for (j.m0 = 0; j.m0 < a->n_row; j.m0 = j.m1) {
        j.m1 = NUM_MIN(a->n_row, j.m0 + rows);
        for (j.tile0 = 0; j.tile0 < n_tile; j.tile0 = j.tile1) {
            j.tile1 = NUM_MIN(n_tile, j.tile0 + span);
            for (int64_t m = j.m0; m < j.m1; m++)
                for (int64_t t = j.tile0; t < j.tile1; t++)
                    build((const int8_t *)a->q.data + m * j.l.bytes + t * TILE_K, j.by_32, j.a_bits,
                          planes + (bitwise_planes(&j, m, t) - planes));
            const int64_t p0 = n0 / PACK_PANEL, p1 = num_div_up(n1, PACK_PANEL), half = (p1 - p0) / 2;
            for (int64_t p = p0; p < p0 + half; p++)
                panels(&j, (const int64_t[]){p, p + half}, 2);
            if ((p1 - p0) % 2)
                panels(&j, (const int64_t[]){p1 - 1}, 1);
        }
    }
}

#endif
