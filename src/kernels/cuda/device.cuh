/* device.cuh - shared by all kernels: early launches, asynchronous copies, sums over a warp. Differences
 * between architectures are here and in ring.cuh, mma.cuh and cluster.cuh. */
#ifndef NIB_KERNELS_CUDA_DEVICE_CUH
#define NIB_KERNELS_CUDA_DEVICE_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* Waits until the previous launch has finished and its writes are visible. */
__device__ __forceinline__ void launch_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/* Lets blocks of the next launch start on multiprocessors that have resources for them. */
__device__ __forceinline__ void launch_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Copies 4 or 16 bytes into shared memory asynchronously. After copies_wait<LEFT> the thread sees the copies
 * of all but its last LEFT groups; other threads see them after a barrier. */
template <int BYTES> __device__ __forceinline__ void copy_ahead(void *to, const void *from) {
#if __CUDA_ARCH__ >= 800
    if (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
                     : "memory");
#else
    if (BYTES == 16)
        *(uint4 *)to = *(const uint4 *)from;
    else
        *(uint32_t *)to = *(const uint32_t *)from;
#endif
}
__device__ __forceinline__ void copies_end_group() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LEFT> __device__ __forceinline__ void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}

__device__ __forceinline__ uint32_t max_warp(uint32_t m) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(~0u, m);
#else
    for (int o = 1; o < 32; o *= 2)
        m = max(m, __shfl_xor_sync(~0u, m, o));
    return m;
#endif
}
__device__ __forceinline__ int warp_sum(int s) {
#if __CUDA_ARCH__ >= 800
    return __reduce_add_sync(~0u, s);
#else
    for (int o = 1; o < 32; o *= 2)
        s += __shfl_xor_sync(~0u, s, o);
    return s;
#endif
}
/* The maximum over n lanes, at most 16. The number of steps is constant, so that there is no branch. */
__device__ __forceinline__ uint32_t max_lanes(uint32_t m, int n) {
#pragma unroll
    for (int o = 1; o < 16; o *= 2) {
        const uint32_t other = __shfl_xor_sync(~0u, m, o);
        m = max(m, o < n ? other : 0);
    }
    return m;
}
/* The sum over the first `lanes` lanes: neighbours first, then neighbouring pairs, and so on. */
__device__ __forceinline__ float pairs_sum(float v, int lanes) {
#pragma unroll
    for (int o = 1; o < 32; o *= 2)
        if (o < lanes)
            v = __fadd_rn(v, __shfl_xor_sync(~0u, v, o));
    return v;
}

#endif
