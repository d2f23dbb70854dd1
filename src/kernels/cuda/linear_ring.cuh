/* linear_ring.cuh - a warp's ring of stages in shared memory, filled by bulk copies, for kernels that count
 * instructions (compute capability 9.0). All stages are filled before a chunk is taken, so the next chunk
 * always comes to the stage that was left last. What all lanes share is computed from warp_number(): then it
 * is in uniform registers, where a bulk copy needs its operands. */
#ifndef NIB_KERNELS_CUDA_LINEAR_RING_CUH
#define NIB_KERNELS_CUDA_LINEAR_RING_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/linear_panels.cuh"

/* An address in shared memory that stays in a register. */
__device__ __forceinline__ uint32_t address_kept(const void *p) {
    uint32_t at;
    asm volatile("mov.u32 %0, %1;" : "=r"(at) : "r"(shared_address(p)));
    return at;
}
/* From shared memory by an address: of a pointer the compiler would make it anew for each chunk. */
__device__ __forceinline__ uint2 shared_two(uint32_t at) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint4 shared_four(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}

/* The warp's number among the block's, in a register that all lanes share. */
__device__ __forceinline__ int warp_number() {
    return __shfl_sync(~0u, threadIdx.x / 32, 0);
}

struct warp_ring {
    uint32_t data, bars; /* in shared memory: the first stage, its barrier */
    int slot;            /* the stage that is taken next, or was left last */
    uint32_t phase;      /* of its barrier */
    uint64_t policy;     /* of the second-level cache: weights are not kept */
};
__device__ __forceinline__ warp_ring warp_ring_make(uint8_t *data, uint64_t *bars, int depth) {
    warp_ring r = {address_kept(data), address_kept(bars), 0, 0, 0};
#if __CUDA_ARCH__ >= 900
    for (int i = threadIdx.x % 32; i < depth; i += 32)
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(bars + i)) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(r.policy));
    __syncwarp();
#endif
    return r;
}
/* The stage's address. */
__device__ __forceinline__ uint32_t warp_ring_stage(const linear_job &j, const warp_ring &r) {
    return r.data + r.slot * j.stage_bytes;
}
/* Asks for what belongs into the stage. All lanes call it; the stage's readers are done. */
__device__ __forceinline__ void warp_ring_ask(const linear_job &j, const warp_ring &r, const uint8_t *from,
                                              int bytes) {
#if __CUDA_ARCH__ >= 900
    const uint32_t to = warp_ring_stage(j, r), bar = r.bars + 8 * r.slot;
    if (threadIdx.x % 32 == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                     "l"(from), "r"(bytes), "r"(bar), "l"(r.policy)
                     : "memory");
    }
    __syncwarp();
#endif
}
/* Goes on to the next stage. */
__device__ __forceinline__ void warp_ring_next(const linear_job &j, warp_ring *r) {
    if (++r->slot == j.depth) {
        r->slot = 0;
        r->phase ^= 1;
    }
}
/* Until the chunk of this stage is there. */
__device__ __forceinline__ void warp_ring_wait(const warp_ring &r) {
    bar_wait_at(r.bars + 8 * r.slot, r.phase);
}

#endif
