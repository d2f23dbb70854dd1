/* attend_shared.cu - attention of heads that share one row of keys, which are the values too (cuda_kv.v
 * NULL): latent attention (DeepSeek V2, arXiv 2405.04434, section 2.1).
 *
 * A query is a pair of a row and a head. A block has TILES times 16 queries: heads of a generated row, or
 * successive pairs of a prompt. It goes through pieces of 32 positions, each of which it loads into shared
 * memory once, while it computes the piece before. Four warps have the same 16 queries, and each of them a
 * quarter of the channels: it multiplies its part of the queries by that of the keys, each adds the scores of
 * a quarter of the positions in a fixed order and computes their weights, and each sums its part of the
 * values. So queries and results are in registers, and a warp reads only its part of a piece.
 *
 * Queries and weights of generated rows are two halves each, the rounded value and the rounding error, so
 * that products are as exact as those of floats; those of prompts are one half each. Pages of a generated row
 * are divided among blocks, whose results a second kernel joins in a fixed order. A piece in which a row sees
 * nothing does not change its sums, so its bits do not depend on the other rows.
 *
 * Pages of codes are converted to halves when they are loaded into shared memory. Then the queries of a block
 * have positions in one page, whose keys come from the launch's rows (in prompts) and from the page of the
 * newest block. */
#include "kernels/cuda/attend.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/mma_float.cuh"

enum {
    SLICES = 4,
    SLICE = CUDA_MAX_SHARED / SLICES /* channels of a warp */,
    STEPS = SLICE / 16,
    TILE_THREADS = 32 * SLICES,
    PIECE = 32,
    PIECE_LINE = CUDA_MAX_SHARED + 8 /* places 16 bytes of eight positions in different banks */,
    PIECE_BYTES = PIECE * PIECE_LINE * 2,
    WEIGHT_LINE = PIECE + 8 /* places 16 bytes of eight queries in different banks */,
    JOIN_THREADS = 192,
    COUNTER_BYTES = 1 << 16 /* at the start of the scratch: those of attend.cu, which stay zero */
};

struct shared_job {
    cuda_attend a;
    int n_query, n_span;
    float *parts; /* [row][head][n_span] of d + 2: the maximum, the sum of weights, the sums */
};

/* What the four warps of a tile exchange. */
template <int PARTS> struct tile_exchange {
    float4 score[SLICES][SLICES][32]; /* [slice][quarter of the positions][lane] */
    __half weight[PARTS][16][WEIGHT_LINE];
    float of_query[SLICES][16]; /* a quarter's largest score; at the end its sum of weights */
};
template <int PARTS_, int TILES_, int STAGES_> struct shared_shape {
    enum {
        PARTS = PARTS_,
        TILES = TILES_,
        STAGES = STAGES_,
        MANY = PARTS == 1 /* prompts */,
        THREADS = TILE_THREADS * TILES,
        BYTES = STAGES * PIECE_BYTES + TILES * (int)sizeof(tile_exchange<PARTS>)
    };
    typedef tile_exchange<PARTS_> exchange;
};
/* A barrier of a tile's warps. A number that is no constant reserves all barriers of a multiprocessor, so
 * that one block of two tiles runs on it; that is so for its registers too. */
template <int TILES> __device__ __forceinline__ void tile_sync() {
    if (TILES == 1)
        __syncthreads();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(1 + (int)threadIdx.x / TILE_THREADS), "n"((int)TILE_THREADS)
                     : "memory");
}
/* Weights are kept 2^10 times as large, so that two halves represent small weights with all their bits. */
template <class S> __device__ __forceinline__ constexpr float weight_up() {
    return S::MANY ? 0.0f : 10.0f;
}

/* A lane's queries g and g + 8 of its tile. */
struct two_queries {
    bool exists[2];
    int row[2], head[2], position[2], low[2];
    float slope[2];
};
/* first: the block's first query; negative if it begins before the launch's rows. */
template <class S> __device__ __forceinline__ two_queries queries_of(const shared_job &j, int first) {
    const int g = threadIdx.x % 32 / 4, tile = threadIdx.x / TILE_THREADS;
    two_queries q;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int i = first + tile * 16 + g + 8 * r, at = max(0, min(i, j.n_query - 1));
        q.exists[r] = i >= 0 && i < j.n_query;
        q.row[r] = S::MANY ? at / (int)j.a.n_head : blockIdx.z;
        q.head[r] = S::MANY ? at % (int)j.a.n_head : at;
        q.position[r] = j.a.position[q.row[r]];
        q.low[r] = low_of(j.a, q.position[r]);
        q.slope[r] = alibi_slope(j.a, q.head[r]);
    }
    return q;
}

/* The pieces of a block: those of every n_span-th page from page `first` on, up to position `last`. */
struct piece_range {
    const int32_t *pages;
    int first, n_span, last, n, row1; /* row1: the row of the last position */
    __device__ __forceinline__ int at(int i) const {
        return (first + i / 2 * n_span) * CUDA_PAGE + i % 2 * PIECE;
    }
};
/* n_span of a row whose pages are [page0, page0 + n_page). */
__device__ __forceinline__ int spans_of(const shared_job &j, int n_page) {
    return min(j.n_span, (n_page + 1) / 2);
}
template <class S> __device__ __forceinline__ piece_range pieces_of(const shared_job &j, int first) {
    const int n_head = (int)j.a.n_head, last = min(first + 16 * (int)S::TILES, j.n_query) - 1;
    piece_range r = {};
    if (last < 0 || first >= j.n_query)
        return r;
    const int row0 = S::MANY ? max(first, 0) / n_head : blockIdx.z,
              row1 = S::MANY ? last / n_head : blockIdx.z;
    const int page0 = low_of(j.a, j.a.position[row0]) / CUDA_PAGE, span = S::MANY ? 0 : blockIdx.y;
    r.row1 = row1;
    r.pages = j.a.pages + j.a.first_page[row0];
    r.last = j.a.position[row1];
    const int n_page = r.last / CUDA_PAGE + 1 - page0;
    r.n_span = S::MANY ? 1 : spans_of(j, n_page);
    r.first = page0 + span;
    const int n_mine = (n_page - span + r.n_span - 1) / r.n_span;
    const bool has_last = (n_page - 1 - span) % r.n_span == 0;
    r.n = span < r.n_span ? 2 * n_mine - (has_last && r.last % CUDA_PAGE < PIECE) : 0;
    return r;
}

enum { EIGHTS = CUDA_MAX_SHARED / 8 };
/* Starts loading halves of positions from `base` on, with zeros after the last position and the last
 * channel. */
template <class S>
__device__ __forceinline__ void halves_load(const shared_job &j, const piece_range &r, int base, __half *to) {
    const int d = (int)j.a.kv.d_head, left = r.last + 1 - base;
    const __half *const from = recent_at(j.a, false, r.pages, base / CUDA_PAGE, 0) + base % CUDA_PAGE * d;
#pragma unroll 4
    for (int n = threadIdx.x; n < PIECE * EIGHTS; n += S::THREADS) {
        const int p = n / EIGHTS, at = n % EIGHTS * 8;
        const bool there = p < left && at < d;
        copy_or_zeros(to + p * PIECE_LINE + at, there ? from + p * d + at : from, there);
    }
}

/* Loads codes of a whole piece as halves. */
template <class S>
__device__ __forceinline__ void codes_load(const shared_job &j, const piece_range &r, int base, __half *to) {
    const int bits = j.a.kv.code_bits, d = (int)j.a.kv.d_head, d_pad = (d + 31) / 32 * 32,
              side = base % CUDA_PAGE / PIECE;
    const uint8_t *const codes = page_at(j.a, j.a.kv.k, bits, r.pages, base / CUDA_PAGE, 0);
    const __half *const scales = (const __half *)(codes + d_pad * CUDA_PAGE * bits / 8) + side * d_pad;
#pragma unroll 4
    for (int n = threadIdx.x; n < PIECE * EIGHTS; n += S::THREADS) {
        const int p = n / EIGHTS, at = n % EIGHTS * 8;
        uint32_t x[4] = {};
        if (at < d)
            eight_halves(bits, codes, (side * PIECE + p) * d_pad + at, *(const uint4 *)(scales + at),
                         *(const uint4 *)(scales + 2 * d_pad + at), x);
        *(uint4 *)(to + p * PIECE_LINE + at) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/* Loads positions of the page that a prompt's rows end in: from the launch's rows, and older ones from the
 * page of the newest block. */
template <class S>
__device__ __forceinline__ void rows_load(const shared_job &j, const piece_range &r, int base, __half *to) {
    const int d = (int)j.a.kv.d_head;
    const __half *const old = recent_at(j.a, false, r.pages, base / CUDA_PAGE, 0) + base % CUDA_PAGE * d;
    for (int n = threadIdx.x; n < PIECE * EIGHTS * 4; n += S::THREADS) {
        const int p = n / (EIGHTS * 4), at = n % (EIGHTS * 4) * 2, row = r.row1 - (r.last - base - p);
        uint32_t x = 0;
        if (at < d && row >= 0 && base + p <= r.last) {
            const float *const key = j.a.k + row * j.a.ldk + at;
            x = as_halves(key[0], key[1]);
        } else if (at < d && row < 0)
            x = *(const uint32_t *)(old + p * d + at);
        *(uint32_t *)(to + p * PIECE_LINE + at) = x;
    }
}

/* Starts loading piece i. */
template <class S>
__device__ __forceinline__ void piece_load(const shared_job &j, const piece_range &r, int i, __half *to) {
    const int base = r.at(i);
    if (j.a.kv.code_bits == 0)
        halves_load<S>(j, r, base, to);
    else if (base / CUDA_PAGE < r.last / CUDA_PAGE)
        codes_load<S>(j, r, base, to);
    else if (S::MANY)
        rows_load<S>(j, r, base, to);
    else
        halves_load<S>(j, r, base, to);
}

/* Loads the warp's channels of its queries. */
template <class S>
__device__ __forceinline__ void queries_load(const shared_job &j, const two_queries &q,
                                             uint32_t (&to)[S::PARTS][STEPS][4]) {
    const int slice = threadIdx.x / 32 % SLICES, t = threadIdx.x % 4, d = (int)j.a.kv.d_head;
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = i % 2, c = slice * SLICE + s * 16 + 2 * t + i / 2 * 8;
            float2 x = make_float2(0.0f, 0.0f);
            if (q.exists[r] && c < d)
                x = *(const float2 *)(j.a.q + q.row[r] * j.a.ldq + (int64_t)q.head[r] * d + c);
            const uint2 u = as_two_halves(x.x, x.y);
            to[0][s][i] = u.x;
            if (S::PARTS > 1)
                to[S::PARTS - 1][s][i] = u.y;
        }
}

/* x = the warp's part of the scores: x[i] has positions 8 i + 2 t and 8 i + 2 t + 1, for query g, then for
 * query g + 8. */
template <class S>
__device__ __forceinline__ void keys_multiply(const uint32_t (&q)[S::PARTS][STEPS][4], const __half *keys,
                                              float (&x)[4][4]) {
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32 % SLICES;
    const uint32_t at =
        shared_address(keys + (lane % 8 + lane / 16 * 8) * PIECE_LINE + slice * SLICE + lane / 8 % 2 * 8);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            x[i][c] = 0.0f;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        uint32_t b[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++)
            load_four(b[i], at + (i * 16 * PIECE_LINE + s * 16) * 2);
#pragma unroll
        for (int p = S::PARTS - 1; p >= 0; p--)
#pragma unroll
            for (int i = 0; i < 4; i++)
                mma_halves(x[i], q[p][s], b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
    }
}

/* For a lane's two queries: the largest score so far in units of log 2, and the lane's part of the sum of
 * weights. */
struct two_sums {
    float max_score[2], sum[2];
};

/* The warp's quarter of the scores, of positions base + 8 slice + 2 t and the next one, for both queries:
 * adds the parts of all slices, and converts scores to units of log 2. */
template <class S>
__device__ __forceinline__ void scores_add(const shared_job &j, const two_queries &q, int base,
                                           float4 (&shared)[SLICES][SLICES][32], const float (&x)[4][4],
                                           float (&sum)[4]) {
    const cuda_attend &a = j.a;
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32 % SLICES;
#pragma unroll
    for (int i = 0; i < SLICES; i++)
        shared[slice][i][lane] = make_float4(x[i][0], x[i][1], x[i][2], x[i][3]);
    tile_sync<S::TILES>();
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        const float4 y = shared[s][slice][lane];
        const float v[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int c = 0; c < 4; c++)
            sum[c] = s ? __fadd_rn(sum[c], v[c]) : v[c];
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const int r = c / 2, at = base + 8 * slice + lane % 4 * 2 + c % 2;
        float s = __fmul_rn(sum[c], a.scale);
        if (a.softcap > 0)
            s = a.softcap * tanhf(s / a.softcap);
        if (a.alibi_max_bias > 0)
            s = __fmaf_rn((float)(at - q.position[r]), q.slope[r], s);
        sum[c] = at > q.position[r] || at < q.low[r] ? -INFINITY : __fmul_rn(s, LOG2_E);
    }
}

/* Turns the warp's quarter of the scores into weights, which all warps of the tile see afterwards. old: the
 * factors of the earlier sums. */
template <class S>
__device__ __forceinline__ void piece_weigh(const float (&x)[4], typename S::exchange &shared, two_sums *f,
                                            float (&old)[2]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, slice = threadIdx.x / 32 % SLICES;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = fmaxf(x[2 * r], x[2 * r + 1]);
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        if (t == 0)
            shared.of_query[slice][g + 8 * r] = top;
    }
    tile_sync<S::TILES>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = g + 8 * r;
        float top = f->max_score[r], w[2];
#pragma unroll
        for (int s = 0; s < SLICES; s++)
            top = fmaxf(top, shared.of_query[s][row]);
        /* exactly 1 if the maximum stays */
        old[r] = f->max_score[r] == -INFINITY ? 0.0f : exp2f(__fsub_rn(f->max_score[r], top));
        f->max_score[r] = top;
#pragma unroll
        for (int e = 0; e < 2; e++)
            w[e] = x[2 * r + e] == -INFINITY ? 0.0f
                                             : exp2f(__fadd_rn(__fsub_rn(x[2 * r + e], top), weight_up<S>()));
        f->sum[r] = __fmaf_rn(f->sum[r], old[r], __fadd_rn(w[0], w[1]));
        const uint2 u = as_two_halves(w[0], w[1]);
        *(uint32_t *)&shared.weight[0][row][8 * slice + 2 * t] = u.x;
        if (S::PARTS > 1)
            *(uint32_t *)&shared.weight[S::PARTS - 1][row][8 * slice + 2 * t] = u.y;
    }
    tile_sync<S::TILES>();
}

/* out += weights . values, the warp's channels; out[i] has channels 8 i + 2 t and 8 i + 2 t + 1. */
template <class S>
__device__ __forceinline__ void values_add(const typename S::exchange &shared, const __half *values,
                                           const float (&old)[2], float (&out)[2 * STEPS][4]) {
    const int lane = threadIdx.x % 32, slice = threadIdx.x / 32 % SLICES;
    const uint32_t at = shared_address(values + lane % 16 * PIECE_LINE + slice * SLICE + lane / 16 * 8);
    uint32_t w[S::PARTS][2][4]; /* of 16 positions each */
#pragma unroll
    for (int p = 0; p < S::PARTS; p++)
#pragma unroll
        for (int k = 0; k < 2; k++)
            load_four(w[p][k], shared_address(&shared.weight[p][lane % 16][k * 16 + lane / 16 * 8]));
    if (__any_sync(~0u, old[0] != 1.0f || old[1] != 1.0f))
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                out[i][c] = __fmul_rn(out[i][c], old[c / 2]);
#pragma unroll
    for (int i = 0; i < 2 * STEPS; i += 2) {
        uint32_t b[2][4];
#pragma unroll
        for (int k = 0; k < 2; k++)
            matrices_load_four(b[k], at + (k * 16 * PIECE_LINE + i * 8) * 2);
#pragma unroll
        for (int p = S::PARTS - 1; p >= 0; p--)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                mma_halves(out[i], w[p][k], b[k][0], b[k][1]);
                mma_halves(out[i + 1], w[p][k], b[k][2], b[k][3]);
            }
    }
}

/* Writes the results of a lane's queries, or the parts of a span. */
template <class S>
__device__ __forceinline__ void results_put(const shared_job &j, const two_queries &q,
                                            typename S::exchange &shared, const two_sums &f,
                                            const float (&out)[2 * STEPS][4]) {
    const int slice = threadIdx.x / 32 % SLICES, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4,
              d = (int)j.a.kv.d_head;
    const bool has_sink = j.a.sinks != nullptr;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = __fadd_rn(f.sum[r], __shfl_xor_sync(~0u, f.sum[r], 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
        if (t == 0)
            shared.of_query[slice][g + 8 * r] = sum;
    }
    tile_sync<S::TILES>();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = shared.of_query[0][g + 8 * r];
#pragma unroll
        for (int s = 1; s < SLICES; s++)
            sum = __fadd_rn(sum, shared.of_query[s][g + 8 * r]);
        if (!q.exists[r])
            continue;
        float *to, factor = 1.0f;
        if (S::MANY) {
            to = j.a.out + q.row[r] * j.a.ldo + (int64_t)q.head[r] * d;
            factor = inverse_with(has_sink, f.max_score[r], sum, has_sink ? sink_of(j.a, q.head[r]) : 0.0f,
                                  weight_up<S>());
        } else {
            to = j.parts + ((q.row[r] * j.a.n_head + q.head[r]) * j.n_span + blockIdx.y) * (d + 2) + 2;
            if (slice == 0 && t == 0)
                *(float2 *)(to - 2) = make_float2(f.max_score[r], sum);
        }
#pragma unroll
        for (int i = 0; i < 2 * STEPS; i++) {
            const int c = slice * SLICE + 8 * i + 2 * t;
            if (c < d)
                *(float2 *)(to + c) =
                    make_float2(__fmul_rn(out[i][2 * r], factor), __fmul_rn(out[i][2 * r + 1], factor));
        }
    }
}

template <class S>
__global__ void __launch_bounds__(S::THREADS) attend_shared(const __grid_constant__ shared_job j) {
    extern __shared__ __align__(16) uint8_t memory[];
    auto &exchange = ((typename S::exchange *)(memory + S::STAGES * PIECE_BYTES))[threadIdx.x / TILE_THREADS];
    /* Prompt rows with the most work start first. */
    const int block = S::MANY ? (int)(gridDim.x - 1 - blockIdx.x) : blockIdx.x;
    launch_next();
    launch_wait();
    const int skipped = S::MANY && j.a.kv.code_bits ? j.a.position[0] % CUDA_PAGE * (int)j.a.n_head : 0;
    const int first = block * 16 * S::TILES - skipped;
    const piece_range r = pieces_of<S>(j, first);
    if (r.n == 0)
        return;
    const two_queries q = queries_of<S>(j, first);
    auto stage = [&](int i) { return (__half *)(memory + i % S::STAGES * PIECE_BYTES); };
    piece_load<S>(j, r, 0, stage(0));
    copies_end_group();
    uint32_t query[S::PARTS][STEPS][4];
    queries_load<S>(j, q, query);
    two_sums f = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    float out[2 * STEPS][4] = {};
#pragma unroll 1
    for (int i = 0; i < r.n; i++) {
        float x[4][4], mine[4], old[2];
        if (S::STAGES == 1 && i > 0) {
            __syncthreads(); /* all threads have read the piece before */
            piece_load<S>(j, r, i, stage(i));
        }
        copies_wait<0>();
        __syncthreads();
        if (S::STAGES > 1 && i + 1 < r.n)
            piece_load<S>(j, r, i + 1, stage(i + 1));
        copies_end_group();
        keys_multiply<S>(query, stage(i), x);
        scores_add<S>(j, q, r.at(i), exchange.score, x, mine);
        piece_weigh<S>(mine, exchange, &f, old);
        values_add<S>(exchange, stage(i), old, out);
    }
    results_put<S>(j, q, exchange, f, out);
}

/* Joins the parts of a head of a row. */
__global__ void __launch_bounds__(JOIN_THREADS) join_spans(const __grid_constant__ shared_job j) {
    __shared__ float weight[CUDA_SHARED_SPLIT], factor;
    const int d = (int)j.a.kv.d_head, head = blockIdx.x, row = blockIdx.y;
    launch_next();
    launch_wait();
    const int position = j.a.position[row], page0 = low_of(j.a, position) / CUDA_PAGE;
    const int n_span = spans_of(j, position / CUDA_PAGE + 1 - page0);
    const float *const parts = j.parts + (row * j.a.n_head + head) * j.n_span * (d + 2);
    if (threadIdx.x < 32) { /* lane p has parts p and p + 32 */
        float top[2], sum[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int p = (int)threadIdx.x + 32 * i;
            top[i] = p < n_span ? parts[p * (d + 2)] : -INFINITY;
            sum[i] = p < n_span ? parts[p * (d + 2) + 1] : 0.0f;
        }
        float max_score = fmaxf(top[0], top[1]), all = 0.0f;
#pragma unroll
        for (int o = 1; o < 32; o *= 2)
            max_score = fmaxf(max_score, __shfl_xor_sync(~0u, max_score, o));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float w = top[i] == -INFINITY ? 0.0f : exp2f(__fsub_rn(top[i], max_score));
            weight[threadIdx.x + 32 * i] = w;
            all = __fmaf_rn(sum[i], w, all);
        }
#pragma unroll
        for (int o = 1; o < 32; o *= 2)
            all = __fadd_rn(all, __shfl_xor_sync(~0u, all, o));
        const bool has_sink = j.a.sinks != nullptr;
        if (threadIdx.x == 0)
            factor = inverse_with(has_sink, max_score, all, has_sink ? sink_of(j.a, head) : 0.0f,
                                  weight_up<shared_shape<2, 1, 1>>());
    }
    __syncthreads();
    for (int c = threadIdx.x; c < d; c += JOIN_THREADS) {
        float v = 0.0f;
#pragma unroll 8
        for (int p = 0; p < n_span; p++)
            v = __fmaf_rn(parts[p * (d + 2) + 2 + c], weight[p], v);
        j.a.out[row * j.a.ldo + (int64_t)head * d + c] = __fmul_rn(v, factor);
    }
}

template <class S> static int run(const shared_job &j, unsigned n_span, cuda_stream s) {
    /* With codes, the first queries may begin within a page. */
    const int64_t n_query = j.n_query + (S::MANY && j.a.kv.code_bits ? (CUDA_PAGE - 1) * j.a.n_head : 0);
    const dim3 grid((unsigned)((n_query + 16 * S::TILES - 1) / (16 * S::TILES)), n_span,
                    S::MANY ? 1 : (unsigned)j.a.n_row);
    const int e = prepare(attend_shared<S>, S::BYTES);
    return e ? e : launch(attend_shared<S>, grid, dim3(S::THREADS), S::BYTES, s, j);
}
/* Two tiles, or one of them if there are no more queries or shared memory is short. */
template <int PARTS> static int run_any(const shared_job &j, unsigned n_span, cuda_stream s) {
    const int memory = device_shared_bytes();
    if (j.n_query > 16 && memory >= shared_shape<PARTS, 2, 2>::BYTES)
        return run<shared_shape<PARTS, 2, 2>>(j, n_span, s);
    return memory >= shared_shape<PARTS, 1, 2>::BYTES ? run<shared_shape<PARTS, 1, 2>>(j, n_span, s)
                                                      : run<shared_shape<PARTS, 1, 1>>(j, n_span, s);
}

static bool can_share(const cuda_attend *a) {
    const int64_t d = a->kv.d_head;
    return !a->kv.v && a->stored && !a->cos_sin && !a->leaves.data &&
           (a->kv.code_bits == 0 || a->kv.code_bits == 8 || a->kv.code_bits == 4) && a->kv.n_kv_head == 1 &&
           d >= 8 && d <= CUDA_MAX_SHARED && d % 8 == 0 && a->n_row >= 1 && a->n_row <= CUDA_MAX_WIDE &&
           a->n_row * a->n_head <= INT32_MAX / 2;
}

size_t shared_scratch(int64_t n_row, int64_t n_head, int64_t d_head) {
    const int64_t rows = n_row < CUDA_SHARED_ROWS ? n_row : (int64_t)CUDA_SHARED_ROWS;
    return COUNTER_BYTES + (size_t)(rows * n_head * CUDA_SHARED_SPLIT * (d_head + 2)) * sizeof(float);
}

int shared_launch(const cuda_attend *a, cuda_stream s) {
    if (!can_share(a))
        return CUDA_UNSUPPORTED;
    shared_job j = {*a};
    j.n_query = (int)a->n_head;
    j.n_span = CUDA_SHARED_SPLIT;
    j.parts = (float *)((uint8_t *)a->scratch + COUNTER_BYTES);
    for (int64_t r = 0; r < a->n_row; r += CUDA_SHARED_ROWS) {
        const int64_t left = a->n_row - r;
        j.a.n_row = left < CUDA_SHARED_ROWS ? left : (int64_t)CUDA_SHARED_ROWS;
        j.a.q = a->q + r * a->ldq;
        j.a.out = a->out + r * a->ldo;
        j.a.position = a->position + r;
        j.a.first_page = a->first_page + r;
        int e = run_any<2>(j, CUDA_SHARED_SPLIT, s);
        e = e ? e : prepare(join_spans, 0);
        e = e ? e
              : launch(join_spans, dim3((unsigned)a->n_head, (unsigned)j.a.n_row), dim3(JOIN_THREADS), 0, s,
                       j);
        if (e)
            return e;
    }
    return 0;
}

int shared_prompt_launch(const cuda_attend *a, cuda_stream s) {
    if (!can_share(a))
        return CUDA_UNSUPPORTED;
    shared_job j = {*a};
    j.n_query = (int)(a->n_row * a->n_head);
    return run_any<1>(j, 1, s);
}
