/* linear_one.cuh - products of one row that each block has in shared memory, for linear_one.cu and
 * shortlist.cu. */
#ifndef NIB_KERNELS_CUDA_LINEAR_ONE_CUH
#define NIB_KERNELS_CUDA_LINEAR_ONE_CUH

#include "kernels/cuda/linear_panels.cuh"
#include "kernels/cuda/linear_rows.cuh"
#include "kernels/cuda/tables.cuh"

struct one_store {
    uint32_t *where;
    subgroup_meta *meta;
    __device__ void codes(int, int k, uint2 u) {
        where[code_quad(k / 4)] = u.x;
        where[code_quad(k / 4 + 1)] = u.y;
    }
    __device__ void subgroup(int, int i, subgroup_meta m) {
        meta[i] = m;
    }
};

struct one_facts {
    float of_norm, of_row;
    __device__ float factor(int) const {
        return of_norm;
    }
    __device__ float lift(int) const {
        return of_row;
    }
};

/* Adds tile t's subgroups of a chunk to the sums of a lane's two rows. whole: memory follows a short last
 * chunk, so all four tiles may be read; a constant. */
template <int BITS, bool HALVES, int TABLE>
__device__ __forceinline__ void one_chunk(const linear_job &j, const uint8_t *stage, uint2 mine,
                                          const subgroup_meta *metas, int n_tile,
                                          const lane_tables<TABLE> &tables, float sum[2], bool whole) {
    enum { SUBGROUPS = HALVES ? 4 : 2 /* of a tile */, CODE = code_bits<BITS, TABLE>() };
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int group[2 * SUBGROUPS], row[2 * SUBGROUPS]; /* for row g, then for row g + 8 */
    subgroup_meta m[SUBGROUPS];
    float2 w[2 * SUBGROUPS];
#pragma unroll
    for (int i = 0; i < SUBGROUPS; i += 2)
        *(uint4 *)(m + i) = *(const uint4 *)(metas + t * SUBGROUPS + i);
#pragma unroll
    for (int i = 0; i < 2 * SUBGROUPS; i++) {
        group[i] = (SUBGROUPS * t + i % SUBGROUPS) >> j.group_shift;
        row[i] = i < SUBGROUPS ? g : g + 8;
    }
    if (whole || t < n_tile)
        scales_read<2 * SUBGROUPS>(j, stage + n_tile * BITS * 128, group, row, w);
    int d[2][2][4] = {}; /* [half of a tile][half of that][the instruction's order] */
    /* All tiles of a short last chunk are multiplied too: the codes for missing ones are zeros. */
#pragma unroll
    for (int i = 0; i < TILE_CHUNK; i++) {
        if (!whole && i >= n_tile)
            break;
        tile_lane<CODE> v;
        tile_take<BITS, TABLE>(&v, stage + i * BITS * 128, lane, tables);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool here = g == 2 * i + h;
            const uint32_t b0 = here ? mine.x : 0, b1 = here ? mine.y : 0;
            tile_mma(v, h, d[h][0], b0, HALVES ? 0 : b1);
            if (HALVES)
                tile_mma(v, h, d[h][1], 0, b1);
        }
    }
#pragma unroll
    for (int i = 0; i < SUBGROUPS; i++)
#pragma unroll
        for (int r = 0; r < 2; r++) { /* columns 2t and 2t + 1 are the tile's halves */
            const int half = HALVES ? i / 2 : i, in = HALVES ? i % 2 : 0;
            const float more = subgroup_add(
                j, w[r * SUBGROUPS + i], d[half][in][2 * r + half] >> tile_excess<CODE>(half), m[i], sum[r]);
            sum[r] = t < n_tile ? more : sum[r];
        }
}

#endif
