/* attend_wgmma.cu - attention of many rows of one sequence on sm_90a, for heads of 64 and 128.
 *
 * A block has two tiles of 64 rows that read the same keys: of two query heads of one KV head, or, if heads
 * share no KV head, two neighbouring tiles of one head. Each tile has a group of 4 warps, a warp 16 rows. A
 * third group of warps copies pages into a ring in shared memory, in the order in which the matrix
 * instruction reads them (wgmma.cuh). Pages of codes come to a ring of their own first, and the third group
 * makes halves of them: once for both tiles, beside their products. Then a tile has rows of one page, whose
 * keys and values come from the launch's rows. Queries and weights are halves in registers. While a page's
 * values are multiplied, the scores and weights of the next page are computed.
 *
 * A page in which a row sees nothing does not change the row's sums, so its bits do not depend on the other
 * rows of the block. */
#include "kernels/cuda/attend_convert.cuh"
#include "kernels/cuda/attend_prompt.cuh"
#include "kernels/cuda/attend_rows.cuh"
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
    STAGES = 4,
    CODE_STAGES = 3
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
        CODES = 2 * CUDA_PAGE * (D + D / 8) /* of a page, at most 8 bits */,
        BYTES = STAGES * STAGE + QUERIES + 1024
    };
};

/* The rows of a tile, and the pages that they see. */
struct tile_rows {
    int row0, n, head, position0, first, last;
};
template <bool CODED>
__device__ __forceinline__ tile_rows tile_of(const cuda_attend &a, bool heads, int tile) {
    const int y = (int)gridDim.y - 1 - (int)blockIdx.y; /* the rows with the most work start first */
    const int before = CODED ? a.position[0] % CUDA_PAGE : 0,
              end = ((heads ? y : 2 * y + tile) + 1) * TILE_ROWS - before;
    tile_rows t;
    t.head = heads ? 2 * blockIdx.x + tile : blockIdx.x;
    t.row0 = max(0, end - TILE_ROWS);
    t.n = min(end, (int)a.n_row) - t.row0;
    t.position0 = a.position[0] + t.row0;
    t.first = low_of(a, t.position0) / CUDA_PAGE;
    t.last = t.n > 0 ? (t.position0 + t.n - 1) / CUDA_PAGE : t.first - 1; /* none */
    return t;
}

/* The pages of a block in the order in which they come: from `first` on. With codes, the last page of each
 * tile comes in halves for that tile alone. The second tile then sees it in codes, if its rows are later
 * ones. */
struct page_order {
    int first, n;
    int twice; /* the page that comes in halves and then in codes; INT_MAX: none */
    /* The place of a page in the order. later: for the second of two tiles of one head. */
    __device__ __forceinline__ int place(int page, bool later) const {
        return page - first + (later && page >= twice);
    }
};
template <bool CODED>
__device__ __forceinline__ page_order order_of(const tile_rows &one, const tile_rows &other, bool heads) {
    page_order o;
    o.first = min(one.first, other.n > 0 ? other.first : one.first);
    o.twice = CODED && !heads && other.n > 0 ? one.last : INT_MAX;
    o.n = max(one.last, other.last) - o.first + 1 + (o.twice != INT_MAX);
    return o;
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

/* Brings the pages of codes of one head. codes: the ring of codes, behind it a barrier for each of its
 * stages. */
template <int D, int BITS>
__device__ __forceinline__ void codes_fetch(const cuda_attend &a, int kv_head, const page_order &o,
                                            const tile_rows &one, const tile_rows &other, uint8_t *codes,
                                            uint64_t *arrived, uint32_t stages, uint64_t *full,
                                            uint64_t *empty) {
    enum { HALF = D * CUDA_PAGE * BITS / 8 + 8 * D /* bytes of keys, or of values */ };
    const int thread = threadIdx.x % GROUP_THREADS;
    const int32_t *pages = a.pages + a.first_page[0];
    const int n_coded = o.n - 1 - (o.twice != INT_MAX);
    int asked = 0, taken = 0;
    auto ask = [&]() {
        if (thread == 0 && asked < n_coded) {
            uint8_t *const to = codes + asked % CODE_STAGES * wgmma_shared<D>::CODES;
            uint64_t *const bar = arrived + asked % CODE_STAGES;
            bar_expect(bar, 2 * HALF);
            bulk_copy<false>(to, page_at(a, a.kv.k, BITS, pages, o.first + asked, kv_head), HALF, bar);
            bulk_copy<false>(to + HALF, page_at(a, a.kv.v, BITS, pages, o.first + asked, kv_head), HALF, bar);
        }
        asked++;
    };
    for (int i = 0; i < CODE_STAGES - 1; i++)
        ask();
    for (int i = 0; i < o.n; i++) {
        const int slot = i % STAGES;
        const uint32_t to = stages + slot * wgmma_shared<D>::STAGE;
        const bool first_own = o.first + i == o.twice, own = first_own || i == o.n - 1;
        if (!own) {
            warps_barrier(1, CONVERT_WARPS); /* the codes before the last ones have been read */
            ask();
        }
        bar_wait<false>(empty + slot, (i / STAGES & 1) ^ 1);
        if (own) {
            const bool its = first_own || o.twice == INT_MAX;
            const int position = its ? one.position0 : other.position0, row = its ? one.row0 : other.row0,
                      in = position % CUDA_PAGE, last = row + (its ? one.n : other.n) - 1;
#pragma unroll 1
            for (int is_value = 0; is_value < 2; is_value++)
                block_gather<D, 2, true>(a, is_value, kv_head, position - in, row - in, last, thread,
                                         GROUP_THREADS, [&](int p, int u, uint4 h) {
                                             const uint32_t x[4] = {h.x, h.y, h.z, h.w};
                                             piece_store(
                                                 piece_at(to + is_value * wgmma_shared<D>::PART, p, u), x);
                                         });
        } else {
            const uint8_t *const from = codes + taken % CODE_STAGES * wgmma_shared<D>::CODES;
            bar_wait<false>(arrived + taken % CODE_STAGES, taken / CODE_STAGES & 1);
            keys_convert<D, BITS>(from, to);
            values_convert<D, BITS>(from + HALF, to + wgmma_shared<D>::PART);
            taken++;
        }
        async_fence(); /* makes the halves visible to the matrix instruction */
        bar_arrive(full + slot);
    }
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

/* Computes a warp's 16 rows of tile t over all pages of the block. */
template <int D, bool SINKS, bool CODED>
__device__ __forceinline__ void rows_attend(const cuda_attend &a, const tile_rows &t, const page_order &o,
                                            bool later, const uint32_t (&q)[D / 16][4], uint32_t stages,
                                            uint64_t *full, uint64_t *empty) {
    const int warp = threadIdx.x % GROUP_THREADS / 32, position = t.position0 + warp * 16;
    const float slope = alibi_slope(a, t.head);
    float score[32], out[D / 2], old[2];
    uint32_t p[4][4];
    row_sums f = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    auto there = [&](int i) {
        bar_wait<false>(full + i % STAGES, i / STAGES & 1);
        async_fence(); /* makes the copies visible to the matrix instruction */
        return stages + i % STAGES * wgmma_shared<D>::STAGE;
    };
    auto skip = [&](int i, int end) {
        for (; i < end; i++) {
            there(i);
            give(empty + i % STAGES);
        }
    };
    const bool sees = t.first <= t.last;
    int i = sees ? o.place(t.first, CODED && later) : o.n;
    skip(0, i);
#pragma unroll
    for (int e = 0; e < D / 2; e++)
        out[e] = 0.0f;
    if (sees) {
        uint32_t now = there(i);
        scores_add<D>(score, q, now);
        wgmma_wait<0>();
        wgmma_read(score);
        page_weigh(a, t.first, position, slope, score, &f, old);
        weights_pack(score, p);
        for (int page = t.first; page < t.last; page++) {
            const int before = i;
            i = CODED ? o.place(page + 1, later) : i + 1;
            if (CODED)
                skip(before + 1, i);
            const uint32_t next = there(i);
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
            give(empty + before % STAGES);
            if (__any_sync(~0u, old[0] != 1.0f || old[1] != 1.0f))
#pragma unroll
                for (int e = 0; e < D / 2; e++)
                    out[e] = __fmul_rn(out[e], old[e % 4 / 2]);
            weights_pack(score, p);
            now = next;
        }
        wgmma_fence();
        values_add<D>(out, p, now);
        wgmma_wait<0>();
        wgmma_read(out);
        give(empty + i % STAGES);
        skip(i + 1, o.n);
    }
    rows_write<D, SINKS>(a, f, out, t.row0 + warp * 16, t.n - warp * 16, t.head);
}

/* SINKS is a template parameter, because the registers for sinks would slow down the loop without them. */
template <int D, bool SINKS, bool CODED>
__global__ void __launch_bounds__(ATTEND_THREADS, 1)
    attend_wgmma(const __grid_constant__ cuda_attend a, bool heads) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(128) uint8_t raw[];
    __shared__ uint64_t full[STAGES], empty[STAGES], arrived[CODE_STAGES];
    uint8_t *const stages = raw + (1024 - shared_address(raw) % 1024) % 1024, *const queries =
                                                                                  stages +
                                                                                  STAGES *
                                                                                      wgmma_shared<D>::STAGE;
    const int group = threadIdx.x / GROUP_THREADS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++)
            bar_init(full + i, GROUP_THREADS), bar_init(empty + i, WARPS);
        for (int i = 0; i < CODE_STAGES; i++)
            bar_init(arrived + i, 1);
        async_fence();
    }
    __syncthreads();
    launch_next();
    launch_wait();
    const tile_rows one = tile_of<CODED>(a, heads, 0), other = tile_of<CODED>(a, heads, 1);
    const page_order o = order_of<CODED>(one, other, heads);
    const int kv_head = one.head / (int)(a.n_head / a.kv.n_kv_head);
    if (CODED && one.n <= 0)
        return;
    if (group == GROUPS && CODED) {
        uint8_t *const codes = queries + wgmma_shared<D>::QUERIES;
        registers_keep<104>();
        if (a.kv.code_bits == 8)
            codes_fetch<D, 8>(a, kv_head, o, one, other, codes, arrived, shared_address(stages), full, empty);
        else
            codes_fetch<D, 4>(a, kv_head, o, one, other, codes, arrived, shared_address(stages), full, empty);
    } else if (group == GROUPS) {
        registers_keep<24>();
        pages_fetch<D>(a, kv_head, o.first, o.first + o.n - 1,
                       max(one.position0 + one.n, other.position0 + other.n), shared_address(stages), full,
                       empty);
    } else {
        registers_take<CODED ? 200 : 240>();
        enum { LINE = wgmma_shared<D>::LINE };
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, in = warp % 4 * 16;
        const tile_rows t = group ? other : one;
        __half *const mine = (__half *)queries + warp * 16 * LINE;
        uint32_t q[D / 16][4];
        queries_load<D>(a, mine, t.row0 + in, t.n - in, t.head);
        __syncwarp();
#pragma unroll
        for (int s = 0; s < D / 16; s++)
            load_four(q[s], shared_address(mine + lane % 16 * LINE + lane / 16 * 8 + s * 16));
        rows_attend<D, SINKS, CODED>(a, t, o, group && !heads, q, shared_address(stages), full, empty);
    }
#endif
}

template <int D, bool SINKS, bool CODED> static int run_as(const cuda_attend *a, cuda_stream s) {
    const bool heads = a->n_head / a->kv.n_kv_head % 2 == 0;
    /* With codes one more, since the first rows may begin within a page. */
    const unsigned tiles = ((unsigned)a->n_row + TILE_ROWS - 1) / TILE_ROWS + CODED,
                   n_head = (unsigned)a->n_head;
    const dim3 grid(heads ? n_head / 2 : n_head, heads ? tiles : (tiles + 1) / 2);
    const size_t bytes = wgmma_shared<D>::BYTES + (CODED ? CODE_STAGES * wgmma_shared<D>::CODES : 0);
    const int e = prepare(attend_wgmma<D, SINKS, CODED>, bytes);
    return e ? e : launch(attend_wgmma<D, SINKS, CODED>, grid, dim3(ATTEND_THREADS), bytes, s, *a, heads);
}
template <int D> static int run(const cuda_attend *a, cuda_stream s) {
    if (a->kv.code_bits)
        return a->sinks ? run_as<D, true, true>(a, s) : run_as<D, false, true>(a, s);
    return a->sinks ? run_as<D, true, false>(a, s) : run_as<D, false, false>(a, s);
}

int prompt_wgmma_launch(const cuda_attend *a, cuda_stream s) {
    if (!is_built())
        return CUDA_UNSUPPORTED;
    return a->kv.d_head == 64 ? run<64>(a, s) : a->kv.d_head == 128 ? run<128>(a, s) : CUDA_UNSUPPORTED;
}
