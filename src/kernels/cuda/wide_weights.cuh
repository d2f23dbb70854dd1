/* wide_weights.cuh - converts packed weights to operands of the matrix instruction: a warp's tile of codes
 * becomes halves in registers, w = scale * (code - zero) + min, rounded once or twice. */
#ifndef NIB_KERNELS_CUDA_WIDE_WEIGHTS_CUH
#define NIB_KERNELS_CUDA_WIDE_WEIGHTS_CUH

#include "kernels/cuda/wide.cuh"

enum { ANY_SCALE = -1 /* the job has the kind of scales */ };

/* The codes of dword i of a tile's half h, in bytes. */
template <int BITS> __device__ __forceinline__ uint32_t four_codes(const tile_lane<BITS> &v, int h, int i) {
    if (BITS == 8)
        return v.d[4 * h + i];
    uint32_t u = 0;
    if (BITS & 4)
        u |= field(v.d[i], 4 * h, 4, BITS & 3);
    if (BITS & 2)
        u |= field(v.d2[i % 2], 4 * h + i / 2 * 2, 2, BITS & 1);
    if (BITS & 1)
        u |= field(v.d1[i % 2], 4 * h + i / 2 * 2, 1, 0);
    return u;
}

/* Scale and minimum of a row's group, twice each. */
struct scale_two {
    __half2 scale, min;
};
template <int KIND>
__device__ __forceinline__ scale_two scale_of(const wide_job &j, const uint8_t *scales, int group, int row,
                                              scale_two whole) {
    const uint8_t *at = scales + j.scale_start + group * j.scale_step + row;
    switch (KIND == ANY_SCALE ? j.scale_kind : KIND) {
    case SCALE_HALF: whole.scale = __half2half2(*(const __half *)(at + row)); break;
    case SCALE_HALF_MIN:
        whole.scale = __half2half2(*(const __half *)(at + row));
        whole.min = __half2half2(*(const __half *)(at + row + 32));
        break;
    case SCALE_SUPER_MIN:
        whole.min = __float2half2_rn(
            __fmul_rn(half_at(scales + 32 + 2 * row), (float)(int8_t)at[16])); /* fall through */
    case SCALE_SUPER:
        whole.scale = __float2half2_rn(__fmul_rn(half_at(scales + 2 * row), (float)(int8_t)*at));
        break;
    case SCALE_BYTE: whole.scale = __float2half2_rn((float)*at); break;
    case SCALE_E8M0: whole.scale = __float2half2_rn(power_scale(*at)); break;
    default: break;
    }
    return whole;
}

__device__ __forceinline__ __half2 as_halves(uint32_t u) {
    return *(const __half2 *)&u;
}

/* Two weights from codes that are exact in halves. */
template <int KIND>
__device__ __forceinline__ uint32_t two_weights(const wide_job &j, __half2 codes, const scale_two &s) {
    const __half2 w = KIND == ANY_SCALE && j.asym ? __hfma2(codes, s.scale, s.min) : __hmul2(codes, s.scale);
    return *(const uint32_t *)&w;
}

/* The zero point of a warp's codes, in the forms that four_weights subtracts. */
struct code_zero {
    __half2 low /* 1024 + zero */, high /* -(64 + zero) */;
};

/* The four weights of dword i of a tile's half h: elements 0, 2 and 1, 3 of K. A code in the low bits of the
 * half 1024 is 1024 + code; one that is 4 bits higher is 1024 + 16 code. */
template <int BITS, int KIND>
__device__ __forceinline__ void four_weights(const wide_job &j, const tile_lane<BITS> &v, int h, int i,
                                             const code_zero &zero, const scale_two &s, uint32_t *even,
                                             uint32_t *odd) {
    const uint32_t one = 0x64006400u;
    __half2 x, y;
    if (BITS == 4) {
        const uint32_t low = v.d[i], next = v.d[i] >> 8;
        const __half2 part = __float2half2_rn(1.0f / 16);
        if (h == 0) {
            x = __hsub2(as_halves((low & 0x000f000fu) | one), zero.low);
            y = __hsub2(as_halves((next & 0x000f000fu) | one), zero.low);
        } else {
            x = __hfma2(as_halves((low & 0x00f000f0u) | one), part, zero.high);
            y = __hfma2(as_halves((next & 0x00f000f0u) | one), part, zero.high);
        }
    } else {
        const uint32_t codes = four_codes(v, h, i);
        x = __hsub2(as_halves(__byte_perm(codes, 0x64646464u, 0x4240)), zero.low);
        y = __hsub2(as_halves(__byte_perm(codes, 0x64646464u, 0x4341)), zero.low);
    }
    *even = two_weights<KIND>(j, x, s);
    *odd = two_weights<KIND>(j, y, s);
}

/* Converts a tile of the warp's panel to operands of four instructions. */
template <int BITS, bool HALVES, int KIND, int TABLE>
__device__ __forceinline__ void tile_halves(const wide_job &j, const uint8_t *stage, int tile, int n_tile,
                                            const code_zero &zero, const scale_two whole[2],
                                            const lane_tables<TABLE> &tables, uint32_t (&a)[4][4]) {
    enum { CODE = code_bits<BITS, TABLE>() };
    const int lane = threadIdx.x % 32, g = lane / 4;
    const uint8_t *scales = stage + n_tile * BITS * 128;
    tile_lane<CODE> v;
    tile_take<BITS, TABLE>(&v, stage + tile * BITS * 128, lane, tables);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        scale_two s[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (half == 0 || HALVES) {
                const int group = (HALVES ? 4 * tile + 2 * h + half : 2 * tile + h) >> j.group_shift;
                s[0] = scale_of<KIND>(j, scales, group, g, whole[0]);
                s[1] = scale_of<KIND>(j, scales, group, g + 8, whole[1]);
            }
            uint32_t *to = a[2 * h + half];
            four_weights<CODE, KIND>(j, v, h, 2 * half, zero, s[0], to, to + 2);
            four_weights<CODE, KIND>(j, v, h, 2 * half + 1, zero, s[1], to + 1, to + 3);
        }
    }
}

#endif
