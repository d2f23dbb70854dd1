/* experts.cuh - products of rows with the matrices of their experts: the parts of a launch, which experts.cu
 * puts together. */
#ifndef NIB_KERNELS_CUDA_EXPERTS_CUH
#define NIB_KERNELS_CUDA_EXPERTS_CUH

#include "kernels/cuda/linear_job.cuh"
#include "kernels/cuda/row_math.cuh"
#include "kernels/cuda/scaled.cuh"
#include "numbers/tile.h"

enum { EXPERT_THREADS = 256, EXPERT_WARPS = EXPERT_THREADS / 32, EXPERT_OUTPUTS = 32 /* of a block */ };

/* What all kernels of these products need. Sums of pairs go to `part` first if they are added up. */
struct expert_job {
    const cuda_expert_tile *tiles;
    const int *n_tile, *pairs;
    const float *x, *chosen;
    int64_t ldx, ldc, ldy[2];
    float *y[2];          /* of a pair: y + row * ldy + place * n; or `part` with n between pairs */
    const float *bias[2]; /* [n_expert, n] */
    const int16_t *here;  /* cuda_experts.here */
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

/* Where the matrix of an expert is among those that are there; negative: it is not there. */
__device__ __forceinline__ int expert_place(const expert_job &j, int expert) {
    return j.here ? j.here[expert] : expert;
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

/* Starts to bring memory to the L2 cache: a line, or n bytes, a multiple of 16, from a multiple of 16 on. */
__device__ __forceinline__ void prefetch_l2(const void *p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
__device__ __forceinline__ void prefetch_l2(const void *p, uint32_t n) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(n));
#endif
}

/* ---- rows of floats ---- */

/* Elements k to k + 3 of a row of F8G64 or F4G64. */
template <int TYPE> __device__ __forceinline__ float4 four_scaled(const uint8_t *row, int k) {
    const bool eight = TYPE == TYPE_F8G64;
    const uint8_t *const block = row + k / 64 * (eight ? 68 : 40);
    float scale = __ldcg((const float *)block);
    uint32_t u = __ldcg((const uint32_t *)(block + (eight ? 4 + k % 64 : 8 + k % 64 / 32 * 16 + k % 16)));
    if (!eight) {
        const uint32_t scales = __ldcg((const uint32_t *)(block + 4));
        const uint32_t s = (scales >> k % 64 / 16 * 8 & 0x7f) << 7; /* times 2^-8 */
        scale = __fmul_rn(scale, __fmul_rn(256.0f, __half2float(__ushort_as_half((uint16_t)s))));
        u >>= k % 32 / 16 * 4;
    }
    const uint32_t low = eight ? two_e4m3(u, false) : two_e2m1(u, false),
                   high = eight ? two_e4m3(u, true) : two_e2m1(u, true);
    const float2 a = __half22float2(*(const __half2 *)&low), b = __half22float2(*(const __half2 *)&high);
    const float up = eight ? 256.0f : 32768.0f; /* e2m1 doubled */
    return make_float4(__fmul_rn(__fmul_rn(a.x, up), scale), __fmul_rn(__fmul_rn(a.y, up), scale),
                       __fmul_rn(__fmul_rn(b.x, up), scale), __fmul_rn(__fmul_rn(b.y, up), scale));
}

/* Elements k to k + 3 of a row of weights; zeros beyond its end. Rows are padded to 16 elements. */
template <int TYPE> __device__ __forceinline__ float4 four_weights(const uint8_t *row, int k) {
    if constexpr (TYPE == TYPE_F8G64 || TYPE == TYPE_F4G64)
        return four_scaled<TYPE>(row, k);
    if (TYPE == TYPE_F32)
        return __ldcg((const float4 *)row + k / 4);
    const uint2 u = __ldcg((const uint2 *)row + k / 4);
    if (TYPE == TYPE_F16) {
        const float2 a = __half22float2(*(const __half2 *)&u.x), b = __half22float2(*(const __half2 *)&u.y);
        return make_float4(a.x, a.y, b.x, b.y);
    }
    return make_float4(__uint_as_float(u.x << 16), __uint_as_float(u.x & 0xffff0000u),
                       __uint_as_float(u.y << 16), __uint_as_float(u.y & 0xffff0000u));
}

__device__ __forceinline__ float4 four_inputs(const float *x, int k, int n) {
    if (k + 4 <= n && (uintptr_t)(x + k) % 16 == 0)
        return __ldcg((const float4 *)(x + k));
    return make_float4(k < n ? x[k] : 0.0f, k + 1 < n ? x[k + 1] : 0.0f, k + 2 < n ? x[k + 2] : 0.0f,
                       k + 3 < n ? x[k + 3] : 0.0f);
}

__device__ __forceinline__ float four_fma(float4 w, float4 x, float sum) {
    return __fmaf_rn(w.w, x.w, __fmaf_rn(w.z, x.z, __fmaf_rn(w.y, x.y, __fmaf_rn(w.x, x.x, sum))));
}

/* ---- rows of codes ---- */

/* A row of codes: 64 bytes for each tile, in the order of lanes; the subgroups; the lift. */
__host__ __device__ __forceinline__ int meta_at(int k_pad) {
    return k_pad;
}
__host__ __device__ __forceinline__ int lift_at(int k_pad, int subgroup) {
    return k_pad + k_pad / subgroup * (int)sizeof(subgroup_meta);
}
/* The position of a quad of codes, in dwords. */
__device__ __forceinline__ int quad_at(int quad) {
    return quad / 16 * 16 + quad % 4 * 4 + quad / 8 % 2 * 2 + quad / 4 % 2;
}

/* Stores the codes of 32 elements of a row of k, a multiple of 64, in groups of 32. A warp has them, a lane
 * element i. */
__device__ __forceinline__ void codes_store(uint8_t *row, int k, int i, float v) {
    const int k_pad = (k + TILE_CHUNK_K - 1) / TILE_CHUNK_K * TILE_CHUNK_K;
    const float2 scales = group_scales(max_warp(__float_as_uint(v) & 0x7fffffffu), 127.0f);
    const int code = (int8_t)__float_as_uint(code_float(v, scales.y)), sum = warp_sum(code);
    row[4 * quad_at(i / 4) + i % 4] = (uint8_t)code;
    if (i % 32 == 0)
        ((subgroup_meta *)(row + meta_at(k_pad)))[i / 32] = subgroup_meta{scales.x, sum};
}

/* The bits of the largest magnitude of four elements. */
__device__ __forceinline__ uint32_t four_max(float4 v) {
    const uint32_t m = 0x7fffffffu;
    return max(max(__float_as_uint(v.x) & m, __float_as_uint(v.y) & m),
               max(__float_as_uint(v.z) & m, __float_as_uint(v.w) & m));
}
/* Their codes, and the sum of these. */
__device__ __forceinline__ uint32_t four_codes(float4 v, float inverse, int *sum) {
    const uint32_t a = __float_as_uint(code_float(v.x, inverse)),
                   b = __float_as_uint(code_float(v.y, inverse)),
                   c = __float_as_uint(code_float(v.z, inverse)),
                   d = __float_as_uint(code_float(v.w, inverse)),
                   codes = __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
    *sum = __dp4a((int)codes, 0x01010101, 0);
    return codes;
}
/* As codes_store, for four successive elements of a lane and 128 of a warp, some of which may be beyond k. */
__device__ __forceinline__ void codes_store_four(uint8_t *row, int k, int i, float4 v) {
    const int k_pad = (k + TILE_CHUNK_K - 1) / TILE_CHUNK_K * TILE_CHUNK_K;
    const float2 scales = group_scales(max_lanes(four_max(v), 8), 127.0f);
    int sum;
    const uint32_t codes = four_codes(v, scales.y, &sum);
#pragma unroll
    for (int o = 1; o < 8; o *= 2)
        sum += __shfl_xor_sync(~0u, sum, o);
    if (i >= k)
        return;
    ((uint32_t *)row)[quad_at(i / 4)] = codes;
    if (i % 32 == 0)
        ((subgroup_meta *)(row + meta_at(k_pad)))[i / 32] = subgroup_meta{scales.x, sum};
}

/* Bytes of a packed matrix of one expert. */
static inline int64_t expert_bytes(const view *w, int64_t n_expert) {
    return tile_panel_bytes(&w->format, w->k) * ((w->n / n_expert + PACK_PANEL - 1) / PACK_PANEL);
}

/* With packed matrices (experts_few.cu), with matrices of floats (experts_float.cu), of many rows
 * (experts_wide.cu). */
int experts_few_launch(const cuda_experts *a, const expert_job &j, cuda_stream s);
/* The same, by blocks that keep a tile's rows (experts_kept.cu). CUDA_UNSUPPORTED: they have no kernel for
 * the matrices, or the rows do not fit. */
int experts_kept_launch(const cuda_experts *a, const expert_job &j, cuda_stream s);
/* One row, with the bits of experts_few_launch and of the sum after it (experts_one.cu). CUDA_UNSUPPORTED: it
 * is not a gate or a sum of matrices that it has kernels for. */
int experts_one_launch(const cuda_experts *a, const expert_job &j, cuda_stream s);
int experts_float_launch(const cuda_experts *a, const expert_job &j, cuda_stream s);
int experts_wide_launch(const cuda_experts *a, const expert_job &j, cuda_stream s);

#endif
