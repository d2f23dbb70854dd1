/* row_math.cuh - functions of whole rows (a block's sum, the norm's factor), and activation functions. */
#ifndef NIB_KERNELS_CUDA_ROW_MATH_CUH
#define NIB_KERNELS_CUDA_ROW_MATH_CUH

#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/device.cuh"

__device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

__device__ __forceinline__ float act_value(int kind, float x) {
    switch (kind) {
    case ACT_SILU: return x / (1.0f + expf(-x));
    case ACT_GELU: return 0.5f * x * erfcf(-x * 0.70710678118654752f);
    case ACT_GELU_TANH: return x / (1.0f + expf(-1.5957691216057308f * fmaf(x * x * x, 0.044715f, x)));
    case ACT_GELU_QUICK: return x / (1.0f + expf(-1.702f * x));
    case ACT_RELU: return x < 0 ? 0 : x;
    case ACT_NONE: return x;
    case ACT_SIGMOID: return sigmoid(x);
    default: return x < 0 ? 0 : x * x;
    }
}
/* OP_GATE. */
__device__ __forceinline__ float gate_value(int kind, float g, float u) {
    if (kind != ACT_SWIGLU_CLAMPED)
        return __fmul_rn(act_value(kind, g), u);
    g = fminf(g, SWIGLU_LIMIT);
    u = fminf(fmaxf(u, -SWIGLU_LIMIT), SWIGLU_LIMIT);
    return __fmul_rn(g / (1.0f + expf(-SWIGLU_ALPHA * g)), __fadd_rn(u, 1.0f));
}
/* x / (1 + e^-x), with an error of some units in the last place. */
__device__ __forceinline__ float silu_fast(float x) {
    return __fdividef(x, 1.0f + __expf(-x));
}

/* Loads eight floats, of which `left` exist; the others are zeros. x is 16-byte aligned. */
__device__ __forceinline__ void eight_load(const float *x, int left, float v[8]) {
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (left >= 8 || left <= 0) {
        *(float4 *)v = left > 0 ? __ldcg((const float4 *)x) : none;
        *(float4 *)(v + 4) = left > 0 ? __ldcg((const float4 *)x + 1) : none;
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = i < left ? x[i] : 0.0f;
}

/* The sum of all threads' x, by a block of W warps. shared: [W]. */
template <int W> __device__ static float block_sum(float x, float *shared) {
    for (int o = 1; o < 32; o *= 2)
        x = __fadd_rn(x, __shfl_xor_sync(~0u, x, o));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.0f;
    for (int i = 0; i < W; i++)
        x = __fadd_rn(x, shared[i]);
    return x;
}

/* The factor of RMSNorm for k elements, from the sum of their squares; NaN if the sum is not finite. */
__device__ __forceinline__ float norm_factor_of(float sum, float k, float eps) {
    return sum < __uint_as_float(0x7f800000u) ? __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, k), eps)))
                                              : __uint_as_float(0x7fc00000u);
}

#endif
