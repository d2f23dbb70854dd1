/* attend.cu - attention of single tokens to their paged caches.
 *
 * A block takes up to HEADS query heads that share a kv head and every n-th page of one sequence. It rotates
 * the queries, and the block that has the newest page rotates and stores the new key and value. LANES lanes
 * with 8 channels each are a stream that reads whole keys and values, a few positions at a time, with a
 * softmax of its own; streams are joined at the end, and the last of a sequence's blocks joins theirs, both
 * in order. The first pages are read before the launch before this one has finished: it does not write them.
 */
#include "kernels/cuda/device.cuh"

enum { ATTEND_WARPS = 16, ATTEND_THREADS = 32 * ATTEND_WARPS, HEADS = 2 };
static_assert(ATTEND_WARPS * HEADS == 32, "a lane weighs a warp's part of a head");
/* Up to so many pages one block has all; beyond that blocks have two at least, since joining costs more than
 * reading. */
enum { TOGETHER_PAGES = 4 };

struct attend_job {
    cuda_attend a;
    int n_group; /* heads of a kv head */
    int n_span;  /* blocks for the heads of a kv head */
    float *parts;
    unsigned *arrived;
    codes_row leaves;
};

/* An element of the answer; a warp has 32 in a row where codes are left. */
__device__ __forceinline__ void out_put(const attend_job &j, int row, int i, float v) {
    j.a.out[row * j.a.ldo + i] = v;
    if (j.leaves.codes)
        group_leave(j.leaves, i, v, j.leaves.norm ? j.leaves.norm[i] : 1.0f);
}

/* One stream's state: the running maximum, the sum, and the weighted values. */
struct softmax_state {
    float most[HEADS], sum[HEADS], out[HEADS][8];
};

__device__ __forceinline__ void eight_floats(uint4 u, float out[8]) {
    const __half2 *h = (const __half2 *)&u;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = __half22float2(h[i]);
        out[2 * i] = f.x;
        out[2 * i + 1] = f.y;
    }
}

/* The elements of pair `i` of a head's d / 2: rotated together, or beyond n_rot. */
__device__ __forceinline__ int2 pair_elements(const cuda_attend &a, int i) {
    const int half = a.cos_sin ? (int)a.n_rot / 2 : 0;
    return a.style == ROPE_HALF && i < half ? make_int2(i, i + half) : make_int2(2 * i, 2 * i + 1);
}
__device__ __forceinline__ float2 pair_table(const cuda_attend &a, int row, int position, int i) {
    const int half = a.cos_sin ? (int)a.n_rot / 2 : 0;
    const float *table = a.cos_sin + (int64_t)(a.cos_sin_by_row ? row : position) * a.n_rot;
    return i < half ? make_float2(table[i], table[half + i]) : make_float2(1.0f, 0.0f);
}
__device__ __forceinline__ float2 pair_rotate(float2 x, float2 cos_sin) {
    return make_float2(__fsub_rn(__fmul_rn(x.x, cos_sin.x), __fmul_rn(x.y, cos_sin.y)),
                       __fadd_rn(__fmul_rn(x.x, cos_sin.y), __fmul_rn(x.y, cos_sin.x)));
}

/* Joins two states of one head: b's into a's. */
__device__ __forceinline__ void rescale(float max_a, float max_b, float *most, float *of_a, float *of_b) {
    *most = fmaxf(max_a, max_b);
    *of_a = max_a == -INFINITY ? 0.0f : exp2f(max_a - *most);
    *of_b = max_b == -INFINITY ? 0.0f : exp2f(max_b - *most);
}

/* What of a row's positions is attended to, and by how many blocks. */
struct attend_range {
    const int32_t *pages;
    int position, low, page0, n_page, n_span;
};
__device__ __forceinline__ attend_range range_of(const attend_job &j, int position, int first_page) {
    const cuda_attend &a = j.a;
    attend_range r;
    r.pages = a.pages + first_page;
    r.position = position;
    r.low = a.window > 0 && r.position >= a.window ? r.position - (int)a.window + 1 : 0;
    r.page0 = r.low / CUDA_PAGE;
    r.n_page = r.position / CUDA_PAGE + 1 - r.page0;
    r.n_span = r.n_page <= TOGETHER_PAGES ? 1 : min(j.n_span, (r.n_page + 1) / 2);
    return r;
}
__host__ __device__ __forceinline__ int head_blocks(int n_group) {
    return (n_group + HEADS - 1) / HEADS;
}

template <int LANES> struct attend_shared {
    float query[HEADS][8 * LANES];
    __align__(16) __half fresh[2][8 * LANES];
    float max_of[HEADS][ATTEND_WARPS], sum_of[HEADS][ATTEND_WARPS]; /* then the warps' weights */
    float most[HEADS], sum[HEADS];
    float out_of[ATTEND_WARPS][HEADS][8 * LANES];
    bool is_last;
};

/* Span `span` of head block y of a row, by all threads of a block. */
template <int LANES>
__device__ __forceinline__ void attend_span(const attend_job &j, attend_shared<LANES> &shared,
                                            const attend_range range, int span, int y, int row) {
    const cuda_attend &a = j.a;
    enum {
        STREAMS = 32 / LANES,
        BATCH = CUDA_PAGE / (ATTEND_WARPS * STREAMS) /* of a page */
    };
    auto &query = shared.query;
    auto &fresh = shared.fresh;
    auto &max_of = shared.max_of;
    auto &sum_of = shared.sum_of;
    auto &out_of = shared.out_of;
    const int d = (int)a.kv.d_head;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = lane % LANES * 8;
    const int n_head_block = head_blocks(j.n_group);
    const int kv_head = y / n_head_block, first = y % n_head_block * HEADS;
    const int n_here = min(HEADS, j.n_group - first), head0 = kv_head * j.n_group + first;
    const int position = range.position, low = range.low, page0 = range.page0, n_page = range.n_page,
              n_span = range.n_span;
    const int32_t *const pages = range.pages;
    const int64_t page_size = a.kv.page;
    const bool has_new = (n_page - 1) % n_span == span;
    const int sub = warp * STREAMS + lane / LANES;
    /* All positions of a step are in one page. */
    auto load = [&](int base, uint4 key[BATCH], uint4 value[BATCH]) {
        const int64_t at = pages[base / CUDA_PAGE] * page_size +
                           ((int64_t)kv_head * CUDA_PAGE + base % CUDA_PAGE + sub) * d + mine;
        const uint4 *k = (const uint4 *)((const __half *)a.kv.k + at),
                    *v = (const uint4 *)((const __half *)a.kv.v + at);
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int p = base + i * ATTEND_WARPS * STREAMS + sub;
            const bool there = p >= low && p < position && mine < d;
            key[i] = value[i] = make_uint4(0, 0, 0, 0);
            if (there)
                key[i] = k[i * ATTEND_WARPS * STREAMS * d / 8];
            if (there)
                value[i] = v[i * ATTEND_WARPS * STREAMS * d / 8];
        }
    };
    uint4 key[BATCH], value[BATCH];
    if (a.stored)
        launch_wait();
    load((page0 + span) * CUDA_PAGE, key, value);
    /* Pairs of the queries, and of the new key behind them; what is known before is read before. */
    enum { PAIRS = ((HEADS + 1) * 4 * LANES + ATTEND_THREADS - 1) / ATTEND_THREADS };
    const int half = d / 2, n_pair = (n_here + has_new) * half;
    float2 table[PAIRS], pair[PAIRS], fresh_value[PAIRS];
#pragma unroll
    for (int n = 0; n < PAIRS; n++) {
        const int i = n * ATTEND_THREADS + threadIdx.x;
        table[n] = i < n_pair ? pair_table(a, row, position, i % half) : make_float2(0.0f, 0.0f);
    }
    launch_wait();
    const float *new_key = a.k + row * a.ldk + (int64_t)kv_head * d,
                *new_value = a.v + row * a.ldv + (int64_t)kv_head * d;
#pragma unroll
    for (int n = 0; n < PAIRS; n++) {
        const int i = n * ATTEND_THREADS + threadIdx.x, h = i / half;
        const int2 at = pair_elements(a, i % half);
        const float *x = h < n_here ? a.q + row * a.ldq + (int64_t)(head0 + h) * d : new_key;
        const bool there = i < n_pair, is_new = there && h == n_here;
        pair[n] = make_float2(there ? x[at.x] : 0.0f, there ? x[at.y] : 0.0f);
        fresh_value[n] = make_float2(is_new ? new_value[at.x] : 0.0f, is_new ? new_value[at.y] : 0.0f);
    }
#pragma unroll
    for (int n = 0; n < PAIRS; n++) {
        const int i = n * ATTEND_THREADS + threadIdx.x, h = i / half;
        const int2 at = pair_elements(a, i % half);
        const float2 x = i % half < (a.cos_sin ? a.n_rot / 2 : 0) ? pair_rotate(pair[n], table[n]) : pair[n];
        if (i >= n_pair)
            break;
        if (h < n_here) {
            query[h][at.x] = x.x;
            query[h][at.y] = x.y;
            continue;
        }
        fresh[0][at.x] = __float2half_rn(x.x);
        fresh[0][at.y] = __float2half_rn(x.y);
        fresh[1][at.x] = __float2half_rn(fresh_value[n].x);
        fresh[1][at.y] = __float2half_rn(fresh_value[n].y);
    }
    __syncthreads();
    if (has_new && first == 0 && !a.stored) {
        const int64_t to = pages[position / CUDA_PAGE] * page_size +
                           ((int64_t)kv_head * CUDA_PAGE + position % CUDA_PAGE) * d;
        for (int i = threadIdx.x; i < d; i += ATTEND_THREADS) {
            ((__half *)a.kv.k)[to + i] = fresh[0][i];
            ((__half *)a.kv.v)[to + i] = fresh[1][i];
        }
    }
    /* Scores are kept in units of log 2. */
    const float scale = a.softcap > 0 ? a.scale : __fmul_rn(a.scale, 1.4426950408889634f);
    float q[HEADS][8];
    softmax_state s;
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
        s.most[h] = -INFINITY;
        s.sum[h] = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            q[h][i] = h < n_here && mine < d ? query[h][mine + i] : 0.0f;
            s.out[h][i] = 0.0f;
        }
    }
    for (int n = span; n < n_page; n += n_span) {
        const int base = (page0 + n) * CUDA_PAGE;
        float score[BATCH][HEADS];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int p = base + i * ATTEND_WARPS * STREAMS + sub;
            if (p == position && mine < d) {
                key[i] = *(const uint4 *)(fresh[0] + mine);
                value[i] = *(const uint4 *)(fresh[1] + mine);
            }
            float k[8];
            eight_floats(key[i], k);
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
                float x = 0.0f;
#pragma unroll
                for (int c = 0; c < 8; c++)
                    x = __fmaf_rn(q[h][c], k[c], x);
#pragma unroll
                for (int o = 1; o < LANES; o *= 2)
                    x = __fadd_rn(x, __shfl_xor_sync(~0u, x, o));
                x = __fmul_rn(x, scale);
                if (a.softcap > 0)
                    x = 1.4426950408889634f * a.softcap * tanhf(x / a.softcap);
                score[i][h] = p >= low && p <= position ? x : -INFINITY;
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; h++) {
            float most = s.most[h];
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                most = fmaxf(most, score[i][h]);
            const float old = s.most[h] == -INFINITY ? 0.0f : exp2f(s.most[h] - most);
            s.most[h] = most;
            s.sum[h] = __fmul_rn(s.sum[h], old);
#pragma unroll
            for (int c = 0; c < 8; c++)
                s.out[h][c] = __fmul_rn(s.out[h][c], old);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                score[i][h] = score[i][h] == -INFINITY ? 0.0f : exp2f(score[i][h] - most);
                s.sum[h] = __fadd_rn(s.sum[h], score[i][h]);
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            float v[8];
            eight_floats(value[i], v);
#pragma unroll
            for (int h = 0; h < HEADS; h++)
#pragma unroll
                for (int c = 0; c < 8; c++)
                    s.out[h][c] = __fmaf_rn(score[i][h], v[c], s.out[h][c]);
        }
        if (n + n_span < n_page)
            load(base + n_span * CUDA_PAGE, key, value);
    }
    /* The streams of a warp, then the warps. */
#pragma unroll
    for (int h = 0; h < HEADS; h++) {
#pragma unroll
        for (int o = LANES; o < 32; o *= 2) {
            float most, x, y;
            rescale(s.most[h], __shfl_xor_sync(~0u, s.most[h], o), &most, &x, &y);
            s.most[h] = most;
            s.sum[h] = __fadd_rn(__fmul_rn(s.sum[h], x), __fmul_rn(__shfl_xor_sync(~0u, s.sum[h], o), y));
#pragma unroll
            for (int c = 0; c < 8; c++)
                s.out[h][c] =
                    __fadd_rn(__fmul_rn(s.out[h][c], x), __fmul_rn(__shfl_xor_sync(~0u, s.out[h][c], o), y));
        }
        if (lane < LANES) {
            if (lane == 0) {
                max_of[h][warp] = s.most[h];
                sum_of[h][warp] = s.sum[h];
            }
#pragma unroll
            for (int c = 0; c < 8; c++)
                out_of[warp][h][mine + c] = s.out[h][c];
        }
    }
    __syncthreads();
    if (warp == 0) { /* a lane has a warp of a head */
        const int h = lane / ATTEND_WARPS, w = lane % ATTEND_WARPS;
        const float mine_max = max_of[h][w];
        float most = mine_max;
#pragma unroll
        for (int o = 1; o < ATTEND_WARPS; o *= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
        const float weight = mine_max == -INFINITY ? 0.0f : exp2f(mine_max - most);
        float sum = __fmul_rn(sum_of[h][w], weight);
#pragma unroll
        for (int o = 1; o < ATTEND_WARPS; o *= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
        max_of[h][w] = weight;
        shared.most[h] = most;
        shared.sum[h] = sum;
    }
    __syncthreads();
    const int64_t part_size = d + 2;
    for (int i = threadIdx.x; i < n_here * d; i += ATTEND_THREADS) {
        const int h = i >= d, c = i - h * d;
        const float most = shared.most[h], sum = shared.sum[h];
        float out = 0.0f;
#pragma unroll
        for (int w = 0; w < ATTEND_WARPS; w++)
            out = __fmaf_rn(out_of[w][h][c], max_of[h][w], out);
        if (n_span == 1) {
            out_put(j, row, (head0 + h) * d + c, __fdiv_rn(out, sum));
            continue;
        }
        float *part = j.parts + (((int64_t)row * a.n_head + head0 + h) * j.n_span + span) * part_size;
        part[2 + c] = out;
        if (c == 0) {
            part[0] = most;
            part[1] = sum;
        }
    }
    if (n_span == 1)
        return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned *count = j.arrived + row * (int)a.kv.n_kv_head * n_head_block + y;
        shared.is_last = atomicAdd(count, 1) == (unsigned)n_span - 1;
        if (shared.is_last)
            *count = 0;
        __threadfence();
    }
    __syncthreads();
    if (!shared.is_last)
        return;
    /* A warp has channels of one head; its lane p weighs part p. */
    const int h = warp % HEADS;
    const float *part = j.parts + ((int64_t)row * a.n_head + head0 + h) * j.n_span * part_size;
    for (int c0 = warp / HEADS * 32; h < n_here && c0 < d; c0 += ATTEND_THREADS / HEADS) {
        const int c = c0 + lane;
        float out[CUDA_MAX_SPLIT], total = 0.0f;
#pragma unroll
        for (int p = 0; p < CUDA_MAX_SPLIT; p++)
            out[p] = p < n_span && c < d ? __ldcg(part + p * part_size + 2 + c) : 0.0f;
        const float max_mine = lane < n_span ? __ldcg(part + lane * part_size) : -INFINITY;
        float sum = lane < n_span ? __ldcg(part + lane * part_size + 1) : 0.0f, most = max_mine;
#pragma unroll
        for (int o = 1; o < 32; o *= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, o));
        const float weight = max_mine == -INFINITY ? 0.0f : exp2f(max_mine - most);
        sum = __fmul_rn(sum, weight);
#pragma unroll
        for (int o = 1; o < 32; o *= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
#pragma unroll
        for (int p = 0; p < CUDA_MAX_SPLIT; p++)
            total = __fmaf_rn(out[p], __shfl_sync(~0u, weight, p), total);
        if (c < d)
            out_put(j, row, (head0 + h) * d + c, __fdiv_rn(total, sum));
    }
}

template <int LANES>
__global__ void __launch_bounds__(ATTEND_THREADS, 1) attend_one(const __grid_constant__ attend_job j) {
    __shared__ attend_shared<LANES> shared;
    launch_next();
    const attend_range range = range_of(j, j.a.position[blockIdx.z], j.a.first_page[blockIdx.z]);
    for (int span = blockIdx.x; span < range.n_span; span += gridDim.x) {
        if (span >= (int)gridDim.x)
            __syncthreads(); /* all have read what the span before left */
        attend_span(j, shared, range, span, blockIdx.y, blockIdx.z);
    }
}

/* A block has a row, a thread one pair of a key's after the other, and the same of its value's. */
enum { STORE_THREADS = 128 };
__global__ void __launch_bounds__(STORE_THREADS) store_rows(const __grid_constant__ cuda_attend a) {
    const int d = (int)a.kv.d_head, row = blockIdx.x, n_pair = (int)a.kv.n_kv_head * d / 2;
    const int n_turn = a.cos_sin ? (int)a.n_rot / 2 : 0;
    launch_next();
    launch_wait();
    const int position = a.position[row];
    const int64_t page = a.pages[a.first_page[row] + position / CUDA_PAGE] * a.kv.page;
#pragma unroll 4
    for (int n = threadIdx.x; n < n_pair; n += STORE_THREADS) {
        const int head = n / (d / 2), i = n % (d / 2);
        const int2 at = pair_elements(a, i);
        const float *key = a.k + row * a.ldk + head * d, *value = a.v + row * a.ldv + head * d;
        float2 x = make_float2(key[at.x], key[at.y]);
        x = i < n_turn ? pair_rotate(x, pair_table(a, row, position, i)) : x;
        const int64_t to = page + (head * CUDA_PAGE + position % CUDA_PAGE) * d;
        ((__half *)a.kv.k)[to + at.x] = __float2half_rn(x.x);
        ((__half *)a.kv.k)[to + at.y] = __float2half_rn(x.y);
        ((__half *)a.kv.v)[to + at.x] = __float2half_rn(value[at.x]);
        ((__half *)a.kv.v)[to + at.y] = __float2half_rn(value[at.y]);
    }
}

/* Counters stand where every shape of launch has them. */
enum { COUNTERS = 1 << 14, COUNTER_BYTES = COUNTERS * (int)sizeof(unsigned) };

/* What the launchers work out once. */
static inline int attend_make(const cuda_attend *a, attend_job *j) {
    const int64_t d = a->kv.d_head;
    *j = attend_job{*a};
    if (d < 8 || d > 256 || d % 8 || a->n_rot > d || a->n_row < 1 || a->n_row > 65535 ||
        a->n_head % a->kv.n_kv_head || a->n_row * a->n_head > COUNTERS)
        return CUDA_UNSUPPORTED;
    if (a->leaves.data && a->n_row == 1) {
        if (d % 32)
            return CUDA_UNSUPPORTED;
        j->leaves = codes_of(a->leaves, a->n_head * d);
    }
    j->n_group = (int)(a->n_head / a->kv.n_kv_head);
    j->n_span = CUDA_MAX_SPLIT;
    j->arrived = (unsigned *)a->scratch;
    j->parts = (float *)((uint8_t *)a->scratch + COUNTER_BYTES);
    return 0;
}

size_t attend_scratch(int64_t n_row, int64_t n_head, int64_t d_head) {
    return COUNTER_BYTES + (size_t)(n_row * n_head * CUDA_MAX_SPLIT * (d_head + 2)) * sizeof(float);
}

static bool can_store(const cuda_attend *a) {
    const int64_t d = a->kv.d_head;
    return d >= 8 && d <= 256 && d % 8 == 0 && a->n_rot <= d && a->n_row >= 1 && a->n_row <= 65535;
}

int store_launch(const cuda_attend *a, cuda_stream s) {
    if (!can_store(a))
        return CUDA_UNSUPPORTED;
    const int e = prepare(store_rows, 0);
    return e ? e : launch(store_rows, dim3((unsigned)a->n_row), dim3(STORE_THREADS), 0, s, *a);
}

int attend_launch(const cuda_attend *a, cuda_stream s) {
    const int64_t d = a->kv.d_head;
    attend_job j;
    int e = attend_make(a, &j);
    if (e)
        return e;
    auto *const kernel = d <= 64 ? attend_one<8> : d <= 128 ? attend_one<16> : attend_one<32>;
    /* Blocks of many rows take several parts of a sequence, one after the other: the same parts. */
    const int64_t n_block = a->kv.n_kv_head * head_blocks(j.n_group), enough = 4 * device_sm_count();
    const int64_t parts = enough / (n_block * a->n_row);
    const dim3 grid((unsigned)(parts < 1          ? 1
                               : parts > j.n_span ? j.n_span
                                                  : parts),
                    (unsigned)n_block, (unsigned)a->n_row);
    e = prepare(kernel, 0);
    return e ? e : launch(kernel, grid, dim3(ATTEND_THREADS), 0, s, j);
}
