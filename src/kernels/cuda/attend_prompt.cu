/* attend_prompt.cu - attention of many rows of one sequence to the pages of its KV cache.
 *
 * A block has 64 rows of one query head, a warp 16 of them. It goes through all pages that one of its rows
 * sees, while the next page is copied into shared memory. Scores and results are sums of floats over products
 * of halves (m16n8k16). Queries are rotated and rounded to halves when they are read, and the weights of a
 * page are rounded to halves too. A page in which a row sees nothing does not change the row's sums, so its
 * bits do not depend on the other rows of the block.
 *
 * Pages of codes are converted to halves when they are loaded into shared memory. A block then has rows of
 * one page. The keys and values of that page come from the launch's rows, and older ones from the page of
 * the newest block. */
#include "kernels/cuda/attend_prompt.cuh"
#include "kernels/cuda/attend_rows.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"

enum { PROMPT_WARPS = 4, PROMPT_THREADS = 32 * PROMPT_WARPS, PROMPT_ROWS = 16 * PROMPT_WARPS };

/* LINE: halves from one row to the next in shared memory. It places the 16 bytes of eight rows in different
 * banks. */
template <int D> struct prompt_shared {
    enum { LINE = D + 8, PAGE = CUDA_PAGE * LINE, BYTES = 5 * PAGE * 2 };
};

/* Loads a page's keys or values of one head: `n` positions, and zeros after them. */
template <int D> __device__ __forceinline__ void page_load(__half *to, const __half *from, int d, int n) {
    enum { LINE = prompt_shared<D>::LINE, PIECES = D / 8 };
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

/* ---- codes ---- */

/* Loads the keys of a whole page of codes as halves. */
template <int D>
__device__ __forceinline__ void code_keys_load(__half *to, const uint8_t *codes, int bits, int d) {
    enum { LINE = prompt_shared<D>::LINE };
    const int d_pad = (d + 31) / 32 * 32, n_eight = d / 8;
    const __half *scales = (const __half *)(codes + d_pad * CUDA_PAGE * bits / 8);
    for (int i = threadIdx.x; i < CUDA_PAGE * n_eight; i += PROMPT_THREADS) {
        const int p = i / n_eight, c = i % n_eight * 8;
        const uint4 scale = *(const uint4 *)(scales + p / 32 * d_pad + c),
                    min = *(const uint4 *)(scales + (2 + p / 32) * d_pad + c);
        uint32_t x[4];
        eight_halves(bits, codes, p * d_pad + c, scale, min, x);
        *(uint4 *)(to + p * LINE + c) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}
/* Loads the values of such a page as halves. A thread transposes 8 positions of 8 channels. */
template <int D>
__device__ __forceinline__ void code_values_load(__half *to, const uint8_t *codes, int bits, int d) {
    enum { LINE = prompt_shared<D>::LINE };
    const int d_pad = (d + 31) / 32 * 32;
    const __half *scales = (const __half *)(codes + d_pad * CUDA_PAGE * bits / 8);
    for (int i = threadIdx.x; i < CUDA_PAGE * d / 64; i += PROMPT_THREADS) {
        const int p = i % 8 * 8, c = i / 8 * 8;
        const uint4 scale = *(const uint4 *)(scales + c / 32 * CUDA_PAGE + p),
                    min = *(const uint4 *)(scales + 2 * d_pad + c / 32 * CUDA_PAGE + p);
        uint32_t x[8][4];
#pragma unroll
        for (int n = 0; n < 8; n++)
            eight_halves(bits, codes, (p / 32 * d_pad + c + n) * 32 + p % 32, scale, min, x[n]);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            uint32_t y[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                y[k] = __byte_perm(x[2 * k][n / 2], x[2 * k + 1][n / 2], n % 2 ? 0x7632 : 0x5410);
            *(uint4 *)(to + (p + n) * LINE + c) = make_uint4(y[0], y[1], y[2], y[3]);
        }
    }
}

/* ---- a block's rows ---- */

/* Rows [row0, row0 + n) at positions from position0 on, which see pages [first, last]. */
struct prompt_rows {
    int row0, n, position0, first, last, head, kv_head;
};
template <bool CODED> __device__ __forceinline__ prompt_rows rows_of(const cuda_attend &a) {
    const int tile = (int)gridDim.y - 1 - (int)blockIdx.y; /* the rows with the most work start first */
    const int before = CODED ? a.position[0] % CUDA_PAGE : 0;
    prompt_rows r;
    r.row0 = max(0, tile * PROMPT_ROWS - before);
    r.n = min((tile + 1) * PROMPT_ROWS - before, (int)a.n_row) - r.row0;
    r.head = blockIdx.x;
    r.kv_head = r.head / (int)(a.n_head / a.kv.n_kv_head);
    if (r.n <= 0)
        return r;
    r.position0 = a.position[r.row0];
    r.first = low_of(a, r.position0) / CUDA_PAGE;
    r.last = (r.position0 + r.n - 1) / CUDA_PAGE;
    return r;
}

/* Loads the page of the rows' own positions. */
template <int D>
__device__ __forceinline__ void own_load(const cuda_attend &a, const prompt_rows &r, bool is_value,
                                         __half *to) {
    const int in = r.position0 % CUDA_PAGE;
    block_gather<0, 2, true>(
        a, is_value, r.kv_head, r.position0 - in, r.row0 - in, r.row0 + r.n - 1, threadIdx.x, PROMPT_THREADS,
        [&](int p, int u, uint4 h) { *(uint4 *)(to + p * prompt_shared<D>::LINE + u * 8) = h; });
}

/* Starts loading a page's keys and values into shared memory. */
template <int D, bool CODED>
__device__ __forceinline__ void both_load(const cuda_attend &a, const prompt_rows &r, int page, __half *keys,
                                          __half *values) {
    const int d = (int)a.kv.d_head, left = r.position0 + r.n - page * CUDA_PAGE;
    const int32_t *pages = a.pages + a.first_page[r.row0];
    if (CODED && page == r.last) {
        own_load<D>(a, r, false, keys);
        own_load<D>(a, r, true, values);
    } else if (CODED) {
        const int bits = a.kv.code_bits;
        code_keys_load<D>(keys, page_at(a, a.kv.k, bits, pages, page, r.kv_head), bits, d);
        code_values_load<D>(values, page_at(a, a.kv.v, bits, pages, page, r.kv_head), bits, d);
    } else {
        page_load<D>(keys, (const __half *)page_at(a, a.kv.k, 16, pages, page, r.kv_head), d, left);
        page_load<D>(values, (const __half *)page_at(a, a.kv.v, 16, pages, page, r.kv_head), d, left);
    }
}

/* The warp's queries: kept in registers, or read again for each page. */
template <int D> struct warp_queries {
    enum { KEEP = D <= 128, STEPS = D / 16 };
    uint32_t kept[KEEP ? STEPS : 1][4], at;
    __device__ __forceinline__ void begin(const __half *from) {
        at = shared_address(from);
        if (KEEP)
#pragma unroll
            for (int s = 0; s < STEPS; s++)
                load_four(kept[KEEP ? s : 0], at + s * 32);
    }
    __device__ __forceinline__ void get(int s, uint32_t (&q)[4]) const {
        if (!KEEP)
            load_four(q, at + s * 32);
        else
#pragma unroll
            for (int i = 0; i < 4; i++)
                q[i] = kept[KEEP ? s : 0][i];
    }
};

/* scores = queries . keys of a page. */
template <int D>
__device__ __forceinline__ void page_score(const warp_queries<D> &queries, const __half *k,
                                           float (&score)[32]) {
    enum { LINE = prompt_shared<D>::LINE };
    /* Lanes 0-7 address the first 8 channels of keys 8j..8j+7, lanes 8-15 the next 8 channels, and lanes
     * 16-31 the same channels of the next 8 keys. */
    const int lane = threadIdx.x % 32;
    const uint32_t at = shared_address(k + (lane % 8 + lane / 16 * 8) * LINE + lane / 8 % 2 * 8);
#pragma unroll
    for (int i = 0; i < 32; i++)
        score[i] = 0.0f;
#pragma unroll
    for (int s = 0; s < D / 16; s++) {
        uint32_t q[4];
        queries.get(s, q);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t b[4];
            load_four(b, at + (i * 16 * LINE + s * 16) * 2);
            mma_halves(score + 8 * i, q, b[0], b[1]);
            mma_halves(score + 8 * i + 4, q, b[2], b[3]);
        }
    }
}
/* out += weights . values of a page. */
template <int D>
__device__ __forceinline__ void page_add(const float (&score)[32], const __half *v, float (&out)[D / 2]) {
    enum { LINE = prompt_shared<D>::LINE };
    const int lane = threadIdx.x % 32;
    const uint32_t at = shared_address(v + lane % 16 * LINE + lane / 16 * 8);
#pragma unroll
    for (int s = 0; s < CUDA_PAGE / 16; s++) {
        const uint32_t p[4] = {
            as_halves(score[8 * s], score[8 * s + 1]), as_halves(score[8 * s + 2], score[8 * s + 3]),
            as_halves(score[8 * s + 4], score[8 * s + 5]), as_halves(score[8 * s + 6], score[8 * s + 7])};
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            uint32_t b[4];
            matrices_load_four(b, at + (s * 16 * LINE + i * 16) * 2);
            mma_halves(out + 8 * i, p, b[0], b[1]);
            mma_halves(out + 8 * i + 4, p, b[2], b[3]);
        }
    }
}

template <int D, bool CODED>
__global__ void __launch_bounds__(PROMPT_THREADS, D <= 128 ? 2 : 1)
    attend_prompt(const __grid_constant__ cuda_attend a) {
    extern __shared__ __align__(128) uint8_t shared[];
    enum { LINE = prompt_shared<D>::LINE, PAGE = prompt_shared<D>::PAGE };
    __half *const queries = (__half *)shared, *const keys = queries + PAGE, *const values = keys + 2 * PAGE;
    const int lane = threadIdx.x % 32, in = threadIdx.x / 32 * 16 /* the warp's first row */;
    launch_next();
    launch_wait();
    const prompt_rows r = rows_of<CODED>(a);
    if (r.n <= 0)
        return;
    if (a.kv.d_head < D) { /* clears the missing channels */
        for (int i = threadIdx.x; i < 5 * PAGE; i += PROMPT_THREADS)
            queries[i] = __float2half_rn(0.0f);
        __syncthreads();
    }
    both_load<D, CODED>(a, r, r.first, keys, values);
    copies_end_group();
    queries_load<D>(a, queries + in * LINE, r.row0 + in, r.n - in, r.head);
    __syncthreads();
    warp_queries<D> q;
    q.begin(queries + (in + lane % 16) * LINE + lane / 16 * 8);
    const float slope = alibi_slope(a, r.head);
    float out[D / 2], old[2];
    row_sums f = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        out[i] = 0.0f;
    for (int page = r.first; page <= r.last; page++) {
        const int slot = (page - r.first) % 2 * PAGE, next = PAGE - slot;
        if (page < r.last)
            both_load<D, CODED>(a, r, page + 1, keys + next, values + next);
        copies_end_group();
        copies_wait<1>();
        __syncthreads();
        float score[32];
        page_score<D>(q, keys + slot, score);
        page_weigh(a, page, r.position0 + in, slope, score, &f, old);
#pragma unroll
        for (int i = 0; i < D / 2; i++)
            out[i] = __fmul_rn(out[i], old[i % 4 / 2]);
        page_add<D>(score, values + slot, out);
        __syncthreads();
    }
    if (a.sinks)
        rows_write<D, true>(a, f, out, r.row0 + in, r.n - in, r.head);
    else
        rows_write<D, false>(a, f, out, r.row0 + in, r.n - in, r.head);
}

template <int D, bool CODED> static int run_as(const cuda_attend *a, cuda_stream s) {
    /* One more, since the first rows may begin within a page. */
    const int64_t tiles = (a->n_row + PROMPT_ROWS - 1) / PROMPT_ROWS + CODED;
    const dim3 grid((unsigned)a->n_head, (unsigned)tiles);
    const int e = prepare(attend_prompt<D, CODED>, prompt_shared<D>::BYTES);
    return e ? e
             : launch(attend_prompt<D, CODED>, grid, dim3(PROMPT_THREADS), prompt_shared<D>::BYTES, s, *a);
}
template <int D> static int run(const cuda_attend *a, cuda_stream s) {
    return a->kv.code_bits ? run_as<D, true>(a, s) : run_as<D, false>(a, s);
}

int attend_prompt_launch(const cuda_attend *a, cuda_stream s) {
    const int64_t d = a->kv.d_head;
    if (device_major() >= 8 && !a->kv.v)
        return shared_prompt_launch(a, s);
    if (device_major() < 8 || d < 8 || d > 256 || d % 8 || a->n_rot > d || a->n_row < 1 ||
        a->n_row > CUDA_MAX_WIDE || a->n_head % a->kv.n_kv_head || a->ldo % 2)
        return CUDA_UNSUPPORTED;
    const int e = prompt_wgmma_launch(a, s);
    if (e != CUDA_UNSUPPORTED)
        return e;
    return d <= 64 ? run<64>(a, s) : d <= 96 ? run<96>(a, s) : d <= 128 ? run<128>(a, s) : run<256>(a, s);
}
