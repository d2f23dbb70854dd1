/* mma_float.cuh - float weights and rows as operands of the matrix instruction m16n8k16: the number of 16-bit
 * parts of each, how values are split into parts, and how parts are multiplied (linear_float.cu).
 *
 * Lane (g, t) holds eight successive elements of 32 of K, from 8 t on, for rows g and g + 8 of the weights
 * and for column g. The first four belong to the first instruction, the others to the second. The order of K
 * within an instruction is free if both operands agree. */
#ifndef NIB_KERNELS_CUDA_MMA_FLOAT_CUH
#define NIB_KERNELS_CUDA_MMA_FLOAT_CUH

#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/scaled.cuh"

#include <cuda_bf16.h>

/* The number of parts of rows (X) and of weights (W), bytes of a weight, the type of the operands. SCALED:
 * the sum of each 64 of K is multiplied by a float of the row of weights. */
template <int TYPE> struct float_parts;
template <> struct float_parts<TYPE_F16> {
    enum { X = 2, W = 1, SIZE = 2, AS = TYPE_F16, SCALED = 0 };
};
template <> struct float_parts<TYPE_BF16> {
    enum { X = 3, W = 1, SIZE = 2, AS = TYPE_BF16, SCALED = 0 };
};
template <> struct float_parts<TYPE_F32> {
    enum { X = 3, W = 3, SIZE = 4, AS = TYPE_F32, SCALED = 0 };
};
template <> struct float_parts<TYPE_F8G64> {
    enum { X = 2, W = 1, SIZE = 1, AS = TYPE_F16, SCALED = 1 };
};
template <> struct float_parts<TYPE_F4G64> {
    enum { X = 2, W = 1, SIZE = 1, AS = TYPE_F16, SCALED = 1 };
};

/* mma_bf16 without the instruction (sm_75): lanes exchange their elements by shuffles. It is not inlined,
 * because that would take the assembler many minutes for each kernel. */
__device__ static __noinline__ float4 mma_bf16_by_lanes(float4 d, uint4 a, uint32_t b0, uint32_t b1) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t weights[4] = {a.x, a.y, a.z, a.w};
    float sums[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
    for (int from = 0; from < 4; from++)
#pragma unroll
        for (int half = 0; half < 2; half++) /* half of the instruction's K */
#pragma unroll
            for (int column = 0; column < 2; column++) {
                const uint32_t x = __shfl_sync(~0u, half ? b1 : b0, (2 * t + column) * 4 + from);
#pragma unroll
                for (int row = 0; row < 2; row++) {
                    const uint32_t w = __shfl_sync(~0u, weights[2 * half + row], g * 4 + from);
                    float *const to = sums + 2 * row + column;
                    *to = __fmaf_rn(__uint_as_float(w << 16), __uint_as_float(x << 16), *to);
                    *to = __fmaf_rn(__uint_as_float(w & 0xffff0000u), __uint_as_float(x & 0xffff0000u), *to);
                }
            }
    return make_float4(sums[0], sums[1], sums[2], sums[3]);
}
/* d += a . b for bf16, 16 rows x 16 of K x 8 columns. */
__device__ __forceinline__ void mma_bf16(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    const float4 sums =
        mma_bf16_by_lanes(make_float4(d[0], d[1], d[2], d[3]), make_uint4(a[0], a[1], a[2], a[3]), b0, b1);
    d[0] = sums.x;
    d[1] = sums.y;
    d[2] = sums.z;
    d[3] = sums.w;
#endif
}
template <int TYPE>
__device__ __forceinline__ void mma_of(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    if (TYPE == TYPE_F16)
        mma_halves(d, a, b0, b1);
    else
        mma_bf16(d, a, b0, b1);
}

/* Rounds two floats to 16 bits each. The floats become the rounding errors. */
template <int TYPE> __device__ __forceinline__ uint32_t two_split(float *a, float *b) {
    uint32_t u;
    float2 f;
    if (TYPE == TYPE_F16) {
        const __half2 h = __floats2half2_rn(*a, *b);
        f = __half22float2(h);
        u = *(const uint32_t *)&h;
    } else {
        const __nv_bfloat162 h = __floats2bfloat162_rn(*a, *b);
        u = *(const uint32_t *)&h;
        f = make_float2(__uint_as_float(u << 16), __uint_as_float(u & 0xffff0000u));
    }
    *a = __fsub_rn(*a, f.x);
    *b = __fsub_rn(*b, f.y);
    return u;
}
/* Splits the next part off eight elements, times `scale`. */
template <int TYPE> __device__ __forceinline__ uint4 eight_split(float v[8], float scale) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = TYPE == TYPE_F16 ? __fmul_rn(v[i], scale) : v[i];
    uint4 u;
    u.x = two_split<TYPE>(v, v + 1);
    u.y = two_split<TYPE>(v + 2, v + 3);
    u.z = two_split<TYPE>(v + 4, v + 5);
    u.w = two_split<TYPE>(v + 6, v + 7);
    return u;
}

/* A lane's eight weights of a row. from: their first 16 bytes; the next 16 bytes are 32 entries later. */
template <int TYPE> struct float_weights {
    uint4 part[float_parts<TYPE>::W];
    __device__ __forceinline__ void set(const uint4 *from) {
        part[0] = from[0];
        if constexpr (TYPE == TYPE_F32) {
            const uint4 next = from[32];
            float v[8] = {__uint_as_float(part[0].x), __uint_as_float(part[0].y), __uint_as_float(part[0].z),
                          __uint_as_float(part[0].w), __uint_as_float(next.x),    __uint_as_float(next.y),
                          __uint_as_float(next.z),    __uint_as_float(next.w)};
#pragma unroll
            for (int p = 0; p < 3; p++)
                part[p] = eight_split<TYPE>(v, 1.0f);
        }
    }
};

/* d += 32 of K of the rows times those of a column. The order of sums is fixed: K, then parts. */
template <int TYPE>
__device__ __forceinline__ void float_mma(float d[4], const float_weights<TYPE> &low,
                                          const float_weights<TYPE> &high,
                                          const uint4 b[float_parts<TYPE>::X]) {
    enum { X = float_parts<TYPE>::X, W = float_parts<TYPE>::W };
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        /* Pairs of parts (x, w) with x + w = sum; each next sum is 2^-8 times as large. */
        for (int sum = 0; sum < X; sum++)
#pragma unroll
            for (int w = 0; w < W && w <= sum; w++) {
                const uint4 l = low.part[w], h = high.part[w], c = b[sum - w];
                const uint32_t a[4] = {step ? l.z : l.x, step ? h.z : h.x, step ? l.w : l.y,
                                       step ? h.w : h.y};
                mma_of<float_parts<TYPE>::AS>(d, a, step ? c.z : c.x, step ? c.w : c.y);
            }
}

/* ---- F8G64 and F4G64 ---- */

/* A block of 64 in shared memory, as a lane has copied it for itself, in dwords that are 32 apart: its eight
 * codes of each 32 of K, the block's scale, and those of the groups of 16. */
enum { SCALED_WORDS = 6 };
/* The lane's weights, and the factor of their sums. */
template <int TYPE>
__device__ __forceinline__ float block_unpack(const uint32_t *from, float_weights<TYPE> w[2]) {
    const float scale = __uint_as_float(from[4 * 32]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint2 u = make_uint2(from[2 * half * 32], from[(2 * half + 1) * 32]);
        const int upper = threadIdx.x % 4 / 2;
        w[half].part[0] = TYPE == TYPE_F8G64
                              ? make_uint4(two_e4m3(u.x, false), two_e4m3(u.x, true), two_e4m3(u.y, false),
                                           two_e4m3(u.y, true))
                              : eight_e2m1(u, 4 * upper, group_scale(from[5 * 32], 2 * half + upper));
    }
    return __fmul_rn(scale, TYPE == TYPE_F8G64 ? 256.0f : 512.0f);
}

/* Copies 4 bytes into shared memory asynchronously. */
__device__ __forceinline__ void copy_word(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
#else
    *(uint32_t *)to = *(const uint32_t *)from;
#endif
}
/* Starts copying the lane's part of a block. */
template <int TYPE> __device__ __forceinline__ void block_copy(uint32_t *to, const uint8_t *block) {
    const int t = threadIdx.x % 4;
    copy_word(to + 4 * 32, block);
    if (TYPE == TYPE_F4G64)
        copy_word(to + 5 * 32, block + 4);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const uint8_t *codes =
            TYPE == TYPE_F8G64 ? block + 4 + 32 * half + 8 * t : block + 8 + 16 * half + 8 * (t % 2);
        copy_word(to + 2 * half * 32, codes);
        copy_word(to + (2 * half + 1) * 32, codes + 4);
    }
}

/* Copies 16 bytes into shared memory asynchronously, or stores zeros. */
__device__ __forceinline__ void copy_or_zeros(void *to, const void *from, bool there) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(there ? 16 : 0)
                 : "memory");
#else
    *(uint4 *)to = there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}

#endif
