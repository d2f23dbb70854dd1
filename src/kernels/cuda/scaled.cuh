/* scaled.cuh - codes of F8G64 and F4G64 (numbers/blocks.h) as halves. e4m3, e2m1 and their products have so
 * few bits that halves hold them exactly, but for a power of two. */
#ifndef NIB_KERNELS_CUDA_SCALED_CUH
#define NIB_KERNELS_CUDA_SCALED_CUH

#include <cuda_fp16.h>
#include <stdint.h>

/* Two bytes of u as halves: the lower two, or the upper two. */
__device__ __forceinline__ uint32_t two_bytes(uint32_t u, bool upper) {
    return __byte_perm(u, 0, upper ? 0x3424 : 0x1404);
}
/* Two e4m3, times 2^-8: their exponents are 8 less biased than those of halves. Exact. */
__device__ __forceinline__ uint32_t two_e4m3(uint32_t u, bool upper) {
    const uint32_t v = two_bytes(u, upper);
    return (v & 0x80008000u) | (v & 0x7f007f00u) >> 1;
}
/* Two e2m1, one in the lower half of each byte, times 2^-14. Exact. */
__device__ __forceinline__ uint32_t two_e2m1(uint32_t u, bool upper) {
    const uint32_t v = two_bytes(u, upper);
    return (v & 0x08000800u) << 4 | (v & 0x07000700u) << 1;
}
/* The scale of a group of 16 for both of them, times 2^6. */
__device__ __forceinline__ __half2 group_scale(uint32_t scales, int group) {
    const uint32_t s = (scales >> 8 * group & 0x7f) << 7; /* times 2^-8 */
    const uint32_t both = s | s << 16;
    return __hmul2(*(const __half2 *)&both, __float2half2_rn(16384.0f));
}
/* Eight e2m1 of a group times its scale and 2^-8: six bits, so exact. shift: 4 for the upper halves of bytes.
 */
__device__ __forceinline__ uint4 eight_e2m1(uint2 u, int shift, __half2 scale) {
    const uint32_t a = u.x >> shift, b = u.y >> shift;
    uint32_t v[4] = {two_e2m1(a, false), two_e2m1(a, true), two_e2m1(b, false), two_e2m1(b, true)};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __half2 h = __hmul2(*(const __half2 *)&v[i], scale);
        v[i] = *(const uint32_t *)&h;
    }
    return make_uint4(v[0], v[1], v[2], v[3]);
}

#endif
