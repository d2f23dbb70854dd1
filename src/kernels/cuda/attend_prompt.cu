/* attend_prompt.cu - attention of many rows of one sequence, to the pages of their cache.
 *
 * A block has 64 rows of one query head, a warp 16 of them. It goes through the pages from the first one that
 * a row may see to the last, the next one on its way into shared memory meanwhile. Scores and the weighted
 * values are sums of floats over products of halves (m16n8k16); queries are rotated and rounded to halves
 * when they are read, and so are the weights of a page's values. A page in which a row sees nothing leaves
 * its sums as they are: so a row's bits do not depend on the others of its block. */
#include "kernels/cuda/attend_prompt.cuh"

enum { PROMPT_WARPS = 4, PROMPT_THREADS = 32 * PROMPT_WARPS, PROMPT_ROWS = 16 * PROMPT_WARPS };

__device__ __forceinline__ void mma_halves(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
__device__ __forceinline__ void load_four_across(uint32_t to[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}
/* Halves from row to row in shared memory: eight rows have their 16 bytes in different banks. */
template <int D> struct prompt_room {
    enum { LINE = D + 8, PAGE = CUDA_PAGE * LINE, BYTES = 5 * PAGE * 2 };
};

/* The page's keys or values of one head: `n` positions of them, and zeros behind. */
template <int D> __device__ __forceinline__ void page_load(__half *to, const __half *from, int d, int n) {
    enum { LINE = prompt_room<D>::LINE, PIECES = D / 8 };
#pragma unroll
    for (int i = threadIdx.x; i < CUDA_PAGE * PIECES; i += PROMPT_THREADS) {
        const int row = i / PIECES, at = i % PIECES * 8;
        if (at >= d)
            continue;
        if (row < n)
            copy_ahead<16>(to + row * LINE + at, from + row * d + at);
        else
            *(uint4 *)(to + row * LINE + at) = make_uint4(0, 0, 0, 0);
    }
}

template <int D>
__global__ void __launch_bounds__(PROMPT_THREADS, D <= 128 ? 2 : 1)
    attend_prompt(const __grid_constant__ cuda_attend a) {
    extern __shared__ __align__(128) uint8_t shared[];
    enum { LINE = prompt_room<D>::LINE, PAGE = prompt_room<D>::PAGE, KEEP = D <= 128, STEPS = D / 16 };
    __half *const queries = (__half *)shared, *const keys = queries + PAGE, *const values = keys + 2 * PAGE;
    const int d = (int)a.kv.d_head, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    /* Rows with much to do first. */
    const int row0 = ((int)gridDim.y - 1 - (int)blockIdx.y) * PROMPT_ROWS,
              n = min(PROMPT_ROWS, (int)a.n_row - row0);
    const int head = blockIdx.x, kv_head = head / (int)(a.n_head / a.kv.n_kv_head);
    launch_next();
    launch_wait();
    const int position0 = a.position[row0], end = position0 + n;
    const int low = a.window > 0 && position0 >= a.window ? position0 - (int)a.window + 1 : 0;
    const int first = low / CUDA_PAGE, last = (end - 1) / CUDA_PAGE;
    const int32_t *pages = a.pages + a.first_page[row0];
    auto load = [&](int page) {
        const int64_t at = pages[page] * a.kv.page + (int64_t)kv_head * CUDA_PAGE * d;
        const int slot = (page - first) % 2, left = end - page * CUDA_PAGE;
        page_load<D>(keys + slot * PAGE, (const __half *)a.kv.k + at, d, left);
        page_load<D>(values + slot * PAGE, (const __half *)a.kv.v + at, d, left);
    };
    if (d < D) /* channels that are not there */
        for (int i = threadIdx.x; i < 5 * PAGE; i += PROMPT_THREADS)
            queries[i] = __float2half_rn(0.0f);
    if (d < D)
        __syncthreads();
    load(first);
    copies_end_group();
    queries_load<D>(a, queries + warp * 16 * LINE, row0 + warp * 16, n - warp * 16, head);
    __syncthreads();
    /* Where a lane's row of an operand begins: four 8 x 8 of 16 rows x 16. */
    const int line = lane % 16, side = lane / 16 * 8;
    const uint32_t q_at = shared_address(queries + (warp * 16 + line) * LINE + side);
    uint32_t q[KEEP ? STEPS : 1][4];
    if (KEEP)
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            load_four(q[KEEP ? s : 0], q_at + s * 32);
    float out[D / 2], old[2];
    row_sums f = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        out[i] = 0.0f;
    for (int page = first; page <= last; page++) {
        if (page < last)
            load(page + 1);
        copies_end_group();
        copies_wait<1>();
        __syncthreads();
        const __half *const k = keys + (page - first) % 2 * PAGE, *const v =
                                                                      values + (page - first) % 2 * PAGE;
        /* Keys 8j..8j+7: lanes 0-7 their first 8 channels, 8-15 the next 8, and 16-31 those of the next 8
         * keys. */
        const uint32_t k_at = shared_address(k + (lane % 8 + lane / 16 * 8) * LINE + lane / 8 % 2 * 8);
        float score[32];
#pragma unroll
        for (int i = 0; i < 32; i++)
            score[i] = 0.0f;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            uint32_t now[4];
            if (!KEEP)
                load_four(now, q_at + s * 32);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t b[4];
                load_four(b, k_at + (i * 16 * LINE + s * 16) * 2);
                mma_halves(score + 8 * i, KEEP ? q[KEEP ? s : 0] : now, b[0], b[1]);
                mma_halves(score + 8 * i + 4, KEEP ? q[KEEP ? s : 0] : now, b[2], b[3]);
            }
        }
        page_weigh(a, page, position0 + warp * 16, score, &f, old);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            out[i] = __fmul_rn(out[i], old[i % 4 / 2]);
        const uint32_t v_at = shared_address(v + line * LINE + side);
#pragma unroll
        for (int s = 0; s < CUDA_PAGE / 16; s++) {
            const uint32_t p[4] = {
                as_halves(score[8 * s], score[8 * s + 1]), as_halves(score[8 * s + 2], score[8 * s + 3]),
                as_halves(score[8 * s + 4], score[8 * s + 5]), as_halves(score[8 * s + 6], score[8 * s + 7])};
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                uint32_t b[4];
                load_four_across(b, v_at + (s * 16 * LINE + i * 16) * 2);
                mma_halves(out + 8 * i, p, b[0], b[1]);
                mma_halves(out + 8 * i + 4, p, b[2], b[3]);
            }
        }
        __syncthreads();
    }
    rows_write<D>(a, f, out, row0 + warp * 16, n - warp * 16, head);
}

template <int D> static int run(const cuda_attend *a, cuda_stream s) {
    const dim3 grid((unsigned)a->n_head, (unsigned)((a->n_row + PROMPT_ROWS - 1) / PROMPT_ROWS));
    const int e = prepare(attend_prompt<D>, prompt_room<D>::BYTES);
    return e ? e : launch(attend_prompt<D>, grid, dim3(PROMPT_THREADS), prompt_room<D>::BYTES, s, *a);
}

int prompt_launch(const cuda_attend *a, cuda_stream s) {
    const int64_t d = a->kv.d_head;
    if (device_major() < 8 || d < 8 || d > 256 || d % 8 || a->n_rot > d || a->n_row < 1 ||
        a->n_row > CUDA_MAX_WIDE || a->n_head % a->kv.n_kv_head || a->ldo % 2)
        return CUDA_UNSUPPORTED;
    const int e = prompt_wgmma_launch(a, s);
    if (e != CUDA_UNSUPPORTED)
        return e;
    return d <= 64 ? run<64>(a, s) : d <= 96 ? run<96>(a, s) : d <= 128 ? run<128>(a, s) : run<256>(a, s);
}
