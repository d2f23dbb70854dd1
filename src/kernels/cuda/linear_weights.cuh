/* linear_weights.cuh - weights of a G-tile matrix: a lane's part of a tile, its products, and the scales of a
 * chunk's groups. */
#ifndef NIB_KERNELS_CUDA_LINEAR_WEIGHTS_CUH
#define NIB_KERNELS_CUDA_LINEAR_WEIGHTS_CUH

#include "kernels/cuda/linear_job.cuh"
#include "kernels/cuda/mma.cuh"

/* ---- weights ---- */

/* The part of a tile in one lane: 2, 4 or 8 dwords for each part of the codes. */
template <int BITS> struct tile_lane { uint32_t d[BITS == 8 ? 8 : 4], d2[2], d1[2]; };

template <int BITS>
__device__ __forceinline__ void tile_load(tile_lane<BITS> *v, const uint8_t *tile, int lane) {
    if (BITS & 8) {
        *(uint4 *)v->d = *(const uint4 *)(tile + 16 * lane);
        *(uint4 *)(v->d + (BITS == 8 ? 4 : 0)) = *(const uint4 *)(tile + 512 + 16 * lane);
        return;
    }
    if (BITS & 4) {
        *(uint4 *)v->d = *(const uint4 *)(tile + 16 * lane);
        tile += 512;
    }
    if (BITS & 2) {
        *(uint2 *)v->d2 = *(const uint2 *)(tile + 8 * lane);
        tile += 256;
    }
    if (BITS & 1) {
        const uint2 u = *(const uint2 *)(tile + 8 * (lane / 4 * 2 + lane % 2));
        v->d1[0] = u.x >> (lane % 4 / 2);
        v->d1[1] = u.y >> (lane % 4 / 2);
    }
}

/* The field of `width` bits that begins at bit `at` of each byte, multiplied by 2^up. */
__device__ __forceinline__ uint32_t field(uint32_t u, int at, int width, int up) {
    const uint32_t mask = ((1u << width) - 1) << up;
    return (at >= up ? u >> (at - up) : u << (up - at)) & mask * 0x01010101u;
}

/* log2 of the factor by which tile_mma's sums of half h are too large. Fields of up to 4 bits are not shifted
 * down, so both halves share the remaining shifts. */
template <int BITS> __device__ __forceinline__ constexpr int tile_excess(int h) {
    return BITS <= 4 ? 4 * h : 0;
}

/* Multiplies half h of the tile (32 of K) with the columns b. Parts are multiplied one by one. */
template <int BITS>
__device__ __forceinline__ void tile_mma(const tile_lane<BITS> &v, int h, int d[4], uint32_t b0,
                                         uint32_t b1) {
    if (BITS & 8) {
        mma(d, v.d + (BITS == 8 ? 4 * h : 0), b0, b1);
        return;
    }
    if (BITS & 4) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d[i], 4 * h, 4, (BITS & 3) + tile_excess<BITS>(h));
        mma(d, a, b0, b1);
    }
    if (BITS & 2) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d2[i % 2], 4 * h + i / 2 * 2, 2, (BITS & 1) + tile_excess<BITS>(h));
        mma(d, a, b0, b1);
    }
    if (BITS & 1) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = field(v.d1[i % 2], 4 * h + i / 2 * 2, 1, tile_excess<BITS>(h));
        mma(d, a, b0, b1);
    }
}

/* ---- scales ---- */

__device__ __forceinline__ float half_at(const uint8_t *p) {
    return __half2float(*(const __half *)p);
}

/* PACK_SCALE_E8M0: 2^(byte - 128). */
__device__ __forceinline__ float power_scale(uint32_t byte) {
    return __uint_as_float(byte < 2 ? 0x00200000u << byte : (byte - 1) << 23);
}

/* The scales (x) and minima (y) of N groups of a chunk for N of its rows. The kind of scale is tested once,
 * so that all loads are in flight together. */
template <int N>
__device__ __forceinline__ void scales_read(const linear_job &j, const uint8_t *scales, const int group[N],
                                            const int row[N], float2 w[N]) {
    const uint8_t *at[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        at[i] = scales + j.scale_start + group[i] * j.scale_step + row[i];
        w[i] = make_float2(1.0f, 0.0f);
    }
    if (j.scale_kind == SCALE_HALF) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i].x = half_at(at[i] + row[i]);
    } else if (j.scale_kind == SCALE_HALF_MIN) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = make_float2(half_at(at[i] + row[i]), half_at(at[i] + row[i] + 32));
    } else if (j.scale_kind == SCALE_SUPER) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i].x = __fmul_rn(half_at(scales + 2 * row[i]), (float)(int8_t)*at[i]);
    } else if (j.scale_kind == SCALE_SUPER_MIN) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i] = make_float2(__fmul_rn(half_at(scales + 2 * row[i]), (float)(int8_t)*at[i]),
                               __fmul_rn(half_at(scales + 32 + 2 * row[i]), (float)(int8_t)at[i][16]));
    } else if (j.scale_kind == SCALE_BYTE) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i].x = (float)*at[i];
    } else if (j.scale_kind == SCALE_E8M0) {
#pragma unroll
        for (int i = 0; i < N; i++)
            w[i].x = power_scale(*at[i]);
    }
}

/* sum += the scaled dot of a subgroup. The dot is multiplied by the weights' scale first, because nibbles.cuh
 * does that for half-precision scales in the instruction that converts the dot to a float. */
__device__ __forceinline__ float subgroup_add(const linear_job &j, float2 w, int dot, subgroup_meta a,
                                              float sum) {
    sum = __fmaf_rn(__fmul_rn((float)(dot - j.zero * a.sum), w.x), a.scale, sum);
    return j.asym ? __fmaf_rn(w.y, __fmul_rn(a.scale, (float)a.sum), sum) : sum;
}

/* Sum i of group e of eight columns: adds the sums of a chunk's tiles in order. */
template <int EIGHTS>
__device__ __forceinline__ float tiles_sum(const float (&sum)[TILE_CHUNK][EIGHTS][4], int e, int i) {
    return __fadd_rn(__fadd_rn(sum[0][e][i], sum[1][e][i]), __fadd_rn(sum[2][e][i], sum[3][e][i]));
}

#endif
