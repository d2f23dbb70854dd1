/* gtile.h - the G-tile: the order in which a GPU reads a PACK_TILE matrix. It is the Q-tile (tile.h) with the
 * dwords of each part permuted within the part, so a panel keeps its size, its scales and its place, and
 * tiers move the same bytes.
 *
 * A part of width w has L = 2w lines of 16 dwords; dword r of line l is row r's four bytes of K. On a GPU a
 * warp multiplies a tile by the matrix instruction m16n8k32 (16 rows x 32 of K), whose lane 4g + t holds rows
 * g and g + 8 and the quads t and t + 4 of each 32 of K. So lane 4g + t gets, adjacent,
 *
 *     width 8: for each half of the tile's K, 4 dwords: (row g, quad t), (g + 8, t), (g, t + 4),
 *              (g + 8, t + 4)
 *     width 4: the same 4 dwords once: a byte's two fields are the two halves
 *     width 2: 2 dwords: (g, line t), (g + 8, line t); the four fields are the quads t, t + 4, t + 8, t + 12
 *     width 1: 2 dwords: (g, line t % 2), (g + 8, line t % 2), shared by lanes t and t + 2
 *
 * and a warp's load of a part is one contiguous run of 16 or 8 bytes a lane. */
#ifndef NIB_NUMBERS_GTILE_H
#define NIB_NUMBERS_GTILE_H

#include "numbers/pack.h"

#ifdef __CUDACC__
#define GTILE_EVERYWHERE __host__ __device__
#else
#define GTILE_EVERYWHERE
#endif

/* Where a part of n_line lines keeps row r's dword of line l, counted in dwords from the part's start. */
GTILE_EVERYWHERE static inline int gtile_dword(int n_line, int l, int r) {
    const int n_t = n_line < 4 ? n_line : 4, n_second = n_line < 8 ? 1 : 2;
    const int t = l % n_t, second = l / n_t % n_second, half = l / 8;
    return half * 128 + (((r % 8 * n_t + t) * n_second + second) * 2 + r / 8);
}

#endif
