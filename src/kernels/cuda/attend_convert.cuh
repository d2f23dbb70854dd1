/* attend_convert.cuh - pages of codes as operands of the matrix instruction (attend_wgmma.cu): the codes of
 * one head's keys and values in shared memory become halves there, by a group of four warps.
 *
 * A page's keys, and its values, are pieces of 64 positions x 64 channels one after the other: a line of 128
 * bytes for each position, whose 16 bytes i are at i xor position % 8. */
#ifndef NIB_KERNELS_CUDA_ATTEND_CONVERT_CUH
#define NIB_KERNELS_CUDA_ATTEND_CONVERT_CUH

#include "kernels/cuda/attend.cuh"

enum { CONVERT_WARPS = 4 };

/* The address of channels [8 eight, 8 eight + 8) of a position. */
__device__ __forceinline__ uint32_t piece_at(uint32_t to, int position, int eight) {
    return to + eight / 8 * 8192 + position * 128 + ((eight % 8) ^ (position % 8)) * 16;
}
__device__ __forceinline__ void piece_store(uint32_t at, const uint32_t (&x)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x[0]), "r"(x[1]), "r"(x[2]),
                 "r"(x[3])
                 : "memory");
}
/* Stores four matrices of 8 x 8 halves transposed. Lane i has the address of line i % 8 of matrix i / 8. */
__device__ __forceinline__ void pieces_store_across(uint32_t at, const uint32_t (&x)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at),
                 "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
                 : "memory");
#endif
}

/* Eight successive codes from code i on, in shared memory. */
__device__ __forceinline__ void eight_take(eight_codes<8> *c, const uint8_t *codes, int i) {
    c->x = *(const uint2 *)(codes + i);
}
__device__ __forceinline__ void eight_take(eight_codes<4> *c, const uint8_t *codes, int i) {
    c->x = *(const uint32_t *)(codes + i / 2);
}

/* A thread has the same eight channels of several positions. */
template <int D, int BITS> __device__ __forceinline__ void keys_convert(const uint8_t *codes, uint32_t to) {
    enum { EIGHTS = D / 8, STEP = 32 * CONVERT_WARPS / EIGHTS };
    const int thread = threadIdx.x % (32 * CONVERT_WARPS), eight = thread % EIGHTS, first = thread / EIGHTS;
    const uint4 *const scales = (const uint4 *)(codes + D * CUDA_PAGE * BITS / 8) + eight;
#pragma unroll
    for (int side = 0; side < 2; side++) {
        const uint4 scale = scales[side * EIGHTS], min = scales[(2 + side) * EIGHTS];
#pragma unroll
        for (int i = 0; i < 32; i += STEP) {
            const int p = side * 32 + i + first;
            eight_codes<BITS> c;
            uint32_t x[4];
            eight_take(&c, codes, p * D + eight * 8);
#pragma unroll
            for (int n = 0; n < 4; n++)
                x[n] = c.halves(n, scale, min);
            piece_store(piece_at(to, p, eight), x);
        }
    }
}

/* A warp has 8 channels of 32 positions at a time: lane (g, t) channel g of positions 8t..8t + 7, in pairs.
 * Matrix m gets pair (m + t) % 4 of each lane, so that its lines are in different banks. */
template <int D, int BITS> __device__ __forceinline__ void values_convert(const uint8_t *codes, uint32_t to) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
              line = lane % 8 / 2 * 8 + (lane / 8 + lane % 8 / 2) % 4 * 2 + lane % 2;
    const uint8_t *const scales = codes + D * CUDA_PAGE * BITS / 8;
#pragma unroll
    for (int q = threadIdx.x / 32 % CONVERT_WARPS; q < 2 * D / 32; q += CONVERT_WARPS) {
        const int group = q / 2, side = q % 2, p = side * 32 + 8 * t;
        const uint4 scale = *(const uint4 *)(scales + 2 * (group * CUDA_PAGE + p)),
                    min = *(const uint4 *)(scales + 2 * (2 * D + group * CUDA_PAGE + p));
#pragma unroll
        for (int eight = 0; eight < 4; eight++) {
            eight_codes<BITS> c;
            uint32_t x[4], y[4];
            eight_take(&c, codes, (side * D + group * 32 + eight * 8 + g) * 32 + 8 * t);
#pragma unroll
            for (int n = 0; n < 4; n++)
                x[n] = c.halves(n, scale, min);
#pragma unroll
            for (int m = 0; m < 4; m++)
                y[m] = t & 1 ? x[(m + 1) % 4] : x[m];
#pragma unroll
            for (int m = 0; m < 4; m++)
                x[m] = t & 2 ? y[(m + 2) % 4] : y[m];
            pieces_store_across(piece_at(to, side * 32 + line, group * 4 + eight), x);
        }
    }
}

#endif
