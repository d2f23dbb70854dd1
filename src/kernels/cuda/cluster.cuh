/* cluster.cuh - blocks of a cluster (compute capability 9.0) that give each other numbers through their
 * shared memory: floats that arrive on an mbarrier, which counts their bytes, and arrivals that say a place
 * is free again. Elsewhere all of it is empty. */
#ifndef NIB_KERNELS_CUDA_CLUSTER_CUH
#define NIB_KERNELS_CUDA_CLUSTER_CUH

#include "kernels/cuda/device.cuh"

__device__ __forceinline__ uint8_t *block_memory() {
    extern __shared__ __align__(128) uint8_t shared[];
    return shared;
}

/* A place in a ring of stages, and the phase of its barrier. */
struct turn {
    int slot;
    uint32_t phase;
    __device__ __forceinline__ void next(int n) {
        if (++slot == n) {
            slot = 0;
            phase ^= 1;
        }
    }
};

/* All threads of all blocks. What barriers were made before is there behind it. */
__device__ __forceinline__ void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#endif
}

__device__ __forceinline__ void bar_init(uint64_t *bar, int arrivals) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(arrivals) : "memory");
#endif
}
/* Bulk copies see the barriers that this thread made. */
__device__ __forceinline__ void async_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/* One arrival, and so many bytes are to come. */
__device__ __forceinline__ void bar_expect(uint64_t *bar, int bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
#endif
}
__device__ __forceinline__ void bar_arrive_at(uint32_t address) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address) : "memory");
#endif
}
__device__ __forceinline__ void bar_arrive(uint64_t *bar) {
    bar_arrive_at(shared_address(bar));
}
/* Until the phase with this parity is over, of the barrier at this address. */
__device__ __forceinline__ void bar_wait_at(uint32_t address, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(address), "r"(parity)
                     : "memory");
    } while (!done);
#endif
}
/* Until the phase with this parity is over. CLUSTER: what other blocks did before they arrived is there. */
template <bool CLUSTER> __device__ __forceinline__ void bar_wait(uint64_t *bar, uint32_t parity) {
#if __CUDA_ARCH__ >= 900
    uint32_t done;
    do {
        if (CLUSTER)
            asm volatile("{\n.reg .pred p;\n"
                         "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, p;\n}"
                         : "=r"(done)
                         : "r"(shared_address(bar)), "r"(parity)
                         : "memory");
        else
            asm volatile("{\n.reg .pred p;\n"
                         "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, p;\n}"
                         : "=r"(done)
                         : "r"(shared_address(bar)), "r"(parity)
                         : "memory");
    } while (!done);
#endif
}
/* This block's address `at` in block `rank` of the cluster. */
__device__ __forceinline__ uint32_t cluster_address(const void *at, int rank) {
    uint32_t there = 0;
#if __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(rank));
#endif
    return there;
}
/* An arrival there. */
__device__ __forceinline__ void cluster_arrive(uint64_t *bar, int rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(bar, rank))
        : "memory");
#endif
}
/* An arrival in block `rank`, behind reads: nothing that was written need be seen there. */
__device__ __forceinline__ void read_arrive(uint64_t *bar, int rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(bar, rank)) : "memory");
#endif
}
/* N floats to `to` of block `rank`, whose bytes its `bar` counts. */
template <int N>
__device__ __forceinline__ void cluster_send(float *to, uint64_t *bar, int rank, const float *v) {
#if __CUDA_ARCH__ >= 900
    const uint32_t there = cluster_address(to, rank), counts = cluster_address(bar, rank);
    if (N == 1)
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
            "r"(__float_as_uint(v[0])), "r"(counts)
            : "memory");
    else if (N == 2)
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(
                there),
            "r"(__float_as_uint(v[0])), "r"(__float_as_uint(v[N > 1 ? 1 : 0])), "r"(counts)
            : "memory");
    else
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
            "[%5];" ::"r"(there),
            "r"(__float_as_uint(v[0])), "r"(__float_as_uint(v[N > 1 ? 1 : 0])),
            "r"(__float_as_uint(v[N > 2 ? 2 : 0])), "r"(__float_as_uint(v[N > 3 ? 3 : 0])), "r"(counts)
            : "memory");
#endif
}

/* A float to `to` of block `rank`; seen there after cluster_barrier. */
__device__ __forceinline__ void cluster_store(float *to, int rank, float v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_address(to, rank)), "f"(v) : "memory");
#endif
}

/* Eight bytes to `to` of block `rank`; seen there after cluster_wait_all. */
__device__ __forceinline__ void cluster_store_pair(void *to, int rank, uint32_t low, uint32_t high) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(cluster_address(to, rank)), "r"(low),
                 "r"(high)
                 : "memory");
#endif
}

/* A barrier of all threads of all blocks in two halves: what was written before the first is seen after the
 * second. */
__device__ __forceinline__ void cluster_arrive_all() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait_all() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* Bytes from memory, a multiple of 16, that this block's `bar` counts; one thread. ONCE: the second-level
 * cache need not keep them. */
template <bool ONCE>
__device__ __forceinline__ void bulk_copy(void *to, const void *from, int bytes, uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    if (ONCE) {
        uint64_t policy;
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                     "l"(from), "r"(bytes), "r"(shared_address(bar)), "l"(policy)
                     : "memory");
        return;
    }
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(bar))
        : "memory");
#endif
}

/* Bulk copy whose bytes arrive at the same place in both blocks of a cluster of two, which their barriers
 * count. */
__device__ __forceinline__ void bulk_copy_both(void *to, const void *from, int bytes, uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar)), "h"((uint16_t)3)
                 : "memory");
#endif
}

/* The n warps that call it with this id. */
__device__ __forceinline__ void warps_barrier(int id, int n) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(32 * n) : "memory");
}

#endif
