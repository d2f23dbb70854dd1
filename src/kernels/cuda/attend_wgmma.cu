/* attend_wgmma.cu - attention of many rows of one sequence on sm_90a, for heads of 64 and 128.
 *
 * A block has two tiles of 64 rows that read the same keys: of two query heads of one KV head, or, if heads
 * share no KV head, two neighbouring tiles of one head. Each tile has a group of 4 warps, a warp 16 rows. A
 * third group of warps copies pages into a ring in shared memory, in the order in which the matrix
 * instruction reads them (wgmma.cuh). Queries and weights are halves in registers. While a page's values are
 * multiplied, the scores and weights of the next page are computed.
 *
 * A page in which a row sees nothing does not change the row's sums, so its bits do not depend on the other
 * rows of the block. */
#include "kernels/cuda/attend_prompt.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/wgmma.cuh"

enum {
    TILE_ROWS = 64,
    GROUPS = 2,
    GROUP_THREADS = 128,
    WARPS = 4 * GROUPS,
    ATTEND_THREADS = GROUP_THREADS * (GROUPS + 1),
    STAGES = 4
};

#ifdef NIB_SM90A
static bool is_built(void) {
    return device_major() == 9;
}
#else
static bool is_built(void) {
    return false;
}
#endif

/* A page's keys, then its values: in pieces of 64 positions x 64 channels, 8 KiB each, one after the
 * other. */
template <int D> struct wgmma_shared {
    enum {
        TILES = D / 64,
        PART = TILES * 8192,
        STAGE = 2 * PART,
        LINE = D + 8 /* halves from one query to the next */,
        QUERIES = WARPS * 16 * LINE * 2,
        BYTES = STAGES * STAGE + QUERIES + 1024
    };
};

/* The rows of a tile, and the pages that they see. */
struct tile_rows {
    int row0, n, head, position0, first, last;
};
__device__ __forceinline__ tile_rows tile_of(const cuda_attend &a, bool heads, int tile) {
    const int y = (int)gridDim.y - 1 - (int)blockIdx.y; /* the rows with the most work start first */
    tile_rows t;
    t.head = heads ? 2 * blockIdx.x + tile : blockIdx.x;
    t.row0 = (heads ? y : 2 * y + tile) * TILE_ROWS;
    t.n = min(TILE_ROWS, (int)a.n_row - t.row0);
    t.position0 = a.position[0] + t.row0;
    t.first = low_of(a, t.position0) / CUDA_PAGE;
    t.last = t.n > 0 ? (t.position0 + t.n - 1) / CUDA_PAGE : t.first - 1; /* none */
    return t;
}

/* Copies 16 bytes into shared memory asynchronously; zeros unless `there`. */
__device__ __forceinline__ void copy_or_zero(uint32_t to, const void *from, bool there) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
#endif
}

/* The barrier counts this thread when its copies have arrived. No thread waits, so as many pages as there are
 * stages are in flight. */
__device__ __forceinline__ void copies_arrive(uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(bar)) : "memory");
#endif
}

/* Copies pages [first, last] of one head, by the threads of one group. Positions from `end` on become
 * zeros. */
template <int D>
__device__ __forceinline__ void pages_fetch(const cuda_attend &a, int kv_head, int first, int last, int end,
                                            uint32_t stages, uint64_t *full, uint64_t *empty) {
    enum { PIECES = D / 8, STEP = GROUP_THREADS / PIECES };
    const int thread = threadIdx.x % GROUP_THREADS, row = thread / PIECES, piece = thread % PIECES;
    const int32_t *pages = a.pages + a.first_page[0];
    const __half *const k = (const __half *)a.kv.k + ((int64_t)kv_head * CUDA_PAGE + row) * D + piece * 8,
                        *const v =
                            (const __half *)a.kv.v + ((int64_t)kv_head * CUDA_PAGE + row) * D + piece * 8;
    int next = pages[first];
    for (int page = first; page <= last; page++) {
        const int i = page - first, slot = i % STAGES;
        const int64_t at = next * a.kv.page;
        const uint32_t to = stages + slot * wgmma_shared<D>::STAGE + piece / 8 * 8192 + row * 128;
        next = page < last ? pages[page + 1] : 0;
        bar_wait<false>(empty + slot, (i / STAGES & 1) ^ 1);
#pragma unroll
        for (int r = 0; r < CUDA_PAGE; r += STEP) {
            const uint32_t in = to + r * 128 + ((piece % 8) ^ ((row + r) % 8)) * 16;
            const bool there = page * CUDA_PAGE + row + r < end;
            copy_or_zero(in, k + at + r * D, there);
            copy_or_zero(in + wgmma_shared<D>::PART, v + at + r * D, there);
        }
        copies_arrive(full + slot);
    }
    copies_end_group();
    copies_wait<0>(); /* no copy is in flight when the block ends */
}

/* scores = queries . keys of the page at `at`, asynchronously. */
template <int D>
__device__ __forceinline__ void scores_add(float (&score)[32], const uint32_t (&q)[D / 16][4], uint32_t at) {
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < D / 16; s++)
        wgmma<64>::add(score, q[s], wgmma_operand(at + s / 4 * 8192 + s % 4 * 32), s > 0);
    wgmma_end_group();
}
/* out += weights . values, asynchronously. */
template <int D>
__device__ __forceinline__ void values_add(float (&out)[D / 2], const uint32_t (&p)[4][4], uint32_t at) {
#pragma unroll
    for (int s = 0; s < 4; s++)
        wgmma<D, 1>::add(out, p[s], wgmma_operand(at + wgmma_shared<D>::PART + s * 2048, 8192));
    wgmma_end_group();
}
__device__ __forceinline__ void weights_pack(const float (&score)[32], uint32_t (&p)[4][4]) {
#pragma unroll
    for (int i = 0; i < 16; i++)
        p[i / 4][i % 4] = as_halves(score[2 * i], score[2 * i + 1]);
}

__device__ __forceinline__ void give(uint64_t *empty) {
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(empty)) : "memory");
}

/* Computes a warp's 16 rows of tile t over all pages of the block, [first, last]. */
template <int D, bool SINKS>
__device__ __forceinline__ void rows_attend(const cuda_attend &a, const tile_rows &t, int first, int last,
                                            const uint32_t (&q)[D / 16][4], uint32_t stages, uint64_t *full,
                                            uint64_t *empty) {
    const int warp = threadIdx.x % GROUP_THREADS / 32, position = t.position0 + warp * 16;
    const float slope = alibi_slope(a, t.head);
    float score[32], out[D / 2], old[2];
    uint32_t p[4][4];
    row_sums f = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    auto there = [&](int page) {
        const int i = page - first;
        bar_wait<false>(full + i % STAGES, i / STAGES & 1);
        async_fence(); /* makes the copies visible to the matrix instruction */
        return stages + i % STAGES * wgmma_shared<D>::STAGE;
    };
    for (int page = first; page < t.first && page <= last; page++) {
        there(page);
        give(empty + (page - first) % STAGES);
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        out[i] = 0.0f;
    if (t.first <= t.last) {
        uint32_t now = there(t.first);
        scores_add<D>(score, q, now);
        wgmma_wait<0>();
        wgmma_read(score);
        page_weigh(a, t.first, position, slope, score, &f, old);
        weights_pack(score, p);
        for (int page = t.first; page < t.last; page++) {
            const uint32_t next = there(page + 1);
            scores_add<D>(score, q, next);
            values_add<D>(out, p, now);
            wgmma_wait<1>();
            wgmma_read(score);
            page_weigh(a, page + 1, position, slope, score, &f, old);
            /* Never true, but it makes the compiler place the wait after the weights. */
            if (f.sum[0] + f.sum[1] < 0)
                asm volatile("nanosleep.u32 32;");
            wgmma_wait<0>();
            wgmma_read(out);
            give(empty + (page - first) % STAGES);
            if (__any_sync(~0u, old[0] != 1.0f || old[1] != 1.0f))
#pragma unroll
                for (int i = 0; i < D / 2; i++)
                    out[i] = __fmul_rn(out[i], old[i % 4 / 2]);
            weights_pack(score, p);
            now = next;
        }
        wgmma_fence();
        values_add<D>(out, p, now);
        wgmma_wait<0>();
        wgmma_read(out);
        give(empty + (t.last - first) % STAGES);
    }
    for (int page = max(t.last + 1, first); page <= last; page++) {
        there(page);
        give(empty + (page - first) % STAGES);
    }
    rows_write<D, SINKS>(a, f, out, t.row0 + warp * 16, t.n - warp * 16, t.head);
}

/* SINKS is a template parameter, because the registers for sinks would slow down the loop without them. */
template <int D, bool SINKS>
__global__ void __launch_bounds__(ATTEND_THREADS, 1)
    attend_wgmma(const __grid_constant__ cuda_attend a, bool heads) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(128) uint8_t raw[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    uint8_t *const stages = raw + (1024 - shared_address(raw) % 1024) % 1024;
    const int group = threadIdx.x / GROUP_THREADS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            bar_init(full + i, GROUP_THREADS), bar_init(empty + i, WARPS);
        async_fence();
    }
    __syncthreads();
    launch_next();
    launch_wait();
    const tile_rows one = tile_of(a, heads, 0), other = tile_of(a, heads, 1);
    const int first = min(one.first, other.n > 0 ? other.first : one.first), last = max(one.last, other.last);
    if (group == GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        pages_fetch<D>(a, one.head / (int)(a.n_head / a.kv.n_kv_head), first, last,
                       max(one.position0 + one.n, other.position0 + other.n), shared_address(stages), full,
                       empty);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        enum { LINE = wgmma_shared<D>::LINE };
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, in = warp % 4 * 16;
        const tile_rows t = group ? other : one;
        __half *const mine = (__half *)(stages + STAGES * wgmma_shared<D>::STAGE) + warp * 16 * LINE;
        uint32_t q[D / 16][4];
        queries_load<D>(a, mine, t.row0 + in, t.n - in, t.head);
        __syncwarp();
#pragma unroll
        for (int s = 0; s < D / 16; s++)
            load_four(q[s], shared_address(mine + lane % 16 * LINE + lane / 16 * 8 + s * 16));
        rows_attend<D, SINKS>(a, t, first, last, q, shared_address(stages), full, empty);
    }
#endif
}

template <int D, bool SINKS> static int run_as(const cuda_attend *a, cuda_stream s) {
    const bool heads = a->n_head / a->kv.n_kv_head % 2 == 0;
    const unsigned tiles = ((unsigned)a->n_row + TILE_ROWS - 1) / TILE_ROWS, n_head = (unsigned)a->n_head;
    const dim3 grid(heads ? n_head / 2 : n_head, heads ? tiles : (tiles + 1) / 2);
    const int e = prepare(attend_wgmma<D, SINKS>, wgmma_shared<D>::BYTES);
    return e ? e
             : launch(attend_wgmma<D, SINKS>, grid, dim3(ATTEND_THREADS), wgmma_shared<D>::BYTES, s, *a,
                      heads);
}
template <int D> static int run(const cuda_attend *a, cuda_stream s) {
    return a->sinks ? run_as<D, true>(a, s) : run_as<D, false>(a, s);
}

int prompt_wgmma_launch(const cuda_attend *a, cuda_stream s) {
    if (!is_built() || a->kv.code_bits)
        return CUDA_UNSUPPORTED;
    return a->kv.d_head == 64 ? run<64>(a, s) : a->kv.d_head == 128 ? run<128>(a, s) : CUDA_UNSUPPORTED;
}
