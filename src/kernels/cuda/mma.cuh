/* mma.cuh - matrix instructions for integers and for halves, and loads of their operands. */
#ifndef NIB_KERNELS_CUDA_MMA_CUH
#define NIB_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/device.cuh"

/* A matrix instruction for integers, 16 rows x 8 columns: d += a . b. NAME is the instruction of compute
 * capability 8.0. 7.5 only has instructions of 8 rows and half of K, so it uses four of SMALL. */
#if __CUDA_ARCH__ >= 800
#define MMA(name, small, d, a, b0, b1)                                                                       \
    asm(name " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"                                        \
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
#else
#define MMA_SMALL(small, d0, d1, a, b)                                                                       \
    asm(small " {%0,%1}, {%2}, {%3}, {%0,%1};" : "+r"(d0), "+r"(d1) : "r"(a), "r"(b))
#define MMA(name, small, d, a, b0, b1)                                                                       \
    do {                                                                                                     \
        MMA_SMALL(small, d[0], d[1], a[0], b0);                                                              \
        MMA_SMALL(small, d[0], d[1], a[2], b1);                                                              \
        MMA_SMALL(small, d[2], d[3], a[1], b0);                                                              \
        MMA_SMALL(small, d[2], d[3], a[3], b1);                                                              \
    } while (0)
#endif

/* d += a . b, unsigned times signed bytes: 16 rows x 32 of K x 8 columns. */
__device__ __forceinline__ void mma(int d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    MMA("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32", "mma.sync.aligned.m8n8k16.row.col.s32.u8.s8.s32",
        d, a, b0, b1);
}

/* d += a . b for halves, 16 rows x 16 of K x 8 columns. */
__device__ __forceinline__ void mma_halves(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
#define NIB_MMA(a0, a1, b)                                                                                   \
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"      \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                     \
        : "r"(a0), "r"(a1), "r"(b))
    NIB_MMA(a[0], a[1], b0);
    NIB_MMA(a[2], a[3], b1);
#undef NIB_MMA
#endif
}

/* Loads two 8 x 8 matrices of halves, transposed. Lane 8i + r gives the address of row r of matrix i (16
 * bytes of shared memory). Lane 4g + t gets the halves in column g of rows 2t and 2t + 1. From 7.5 on. */
__device__ __forceinline__ void matrices_load(uint32_t d[2], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(d[0]), "=r"(d[1])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void matrices_load_four(uint32_t d[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(at)
                 : "memory");
}
/* Four such matrices, not transposed: lane 4g + t gets the halves 2t and 2t + 1 of row g. */
__device__ __forceinline__ void load_four(uint32_t to[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ float2 floats_of(uint32_t halves) {
    return __half22float2(*(const __half2 *)&halves);
}

#endif
