/* route.cu - the router of a mixture of experts: chooses each row's experts, and lists the rows by expert.
 *
 * A warp has a row. Scores and choices are in shared memory, as keys whose order is that of the floats. The
 * list is made by one block: it counts the pairs of each expert, and gives each a place. The order of an
 * expert's pairs is not the same in every run, and no result depends on it. */
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launches.h"
#include "kernels/cuda/row_math.cuh"

enum { ROUTE_MAX_WARPS = 16, LIST_THREADS = 1024, ROUTE_SHARED = 48 << 10 };

struct route_job {
    cuda_route a;
    cuda_expert_list few, wide;
    bool lists;                 /* the launch has one block, which also makes the lists */
    int64_t stride, codes_step; /* bytes of a row of the router, and of codes */
};

/* ---- choosing ---- */

/* A float's place among all floats; NaN is the lowest. 0 is below all. */
__device__ __forceinline__ uint32_t key_of(float x) {
    const uint32_t u = __float_as_uint(x);
    return x != x ? 1 : u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* The memory of a warp: scores [n], the keys of its choice [n]; [groups] sums of groups. */
struct route_memory {
    float *scores;
    uint32_t *keys;
};

/* The largest of n keys that are not chosen, and its lowest index. */
enum : uint32_t { CHOSEN = UINT32_MAX };
struct best_key {
    uint32_t key;
    int at;
};
__device__ __forceinline__ best_key best_of(const uint32_t *keys, int n) {
    const int lane = threadIdx.x % 32;
    best_key b = {0, INT32_MAX};
    for (int i = lane; i < n; i += 32)
        if (keys[i] > b.key && keys[i] != CHOSEN)
            b = {keys[i], i};
    const uint32_t m = max_warp(b.key);
    b.at = (int)~max_warp(~(uint32_t)(b.key == m ? b.at : INT32_MAX));
    b.key = m;
    return b;
}

/* The sum of the `want` largest of n scores whose keys are given, by one thread. */
__device__ static float largest_sum(const uint32_t *keys, const float *choice, int n, int want) {
    uint32_t key = UINT32_MAX;
    int at = -1;
    float sum = 0.0f;
    for (int w = 0; w < want; w++) {
        best_key b = {0, -1};
        for (int i = 0; i < n; i++)
            if ((keys[i] < key || (keys[i] == key && i > at)) && keys[i] > b.key)
                b = {keys[i], i};
        if (b.at < 0)
            break;
        key = b.key, at = b.at;
        sum = __fadd_rn(sum, choice[at]);
    }
    return sum;
}

/* Sets the keys of experts outside the best groups to 0. choice: [n_expert], overwritten. */
__device__ static void groups_exclude(const cuda_route &a, const route_memory &m, float *choice) {
    const int lane = threadIdx.x % 32, n_group = (int)a.n_group;
    const int each = max((int)(a.n_expert / n_group), 1);
    for (int g = lane; g < n_group; g += 32) {
        const float sum = largest_sum(m.keys + g * each, choice + g * each, each, a.group_best);
        choice[g * each] = __uint_as_float(key_of(sum)); /* only this thread reads the group's choice */
    }
    __syncwarp();
    for (int w = 0; w < a.group_used; w++) {
        best_key b = {0, INT32_MAX};
        for (int g = lane; g < n_group; g += 32)
            if (__float_as_uint(choice[g * each]) > b.key)
                b = {__float_as_uint(choice[g * each]), g};
        const uint32_t best = max_warp(b.key);
        const int at = (int)~max_warp(~(uint32_t)(b.key == best ? b.at : INT32_MAX));
        if (lane == 0 && at < n_group)
            choice[at * each] = 0.0f; /* used */
        __syncwarp();
    }
    for (int i = lane; i < a.n_expert; i += 32)
        if (i / each >= n_group || __float_as_uint(choice[i / each * each]) != 0)
            m.keys[i] = 0;
    __syncwarp();
}

__device__ __forceinline__ float warp_total(float x) {
    for (int o = 1; o < 32; o *= 2)
        x = __fadd_rn(x, __shfl_xor_sync(~0u, x, o));
    return x;
}
__device__ __forceinline__ float warp_largest(float x) {
    for (int o = 1; o < 32; o *= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

/* x [n] becomes its softmax. */
__device__ static void softmax(float *x, int n) {
    const int lane = threadIdx.x % 32;
    float max = -INFINITY, sum = 0.0f;
    for (int i = lane; i < n; i += 32)
        max = fmaxf(max, x[i]);
    max = warp_largest(max);
    for (int i = lane; i < n; i += 32)
        sum = __fadd_rn(sum, x[i] = expf(x[i] - max));
    sum = warp_total(sum);
    for (int i = lane; i < n; i += 32)
        x[i] = __fdiv_rn(x[i], sum);
    __syncwarp();
}

__device__ static void scores_make(const cuda_route &a, const float *logits, float *scores) {
    for (int i = threadIdx.x % 32; i < a.n_expert; i += 32) {
        const float x = __ldcg(logits + i);
        scores[i] = a.score == SCORE_SIGMOID         ? sigmoid(x)
                    : a.score == SCORE_SQRT_SOFTPLUS ? sqrtf(x > 20.0f ? x : log1pf(expf(x)))
                                                     : x;
    }
    __syncwarp();
    if (a.score == SCORE_SOFTMAX)
        softmax(scores, (int)a.n_expert);
}

/* Normalises and scales the weights [n_used]. */
__device__ static void weigh(const cuda_route &a, float *weights) {
    const int lane = threadIdx.x % 32, n = (int)a.n_used;
    float sum = 1e-20f; /* no division by zero */
    if (a.score == SCORE_SOFTMAX_LATE)
        softmax(weights, n);
    if (a.score == SCORE_SIGMOID_LATE)
        for (int i = lane; i < n; i += 32)
            weights[i] = sigmoid(weights[i]);
    __syncwarp();
    for (int i = 0; i < n; i++)
        sum = __fadd_rn(sum, weights[i]);
    __syncwarp();
    for (int i = lane; i < n; i += 32)
        weights[i] = __fmul_rn(a.normalise ? __fdiv_rn(weights[i], sum) : weights[i], a.scale);
    __syncwarp();
}

/* Moves the ids of the chosen experts, whose keys are CHOSEN, to the beginning of `keys`, in ascending order,
 * and their scores to that of `scores`. */
__device__ static void chosen_gather(const cuda_route &a, const route_memory &m) {
    const int lane = threadIdx.x % 32;
    for (int first = 0, at = 0; first < a.n_expert; first += 32) {
        const int i = first + lane;
        const bool is = i < a.n_expert && m.keys[i] == CHOSEN;
        const float score = is ? m.scores[i] : 0.0f;
        const uint32_t all = __ballot_sync(~0u, is);
        const int to = at + __popc(all & ((1u << lane) - 1));
        if (is)
            m.keys[to] = (uint32_t)i, m.scores[to] = score;
        at += __popc(all);
        __syncwarp();
    }
}

__device__ static void row_route(const cuda_route &a, int64_t row, const route_memory &m) {
    const int lane = threadIdx.x % 32, n = (int)a.n_expert;
    float *const out = a.out + row * a.ldo;
    scores_make(a, a.logits + row * a.ldx, m.scores);
    for (int i = lane; i < n; i += 32) {
        const float choice = a.bias ? __fadd_rn(m.scores[i], a.bias[i]) : m.scores[i];
        m.keys[i] = key_of(choice);
    }
    __syncwarp();
    if (a.n_group > 1) {
        float *const choice = (float *)(m.keys + n);
        for (int i = lane; i < n; i += 32)
            choice[i] = a.bias ? __fadd_rn(m.scores[i], a.bias[i]) : m.scores[i];
        __syncwarp();
        groups_exclude(a, m, choice);
    }
    for (int64_t u = 0; u < a.n_used; u++) {
        const best_key b = best_of(m.keys, n);
        /* A key of 0 is left if the groups have fewer experts: then the first one that is not chosen. */
        int at = b.key ? b.at : INT32_MAX;
        for (int i = lane; b.key == 0 && i < n; i += 32)
            at = m.keys[i] == 0 ? min(at, i) : at;
        at = (int)~max_warp(~(uint32_t)at);
        if (lane == 0 && at < n)
            m.keys[at] = CHOSEN;
        __syncwarp();
    }
    chosen_gather(a, m);
    weigh(a, m.scores);
    for (int i = lane; i < a.n_used; i += 32) {
        const float weight = m.scores[i];
        out[i] = (float)m.keys[i];
        out[a.n_used + i] = a.times ? __fmul_rn(weight, a.times[m.keys[i]]) : weight;
    }
}

/* ---- lists ---- */

struct list_memory {
    int count[ROUTE_MAX_EXPERT], first[ROUTE_MAX_EXPERT];
    int scan[2][32];
};

/* The list of one row with these experts, in ascending order. */
__device__ static void list_one(const cuda_route &a, const uint32_t *ids, uint8_t *to,
                                const cuda_expert_list &l, int align) {
    auto *const tiles = (cuda_expert_tile *)(to + l.tiles);
    int *const pairs = (int *)(to + l.pairs);
    for (int u = threadIdx.x; u < a.n_used; u += blockDim.x) {
        tiles[u] = {(int)ids[u], u * align, 1, 0};
        for (int i = 0; i < align; i++)
            pairs[u * align + i] = i ? -1 : u;
    }
    if (threadIdx.x == 0)
        ((int *)to)[0] = (int)a.n_used, ((int *)to)[1] = (int)a.n_used * align;
}

/* Makes a list by all threads of a block. `align`: experts begin at multiples of it. ids: of one row. */
__device__ static void list_make(const cuda_route &a, const uint32_t *ids, uint8_t *to,
                                 const cuda_expert_list &l, int tile, int align, list_memory *m) {
    auto *const tiles = (cuda_expert_tile *)(to + l.tiles);
    int *const pairs = (int *)(to + l.pairs);
    const int n = (int)a.n_expert, n_used = (int)a.n_used, n_pair = (int)a.n_row * n_used,
              lane = threadIdx.x % 32;
    /* Calls use(pair, its expert) for the thread's pairs. Several are read together. */
    auto each_expert = [&](auto use) {
        enum { TOGETHER = 8 };
        for (int first = threadIdx.x; first < n_pair; first += TOGETHER * blockDim.x) {
            int e[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; i++) {
                const int p = first + i * blockDim.x, row = p / n_used;
                e[i] = p < n_pair ? (int)__ldcg(a.out + row * a.ldo + (p - row * n_used)) : -1;
            }
#pragma unroll
            for (int i = 0; i < TOGETHER; i++)
                if (e[i] >= 0)
                    use(first + i * (int)blockDim.x, e[i]);
        }
    };
    __syncthreads();
    if (a.n_row == 1) {
        list_one(a, ids, to, l, align);
        return;
    }
    for (int e = threadIdx.x; e < n; e += blockDim.x)
        m->count[e] = 0;
    __syncthreads();
    each_expert([&](int, int e) { atomicAdd(&m->count[e], 1); });
    __syncthreads();
    if (threadIdx.x < 32) { /* a lane has `each` experts */
        const int each = (n + 31) / 32, begin = min(n, lane * each), end = min(n, begin + each);
        int pair = 0, at = 0;
        for (int e = begin; e < end; e++) {
            pair += (m->count[e] + align - 1) / align * align;
            at += (m->count[e] + tile - 1) / tile;
        }
        const int own_pair = pair, own_at = at;
        for (int o = 1; o < 32; o *= 2) {
            const int before = __shfl_up_sync(~0u, pair, o), at_before = __shfl_up_sync(~0u, at, o);
            pair += lane >= o ? before : 0;
            at += lane >= o ? at_before : 0;
        }
        if (lane == 31)
            ((int *)to)[0] = at, ((int *)to)[1] = pair;
        pair -= own_pair, at -= own_at;
        for (int e = begin; e < end; e++) {
            const int count = m->count[e], all = (count + align - 1) / align * align;
            m->first[e] = pair;
            for (int i = 0; i < count; i += tile)
                tiles[at++] = {e, pair + i, min(tile, count - i), 0};
            for (int i = count; i < all; i++)
                pairs[pair + i] = -1;
            pair += all;
        }
    }
    __syncthreads();
    each_expert([&](int p, int e) { pairs[atomicAdd(&m->first[e], 1)] = p; });
}

/* ids: shared memory with the experts of the row, if there is only one. */
__device__ static void lists_make(const route_job &j, const uint32_t *ids) {
    __shared__ list_memory memory;
    const int few = CUDA_EXPERT_FEW / (j.a.two ? 2 : 1);
    if (j.a.few)
        list_make(j.a, ids, (uint8_t *)j.a.few, j.few, few, 1, &memory);
    if (j.a.wide)
        list_make(j.a, ids, (uint8_t *)j.a.wide, j.wide, CUDA_EXPERT_WIDE, CUDA_EXPERT_ALIGN, &memory);
}

/* ---- the router's product ---- */

/* Adds one, after all that the thread has seen written, and before all that it reads next. */
__device__ __forceinline__ unsigned atomic_add_ordered(unsigned *p) {
    unsigned before;
#if __CUDA_ARCH__ >= 700
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(p) : "memory");
#else
    before = atomicAdd(p, 1);
#endif
    return before;
}

/* Generated rows. Blocks: x has 8 experts, one for each warp; y a row. All blocks of a row norm it. The last
 * one of a row chooses, and the last one of all makes the lists. */
template <int TYPE>
__global__ void __launch_bounds__(EXPERT_THREADS) route_few(const __grid_constant__ route_job j) {
    extern __shared__ __align__(16) float row_of[]; /* [k rounded up to 4], then memory of a choice */
    __shared__ float sums[EXPERT_WARPS];
    __shared__ bool is_last;
    const cuda_route &a = j.a;
    const int row = blockIdx.y, k = (int)a.w.k, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int e = (int)blockIdx.x * EXPERT_WARPS + warp, n = (int)a.n_expert;
    const float *const x = a.x + row * a.ld_row;
    const uint8_t *const w = (const uint8_t *)a.w.data + (int64_t)min(e, n - 1) * j.stride;
    launch_next();
    for (int i = 128 * lane; i < j.stride; i += 128 * 32)
        prefetch_l2(w + i);
    if (a.norm && 32 * (int)threadIdx.x < k)
        prefetch_l2(a.norm + 32 * threadIdx.x);
    launch_wait();
    float square = 0.0f;
#pragma unroll 8
    for (int i = threadIdx.x; i < k; i += EXPERT_THREADS) {
        const float v = __ldcg(x + i);
        row_of[i] = v;
        square = __fmaf_rn(v, v, square);
    }
    if (threadIdx.x < 4 && k + (int)threadIdx.x < (k + 3) / 4 * 4)
        row_of[k + threadIdx.x] = 0.0f; /* read with the last elements */
    if (a.norm) {
        const float factor = norm_factor_of(block_sum<EXPERT_WARPS>(square, sums), (float)k, a.eps);
#pragma unroll 8
        for (int i = threadIdx.x; i < k; i += EXPERT_THREADS) {
            row_of[i] = __fmul_rn(__fmul_rn(row_of[i], factor), a.norm[i]);
            if (blockIdx.x == 0)
                a.normed[row * a.ld_normed + i] = row_of[i];
        }
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll 8
    for (int i = 4 * lane; i < k; i += 128)
        sum = four_fma(four_weights<TYPE>(w, i), *(const float4 *)(row_of + i), sum);
    sum = pairs_sum(sum, 32);
    if (lane == 0 && e < n)
        a.logits[row * a.ldx + e] = a.w_bias ? __fadd_rn(sum, a.w_bias[e]) : sum;
    for (int i = 32 * e + lane; a.codes && i < k; i += 32 * EXPERT_WARPS * (int)gridDim.x)
        codes_store((uint8_t *)a.codes + row * j.codes_step, k, i, row_of[i]);
    auto ends_last = [&](unsigned *ended, unsigned n) {
        __syncthreads();
        if (threadIdx.x == 0) {
            is_last = atomic_add_ordered(ended) == n - 1;
            if (is_last)
                *ended = 0;
        }
        __syncthreads();
        return is_last;
    };
    if (!ends_last(a.ended + 1 + row, gridDim.x))
        return;
    if (warp == 0)
        row_route(a, row, {row_of, (uint32_t *)row_of + n});
    if (a.n_row > 1 && !ends_last(a.ended, (unsigned)a.n_row))
        return;
    lists_make(j, (const uint32_t *)row_of + n);
}

/* Prompt rows: a block has 32 rows and 64 experts, and K in steps of 64. Its threads are four parts, each
 * with a quarter of every step; a thread has 4 x 4 sums. The next step is read while one is added up. */
enum {
    TILE_ROWS = 32,
    TILE_EXPERTS = 64,
    TILE_STEP = 64,
    TILE_STRIDE = TILE_STEP + 4,
    TILE_PARTS = 4,
    TILE_SUMS = 128, /* threads of a part */
    TILE_THREADS = TILE_PARTS * TILE_SUMS,
    LOAD_ROWS = TILE_THREADS / (TILE_STEP / 4), /* rows that the threads read at once */
    LOADS = TILE_EXPERTS / LOAD_ROWS
};
static_assert(TILE_ROWS == LOAD_ROWS, "each thread reads one quad of rows");
struct logit_tile {
    float rows[TILE_ROWS][TILE_STRIDE], experts[TILE_EXPERTS][TILE_STRIDE];
};
template <int TYPE>
__global__ void __launch_bounds__(TILE_THREADS) route_logits(const __grid_constant__ route_job j) {
    __shared__ __align__(16) logit_tile m;
    const cuda_route &a = j.a;
    const int k = (int)a.w.k, t = threadIdx.x, r0 = (int)blockIdx.y * TILE_ROWS,
              e0 = (int)blockIdx.x * TILE_EXPERTS, quad = t % (TILE_STEP / 4) * 4, from = t / (TILE_STEP / 4);
    const int part = t / TILE_SUMS, of = t % TILE_SUMS;
    const int own_row = of / 16, own_expert = of % 16; /* and every 8th row, every 16th expert after it */
    float sum[4][4] = {};
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    launch_next();
    launch_wait();
    const float *const x = a.x + min((int64_t)r0 + from, a.n_row - 1) * a.ld_row;
    const uint8_t *w[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        w[i] = (const uint8_t *)a.w.data + min((int64_t)e0 + from + i * LOAD_ROWS, a.n_expert - 1) * j.stride;
    float4 next_x = four_inputs(x, quad, k), next_w[LOADS];
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        next_w[i] = quad < k ? four_weights<TYPE>(w[i], quad) : none;
    for (int at = 0; at < k; at += TILE_STEP) {
        const int next = at + TILE_STEP + quad;
        __syncthreads();
        *(float4 *)&m.rows[from][quad] = next_x;
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            *(float4 *)&m.experts[from + i * LOAD_ROWS][quad] = next_w[i];
        __syncthreads();
        if (next < k) {
            next_x = four_inputs(x, next, k);
#pragma unroll
            for (int i = 0; i < LOADS; i++)
                next_w[i] = four_weights<TYPE>(w[i], next);
        } else {
            next_x = none;
#pragma unroll
            for (int i = 0; i < LOADS; i++)
                next_w[i] = none;
        }
#pragma unroll
        for (int i = 0; i < TILE_STEP / TILE_PARTS; i += 4) {
            const int in = part * (TILE_STEP / TILE_PARTS) + i;
            float4 u[4], v[4];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                u[c] = *(const float4 *)&m.rows[own_row + c * 8][in];
                v[c] = *(const float4 *)&m.experts[own_expert + c * 16][in];
            }
#pragma unroll
            for (int r = 0; r < 4; r++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    sum[r][c] = four_fma(v[c], u[r], sum[r][c]);
        }
    }
    /* The parts' sums, in order; each part finishes a row of each thread. */
    float(*const sums)[TILE_PARTS][TILE_SUMS] = (float(*)[TILE_PARTS][TILE_SUMS]) & m;
    for (int r = 0; r < 4; r++) {
        __syncthreads();
#pragma unroll
        for (int c = 0; c < 4; c++)
            sums[c][part][of] = sum[r][c];
        __syncthreads();
        const int64_t row = r0 + own_row + r * 8, e = e0 + own_expert + part * 16;
        float v = sums[part][0][of];
#pragma unroll
        for (int p = 1; p < TILE_PARTS; p++)
            v = __fadd_rn(v, sums[part][p][of]);
        if (row < a.n_row && e < a.n_expert)
            a.logits[row * a.ldx + e] = a.w_bias ? __fadd_rn(v, a.w_bias[e]) : v;
    }
}

static int few_launch(const route_job *j, cuda_stream s) {
    const int type = j->a.w.format.type;
    auto *const kernel = type == TYPE_F32   ? route_few<TYPE_F32>
                         : type == TYPE_F16 ? route_few<TYPE_F16>
                                            : route_few<TYPE_BF16>;
    const int64_t floats = j->a.w.k > 3 * j->a.n_expert ? j->a.w.k : 3 * j->a.n_expert;
    const size_t bytes = (size_t)floats * sizeof(float) + 16;
    const int e = j->a.n_row > 65535 || bytes > (size_t)device_shared_bytes() - 12288
                      ? (int)CUDA_UNSUPPORTED
                      : prepare(kernel, bytes);
    const dim3 grid((unsigned)((j->a.n_expert + EXPERT_WARPS - 1) / EXPERT_WARPS), (unsigned)j->a.n_row);
    return e ? e : launch(kernel, grid, dim3(EXPERT_THREADS), bytes, s, *j);
}

static int logits_launch(const route_job *j, cuda_stream s) {
    const int type = j->a.w.format.type;
    auto *const kernel = type == TYPE_F32   ? route_logits<TYPE_F32>
                         : type == TYPE_F16 ? route_logits<TYPE_F16>
                                            : route_logits<TYPE_BF16>;
    const dim3 grid((unsigned)((j->a.n_expert + TILE_EXPERTS - 1) / TILE_EXPERTS),
                    (unsigned)((j->a.n_row + TILE_ROWS - 1) / TILE_ROWS));
    const int e = j->a.norm || j->a.codes ? (int)CUDA_UNSUPPORTED : prepare(kernel, 0);
    return e ? e : launch(kernel, grid, dim3(TILE_THREADS), 0, s, *j);
}

/* ---- launching ---- */

__global__ void __launch_bounds__(32 * ROUTE_MAX_WARPS) route_rows(const __grid_constant__ route_job j) {
    extern __shared__ __align__(16) uint8_t shared[];
    const int warp = threadIdx.x / 32, n_warp = blockDim.x / 32, n = (int)j.a.n_expert;
    float *const own = (float *)shared + warp * 3 * n;
    launch_next();
    launch_wait();
    for (int64_t row = (int64_t)blockIdx.x * n_warp + warp; row < j.a.n_row; row += gridDim.x * n_warp)
        row_route(j.a, row, {own, (uint32_t *)own + n});
    if (j.lists)
        lists_make(j, (const uint32_t *)shared + n);
}

__global__ void __launch_bounds__(LIST_THREADS) route_lists(const __grid_constant__ route_job j) {
    launch_next();
    launch_wait();
    lists_make(j, nullptr);
}

int route_launch(const cuda_route *a, cuda_stream s) {
    const int64_t n_pair = a->n_row * a->n_used;
    if (a->n_row < 1 || a->n_expert < 1 || a->n_expert > ROUTE_MAX_EXPERT || a->n_used < 1 ||
        a->n_used > a->n_expert || n_pair > INT32_MAX / 2)
        return CUDA_UNSUPPORTED;
    route_job j = {*a, cuda_expert_few_of(n_pair, a->n_expert, a->two),
                   cuda_expert_wide_of(n_pair, a->n_expert), a->n_row <= CUDA_MAX_ROWS};
    if (a->w.data) {
        const int type = a->w.format.type;
        if (a->w.format.layout != PACK_ROWS || (type != TYPE_F32 && type != TYPE_F16 && type != TYPE_BF16))
            return CUDA_UNSUPPORTED;
        j.stride = rows_stride(a->w.k) * (type == TYPE_F32 ? 4 : 2);
        j.codes_step = cuda_expert_row(a->w.k);
        if (!a->many)
            return few_launch(&j, s);
        const int e = logits_launch(&j, s);
        if (e)
            return e;
    }
    int warps = (int)(ROUTE_SHARED / 2 / (a->n_expert * 3 * sizeof(float)));
    warps = warps > ROUTE_MAX_WARPS ? (int)ROUTE_MAX_WARPS : warps < 1 ? 1 : warps;
    const unsigned blocks = j.lists ? 1 : (unsigned)((a->n_row + warps - 1) / warps);
    const size_t bytes = (size_t)warps * 3 * (size_t)a->n_expert * sizeof(float);
    int e = prepare(route_rows, bytes);
    e = e ? e : launch(route_rows, dim3(blocks), dim3(32 * (unsigned)warps), bytes, s, j);
    if (e || j.lists)
        return e;
    e = prepare(route_lists, 0);
    return e ? e : launch(route_lists, dim3(1), dim3(LIST_THREADS), 0, s, j);
}
