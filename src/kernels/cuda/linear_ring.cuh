/* linear_ring.cuh - a warp's ring of stages in shared memory, filled by bulk copies, for kernels in which the
 * number of instructions matters (compute capability 9.0). All stages are filled before the first chunk is
 * taken, so the next chunk is always copied to the stage that was released last. Values that all lanes share
 * are computed from warp_number(), so that they are in uniform registers, where a bulk copy needs its
 * operands. */
#ifndef NIB_KERNELS_CUDA_LINEAR_RING_CUH
#define NIB_KERNELS_CUDA_LINEAR_RING_CUH

#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/linear.cuh"
#include "kernels/cuda/linear_panels.cuh"

/* An address in shared memory that stays in a register. */
__device__ __forceinline__ uint32_t address_kept(const void *p) {
    uint32_t at;
    asm volatile("mov.u32 %0, %1;" : "=r"(at) : "r"(shared_address(p)));
    return at;
}
/* Loads from shared memory by an address. From a pointer the compiler would recompute the address for each
 * chunk. */
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
    uint32_t data, bars; /* shared addresses of the first stage and of its barrier */
    int slot;            /* the stage that is taken next, or was released last */
    uint32_t phase;      /* of its barrier */
    uint64_t policy;     /* policy of the second-level cache: it does not keep weights */
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
/* Starts filling the stage. All lanes call it, after all reads of the stage. */
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
/* Waits for the chunk of this stage. */
__device__ __forceinline__ void warp_ring_wait(const warp_ring &r) {
    bar_wait_at(r.bars + 8 * r.slot, r.phase);
}

/* The order in which a warp takes its chunks, panel by panel. Panels: there() tells whether a panel is left,
 * weights() gives its address, next() moves to the next one. */
template <class Panels> struct ring_feed {
    const uint8_t *at; /* the next chunk to copy */
    Panels panels;
    int chunk, first; /* its number, and the number of a panel's first chunk */
};
/* Starts copying the next chunk. All lanes call it, after all reads of the stage. */
template <class Panels>
__device__ __forceinline__ void ring_feed_put(const linear_job &j, ring_feed<Panels> *f, const warp_ring &r) {
    if (!f->panels.there(j))
        return;
    warp_ring_ask(j, r, f->at, f->chunk == j.n_chunk - 1 ? j.last_bytes : j.chunk_bytes);
    f->at += WARPS * j.chunk_bytes;
    f->chunk += WARPS;
    if (f->chunk < j.n_chunk)
        return;
    f->chunk = f->first;
    f->panels.next(j);
    if (f->panels.there(j))
        f->at = f->panels.weights(j) + f->chunk * j.chunk_bytes;
    else
        launch_next();
}
/* Starts copying the first chunks. first: number of a panel's first chunk. */
template <class Panels>
__device__ __forceinline__ ring_feed<Panels> ring_feed_begin(const linear_job &j, warp_ring *r, Panels panels,
                                                             int first) {
    ring_feed<Panels> f = {nullptr, panels, first, first};
    if (panels.there(j))
        f.at = panels.weights(j) + first * j.chunk_bytes;
    for (int i = 0; i < j.depth; i++) {
        ring_feed_put(j, &f, *r);
        warp_ring_next(j, r);
    }
    r->phase = 0;
    return f;
}

/* ---- several columns ----
 *
 * Warps exchange their sums of a panel's outputs: [warp][column][row], with COLUMN_LINE floats from one
 * column to the next, so that a warp's stores have no bank conflict. */
enum { COLUMN_LINE = PACK_PANEL + 4 };
static __host__ __device__ __forceinline__ constexpr int exchange_floats(int columns) {
    return WARPS * columns * COLUMN_LINE;
}

/* Adds the warps' sums of one output: row `row` of the panel, column `at` of the exchanged ones. */
template <int COLUMNS>
__device__ __forceinline__ float exchanged_sum(const float *exchange, int at, int row, float factor) {
    float u = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        u = __fadd_rn(u, exchange[(i * COLUMNS + at) * COLUMN_LINE + row]);
    return __fmul_rn(u, factor);
}
/* The value of output n of a matrix from column `at` on, with its bias. An output of 16-bit activations adds
 * both columns. */
template <int COLUMNS>
__device__ __forceinline__ float exchanged_value(const linear_job &j, const float *exchange, int at, int row,
                                                 const float factor[2], int matrix, int n) {
    float v = exchanged_sum<COLUMNS>(exchange, at, row, factor[0]);
    if (j.two)
        v = __fadd_rn(v, exchanged_sum<COLUMNS>(exchange, at + 1, row, factor[1]));
    return j.bias[matrix] ? __fadd_rn(v, j.bias[matrix][n]) : v;
}
/* The address of output n of a matrix for row m. */
__device__ __forceinline__ float *output_place(const linear_job &j, int matrix, int m, int n) {
    return &j.y[j.gated ? 0 : matrix][m * j.ldy[j.gated ? 0 : matrix] + n];
}
/* Writes the output. before: the value that it is added to. */
__device__ __forceinline__ float output_put(const linear_job &j, int matrix, int m, int n, float gate,
                                            float v, float before) {
    v = j.gated ? __fmul_rn(act_value(j.act, gate), v) : v;
    v = j.adds ? __fadd_rn(before, v) : v;
    *output_place(j, matrix, m, n) = v;
    return v;
}

/* ---- launching ---- */

/* Sets the depth of the rings, which have the shared memory beside the `others` bytes of a block. A warp
 * reads `max_chunks` chunks. false: they do not fit. */
static inline bool ring_depth_find(linear_job *j, int64_t others, int64_t max_chunks) {
    enum { OWN = 3072 /* bytes of static arrays and of the driver */ };
    j->stage_bytes = stage_bytes_of(j->chunk_bytes);
    j->depth = stages_of(*j, device_shared_bytes() - OWN - others, 0, max_chunks);
    return j->depth > 0;
}

#endif
