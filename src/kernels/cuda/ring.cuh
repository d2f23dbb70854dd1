/* ring.cuh - a ring of stages in shared memory, owned by one warp.
 *
 * sm_90: one thread starts a bulk copy for each stage. sm_80: each thread copies 16 bytes at a time. Both
 * signal an mbarrier. sm_75 has neither, so a stage is read directly from memory. */
#ifndef NIB_KERNELS_CUDA_RING_CUH
#define NIB_KERNELS_CUDA_RING_CUH

#include "kernels/cuda/device.cuh"

struct ring {
    uint8_t *data;
    uint64_t *bars;
    int depth, stride; /* number of stages, bytes of a stage */
    int put_slot, get_slot;
    uint32_t get_phase;
    const uint8_t *direct;
    uint64_t policy; /* policy of the second-level cache: it does not keep weights */
};

__device__ __forceinline__ void ring_init(ring *r, uint8_t *data, uint64_t *bars, int depth, int stride) {
    *r = ring{data, bars, depth, stride, 0, 0, 0, nullptr, 0};
#if __CUDA_ARCH__ >= 800
    const uint32_t arrivals = __CUDA_ARCH__ >= 900 ? 1 : 32;
    for (int i = threadIdx.x % 32; i < depth; i += 32)
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(bars + i)), "r"(arrivals)
                     : "memory");
#if __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(r->policy));
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncwarp();
#endif
}

/* Starts filling the next stage. All lanes call it, after all reads of the stage. */
__device__ __forceinline__ void ring_put(ring *r, const uint8_t *from, int bytes) {
#if __CUDA_ARCH__ >= 800
    const uint32_t to = shared_address(r->data + r->put_slot * r->stride),
                   bar = shared_address(r->bars + r->put_slot);
    const int lane = threadIdx.x % 32;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                     "l"(from), "r"(bytes), "r"(bar), "l"(r->policy)
                     : "memory");
    }
#else
    for (int i = 16 * lane; i < bytes; i += 512)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + i), "l"(from + i) : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(bar) : "memory");
#endif
    r->put_slot = r->put_slot + 1 == r->depth ? 0 : r->put_slot + 1;
#else
    r->direct = from;
#endif
}

/* Waits for the oldest stage and returns it. */
__device__ __forceinline__ const uint8_t *ring_get(ring *r) {
#if __CUDA_ARCH__ >= 800
    const uint32_t bar = shared_address(r->bars + r->get_slot);
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\n"
#if __CUDA_ARCH__ >= 900
                     "mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n"
#else
                     "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
#endif
                     "selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(bar), "r"(r->get_phase)
                     : "memory");
    } while (!done);
    const uint8_t *stage = r->data + r->get_slot * r->stride;
    if (++r->get_slot == r->depth) {
        r->get_slot = 0;
        r->get_phase ^= 1;
    }
    return stage;
#else
    return r->direct;
#endif
}

/* Whether stages are prefetched. Otherwise ring_put is called just before ring_get. */
__device__ __forceinline__ constexpr bool ring_ahead() {
#if __CUDA_ARCH__ >= 800
    return true;
#else
    return false;
#endif
}

#endif
