/* attend.cu - attention of single tokens to the paged KV caches of their sequences.
 *
 * A block computes up to HEADS query heads that share a KV head, over every n-th page of one sequence. It
 * norms (if they have norms) and rotates the queries. The block that has the newest page does so with the new
 * key, too, and stores it and the value. A warp goes through pieces of pages with its own softmax. Queries,
 * scores and results are in the registers of the matrix instruction (m16n8k16 of halves). Row g of the
 * instruction is head g. Row g + 8 is the rounding error of that head's queries or weights as halves, so
 * products are as exact as those of floats. Keys and values, or their codes, are loaded directly into these
 * registers. The order of channels and positions in the instruction is free if both operands agree; here it
 * is chosen so that a lane reads contiguous memory.
 *
 * The value of a code is the half nearest to scale * code + min, as in prompts.
 *
 * At the end a block joins the results of its warps, and the last block of a sequence joins the results of
 * the blocks, both in a fixed order. The first pages are read before the previous launch has finished,
 * because that launch does not write them. */
#include "kernels/cuda/attend_warp.cuh"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/row_math.cuh"

/* Stores an element of the result. If codes are left, a warp has 32 successive elements. */
__device__ __forceinline__ void out_put(const attend_job &j, int row, int i, float v) {
    j.a.out[row * j.a.ldo + i] = v;
    if (j.leaves_rows.codes)
        group_leave_among(j.leaves_rows, row, i, v, j.leaves_rows.norm ? j.leaves_rows.norm[i] : 1.0f);
    else if (j.leaves.codes)
        group_leave(j.leaves, i, v, j.leaves.norm ? j.leaves.norm[i] : 1.0f);
}

/* Elements i and i + half of a head, of which each lane of a warp has N pairs; weights of their norm. The sum
 * of squares has the order of `norm`, since i is 32 n + lane. */
template <int N> __device__ __forceinline__ void pairs_norm(float2 (&x)[N], const float2 (&w)[N], float eps) {
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < N; n++)
        sum = __fmaf_rn(x[n].x, x[n].x, sum);
#pragma unroll
    for (int n = 0; n < N; n++)
        sum = __fmaf_rn(x[n].y, x[n].y, sum);
    const float factor = norm_factor_of(pairs_sum(sum, 32), (float)(64 * N), eps);
#pragma unroll
    for (int n = 0; n < N; n++)
        x[n] = make_float2(__fmul_rn(__fmul_rn(x[n].x, factor), w[n].x),
                           __fmul_rn(__fmul_rn(x[n].y, factor), w[n].y));
}

/* Loads the queries into shared memory and, if the block has the newest page, the new key and value. A warp
 * loads heads, a lane every 32nd pair of a head; the threads share the pairs of the key. All loads are in
 * flight together. Missing heads and channels are zeros. */
template <int D, int HERE>
__device__ __forceinline__ void queries_take(const attend_work<D> &w, bool has_new, bool *waited) {
    enum { PAIRS = D / 64, EACH = HEADS / HERE, KEYS = D / 2 <= 32 * HERE ? 1 : D / 2 / (32 * HERE) };
    const cuda_attend &a = w.j.a;
    const int d = (int)a.kv.d_head, half = d / 2, lane = threadIdx.x % 32, warp = threadIdx.x / 32,
              n_turn = a.cos_sin ? (int)a.n_rot / 2 : 0;
    const float2 none = make_float2(0.0f, 0.0f), still = make_float2(1.0f, 0.0f);
    auto mine = [&](int m) { return 32 * HERE * m + (int)threadIdx.x; }; /* the thread's pairs of the key */
    float2 table[PAIRS], key_table[KEYS], norm[2][PAIRS]; /* read before the previous launch ends */
    if (a.q_norm)
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            norm[0][n] = make_float2(a.q_norm[32 * n + lane], a.q_norm[32 * n + lane + half]);
            norm[1][n] = make_float2(a.k_norm[32 * n + lane], a.k_norm[32 * n + lane + half]);
        }
#pragma unroll
    for (int n = 0; n < PAIRS; n++)
        table[n] = 32 * n + lane < n_turn ? pair_table(a, w.row, w.range.position, 32 * n + lane) : still;
#pragma unroll
    for (int m = 0; m < KEYS; m++)
        key_table[m] = has_new && mine(m) < n_turn ? pair_table(a, w.row, w.range.position, mine(m)) : still;
    if (!*waited)
        launch_wait();
    *waited = true;
    float2 pair[EACH][PAIRS], key[KEYS], value[KEYS];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int h = warp + e * HERE;
        const float *const x = a.q + w.row * a.ldq + (int64_t)(w.head0 + h) * d;
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            const int2 at = pair_elements(a, 32 * n + lane);
            pair[e][n] = h < w.n_here && 32 * n + lane < half ? make_float2(x[at.x], x[at.y]) : none;
        }
    }
    const float *const x = a.k + w.row * a.ldk + (int64_t)w.kv_head * d;
    const float *const v = a.v + w.row * a.ldv + (int64_t)w.kv_head * d;
#pragma unroll
    for (int m = 0; m < KEYS; m++) {
        const int2 from = pair_elements(a, mine(m));
        const bool is_new = has_new && mine(m) < half;
        key[m] = is_new ? make_float2(x[from.x], x[from.y]) : none;
        value[m] = is_new ? make_float2(v[from.x], v[from.y]) : none;
    }
    if (has_new && a.q_norm) { /* each warp norms the whole key, and keeps its pairs */
        float2 all[PAIRS];
#pragma unroll
        for (int n = 0; n < PAIRS; n++)
            all[n] = make_float2(x[32 * n + lane], x[32 * n + lane + half]);
        pairs_norm(all, norm[1], a.norm_eps);
#pragma unroll
        for (int n = 0; n < PAIRS; n++)
            key[n / HERE] = warp == n % HERE ? all[n] : key[n / HERE];
    }
    if (a.q_norm)
#pragma unroll
        for (int e = 0; e < EACH; e++)
            pairs_norm(pair[e], norm[0], a.norm_eps);
#pragma unroll
    for (int e = 0; e < EACH; e++)
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            const int2 at = pair_elements(a, 32 * n + lane);
            const float2 y = 32 * n + lane < n_turn ? pair_rotate(pair[e][n], table[n]) : pair[e][n];
            query_four *const query = w.shared.query[warp + e * HERE];
            query[at.x / 4].put(at.x % 4, y.x);
            query[at.y / 4].put(at.y % 4, y.y);
        }
#pragma unroll
    for (int m = 0; m < KEYS; m++)
        if (has_new && mine(m) < D / 2) {
            const int2 to = pair_elements(a, mine(m));
            key[m] = mine(m) < n_turn ? pair_rotate(key[m], key_table[m]) : key[m];
            w.shared.fresh[0][to.x] = __float2half_rn(key[m].x);
            w.shared.fresh[0][to.y] = __float2half_rn(key[m].y);
            w.shared.fresh[1][to.x] = __float2half_rn(value[m].x);
            w.shared.fresh[1][to.y] = __float2half_rn(value[m].y);
        }
    __syncthreads();
}

/* Stores the new key and value in their page, and packs the block if it is complete. */
template <int D, int BITS> __device__ __forceinline__ void fresh_store(const attend_work<D> &w) {
    const cuda_attend &a = w.j.a;
    const int d = (int)a.kv.d_head, position = w.range.position, page = position / CUDA_PAGE;
    __half *k = (__half *)recent_at(a, false, w.range.pages, page, w.kv_head),
           *v = (__half *)recent_at(a, true, w.range.pages, page, w.kv_head);
    for (int i = threadIdx.x; i < d; i += blockDim.x) {
        k[position % CUDA_PAGE * d + i] = w.shared.fresh[0][i];
        v[position % CUDA_PAGE * d + i] = w.shared.fresh[1][i];
    }
    if (BITS == 16 || position % CUDA_PAGE != CUDA_PAGE - 1)
        return;
    __syncthreads();
    pack_keys(BITS, d, k, d, (uint8_t *)page_at(a, a.kv.k, BITS, w.range.pages, page, w.kv_head));
    pack_values(BITS, d, v, d, (uint8_t *)page_at(a, a.kv.v, BITS, w.range.pages, page, w.kv_head));
}

/* Writes a warp's sums as floats to out_of [warp][heads of a block][D], and its maximum and sum of weights,
 * to the shared memory of the block that joins the head. */
template <int D>
__device__ __forceinline__ void sums_write(const attend_work<D> &w, int warp, const warp_sums<D> &s,
                                           float *out_of) {
    const int each = w.n_here / w.j.n_block, owner = w.g / each, head = w.g - owner * each;
    float sum = __fadd_rn(s.sum, __shfl_xor_sync(~0u, s.sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    if (w.g >= w.n_here)
        return;
    float *const max_to = &w.shared.max_of[head][warp], *const sum_to = &w.shared.sum_of[head][warp],
                 *const to = out_of + (warp * each + head) * D + 8 * w.t;
    if (w.t == 0 && w.j.n_block > 1) {
        cluster_store(max_to, owner, s.max_score);
        cluster_store(sum_to, owner, sum);
    } else if (w.t == 0)
        *max_to = s.max_score, *sum_to = sum;
#pragma unroll
    for (int c = 0; c < D / 32; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float y[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                y[j] = __fadd_rn(s.out[4 * c + j][e], s.out[4 * c + j][e + 2]);
            if (w.j.n_block > 1)
                cluster_store_four(to + 32 * c + 4 * e, owner, y);
            else
                *(float4 *)(to + 32 * c + 4 * e) = make_float4(y[0], y[1], y[2], y[3]);
        }
}

/* The factor of the results of the block's head h. */
template <int D>
__device__ __forceinline__ float inverse_of(const attend_work<D> &w, int h, float max_score, float sum) {
    const bool has_sink = w.j.a.sinks != nullptr;
    return inverse_with(has_sink, max_score, sum, has_sink ? w.shared.sink[h] : 0.0f, WEIGHT_UP);
}

/* Computes the factor of each warp's sums of a head. */
template <int D> __device__ __forceinline__ void warps_weigh(const attend_work<D> &of) {
    attend_shared<D> &shared = of.shared;
    static_assert(HEADS * WARPS <= 32 * FEWER, "each thread has a warp of a head");
    if (threadIdx.x >= HEADS * WARPS)
        return;
    const int h = threadIdx.x / WARPS, w = threadIdx.x % WARPS;
    const float mine = shared.max_of[h][w];
    float max_score = mine;
#pragma unroll
    for (int o = 1; o < WARPS; o *= 2)
        max_score = fmaxf(max_score, __shfl_xor_sync(~0u, max_score, o));
    const float weight = mine == -INFINITY ? 0.0f : exp2f(mine - max_score);
    float sum = __fmul_rn(mine == -INFINITY ? 0.0f : shared.sum_of[h][w], weight);
#pragma unroll
    for (int o = 1; o < WARPS; o *= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
    shared.max_of[h][w] = weight;
    shared.max_score[h] = max_score;
    shared.sum[h] = sum;
    shared.inverse[h] = inverse_of(of, h, max_score, sum);
}

/* Joins the parts that the blocks left of a row's heads; the last block calls it. Lane p of a warp computes
 * the weight of part p of a head. A thread then loads AT_ONCE parts of EACH channels together. The code is
 * short, because it runs once in a launch, from instructions that no cache holds. weights:
 * [HEADS][CUDA_MAX_SPLIT]. */
template <int D> __device__ __forceinline__ void parts_join(const attend_work<D> &w, float *weights) {
    enum { EACH = 4, AT_ONCE = 16 };
    const attend_job &j = w.j;
    const int d = (int)j.a.kv.d_head, lane = threadIdx.x % 32, n_span = w.range.n_span, n = w.n_here * d,
              part_size = d + 2, head_size = j.n_span * part_size;
    const float *const parts = j.parts + ((int64_t)w.row * j.a.n_head + w.head0) * head_size;
    for (int h = threadIdx.x / 32; h < w.n_here; h += (int)blockDim.x / 32) {
        const float *const mine = parts + h * head_size + lane * part_size;
        const float score = lane < n_span ? __ldcg(mine) : -INFINITY;
        float sum = lane < n_span ? __ldcg(mine + 1) : 0.0f, max_score = score;
#pragma unroll 1
        for (int o = 1; o < 32; o *= 2)
            max_score = fmaxf(max_score, __shfl_xor_sync(~0u, max_score, o));
        const float weight = score == -INFINITY ? 0.0f : exp2f(score - max_score);
        sum = __fmul_rn(sum, weight);
#pragma unroll 1
        for (int o = 1; o < 32; o *= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
        weights[h * CUDA_MAX_SPLIT + lane] = weight;
        if (lane == 0)
            w.shared.inverse[h] = inverse_of(w, h, max_score, sum);
    }
    __syncthreads();
#pragma unroll 1
    for (int first = threadIdx.x; first < n; first += EACH * (int)blockDim.x) {
        const float *from[EACH], *by[EACH];
        float total[EACH] = {};
#pragma unroll
        for (int m = 0; m < EACH; m++) {
            const int i = min(first + m * (int)blockDim.x, n - 1), h = i / d;
            from[m] = parts + h * head_size + 2 + (i - h * d);
            by[m] = weights + h * CUDA_MAX_SPLIT;
        }
#pragma unroll 1
        for (int p0 = 0; p0 < n_span; p0 += AT_ONCE) {
            float part[AT_ONCE][EACH];
#pragma unroll
            for (int p = 0; p < AT_ONCE; p++)
#pragma unroll
                for (int m = 0; m < EACH; m++) /* a part that is not there has no weight */
                    part[p][m] = __ldcg(from[m] + min(p0 + p, n_span - 1) * part_size);
#pragma unroll
            for (int p = 0; p < AT_ONCE; p++)
#pragma unroll
                for (int m = 0; m < EACH; m++)
                    total[m] = __fmaf_rn(part[p][m], by[m][p0 + p], total[m]);
        }
#pragma unroll
        for (int m = 0; m < EACH; m++) {
            const int i = first + m * (int)blockDim.x;
            if (i < n)
                out_put(j, w.row, w.head0 * d + i, __fmul_rn(total[m], w.shared.inverse[i / d]));
        }
    }
}

/* Whether all other blocks of the row's heads have left their parts. */
template <int D> __device__ __forceinline__ bool is_last(const attend_work<D> &w, int y) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned *count = w.j.arrived + (w.row * (int)gridDim.x + y) * w.j.n_block + w.rank;
        w.shared.is_last = atomicAdd(count, 1) == (unsigned)w.range.n_span - 1;
        if (w.shared.is_last)
            *count = 0;
        __threadfence();
    }
    __syncthreads();
    return w.shared.is_last;
}

/* Joins the sums of the warps and writes them to the result, or to the block's part. */
template <int D>
__device__ __forceinline__ void warps_join(const attend_work<D> &w, int span, int y, float *out_of) {
    const attend_job &j = w.j;
    const int d = (int)j.a.kv.d_head, n_span = w.range.n_span;
    const int64_t part_size = d + 2;
    warps_weigh(w);
    __syncthreads();
    for (int i = threadIdx.x; i < w.n_here * d; i += (int)blockDim.x) {
        const int h = d == D ? i / D : i / d, c = i - h * d;
        float out = 0.0f;
#pragma unroll
        for (int n = 0; n < WARPS; n++)
            out = __fmaf_rn(out_of[(n * w.n_here + h) * D + c], w.shared.max_of[h][n], out);
        if (n_span == 1) {
            out_put(j, w.row, (w.head0 + h) * d + c, __fmul_rn(out, w.shared.inverse[h]));
            continue;
        }
        float *part = j.parts + (((int64_t)w.row * j.a.n_head + w.head0 + h) * j.n_span + span) * part_size;
        part[2 + c] = out;
        if (c == 0) {
            part[0] = w.shared.max_score[h];
            part[1] = w.shared.sum[h];
        }
    }
    if (n_span > 1 && is_last(w, y))
        parts_join(w, out_of); /* all threads have read the sums of the warps */
}

/* The pieces in halves of a block's span: of all its pages, or of the newest one if the cache has codes. */
struct half_pieces {
    int n, page0, step;
    __device__ __forceinline__ int at(int i) const {
        return (page0 + i / (CUDA_PAGE / PIECE) * step) * CUDA_PAGE + i % (CUDA_PAGE / PIECE) * PIECE;
    }
};

/* The sums of warp v of WARPS over its pieces in halves, which are loaded to registers. If the cache has
 * codes, there is at most one. */
template <int D, int BITS>
__device__ __forceinline__ void halves_sum(const attend_work<D> &w, const half_pieces &pieces, int v,
                                           half_piece<D> *p, warp_sums<D> *s) {
    for (int i = v; i < pieces.n; i += WARPS) {
        const int base = pieces.at(i);
        const bool more = BITS == 16 && i + WARPS < pieces.n;
        float x[2][2];
        fresh_take(w, base, p);
        keys_score(w, base, *p, s, x);
        if (more)
            keys_load(w, pieces.at(i + WARPS), p);
        values_sum(w, *p, x, s);
        if (more)
            values_load(w, pieces.at(i + WARPS), p);
    }
}

/* The same through shared memory. */
template <int D>
__device__ __forceinline__ void halves_sum(const attend_work<D> &w, const half_pieces &pieces, int v,
                                           half_copies<D> *copies, warp_sums<D> *s) {
    for (int i = v; i < pieces.n; i += WARPS) {
        const int base = pieces.at(i);
        float x[2][2];
        copies->take(w, false, base);
        keys_score(w, base, *copies->stage, s, x);
        copies->put(w, false);
        copies->take(w, true, base);
        values_sum(w, *copies->stage, x, s);
        copies->put(w, true);
        copies->turn(w, pieces);
    }
}

/* The sums of warp v of WARPS over its pieces in codes. The keys of the next piece arrive while the values of
 * this one are multiplied, also those of the first piece of warp `after`. */
template <int D, int BITS, class At, class Begin>
__device__ __forceinline__ void codes_sum(const attend_work<D> &w, int n, At at, int v, int after,
                                          code_piece<D, BITS> *piece, Begin begin, warp_sums<D> *s) {
    for (int i = v; i < n; i += WARPS) {
        const int next = i + WARPS < n ? i + WARPS : after < WARPS ? after : n;
        float x[4][2];
        copies_wait<1>();
        __syncwarp();
        keys_score(w, at(i), *piece, s, x);
        __syncwarp();
        begin(false, next);
        copies_wait<1>();
        __syncwarp();
        values_sum(w, *piece, x, s);
        __syncwarp();
        begin(true, next);
    }
}

/* Computes span `span` of head block y of a row, by all threads of a block, or of a cluster. */
template <int D, int BITS, int HERE>
__device__ __forceinline__ void attend_span(const attend_work<D> &w, int span, int y, float *out_of,
                                            uint8_t *memory, bool *waited) {
    enum { STAGED = staged<D, BITS>() };
    const attend_range &r = w.range;
    const int step = HERE * w.j.n_block, warp = w.rank * HERE + (int)threadIdx.x / 32,
              n_mine = (r.n_page - span + r.n_span - 1) / r.n_span;
    const bool has_new = (r.n_page - 1) % r.n_span == span;
    const int n_new = r.position % CUDA_PAGE / PIECE + 1; /* pieces of the newest page that are not empty */
    const half_pieces halves = {(BITS == 16 ? (n_mine - has_new) * (CUDA_PAGE / PIECE) : 0) +
                                    (has_new ? n_new : 0),
                                BITS == 16 ? r.page0 + span : r.position / CUDA_PAGE, r.n_span};
    /* Pieces in codes. */
    const int n_code = BITS == 16 ? 0 : (n_mine - has_new) * (CUDA_PAGE / CODES);
    auto code_at = [&](int i) { return (r.page0 + span + i / 2 * r.n_span) * CUDA_PAGE + i % 2 * CODES; };
    auto *const piece = (code_piece < D, BITS == 16 ? 8 : BITS > *)memory + threadIdx.x / 32;
    /* A group of copies, which may be empty. */
    auto piece_begin = [&](bool is_value, int i) {
        if (i < n_code)
            codes_copy(w, is_value, code_at(i), piece);
        copies_end_group();
    };
    if (BITS != 16) {
        piece_begin(false, warp);
        piece_begin(true, warp);
    }
    half_piece<STAGED ? 32 : D> p;
    half_copies<D> copies = {(half_stage<D> *)memory + threadIdx.x / 32, step, warp};
    if constexpr (STAGED)
        copies.begin(w, halves);
    else if (warp < halves.n) {
        keys_load(w, halves.at(warp), &p);
        values_load(w, halves.at(warp), &p);
    }
    queries_take<D, HERE>(w, has_new && w.j.a.k, waited);
    if (has_new && w.head0 % w.j.n_group == 0 && w.rank == 0 && !w.j.a.stored)
        fresh_store<D, BITS>(w);
#pragma unroll 1
    for (int v = warp; v < WARPS; v += step) { /* in the role of warp v of WARPS */
        warp_sums<D> s = {-INFINITY};
        if constexpr (STAGED)
            halves_sum(w, halves, v, &copies, &s);
        else {
            if (v > warp && v < halves.n) {
                keys_load(w, halves.at(v), &p);
                values_load(w, halves.at(v), &p);
            }
            halves_sum<D, BITS>(w, halves, v, &p, &s);
        }
        if constexpr (BITS != 16)
            codes_sum(w, n_code, code_at, v, v + step, piece, piece_begin, &s);
        if (v == warp && w.j.n_block > 1)
            cluster_wait_all(); /* the other blocks have begun, or joined the span before */
        sums_write(w, v, s, out_of);
    }
    if (w.j.n_block > 1) {
        cluster_arrive_all();
        cluster_wait_all();
    } else
        __syncthreads();
    warps_join(joined_of(w), span, y, out_of);
}

template <int D, int BITS, int HERE>
__global__ void __launch_bounds__(32 * HERE, WARPS / HERE) attend_one(const __grid_constant__ attend_job j) {
    extern __shared__ __align__(16) float out_of[];
    __shared__ attend_shared<D> shared;
    uint8_t *const memory = (uint8_t *)(out_of + WARPS * D * (j.n_together / j.n_block));
    launch_next();
    bool waited = false;
    if (j.a.stored) {
        launch_wait();
        waited = true;
    }
    const int row = blockIdx.z / j.n_block, rank = blockIdx.z % j.n_block, y = blockIdx.x, n = head_blocks(j),
              first = y % n * j.n_together;
    const attend_work<D> w = {j,
                              shared,
                              range_of(j, j.a.position[row], j.a.first_page[row]),
                              y / n,
                              y / n * j.n_group + first,
                              min(j.n_together, j.n_group - first),
                              row,
                              rank,
                              (int)threadIdx.x % 32 / 4,
                              (int)threadIdx.x % 4};
    /* The barrier of queries_take makes it visible to all threads. */
    if (j.a.alibi_max_bias > 0 && threadIdx.x < HEADS)
        shared.slope[threadIdx.x] = alibi_slope(j.a, w.head0 + (int)threadIdx.x);
    const attend_work<D> mine = joined_of(w);
    if (j.a.sinks && (int)threadIdx.x < mine.n_here)
        shared.sink[threadIdx.x] = sink_of(j.a, mine.head0 + (int)threadIdx.x);
    if (j.n_block > 1)
        cluster_arrive_all();
    for (int span = blockIdx.y; span < w.range.n_span; span += gridDim.y) {
        if (span >= (int)gridDim.y) { /* all threads have read the results of the previous span */
            __syncthreads();
            if (j.n_block > 1)
                cluster_arrive_all();
        }
        attend_span<D, BITS, HERE>(w, span, y, out_of, memory, &waited);
    }
    if (j.n_block > 1 && (int)blockIdx.y >= w.range.n_span)
        cluster_wait_all();
}

/* Counters are at the start of the scratch, so launches of all shapes share them. */
enum { COUNTERS = 1 << 14, COUNTER_BYTES = COUNTERS * (int)sizeof(unsigned) };

/* Computes the parts of a job that both launchers need. */
static inline int attend_make(const cuda_attend *a, attend_job *j) {
    const int64_t d = a->kv.d_head;
    *j = attend_job{*a};
    if (a->q_norm && (!cuda_attend_norms(a) || !a->k || !a->k_norm || !a->cos_sin))
        return CUDA_UNSUPPORTED;
    if (d < 8 || d > 256 || d % 8 || a->n_rot > d || a->n_row < 1 || a->n_row > 65535 ||
        a->n_head % a->kv.n_kv_head || a->n_row * a->n_head > COUNTERS)
        return CUDA_UNSUPPORTED;
    if (a->leaves.data) {
        if (d % 32 || (a->n_row > 1 &&
                       (a->n_row > MAX_LEFT_ROWS || a->n_head * d % TILE_CHUNK_K || a->leaves.group != 32)))
            return CUDA_UNSUPPORTED;
        if (a->n_row > 1)
            j->leaves_rows = codes_rows_of(a->leaves.data, a->leaves.norm, a->n_head * d, a->n_row);
        else
            j->leaves = codes_of(a->leaves, a->n_head * d);
    }
    j->n_group = (int)(a->n_head / a->kv.n_kv_head);
    j->n_together = j->n_group < HEADS ? j->n_group : HEADS;
    j->n_span = cuda_attend_split(d);
    j->n_block = 1;
    j->arrived = (unsigned *)a->scratch;
    j->parts = (float *)((uint8_t *)a->scratch + COUNTER_BYTES);
    return 0;
}

size_t attend_scratch(int64_t n_row, int64_t n_head, int64_t d_head) {
    const size_t shared = shared_scratch(n_row, n_head, d_head),
                 other = COUNTER_BYTES +
                         (size_t)(n_row * n_head * cuda_attend_split(d_head) * (d_head + 2)) * sizeof(float);
    return d_head > 256 || shared > other ? shared : other;
}

/* Bytes of dynamic shared memory of a block of `here` warps. */
template <int D, int BITS> static size_t shared_bytes(const attend_job &j, int here) {
    const size_t piece = BITS != 16          ? sizeof(code_piece < D, BITS == 16 ? 8 : BITS >)
                         : staged<D, BITS>() ? sizeof(half_stage<D>)
                                             : 0;
    return sizeof(float) * WARPS * D * (size_t)(j.n_together / j.n_block) + piece * (size_t)here;
}
template <int D, int BITS, int HERE> static int run_blocks(const attend_job &j, dim3 grid, cuda_stream s) {
    auto *const kernel = attend_one<D, BITS, HERE>;
    const size_t bytes = shared_bytes<D, BITS>(j, HERE);
    const int e = prepare(kernel, bytes);
    grid.z *= (unsigned)j.n_block;
    return e ? e : launch_cluster(kernel, grid, dim3(32 * HERE), (unsigned)j.n_block, bytes, s, j);
}
template <int D, int BITS> static int run(attend_job j, cuda_stream s) {
    const cuda_attend &a = j.a;
    const size_t memory = (size_t)device_shared_bytes() - sizeof(attend_shared<D>);
    while (j.n_together > 1 && shared_bytes<D, BITS>(j, FEWER) > memory)
        j.n_together = (j.n_together + 1) / 2;
    /* With many rows, a block computes several parts of a sequence one after the other. The parts are the
     * same. */
    const int64_t n_block = a.kv.n_kv_head * head_blocks(j), enough = device_sm_count();
    const int64_t parts = enough / (n_block * a.n_row);
    /* The first spans of all heads start first, because the others have nothing to do in a short sequence. */
    const dim3 grid((unsigned)n_block,
                    (unsigned)(parts < 1          ? 1
                               : parts > j.n_span ? j.n_span
                                                  : parts),
                    (unsigned)a.n_row);
    const int64_t n = (int64_t)grid.x * grid.y * grid.z;
    /* Heads of more than 128 channels: blocks of few warps are clusters, so that few KV heads occupy all
     * multiprocessors. In codes, blocks of four would need more shared memory. */
    if constexpr (D > 128) {
        enum { HERE = BITS == 16 ? WARPS / 2 : (int)FEWER };
        if (device_major() >= 9 && j.n_together % (WARPS / HERE) == 0 && j.n_group % j.n_together == 0) {
            j.n_block = WARPS / HERE;
            return run_blocks<D, BITS, HERE>(j, grid, s);
        }
    }
    if (n > enough || shared_bytes<D, BITS>(j, WARPS) > memory)
        return run_blocks<D, BITS, FEWER>(j, grid, s);
    return run_blocks<D, BITS, WARPS>(j, grid, s);
}
template <int BITS> static int run_wide(const attend_job &j, cuda_stream s) {
    const int64_t d = j.a.kv.d_head;
    return d <= 64 ? run<64, BITS>(j, s) : d <= 128 ? run<128, BITS>(j, s) : run<256, BITS>(j, s);
}

int attend_launch(const cuda_attend *a, cuda_stream s) {
    attend_job j;
    if (!a->kv.v)
        return shared_launch(a, s);
    const int e = attend_make(a, &j);
    if (e)
        return e;
    switch (a->kv.code_bits) {
    case 0: return run_wide<16>(j, s);
    case 8: return run_wide<8>(j, s);
    case 4: return run_wide<4>(j, s);
    default: return CUDA_UNSUPPORTED;
    }
}
