/* experts.cuh - products of rows with the matrices of their experts: the parts of a launch, which experts.cu
 * puts together. */
#ifndef NIB_KERNELS_CUDA_EXPERTS_CUH
#define NIB_KERNELS_CUDA_EXPERTS_CUH

#include "kernels/cuda/linear_job.cuh"
#include "kernels/cuda/row_math.cuh"

enum { EXPERT_THREADS = 256, EXPERT_WARPS = EXPERT_THREADS / 32, EXPERT_OUTPUTS = 32 /* of a block */ };

/* What all kernels of these products need. Sums of pairs go to `part` first if they are added up. */
struct expert_job {
    const cuda_expert_tile *tiles;
    const int *n_tile, *pairs;
    const float *x, *chosen;
    int64_t ldx, ldc, ldy[2];
    float *y[2];          /* of a pair: y + row * ldy + place * n; or `part` with n between pairs */
    const float *bias[2]; /* [n_expert, n] */
    int n, k, n_used, n_w, act;
    bool each, sum, weighted, gated, adds, two;
};

/* The input of a pair, and its output of matrix i. */
__device__ __forceinline__ int expert_input(const expert_job &j, int pair) {
    return j.each ? pair : pair / j.n_used;
}
__device__ __forceinline__ float *expert_output(const expert_job &j, int i, int pair) {
    if (j.sum)
        return j.y[i] + (int64_t)pair * j.n;
    return j.y[i] + pair / j.n_used * j.ldy[i] + pair % j.n_used * j.n;
}
__device__ __forceinline__ float expert_weight(const expert_job &j, int pair) {
    return j.chosen[pair / j.n_used * j.ldc + j.n_used + pair % j.n_used];
}

/* A pair's finished output `at` from the sums of one or both matrices; returns what was written. */
__device__ __forceinline__ float expert_write(const expert_job &j, int expert, int pair, int at, int matrix,
                                              float v, float up) {
    const int64_t b = (int64_t)expert * j.n + at;
    v = j.bias[matrix] ? __fadd_rn(v, j.bias[matrix][b]) : v;
    if (j.gated && j.bias[1])
        up = __fadd_rn(up, j.bias[1][b]);
    if (j.weighted && !j.sum) {
        const float w = expert_weight(j, pair);
        v = __fmul_rn(v, w), up = __fmul_rn(up, w);
    }
    v = j.gated ? gate_value(j.act, v, up) : v;
    float *const y = expert_output(j, matrix, pair) + at;
    v = j.adds && !j.sum ? __fadd_rn(*y, v) : v;
    *y = v;
    return v;
}

/* Bytes of a packed matrix of one expert. */
static inline int64_t expert_bytes(const view *w, int64_t n_expert) {
    return tile_panel_bytes(&w->format, w->k) * ((w->n / n_expert + PACK_PANEL - 1) / PACK_PANEL);
}

/* With packed matrices (experts_few.cu), with matrices of floats (experts_float.cu), of many rows
 * (experts_wide.cu). */
int experts_few_launch(const cuda_experts *a, const expert_job &j, cuda_stream s);
int experts_float_launch(const cuda_experts *a, const expert_job &j, cuda_stream s);
int experts_wide_launch(const cuda_experts *a, const expert_job &j, cuda_stream s);

#endif
