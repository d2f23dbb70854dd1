/* wide_nibbles.cuh - converts 4-bit codes with half-precision scales to operands of the matrix instruction:
 * the weights of tile_halves (wide_weights.cuh) with fewer instructions. */
#ifndef NIB_KERNELS_CUDA_WIDE_NIBBLES_CUH
#define NIB_KERNELS_CUDA_WIDE_NIBBLES_CUH

#include "kernels/cuda/nibbles.cuh"
#include "kernels/cuda/wide_weights.cuh"

/* Hides a register's value from the compiler, which would otherwise recompute or fold it. */
__device__ __forceinline__ uint32_t opaque(uint32_t u) {
    uint32_t v;
    asm volatile("mov.b32 %0, %1;" : "=r"(v) : "r"(u));
    return v;
}
/* The fields of both halves of u, in the low bits of halves of value 1024. */
template <uint32_t MASK> __device__ __forceinline__ __half2 codes_of(uint32_t u, uint32_t magic) {
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(v) : "r"(u), "n"(MASK), "r"(magic));
    return as_halves(v);
}
__device__ __forceinline__ uint32_t two_scaled(__half2 codes, __half2 scale) {
    const __half2 w = __hmul2(codes, scale);
    return *(const uint32_t *)&w;
}

/* A warp's converter. One load reads the scales of two tiles; lane 4g + t gets those of rows g and g + 8. */
struct nibble_halves {
    uint32_t magic, scales[4];
    int lane_scale[2];
    code_zero zero;

    __device__ __forceinline__ explicit nibble_halves(const wide_job &j) {
        magic = opaque(0x64006400u);
        chunk_lane_scales(j.group_shift, lane_scale);
#pragma unroll
        for (int p = 0; p < 2; p++)
            lane_scale[p] = (int)opaque((uint32_t)(lane_scale[p] - (int)threadIdx.x % 32 * 16));
        zero = {__float2half2_rn((float)(1024 + j.zero)), __float2half2_rn(-(float)(64 + j.zero))};
    }
    /* Reads the scales of tiles i and i + 1 of a chunk of n_tile tiles; i is even. codes: the shared address
     * of the lane's dwords of the chunk's first tile. */
    __device__ __forceinline__ void scales_take(uint32_t codes, int i, int n_tile) {
        matrices_load_four(scales, codes + n_tile * CODE_TILE + (i ? lane_scale[1] : lane_scale[0]));
    }
    /* Reads the lane's codes of tile i. */
    __device__ __forceinline__ void codes_take(uint32_t codes, int i, uint32_t (&v)[4]) const {
        asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                     : "r"(codes + i * CODE_TILE));
    }
    /* Converts a half of tile i, for two instructions. */
    __device__ __forceinline__ void half(const uint32_t (&v)[4], int i, int which, uint32_t (*a)[4]) const {
        const __half2 part = __float2half2_rn(1.0f / 16);
#pragma unroll
        for (int q = 0; q < 4; q++) {
            const int row = q % 2;
            const __half2 both = as_halves(i % 2 ? scales[2 + row] : scales[row]),
                          scale = which ? __high2half2(both) : __low2half2(both);
            const uint32_t next = v[q] >> 8;
            uint32_t *const to = a[q / 2] + row;
            if (which == 0) {
                to[0] = two_scaled(__hsub2(codes_of<0x000f000fu>(v[q], magic), zero.low), scale);
                to[2] = two_scaled(__hsub2(codes_of<0x000f000fu>(next, magic), zero.low), scale);
            } else {
                to[0] = two_scaled(__hfma2(codes_of<0x00f000f0u>(v[q], magic), part, zero.high), scale);
                to[2] = two_scaled(__hfma2(codes_of<0x00f000f0u>(next, magic), part, zero.high), scale);
            }
        }
    }
    /* Converts tile i of the chunk. */
    __device__ __forceinline__ void tile(uint32_t codes, int i, uint32_t (&a)[4][4]) const {
        uint32_t v[4];
        codes_take(codes, i, v);
        half(v, i, 0, a);
        half(v, i, 1, a + 2);
    }
};

#endif
