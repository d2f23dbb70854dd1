/* mixed_units.h - the division of a product with activations of 4 and 8 bits (W4Ax) among a GPU's
 * multiprocessors (COMET, section 4.4), as pure functions: the launch and the tests share them.
 *
 * The product is cut into tiles of outputs and rows, and each tile into chunks of K. A unit is one chunk of
 * one tile. Blocks of 128 channels cost 2 with 8 bits and 1 with 4, because int4 has twice the rate. A
 * multiprocessor gets consecutive units of an equal share of the *cost*, not of the number: so the tiles need
 * no remapping and no work is stolen at run time. A tile may be cut between two multiprocessors. The sums of
 * its chunks are joined in the order of the chunks, so the result depends neither on the number of
 * multiprocessors nor on which one computed what. */
#ifndef NIB_KERNELS_CUDA_MIXED_UNITS_H
#define NIB_KERNELS_CUDA_MIXED_UNITS_H

#include <stdint.h>

#ifdef __CUDACC__
#define MIXED_BOTH __host__ __device__
#else
#define MIXED_BOTH
#endif

enum { MIXED_BLOCK = 128 /* channels */, MIXED_CHUNK = 8 /* blocks of a unit: 1,024 channels */ };

typedef struct mixed_shape {
    int64_t n_row, n, k;    /* rows of activations, outputs, channels */
    int64_t tile_row, tile; /* rows and outputs of a tile */
    int64_t n8;             /* leading blocks with 8 bits */
} mixed_shape;

static inline MIXED_BOTH int64_t mixed_up(int64_t x, int64_t by) {
    return (x + by - 1) / by;
}
static inline MIXED_BOTH int64_t mixed_blocks(const mixed_shape *s) {
    return mixed_up(s->k, MIXED_BLOCK);
}
static inline MIXED_BOTH int64_t mixed_chunks(const mixed_shape *s) {
    return mixed_up(mixed_blocks(s), MIXED_CHUNK);
}
static inline MIXED_BOTH int64_t mixed_tiles(const mixed_shape *s) {
    return mixed_up(s->n_row, s->tile_row) * mixed_up(s->n, s->tile);
}
/* Unit i is chunk i % mixed_chunks of tile i / mixed_chunks. */
static inline MIXED_BOTH int64_t mixed_units(const mixed_shape *s) {
    return mixed_tiles(s) * mixed_chunks(s);
}
/* The cost of a tile's first n blocks. */
static inline MIXED_BOTH int64_t mixed_cost_of_blocks(const mixed_shape *s, int64_t n) {
    const int64_t all = mixed_blocks(s), first = n < all ? n : all;
    return first + (first < s->n8 ? first : s->n8);
}
/* The cost of units 0 to unit - 1. */
static inline MIXED_BOTH int64_t mixed_cost_before(const mixed_shape *s, int64_t unit) {
    const int64_t chunk = mixed_chunks(s);
    return unit / chunk * mixed_cost_of_blocks(s, mixed_blocks(s)) +
           mixed_cost_of_blocks(s, unit % chunk * MIXED_CHUNK);
}
/* The first unit of multiprocessor i of n: the first one with at least i / n of the cost before it. The units
 * end where those of i + 1 begin. */
static inline MIXED_BOTH int64_t mixed_first(const mixed_shape *s, int64_t i, int64_t n) {
    const int64_t all = mixed_cost_before(s, mixed_units(s));
    int64_t low = 0, high = mixed_units(s);
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (mixed_cost_before(s, middle) * n >= i * all)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

#endif
