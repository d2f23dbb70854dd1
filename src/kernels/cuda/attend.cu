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
 * loads heads, a lane every 32nd pair of a head; each thread loads one pair of the key. All loads are in
 * flight together. Missing heads and channels are zeros. */
template <int D, int HERE>
__device__ __forceinline__ void queries_take(const attend_work<D> &w, bool has_new, bool *waited) {
    enum { PAIRS = D / 64, EACH = HEADS / HERE };
    static_assert(D / 2 <= 32 * HERE, "a thread has at max_score one pair of the key");
    const cuda_attend &a = w.j.a;
    const int d = (int)a.kv.d_head, half = d / 2, lane = threadIdx.x % 32, warp = threadIdx.x / 32,
              mine = threadIdx.x, n_turn = a.cos_sin ? (int)a.n_rot / 2 : 0;
    const float2 none = make_float2(0.0f, 0.0f), still = make_float2(1.0f, 0.0f);
    const bool is_new = has_new && mine < half;
    float2 table[PAIRS], key_table = still, norm[2][PAIRS]; /* read before the previous launch ends */
    if (a.q_norm)
#pragma unroll
        for (int n = 0; n < PAIRS; n++) {
            norm[0][n] = make_float2(a.q_norm[32 * n + lane], a.q_norm[32 * n + lane + half]);
            norm[1][n] = make_float2(a.k_norm[32 * n + lane], a.k_norm[32 * n + lane + half]);
        }
#pragma unroll
    for (int n = 0; n < PAIRS; n++)
        table[n] = 32 * n + lane < n_turn ? pair_table(a, w.row, w.range.position, 32 * n + lane) : still;
    if (is_new && mine < n_turn)
        key_table = pair_table(a, w.row, w.range.position, mine);
    if (!*waited)
        launch_wait();
    *waited = true;
    float2 pair[EACH][PAIRS], key = none, value = none;
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
    const int2 to = pair_elements(a, mine);
    if (is_new) {
        const float *const x = a.k + w.row * a.ldk + (int64_t)w.kv_head * d, *const v =
                                                                                 a.v + w.row * a.ldv +
                                                                                 (int64_t)w.kv_head * d;
        key = make_float2(x[to.x], x[to.y]);
        value = make_float2(v[to.x], v[to.y]);
        if (a.q_norm) { /* each warp norms the whole key, and keeps pair `mine` */
            float2 all[PAIRS];
#pragma unroll
            for (int n = 0; n < PAIRS; n++)
                all[n] = make_float2(x[32 * n + lane], x[32 * n + lane + half]);
            pairs_norm(all, norm[1], a.norm_eps);
#pragma unroll
            for (int n = 0; n < PAIRS; n++)
                key = warp == n ? all[n] : key;
        }
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
    if (has_new && mine < D / 2) {
        key = mine < n_turn ? pair_rotate(key, key_table) : key;
        w.shared.fresh[0][to.x] = __float2half_rn(key.x);
        w.shared.fresh[0][to.y] = __float2half_rn(key.y);
        w.shared.fresh[1][to.x] = __float2half_rn(value.x);
        w.shared.fresh[1][to.y] = __float2half_rn(value.y);
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

/* Writes a warp's sums as floats to out_of [warp][n_here][D], and its maximum and sum of weights to shared
 * memory. */
template <int D>
__device__ __forceinline__ void sums_write(const attend_work<D> &w, int warp, const warp_sums<D> &s,
                                           float *out_of) {
    float sum = __fadd_rn(s.sum, __shfl_xor_sync(~0u, s.sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    if (w.g >= w.n_here)
        return;
    if (w.t == 0) {
        w.shared.max_of[w.g][warp] = s.max_score;
        w.shared.sum_of[w.g][warp] = sum;
    }
    float *const to = out_of + ((int64_t)warp * w.n_here + w.g) * D + 8 * w.t;
#pragma unroll
    for (int c = 0; c < D / 32; c++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float y[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                y[j] = __fadd_rn(s.out[4 * c + j][e], s.out[4 * c + j][e + 2]);
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

/* Joins the parts that the blocks left of a row's heads; the last block calls it. A warp has 32 channels of a
 * head, and its lane p computes the weight of part p. */
template <int D> __device__ __forceinline__ void parts_join(const attend_work<D> &w) {
    const attend_job &j = w.j;
    const int d = (int)j.a.kv.d_head, lane = threadIdx.x % 32, n_span = w.range.n_span;
    const int64_t part_size = d + 2;
    const int n_piece = (d + 31) / 32;
    for (int i = threadIdx.x / 32; i < w.n_here * n_piece; i += (int)blockDim.x / 32) {
        const int h = i / n_piece, c = i % n_piece * 32 + lane;
        const float *part = j.parts + ((int64_t)w.row * j.a.n_head + w.head0 + h) * j.n_span * part_size;
        float out[CUDA_MAX_SPLIT], total = 0.0f;
#pragma unroll
        for (int p = 0; p < CUDA_MAX_SPLIT; p++)
            out[p] = p < n_span && c < d ? __ldcg(part + p * part_size + 2 + c) : 0.0f;
        const float mine = lane < n_span ? __ldcg(part + lane * part_size) : -INFINITY;
        float sum = lane < n_span ? __ldcg(part + lane * part_size + 1) : 0.0f, max_score = mine;
#pragma unroll
        for (int o = 1; o < 32; o *= 2)
            max_score = fmaxf(max_score, __shfl_xor_sync(~0u, max_score, o));
        const float weight = mine == -INFINITY ? 0.0f : exp2f(mine - max_score);
        sum = __fmul_rn(sum, weight);
#pragma unroll
        for (int o = 1; o < 32; o *= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
        const float inverse = inverse_of(w, h, max_score, sum);
#pragma unroll
        for (int p = 0; p < CUDA_MAX_SPLIT; p++)
            total = __fmaf_rn(out[p], __shfl_sync(~0u, weight, p), total);
        if (c < d)
            out_put(j, w.row, (w.head0 + h) * d + c, __fmul_rn(total, inverse));
    }
}

/* Whether all other blocks of the row's heads have left their parts. */
template <int D> __device__ __forceinline__ bool is_last(const attend_work<D> &w, int y) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned *count = w.j.arrived + w.row * (int)gridDim.x + y;
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
__device__ __forceinline__ void warps_join(const attend_work<D> &w, int span, int y, const float *out_of) {
    const attend_job &j = w.j;
    const int d = (int)j.a.kv.d_head, n_span = w.range.n_span;
    const int64_t part_size = d + 2;
    __syncthreads();
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
        parts_join(w);
}

/* Computes span `span` of head block y of a row, by all threads of a block. */
template <int D, int BITS, int HERE>
__device__ __forceinline__ void attend_span(const attend_work<D> &w, int span, int y, float *out_of,
                                            code_piece<D, BITS == 16 ? 8 : BITS> *pieces, bool *waited) {
    const attend_range &r = w.range;
    const int warp = threadIdx.x / 32, n_mine = (r.n_page - span + r.n_span - 1) / r.n_span;
    const bool has_new = (r.n_page - 1) % r.n_span == span;
    /* Pieces in halves: of all the block's pages, or of the newest one. */
    const int n_new = r.position % CUDA_PAGE / PIECE + 1; /* pieces of the newest page that are not empty */
    const int n_half = (BITS == 16 ? (n_mine - has_new) * (CUDA_PAGE / PIECE) : 0) + (has_new ? n_new : 0);
    auto half_at = [&](int i) {
        const int page =
            BITS == 16 ? r.page0 + span + i / (CUDA_PAGE / PIECE) * r.n_span : r.position / CUDA_PAGE;
        return page * CUDA_PAGE + i % (CUDA_PAGE / PIECE) * PIECE;
    };
    /* Pieces in codes. */
    const int n_code = BITS == 16 ? 0 : (n_mine - has_new) * (CUDA_PAGE / CODES);
    auto code_at = [&](int i) { return (r.page0 + span + i / 2 * r.n_span) * CUDA_PAGE + i % 2 * CODES; };
    auto *const piece = pieces + warp;
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
    half_piece<D> p;
    if (warp < n_half) {
        keys_load(w, half_at(warp), &p);
        values_load(w, half_at(warp), &p);
    }
    queries_take<D, HERE>(w, has_new && w.j.a.k, waited);
    if (has_new && w.head0 % w.j.n_group == 0 && !w.j.a.stored)
        fresh_store<D, BITS>(w);
#pragma unroll 1
    for (int v = warp; v < WARPS; v += HERE) { /* in the role of warp v of WARPS */
        warp_sums<D> s = {-INFINITY};
        if (v > warp && v < n_half) {
            keys_load(w, half_at(v), &p);
            values_load(w, half_at(v), &p);
        }
        for (int i = v; i < n_half; i += WARPS) {
            const int base = half_at(i);
            float x[2][2];
            fresh_take(w, base, &p);
            keys_score(w, base, p, &s, x);
            if (BITS == 16 && i + WARPS < n_half)
                keys_load(w, half_at(i + WARPS), &p);
            values_sum(p, x, &s);
            if (BITS == 16 && i + WARPS < n_half)
                values_load(w, half_at(i + WARPS), &p);
        }
        if constexpr (BITS != 16) {
            /* The keys of the next piece arrive while the values of this one are multiplied, also those of
             * the next warp's first piece. */
            for (int i = v; i < n_code; i += WARPS) {
                const int next = i + WARPS < n_code ? i + WARPS : v + HERE < WARPS ? v + HERE : n_code;
                float x[4][2];
                copies_wait<1>();
                __syncwarp();
                keys_score(w, code_at(i), *piece, &s, x);
                __syncwarp();
                piece_begin(false, next);
                copies_wait<1>();
                __syncwarp();
                values_sum(w, *piece, x, &s);
                __syncwarp();
                piece_begin(true, next);
            }
        }
        sums_write(w, v, s, out_of);
    }
    warps_join(w, span, y, out_of);
}

template <int D, int BITS, int HERE>
__global__ void __launch_bounds__(32 * HERE, WARPS / HERE) attend_one(const __grid_constant__ attend_job j) {
    extern __shared__ __align__(16) float out_of[];
    __shared__ attend_shared<D> shared;
    auto *const pieces =
        (code_piece < D, BITS == 16 ? 8 : BITS > *)(out_of + WARPS * D * j.n_together); /* of codes */
    launch_next();
    bool waited = false;
    if (j.a.stored) {
        launch_wait();
        waited = true;
    }
    const int row = blockIdx.z, y = blockIdx.x, n = head_blocks(j), first = y % n * j.n_together;
    const attend_work<D> w = {j,
                              shared,
                              range_of(j, j.a.position[row], j.a.first_page[row]),
                              y / n,
                              y / n * j.n_group + first,
                              min(j.n_together, j.n_group - first),
                              row,
                              (int)threadIdx.x % 32 / 4,
                              (int)threadIdx.x % 4};
    /* The barrier of queries_take makes it visible to all threads. */
    if (j.a.alibi_max_bias > 0 && threadIdx.x < HEADS)
        shared.slope[threadIdx.x] = alibi_slope(j.a, w.head0 + (int)threadIdx.x);
    if (j.a.sinks && (int)threadIdx.x < w.n_here)
        shared.sink[threadIdx.x] = sink_of(j.a, w.head0 + (int)threadIdx.x);
    for (int span = blockIdx.y; span < w.range.n_span; span += gridDim.y) {
        if (span >= (int)gridDim.y)
            __syncthreads(); /* all threads have read the results of the previous span */
        attend_span<D, BITS, HERE>(w, span, y, out_of, pieces, &waited);
    }
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
    j->n_span = CUDA_MAX_SPLIT;
    j->arrived = (unsigned *)a->scratch;
    j->parts = (float *)((uint8_t *)a->scratch + COUNTER_BYTES);
    return 0;
}

size_t attend_scratch(int64_t n_row, int64_t n_head, int64_t d_head) {
    const size_t shared = shared_scratch(n_row, n_head, d_head),
                 other =
                     COUNTER_BYTES + (size_t)(n_row * n_head * CUDA_MAX_SPLIT * (d_head + 2)) * sizeof(float);
    return d_head > 256 || shared > other ? shared : other;
}

/* Bytes of dynamic shared memory of a block of `here` warps. */
template <int D, int BITS> static size_t shared_bytes(const attend_job &j, int here) {
    const size_t pieces = BITS == 16 ? 0 : sizeof(code_piece < D, BITS == 16 ? 8 : BITS >) * (size_t)here;
    return sizeof(float) * WARPS * D * (size_t)j.n_together + pieces;
}
template <int D, int BITS, int HERE> static int run_blocks(const attend_job &j, dim3 grid, cuda_stream s) {
    auto *const kernel = attend_one<D, BITS, HERE>;
    const size_t bytes = shared_bytes<D, BITS>(j, HERE);
    const int e = prepare(kernel, bytes);
    return e ? e : launch(kernel, grid, dim3(32 * HERE), bytes, s, j);
}
template <int D, int BITS> static int run(attend_job j, cuda_stream s) {
    enum { FEW = D > 128 ? 2 * FEWER : (int)FEWER };
    const cuda_attend &a = j.a;
    const size_t memory = (size_t)device_shared_bytes() - sizeof(attend_shared<D>);
    while (j.n_together > 1 && shared_bytes<D, BITS>(j, FEW) > memory)
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
    if ((int64_t)grid.x * grid.y * grid.z > enough || shared_bytes<D, BITS>(j, WARPS) > memory)
        return run_blocks<D, BITS, FEW>(j, grid, s);
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
