/* experts_float.cu - products of experts with matrices of floats. Rows stay floats.
 *
 * A block has up to eight pairs of one expert and 16 outputs, two for each warp. The lanes of a warp take K
 * in steps of four elements, each adds its products in the order of K, and then the lanes are added in pairs.
 * A pair's order of sums does not depend on the others. */
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/launch.cuh"
#include "numbers/tile.h"

enum { FLOAT_OUTPUTS = 2 * EXPERT_WARPS, PAIRS = CUDA_EXPERT_FEW };

struct rows_job {
    expert_job x;
    const uint8_t *w[2];
    int64_t stride, expert_bytes; /* bytes */
};

/* The sums of two outputs (of each matrix) for N pairs of the tile from `first` on. */
template <int TYPE, int N>
__device__ __forceinline__ void pairs_multiply(const rows_job &j, const cuda_expert_tile &tile, int first,
                                               int output, int matrix) {
    const int lane = threadIdx.x % 32, k = j.x.k, n_matrix = j.x.gated ? 2 : 1;
    const float *x[N];
    const uint8_t *row[2][2];
    float sum[2][2][N] = {};
#pragma unroll
    for (int m = 0; m < N; m++) {
        const int pair = j.x.pairs[tile.first + min(first + m, tile.n - 1)];
        x[m] = j.x.x + pair / j.x.n_used * j.x.ldx + (j.x.each ? (int64_t)(pair % j.x.n_used) * k : 0);
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int o = 0; o < 2; o++)
            row[i][o] = j.w[j.x.gated ? i : matrix] + expert_place(j.x, tile.expert) * j.expert_bytes +
                        min(output + o, j.x.n - 1) * j.stride;
    for (int at = 4 * lane; at < k; at += 128) {
        float4 v[N];
#pragma unroll
        for (int m = 0; m < N; m++)
            v[m] = four_inputs(x[m], at, k);
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (i < n_matrix)
#pragma unroll
                for (int o = 0; o < 2; o++) {
                    const float4 w = four_weights<TYPE>(row[i][o], at);
#pragma unroll
                    for (int m = 0; m < N; m++)
                        sum[i][o][m] = four_fma(w, v[m], sum[i][o][m]);
                }
    }
#pragma unroll
    for (int m = 0; m < N; m++)
#pragma unroll
        for (int o = 0; o < 2; o++) {
            const float s = pairs_sum(sum[0][o][m], 32), u = j.x.gated ? pairs_sum(sum[1][o][m], 32) : 0.0f;
            if (lane == 0 && first + m < tile.n && output + o < j.x.n)
                expert_write(j.x, tile.expert, j.x.pairs[tile.first + first + m], output + o, matrix, s, u);
        }
}

/* Blocks as in experts_few.cu: x has the outputs, y the tile, z the matrix. */
template <int TYPE>
__global__ void __launch_bounds__(EXPERT_THREADS) experts_float(const __grid_constant__ rows_job j) {
    const int output = (int)blockIdx.x * FLOAT_OUTPUTS + 2 * (threadIdx.x / 32);
    launch_wait();
    launch_next(); /* after the wait: experts_kept.cu reads the list before its own */
    if ((int)blockIdx.y >= __ldcg(j.x.n_tile) || output >= j.x.n)
        return;
    const cuda_expert_tile tile = j.x.tiles[blockIdx.y];
    if (expert_place(j.x, tile.expert) < 0)
        return;
    if (tile.n == 1) {
        pairs_multiply<TYPE, 1>(j, tile, 0, output, blockIdx.z);
        return;
    }
    for (int first = 0; first < tile.n; first += PAIRS / 2)
        pairs_multiply<TYPE, PAIRS / 2>(j, tile, first, output, blockIdx.z);
}

int experts_float_launch(const cuda_experts *a, const expert_job &x, cuda_stream s) {
    const int type = a->w[0].format.type;
    auto *const kernel = type == TYPE_F32     ? experts_float<TYPE_F32>
                         : type == TYPE_F16   ? experts_float<TYPE_F16>
                         : type == TYPE_BF16  ? experts_float<TYPE_BF16>
                         : type == TYPE_F8G64 ? experts_float<TYPE_F8G64>
                         : type == TYPE_F4G64 ? experts_float<TYPE_F4G64>
                                              : nullptr;
    if (!kernel || a->codes || a->leaves)
        return CUDA_UNSUPPORTED;
    rows_job j = {x};
    for (int i = 0; i < a->n_w; i++)
        j.w[i] = (const uint8_t *)a->w[i].data;
    j.stride = rows_bytes(type, a->w[0].k);
    j.expert_bytes = a->w[0].n / a->n_expert * j.stride;
    const int64_t n_pair = a->n_row * a->n_used;
    const dim3 grid((unsigned)((a->n + FLOAT_OUTPUTS - 1) / FLOAT_OUTPUTS),
                    (unsigned)cuda_expert_few_of(n_pair, a->n_expert, a->two).max_tile,
                    a->gated ? 1 : (unsigned)a->n_w);
    const int e = grid.y > 65535 ? (int)CUDA_UNSUPPORTED : prepare(kernel, 0);
    return e ? e : launch(kernel, grid, dim3(EXPERT_THREADS), 0, s, j);
}
