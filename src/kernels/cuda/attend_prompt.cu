/* attend_prompt.cu - attention of many rows of one sequence, to the pages of their cache.
 *
 * A block has 64 rows of one query head, a warp 16 of them. It goes through the pages from the first one that
 * a row may see to the last, the next one on its way into shared memory meanwhile. Scores and the weighted
 * values are sums of floats over products of halves (m16n8k16); queries are rotated and rounded to halves
 * when they are read, and so are the weights of a page's values. A page in which a row sees nothing leaves its
 * sums as they are: so a row's bits do not depend on the others of its block. */
#include "kernels/cuda/device.cuh"

enum { PROMPT_WARPS = 4, PROMPT_THREADS = 32 * PROMPT_WARPS, PROMPT_ROWS = 16 * PROMPT_WARPS };

#define LOG2_E 1.4426950408889634f

__device__ __forceinline__ void mma_halves(float d[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}
__device__ __forceinline__ void load_four(uint32_t to[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ void load_four_across(uint32_t to[4], uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(at)
                 : "memory");
}
__device__ __forceinline__ uint32_t as_halves(float a, float b) {
    const __half2 h = __floats2half2_rn(a, b);
    return *(const uint32_t *)&h;
}

/* Halves from row to row in shared memory: eight rows have their 16 bytes in different banks. */
template <int D> struct prompt_room { enum { LINE = D + 8, PAGE = CUDA_PAGE * LINE, BYTES = 5 * PAGE * 2 }; };

/* The page's keys or values of one head: `n` positions of them, and zeros behind. */
template <int D>
__device__ __forceinline__ void page_load(__half *to, const __half *from, int d, int n) {
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

/* Queries of the block's rows, rotated: a warp has those that it multiplies. */
template <int D>
__device__ __forceinline__ void queries_load(const cuda_attend &a, __half *to, int row0, int n, int head) {
    enum { LINE = prompt_room<D>::LINE, ROWS = PROMPT_ROWS / PROMPT_WARPS };
    const int d = (int)a.kv.d_head, n_turn = a.cos_sin ? (int)a.n_rot / 2 : 0, lane = threadIdx.x % 32;
    const int first = threadIdx.x / 32 * ROWS;
#pragma unroll
    for (int p = lane; p < D / 2; p += 32) {
        if (p >= d / 2)
            break;
        const bool turned = p < n_turn, apart = a.style == ROPE_HALF && turned;
        const int one = apart ? p : 2 * p, other = apart ? p + n_turn : 2 * p + 1;
#pragma unroll 4
        for (int row = first; row < first + ROWS; row++) {
            float2 x = make_float2(0.0f, 0.0f);
            if (row < n) {
                const float *q = a.q + (row0 + row) * a.ldq + (int64_t)head * d;
                x = make_float2(q[one], q[other]);
                if (turned) {
                    const float *table =
                        a.cos_sin + (int64_t)(a.cos_sin_by_row ? row0 + row : a.position[row0 + row]) * a.n_rot;
                    const float c = table[p], s = table[n_turn + p];
                    x = make_float2(__fsub_rn(__fmul_rn(x.x, c), __fmul_rn(x.y, s)),
                                    __fadd_rn(__fmul_rn(x.x, s), __fmul_rn(x.y, c)));
                }
            }
            to[row * LINE + one] = __float2half_rn(x.x);
            to[row * LINE + other] = __float2half_rn(x.y);
        }
    }
}

/* 2^x; what is smaller than normal floats is 0. */
__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

template <int D>
__global__ void __launch_bounds__(PROMPT_THREADS, D <= 128 ? 2 : 1)
    attend_prompt(const __grid_constant__ cuda_attend a) {
    extern __shared__ __align__(128) uint8_t shared[];
    enum { LINE = prompt_room<D>::LINE, PAGE = prompt_room<D>::PAGE, KEEP = D <= 128, STEPS = D / 16 };
    __half *const queries = (__half *)shared, *const keys = queries + PAGE, *const values = keys + 2 * PAGE;
    const int d = (int)a.kv.d_head, lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    /* Rows with much to do first. */
    const int row0 = ((int)gridDim.y - 1 - (int)blockIdx.y) * PROMPT_ROWS, n = min(PROMPT_ROWS, (int)a.n_row - row0);
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
    queries_load<D>(a, queries, row0, n, head);
    __syncthreads();
    /* Where a lane's row of an operand begins: four 8 x 8 of 16 rows x 16. */
    const int line = lane % 16, side = lane / 16 * 8;
    const uint32_t q_at = shared_address(queries + (warp * 16 + line) * LINE + side);
    uint32_t q[KEEP ? STEPS : 1][4];
    if (KEEP)
#pragma unroll
        for (int s = 0; s < STEPS; s++)
            load_four(q[KEEP ? s : 0], q_at + s * 32);
    float out[D / 8][4], most[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < D / 8; i++)
        out[i][0] = out[i][1] = out[i][2] = out[i][3] = 0.0f;
    const int mine = position0 + warp * 16 + g; /* and 8 behind it */
    /* Of scores, which are weighted by powers of two. */
    const float scale = a.softcap > 0 ? LOG2_E : __fmul_rn(a.scale, LOG2_E);
    for (int page = first; page <= last; page++) {
        if (page < last)
            load(page + 1);
        copies_end_group();
        copies_wait<1>();
        __syncthreads();
        const __half *const k = keys + (page - first) % 2 * PAGE, *const v = values + (page - first) % 2 * PAGE;
        /* Keys 8j..8j+7: lanes 0-7 their first 8 channels, 8-15 the next 8, and 16-31 those of the next 8 keys. */
        const uint32_t k_at = shared_address(k + (lane % 8 + lane / 16 * 8) * LINE + lane / 8 % 2 * 8);
        float score[8][4];
#pragma unroll
        for (int i = 0; i < 8; i++)
            score[i][0] = score[i][1] = score[i][2] = score[i][3] = 0.0f;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            uint32_t now[4];
            if (!KEEP)
                load_four(now, q_at + s * 32);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t b[4];
                load_four(b, k_at + (i * 16 * LINE + s * 16) * 2);
                mma_halves(score[2 * i], KEEP ? q[KEEP ? s : 0] : now, b[0], b[1]);
                mma_halves(score[2 * i + 1], KEEP ? q[KEEP ? s : 0] : now, b[2], b[3]);
            }
        }
        const int base = page * CUDA_PAGE + 2 * t;
        const bool cut = page * CUDA_PAGE + CUDA_PAGE - 1 > position0 + warp * 16 ||
                         (a.window > 0 && page * CUDA_PAGE + a.window <= position0 + warp * 16 + 15);
        if (a.softcap > 0)
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    score[i][c] = a.softcap * tanhf(score[i][c] * a.scale / a.softcap);
        if (cut)
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const int at = base + 8 * i + c % 2, row = mine + c / 2 * 8;
                    if (at > row || (a.window > 0 && at + a.window <= row))
                        score[i][c] = -INFINITY;
                }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = most[r];
#pragma unroll
            for (int i = 0; i < 8; i++)
                top = fmaxf(top, fmaxf(score[i][2 * r], score[i][2 * r + 1]));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            const float from = top == -INFINITY ? 0.0f : -top * scale,
                        old = most[r] == -INFINITY ? 0.0f : power_of_two(__fmaf_rn(most[r], scale, from));
            float more = 0.0f;
            most[r] = top;
#pragma unroll
            for (int i = 0; i < 8; i++)
#pragma unroll
                for (int c = 2 * r; c < 2 * r + 2; c++) {
                    score[i][c] = power_of_two(__fmaf_rn(score[i][c], scale, from));
                    more = __fadd_rn(more, score[i][c]);
                }
            sum[r] = __fmaf_rn(sum[r], old, more);
#pragma unroll
            for (int i = 0; i < D / 8; i++)
                out[i][2 * r] = __fmul_rn(out[i][2 * r], old), out[i][2 * r + 1] = __fmul_rn(out[i][2 * r + 1], old);
        }
        const uint32_t v_at = shared_address(v + line * LINE + side);
#pragma unroll
        for (int s = 0; s < CUDA_PAGE / 16; s++) {
            const uint32_t p[4] = {as_halves(score[2 * s][0], score[2 * s][1]),
                                   as_halves(score[2 * s][2], score[2 * s][3]),
                                   as_halves(score[2 * s + 1][0], score[2 * s + 1][1]),
                                   as_halves(score[2 * s + 1][2], score[2 * s + 1][3])};
#pragma unroll
            for (int i = 0; i < D / 16; i++) {
                uint32_t b[4];
                load_four_across(b, v_at + (s * 16 * LINE + i * 16) * 2);
                mma_halves(out[2 * i], p, b[0], b[1]);
                mma_halves(out[2 * i + 1], p, b[2], b[3]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(~0u, sum[r], 1));
        sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(~0u, sum[r], 2));
        const int row = warp * 16 + g + 8 * r;
        float *to = a.out + (row0 + row) * a.ldo + (int64_t)head * d + 2 * t;
        const float factor = __fdiv_rn(1.0f, sum[r]);
#pragma unroll
        for (int i = 0; i < D / 8; i++)
            if (row < n && 8 * i < d)
                *(float2 *)(to + 8 * i) =
                    make_float2(__fmul_rn(out[i][2 * r], factor), __fmul_rn(out[i][2 * r + 1], factor));
    }
}

template <int D> static int run(const cuda_attend *a, cuda_stream s) {
    const dim3 grid((unsigned)a->n_head, (unsigned)((a->n_row + PROMPT_ROWS - 1) / PROMPT_ROWS));
    const int e = prepare(attend_prompt<D>, prompt_room<D>::BYTES);
    return e ? e : launch(attend_prompt<D>, grid, dim3(PROMPT_THREADS), prompt_room<D>::BYTES, s, *a);
}

int prompt_launch(const cuda_attend *a, cuda_stream s) {
    const int64_t d = a->kv.d_head;
    if (device_major() < 8 || d < 8 || d > 256 || d % 8 || a->n_rot > d || a->n_row < 1 || a->n_row > CUDA_MAX_WIDE ||
        a->n_head % a->kv.n_kv_head || a->ldo % 2)
        return CUDA_UNSUPPORTED;
    return d <= 64 ? run<64>(a, s) : d <= 96 ? run<96>(a, s) : d <= 128 ? run<128>(a, s) : run<256>(a, s);
}
