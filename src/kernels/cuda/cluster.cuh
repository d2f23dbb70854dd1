/* cluster.cuh - communication between the blocks of a cluster (compute capability 9.0) through their shared
 * memory: floats, whose bytes an mbarrier counts, and arrivals, which tell that a slot is free again. On
 * older devices all functions are empty. */
#ifndef NIB_KERNELS_CUDA_CLUSTER_CUH
#define NIB_KERNELS_CUDA_CLUSTER_CUH

#include "kernels/cuda/device.cuh"

__device__ __forceinline__ uint8_t *block_memory() {
    extern __shared__ __align__(128) uint8_t shared[];
    return shared;
}

/* A slot of a ring of stages, and the phase of its barrier. */
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

/* A barrier of all threads of all blocks. mbarriers that were initialised before are visible after it. */
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
/* Makes the mbarriers that this thread initialised visible to bulk copies. */
__device__ __forceinline__ void async_fence() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/* Arrives on the barrier and announces this many bytes. */
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
/* Waits until the phase with this parity is over, for the barrier at this address of shared memory. */
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
/* Waits until the phase with this parity is over. CLUSTER: writes of other blocks before their arrival are
 * visible then. */
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
/* The address in block `rank` of the cluster that corresponds to this block's `at`. */
__device__ __forceinline__ uint32_t cluster_address(const void *at, int rank) {
    uint32_t there = 0;
#if __CUDA_ARCH__ >= 900
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(rank));
#endif
    return there;
}
/* Arrives on the barrier `bar` of block `rank`. */
__device__ __forceinline__ void cluster_arrive(uint64_t *bar, int rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(bar, rank))
        : "memory");
#endif
}
/* Arrives on a barrier of block `rank` after reads. No writes must become visible there. */
__device__ __forceinline__ void read_arrive(uint64_t *bar, int rank) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(cluster_address(bar, rank)) : "memory");
#endif
}
/* Sends N floats to `to` in block `rank`; its `bar` counts the bytes. */
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

/* Stores a float at `to` in block `rank`; visible there after cluster_barrier. */
__device__ __forceinline__ void cluster_store(float *to, int rank, float v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(cluster_address(to, rank)), "f"(v) : "memory");
#endif
}

/* Stores four floats at `to`, a multiple of 16 bytes, in block `rank`; visible there after cluster_wait_all. */
__device__ __forceinline__ void cluster_store_four(float *to, int rank, const float (&v)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(cluster_address(to, rank)), "f"(v[0]),
                 "f"(v[1]), "f"(v[2]), "f"(v[3])
                 : "memory");
#endif
}

/* Stores eight bytes at `to` in block `rank`; visible there after cluster_wait_all. */
__device__ __forceinline__ void cluster_store_pair(void *to, int rank, uint32_t low, uint32_t high) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(cluster_address(to, rank)), "r"(low),
                 "r"(high)
                 : "memory");
#endif
}

/* A barrier of all threads of all blocks in two steps: writes before the first step are visible after the
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

/* Copies bytes (a multiple of 16) from memory asynchronously; this block's `bar` counts them. One thread
 * calls it. ONCE: the second-level cache need not keep the bytes. */
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

/* A bulk copy whose bytes arrive at the same address in both blocks of a cluster of two; their barriers count
 * the bytes. */
__device__ __forceinline__ void bulk_copy_both(void *to, const void *from, int bytes, uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
                 "[%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(bar)), "h"((uint16_t)3)
                 : "memory");
#endif
}

/* A barrier of the n warps that call it with this id. */
__device__ __forceinline__ void warps_barrier(int id, int n) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(32 * n) : "memory");
}

#endif
